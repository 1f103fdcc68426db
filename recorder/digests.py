"""Digests: a sum of each row of the leaves that are kept with loss, by which a replay is compared exactly."""

from __future__ import annotations

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from recorder.columns import Array, Rows
from recorder.leaf import Leaf

DIGEST = "digest"
"""The first part of the paths of digests, and their kind."""


def digest_path(leaf: Leaf) -> str:
    """Return the path of the digests of a leaf."""
    return f"{DIGEST}/{leaf.path}"


def is_digest(leaf: Leaf) -> bool:
    """Return whether a leaf holds digests; a user's own `digest` in a recording of single rows does not."""
    return leaf.kind == DIGEST


def digest_leaf(leaf: Leaf) -> Leaf:
    """Return the leaf of the digests of `leaf`: a number for each of its rows."""
    return Leaf(digest_path(leaf), (), "uint32", DIGEST, leaf.per, why=f"sums of the uncoded rows of {leaf.path}")


def digest(row: Array) -> int:
    """Return the CRC-32C of the bytes of a row, in C order.

    >>> digest(np.frombuffer(b"123456789", np.uint8))
    3808858755
    """
    # Arrays are summed as they lie, at 20 GB/s; a copy as bytes would take twice as long again.
    return int(google_crc32c.value(np.ascontiguousarray(row)))


def digests(rows: Rows) -> NDArray[np.uint32]:
    """Return the digest of each row of a leaf whose rows have one shape."""
    assert isinstance(rows, np.ndarray)
    return np.fromiter(map(digest, rows), np.uint32, len(rows))
