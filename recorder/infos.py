"""Infos: dictionaries that nobody declared, kept as sparse columns whatever they do."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recorder.columns import Array, Ragged, Sparse, concatenate, ragged, split
from recorder.leaf import JSON_TEXT, NUMBERS, TEXT, Leaf, cast_exactly, decode_key, encode_key, join, text_array

_IMMUTABLE = frozenset({bool, int, float, complex, str, type(None), *(np.dtype(name).type for name in NUMBERS)})

MOST_BITS = 14_000
"""Larger numbers have more than the 4,300 digits that Python reads from a text."""

MOST_AXES = 31
"""An array has no more in HDF5, whose rows are an axis too."""

_AS_BASE: Mapping[type, Any] = {
    int: int.__int__,
    float: float.__float__,
    complex: lambda value: complex(value.real, value.imag),
    str: str.__str__,
}
"""How a value of a class that somebody made of these becomes one of these, whatever that class says."""

DEEPEST = 32
"""So deep a value of an info may lie in others."""


@dataclass(frozen=True)
class Unkept:
    """Stands for a value that is no data, such as an object of the simulator."""

    type: str


def snapshot(value: Any, above: tuple[int, ...] = ()) -> Any:
    """Return a copy of a value of an info that nobody can change any more, without what is no data.

    `above` are the ids of what it lies in: what holds itself, or lies too deep, is no data.
    """
    if value.__class__ in _IMMUTABLE:
        return value if value.__class__ is not int or value.bit_length() <= MOST_BITS else Unkept("int of many digits")
    if isinstance(value, np.ndarray | np.generic):
        return _own(value)
    if not isinstance(value, Mapping | list | tuple):
        return _plain_value(value)
    if len(above) >= DEEPEST or id(value) in above:
        return Unkept(type(value).__name__)
    inside = (*above, id(value))
    if isinstance(value, Mapping):
        return {key: snapshot(item, inside) for key, item in zip(_names(value), value.values(), strict=True)}
    return [snapshot(item, inside) for item in value]


def _names(value: Mapping[Any, Any]) -> list[str]:
    """Return the keys of a mapping as texts; `1` beside `"1"` becomes `1 (int)`."""
    names = [key if key.__class__ is str else str(key) for key in value]
    if len(set(names)) == len(names):
        return names
    return [key if isinstance(key, str) else f"{key} ({type(key).__name__})" for key in value]


def _own(value: NDArray[Any] | np.generic) -> Any:
    """Return a copy of what NumPy holds, in the byte order of this machine; what is masked becomes None."""
    if isinstance(value, np.ma.MaskedArray) or value.dtype.kind not in "biufc":
        return snapshot(value.tolist())
    if value.dtype.name not in NUMBERS:
        return Unkept(value.dtype.name)
    if value.ndim > MOST_AXES:
        return Unkept(f"array of {value.ndim} axes")
    return value.copy() if value.dtype.isnative else value.astype(value.dtype.newbyteorder("="))


def _plain_value(value: Any) -> Any:
    """Return a member of an enumeration as its value, a tensor as an array, or a mark that a value is no data."""
    for kind in (int, float, complex, str):
        if isinstance(value, kind):
            if isinstance(value, Enum) and isinstance(value.value, kind):
                return snapshot(value.value)
            return snapshot(_AS_BASE[kind](value))
    if hasattr(value, "__array__") and not isinstance(value, type):
        # A tensor that is on a GPU, or that has a gradient, refuses.
        with suppress(TypeError, ValueError, RuntimeError):
            array = np.asarray(value)
            if array.dtype.name in NUMBERS:
                return _own(array)
    return Unkept(type(value).__name__)


def size(value: Any) -> int:
    """Return about how many bytes a snapshot takes."""
    if isinstance(value, np.ndarray):
        return 112 + value.nbytes
    if isinstance(value, dict):
        return 64 + sum(64 + size(item) for item in value.values())
    if isinstance(value, list):
        return 56 + sum(map(size, value))
    return 32 + (len(value) if isinstance(value, str) else 0)


def flatten(info: Mapping[str, Any], path: str = "info") -> dict[str, Any]:
    """Return the values of a snapshot by path; None counts as absent."""
    flat: dict[str, Any] = {}
    for key, value in info.items():
        # Not `encode_keys`: which keys stand side by side is not the same in all rows, and tables know case.
        name = join(path, encode_key(key))
        if isinstance(value, dict):
            flat.update(flatten(value, name))
        elif value is not None:
            flat[name] = value
    return flat


def nest(columns: Mapping[str, Any], path: str = "info") -> dict[str, Any]:
    """Return values by path as the dictionaries that they came from.

    What a key held in rows where it was no dictionary, while it was one in others, is in that one under `""`.
    """
    nested: dict[str, Any] = {}
    for full in sorted(columns, key=lambda full: full.count("/")):
        *parents, last = map(decode_key, full.removeprefix(path + "/").split("/"))
        place = nested
        for parent in parents:
            if not isinstance(place.setdefault(parent, {}), dict):
                place[parent] = {"": place[parent]}
            place = place[parent]
        place[last] = columns[full]
    return nested


def sparse_columns(infos: Sequence[tuple[int, Mapping[str, Any]]], length: int) -> dict[str, Sparse]:
    """Return the columns of `length` rows, of which those in `infos` have a flattened info."""
    places: dict[str, list[int]] = {}
    values: dict[str, list[Any]] = {}
    for row, info in infos:
        for path, value in info.items():
            places.setdefault(path, []).append(row)
            values.setdefault(path, []).append(value)
    columns = {}
    for path, items in values.items():
        present = np.zeros(length, bool)
        present[places[path]] = True
        leaf, rows = _column(path, items)
        columns[path] = Sparse(leaf, present, rows)
    return columns


def _column(path: str, items: list[Any]) -> tuple[Leaf, Array | Ragged]:
    """Return values as one column of the simplest kind that keeps them all."""
    leaf = Leaf(path, (), JSON_TEXT, sparse=True)
    if all(isinstance(item, str) for item in items):
        return replace(leaf, dtype=TEXT), text_array(items)
    arrays = [_numbers(item) for item in items]
    if any(array is None for array in arrays):
        return leaf, _as_json(items)
    return _joined(leaf, [array for array in arrays if array is not None], items)


def _numbers(value: Any) -> NDArray[Any] | None:
    """Return a number, an array or a list of numbers of one type as an array, else None."""
    if isinstance(value, list):
        classes = {item.__class__ for item in value}
        if len(classes) != 1 or classes & {str, dict, Unkept, type(None)}:
            return None
        inner = [_numbers(item) for item in value]
        same = {None if array is None else (array.shape, array.dtype) for array in inner}
        return np.array(inner) if len(same) == 1 and None not in same else None
    if isinstance(value, str | dict | Unkept) or value is None:
        return None
    array = np.asarray(value)
    return array if array.dtype.kind in "biufc" else None


def _joined(leaf: Leaf, arrays: list[NDArray[Any]], items: list[Any]) -> tuple[Leaf, Array | Ragged]:
    """Return arrays as one column: stacked, promoted where that is exact, ragged, or as JSON."""
    dtype = _common({array.dtype for array in arrays}, arrays)
    if dtype is None:
        return leaf, _as_json(items)
    shapes = {array.shape for array in arrays}
    if len(shapes) == 1:
        return replace(leaf, shape=shapes.pop(), dtype=dtype.name), np.array(arrays, dtype)
    if min(map(len, shapes)) > 0 and len({shape[1:] for shape in shapes}) == 1:
        leaf = replace(leaf, shape=arrays[0].shape[1:], dtype=dtype.name, ragged=True)
        return leaf, ragged([array.astype(dtype) for array in arrays], leaf)
    return leaf, _as_json(items)


def _common(dtypes: set[np.dtype[Any]], arrays: Sequence[NDArray[Any]]) -> np.dtype[Any] | None:
    """Return the dtype that holds all arrays exactly, if there is one; truth values stay apart from numbers."""
    if len(dtypes) == 1:
        return next(iter(dtypes))
    if np.dtype(bool) in dtypes:
        return None
    common = np.result_type(*dtypes)
    return common if all(cast_exactly(array, common) is not None for array in arrays) else None


def _as_json(items: Sequence[Any]) -> NDArray[Any]:
    return text_array([json.dumps(_plain(item), allow_nan=False) for item in items])


def _plain(value: Any) -> Any:
    """Return a value as strict JSON: numbers that are not finite become strings, what is no data its type's name."""
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, complex):
        return [_plain(value.real), _plain(value.imag)]
    return {"unkept": value.type} if isinstance(value, Unkept) else value


