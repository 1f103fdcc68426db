"""NpzStorage: table leaves in one `.npz` file a shard, which plain NumPy opens."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.lib import format as npy

from recorder.columns import Array, split
from recorder.errors import DamagedError, LayoutError
from recorder.files import missing
from recorder.leaf import text_array
from recorder.storages.base import register_storage
from recorder.storages.table_reading import Columns, TableFile
from recorder.storages.table_storage import TableStorage

TEXT_LENGTHS = "%text/"
"""Before the path of texts that are kept as UTF-8: the bytes of each."""

WIDEST = 4
"""Texts of one width may take so many times the bytes of their UTF-8; NumPy has four for each character."""

FREE_BYTES = 64 << 10
"""Up to this size nobody minds."""

MEMBER_BYTES = 4 << 30
"""A compressed column that claims more is refused before it is read."""

BROKEN = (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError)
"""What NumPy and zipfile raise over a file that is damaged."""


@register_storage
@dataclass(frozen=True)
class NpzStorage(TableStorage):
    """Table leaves in one `.npz` file a shard, each column under the path of its leaf, `compressed` or not.

    Not compressed, some rows of a large column are read without the others.
    """

    id = "npz"
    suffix = ".npz"
    compressed: bool = False

    def __post_init__(self) -> None:
        """Raise `LayoutError` for options that mean nothing."""
        if not isinstance(self.compressed, bool):
            raise LayoutError(f"NpzStorage(compressed={self.compressed!r}): True or False is needed")

    def encode(self, columns: Columns) -> bytes:
        return npz_bytes(columns, self.compressed)

    def open(self, path: Path) -> TableFile:
        return NpzFile(path)


def npz_bytes(columns: Columns, compressed: bool = False) -> bytes:
    """Return the bytes of an `.npz` file that holds each column under its name; nothing in it is pickled."""
    image = io.BytesIO()
    method = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
    with zipfile.ZipFile(image, "w", method, compresslevel=1 if compressed else None) as archive:
        for name, values in _arrays(columns):
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                npy.write_array(member, values, allow_pickle=False)
    return image.getvalue()


def _arrays(columns: Columns) -> Iterator[tuple[str, Array]]:
    """Yield columns with texts as arrays of one width, or as UTF-8 and the length of each."""
    for name, values in columns.items():
        if values.dtype != object:
            yield name, values
            continue
        coded = [text.encode("utf-8", "surrogatepass") for text in values]
        size, width = sum(map(len, coded)), max(map(len, values), default=0)
        # NumPy takes zeros at the end of a text for filling.
        if width * 4 * len(values) <= max(WIDEST * size, FREE_BYTES) and not any(t.endswith("\0") for t in values):
            yield name, values.astype(f"U{max(width, 1)}")
        else:
            yield f"{TEXT_LENGTHS}{name}", np.fromiter(map(len, coded), np.int64, len(coded))
            yield name, np.frombuffer(b"".join(coded), np.uint8)


class Member(NamedTuple):
    """An array in an `.npz` file: its name there, what it is, and where its numbers begin in the member."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int


class NpzFile:
    """An `.npz` file, opened anew for each reading, or its `data` in memory. Nothing is unpickled."""

    def __init__(self, path: Path, data: bytes | None = None) -> None:
        self.path = path
        self._data = data
        with self.archive() as archive:
            self._names = {name.removesuffix(".npy"): name for name in archive.namelist() if name.endswith(".npy")}
        self._members: dict[str, Member] = {}

    def archive(self) -> zipfile.ZipFile:
        """Open the file."""
        try:
            return zipfile.ZipFile(self.path if self._data is None else io.BytesIO(self._data))
        except FileNotFoundError:
            raise missing(self.path) from None
        except BROKEN as error:
            raise DamagedError(f"{self.path} cannot be opened as .npz: {error}") from error

    def member(self, name: str) -> Member:
        """Return what the file says of an array."""
        if name not in self._members:
            try:
                with self.archive() as archive, archive.open(self._names[name]) as file:
                    self._members[name] = _member(file, archive.getinfo(self._names[name]))
            except BROKEN as error:
                raise DamagedError(f"{self.path}: {name!r} cannot be read: {error}") from error
        return self._members[name]

    def read(self, member: Member, start: int, stop: int) -> Array:
        """Return rows of an array."""
        row = member.dtype.itemsize * int(np.prod(member.shape[1:], dtype=np.int64))
        try:
            with self.archive() as archive, archive.open(member.name) as file:
                file.seek(member.offset + start * row)
                data = file.read((stop - start) * row)
        except BROKEN as error:
            raise DamagedError(f"{self.path}: {member.name!r} cannot be read: {error}") from error
        if len(data) != (stop - start) * row:
            raise DamagedError(f"{self.path}: {member.name!r} was cut")
        return np.frombuffer(bytearray(data), member.dtype).reshape(stop - start, *member.shape[1:])

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __getitem__(self, name: str) -> NpzColumn:
        lengths = f"{TEXT_LENGTHS}{name}"
        return NpzColumn(self, self.member(name), self.member(lengths) if lengths in self else None)

    def close(self) -> None:
        """Give up nothing: no file stays open."""


def _member(file: IO[bytes], info: zipfile.ZipInfo) -> Member:
    """Return what the head of an array says, which must be what the archive says."""
    version = npy.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"an array of the form {version}")
    head = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, fortran, dtype = head(file)
    offset = file.tell()
    if fortran or dtype.hasobject or not shape:
        raise ValueError(f"an array of {dtype} {shape}, which no recording holds")
    if info.file_size != offset + int(np.prod(shape, dtype=object)) * dtype.itemsize:
        raise ValueError(f"{info.file_size} bytes for an array of {dtype} {shape}")
    if info.compress_type != zipfile.ZIP_STORED and info.file_size > MEMBER_BYTES:
        raise ValueError(f"a compressed array of {info.file_size} bytes, more than {MEMBER_BYTES}")
    return Member(info.filename, shape, dtype, offset)


class NpzColumn:
    """One array of an `.npz` file, of which only the rows asked for are read; texts are read all at once."""

    def __init__(self, file: NpzFile, member: Member, lengths: Member | None) -> None:
        self._file = file
        self._member = member
        self._lengths = lengths
        self.size = int(np.prod(lengths.shape if lengths else member.shape, dtype=np.int64))
        self.dtype = np.dtype(object) if lengths or member.dtype.kind == "U" else member.dtype

    def __len__(self) -> int:
        return (self._lengths or self._member).shape[0]

    def __getitem__(self, index: slice) -> Array:
        start, stop, step = index.indices(len(self))
        if self._lengths is not None:
            return self._texts(self._lengths)[index]
        rows = self._file.read(self._member, start, max(start, stop))[::step]
        return rows.astype(object) if rows.dtype.kind == "U" else rows

    def _texts(self, lengths: Member) -> Array:
        sizes, data = (self._file.read(member, 0, member.shape[0]) for member in (lengths, self._member))
        if (sizes < 0).any() or sizes.sum() != len(data):
            raise DamagedError(f"{self._file.path}: {self._member.name!r} has {len(data)} bytes, not {sizes.sum()}")
        return text_array([part.tobytes().decode("utf-8", "surrogatepass") for part in split(data, sizes)])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.asarray(self[:], dtype=dtype)
