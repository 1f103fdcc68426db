"""Staged video files whose encoder may have died: which of their frames are whole, and copies of those."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import IO, TypeAlias

import av

from recorder.errors import WriteError
from recorder.storages.video_codecs import Coding, GrowingFile
from recorder.storages.video_reading import whole_size

BROKEN = (av.FFmpegError, OSError, ValueError, IndexError)
"""What is raised over a file that is damaged, or has no stream."""

Packet: TypeAlias = "av.Packet[av.VideoStream]"


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
