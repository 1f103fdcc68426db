"""Metadata: what `zarr.json` or `.zarray` of one array says, as far as whole rows can be read from its chunks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from recorder.columns import Array
from recorder.errors import FormatError
from recorder.leaf import JSON, NUMBERS, TEXT, Leaf
from recorder.replay_buffer.chunk_codecs import OtherCodec, codec_v2, codec_v3, json_bytes
from recorder.replay_buffer.packing import ChunkCodec
from recorder.webp import is_picture

CHUNK_LIMIT = 1 << 30
"""A chunk that would be larger is refused: a file may say anything."""

SHARD_CHUNKS_LIMIT = 1 << 22

OURS = "recorder"
"""The attribute under which this package says of an array or a group what it knows."""


@dataclass(frozen=True)
class ArrayMetadata:
    """One array: its row, how many rows a chunk and how many chunks a shard file has, and how they are coded.

    `shard_chunks` is 0 where each chunk is a file. `chunk_rows` and the methods `empty` and `decode` are what
    `ChunkColumn` asks of a grid.
    """

    key: str
    rows: int
    leaf: Leaf
    chunk_rows: int
    shard_chunks: int
    codec: ChunkCodec
    document: Mapping[str, JSON]
    attributes: Mapping[str, JSON]

    @property
    def format(self) -> int:
        """The number of the zarr format."""
        return int(self.document["zarr_format"])

    @property
    def complete(self) -> bool:
        """Whether every chunk was written, so that a missing one is damage and no zeros."""
        return bool(self.attributes.get(OURS, {}).get("every_chunk"))

    @property
    def file_chunks(self) -> int:
        """The chunks of one file."""
        return max(1, self.shard_chunks)

    @property
    def file_rows(self) -> int:
        """The rows of one full file."""
        return self.chunk_rows * self.file_chunks

    def chunks(self, rows: int) -> int:
        """Return how many chunks hold so many rows."""
        return -(-rows // self.chunk_rows)

    def file_name(self, number: int) -> str:
        """Return the name of a file with chunks, below that of the array."""
        return self._names[0].join((*self._names[1], str(number), *["0"] * len(self.leaf.shape)))

    @cached_property
    def _names(self) -> tuple[str, Sequence[str]]:
        """What separates the parts of a file's name, and what comes first."""
        if self.format == 2:
            return self.document.get("dimension_separator", "."), ()
        encoding = self.document["chunk_key_encoding"]
        default = encoding["name"] == "default"
        said = (encoding.get("configuration") or {}).get("separator", "/" if default else ".")
        return said, ("c",) if default else ()

    @cached_property
    def fill(self) -> Array:
        """What a row is where nothing was written."""
        said = self.document.get("fill_value")
        row = np.empty(self.leaf.shape, self.leaf.numpy_dtype)
        if self.leaf.dtype == TEXT:
            row[...] = said or ""
        elif isinstance(said, list):
            row[...] = complex(*map(float, said))
        else:
            row[...] = 0 if said is None else np.array(float(said)) if isinstance(said, str) else said
        return row

    def empty(self, rows: int) -> Array:
        """Return room for rows."""
        return np.empty((rows, *self.leaf.shape), self.leaf.numpy_dtype)

    def decode(self, chunk: bytes | None, out: Array) -> None:
        """Write the rows of a chunk into `out`; of one that was never written, the fill value."""
        if chunk is None:
            out[...] = self.fill
        else:
            self.codec.decode(chunk, out)

    def encode(self, rows: Array) -> bytes:
        """Return up to `chunk_rows` rows as a chunk, which is filled up with the fill value."""
        if len(rows) < self.chunk_rows:
            room = self.empty(self.chunk_rows)
            room[: len(rows)] = rows
            room[len(rows) :] = self.fill
            rows = room
        return self.codec.encode(rows)

    def with_rows(self, rows: int) -> ArrayMetadata:
        """Return the same array with another number of rows."""
        document = {**self.document, "shape": [rows, *self.document["shape"][1:]]}
        return replace(self, rows=rows, document=document)

    @property
    def file(self) -> str:
        """The name of the file that says all this, below that of the array."""
        return "zarr.json" if self.format == 3 else ".zarray"

    def to_bytes(self) -> bytes:
        """Return the bytes of that file."""
        return json_bytes(self.document)


