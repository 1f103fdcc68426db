"""Lossy leaves without digests: what their codec does to a picture, measured on the pictures of the replay."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from recorder.columns import Array
from recorder.leaf import Leaf
from recorder.storages.base import Counts, Run, Segment, Storage

EVERY = 32
"""A picture in so many is coded to see what the codec does to it."""

SLACK, LEVEL = 2.0, 1.0
"""A recorded picture may be so many times farther from the replayed one than that one coded is, and this many levels:
within a video the codec saves more than on the single pictures that are tried here."""


class CodecBound:
    """How far a recorded picture may be from the replayed one, as the root of the mean square over its pixels."""

    def __init__(self, storage: Storage, leaf: Leaf) -> None:
        self._storage = storage
        self._leaf = leaf
        self._largest = 0.0
        self._measured = False

    @property
    def allowed(self) -> float:
        """The distance that the codec explains."""
        return SLACK * self._largest + LEVEL

    def distance(self, row: int, recorded: Array, replayed: Array) -> float:
        """Return how far two pictures are apart; now and then measure what the codec does to one."""
        if row % EVERY == 0 or not self._measured:
            self._measured = True
            self._largest = max(self._largest, root_mean_square(self._coded(replayed), replayed))
        return root_mean_square(recorded, replayed)

    def _coded(self, picture: Array) -> Array:
        """Return a picture as it comes back from the storage."""
        with TemporaryDirectory(prefix="recorder-replay-") as folder:
            writer = self._storage.writer(Path(folder, "staging"), [self._leaf])
            shard = Path(folder, "shard")
            shard.mkdir()
            try:
                writer.append({self._leaf.path: picture[None]}, [Run(0, 0, 1)])
                writer.end(0)
                writer.pack(shard, [Segment(0, 1, 1)])
            finally:
                writer.close()
            reader = self._storage.reader(shard, [self._leaf], Counts.of([Segment(0, 1, 1)]))
            try:
                return np.asarray(reader.segment(0)[self._leaf.path][0])
            finally:
                reader.close()


def root_mean_square(one: Array, other: Array) -> float:
    """Return the root of the mean square of the difference of two pictures."""
    apart = one.astype(np.float64) - other.astype(np.float64)
    return float(np.sqrt(np.mean(apart * apart)))
