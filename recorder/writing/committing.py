"""Committing: what the worker does with rows, from the storages' writers to shards that everybody sees."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from recorder.columns import Array, Column, Rows
from recorder.digests import DIGEST, digests, is_digest
from recorder.discarded import QUOTA, trim
from recorder.episodes import EpisodeNote, encode_notes
from recorder.files import is_not_now, make_folder, remove, sync, write_file
from recorder.indexing import COMMITS, keep_index
from recorder.leaf import Leaf
from recorder.repeated import WhenBehind, check_when_behind, is_mark
from recorder.shard import Origin, manifest_of, pack, seal, shard_name
from recorder.storages.base import Run, Segment, Storage
from recorder.writing.capacity import Capacity, Evictor
from recorder.writing.staging import ORIGIN, ROWS, RUNNING, SHARD, Staging

GROUP_BYTES = 64 << 20
GROUP_EPISODES = 4096
"""Finished episodes are committed at the latest when they are so many bytes of rows, or so many."""

RETRY = 1.0
"""Seconds until what failed is tried again."""

AT_ONCE = 0.5
"""Seconds between checkpoints where finished episodes are committed at once."""

GRACE = 1.0
"""Seconds by which saving may be late before `step` waits for it."""

FAILED = "keep_if"
"""Why an episode is put aside that the user's function did not want to keep."""

Judge = Callable[[EpisodeNote, Mapping[str, Column]], str | None]
"""Says why an episode is to be put aside, or None to keep it."""


@dataclass(frozen=True)
class CommitOptions:
    """When and how finished episodes reach the disk.

    `digests` of pictures that are kept with loss let a replay compare them exactly; a recording that is there already
    keeps to what it has. What `keep_if` does not keep goes to the trash, or to another recording, in the folder
    `failures` of the same file system.
    """

    flush_every: float = 10.0
    fsync: bool = True
    trash: int = QUOTA
    digests: bool = True
    when_behind: WhenBehind = "block"
    capacity: Capacity | None = None
    failures: Path | None = None

    def __post_init__(self) -> None:
        """Raise `ValueError` for what means nothing."""
        check_when_behind(self.when_behind)
        if not 0 <= self.flush_every < math.inf:
            raise ValueError(f"flush_every is a number of seconds, 0 or more, got {self.flush_every!r}")
        if self.trash < 0:
            raise ValueError(f"trash is a number of bytes, 0 or more, got {self.trash!r}")


class Finished(NamedTuple):
    """An episode that has ended; with a `reason` it is to be put aside."""

    note: EpisodeNote
    reason: str


@dataclass
class Tally:
    """What a writer has done so far."""

    episodes: int = 0
    steps: int = 0
    discarded: int = 0
    refused: int = 0
    trimmed: list[str] = field(default_factory=list)
    ends: dict[str, int] = field(default_factory=dict)


