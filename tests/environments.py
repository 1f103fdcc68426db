"""Small environments that do on purpose what real ones do by accident."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class CountingEnv(gym.Env[Any, Any]):
    """Counts its steps in the observation `(2,)` float32, ends after `length` of them, and gives 1 a step."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012 - as Gymnasium has it

    def __init__(self, length: int | None = 5, render_mode: str | None = None) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Discrete(4)
        self.render_mode = render_mode
        self.length = length
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        self.offset = float(self.np_random.random())
        return self._observe(), {}

    def _observe(self) -> Any:
        return np.array([self.steps, self.offset], np.float32)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self._observe(), 1.0, self.steps == self.length, False, {}

    def render(self) -> Any:
        frame = np.zeros((32, 48, 3), np.uint8)
        frame[self.steps % 32] = self.steps % 256
        return frame


class ScriptEnv(gym.Env[Any, Any]):
    """Returns what it is given: observations of a space, and infos, one after another."""

    def __init__(self, space: spaces.Space[Any], observations: list[Any], infos: list[Any] | None = None) -> None:
        self.observation_space = space
        self.action_space = spaces.Discrete(2)
        self.observations = observations
        self.infos = infos or [{}] * len(observations)
        self.t = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self.observations[0], self.infos[0]

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        done = self.t == len(self.observations) - 1
        return self.observations[self.t], 0.5, done, False, self.infos[self.t]


class ReusingEnv(CountingEnv):
    """Fills one observation array and one frame in place, as fast simulators do."""

    def __init__(self, length: int = 5, render_mode: str | None = None) -> None:
        super().__init__(length, render_mode)
        self._array = np.zeros(2, np.float32)
        self._frame = np.zeros((32, 48, 3), np.uint8)

    def _observe(self) -> Any:
        self._array[:] = self.steps
        return self._array

    def render(self) -> Any:
        self._frame[:] = self.steps
        return self._frame


def roll(
    env: gym.Env[Any, Any], episodes: int = 1, policy: Callable[[Any], Any] | None = None, **reset: Any
) -> list[Any]:
    """Run whole episodes and return for each its observations, actions, rewards and infos."""
    found = []
    for _ in range(episodes):
        observation, info = env.reset(**reset)
        rows: dict[str, list[Any]] = {"observations": [observation], "actions": [], "rewards": [], "infos": [info]}
        done = False
        while not done:
            action = env.action_space.sample() if policy is None else policy(observation)
            observation, reward, terminated, truncated, info = env.step(action)
            done = terminated or truncated
            for name, value in (("observations", observation), ("infos", info)):
                rows[name].append(value)
            rows["actions"].append(action)
            rows["rewards"].append(reward)
        found.append(rows)
    return found
