"""Arrays: rows of one zarr array, read from the files that hold their chunks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import zarr
from numpy.typing import NDArray

from recorder.columns import Array, Coded, Column
from recorder.errors import DamagedError, FormatError
from recorder.leaf import JSON, TEXT, Leaf
from recorder.replay_buffer.metadata import ArrayMetadata, parse_array
from recorder.replay_buffer.pictures import WEBPS, PictureCodec
from recorder.replay_buffer.places import File, MissingFileError, Place
from recorder.storages.zarr_array import CRC_BYTES, crc_bytes
from recorder.storages.zarr_columns import ChunkColumn
from recorder.storages.zarr_shards import ENTRY_BYTES, MISSING, neighbours


class ArrayChunks:
    """The coded chunks of an array. The index of each shard file is read once, and again when the file is replaced."""

    def __init__(self, place: Place, prefix: str, metadata: ArrayMetadata) -> None:
        self.grid = metadata
        self._place = place
        self._prefix = prefix
        self._indexes: dict[int, tuple[Any, NDArray[np.uint64]]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_indexes": {}}

    def file(self, number: int) -> str:
        """Return the name of a file with chunks."""
        return f"{self._prefix}/{self.grid.file_name(number)}"

    def place(self, chunk: int) -> str:
        """Say where a chunk is, for an error."""
        return f"{self._place.name}/{self.file(chunk // self.grid.file_chunks)}"

    def read(self, chunks: Sequence[int]) -> list[bytes | None]:
        """Return coded chunks by their increasing numbers; None where one was never written.

        Raises:
            DamagedError: a chunk is missing that must have been written.
        """
        if self.grid.shard_chunks:
            found: list[bytes | None] = []
            for number, group in groupby(chunks, lambda chunk: chunk // self.grid.shard_chunks):
                found += self._from_shard(number, [chunk % self.grid.shard_chunks for chunk in group])
        else:
            found = self._place.get_many([self.file(chunk) for chunk in chunks])
        if self.grid.complete and None in found:
            raise DamagedError(f"{self.place(chunks[found.index(None)])} is missing, or lacks a chunk of it")
        return found

    def _from_shard(self, number: int, chunks: Sequence[int]) -> list[bytes | None]:
        try:
            with self._place.open(self.file(number)) as file:
                index = self._index(number, file)
                spans = [(start, start + size) if start != MISSING else None for start, size in index[chunks].tolist()]
                return _spans_of(file, spans)
        except MissingFileError:
            if self.grid.complete:
                raise
            return [None] * len(chunks)

    def _index(self, number: int, file: File) -> NDArray[np.uint64]:
        """Return where each chunk of a shard file begins, and its length."""
        version, index = self._indexes.get(number, (None, None))
        if index is None or version != file.version:
            index = self._read_index(self.file(number), file)
            self._indexes[number] = file.version, index
        return index

    def _read_index(self, name: str, file: File) -> NDArray[np.uint64]:
        size = self.grid.shard_chunks * ENTRY_BYTES + CRC_BYTES
        tail = file.tail(size)
        if len(tail) != size:
            raise DamagedError(f"{self._place.name}/{name} has {len(tail)} bytes, too few for the index of its chunks")
        if crc_bytes(tail[:-CRC_BYTES]) != tail[-CRC_BYTES:]:
            raise DamagedError(f"{self._place.name}/{name} has changed: the CRC-32C of its index differs")
        index = np.frombuffer(tail[:-CRC_BYTES], "<u8").reshape(-1, 2)
        there = index[(index != MISSING).any(axis=1)]
        if (there > 1 << 48).any():
            raise FormatError(f"{self._place.name}/{name}: its index names chunks beyond its bytes")
        return index


def _spans_of(file: File, spans: Sequence[tuple[int, int] | None]) -> list[bytes | None]:
    """Return parts of a file; those that lie side by side are read at once."""
    runs = neighbours([span for span in spans if span is not None])
    whole = file.spans([(run[0][0], run[-1][1]) for run in runs])
    parts = iter(
        data[start - run[0][0] : stop - run[0][0]] for run, data in zip(runs, whole, strict=True) for start, stop in run
    )
    return [None if span is None else next(parts) for span in spans]


class ArrayChunkColumn(ChunkColumn):
    """The rows of an array; pictures that are WebP are also given as they are coded."""

    def __init__(self, leaf: Leaf, length: int, source: ArrayChunks) -> None:
        super().__init__(leaf, length, source)
        self._chunks = source

    @property
    def file_rows(self) -> int:
        """The rows that one file holds."""
        return self._chunks.grid.file_rows

    def encoded(self, start: int, stop: int) -> Coded | None:
        codec = self._chunks.grid.codec
        if not isinstance(codec, PictureCodec) or codec.name not in WEBPS:
            return None
        chunks = self._chunks.read(range(start, stop))
        if None in chunks:  # never written: only decoding knows what stands for it
            return None
        return Coded(codec.quality, [bytes(codec.open(chunk)) for chunk in chunks])


class ZarrColumn(Column):
    """The rows of an array that only zarr can read: chunks that cut rows, or indexes of another form."""

    def __init__(self, leaf: Leaf, length: int, array: zarr.Array[Any]) -> None:
        super().__init__(leaf, length)
        self._array = array

    def read(self, start: int, stop: int) -> Array:
        rows = np.asarray(self._array[start:stop])
        return rows.astype(object) if self.leaf.dtype == TEXT else rows


class MemoryColumn(Column):
    """Rows that lie decoded in memory."""

    def __init__(self, leaf: Leaf, rows: Array) -> None:
        super().__init__(leaf, len(rows))
        self._rows = rows

    def read(self, start: int, stop: int) -> Array:
        return self._rows[start:stop].copy()

    def take(self, index: NDArray[np.intp]) -> Array:
        return self._rows[index]


class Node(NamedTuple):
    """An array in a place: where it is, and the bytes of what it says of itself."""

    name: str
    file: str
    data: bytes
    attributes: dict[str, JSON]


def find_arrays(place: Place, folder: str) -> dict[str, Node]:
    """Return all arrays below a group by their paths from there; nothing inside an array is looked at."""
    found: dict[str, Node] = {}
    for child in place.children(folder):
        if child.startswith(".") or child == "zarr.json":
            continue
        name = f"{folder}/{child}" if folder else child
        node = read_node(place, name)
        if node is None:
            found |= {f"{child}/{path}": inner for path, inner in find_arrays(place, name).items()}
        else:
            found[child] = node
    return found


def read_node(place: Place, name: str) -> Node | None:
    """Return the array of a name; None where there is a group or nothing."""
    data = place.get(f"{name}/zarr.json")
    if data is not None:
        document = parsed(name, data)
        return Node(name, "zarr.json", data, {}) if document.get("node_type") == "array" else None
    data = place.get(f"{name}/.zarray")
    if data is None:
        return None
    return Node(name, ".zarray", data, parsed(name, place.get(f"{name}/.zattrs") or b"{}"))


def parsed(name: str, data: bytes) -> dict[str, JSON]:
    """Return a JSON object.

    Raises:
        FormatError: the bytes are none.
    """
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{name}: no JSON: {error}") from error
    if not isinstance(document, dict):
        raise FormatError(f"{name}: no JSON object: {data[:80]!r}")
    return document


def open_array(place: Place, key: str, node: Node) -> tuple[int, Column]:
    """Return how many rows an array declares, and a column of all of them."""
    metadata = parse_array(key, node.data, node.attributes)
    if metadata is not None:
        return metadata.rows, ArrayChunkColumn(metadata.leaf, metadata.rows, ArrayChunks(place, node.name, metadata))
    try:
        array = zarr.open_array(place.store, path=f"{place.path}/{node.name}".lstrip("/"), mode="r")
    except (KeyError, ValueError, TypeError) as error:
        raise FormatError(f"{place.name}: {key!r} cannot be opened by zarr: {error}") from error
    if not array.shape:
        raise FormatError(f"{place.name}: {key!r} is one value, and no rows")
    text = array.dtype.kind in "OSTU"
    leaf = Leaf(key, tuple(array.shape[1:]), TEXT if text else array.dtype.newbyteorder("=").name)
    return array.shape[0], ZarrColumn(leaf, array.shape[0], array)
