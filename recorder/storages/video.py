"""VideoStorage: pictures as video, one file for each leaf and episode, coded while they come."""

from __future__ import annotations

import math
import os
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, partial
from itertools import islice
from pathlib import Path

import av
import numpy as np
from av.container import InputContainer

from recorder.columns import Array, Column, Rows
from recorder.errors import ClosedError, EpisodeError, LayoutError, RecorderError, WriteError
from recorder.files import link_or_copy, remove, sync
from recorder.leaf import Leaf, Per
from recorder.storages.base import Counts, Reader, Run, Segment, Storage, Writer, register_storage
from recorder.storages.video_codecs import CODECS, Coding, Encoder, GrowingFile, pixels_of
from recorder.storages.video_reading import Decoders, VideoColumn, VideoReader, video_name

FPS = 30.0
"""Frames a second where neither the storage nor the metadata of the leaf say it."""

NO_LEAF = -1
"""The rows of a class of which a writer has no leaf."""

PATIENCE = 128
"""Frames after which an encoder that gave none back is taken for one that does not work."""


@register_storage
@dataclass(frozen=True)
class VideoStorage(Storage):
    """Pictures as video: `h264`, `hevc`, `av1` and `vp9` with loss, `h264rgb` and `ffv1` without.

    The lossy ones take pictures of kind `image`, RGB, BGR or grey, uint8; `h264rgb` takes any uint8 `(H, W, 3)`;
    `ffv1` takes uint8 of 1, 3 or 4 channels and uint16 of one. `crf` is the codec's own scale of quality, lower is
    better; `preset` its own name of how hard it tries (`cpu-used` of vp9). Frame i is row i; a key frame comes at least
    every `keyframe_every` frames (FFV1 has no others). `fps` is for players only, and goes before `metadata["fps"]`.
    """

    id = "video"
    codec: str = "h264"
    crf: int | None = None
    preset: str | None = None
    keyframe_every: int = 10
    fps: float | None = None
    threads: int = 1

    def __post_init__(self) -> None:
        if self.codec not in CODECS:
            raise LayoutError(f"VideoStorage(codec={self.codec!r}): known are {', '.join(CODECS)}")
        for name, smallest in (("keyframe_every", 1), ("threads", 1), ("crf", 0)):
            value = getattr(self, name)
            if not _is_int(value, smallest) and not (name == "crf" and value is None):
                raise LayoutError(f"VideoStorage({name}={value!r}): a number from {smallest} on is needed")
        if self.fps is not None and not _is_rate(self.fps):
            raise LayoutError(f"VideoStorage(fps={self.fps!r}): a positive number is needed")
        if self.crf is not None and not CODECS[self.codec].lossy:
            raise LayoutError(
                f"VideoStorage(codec={self.codec!r}, crf={self.crf}): that codec is lossless and has no crf"
            )
        if self.preset is not None and CODECS[self.codec].preset is None:
            raise LayoutError(
                f"VideoStorage(codec={self.codec!r}, preset={self.preset!r}): that codec has no presets"
            )

    def check(self, leaves: Sequence[Leaf]) -> None:
        for leaf in leaves:
            coding = self.coding(leaf)
            try:
                probe(coding)
            except (av.FFmpegError, OSError, ValueError) as error:
                raise LayoutError(
                    f"{_described(leaf)} cannot be coded as {self.codec} by PyAV {av.__version__} here: {error}; "
                    f"choose another codec or preset, or keep it with ZarrStorage()"
                ) from error

    def exact(self, leaf: Leaf) -> bool:
        return not CODECS[self.codec].lossy

    def delay(self, leaf: Leaf) -> int:
        """Return how many of the newest frames a kill loses: those in the encoder, and one in the muxer."""
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
                f"{_described(leaf)} is not {_taken(self.codec)}; keep it with {_instead(leaf)}"
            )
        if codec.lossy and leaf.kind != "image":
            raise LayoutError(
                f"{_described(leaf)} is of kind {leaf.kind!r}, which {self.codec} would change; "
                f"keep it with {_instead(leaf)}, or say in its metadata that its kind is 'image'"
            )
        rate = frame_rate(leaf, self.fps)
        return Coding(
            self.codec,
            self.crf,
            self.preset,
            self.keyframe_every,
            self.threads,
            rate,
            pixels,
            *leaf.shape[:2],
        )

    def writer(self, directory: Path, leaves: Sequence[Leaf]) -> Writer:
        return VideoWriter(directory, {leaf: self.coding(leaf) for leaf in leaves})

    def recover(self, directory: Path, leaves: Sequence[Leaf]) -> Writer:
        writer = VideoWriter(directory, {leaf: self.coding(leaf) for leaf in leaves})
        writer.recover()
        return writer

    def reader(self, directory: Path, leaves: Sequence[Leaf], counts: Counts) -> Reader:
        return VideoReader(directory, leaves, counts, {leaf.path: self.coding(leaf) for leaf in leaves})


