"""Pictures: one a chunk, WebP above all, in whatever form of file the bytes are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import imagecodecs
import numpy as np

from recorder.columns import Array
from recorder.errors import DamagedError, FormatError
from recorder.leaf import JSON
from recorder.replay_buffer.packing import ChunkCodec, Step
from recorder.webp import decode_webp, encode_webp

WEBP, VERSATIL = "imagecodecs_webp", "versatil_webp"
WEBPS = (WEBP, VERSATIL)
"""The names of codecs whose chunks are pictures in WebP: that of imagecodecs, and that of VersatIL."""


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
