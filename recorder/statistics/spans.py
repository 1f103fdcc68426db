"""Spans: where the rows of leaves lie in a replay buffer or a recording, some episodes at a time."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from recorder.columns import Array, Column, SpanColumn
from recorder.leaf import Leaf
from recorder.recording import Recording
from recorder.replay_buffer.buffer import ReplayBuffer
from recorder.replay_buffer.copying import Span

BLOCK_BYTES, BLOCK_ROWS = 16 << 20, 4096
"""Rows that are read at once: no more than either."""

FIRST_ROWS = 64
"""Rows of no one length that are read to see how long they are."""


class SpanSource(ABC):
    """What statistics are made of: leaves by path, and their rows."""

    name: str
    leaves: Mapping[str, Leaf]
    lengths: Array
    """The steps of each episode."""

    @abstractmethod
    def groups(self, episodes: Sequence[int]) -> Iterator[list[int]]:
        """Yield episodes in their order, those together that are read together."""

    @abstractmethod
    def forms(self, path: str, episodes: Sequence[int]) -> list[tuple[Leaf, int]]:
        """Return what the rows of a leaf are in some episodes, each with how many rows are so."""

    @abstractmethod
    def spans(self, paths: Sequence[str], group: Sequence[int]) -> dict[str, list[Span]]:
        """Return where the rows of leaves lie in a group of episodes; what was given before may be closed."""


class BufferSpans(SpanSource):
    """A replay buffer, each key of which is one column."""

    def __init__(self, buffer: ReplayBuffer) -> None:
        self._buffer = buffer
        self.name = repr(buffer)
        self.leaves = {key: column.leaf for key, column in buffer.items()}
        self.lengths = buffer.episode_lengths

    def groups(self, episodes: Sequence[int]) -> Iterator[list[int]]:
        yield list(episodes)

    def forms(self, path: str, episodes: Sequence[int]) -> list[tuple[Leaf, int]]:
        return [(self.leaves[path], int(self.lengths[list(episodes)].sum()))] if len(episodes) else []

    def spans(self, paths: Sequence[str], group: Sequence[int]) -> dict[str, list[Span]]:
        slices = [self._buffer.episode_slice(i) for i in group]
        return {path: _joined([Span(self._buffer[path], each.start, each.stop) for each in slices]) for path in paths}


class RecordingSpans(SpanSource):
    """A recording, read shard by shard: the files of one are given up when the next is read."""

    def __init__(self, recording: Recording) -> None:
        self._recording = copy.copy(recording)  # which has open files of its own
        self._shard = -1
        self._ends = recording.shard_ends
        common = list(recording.schema.leaves.values())
        self._shard_leaves = [{leaf.path: leaf for leaf in shard.own(common)} for shard in recording.shards]
        self.name = repr(recording)
        self.leaves = recording.leaves
        self.lengths = np.asarray(recording.table()["steps"], np.int64) if len(recording) else np.zeros(0, np.int64)

    def _shard_of(self, episode: int) -> int:
        return int(np.searchsorted(self._ends, episode, "right"))

    def groups(self, episodes: Sequence[int]) -> Iterator[list[int]]:
        group: list[int] = []
        for episode in episodes:
            if group and self._shard_of(episode) != self._shard_of(group[-1]):
                yield group
                group = []
            group.append(episode)
        if group:
            yield group

    def forms(self, path: str, episodes: Sequence[int]) -> list[tuple[Leaf, int]]:
        found = []
        for group in self.groups(episodes):
            leaf = self._shard_leaves[self._shard_of(group[0])].get(path)
            if leaf is not None:  # a shard lacks keys of info that none of its episodes had
                steps = int(self.lengths[group].sum())
                found.append((leaf, steps + len(group) * (leaf.per == "moment")))
        return found

    def spans(self, paths: Sequence[str], group: Sequence[int]) -> dict[str, list[Span]]:
        shard = self._shard_of(group[0])
        if shard != self._shard:
            self._recording.close()
            self._shard = shard
        columns = [self._recording[i].columns for i in group]
        return {path: _joined([_placed(each[path]) for each in columns if path in each]) for path in paths}


def _placed(column: Column) -> Span:
    whole, start = column.place if isinstance(column, SpanColumn) else (column, 0)
    return Span(whole, start, start + len(column))


def _joined(spans: Sequence[Span]) -> list[Span]:
    """Return spans, those that follow one another as one."""
    found: list[Span] = []
    for span in spans:
        if found and found[-1].column is span.column and found[-1].stop == span.start:
            found[-1] = found[-1]._replace(stop=span.stop)
        else:
            found.append(span)
    return found


def blocks(column: Column, start: int, stop: int, every: int = 1) -> Iterator[Array]:
    """Yield the rows `[start, stop)` in blocks, all or every so many of them."""
    size = max(1, min(BLOCK_ROWS, BLOCK_BYTES // max(column.leaf.nbytes, 1)))
    if column.leaf.ragged or column.dtype == object:
        size = min(size, FIRST_ROWS)
    while start < stop:
        rows = column[start : min(start + size * every, stop) : every]
        yield rows
        start += size * every
        if rows.dtype == object and len(rows):
            size = max(1, min(BLOCK_ROWS, 4 * size, BLOCK_BYTES * len(rows) // max(held_bytes(rows), 1)))


def held_bytes(rows: Array) -> int:
    """Return about how many bytes rows of different lengths take: arrays, texts, or None where one is absent."""
    values = np.ma.getdata(rows)
    return sum(value.nbytes if isinstance(value, np.ndarray) else len(str(value)) for value in values.flat)
