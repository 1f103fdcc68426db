"""How two spaces differ, for people: why nothing can be appended to a recording."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from recorder.leaf import JSON, join
from recorder.spaces.space_data import OtherData, SpaceData, parse_space


def differences(ours: JSON, theirs: JSON, path: str = "") -> list[str]:
    """Return how two spaces as JSON differ, a line each, for people; `path` is that of the spaces.

    Names of classes and the order of keys make no difference.

    >>> from gymnasium import spaces
    >>> from recorder.spaces.space_json import space_to_json
    >>> here, there = (space_to_json(spaces.Dict(a=spaces.Box(0, 1, shape))) for shape in [(3,), (2,)])
    >>> differences(here, there, "observation")
    ['observation/a: shape (3,) here, (2,) in the recording']

    Raises:
        FormatError: one of them is no space.
    """
    return list(_differences(parse_space(ours), parse_space(theirs), path))


def _differences(ours: SpaceData, theirs: SpaceData, path: str) -> Iterator[str]:
    ours, theirs = _unwrap(ours), _unwrap(theirs)
    if type(ours) is not type(theirs):
        yield _difference(path, "", _fields(ours)["type"], _fields(theirs)["type"])
        return
    yield from _changes(path, "", _fields(ours), _fields(theirs))
    yield from _changes(path, "metadata ", ours.metadata or {}, theirs.metadata or {})
    here, there = ours.parts(), theirs.parts()
    for name in [*here, *(name for name in there if name not in here)]:
        inner = join(path, name)
        if name not in there:
            yield f"{inner}: only here"
        elif name not in here:
            yield f"{inner}: only in the recording"
        else:
            yield from _differences(here[name], there[name], inner)


def _unwrap(data: SpaceData) -> SpaceData:
    if not isinstance(data, OtherData):
        return data
    return _unwrap(msgspec.structs.replace(data.space, metadata=data.metadata))


def _fields(data: SpaceData) -> dict[str, Any]:
    """Return the fields of a space itself, which are not those of the spaces in it."""
    fields = {name: getattr(data, name) for name in data.__struct_fields__}
    others = {"name", "metadata", "space", "spaces", "node_space", "edge_space"}
    kind = type(data).__name__.removesuffix("Data")
    return {"type": kind, **{name: value for name, value in fields.items() if name not in others}}


def _changes(path: str, what: str, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Iterator[str]:
    for name in [*ours, *(name for name in theirs if name not in ours)]:
        here, there = ours.get(name, "nothing"), theirs.get(name, "nothing")
        if here != there:
            yield _difference(path, f"{what}{name} ", here, there)


def _difference(path: str, what: str, ours: Any, theirs: Any) -> str:
    here, there = f"{ours!s:.60}", f"{theirs!s:.60}"
    values = f"{here} here, {there} in the recording" if here != there else f"differs after {here}"
    return f"{path or 'the space'}: {what}{values}"
