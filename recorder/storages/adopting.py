"""Adopting: an episode of a shard becomes a segment of a writer, coded rows as they are where that can be."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from recorder.columns import Array, Column, Ragged, Rows, Sparse, as_sparse, take
from recorder.errors import LayoutError
from recorder.leaf import Leaf
from recorder.storages.base import Reader, Run, Segment, Storage, Writer

BLOCK_BYTES = 8 << 20
"""Rows that are read at once where they are copied one by one."""

MOST_ROWS = 8192


class Adopting(ABC):
    """What a writer of coded rows has besides: it takes an episode of a shard without coding it anew."""

    @abstractmethod
    def adopt(self, segment: Segment, reader: Reader, i: int) -> None:
        """Take episode `i` of a shard that the same storage has packed, as a segment that has ended."""


class Copy(NamedTuple):
    """The rows of one episode to be copied: what they are, and where they come from."""

    leaves: Sequence[Leaf]
    columns: Mapping[str, Column]


def adopt(writer: Writer, segment: Segment, reader: Reader, i: int) -> None:
    """Let a writer have an episode of a shard that the same storage has packed."""
    if isinstance(writer, Adopting):
        writer.adopt(segment, reader, i)
    else:
        copy(writer, segment, Copy(list(reader.leaves.values()), reader.segment(i)))


def copy(writer: Writer, segment: Segment, source: Copy) -> None:
    """Append all rows of an episode to a writer, in blocks."""
    leaves, columns = source
    first = segment.moments > segment.transitions
    size = max(1, min(MOST_ROWS, BLOCK_BYTES // (sum(leaf.nbytes for leaf in leaves) or 1)))
    for start in range(0, segment.moments, size):
        stop = min(start + size, segment.moments)
        rows = {leaf.path: _block(leaf, columns[leaf.path], start, stop, shifted=first) for leaf in leaves}
        writer.append(rows, [Run(segment.number, 0, stop - start, first and start == 0)])
    writer.end(segment.number)


def copy_neighbours(writer: Writer, segments: Sequence[Segment], reader: Reader, first: int) -> None:
    """Append all rows of episodes that lie one after another in a shard, from number `first` on, as one batch.

    One by one, episodes of a few steps take thirty times as long.
    """
    last = first + len(segments)
    moments, transitions = reader.counts.moments[first:last], reader.counts.transitions[first:last]
    stops = np.cumsum(moments)
    starts = stops - moments
    rows: dict[str, Rows] = {}
    for leaf in reader.leaves.values():
        begin, end = reader.counts.span(leaf.per, first)[0], reader.counts.span(leaf.per, last - 1)[1]
        column = reader.whole(leaf.path).rows(begin, end)
        column = as_sparse(leaf, column) if leaf.sparse else column
        if leaf.per == "transition" and (moments != transitions).any():
            column = take(column, _beside(starts, moments, transitions))
        rows[leaf.path] = column
    behind = (moments > transitions).tolist()
    numbers = [segment.number for segment in segments]
    writer.append(rows, list(map(Run, numbers, starts.tolist(), stops.tolist(), behind)))
    for number in numbers:
        writer.end(number)


def _beside(starts: Array, moments: Array, transitions: Array) -> Array:
    """Return which transition stands beside each moment; the first of an episode has none, and gets any."""
    gaps = moments - transitions
    index: Array = np.arange(int(moments.sum())) - np.repeat(np.cumsum(gaps), moments)
    index[starts[gaps > 0]] += 1
    return index


def neighbours(segments: Sequence[Segment], nbytes: int) -> Iterator[slice]:
    """Yield episodes that lie one after another in parts of which each is worth one batch."""
    most = max(1, min(MOST_ROWS, BLOCK_BYTES // max(nbytes, 1)))
    start = rows = 0
    for i, segment in enumerate(segments):
        if rows and rows + segment.moments > most:
            yield slice(start, i)
            start, rows = i, 0
        rows += segment.moments
    if segments:
        yield slice(start, len(segments))


def _block(leaf: Leaf, column: Column, start: int, stop: int, *, shifted: bool) -> Rows:
    """Return the rows of one leaf that stand beside the moments `[start, stop)`; the first of all has no transition."""
    behind = shifted and leaf.per == "transition"
    rows = column.rows(max(start - behind, 0), stop - behind)
    if leaf.sparse:
        rows = as_sparse(leaf, rows)
    return _padded(rows) if behind and start == 0 else rows


def _padded(rows: Rows) -> Rows:
    """Return rows with one before them that means nothing."""
    match rows:
        case Ragged(lengths, values):
            return Ragged(_padded_array(lengths), values)
        case Sparse(leaf, present, values):
            return Sparse(leaf, _padded_array(present), values)
        case _:
            return _padded_array(rows)


def _padded_array(rows: Array) -> Array:
    blank = np.zeros((1, *rows.shape[1:]), rows.dtype)
    if rows.dtype == object:
        blank[0] = ""
    return np.concatenate([blank, rows])


def check_copies(storage: Storage, writer: Writer, leaves: Sequence[Leaf]) -> None:
    """Raise `LayoutError` where copying would code rows with loss once more."""
    if isinstance(writer, Adopting):
        return
    for leaf in leaves:
        if not storage.exact(leaf):
            raise LayoutError(
                f"{leaf.path!r} is kept with loss by storage {storage.id!r}, which cannot copy coded rows as they are; "
                f"its shards stay as they were recorded"
            )
