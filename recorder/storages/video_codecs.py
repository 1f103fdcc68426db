"""Codecs: what each of them codes, with which options, and the encoder that fills one video file."""

from __future__ import annotations

import os
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

MP4 = {"movflags": "hybrid_fragmented+frag_every_frame", "flush_packets": "1"}
"""A frame reaches the kernel with the next one, and the file becomes an ordinary MP4 when it is closed: after SIGKILL
all but the last frame were there. Costs 122 bytes a frame; `frag_keyframe` costs 20 and loses a group of pictures."""

MUXER_BYTES = 1 << 20
"""The buffer of the muxer: a frame up to this size reaches the file in one write, so a kill does not cut it."""

WIDTH_STEP = 32
"""Pixels that a converter reads at once: narrower rows are copied to where it may read beyond their end."""

BT709, LIMITED, FULL = 1, 1, 2
"""FFmpeg's numbers of what lossy codecs code: BT.709 colours, luma from 16 to 235; grey pictures as they are."""

AREA, ACCURATE = 0x20, 0x40000
"""FFmpeg's flags of conversion: colours of four pixels averaged (0.4 dB over the default), and rounding for BGR, whose
fast path only truncates (3.6 dB)."""

NEW_PYAV = int(av.__version__.split(".")[0]) >= 17
"""Older PyAV converts on the calling thread only and takes no number of threads."""


class Codec(NamedTuple):
    """What a codec is called, what it takes and how it is told: `pixels` maps how rows lie to how they are coded."""

    encoder: str
    decoder: str
    tag: bytes
    pixels: Mapping[str, str]
    options: Callable[[Coding], Mapping[str, str]]
    preset: str | None = None
    crf: int | None = None
    smallest: int = 1

    @property
    def lossy(self) -> bool:
        """Whether pictures come back other than they were."""
        return "yuv420p" in self.pixels.values()


