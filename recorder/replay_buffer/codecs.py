"""Codecs: which ones a buffer's arrays are made with, in the words of zarr format 3 and of format 2."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numcodecs
import numpy as np
from numcodecs.abc import Codec as Numcodec
from zarr.abc.codec import ArrayBytesCodec, Codec
from zarr.codecs import BloscCodec, Crc32cCodec, ZstdCodec

from recorder.errors import LayoutError
from recorder.replay_buffer.specs import ArraySpec
from recorder.webp import decode_webp, encode_webp, webp_size
from recorder.webp_codec import Webp, register


@dataclass(frozen=True)
class WebP:
    """Pictures as WebP, one a chunk: lossless, or of a `quality` from 0 to 100; `method`, 0 to 6, is the effort."""

    quality: float | None = None
    method: int = 0

    def __post_init__(self) -> None:
        if self.quality is not None and not _is_quality(self.quality):
            raise LayoutError(f"WebP(quality={self.quality!r}): a number from 0 to 100, or None for lossless")
        if isinstance(self.method, bool) or self.method not in range(7):
            raise LayoutError(f"WebP(method={self.method!r}): a whole number from 0 to 6")


def _is_quality(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool) and bool(0 <= value <= 100)


class WebpNumcodec(Numcodec):  # type: ignore[misc]
    """WebP for arrays of format 2, by the id and the options that imagecodecs gives it.

    Only what says something is written: of more options older versions of imagecodecs cannot open the array.
    """

    codec_id = "imagecodecs_webp"

    def __init__(
        self,
        level: float | None = None,
        lossless: bool | None = None,
        method: int | None = None,
        hasalpha: bool | None = None,
        index: int | None = None,
        numthreads: int | None = None,
        squeeze: Any = None,
        delay: int | None = None,
    ) -> None:
        self.level = level
        self.lossless = lossless
        self.method = method
        self.hasalpha = hasalpha

    def encode(self, picture: Any) -> bytes:
        """Return a chunk with one picture as WebP."""
        picture = np.asarray(picture)
        quality = None if self.lossless is None or self.lossless else self.level
        return encode_webp(picture.reshape(picture.shape[-3:]), quality, self.method or 0)

    def decode(self, data: Any, out: Any = None) -> Any:
        """Return the picture of a chunk."""
        data = np.frombuffer(data, np.uint8)
        picture = decode_webp(data, (*webp_size(data), 4 if self.hasalpha else 3))
        if out is None:
            return picture
        out.reshape(picture.shape)[...] = picture
        return out

    def get_config(self) -> dict[str, Any]:
        """Return what `.zarray` says of this codec."""
        options = {name: getattr(self, name) for name in ("level", "lossless", "method", "hasalpha")}
        return {"id": self.codec_id, **{name: option for name, option in options.items() if option is not None}}


def register_codecs() -> None:
    """Make zarr know WebP in both formats, unless it does."""
    register()
    if WebpNumcodec.codec_id not in {*numcodecs.registry.codec_registry, *numcodecs.registry.entries}:
        numcodecs.register_codec(WebpNumcodec)


NUMERIC: dict[int, dict[str, Callable[[], Any]]] = {
    3: {"lz4": lambda: BloscCodec(cname="lz4", clevel=5, shuffle="noshuffle"), "zstd": lambda: ZstdCodec(level=3)},
    2: {"lz4": lambda: numcodecs.Blosc("lz4", 5, numcodecs.Blosc.NOSHUFFLE), "zstd": lambda: numcodecs.Zstd(3)},
}
"""The compressors of numbers by name and zarr format; lz4 is what diffusion_policy and VersatIL use."""


def coding(spec: ArraySpec, image_codec: Any, numeric: Any, zarr_format: int) -> dict[str, Any]:
    """Return the codecs of an array as `create_array` of zarr takes them.

    `image_codec` is a `WebP`, a codec of zarr (format 3) or numcodecs (format 2), or None for no other than numbers
    have; `numeric` is "lz4", "zstd", such a codec, or None.

    Raises:
        LayoutError: a codec is none of that format.
    """
    register_codecs()
    if spec.picture and image_codec is not None:
        return _picture(spec, image_codec, zarr_format)
    return _numbers(spec, numeric, zarr_format)


def _picture(spec: ArraySpec, codec: Any, zarr_format: int) -> dict[str, Any]:
    if isinstance(codec, WebP):
        lossless = codec.quality is None or spec.lossless
        said: dict[str, Any] = {"lossless": lossless, "method": codec.method}
        said |= {} if lossless else {"level": float(codec.quality or 0.0)}
        said |= {"hasalpha": True} if spec.shape[-1] == 4 else {}
        if zarr_format == 2:
            return {"compressors": WebpNumcodec(**said)}
        return {"serializer": Webp(**said), "compressors": [Crc32cCodec()]}
    _check_format(codec, zarr_format)
    if isinstance(codec, ArrayBytesCodec):
        return {"serializer": codec, "compressors": None}
    return {"compressors": codec}


def _numbers(spec: ArraySpec, numeric: Any, zarr_format: int) -> dict[str, Any]:
    if not spec.needs_compressor:
        numeric = None
    elif isinstance(numeric, str):
        if numeric not in NUMERIC[zarr_format]:
            raise LayoutError(
                f"no compressor {numeric!r}, only {sorted(NUMERIC[zarr_format])}, None, or a codec itself"
            )
        numeric = NUMERIC[zarr_format]["zstd" if spec.dtype == "text" else numeric]()
    elif numeric is not None:
        _check_format(numeric, zarr_format)
        return {"compressors": numeric}
    if zarr_format == 2:
        return {"compressors": numeric}
    return {"compressors": [*([] if numeric is None else [numeric]), Crc32cCodec()]}


def _check_format(codec: Any, zarr_format: int) -> None:
    if isinstance(codec, list | tuple) and codec:
        for each in codec:
            _check_format(each, zarr_format)
        return
    old = isinstance(codec, Numcodec)
    if not old and not isinstance(codec, Codec):
        raise LayoutError(f"{codec!r:.80} is no codec; what may be given are WebP() for pictures, and codecs of zarr")
    if old != (zarr_format == 2):
        name = type(codec).__name__
        raise LayoutError(
            f"{name} is a codec of {'numcodecs, for zarr_format=2' if old else 'zarr 3, for zarr_format=3'}, "
            f"and the buffer is of format {zarr_format}"
        )
