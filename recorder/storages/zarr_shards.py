"""Shard files of a zarr array: chunks one after another, then where each lies; and columns read from them.

https://zarr-specs.readthedocs.io/en/latest/v3/codecs/sharding-indexed/index.html has the form.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Protocol

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from recorder.columns import Array, Column
from recorder.errors import DamagedError, FormatError
from recorder.leaf import Leaf
from recorder.storages.zarr_array import CRC_BYTES, Grid

MISSING = 2**64 - 1
"""What an index has, twice, for a chunk that is not there."""

ENTRY_BYTES = 16

PARALLEL_BYTES = 2 << 20
"""From so many decoded bytes on, chunks are decoded on several cores.

16 frames of 480 x 640 take 26 ms on one core and 16 ms on two; of 96 x 96, 1.6 ms either way.
"""

MOST_CORES = 4


def shard_bytes(chunks: Sequence[bytes], shard_chunks: int) -> bytes:
    """Return the bytes of a shard file; chunks that there are not, up to `shard_chunks`, are marked as missing."""
    index = np.full((shard_chunks, 2), MISSING, "<u8")
    lengths = np.fromiter(map(len, chunks), np.uint64, len(chunks))
    index[: len(chunks), 0] = np.cumsum(lengths) - lengths
    index[: len(chunks), 1] = lengths
    tail = index.tobytes()
    return b"".join((*chunks, tail, google_crc32c.value(tail).to_bytes(CRC_BYTES, "little")))


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
        if google_crc32c.value(tail[:-CRC_BYTES]) != int.from_bytes(tail[-CRC_BYTES:].tobytes(), "little"):
            raise DamagedError(
                f"{self.path} has changed since it was written: the CRC-32C of its index differs"
            )
        index = tail[:-CRC_BYTES].view("<u8").reshape(-1, 2)
        there = index[(index != MISSING).any(axis=1)]
        if (there > end).any() or (there.sum(axis=1) > end).any() or (there[:, 1] > self._longest).any():
            raise FormatError(f"{self.path}: its index names chunks beyond its {end} bytes of chunks")
        return index

    def _size(self) -> int:
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            raise DamagedError(f"{self.path} is missing") from None

    def _read(self, start: int, size: int) -> NDArray[np.uint8]:
        data = np.empty(size, np.uint8)
        try:
            with self.path.open("rb", buffering=0) as file:
                file.seek(start)
                count = file.readinto(data.data)
        except FileNotFoundError:
            raise DamagedError(f"{self.path} is missing") from None
        if count != size:
            raise DamagedError(f"{self.path} ends at {start + (count or 0)} bytes, expected {start + size}")
        return data

    def need(self, chunks: int) -> None:
        """Raise `DamagedError` unless the first `chunks` are all there."""
        missing = np.flatnonzero(self._index[:chunks, 0] == MISSING)
        if len(missing):
            raise DamagedError(f"{self.path} lacks chunk {missing[0]} of {chunks}")

    def read(self, chunks: NDArray[np.intp]) -> list[NDArray[np.uint8]]:
        """Return coded chunks by their place in the file; neighbours are read at once."""
        index = self._index[chunks]
        if (index[:, 0] == MISSING).any():
            raise DamagedError(f"{self.path} lacks chunk {chunks[index[:, 0] == MISSING][0]}")
        starts, lengths = index.T.astype(np.int64)
        ends = starts + lengths
        coded = []
        for run in np.split(np.arange(len(chunks)), np.flatnonzero(starts[1:] != ends[:-1]) + 1):
            first = int(starts[run[0]])
            data = self._read(first, int(ends[run[-1]]) - first)
            coded += [data[starts[i] - first : ends[i] - first] for i in run]
        return coded


class ChunkSource(Protocol):
    """Where the coded chunks of an array are."""

    @property
    def grid(self) -> Grid: ...

    def read(self, chunks: NDArray[np.intp]) -> Sequence[Any]:
        """Return coded chunks by their increasing numbers."""

    def place(self, chunk: int) -> str:
        """Say where a chunk is, for an error."""


class StoredChunks:
    """The coded chunks of one array: those in shard files, then those that are still in memory."""

    def __init__(self, grid: Grid, files: Sequence[ShardFile], memory: Sequence[bytes] = ()) -> None:
        self.grid = grid
        self._files = files
        self._memory = memory

    def read(self, chunks: NDArray[np.intp]) -> list[Any]:
        size = self.grid.shard_chunks
        coded: list[Any] = []
        for number in np.unique(chunks // size):
            inside = chunks[chunks // size == number]
            if number < len(self._files):
                coded += self._files[number].read(inside - number * size)
            else:
                coded += [self._memory[i] for i in inside - len(self._files) * size]
        return coded

    def place(self, chunk: int) -> str:
        number = chunk // self.grid.shard_chunks
        return str(self._files[number].path) if number < len(self._files) else "memory"


class ChunkColumn(Column):
    """Rows that lie in coded chunks; only those that hold a wanted row are read, each once."""

    def __init__(self, leaf: Leaf, length: int, source: ChunkSource) -> None:
        super().__init__(leaf, length)
        self._source = source

    def read(self, start: int, stop: int) -> Array:
        return self._rows(np.arange(start, stop))

    def take(self, index: NDArray[np.intp]) -> Array:
        wanted, back = np.unique(index, return_inverse=True)
        rows = self._rows(wanted)
        return rows if np.array_equal(wanted, index) else rows[back]

    def _rows(self, rows: NDArray[np.intp]) -> Array:
        """Return the rows at increasing positions."""
        if not len(rows):
            return np.empty((0, *self.leaf.shape), self.dtype)
        grid = self._source.grid
        out = grid.empty(len(rows))
        chunks = rows // grid.chunk_rows
        starts = np.flatnonzero(np.diff(chunks, prepend=-1))
        stops = [*starts[1:], len(rows)]
        coded = self._source.read(chunks[starts])

        def decode(i: int) -> None:
            span, chunk = slice(starts[i], stops[i]), int(chunks[starts[i]])
            whole = stops[i] - starts[i] == grid.chunk_rows
            target = out[span] if whole else grid.empty(grid.chunk_rows)
            try:
                grid.decode(coded[i], target)
            except (DamagedError, FormatError) as error:
                place = f"{self._source.place(chunk)}, row {chunk * grid.chunk_rows}"
                raise type(error)(f"{place} of {self.leaf.path!r}: {error}") from error
            if not whole:
                out[span] = target[rows[span] - chunk * grid.chunk_rows]

        for_each(decode, len(coded), len(coded) * grid.chunk_rows * self.leaf.nbytes)
        return out


def for_each(call: Callable[[int], None], count: int, nbytes: int) -> None:
    """Call with 0 to `count` - 1, on several cores where so many bytes of work are worth it."""
    cores = min(_cores(), count)
    if cores < 2 or nbytes < PARALLEL_BYTES:
        cores = 1

    def share(core: int) -> None:
        for i in range(core, count, cores):
            call(i)

    others = range(1, cores)
    try:
        futures = [_pool(os.getpid()).submit(share, core) for core in others] if cores > 1 else []
    except RuntimeError:  # the interpreter exits and takes no more work
        futures = []
        for core in others:
            share(core)
    share(0)
    for future in futures:
        future.result()


@lru_cache(maxsize=1)
def _pool(process: int) -> ThreadPoolExecutor:
    """Return the threads of this process: a forked child has none of its parent's."""
    return ThreadPoolExecutor(MOST_CORES - 1, thread_name_prefix="recorder-zarr")


@lru_cache(maxsize=1)
def _cores() -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    return min(MOST_CORES, len(affinity(0)) if affinity else os.cpu_count() or 1)
