"""Playing: a person chooses the actions, in a window with what the environment renders."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.error import Error as GymnasiumError

from recorder.errors import RecorderError


class EnoughError(Exception):
    """Ends the loop of `play`, which has no other end than its window."""


def play_episodes(
    env: gym.Env[Any, Any],
    episodes: int,
    *,
    keys: Mapping[str, Any] | None,
    seed: int | None,
    after_step: Callable[[bool], None],
) -> None:
    """Let a person play whole episodes in Gymnasium's `play`, until there are enough or the window is closed.

    `keys` are actions by the letters that are pressed together. `after_step` is told of each step whether the episode
    is over, while it can still be labelled.

    Raises:
        RecorderError: there is no display, pygame is not installed, or nobody knows what the keys do.
    """
    pygame, play, unknown_keys = _loaded()
    left = episodes

    def callback(
        before: Any, after: Any, action: Any, reward: Any, terminated: bool, truncated: bool, info: Any
    ) -> None:
        nonlocal left
        over = terminated or truncated
        after_step(over)
        left -= over
        if not left:
            raise EnoughError

    try:
        play(env, keys_to_action=_actions(env, keys), callback=callback, seed=seed, noop=_nothing(env))
    except EnoughError:
        pygame.quit()
    except RecorderError:
        raise
    except (unknown_keys, GymnasiumError, ValueError, TypeError) as error:
        raise RecorderError(
            f'{env} cannot be played: {error}. Give the keys, as letters and actions: --keys \'{{"a": 0, "d": 1}}\''
        ) from error


def _loaded() -> tuple[Any, Callable[..., None], type[Exception]]:
    """Return pygame with a display, `play`, and what it raises where nobody has said what the keys do."""
    try:
        import pygame
        from gymnasium.utils.play import MissingKeysToAction, play
    except (ImportError, GymnasiumError) as error:
        raise RecorderError(
            f"--policy human needs pygame: pip install 'gymnasium[classic-control]' ({error})"
        ) from error
    try:
        pygame.display.init()
    except pygame.error as error:
        raise RecorderError(f"--policy human needs a display, and there is none: {error}") from error
    return pygame, play, MissingKeysToAction


def _actions(env: gym.Env[Any, Any], keys: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the actions of the space by keys, or None where the environment is to say it."""
    if keys is None:
        return None
    space = env.action_space
    if isinstance(space, gym.spaces.Discrete):
        return {key: space.dtype.type(action) for key, action in keys.items()}
    return {key: np.asarray(action, space.dtype) for key, action in keys.items()}


def _nothing(env: gym.Env[Any, Any]) -> Any:
    """Return the action of no key: 0, or zeros."""
    space = env.action_space
    if isinstance(space, gym.spaces.Discrete):
        return space.dtype.type(space.start)
    return np.zeros(space.shape or (), space.dtype)
