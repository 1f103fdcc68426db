"""Leaves that are hard to keep, and rows of them, the same at each call."""

from __future__ import annotations

import json
import zlib
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from recorder.columns import Array, Ragged, Rows, Sparse, split, take
from recorder.leaf import JSON_TEXT, NUMBERS, TEXT, Leaf, encode_key, join, text_array

TEXTS = ("", "a", "pick up the cup", "\0", "a\0b\0", "\ud800", "\U0001f916 é e\u0301", "\n", "%", "x" * 500)
"""Texts that are hard to keep; the sixth is half of a surrogate pair."""

VALUES: tuple[Any, ...] = (7, 0.5, True, "text", [1, "x"], [], {"a": [1.5, None]}, "\ud83d", [[1], [2, 3]])
"""Values of infos that are no arrays."""

TABLE_LEAVES = (
    *(Leaf(f"observation/{name}", (2, 3), name) for name in sorted(NUMBERS)),
    *(Leaf(f"action/{name}", (), name, "action", "transition") for name in ("bool", "float32", "int64")),
    Leaf("observation/picture", (16, 24, 3), "uint8", "image"),
    Leaf("observation/no rows", (0, 3)),
    Leaf("observation/no columns", (3, 0), "uint8"),
    Leaf(join("observation", encode_key("a/b"), encode_key("é *."), "c"), (5,), "float32"),
    Leaf("observation/task", (), TEXT, "task"),
    Leaf("action/words", (), TEXT, "action", "transition"),
    Leaf("observation/points", (3,), "float32", "pointcloud", ragged=True),
    Leaf("observation/counts", (), "uint64", ragged=True),
    Leaf("observation/nothing", (0,), ragged=True),
    Leaf("observation/texts", (), TEXT, ragged=True),
    Leaf("action/path", (2, 2), "int16", "action", "transition", ragged=True),
)
"""Leaves of every dtype in both classes, of no size, of text, and ragged ones: what a table keeps."""

INFO_LEAVES = (
    Leaf("info/score", sparse=True),
    Leaf("info/success", (), "bool", sparse=True),
    Leaf("info/arm/position", (3,), "float32", sparse=True),
    Leaf("info/note", (), TEXT, sparse=True),
    Leaf("info/contacts", (2,), "int64", ragged=True, sparse=True),
    Leaf("info/anything", (), JSON_TEXT, sparse=True),
)
"""Keys of infos, which no writer is told of beforehand."""

PICTURE_LEAVES = (
    Leaf("observation/camera/front", (64, 64, 3), "uint8", "image"),
    Leaf("observation/camera/odd", (33, 47, 3), "uint8", "image"),
    Leaf("observation/camera/tiny", (1, 1, 3), "uint8", "image"),
    Leaf("action/canvas", (16, 24, 3), "uint8", "image", "transition"),
)
"""RGB pictures."""

GREY_LEAVES = (
    Leaf("observation/grey", (24, 33), "uint8", "image"),
    Leaf("observation/grey channel", (17, 32, 1), "uint8", "image"),
)
"""Pictures without colours."""

ALPHA_LEAVES = (Leaf("observation/alpha", (20, 31, 4), "uint8", "image"),)
"""RGBA pictures."""

ARRAY_LEAVES = (
    Leaf("observation/depth", (48, 64), "uint16", "depth"),
    Leaf("observation/range", (24, 32, 1), "float32", "depth"),
    Leaf("observation/mask", (16, 16), "bool", "mask"),
    Leaf("observation/stack", (4, 20, 20), "uint8", "stack"),
    Leaf("observation/objects", (7, 7, 3), "uint8"),
    Leaf("observation/waves", (6,), "complex64"),
    Leaf("observation/half", (3, 1), "float16"),
    Leaf("action/torque", (7,), "float64", "action", "transition"),
    Leaf("reward", (), "float64", "reward", "transition"),
)
"""Arrays of one shape that are no natural pictures."""

RAGGED = Leaf("observation/points", (3,), "float32", ragged=True)
TEXT_LEAF = Leaf("observation/task", (), TEXT, "task")
"""Leaves whose rows are no arrays of one shape, for storages that must refuse them."""


