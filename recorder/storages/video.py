"""VideoStorage: pictures as video, one file for each leaf and episode, coded while they come."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import IO, TypeAlias, TypeGuard

import av
import numpy as np

from recorder.columns import Array, Column, Rows
from recorder.errors import ClosedError, EpisodeError, LayoutError, WriteError
from recorder.files import link_or_copy, remove, sync
from recorder.leaf import Leaf, Per
from recorder.storages.adopting import Adopting
from recorder.storages.base import Counts, Reader, Run, Segment, Storage, Writer, register_storage
from recorder.storages.video_codecs import CODECS, Coding, Encoder, GrowingFile, pixels_of
from recorder.storages.video_hardware import AUTO, kinds_of
from recorder.storages.video_reading import Decoders, VideoColumn, VideoReader, video_name, whole_size
from recorder.threads import side_by_side

FPS = 30.0
"""Frames a second where neither the storage nor the metadata of the leaf name them."""

NO_LEAF = -1
"""The rows of a class of which a writer has no leaf."""

PATIENCE = 128
"""Frames after which an encoder that gave none back is taken for one that does not work."""

UNLIKE = 60
"""How far a picture may be off on average, of 255, before a codec is taken for one that does not work."""

BROKEN = (av.FFmpegError, OSError, ValueError, IndexError)
"""What is raised over a file that is damaged, or has no stream."""

Packet: TypeAlias = "av.Packet[av.VideoStream]"


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
        if self.codec not in CODECS:
            raise self._refused("codec", f"one of {', '.join(CODECS)} is needed")
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


@cache
def probe(coding: Coding) -> int:
    """Code frames and decode two of them; return how many frames the encoder holds back.

    What is lossless is tried with noise, other codecs with smooth pictures, which they may not make unlike.

    Raises:
        FFmpegError, OSError, ValueError: the codec is missing, does not open, or changes what it may not.
    """
    rows = _tried_rows(coding)
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
        decoded = Decoders().read(path, coding, range(2))
    if not CODECS[coding.codec].lossy and not np.array_equal(decoded, rows):
        raise ValueError("it is lossless, and yet what it decodes is not what was coded")
    if CODECS[coding.codec].lossy and np.abs(decoded.astype(float) - rows).mean() > UNLIKE:
        raise ValueError("what it decodes is unlike what was coded")
    return delay


def _tried_rows(coding: Coding) -> Array:
    """Return two pictures, of noise where all of it must come back, else of a slope from dark to bright."""
    shape = (2, *coding.row_shape)
    if not CODECS[coding.codec].lossy:
        high = np.iinfo(coding.dtype).max
        return np.random.default_rng(0).integers(0, high, shape, coding.dtype, endpoint=True)
    slope = np.add.outer(np.linspace(0, 100, coding.height), np.linspace(0, 100, coding.width))
    picture = slope if len(shape) == 3 else slope[..., None]
    return np.broadcast_to(np.stack([20 + picture, 50 + picture]), shape).astype(coding.dtype)


def works(coding: Coding) -> bool:
    """Return whether frames can be coded so here: an encoder may be listed and have no hardware."""
    try:
        probe(coding)
    except (av.FFmpegError, OSError, ValueError):
        return False
    return True


class StagedVideo:
    """The frames of one leaf of one segment in the staging folder; an `encoder` while more may come."""

    def __init__(self, path: Path, coding: Coding) -> None:
        self.path = path
        self.coding = coding
        self.frames = 0
        self.encoder: Encoder | None = None
        self._sealed = False
        self._failed = False

    @property
    def nbytes(self) -> int:
        """Bytes on disk."""
        if self.encoder is not None:
            return self.encoder.nbytes
        return self.path.stat().st_size if self.path.exists() else 0

    def append(self, parts: Iterable[Array]) -> None:
        """Code more rows. After an error the frames before it stay, and no more are taken.

        Raises:
            WriteError: the encoder or the disk failed.
        """
        if self._failed:
            return
        try:
            if self.encoder is None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self.encoder = Encoder(self.path, self.coding)
            for rows in parts:
                self.encoder.write(rows)
            self.frames = self.encoder.frames
        except Exception as error:
            raise self._failure(error) from error

    def end(self) -> None:
        """Close the encoder, which makes the file an ordinary one."""
        if self.encoder is None:
            return
        try:
            self.encoder.close()
            self.encoder = None
            self._sealed = True
        except Exception as error:
            raise self._failure(error) from error

    def _failure(self, error: Exception) -> WriteError:
        """Give the encoder up, keep the frames that reached the file, and return what is to be raised."""
        self.abandon()
        self._failed = True
        self.frames = salvaged(self.path, self.coding)
        return WriteError(
            f"{self.path} cannot be coded: {error}; its first {self.frames} frames are kept, all other "
            f"leaves and segments go on"
        )

    def adopt(self, file: Path, frames: int) -> None:
        """Take a file of a shard, by a second name."""
        link_or_copy(file, self.path)
        self.frames = frames
        self._sealed = True

    def abandon(self) -> None:
        """Give the encoder up and leave the file as it is."""
        if self.encoder is not None:
            self.encoder.abandon()
            self.encoder = None

    def place(self, target: Path, rows: int) -> None:
        """Put the first `rows` frames at `target`: a second name of the file, or its coded frames."""
        if self.encoder is not None:
            raise EpisodeError(f"{self.path} is still being written; end its segment first")
        if rows > self.frames:
            raise WriteError(f"{self.path} has {self.frames} frames, {rows} were to be packed")
        if self._sealed and rows == self.frames:
            link_or_copy(self.path, target)
        else:
            remux(self.path, target, self.coding, rows)

    def mend(self) -> None:
        """Make the file of an encoder that died an ordinary one."""
        if self.frames and not self._sealed:
            mended = self.path.with_name(f".{self.path.name}")
            mended.unlink(missing_ok=True)
            remux(self.path, mended, self.coding, self.frames)
            mended.rename(self.path)
            self._sealed = True


class StagedColumn(VideoColumn):
    """The frames of a staged video as rows; one whose encoder died is mended before the first is read."""

    def __init__(self, leaf: Leaf, length: int, video: StagedVideo, decoders: Decoders) -> None:
        super().__init__(leaf, length, video.path, video.coding, decoders)
        self._video = video

    def _rows(self, rows: Sequence[int]) -> Array:
        self._video.mend()
        return super()._rows(rows)


class VideoWriter(Writer, Adopting):
    """Segments whose frames are coded at once, one file a leaf; a pack gives closed files a second name."""

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
            raise ClosedError("this video writer belongs to the process that made it; make one in this process")
        if self._closed:
            raise ClosedError("this video writer is closed")

    @property
    def nbytes(self) -> int:
        return sum(video.nbytes for videos in self._segments.values() for video in videos.values())

    def append(self, rows: Mapping[str, Rows], runs: Sequence[Run]) -> None:
        """Code rows, those of several leaves or segments side by side; no error in one stops the others."""
        self._check()
        work: dict[StagedVideo, list[Array]] = {}
        for run in runs:
            self._segments.setdefault(run.segment, {})
            for leaf in self._codings:
                part = _part(rows[leaf.path], run, leaf.per)
                if len(part):
                    work.setdefault(self._video(run.segment, leaf), []).append(part)
        side_by_side([partial(video.append, parts) for video, parts in work.items()])
        if strange := sorted(rows.keys() - {leaf.path for leaf in self._codings}):
            raise WriteError(f"{strange[0]!r} is no leaf of this VideoStorage, which can be no default storage")

    def _video(self, segment: int, leaf: Leaf) -> StagedVideo:
        videos = self._segments[segment]
        if leaf.path not in videos:
            path = self._folder(segment) / f"{leaf.path}.mp4"
            videos[leaf.path] = StagedVideo(path, self._codings[leaf])
            self._new_folders.update(path.parents[: len(path.relative_to(self._directory).parts)])
        return videos[leaf.path]

    def _held(self, segment: int, leaf: Leaf) -> StagedVideo:
        if segment not in self._segments:
            raise EpisodeError(f"segment {segment} is not held by this video writer")
        return self._video(segment, leaf)

    def _folder(self, segment: int) -> Path:
        return self._directory / f"{segment:06d}"

    def end(self, segment: int) -> None:
        self._check()
        side_by_side([video.end for video in self._segments.get(segment, {}).values()])

    def checkpoint(self) -> None:
        """Make all frames survive but those that a codec's delay holds back, one at least."""
        self._check()
        for videos in self._segments.values():
            for video in videos.values():
                if video.encoder is not None:
                    video.encoder.sync()
        while self._new_folders:
            folder = self._new_folders.pop()
            if folder.exists():
                sync(folder)

    def segments(self) -> Sequence[Segment]:
        """Return the segments with the frames that all leaves of a class have, -1 without such leaves."""
        return [
            Segment(number, self._frames(videos, "moment"), self._frames(videos, "transition"))
            for number, videos in sorted(self._segments.items())
        ]

    def _frames(self, videos: Mapping[str, StagedVideo], per: Per) -> int:
        paths = [leaf.path for leaf in self._codings if leaf.per == per]
        return min((videos[path].frames if path in videos else 0 for path in paths), default=NO_LEAF)

    def adopt(self, segment: Segment, reader: Reader, i: int) -> None:
        """Give the files of an episode a second name; no frame is coded."""
        self._check()
        self._segments[segment.number] = {}
        for leaf in self._codings:
            if rows := _rows(segment, leaf.per):
                self._video(segment.number, leaf).adopt(reader.directory / video_name(leaf, i), rows)

    def view(self, segment: Segment) -> Mapping[str, Column]:
        return {leaf.path: self._column(segment, leaf) for leaf in self._codings}

    def _column(self, segment: Segment, leaf: Leaf) -> Column:
        video = self._held(segment.number, leaf)
        if video.encoder is not None:
            raise EpisodeError(f"segment {segment.number} still runs; its frames can be read when it has ended")
        return StagedColumn(leaf, _rows(segment, leaf.per), video, self._decoders)

    def pack(self, directory: Path, segments: Sequence[Segment]) -> Sequence[Leaf]:
        self._check()
        for i, segment in enumerate(segments):
            for leaf in self._codings:
                if rows := _rows(segment, leaf.per):
                    target = directory / video_name(leaf, i)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    self._held(segment.number, leaf).place(target, rows)
        return []

    def forget(self, segments: Sequence[int]) -> None:
        self._check()
        self._decoders.close()
        for segment in segments:
            for video in self._segments.pop(segment, {}).values():
                video.abandon()
            remove(self._folder(segment))

    def recover(self) -> None:
        """Take over the segments of a dead writer, with the frames of them that can be decoded."""
        for folder in sorted(folder for folder in self._directory.glob("[0-9]*") if folder.name.isdecimal()):
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


