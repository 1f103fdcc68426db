"""Policies by name: what chooses the actions when episodes are recorded from the command line."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

import gymnasium as gym

from recorder.errors import RecorderError
from recorder.metadata.annotation import did_you_mean

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
    return _blamed(name, _called(name, _function(name)))


def _function(name: str) -> Callable[..., Any]:
    module_name, _, attribute = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise RecorderError(f"policy {name!r}: {error}; the current folder is searched too") from error
    except Exception as error:
        raise RecorderError(f"policy {name!r}: importing it raised {_named(error)}") from error
    function: object = getattr(module, attribute, None)
    if not callable(function):
        nearest = did_you_mean(attribute, [key for key, value in vars(module).items() if callable(value)])
        raise RecorderError(f"policy {name!r}: {module_name} has no function {attribute!r}{nearest}")
    return function


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