def _is_int(value: object, smallest: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= smallest


def _is_rate(value: object) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
        and 0 < value <= 1e6
    )


def frame_rate(leaf: Leaf, fps: float | None) -> Fraction:
    """Return the frames a second of a leaf as a fraction of small numbers: a frame lasts a whole number of ticks."""
    rate = fps if fps is not None else leaf.metadata.get("fps", FPS)
    if not _is_rate(rate):
        raise LayoutError(
            f"{leaf.path!r} has {rate!r} frames a second in its metadata; a positive number is needed"
        )
    return Fraction(rate).limit_denominator(1001) or Fraction(1, 1001)


def _described(leaf: Leaf) -> str:
    shape = "rows of no one shape" if not leaf.fixed else leaf.shape
    return f"{leaf.path!r}: {leaf.dtype} {shape}"


def _taken(codec: str) -> str:
    if codec == "ffv1":
        return "a picture for ffv1: uint8 (H, W), (H, W, 1), (H, W, 3) or (H, W, 4), or uint16 (H, W) or (H, W, 1)"
    grey = "" if codec == "h264rgb" else ", (H, W) or (H, W, 1)"
    return f"a picture for {codec}: uint8 (H, W, 3){grey}"


def _instead(leaf: Leaf) -> str:
    """Return the storages that keep `leaf` bit for bit, as one writes them."""
    lossless = [name for name, codec in CODECS.items() if not codec.lossy and pixels_of(leaf) in codec.pixels]
    videos = [f"VideoStorage(codec={name!r})" for name in lossless]
    storages = ["HDF5Storage()", *(["ZarrStorage()"] if leaf.fixed else []), *videos]
    return " or ".join([", ".join(storages[:-1]), storages[-1]]) if len(storages) > 1 else storages[0]


@cache
def probe(coding: Coding) -> int:
    """Code frames and decode two of them; return how many the encoder holds back.

    Raises:
        FFmpegError, OSError, ValueError: the codec is not there, cannot be opened, or changes what it may not.
    """
    generator = np.random.default_rng(0)
    high = np.iinfo(coding.dtype).max
    rows = generator.integers(0, high, (2, *coding.row_shape), coding.dtype, endpoint=True)
    with tempfile.TemporaryDirectory(prefix="recorder-") as folder:
        path = Path(folder, "probe.mp4")
        encoder = Encoder(path, coding)
        try:
            while encoder.frames < 2 or not encoder.coded:
                encoder.write(rows[encoder.frames % 2][None])
                if encoder.frames > PATIENCE:
                    raise ValueError(f"it gave no frame back for the first {PATIENCE}")
            delay = encoder.frames - encoder.coded
            encoder.close()
        finally:
            encoder.abandon()
        decoders = Decoders()
        try:
            decoded = decoders.read(path, coding, range(2))
        finally:
            decoders.close()
    if not CODECS[coding.codec].lossy and not np.array_equal(decoded, rows):
        raise ValueError("what it decodes is not what was coded, although it is lossless")
    return delay


class StagedVideo:
    """The frames of one leaf of one segment in the staging folder; `encoder` while more of them come."""

    def __init__(self, path: Path, coding: Coding) -> None:
        self.path = path
        self.coding = coding
        self.frames = 0
        self.encoder: Encoder | None = None
        self.sealed = False
        self.failed = False

    @property
    def nbytes(self) -> int:
        """Bytes on disk."""
        if self.encoder is not None:
            return self.encoder.nbytes
        return self.path.stat().st_size if self.path.exists() else 0

    def append(self, rows: Array) -> None:
        """Code more rows; after an error the video stays as it was before, and takes no more."""
        if self.failed:
            return
        try:
            if self.encoder is None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self.encoder = Encoder(self.path, self.coding)
            self.encoder.write(rows)
            self.frames = self.encoder.frames
        except Exception as error:
            raise self._failure(error) from error

    def end(self) -> None:
        """Close the encoder, which makes the file one that can be sought in."""
        if self.encoder is None:
            return
        try:
            self.encoder.close()
            self.encoder, self.sealed = None, True
        except Exception as error:
            raise self._failure(error) from error

    def _failure(self, error: Exception) -> WriteError:
        """Give the encoder up, keep the frames that reached the file, and return what is to be raised."""
        self.abandon()
        self.failed = True
        self.frames = salvaged(self.path, self.coding)
        return WriteError(
            f"{self.path}: coding failed: {error}; its first {self.frames} frames are kept, all other leaves and "
            f"segments go on"
        )

    def abandon(self) -> None:
        """Give the encoder up and leave the file as it is."""
        if self.encoder is not None:
            self.encoder.abandon()
            self.encoder = None

    def place(self, target: Path, rows: int) -> None:
        """Put the first `rows` frames at `target`: a second name of the file, or a copy of its coded frames."""
        if self.encoder is not None:
            raise EpisodeError(f"{self.path} is still being written; end its segment first")
        if rows > self.frames:
            raise WriteError(f"{self.path} has {self.frames} frames, {rows} were to be packed")
        if self.sealed and rows == self.frames:
            link_or_copy(self.path, target)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            remux(self.path, target, self.coding, rows)

    def mend(self) -> None:
        """Make a file that a dead encoder left one that can be sought in."""
        if not self.sealed and self.frames:
            mended = self.path.with_name(f".{self.path.name}")
            mended.unlink(missing_ok=True)
            remux(self.path, mended, self.coding, self.frames)
            mended.rename(self.path)
            self.sealed = True


