"""Counting: numbers of many components, block by block, as counts of their values or as moments and a sample."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recorder.columns import Array

Floats = NDArray[np.float64]

SAMPLE = 8192
"""Quantiles are exact for so many rows; of more they are those of so many random ones: the median to 0.6 % of ranks."""


@dataclass(frozen=True)
class Numbers:
    """What is known of the numbers of each component (components,); quantiles are (quantiles, components)."""

    count: NDArray[np.int64]
    mean: Floats
    std: Floats
    low: Array
    high: Array
    quantiles: Floats


class Counter(ABC):
    """Numbers (rows, components) that are added block by block; NaN is left out."""

    @abstractmethod
    def add(self, values: Array) -> None:
        """Add numbers."""

    @abstractmethod
    def merge(self, other: Any) -> None:
        """Add what another one has counted, of the same leaf."""

    @abstractmethod
    def result(self, quantiles: Sequence[float]) -> Numbers:
        """Return what is known; NaN where there was no number."""


class ByteCounter(Counter):
    """Numbers of one byte: how often each of 256 values occurs. Everything is exact."""

    def __init__(self, components: int, dtype: np.dtype[Any]) -> None:
        self._dtype = dtype
        self._levels = np.arange(256) - (128 if dtype == np.int8 else 0)
        self._counts = np.zeros((components, 256), np.int64)

    def add(self, values: Array) -> None:
        shifted = values.astype(np.int16) + 128 if self._dtype == np.int8 else values.astype(np.uint8, copy=False)
        for counts, component in zip(self._counts, shifted.T, strict=True):
            counts += np.bincount(component, minlength=256)

    def merge(self, other: ByteCounter) -> None:
        self._counts += other._counts

    def result(self, quantiles: Sequence[float]) -> Numbers:
        count = self._counts.sum(axis=1)
        some = np.maximum(count, 1)
        mean = self._counts @ self._levels / some
        variance = (self._counts * (self._levels - mean[:, None]) ** 2).sum(axis=1) / some
        there = self._counts > 0
        low, high = there.argmax(axis=1), 255 - there[:, ::-1].argmax(axis=1)
        least, greatest = (self._levels[each].astype(self._dtype) for each in (low, high))
        found = np.array([self._quantile(q, count) for q in quantiles]).reshape(len(quantiles), len(count))
        return _without_empty(Numbers(count, mean, np.sqrt(variance), least, greatest, found))

    def _quantile(self, q: float, count: NDArray[np.int64]) -> Floats:
        """Return a quantile as NumPy defines it: between two neighbours in proportion."""
        places = q * np.maximum(count - 1, 0)
        below, above = (self._at(edge.astype(np.int64)) for edge in (np.floor(places), np.ceil(places)))
        found: Floats = below + (above - below) * (places - np.floor(places))
        return found

    def _at(self, places: NDArray[np.int64]) -> Floats:
        """Return the value at a place of the sorted numbers of each component."""
        before = np.cumsum(self._counts, axis=1)
        found: Floats = self._levels[np.minimum((before <= places[:, None]).sum(axis=1), 255)].astype(np.float64)
        return found


class MomentCounter(Counter):
    """Any numbers: count, mean, squares and ends, and a random sample of rows for quantiles.

    Means and squares of blocks are joined as by Chan, Golub and LeVeque, 1979; the sample are the rows with the
    smallest of random numbers, so that samples of parts are joined to one of the whole.
    """

    def __init__(self, components: int, dtype: np.dtype[Any], seed: Sequence[int] = ()) -> None:
        self._count = np.zeros(components, np.int64)
        self._mean, self._squares = np.zeros(components), np.zeros(components)
        self._low, self._high = np.zeros(components, dtype), np.zeros(components, dtype)
        self._generator = np.random.default_rng([0, *seed])
        self._keys, self._sample = np.zeros(0), np.zeros((0, components), dtype)

    def add(self, values: Array) -> None:
        if not len(values):
            return
        keys = self._generator.random(len(values))
        chosen = keys < (self._keys.max() if len(self._keys) >= SAMPLE else 1)
        self._keep(keys[chosen], values[chosen])
        there: Any = True
        if values.dtype.kind == "f" and (missing := np.isnan(values)).any():
            there = ~missing
            count = there.sum(axis=0)
            low, high = (np.where(there, values, end) for end in (values.dtype.type("inf"), values.dtype.type("-inf")))
        else:
            low = high = values
            count = np.full(values.shape[1], len(values))
        with np.errstate(invalid="ignore", over="ignore"):
            mean = values.sum(axis=0, dtype=np.float64, where=there) / np.maximum(count, 1)
            squares = ((values - mean) ** 2).sum(axis=0, dtype=np.float64, where=there)
        self._join(count, mean, squares, low.min(axis=0), high.max(axis=0))

    def _join(self, count: NDArray[np.int64], mean: Floats, squares: Floats, low: Array, high: Array) -> None:
        total = self._count + count
        some = np.maximum(total, 1)
        with np.errstate(invalid="ignore", over="ignore"):
            apart = mean - self._mean
            self._squares += squares + apart**2 * self._count * count / some
            self._mean += np.where(count > 0, apart * count / some, 0)
        fresh, old = self._count == 0, count == 0
        self._low = np.where(fresh, low, np.where(old, self._low, np.minimum(self._low, low)))
        self._high = np.where(fresh, high, np.where(old, self._high, np.maximum(self._high, high)))
        self._count = total

    def _keep(self, keys: Floats, rows: Array) -> None:
        keys, rows = np.concatenate([self._keys, keys]), np.concatenate([self._sample, rows])
        if len(keys) > SAMPLE:
            smallest = np.argpartition(keys, SAMPLE - 1)[:SAMPLE]
            keys, rows = keys[smallest], rows[smallest]
        self._keys, self._sample = keys, rows

    def merge(self, other: MomentCounter) -> None:
        self._keep(other._keys, other._sample)
        self._join(other._count, other._mean, other._squares, other._low, other._high)

    def result(self, quantiles: Sequence[float]) -> Numbers:
        with np.errstate(invalid="ignore"):
            std = np.sqrt(self._squares / np.maximum(self._count, 1))
        found = np.array([_quantiles(component, quantiles) for component in self._sample.T.astype(np.float64)])
        found = found.reshape(len(self._count), len(quantiles)).T
        return _without_empty(Numbers(self._count, self._mean.copy(), std, self._low, self._high, found))


def _quantiles(values: Floats, quantiles: Sequence[float]) -> Floats:
    values = values[~np.isnan(values)]
    with np.errstate(invalid="ignore"):  # between two infinities
        return np.quantile(values, quantiles) if len(values) else np.full(len(quantiles), np.nan)


def _without_empty(numbers: Numbers) -> Numbers:
    """Return numbers with NaN for what nothing is known of."""
    empty = numbers.count == 0
    for each in (numbers.mean, numbers.std):
        each[empty] = np.nan
    numbers.quantiles[:, empty] = np.nan
    return numbers
