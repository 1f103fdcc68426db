"""A Parquet file of a recording, opened for reading as named columns."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recorder.columns import Array, Ragged
from recorder.errors import DamagedError, FormatError, MissingExtraError
from recorder.files import missing
from recorder.leaf import TEXT
from recorder.storages.parquet_columns import FieldNote, fits, note_of, rows_of
from recorder.storages.table_reading import LENGTHS, PRESENT, STEP

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except ImportError as error:
    raise MissingExtraError("pyarrow", "parquet") from error

BROKEN = (pa.ArrowException, OSError, ValueError)
"""What pyarrow raises over a file that is damaged."""


class ParquetFile:
    """A Parquet file as `parquet_table` made it, opened anew for each reading: nothing is lost in a fork."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with self.open() as file:
            self._schema = file.schema_arrow
            metadata = file.metadata
            sizes = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
        self.rows = sum(sizes)
        self._ends = np.cumsum([0, *sizes])
        self._notes: Mapping[str, FieldNote] = {
            field.name: note for field in self._schema if (note := note_of(field)) is not None
        }
        self._whole: tuple[str, Any] = ("", None)

    def open(self) -> Any:
        """Open the file with pyarrow."""
        try:
            return pq.ParquetFile(self.path, pre_buffer=False, memory_map=False)
        except FileNotFoundError:
            raise missing(self.path) from None
        except BROKEN as error:
            raise DamagedError(f"{self.path} cannot be opened as Parquet: {error}") from error

    def note(self, name: str) -> FieldNote:
        """Return what a column holds."""
        note = self._notes[name]
        if not fits(self._schema.field(name).type, note):
            raise FormatError(f"{self.path}: column {name!r} is {self._schema.field(name).type}, not {note}")
        return note

    def arrow(self, name: str, start: int = 0, stop: int | None = None) -> Any:
        """Return the rows `[start, stop)` of a column as Arrow has them; other row groups stay unread."""
        stop = self.rows if stop is None else stop
        first = int(np.searchsorted(self._ends, start, "right")) - 1
        last = int(np.searchsorted(self._ends, stop, "left"))
        try:
            with self.open() as file:
                table = file.read_row_groups(list(range(first, last)), columns=[name], use_threads=False)
            return table.column(name).slice(start - int(self._ends[first]), stop - start).combine_chunks()
        except (*BROKEN, KeyError) as error:
            raise DamagedError(f"{self.path}: column {name!r} cannot be read: {error}") from error

    @cached_property
    def _transitions(self) -> NDArray[np.intp]:
        """The rows that are no resets."""
        steps = rows_of(self.arrow(STEP), self.note(STEP))
        assert isinstance(steps, np.ndarray)
        return np.flatnonzero(steps)

    def slots(self, name: str) -> NDArray[np.intp] | None:
        """Return the rows in which a column may have a value; None for all."""
        return self._transitions if self.note(name).transition else None

    def count(self, name: str) -> int:
        """Return how many rows a column has, absent ones included."""
        slots = self.slots(name)
        return self.rows if slots is None else len(slots)

    def present(self, name: str) -> NDArray[np.bool_]:
        """Return which rows of a column are there."""
        valid = np.asarray(self.arrow(name).is_valid().to_numpy(zero_copy_only=False), bool)
        slots = self.slots(name)
        return valid if slots is None else valid[slots]

    def whole(self, name: str) -> Array | Ragged:
        """Return all values of a column; of rows of changing length the last one read is kept for its second half."""
        if self._whole[0] != name:
            self._whole = name, rows_of(self.arrow(name), self.note(name))
        values: Array | Ragged = self._whole[1]
        if not isinstance(values, Ragged):
            self._whole = "", None
        return values

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str):
            return False
        if name.startswith(LENGTHS):
            return self._says(name.removeprefix(LENGTHS), "ragged")
        if name.startswith(PRESENT):
            return self._says(name.removeprefix(PRESENT), "sparse")
        return name in self._notes

    def _says(self, name: str, word: str) -> bool:
        return name in self._notes and bool(getattr(self._notes[name], word))

    def __getitem__(self, name: str) -> Any:
        if name not in self:
            raise KeyError(name)
        if name.startswith(LENGTHS):
            rows = self.whole(name.removeprefix(LENGTHS))
            assert isinstance(rows, Ragged)
            return rows.lengths
        if name.startswith(PRESENT):
            return self.present(name.removeprefix(PRESENT))
        note = self.note(name)
        if note.ragged or note.sparse:
            rows = self.whole(name)
            return rows.values if isinstance(rows, Ragged) else rows
        return ParquetColumn(self, name, note)

    def close(self) -> None:
        """Give up nothing but memory: no file stays open."""
        self._whole = ("", None)


class ParquetColumn:
    """A column of which every row is there, or every one but that of a reset; only rows asked for are read."""

    def __init__(self, file: ParquetFile, name: str, note: FieldNote) -> None:
        self._file = file
        self._name = name
        self._note = note
        self._length = file.count(name)
        self.size = self._length * math.prod(note.shape)
        self.dtype = np.dtype(object if note.dtype == TEXT else note.dtype)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: slice) -> Array:
        start, stop, step = index.indices(self._length)
        stop = max(start, stop)
        slots, first, last = self._file.slots(self._name), start, stop
        if slots is not None and stop > start:
            first, last = int(slots[start]), int(slots[stop - 1]) + 1
        if first >= last:
            return np.empty((0, *self._note.shape), self.dtype)
        rows = rows_of(self._file.arrow(self._name, first, last), self._note)
        if not isinstance(rows, np.ndarray) or len(rows) != stop - start:
            raise DamagedError(f"{self._file.path}: column {self._name!r} lacks some of its rows")
        return rows[::step]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.asarray(self[:], dtype=dtype)
