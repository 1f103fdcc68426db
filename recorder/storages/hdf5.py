"""HDF5: table leaves in one file a shard, nested in groups as the space nests."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np

from recorder.columns import Array
from recorder.errors import DamagedError, FormatError, LayoutError, RecorderError
from recorder.files import missing, plain_size
from recorder.limits import limits
from recorder.metadata.annotation import did_you_mean
from recorder.storages.base import register_storage
from recorder.storages.hdf5_files import in_use
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

    def __post_init__(self) -> None:
        """Raise `LayoutError` for options that mean nothing."""
        if self.compression not in (None, "lzf", "gzip"):
            nearest = did_you_mean(str(self.compression), ("lzf", "gzip"))
            raise LayoutError(
                f"HDF5Storage has no compression {self.compression!r}, only None, 'lzf' and 'gzip'{nearest}"
            )
        if type(self.level) is not int or not 0 <= self.level <= 9:
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


BROKEN = (OSError, RuntimeError, KeyError, ValueError, TypeError, OverflowError, NotImplementedError)
"""What h5py raises over a file that is damaged, or that a stranger made."""

FILTERS = {h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_LZF}
"""What a column may have been coded with: others may be plug-ins, which are code."""

TEXT_BYTES = 16
"""What a row of text takes in a column: how long it is, and where in the file."""

BLOCK_BYTES = 128 << 20
"""Texts are read in blocks that are no larger than this even if each of them were all of its file."""


class HDF5File:
    """An HDF5 file of a recording, opened for reading: what it names outside of itself is refused.

    Datasets of it open it again after it was closed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with in_use(self):
            self._file = self._open()

    def _open(self) -> h5py.File:
        try:
            self.size = plain_size(self.path)
        except FileNotFoundError:
            raise missing(self.path) from None
        with self.guard("it"):
            return h5py.File(self.path, "r", locking=False)

    @contextmanager
    def guard(self, name: str) -> Iterator[None]:
        """Let what h5py raises be an error that names the file."""
        try:
            yield
        except RecorderError:
            raise
        except BROKEN as error:
            raise DamagedError(f"{self.path}: {name} cannot be read as HDF5: {error}") from error

    def __contains__(self, name: object) -> bool:
        with in_use(self):
            return self._find(str(name)) is not None

    def __iter__(self) -> Iterator[str]:
        with in_use(self):
            return iter(list(self._opened()))

    def __getitem__(self, name: str) -> Dataset:
        return Dataset(self, name)

    def dataset(self, name: str) -> h5py.Dataset:
        """Return the dataset of a name, after it has been found to hold its rows, in no more memory than they need."""
        place = self._find(name)
        if place is None:
            raise KeyError(name)
        with self.guard(repr(name)):
            if fault := fault_of(place, self.size):
                raise DamagedError(f"{self.path}: {name!r} {fault}, which is refused")
        return place

    def _opened(self) -> h5py.File:
        if not self._file:
            self._file = self._open()
        return self._file

    def _find(self, name: str) -> h5py.Dataset | None:
        """Return the dataset of a name, if there is one; no link is followed."""
        place = self._opened()
        with self.guard(repr(name)):
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


def fault_of(dataset: h5py.Dataset, file_size: int) -> str:
    """Return what is wrong with where, or how, a dataset says that it keeps its rows; empty if nothing is."""
    properties = dataset.id.get_create_plist()
    if dataset.external or properties.get_layout() == h5py.h5d.VIRTUAL:
        return "keeps its rows in other files"
    if not dataset.shape:
        return "has no rows"
    row = TEXT_BYTES if dataset.dtype == object else dataset.id.get_type().get_size()
    size, stored = int(dataset.size) * row, dataset.id.get_storage_size()
    if stored > file_size:
        return f"says that {stored:,} of {file_size:,} bytes are its own"
    if properties.get_layout() != h5py.h5d.CHUNKED:
        return f"has {stored:,} bytes for {size:,}" if stored != size else ""
    return _fault_of_chunks(dataset, properties, size, stored)


def _fault_of_chunks(dataset: h5py.Dataset, properties: Any, size: int, stored: int) -> str:
    """Return what is wrong with chunks; one that is not there would be read as zeros."""
    used = {properties.get_filter(i)[0] for i in range(properties.get_nfilters())}
    if not used <= FILTERS:
        return f"is coded with the filters {sorted(used - FILTERS)}"
    chunks = properties.get_chunk()
    chunk = math.prod(chunks) * size // max(int(dataset.size), 1)
    if chunk > max(limits().chunk_bytes, size // max(len(dataset), 1)):
        return f"has chunks of {chunk:,} bytes"
    expected = math.prod(-(-side // step) for side, step in zip(dataset.shape, chunks, strict=True))
    if (found := dataset.id.get_num_chunks()) != expected:
        return f"has {found} chunks of {expected}"
    return f"would become {size:,} bytes of {stored:,}" if size > stored * limits().expansion + chunk else ""


class Dataset:
    """A dataset that slices like an array; text comes as strings."""

    def __init__(self, file: HDF5File, name: str) -> None:
        self._file = file
        self._name = name
        with in_use(file):
            self._dataset = file.dataset(name)
            self._describe()

    def _describe(self) -> None:
        with self._file.guard(repr(self._name)):
            self.size = self._dataset.size
            self.dtype = self._dataset.dtype
            self._length = int(self._dataset.shape[0])
            self._text = h5py.check_string_dtype(self.dtype) is not None
            self._bytes = h5py.check_vlen_dtype(self.dtype) is not None

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Array:
        with in_use(self._file):
            if not self._dataset:
                self._dataset = self._file.dataset(self._name)
            return self._read(index)

    def _read(self, index: Any) -> Array:
        with self._file.guard(repr(self._name)):
            if self.dtype == object and isinstance(index, slice):
                return self._texts(*index.indices(self._length))
            return self._decoded(self._dataset[index])

    def _texts(self, start: int, stop: int, step: int) -> Array:
        """Return texts. Many rows may point at one text of the file: together they may not be longer than it."""
        block = max(1, BLOCK_BYTES // max(self._file.size, 1)) * step
        parts, size = [_objects([])], 0
        for first in range(start, stop, block):
            rows = self._dataset[first : min(first + block, stop) : step]
            size += sum(map(len, rows))
            if size > self._file.size:
                raise FormatError(f"{self._file.path}: {self._name!r} has texts that are longer than the file")
            parts.append(self._decoded(rows))
        return np.concatenate(parts)

    def _decoded(self, rows: Any) -> Array:
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
