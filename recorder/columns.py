"""Columns: the rows of one leaf, in memory as they were written, or on disk read on demand."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from recorder.errors import DamagedError, FormatError
from recorder.leaf import Leaf, text_array
from recorder.limits import limits

Array = NDArray[Any]
Index = int | np.integer[Any] | slice | Sequence[int] | Array


@dataclass(frozen=True)
class Ragged:
    """Rows of changing length: `lengths` (n,), and the `values` of all rows one after another (sum, *shape)."""

    lengths: NDArray[np.int64]
    values: Array

    def __len__(self) -> int:
        return len(self.lengths)


@dataclass(frozen=True)
class Sparse:
    """Rows that may be absent: a mask `present` (n,), and the `values` of the rows that are there.

    It brings its own leaf, since nobody knows beforehand which keys an `info` will have.
    """

    leaf: Leaf
    present: NDArray[np.bool_]
    values: Array | Ragged

    def __len__(self) -> int:
        return len(self.present)


Rows = Array | Ragged | Sparse
"""Rows of one leaf in memory."""


HELD_BYTES = 1 << 20
"""To copy so much takes 0.1 ms."""


def own(rows: Array) -> Array:
    """Return a copy of rows that were only lent.

    A short one is made without giving up the interpreter: beside a busy loop it takes 5 ms to get it back.
    """
    if rows.dtype == object or not 0 < rows.nbytes <= HELD_BYTES:
        return rows.copy()
    return np.frombuffer(rows.tobytes(), rows.dtype).reshape(rows.shape)


def take(rows: Rows, index: slice | Array) -> Rows:
    """Return the rows at `index`, a slice or an array of positions."""
    match rows:
        case Ragged(lengths, values):
            ends = np.cumsum(lengths)
            return Ragged(lengths[index], values[_spans(ends[index] - lengths[index], lengths[index])])
        case Sparse(leaf, present, present_rows):
            places = (np.cumsum(present) - 1)[index]
            kept = present[index]
            return Sparse(leaf, kept, dense_take(present_rows, places[kept]))
        case _:
            return rows[index]


def dense_take(rows: Array | Ragged, index: slice | Array) -> Array | Ragged:
    """Return the rows at `index` of rows that are all there."""
    taken = take(rows, index)
    assert not isinstance(taken, Sparse)
    return taken


def concatenate(parts: Sequence[Array | Ragged]) -> Array | Ragged:
    """Join rows of one leaf that are all dense or all ragged, of one dtype."""
    first = parts[0]
    if len(parts) == 1:
        return first
    if isinstance(first, Ragged):
        joined = [part for part in parts if isinstance(part, Ragged)]
        lengths = np.concatenate([part.lengths for part in joined])
        return Ragged(lengths, np.concatenate([part.values for part in joined]))
    return np.concatenate([part for part in parts if isinstance(part, np.ndarray)])


def nbytes(rows: Rows) -> int:
    """Return the bytes that `rows` take in memory; strings are guessed at 64 bytes each."""
    match rows:
        case Ragged(lengths, values):
            return lengths.nbytes + nbytes(values)
        case Sparse(_, present, values):
            return present.nbytes + nbytes(values)
        case _:
            return rows.nbytes if rows.dtype != object else 64 * len(rows)


def ragged(items: Sequence[Any], leaf: Leaf) -> Ragged:
    """Return rows of changing length as one `Ragged`."""
    lengths = np.fromiter((len(item) for item in items), np.int64, len(items))
    empty = np.empty((0, *leaf.shape), leaf.numpy_dtype)
    return Ragged(lengths, np.concatenate(items) if len(items) else empty)


def split(values: Array, lengths: Array) -> list[Array]:
    """Return the rows that `ragged` joined; `np.split` takes eight times as long."""
    ends = np.cumsum(lengths).tolist()
    return [values[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def _spans(starts: Array, lengths: Array) -> Array:
    """Return the positions of many spans, one after another."""
    total = int(lengths.sum())
    ends = np.cumsum(lengths)
    return np.repeat(starts - (ends - lengths), lengths) + np.arange(total)


def positions(starts: Array, stops: Array) -> slice | Array:
    """Return the positions in many spans `[start, stop)`: a slice when they are one span, else an array."""
    lengths = stops - starts
    filled = lengths > 0
    if not filled.any():
        return slice(0, 0)
    starts, stops, lengths = starts[filled], stops[filled], lengths[filled]
    if np.array_equal(starts[1:], stops[:-1]):
        return slice(int(starts[0]), int(stops[-1]))
    return _spans(starts, lengths)


def _joined(pieces: Sequence[Array]) -> Array:
    """Return rows that were read one after another; where some are absent, all as a masked array."""
    if len(pieces) == 1:
        return pieces[0]
    if any(isinstance(piece, np.ma.MaskedArray) for piece in pieces):
        return np.asanyarray(np.ma.concatenate(pieces))  # type: ignore[no-untyped-call]
    return np.concatenate(pieces)


def _joined_rows(leaf: Leaf, pieces: Sequence[Rows]) -> Rows:
    """Return rows that were read one after another; where some are sparse, all are."""
    if not any(isinstance(piece, Sparse) for piece in pieces):
        return concatenate([piece for piece in pieces if not isinstance(piece, Sparse)])
    parts = [as_sparse(leaf, piece) for piece in pieces]
    return Sparse(leaf, np.concatenate([part.present for part in parts]), concatenate([part.values for part in parts]))


def as_sparse(leaf: Leaf, rows: Rows) -> Sparse:
    """Return rows of a sparse leaf as such, also where all of them are there."""
    if isinstance(rows, Sparse):
        return Sparse(leaf, rows.present, rows.values)
    return Sparse(leaf, np.ones(len(rows), bool), rows)


class Coded(NamedTuple):
    """Rows that are WebP pictures, as bytes: of a quality, or lossless."""

    quality: float | None
    pictures: Sequence[bytes]


class Column(ABC):
    """The rows of one leaf in one segment, read on demand: `column[3]`, `column[10:20]`, `column[[5, 2, 2]]`.

    A slice or an index array gives an array of shape `(k, *leaf.shape)`; for ragged rows and text an array of `k`
    objects, for sparse rows a masked array. Only the rows asked for are read and decoded.
    """

    def __init__(self, leaf: Leaf, length: int) -> None:
        self.leaf = leaf
        self._length = length

    @abstractmethod
    def read(self, start: int, stop: int) -> Array:
        """Return the rows `[start, stop)`, which are known to be in range."""

    def rows(self, start: int, stop: int) -> Rows:
        """Return the rows `[start, stop)` as a writer takes them: ragged ones with lengths, sparse ones with a mask."""
        return self.read(start, stop)

    def take(self, index: NDArray[np.intp]) -> Array:
        """Return the rows at `index`, in any order, some perhaps twice; each run of neighbours is read once."""
        wanted, back = np.unique(index, return_inverse=True)
        if not len(wanted):
            return self.read(0, 0)
        breaks = np.flatnonzero(np.diff(wanted) != 1) + 1
        runs = [self.read(int(run[0]), int(run[-1]) + 1) for run in np.split(wanted, breaks)]
        return _joined(runs)[back]

    def encoded(self, start: int, stop: int) -> Coded | None:
        """Return the rows `[start, stop)` as they are coded, to be copied; None where they are no pictures in WebP."""
        return None

    def __len__(self) -> int:
        return self._length

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of all rows: `(rows, *leaf.shape)`, or `(rows,)` where rows have no one shape."""
        return (len(self),) if self.leaf.ragged else (len(self), *self.leaf.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of a row's array."""
        return self.leaf.numpy_dtype

    def _within_limits(self, rows: int) -> None:
        """Raise `FormatError` if so many rows are more than is read at once."""
        size, most = rows * self.leaf.nbytes, limits().read_bytes
        if size > most:
            raise FormatError(
                f"{rows:,} rows of {self.leaf.path!r} are {size:,} bytes, more than the {most:,} read at once; "
                f"read fewer rows, or set_limits(Limits(read_bytes=...))"
            )

    def __getitem__(self, index: Index | tuple[Any, ...]) -> Any:
        if isinstance(index, tuple):
            rows, inner = index[0], index[1:]
            return self[rows][inner] if isinstance(rows, int | np.integer) else self[rows][(slice(None), *inner)]
        if isinstance(index, int | np.integer):
            at = int(index) if index >= 0 else int(index) + len(self)
            if not 0 <= at < len(self):
                raise IndexError(f"row {index} of {self.leaf.path!r}, which has {len(self)} rows")
            return self.read(at, at + 1)[0]
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            self._within_limits(len(range(start, stop, step)))
            if step == 1:
                return self.read(start, max(start, stop))
            return self.take(np.arange(start, stop, step))
        places = self._checked(np.asarray(index))
        self._within_limits(len(places))
        return self.take(places)

    def _checked(self, index: Array) -> NDArray[np.intp]:
        if index.dtype == bool:
            if index.shape != (len(self),):
                raise IndexError(f"a mask of {index.shape} over {len(self)} rows of {self.leaf.path!r}")
            return np.flatnonzero(index)
        if index.ndim != 1 or (index.size and index.dtype.kind not in "iu"):
            raise IndexError(f"rows are picked by an int, a slice or a list of ints, got {index.dtype} {index.shape}")
        index = index.astype(np.intp)
        index = np.where(index < 0, index + len(self), index)
        if index.size and not (index.min() >= 0 and index.max() < len(self)):
            raise IndexError(f"a row beyond the {len(self)} rows of {self.leaf.path!r}")
        return index

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.asarray(self[:], dtype=dtype)

    def __repr__(self) -> str:
        return f"<Column {self.leaf.path} {self.shape} {self.leaf.dtype}>"


class ArrayColumn(Column):
    """Rows of one shape in anything that slices like an array."""

    def __init__(self, leaf: Leaf, source: Any) -> None:
        super().__init__(leaf, len(source))
        self._source = source

    def read(self, start: int, stop: int) -> Array:
        return checked_rows(self.leaf, np.array(self._source[start:stop]))

    def take(self, index: NDArray[np.intp]) -> Array:
        if isinstance(self._source, np.ndarray):  # in memory a run is not worth more than a row
            return checked_rows(self.leaf, self._source[index])
        return super().take(index)


def checked_rows(leaf: Leaf, rows: Array) -> Array:
    """Return rows that were read, or raise `FormatError` unless they are of the leaf's shape and dtype."""
    if rows.dtype != leaf.numpy_dtype or rows.shape[1:] != leaf.shape:
        found, expected = f"{rows.dtype} {rows.shape[1:]}", f"{leaf.dtype} {leaf.shape}"
        raise FormatError(f"rows of {leaf.path!r} are {found} in the file, expected {expected}")
    return rows


class RaggedColumn(Column):
    """Rows of changing length."""

    def __init__(self, leaf: Leaf, lengths: NDArray[np.int64], values: Any) -> None:
        super().__init__(leaf, len(lengths))
        if lengths.dtype.kind not in "iu" or (lengths < 0).any() or (lengths > len(values)).any():
            raise FormatError(f"the lengths of the rows of {leaf.path!r} are none that could be")
        if (total := int(lengths.sum())) != len(values):
            raise DamagedError(f"the rows of {leaf.path!r} are {total} long together, {len(values)} are there")
        self._values = values
        self._ends = np.concatenate([[0], np.cumsum(lengths)])

    def read(self, start: int, stop: int) -> Array:
        found = self.rows(start, stop)
        return text_array(split(found.values, found.lengths))

    def rows(self, start: int, stop: int) -> Ragged:
        ends = self._ends[start : stop + 1]
        return Ragged(np.diff(ends), np.array(self._values[int(ends[0]) : int(ends[-1])]))


class SparseColumn(Column):
    """Rows that may be absent; they are read as a masked array."""

    def __init__(self, leaf: Leaf, present: NDArray[np.bool_], values: Column) -> None:
        super().__init__(leaf, len(present))
        if (count := int(present.sum())) != len(values):
            raise DamagedError(f"{count} rows of {leaf.path!r} are said to be there, {len(values)} are")
        self._values = values
        self._present = present
        self._places = np.concatenate([[0], np.cumsum(present)])

    def rows(self, start: int, stop: int) -> Sparse:
        values = self._values.rows(int(self._places[start]), int(self._places[stop]))
        assert not isinstance(values, Sparse)
        return Sparse(self.leaf, self._present[start:stop], values)

    def read(self, start: int, stop: int) -> Array:
        present = self._present[start:stop]
        values = self._values.read(int(self._places[start]), int(self._places[stop]))
        if present.all():
            return values
        filled = np.zeros((len(present), *values.shape[1:]), values.dtype)
        filled[present] = values
        absent = np.broadcast_to(~present.reshape(-1, *[1] * (values.ndim - 1)), filled.shape)
        return np.ma.MaskedArray(filled, mask=absent)


class MappedColumn(Column):
    """Rows that are decoded when they are read, such as JSON; a writer takes them as they are kept."""

    def __init__(self, leaf: Leaf, source: Column, function: Callable[[Array], Array]) -> None:
        super().__init__(leaf, len(source))
        self._source = source
        self._function = function

    def read(self, start: int, stop: int) -> Array:
        return self._function(self._source.read(start, stop))

    def rows(self, start: int, stop: int) -> Rows:
        return self._source.rows(start, stop)


class JoinedColumn(Column):
    """Rows that lie in several places, one after another."""

    def __init__(self, leaf: Leaf, parts: Sequence[Column]) -> None:
        super().__init__(leaf, sum(map(len, parts)))
        self._parts = parts

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *np.cumsum([len(part) for part in self._parts]).tolist()]

    def read(self, start: int, stop: int) -> Array:
        pieces = [part.read(first, last) for part, first, last in self._spans(start, stop)]
        return _joined(pieces) if pieces else self._parts[0].read(0, 0)

    def rows(self, start: int, stop: int) -> Rows:
        pieces = [part.rows(first, last) for part, first, last in self._spans(start, stop)]
        return _joined_rows(self.leaf, pieces) if pieces else self._parts[0].rows(0, 0)

    def _spans(self, start: int, stop: int) -> list[tuple[Column, int, int]]:
        """Return the parts that hold some of the rows `[start, stop)`, each with the rows of it that are wanted."""
        starts = self._starts
        return [
            (part, max(start, first) - first, min(stop, last) - first)
            for part, first, last in zip(self._parts, starts, starts[1:], strict=False)
            if start < last and stop > first
        ]


class SpanColumn(Column):
    """The rows `[start, stop)` of another column: one segment of a shard."""

    def __init__(self, source: Column, start: int, stop: int) -> None:
        super().__init__(source.leaf, stop - start)
        self._source = source
        self._start = start

    def read(self, start: int, stop: int) -> Array:
        return self._source.read(self._start + start, self._start + stop)

    def rows(self, start: int, stop: int) -> Rows:
        return self._source.rows(self._start + start, self._start + stop)

    def take(self, index: NDArray[np.intp]) -> Array:
        return self._source.take(index + self._start)

    def encoded(self, start: int, stop: int) -> Coded | None:
        return self._source.encoded(self._start + start, self._start + stop)

    @property
    def place(self) -> tuple[Column, int]:
        """The column that these rows are a part of, and the row of it that is their first."""
        return self._source, self._start
