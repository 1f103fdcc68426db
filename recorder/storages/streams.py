"""Streams: what storages have in common that keep the pictures of a leaf and an episode in files of their own."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from recorder.columns import Column, JoinedColumn
from recorder.files import sync
from recorder.leaf import Leaf, Per
from recorder.storages.base import NO_LEAF, Reader, Segment

Staged = TypeVar("Staged")


class StreamReader(Reader):
    """The files of one shard: those of each leaf and episode that has rows of it."""

    def segment(self, i: int) -> Mapping[str, Column]:
        return {path: self._column(leaf, i) for path, leaf in self.leaves.items()}

    def whole(self, path: str) -> Column:
        leaf = self.leaves[path]
        return JoinedColumn(leaf, [self._column(leaf, i) for i in range(len(self.counts))])

    @abstractmethod
    def _column(self, leaf: Leaf, i: int) -> Column:
        """Return the rows of a leaf in episode `i`."""


def staged_segments(
    held: Mapping[int, Mapping[str, Staged]], leaves: Iterable[Leaf], rows: Callable[[Staged], int]
) -> Sequence[Segment]:
    """Return segments with the rows that all leaves of a class have, -1 without such leaves.

    `held` has what is staged of each leaf by number of the segment and path, and `rows` says how many rows that is.
    """
    paths: dict[Per, list[str]] = {"moment": [], "transition": []}
    for leaf in leaves:
        paths[leaf.per].append(leaf.path)

    def least(staged: Mapping[str, Staged], per: Per) -> int:
        return min((rows(staged[path]) if path in staged else 0 for path in paths[per]), default=NO_LEAF)

    return [Segment(number, least(one, "moment"), least(one, "transition")) for number, one in sorted(held.items())]


def sync_folders(folders: set[Path]) -> None:
    """Let new folders survive a power loss, and forget them."""
    while folders:
        folder = folders.pop()
        if folder.exists():
            sync(folder)
