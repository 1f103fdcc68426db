"""Cutting: which rows of which lane belong to which segment, found for a whole piece of the ring at once."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.bool_]
Numbers = NDArray[np.int64]


class Marks(NamedTuple):
    """What happens in which row (K) of which lane (L); each mask is (K, L)."""

    begin: Mask
    """The row is row 0 of a segment."""

    off: Mask
    """From this row on the lane has no segment, until one begins."""

    absent: Mask
    """The row is not of this lane, whose segment goes on after it."""


class Cut:
    """The segments of one piece; positions are those of rows lane by lane, `lane * K + k`."""

    def __init__(self, marks: Marks, running: Mask, current: Numbers, number: int) -> None:
        """Cut a piece whose lanes were `running` before it, in the segments `current`; new ones count from `number`."""
        self.steps, self.lanes = marks.begin.shape
        self._current = current
        times = 2 * np.arange(1, self.steps + 1)[:, np.newaxis]
        switches = np.where(marks.begin, times + 1, np.where(marks.off, times, 0))
        switches[0] = np.maximum(switches[0], running)
        self.on: Mask = (np.maximum.accumulate(switches, axis=0) & 1).astype(bool)
        """Whether a row belongs to a segment, or would if it were not absent."""
        self.before: Mask = np.concatenate([running[np.newaxis], self.on[:-1]])
        """Whether the lane was in a segment just before a row."""
        self._number(marks.begin, number)
        self._find_runs(marks)

    def _number(self, begin: Mask, number: int) -> None:
        """Give the new segments their numbers, in the order in which they begin."""
        self.begins = np.argwhere(begin)
        positions = self.begins[:, 1] * self.steps + self.begins[:, 0]
        order = np.argsort(positions)
        self._places = positions[order]
        self._numbers = number + order

    def _find_runs(self, marks: Marks) -> None:
        here = np.ascontiguousarray((self.on & ~marks.absent).T)
        begin = np.ascontiguousarray(marks.begin.T) & here
        goes_on = here & ~begin
        start = here.copy()
        start[:, 1:] &= ~(goes_on[:, 1:] & here[:, :-1])
        stop = here.copy()
        stop[:, :-1] &= ~goes_on[:, 1:]
        self.starts = np.flatnonzero(start)
        self.stops = np.flatnonzero(stop) + 1
        self.firsts = begin.ravel()[self.starts]
        self.segments = self.segments_at(self.starts // self.steps, self.starts % self.steps)

    def segments_at(self, lanes: Numbers, steps: Numbers) -> Numbers:
        """Return the segments that the lanes are, or were at last, in at these rows; row -1 is before the piece."""
        found = np.searchsorted(self._places, lanes * self.steps + steps, side="right") - 1
        current = self._current[lanes]
        if not len(self._places):
            return current
        inside = (found >= 0) & (self._places[found] // self.steps == lanes)
        return np.where(inside, self._numbers[found], current)

    def after(self) -> Numbers:
        """Return the segment that each lane is, or was at last, in after the piece."""
        lanes = np.arange(self.lanes)
        return self.segments_at(lanes, np.full(self.lanes, self.steps - 1))


def empty_marks(steps: int, lanes: int) -> Marks:
    """Return marks of nothing."""
    return Marks(*(np.zeros((steps, lanes), bool) for _ in Marks._fields))


def pairs(mask: Mask) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the steps and lanes that are marked, in the order of steps."""
    steps, lanes = np.nonzero(mask)
    return steps, lanes
