"""Comparing: the rows that a replay gives against those that were recorded, leaf by leaf."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from recorder.columns import Array, Column
from recorder.digests import digest, digest_path
from recorder.episode import Episode
from recorder.errors import RowError
from recorder.leaf import Leaf
from recorder.repeated import mark_path
from recorder.replaying.lossy import CodecBound
from recorder.replaying.report import Divergence, LeafError, Method
from recorder.schema import Schema
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


class LeafCheck:
    """Compares the rows of one leaf, and keeps how far they are apart."""

    def __init__(self, leaf: Leaf, columns: Mapping[str, Column], schema: Schema, tolerance: float) -> None:
        self.leaf = leaf
        self._rows = RecordedRows(columns[leaf.path])
        self._digests: RecordedRows | None = None
        self._bound: CodecBound | None = None
        self._tolerance = tolerance
        self._errors: list[float] = []
        self._first = 0
        self.divergence: Divergence | None = None
        if not schema.storage.exact(leaf):
            if (path := digest_path(leaf)) in columns:
                self._digests = RecordedRows(columns[path])
            else:
                self._bound = CodecBound(schema.storage.of(leaf), leaf)

        marks = mark_path(leaf)
        self._marks = RecordedRows(columns[marks]) if marks in columns and leaf.path in columns else None
        self.skipped = 0
        self._by_value = self._digests is None and self._bound is None

    @property
    def method(self) -> Method:
        """How rows are compared."""
        return "digests" if self._digests is not None else "values" if self._bound is None else "codec"

    def compare(self, step: int, value: Any) -> None:
        """Compare what a replay gave at a step, 0 being the reset."""
        row = step - (self.leaf.per == "transition")
        if self._marks is not None and self._marks[row]:
            self.skipped += 1
            error, message = 0.0, ""
        else:
            error, message = self._error(row, value)
        allowed = self._tolerance
        if self._bound is not None and math.isfinite(error):
            allowed = max(allowed, self._bound.allowed)
        if not self._errors:
            self._first = step
        self._errors.append(error)
        if error > allowed and self.divergence is None:
            self.divergence = Divergence(step, self.leaf.path, error, message)

    def _error(self, row: int, value: Any) -> tuple[float, str]:
        if isinstance(value, Misfit):
            return math.inf, str(value)
        if self._by_value and surely_equal(self._rows[row], value):
            return 0.0, ""
        try:
            fitted = self.leaf.fit(value)
        except RowError as unfit:
            return self._unfit(row, value, unfit)
        if self._digests is not None:
            same = digest(fitted) == self._digests[row]
            return (0.0, "") if same else (self._distance(row, fitted), "against the coded picture; its sum differs")
        if self._bound is not None:
            return self._bound.distance(row, self._rows[row], fitted), ""
        error = largest_difference(self._rows[row], fitted)
        return error, _words(self._rows[row], fitted) if error else ""

    def _distance(self, row: int, value: Any) -> float:
        """Return how far a row is from the recorded one, from which it is known to differ."""
        return max(largest_difference(self._rows[row], value), SMALLEST)

    def _unfit(self, row: int, value: Any, unfit: RowError) -> tuple[float, str]:
        """Compare a row that is of another dtype by its numbers, where it has the same shape."""
        array = np.asarray(value)
        if self.leaf.fixed and array.shape == self.leaf.shape and array.dtype.kind in "biuf":
            return self._distance(row, array), str(unfit)
        return math.inf, str(unfit)

    def result(self) -> LeafError:
        """Return what was found."""
        errors = np.array(self._errors)
        largest = float(errors.max(initial=0.0))
        step = int(errors.argmax()) + self._first if largest else None
        diverged = None if self.divergence is None else self.divergence.step
        kept = errors if largest else np.empty(0)
        return LeafError(self.leaf.path, self.method, largest, step, diverged, self._first, kept)


def _words(recorded: Any, replayed: Any) -> str:
    """Return two short values in words: those of flags, numbers and texts."""
    if np.ndim(recorded) or np.ndim(replayed):
        return ""
    return f"{recorded!s:.40} recorded, {replayed!s:.40} now"


class EpisodeCheck:
    """Compares what a replay gives, step by step, with an episode."""

    def __init__(self, episode: Episode, schema: Schema, tolerance: float) -> None:
        self._node = schema.nodes["observation"]
        self._checks = {
            leaf.path: LeafCheck(leaf, episode.columns, schema, tolerance)
            for leaf in schema.leaves.values()
            if leaf.path in episode.columns and leaf.path.split("/")[0] in ("observation", *OUTCOME)
        }

    def observation(self, step: int, value: Any) -> None:
        """Compare the observation of a step, 0 being the reset."""
        for leaf, part in parted(self._node, value):
            self._checks[leaf.path].compare(step, part)

    def outcome(self, step: int, *values: Any) -> None:
        """Compare reward and flags of a step."""
        for path, value in zip(OUTCOME, values, strict=True):
            self._checks[path].compare(step, value)

    @property
    def divergence(self) -> Divergence | None:
        """The first divergence; at one step, that of the first leaf."""
        found = [check.divergence for check in self._checks.values() if check.divergence is not None]
        return min(found, key=lambda divergence: divergence.step, default=None)

    def notes(self) -> Iterator[str]:
        """Yield what was not compared, though it is there."""
        for path, check in self._checks.items():
            if check.skipped:
                yield f"{check.skipped} rows of {path} were not taken when it was recorded, and are not compared"

    def results(self) -> tuple[LeafError, ...]:
        """Return what was found of each leaf."""
        return tuple(check.result() for check in self._checks.values())