def rows_of(leaf: Leaf, count: int, seed: int = 0) -> Rows:
    """Return `count` rows of a leaf; those of a larger count begin with those of a smaller one.

    Numbers are of any bits, with infinities, NaN and the limits of their dtype among them; floats whose metadata
    name a `range` lie in it. Rows of kind `image` are smooth pictures, each as a whole brighter or darker than its
    neighbours.
    """
    return take(_many_rows(leaf, max(16, 1 << (count - 1).bit_length()), seed), slice(0, count))


@lru_cache(maxsize=256)
def _many_rows(leaf: Leaf, count: int, seed: int) -> Rows:
    generator = np.random.default_rng([zlib.crc32(leaf.path.encode()), seed])
    if leaf.sparse:
        present = generator.random(count) < 0.7
        return Sparse(leaf, present, dense_rows(rows_of(replace(leaf, sparse=False), int(present.sum()), seed)))
    if leaf.ragged:
        lengths = (generator.random(count) * 4).astype(np.int64)
        values = rows_of(replace(leaf, ragged=False), int(lengths.sum()), seed)
        assert isinstance(values, np.ndarray)
        return Ragged(lengths, values)
    if leaf.dtype in (TEXT, JSON_TEXT):
        return _texts(leaf, (generator.random(count) * 1000).astype(int))
    return _pictures(leaf, count, seed) if leaf.kind == "image" else _numbers(leaf, count, generator)


def _texts(leaf: Leaf, choices: Array) -> Array:
    if leaf.dtype == JSON_TEXT:
        return text_array([json.dumps(VALUES[choice % len(VALUES)]) for choice in choices])
    return text_array([TEXTS[choice % len(TEXTS)] for choice in choices])


def _numbers(leaf: Leaf, count: int, generator: np.random.Generator) -> Array:
    shape, dtype = (count, *leaf.shape), leaf.numpy_dtype
    if dtype.kind == "b":
        return generator.random(shape) < 0.5
    if dtype.kind == "f" and "range" in leaf.metadata:
        low, high = leaf.metadata["range"]
        uniform: Array = generator.uniform(low, high, shape).astype(dtype)
        return uniform
    values = np.frombuffer(generator.bytes(count * leaf.nbytes), dtype).reshape(shape).copy()
    flat, limits = values.reshape(-1), _limits(dtype)
    flat[::3] = np.resize(limits, flat[::3].shape)
    return values


def _limits(dtype: np.dtype[Any]) -> Array:
    if dtype.kind in "iu":
        integers = np.iinfo(dtype)
        return np.array([integers.min, integers.max, 0, 1], dtype)
    floats = np.finfo(dtype)
    numbers = [0.0, -0.0, np.inf, -np.inf, np.nan, floats.max, floats.tiny, floats.smallest_subnormal, 1 / 3]
    return np.array(numbers).astype(dtype)


def _pictures(leaf: Leaf, count: int, seed: int) -> Array:
    height, width, *channels = leaf.shape
    t = (5 * (np.arange(count) + seed)) % 10
    brightness = (30 + 15 * t).reshape(count, *[1] * len(leaf.shape))
    picture = np.add.outer(np.linspace(0, 30, height), np.linspace(0, 30, width))
    for channel in channels:
        picture = np.add.outer(picture, 15 * np.arange(channel))
    return np.asarray(brightness + picture).astype(leaf.numpy_dtype)


def as_read(leaf: Leaf, rows: Rows) -> Array:
    """Return rows as a column gives them: ragged as objects, sparse masked, JSON as what it says."""
    match rows:
        case Sparse(_, present, values):
            there = as_read(replace(leaf, sparse=False), values)
            filled = np.zeros((len(present), *there.shape[1:]), there.dtype)
            filled[present] = there
            absent = np.broadcast_to(~present.reshape(-1, *[1] * (there.ndim - 1)), filled.shape)
            return np.ma.MaskedArray(filled, mask=absent)
        case Ragged(lengths, values):
            return text_array(split(values, lengths))
    return text_array([json.loads(text) for text in rows]) if leaf.dtype == JSON_TEXT else rows


def dense_rows(rows: Rows) -> Array | Ragged:
    """Return rows that are known to be all there."""
    assert not isinstance(rows, Sparse)
    return rows
