"""ZarrStorage: pictures as WebP, one chunk a frame; any arrays as zstd, one chunk for many rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from recorder.errors import LayoutError
from recorder.leaf import Leaf
from recorder.metadata.annotation import did_you_mean
from recorder.storages.base import Counts, Reader, Storage, Writer, register_storage
from recorder.storages.zarr_array import CHUNK_LIMIT, DTYPES, Codec, Grid, Webp, Zstd, array_json
from recorder.storages.zarr_reader import ZarrReader
from recorder.storages.zarr_writer import ZarrWriter
from recorder.webp import SIDE, is_picture


@register_storage
@dataclass(frozen=True)
class ZarrStorage(Storage):
    """Arrays of one shape, each leaf in one zarr array a shard, which zarr itself opens.

    `codec` is `"webp"`, `"zstd"`, or None: WebP where a leaf is an RGB or RGBA image, zstd elsewhere. WebP is
    lossless unless `quality`, 0 to 100, is given; `method`, 0 to 6, is its effort. `level`, 1 to 22, is that
    of zstd. `chunk_bytes` is how much of small rows goes into one zstd chunk; a shard file holds 16 to 1,024
    chunks, about `shard_bytes` of them before coding.
    """

    id = "zarr"
    codec: Literal["webp", "zstd"] | None = None
    quality: float | None = None
    method: int = 0
    level: int = 3
    chunk_bytes: int = 256 << 10
    shard_bytes: int = 64 << 20

    def check(self, leaves: Sequence[Leaf]) -> None:
        for leaf in leaves:
            self._check_leaf(leaf)
            self._probe(leaf)

    def __post_init__(self) -> None:
        """Raise `LayoutError` for options that mean nothing."""
        if self.codec not in (None, "webp", "zstd"):
            nearest = did_you_mean(str(self.codec), ("webp", "zstd"))
            raise LayoutError(
                f"ZarrStorage has no codec {self.codec!r}, only 'webp', 'zstd', or None for either{nearest}"
            )
        if self.codec == "zstd" and self.quality is not None:
            raise LayoutError(f"ZarrStorage(codec='zstd', quality={self.quality!r}): zstd is always exact")
        ranges = {
            "method": (0, 6),
            "level": (1, 22),
            "chunk_bytes": (1, CHUNK_LIMIT),
            "shard_bytes": (1, 1 << 32),
        }
        for name, (low, high) in ranges.items():
            if type(getattr(self, name)) is not int or not low <= getattr(self, name) <= high:
                raise LayoutError(f"ZarrStorage({name}={getattr(self, name)!r}): a number from {low} to {high}")
        if self.quality is not None and not (type(self.quality) in (int, float) and 0 <= self.quality <= 100):
            raise LayoutError(f"ZarrStorage(quality={self.quality!r}): a number from 0 to 100, or None for lossless")

    def _check_leaf(self, leaf: Leaf) -> None:
        said = f"{leaf.path!r} is {leaf.dtype} {leaf.shape}"
        if not leaf.fixed:
            raise LayoutError(
                f"{leaf.path!r} is {'ragged' if leaf.ragged else 'sparse' if leaf.sparse else leaf.dtype}: "
                f"ZarrStorage keeps arrays of one shape in every row; keep it with HDF5Storage()"
            )
        if leaf.dtype not in DTYPES or not leaf.nbytes:
            raise LayoutError(f"{said}, of which zarr makes no chunks; keep it with HDF5Storage()")
        if self.codec == "webp" and not is_picture(leaf.shape, leaf.dtype):
            raise LayoutError(
                f"{said}: WebP keeps uint8 pictures (H, W, 3) or (H, W, 4) with sides up to {SIDE}; "
                f"keep it with ZarrStorage(codec='zstd')"
            )
        if self.codec == "webp" and self.quality is not None and self.exact(leaf):
            raise LayoutError(
                f"{leaf.path!r} is of kind {leaf.kind!r}, or its metadata say 'lossless': WebP of quality "
                f"{self.quality} would change it; keep it with ZarrStorage()"
            )

    def _probe(self, leaf: Leaf) -> None:
        """Code and decode a row: a codec may be listed and not work."""
        grid = self.grid(leaf)
        array_json(grid, 0)
        row, found = grid.empty(1), grid.empty(1)
        row.reshape(-1).view(np.uint8)[:] = np.resize(np.arange(2 if leaf.dtype == "bool" else 256), row.nbytes)
        try:
            grid.decode(grid.encode(row), found)
        except ImportError as error:
            raise LayoutError(f"{leaf.path!r}: imagecodecs here lacks a codec of {self}: {error}") from error
        if self.exact(leaf) and found.tobytes() != row.tobytes():
            raise LayoutError(f"{leaf.path!r}: {self} does not give back what it was given")

    def owns(self, leaf: Leaf, name: str) -> bool:
        return name.startswith(f"{leaf.path}.zarr/")

    def exact(self, leaf: Leaf) -> bool:
        codec = self.coding(leaf)
        return isinstance(codec, Zstd) or codec.quality is None

    def coding(self, leaf: Leaf) -> Codec:
        """Return how a leaf is coded; lossy only an image whose metadata do not say `lossless`."""
        image = leaf.kind == "image"
        if self.codec == "webp" or (self.codec is None and image and is_picture(leaf.shape, leaf.dtype)):
            lossy = image and not leaf.metadata.get("lossless")
            return Webp(self.quality if lossy else None, self.method)
        return Zstd(self.level)

    def grid(self, leaf: Leaf) -> Grid:
        """Return how the rows of a leaf are laid out."""
        return Grid.of(leaf, self.coding(leaf), self.chunk_bytes, self.shard_bytes)

    def writer(self, directory: Path, leaves: Sequence[Leaf]) -> Writer:
        return ZarrWriter(directory, leaves, self.grid)

    def recover(self, directory: Path, leaves: Sequence[Leaf]) -> Writer:
        writer = ZarrWriter(directory, leaves, self.grid)
        writer.recover()
        return writer

    def reader(self, directory: Path, leaves: Sequence[Leaf], counts: Counts) -> Reader:
        return ZarrReader(directory, leaves, counts)
