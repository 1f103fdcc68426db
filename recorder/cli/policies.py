"""Policies by name: what chooses the actions when episodes are recorded from the command line."""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

import gymnasium as gym

from recorder.errors import MissingExtraError, RecorderError
from recorder.rebuilding import named_function

HUMAN = "human"
"""The policy of whoever sits before the screen."""

Policy = Callable[[Any, dict[str, Any]], Any]
"""Returns the action for an observation and its info."""


def load_policy(name: str, env: gym.Env[Any, Any], seed: int | None) -> Policy:
    """Return the policy called `random`, one of Stable-Baselines3 as `sb3:file.zip`, or a function `module:function`.

    Raises:
        RecorderError: there is no such function, or it takes neither (observation) nor (observation, info); or no
            such file.
        MissingExtraError: Stable-Baselines3 is not installed.
    """
    if name == "random":
        env.action_space.seed(seed)
        return lambda observation, info: env.action_space.sample()
    if name.startswith("sb3:"):
        return _blamed(name, load_sb3(Path(name.removeprefix("sb3:"))))
    return _blamed(name, _called(name, named_function(name, "policy")))


def load_sb3(path: Path) -> Policy:
    """Return what a file that `model.save` wrote would do, without exploring; loading it runs code that is in it."""
    algorithm = sb3_algorithm(path)
    try:
        sb3 = importlib.import_module("stable_baselines3")
    except ImportError as error:
        raise MissingExtraError("stable-baselines3", "sb3") from error
    model = getattr(sb3, algorithm).load(path, device="cpu")
    return lambda observation, info: model.predict(observation, deterministic=True)[0]


def sb3_algorithm(path: Path) -> str:
    """Return the algorithm of a file of Stable-Baselines3, which its settings give away: the file does not name it.

    Raises:
        RecorderError: it is no such file.
    """
    try:
        with ZipFile(path) as archive:
            data = json.loads(archive.read("data"))
        module = str(data["policy_class"]["__module__"])
    except (OSError, BadZipFile, KeyError, TypeError, ValueError) as error:
        raise RecorderError(f"{path} is no file of Stable-Baselines3: {_named(error)}") from error
    for name in ("dqn", "sac", "td3"):
        if f".{name}." in module:
            return name.upper()
    return "PPO" if "clip_range" in data else "A2C"


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
