"""One picture as the bytes of a PNG, WebP or JPEG file, and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import imagecodecs
import numpy as np

from recorder.columns import Array
from recorder.errors import DamagedError, FormatError
from recorder.leaf import Leaf
from recorder.webp import SIDE, decode_webp, encode_webp

LONGEST = {"png": 1_000_000, "webp": SIDE, "jpeg": 65_500}
"""The longest side that each format takes; libpng's own limit is set lower than the format's."""

TAKES = {
    "png": "uint8 or uint16 (H, W), (H, W, 1), (H, W, 3) or (H, W, 4)",
    "webp": "uint8 (H, W), (H, W, 1), (H, W, 3) or (H, W, 4)",
    "jpeg": "uint8 (H, W), (H, W, 1) or (H, W, 3)",
}
"""What each format takes, in words."""

CHANNELS = {"png": (1, 3, 4), "webp": (1, 3, 4), "jpeg": (1, 3)}
DTYPES = {"png": ("uint8", "uint16"), "webp": ("uint8",), "jpeg": ("uint8",)}

BLUE_FIRST = {3: [2, 1, 0], 4: [2, 1, 0, 3]}
"""Channels of a BGR picture in the order in which files have them; the same order leads back."""


def takes(format: str, leaf: Leaf) -> bool:
    """Return whether rows of a leaf are pictures that a format keeps as they are, or nearly."""
    plain = leaf.fixed and len(leaf.shape) in (2, 3) and leaf.metadata.get("layout", "HWC") in ("HWC", "HW")
    sides = all(0 < side <= LONGEST[format] for side in leaf.shape[:2])
    return plain and sides and leaf.dtype in DTYPES[format] and (*leaf.shape, 1)[2] in CHANNELS[format]


@dataclass(frozen=True)
class PictureCoding:
    """How rows of one leaf become files: `format`, and a `quality` or none, which is lossless."""

    leaf: Leaf
    format: str
    quality: int | None
    effort: int

    @property
    def suffix(self) -> str:
        """How the names of the files end."""
        return {"jpeg": ".jpg"}.get(self.format, f".{self.format}")

    def encode(self, row: Array) -> bytes:
        """Return a picture as a file has it; BGR is turned round, so that other programs show its colours."""
        picture = np.ascontiguousarray(self._turned(row))
        match self.format:
            case "png":
                return bytes(imagecodecs.png_encode(picture, level=self.effort))
            case "jpeg":
                return bytes(imagecodecs.jpeg8_encode(picture, level=self.quality))
        if self._grey:
            picture = np.repeat(picture.reshape(*picture.shape[:2], 1), 3, axis=2)
        return encode_webp(picture, self.quality, min(self.effort, 6))

    def decode(self, data: bytes) -> Array:
        """Return the picture in a file, as its leaf has it.

        Raises:
            FormatError: it is of another size or dtype, which is seen before memory is taken.
            DamagedError: it is cut, or cannot be decoded.
        """
        height, width = self.leaf.shape[:2]
        shape = (height, width) if self._grey else self.leaf.shape
        if not ended(self.format, data[:8], data[-8:], len(data)):
            raise DamagedError(f"a {self.format} file of {len(data)} bytes is cut, or none")
        if self.format == "webp":
            picture = decode_webp(data, (height, width, 3) if self._grey else shape)
            return picture[..., 0].reshape(self.leaf.shape) if self._grey else self._turned(picture)
        out = np.empty(shape, self.leaf.numpy_dtype)
        decode: Any = imagecodecs.png_decode if self.format == "png" else imagecodecs.jpeg8_decode
        try:
            decode(data, out=out)
        except ValueError as error:
            raise FormatError(f"a {self.format} file does not hold {self.leaf.dtype} {shape}: {error}") from error
        except RuntimeError as error:
            raise DamagedError(f"a {self.format} file cannot be decoded: {error}") from error
        return self._turned(out.reshape(self.leaf.shape))

    @property
    def _grey(self) -> bool:
        return self.leaf.shape[2:] in ((), (1,))

    def _turned(self, picture: Array) -> Array:
        blue_first = str(self.leaf.metadata.get("format", "")).startswith("bgr")
        return picture[..., BLUE_FIRST[picture.shape[2]]] if blue_first and not self._grey else picture


def ended(format: str, head: bytes, tail: bytes, size: int) -> bool:
    """Return whether a file of `size` bytes goes on to its own end: JPEG decoders fill what was cut with grey."""
    match format:
        case "png":
            return head[:8] == b"\x89PNG\r\n\x1a\n" and tail[-8:-4] == b"IEND"
        case "jpeg":
            return head[:2] == b"\xff\xd8" and tail[-2:] == b"\xff\xd9"
    return head[:4] == b"RIFF" and int.from_bytes(head[4:8], "little") + 8 == size
