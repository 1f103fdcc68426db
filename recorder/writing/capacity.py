"""Capacity: a recording keeps its newest episodes, and lets go of whole oldest ones as new ones come.

What goes is said in the very shard that brings the new episodes, so no reader ever sees more than there may be, nor
less. Shards of which nothing is left leave the disk; those of which something is left stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from recorder.episodes import EpisodeNote
from recorder.errors import BusyError
from recorder.files import files_below
from recorder.holdings import Holding, Holdings, look
from recorder.shard import MANIFEST, Shard
from recorder.writing.sweeping import alone, sweep

MANIFEST_BYTES = 4096
"""What a manifest that is yet to be written is taken to have at most."""

PARTS = 8
"""Where bytes are bounded, a shard holds at most this part of them, since only whole shards leave the disk."""


@dataclass(frozen=True)
class Capacity:
    """How much a recording keeps at most: so many steps, bytes on disk or episodes; the newest episode always stays.

    It is what a writer does, not what a recording is: it can be another one, or none, the next time.
    """

    steps: int | None = None
    bytes: int | None = None
    episodes: int | None = None

    def __post_init__(self) -> None:
        for name in ("steps", "bytes", "episodes"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise ValueError(f"Capacity({name}={value!r}): a number from 1 on is needed, or None")

    def group_bytes(self, most: int) -> int:
        """Return how many bytes a shard may have, if it may have `most` without this."""
        return most if self.bytes is None else max(1, min(most, self.bytes // PARTS))


class Item(NamedTuple):
    """An episode that counts: its id and its steps."""

    id: str
    steps: int


class Evictor:
    """Finds what has to go when new episodes come."""

    def __init__(self, recording: Path, capacity: Capacity, room: Path) -> None:
        self._recording = recording
        self._capacity = capacity
        self._room = room
        self._opened: dict[str, Shard] = {}
        self._pending = True

    def dropped(self, notes: Sequence[EpisodeNote], folder: Path) -> list[str]:
        """Return the ids of those that go when the episodes of `notes`, packed in `folder`, are added."""
        holdings = self._look()
        fresh = [Item(note.id, note.transitions) for note in notes]
        items = [item for holding in holdings.counting for item in _items(holding)] + fresh
        gone = max(self._over_episodes(items), self._over_steps(items))
        ids = [item.id for item in items[:gone]]
        ids += [one for one in self._over_bytes(holdings, folder) if one not in set(ids)]
        self._pending = self._pending or bool(ids)
        return ids

    def _look(self) -> Holdings:
        holdings = look(self._recording, self._opened, skip_damaged=True)
        self._opened = holdings.shards
        return holdings

    def _over_episodes(self, items: Sequence[Item]) -> int:
        most = self._capacity.episodes
        return 0 if most is None else max(len(items) - most, 0)

    def _over_steps(self, items: Sequence[Item]) -> int:
        """Return how many of the oldest have to go, so that the others fit; the newest never has to."""
        most = self._capacity.steps
        if most is None:
            return 0
        total, gone = sum(item.steps for item in items), 0
        while total > most and gone < len(items) - 1:
            total -= items[gone].steps
            gone += 1
        return gone

    def _over_bytes(self, holdings: Holdings, folder: Path) -> Iterator[str]:
        """Yield the ids of all episodes of the oldest shards, until the others fit."""
        if self._capacity.bytes is None:
            return
        there = [holding for holding in holdings.counting if len(holding.kept)]
        sizes = [_on_disk(holding.shard) for holding in there]
        total = sum(sizes) + sum(path.stat().st_size for path in files_below(folder)) + MANIFEST_BYTES
        for holding, size in zip(there, sizes, strict=True):
            if total <= self._capacity.bytes:
                return
            total -= size
            yield from holding.ids

    def sweep(self) -> None:
        """Let shards of which nothing is left go from the disk, unless another process is doing that, or edits."""
        if not self._pending:
            return
        with suppress(BusyError), alone(self._recording, patience=0.0):
            holdings = self._look()
            if not holdings.damaged:
                for name in sweep(self._recording, self._room, holdings):
                    self._opened.pop(name, None)
            self._pending = False


def _on_disk(shard: Shard) -> int:
    """Return the bytes of a shard, its manifest too."""
    try:
        return shard.nbytes + (shard.path / MANIFEST).stat().st_size
    except FileNotFoundError:
        return 0


def _items(holding: Holding) -> Iterator[Item]:
    if not len(holding.kept):
        return
    steps = holding.shard.episodes.counts().transitions[holding.kept].tolist()
    yield from map(Item, holding.ids, steps)
