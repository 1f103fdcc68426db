"""Codecs: what each of them codes, with which options, and the encoder that fills one video file."""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import av
import numpy as np
from av.video.reformatter import VideoReformatter

from recorder.columns import Array
from recorder.leaf import Leaf
from recorder.storages.video_hardware import HARDWARE, Hardware
from recorder.threads import ordinary_threads

MP4 = {"movflags": "hybrid_fragmented+frag_every_frame", "flush_packets": "1"}
"""A frame reaches the kernel when the next one comes, and a closed file is an ordinary MP4. This costs 122
bytes a frame; `frag_keyframe` costs 20, and a kill takes the whole last group of pictures."""

MUXER_BYTES = 1 << 20
"""The muxer's buffer: a frame up to this size reaches the file in one write, and a kill does not cut it."""

NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
"""How files are opened that must not be there yet."""

WIDTH_STEP = 32
"""Pixels that a conversion reads at once: beyond the end of narrower lines."""

BT709, LIMITED, FULL = 1, 1, 2
"""FFmpeg's numbers for what lossy codecs code: BT.709, luma from 16 to 235; grey pictures keep 0 to 255."""

AREA, ACCURATE = 0x20, 0x40000
"""FFmpeg's flags: average the colours of four pixels (0.4 dB over its default), and round (BGR: 3.6 dB)."""


class Codec(NamedTuple):
    """A codec: how it is called and told, and, in `pixels`, how what lies in memory is coded.

    A lossy one has a `crf` and the `worst` of them. `smallest` is the least side that it takes.
    """

    encoder: str
    decoder: str
    tag: bytes
    pixels: Mapping[str, str]
    options: Callable[[Coding], Mapping[str, str]]
    preset: str | None = None
    crf: int | None = None
    worst: int = 0
    smallest: int = 1

    @property
    def lossy(self) -> bool:
        """Whether pictures come back other than they were."""
        return self.crf is not None