def parse_array(key: str, data: bytes, attributes: Mapping[str, JSON] | None = None) -> ArrayMetadata | None:
    """Return the array that the bytes of `zarr.json` or `.zarray` declare; None if only zarr can read it.

    Raises:
        FormatError: they declare none.
    """
    try:
        document = json.loads(data)
        parsed = _parse_v3(key, document) if document["zarr_format"] == 3 else _parse_v2(key, document, attributes)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FormatError(f"{key!r}: no metadata of a zarr array: {type(error).__name__} {error}") from error
    if parsed is not None and parsed.chunk_rows * max(1, parsed.leaf.nbytes) > CHUNK_LIMIT:
        raise FormatError(f"{key!r}: chunks of {parsed.chunk_rows * parsed.leaf.nbytes} bytes are refused")
    return parsed


def _leaf(key: str, shape: Sequence[int], dtype: np.dtype[Any], attributes: Mapping[str, JSON]) -> Leaf | None:
    name = TEXT if dtype.kind == "O" else dtype.newbyteorder("=").name
    if name not in NUMBERS | {TEXT}:
        return None
    ours = attributes.get(OURS) or {}
    return Leaf(key, tuple(shape), name, str(ours.get("kind", "other")), metadata=ours.get("metadata") or {})


def _parse_v3(key: str, document: Mapping[str, JSON]) -> ArrayMetadata | None:
    rows, *shape = document["shape"]
    file_rows, *outer = document["chunk_grid"]["configuration"]["chunk_shape"]
    codecs, chunk_rows, inner, shard_chunks = document["codecs"], file_rows, outer, 0
    if codecs[0]["name"] == "sharding_indexed":
        options = codecs[0]["configuration"]
        chunk_rows, *inner = options["chunk_shape"]
        index = [codec["name"] for codec in options["index_codecs"]]
        if len(codecs) > 1 or index != ["bytes", "crc32c"] or options.get("index_location", "end") != "end":
            return None
        codecs, shard_chunks = options["codecs"], file_rows // chunk_rows
    attributes = document.get("attributes") or {}
    leaf = _leaf(key, shape, _dtype_v3(document["data_type"]), attributes)
    whole_rows = list(shape) == list(inner) == list(outer) and document["chunk_grid"]["name"] == "regular"
    if leaf is None or not whole_rows or not 0 <= shard_chunks <= SHARD_CHUNKS_LIMIT:
        return None
    codec = codec_v3(codecs, leaf.numpy_dtype, _one_picture(leaf, chunk_rows)) or _other_v3(
        document, codecs, chunk_rows
    )
    return ArrayMetadata(key, rows, leaf, chunk_rows, shard_chunks, codec, document, attributes)


def _dtype_v3(said: JSON) -> np.dtype[Any]:
    return np.dtype(object) if said == "string" else np.dtype(said if isinstance(said, str) else "V1")


def _one_picture(leaf: Leaf, chunk_rows: int) -> bool:
    return chunk_rows == 1 and (
        is_picture(leaf.shape, leaf.dtype) or (leaf.dtype == "uint8" and len(leaf.shape) in (2, 3))
    )


def _other_v3(document: Mapping[str, JSON], codecs: JSON, chunk_rows: int) -> ChunkCodec:
    shape = [chunk_rows, *document["shape"][1:]]
    grid = {"name": "regular", "configuration": {"chunk_shape": shape}}
    keys = {"name": "default", "configuration": {"separator": "."}}
    one = {**document, "shape": shape, "chunk_grid": grid, "codecs": codecs, "chunk_key_encoding": keys}
    return OtherCodec({"zarr.json": json_bytes(one)}, ".".join(["c", *["0"] * len(shape)]))


def _parse_v2(key: str, document: Mapping[str, JSON], attributes: Mapping[str, JSON] | None) -> ArrayMetadata | None:
    rows, *shape = document["shape"]
    chunk_rows, *inner = document["chunks"]
    attributes = attributes or {}
    if not isinstance(document["dtype"], str):
        return None
    leaf = _leaf(key, shape, np.dtype(document["dtype"]), attributes)
    if leaf is None or list(shape) != list(inner):
        return None
    codec = codec_v2(document, leaf.numpy_dtype, _one_picture(leaf, chunk_rows)) or _other_v2(document)
    return ArrayMetadata(key, rows, leaf, chunk_rows, 0, codec, document, attributes)


def _other_v2(document: Mapping[str, JSON]) -> ChunkCodec:
    one = {**document, "shape": document["chunks"], "dimension_separator": "."}
    return OtherCodec({".zarray": json_bytes(one)}, ".".join("0" for _ in document["chunks"]))
