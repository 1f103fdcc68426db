"""Packing: what every chunk codec is, and the steps after it, from bytes to bytes: compressors and a checksum."""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from lzma import LZMAError
from typing import Any

import imagecodecs
import numpy as np

from recorder.columns import Array
from recorder.errors import DamagedError, FormatError, RecorderError
from recorder.storages.zarr_array import checked, crc_bytes


class ChunkCodec(ABC):
    """How the rows of one chunk become bytes. Used by many threads at once."""

    @property
    def writable(self) -> bool:
        """Whether rows can be encoded here, too."""
        return True

    @abstractmethod
    def encode(self, rows: Array) -> bytes:
        """Return a whole chunk `(chunk_rows, *shape)` as bytes."""

    @abstractmethod
    def decode(self, data: bytes, out: Array) -> None:
        """Write the rows of a chunk into `out`.

        Raises:
            DamagedError: the bytes are not as they were written.
            FormatError: they hold something else than such rows.
        """


class Step(ABC):
    """A part of a chunk codec: bytes to bytes."""

    @abstractmethod
    def encode(self, data: bytes) -> bytes:
        """Return bytes coded."""

    @abstractmethod
    def decode(self, data: bytes, size: int | None) -> Any:
        """Return bytes decoded; no more than `size` of them where that is known."""


class Crc32c(Step):
    """A CRC-32C at the end of a chunk."""

    def encode(self, data: bytes) -> bytes:
        return data + crc_bytes(data)

    def decode(self, data: bytes, size: int | None) -> Any:
        return checked(data)


class Compressor(Step):
    """A compressor of numcodecs."""

    def __init__(self, codec: Any, itemsize: int) -> None:
        self._codec = codec
        self._item = np.dtype(f"u{itemsize}") if itemsize in (1, 2, 4, 8) else np.dtype("u1")

    def encode(self, data: bytes) -> bytes:
        # Blosc sorts the bytes of items, so it must be told how long they are.
        whole = len(data) % self._item.itemsize == 0
        return bytes(self._codec.encode(np.frombuffer(data, self._item if whole else np.uint8)))

    def decode(self, data: bytes, size: int | None) -> Any:
        try:
            return self._decode(np.frombuffer(data, np.uint8), size)
        except (RuntimeError, ValueError, EOFError, OSError, LZMAError, zlib.error) as error:  # each has its own
            if isinstance(error, RecorderError):
                raise
            raise DamagedError(f"a chunk cannot be unpacked: {error}") from error

    def _decode(self, data: Any, size: int | None) -> Any:
        name = self._codec.codec_id
        if size is not None and name in _SIZE_AT:
            # Given more room than it fills, it would leave the rest of it as it was.
            stated = int.from_bytes(data[_SIZE_AT[name]].tobytes(), "little")
            if stated != size:
                raise FormatError(f"a chunk says that it holds {stated} bytes, expected {size}")
            return self._codec.decode(data, out=np.empty(size, np.uint8))
        if size is not None and name == "zstd":
            # With `out` no more is ever unpacked than fits into it, whatever the data say of their size.
            room: Any = np.empty(size, np.uint8)
            return imagecodecs.zstd_decode(data, out=room)
        return self._codec.decode(data)


_SIZE_AT = {"blosc": slice(4, 8), "lz4": slice(0, 4)}
"""Where chunks say how long they are unpacked."""
