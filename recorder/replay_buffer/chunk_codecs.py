"""Chunk codecs: rows as the bytes of one chunk and back, by the names that zarr's metadata give their codecs.

What is frequent is done here, without the cost of zarr-python: pictures, numbers, text, and the usual compressors.
Everything else is coded by zarr itself, one chunk at a time.
"""

from __future__ import annotations

import json
import threading
import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from lzma import LZMAError
from typing import Any

import imagecodecs
import numcodecs
import numpy as np
import zarr
from zarr.core.buffer import default_buffer_prototype
from zarr.storage import MemoryStore

from recorder.columns import Array
from recorder.errors import DamagedError, FormatError, RecorderError
from recorder.leaf import JSON
from recorder.storages.zarr_array import checked, crc_bytes
from recorder.webp import decode_webp, encode_webp

WEBP, VERSATIL = "imagecodecs_webp", "versatil_webp"
WEBPS = (WEBP, VERSATIL)
"""The names of codecs whose chunks are pictures in WebP: that of imagecodecs, and that of VersatIL."""

COMPRESSORS = frozenset({"blosc", "bz2", "gzip", "lz4", "lzma", "zlib", "zstd"})
"""The compressors of numcodecs that are made of what a file says; others could run code, as `pickle` does."""

_SHUFFLES = {"noshuffle": 0, "shuffle": 1, "bitshuffle": 2}


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


class PictureCodec(ChunkCodec):
    """One picture a chunk, in any form of file that tells itself by its first bytes."""

    def __init__(self, name: str, options: Mapping[str, JSON], steps: Sequence[Step]) -> None:
        self.name = name
        self.options = options
        self._steps = steps

    @property
    def quality(self) -> float | None:
        """The quality of WebP pictures, None for lossless ones."""
        level = self.options.get("level")
        if self.name == VERSATIL:
            return 99.0 if level is None else float(level)
        lossless = self.options.get("lossless", True)
        return None if lossless or lossless is None or level is None else float(level)

    @property
    def writable(self) -> bool:
        return self.name in WEBPS

    def encode(self, rows: Array) -> bytes:
        assert self.writable, self.name
        data = encode_webp(rows[0], self.quality, int(self.options.get("method") or 0))
        return self.seal(data)

    def seal(self, data: bytes) -> bytes:
        """Return a picture that is coded already as a chunk."""
        for step in self._steps:
            data = step.encode(data)
        return data

    def open(self, data: Any) -> Any:
        """Return the coded picture in a chunk."""
        for step in reversed(self._steps):
            data = step.decode(data, None)
        return data

    def decode(self, data: Any, out: Array) -> None:
        data = self.open(data)
        head = bytes(data[:12])
        if head[:4] == b"RIFF" and head[8:] == b"WEBP":
            decode_webp(data, out.shape[-3:], out.reshape(out.shape[-3:]))
            return
        for magic, decode in PICTURES:
            if head.startswith(magic):
                out[...] = self._decoded(decode, data).reshape(out.shape)
                return
        raise FormatError(f"a chunk of {self.name!r} is no picture that is known here: it begins with {head!r}")

    def _decoded(self, decode: str, data: Any) -> Array:
        try:
            return np.asarray(getattr(imagecodecs, f"{decode}_decode")(bytes(data)))
        except (RuntimeError, ValueError) as error:
            raise DamagedError(f"a {decode} picture cannot be decoded: {error}") from error


PICTURES = (
    (b"\xff\xd8\xff", "jpeg"),
    (b"\x89PNG", "png"),
    (b"\xff\x0a", "jpegxl"),
    (b"\x00\x00\x00\x0cJXL ", "jpegxl"),
    (b"\xff\x4f\xff\x51", "jpeg2k"),
    (b"\x00\x00\x00\x0cjP  ", "jpeg2k"),
)
"""How files of pictures begin, and which decoder of imagecodecs takes them."""


class NumberCodec(ChunkCodec):
    """Numbers as they lie in memory, in rows of one shape, then compressors."""

    def __init__(self, stored: np.dtype[Any], steps: Sequence[Step]) -> None:
        self._stored = stored
        self._steps = steps

    def encode(self, rows: Array) -> bytes:
        data = np.ascontiguousarray(rows, self._stored).tobytes()
        for step in self._steps:
            data = step.encode(data)
        return data

    def decode(self, data: Any, out: Array) -> None:
        for step in reversed(self._steps):
            data = step.decode(data, out.nbytes if step is self._steps[0] else None)
        found = np.frombuffer(data, np.uint8)
        if found.nbytes != out.nbytes:
            raise FormatError(f"a chunk holds {found.nbytes} bytes, expected {out.nbytes}")
        out[...] = found.view(self._stored).reshape(out.shape)


