"""Gymnasium spaces as strict JSON, and back.

A space is an object with its `type`, the name of one of Gymnasium's spaces, and the fields of the class
`<type>Data` in `recorder.spaces.space_data`; a field that has its default is left out:

    {"type": "Box", "shape": [480, 640, 3], "dtype": "uint8", "low": 0, "high": 255, "metadata": {"fps": 30}}
    {"type": "Dict", "spaces": {"position": {...}, "task": {...}}}

Numbers and arrays are those of `recorder.spaces.array_json`: `"inf"` and integers beyond 2**53 are strings. In an
integer Box an infinite bound is none: Gymnasium keeps the dtype's own limit there. The keys of a Dict have
the order of the file. `metadata` is what the attribute `space.metadata` held, with lists for its tuples.

A space whose class is not Gymnasium's carries its `name`, for people: nothing is ever imported by it. A
subclass of a known space is kept as that one. Any other is `{"type": "Other", "name": ..., "space": ...}`
around a plain space that has the same samples, and that plain space is what a reader gets.
"""

from __future__ import annotations

import json
from functools import singledispatch
from typing import Any

import msgspec
import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from recorder.errors import FormatError, SpaceError
from recorder.leaf import JSON, encode_keys, join
from recorder.metadata.annotation import metadata_of
from recorder.spaces import space_data
from recorder.spaces.array_json import Numbers, dtype_to_json, integer_to_json, numbers_to_json
from recorder.spaces.differences import differences as differences
from recorder.spaces.samples import draw, plain_like
from recorder.spaces.space_data import AnySpaceData, build_space, parse_space, too_large


def space_to_json(space: Space[Any], path: str = "") -> dict[str, JSON]:
    """Return `space` as strict JSON; `path` is for messages. No random generator is moved.

    >>> space_to_json(spaces.Box(-1, np.inf, (2,)))
    {'type': 'Box', 'shape': [2], 'dtype': 'float32', 'low': -1.0, 'high': 'inf'}

    Raises:
        SpaceError: it cannot be kept: its samples are no arrays, texts or numbers, its keys are no strings.
        MetadataError: its metadata is not JSON.
    """
    data = _describe(space, path)
    if problem := too_large(data):
        raise SpaceError(f"{_at(path)}{problem}: {space!r:.200}")
    try:
        return dict(json.loads(msgspec.json.encode(data)))
    except UnicodeEncodeError as error:
        raise SpaceError(
            f"{_at(path)}the space has text that is no Unicode, which no file can hold: {error}"
        ) from error


def space_from_json(data: JSON) -> Space[Any]:
    """Return the space that `space_to_json` wrote. `data` may be from a stranger: sizes are checked first.

    Raises:
        FormatError: the data is not of that form; the message names the type, field or value.
    """
    parsed = parse_space(data)
    if problem := too_large(parsed):
        raise FormatError(problem)
    return build_space(parsed)


def plain_space(space: Space[Any], path: str = "") -> Space[Any]:
    """Return `space` as a reader of the recording will get it: of Gymnasium's own classes throughout.

    Raises:
        SpaceError: it cannot be kept.
        MetadataError: its metadata is not JSON.
    """
    return space_from_json(space_to_json(space, path))


def _describe(space: Space[Any], path: str) -> AnySpaceData:
    """Return what a file says of `space`, with its metadata and its class if that is not Gymnasium's."""
    own = type(space)
    known = getattr(spaces, own.__name__, None) is own
    carries = getattr(space, "metadata", None) is not None
    return msgspec.structs.replace(
        _data(space, path),
        name=None if known else f"{own.__module__}:{own.__qualname__}",
        metadata=metadata_of(space, path) if carries else None,
    )


def _at(path: str) -> str:
    return f"{path!r}: " if path else ""


@singledispatch
def _data(space: Space[Any], path: str) -> AnySpaceData:
    try:
        return space_data.OtherData(space=_describe(plain_like(draw(space)), path))
    except Exception as error:
        raise SpaceError(
            f"{_at(path)}a {type(space).__qualname__} is no space of Gymnasium's, and its samples cannot be "
            f"kept: {error}; exclude it, or wrap the environment so that its space is one of Gymnasium's"
        ) from error


