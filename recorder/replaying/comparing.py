"""Comparing: rows that were recorded, and how far others are from them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from recorder.columns import Array, Column
from recorder.errors import RowError
from recorder.leaf import Leaf
from recorder.spaces.structure import DictNode, Node

BLOCK_BYTES, BLOCK_ROWS = 8 << 20, 256
"""Recorded rows that are read at once."""

SMALL_ROW = 1 << 16
"""Bytes of a row that are compared as bytes first."""

_SCALARS = (bool, int, float, str, np.generic)

SMALLEST = float(np.finfo(np.float64).tiny)
"""The error of rows that differ by less than their numbers can say."""

OUTCOME = ("reward", "terminated", "truncated")
"""What a step gives besides the observation."""


class Misfit(str):
    """Stands for a value that has another structure than the recording, and says how."""


def parted(node: Node, value: Any) -> Iterator[tuple[Leaf, Any]]:
    """Yield the leaves of a structure with their values; where the structure differs, a `Misfit` for each leaf.

    Keys that the recording does not have are passed over: they may have been excluded.
    """
    if isinstance(node, DictNode) and isinstance(value, Mapping):
        for key, inner in node.nodes.items():
            if key in value:
                yield from parted(inner, value[key])
            else:
                yield from ((leaf, Misfit(f"the environment gives no {key!r}")) for leaf in inner.leaves)
        return
    try:
        yield from zip(node.leaves, node.flatten(value), strict=True)
    except (RowError, ValueError, TypeError) as error:
        yield from ((leaf, Misfit(str(error))) for leaf in node.leaves)


def largest_difference(recorded: Any, replayed: Any) -> float:
    """Return the largest difference of two rows: 0 only if they are equal, infinite where no number says it.

    Two NaN are equal. Truth values and texts differ infinitely.

    >>> largest_difference(np.array([1.0, np.nan]), np.array([1.5, np.nan])), largest_difference("a", "b")
    (0.5, inf)
    """
    one, other = np.asarray(recorded), np.asarray(replayed)
    if one.shape != other.shape:
        return math.inf
    if one.dtype == object or other.dtype == object or "U" in (one.dtype.kind, other.dtype.kind):
        return 0.0 if np.array_equal(one, other) else math.inf
    if np.array_equal(one, other, equal_nan=one.dtype.kind in "fc" and other.dtype.kind in "fc"):
        return 0.0
    if one.dtype == bool or other.dtype == bool:
        return math.inf
    return _numeric(one, other)


def surely_equal(recorded: Any, replayed: Any) -> bool:
    """Return whether two rows are equal in the most usual way, for less than it costs to look closer."""
    if isinstance(replayed, np.ndarray) and isinstance(recorded, np.ndarray):
        alike = replayed.dtype == recorded.dtype and replayed.shape == recorded.shape
        return alike and recorded.nbytes <= SMALL_ROW and bool(replayed.tobytes() == recorded.tobytes())
    return isinstance(replayed, _SCALARS) and isinstance(recorded, _SCALARS) and bool(replayed == recorded)


def _numeric(one: Array, other: Array) -> float:
    kind = np.complex128 if "c" in (one.dtype.kind, other.dtype.kind) else np.float64
    with np.errstate(all="ignore"):
        apart = np.abs(one.astype(kind) - other.astype(kind))
    same = (one == other) | (np.isnan(one.astype(kind)) & np.isnan(other.astype(kind)))
    apart = np.where(same, 0.0, np.where(np.isfinite(apart), apart, math.inf))
    # Integers beyond 2**53 may differ by less than their floats do.
    return max(float(apart.max(initial=0.0)), SMALLEST)


class RecordedRows:
    """The rows of a column one after another, read in blocks."""

    def __init__(self, column: Column) -> None:
        self._column = column
        self._rows = max(1, min(BLOCK_ROWS, BLOCK_BYTES // max(column.leaf.nbytes, 1)))
        self._start, self._block = 0, column[0:0]

    def __getitem__(self, row: int) -> Any:
        if not self._start <= row < self._start + len(self._block):
            self._start = row
            self._block = self._column[row : row + self._rows]
        return self._block[row - self._start]
