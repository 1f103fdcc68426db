"""Placing: where the windows of all episodes lie, and which rows of which episode each consists of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recorder.asking import whole
from recorder.errors import WindowError

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Reach:
    """How far windows reach: their length, how far they may stick out of an episode, and where they begin.

    `before` and `after` are how many rows a window may lack at the beginning and at the end of an episode, `skip` how
    many of the first steps are left out, as if the episode began after them; of the windows of an episode every
    `stride`-th is taken.
    """

    length: int
    before: int = 0
    after: int = 0
    skip: int = 0
    stride: int = 1

    def __post_init__(self) -> None:
        for name, least in (("length", 1), ("before", 0), ("after", 0), ("skip", 0), ("stride", 1)):
            whole(name, getattr(self, name), least, error=WindowError)
        for name in ("before", "after"):
            if getattr(self, name) >= self.length:
                raise WindowError(
                    f"{name}={getattr(self, name)}: a window of {self.length} rows would lie outside of its episode; "
                    f"at most {self.length - 1}"
                )


class Places:
    """The windows of all episodes, numbered through: those of the first episode, then those of the second."""

    def __init__(self, lengths: Numbers, chosen: NDArray[np.bool_], reach: Reach) -> None:
        """Take the steps of each episode, and whether it is one of those that windows are made of."""
        self.reach = reach
        self.lengths = lengths
        self._firsts = np.cumsum(lengths) - lengths
        inside = lengths - reach.skip
        room = inside - reach.length + reach.before + reach.after
        counts = np.where(chosen & (room >= 0) & (inside > 0), room // reach.stride + 1, 0)
        self._ends: Numbers = np.cumsum(counts, dtype=np.int64)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def find(self, index: Numbers) -> tuple[Numbers, Numbers]:
        """Return for windows their episodes, and the rows of these at which they begin, negative before the first."""
        episodes = np.searchsorted(self._ends, index, "right")
        before = np.where(episodes > 0, self._ends[episodes - 1], 0)
        return episodes, self.reach.skip - self.reach.before + (index - before) * self.reach.stride

    def rows(self, index: Numbers, offsets: Numbers) -> tuple[Numbers, NDArray[np.bool_]]:
        """Return the rows of windows (n, *offsets.shape), counted through all episodes, and which are real.

        Where an offset leads out of an episode, the row is the first or the last of it.
        """
        episodes, starts = self.find(index)
        shape = (len(index), *[1] * offsets.ndim)
        wanted = starts.reshape(shape) + offsets
        last = (self.lengths[episodes] - 1).reshape(shape)
        inside = np.clip(wanted, self.reach.skip, last)
        return self._firsts[episodes].reshape(shape) + inside, inside == wanted

    def beginning_before(self, rows: Numbers) -> Numbers:
        """Return how many windows have their first real row before each of some rows, counted through all episodes."""
        if not len(self):
            return np.zeros(len(rows), np.int64)
        ends = self._firsts + self.lengths
        episodes = np.minimum(np.searchsorted(ends, rows, "right"), len(ends) - 1)
        whole = np.where(episodes > 0, self._ends[episodes - 1], 0)
        starts = rows - self._firsts[episodes] - self.reach.skip + self.reach.before
        inside = np.where(starts > self.reach.before, -(-starts // self.reach.stride), 0)
        found: Numbers = np.clip(whole + inside, whole, self._ends[episodes])
        return found