@_data.register(spaces.Box)
def _(space: spaces.Box[Any], path: str) -> AnySpaceData:
    if np.isnan(space.low).any() or np.isnan(space.high).any():
        raise SpaceError(f"{_at(path)}the Box has a bound that is no number (NaN): {space!r:.200}")
    dtype = dtype_to_json(space.dtype)
    low = _bound(space.low, space.bounded_below, "-inf")
    high = _bound(space.high, space.bounded_above, "inf")
    return space_data.BoxData(shape=space.shape, dtype=dtype, low=low, high=high)


def _bound(limits: NDArray[Any], bounded: NDArray[np.bool_], infinity: str) -> Numbers:
    if limits.dtype.kind == "f" or bounded.all():
        return numbers_to_json(limits)
    if not bounded.any():
        return infinity
    pairs = zip(limits.flat, bounded.flat, strict=True)
    return [integer_to_json(limit) if within else infinity for limit, within in pairs]


@_data.register(spaces.Discrete)
def _(space: spaces.Discrete[Any], path: str) -> AnySpaceData:
    n, start = integer_to_json(space.n), integer_to_json(space.start)
    return space_data.DiscreteData(n=n, start=start, dtype=dtype_to_json(space.dtype))


@_data.register(spaces.MultiDiscrete)
def _(space: spaces.MultiDiscrete[Any], path: str) -> AnySpaceData:
    return space_data.MultiDiscreteData(
        shape=space.shape,
        nvec=numbers_to_json(space.nvec),
        start=numbers_to_json(space.start),
        dtype=dtype_to_json(space.dtype),
    )


@_data.register(spaces.MultiBinary)
def _(space: spaces.MultiBinary, path: str) -> AnySpaceData:
    return space_data.MultiBinaryData(n=space.n)


@_data.register(spaces.Text)
def _(space: spaces.Text, path: str) -> AnySpaceData:
    shortest, longest = integer_to_json(space.min_length), integer_to_json(space.max_length)
    charset = "".join(space.character_list)
    return space_data.TextData(min_length=shortest, max_length=longest, charset=charset)


@_data.register(spaces.Dict)
def _(space: spaces.Dict[Any], path: str) -> AnySpaceData:
    if strange := [key for key in space.spaces if not isinstance(key, str)]:
        raise SpaceError(f"{_at(path)}the Dict has the key {strange[0]!r}, a recording needs keys that are strings")
    paths = [join(path, name) for name in encode_keys(list(space.spaces))]
    items = zip(space.spaces.items(), paths, strict=True)
    parts = {key: _describe(part, inner) for (key, part), inner in items}
    return space_data.DictData(spaces=parts, sort_keys=getattr(space, "sort_keys", True))


@_data.register(spaces.Tuple)
def _(space: spaces.Tuple[Any], path: str) -> AnySpaceData:
    parts = [_describe(part, join(path, str(i))) for i, part in enumerate(space.spaces)]
    return space_data.TupleData(spaces=parts)


@_data.register(spaces.OneOf)
def _(space: spaces.OneOf[Any], path: str) -> AnySpaceData:
    parts = [_describe(part, join(path, str(i))) for i, part in enumerate(space.spaces)]
    return space_data.OneOfData(spaces=parts)


@_data.register(spaces.Sequence)
def _(space: spaces.Sequence, path: str) -> AnySpaceData:
    part = _describe(space.feature_space, path)
    return space_data.SequenceData(space=part, stack=space.stack)


@_data.register(spaces.Graph)
def _(space: spaces.Graph, path: str) -> AnySpaceData:
    nodes = _describe(space.node_space, join(path, "nodes"))
    edges = None if space.edge_space is None else _describe(space.edge_space, join(path, "edges"))
    return space_data.GraphData(node_space=nodes, edge_space=edges)
