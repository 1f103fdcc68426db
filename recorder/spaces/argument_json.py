"""Arguments of any kind as strict JSON, and back.

JSON stands for itself. What JSON has not is an object with one key that says what it is:

    {"tuple": [...]}    {"float": "inf"}    {"integer": "9223372036854775807"}
    {"array": {"dtype": "float32", "shape": [2], "data": [0.0, 1.0]}}    {"scalar": {"dtype": ..., "data": 1}}
    {"dtype": "float32"}    {"type": "float32"}: NumPy's own type of that name    {"space": {...}}
    {"dict": [[key, value], ...]} where keys are no strings, or where the only key is one of these
    {"callable": "module:name"}    {"object": "its repr"}

The last two cannot be rebuilt: a file is never a reason to import or to run anything. Only the builtin types
themselves count as JSON: a subclass of `dict` or `str` is an object.
"""

from __future__ import annotations

import functools
import math
import reprlib
from collections.abc import Callable, Iterator
from functools import singledispatch
from types import NoneType
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from gymnasium import Space
from numpy.typing import NDArray

from recorder.errors import FormatError, MetadataError, RecorderError, SpaceError
from recorder.leaf import JSON, join
from recorder.spaces.array_json import (
    DTYPES,
    Numbers,
    Shape,
    dtype_from_json,
    dtype_to_json,
    number_to_json,
    numbers_from_json,
    numbers_to_json,
)
from recorder.spaces.space_data import MOST_ELEMENTS
from recorder.spaces.space_json import space_from_json, space_to_json

_REPR = reprlib.Repr()
_REPR.maxother = 500
_SCALAR_TYPES = {dtype.type: name for name, dtype in DTYPES.items() if dtype.isnative}
_REBUILT = {"tuple", "dict", "float", "integer", "array", "scalar", "dtype", "type", "space"}
_TAGS = _REBUILT | {"callable", "object"}

Digits = Annotated[str, msgspec.Meta(pattern=r"^-?[0-9]{1,4000}\Z")]
Special = Literal["inf", "-inf", "nan"]


