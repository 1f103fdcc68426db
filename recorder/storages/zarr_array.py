"""The zarr array of one leaf: how rows become chunks, and what its `zarr.json` says.

The JSON is ours, not made by zarr: importing that takes half a second, and it works on a thread of its own,
which cannot be had while the interpreter exits. Tests compare ours with what zarr writes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, NamedTuple

import google_crc32c
import imagecodecs
import numpy as np
from numpy.typing import NDArray

from recorder.columns import Array
from recorder.errors import DamagedError, FormatError
from recorder.leaf import JSON, Leaf
from recorder.webp import decode_webp, encode_webp, is_picture

_BITS = {"int": (8, 16, 32, 64), "uint": (8, 16, 32, 64), "float": (16, 32, 64), "complex": (64, 128)}
DTYPES = {"bool", *(f"{name}{bits}" for name, sizes in _BITS.items() for bits in sizes)}
"""The data types of zarr 3 that NumPy has under the same name."""

CHUNK_LIMIT = 64 << 20
"""A chunk of several rows that would be larger than this is refused: a file may say anything."""

CRC = {"name": "crc32c"}
CRC_BYTES = 4


class Webp(NamedTuple):
    """Pictures as WebP, one a chunk: lossless, or of a quality."""

    quality: float | None = None
    method: int = 0

    def encode(self, rows: Array) -> bytes:
        return encode_webp(rows[0], self.quality, self.method)

    def decode(self, data: Any, out: Array) -> None:
        decode_webp(data, out.shape[1:], out[0])

    def to_json(self, leaf: Leaf) -> list[JSON]:
        said = {"lossless": True} if self.quality is None else {"level": float(self.quality), "lossless": False}
        # imagecodecs leaves the alpha of an opaque picture out, and gives it back only when told to.
        alpha = {"hasalpha": True} if leaf.shape[2] == 4 else {}
        return [{"name": "imagecodecs_webp", "configuration": {**said, "method": self.method, **alpha}}, CRC]


class Zstd(NamedTuple):
    """Any arrays as zstd, one row a chunk or many."""

    level: int = 3

    def encode(self, rows: Array) -> bytes:
        return bytes(imagecodecs.zstd_encode(_bytes_of(rows), self.level))

    def decode(self, data: Any, out: Array) -> None:
        target = _bytes_of(out)
        try:
            # With `out` no more is ever unpacked than fits into it, whatever the data say of their size.
            size = len(imagecodecs.zstd_decode(data, out=target))
        except imagecodecs.ZstdError as error:
            raise DamagedError(f"a zstd chunk cannot be decoded into {target.size} bytes: {error}") from error
        if size != target.size:
            raise FormatError(f"a zstd chunk holds {size} bytes, expected {target.size}")

    def to_json(self, leaf: Leaf) -> list[JSON]:
        order = {"configuration": {"endian": "little"}} if leaf.numpy_dtype.itemsize > 1 else {}
        return [
            {"name": "bytes", **order},
            {"name": "zstd", "configuration": {"level": self.level, "checksum": False}},
            CRC,
        ]


Codec = Webp | Zstd


def _bytes_of(rows: Array) -> Any:
    return rows.reshape(-1).view(np.uint8)


@dataclass(frozen=True)
class Grid:
    """How the rows of a leaf are laid out: so many a chunk, and so many chunks a shard file."""

    leaf: Leaf
    codec: Codec
    chunk_rows: int
    shard_chunks: int

    @classmethod
    def of(cls, leaf: Leaf, codec: Codec, chunk_bytes: int, shard_bytes: int) -> Grid:
        """Return the grid for chunks and shard files of about so many bytes before coding."""
        single = isinstance(codec, Webp) or leaf.nbytes * 4 >= chunk_bytes
        rows = 1 if single else 1 << (chunk_bytes // leaf.nbytes).bit_length() - 1
        return cls(leaf, codec, rows, min(max(shard_bytes // (rows * leaf.nbytes), 16), 1024))

    @property
    def shard_rows(self) -> int:
        """Rows of a full shard file."""
        return self.chunk_rows * self.shard_chunks

    def chunks(self, rows: int) -> int:
        """Return how many chunks hold so many rows."""
        return -(-rows // self.chunk_rows)

    def key(self, shard: int) -> str:
        """Return the name of a shard file."""
        return ".".join(map(str, ("c", shard, *[0] * len(self.leaf.shape))))

    def empty(self, rows: int) -> Array:
        """Return room for rows."""
        return np.empty((rows, *self.leaf.shape), self.leaf.numpy_dtype)

    def encode(self, rows: Array) -> bytes:
        """Return rows `(n, *shape)` as one chunk, its CRC-32C at the end."""
        assert rows.dtype == self.leaf.numpy_dtype, (rows.dtype, self.leaf)
        assert rows.shape[1:] == self.leaf.shape, (rows.shape, self.leaf)
        data = self.codec.encode(np.ascontiguousarray(rows))
        return data + crc_bytes(data)

    def decode(self, chunk: Any, out: Array) -> None:
        """Write the rows of a chunk into `out`, `(n, *shape)` with as many rows as were coded.

        Raises:
            DamagedError: the chunk is not as it was written.
            FormatError: it holds something else than so many rows.
        """
        self.codec.decode(checked(chunk), out)


def crc_bytes(data: Any) -> bytes:
    """Return the CRC-32C of `data` as zarr appends it."""
    crc: int = google_crc32c.value(data)
    return crc.to_bytes(CRC_BYTES, "little")


def checked(chunk: Any) -> NDArray[np.uint8]:
    """Return the coded bytes of a chunk without their checksum.

    Raises:
        DamagedError: they have changed since they were written.
    """
    data = np.frombuffer(chunk, np.uint8)
    if len(data) <= CRC_BYTES or crc_bytes(data[:-CRC_BYTES]) != data[-CRC_BYTES:].tobytes():
        raise DamagedError("a chunk has changed since it was written: its CRC-32C differs")
    return data[:-CRC_BYTES]


def array_json(grid: Grid, rows: int) -> bytes:
    """Return the `zarr.json` of an array of so many rows.

    https://zarr-specs.readthedocs.io/en/latest/v3/core/index.html has its form.
    """
    leaf = grid.leaf
    sharding = {
        "chunk_shape": [grid.chunk_rows, *leaf.shape],
        "codecs": grid.codec.to_json(leaf),
        "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, CRC],
        "index_location": "end",
    }
    zero = leaf.numpy_dtype.type(0).item()
    data = {
        "shape": [rows, *leaf.shape],
        "data_type": leaf.dtype,
        "chunk_grid": {
            "name": "regular",
            "configuration": {"chunk_shape": [grid.shard_rows, *leaf.shape]},
        },
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
        "fill_value": [0.0, 0.0] if isinstance(zero, complex) else zero,
        "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
        "attributes": {"path": leaf.path, "kind": leaf.kind, "metadata": dict(leaf.metadata)},
        "zarr_format": 3,
        "node_type": "array",
        "storage_transformers": [],
    }
    return json.dumps(data, indent=2, allow_nan=False, ensure_ascii=False).encode()


def parse_array_json(leaf: Leaf, data: bytes) -> tuple[Grid, int]:
    """Return the grid and the number of rows that a `zarr.json` declares for a leaf.

    Raises:
        FormatError: it does not declare an array of this leaf in the form that `array_json` writes.
    """
    try:
        declared = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"no JSON: {error}") from error
    match declared:
        case {
            "zarr_format": 3,
            "node_type": "array",
            "shape": [int(rows), *shape],
            "data_type": leaf.dtype,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [int(shard_rows), *outer]}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
            "codecs": [
                {
                    "name": "sharding_indexed",
                    "configuration": {
                        "chunk_shape": [int(chunk_rows), *inner],
                        "codecs": [*codecs],
                        "index_codecs": [{"name": "bytes"}, {"name": "crc32c"}],
                        "index_location": "end",
                    },
                }
            ],
        } if shape == outer == inner == list(leaf.shape):
            codec = _parse_codecs(leaf, codecs)
            if rows >= 0 and _possible(leaf, codec, chunk_rows, shard_rows):
                return Grid(leaf, codec, chunk_rows, shard_rows // chunk_rows), rows
    raise FormatError(f"no sharded zarr array of rows {leaf.dtype} {leaf.shape}")


def _possible(leaf: Leaf, codec: Codec, chunk_rows: int, shard_rows: int) -> bool:
    """Return whether chunks and shard files of so many rows can have been written."""
    most = 1 if isinstance(codec, Webp) else max(1, CHUNK_LIMIT // leaf.nbytes)
    return 1 <= chunk_rows <= most and shard_rows >= chunk_rows and shard_rows % chunk_rows == 0


def _parse_webp(said: JSON) -> Webp:
    """Return the pictures that a configuration speaks of; reading them needs none of it."""
    match said:
        case {"lossless": False, "level": int(level) | float(level)}:
            return Webp(float(level))
    return Webp()


def _parse_codecs(leaf: Leaf, codecs: list[JSON]) -> Codec:
    match codecs:
        case [{"name": "imagecodecs_webp", **rest}, {"name": "crc32c"}] if is_picture(leaf.shape, leaf.dtype):
            return _parse_webp(rest.get("configuration"))
        case [{"name": "bytes", "configuration": {"endian": "big"}}, *_]:
            pass
        case [{"name": "bytes"}, {"name": "zstd"}, {"name": "crc32c"}]:
            return Zstd()
    raise FormatError(f"codecs {codecs!r:.200} of rows {leaf.dtype} {leaf.shape}")
