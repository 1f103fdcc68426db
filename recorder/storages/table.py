"""Tables: one writer and one reader for every storage that keeps rows as named columns in files.

Such a storage differs in two functions only: columns to bytes, and a file to columns.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from recorder.columns import Array, Column, Ragged, Rows, Sparse, concatenate, dense_take, nbytes, own, positions, take
from recorder.files import check_sum, checksum_of, make_folder, plain_size, remove, write_file
from recorder.infos import join_sparse
from recorder.leaf import Leaf, Per, leaf_from_json, leaf_to_json
from recorder.storages.base import Run, Segment, Writer
from recorder.storages.table_parts import PartNote, check_rows, note_of, read_note
from recorder.storages.table_reading import (
    EPISODE,
    STEP,
    Columns,
    Open,
    column_of,
    file_rows,
    file_sparse,
    named_columns,
    table_name,
)

TABLE_BYTES = 64 << 20
"""A table goes on in another file, and rows leave memory, when they are larger than this."""

Encode = Callable[[Columns], bytes]


class Part:
    """Batches one after another, in memory or in a file of the staging folder, and whose rows they are."""

    def __init__(self, rows: Mapping[str, Rows] | None, runs: Sequence[Run], length: int, file: Path | None) -> None:
        self.rows = rows
        self.runs = list(runs)
        self.length = length
        self.file = file
        self.live = {run.segment for run in runs}
        self.nbytes = sum(map(nbytes, rows.values())) if rows is not None else 0


class Piece(NamedTuple):
    """Rows `[start, stop)` of a part that belong to one segment; `first` when they begin with its row 0."""

    part: Part
    start: int
    stop: int
    first: bool


_new_piece = tuple.__new__
"""Makes a Piece in half the time of its constructor, which is written in Python."""


class TableWriter(Writer):
    """Rows of all segments in the order in which they came, packed segment after segment.

    A `numbered` table has columns with the episode and the step of each row. A file of a shard has at most
    `file_rows` rows.
    """

    def __init__(
        self,
        directory: Path,
        leaves: Sequence[Leaf],
        encode: Encode,
        opener: Open,
        suffix: str,
        *,
        numbered: bool = False,
        file_rows: int = sys.maxsize,
    ) -> None:
        self._numbered = numbered
        self._file_rows = file_rows
        self._directory = directory
        self._leaves = tuple(leaves)
        self._encode = encode
        self._open = opener
        self._suffix = suffix
        self._parts: list[Part] = []
        self._pieces: dict[int, list[Piece]] = {}
        self._files = 0
        self._most_bytes = 0

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self._parts if part.rows is not None)

    def append(self, rows: Mapping[str, Rows], runs: Sequence[Run]) -> None:
        filled = [run for run in runs if run.stop > run.start]
        if not filled:
            return
        length = max(run.stop for run in filled)
        sparse = [path for path, column in rows.items() if isinstance(column, Sparse)]
        kept = {path: _copied(rows[path], length) for path in [*(leaf.path for leaf in self._leaves), *sparse]}
        part = Part(kept, filled, length, None)
        self._add(part)
        # To sum up all parts each time would cost more with every part; what was forgotten is seen when it matters.
        self._most_bytes += part.nbytes
        if self._most_bytes > TABLE_BYTES:
            self._most_bytes = self.nbytes
            if self._most_bytes > TABLE_BYTES:
                self._spill()

    def _add(self, part: Part) -> None:
        self._parts.append(part)
        pieces = self._pieces
        for segment, start, stop, first in part.runs:
            piece = _new_piece(Piece, (part, start, stop, first))
            if segment in pieces:
                pieces[segment].append(piece)
            else:
                pieces[segment] = [piece]

    def checkpoint(self) -> None:
        fresh = [part for part in self._parts if part.file is None]
        if fresh:
            self._write(fresh)

    def _spill(self) -> None:
        """Put into the staging folder what is in memory, so that a long episode does not fill it."""
        self.checkpoint()
        for part in self._parts:
            part.rows = None

    def _write(self, parts: Sequence[Part]) -> None:
        """Write the rows that are not forgotten as one file, and let one part stand for them all."""
        # A part in a file has all rows of a batch, also those of transitions that are none.
        for part in parts:
            part.runs = _live_runs(part)
        taken = [(part, _positions(part.runs)["moment"]) for part in parts]
        rows: dict[str, Rows] = {}
        for leaf in self._leaves:
            rows[leaf.path] = concatenate([dense_take(dense(part.rows, leaf.path), index) for part, index in taken])
        for path in _sparse_paths(parts):
            rows[path] = join_sparse(path, [_take_sparse(part.rows or {}, path, index) for part, index in taken])
        runs = _moved_together([run for part in parts for run in part.runs])
        file = self._directory / f"part-{self._files:06d}{self._suffix}"
        joined = Part(rows, runs, runs[-1].stop, file)
        make_folder(self._directory, durable=True)
        numbers = {STEP: _steps_of(runs)} if self._numbered else {}
        data = self._encode({**numbers, **named_columns(rows)})
        write_file(file, data)
        _write_note(joined, [column.leaf for column in rows.values() if isinstance(column, Sparse)], checksum_of(data))
        self._files += 1
        self._replace(parts, joined)

    def _replace(self, parts: Sequence[Part], joined: Part) -> None:
        gone = set(map(id, parts))
        self._parts = [part for part in self._parts if id(part) not in gone]
        for segment in joined.live:
            self._pieces[segment] = [piece for piece in self._pieces[segment] if id(piece.part) not in gone]
        self._add(joined)

    def segments(self) -> Sequence[Segment]:
        return [self._segment(number) for number in sorted(self._pieces)]

    def _segment(self, number: int) -> Segment:
        pieces = self._pieces[number]
        rows = sum(piece.stop - piece.start for piece in pieces)
        return Segment(number, rows, rows - sum(piece.first for piece in pieces))

    def view(self, segment: Segment) -> Mapping[str, Column]:
        pieces = self._of([segment])
        rows: dict[str, Rows] = dict(self._dense_rows(pieces))
        rows.update((column.leaf.path, column) for column in self._sparse_rows(pieces))
        leaves = [*self._leaves, *(column.leaf for column in rows.values() if isinstance(column, Sparse))]
        named = named_columns(rows)
        return {leaf.path: column_of(leaf, named) for leaf in leaves}

    def pack(self, directory: Path, segments: Sequence[Segment]) -> Sequence[Leaf]:
        pieces = self._of(segments)
        sparse = self._sparse_rows(pieces)
        numbers = self._numbers(segments) if self._numbered else {}
        row = 0
        done: Counter[Per] = Counter()
        for i, group in enumerate(_groups(pieces, self._file_rows)):
            rows: dict[str, Rows] = dict(self._dense_rows(group))
            count = sum(piece.stop - piece.start for piece in group)
            counts: Mapping[Per, int] = {"moment": count, "transition": count - sum(piece.first for piece in group)}
            for column in sparse:
                at = done[column.leaf.per]
                rows[column.leaf.path] = take(column, slice(at, at + counts[column.leaf.per]))
            done.update(counts)
            columns = {name: values[row : row + count] for name, values in numbers.items()}
            columns.update(named_columns(rows))
            write_file(directory / table_name(i, self._suffix), self._encode(columns), durable=False)
            row += count
        return [column.leaf for column in sparse]

    def _numbers(self, segments: Sequence[Segment]) -> dict[str, Array]:
        """Return the episode and the step of each row of segments that are packed in this order."""
        counts = [sum(piece.stop - piece.start for piece in self._of([segment])) for segment in segments]
        steps = [np.arange(count) for count in counts]
        return {
            EPISODE: np.repeat(np.arange(len(counts)), counts),
            STEP: np.concatenate([np.empty(0, np.int64), *steps]),
        }

    def _of(self, segments: Sequence[Segment]) -> list[Piece]:
        """Return the pieces of segments in their order, each segment cut to its rows."""
        pieces = []
        for number, moments, _ in segments:
            rest = moments
            for piece in self._pieces.get(number, ()):
                if rest <= 0:
                    break
                pieces.append(piece if piece.stop - piece.start <= rest else piece._replace(stop=piece.start + rest))
                rest -= piece.stop - piece.start
        return pieces

    def _dense_rows(self, pieces: Sequence[Piece]) -> Mapping[str, Array | Ragged]:
        """Return the rows of all leaves in `pieces`."""
        gathered: dict[str, list[Array | Ragged]] = {leaf.path: [] for leaf in self._leaves}
        together, back = _together(pieces)
        with ExitStack() as stack:
            for part, spans in _by_part(together):
                source = self._source(part, stack)
                for leaf in self._leaves:
                    gathered[leaf.path].append(source(leaf, spans[leaf.per]))
        return {
            leaf.path: dense_take(concatenate(gathered[leaf.path] or [empty_rows(leaf)]), back[leaf.per])
            for leaf in self._leaves
        }

    def _source(self, part: Part, stack: ExitStack) -> Callable[[Leaf, slice | Array], Array | Ragged]:
        """Return what reads rows of a part, from memory or from its file."""
        rows = part.rows
        if rows is not None:
            return lambda leaf, index: dense_take(dense(rows, leaf.path), index)
        assert part.file is not None
        file = self._open(part.file)
        stack.callback(file.close)
        return lambda leaf, index: file_rows(file, leaf, index)

    def _sparse_rows(self, pieces: Sequence[Piece]) -> list[Sparse]:
        """Return the rows of all infos in `pieces`."""
        parts = {id(piece.part): piece.part for piece in pieces}
        loaded = {key: self._sparse_of(part) for key, part in parts.items()}
        classes = {path: column.leaf.per for columns in loaded.values() for path, column in columns.items()}
        if not classes:
            return []
        together, back = _together(pieces)
        spans = list(_by_part(together))
        joined = []
        for path, per in classes.items():
            column = join_sparse(path, [_take_sparse(loaded[id(part)], path, index[per]) for part, index in spans])
            joined.append(take(column, back[per]))
        return [column for column in joined if isinstance(column, Sparse) and column.present.any()]

    def _sparse_of(self, part: Part) -> dict[str, Sparse]:
        if part.rows is not None:
            return {path: column for path, column in part.rows.items() if isinstance(column, Sparse)}
        assert part.file is not None
        with closing(self._open(part.file)) as file:
            return {leaf.path: file_sparse(file, leaf, part.length) for leaf in _sparse_leaves(part.file)}

    def forget(self, segments: Sequence[int]) -> None:
        gone = {id(piece.part): piece.part for segment in segments for piece in self._pieces.pop(segment, ())}
        for part in gone.values():
            part.live.difference_update(segments)
            if part.file is not None:
                part.runs = _live_runs(part)
                _forget_runs(part)
        self._parts = [part for part in self._parts if part.live]

    def close(self) -> None:
        """Give up nothing: no file stays open."""

    def recover(self) -> None:
        """Take over the parts that a dead writer left, up to the first that cannot be read."""
        for file in sorted(self._directory.glob(f"part-*{self._suffix}")):
            self._files = int(file.name[5:11]) + 1
            try:
                note = read_note(file)
                check_sum(file, plain_size(file), note.sum)
                with closing(self._open(file)) as opened:
                    for leaf in self._leaves:
                        check_rows(leaf, file_rows(opened, leaf, slice(0, note.length)), note.length)
            except (OSError, ValueError, KeyError):
                return
            self._add(Part(None, note.runs, note.length, file))


def _copied(rows: Rows, length: int) -> Rows:
    """Return the first rows of what was lent."""
    match rows:
        case Ragged(lengths, values):
            return Ragged(own(lengths[:length]), own(values[: int(lengths[:length].sum())]))
        case Sparse(leaf, present, values):
            kept = _copied(values, int(present[:length].sum()))
            assert not isinstance(kept, Sparse)
            return Sparse(leaf, own(present[:length]), kept)
        case _:
            return own(rows[:length])


def _take_sparse(rows: Mapping[str, Rows], path: str, index: slice | Array) -> Sparse | int:
    """Return some rows of a key of an info, or how many they are where a part has no such key."""
    if path not in rows:
        return index.stop - index.start if isinstance(index, slice) else len(index)
    taken = take(rows[path], index)
    assert isinstance(taken, Sparse)
    return taken


def _sparse_paths(parts: Sequence[Part]) -> list[str]:
    columns = (item for part in parts for item in (part.rows or {}).items())
    return list(dict.fromkeys(path for path, column in columns if isinstance(column, Sparse)))


def _groups(pieces: Sequence[Piece], file_rows: int = sys.maxsize) -> list[list[Piece]]:
    """Return pieces in groups of which each makes one table file of at most `file_rows` rows."""
    groups: list[list[Piece]] = [[]]
    size, rows = 0.0, 0
    cut = pieces if file_rows == sys.maxsize else [part for whole in pieces for part in _cut(whole, file_rows)]
    for piece in cut:
        count = piece.stop - piece.start
        weight = count * piece.part.nbytes / max(piece.part.length, 1)
        if groups[-1] and (size + weight > TABLE_BYTES or rows + count > file_rows):
            groups.append([])
            size, rows = 0.0, 0
        groups[-1].append(piece)
        size, rows = size + weight, rows + count
    return groups


def _cut(piece: Piece, rows: int) -> Iterator[Piece]:
    """Yield a piece in pieces of at most so many rows."""
    if piece.stop - piece.start <= rows:
        yield piece
        return
    for start in range(piece.start, piece.stop, rows):
        first = piece.first and start == piece.start
        yield piece._replace(start=start, stop=min(start + rows, piece.stop), first=first)


def _steps_of(runs: Sequence[Run]) -> Array:
    """Return a number of each row that says no more than which of them begin an episode: those are 0."""
    steps = [np.arange(run.stop - run.start) + (not run.first) for run in runs]
    return np.concatenate([np.empty(0, np.int64), *steps])


def _together(pieces: Sequence[Piece]) -> tuple[list[Piece], dict[Per, slice | Array]]:
    """Return pieces with those of one part side by side, and where the rows of each class then lie, in their old order.

    The parts of a vector environment hold rows of many segments, and a segment lies in many parts.
    """
    if not pieces:
        return [], {"moment": slice(0, 0), "transition": slice(0, 0)}
    owners, *numbers = zip(*pieces, strict=True)
    parts = {part: i for i, part in enumerate(dict.fromkeys(map(id, owners)))}
    order = np.argsort(np.array([parts[owner] for owner in map(id, owners)], np.int64), kind="stable")
    starts, stops, firsts = (np.array(column, np.int64) for column in numbers)
    lengths = stops - starts
    back: dict[Per, slice | Array] = {"moment": _moved(lengths, order), "transition": _moved(lengths - firsts, order)}
    return [pieces[i] for i in order.tolist()], back


def _moved(lengths: Array, order: Array) -> slice | Array:
    """Return where rows of pieces lie, one piece after another, once the pieces were put in another order."""
    starts = np.empty_like(lengths)
    starts[order] = np.cumsum(lengths[order]) - lengths[order]
    return positions(starts, starts + lengths)


def _by_part(pieces: Sequence[Piece]) -> Iterator[tuple[Part, dict[Per, slice | Array]]]:
    """Yield neighbouring pieces of one part together, with the positions of their rows of each class."""
    for _, group in groupby(pieces, key=lambda piece: id(piece.part)):
        pieces_of_part = list(group)
        yield pieces_of_part[0].part, _positions(pieces_of_part)


def _positions(runs: Sequence[Piece | Run]) -> dict[Per, slice | Array]:
    """Return the positions of the rows of each class in runs of one part."""
    if not runs:
        return {"moment": slice(0, 0), "transition": slice(0, 0)}
    _, *numbers = zip(*runs, strict=True)
    starts, stops, firsts = (np.array(column, np.int64) for column in numbers)
    return {"moment": positions(starts, stops), "transition": positions(starts + firsts, stops)}


def _moved_together(runs: Sequence[Run]) -> list[Run]:
    """Return runs of the same lengths that follow one another without gaps."""
    stops = np.cumsum([run.stop - run.start for run in runs]).tolist()
    return [run._replace(start=stop - run.stop + run.start, stop=stop) for run, stop in zip(runs, stops, strict=True)]


def _write_note(part: Part, sparse: Sequence[Leaf], crc: str) -> None:
    assert part.file is not None
    note = PartNote(part.length, part.runs, [leaf_to_json(leaf) for leaf in sparse], crc)
    write_file(note_of(part.file), msgspec.json.encode(note))


def _sparse_leaves(file: Path) -> list[Leaf]:
    return [leaf_from_json(leaf) for leaf in read_note(file).sparse]


def _live_runs(part: Part) -> list[Run]:
    """Return the runs of segments that are not forgotten."""
    return [run for run in part.runs if run.segment in part.live]


def _forget_runs(part: Part) -> None:
    """Let the files of a part say no more of segments that were forgotten; without any left they go."""
    if part.file is None:
        return
    if part.live:
        _write_note(part, _sparse_leaves(part.file), read_note(part.file).sum)
        return
    remove(part.file)
    remove(note_of(part.file))


def dense(rows: Mapping[str, Rows] | None, path: str) -> Array | Ragged:
    """Return the rows of a leaf that is in every row."""
    column = (rows or {})[path]
    assert not isinstance(column, Sparse)
    return column


def empty_rows(leaf: Leaf) -> Array | Ragged:
    """Return no rows of a leaf."""
    values = np.empty((0, *leaf.shape), leaf.numpy_dtype)
    return Ragged(np.empty(0, np.int64), values) if leaf.ragged else values
