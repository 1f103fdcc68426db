"""Summing up a column: lowest, highest and mean of its numbers, in blocks, to keep memory small."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from recorder.columns import Array, Column
from recorder.leaf import JSON
from recorder.spaces.array_json import number_to_json

BLOCK_BYTES, BLOCK_ROWS = 16 << 20, 4096
"""Rows that are read at once: no more than either."""


class Sum:
    """What is known of the values that were added so far."""

    def __init__(self) -> None:
        self.numbers = self.nan = self.absent = 0
        self.low: Any = None
        self.high: Any = None
        self.total = 0.0
        self.others: set[int] = set()
        self.lengths: set[int] = set()

    def add_rows(self, rows: Array, ragged: bool) -> None:
        """Add rows of a leaf, some perhaps absent, some perhaps lists of changing length."""
        if isinstance(rows, np.ma.MaskedArray):
            self.absent += int(np.ma.getmaskarray(rows).reshape(len(rows), -1).any(axis=1).sum())
            rows = rows.compressed()
        if not ragged:
            self.add(rows)
            return
        self.lengths.update(map(len, rows))
        for row in rows:
            self.add(np.asarray(row))

    def add(self, values: Array) -> None:
        """Add numbers, or as objects texts and other values, of which only the different ones are counted."""
        if values.dtype == object:
            self.others.update(hash(str(value)) for value in values.flat)
            return
        if values.dtype.kind == "f":
            missing = np.isnan(values)
            self.nan += int(missing.sum())
            values = values[~missing] if missing.any() else values
        if values.size and values.dtype.kind != "c":
            low, high = values.min().item(), values.max().item()
            self.low = low if self.low is None else min(low, self.low)
            self.high = high if self.high is None else max(high, self.high)
            self.total += float(values.sum(dtype=np.float64))
            self.numbers += values.size

    def to_json(self) -> dict[str, JSON]:
        """Return the sum: `nan`, `absent`, `distinct` and `lengths` only where there is something to say."""
        said: dict[str, JSON] = {"min": None, "mean": None, "max": None}
        if self.numbers:
            ends = (self.low, self.total / self.numbers, self.high)
            said = {
                name: value if isinstance(value, bool) else number_to_json(value)
                for name, value in zip(said, ends, strict=True)
            }
        if self.lengths:
            said["lengths"] = [min(self.lengths), max(self.lengths)]
        more = {"distinct": len(self.others), "nan": self.nan, "absent": self.absent}
        return said | {name: count for name, count in more.items() if count}


def sum_up(column: Column) -> dict[str, JSON]:
    """Return `min`, `mean` and `max` of all rows of a column, and of texts how many differ."""
    result = Sum()
    for rows in blocks(column):
        result.add_rows(rows, column.leaf.ragged)
    return result.to_json()


def blocks(column: Column) -> Iterator[Array]:
    """Yield all rows in blocks."""
    rows = max(1, min(BLOCK_ROWS, BLOCK_BYTES // max(column.leaf.nbytes, 1)))
    for start in range(0, len(column), rows):
        yield column[start : start + rows]
