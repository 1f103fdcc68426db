"""The writer of ZarrStorage: segments in memory and in staging, until they are packed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from recorder.columns import Column, Rows, SpanColumn
from recorder.errors import ClosedError, DamagedError
from recorder.files import make_folder, remove, sync
from recorder.leaf import Leaf, Per
from recorder.storages.adopting import Adopting
from recorder.storages.base import NO_LEAF, Reader, Run, Segment, Writer
from recorder.storages.zarr_array import Grid
from recorder.storages.zarr_chunking import ArrayPacker, Track
from recorder.storages.zarr_parts import Entry, Part, read_part, write_part
from recorder.storages.zarr_reader import ZarrReader

MOST_PARTS = 64
"""More checkpoint files than these are made one."""


class ZarrWriter(Writer, Adopting):
    """Codes rows as they come.

    Below `directory` a segment that has something on disk has a folder, `000012`; in it each leaf has the
    folder of a zarr array with full shard files only. Checkpoint files, `000003.part`, hold what is newer. A
    segment whose folder is gone is gone.
    """

    def __init__(self, directory: Path, leaves: Sequence[Leaf], grid: Callable[[Leaf], Grid]) -> None:
        self._directory = directory
        self._grids = {leaf.path: grid(leaf) for leaf in leaves}
        self._tracks: dict[int, dict[str, Track]] = {}
        self._staged: set[int] = set()  # those that may have a folder
        self._parts: list[Part] = []
        self._written = 0
        self._closed = False

    @property
    def nbytes(self) -> int:
        return sum(track.nbytes for tracks in self._tracks.values() for track in tracks.values())

    def append(self, rows: Mapping[str, Rows], runs: Sequence[Run]) -> None:
        self._check_open()
        touched = [self._of(run.segment) for run in runs]
        for path, grid in self._grids.items():
            column, skipped = rows[path], grid.leaf.per == "transition"
            assert isinstance(column, np.ndarray), path
            for run, tracks in zip(runs, touched, strict=True):
                tracks[path].add(column[run.start + (run.first and skipped) : run.stop])
        # All rows are taken before anything is written: on a full disk the leaves stay equally long.
        for run, tracks in zip(runs, touched, strict=True):
            self._flush(run.segment, tracks)

    def _of(self, segment: int) -> dict[str, Track]:
        if segment not in self._tracks:
            folder = self._folder(segment)
            self._tracks[segment] = {path: Track(folder / f"{path}.zarr", grid) for path, grid in self._grids.items()}
        return self._tracks[segment]

    def _folder(self, segment: int) -> Path:
        return self._directory / f"{segment:06d}"

    def _flush(self, segment: int, tracks: Mapping[str, Track]) -> None:
        for track in tracks.values():
            if len(track.chunks) >= track.grid.shard_chunks:
                self._staged.add(segment)
                track.flush()

    def end(self, segment: int) -> None:
        for track in self._tracks.get(segment, {}).values():
            track.trim()

    def checkpoint(self) -> None:
        self._check_open()
        merge = len(self._parts) >= MOST_PARTS
        entries = [
            Entry(segment, path, *chunk)
            for segment, tracks in self._tracks.items()
            for path, track in tracks.items()
            for chunk in track.fresh(0 if merge else track.saved)
        ]
        if entries:
            self._save(entries, replace=merge)
        self._drop_parts()

    def _save(self, entries: Sequence[Entry], replace: bool) -> None:
        make_folder(self._directory, durable=True)
        for segment in {entry.segment for entry in entries}:
            self._staged.add(segment)
            self._folder(segment).mkdir(exist_ok=True)
        part = write_part(self._directory / f"{self._written:06d}.part", entries)
        self._written += 1
        old, self._parts = (self._parts, [part]) if replace else ([], [*self._parts, part])
        for tracks in self._tracks.values():
            for track in tracks.values():
                track.saved = track.rows
        for gone in old:
            remove(gone.path)

    def _drop_parts(self) -> None:
        """Remove the checkpoints of which all is in shard files, or forgotten."""
        for part in [part for part in self._parts if not self._needed(part)]:
            remove(part.path)
            self._parts.remove(part)

    def _needed(self, part: Part) -> bool:
        for (segment, path), end in part.ends.items():
            track = self._tracks.get(segment, {}).get(path)
            if track is not None and end > track.staged_rows:
                return True
        return False

    def segments(self) -> Sequence[Segment]:
        return [
            Segment(number, self._rows(tracks, "moment"), self._rows(tracks, "transition"))
            for number, tracks in sorted(self._tracks.items())
        ]

    def _rows(self, tracks: Mapping[str, Track], per: Per) -> int:
        return min((track.rows for track in tracks.values() if track.grid.leaf.per == per), default=NO_LEAF)

    def adopt(self, segment: Segment, reader: Reader, i: int) -> None:
        """Take the chunks of an episode as they are where each holds one row; others are coded anew, without loss."""
        self._check_open()
        assert isinstance(reader, ZarrReader)
        tracks = self._of(segment.number)
        for path, grid in self._grids.items():
            start, stop = reader.counts.span(grid.leaf.per, i)
            for first in range(start, stop, grid.shard_rows):
                reader.copy(path, first, min(first + grid.shard_rows, stop), tracks[path])
                self._flush(segment.number, tracks)
        self.end(segment.number)

    def view(self, segment: Segment) -> Mapping[str, Column]:
        return {
            path: SpanColumn(track.column(), 0, segment.rows(track.grid.leaf.per))
            for path, track in self._tracks[segment.number].items()
        }

    def pack(self, directory: Path, segments: Sequence[Segment]) -> Sequence[Leaf]:
        for path, grid in self._grids.items():
            packer = ArrayPacker(directory / f"{path}.zarr", grid)
            for segment in segments:
                packer.copy(self._tracks[segment.number][path], segment.rows(grid.leaf.per))
            packer.finish()
        return []

    def forget(self, segments: Sequence[int]) -> None:
        known = [segment for segment in segments if self._tracks.pop(segment, None) is not None]
        staged = self._staged.intersection(known)
        if not staged:
            return
        self._staged -= staged
        folders = [folder for folder in map(self._folder, staged) if folder.exists()]
        gone = [folder.rename(folder.with_name(f".{folder.name}")) for folder in folders]
        sync(self._directory)
        for folder in gone:
            remove(folder)
        self._drop_parts()
        for part in self._parts:
            part.erase(staged)

    def close(self) -> None:
        """Give up nothing but this writer: no file stays open."""
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the writer of a ZarrStorage was used after close()")

    def recover(self) -> None:
        """Take over what a dead writer left: whole shard files, then what checkpoints add to them."""
        for folder in sorted(self._directory.glob("*")):
            if folder.name.isdecimal():  # others are forgotten, and go with the whole staging folder
                self._staged.add(int(folder.name))
        for segment in sorted(self._staged):
            for track in self._of(segment).values():
                track.recover_files()
        for path in sorted(self._directory.glob("*.part")):
            self._written = int(path.stem) + 1
            self._recover_part(path)
        for tracks in self._tracks.values():
            for track in tracks.values():
                track.saved = track.rows

    def _recover_part(self, path: Path) -> None:
        try:
            part, entries = read_part(path)
        except DamagedError:
            part, entries = Part(path, 0, []), []
        self._parts.append(part)
        for segment, leaf, start, rows, data in entries:
            if segment in self._staged and leaf in self._grids:
                self._tracks[segment][leaf].recover_chunk(start, rows, data)
