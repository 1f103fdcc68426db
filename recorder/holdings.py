"""Holdings: all shards of a recording's folder as it is now, those too that others replace, and what of them counts."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from recorder.errors import RecorderError
from recorder.shard import NAME, Manifest, Shard


class Statements:
    """What shards say of one another: which no longer count, and which episodes."""

    def __init__(self, manifests: Iterable[Manifest]) -> None:
        self.replaced: set[str] = set()
        self.dropped: set[str] = set()
        self._inside: dict[str, set[str]] = {}
        for manifest in manifests:
            self.replaced.update(manifest.replaces)
            for said in manifest.dropped:
                shard, slash, episode = said.rpartition("/")
                (self._inside.setdefault(shard, set()) if slash else self.dropped).add(episode)

    def kept(self, name: str, ids: Sequence[str]) -> NDArray[np.intp]:
        """Return which episodes of a shard count, by their numbers in it."""
        if name in self.replaced:
            return np.empty(0, np.intp)
        gone = self.dropped | self._inside.get(name, set())
        numbers = np.arange(len(ids))
        return numbers[[episode not in gone for episode in ids]] if gone and len(ids) else numbers


class Holding(NamedTuple):
    """A shard, and which of its episodes count."""

    shard: Shard
    kept: NDArray[np.intp]

    @property
    def ids(self) -> list[str]:
        """The ids of the episodes that count."""
        ids = ids_of(self.shard)
        return [ids[i] for i in self.kept.tolist()]


class Holdings:
    """The shards that were in a folder at one time, and what of them counts."""

    def __init__(self, shards: Mapping[str, Shard], damaged: Iterable[str] = ()) -> None:
        self.shards = dict(shards)
        self.damaged = tuple(damaged)
        self.statements = Statements(shard.manifest for shard in shards.values())

    @cached_property
    def counting(self) -> list[Holding]:
        """The shards that nothing replaces, in their order, with those of their episodes that count: perhaps none."""
        found = [shard for name, shard in sorted(self.shards.items()) if name not in self.statements.replaced]
        return [Holding(shard, self.statements.kept(shard.name, ids_of(shard))) for shard in found]


def ids_of(shard: Shard) -> list[str]:
    """Return the ids of the episodes of a shard."""
    return list(shard.ids)


def look(recording: Path, opened: Mapping[str, Shard] | None = None, *, skip_damaged: bool = False) -> Holdings:
    """Return what is in a folder now; shards that are `opened` are not opened again.

    Raises:
        DamagedError, FormatError: a shard is damaged, and `skip_damaged` is not given.
    """
    shards = dict(opened or {})
    damaged: dict[str, None] = {}
    while True:
        names = shard_names(recording)
        try:
            for name in names:
                if name not in shards and name not in damaged:
                    shards[name] = Shard(recording / "shards" / name)
            return Holdings({name: shards[name] for name in names if name in shards}, damaged)
        except RecorderError:
            if not (recording / "shards" / name).exists():
                continue  # it was replaced while they were opened: another stands for it by now
            if not skip_damaged:
                raise
            damaged[name] = None


def shard_names(recording: Path) -> list[str]:
    """Return the names of all shards that are in a folder now, in their order.

    A listing takes its time: where one shard comes and the one that it replaces goes in the middle of it, it may show
    neither. So no name may be missing that was there shortly before.
    """
    before, names = set(_names(recording)), set(_names(recording))
    while not before <= names:
        before, names = names, set(_names(recording))
    return sorted(names)


def _names(recording: Path) -> Iterator[str]:
    folder = recording / "shards"
    return filter(NAME.fullmatch, os.listdir(folder)) if folder.is_dir() else iter(())  # noqa: PTH208


def transitive(shards: Iterable[Shard], there: Mapping[str, Shard]) -> list[str]:
    """Return the names of shards, and of those that they replace and that are still there."""
    names = {name for shard in shards for name in (shard.name, *shard.manifest.replaces)}
    return sorted(name for name in names if name in there)
