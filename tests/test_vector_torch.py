"""A vector environment that lives in torch, converted to NumPy by Gymnasium's own wrapper: `pytest -m torch`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from recorder import Recording, VectorRecorder, replay

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'gymnasium-recorder[torch]'")
conversion = pytest.importorskip(
    "gymnasium.wrappers.vector.array_conversion", reason="it needs Gymnasium 1.2 and array-api-compat"
)


class TorchEnv(VectorEnv[Any, Any, Any]):
    """Points that are pushed about; all that it takes and returns are tensors, which it changes in place."""

    def __init__(self, lengths: tuple[int, ...], mode: AutoresetMode) -> None:
        self.num_envs, self.mode = len(lengths), mode
        self.lengths = torch.tensor(lengths)
        self.single_observation_space = spaces.Dict(
            point=spaces.Box(-np.inf, np.inf, (2,), np.float32), camera=spaces.Box(0, 255, (4, 4, 3), np.uint8)
        )
        self.single_action_space = spaces.Box(-1, 1, (2,), np.float32)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.metadata = {"autoreset_mode": mode}
        self.points = torch.zeros(self.num_envs, 2)
        self.camera = torch.zeros(self.num_envs, 4, 4, 3, dtype=torch.uint8)
        self.steps = torch.zeros(self.num_envs, dtype=torch.int64)
        self.over = torch.zeros(self.num_envs, dtype=torch.bool)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        mask = torch.ones(self.num_envs, dtype=torch.bool) if not options else options["reset_mask"]
        assert isinstance(mask, torch.Tensor)
        self._begin(mask)
        return self._observe(), {"steps": self.steps}

    def _begin(self, mask: Any) -> None:
        self.points[mask], self.steps[mask], self.over[mask] = 0.0, 0, False

    def _observe(self) -> Any:
        self.camera[:] = self.steps[:, None, None, None]
        return {"point": self.points, "camera": self.camera}

    def step(self, actions: Any) -> Any:
        assert isinstance(actions, torch.Tensor)
        filler = self.over.clone() if self.mode == AutoresetMode.NEXT_STEP else torch.zeros_like(self.over)
        self._begin(filler)
        self.points[~filler] += actions[~filler]
        self.steps[~filler] += 1
        done = (self.steps >= self.lengths) & ~filler
        rewards = torch.where(filler, 0.0, self.points[:, 0])
        infos: dict[str, Any] = {"steps": self.steps.clone()}
        if self.mode == AutoresetMode.SAME_STEP and done.any():
            infos |= {"final_obs": {key: value.clone() for key, value in self._observe().items()}, "_final_obs": done}
            self._begin(done)
        self.over = done.clone()
        return self._observe(), rewards, done, torch.zeros_like(done), infos


def pushes(step: int, lanes: int) -> Any:
    return np.random.default_rng(step).uniform(-1, 1, (lanes, 2)).astype(np.float32)


@pytest.mark.parametrize("mode", AutoresetMode)
def test_an_environment_in_torch_is_recorded_as_it_moved(tmp_path: Path, mode: AutoresetMode) -> None:
    envs = conversion.ArrayConversion(TorchEnv((3, 5), mode), env_xp=torch, target_xp=np)
    with VectorRecorder(envs, tmp_path, verbose=0, fsync=False) as recorder:
        observations, _ = recorder.reset(seed=0)
        assert isinstance(observations["point"], np.ndarray)
        for step in range(12):
            *_, terminated, _, _ = recorder.step(pushes(step, 2))
            if mode == AutoresetMode.DISABLED and terminated.any():
                recorder.reset(options={"reset_mask": terminated})
    episodes = list(Recording(tmp_path))
    whole = [episode for episode in episodes if episode.end == "terminated"]
    assert {len(episode) for episode in whole} == {3, 5} and len(whole) >= 4
    for episode in episodes:
        moved = np.cumsum(episode.actions, axis=0, dtype=np.float32)
        np.testing.assert_allclose(episode.observations["point"], np.vstack([np.zeros((1, 2)), moved]), atol=1e-6)
        np.testing.assert_allclose(episode.rewards, moved[:, 0], atol=1e-6)
        assert episode.observations["camera"][:, 0, 0, 0].tolist() == list(range(len(episode) + 1))
        assert episode.seed is None and episode.generator is None
        assert "final_observation" not in episode.labels


def test_a_replay_of_it_says_that_no_seed_is_known(tmp_path: Path) -> None:
    envs = conversion.ArrayConversion(TorchEnv((3,), AutoresetMode.NEXT_STEP), env_xp=torch, target_xp=np)
    with VectorRecorder(envs, tmp_path, verbose=0, fsync=False) as recorder:
        recorder.reset(seed=0)
        for step in range(3):
            recorder.step(pushes(step, 1))
    from tests.environments import CountingEnv

    report = replay(Recording(tmp_path)[0], CountingEnv())
    assert report.verdict == "diverged"
    assert any("neither a seed nor a generator's state" in note for note in report.notes)
