"""Chunk codecs: rows as the bytes of one chunk and back, by the names that zarr's metadata give their codecs.

What is frequent is done here, without the cost of zarr-python: pictures, numbers, text, and the usual compressors.
Everything else is coded by zarr itself, one chunk at a time.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numcodecs
import numpy as np
import zarr
from zarr.core.buffer import default_buffer_prototype
from zarr.storage import MemoryStore

from recorder.columns import Array
from recorder.errors import DamagedError, FormatError
from recorder.leaf import JSON
from recorder.replay_buffer.packing import ChunkCodec, Compressor, Crc32c, Step
from recorder.replay_buffer.pictures import PictureCodec

COMPRESSORS = frozenset({"blosc", "bz2", "gzip", "lz4", "lzma", "zlib", "zstd"})
"""The compressors of numcodecs that are made of what a file says; others could run code, as `pickle` does."""

_SHUFFLES = {"noshuffle": 0, "shuffle": 1, "bitshuffle": 2}


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
