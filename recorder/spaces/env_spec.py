"""The `EnvSpec` of an environment as strict JSON, and back.

The fields are those of Gymnasium's `EnvSpec` and `WrapperSpec`, the arguments as in `recorder.spaces.argument_json`.
Callables are kept by name, `{"callable": "module:name"}`, other objects by their `repr`, and neither can be
rebuilt: a file is never a reason to import or to run anything. An entry point stays text, which Gymnasium
imports when the user calls `gymnasium.make`.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
from gymnasium.envs.registration import EnvSpec, WrapperSpec
from gymnasium.error import Error as GymnasiumError

from recorder.errors import FormatError, SpaceError
from recorder.leaf import JSON
from recorder.spaces.argument_json import argument_from_json, argument_to_json, callable_name
from recorder.spaces.argument_json import not_rebuildable as in_argument
from recorder.spaces.array_json import Number, number_to_json


class CallableData(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a file says of a callable: its name."""

    callable: str


class WrapperSpecData(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a file says of a `WrapperSpec`; `kwargs` is null for a wrapper that did not note its arguments."""

    name: str
    entry_point: str
    kwargs: dict[str, Any] | None


class EnvSpecData(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a file says of an `EnvSpec`."""

    id: str
    entry_point: str | CallableData | None
    reward_threshold: Number | None
    nondeterministic: bool
    max_episode_steps: int | None
    order_enforce: bool
    disable_env_checker: bool
    kwargs: dict[str, Any]
    additional_wrappers: list[WrapperSpecData]
    vector_entry_point: str | CallableData | None


def spec_to_json(spec: EnvSpec) -> dict[str, JSON]:
    """Return `spec` as strict JSON; what cannot be rebuilt is in it by name (see `not_rebuildable`).

    Raises:
        SpaceError: the arguments hold themselves, or text that is no Unicode.
    """
    limit, threshold = spec.max_episode_steps, spec.reward_threshold
    try:
        data = EnvSpecData(
            id=spec.id,
            entry_point=_entry_point(spec.entry_point),
            reward_threshold=None if threshold is None else number_to_json(float(threshold)),
            nondeterministic=bool(spec.nondeterministic),
            max_episode_steps=None if limit is None else int(limit),
            order_enforce=bool(spec.order_enforce),
            disable_env_checker=bool(spec.disable_env_checker),
            kwargs=_arguments_to_json(spec.kwargs),
            additional_wrappers=[_wrapper_to_json(wrapper) for wrapper in spec.additional_wrappers],
            vector_entry_point=_entry_point(spec.vector_entry_point),
        )
        return dict(json.loads(msgspec.json.encode(data)))
    except (UnicodeEncodeError, RecursionError) as error:
        raise SpaceError(f"the spec of {spec.id!a} cannot be kept: {error}") from error


def spec_from_json(data: JSON, *, skip_unrebuildable: bool = False) -> EnvSpec:
    """Return the spec that `spec_to_json` wrote. Nothing that the file names is imported or run.

    Args:
        data: the spec as JSON, which may be from a stranger.
        skip_unrebuildable: leave out wrappers and a `vector_entry_point` that cannot be rebuilt.

    Raises:
        SpaceError: something in it cannot be rebuilt; all of it is named.
        FormatError: the data is not of that form.
    """
    parsed = _parse(data)
    if skip_unrebuildable:
        kept = [wrapper for wrapper in parsed.additional_wrappers if not _in_wrapper(wrapper)]
        vector = parsed.vector_entry_point if isinstance(parsed.vector_entry_point, str) else None
        parsed = msgspec.structs.replace(parsed, additional_wrappers=kept, vector_entry_point=vector)
    if problems := "; ".join(_problems(parsed)):
        skip = "" if skip_unrebuildable else ", or leave out such wrappers with skip_unrebuildable=True"
        raise SpaceError(
            f"{parsed.id!r} cannot be rebuilt, its recording has no more than names of: {problems}. "
            f"Make the environment yourself{skip}"
        )
    try:
        return _build(parsed)
    except (ValueError, GymnasiumError) as error:
        raise FormatError(f"not a spec of an environment: {error}") from error


def not_rebuildable(data: JSON) -> list[str]:
    """Return the places in a spec as JSON of which only a name is kept: `wrapper TransformObservation: func`.

    Raises:
        FormatError: the data is no spec.
    """
    return _problems(_parse(data))


def _parse(data: JSON) -> EnvSpecData:
    try:
        return msgspec.convert(data, EnvSpecData)
    except (msgspec.ValidationError, RecursionError) as error:
        raise FormatError(f"not a spec of an environment: {error}") from error


def _problems(spec: EnvSpecData) -> list[str]:
    points = {"entry_point": spec.entry_point, "vector_entry_point": spec.vector_entry_point}
    return [
        *(name for name, point in points.items() if isinstance(point, CallableData)),
        *(f"argument {path}" for path in _in_arguments(spec.kwargs)),
        *(problem for wrapper in spec.additional_wrappers for problem in _in_wrapper(wrapper)),
    ]


def _in_wrapper(wrapper: WrapperSpecData) -> list[str]:
    if wrapper.kwargs is None:
        return [f"wrapper {wrapper.name}: all arguments, it is no RecordConstructorArgs"]
    return [f"wrapper {wrapper.name}: {path}" for path in _in_arguments(wrapper.kwargs)]


def _in_arguments(arguments: dict[str, JSON]) -> list[str]:
    try:
        return [path for name, value in arguments.items() for path in in_argument(value, name)]
    except RecursionError as error:
        raise FormatError(f"not a spec of an environment: {error}") from error


def _build(data: EnvSpecData) -> EnvSpec:
    fields = msgspec.structs.asdict(data)
    threshold = None if data.reward_threshold is None else float(data.reward_threshold)
    wrappers = [
        WrapperSpec(wrapper.name, wrapper.entry_point, _arguments(wrapper.kwargs or {}))
        for wrapper in data.additional_wrappers
    ]
    fields |= {"reward_threshold": threshold, "kwargs": _arguments(data.kwargs)}
    return EnvSpec(**fields | {"additional_wrappers": tuple(wrappers)})


def _entry_point(entry_point: Any) -> str | CallableData | None:
    if entry_point is None or isinstance(entry_point, str):
        return entry_point
    return CallableData(callable_name(entry_point))


def _wrapper_to_json(wrapper: WrapperSpec) -> WrapperSpecData:
    kwargs = None if wrapper.kwargs is None else _arguments_to_json(wrapper.kwargs)
    return WrapperSpecData(wrapper.name, wrapper.entry_point, kwargs)


def _arguments_to_json(arguments: dict[str, Any]) -> dict[str, JSON]:
    return {name: argument_to_json(value) for name, value in arguments.items()}


def _arguments(data: dict[str, JSON]) -> dict[str, Any]:
    return {name: argument_from_json(value) for name, value in data.items()}
