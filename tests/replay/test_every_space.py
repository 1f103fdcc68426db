"""Every space replays exactly, and a row that was changed is found where it is; so do vector environments."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from environments import ScriptEnv, roll
from gymnasium import Space, spaces
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import Autoreset
from spaces import DRAWABLE

from recorder import Recorder, Recording, ReplayEnv, replay, replay_all
from recorder.vector.wrapper import VectorRecorder

CHANGED = 3


def samples(space: Space[Any], count: int) -> list[Any]:
    space.seed(7)
    return [space.sample() for _ in range(count)]


@pytest.mark.filterwarnings("ignore:.*:UserWarning")
@pytest.mark.parametrize("space", DRAWABLE)
def test_observations_of_every_space_replay_exactly_and_a_changed_one_is_found(
    tmp_path: Path, space: Space[Any]
) -> None:
    values = samples(space, 6)
    with Recorder(ScriptEnv(space, values), tmp_path, fsync=False, verbose=False) as env:
        roll(env, seed=0)
    (episode,) = Recording(tmp_path)
    report = replay(episode, ScriptEnv(space, values))
    assert report.verdict == "exact", str(report)
    assert report.compared == 5 and not report.differences
    others = [value for value in samples(space, 12)[6:] if not data_equivalence(value, values[CHANGED])]
    if others:
        report = replay(episode, ScriptEnv(space, [*values[:CHANGED], others[0], *values[CHANGED + 1 :]]))
        assert report.divergence is not None
        assert report.divergence.step == CHANGED
        assert report.divergence.leaf.startswith("observation")
        assert max((leaf.diverged or 0) for leaf in report.leaves) == CHANGED, "and nowhere else"


class ActingEnv(gym.Env[Any, Any]):
    """Takes actions of any space, and says by a number whether they are those that it knows."""

    def __init__(self, space: Space[Any], known: list[Any]) -> None:
        self.observation_space = spaces.Discrete(2)
        self.action_space = space
        self.known = known

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return 0, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        known = data_equivalence(action, self.known[self.steps - 1])
        return int(known), 0.0, self.steps == len(self.known), False, {}


@pytest.mark.filterwarnings("ignore:.*:UserWarning")
@pytest.mark.parametrize("space", [space for space in DRAWABLE if space.id != "box-big-endian"])
def test_actions_of_every_space_are_given_as_they_were(tmp_path: Path, space: Space[Any]) -> None:
    known = samples(space, 4)
    with Recorder(ActingEnv(space, known), tmp_path, fsync=False, verbose=False) as env:
        env.reset()
        seen = [env.step(action)[0] for action in known]
    assert all(seen)
    (episode,) = Recording(tmp_path)
    assert replay(episode, ActingEnv(space, known)).verdict == "exact"
    played = ReplayEnv(tmp_path, strict=True)
    played.reset()
    for action in known:
        played.step(action)


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_episodes_of_a_vector_environment_replay_one_by_one(tmp_path: Path, mode: AutoresetMode) -> None:
    make = partial(gym.make, "CartPole-v1", max_episode_steps=12)
    with VectorRecorder(SyncVectorEnv([make] * 3, autoreset_mode=mode), tmp_path, fsync=False, verbose=False) as envs:
        envs.action_space.seed(0)
        envs.reset(seed=5)
        for _ in range(40):
            _, _, terminated, truncated, _ = envs.step(envs.action_space.sample())
            if mode is AutoresetMode.DISABLED and (done := terminated | truncated).any():
                envs.reset(options={"reset_mask": done})
    recording = Recording(tmp_path)
    assert len(recording) > 6
    reports = replay_all(recording, progress=False)
    if mode is AutoresetMode.SAME_STEP:  # it resets within a step, where nobody sees the generator before
        reports, unknown = reports[:3], reports[3:]
        assert all("neither a seed nor a generator's state" in str(report) for report in unknown)
    assert {report.verdict for report in reports} == {"exact"}, "\n".join(map(str, reports))


def test_episodes_under_the_autoreset_wrapper(tmp_path: Path) -> None:
    with Recorder(Autoreset(gym.make("CartPole-v1")), tmp_path, fsync=False, verbose=False) as env:
        env.action_space.seed(0)
        env.reset(seed=3)
        for _ in range(80):
            env.step(env.action_space.sample())
    recording = Recording(tmp_path)
    assert len(recording) > 2 and recording[1].seed is None
    assert {report.verdict for report in replay_all(recording, progress=False)} == {"exact"}


def test_an_array_that_an_environment_fills_in_place_is_compared_as_it_is_at_each_step(tmp_path: Path) -> None:
    class Reusing(ScriptEnv):
        def step(self, action: Any) -> Any:
            self.array[:] = self.observations[self.t + 1]
            return self.array, *super().step(action)[1:]

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            self.array = np.zeros(2, np.float32)
            return self.array, super().reset(seed=seed)[1]

    space = spaces.Box(0, 9, (2,))
    values = [np.float32([k, k]) for k in range(6)]
    with Recorder(Reusing(space, values), tmp_path, fsync=False, verbose=False) as env:
        roll(env)
    assert replay(Recording(tmp_path)[0], Reusing(space, values)).verdict == "exact"
