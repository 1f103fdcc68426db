"""Named columns: what a table file holds of its leaves, and the reader of one shard's table files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count, takewhile
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from recorder.columns import (
    Array,
    ArrayColumn,
    Column,
    JoinedColumn,
    MappedColumn,
    Ragged,
    RaggedColumn,
    Rows,
    SpanColumn,
    Sparse,
    SparseColumn,
    dense_take,
)
from recorder.errors import DamagedError, FormatError
from recorder.files import missing
from recorder.leaf import JSON_TEXT, Leaf, text_array
from recorder.storages.base import Counts, Reader

CACHED_BYTES = 16 << 20
"""A column up to this size is read whole at its first use: a slice of a file costs 0.1 ms, one of memory nothing."""

Columns = Mapping[str, Array]

LENGTHS, PRESENT = "%lengths/", "%present/"
"""Before a path: how long its rows are, and which of them are there. No key has a `%` with a letter after it."""

EPISODE, STEP = "%episode", "%step"
"""Columns of tables that number their rows: the episode in the shard, and the step in it, 0 for the reset."""


class TableFile(Protocol):
    """An open file of named columns."""

    def __getitem__(self, name: str, /) -> Any: ...
    def __contains__(self, name: object, /) -> bool: ...
    def close(self) -> None: ...


Open = Callable[[Path], TableFile]


def table_name(i: int, suffix: str) -> str:
    """Return the name of the i-th file of a table."""
    return f"data-{i:04d}{suffix}" if i else f"data{suffix}"


def is_table_name(name: str, suffix: str) -> bool:
    """Return whether a file is one of a table's."""
    number = name.removeprefix("data").removesuffix(suffix)
    return name == f"data{number}{suffix}" and (not number or (number[0] == "-" and number[1:].isdecimal()))


def named_columns(rows: Mapping[str, Rows]) -> dict[str, Array]:
    """Return rows as the columns of a file: the values, and what says how long rows are and which are there."""
    columns: dict[str, Array] = {}
    for path, column in rows.items():
        values = column
        if isinstance(values, Sparse):
            if not values.present.all():
                columns[PRESENT + path] = values.present
            values = values.values
        if isinstance(values, Ragged):
            columns[LENGTHS + path] = values.lengths
            values = values.values
        columns[path] = values
    return columns


def file_rows(file: TableFile | Columns, leaf: Leaf, index: slice | Array) -> Array | Ragged:
    """Return rows of a leaf from an open file."""
    if leaf.ragged:
        whole = Ragged(np.array(file[LENGTHS + leaf.path][:]), np.array(file[leaf.path][:]))
        return dense_take(whole, index)
    if isinstance(index, slice):
        return np.array(file[leaf.path][index])
    first, last = (int(index.min()), int(index.max())) if len(index) else (0, -1)
    return np.array(file[leaf.path][first : last + 1][index - first])


def file_sparse(file: TableFile, leaf: Leaf, length: int) -> Sparse:
    """Return all rows of a leaf that is absent from some."""
    name = PRESENT + leaf.path
    present = presence(leaf, file) if name in file else np.ones(length, bool)
    values = replace(leaf, sparse=False)
    count = len(file[LENGTHS + leaf.path]) if leaf.ragged else len(file[leaf.path])
    return Sparse(leaf, present, file_rows(file, values, slice(0, count)))


def presence(leaf: Leaf, file: TableFile | Columns) -> Array:
    """Return which rows of a leaf are there."""
    present = np.asarray(file[PRESENT + leaf.path][:])
    if present.dtype != bool or present.ndim != 1:
        raise FormatError(f"which rows of {leaf.path!r} are there is {present.dtype} {present.shape}, not bool")
    return present


