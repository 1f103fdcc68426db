"""ParallelEnvs of PettingZoo: all agents in one episode, and those that leave early masked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from pettingzoo import ParallelEnv

from recorder import EpisodeError, Recording, RowError
from recorder.multiagent import ParallelRecorder


class LeavingEnv(ParallelEnv[Any, Any, Any]):
    """Has agents that leave after 2, 3 and 4 steps; the last one is truncated, if that is wanted."""

    metadata = {"name": "leaving", "render_modes": []}  # noqa: RUF012

    def __init__(self, truncates: bool = False) -> None:
        self.possible_agents = ["left", "mid dle", "right"]
        self.agents: list[str] = []
        self.lengths = dict(zip(self.possible_agents, (2, 3, 4), strict=True))
        self.truncates = truncates
        self.render_mode = None
        self._observations = {name: spaces.Box(-99, 99, (2,), np.float32) for name in self.possible_agents}
        self._actions = {name: spaces.Discrete(4) for name in self.possible_agents}

    def observation_space(self, agent: str) -> Any:
        return self._observations[agent]

    def action_space(self, agent: str) -> Any:
        return self._actions[agent]

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents = list(self.possible_agents)
        self.steps = 0
        self.offset = float(np.random.default_rng(seed).random())
        return self._observe(), {agent: {} for agent in self.agents}

    def _observe(self) -> Any:
        return {agent: np.array([self.steps, self.offset], np.float32) for agent in self.agents}

    def step(self, actions: Any) -> Any:
        self.steps += 1
        acting = self.agents
        over = {agent: self.steps >= self.lengths[agent] for agent in acting}
        observations = self._observe()
        rewards = {agent: float(actions[agent]) for agent in acting}
        infos = {agent: {"left": self.lengths[agent] - self.steps} for agent in acting}
        self.agents = [agent for agent in acting if not over[agent]]
        never = dict.fromkeys(acting, False)
        terminations, truncations = (never, over) if self.truncates else (over, never)
        return observations, rewards, terminations, truncations, infos


def run(env: ParallelRecorder, episodes: int = 1) -> None:
    for k in range(episodes):
        env.reset(seed=k)
        while env.agents:
            env.step({agent: env.action_space(agent).sample() for agent in env.agents})


@pytest.mark.parametrize("truncates", [False, True])
def test_agents_that_leave_early_are_masked(tmp_path: Path, truncates: bool) -> None:
    with ParallelRecorder(LeavingEnv(truncates), tmp_path, verbose=0) as env:
        run(env, 2)
        env.label(success=True)
    first = next(episode for episode in Recording(tmp_path) if episode.seed == 0)
    assert len(first) == 4 and first.end == ("truncated" if truncates else "terminated")
    observations = first.observations
    assert observations["agents"]["right"][:, 0].tolist() == [0, 1, 2, 3, 4]
    assert observations["agents"]["left"][:, 0].tolist() == [0, 1, 2, 0, 0]
    assert observations["present"]["left"].tolist() == [True, True, True, False, False]
    assert observations["present"]["mid dle"].tolist() == [True, True, True, True, False]
    rewards = first.infos["reward"]
    assert np.ma.getmaskarray(rewards["left"]).tolist() == [True, False, False, True, True]
    total = sum(np.ma.filled(rewards[agent], 0) for agent in rewards)
    np.testing.assert_allclose(total[1:], first.rewards)
    assert first.infos["agents"]["mid dle"]["left"].compressed().tolist() == [2, 1, 0]
    actions = first.actions
    np.testing.assert_array_equal(actions["right"], rewards["right"][1:])
    assert actions["left"][2:].tolist() == [0, 0]


def test_the_environment_behaves_as_without(tmp_path: Path) -> None:
    bare = LeavingEnv()
    with ParallelRecorder(LeavingEnv(), tmp_path, verbose=0) as env:
        one, two = bare.reset(seed=4), env.reset(seed=4)
        np.testing.assert_equal(one, two)
        while bare.agents:
            actions = dict.fromkeys(bare.agents, 1)
            np.testing.assert_equal(bare.step(actions), env.step(actions))
            assert env.agents == bare.agents


def test_an_action_that_does_not_fit_is_refused_before_the_step(tmp_path: Path) -> None:
    with ParallelRecorder(LeavingEnv(), tmp_path, verbose=0) as env:
        env.reset(seed=4)
        env.step(dict.fromkeys(env.agents, 1))
        with pytest.raises(RowError, match="unknown keys"):
            env.step({"left": 1, "mid dle": 1, "right": 1, "stranger": 1})
        assert env.env.steps == 1


def test_all_agents_have_to_be_known(tmp_path: Path) -> None:
    bare = LeavingEnv()
    bare.possible_agents = []
    with pytest.raises(EpisodeError, match="possible_agents"):
        ParallelRecorder(bare, tmp_path)
