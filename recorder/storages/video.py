"""VideoStorage: pictures as video, one file for each leaf and episode, coded while they come."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import TypeGuard

import av

from recorder.errors import LayoutError
from recorder.leaf import Leaf
from recorder.metadata.annotation import did_you_mean
from recorder.storages.base import Counts, Reader, Storage, Writer, register_storage
from recorder.storages.video_codecs import CODECS, Coding, pixels_of
from recorder.storages.video_hardware import AUTO, kinds_of
from recorder.storages.video_probe import probe, works
from recorder.storages.video_reading import VideoReader
from recorder.storages.video_writing import VideoWriter

FPS = 30.0
"""Frames a second where neither the storage nor the metadata of the leaf name them."""

NICKNAMES = {"h265": "hevc", "x265": "hevc", "x264": "h264", "avc": "h264", "aom": "av1", "lossless": "ffv1"}
"""What else some codecs are called."""


@register_storage
@dataclass(frozen=True)
class VideoStorage(Storage):
    """Pictures as video: `h264`, `hevc`, `av1` and `vp9` with loss, `h264rgb` and `ffv1` without.

    The lossy ones take pictures of kind `image`: uint8, RGB, BGR or grey. `h264rgb` takes uint8 `(H, W, 3)` of any
    kind, `ffv1` uint8 of 1, 3 or 4 channels and uint16 of one. `crf` is the codec's own scale of quality, lower is
    better; `preset` its own word for how hard it tries. Frame i is row i, and a key frame comes at least every
    `keyframe_every` frames; FFV1 has no others. `fps` is for players, and goes before `metadata["fps"]`. More
    `threads` code large pictures faster, and make them a little larger. `hardware` codes `h264`, `hevc` or `av1` by
    `nvenc`, `videotoolbox`, `qsv` or `amf`; with `auto` by the first of them that really does so here, else in
    software.
    """

    id = "video"
    codec: str = "h264"
    crf: int | None = None
    preset: str | None = None
    keyframe_every: int = 10
    fps: float | None = None
    threads: int = 1
    hardware: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.codec, str) or self.codec not in CODECS:
            nearest = f", did you mean {NICKNAMES[self.codec]!r}?" if str(self.codec) in NICKNAMES else ""
            nearest = nearest or did_you_mean(str(self.codec), CODECS)
            raise self._refused("codec", f"one of {', '.join(CODECS)} is needed{nearest}")
        codec = CODECS[self.codec]
        for name in ("keyframe_every", "threads"):
            if not _is_count(getattr(self, name), 1):
                raise self._refused(name, "a number from 1 on is needed")
        if self.fps is not None and not _is_rate(self.fps):
            raise self._refused("fps", "a positive number is needed")
        if self.crf is not None and codec.crf is None:
            raise self._refused("crf", f"{self.codec} is lossless and has none")
        if self.crf is not None and not (_is_count(self.crf, 0) and self.crf <= codec.worst):
            raise self._refused("crf", f"a number from 0 to {codec.worst} is needed")
        if self.preset is not None and (codec.preset is None or not isinstance(self.preset, str)):
            raise self._refused("preset", f"{'a name' if codec.preset else 'none'} is what {self.codec} takes")
        if self.hardware not in (None, *(known := [AUTO, *kinds_of(self.codec)])):
            raise self._refused("hardware", f"for {self.codec} None or one of {', '.join(known)} is needed")

    def _refused(self, option: str, why: str) -> LayoutError:
        return LayoutError(f"VideoStorage({option}={getattr(self, option)!r}): {why}")

    def check(self, leaves: Sequence[Leaf]) -> None:
        for leaf in leaves:
            coding = self.coding(leaf)
            try:
                probe(coding)
            except (av.FFmpegError, OSError, ValueError) as error:
                raise LayoutError(
                    f"{_described(leaf)} cannot be coded as {self.codec} by PyAV {av.__version__} here: "
                    f"{error}; choose another codec{', hardware' if self.hardware else ''} or preset, or keep it with "
                    f"{_instead(leaf, self.codec)}"
                ) from error

    def exact(self, leaf: Leaf) -> bool:
        return not CODECS[self.codec].lossy

    def delay(self, leaf: Leaf) -> int:
        """Return how many of the newest frames a kill takes: those in the encoder, and one in the muxer."""
        return probe(self.coding(leaf)) + 1

    def coding(self, leaf: Leaf) -> Coding:
        """Return how rows of `leaf` are coded.

        Raises:
            LayoutError: they are no pictures, or not such as this codec keeps as promised.
        """
        pixels = pixels_of(leaf)
        codec = CODECS[self.codec]
        if pixels not in codec.pixels:
            raise LayoutError(
                f"{_described(leaf)} is no picture that {self.codec} takes, which is {_taken(self.codec)}; "
                f"keep it with {_instead(leaf)}"
            )
        if codec.lossy and leaf.kind != "image":
            raise LayoutError(
                f"{_described(leaf)} is of kind {leaf.kind!r}, which {self.codec} would change; keep it with "
                f"{_instead(leaf)}, or let its metadata say that its kind is 'image'"
            )
        options = (self.codec, self.crf, self.preset, self.keyframe_every, self.threads)
        height, width = leaf.shape[:2]
        coding = Coding(*options, frame_rate(leaf, self.fps), pixels, height, width)
        if self.hardware == AUTO:
            return next((at for kind in kinds_of(self.codec) if works(at := replace(coding, hardware=kind))), coding)
        return replace(coding, hardware=self.hardware)

    def _codings(self, leaves: Sequence[Leaf]) -> dict[Leaf, Coding]:
        return {leaf: self.coding(leaf) for leaf in leaves}

    def writer(self, directory: Path, leaves: Sequence[Leaf]) -> Writer:
        return VideoWriter(directory, self._codings(leaves))

    def recover(self, directory: Path, leaves: Sequence[Leaf]) -> Writer:
        writer = VideoWriter(directory, self._codings(leaves))
        writer.recover()
        return writer

    def reader(self, directory: Path, leaves: Sequence[Leaf], counts: Counts) -> Reader:
        return VideoReader(directory, leaves, counts, {leaf.path: self.coding(leaf) for leaf in leaves})


def _is_count(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_rate(value: object) -> TypeGuard[float]:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value) and 0 < value <= 1e6  # type: ignore[arg-type, operator]


def frame_rate(leaf: Leaf, fps: float | None) -> Fraction:
    """Return the frames a second of a leaf, as a fraction of whole numbers that a timescale can hold."""
    rate = fps if fps is not None else leaf.metadata.get("fps", FPS)
    if not _is_rate(rate):
        raise LayoutError(f"{leaf.path!r} has fps {rate!r} in its metadata; a positive number is needed")
    return Fraction(rate).limit_denominator(1001) or Fraction(1, 1001)


def _described(leaf: Leaf) -> str:
    return f"{leaf.path!r}: {leaf.dtype} {leaf.shape if leaf.fixed else '(rows of no one shape)'}"


def _taken(codec: str) -> str:
    """Return in words what a codec takes."""
    match codec:
        case "ffv1":
            return "uint8 (H, W), (H, W, 1), (H, W, 3) or (H, W, 4), or uint16 (H, W) or (H, W, 1)"
        case "h264rgb":
            return "uint8 (H, W, 3)"
        case _:
            return "uint8 (H, W, 3), (H, W) or (H, W, 1)"


def _instead(leaf: Leaf, but: str = "") -> str:
    """Return the storages that keep `leaf` bit for bit, as one writes them."""
    pixels = pixels_of(leaf)
    codecs = [name for name, codec in CODECS.items() if not codec.lossy and pixels in codec.pixels and name != but]
    videos = [f"VideoStorage(codec={name!r})" for name in codecs]
    *others, last = ["HDF5Storage()", *["ZarrStorage()"][: leaf.fixed and leaf.nbytes > 0], *videos]
    return f"{', '.join(others)} or {last}" if others else last
