"""The writer of VideoStorage: one file for each leaf and segment, coded while the rows come."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from recorder.columns import Array, Column, Rows
from recorder.errors import ClosedError, EpisodeError, WriteError
from recorder.files import link_or_copy, remove
from recorder.leaf import Leaf, Per
from recorder.storages.adopting import Adopting
from recorder.storages.base import Reader, Run, Segment, Writer
from recorder.storages.streams import staged_segments, sync_folders
from recorder.storages.video_codecs import Coding, Encoder
from recorder.storages.video_reading import Decoders, VideoColumn, video_name
from recorder.storages.video_salvage import remux, salvaged
from recorder.threads import side_by_side


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
        sync_folders(self._new_folders)

    def segments(self) -> Sequence[Segment]:
        return staged_segments(self._segments, self._codings, lambda staged: staged.frames)

    def adopt(self, segment: Segment, reader: Reader, i: int) -> None:
        """Give the files of an episode a second name; no frame is coded."""
        self._check()
        self._segments[segment.number] = {}
        for leaf in self._codings:
            if rows := segment.rows(leaf.per):
                self._video(segment.number, leaf).adopt(reader.directory / video_name(leaf, i), rows)

    def view(self, segment: Segment) -> Mapping[str, Column]:
        return {leaf.path: self._column(segment, leaf) for leaf in self._codings}

    def _column(self, segment: Segment, leaf: Leaf) -> Column:
        video = self._held(segment.number, leaf)
        if video.encoder is not None:
            raise EpisodeError(f"segment {segment.number} still runs; its frames can be read when it has ended")
        return StagedColumn(leaf, segment.rows(leaf.per), video, self._decoders)

    def pack(self, directory: Path, segments: Sequence[Segment]) -> Sequence[Leaf]:
        self._check()
        for i, segment in enumerate(segments):
            for leaf in self._codings:
                if rows := segment.rows(leaf.per):
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
