"""Writing: rows that are added to one array, as chunks in files."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial

import numpy as np

from recorder.columns import Array, Column
from recorder.errors import DamagedError
from recorder.replay_buffer.arrays import ArrayChunks
from recorder.replay_buffer.encoding import Encoders
from recorder.replay_buffer.metadata import ArrayMetadata
from recorder.replay_buffer.pictures import PictureCodec
from recorder.replay_buffer.places import Place
from recorder.storages.zarr_columns import ChunkColumn
from recorder.storages.zarr_shards import shard_bytes
from recorder.threads import Task

TASK_BYTES = 1 << 20
"""Rows that one thread codes at a time: about so many, so that handing over costs nothing beside it."""


class ArrayWriter:
    """The rows of one array, from a row on that begins a file.

    Chunks of the file that is not full stay coded in memory, rows that fill no chunk as rows. `unsaved` has both
    written, and `publish` says in the array's metadata how many rows there are. What is in the files then depends on
    the rows alone, not on how often they were written.
    """

    def __init__(self, place: Place, name: str, metadata: ArrayMetadata, encoders: Encoders, rows: int) -> None:
        """Take an array up at a row that it has; what it has beyond goes with the next `publish`."""
        self.metadata = metadata
        self._place = place
        self._name = name
        self._encoders = encoders
        self._files = 0
        self._chunks: list[bytes] = []
        self._coming: deque[tuple[int, Future[list[bytes]]]] = deque()
        self._coming_chunks = 0
        self._rest = metadata.empty(metadata.chunk_rows)
        self._filled = 0
        self._dirty = False
        self.cut(rows)

    @property
    def rows(self) -> int:
        """The rows that were added, saved or not."""
        return self._chunk_number * self.metadata.chunk_rows + self._filled

    @property
    def _chunk_number(self) -> int:
        """The number of the next chunk."""
        return self._files * self.metadata.file_chunks + len(self._chunks) + self._coming_chunks

    def column(self) -> Column:
        """Return the rows that the array says it has."""
        source = ArrayChunks(self._place, self._name, self.metadata)
        return ChunkColumn(self.metadata.leaf, self.metadata.rows, source)

    def add(self, rows: Array) -> None:
        """Add rows `(n, *shape)`, which the caller must leave alone from now on."""
        size = self.metadata.chunk_rows
        self._dirty = self._dirty or len(rows) > 0
        while len(rows):
            if self._filled or len(rows) < size:
                taken = min(size - self._filled, len(rows))
                self._rest[self._filled : self._filled + taken] = rows[:taken]
                self._filled += taken
                if self._filled == size:
                    self._code(self._rest)
                    self._rest, self._filled = self.metadata.empty(size), 0
            else:
                taken = self._task_rows(len(rows))
                self._code(rows[:taken])
            rows = rows[taken:]

    def _task_rows(self, rows: int) -> int:
        """Return how many of so many rows one thread takes: whole chunks."""
        size = self.metadata.chunk_rows
        chunks = max(1, TASK_BYTES // max(1, size * self.metadata.leaf.nbytes))
        return min(chunks, rows // size) * size

    def _code(self, rows: Array) -> None:
        size, first = self.metadata.chunk_rows, self._chunk_number
        parts = [rows[start : start + size] for start in range(0, len(rows), size)]
        self._hand_over(partial(self._encoded, first, parts), len(parts), rows.nbytes)

    def lay(self, pictures: Sequence[bytes]) -> None:
        """Add pictures that are coded as this array codes them, one a chunk."""
        assert isinstance(self.metadata.codec, PictureCodec), self.metadata.key
        self._dirty = self._dirty or len(pictures) > 0
        first, seal = self._chunk_number, self.metadata.codec.seal

        def sealed() -> list[bytes]:
            return self._kept(first, [seal(picture) for picture in pictures])

        self._hand_over(sealed, len(pictures), sum(map(len, pictures)))

    def _hand_over(self, call: Callable[[], list[bytes]], chunks: int, nbytes: int) -> None:
        self._coming.append((chunks, self._encoders.submit(call, nbytes)))
        self._coming_chunks += chunks
        while self._coming and self._coming[0][1].done():
            self._collect()

    def _encoded(self, first: int, parts: Sequence[Array]) -> list[bytes]:
        return self._kept(first, [self.metadata.encode(part) for part in parts])

    def _kept(self, first: int, chunks: list[bytes]) -> list[bytes]:
        """Write chunks where each is a file; return them, or as many empty ones."""
        if self.metadata.shard_chunks:
            return chunks
        for number, chunk in enumerate(chunks, first):
            self._put(number, chunk, durable=False)
        return [b""] * len(chunks)

    def _put(self, number: int, data: bytes, durable: bool = True) -> None:
        self._place.put(f"{self._name}/{self.metadata.file_name(number)}", data, durable)

    def _collect(self) -> None:
        """Take the chunks of the oldest task, and write files that are full."""
        chunks, future = self._coming[0]
        found = future.result()
        self._coming.popleft()
        self._coming_chunks -= chunks
        self._chunks += found
        self._write_full_files()

    def _write_full_files(self) -> None:
        """Write what fills files, also what could not be written when it first did."""
        size = self.metadata.file_chunks
        while len(self._chunks) >= size:
            if self.metadata.shard_chunks:
                self._put(self._files, shard_bytes(self._chunks[:size], size))
            del self._chunks[:size]
            self._files += 1

    def settle(self) -> None:
        """Wait for all chunks that are being coded."""
        while self._coming:
            self._collect()
        self._write_full_files()

    def unsaved(self) -> Task | None:
        """Return what writes all rows, those in files that are not full too; None where they are written.

        The array does not say yet that it has them.
        """
        self.settle()
        if not self._dirty:
            return None
        chunks = list(self._chunks)
        if self._filled:
            chunks.append(self._encoders.submit(partial(self.metadata.encode, self._rest[: self._filled]), 0).result())
        return partial(self._save, chunks)

    def _save(self, chunks: Sequence[bytes]) -> None:
        if chunks and self.metadata.shard_chunks:
            self._put(self._files, shard_bytes(chunks, self.metadata.file_chunks))
        elif chunks:
            self._put(self._files, chunks[0])
        self._dirty = False

    def publish(self, rows: int) -> None:
        """Say in the array's metadata how many rows count, after they were written."""
        assert rows <= self.rows, (self._name, rows, self.rows)
        if self.metadata.rows != rows:
            published = self.metadata.with_rows(rows)
            self._place.put(f"{self._name}/{published.file}", published.to_bytes())
            self.metadata = published

    def cut(self, rows: int) -> None:
        """Go back to so many rows, of those that the array says it has.

        Raises:
            DamagedError: it has fewer.
        """
        self._drop_coming()
        metadata = self.metadata
        if rows > metadata.rows:
            raise DamagedError(f"{self._place.name}/{self._name} has {metadata.rows} rows, expected {rows}")
        self._files = rows // metadata.file_rows
        self._filled = rows % metadata.chunk_rows
        coded = self._read(range(self._files * metadata.file_chunks, metadata.chunks(rows)))
        if self._filled:
            metadata.decode(coded.pop(), self._rest)
        self._chunks = coded
        self._dirty = True

    def _drop_coming(self) -> None:
        """Forget what is being coded; wait for it, as it may write files."""
        for _, future in self._coming:
            future.exception()
        self._coming.clear()
        self._coming_chunks = 0

    def _read(self, chunks: Sequence[int]) -> list[bytes]:
        """Return coded chunks that are in files; what was never written is coded now."""
        if not chunks:
            return []
        found = ArrayChunks(self._place, self._name, self.metadata).read(chunks)
        return [self._fill() if chunk is None else chunk for chunk in found]

    def _fill(self) -> bytes:
        return self.metadata.encode(np.broadcast_to(self.metadata.fill, (1, *self.metadata.leaf.shape)))

    def clear_beyond(self) -> None:
        """Remove files beyond the rows that there are, and those that a killed writer left half written."""
        nested = "/" in self.metadata.file_name(0)
        folder = f"{self._name}/c" if nested and self.metadata.format == 3 else self._name
        clear_halves(self._place, folder)
        files = -(-self.metadata.chunks(self.rows) // self.metadata.file_chunks)
        for name in self._place.children(folder):
            number = name.removeprefix("c.").split(".")[0]
            if number.isdecimal() and int(number) >= files:
                self._place.delete(f"{folder}/{name}")


def clear_halves(place: Place, folder: str) -> None:
    """Remove what a killed writer left half written in a folder."""
    for name in place.children(folder):
        if name.startswith(".") and name.endswith(".tmp"):
            place.delete(f"{folder}/{name}".lstrip("/"))
