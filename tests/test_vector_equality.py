"""A recorded SyncVectorEnv or AsyncVectorEnv gives, row for row, what its sub-environments give when recorded alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recorder import Episode, Recorder, Recording, VectorRecorder

MODES = list(AutoresetMode)


class VaryingEnv(gym.Env[Any, Any]):
    """Draws how long an episode is, how it ends, and which keys each info has."""

    def __init__(self, longest: int, kind: str = "dict", render_mode: str | None = None) -> None:
        self.longest = longest
        self.kind = kind
        self.render_mode = render_mode
        inner = {"position": spaces.Box(-9, 9, (2,), np.float32), "count": spaces.Discrete(100)}
        if kind == "text":
            inner |= {"word": spaces.Text(12), "points": spaces.Sequence(spaces.Box(-9, 9, (3,), np.float64))}
        self.observation_space = spaces.Dict(inner)
        self.action_space = spaces.Dict(turn=spaces.Discrete(3), push=spaces.Box(-1, 1, (2,), np.float32))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        self.length = int(self.np_random.integers(1, self.longest + 1))
        self.truncates = bool(self.np_random.random() < 0.5)
        return self._observe(), self._inform()

    def _observe(self) -> Any:
        values = {"position": self.np_random.random(2, np.float32), "count": np.int64(self.steps)}
        if self.kind == "text":
            values["word"] = "".join(self.np_random.choice(list("aéß"), self.steps % 4))
            values["points"] = tuple(self.np_random.random((self.steps % 3, 3)))
        return values

    def _inform(self) -> dict[str, Any]:
        possible = {
            "length": self.length,
            "share": self.steps / 7,
            "done": self.steps == self.length,
            "pose": self.np_random.random(3),
            "word": f"step {self.steps}",
            "nested": {"inner": self.steps, "deeper": {"x": 0.5}},
            "nothing": None,
        }
        return {key: value for key, value in possible.items() if self.np_random.random() < 0.6}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        over = self.steps >= self.length
        reward = float(action["push"].sum())
        return self._observe(), reward, over and not self.truncates, over and self.truncates, self._inform()


class Facts(NamedTuple):
    """All of an episode but its time, as plain values."""

    seed: int | None
    generator: Any
    end: str
    steps: int
    total: float
    columns: dict[str, Any]
    infos: list[dict[str, Any]]


def facts_of(episode: Episode, *, generator: bool = True) -> Facts:
    columns = {
        path: (column.dtype.name, plain(column[:]))
        for path, column in episode.columns.items()
        if not path.startswith(("info", "time"))
    }
    return Facts(
        episode.seed,
        episode.generator if generator else None,
        episode.end,
        len(episode),
        episode.return_,
        columns,
        plain(episode.info_values(0, len(episode) + 1)),
    )


def plain(value: Any) -> Any:
    """Return values that compare by what they hold, dtypes of scalars aside."""
    match value:
        case np.ndarray() | np.generic():
            return plain(value.tolist())
        case dict():
            return {key: plain(inner) for key, inner in value.items()}
        case list() | tuple():
            return [plain(inner) for inner in value]
    return value


def actions_of(env: Any, steps: int, seed: int) -> list[Any]:
    env.action_space.seed(seed)
    return [env.action_space.sample() for _ in range(steps)]


def lane_action(actions: Any, lane: int) -> Any:
    return {key: values[lane] for key, values in actions.items()}


def record_together(envs: Any, path: Path, actions: list[Any], seeds: Any) -> dict[int, list[Episode]]:
    recorder = VectorRecorder(envs, path, fsync=False, verbose=0)
    recorder.reset(seed=seeds)
    for action in actions:
        _, _, terminated, truncated, _ = recorder.step(action)
        done = terminated | truncated
        if recorder.autoreset_mode == AutoresetMode.DISABLED and done.any():
            recorder.reset(options={"reset_mask": done})
    recorder.close()
    lanes: dict[int, list[Episode]] = {}
    for episode in sorted(Recording(path), key=lambda episode: episode.id):
        lanes.setdefault(int(episode.labels["env_index"]), []).append(episode)
    return lanes


def record_alone(env: Any, path: Path, actions: list[Any], seed: int | None, *, fills: bool) -> list[Episode]:
    """Record one environment; with `fills`, the step after an end is taken by the reset."""
    with Recorder(env, path, fsync=False, verbose=0) as recorder:
        recorder.reset(seed=seed)
        over = False
        for action in actions:
            if over and fills:
                recorder.reset()
                over = False
                continue
            _, _, terminated, truncated, _ = recorder.step(action)
            over = terminated or truncated
            if over and not fills:
                recorder.reset()
    return sorted(Recording(path), key=lambda episode: episode.id)


def compare(
    make: Callable[[int], Callable[[], Any]],
    vectors: Callable[..., Any],
    place: Path,
    lanes: int,
    steps: int,
    mode: AutoresetMode,
    seed: int,
) -> None:
    envs = vectors([make(lane) for lane in range(lanes)], autoreset_mode=mode)
    actions = actions_of(envs, steps, seed)
    together = record_together(envs, place / "together", actions, seed)
    # Where a sub-environment is reset within a step, nobody sees its generator before.
    generator = mode != AutoresetMode.SAME_STEP
    for lane in range(lanes):
        own = [lane_action(action, lane) for action in actions]
        fills = mode == AutoresetMode.NEXT_STEP
        alone = record_alone(make(lane)(), place / f"alone-{lane}", own, seed + lane, fills=fills)
        found = [facts_of(episode, generator=generator) for episode in together.get(lane, [])]
        assert found == [facts_of(episode, generator=generator) for episode in alone]


@given(
    lanes=st.integers(1, 5),
    steps=st.integers(1, 25),
    longest=st.integers(1, 6),
    mode=st.sampled_from(MODES),
    kind=st.sampled_from(["dict", "text"]),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_sync_equals_single_recordings(
    tmp_path_factory: pytest.TempPathFactory,
    lanes: int,
    steps: int,
    longest: int,
    mode: AutoresetMode,
    kind: str,
    seed: int,
) -> None:
    place = tmp_path_factory.mktemp("sync")
    compare(lambda lane: partial(VaryingEnv, longest + lane, kind), SyncVectorEnv, place, lanes, steps, mode, seed)


@pytest.mark.parametrize("shared_memory", [True, False])
@pytest.mark.parametrize("mode", MODES)
def test_async_equals_single_recordings(tmp_path: Path, mode: AutoresetMode, shared_memory: bool) -> None:
    vectors = partial(AsyncVectorEnv, shared_memory=shared_memory)
    compare(lambda lane: partial(VaryingEnv, 3 + lane), vectors, tmp_path, 3, 20, mode, 7)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@given(
    lanes=st.integers(1, 4),
    steps=st.integers(1, 30),
    longest=st.integers(1, 6),
    mode=st.sampled_from(MODES),
    seed=st.integers(0, 2**31),
    shared_memory=st.booleans(),
)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_async_equals_single_recordings_whatever_its_episodes(
    tmp_path_factory: pytest.TempPathFactory,
    lanes: int,
    steps: int,
    longest: int,
    mode: AutoresetMode,
    seed: int,
    shared_memory: bool,
) -> None:
    place = tmp_path_factory.mktemp("async")
    vectors = partial(AsyncVectorEnv, shared_memory=shared_memory)
    compare(lambda lane: partial(VaryingEnv, longest + lane), vectors, place, lanes, steps, mode, seed)