def unkept(info: Mapping[str, Any]) -> dict[str, str]:
    """Return the paths of a flattened info that hold no data, with the type of what is there."""
    return {path: value.type for path, value in info.items() if isinstance(value, Unkept)}


def join_sparse(path: str, parts: Sequence[Sparse | int]) -> Sparse:
    """Join the rows of one key from many batches; a number stands for so many rows without the key.

    Where batches disagree about shape or dtype, the rows are put into a column that keeps them all exactly.
    """
    present = np.concatenate([np.zeros(part, bool) if isinstance(part, int) else part.present for part in parts])
    found = [part for part in parts if not isinstance(part, int) and len(part.values)]
    if not found:
        leaf = next((part.leaf for part in parts if not isinstance(part, int)), Leaf(path, sparse=True))
        return Sparse(leaf, present, ragged([], leaf) if leaf.ragged else np.empty((0, *leaf.shape), leaf.numpy_dtype))
    if len({part.leaf for part in found}) == 1:
        return Sparse(found[0].leaf, present, concatenate([part.values for part in found]))
    items = [item for part in found for item in _items(part)]
    leaf, values = _column(path, items)
    return Sparse(leaf, present, values)


def _items(part: Sparse) -> list[Any]:
    """Return the values of a column one by one, as they were in the infos."""
    if isinstance(part.values, Ragged):
        return split(part.values.values, part.values.lengths)
    if part.leaf.dtype == JSON_TEXT:
        return [json.loads(text) for text in part.values]
    return list(part.values)
