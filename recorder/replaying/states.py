"""States: how the state of a simulator is read, as data, and set again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.spaces import Space
from gymnasium.utils import RecordConstructorArgs

from recorder.errors import EpisodeError

GetState = Callable[[gym.Env[Any, Any]], Any]
SetState = Callable[[gym.Env[Any, Any], Any], None]

NEEDS = (
    "It needs MuJoCo (unwrapped.model and unwrapped.data), ALE (unwrapped.ale), methods get_state() and "
    "set_state(state), or your own functions: (get, set), called with the environment and with it and a state"
)


class StateAccess(NamedTuple):
    """How the state of one environment is read and set; `name` says by what."""

    name: str
    get: Callable[[], Any]
    set: Callable[[Any], None]


def state_access(env: gym.Env[Any, Any], functions: tuple[GetState, SetState] | None = None) -> StateAccess | None:
    """Return how the state of an environment is read and set, or None where nobody knows.

    A state is an array, or a dict, tuple or number of such: what a space can hold. `functions` go before what the
    environment offers.
    """
    if functions is not None:
        get, set_ = functions
        return StateAccess("given functions", lambda: get(env), lambda state: set_(env, state))
    base = env.unwrapped
    if type(getattr(base, "data", None)).__module__.startswith("mujoco"):
        return _mujoco(base)
    if type(getattr(base, "ale", None)).__module__.startswith("ale_py"):
        return _ale(base)
    return next((_methods(level) for level in _levels(env) if _has_methods(level)), None)


def required_access(env: gym.Env[Any, Any], functions: tuple[GetState, SetState] | None, what: str) -> StateAccess:
    """Return how the state of an environment is read and set.

    Raises:
        EpisodeError: nobody knows; the message says what `what` would need.
    """
    access = state_access(env, functions)
    if access is None:
        raise EpisodeError(f"{what} is not to be had with {env}: its state cannot be read and set. {NEEDS}")
    return access


def required_get(env: gym.Env[Any, Any], get: GetState | None, what: str) -> Callable[[], Any]:
    """Return what reads the state of an environment: a given function, or what the environment offers.

    Raises:
        EpisodeError: it offers nothing; the message says what `what` would need.
    """
    if get is not None:
        return partial(get, env)
    return required_access(env, None, what).get


class WithState(gym.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Gives an environment `get_state()` and `set_state(state)`, for which workers of an AsyncVectorEnv are asked."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        """Wrap an environment whose state can be read and set.

        Raises:
            EpisodeError: nobody knows how.
        """
        RecordConstructorArgs.__init__(self)
        gym.Wrapper.__init__(self, env)
        self._access = required_access(env, None, "WithState")

    def get_state(self) -> Any:
        """Return the state of the simulator, as data."""
        return self._access.get()

    def set_state(self, state: Any) -> None:
        """Set a state that `get_state` returned."""
        self._access.set(state)


def _levels(env: gym.Env[Any, Any]) -> Iterator[gym.Env[Any, Any]]:
    yield env
    while isinstance(env, gym.Wrapper):
        env = env.env
        yield env


def _has_methods(level: gym.Env[Any, Any]) -> bool:
    return all(any(name in vars(kind) for kind in type(level).__mro__) for name in ("get_state", "set_state"))


def _methods(level: Any) -> StateAccess:
    return StateAccess(f"methods of {type(level).__name__}", level.get_state, level.set_state)


def _mujoco(base: Any) -> StateAccess:
    """Return access to all that MuJoCo integrates: time, positions, velocities, activations, warm starts, …."""
    import mujoco

    what = mujoco.mjtState.mjSTATE_INTEGRATION
    size = mujoco.mj_stateSize(base.model, what)

    def get() -> Any:
        state = np.empty(size, np.float64)
        mujoco.mj_getState(base.model, base.data, state, what)
        return state

    def set_(state: Any) -> None:
        array = np.asarray(state, np.float64)
        if array.shape != (size,):
            raise EpisodeError(f"the state of this model has {size} numbers, the recorded one {array.shape}")
        if np.array_equal(array, get()):
            return  # some environments look at results of the step before, which nothing but that step brings back
        mujoco.mj_setState(base.model, base.data, array, what)
        # What follows from the state, such as positions of bodies, is read by some environments before they step.
        mujoco.mj_forward(base.model, base.data)
        mujoco.mj_setState(base.model, base.data, array, what)

    return StateAccess("MuJoCo", get, set_)


def _ale(base: Any) -> StateAccess:
    """Return access to the emulator's state with its random numbers, as bytes."""
    import ale_py

    def get() -> Any:
        return np.frombuffer(base.ale.cloneState(include_rng=True).serialize(), np.uint8)

    def set_(state: Any) -> None:
        base.ale.restoreState(ale_py.ALEState(np.asarray(state, np.uint8).tobytes()))

    return StateAccess("ALE", get, set_)


def state_space(state: Any) -> Space[Any]:
    """Return the space of states of which one is given; one-dimensional bytes may have any length.

    Raises:
        EpisodeError: it is no data.
    """
    match state:
        case dict():
            return spaces.Dict({str(key): state_space(value) for key, value in state.items()})
        case tuple() | list():
            return spaces.Tuple([state_space(value) for value in state])
    array = np.asarray(state)
    if array.dtype.kind not in "biuf":
        raise EpisodeError(f"a state is made of numbers to be recorded, got {type(state).__name__} {state!r:.80}")
    if array.dtype == np.uint8 and array.ndim == 1:
        return spaces.Sequence(spaces.Box(0, 255, (), np.uint8), stack=True)
    if array.dtype == bool:
        return spaces.Box(0, 1, array.shape, np.bool_)
    if array.dtype.kind in "iu":
        limits = np.iinfo(array.dtype)
        return spaces.Box(limits.min, limits.max, array.shape, array.dtype.type)
    return spaces.Box(-np.inf, np.inf, array.shape, array.dtype.type)
