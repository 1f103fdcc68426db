"""Events: what happens between the rows of a vector environment, at a position in the ring."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from recorder.episodes import Start
from recorder.leaf import JSON

Mask = NDArray[np.bool_]


class Reset(NamedTuple):
    """The row here came from `reset`: it begins an episode in some lanes, and is none in the others."""

    lanes: Mask
    labels: Mapping[str, JSON]


class Starts(NamedTuple):
    """How the episodes begin whose row 0 is here, by lane."""

    starts: Mapping[int, Start]


class Finals(NamedTuple):
    """The final observations of the lanes that ended in the row here, and were reset at once.

    `rows` has for each leaf a value of each lane; lanes in `missing` have none.
    """

    lanes: Sequence[int]
    rows: Mapping[str, Sequence[Any]]
    missing: frozenset[int]


class Said(NamedTuple):
    """A user's labels for the episode that a lane was in at the last step."""

    lane: int
    labels: Mapping[str, JSON]


class Stopped(NamedTuple):
    """A user ended the episode that a lane was in at the last step; with a reason it is to be put aside."""

    lane: int
    end: str
    reason: str


class Hole(NamedTuple):
    """A step that did not fit: its row is missing here, and these lanes ended in it."""

    terminated: Mask
    truncated: Mask


class Finish(NamedTuple):
    """All episodes end here; with no `end`, only those that are over."""

    end: str