class TextCodec(ChunkCodec):
    """Texts of any length."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = steps
        self._codec = numcodecs.VLenUTF8()

    def encode(self, rows: Array) -> bytes:
        data = bytes(self._codec.encode(rows.reshape(-1)))
        for step in self._steps:
            data = step.encode(data)
        return data

    def decode(self, data: Any, out: Array) -> None:
        for step in reversed(self._steps):
            data = step.decode(data, None)
        try:
            texts = self._codec.decode(bytes(data))
        except (ValueError, UnicodeDecodeError) as error:
            raise DamagedError(f"a chunk of text cannot be decoded: {error}") from error
        if texts.size != out.size:
            raise FormatError(f"a chunk holds {texts.size} texts, expected {out.size}")
        out[...] = texts.reshape(out.shape)


@dataclass(frozen=True)
class OtherCodec(ChunkCodec):
    """Any chunk, coded by zarr: an array of one chunk in memory. Slow, and right for whatever zarr knows."""

    names: Mapping[str, bytes]
    chunk: str

    def _array(self, files: dict[str, Any]) -> zarr.Array[Any]:
        buffer = default_buffer_prototype().buffer
        files.update({name: buffer.from_bytes(data) for name, data in self.names.items()})
        with _opening:
            try:
                array = zarr.open_array(MemoryStore(files), mode="r+", config={"write_empty_chunks": True})
            except (KeyError, ValueError, TypeError) as error:
                raise FormatError(f"zarr cannot open an array of these codecs: {error}") from error
        return array

    def encode(self, rows: Array) -> bytes:
        files: dict[str, Any] = {}
        self._array(files)[...] = rows
        return bytes(files[self.chunk].to_bytes())

    def decode(self, data: bytes, out: Array) -> None:
        files: dict[str, Any] = {}
        array = self._array(files)
        files[self.chunk] = default_buffer_prototype().buffer.from_bytes(bytes(data))
        try:
            out[...] = array[...]
        except (RuntimeError, ValueError, OSError) as error:
            raise DamagedError(f"a chunk cannot be decoded by zarr: {error}") from error


_opening = threading.Lock()


def json_bytes(document: JSON) -> bytes:
    """Return a metadata document as zarr writes it."""
    return json.dumps(document, indent=2, ensure_ascii=False).encode()


def codec_v3(codecs: Sequence[JSON], dtype: np.dtype[Any], picture: bool) -> ChunkCodec | None:
    """Return what codes a chunk of an array of format 3; None where only zarr can."""
    names = [_named(codec) for codec in codecs]
    if not names:
        return None
    (first, options), rest = names[0], names[1:]
    itemsize = 1 if dtype.kind == "O" else dtype.itemsize
    steps = [_step_v3(name, each, itemsize) for name, each in rest]
    if first == "vlen-utf8" and None not in steps:
        return TextCodec([step for step in steps if step is not None])
    if first == "bytes" and None not in steps and dtype.kind != "O":
        stored = dtype.newbyteorder(">" if options.get("endian") == "big" else "<")
        return NumberCodec(stored, [step for step in steps if step is not None])
    if picture and first != "bytes" and all(isinstance(step, Crc32c) for step in steps):
        return PictureCodec(first, options, [step for step in steps if step is not None])
    return None


def _named(codec: JSON) -> tuple[str, Mapping[str, JSON]]:
    if isinstance(codec, str):
        return codec, {}
    return codec["name"], codec.get("configuration") or {}


def _step_v3(name: str, options: Mapping[str, JSON], itemsize: int) -> Step | None:
    if name == "crc32c":
        return Crc32c()
    name = name.removeprefix("numcodecs.")
    if name not in COMPRESSORS:
        return None
    said = dict(options)
    if name == "blosc":
        itemsize = said.pop("typesize", itemsize)
        said["shuffle"] = _SHUFFLES.get(said.get("shuffle", "noshuffle"), said.get("shuffle"))
    return _compressor({"id": name, **said}, itemsize)


def _compressor(config: Mapping[str, JSON], itemsize: int) -> Step | None:
    try:
        return Compressor(numcodecs.get_codec(dict(config)), itemsize)
    except (TypeError, ValueError):
        return None


def codec_v2(document: Mapping[str, JSON], dtype: np.dtype[Any], picture: bool) -> ChunkCodec | None:
    """Return what codes a chunk of an array of format 2; None where only zarr can."""
    compressor, filters = document.get("compressor"), document.get("filters") or []
    steps: list[Step] = []
    if compressor is not None and compressor["id"] in COMPRESSORS:
        step = _compressor(compressor, 1 if dtype.kind == "O" else dtype.itemsize)
        if step is None:
            return None
        steps = [step]
    elif compressor is not None:
        options = {key: value for key, value in compressor.items() if key != "id"}
        return PictureCodec(compressor["id"], options, []) if picture and not filters else None
    if [each["id"] for each in filters] == ["vlen-utf8"]:
        return TextCodec(steps)
    if filters or dtype.kind == "O" or document.get("order") != "C":
        return None
    return NumberCodec(np.dtype(document["dtype"]), steps)