def column_of(leaf: Leaf, file: TableFile | Columns) -> Column:
    """Return the column of a leaf in an open file or in memory."""
    values = file[leaf.path]
    if values.size * leaf.numpy_dtype.itemsize <= CACHED_BYTES:
        values = np.asarray(values[:])
    column: Column
    if leaf.ragged:
        column = RaggedColumn(leaf, np.asarray(file[LENGTHS + leaf.path][:]), values)
    else:
        column = ArrayColumn(leaf, values)
    if leaf.dtype == JSON_TEXT:
        column = MappedColumn(leaf, column, lambda texts: text_array([json_value(leaf, text) for text in texts]))
    if leaf.sparse and PRESENT + leaf.path in file:
        column = SparseColumn(leaf, presence(leaf, file), column)
    return column


def json_value(leaf: Leaf, text: str) -> Any:
    """Return a value that is kept as JSON.

    Raises:
        FormatError: the text is no JSON.
    """
    try:
        return json.loads(text)
    except (ValueError, TypeError, RecursionError) as error:
        raise FormatError(f"a row of {leaf.path!r} is no JSON: {error}") from error


class TableReader(Reader):
    """The columns of the table files of one shard."""

    def __init__(self, directory: Path, leaves: Sequence[Leaf], counts: Counts, opener: Open, suffix: str) -> None:
        super().__init__(directory, leaves, counts)
        self._open = opener
        self._suffix = suffix
        self._columns: dict[str, Column] = {}
        self._opened: list[TableFile] | None = None

    def _files(self) -> list[TableFile]:
        if self._opened is None:
            if not (self.directory / table_name(0, self._suffix)).exists():
                raise missing(self.directory / table_name(0, self._suffix))
            paths = (self.directory / table_name(i, self._suffix) for i in count())
            self._opened = [self._open(path) for path in takewhile(Path.exists, paths)]
        return self._opened

    def segment(self, i: int) -> Mapping[str, Column]:
        return LazyColumns(self.leaves, lambda path: self._segment_column(path, i))

    def _segment_column(self, path: str, i: int) -> Column:
        return SpanColumn(self.whole(path), *self.counts.span(self.leaves[path].per, i))

    def whole(self, path: str) -> Column:
        if path not in self._columns:
            leaf = self.leaves[path]
            try:
                parts = [column_of(leaf, file) for file in self._files() if path in file]
            except KeyError as error:
                raise DamagedError(f"{self.directory}: the table lacks a column of {path!r}: {error}") from error
            if not parts:
                raise DamagedError(f"{self.directory}: the table has no column {path!r}")
            column = parts[0] if len(parts) == 1 else JoinedColumn(leaf, parts)
            self._check(column)
            self._columns[path] = column
        return self._columns[path]

    def _check(self, column: Column) -> None:
        leaf, expected = column.leaf, self.counts.total(column.leaf.per)
        if len(column) != expected:
            more = f", or {table_name(len(self._files()), self._suffix)} is missing" if len(column) < expected else ""
            raise DamagedError(
                f"{self.directory}: {leaf.path!r} has {len(column)} rows, {expected} were written: a file was cut{more}"
            )

    def count(self) -> Mapping[str, int]:
        return {path: sum(_row_count(leaf, file) for file in self._files()) for path, leaf in self.leaves.items()}

    def close(self) -> None:
        for file in self._opened or ():
            file.close()
        self._opened = None
        self._columns = {}


def _row_count(leaf: Leaf, file: TableFile) -> int:
    """Return how many rows of a leaf a file holds, absent ones included."""
    for name in (PRESENT + leaf.path, LENGTHS + leaf.path, leaf.path):
        if name in file:
            return len(file[name])
    return 0


class LazyColumns(Mapping[str, Column]):
    """Columns by leaf path, of which each is made at its first use."""

    def __init__(self, paths: Iterable[str], make: Callable[[str], Column]) -> None:
        self._paths = dict.fromkeys(paths)
        self._make = make
        self._made: dict[str, Column] = {}

    def __getitem__(self, path: str) -> Column:
        if path not in self._made:
            if path not in self._paths:
                raise KeyError(f"no leaf {path!r}; there are {list(self._paths)}")
            self._made[path] = self._make(path)
        return self._made[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)
