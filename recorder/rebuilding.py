"""Rebuilding: the environment that was recorded, from its spec or from a function that the user names."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec, registry
from gymnasium.error import Error as GymnasiumError

from recorder.errors import FormatError, RecorderError
from recorder.leaf import JSON
from recorder.metadata.annotation import did_you_mean
from recorder.spaces.env_spec import not_rebuildable, spec_from_json

MakeEnv = Callable[..., gym.Env[Any, Any]]
"""Makes an environment; it is given `render_mode` and other arguments by name if it takes them."""


def rebuild(environment: JSON, *, skip_unrebuildable: bool = False, **kwargs: Any) -> gym.Env[Any, Any]:
    """Make the environment of a spec as a recording has it, wrappers included.

    This imports and runs the environment and the wrappers that the recording names, and nothing else: an entry
    point that is neither registered here nor a class of that kind is refused.

    Args:
        environment: the spec as JSON.
        skip_unrebuildable: leave out wrappers of which the recording has only names.
        kwargs: replace arguments of the environment, such as `render_mode="human"`.

    Raises:
        SpaceError: a part of it cannot be rebuilt; all of it is named.
        FormatError: an entry point is no environment, or no wrapper.
        RecorderError: the environment cannot be made here, because a package is missing, for example.
    """
    spec = spec_from_json(environment, skip_unrebuildable=skip_unrebuildable)
    try:
        _check_entry_points(spec)
        return gym.make(spec, **kwargs)
    except (ImportError, AttributeError, GymnasiumError, TypeError) as error:
        raise RecorderError(
            f"{spec.id!r} cannot be made as it was recorded: {type(error).__name__}: {error}. Install what is missing, "
            f"or give a function that makes the environment"
        ) from error


def left_out(environment: JSON) -> list[str]:
    """Return what `skip_unrebuildable=True` leaves out of an environment, for people."""
    return [problem for problem in not_rebuildable(environment) if problem.startswith("wrapper ")]


def without_window(environment: JSON) -> JSON:
    """Return the spec of an environment, as JSON, that opens no window where it had one."""
    if environment is None or environment.get("kwargs", {}).get("render_mode") != "human":
        return environment
    return {**environment, "kwargs": {**environment["kwargs"], "render_mode": None}}


def _check_entry_points(spec: EnvSpec) -> None:
    """Refuse to call what a file names and what is no environment: it might be any function of any module."""
    known = registry.get(spec.id)
    if known is None or known.entry_point != spec.entry_point:
        _check_class(str(spec.entry_point), gym.Env)
    for wrapper in spec.additional_wrappers:
        _check_class(wrapper.entry_point, gym.Wrapper)


def _check_class(entry_point: str, base: type) -> None:
    module, _, name = entry_point.partition(":")
    found = getattr(importlib.import_module(module), name)
    if not (isinstance(found, type) and issubclass(found, base)):
        raise FormatError(
            f"the recording names {entry_point!r} as an environment or a wrapper, but it is no {base.__name__}; "
            f"it is not called. If it is right, give a function that makes the environment"
        )


def maker(make_env: MakeEnv | str) -> MakeEnv:
    """Return a function that makes environments, given as it is or by its name `module:function`.

    Raises:
        RecorderError: there is no such function.
    """
    return named_function(make_env, "make_env") if isinstance(make_env, str) else make_env


def named_function(name: str, what: str) -> Callable[..., Any]:
    """Import a function by its name `module:function`.

    Raises:
        RecorderError: the module cannot be imported, or has no such function.
    """
    module_name, colon, attribute = name.partition(":")
    if not (module_name and colon and attribute):
        raise RecorderError(f"{what} {name!r} is no module:function")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise RecorderError(f"{what} {name!r}: {error}; the current folder is searched too") from error
    except Exception as error:
        raise RecorderError(f"{what} {name!r}: importing it raised {type(error).__name__}: {error}") from error
    function: object = getattr(module, attribute, None)
    if not callable(function):
        nearest = did_you_mean(attribute, [key for key, value in vars(module).items() if callable(value)])
        raise RecorderError(f"{what} {name!r}: {module_name} has no function {attribute!r}{nearest}")
    return function


def made(make_env: MakeEnv, arguments: Mapping[str, Any]) -> gym.Env[Any, Any]:
    """Make an environment by a function, which is given those arguments that it takes."""
    parameters = inspect.signature(make_env).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return make_env(**arguments)
    return make_env(**{name: value for name, value in arguments.items() if name in parameters})


def environment_of(
    environment: Mapping[str, JSON] | None,
    where: str,
    make_env: MakeEnv | str | None = None,
    *,
    skip_unrebuildable: bool = False,
    **kwargs: Any,
) -> gym.Env[Any, Any]:
    """Make the environment of a recording, by a function where one is given.

    Raises:
        FormatError: the recording names no environment, and no function is given.
    """
    if make_env is not None:
        return made(maker(make_env), kwargs)
    if environment is None:
        raise FormatError(
            f"{where} does not say which environment was recorded: it has no spec, as one that was not made by "
            f"gymnasium.make; give make_env=..., a function or 'module:function'"
        )
    return rebuild(environment, skip_unrebuildable=skip_unrebuildable, **kwargs)
