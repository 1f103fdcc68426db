"""Seeing: what is looked at in each moment of a vector environment besides its observations: frames and states."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv

from recorder.errors import EpisodeError, RowError
from recorder.replaying.states import GetState, required_get, state_space
from recorder.vector.writer import VectorWriter

Look = Callable[[], Any]
"""Returns a value for each sub-environment."""


class Sight:
    """Looks at all sub-environments, and gives what it sees as batches, by name of the structure."""

    def __init__(self, env: VectorEnv[Any, Any, Any], *, render: bool, state: bool | GetState) -> None:
        """Take what is to be seen.

        Raises:
            EpisodeError: the environment cannot show it; the message says why, and what would help.
        """
        self._lanes = env.num_envs
        self._looks: dict[str, Look] = {}
        if render:
            self._looks["render"] = _frames_of(env)
        if state:
            self._looks["state"] = _states_of(env, None if state is True else state)

    def look(self, writer: VectorWriter) -> dict[str, Any]:
        """Return what is seen now; the first of it declares to the writer what all will be."""
        return {name: self._batch(name, look(), writer) for name, look in self._looks.items()}

    def _batch(self, name: str, values: Any, writer: VectorWriter) -> Any:
        if not isinstance(values, tuple | list | np.ndarray) or len(values) != self._lanes:
            raise EpisodeError(
                f"{name!r} needs one value for each of {self._lanes} sub-environments, this one gives "
                f"{type(values).__name__} {values!r:.60}"
            )
        if name == "render":
            writer.declare_render(values[0])
        else:
            writer.declare_state(state_space(values[0]))
        return batch(name, list(values))


def batch(name: str, values: Sequence[Any]) -> Any:
    """Return values of sub-environments as Gymnasium batches them; bytes of any length stay one by one.

    >>> batch("state", [{"x": 1.0}, {"x": 2.0}])
    {'x': array([1., 2.])}

    Raises:
        RowError: they are not alike.
    """
    try:
        first = values[0]
        if isinstance(first, dict):
            return {str(key): batch(name, [value[key] for value in values]) for key in first}
        if isinstance(first, tuple | list):
            return tuple(batch(name, list(items)) for items in zip(*values, strict=True))
        if isinstance(first, np.ndarray) and first.dtype == np.uint8 and first.ndim == 1:
            return tuple(values)
        return np.stack([np.asarray(value) for value in values])
    except (KeyError, IndexError, TypeError, ValueError) as error:
        if isinstance(error, RowError):
            raise
        raise RowError(f"{name!r} of the sub-environments is not alike: {error}") from error


def _frames_of(env: VectorEnv[Any, Any, Any]) -> Look:
    if env.render_mode not in ("rgb_array", "depth_array"):
        raise EpisodeError(
            f"record_render needs sub-environments with render_mode='rgb_array', these have {env.render_mode!r}"
        )
    return env.render


def _states_of(env: VectorEnv[Any, Any, Any], get: GetState | None) -> Look:
    base = env.unwrapped
    if isinstance(base, SyncVectorEnv):
        gets = [required_get(each, get, "record_state") for each in base.envs]
        return lambda: [read() for read in gets]
    if get is not None:
        return lambda: get(env)  # type: ignore[arg-type] # here it is asked for all sub-environments at once
    if not isinstance(base, AsyncVectorEnv):
        raise EpisodeError(
            f"record_state=True is not to be had with {env}: it has no sub-environments that could be asked. Give a "
            f"function get(envs) that returns a state for each"
        )
    if not all(base.call("has_wrapper_attr", "get_state")):
        raise EpisodeError(
            f"record_state=True is not to be had with {env}: its environments are in other processes, and have no "
            f"get_state(). Wrap each where it is made: recorder.replaying.states.WithState(env)"
        )
    return lambda: base.call("get_state")