class VideoWriter(Writer):
    """Segments whose frames go to one encoder a leaf at once; packing gives the closed files a second name."""

    def __init__(self, directory: Path, codings: Mapping[Leaf, Coding]) -> None:
        self._directory = directory
        self._codings = dict(codings)
        self._segments: dict[int, dict[str, StagedVideo]] = {}
        self._decoders = Decoders()
        self._new_folders: set[Path] = set()
        self._pid = os.getpid()
        self._closed = False

    def _check(self) -> None:
        if os.getpid() != self._pid:
            raise ClosedError(
                "this video writer belongs to the process that made it; make one in this process"
            )
        if self._closed:
            raise ClosedError("this video writer is closed")

    @property
    def nbytes(self) -> int:
        return sum(video.nbytes for videos in self._segments.values() for video in videos.values())

    def append(self, rows: Mapping[str, Rows], runs: Sequence[Run]) -> None:
        self._check()
        work: dict[StagedVideo, list[Array]] = {}
        for run in runs:
            self._segments.setdefault(run.segment, {})
            for leaf in self._codings:
                frames = _frames(rows[leaf.path], run, leaf.per)
                if len(frames):
                    work.setdefault(self._video(run.segment, leaf), []).append(frames)
        side_by_side([partial(_append, video, parts) for video, parts in work.items()])
        if lost := rows.keys() - {leaf.path for leaf in self._codings}:
            raise WriteError(
                f"a VideoStorage cannot keep {min(lost)!r}, which is no leaf of it; name another default"
            )

    def _video(self, segment: int, leaf: Leaf) -> StagedVideo:
        videos = self._segments[segment]
        if leaf.path not in videos:
            path = self._folder(segment) / f"{leaf.path}.mp4"
            videos[leaf.path] = StagedVideo(path, self._codings[leaf])
            self._new_folders.update(
                folder for folder in path.parents if folder.is_relative_to(self._directory)
            )
        return videos[leaf.path]

    def _folder(self, segment: int) -> Path:
        return self._directory / f"{segment:06d}"

    def end(self, segment: int) -> None:
        self._check()
        side_by_side([video.end for video in self._segments.get(segment, {}).values()])

    def checkpoint(self) -> None:
        self._check()
        for videos in self._segments.values():
            for video in videos.values():
                if video.encoder is not None:
                    video.encoder.sync()
        while self._new_folders:
            sync(self._new_folders.pop())

    def segments(self) -> Sequence[Segment]:
        """Return the segments with the frames that all leaves of a class have; -1 for a class without leaves."""
        return [
            Segment(number, self._frames(videos, "moment"), self._frames(videos, "transition"))
            for number, videos in sorted(self._segments.items())
        ]

    def _frames(self, videos: Mapping[str, StagedVideo], per: Per) -> int:
        paths = [leaf.path for leaf in self._codings if leaf.per == per]
        return min((videos[path].frames if path in videos else 0 for path in paths), default=NO_LEAF)

    def view(self, segment: Segment) -> Mapping[str, Column]:
        return {leaf.path: self._column(segment, leaf) for leaf in self._codings}

    def _column(self, segment: Segment, leaf: Leaf) -> Column:
        video = self._video(segment.number, leaf)
        if video.encoder is not None:
            raise EpisodeError(
                f"segment {segment.number} still runs; its frames can be read once it has ended"
            )
        video.mend()
        return VideoColumn(leaf, _rows(segment, leaf.per), video.path, video.coding, self._decoders)

    def pack(self, directory: Path, segments: Sequence[Segment]) -> Sequence[Leaf]:
        self._check()
        for i, segment in enumerate(segments):
            for leaf in self._codings:
                if rows := _rows(segment, leaf.per):
                    self._video(segment.number, leaf).place(directory / video_name(leaf, i), rows)
        return []

    def forget(self, segments: Sequence[int]) -> None:
        self._check()
        self._decoders.close()
        for segment in segments:
            for video in self._segments.pop(segment, {}).values():
                video.abandon()
            remove(self._folder(segment))
            self._new_folders = {
                folder for folder in self._new_folders if not folder.is_relative_to(self._folder(segment))
            }

    def recover(self) -> None:
        """Take over the segments that a dead writer left, with the frames of them that can be decoded."""
        for folder in sorted(self._directory.glob("[0-9]*")):
            self._segments[int(folder.name)] = {}
            for leaf in self._codings:
                video = self._video(int(folder.name), leaf)
                video.frames = salvaged(video.path, video.coding)

    def close(self) -> None:
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        self._decoders.close()
        side_by_side([video.end for videos in self._segments.values() for video in videos.values()])


