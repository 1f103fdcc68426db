"""Frames and states of vector environments: what can be seen is recorded, and what cannot is refused with a reason."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from recorder import EpisodeError, Recorder, Recording, RowError, VectorRecorder, replay
from recorder.replaying.states import WithState
from recorder.storages.base import Run
from recorder.vector.seeing import batch
from recorder.writing import committing


class WalkEnv(gym.Env[Any, Any]):
    """Walks from a place that no seed says, which is its state, and shows it as a grey picture."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012 - as Gymnasium has it

    def __init__(self, length: int = 3, render_mode: str | None = "rgb_array") -> None:
        self.length, self.render_mode = length, render_mode
        self.observation_space = spaces.Box(-1e9, 1e9, (), np.float64)
        self.action_space = spaces.Discrete(4)
        self.place, self.episodes = 0, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.episodes += 1
        self.place, self.steps = self.episodes * 20, 0
        return np.float64(self.place), {}

    def step(self, action: Any) -> Any:
        self.place += 1
        self.steps += 1
        return np.float64(self.place), 1.0, self.steps == self.length, False, {}

    def render(self) -> Any:
        return np.full((8, 8, 3), self.place, np.uint8)

    def get_state(self) -> Any:
        return {"place": np.int64(self.place), "steps": self.steps}

    def set_state(self, state: Any) -> None:
        self.place, self.steps = int(state["place"]), int(state["steps"])


def walks(kind: Any, mode: AutoresetMode, *lengths: int) -> Any:
    return kind([partial(WalkEnv, length) for length in lengths], autoreset_mode=mode)


def run(envs: Any, path: Path, steps: int, **options: Any) -> list[Any]:
    with VectorRecorder(envs, path, verbose=0, fsync=False, **options) as recorder:
        recorder.reset(seed=0)
        for _ in range(steps):
            recorder.step(np.zeros(recorder.action_space.shape, recorder.action_space.dtype))
    return list(Recording(path))


@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
def test_frames_and_states_are_those_of_each_moment(tmp_path: Path, kind: Any) -> None:
    envs = walks(kind, AutoresetMode.NEXT_STEP, 3, 5)
    episodes = run(envs, tmp_path, 12, record_render=True, record_state=True)
    assert {len(episode) for episode in episodes if episode.end == "terminated"} == {3, 5}
    for episode in episodes:
        places = episode.observations.tolist()
        assert episode.columns["render"][:][:, 0, 0, 0].tolist() == places
        assert episode.columns["state/place"][:].tolist() == places
        assert episode.columns["state/steps"][:].tolist() == list(range(len(episode) + 1))


def test_a_state_equals_that_of_a_single_recorder_and_replays(tmp_path: Path) -> None:
    episode = run(walks(SyncVectorEnv, AutoresetMode.NEXT_STEP, 4), tmp_path / "vector", 9, record_state=True)[1]
    assert replay(episode, WalkEnv(4), mode="states").verdict == "exact"
    assert replay(episode, WalkEnv(4), mode="actions").verdict == "diverged"
    with Recorder(WalkEnv(4), tmp_path / "single", record_state=True, verbose=0) as env:
        for _ in range(2):
            env.reset()
            for _ in range(4):
                env.step(0)
    single = Recording(tmp_path / "single")[1]
    assert single.columns["state/place"][:].tolist() == episode.columns["state/place"][:].tolist()


def test_what_nobody_saw_is_marked_missing(tmp_path: Path) -> None:
    envs = walks(SyncVectorEnv, AutoresetMode.SAME_STEP, 3, 4)
    episodes = run(envs, tmp_path, 13, record_render=True, record_state=True)
    whole = [episode for episode in episodes if episode.end == "terminated"]
    assert len(whole) == 7
    for episode in whole:
        places = episode.observations.tolist()
        assert episode.columns["render"][:][:-1, 0, 0, 0].tolist() == places[:-1]
        assert not episode.columns["render"][-1].any()
        assert episode.columns["state/place"][:].tolist() == [*places[:-1], 0]
        labels = {"final_render": "missing", "final_state": "missing"}
        assert {key: episode.labels.get(key) for key in (*labels, "final_observation")} == {
            **labels,
            "final_observation": None,
        }
        assert replay(episode, WalkEnv(len(episode)), mode="states").verdict == "exact"


