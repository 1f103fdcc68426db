"""Driving: an environment is begun as an episode was, and given the actions that were recorded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from recorder.episode import Episode
from recorder.errors import EpisodeError
from recorder.leaf import JSON
from recorder.replaying.report import Mode
from recorder.replaying.states import StateAccess

BLOCK = 64
"""Actions that are read at once."""

GENERATORS = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")
"""The bit generators of NumPy; a recording may name no other."""


class Moment(NamedTuple):
    """What the environment gave at one moment: step 0 is the reset, which has no transition."""

    step: int
    observation: Any
    info: dict[str, Any]
    action: Any = None
    reward: Any = None
    terminated: Any = None
    truncated: Any = None


class Raised(Exception):  # noqa: N818 - says where another error came from
    """The environment raised at a step; the error itself is the cause."""

    def __init__(self, step: int, error: Exception) -> None:
        super().__init__(f"the environment raised {type(error).__name__}: {error}")
        self.step = step


def restart(env: gym.Env[Any, Any], episode: Episode) -> tuple[Any, dict[str, Any]]:
    """Reset an environment as it was reset before an episode: with its seed, or its generator's state, and options.

    Raises:
        EpisodeError: the state is that of a generator that is not NumPy's.
    """
    options = None if episode.options is None else deepcopy(dict(episode.options))
    if episode.seed is None and episode.generator is not None:
        set_generator(env.unwrapped, episode.generator)
    return env.reset(seed=episode.seed, options=options)


def set_generator(base: gym.Env[Any, Any], state: Mapping[str, Any]) -> None:
    """Give an environment's generator a state, in place where it is of the same kind: others may hold it."""
    name = state["bit_generator"]
    if name not in GENERATORS:
        raise EpisodeError(f"the episode began with a generator {name!r}, which NumPy does not have: {GENERATORS}")
    if type(base.np_random.bit_generator).__name__ != name:
        base.np_random = np.random.Generator(getattr(np.random, name)())
    base.np_random.bit_generator.state = _arrays(state)


def _arrays(state: Any) -> Any:
    """Return a state with the lists that JSON has as arrays."""
    if isinstance(state, Mapping):
        return {key: _arrays(value) for key, value in state.items()}
    return np.array(state, np.uint64) if isinstance(state, list) else state


def actions(episode: Episode, stop: int) -> Iterator[Any]:
    """Yield the actions of the first `stop` steps."""
    for first in range(0, stop, BLOCK):
        yield from episode.values("action", first, min(first + BLOCK, stop))


def playable(episode: Episode) -> int:
    """Return how many steps can be made again: those before the first that was refused, which is not there."""
    return min([len(episode), *(number - 1 for number in episode.refused)])


def drive(
    env: gym.Env[Any, Any], episode: Episode, mode: Mode = "actions", states: StateAccess | None = None
) -> Iterator[Moment]:
    """Yield what an environment gives when an episode is made again, until either of the two is over.

    With `states` the state of the moment before each step is set, or, in the mode `first-state`, that of the reset.

    Raises:
        Raised: the environment raised.
    """
    observation, info = guarded(0, lambda: restart(env, episode))
    yield Moment(0, observation, info)
    for step, action in enumerate(actions(episode, playable(episode)), 1):
        if states is not None and (mode == "states" or step == 1):
            (state,) = episode.values("state", step - 1, step)
            guarded(step, lambda state=state: states.set(state))
        # A copy, for wrappers and environments that change what they are given.
        result = guarded(step, lambda action=action: env.step(deepcopy(action)))
        observation, reward, terminated, truncated, info = result
        yield Moment(step, observation, info, action, reward, terminated, truncated)
        if terminated or truncated:
            return


def guarded(step: int, call: Any) -> Any:
    """Call into an environment; what it raises is part of the verdict."""
    try:
        return call()
    except EpisodeError:
        raise
    except Exception as error:
        raise Raised(step, error) from error


def start_notes(episode: Episode, *, diverged: bool) -> Iterator[str]:
    """Yield what is missing to begin an episode again just as it was."""
    if episode.seed is None and episode.generator is None:
        yield "neither a seed nor a generator's state was recorded at the reset: it begins as it happens"
    elif episode.seed is None and diverged:
        yield (
            "the reset had no seed: the state of np_random was set, but other generators, as of a simulator, are "
            "not in the recording; record with auto_seed=True"
        )
    if _unkept(episode.options):
        yield f"options of the reset are no data and are given as text only: {episode.options}"
    if (stop := playable(episode)) < len(episode) or any(number <= len(episode) + 1 for number in episode.refused):
        yield f"step {min(episode.refused)} was refused when it was recorded and is missing: compared up to step {stop}"


def _unkept(options: Mapping[str, JSON] | None) -> bool:
    values = [] if options is None else options.values()
    return any(isinstance(value, dict) and value.keys() == {"unkept"} for value in values)