def _part(rows: Rows, run: Run, per: Per) -> Array:
    """Return the rows of a run; the first one of a segment has no transition."""
    assert isinstance(rows, np.ndarray)
    return rows[run.start + (per == "transition" and run.first) : run.stop]


def _rows(segment: Segment, per: Per) -> int:
    return segment.moments if per == "moment" else segment.transitions


class Head:
    """The first bytes of an open file, as a file: FFmpeg gives nothing of one that ends in half a box."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file = file
        self._size = size
        file.seek(0)

    def read(self, count: int) -> bytes:
        """Return the next bytes, at most `count`."""
        return self._file.read(max(0, min(count, self._size - self._file.tell())))

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a place in the file."""
        if whence == os.SEEK_END:
            return self._file.seek(self._size + offset)
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        """Return where the next bytes are read."""
        return self._file.tell()


@contextmanager
def staged_packets(path: Path, coding: Coding) -> Iterator[tuple[av.VideoStream, Iterator[Packet]]]:
    """Open a staged file, whose encoder may have died, and give its stream and its coded frames."""
    with path.open("rb") as file, av.open(Head(file, whole_size(file)), "r", format="mp4") as container:
        stream = container.streams.video[0]
        if not stream.codec_context:
            raise ValueError("its codec is not known")
        yield stream, _whole_packets(container.demux(stream), coding)