class ArrayData(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a file says of an array, or of a NumPy scalar."""

    dtype: str
    data: Numbers
    shape: Shape = ()

    def build(self) -> NDArray[Any]:
        """Return the array, after its size has been checked."""
        if math.prod(self.shape) > MOST_ELEMENTS:
            raise ValueError(f"an array of shape {self.shape} has more than {MOST_ELEMENTS} elements")
        return numbers_from_json(self.data, self.shape, dtype_from_json(self.dtype))


def argument_to_json(value: Any) -> JSON:
    """Return any value as strict JSON.

    >>> argument_to_json({"size": (84, 84), "scale": np.float32(0.5), "map": len})["size"]
    {'tuple': [84, 84]}
    """
    builtin = _BUILTINS.get(type(value))
    return builtin(value) if builtin else _other_to_json(value)


def argument_from_json(data: JSON) -> Any:
    """Return the value that `argument_to_json` wrote.

    Raises:
        FormatError: the data is not of that form.
        SpaceError: it holds a callable or an object, which cannot be rebuilt.
    """
    try:
        return _from_json(data)
    except RecorderError:
        raise
    except (msgspec.ValidationError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise FormatError(f"not an argument: {error}: {reprlib.repr(data)}") from error


def not_rebuildable(data: JSON, path: str = "") -> Iterator[str]:
    """Yield the paths in an argument as JSON at which there is a callable or an object."""
    match _tag(data), data:
        case (("callable" | "object"), _):
            yield path
        case "tuple", {"tuple": list(items)}:
            yield from not_rebuildable(items, path)
        case "dict", {"dict": list(pairs)}:
            for pair in pairs:
                yield from not_rebuildable(pair, path)
        case "", dict(items):
            for key, item in items.items():
                yield from not_rebuildable(item, join(path, key))
        case "", list(items):
            for i, item in enumerate(items):
                yield from not_rebuildable(item, join(path, str(i)))


def callable_name(value: Callable[..., Any]) -> str:
    """Return where a callable is defined, for people.

    >>> callable_name(math.prod), callable_name(functools.partial(math.prod, start=2))
    ('math:prod', 'functools:partial(math:prod)')
    """
    if isinstance(value, functools.partial):
        return f"functools:partial({callable_name(value.func)})"
    named = value if isinstance(getattr(value, "__qualname__", None), str) else type(value)
    return f"{named.__module__}:{named.__qualname__}"


def _same(value: Any) -> JSON:
    return value


def _integer(value: int) -> JSON:
    return value if abs(value) <= 2**53 else {"integer": str(value)}


def _float(value: float) -> JSON:
    return value if math.isfinite(value) else {"float": str(value)}


def _list(value: list[Any]) -> JSON:
    return [argument_to_json(item) for item in value]


def _tuple(value: tuple[Any, ...]) -> JSON:
    return {"tuple": [argument_to_json(item) for item in value]}


def _dict(value: dict[Any, Any]) -> JSON:
    if all(type(key) is str for key in value) and not _tag(value):
        return {key: argument_to_json(item) for key, item in value.items()}
    return {"dict": [[argument_to_json(key), argument_to_json(item)] for key, item in value.items()]}


_BUILTINS: dict[type, Callable[[Any], JSON]] = {
    **dict.fromkeys((NoneType, bool, str), _same),
    int: _integer,
    float: _float,
    list: _list,
    tuple: _tuple,
    dict: _dict,
}


@singledispatch
def _other_to_json(value: Any) -> JSON:
    return {"callable": callable_name(value)} if callable(value) else _object(value)


def _object(value: Any) -> JSON:
    return {"object": _REPR.repr_instance(value, 1)}


@_other_to_json.register(np.ndarray)
def _(value: NDArray[Any]) -> JSON:
    if type(value) is not np.ndarray or value.dtype not in DTYPES.values() or value.size > MOST_ELEMENTS:
        return _object(value)
    data = {"dtype": dtype_to_json(value.dtype), "shape": list(value.shape), "data": numbers_to_json(value)}
    return {"array": data}


@_other_to_json.register(np.generic)
def _(value: np.generic) -> JSON:
    if value.dtype not in DTYPES.values():
        return _object(value)
    return {"scalar": {"dtype": dtype_to_json(value.dtype), "data": number_to_json(value.item())}}


@_other_to_json.register(np.dtype)
def _(value: np.dtype[Any]) -> JSON:
    return {"dtype": dtype_to_json(value)} if value in DTYPES.values() else _object(value)


@_other_to_json.register(type)
def _(value: type) -> JSON:
    name = _SCALAR_TYPES.get(value)
    return {"type": name} if name else {"callable": callable_name(value)}


@_other_to_json.register(Space)
def _(value: Space[Any]) -> JSON:
    try:
        data = space_to_json(value)
    except (SpaceError, MetadataError):
        return _object(value)
    return {"space": data} if space_from_json(data) == value else _object(value)


def _tag(data: JSON) -> str:
    """Return the tag of an object that stands for something else, empty if it is none."""
    keys = list(data) if isinstance(data, dict) else []
    return keys[0] if len(keys) == 1 and keys[0] in _TAGS else ""


def _from_json(data: JSON) -> Any:
    if tag := _tag(data):
        return _tagged(tag, data[tag])
    match data:
        case dict():
            return {key: _from_json(item) for key, item in data.items()}
        case list():
            return [_from_json(item) for item in data]
    return data


def _tagged(tag: str, data: JSON) -> Any:
    match tag:
        case "tuple":
            return tuple(_from_json(item) for item in msgspec.convert(data, list[Any]))
        case "dict":
            pairs = msgspec.convert(data, list[tuple[Any, Any]])
            return {_from_json(key): _from_json(item) for key, item in pairs}
        case "float":
            return float(msgspec.convert(data, Special))
        case "integer":
            return int(msgspec.convert(data, Digits))
        case "array":
            return msgspec.convert(data, ArrayData).build()
        case "scalar":
            return msgspec.convert(data, ArrayData).build()[()]
        case "dtype":
            return dtype_from_json(msgspec.convert(data, str))
        case "type":
            return dtype_from_json(msgspec.convert(data, str)).type
        case "space":
            return space_from_json(data)
    raise SpaceError(f"{data!s:.200} cannot be rebuilt: a recording has only the names of callables and objects")
