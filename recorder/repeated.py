"""Repeated rows: marks of the pictures that were not taken because encoder or disk were behind the loop."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from recorder.columns import Array
from recorder.leaf import Leaf

REPEATED = "repeated"
"""The first part of the paths of marks, and their kind."""

WhenBehind = Literal["block", "repeat", "drop"]
"""What becomes of a picture without room: the loop waits, or the last one stands for it, or a black one does."""


def check_when_behind(when_behind: str) -> None:
    """Raise `ValueError` where there is no such way."""
    if when_behind not in get_args(WhenBehind):
        raise ValueError(f"when_behind={when_behind!r} is none of {get_args(WhenBehind)}")


def mark_path(leaf: Leaf) -> str:
    """Return the path of the marks of a leaf."""
    return f"{REPEATED}/{leaf.path}"


def mark_leaf(leaf: Leaf) -> Leaf:
    """Return the leaf of the marks of `leaf`: whether a row of it stands for one that was not taken."""
    return Leaf(mark_path(leaf), (), "bool", REPEATED, leaf.per, why=f"rows of {leaf.path} that were not taken")


def is_mark(leaf: Leaf) -> bool:
    """Return whether a leaf holds marks; a user's own `repeated` in a recording of single rows does not."""
    return leaf.kind == REPEATED


def stand_in(rows: Array, marks: NDArray[np.bool_], before: Array | None) -> Array:
    """Return rows in which the one before stands for each that is marked, or black where `before` is None."""
    filled = rows.copy()
    if before is None:
        filled[marks] = 0
        return filled
    for k in np.flatnonzero(marks):
        filled[k] = filled[k - 1] if k else before
    return filled
