"""Specs: what the rows of each key look like, as a user, a schema or a recording says it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np

from recorder.errors import LayoutError
from recorder.leaf import JSON, NUMBERS, TEXT, Leaf
from recorder.webp import is_picture

CHUNK_BYTES, CHUNK_ROWS = 64 << 10, 4096
"""Of small rows, so many go into one chunk: no more than either."""

NUMBER_SHARD_BYTES = 8 << 20
ARRAY_SHARD_BYTES = 128 << 20
PICTURE_SHARD_BYTES = 256 << 20
"""What one shard file holds before coding: of small rows, of large arrays, of pictures, which code to a tenth.

The chunks of the file that is not full yet wait in memory.
"""

TEXT_ROWS = 1024


@runtime_checkable
class Schema(Protocol):
    """Anything that says which arrays a replay buffer has, as the schemas of VersatIL do."""

    def get_zarr_array_specs(self) -> Mapping[str, Any]:
        """Return a spec for each key."""


@dataclass(frozen=True)
class ArraySpec:
    """The rows of one key: `shape` and `dtype` of a row, and how many of them make a chunk.

    `dtype` is a NumPy name, or `text`. `kind` is one of the kinds of leaves, or empty where nobody said.
    """

    shape: tuple[int, ...]
    dtype: str
    chunk_rows: int | None = None
    needs_compressor: bool = True
    kind: str = ""
    metadata: Mapping[str, JSON] = field(default_factory=dict)
    said: Mapping[str, JSON] = field(default_factory=dict)
    """What else the array's attributes say."""

    @property
    def picture(self) -> bool:
        """Whether rows are kept as WebP: uint8 `(H, W, 3)` or `(H, W, 4)`, unless their kind is another than image."""
        return is_picture(self.shape, self.dtype) and self.kind in ("", "image")

    @property
    def lossless(self) -> bool:
        """Whether a picture must come back bit for bit, whatever quality is asked for.

        Four channels may be a stack of frames: only where somebody says `image` are they RGBA.
        """
        stack = self.shape[-1:] == (4,) and self.kind != "image"
        return stack or any(self.metadata.get(word) for word in ("lossless", "label"))

    @property
    def nbytes(self) -> int:
        """Bytes of one row; of a text a guess."""
        return self.leaf("").nbytes if self.dtype != TEXT else 64

    @property
    def rows_a_chunk(self) -> int:
        """The rows of a chunk: what was asked for, else a power of two of them."""
        if self.picture:
            return 1
        if self.chunk_rows is not None:
            return self.chunk_rows
        if self.dtype == TEXT:
            return TEXT_ROWS
        return min(CHUNK_ROWS, 1 << max(CHUNK_BYTES // self.nbytes, 1).bit_length() - 1)

    def chunks_a_shard(self, frames_per_shard: int | None) -> int:
        """Return the chunks of a shard file."""
        if self.picture and frames_per_shard is not None:
            return frames_per_shard
        chunk = self.nbytes * self.rows_a_chunk
        small = ARRAY_SHARD_BYTES if self.rows_a_chunk == 1 else NUMBER_SHARD_BYTES
        return min(max((PICTURE_SHARD_BYTES if self.picture else small) // chunk, 16), 1024)

    def leaf(self, key: str) -> Leaf:
        """Return the spec as a leaf."""
        return Leaf(key, self.shape, self.dtype, self.kind or "other", metadata=self.metadata)


def is_uint8_image_spec(spec: Mapping[str, Any] | ArraySpec) -> bool:
    """Return whether rows of a spec are kept as WebP, one a chunk: uint8 pictures with 3 or 4 channels.

    >>> is_uint8_image_spec({"shape": (0, 96, 96, 3), "dtype": "uint8"})
    True
    >>> is_uint8_image_spec({"shape": (0, 4, 84, 84), "dtype": "uint8"})
    False
    """
    return parse_spec("", spec).picture


def parse_specs(specs: Mapping[str, Any] | Schema) -> dict[str, ArraySpec]:
    """Return the specs of a mapping, or of any object with `get_zarr_array_specs()`.

    Raises:
        LayoutError: a spec says something that no array can be, or one key lies below another.
    """
    said = specs.get_zarr_array_specs() if isinstance(specs, Schema) else specs
    if not isinstance(said, Mapping) or not said:
        raise LayoutError(f"specs are a mapping from keys to shape and dtype, and not empty, got {said!r:.80}")
    parsed = {key: parse_spec(key, spec) for key, spec in said.items()}
    check_keys(list(parsed))
    return parsed


def check_keys(keys: Sequence[str]) -> None:
    """Raise `LayoutError` for keys that are no names of arrays, or of which one lies below another."""
    for key in keys:
        parts = key.split("/") if isinstance(key, str) else []
        if not parts or any(part in ("", ".", "..") or part.startswith(("__", ".")) for part in parts):
            raise LayoutError(
                f"{key!r} is no key: parts divided by '/', none empty, '.', '..' or begun with '.' or '__'"
            )
        for i in range(1, len(parts)):
            if "/".join(parts[:i]) in keys:
                raise LayoutError(f"{key!r} lies below the key {'/'.join(parts[:i])!r}: rename one of them")
    if len(set(keys)) != len(keys):
        raise LayoutError(f"two keys have one name: {sorted(key for key in keys if keys.count(key) > 1)[0]!r}")


KNOWN = frozenset({"shape", "chunks", "dtype", "needs_compressor", "kind", "metadata"})


def parse_spec(key: str, spec: Mapping[str, Any] | ArraySpec) -> ArraySpec:
    """Return one spec; the shape may begin with 0 or None, which stands for the rows."""
    if isinstance(spec, ArraySpec):
        return spec
    if not isinstance(spec, Mapping) or not {"shape", "dtype"} <= spec.keys() <= KNOWN:
        raise LayoutError(f"{key!r}: a spec has shape and dtype, and may have {sorted(KNOWN)}, got {spec!r:.120}")
    shape = _sides(key, "shape", spec["shape"])
    row = shape[1:] if shape and shape[0] in (0, None) else shape
    if not all(isinstance(side, int | np.integer) and side > 0 for side in row):
        raise LayoutError(f"{key!r}: rows of shape {row}: every side is a whole number above 0")
    return ArraySpec(
        tuple(map(int, row)),
        _dtype(key, spec["dtype"]),
        _chunk_rows(key, spec.get("chunks"), row),
        bool(spec.get("needs_compressor", True)),
        str(spec.get("kind", "")),
        dict(spec.get("metadata", {})),
    )


def _sides(key: str, name: str, said: Any) -> tuple[Any, ...]:
    if isinstance(said, str | bytes) or not isinstance(said, Iterable):
        raise LayoutError(f"{key!r}: {name} {said!r}: some whole numbers, such as (0, 96, 96, 3)")
    return tuple(said)


def _dtype(key: str, said: Any) -> str:
    if said in (str, "str", TEXT):
        return TEXT
    try:
        name = str(np.dtype(said).name)
    except TypeError as error:
        raise LayoutError(f"{key!r}: {said!r} is no dtype: {error}") from error
    if np.dtype(said).kind in "UT":
        return TEXT
    if name not in NUMBERS:
        raise LayoutError(f"{key!r}: {said!r} is no dtype of numbers, nor str")
    return name


def _chunk_rows(key: str, chunks: Any, row: Sequence[int]) -> int | None:
    if chunks is None:
        return None
    first, *inner = (chunks,) if isinstance(chunks, int | np.integer) else _sides(key, "chunks", chunks) or (0,)
    if not isinstance(first, int | np.integer) or first < 1 or (inner and tuple(inner) != tuple(row)):
        raise LayoutError(
            f"{key!r}: chunks {chunks!r}: whole rows of {tuple(row)}, at least one; only rows are divided"
        )
    return int(first)
