"""The zarr codec `imagecodecs_webp`, for arrays of pictures with one picture a chunk."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, fields
from typing import Any, Self, cast

import imagecodecs
import numpy as np
from zarr.abc.codec import ArrayBytesCodec
from zarr.core.array_spec import ArraySpec
from zarr.core.buffer import Buffer, NDBuffer
from zarr.registry import get_codec_class, register_codec

from recorder.errors import FormatError, LayoutError
from recorder.webp import decode_webp, is_picture

NAME = "imagecodecs_webp"
"""The name in `zarr.json`: that of the codec which newer imagecodecs bring, for the bytes are the same."""


@dataclass(frozen=True, kw_only=True)
class WebpCodec(ArrayBytesCodec):
    """Pictures, uint8 `(H, W, 3)` or `(H, W, 4)`, as WebP, one a chunk; `lossless` unless it is False.

    Name, configuration and bytes are those of `imagecodecs.zarr.Webp`, of which Python 3.11 has none.
    `level`, 0 to 100, is the quality of lossy pictures or the effort of lossless ones, and needs `lossless`
    with it. `method` is 0 (fast) to 6. The other options are read from files and change nothing here.
    """

    is_fixed_size = False

    level: float | None = None
    lossless: bool | None = None
    method: int | None = None
    hasalpha: bool | None = None
    index: int | None = None
    numthreads: int | None = None
    delay: int | None = None

    def __post_init__(self) -> None:
        if self.level is not None and self.lossless is None:
            raise LayoutError(
                f"WebpCodec(level={self.level}) would be lossless: say lossless=False for pictures of that "
                f"quality, or lossless=True for that effort"
            )

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Return the codec that a `zarr.json` describes; there a level alone means a lossless one."""
        configuration = dict(data.get("configuration") or {})
        if unknown := configuration.keys() - {field.name for field in fields(cls)}:
            raise FormatError(f"{NAME} has no option {min(unknown)!r}")
        if "level" in configuration:
            configuration.setdefault("lossless", True)
        return cls(**configuration)

    def to_dict(self) -> dict[str, Any]:
        """Return what `zarr.json` says of this codec."""
        configuration = {field.name: getattr(self, field.name) for field in fields(self)}
        said = {key: option for key, option in configuration.items() if option is not None}
        return {"name": NAME, "configuration": said}

    def evolve_from_array_spec(self, array_spec: ArraySpec) -> Self:
        """Return this codec, or raise `LayoutError` for an array that does not hold pictures."""
        # This may be the shape of the whole array: that of a chunk is checked where one is coded.
        _check(array_spec, tuple(min(side, 1) for side in array_spec.shape[-3:-1]) + array_spec.shape[-1:])
        return self

    def compute_encoded_size(self, input_byte_length: int, chunk_spec: ArraySpec) -> int:
        """Raise: the size of a picture is known only once it is coded."""
        raise NotImplementedError

    def _decode_sync(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> NDBuffer:
        picture = decode_webp(chunk_bytes.as_numpy_array(), _picture_shape(chunk_spec))
        return chunk_spec.prototype.nd_buffer.from_numpy_array(picture.reshape(chunk_spec.shape))

    def _encode_sync(self, chunk_array: NDBuffer, chunk_spec: ArraySpec) -> Buffer:
        picture = np.ascontiguousarray(chunk_array.as_numpy_array().reshape(_picture_shape(chunk_spec)))
        data = imagecodecs.webp_encode(picture, self.level, lossless=self.lossless, method=self.method)
        return chunk_spec.prototype.buffer.from_bytes(data)

    async def _decode_single(self, chunk_data: Buffer, chunk_spec: ArraySpec) -> NDBuffer:
        return await asyncio.to_thread(self._decode_sync, chunk_data, chunk_spec)

    async def _encode_single(self, chunk_data: NDBuffer, chunk_spec: ArraySpec) -> Buffer:
        return await asyncio.to_thread(self._encode_sync, chunk_data, chunk_spec)


def _picture_shape(chunk: ArraySpec) -> tuple[int, ...]:
    """Return the shape of the one picture in a chunk."""
    _check(chunk, chunk.shape[-3:] if math.prod(chunk.shape[:-3]) == 1 else chunk.shape)
    return chunk.shape[-3:]


def _check(spec: ArraySpec, picture: tuple[int, ...]) -> None:
    dtype = spec.dtype.to_native_dtype().name
    if not is_picture(picture, dtype):
        raise LayoutError(
            f"{NAME} keeps one picture a chunk, uint8 (1, H, W, 3) or (1, H, W, 4), got {dtype} {spec.shape}"
        )


def _known_class() -> type[ArrayBytesCodec]:
    """Return the codec of imagecodecs where it has one, else ours."""
    try:
        from imagecodecs.zarr import Webp
    except ImportError:
        return WebpCodec
    return cast("type[ArrayBytesCodec]", Webp)


Webp = _known_class()
"""What the entry point `zarr.codecs` names.

zarr warns when two classes have one name. With this one there is never a second: the entry points of
`imagecodecs-zarr` and `imagecodecs.zarr.register_codecs()` bring the same class.
"""


def register() -> None:
    """Make zarr know the codec, unless it knows one of that name."""
    try:
        get_codec_class(NAME)
    except (KeyError, ValueError):  # zarr 3.1 has a KeyError for an unknown codec
        register_codec(NAME, Webp)
