"""States: recorded with each moment, and set again, all of them or the first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from environments import CountingEnv, ScriptEnv, roll
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit

from recorder import EpisodeError, MismatchError, Recorder, Recording, Storage, ZarrStorage, layout, replay, replay_all
from recorder.replaying.states import state_access, state_space
from recorder.storages.hdf5 import HDF5Storage

START = np.random.default_rng()


class Drifting(CountingEnv):
    """Begins wherever it likes, whatever the seed is; its actions move it, and its state can be set."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.offset = float(START.random())
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.offset += 0.25 * float(action)
        return super().step(action)

    def get_state(self) -> Any:
        return {"steps": self.steps, "offset": (self.offset,)}

    def set_state(self, state: Any) -> None:
        self.steps, (offset,) = int(state["steps"]), state["offset"]
        self.offset = float(offset)


class Noisy(Drifting):
    """Adds noise at each step, so that only states set before each of them make it again, and that not quite."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.offset += float(START.random())
        return super().step(action)


class NoMethods(gym.Wrapper[Any, Any, Any, Any]):
    """Hides the methods of what it wraps, as most environments have none."""

    @property
    def unwrapped(self) -> gym.Env[Any, Any]:
        return self


def record(env: gym.Env[Any, Any], path: Path, steps: int = 12, seed: int | None = 0, **options: Any) -> Recording:
    env.action_space.seed(0)
    with Recorder(
        env, path, record_state=options.pop("record_state", True), fsync=False, verbose=False, **options
    ) as recorded:
        recorded.reset(seed=seed)
        for _ in range(steps):
            if any(recorded.step(env.action_space.sample())[2:4]):
                break
    return Recording(path)


def test_a_start_that_is_not_from_the_seed_replays_with_its_state(tmp_path: Path) -> None:
    (episode,) = record(Drifting(6), tmp_path)
    assert {path: column[:].tolist()[:3] for path, column in episode.columns.items() if path.startswith("state")} == {
        "state/steps": [0, 1, 2],
        "state/offset/0": episode.columns["state/offset/0"][:3].tolist(),
    }
    actions = replay(episode, Drifting(6))
    assert actions.divergence is not None
    assert (actions.divergence.step, actions.divergence.leaf) == (0, "observation")
    assert replay(episode, Drifting(6), mode="states").verdict == "exact"
    assert replay(episode, Drifting(6), mode="first-state").verdict == "exact"
    assert [report.verdict for report in replay_all(tmp_path, make_env=Drifting, mode="states")] == ["diverged"], (
        "it is five steps long"
    )


def test_noise_diverges_in_every_mode(tmp_path: Path) -> None:
    (episode,) = record(Noisy(6), tmp_path)
    largest = {}
    for mode in ("states", "first-state"):
        report = replay(episode, Noisy(6), mode=mode)  # type: ignore[arg-type]
        assert report.divergence is not None and report.divergence.step == 1
        largest[mode] = report.errors["observation"]
    assert largest["states"] < 1


def test_wrappers_go_on_counting(tmp_path: Path) -> None:
    (episode,) = record(TimeLimit(Drifting(None), 4), tmp_path)
    assert episode.end == "truncated"
    for mode in ("states", "first-state"):
        assert replay(episode, TimeLimit(Drifting(None), 4), mode=mode).verdict == "exact"  # type: ignore[arg-type]


def get(env: gym.Env[Any, Any]) -> Any:
    return np.array(env.unwrapped.state)  # type: ignore[attr-defined]


def put(env: gym.Env[Any, Any], state: Any) -> None:
    env.unwrapped.state = state  # type: ignore[attr-defined]


def test_functions_of_the_user_where_the_environment_has_no_methods(tmp_path: Path) -> None:
    (episode,) = record(gym.make("CartPole-v1"), tmp_path, record_state=get)
    assert episode.columns["state"].shape == (len(episode) + 1, 4)
    with pytest.raises(EpisodeError, match=r"'states' is not to be had.*get_state\(\).*\(get, set\)"):
        replay(episode, mode="states")
    assert replay(episode, mode="states", states=(get, put)).verdict == "exact"
    assert replay_all(tmp_path, mode="first-state", states=(get, put))[0].verdict == "exact"


def test_an_environment_without_a_state_is_refused_when_it_is_wrapped(tmp_path: Path) -> None:
    with pytest.raises(EpisodeError, match="record_state is not to be had"):
        Recorder(NoMethods(CountingEnv()), tmp_path, record_state=True)
    assert not any(tmp_path.iterdir())


def mujoco() -> gym.Env[Any, Any]:
    pytest.importorskip("mujoco")
    return gym.make("HalfCheetah-v5")


def ant() -> gym.Env[Any, Any]:
    """Return an environment whose reward is made of results of the step before, which are no part of the state."""
    pytest.importorskip("mujoco")
    return gym.make("Ant-v5")


def pong() -> gym.Env[Any, Any]:
    gym.register_envs(pytest.importorskip("ale_py"))
    return gym.make("ALE/Pong-v5", repeat_action_probability=0.25)


@pytest.mark.parametrize(("make", "name"), [(mujoco, "MuJoCo"), (ant, "MuJoCo"), (pong, "ALE")])
def test_simulators_replay_from_their_states(tmp_path: Path, make: Callable[[], Any], name: str) -> None:
    env = make()
    access = state_access(env)
    assert access is not None and access.name == name
    env.reset()  # the next reset has no seed, and the emulator's own generator is anywhere
    (episode,) = record(env, tmp_path, steps=20, seed=None)
    for mode in ("states", "first-state"):
        report = replay(episode, mode=mode)  # type: ignore[arg-type]
        assert report.verdict == "exact", str(report)
        assert report.compared == len(episode)


def test_states_are_appended_to_a_recording_that_has_them_and_to_no_other(tmp_path: Path) -> None:
    record(Drifting(3), tmp_path)
    assert len(record(Drifting(3), tmp_path)) == 2
    with pytest.raises(MismatchError, match="state: only in the recording"):
        record(Drifting(3), tmp_path, record_state=False)


@pytest.mark.parametrize("storage", [HDF5Storage(), ZarrStorage(codec="zstd"), None])
def test_states_go_where_a_layout_says(tmp_path: Path, storage: Storage | None) -> None:
    env = gym.make("CartPole-v1")
    chosen = storage if storage is None or storage.table else layout(env, keys={"observation": storage})
    (episode,) = record(env, tmp_path, record_state=get, storage=chosen)
    assert replay(episode, mode="states", states=(get, put)).verdict == "exact"


@pytest.mark.parametrize(
    ("state", "space"),
    [
        (np.float32([1, 2]), spaces.Box(-np.inf, np.inf, (2,), np.float32)),
        (1.5, spaces.Box(-np.inf, np.inf, (), np.float64)),
        (True, spaces.Box(0, 1, (), np.bool_)),
        (np.uint8([1, 2, 3]), spaces.Sequence(spaces.Box(0, 255, (), np.uint8), stack=True)),
        ({"a": np.zeros(2)}, spaces.Dict(a=spaces.Box(-np.inf, np.inf, (2,), np.float64))),
        ([np.zeros(2), 3], spaces.Tuple([spaces.Box(-np.inf, np.inf, (2,), np.float64), state_space(np.int64(3))])),
    ],
)
def test_the_space_of_a_state(state: Any, space: spaces.Space[Any]) -> None:
    assert state_space(state) == space


def test_a_state_that_is_no_data_is_refused() -> None:
    with pytest.raises(EpisodeError, match="made of numbers"):
        state_space({"simulator": object()})


def test_a_state_of_another_shape_is_a_row_that_does_not_fit(tmp_path: Path) -> None:
    env = ScriptEnv(spaces.Discrete(9), list(range(4)))
    shapes = iter([2, 2, 3, 2])
    with (
        pytest.raises(ValueError, match="'state' has shape"),
        Recorder(
            env, tmp_path, record_state=lambda env: np.zeros(next(shapes)), fsync=False, verbose=False
        ) as recorded,
    ):
        roll(recorded)
    (episode,) = Recording(tmp_path)
    assert list(episode.refused) == [2]
