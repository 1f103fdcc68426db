"""A diary: a writer, and what it was given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from recorder.columns import Array, Ragged, Rows, Sparse, concatenate, take
from recorder.infos import join_sparse
from recorder.leaf import Leaf
from recorder.storages.base import Run, Segment, Writer
from recorder.testing.rows import as_read, dense_rows, rows_of


class Diary:
    """A writer, and beside it what it was given: row k of segment s is row k of `rows_of(leaf, …, seed=s)`.

    In a `series` each segment begins with a row without a transition.
    """

    def __init__(self, writer: Writer, leaves: Sequence[Leaf], infos: Sequence[Leaf] = (), series: bool = True) -> None:
        self.writer = writer
        self.leaves = tuple(leaves)
        self.infos = tuple(infos)
        self.series = series
        self.held: dict[int, int] = {}

    def append(self, *parts: tuple[int | None, int], spoil: bool = False) -> None:
        """Append so many next rows of segments in one batch; those of segment None belong to no run.

        The arrays are parts of larger ones. With `spoil` they are overwritten afterwards.
        """
        runs: list[Run] = []
        spans: list[tuple[int, int, int]] = []
        row = 0
        for segment, count in parts:
            done = 0 if segment is None else self.held.get(segment, 0)
            spans.append((-1 if segment is None else segment, done, done + count))
            if segment is not None:
                runs.append(Run(segment, row, row + count, self.series and not done and count > 0))
                self.held[segment] = done + count
            row += count
        rows = {leaf.path: _in_ring(_spliced(leaf, spans)) for leaf in (*self.leaves, *self.infos)}
        self.writer.append(rows, runs)
        if spoil:
            for column in rows.values():
                overwrite(column)

    def grow(self, rows: Mapping[int, int]) -> None:
        """Append so many rows of each segment, in batches of 1, 2, 4, … of each in turn."""
        size, rest = 1, dict(rows)
        while rest:
            self.append(*((segment, min(size, count)) for segment, count in rest.items()))
            rest = {segment: count - size for segment, count in rest.items() if count > size}
            size *= 2

    def end(self, *segments: int) -> None:
        """Say that no more rows of these segments come; by default, of any."""
        for segment in segments or self.held:
            self.writer.end(segment)

    def forget(self, *segments: int) -> None:
        """Let the writer forget segments."""
        self.writer.forget(segments)
        for segment in segments:
            del self.held[segment]

    def segment(self, number: int, rows: int | None = None) -> Segment:
        """Return a segment with all rows that were appended, or with fewer."""
        moments = self.held[number] if rows is None else rows
        return Segment(number, moments, max(moments - self.series, 0))

    def segments(self) -> list[Segment]:
        """Return all segments."""
        return [self.segment(number) for number in sorted(self.held)]

    def expected(self, leaf: Leaf, segments: Iterable[Segment]) -> Array:
        """Return the rows of a leaf in segments, one after another, as a column gives them."""
        skipped = 0 if leaf.per == "moment" else int(self.series)
        spans = [
            (number, skipped, skipped + (moments if leaf.per == "moment" else transitions))
            for number, moments, transitions in segments
        ]
        return as_read(leaf, _spliced(leaf, spans))


def _spliced(leaf: Leaf, spans: Iterable[tuple[int, int, int]]) -> Rows:
    """Return rows `[start, stop)` of segments, one after another."""
    pieces = [take(rows_of(leaf, stop, segment + 1), slice(start, stop)) for segment, start, stop in spans]
    if leaf.sparse:
        return join_sparse(leaf.path, [piece for piece in pieces if isinstance(piece, Sparse)])
    dense = [piece for piece in pieces if not isinstance(piece, Sparse)]
    return concatenate(dense or [dense_rows(rows_of(leaf, 0))])


def _in_ring(rows: Rows) -> Rows:
    """Return a copy of rows whose arrays are parts of larger ones."""
    match rows:
        case Ragged(lengths, values):
            return Ragged(lengths.copy(), values.copy())
        case Sparse(leaf, present, values):
            return Sparse(leaf, present.copy(), dense_rows(_in_ring(values)))
    ring = np.concatenate([rows[:2], rows, rows[:1]])
    return ring[min(2, len(rows)) :][: len(rows)]


def overwrite(rows: Rows) -> None:
    """Overwrite what was lent."""
    match rows:
        case Ragged(lengths, values):
            lengths[:] = 0
            overwrite(values)
        case Sparse(_, present, values):
            present[:] = ~present
            overwrite(values)
        case _:
            rows[:] = "spoilt" if rows.dtype == object else ~rows if rows.dtype == bool else 1


class Recovered(Diary):
    """The diary of a recovered writer, with the segments as it told them."""

    told: list[Segment]
