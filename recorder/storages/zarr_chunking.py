"""Rows on their way to shard files: coded as they come, staged when there are enough of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from recorder.columns import Array, ArrayColumn, Column, JoinedColumn
from recorder.errors import DamagedError, FormatError
from recorder.files import link_or_copy, make_folder, write_file
from recorder.storages.zarr_array import Grid, array_json, checked
from recorder.storages.zarr_columns import ChunkColumn
from recorder.storages.zarr_shards import ShardFile, StoredChunks, shard_bytes

BATCH_BYTES = 16 << 20
"""Rows that are decoded at once where chunks cannot be laid in as they are."""


class ShardWriter:
    """Makes chunks of rows, and shard files of chunks."""

    def __init__(self, folder: Path, grid: Grid, durable: bool) -> None:
        self.grid = grid
        self.folder = folder
        self.files: list[ShardFile] = []
        self.chunks: list[bytes] = []
        self.chunk_bytes = 0
        self._durable = durable
        self._rest = grid.empty(0)
        self._filled = 0

    @property
    def staged_rows(self) -> int:
        """Rows in shard files."""
        return len(self.files) * self.grid.shard_rows

    @property
    def coded_rows(self) -> int:
        """Rows in chunks, in shard files or in memory."""
        return self.staged_rows + len(self.chunks) * self.grid.chunk_rows

    @property
    def rows(self) -> int:
        """All rows; the last ones may be too few for a chunk."""
        return self.coded_rows + self._filled

    @property
    def rest(self) -> Array:
        """The rows that are no chunk yet."""
        return self._rest[: self._filled]

    def add(self, rows: Array) -> None:
        """Take rows; they are coded as soon as they fill a chunk."""
        size = self.grid.chunk_rows
        while len(rows):
            if not self._filled and len(rows) >= size:
                taken = size
                self.lay([self.grid.encode(rows[:size])])
            else:
                taken = min(size - self._filled, len(rows))
                self._keep(rows[:taken])
            rows = rows[taken:]

    def _keep(self, rows: Array) -> None:
        if len(self._rest) < self.grid.chunk_rows:
            room = self.grid.empty(self.grid.chunk_rows)
            room[: self._filled] = self.rest
            self._rest = room
        self._rest[self._filled : self._filled + len(rows)] = rows
        self._filled += len(rows)
        if self._filled == self.grid.chunk_rows:
            self.lay([self.grid.encode(self._rest)])
            self._filled = 0

    def trim(self) -> None:
        """Give back room that rows to come would have needed."""
        self._rest = self.rest.copy()

    def lay(self, chunks: Sequence[bytes]) -> None:
        """Take chunks that are coded already."""
        self.chunks += chunks
        self.chunk_bytes += sum(map(len, chunks))

    def flush(self, partial: bool = False) -> None:
        """Write the chunks that fill a shard file; with `partial`, the last ones too."""
        size = self.grid.shard_chunks
        while len(self.chunks) >= size or (partial and self.chunks):
            self._write(self.chunks[:size])
            self.chunk_bytes -= sum(map(len, self.chunks[:size]))
            del self.chunks[:size]

    def _write(self, chunks: Sequence[bytes]) -> None:
        path = self.folder / self.grid.key(len(self.files))
        make_folder(self.folder, self._durable)
        write_file(path, shard_bytes(chunks, self.grid.shard_chunks), self._durable)
        self.files.append(ShardFile(path, self.grid))

    def column(self) -> Column:
        """Return all rows, as they are now."""
        leaf, stored = self.grid.leaf, StoredChunks(self.grid, tuple(self.files), tuple(self.chunks))
        coded = ChunkColumn(leaf, self.coded_rows, stored)
        return JoinedColumn(leaf, [coded, ArrayColumn(leaf, self.rest.copy())])


class Track(ShardWriter):
    """The rows of one leaf in one segment, staged; `saved` of them are in checkpoints or shard files."""

    def __init__(self, folder: Path, grid: Grid) -> None:
        super().__init__(folder, grid, durable=True)
        self.saved = 0

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return self.chunk_bytes + self.rest.nbytes

    def fresh(self, saved: int) -> Iterator[tuple[int, int, bytes]]:
        """Yield start, rows and bytes of chunks that hold all rows in memory from `saved` on."""
        size = self.grid.chunk_rows
        for i in range(max(saved - self.staged_rows, 0) // size, len(self.chunks)):
            yield self.staged_rows + i * size, size, self.chunks[i]
        start = max(saved, self.coded_rows)
        if start < self.rows:
            yield start, self.rows - start, self.grid.encode(self.rest[start - self.coded_rows :])

    def recover_files(self) -> None:
        """Take over the shard files that a dead writer left, up to the first chunk that is damaged."""
        while (path := self.folder / self.grid.key(len(self.files))).exists():
            file = ShardFile(path, self.grid)
            chunks = list(_intact(file, self.grid.shard_chunks))
            if len(chunks) < self.grid.shard_chunks:
                self.lay(chunks)
                return
            self.files.append(file)

    def recover_chunk(self, start: int, rows: int, data: bytes) -> None:
        """Take over a chunk of a checkpoint, unless it is damaged, known, or comes after a gap."""
        if not start <= self.rows < start + rows or rows > self.grid.chunk_rows:
            return
        try:
            self._take(start, rows, data)
        except (DamagedError, FormatError):
            return

    def _take(self, start: int, rows: int, data: bytes) -> None:
        checked(data)
        if start == self.rows and rows == self.grid.chunk_rows and not len(self.rest):
            self.lay([data])
        else:
            decoded = self.grid.empty(rows)
            self.grid.decode(data, decoded)
            self.add(decoded[self.rows - start :])


def _intact(file: ShardFile, chunks: int) -> Iterator[bytes]:
    """Yield the chunks of a file up to the first that is damaged."""
    for i in range(chunks):
        try:
            [data] = file.read([i])
            checked(data)
        except (OSError, FormatError):
            return
        yield data.tobytes()


class ArrayPacker(ShardWriter):
    """Makes the array of a shard folder of the rows of many segments, one after another."""

    def __init__(self, folder: Path, grid: Grid) -> None:
        super().__init__(folder, grid, durable=False)

    def copy(self, source: ShardWriter, rows: int) -> None:
        """Take the first rows of a segment: whole files by link, whole chunks as bytes, where they fit."""
        coded = min(rows, source.coded_rows)
        start = 0
        if not self._filled:
            start = self._link_from(source, rows) if not self.chunks else 0
            start = self._lay_from(source, start, coded)
        self._add_from(source, start, coded)
        self.add(source.rest[: rows - coded])
        self.flush()

    def _link_from(self, source: ShardWriter, rows: int) -> int:
        """Take whole shard files; return the row after them."""
        files = source.files[: rows // self.grid.shard_rows]
        for file in files:
            path = self.folder / self.grid.key(len(self.files))
            link_or_copy(file.path, path)
            self.files.append(ShardFile(path, self.grid))
        return len(files) * self.grid.shard_rows

    def _lay_from(self, source: ShardWriter, start: int, stop: int) -> int:
        """Take whole chunks; return the row after them."""
        stored = StoredChunks(self.grid, source.files, source.chunks)
        first, end = start // self.grid.chunk_rows, stop // self.grid.chunk_rows
        while first < end:
            last = min(end, first + self.grid.shard_chunks - len(self.chunks))
            self.lay([bytes(chunk) for chunk in stored.read(range(first, last))])
            self.flush()
            first = last
        return end * self.grid.chunk_rows

    def _add_from(self, source: ShardWriter, start: int, stop: int) -> None:
        """Take rows that lie at another place in their chunks than here: they are coded anew."""
        stored = StoredChunks(self.grid, source.files, source.chunks)
        column = ChunkColumn(self.grid.leaf, source.coded_rows, stored)
        step = max(1, BATCH_BYTES // self.grid.leaf.nbytes)
        for first in range(start, stop, step):
            self.add(column[first : min(first + step, stop)])
            self.flush()

    def finish(self) -> None:
        """Write what is left, the last chunk filled up with zeros, and `zarr.json`."""
        rows = self.rows
        if self._filled:
            self._keep(np.zeros_like(self._rest[self._filled :]))
        if not self.files:  # one file is all: it needs no room in its index for more
            self.grid = replace(self.grid, shard_chunks=max(1, len(self.chunks)))
        self.flush(partial=True)
        make_folder(self.folder, durable=False)
        write_file(self.folder / "zarr.json", array_json(self.grid, rows), durable=False)
