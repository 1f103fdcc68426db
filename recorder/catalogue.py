"""The catalogue: which shards of which folders count, in the order in which they were first seen, and what they hold.

It is a few columns, about 100 bytes a shard; shards are opened when something of them is asked for.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence, Set
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from recorder.errors import DamagedError, GoneError, RecorderError
from recorder.holdings import shard_names
from recorder.index import (
    FROM_SHARDS,
    INDEX,
    UNKNOWN,
    Entries,
    entries_of_shards,
    id_parts,
    joined,
    names_array,
    read_index,
)
from recorder.schema import read_schema
from recorder.shard import Shard

OPEN_SHARDS = 1024
"""Shards of which the manifest and the list of episodes are kept in memory."""

Numbers = NDArray[np.int64]


class Place(NamedTuple):
    """Where an episode is: the folder, the row of the catalogue, and the number in the shard."""

    folder: int
    row: int
    inside: int


class Folder:
    """The shards of one recording folder that were seen so far."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.schema = read_schema(path)
        self.names: NDArray[np.bytes_] = names_array([])
        self.lost: set[str] = set()
        self.damaged: dict[Path, str] = {}

    def look(self, *, skip_damaged: bool) -> tuple[Entries, list[Shard]]:
        """Return the shards that are there now and were not before, and some of those that had to be opened.

        With `skip_damaged` each is opened, and a damaged one is noted and looked at again the next time.

        Raises:
            DamagedError: a shard is damaged, and `skip_damaged` is not given.
        """
        while True:
            there = names_array(shard_names(self.path))
            try:
                found, opened = self._new(there, skip_damaged)
                break
            except GoneError:
                continue  # it was replaced since: another shard stands for it by now
        names = np.sort(np.concatenate([self.names, found.names]))
        left = np.isin(names, there) if len(names) + len(self.damaged) > len(there) else np.ones(len(names), bool)
        self.names, self.lost = names[left], set(names[~left].astype(str).tolist())
        return found, opened

    def _new(self, there: NDArray[np.bytes_], skip_damaged: bool) -> tuple[Entries, list[Shard]]:
        new = there[~np.isin(there, self.names)] if len(self.names) else there
        known = self._indexed(new) if len(new) >= FROM_SHARDS and not skip_damaged else joined([])
        unknown = new if not len(known.names) else new[:0]
        if 0 < len(known.names) < len(new):
            unknown = new[~np.isin(new, known.names)]
        opened: list[Shard] = []
        shards = self._open(unknown.astype(str).tolist(), skip_damaged, opened)
        found = joined([known, entries_of_shards(shards, ids=False)])
        in_order = bool((found.names[1:] > found.names[:-1]).all())
        return found if in_order else found.at(np.argsort(found.names)), opened

    def _indexed(self, new: NDArray[np.bytes_]) -> Entries:
        """Return what the index says of new shards, each once."""
        indexed = read_index(self.path)
        if np.array_equal(indexed.names, new):  # to compare names as sets takes ten times as long
            return indexed
        _, first = np.unique(indexed.names, return_index=True)
        return indexed.at(first[np.isin(indexed.names[first], new)])

    def _open(self, names: Sequence[str], skip_damaged: bool, keep: list[Shard]) -> Iterator[Shard]:
        """Yield shards, and keep as many as may stay in memory."""
        for name in names:
            path = self.path / "shards" / name
            try:
                shard = Shard(path)
                if len(keep) < OPEN_SHARDS:
                    keep.append(shard)
                yield shard
            except RecorderError as error:
                if not path.exists():
                    raise GoneError(f"{path} was replaced or deleted") from error
                if not skip_damaged:
                    raise type(error)(f"{error}; Recording(path, damaged='skip') reads all other shards") from error
                self.damaged[path] = str(error)


