"""Comparing: rows that were read with those that were appended."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from recorder.columns import Array
from recorder.leaf import Leaf


def assert_rows(leaf: Leaf, found: Array, expected: Array, tolerance: float | None = 0.0) -> None:
    """Raise `AssertionError` unless rows are those expected, bit for bit and with their dtype.

    With a `tolerance` above 0 the numbers of each row may differ by so much on average; with None only the
    shape and the dtype are compared.
    """
    told = f"{leaf.path!r}: {found.dtype} {found.shape} instead of {expected.dtype} {expected.shape}"
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape), told
    absent = _absent(expected)
    assert np.array_equal(_absent(found), absent), f"{leaf.path!r}: other rows are absent"
    if tolerance == 0.0:
        _assert_same(leaf, np.ma.getdata(found), np.ma.getdata(expected), absent)
    elif tolerance is not None and expected.size:
        off = np.abs(found.astype(float) - expected.astype(float)).reshape(len(expected), -1).mean(axis=1)
        worst = int(off.argmax())
        assert off[worst] <= tolerance, f"{leaf.path!r}: row {worst} is off by {off[worst]:.2f} on average"


def _absent(rows: Array) -> Array:
    """Return which rows are masked."""
    return np.asarray(np.ma.getmaskarray(rows).reshape(len(rows), math.prod(rows.shape[1:])).any(axis=1))


def _assert_same(leaf: Leaf, found: Array, expected: Array, absent: Array) -> None:
    if expected.dtype != object and found.tobytes() == expected.tobytes():
        return
    for i in np.flatnonzero(~absent):
        if facts(found[i]) != facts(expected[i]):
            raise AssertionError(f"{leaf.path!r}: row {i} is {found[i]!r}, not {expected[i]!r}")


def facts(value: Any) -> Any:
    """Return all that makes a value what it is, down to the bits, to be compared."""
    if value is np.ma.masked:
        return None
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype, value.shape, value.tolist() if value.dtype == object else value.tobytes()
    return type(value), value
