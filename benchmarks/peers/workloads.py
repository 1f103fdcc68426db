"""What every peer is given to record; needs NumPy, and Gymnasium where environments are stepped."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

STATE, ACTION = 7, 7


def arguments() -> dict[str, Any]:
    """Return what the caller wants."""
    wanted: dict[str, Any] = json.loads(sys.argv[1])
    return wanted


def answer(**found: Any) -> None:
    """Say what was found; the last line of the output."""
    print("\n" + json.dumps(found))


def seconds(call: Callable[[], object]) -> float:
    """Return how long a call takes."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def size_of(folder: str) -> int:
    """Return the bytes of all files below a folder."""
    return sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())


def state(i: int) -> np.ndarray[Any, Any]:
    """Return the seven floats of a step."""
    return np.full(STATE, i * 1e-3, np.float32)


def player(frames: np.ndarray[Any, Any], length: int) -> Any:
    """Return an environment that shows frames and seven floats, in episodes of a length."""
    import gymnasium as gym
    from gymnasium.spaces import Box, Dict

    class Player(gym.Env):  # type: ignore[type-arg]
        metadata = {  # noqa: RUF012 - as Gymnasium has it
            "render_modes": ["rgb_array"],
            "render_fps": 30,
        }
        render_mode = "rgb_array"
        observation_space = Dict(
            {"camera": Box(0, 255, frames.shape[1:], np.uint8), "state": Box(-np.inf, np.inf, (STATE,), np.float32)}
        )
        action_space = Box(-1, 1, (ACTION,), np.float32)

        def __init__(self) -> None:
            self.i = 0

        def _seen(self) -> dict[str, Any]:
            return {"camera": frames[self.i % len(frames)], "state": state(self.i)}

        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            super().reset(seed=seed)
            return self._seen(), {}

        def step(self, action: Any) -> Any:
            self.i += 1
            return self._seen(), 0.0, False, self.i % length == 0, {}

        def render(self) -> Any:
            return frames[self.i % len(frames)]

    return Player()


def play(env: Any, steps: int, random: bool = True) -> None:
    """Step an environment and reset it at the end of episodes; always with the same actions."""
    env.action_space.seed(0)
    env.reset(seed=0)
    same = env.action_space.sample()
    for _ in range(steps):
        _, _, terminated, truncated, _ = env.step(env.action_space.sample() if random else same)
        if terminated or truncated:
            env.reset()
