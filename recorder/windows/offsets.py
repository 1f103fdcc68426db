"""Offsets: which rows of a window, counted from its first, are read of each key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from recorder.asking import whole
from recorder.errors import WindowError
from recorder.windows.placing import Numbers

TOLERANCE = 0.01
"""A time may lie so many steps beside one: times are written with few digits."""


class Offsets(NamedTuple):
    """What was asked for of some keys instead of all rows of a window: see `WindowSampler`."""

    first_k: Mapping[str, int]
    stack: Mapping[str, int]
    delta_timestamps: Mapping[str, Sequence[float]]


def key_offsets(keys: Sequence[str], length: int, asked: Offsets, fps: float | None) -> dict[str, Numbers]:
    """Return the offsets of each key: (rows,), or (rows, k) with a stack of k; equal ones are one array.

    Raises:
        WindowError: a key is not read, a number does not fit, or nobody says how many steps a second has.
    """
    for name, options in zip(asked._fields, asked, strict=True):
        for key in options:
            if key not in keys:
                raise WindowError(f"{name} names {key!r}, which is not read; keys are {list(keys)}")
    if both := asked.delta_timestamps.keys() & (asked.first_k.keys() | asked.stack.keys()):
        raise WindowError(f"delta_timestamps of {sorted(both)[0]!r} say all; leave out its first_k and stack")
    known: dict[bytes, Numbers] = {}
    found = {}
    for key in keys:
        offsets = _offsets(key, length, asked, fps)
        found[key] = known.setdefault(repr((offsets.shape, offsets.tolist())).encode(), offsets)
    return found


def _offsets(key: str, length: int, asked: Offsets, fps: float | None) -> Numbers:
    if key in asked.delta_timestamps:
        return steps_of(key, asked.delta_timestamps[key], fps)
    rows = asked.first_k.get(key, length)
    if whole(f"first_k of {key!r}", rows, 1, error=WindowError) > length:
        raise WindowError(f"first_k of {key!r} is {rows}; a window has {length} rows")
    offsets = np.arange(rows, dtype=np.int64)
    if key not in asked.stack:
        return offsets
    depth = whole(f"stack of {key!r}", asked.stack[key], 1, error=WindowError)
    return offsets[:, None] + np.arange(1 - depth, 1)


def steps_of(key: str, seconds: Sequence[float], fps: float | None) -> Numbers:
    """Return times as whole steps.

    Raises:
        WindowError: the frame rate is not known, or a time lies between two steps.

    >>> steps_of("action", [-0.1, 0, 0.2], fps=10).tolist()
    [-1, 0, 2]
    """
    if not fps:
        raise WindowError("delta_timestamps need the steps of a second, which the source does not say: fps=…")
    steps = np.asarray(seconds, np.float64) * fps
    whole = np.round(steps)
    if steps.ndim != 1 or not len(steps) or not np.isfinite(steps).all():
        raise WindowError(f"delta_timestamps of {key!r} are some seconds, got {seconds!r}")
    if (beside := np.abs(steps - whole) > TOLERANCE).any():
        time = np.asarray(seconds)[beside][0]
        raise WindowError(
            f"delta_timestamps of {key!r}: {time} s lies between two steps, of which a second has {fps:g}"
        )
    return whole.astype(np.int64)
