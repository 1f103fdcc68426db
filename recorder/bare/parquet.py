"""Bare Parquet: a file, or a folder of them, from elsewhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from recorder.bare.tables import BareSource, Form, space_of
from recorder.columns import Array, Ragged, split
from recorder.errors import DamagedError, FormatError, MissingExtraError, NotARecordingError
from recorder.leaf import NUMBERS, TEXT, text_array
from recorder.metadata.annotation import did_you_mean
from recorder.storages.parquet_columns import FieldNote, fits, note_of, rows_of

try:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq
except ImportError as error:
    raise MissingExtraError("pyarrow", "parquet") from error

BROKEN = (pa.ArrowException, OSError, ValueError)


class ParquetSource(BareSource):
    """The columns of one Parquet file, or of all below a folder in the order of their names.

    `fill` has values for rows that are null; floats without one become NaN, and nulls in any other column are an error.
    """

    def __init__(self, path: Path, columns: Sequence[str] | None = None, fill: Mapping[str, Any] | None = None) -> None:
        self.path = path
        self.fill = dict(fill or {})
        self.files = sorted(path.rglob("*.parquet")) if path.is_dir() else [path]
        if not self.files:
            raise NotARecordingError(f"{path} has no Parquet file in it")
        heads = [_head(file) for file in self.files]
        self._schema = heads[0].schema_arrow
        for file, head in zip(self.files, heads, strict=True):
            if not head.schema_arrow.equals(self._schema):
                raise FormatError(f"{file} has other columns than {self.files[0]}: they are no one table")
        self.pieces = [head.metadata.num_rows for head in heads]
        self._groups = [
            (file, i, head.metadata.row_group(i).num_rows)
            for file, head in zip(self.files, heads, strict=True)
            for i in range(head.metadata.num_row_groups)
        ]
        self.notes: dict[str, FieldNote] = {}
        self.forms = {}
        self.left_out = {
            name: f"{count} columns have this name" for name, count in Counter(self._schema.names).items() if count > 1
        }
        for field in self._schema:
            if field.name not in self.left_out:
                self._declare(field)
        empty = [file for file, rows in zip(self.files, self.pieces, strict=True) if not rows]
        self.left_out.update((str(file.relative_to(path)), "a file of no rows") for file in empty if file != path)
        if strange := sorted(self.fill.keys() - self.forms.keys()):
            nearest = did_you_mean(strange[0], self.forms)
            raise FormatError(f"fill: no column {strange[0]!r}{nearest}; the columns are {sorted(self.forms)}")
        self.select(columns)

    @cached_property
    def _ends(self) -> Array:
        return np.cumsum([0, *(rows for _, _, rows in self._groups)])

    def _declare(self, field: Any) -> None:
        own = note_of(field)
        if own is not None and own.dtype != TEXT and np.dtype(own.dtype).kind == "c":
            own = None
        kind = _plain(field.type)
        try:
            note = own if own is not None and fits(kind, own) else self._note(field.name, kind)
        except FormatError as error:
            self.left_out[field.name] = str(error)
            return
        self.notes[field.name] = note
        self.forms[field.name] = Form(note.dtype, note.shape, note.ragged)

    def _note(self, name: str, kind: Any) -> FieldNote:
        """Return what a column of another program holds; lists that are all of one length are arrays."""
        shape: list[int] = []
        ragged = pa.types.is_list(kind) and pa.types.is_string(kind.value_type)
        if ragged:
            kind = kind.value_type
        elif pa.types.is_list(kind):
            lengths = pc.unique(pc.list_value_length(self.arrow(name, 0, self.rows))).to_pylist()
            ragged = len(lengths) != 1 or not lengths[0]
            shape = [] if ragged else [lengths[0]]
            kind = kind.value_type
        while pa.types.is_fixed_size_list(kind):
            shape.append(kind.list_size)
            kind = kind.value_type
        if pa.types.is_string(kind) and not shape:
            return FieldNote(TEXT, (), ragged)
        dtype = str(kind.to_pandas_dtype().__name__) if _is_number(kind) else ""
        dtype = np.dtype(dtype).name if dtype else ""
        if dtype not in NUMBERS:
            raise FormatError(f"{kind} is no number, text, or list of them")
        return FieldNote(dtype, tuple(shape), ragged)

    def arrow(self, name: str, start: int, stop: int) -> Any:
        """Return rows of a column as Arrow has them; only the row groups that hold them are read."""
        first = int(np.searchsorted(self._ends, start, "right")) - 1
        last = int(np.searchsorted(self._ends, stop, "left"))
        chunks = []
        for file, i, _ in self._groups[first:last] if stop > start else ():
            try:
                with pq.ParquetFile(file, pre_buffer=False) as opened:
                    chunks.append(opened.read_row_groups([i], columns=[name], use_threads=False).column(name))
            except BROKEN as error:
                raise DamagedError(f"{file}: column {name!r} cannot be read: {error}") from error
        kind = self._schema.field(name).type
        joined = pa.chunked_array([chunk for column in chunks for chunk in column.chunks], kind)
        whole = joined.slice(start - int(self._ends[first]), stop - start).cast(_plain(kind)).combine_chunks()
        return whole if isinstance(whole, pa.Array) else pa.concat_arrays(whole.chunks)

    def read(self, name: str, start: int, stop: int) -> Array:
        note = self.notes[name]
        array = self._filled(name, self.arrow(name, start, stop), note)
        rows = rows_of(array, note)
        return text_array(split(rows.values, rows.lengths)) if isinstance(rows, Ragged) else rows

    def _filled(self, name: str, array: Any, note: FieldNote) -> Any:
        if array.null_count and name in self.fill:
            array = array.fill_null(self._fill_value(name, array.type))
        elif array.null_count and pa.types.is_floating(array.type):
            array = array.fill_null(float("nan"))
        inner = array
        while not inner.null_count and (pa.types.is_list(inner.type) or pa.types.is_fixed_size_list(inner.type)):
            inner = inner.flatten()
        if inner.null_count and not (inner is not array and note.dtype.startswith("float")):
            raise FormatError(
                f"{self.path}: column {name!r} has nulls, which {note.dtype} cannot be; give fill={{{name!r}: …}}, or "
                f"leave it out with columns=[…]"
            )
        return array

    def _fill_value(self, name: str, kind: Any) -> Any:
        """Return what stands for nulls, in the type of a column, which has to hold it exactly."""
        try:
            return pa.scalar(self.fill[name]).cast(kind)
        except BROKEN as error:
            raise FormatError(
                f"fill={{{name!r}: {self.fill[name]!r}}} does not fit a column of {kind}: {error}"
            ) from error


def _head(file: Path) -> Any:
    try:
        return pq.ParquetFile(file, pre_buffer=False)
    except FileNotFoundError:
        raise NotARecordingError(f"{file} is missing") from None
    except BROKEN as error:
        raise DamagedError(f"{file} cannot be opened as Parquet: {error}") from error


def _is_number(kind: Any) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def _plain(kind: Any) -> Any:
    """Return the type to which rows are brought: dictionaries as what they stand for, lists of text as plain lists."""
    if pa.types.is_dictionary(kind):
        return _plain(kind.value_type)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_list(kind) or pa.types.is_list(kind):
        return pa.list_(_plain(kind.value_type))
    if pa.types.is_fixed_size_list(kind):
        inner = _plain(kind.value_type)
        return pa.list_(inner) if pa.types.is_string(inner) else pa.list_(inner, kind.list_size)
    return kind


def space_from_parquet(path: Path | str) -> tuple[spaces.Dict, int, int | None]:
    """Return the space of a row of a Parquet file or folder, how many rows it has, and its capacity.

    The capacity is what the file's own metadata name as such; a file that names none has no limit.
    """
    source = ParquetSource(Path(path))
    said = (source._schema.metadata or {}).get(b"capacity", b"")
    return space_of(source), source.rows, int(said) if said.isdigit() else None
