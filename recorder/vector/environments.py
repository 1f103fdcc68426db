"""What a vector environment says of its sub-environments: how they reset, their seeds, generators and spec."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper

from recorder.episodes import Start
from recorder.errors import EpisodeError
from recorder.leaf import JSON
from recorder.routing.layouts import render_fps
from recorder.shard import Origin
from recorder.spaces.env_spec import spec_to_json
from recorder.versions import environment_versions
from recorder.writing.opening import plain_json

RESET_MASK = "reset_mask"
"""The option of `reset` that says which sub-environments to reset."""

_FOR_VECTORS = ("num_envs", "vectorization_mode", "vector_kwargs", "wrappers", "disable_env_checker")
"""Arguments of `make_vec` that are kept in its spec, and none of an environment."""


class Generators(NamedTuple):
    """Whether the states of generators are kept, and whether they may be unused since they were seeded."""

    kept: bool
    unused: bool


def autoreset_mode(env: VectorEnv[Any, Any, Any], given: AutoresetMode | str | None) -> AutoresetMode:
    """Return how a vector environment resets sub-environments whose episode has ended.

    Raises:
        EpisodeError: there is no such mode.
    """
    said = given if given is not None else env.metadata.get("autoreset_mode")
    if said is None:
        warnings.warn(
            f"{env} does not say in metadata['autoreset_mode'] how it resets; NextStep is assumed, pass "
            f"autoreset_mode= if that is wrong",
            stacklevel=3,
        )
        return AutoresetMode.NEXT_STEP
    if isinstance(said, AutoresetMode):
        return said
    for mode in AutoresetMode:
        if said in (mode.value, mode.name):
            return mode
    modes = [mode.value for mode in AutoresetMode]
    raise EpisodeError(f"autoreset_mode={said!r} is none of {modes}")


def levels(env: VectorEnv[Any, Any, Any]) -> list[VectorEnv[Any, Any, Any]]:
    """Return a vector environment and what it wraps, from the outside in."""
    found = [env]
    while isinstance(env, VectorWrapper):
        env = env.env
        found.append(env)
    return found


def is_split(env: VectorEnv[Any, Any, Any]) -> bool:
    """Return whether the sub-environments are environments of their own, each with a seed and a generator."""
    return isinstance(env.unwrapped, SyncVectorEnv | AsyncVectorEnv)


def kind_of(env: VectorEnv[Any, Any, Any], mode: AutoresetMode) -> dict[str, JSON]:
    """Return what is said of the vector environment in every shard."""
    return {
        "class": type(env.unwrapped).__name__,
        "num_envs": env.num_envs,
        "autoreset_mode": mode.value,
        "wrappers": [type(level).__name__ for level in levels(env)[:-1]],
    }


def single_spec(env: VectorEnv[Any, Any, Any]) -> EnvSpec | None:
    """Return the spec of one sub-environment, if there is one.

    An AsyncVectorEnv is not asked: a spec that holds a lambda cannot be sent, and the attempt ends its worker.
    """
    base = env.unwrapped
    if isinstance(base, SyncVectorEnv):
        spec: EnvSpec | None = base.envs[0].spec
        return spec
    if env.spec is None or "wrappers" in env.spec.kwargs:
        return None
    kwargs = {key: value for key, value in env.spec.kwargs.items() if key not in _FOR_VECTORS}
    # Gymnasium puts arguments of `make` and of the environment together; the former are parts of a spec of their own.
    limit = kwargs.pop("max_episode_steps", env.spec.max_episode_steps)
    return replace(env.spec, kwargs=kwargs, max_episode_steps=limit)


def sample_environment(env: VectorEnv[Any, Any, Any]) -> gym.Env[Any, Any] | None:
    """Return a sub-environment that can be looked at, if there is one in this process."""
    base = env.unwrapped
    return base.envs[0] if isinstance(base, SyncVectorEnv) else None


def taken_mask(options: Mapping[str, Any] | None, lanes: int) -> tuple[np.ndarray[Any, Any], dict[str, Any] | None]:
    """Return which sub-environments a reset is for, and the other options; Gymnasium takes the mask out of them."""
    if options is None or RESET_MASK not in options:
        return np.ones(lanes, bool), None if options is None else dict(options)
    mask = np.array(options[RESET_MASK], bool)
    return mask, {key: value for key, value in options.items() if key != RESET_MASK}


def lane_seeds(env: VectorEnv[Any, Any, Any], seed: Any) -> list[int | None]:
    """Return the seed of each sub-environment: given one by one, or derived as Gymnasium's own environments do."""
    if isinstance(seed, int | np.integer):
        return [int(seed) + i for i in range(env.num_envs)] if is_split(env) else [None] * env.num_envs
    if seed is None or len(seed) != env.num_envs:
        return [None] * env.num_envs
    return [None if each is None else int(each) for each in seed]


def generator_states(env: VectorEnv[Any, Any, Any], lanes: Sequence[int], *, unused: bool = False) -> list[Start]:
    """Return how these sub-environments begin an episode without a seed: the states of their generators now.

    Where a generator that may be `unused` is still as its seed made it, that seed is as good as one that was given.
    """
    base = env.unwrapped
    if isinstance(base, SyncVectorEnv):
        inner = [base.envs[lane].unwrapped for lane in lanes]
        return [_start(each.np_random, each.np_random_seed if unused else None) for each in inner]
    if isinstance(base, AsyncVectorEnv):
        states = base.get_attr("np_random")
        seeds = base.get_attr("np_random_seed") if unused else [None] * env.num_envs
        return [_start(states[lane], seeds[lane]) for lane in lanes]
    return [Start(None, None, None)] * len(lanes)


def starts_of(
    env: VectorEnv[Any, Any, Any], seed: Any, lanes: Sequence[int], options: Any, generators: Generators
) -> dict[int, Start]:
    """Return how the episodes of these lanes begin: from their seeds, or from their generators as they are."""
    seeds = lane_seeds(env, seed)
    starts = {lane: Start(seeds[lane], options, None) for lane in lanes}
    unseeded = [lane for lane in lanes if seeds[lane] is None]
    if generators.kept and unseeded:
        states = generator_states(env, unseeded, unused=generators.unused)
        starts |= {lane: state._replace(options=options) for lane, state in zip(unseeded, states, strict=True)}
    return starts


def origin_of_lanes(env: VectorEnv[Any, Any, Any], mode: AutoresetMode, about: Mapping[str, JSON]) -> Origin:
    """Return where the episodes come from: one sub-environment, and what is said of all of them together."""
    spec = single_spec(env)
    described: Any = sample_environment(env) or env.unwrapped
    return Origin(
        None if spec is None else spec_to_json(spec),
        render_fps(env),
        plain_json({"vector": kind_of(env, mode), **about}, "about"),
        environment_versions(described),
    )


def _start(generator: Any, seed: Any) -> Start:
    state = getattr(getattr(generator, "bit_generator", None), "state", None)
    fresh = state is not None and isinstance(seed, int) and seed >= 0 and state == _state_of(seed)
    return Start(seed if fresh else None, None, state)


def _state_of(seed: int) -> Any:
    return np.random.PCG64(np.random.SeedSequence(seed)).state
