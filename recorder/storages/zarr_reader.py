"""The reader of ZarrStorage: the zarr arrays of one shard, checked before anything is believed."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from recorder.columns import Coded, Column, SpanColumn
from recorder.errors import DamagedError, FormatError
from recorder.files import missing, read_small
from recorder.leaf import Leaf
from recorder.storages.base import Counts, Reader
from recorder.storages.table_reading import LazyColumns
from recorder.storages.zarr_array import Grid, Webp, checked, parse_array_json
from recorder.storages.zarr_chunking import Track
from recorder.storages.zarr_columns import ChunkColumn
from recorder.storages.zarr_shards import ShardFile, StoredChunks

JSON_BYTES = 16 << 20
"""A larger `zarr.json` is refused before it is read."""


class ArrayFolder:
    """The folder of a zarr array; its files say how they are coded, and are read when a row is asked for."""

    def __init__(self, path: Path, leaf: Leaf, rows: int) -> None:
        self._path = path
        self._leaf = leaf
        self._expected = rows

    @cached_property
    def _declared(self) -> tuple[Grid, int]:
        path = self._path / "zarr.json"
        try:
            data = read_small(path, JSON_BYTES)
        except FileNotFoundError:
            raise missing(path) from None
        try:
            return parse_array_json(self._leaf, data)
        except FormatError as error:
            raise FormatError(f"{path}: {error}") from error

    @property
    def grid(self) -> Grid:
        return self._declared[0]

    @cached_property
    def _stored(self) -> StoredChunks:
        grid, rows = self._declared
        if rows != self._expected:
            raise DamagedError(f"{self._path}/zarr.json has {rows} rows, {self._expected} were recorded")
        files = -(-rows // grid.shard_rows)
        if files > len(os.listdir(self._path)):  # noqa: PTH208
            raise DamagedError(f"{self._path} lacks files: {rows:,} rows are in {files:,}")
        return StoredChunks(grid, [self._file(i) for i in range(files)])

    def _file(self, number: int) -> ShardFile:
        return ShardFile(self._path / self.grid.key(number), self.grid)

    def read(self, chunks: Sequence[int]) -> Sequence[Any]:
        return self._stored.read(chunks)

    def place(self, chunk: int) -> str:
        return self._stored.place(chunk)

    def count(self) -> int:
        """Return the rows that are there.

        Raises:
            DamagedError: a shard file is missing, cut, or lacks a chunk; zarr would read zeros.
        """
        grid, rows = self._declared
        chunks = grid.chunks(rows)
        for number in range(-(-chunks // grid.shard_chunks)):
            self._file(number).need(min(grid.shard_chunks, chunks - number * grid.shard_chunks))
        return rows


class FolderColumn(ChunkColumn):
    """The rows of one array; pictures are also given as they are coded."""

    def __init__(self, leaf: Leaf, length: int, folder: ArrayFolder) -> None:
        super().__init__(leaf, length, folder)
        self._folder = folder

    def encoded(self, start: int, stop: int) -> Coded | None:
        codec = self._folder.grid.codec
        if not isinstance(codec, Webp):
            return None
        return Coded(codec.quality, [checked(chunk).tobytes() for chunk in self._folder.read(range(start, stop))])


class ZarrReader(Reader):
    """The zarr arrays of one shard."""

    def __init__(self, directory: Path, leaves: Sequence[Leaf], counts: Counts) -> None:
        super().__init__(directory, leaves, counts)
        self._folders = {leaf.path: self._folder(leaf) for leaf in leaves}
        self._wholes: dict[str, Column] = {}

    def _folder(self, leaf: Leaf) -> ArrayFolder:
        return ArrayFolder(self.directory / f"{leaf.path}.zarr", leaf, self.counts.total(leaf.per))

    def segment(self, i: int) -> Mapping[str, Column]:
        def column(path: str) -> Column:
            return SpanColumn(self.whole(path), *self.counts.span(self.leaves[path].per, i))

        return LazyColumns(self.leaves, column)

    def whole(self, path: str) -> Column:
        if path not in self._wholes:
            leaf = self.leaves[path]
            self._wholes[path] = FolderColumn(leaf, self.counts.total(leaf.per), self._folders[path])
        return self._wholes[path]

    def count(self) -> Mapping[str, int]:
        return {path: folder.count() for path, folder in self._folders.items()}

    def encoded(self, path: str, rows: slice) -> Sequence[bytes] | None:
        """Return pictures as WebP, without their checksums; None for leaves that are coded otherwise."""
        folder = self._folders[path]
        if not isinstance(folder.grid.codec, Webp):
            return None
        wanted = range(self.counts.total(self.leaves[path].per))[rows]
        coded = folder.read(sorted(wanted))
        return [checked(chunk).tobytes() for chunk in (coded if wanted.step > 0 else coded[::-1])]

    def copy(self, path: str, start: int, stop: int, target: Track) -> None:
        """Let a segment have rows: as coded chunks where each is one row, coded alike there and here.

        Raises:
            DamagedError: a chunk is not as it was written.
        """
        here, there = self._folders[path].grid, target.grid
        if here.codec == there.codec and here.chunk_rows == there.chunk_rows == 1:
            chunks = self._folders[path].read(range(start, stop))
            for chunk in chunks:
                checked(chunk)
            target.lay([bytes(chunk) for chunk in chunks])
        else:
            target.add(self.whole(path)[start:stop])

    def close(self) -> None:
        """Give up nothing: no file stays open."""
