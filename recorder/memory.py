"""A recording in memory: the same episodes and columns as on disk, for as long as the process lives."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np

from recorder.columns import Array, Column, Rows
from recorder.episode import Episode
from recorder.episodes import EpisodeNote
from recorder.errors import EpisodeError
from recorder.leaf import JSON, Leaf, text_array
from recorder.recorded_spaces import RecordedSpaces
from recorder.schema import Schema
from recorder.shard import Manifest, Origin, manifest_of
from recorder.storages.base import Run, Segment
from recorder.storages.table import TableWriter
from recorder.writing.capacity import Capacity
from recorder.writing.committing import CommitOptions, Judge, Tally, sums

NEVER = 1e9
"""Seconds until rows in memory would have waited too long for being saved."""


NO_FOLDER = (
    "these episodes are in memory and have no folder: record with RecordingWriter(path, space), or choose among them "
    "with recording.filter(…)"
)
"""What an error says where a folder is needed."""


class Held(NamedTuple):
    """An episode in memory."""

    note: EpisodeNote
    columns: Mapping[str, Column]
    nbytes: int


class MemoryRecording(RecordedSpaces, Sequence[Episode]):
    """The episodes that a `RecordingWriter(None, space)` has kept, in the order in which they ended.

    It reads as a `Recording` does: `len`, index, id, slice, iteration, `table`, `filter`, `note`, spaces and leaves.
    """

    def __init__(self) -> None:
        self._schema: Schema | None = None
        self.manifest: Manifest | None = None
        self._held: tuple[Held, ...] = ()
        self._seen = 0

    def __len__(self) -> int:
        return len(self._held)

    @overload
    def __getitem__(self, index: int | str) -> Episode: ...
    @overload
    def __getitem__(self, index: slice) -> list[Episode]: ...
    def __getitem__(self, index: int | str | slice) -> Episode | list[Episode]:
        """Return the episode at a position or with an id, or those of a slice.

        Raises:
            IndexError: there are fewer episodes.
            KeyError: no episode has that id.
        """
        held = self._held
        if isinstance(index, slice):
            return [self._episode(one) for one in held[index]]
        if isinstance(index, str):
            found = next((one for one in held if one.note.id == index), None)
            if found is None:
                raise KeyError(f"no episode has the id {index!r}")
            return self._episode(found)
        if not -len(held) <= index < len(held):
            raise IndexError(f"episode {index} of a recording of {len(held)} episodes")
        return self._episode(held[index])

    def _episode(self, held: Held) -> Episode:
        return memory_episode(self.schema, held, self.manifest)

    def __iter__(self) -> Iterator[Episode]:
        return (self._episode(one) for one in self._held)

    def note(self, index: int) -> EpisodeNote:
        """Return what is known of the episode at a position besides its rows."""
        return self._held[index].note

    def refresh(self) -> int:
        """Return how many episodes have come since the last call; they are there without it."""
        before, self._seen = self._seen, len(self._held)
        return max(self._seen - before, 0)

    def filter(self, keep: Callable[[Episode], object]) -> list[Episode]:
        """Return the episodes for which `keep` is true."""
        return [episode for episode in self if keep(episode)]

    def table(self) -> dict[str, Array]:
        """Return the episodes as columns: id, steps, end, return, start, seed and labels, one row an episode."""
        notes = [one.note for one in self._held]
        return {
            "id": text_array([note.id for note in notes]),
            "steps": np.array([note.transitions for note in notes], np.int64),
            "end": text_array([note.end for note in notes]),
            "return": np.array([note.total for note in notes], np.float64),
            "start": np.array([note.start for note in notes], np.float64),
            "seed": text_array([note.seed for note in notes]),
            "labels": text_array([note.labels for note in notes]),
        }

    @property
    def schema(self) -> Schema:
        """The spaces and leaves that all episodes have in common."""
        assert self._schema is not None  # its writer gives it at once
        return self._schema

    @schema.setter
    def schema(self, schema: Schema) -> None:
        self._schema = schema

    @property
    def leaves(self) -> dict[str, Leaf]:
        """The leaves of all episodes by path."""
        found = dict(self.schema.leaves)
        for one in self._held:
            found.update((path, column.leaf) for path, column in one.columns.items())
        return found

    @property
    def steps(self) -> int:
        """The steps of all episodes."""
        return sum(one.note.transitions for one in self._held)

    @property
    def nbytes(self) -> int:
        """About how many bytes of rows are held."""
        return sum(one.nbytes for one in self._held)

    @property
    def metadata(self) -> Mapping[str, JSON]:
        """What is said of all episodes."""
        return {} if self.manifest is None else self.manifest.metadata

    @property
    def fps(self) -> float | None:
        """The frame rate that the environment names."""
        return None if self.manifest is None else self.manifest.fps

    def clear(self) -> int:
        """Let all episodes go; return how many they were."""
        gone, self._held = len(self._held), ()
        return gone

    def keep(self, held: Held, capacity: Capacity | None) -> None:
        """Add an episode, and let the oldest go that are too many; called by the worker."""
        kept = [*self._held, held]
        if capacity is not None:
            kept = kept[_too_many(kept, capacity) :]
        self._held = tuple(kept)

    def close(self) -> None:
        """Give up nothing: no file is open."""

    def __repr__(self) -> str:
        return f"<MemoryRecording: {len(self):,} episodes, {self.steps:,} steps>"


def _too_many(held: Sequence[Held], capacity: Capacity) -> int:
    """Return how many of the oldest have to go, so that the others fit; the newest never has to."""
    limits = (
        (capacity.episodes, [1] * len(held)),
        (capacity.steps, [one.note.transitions for one in held]),
        (capacity.bytes, [one.nbytes for one in held]),
    )
    gone = 0
    for most, sizes in limits:
        while most is not None and gone < len(held) - 1 and sum(sizes[gone:]) > most:
            gone += 1
    return gone


def memory_episode(schema: Schema, held: Held, manifest: Manifest | None) -> Episode:
    """Return an episode in memory; it takes its rows with it where it is pickled."""
    again = partial(memory_episode, schema, held, manifest)
    return Episode(schema, held.note, held.columns, again, manifest)


class MemoryTable(TableWriter):
    """Rows in memory, of which nothing ever goes into a file."""

    def __init__(self, leaves: Sequence[Leaf]) -> None:
        super().__init__(Path(), leaves, _never, _never, "")

    def checkpoint(self) -> None:
        """Do nothing: rows in memory live as long as the process."""

    def _spill(self) -> None:
        """Keep all rows, however many they are."""


def _never(_: object) -> Any:
    raise EpisodeError("a recording in memory has no files")


class MemoryCommitter:
    """Takes rows and the ends of episodes, and keeps whole episodes in memory."""

    def __init__(
        self, recording: MemoryRecording, schema: Schema, origin: Origin, options: CommitOptions, judge: Judge | None
    ) -> None:
        self.tally = Tally()
        self._recording = recording
        self._options = options
        self._judge = judge
        self._table = MemoryTable(list(schema.leaves.values()))
        self._running: dict[int, EpisodeNote] = {}
        self._has_reward = "reward" in schema.leaves
        self.saved = time.monotonic() + NEVER  # rows in memory are as safe as they will ever be
        recording.schema = schema
        recording.manifest = manifest_of([], [], "", origin)

    def begin(self, note: EpisodeNote) -> None:
        """Expect rows of a new episode."""
        self._running[note.number] = note

    def append(self, rows: Mapping[str, Rows], runs: Sequence[Run]) -> None:
        """Take rows."""
        self._table.append(rows, runs)
        totals = sums(rows["reward"], runs) if self._has_reward else [0.0] * len(runs)
        for (segment, start, stop, first), total in zip(runs, totals, strict=True):
            note = self._running[segment]
            note.moments += stop - start
            note.transitions += stop - start - first
            note.total += total

    def end(self, note: EpisodeNote, reason: str = "") -> None:
        """Keep an episode that has ended, unless it is empty, was discarded, or is not to be kept."""
        if self._running.pop(note.number, None) is None:
            return
        try:
            if note.transitions:
                self._keep(note, reason)
        finally:
            self._table.forget([note.number])

    def _keep(self, note: EpisodeNote, reason: str) -> None:
        columns = dict(self._table.view(Segment(note.number, note.moments, note.transitions)))
        tally = self.tally
        tally.refused += len(note.refused)
        if reason or (self._judge is not None and self._judge(note, columns)):
            tally.discarded += 1
            return
        size = sum(column.leaf.nbytes * len(column) for column in columns.values())
        self._recording.keep(Held(note, columns, size), self._options.capacity)
        tally.episodes += 1
        tally.steps += note.transitions
        tally.ends[note.end] = tally.ends.get(note.end, 0) + 1

    def tick(self, taken: float) -> float:
        """Return the seconds until something is due, which nothing ever is."""
        return 60.0

    def flush(self, taken: float) -> None:
        """Do nothing: episodes are kept as soon as they end."""

    def close(self) -> None:
        """Do nothing: all that has ended is kept."""
