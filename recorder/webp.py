"""WebP: one RGB or RGBA picture as bytes and back, exact unless a quality is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import imagecodecs
import numpy as np
from numpy.typing import NDArray

from recorder.errors import DamagedError, FormatError, LayoutError

SIDE = 16_382
"""The longest side that imagecodecs codes; the header of a picture has room for 16,383."""

HEADER = 30
"""Bytes from which the size of any WebP picture can be told; no picture is shorter."""

_ANIMATED = 0x02


def is_picture(shape: Sequence[int], dtype: str) -> bool:
    """Return whether rows are what WebP keeps: uint8 `(H, W, 3)` or `(H, W, 4)`, sides of 1 to 16,382.

    Grey pictures are not: WebP gives them back as RGB. Nor is uint16: the encoder cuts it to 8 bits in
    silence.
    """
    if len(shape) != 3 or dtype != "uint8":
        return False
    height, width, channels = shape
    return 0 < height <= SIDE and 0 < width <= SIDE and channels in (3, 4)


def encode_webp(frame: NDArray[Any], quality: float | None = None, method: int = 0) -> bytes:
    """Return a picture, uint8 `(H, W, 3)` or `(H, W, 4)`, as WebP: lossless, or of a quality from 0 to 100.

    `method` is the effort, 0 to 6. Lossless at 0 is 5 to 15 times faster than at 4, and 15 to 32 % larger.

    Raises:
        LayoutError: the picture is of another shape or dtype.
    """
    if not is_picture(frame.shape, frame.dtype.name):
        raise LayoutError(
            f"WebP keeps uint8 pictures (H, W, 3) or (H, W, 4) with sides up to {SIDE}, got {frame.dtype} {frame.shape}"
        )
    # A level alone leaves imagecodecs lossless, ten times slower and far larger than meant: always say which.
    coding = {"lossless": True} if quality is None else {"lossless": False, "level": quality}
    return bytes(imagecodecs.webp_encode(np.ascontiguousarray(frame), method=method, **coding))


def decode_webp(data: Any, shape: Sequence[int], out: NDArray[Any] | None = None) -> NDArray[np.uint8]:
    """Return the picture of `shape`, (H, W, 3) or (H, W, 4), in `data`; write it into `out` if that is given.

    Raises:
        FormatError: the data say that they are of another size, which is seen before memory is taken.
        DamagedError: they cannot be decoded.
    """
    if (size := webp_size(data)) != tuple(shape[:2]):
        raise FormatError(f"a WebP picture says that it is {size}, expected {tuple(shape[:2])}")
    try:
        # An opaque picture has no alpha in its bytes: whether to give it one must be said.
        picture: NDArray[np.uint8] = imagecodecs.webp_decode(data, 0, hasalpha=shape[2] == 4, out=out)
    except imagecodecs.WebpError as error:
        raise DamagedError(f"a WebP picture cannot be decoded: {error}") from error
    return picture


def webp_size(data: Any) -> tuple[int, int]:
    """Return height and width of a still picture as its header has them.

    The three forms of the header are those of https://developers.google.com/speed/webp/docs/riff_container.

    Raises:
        FormatError: the data are no WebP picture, or an animation.
    """
    head = bytes(data[:HEADER])
    match head[:4] + head[8:16] if len(head) == HEADER else b"":
        case b"RIFFWEBPVP8 " if head[23:26] == b"\x9d\x01\x2a":
            return _number(head[28:30]) & 0x3FFF, _number(head[26:28]) & 0x3FFF
        case b"RIFFWEBPVP8L" if head[20] == 0x2F:
            bits = _number(head[21:25])
            return (bits >> 14 & 0x3FFF) + 1, (bits & 0x3FFF) + 1
        case b"RIFFWEBPVP8X" if not head[20] & _ANIMATED:
            return _number(head[27:30]) + 1, _number(head[24:27]) + 1
    raise FormatError(f"no WebP picture: it begins with {head[:16]!r}")


def _number(data: bytes) -> int:
    return int.from_bytes(data, "little")
