"""Checking: what a replay gives is compared with an episode, step by step, and what is found is kept."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from recorder.columns import Column
from recorder.digests import digest, digest_path
from recorder.episode import Episode
from recorder.errors import RowError
from recorder.leaf import Leaf
from recorder.repeated import mark_path
from recorder.replaying.comparing import (
    OUTCOME,
    SMALLEST,
    Misfit,
    RecordedRows,
    largest_difference,
    parted,
    surely_equal,
)
from recorder.replaying.lossy import CodecBound
from recorder.replaying.report import Divergence, LeafError, Method
from recorder.schema import Schema


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
        self._by_value = self._digests is None and self._bound is None
        marks = mark_path(leaf)
        self._marks = RecordedRows(columns[marks]) if marks in columns else None
        self.skipped = 0

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