@dataclass(frozen=True)
class Coding:
    """All that an encoder and a decoder of one leaf must agree upon; `pixels` is FFmpeg's name of how a row lies."""

    codec: str
    crf: int | None
    preset: str | None
    keyframe_every: int
    threads: int
    rate: Fraction
    pixels: str
    height: int
    width: int

    @property
    def padded(self) -> tuple[int, int]:
        """The height and width that are coded: even where colours are halved, and not less than the codec takes."""
        codec = CODECS[self.codec]
        step = 2 if codec.lossy else 1
        return tuple(max(codec.smallest, -(-side // step) * step) for side in (self.height, self.width))  # type: ignore[return-value]

    @property
    def row_shape(self) -> tuple[int, ...]:
        """The shape of a row as FFmpeg sees it: `(H, W)` for grey, else `(H, W, C)`."""
        channels = {"gray": (), "gray16le": (), "rgb24": (3,), "bgr24": (3,)}.get(self.pixels, (4,))
        return (self.height, self.width, *channels)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of a row."""
        return np.dtype("uint16" if self.pixels == "gray16le" else "uint8")


LOSSY = {"rgb24": "yuv420p", "bgr24": "yuv420p", "gray": "yuv420p"}

CODECS: Mapping[str, Codec] = {
    "h264": Codec(
        "libx264", "h264", b"avc1", LOSSY, lambda coding: {**_quality(coding), "tune": "zerolatency"}, "ultrafast", 20
    ),
    "h264rgb": Codec(
        "libx264rgb",
        "h264",
        b"avc1",
        {"rgb24": "rgb24", "bgr24": "bgr24"},
        lambda coding: {"preset": coding.preset or "ultrafast", "qp": "0", "tune": "zerolatency"},
        preset="ultrafast",
    ),
    "hevc": Codec(
        "libx265",
        "hevc",
        b"hev1",
        LOSSY,
        lambda coding: {**_quality(coding), "tune": "zerolatency", "x265-params": _x265(coding.threads)},
        "ultrafast",
        22,
        smallest=16,
    ),
    "av1": Codec(
        "libsvtav1",
        "libdav1d",
        b"av01",
        LOSSY,
        lambda coding: {**_quality(coding), "svtav1-params": f"lp={coding.threads}:pred-struct=1:rtc=1"},
        "10",
        30,
        smallest=16,
    ),
    "vp9": Codec(
        "libvpx-vp9",
        "vp9",
        b"vp09",
        LOSSY,
        lambda coding: {
            "crf": _quality(coding)["crf"],
            "cpu-used": _quality(coding)["preset"],
            "deadline": "realtime",
            "lag-in-frames": "0",
            "auto-alt-ref": "0",
        },
        "8",
        30,
    ),
    "ffv1": Codec(
        "ffv1",
        "ffv1",
        b"FFV1",
        {"gray": "gray", "gray16le": "gray16le", "rgb24": "bgr0", "bgr24": "bgr0", "rgba": "bgra", "bgra": "bgra"},
        lambda coding: {"level": "3", "slicecrc": "1"},
    ),
}
"""All options keep frame i at row i and hold nothing back: no B-frames, no lookahead (measured: delay 0; SVT-AV1 without
`pred-struct=1` 45 frames, x264 without `zerolatency` 11)."""


def _quality(coding: Coding) -> dict[str, str]:
    codec = CODECS[coding.codec]
    crf = codec.crf if coding.crf is None else coding.crf
    return {"preset": coding.preset or str(codec.preset), "crf": str(crf)}


def _x265(threads: int) -> str:
    pools = "none" if threads == 1 else str(threads)
    return f"log-level=none:open-gop=0:frame-threads=1:pools={pools}"


def pixels_of(leaf: Leaf) -> str | None:
    """Return FFmpeg's name of how rows of `leaf` lie in memory, or None where it has none."""
    if not leaf.fixed or leaf.metadata.get("layout", "HWC") not in ("HWC", "HW") or 0 in leaf.shape:
        return None
    blue_first = str(leaf.metadata.get("format", "")).startswith("bgr")
    match (*leaf.shape[2:], leaf.dtype) if len(leaf.shape) in (2, 3) else ():
        case ("uint8",) | (1, "uint8"):
            return "gray"
        case ("uint16",) | (1, "uint16"):
            return "gray16le"
        case (3, "uint8"):
            return "bgr24" if blue_first else "rgb24"
        case (4, "uint8"):
            return "bgra" if blue_first else "rgba"
    return None


class GrowingFile:
    """The file below a muxer. What lies before its end changes only at `seal`, when the rest is on disk.

    So a power loss leaves what was there before the muxer finished the file, or the finished file. (PyAV 15 even
    overwrites the start before it writes the index: a kill in between would leave nothing.) In a forked child, and
    after `abandon`, writing does nothing: a destructor that finishes the file there would destroy it.
    """

    def __init__(self, path: Path) -> None:
        self.size = 0
        self.closed = False
        self._file = path.open("xb", buffering=0)
        self._position = 0
        self._synced = 0
        self._patches: list[tuple[int, bytes]] = []
        self._pid = os.getpid()

    def write(self, data: bytes) -> int:
        """Add bytes at the end, or note bytes that lie before it."""
        if not self.closed and os.getpid() == self._pid:
            if self._position < self.size:
                self._patches.append((self._position, bytes(data)))
            else:
                self._append(memoryview(data))
            self._position += len(data)
        return len(data)

    def _append(self, data: memoryview) -> None:
        while data:
            written = self._file.write(data) or 0
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
            self._synced = self.size
            os.fsync(self._file.fileno())

    def seal(self) -> None:
        """Write what lies before the end, after all else is on disk, and close the file."""
        self.sync()
        for position, data in self._patches:
            self._file.seek(position)
            self._file.write(data)
        self.abandon()

    def abandon(self) -> None:
        """Close the file as it is."""
        self.closed = True
        self._file.close()


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
        try:
            self._stream = self._add_stream()
        except BaseException:
            self.abandon()
            raise

    def _add_stream(self) -> av.VideoStream:
        """Add the only stream, with the colours that its frames have."""
        coding, codec = self._coding, CODECS[self._coding.codec]
        if codec.encoder == "libsvtav1":
            os.environ.setdefault("SVT_LOG", "1")  # else each encoder prints ten lines to stderr
        stream = self._container.add_stream(codec.encoder, rate=coding.rate, options=dict(codec.options(coding)))
        assert isinstance(stream, av.VideoStream)
        context = stream.codec_context
        context.height, context.width = coding.padded
        context.pix_fmt = codec.pixels[coding.pixels]
        context.time_base = 1 / coding.rate
        context.gop_size = 1 if codec.encoder == "ffv1" else coding.keyframe_every
        context.max_b_frames = 0
        context.thread_count = coding.threads  # 0 hangs in a forked child
        if codec.lossy:
            context.colorspace = context.color_primaries = context.color_trc = BT709
            context.color_range = FULL if coding.pixels == "gray" else LIMITED
        return stream

    @property
    def nbytes(self) -> int:
        """Bytes of the file so far."""
        return self._file.size

    def write(self, rows: Array) -> None:
        """Code rows `(n, H, W)` or `(n, H, W, C)` as the next frames; nothing of `rows` is kept."""
        for row in rows:
            frame = self._frame(row)
            frame.pts = self.frames
            self._mux(frame)
            self.frames += 1

    def _mux(self, frame: av.VideoFrame | None) -> None:
        for packet in self._stream.encode(frame):
            packet.duration = 1
            self._container.mux(packet)
            self.coded += 1

    def _frame(self, row: Array) -> av.VideoFrame:
        """Return a row as a frame in the pixels that are coded; converting does not hold the interpreter."""
        coding = self._coding
        row = row.reshape(coding.row_shape)
        if self._canvas is not None:
            row = paint(self._canvas, row)
        elif not row.flags.c_contiguous:
            row = row.copy()
        coded = CODECS[coding.codec].pixels[coding.pixels]
        if coded == "yuv420p":
            return _luma(row) if coding.pixels == "gray" else self._converted(row)
        frame = av.VideoFrame.from_numpy_buffer(row, coding.pixels)
        return frame if coded == coding.pixels else self._reformatter.reformat(frame, format=coded, **threads(1))

    def _converted(self, row: Array) -> av.VideoFrame:
        frame = av.VideoFrame.from_numpy_buffer(row, self._coding.pixels)
        flags = AREA | ACCURATE if self._coding.pixels == "bgr24" else AREA
        colours = {"dst_colorspace": BT709, "dst_color_range": LIMITED}
        return self._reformatter.reformat(
            frame, format="yuv420p", interpolation=flags, **colours, **threads(self._coding.threads)
        )

    def sync(self) -> None:
        """Make all frames but the last survive a power loss."""
        self._file.sync()

    def close(self) -> None:
        """Code what was held back and leave an ordinary MP4 file that can be sought in."""
        try:
            self._mux(None)
            self._container.close()
            self._file.seal()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Give the encoder up and leave the file as it is."""
        self._file.abandon()
        with suppress(OSError, ValueError):
            self._container.close()


def threads(count: int) -> dict[str, int]:
    """Return how a conversion of pixels is told on how many threads it runs; else it takes all cores."""
    return {"threads": count} if NEW_PYAV else {}


def _luma(row: Array) -> av.VideoFrame:
    """Return a frame that holds a grey picture as it is, without colours: FFmpeg's own conversion changes it."""
    height, width = row.shape
    frame = av.VideoFrame(width, height, "yuv420p")
    plane(frame)[:] = row
    for i in (1, 2):
        plane(frame, i)[:] = 128
    return frame


def plane(frame: av.VideoFrame, i: int = 0) -> Array:
    """Return one plane of bytes of a frame as an array `(H, W)` that shares its memory."""
    part = frame.planes[i]
    return np.frombuffer(part, np.uint8).reshape(-1, part.line_size)[: part.height, : part.width]


def _canvas(coding: Coding) -> Array | None:
    """Return memory for one frame where rows have to be padded, or are too narrow to be read in place."""
    height, width = coding.padded
    stride = -(-width // WIDTH_STEP) * WIDTH_STEP
    if (height, stride) == (coding.height, coding.width):
        return None
    return np.zeros((height, stride, *coding.row_shape[2:]), coding.dtype)[:, :width]


def paint(canvas: Array, row: Array) -> Array:
    """Copy a picture into the corner of `canvas`, repeat its last line and column over the rest, and return it."""
    height, width = row.shape[:2]
    canvas[:height, :width] = row
    canvas[height:, :width] = row[-1:]
    canvas[:, width:] = canvas[:, width - 1 : width]
    return canvas
