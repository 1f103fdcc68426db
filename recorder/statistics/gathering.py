"""Gathering: rows of one leaf, added block by block, become its statistics; what several have gathered is joined."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from recorder.columns import Array
from recorder.leaf import Leaf
from recorder.statistics.counting import ByteCounter, Counter, MomentCounter
from recorder.statistics.leaves import LeafStatistics, components

QUANTILES = (0.01, 0.1, 0.5, 0.9, 0.99)
"""The quantiles that are told if no others are asked for."""

MOST_DISTINCT = 100_000
"""Different texts are counted up to so many."""


class Gatherer:
    """What is known of the rows of a leaf that were added so far, in memory that does not grow with them."""

    def __init__(self, leaf: Leaf, seed: Sequence[int] = ()) -> None:
        """Begin with nothing; gatherers that will be merged need different seeds for their samples."""
        self.leaf = leaf
        self._shape = components(leaf)
        self._rows = self._nan = self._absent = 0
        self._distinct: set[int] = set()
        self._lengths: tuple[int, int] | None = None
        size = math.prod(self._shape)
        dtype = leaf.numpy_dtype
        self._counter: Counter | None = None
        if dtype.kind in "biuf":
            small = dtype.itemsize == 1
            self._counter = ByteCounter(size, dtype) if small else MomentCounter(size, dtype, seed)

    def add(self, rows: Array) -> None:
        """Add rows as a column gives them: masked where absent, as objects where ragged or text."""
        self._rows += len(rows)
        if isinstance(rows, np.ma.MaskedArray):
            absent = np.ma.getmaskarray(rows).reshape(len(rows), -1).any(axis=1)
            self._absent += int(absent.sum())
            rows = np.asarray(rows.data)[~absent]
        if self.leaf.ragged and len(rows):
            self._measure([len(row) if np.ndim(row) else 1 for row in rows])
            rows = np.concatenate([np.ravel(row) for row in rows])
        if rows.dtype == object:
            self._tell_apart(rows)
        elif self._counter is not None and rows.size:
            if rows.dtype.kind == "f":
                self._nan += int(np.isnan(rows).sum())
            self._counter.add(rows.reshape(-1, math.prod(self._shape)))

    def _measure(self, lengths: Sequence[int]) -> None:
        known = self._lengths or (lengths[0], lengths[0])
        self._lengths = min(known[0], *lengths), max(known[1], *lengths)

    def _tell_apart(self, values: Array) -> None:
        if len(self._distinct) < MOST_DISTINCT:
            self._distinct.update(hash(str(value)) for value in values.flat)

    def merge(self, other: Gatherer) -> None:
        """Add all that another gatherer was given."""
        self._rows, self._nan, self._absent = (
            self._rows + other._rows,
            self._nan + other._nan,
            self._absent + other._absent,
        )
        self._distinct |= other._distinct
        if other._lengths is not None:
            self._measure(other._lengths)
        if self._counter is not None and other._counter is not None:
            self._counter.merge(other._counter)

    def result(self, quantiles: Sequence[float] = QUANTILES, of: int | None = None) -> LeafStatistics:
        """Return the statistics; `of` says how many rows there are, where not all were added."""
        counter = self._counter or MomentCounter(math.prod(self._shape), np.dtype(np.float64))
        found = counter.result(quantiles)
        by_quantile = {q: values.reshape(self._shape) for q, values in zip(quantiles, found.quantiles, strict=True)}
        return LeafStatistics(
            self._rows,
            self._rows if of is None else of,
            found.count.reshape(self._shape),
            found.mean.reshape(self._shape),
            found.std.reshape(self._shape),
            found.low.reshape(self._shape),
            found.high.reshape(self._shape),
            quantiles=by_quantile,
            nan=self._nan,
            absent=self._absent,
            distinct=len(self._distinct),
            lengths=self._lengths,
        )
