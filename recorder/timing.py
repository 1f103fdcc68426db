"""Timing: what the times of capture say of the rows of an episode: which are late, and which came twice."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from recorder.episode import Episode
from recorder.errors import EpisodeError


class Timing(NamedTuple):
    """The rows of one leaf, (T+1,) each: when they were captured, how old they were, and which were there before."""

    captured: NDArray[np.float64]
    """Seconds since the beginning of the episode."""

    age: NDArray[np.float64]
    """Seconds from the capture to the row that it is in."""

    repeated: NDArray[np.bool_]
    """Whether a row holds the capture of the row before it."""

    def late(self, seconds: float) -> NDArray[np.bool_]:
        """Return which rows were older than so many seconds."""
        late: NDArray[np.bool_] = self.age > seconds
        return late


def timing(episode: Episode, path: str) -> Timing:
    """Return the timing of a leaf that was recorded with `StepSpace(times=[path, …])`.

    Raises:
        EpisodeError: its times of capture were not recorded.
    """
    column = episode.columns.get(f"time/{path}")
    if column is None:
        there = [name.removeprefix("time/") for name in episode.columns if name.startswith("time/")]
        raise EpisodeError(f"no time of capture of {path!r} was recorded; there are those of {there}")
    captured = np.asarray(column[:])
    repeated = np.diff(captured, prepend=np.nan) == 0
    return Timing(captured, np.asarray(episode.times) - captured, repeated)


def slips(episode: Episode, rate: float) -> dict[str, Any]:
    """Return how well a loop of so many rows a second was kept: the rows that came late, and the longest gap."""
    gaps = np.diff(episode.times)
    late = gaps > 1.5 / rate
    return {"rows": len(gaps), "late": int(late.sum()), "longest": float(gaps.max(initial=0.0))}
