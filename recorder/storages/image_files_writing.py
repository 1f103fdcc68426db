"""Writing pictures as files: coded as they come, and given a second name when their episode is packed."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from recorder.columns import Array, Column, Rows
from recorder.errors import ClosedError, EpisodeError, WriteError
from recorder.files import link_or_copy, remove, sync, write_file
from recorder.leaf import Leaf, Per
from recorder.storages.adopting import Adopting
from recorder.storages.base import Reader, Run, Segment, Writer
from recorder.storages.image_files_coding import PictureCoding
from recorder.storages.image_files_reading import ImageColumn, file_name, folder_name, whole_files
from recorder.storages.streams import staged_segments, sync_folders
from recorder.threads import side_by_side


class StagedPictures:
    """The pictures of one leaf of one segment in the staging folder."""

    def __init__(self, folder: Path, coding: PictureCoding) -> None:
        self.folder = folder
        self.coding = coding
        self.rows = 0
        self.nbytes = 0
        self.fresh: list[Path] = []
        self._sizes: list[int] = []

    def write(self, row: int, picture: Array) -> None:
        """Code a picture and write its file.

        Raises:
            WriteError: the encoder or the disk failed.
        """
        path = self.folder / file_name(row, self.coding)
        try:
            data = self.coding.encode(picture)
            write_file(path, data, durable=False)
        except (OSError, ValueError, RuntimeError) as error:
            raise WriteError(
                f"{path} cannot be written: {error}; the rows before it are kept, all other leaves and segments go on"
            ) from error
        self.fresh.append(path)
        self._sizes.append(len(data))

    def weigh(self) -> None:
        """Add up what the threads wrote: they must not do it themselves."""
        self.nbytes += sum(self._sizes)
        self._sizes.clear()

    def sync(self) -> None:
        """Make all files survive a power loss."""
        if self.fresh:
            for path in self.fresh:
                sync(path)
            sync(self.folder)
            self.fresh = []


class ImageWriter(Writer, Adopting):
    """Segments whose pictures are written at once, one file a row."""

    def __init__(self, directory: Path, codings: Sequence[PictureCoding], threads: int | None) -> None:
        self._directory = directory
        self._codings = {coding.leaf: coding for coding in codings}
        self._threads = threads
        self._segments: dict[int, dict[str, StagedPictures]] = {}
        self._broken: set[StagedPictures] = set()
        self._new_folders: set[Path] = set()
        self._pid = os.getpid()
        self._closed = False

    def _check(self) -> None:
        if os.getpid() != self._pid:
            raise ClosedError("this writer of pictures belongs to the process that made it; make one in this process")
        if self._closed:
            raise ClosedError("this writer of pictures is closed")

    @property
    def nbytes(self) -> int:
        return sum(staged.nbytes for segment in self._segments.values() for staged in segment.values())

    def append(self, rows: Mapping[str, Rows], runs: Sequence[Run]) -> None:
        """Code rows side by side; after an error of one, its leaf takes no more rows of its segment."""
        self._check()
        tasks, grown = [], []
        for run in runs:
            self._segments.setdefault(run.segment, {})
            for leaf in self._codings:
                part = _part(rows[leaf.path], run, leaf.per)
                staged = self._staged(run.segment, leaf)
                if not len(part) or staged in self._broken:
                    continue
                staged.folder.mkdir(parents=True, exist_ok=True)
                tasks += [partial(staged.write, staged.rows + i, picture) for i, picture in enumerate(part)]
                staged.rows += len(part)
                grown.append(staged)
        self._code(tasks, grown)
        if strange := sorted(rows.keys() - {leaf.path for leaf in self._codings}):
            raise WriteError(f"{strange[0]!r} is no leaf of this ImageFileStorage, which can be no default storage")

    def _code(self, tasks: Sequence[partial[None]], grown: Sequence[StagedPictures]) -> None:
        try:
            side_by_side(tasks, self._threads)
        except BaseException:
            for staged in grown:
                there = len(whole_files(staged.folder, staged.coding, staged.rows))
                if there < staged.rows:
                    staged.rows = there
                    self._broken.add(staged)
            raise
        finally:
            for staged in grown:
                staged.weigh()

    def _staged(self, segment: int, leaf: Leaf) -> StagedPictures:
        held = self._segments[segment]
        if leaf.path not in held:
            folder = self._folder(segment) / leaf.path
            held[leaf.path] = StagedPictures(folder, self._codings[leaf])
            self._new_folders.update([folder, *folder.parents[: len(folder.relative_to(self._directory).parts)]])
        return held[leaf.path]

    def _folder(self, segment: int) -> Path:
        return self._directory / f"{segment:06d}"

    def end(self, segment: int) -> None:
        """Note nothing: each file is whole from the first."""

    def checkpoint(self) -> None:
        self._check()
        side_by_side([staged.sync for held in self._segments.values() for staged in held.values()], self._threads)
        sync_folders(self._new_folders)

    def segments(self) -> Sequence[Segment]:
        return staged_segments(self._segments, self._codings, lambda staged: staged.rows)

    def adopt(self, segment: Segment, reader: Reader, i: int) -> None:
        """Give the files of an episode a second name; no picture is coded."""
        self._check()
        self._segments[segment.number] = {}
        for leaf, coding in self._codings.items():
            staged = self._staged(segment.number, leaf)
            for row in range(segment.rows(leaf.per)):
                name = file_name(row, coding)
                link_or_copy(reader.directory / folder_name(leaf, i) / name, staged.folder / name)
                staged.rows += 1
                staged.nbytes += (staged.folder / name).stat().st_size

    def view(self, segment: Segment) -> Mapping[str, Column]:
        return {leaf.path: self._column(segment, leaf) for leaf in self._codings}

    def _column(self, segment: Segment, leaf: Leaf) -> Column:
        return ImageColumn(self._codings[leaf], segment.rows(leaf.per), self._held(segment, leaf).folder, self._threads)

    def _held(self, segment: Segment, leaf: Leaf) -> StagedPictures:
        if segment.number not in self._segments:
            raise EpisodeError(f"segment {segment.number} is not held by this writer of pictures")
        return self._staged(segment.number, leaf)

    def pack(self, directory: Path, segments: Sequence[Segment]) -> Sequence[Leaf]:
        self._check()
        for i, segment in enumerate(segments):
            for leaf, coding in self._codings.items():
                staged, rows = self._held(segment, leaf), segment.rows(leaf.per)
                if rows > staged.rows:
                    raise WriteError(f"{staged.folder} has {staged.rows} pictures, {rows} were to be packed")
                for row in range(rows):
                    name = file_name(row, coding)
                    link_or_copy(staged.folder / name, directory / folder_name(leaf, i) / name)
        return []

    def forget(self, segments: Sequence[int]) -> None:
        self._check()
        for segment in segments:
            self._broken.difference_update(self._segments.pop(segment, {}).values())
            remove(self._folder(segment))

    def recover(self) -> None:
        """Take over the segments of a dead writer, up to the first picture that is missing or cut."""
        for folder in sorted(self._directory.glob("[0-9]*")):
            self._segments[int(folder.name)] = {}
            for leaf in self._codings:
                staged = self._staged(int(folder.name), leaf)
                files = whole_files(staged.folder, staged.coding)
                staged.rows = len(files)
                staged.nbytes = sum(path.stat().st_size for path in files)

    def close(self) -> None:
        if os.getpid() == self._pid:
            self._closed = True


def _part(rows: Rows, run: Run, per: Per) -> Array:
    """Return the rows of a run; the first one of a segment has no transition."""
    assert isinstance(rows, np.ndarray)
    return rows[run.start + (per == "transition" and run.first) : run.stop]
