"""Policies by name: what chooses the actions when episodes are recorded from the command line."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import gymnasium as gym

from recorder.errors import RecorderError
from recorder.rebuilding import named_function

Policy = Callable[[Any, dict[str, Any]], Any]
"""Returns the action for an observation and its info."""


def load_policy(name: str, env: gym.Env[Any, Any], seed: int | None) -> Policy:
    """Return the policy called `random`, or a function by its name `module:function`.

    Raises:
        RecorderError: there is no such function, or it takes neither (observation) nor (observation, info).
    """
    if name == "random":
        env.action_space.seed(seed)
        return lambda observation, info: env.action_space.sample()
    return _blamed(name, _called(name, named_function(name, "policy")))


def _called(name: str, function: Callable[..., Any]) -> Policy:
    """Return a function of observation and info, whether the given one takes the info or not."""
    parameters = inspect.signature(function).parameters.values()
    needed = [
        one
        for one in parameters
        if one.default is one.empty and one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
    ]
    match len(needed):
        case 1:
            return lambda observation, info: function(observation)
        case 2:
            return function
    raise RecorderError(
        f"policy {name!r} takes (observation) or (observation, info), not {inspect.signature(function)}"
    )


def _blamed(name: str, policy: Policy) -> Policy:
    """Return a policy whose errors say that they are its own, not those of the environment."""

    def act(observation: Any, info: dict[str, Any]) -> Any:
        try:
            return policy(observation, info)
        except Exception as error:
            raise RecorderError(f"policy {name!r} raised {_named(error)}") from error

    return act


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