def _whole_packets(packets: Iterator[Packet], coding: Coding) -> Iterator[Packet]:
    """Yield coded frames up to the first that is not as it was written."""
    for i, packet in enumerate(packets):
        if not packet.size or packet.is_corrupt or packet.pts != i * coding.rate.denominator:
            return
        yield packet


def salvaged(path: Path, coding: Coding) -> int:
    """Return how many frames of a staged file are whole, whatever its index says.

    Those of the last group of pictures are decoded; all before were followed by others.
    """
    group: list[Packet] = []
    frames = 0
    with suppress(*BROKEN), staged_packets(path, coding) as (stream, packets):
        with suppress(*BROKEN):
            for packet in packets:
                frames += len(group) if packet.is_keyframe else 0
                group = [packet] if packet.is_keyframe else [*group, packet]
        stream.codec_context.options = {"err_detect": "crccheck+explode"}
        for packet in group:
            frames += len(packet.decode())
        frames += len(stream.decode(None))
    return frames


def remux(source: Path, target: Path, coding: Coding, rows: int) -> None:
    """Copy the first `rows` coded frames into a new file, without coding them again.

    Raises:
        WriteError: there are not so many, or they cannot be written.
    """
    file = GrowingFile(target)
    try:
        _copy_packets(source, file, coding, rows)
        file.seal()
    except BROKEN as error:
        file.abandon()
        target.unlink(missing_ok=True)
        raise WriteError(f"{rows} frames of {source} cannot be copied to {target}: {error}") from error


def _copy_packets(source: Path, file: GrowingFile, coding: Coding, rows: int) -> None:
    timescale = {"video_track_timescale": str(coding.rate.numerator)}
    missing = rows
    with (
        staged_packets(source, coding) as (stream, packets),
        av.open(file, "w", format="mp4", container_options=timescale) as written,
    ):
        copy = written.add_stream_from_template(stream, opaque=True)
        for packet in islice(packets, rows):
            packet.stream = copy
            packet.duration = coding.rate.denominator
            written.mux(packet)
            missing -= 1
    if missing:
        raise ValueError(f"{missing} of them are missing")