class Catalogue:
    """All episodes that count, by position."""

    def __init__(self, paths: Sequence[Path], *, skip_damaged: bool = False) -> None:
        self.folders = [Folder(path) for path in paths]
        self._skip_damaged = skip_damaged
        self._entries = joined([])
        self._owners: NDArray[np.int32] = np.empty(0, np.int32)
        self._heirs: dict[str, str] = {}
        self._beside: dict[str, list[str]] = {}
        self._said: set[str] = set()
        self._gone: dict[int, Numbers] = {}
        self._ends: Numbers = np.empty(0, np.int64)
        self._shards: OrderedDict[int, Shard] = OrderedDict()

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_shards": OrderedDict()}

    @property
    def rows(self) -> range:
        """The shards that count, by row."""
        return range(len(self._ends))

    def refresh(self) -> int:
        """Add the episodes that were committed since, and return how many they are.

        Where shards were replaced since, what stands for them takes the place of the first; what stands for some
        episodes of a shard comes next to it.
        """
        looked = [folder.look(skip_damaged=self._skip_damaged) for folder in self.folders]
        seen = len(self._owners)
        dead = set[str]().union(*(folder.lost for folder in self.folders))
        said = set[str]()
        for entries, _ in looked:
            for heir, (replaces, dropped) in entries.edits.items():
                self._heirs.update(dict.fromkeys(replaces, heir))
                for shard in {one.rpartition("/")[0] for one in dropped} - {""}:
                    self._beside.setdefault(shard, []).append(heir)
                dead.update(replaces)
                said.update(dropped)
        for k, (entries, opened) in enumerate(looked):
            self._add(k, entries, opened)
        order = list(range(len(self._owners)))
        first = seen
        if dead or any("/" in one for one in said):
            order, first = self._succession(dead, seen)
            self._arrange(order)
        fresh = said - self._said
        self._said |= said
        self._count([row for row, before in enumerate(order) if before < seen], fresh)
        self._count([row for row, before in enumerate(order) if before >= seen], self._said)
        self._sum()
        return len(self) - self._first(first)

    def _add(self, folder: int, entries: Entries, opened: Sequence[Shard]) -> None:
        """Add rows for new shards, but for those that are replaced already."""
        if self._heirs:
            entries = entries.at(~np.isin(entries.names, names_array(list(self._heirs))))
        if not len(entries.names):
            return
        first = len(self._owners)
        self._entries = joined([self._entries, entries._replace(edits={})])
        self._owners = np.append(self._owners, np.full(len(entries.names), folder, np.int32))
        rows = {name: first + i for i, name in enumerate(entries.names.astype(str).tolist())} if opened else {}
        for shard in opened:
            if shard.name in rows:
                self._shards[rows[shard.name]] = shard

    def _succession(self, dead: Set[str], seen: int) -> tuple[list[int], int]:
        """Return the rows in their new order, without those of `dead` shards, and where those begin that are new."""
        names = self._entries.names.astype(str).tolist()
        rows = {name: row for row, name in enumerate(names) if name not in dead}
        order: dict[int, None] = {}
        for name in names[:seen]:
            for one in (name, *self._beside.get(name, ())):
                heir = one
                while heir in dead and heir in self._heirs:
                    heir = self._heirs[heir]
                if heir in rows:
                    order[rows[heir]] = None
        first = len(order)
        order.update((row, None) for name, row in rows.items())
        return list(order), first

    def _arrange(self, order: Sequence[int]) -> None:
        """Put rows into another order; those that are not in it go."""
        places = {before: row for row, before in enumerate(order)}
        picked = np.array(order, np.intp)
        self._entries, self._owners = self._entries.at(picked), self._owners[picked]
        self._gone = {places[row]: gone for row, gone in self._gone.items() if row in places}
        self._shards = OrderedDict((places[row], shard) for row, shard in self._shards.items() if row in places)

    def _count(self, rows: Sequence[int], said: Set[str]) -> None:
        """Find which episodes of some shards do not count, where these may be among what was `said` to be dropped."""
        if not said or not rows:
            return
        for row in self._touched(rows, said):
            self._gone[row] = self._dropped_in(row)

    def _sum(self) -> None:
        counts = self._entries.episodes.copy()
        for row, gone in self._gone.items():
            counts[row] -= len(gone)
        self._ends = np.cumsum(counts)

    def _touched(self, rows: Sequence[int], said: Set[str]) -> list[int]:
        """Return which shards may hold an episode that was dropped."""
        entries = self._entries.at(np.array(rows, np.intp))
        mask = entries.lowest == UNKNOWN
        writers = entries.writers()
        numbers: dict[str, list[int]] = {}
        inside: list[str] = []
        for shard, slash, episode in (one.rpartition("/") for one in said):
            if slash:
                inside.append(shard)
            else:
                writer, number = id_parts(episode)
                numbers.setdefault(writer, []).append(number)
        for writer, wanted in numbers.items():
            sought = np.sort(np.array(wanted, np.int64))
            within = np.searchsorted(sought, entries.lowest) < np.searchsorted(sought, entries.highest, "right")
            mask |= within & (writers == writer.encode())
        if inside:
            mask |= np.isin(entries.names, names_array(inside))
        return [rows[i] for i in np.flatnonzero(mask & (entries.episodes > 0)).tolist()]

    def _dropped_in(self, row: int) -> Numbers:
        shard = self.shard(row)
        ids = shard.episodes.required("id").astype(str).tolist()
        gone = [episode in self._said or f"{shard.name}/{episode}" in self._said for episode in ids]
        return np.flatnonzero(gone)

    def place(self, index: int) -> Place:
        """Return where the episode at a position is.

        Raises:
            IndexError: there are fewer episodes.
        """
        at = index + len(self) * (index < 0)
        if not 0 <= at < len(self):
            raise IndexError(f"episode {index} of a recording of {len(self)} episodes")
        row = bisect_right(self._ends, at)
        return Place(int(self._owners[row]), row, int(self.kept(row)[at - self._first(row)]))

    def _first(self, row: int) -> int:
        return int(self._ends[row - 1]) if row else 0

    def kept(self, row: int) -> Numbers:
        """Return which episodes of a shard count, by their numbers in it."""
        numbers = np.arange(int(self._entries.episodes[row]))
        return np.delete(numbers, self._gone[row]) if row in self._gone else numbers

    def position(self, episode_id: str) -> int:
        """Return the position of the episode with an id.

        Raises:
            KeyError: there is none.
        """
        for row in self._candidates(episode_id):
            kept = self.kept(row)
            found = np.flatnonzero(self.shard(row).episodes.required("id")[kept] == episode_id)
            if len(found):
                return int(found[0]) + self._first(row)
        raise KeyError(f"no episode has the id {episode_id!r}")

    def _candidates(self, episode_id: str) -> Iterator[int]:
        """Yield the shards that may hold an episode, the most likely first."""
        writer, number = id_parts(episode_id)
        entries = self._entries
        own = entries.writers() == writer.encode()
        unknown = entries.lowest == UNKNOWN
        yield from np.flatnonzero(own & (entries.lowest <= number) & (number <= entries.highest)).tolist()
        yield from np.flatnonzero(own & unknown).tolist()
        yield from np.flatnonzero(~own & unknown).tolist()

    def shard(self, row: int) -> Shard:
        """Return a shard by its row.

        Raises:
            DamagedError: it is damaged, or the index was.
        """
        if row not in self._shards:
            shard = Shard(self._path(row))
            if shard.manifest.episodes != (said := int(self._entries.episodes[row])):
                raise DamagedError(
                    f"{shard.path} has {shard.manifest.episodes} episodes, and {INDEX} says {said}; one of them is "
                    f"damaged: look with `recorder verify`, or delete {INDEX}, which loses nothing"
                )
            self._shards[row] = shard
            if len(self._shards) > OPEN_SHARDS:
                self._shards.popitem(last=False)
        self._shards.move_to_end(row)
        return self._shards[row]

    def _path(self, row: int) -> Path:
        return self.folders[int(self._owners[row])].path / "shards" / str(self._entries.names[row], "ascii")

    def shards(self) -> Iterator[tuple[Shard, Numbers]]:
        """Yield all shards of which an episode counts, and which of their episodes do."""
        for row in self.rows:
            if len(kept := self.kept(row)):
                yield self.shard(row), kept

    @property
    def steps(self) -> int:
        """The steps of all episodes."""
        gone = sum(int(self.shard(row).episodes.required("transitions")[at].sum()) for row, at in self._gone.items())
        return int(self._entries.transitions.sum()) - gone
