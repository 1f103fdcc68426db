"""Trials: what it costs to keep a leaf, by writing a few rows of it."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from recorder.columns import Array, Rows, ragged, take
from recorder.files import files_below
from recorder.leaf import TEXT, Leaf, text_array
from recorder.metadata.kinds import PICTURE_SIDE
from recorder.storages.base import Run, Segment, Storage, Writer

TRIAL_BYTES = 1 << 20
FEWEST_ROWS, MOST_ROWS, MOST_ARRAYS = 8, 1024, 64
"""Each of the two segments of a trial has about so many bytes, and no fewer rows than this and no more.
Arrays with two axes or more may be pictures, which take longer."""


class Cost(NamedTuple):
    """What one more row costs: bytes on disk, and milliseconds of work beside the environment."""

    bytes: float
    milliseconds: float


def trial(storage: Storage, leaf: Leaf, rows: Rows) -> Cost:
    """Return what a row of a leaf costs: two segments of `rows` are written and packed in a temporary folder.

    The bytes are those by which the second segment makes the packed files grow, so that headers do not count.
    The milliseconds are those of appending and packing it, after the first has loaded libraries.
    """
    half = len(rows) // 2
    with TemporaryDirectory(prefix="recorder-trial-") as folder:
        writer = storage.writer(Path(folder, "staging"), [leaf])
        try:
            first = _append(writer, leaf, take(rows, slice(0, half)), 0)
            alone = _pack(writer, Path(folder, "first"), [first])
            start = perf_counter()
            second = _append(writer, leaf, take(rows, slice(half, 2 * half)), 1)
            _pack(writer, Path(folder, "second"), [second])
            seconds = perf_counter() - start
            both = _pack(writer, Path(folder, "both"), [first, second])
        finally:
            writer.close()
    return Cost((both - alone) / half, 1000 * seconds / half)


def _append(writer: Writer, leaf: Leaf, rows: Rows, number: int) -> Segment:
    """Write rows as a segment that goes on from one before, so that all of them count."""
    writer.append({leaf.path: rows}, [Run(number, 0, len(rows))])
    writer.end(number)
    return Segment(number, len(rows), len(rows))


def _pack(writer: Writer, directory: Path, segments: Sequence[Segment]) -> int:
    """Pack segments, and return the bytes of the files."""
    directory.mkdir()
    writer.pack(directory, segments)
    return sum(path.stat().st_size for path in files_below(directory))


def synthetic_rows(leaf: Leaf) -> Rows:
    """Return rows for a trial of a leaf, the same at each call.

    Pictures are gradients and shapes that move; numbers walk at random; lists and texts change in length.
    """
    generator = np.random.default_rng(zlib.crc32(leaf.path.encode()))
    most = MOST_ARRAYS if len(leaf.shape) > 1 else MOST_ROWS
    count = 2 * min(max(TRIAL_BYTES // max(leaf.nbytes, 1), FEWEST_ROWS), most)
    if not leaf.ragged:
        return _values(leaf, count, generator)
    lengths = generator.integers(0, 8, count)
    values = _values(leaf, int(lengths.sum()), generator)
    return ragged(np.split(values, np.cumsum(lengths)[:-1]), leaf)


def _values(leaf: Leaf, count: int, generator: np.random.Generator) -> Array:
    if leaf.numpy_dtype.kind == "O":
        return _texts(leaf, count, generator)
    axis = picture_axis(leaf.shape)
    return _numbers(leaf, count, generator) if axis is None else _pictures(leaf, count, axis)


def _texts(leaf: Leaf, count: int, generator: np.random.Generator) -> Array:
    longest = min(leaf.metadata.get("max_length", 32), 32)
    texts = ["a" * int(length) for length in generator.integers(0, longest + 1, count)]
    return text_array(texts if leaf.dtype == TEXT else [f'"{text}"' for text in texts])


def _numbers(leaf: Leaf, count: int, generator: np.random.Generator) -> Array:
    steps = generator.normal(size=(count, *leaf.shape))
    return _of_dtype(np.cumsum(steps, axis=0), leaf.numpy_dtype)


def _of_dtype(values: NDArray[np.float64], dtype: np.dtype[Any]) -> Array:
    if dtype.kind == "b":
        return values > 0
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return np.clip(np.round(values), limits.min, min(limits.max, 2**31)).astype(dtype)
    return values.astype(dtype)


def picture_axis(shape: Sequence[int]) -> int | None:
    """Return the first of the two axes along which rows are pictures, or None if they are none.

    >>> picture_axis((480, 640, 3)), picture_axis((4, 84, 84)), picture_axis((7, 7, 3))
    (0, 1, None)
    """
    sides = [min(shape[i : i + 2]) for i in range(len(shape) - 1)]
    return sides.index(max(sides)) if sides and max(sides) >= PICTURE_SIDE else None


def _pictures(leaf: Leaf, count: int, axis: int) -> Array:
    """Return pictures of a moving scene, in the range that is usual for their kind and dtype."""
    height, width = leaf.shape[axis : axis + 2]
    outer, inner = leaf.shape[:axis], leaf.shape[axis + 2 :]
    channels = math.prod(outer) * math.prod(inner)
    rows = np.empty((count, channels, height, width), leaf.numpy_dtype)
    for t in range(count):
        rows[t] = _of_kind(_scene(channels, height, width, t), leaf)
    parted = rows.reshape(count, *outer, *inner, height, width)
    return np.ascontiguousarray(np.moveaxis(parted, (-2, -1), (axis + 1, axis + 2)))


def _scene(channels: int, height: int, width: int, t: int) -> NDArray[np.float64]:
    """Return a picture `(C, H, W)` from 0 to 1: a gradient, and before it a disc and a bar, all moving."""
    x, y = np.linspace(0, 1, width), np.linspace(0, 1, height)[:, None]
    channel = np.arange(channels)[:, None, None]
    picture = 0.5 + 0.25 * np.sin(5 * x + 0.05 * t + channel) + 0.2 * np.sin(4 * y - 0.03 * t + 2 * channel)
    disc = (x - 0.5 - 0.3 * math.cos(0.1 * t)) ** 2 + (y - 0.5 - 0.3 * math.sin(0.1 * t)) ** 2 < 0.02
    picture[:, disc] = 0.2 + 0.3 * (channel[..., 0] % 3)
    picture[:, :, np.abs(x - (0.02 * t) % 1) < 0.03] *= 0.5
    return np.asarray(picture)


def _of_kind(picture: NDArray[np.float64], leaf: Leaf) -> Array:
    """Return a picture of values from 0 to 1 as labels, as millimetres, as 8-bit colours, or as it is."""
    dtype = leaf.numpy_dtype
    if dtype.kind == "b":
        return picture > 0.5
    if dtype.kind not in "iu":
        return picture
    return picture * (8 if leaf.kind in ("mask", "segmentation") else min(np.iinfo(dtype).max, 10_000))
