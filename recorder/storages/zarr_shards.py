"""Shard files of a zarr array: chunks one after another, then where each lies.

https://zarr-specs.readthedocs.io/en/latest/v3/codecs/sharding-indexed/index.html has the form.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from recorder.columns import Array
from recorder.errors import DamagedError, FormatError
from recorder.files import missing
from recorder.storages.zarr_array import CRC_BYTES, Grid, crc_bytes

MISSING = 2**64 - 1
"""What an index has, twice, for a chunk that is not there."""

ENTRY_BYTES = 16


def shard_bytes(chunks: Sequence[bytes], shard_chunks: int) -> bytes:
    """Return the bytes of a shard file; those of `shard_chunks` that there are not are marked as missing."""
    index = np.full((shard_chunks, 2), MISSING, "<u8")
    lengths = np.fromiter(map(len, chunks), np.uint64, len(chunks))
    index[: len(chunks), 0] = np.cumsum(lengths) - lengths
    index[: len(chunks), 1] = lengths
    tail = index.tobytes()
    return b"".join((*chunks, tail, crc_bytes(tail)))


class ShardFile:
    """One shard file, opened anew for each reading: nothing to close, to lose in a fork, or to run out of."""

    def __init__(self, path: Path, grid: Grid) -> None:
        self.path = path
        self._chunks = grid.shard_chunks
        # Neither zstd nor WebP makes random bytes much longer; an index that says so is not ours.
        self._longest = 2 * grid.chunk_rows * grid.leaf.nbytes + 65_536

    @cached_property
    def _index(self) -> NDArray[np.uint64]:
        """Where each chunk begins, and its length; read once, 16 bytes a chunk."""
        size = self._chunks * ENTRY_BYTES + CRC_BYTES
        end = self._size() - size
        if end < 0:
            raise DamagedError(
                f"{self.path} has {end + size} bytes, too few for the index of its {self._chunks} chunks"
            )
        tail = self._read(end, size)
        if crc_bytes(tail[:-CRC_BYTES]) != tail[-CRC_BYTES:].tobytes():
            raise DamagedError(f"{self.path} has changed since it was written: the CRC-32C of its index differs")
        index = tail[:-CRC_BYTES].view("<u8").reshape(-1, 2)
        there = index[(index != MISSING).any(axis=1)]
        if (there > end).any() or (there.sum(axis=1) > end).any() or (there[:, 1] > self._longest).any():
            raise FormatError(f"{self.path}: its index names chunks beyond its {end} bytes of chunks")
        return index

    def _size(self) -> int:
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            raise missing(self.path) from None

    def _read(self, start: int, size: int) -> NDArray[np.uint8]:
        data = np.empty(size, np.uint8)
        try:
            with self.path.open("rb", buffering=0) as file:
                file.seek(start)
                count = file.readinto(data.data)
        except FileNotFoundError:
            raise missing(self.path) from None
        if count != size:
            raise DamagedError(f"{self.path} ends at {start + (count or 0)} bytes, expected {start + size}")
        return data

    def need(self, chunks: int) -> None:
        """Raise `DamagedError` unless the first `chunks` are all there."""
        missing = np.flatnonzero(self._index[:chunks, 0] == MISSING)
        if len(missing):
            raise DamagedError(f"{self.path} lacks chunk {missing[0]} of {chunks}")

    def read(self, chunks: Sequence[int]) -> list[NDArray[np.uint8]]:
        """Return coded chunks by their place in the file; neighbours are read at once."""
        spans = [(start, start + size) for start, size in self._index[chunks].tolist()]
        for i, (start, _) in zip(chunks, spans, strict=True):
            if start == MISSING:
                raise DamagedError(f"{self.path} lacks chunk {i}")
        coded = []
        for run in neighbours(spans):
            first = run[0][0]
            data = self._read(first, run[-1][1] - first)
            coded += [data[start - first : stop - first] for start, stop in run]
        return coded


def neighbours(spans: Sequence[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """Return spans in groups of which each lies in one piece."""
    runs: list[list[tuple[int, int]]] = []
    end = -1
    for start, stop in spans:
        if start != end:
            runs.append([])
        runs[-1].append((start, stop))
        end = stop
    return runs


class RowGrid(Protocol):
    """How many rows a chunk has, and how they are decoded."""

    @property
    def chunk_rows(self) -> int: ...

    def empty(self, rows: int) -> Array:
        """Return room for rows."""

    def decode(self, chunk: Any, out: Array) -> None:
        """Write the rows of a chunk into `out`, `(chunk_rows, *shape)`."""


class ChunkSource(Protocol):
    """Where the coded chunks of an array are."""

    @property
    def grid(self) -> RowGrid: ...

    def read(self, chunks: Sequence[int]) -> Sequence[Any]:
        """Return coded chunks by their increasing numbers."""

    def place(self, chunk: int) -> str:
        """Say where a chunk is, for an error."""


class StoredChunks:
    """The coded chunks of one array: those in shard files, then those that are still in memory."""

    def __init__(self, grid: Grid, files: Sequence[ShardFile], memory: Sequence[bytes] = ()) -> None:
        self.grid = grid
        self._files = files
        self._memory = memory

    def read(self, chunks: Sequence[int]) -> list[Any]:
        size = self.grid.shard_chunks
        coded: list[Any] = []
        for number, group in groupby(chunks, lambda chunk: chunk // size):
            if number < len(self._files):
                coded += self._files[number].read([chunk - number * size for chunk in group])
            else:
                coded += [self._memory[chunk - len(self._files) * size] for chunk in group]
        return coded

    def place(self, chunk: int) -> str:
        number = chunk // self.grid.shard_chunks
        return str(self._files[number].path) if number < len(self._files) else "memory"