def test_a_partial_reset_shows_the_masked_ones_only(tmp_path: Path) -> None:
    envs = walks(SyncVectorEnv, AutoresetMode.DISABLED, 2, 9)
    with VectorRecorder(envs, tmp_path, record_render=True, verbose=0) as recorder:
        recorder.reset(seed=0)
        for step in range(6):
            recorder.step(np.zeros(2, np.int64))
            if step % 2:
                recorder.reset(options={"reset_mask": np.array([True, False])})
    for episode in Recording(tmp_path):
        assert episode.columns["render"][:][:, 0, 0, 0].tolist() == episode.observations.tolist()


def test_states_of_simulators_in_other_processes(tmp_path: Path) -> None:
    def cheetah() -> Any:
        return WithState(gym.make("HalfCheetah-v5", max_episode_steps=5))

    (first, *_) = run(AsyncVectorEnv([cheetah, cheetah]), tmp_path, 7, record_state=True)
    assert first.columns["state"][:].shape[0] == 6
    assert replay(first, cheetah(), mode="states").verdict == "exact"


def test_a_function_of_the_user_is_asked(tmp_path: Path) -> None:
    sync = run(
        walks(SyncVectorEnv, AutoresetMode.NEXT_STEP, 3),
        tmp_path / "sync",
        5,
        record_state=lambda env: np.float64(env.unwrapped.place),
    )
    assert sync[0].columns["state"][:].tolist() == sync[0].observations.tolist()
    batched = run(
        gym.make_vec("CartPole-v1", num_envs=3, vectorization_mode="vector_entry_point"),
        tmp_path / "batched",
        5,
        record_state=lambda envs: list(envs.unwrapped.state.T.copy()),
    )
    for episode in batched:
        np.testing.assert_allclose(episode.columns["state"][:], episode.observations, rtol=1e-6)


def test_frames_of_a_batched_environment(tmp_path: Path) -> None:
    envs = gym.make_vec("CartPole-v1", num_envs=2, vectorization_mode="vector_entry_point", render_mode="rgb_array")
    for episode in run(envs, tmp_path, 4, record_render=True):
        assert episode.columns["render"].shape[1:] == (400, 600, 3)


class TestWhatCannotBeHad:
    def test_frames_without_a_render_mode(self, tmp_path: Path) -> None:
        with pytest.raises(EpisodeError, match="render_mode='rgb_array'"):
            VectorRecorder(SyncVectorEnv([partial(WalkEnv, render_mode=None)]), tmp_path, record_render=True)

    def test_states_that_nobody_offers(self, tmp_path: Path) -> None:
        for kind in (SyncVectorEnv, AsyncVectorEnv):
            envs = kind([partial(gym.make, "CartPole-v1")])
            with pytest.raises(EpisodeError, match="get_state"):
                VectorRecorder(envs, tmp_path, record_state=True)
            envs.close()
        envs = gym.make_vec("CartPole-v1", num_envs=2, vectorization_mode="vector_entry_point")
        with pytest.raises(EpisodeError, match="a state for each"):
            VectorRecorder(envs, tmp_path, record_state=True)

    def test_pictures_that_are_left_out(self, tmp_path: Path) -> None:
        with pytest.raises(EpisodeError, match="may begin an episode"):
            VectorRecorder(SyncVectorEnv([WalkEnv]), tmp_path, when_behind="repeat")  # type: ignore[arg-type]

    def test_states_that_are_not_one_for_each(self, tmp_path: Path) -> None:
        envs = gym.make_vec("CartPole-v1", num_envs=2, vectorization_mode="vector_entry_point")
        with (
            VectorRecorder(envs, tmp_path / "run", record_state=lambda envs: [1.0], verbose=0) as recorder,
            pytest.raises(EpisodeError, match="one value for each of 2"),
        ):
            recorder.reset()
        assert not (tmp_path / "run").exists()

    def test_values_that_are_not_alike(self) -> None:
        for values in ([np.zeros(2), np.zeros(3)], [{"a": 1}, {"b": 1}], [(1, 2), (1,)]):
            with pytest.raises(RowError, match="not alike"):
                batch("state", values)


def test_rewards_of_many_rows_are_summed_as_those_of_few(monkeypatch: pytest.MonkeyPatch) -> None:
    reward = np.arange(20, dtype=np.float64)
    runs = [Run(0, 0, 5, True), Run(1, 7, 8, True), Run(2, 8, 8), Run(3, 9, 20)]
    few = committing.sums(reward, runs)
    assert few == [10.0, 0.0, 0.0, float(sum(range(9, 20)))]
    monkeypatch.setattr(committing, "MANY_ROWS", 1)
    assert committing.sums(reward, runs) == few