def _frames(rows: Rows, run: Run, per: Per) -> Array:
    """Return the rows of a run; the first one of a segment has no transition."""
    assert isinstance(rows, np.ndarray)
    return rows[run.start + (per == "transition" and run.first) : run.stop]


def _append(video: StagedVideo, parts: Iterable[Array]) -> None:
    for part in parts:
        video.append(part)


def _rows(segment: Segment, per: Per) -> int:
    return segment.moments if per == "moment" else segment.transitions


def side_by_side(tasks: Sequence[Callable[[], None]]) -> None:
    """Do all tasks, on as many threads as there are cores; then raise what the first of them raised.

    Encoders release the interpreter: two cameras at once were 1.3 to 1.5 times as fast as one after the other.
    """
    waiting = deque(tasks)
    errors: list[RecorderError] = []

    def work() -> None:
        while waiting:
            try:
                waiting.popleft()()
            except IndexError:
                return
            except RecorderError as error:
                errors.append(error)

    threads = [
        threading.Thread(target=work, daemon=True) for _ in range(min(len(tasks), os.cpu_count() or 1) - 1)
    ]
    for thread in threads:
        thread.start()
    work()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def salvaged(path: Path, coding: Coding) -> int:
    """Return how many frames of a staged file are whole and can be decoded, whatever its index says.

    Frames before the last group of pictures were followed by others; those of the last group are decoded.
    """
    group: list[av.Packet[av.VideoStream]] = []
    frames = 0
    try:
        with path.open("rb") as file, av.open(file, "r", format="mp4") as container:
            for packet in whole_packets(container, coding):
                group = [packet] if packet.is_keyframe else [*group, packet]
                frames += 1
            frames -= len(group)
            for decoded in (*(packet.decode() for packet in group), container.streams.video[0].decode(None)):
                frames += len(decoded)
    except (av.FFmpegError, OSError, ValueError, IndexError):
        return frames
    return frames


def whole_packets(container: InputContainer, coding: Coding) -> Iterator[av.Packet[av.VideoStream]]:
    """Yield the coded frames of a file, whose encoder may have died, up to the first that is not as it was written."""
    stream = container.streams.video[0]
    for i, packet in enumerate(container.demux(stream)):
        if not packet.size or packet.is_corrupt or packet.pts != i * coding.rate.denominator:
            return
        yield packet


def remux(source: Path, target: Path, coding: Coding, rows: int) -> None:
    """Copy the first `rows` coded frames into a new file, without coding them again.

    Raises:
        WriteError: there are not so many, or they cannot be written.
    """
    file = GrowingFile(target)
    try:
        with source.open("rb") as data, av.open(data, "r", format="mp4") as read:
            timescale = {"video_track_timescale": str(coding.rate.numerator)}
            with av.open(file, "w", format="mp4", container_options=timescale) as written:
                stream = written.add_stream_from_template(read.streams.video[0], opaque=True)
                found = 0
                for found, packet in enumerate(islice(whole_packets(read, coding), rows), 1):
                    packet.stream = stream
                    packet.duration = coding.rate.denominator
                    written.mux(packet)
        if found != rows:
            raise ValueError(f"{rows} frames were expected, {found} found")
        file.seal()
    except (av.FFmpegError, OSError, ValueError, IndexError) as error:
        file.abandon()
        target.unlink(missing_ok=True)
        raise WriteError(f"{source} cannot be copied to {target}: {error}") from error