class Committer:
    """Takes rows and the ends of episodes, and packs whole episodes into shards."""

    def __init__(
        self,
        recording: Path,
        storage: Storage,
        leaves: Sequence[Leaf],
        origin: Origin,
        options: CommitOptions,
        staging: Staging,
        judge: Judge | None = None,
    ) -> None:
        self.tally = Tally()
        self._recording = recording
        self._storage = storage
        self._leaves = leaves
        self._origin = origin
        self._options = options
        self._judge = judge
        self._staging = staging
        write_file(staging.path / ORIGIN, msgspec.json.encode(origin))
        self._writer = storage.writer(staging.path / ROWS, leaves)
        self._running: dict[int, EpisodeNote] = {}
        self._finished: list[Finished] = []
        self._finished_bytes = 0
        self._broken: set[int] = set()
        self._noted: set[int] = set()
        self._shards = 0
        self._row_bytes = sum(leaf.nbytes for leaf in leaves)
        self._digested = [leaf.path.removeprefix(f"{DIGEST}/") for leaf in leaves if is_digest(leaf)]
        self._marks = {leaf.path for leaf in leaves if is_mark(leaf)}
        self._has_reward = any(leaf.path == "reward" for leaf in leaves)
        self._interval = options.flush_every or AT_ONCE
        self._evictor = None if options.capacity is None else Evictor(recording, options.capacity, staging.path)
        self._group_bytes = GROUP_BYTES if options.capacity is None else options.capacity.group_bytes(GROUP_BYTES)
        self._due = time.monotonic() + self._interval
        self._unsaved = False
        self.saved = time.monotonic()

    def begin(self, note: EpisodeNote) -> None:
        """Expect rows of a new episode."""
        self._running[note.number] = note

    def append(self, rows: Mapping[str, Rows], runs: Sequence[Run]) -> None:
        """Take rows; an episode of which some could not be taken is kept up to the last whole row."""
        sound = [run for run in runs if run.segment not in self._broken] if self._broken else runs
        try:
            self._writer.append(self._with_beside(rows), sound)
        except BaseException:
            self._broken.update(run.segment for run in sound)
            raise
        self._unsaved = True
        totals = sums(rows["reward"], sound) if self._has_reward else [0.0] * len(sound)
        for (segment, start, stop, first), total in zip(sound, totals, strict=True):
            note = self._running[segment]
            note.moments += stop - start
            note.transitions += stop - start - first
            note.total += total

    def _with_beside(self, rows: Mapping[str, Rows]) -> Mapping[str, Rows]:
        """Add the digests of rows that are about to be coded with loss, and marks where nothing was marked."""
        if not self._digested and self._marks <= rows.keys():
            return rows
        none = np.zeros(max(map(len, rows.values())), bool)
        unmarked = dict.fromkeys(self._marks, none)
        return {**unmarked, **rows, **{f"{DIGEST}/{path}": digests(rows[path]) for path in self._digested}}

    def end(self, note: EpisodeNote, reason: str = "") -> None:
        """Close an episode: it is committed with the next group, put aside with a reason, or forgotten if empty."""
        if self._running.pop(note.number, None) is None:
            return
        try:
            self._writer.end(note.number)
        except BaseException:
            self._broken.add(note.number)
            self._settle(note, reason)
            raise
        self._settle(note, reason)

    def _settle(self, note: EpisodeNote, reason: str) -> None:
        if note.number in self._broken:
            self._cut(note)
        if note.transitions == 0:
            self._writer.forget([note.number])
            return
        try:
            reason = reason or self._judged(note)
        finally:
            if reason and not self._options.trash and self._place(reason).name == "discarded":
                self._drop(note)
            else:
                self._finished.append(Finished(note, reason))
                self._finished_bytes += note.moments * self._row_bytes

    def _drop(self, note: EpisodeNote) -> None:
        """Forget a discarded episode at once, so that no recovery brings it back."""
        if note.number in self._noted:
            self._write_note()
        self._writer.forget([note.number])
        self.tally.discarded += 1

    def _judged(self, note: EpisodeNote) -> str:
        """Return why an episode is to be put aside, empty to keep it; it is kept, too, where the judge raises."""
        if self._judge is None:
            return ""
        return self._judge(note, self._writer.view(Segment(note.number, note.moments, note.transitions))) or ""

    def _cut(self, note: EpisodeNote) -> None:
        """Cut an episode whose rows could not all be taken to those that every storage has."""
        self._broken.discard(note.number)
        held = {segment.number: segment for segment in self._writer.segments()}
        segment = held.get(note.number, Segment(note.number, 0, 0))
        note.moments, note.transitions = segment.moments, segment.transitions
        note.end = "exception"
        if note.transitions and self._has_reward:
            note.total = float(self._writer.view(segment)["reward"][:].sum())

    def tick(self, taken: float) -> float:
        """Commit and checkpoint if it is time; return the seconds until it is time again.

        The clock is the monotonic one, so it does not matter what happens to the time of day. All rows of before
        `taken` have been appended.
        """
        now = time.monotonic()
        if now >= self._due:
            self._due = now + min(self._interval, RETRY)
            self.flush(taken)
            self._due = now + self._interval
        elif self._finished_bytes >= self._group_bytes or len(self._finished) >= GROUP_EPISODES:
            self.commit()
        return max(self._due - time.monotonic(), 0.0)

    def flush(self, taken: float) -> None:
        """Commit all finished episodes and make the rows of running ones survive a kill."""
        try:
            self.commit()
        finally:
            self._checkpoint()
        self.saved = taken

    def _checkpoint(self) -> None:
        if self._running and self._unsaved:
            self._staging.check()
            self._writer.checkpoint()
            if (rows := self._staging.path / ROWS).exists():
                sync(rows)  # the folders of the storages
            self._write_note()
        self._unsaved = False

    def _write_note(self) -> None:
        """Note on disk which episodes are running, for recovery."""
        write_file(self._staging.path / RUNNING, encode_notes(list(self._running.values())))
        self._noted = set(self._running)

    def commit(self) -> None:
        """Make all finished episodes visible, and put aside those that were discarded.

        An episode that cannot be packed stays in staging, for recovery, and keeps no other from being committed.
        """
        raised: BaseException | None = None
        waiting = self._groups()
        if waiting:
            self._staging.check()
        while waiting:
            notes, reason = waiting.pop(0)
            try:
                self._commit(notes, reason)
            except BaseException as error:
                if is_not_now(error):
                    raise
                raised = raised or error
                if len(notes) > 1:  # what was named is there, whatever failed after that
                    waiting[:0] = [([note], reason) for note in notes if self._waits(note)]
        if raised is not None:
            raise raised

    def _waits(self, note: EpisodeNote) -> bool:
        """Return whether an episode is finished and not committed."""
        return any(finished.note is note for finished in self._finished)

    def _groups(self) -> list[tuple[list[EpisodeNote], str]]:
        """Return the finished episodes in groups of which each makes one shard, with why they are put aside."""
        groups: list[tuple[list[EpisodeNote], str]] = []
        for reason in dict.fromkeys(finished.reason for finished in self._finished):
            size = self._group_bytes + 1
            for note in (finished.note for finished in self._finished if finished.reason == reason):
                size += note.moments * self._row_bytes
                if size > self._group_bytes or len(groups[-1][0]) >= GROUP_EPISODES:
                    groups.append(([], reason))
                    size = note.moments * self._row_bytes
                groups[-1][0].append(note)
        return groups

    def _commit(self, notes: list[EpisodeNote], reason: str) -> None:
        folder = self._staging.path / SHARD
        remove(folder)
        found = pack(folder, self._storage, self._writer, self._leaves, notes)
        manifest = manifest_of(notes, found, self._staging.writer, self._origin)
        place = self._place(reason)
        manifest.reason = reason if place.name == "discarded" else ""
        if self._evictor is not None and not reason:
            manifest.dropped = self._evictor.dropped(notes, folder)
        seal(folder, manifest, self._options.fsync)
        make_folder(place, self._options.fsync)
        folder.rename(place / shard_name(self._staging.writer, self._shards, datetime.now(UTC)))
        # From here on they are there: whatever fails now, another commit would bring them twice.
        self._shards += 1
        self._done(notes)
        self._count(notes, reason)
        if self._options.fsync:
            sync(place)
        self._writer.forget([note.number for note in notes])
        if self._evictor is not None:
            self._evictor.sweep()
        if self._shards % COMMITS == 0:
            keep_index(self._recording)
        if reason:
            self.tally.trimmed += trim(self._recording, self._options.trash)

    def _place(self, reason: str) -> Path:
        """Return the folder for shards of episodes that are put aside for a reason, or kept without one."""
        if reason == FAILED and self._options.failures is not None:
            return self._options.failures / "shards"
        return self._recording / ("discarded" if reason else "shards")

    def _count(self, notes: Sequence[EpisodeNote], reason: str) -> None:
        tally = self.tally
        tally.refused += sum(len(note.refused) for note in notes)
        if reason:
            tally.discarded += len(notes)
            return
        tally.episodes += len(notes)
        tally.steps += sum(note.transitions for note in notes)
        for note in notes:
            tally.ends[note.end] = tally.ends.get(note.end, 0) + 1

    def _done(self, notes: Sequence[EpisodeNote]) -> None:
        gone = {note.number for note in notes}
        self._finished = [finished for finished in self._finished if finished.note.number not in gone]
        self._finished_bytes -= sum(note.moments for note in notes) * self._row_bytes

    def close(self) -> None:
        """Commit all that is finished and give up the staging folder; after a failure it stays, for recovery."""
        done = False
        try:
            self.commit()
            done = not self._finished and not self._running
        finally:
            self._writer.close()
            self._staging.close(keep=not done)
        if self._shards:
            keep_index(self._recording)


MANY_ROWS = 1 << 15
"""More rewards are summed by NumPy: 262,144 in runs of 22 took 10 ms against 20, in runs of 256 4 against 11."""


def _sums_of_many(reward: Array, runs: Sequence[Run]) -> list[float]:
    _, starts, stops, firsts = (np.array(column, np.int64) for column in zip(*runs, strict=True))
    starts += firsts
    spans = np.stack([starts, stops], axis=1).ravel()
    totals = np.add.reduceat(np.append(reward.astype(np.float64), 0.0), spans)[::2]
    found: list[float] = np.where(stops > starts, totals, 0.0).tolist()
    return found


def sums(reward: Rows, runs: Sequence[Run]) -> list[float]:
    """Return the sum of the rewards of each run.

    Plain numbers do for few rows: NumPy would give up the interpreter, and beside a busy loop it takes 5 ms to get it
    back. Many, as of a vector environment, take plain numbers longer than that.
    """
    assert isinstance(reward, np.ndarray)
    if len(reward) > MANY_ROWS and runs:
        return _sums_of_many(reward, runs)
    values = reward.tolist()
    return [float(sum(values[run.start + run.first : run.stop])) for run in runs]
