"""HDF5: table leaves in one file a shard, nested in groups as the space nests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np

from recorder.columns import Array
from recorder.errors import DamagedError, LayoutError
from recorder.leaf import Leaf
from recorder.storages.base import register_storage
from recorder.storages.table_reading import Columns, TableFile
from recorder.storages.table_storage import TableStorage

CHUNK_BYTES = 256 << 10
"""Size of a compressed chunk: large enough to compress, small enough to read for one row."""

VALUE = "%value"
"""Where a dataset is whose own name is that of a group: a key of `info` may be a number first and a dict later."""

TEXT_DTYPE = h5py.string_dtype()
BYTES_DTYPE = h5py.vlen_dtype(np.uint8)

_numbers = count()


@register_storage
@dataclass(frozen=True)
class HDF5Storage(TableStorage):
    """Table leaves in one HDF5 file a shard, nested in groups as the space nests.

    `compression` is None, `"lzf"` (read by h5py only) or `"gzip"` with `level` 0 to 9; compressed columns are
    shuffled first.
    """

    id = "hdf5"
    suffix = ".h5"
    compression: Literal["lzf", "gzip"] | None = None
    level: int = 1

    def check(self, leaves: Sequence[Leaf]) -> None:
        if self.compression not in (None, "lzf", "gzip"):
            raise LayoutError(f"HDF5Storage has no compression {self.compression!r}, only None, 'lzf' and 'gzip'")
        if not isinstance(self.level, int) or not 0 <= self.level <= 9:
            raise LayoutError(f"HDF5Storage(level={self.level!r}): a level is a number from 0 to 9")

    def encode(self, columns: Columns) -> bytes:
        return hdf5_image(columns, self.compression, self.level)

    def open(self, path: Path) -> TableFile:
        return HDF5File(path)


def hdf5_image(columns: Columns, compression: str | None = None, level: int = 1) -> bytes:
    """Return the bytes of an HDF5 file that holds each column as a dataset at its name.

    The image is made in memory: HDF5 never sees the disk, so a full disk is an ordinary error (h5py ends in a
    segmentation fault there), and no file is ever half written.
    """
    groups = {name[:end] for name in columns for end, letter in enumerate(name) if letter == "/"}
    # HDF5 takes two images of one name, which two threads make at once, for one file.
    name = f"image-{next(_numbers)}"
    with h5py.File(name, "w", driver="core", backing_store=False, libver=("v110", "v110")) as file:
        for path, values in columns.items():
            array = text_column(values) if values.dtype == object else values
            place = f"{path}/{VALUE}" if path in groups else path
            file.create_dataset(place, data=array, dtype=array.dtype, **filters(array, compression, level))
        file.flush()
        image: bytes = file.id.get_file_image()
        return image


def filters(array: Array, compression: str | None, level: int) -> dict[str, Any]:
    """Return how a dataset is chunked and compressed; text and small columns are not."""
    if compression is None or array.dtype == object or array.nbytes < 4096 or array.ndim == 0:
        return {}
    rows = max(1, min(len(array), CHUNK_BYTES * len(array) // array.nbytes))
    options = {"compression_opts": level} if compression == "gzip" else {}
    return {"chunks": (rows, *array.shape[1:]), "compression": compression, "shuffle": True, **options}


def text_column(values: Array) -> Array:
    """Return strings as a column of text; HDF5 cuts text at a NUL, so such a column holds bytes."""
    if any("\0" in text or (not text.isprintable() and _has_surrogate(text)) for text in values):
        array = np.empty(len(values), BYTES_DTYPE)
        array[:] = [np.frombuffer(text.encode("utf-8", "surrogatepass"), np.uint8) for text in values]
        return array
    return values.astype(TEXT_DTYPE)


def _has_surrogate(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)


class HDF5File:
    """An HDF5 file of a recording, opened for reading: what it names outside of itself is refused.

    Datasets of it open it again after it was closed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = self._open()

    def _open(self) -> h5py.File:
        try:
            return h5py.File(self.path, "r", locking=False)
        except OSError as error:
            raise DamagedError(f"{self.path} cannot be opened as HDF5: {error}") from error

    def __contains__(self, name: object) -> bool:
        return self._find(str(name)) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self._file)

    def __getitem__(self, name: str) -> Dataset:
        return Dataset(self, name)

    def dataset(self, name: str) -> h5py.Dataset:
        """Return the dataset of a name."""
        if not self._file:
            self._file = self._open()
        place = self._find(name)
        if place is None:
            raise KeyError(name)
        if place.external or place.is_virtual:
            raise DamagedError(f"{self.path}: {name!r} keeps its rows in other files, which is refused")
        return place

    def _find(self, name: str) -> h5py.Dataset | None:
        """Return the dataset of a name, if there is one; no link is followed."""
        place = self._file
        for part in name.split("/"):
            place = self._below(place, part, name)
        place = self._below(place, VALUE, name) if isinstance(place, h5py.Group) else place
        return place if isinstance(place, h5py.Dataset) else None

    def _below(self, place: Any, part: str, name: str) -> Any:
        link = place.get(part, getlink=True) if isinstance(place, h5py.Group) else None
        if link is None:
            return None
        if not isinstance(link, h5py.HardLink):
            raise DamagedError(f"{self.path}: {name!r} is a link to somewhere else, which is refused")
        return place[part]

    def close(self) -> None:
        self._file.close()


class Dataset:
    """A dataset that slices like an array; text comes as strings."""

    def __init__(self, file: HDF5File, name: str) -> None:
        self._file = file
        self._name = name
        self._dataset = file.dataset(name)
        self.size = self._dataset.size
        self.dtype = self._dataset.dtype
        self._length = int(self._dataset.shape[0])
        self._text = h5py.check_string_dtype(self.dtype) is not None
        self._bytes = h5py.check_vlen_dtype(self.dtype) is not None

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Array:
        if not self._dataset:
            self._dataset = self._file.dataset(self._name)
        try:
            rows = self._dataset[index]
        except OSError as error:
            raise DamagedError(f"{self._file.path}: {self._name!r} cannot be read: {error}") from error
        if self._text:
            return _objects([item.decode("utf-8", "surrogatepass") for item in rows])
        if self._bytes:
            return _objects([item.tobytes().decode("utf-8", "surrogatepass") for item in rows])
        return np.asarray(rows)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.asarray(self[:], dtype=dtype)


def _objects(items: list[str]) -> Array:
    array = np.empty(len(items), object)
    array[:] = items
    return array
