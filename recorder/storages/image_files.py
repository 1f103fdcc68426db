"""ImageFileStorage: pictures as PNG, WebP or JPEG files, one for each row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from recorder.errors import DamagedError, FormatError, LayoutError
from recorder.leaf import Leaf
from recorder.metadata.annotation import did_you_mean
from recorder.storages.base import Counts, Reader, Storage, Writer, register_storage
from recorder.storages.image_files_coding import TAKES, PictureCoding, takes
from recorder.storages.image_files_reading import ImageReader
from recorder.storages.image_files_writing import ImageWriter

QUALITY = 90
"""The quality of JPEG where none is given."""


@register_storage
@dataclass(frozen=True)
class ImageFileStorage(Storage):
    """Pictures as files, one a row: `<leaf>/<episode>/<row>.png`.

    PNG is exact and takes 16 bits too; WebP is exact unless a `quality` from 0 to 100 is given, which JPEG always has
    (90). Grey pictures are coded as such; WebP, which has no grey, gives them three equal channels. `effort` is that
    of PNG, 0 to 9, or of WebP, 0 to 6. Pictures are coded and decoded on up to `threads` threads, by default one a
    core.
    """

    id = "image_files"
    format: Literal["png", "webp", "jpeg"] = "png"
    quality: int | None = None
    effort: int = 1
    threads: int | None = None

    def check(self, leaves: Sequence[Leaf]) -> None:
        for leaf in leaves:
            self._check_leaf(leaf)
            self._probe(leaf)

    def __post_init__(self) -> None:
        """Raise `LayoutError` for options that mean nothing."""
        if not isinstance(self.format, str) or self.format not in TAKES:
            raise self._refused("format", f"one of {', '.join(TAKES)} is needed{did_you_mean(str(self.format), TAKES)}")
        if self.format == "png" and self.quality is not None:
            raise self._refused("quality", "PNG is always exact, and has none")
        if self.quality is not None and not _within(self.quality, 0, 100):
            raise self._refused("quality", "a number from 0 to 100, or None, is needed")
        if not _within(self.effort, 0, most := 6 if self.format == "webp" else 9):
            raise self._refused("effort", f"a number from 0 to {most} is needed")
        if self.threads is not None and not _within(self.threads, 1, 1024):
            raise self._refused("threads", "a number from 1 on, or None, is needed")

    def _refused(self, option: str, why: str) -> LayoutError:
        return LayoutError(f"ImageFileStorage({option}={getattr(self, option)!r}): {why}")

    def _check_leaf(self, leaf: Leaf) -> None:
        said = f"{leaf.path!r}: {leaf.dtype} {leaf.shape if leaf.fixed else '(rows of no one shape)'}"
        instead = "HDF5Storage() or ZarrStorage()" if leaf.fixed and leaf.nbytes else "HDF5Storage()"
        if not takes(self.format, leaf):
            raise LayoutError(
                f"{said} is no picture that {self.format} takes, which is {TAKES[self.format]}; keep it with {instead}"
            )
        if not self.exact(leaf) and leaf.kind != "image":
            raise LayoutError(
                f"{said} is of kind {leaf.kind!r}, which {self.format} of a quality would change; keep it with "
                f"ImageFileStorage() or {instead}, or let its metadata say that its kind is 'image'"
            )

    def _probe(self, leaf: Leaf) -> None:
        """Code and decode a row: a codec may be listed and not work."""
        row = np.zeros(leaf.shape, leaf.numpy_dtype)
        row.reshape(-1).view(np.uint8)[:] = np.resize(np.arange(256), leaf.nbytes)
        coding = self.coding(leaf)
        try:
            found = coding.decode(coding.encode(row))
        except (DamagedError, FormatError, ImportError, RuntimeError) as error:
            raise LayoutError(f"{leaf.path!r}: imagecodecs here cannot code it by {self}: {error}") from error
        if self.exact(leaf) and not np.array_equal(found, row):
            raise LayoutError(f"{leaf.path!r}: {self} does not give back what it was given")

    def exact(self, leaf: Leaf) -> bool:
        return self.format == "png" or (self.format == "webp" and self.quality is None)

    def coding(self, leaf: Leaf) -> PictureCoding:
        """Return how rows of a leaf become files."""
        quality = QUALITY if self.format == "jpeg" and self.quality is None else self.quality
        return PictureCoding(leaf, self.format, quality, self.effort)

    def writer(self, directory: Path, leaves: Sequence[Leaf]) -> Writer:
        return ImageWriter(directory, [self.coding(leaf) for leaf in leaves], self.threads)

    def recover(self, directory: Path, leaves: Sequence[Leaf]) -> Writer:
        writer = ImageWriter(directory, [self.coding(leaf) for leaf in leaves], self.threads)
        writer.recover()
        return writer

    def reader(self, directory: Path, leaves: Sequence[Leaf], counts: Counts) -> Reader:
        return ImageReader(directory, {leaf: self.coding(leaf) for leaf in leaves}, counts, self.threads)


def _within(value: object, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most