@dataclass(frozen=True)
class Coding:
    """How rows of one leaf are coded; `pixels` is FFmpeg's name of how a row lies in memory."""

    codec: str
    crf: int | None
    preset: str | None
    keyframe_every: int
    threads: int
    rate: Fraction
    pixels: str
    height: int
    width: int
    hardware: str | None = None

    @property
    def padded(self) -> tuple[int, int]:
        """The height and width that are coded: even for lossy codecs, and no less than the codec takes."""
        codec = CODECS[self.codec]
        step = 2 if codec.lossy else 1
        height, width = (max(codec.smallest, -(-side // step) * step) for side in (self.height, self.width))
        return height, width

    @property
    def row_shape(self) -> tuple[int, ...]:
        """The shape of a row as FFmpeg sees it: `(H, W)` for grey, else `(H, W, C)`."""
        channels = {"gray": (), "gray16le": (), "rgb24": (3,), "bgr24": (3,)}.get(self.pixels, (4,))
        return (self.height, self.width, *channels)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of a row."""
        return np.dtype("uint16" if self.pixels == "gray16le" else "uint8")


def pixels_of(leaf: Leaf) -> str:
    """Return FFmpeg's name of how rows of `leaf` lie in memory; it is empty where FFmpeg has none."""
    plain = leaf.fixed and leaf.metadata.get("layout", "HWC") in ("HWC", "HW") and 0 not in leaf.shape
    blue_first = str(leaf.metadata.get("format", "")).startswith("bgr")
    match (*leaf.shape[2:], leaf.dtype) if plain and len(leaf.shape) in (2, 3) else ():
        case ("uint8",) | (1, "uint8"):
            return "gray"
        case ("uint16",) | (1, "uint16"):
            return "gray16le"
        case (3, "uint8"):
            return "bgr24" if blue_first else "rgb24"
        case (4, "uint8"):
            return "bgra" if blue_first else "rgba"
    return ""


def _quality(coding: Coding) -> dict[str, str]:
    codec = CODECS[coding.codec]
    crf = codec.crf if coding.crf is None else coding.crf
    return {"preset": coding.preset or str(codec.preset), "crf": str(crf)}


def _h264(coding: Coding) -> dict[str, str]:
    return {**_quality(coding), "tune": "zerolatency"}


def _h264rgb(coding: Coding) -> dict[str, str]:
    return {"preset": coding.preset or "ultrafast", "qp": "0", "tune": "zerolatency"}


def _hevc(coding: Coding) -> dict[str, str]:
    pools = "none" if coding.threads == 1 else str(coding.threads)
    params = f"log-level=none:open-gop=0:frame-threads=1:pools={pools}"
    return {**_quality(coding), "tune": "zerolatency", "x265-params": params}


def _av1(coding: Coding) -> dict[str, str]:
    return {**_quality(coding), "svtav1-params": f"lp={coding.threads}:pred-struct=1:rtc=1"}


def _vp9(coding: Coding) -> dict[str, str]:
    quality = _quality(coding)
    live = {"deadline": "realtime", "lag-in-frames": "0", "auto-alt-ref": "0"}
    return {"crf": quality["crf"], "cpu-used": quality["preset"], **live}


def _ffv1(coding: Coding) -> dict[str, str]:
    return {"level": "3", "slicecrc": "1"}


HALVED = {"rgb24": "yuv420p", "bgr24": "yuv420p", "gray": "yuv420p"}
RGB = {"rgb24": "rgb24", "bgr24": "bgr24"}
FOUR = {"rgb24": "bgr0", "bgr24": "bgr0", "rgba": "bgra", "bgra": "bgra"}
GREY = {"gray": "gray", "gray16le": "gray16le"}

CODECS: Mapping[str, Codec] = {
    "h264": Codec("libx264", "h264", b"avc1", HALVED, _h264, "ultrafast", 20, 51),
    "h264rgb": Codec("libx264rgb", "h264", b"avc1", RGB, _h264rgb, "ultrafast"),
    "hevc": Codec("libx265", "hevc", b"hev1", HALVED, _hevc, "ultrafast", 22, 51, 64),
    "av1": Codec("libsvtav1", "libdav1d", b"av01", HALVED, _av1, "10", 30, 63, 16),
    "vp9": Codec("libvpx-vp9", "vp9", b"vp09", HALVED, _vp9, "8", 30, 63),
    "ffv1": Codec("ffv1", "ffv1", b"FFV1", {**GREY, **FOUR}, _ffv1),
}
"""All options keep frame i at row i and hold nothing back. (Without `zerolatency` x264 held
11 frames, without `pred-struct=1` SVT-AV1 45.) Of pictures of 16 a side x265 coded one file in 10 to 50 with
frames that were off by 50, of 32 a side one in 300, of 40 and more none."""


def hardware_of(coding: Coding) -> Hardware | None:
    """Return the encoder in hardware that a coding asks for."""
    return None if coding.hardware is None else HARDWARE[coding.codec, coding.hardware]


def _told(coding: Coding) -> tuple[str, Fraction, dict[str, str]]:
    """Return an encoder's name, the frame rate and the options."""
    codec, hardware = CODECS[coding.codec], hardware_of(coding)
    if hardware is None:
        return codec.encoder, coding.rate, dict(codec.options(coding))
    quality = codec.crf if coding.crf is None else coding.crf
    assert quality is not None
    return hardware.encoder, coding.rate, dict(hardware.options(quality, coding.preset))


class GrowingFile:
    """The file below a muxer. What lies before its end changes only at `seal`, when the rest is on disk.

    So a power loss leaves what was there before the muxer finished the file, or the finished file.
    """

    def __init__(self, path: Path) -> None:
        self.size = 0
        self.closed = False
        self._descriptor = os.open(path, NEW_FILE, 0o666)
        self._close = weakref.finalize(self, os.close, self._descriptor)
        self._close.atexit = False  # at exit, what nobody closed is still to be written
        self._position = 0
        self._synced = 0
        self._patches: list[tuple[int, bytes]] = []

    def write(self, data: bytes) -> int:
        """Add bytes at the end, or note bytes that lie before it; after `abandon` do nothing."""
        if not self.closed:
            if self._position < self.size:
                self._patches.append((self._position, bytes(data)))
            else:
                self._append(memoryview(data))
            self._position += len(data)
        return len(data)

    def _append(self, data: memoryview) -> None:
        while data:
            written = os.write(self._descriptor, data)
            self.size += written
            data = data[written:]

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to where the muxer writes next."""
        self._position = offset + (0, self._position, self.size)[whence]
        return self._position

    def tell(self) -> int:
        """Return where the muxer writes next."""
        return self._position

    def sync(self) -> None:
        """Make all bytes so far survive a power loss."""
        if self.size > self._synced:
            os.fsync(self._descriptor)
            self._synced = self.size

    def seal(self) -> None:
        """Write what lies before the end, after all else is on disk, and close the file."""
        self.sync()
        for position, data in self._patches:
            os.lseek(self._descriptor, position, os.SEEK_SET)
            os.write(self._descriptor, data)
        self.abandon()

    def abandon(self) -> None:
        """Close the file as it is."""
        self.closed = True
        self._close()


_running: weakref.WeakSet[Encoder] = weakref.WeakSet()


def _keep_in_child() -> None:
    """Never free an inherited encoder: that waits for its threads, which a forked child does not have."""
    for encoder in list(_running):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(encoder))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_keep_in_child)


class Encoder:
    """One video file that grows by frames. The muxer holds the last one back until the next comes."""

    def __init__(self, path: Path, coding: Coding) -> None:
        self.frames = 0
        self.coded = 0
        self._coding = coding
        self._canvas = _canvas(coding)
        self._reformatter = VideoReformatter()
        self._file = GrowingFile(path)
        self._container = av.open(
            self._file,
            "w",
            format="mp4",
            container_options={**MP4, "video_track_timescale": str(coding.rate.numerator)},
            buffer_size=MUXER_BYTES,
        )
        _running.add(self)
        try:
            self._stream = self._add_stream()
        except BaseException:
            self.abandon()
            raise

    def _add_stream(self) -> av.VideoStream:
        """Add the only stream, with the colours that its frames have."""
        coding, codec = self._coding, CODECS[self._coding.codec]
        stream = self._container.add_stream(*_told(coding))
        assert isinstance(stream, av.VideoStream)
        context = stream.codec_context
        context.height, context.width = coding.padded
        hardware = hardware_of(coding)
        context.pix_fmt = codec.pixels[coding.pixels] if hardware is None else hardware.pixels
        context.time_base = 1 / coding.rate
        context.gop_size = 1 if codec.encoder == "ffv1" else coding.keyframe_every
        context.max_b_frames = 0
        context.thread_count = coding.threads  # 0, all cores, hangs in a forked child
        if codec.lossy:
            context.colorspace = context.color_primaries = context.color_trc = BT709
            context.color_range = FULL if coding.pixels == "gray" else LIMITED
        if codec.encoder == "libsvtav1":
            os.environ.setdefault("SVT_LOG", "0")  # else it prints ten lines to stderr for each video
            with ordinary_threads():
                context.open()
        return stream

    @property
    def nbytes(self) -> int:
        """Bytes of the file so far."""
        return self._file.size

    def write(self, rows: Array) -> None:
        """Code rows `(n, *leaf.shape)` as the next frames; nothing of `rows` is kept."""
        for i, row in enumerate(rows):
            frame = self._frame(row, rows.flags.c_contiguous and i + 1 < len(rows))
            frame.pts = self.frames
            self._mux(frame)
            self.frames += 1

    def _mux(self, frame: av.VideoFrame | None) -> None:
        for packet in self._stream.encode(frame):
            packet.duration = 1
            self._container.mux(packet)
            self.coded += 1

    def _frame(self, row: Array, followed: bool) -> av.VideoFrame:
        """Return a row as a frame of the pixels that are coded.

        A conversion may read a little beyond short lines: a row that is `followed` by another one in memory
        can stay where it is, unless it has to be padded.
        """
        coding = self._coding
        row = row.reshape(coding.row_shape)
        if self._canvas is not None and not (followed and coding.padded == row.shape[:2]):
            row = paint(self._canvas, row)
        elif not row.flags.c_contiguous:
            row = row.copy()
        coded = CODECS[coding.codec].pixels[coding.pixels]
        if coded == "yuv420p":
            return self._placed(_luma(row) if coding.pixels == "gray" else self._halved(row))
        frame = av.VideoFrame.from_numpy_buffer(row, coding.pixels)
        if coded == coding.pixels:
            return frame
        return self._reformatter.reformat(frame, format=coded, threads=1)

    def _placed(self, frame: av.VideoFrame) -> av.VideoFrame:
        """Return a frame as it lies in the memory of the encoder's hardware."""
        hardware = hardware_of(self._coding)
        if hardware is None or hardware.pixels == frame.format.name:
            return frame
        return self._reformatter.reformat(frame, format=hardware.pixels, threads=1)

    def _halved(self, row: Array) -> av.VideoFrame:
        """Return a frame whose colours have half the width and height."""
        frame = av.VideoFrame.from_numpy_buffer(row, self._coding.pixels)
        return self._reformatter.reformat(
            frame,
            format="yuv420p",
            interpolation=AREA | ACCURATE if self._coding.pixels == "bgr24" else AREA,
            dst_colorspace=BT709,
            dst_color_range=LIMITED,
            threads=self._coding.threads,  # of its own it would take all cores
        )

    def sync(self) -> None:
        """Make all frames but the last survive a power loss."""
        self._file.sync()

    def close(self) -> None:
        """Code what was held back and leave an ordinary MP4 file, in which any frame is found at once."""
        try:
            self._mux(None)
            self._container.close()
            self._file.seal()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Give the encoder up and leave the file as it is."""
        _running.discard(self)
        self._file.abandon()
        with suppress(OSError, ValueError):
            self._container.close()


def _luma(row: Array) -> av.VideoFrame:
    """Return a frame that holds a grey picture as it is; FFmpeg's own conversion is off by up to 3."""
    height, width = row.shape
    frame = av.VideoFrame(width, height, "yuv420p")
    plane(frame)[:] = row
    for i in (1, 2):
        plane(frame, i)[:] = 128
    return frame


def plane(frame: av.VideoFrame, i: int = 0) -> Array:
    """Return one plane of bytes of a frame as an array `(H, W)` that shares its memory."""
    part = frame.planes[i]
    lines = np.frombuffer(memoryview(part), np.uint8).reshape(-1, part.line_size)
    return lines[: part.height, : part.width]


def _canvas(coding: Coding) -> Array | None:
    """Return memory for one frame where rows are padded, or have lines too short to be read in place."""
    height, width = coding.padded
    stride = -(-width // WIDTH_STEP) * WIDTH_STEP
    if (height, stride) == (coding.height, coding.width):
        return None
    return np.zeros((height, stride, *coding.row_shape[2:]), coding.dtype)[:, :width]


def paint(canvas: Array, row: Array) -> Array:
    """Copy a picture into a corner of `canvas`, repeat its last line and column over the rest; return it."""
    height, width = row.shape[:2]
    canvas[:height, :width] = row
    canvas[height:, :width] = row[-1:]
    canvas[:, width:] = canvas[:, width - 1 : width]
    return canvas
