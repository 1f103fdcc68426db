"""Encoders in hardware: how each is called and told. Whether one works here, only a probe can say.

They write the same files as the encoders in software, which any machine decodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

AUTO = "auto"
"""The first that works here, or none."""


class Hardware(NamedTuple):
    """An encoder: its name, how frames of it lie in memory, and its options for a quality and a preset."""

    encoder: str
    pixels: str
    options: Callable[[int, str | None], Mapping[str, str]]


def _nvenc(quality: int, preset: str | None) -> dict[str, str]:
    live = {"tune": "ull", "zerolatency": "1", "delay": "0", "forced-idr": "1"}
    return {"preset": preset or "p4", "rc": "vbr", "cq": str(quality), **live}


def _qsv(quality: int, preset: str | None) -> dict[str, str]:
    return {"preset": preset or "veryfast", "global_quality": str(quality), "async_depth": "1"}


def _amf(quality: int, preset: str | None) -> dict[str, str]:
    quantizer = str(min(quality, 51))
    return {"usage": "ultralowlatency", "rc": "cqp", "qp_i": quantizer, "qp_p": quantizer}


def _videotoolbox(quality: int, preset: str | None) -> dict[str, str]:
    return {"realtime": "1", "flags": "+qscale", "global_quality": str(118 * max(1, 100 - 2 * quality))}


HARDWARE: Mapping[tuple[str, str], Hardware] = {
    (codec, kind): Hardware(f"{codec}_{kind}", pixels, options)
    for kind, pixels, options, codecs in (
        ("nvenc", "yuv420p", _nvenc, ("h264", "hevc", "av1")),
        ("videotoolbox", "yuv420p", _videotoolbox, ("h264", "hevc")),
        ("qsv", "nv12", _qsv, ("h264", "hevc", "av1")),
        ("amf", "yuv420p", _amf, ("h264", "hevc", "av1")),
    )
    for codec in codecs
}
"""By codec and kind, in the order in which they are tried."""


def kinds_of(codec: str) -> list[str]:
    """Return the kinds of hardware that may code a codec."""
    return [kind for known, kind in HARDWARE if known == codec]
