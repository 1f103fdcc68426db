"""Columns of a table as Arrow arrays, one row a moment, and back; what Arrow cannot say is in a field's metadata."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recorder.columns import Array, Ragged
from recorder.errors import FormatError, MissingExtraError
from recorder.leaf import NUMBERS, TEXT, text_array
from recorder.storages.table_reading import LENGTHS, PRESENT, STEP, Columns

try:
    import pyarrow as pa
    import pyarrow.compute as pc
except ImportError as error:
    raise MissingExtraError("pyarrow", "parquet") from error

NOTE = b"recorder"
"""The key in the metadata of a field under which a `FieldNote` is."""

BINARY_BYTES = 4096
"""Rows of arrays from this size on are kept as bytes: Parquet has no small integers, and takes 2.1 times the
space and 10 times the time for pictures as lists."""


@dataclass(frozen=True)
class FieldNote:
    """What a column holds: arrays of a shape and dtype, or text.

    A `transition` is null where a step of an episode is 0, and this means nothing. `sparse` rows are null where
    they are absent. Texts that are no UTF-8 are `coded` as bytes, with their surrogates.
    """

    dtype: str
    shape: tuple[int, ...] = ()
    ragged: bool = False
    sparse: bool = False
    transition: bool = False
    coded: bool = False


def note_of(field: Any) -> FieldNote | None:
    """Return what a field's metadata say of it; None of a field that is not of this package.

    Raises:
        FormatError: they are not of the form that `parquet_table` wrote.
    """
    text = (field.metadata or {}).get(NOTE)
    if text is None:
        return None
    try:
        data = json.loads(text)
        note = FieldNote(**{**data, "shape": tuple(data["shape"])})
    except (ValueError, TypeError, KeyError) as error:
        raise FormatError(f"the metadata of column {field.name!r} are not of their form: {error}") from error
    if note.dtype not in NUMBERS | {TEXT} or not all(isinstance(side, int) and side >= 0 for side in note.shape):
        raise FormatError(f"column {field.name!r} cannot hold {note.dtype!r} of shape {note.shape}")
    return note


def parquet_table(columns: Columns) -> Any:
    """Return named columns, with `STEP` among them, as an Arrow table with one row for each step of them."""
    names = [name for name in columns if not name.startswith((LENGTHS, PRESENT))]
    fields, arrays = [], []
    for name in names:
        note, array = _arrow(columns, name)
        fields.append(pa.field(name, array.type, metadata={NOTE: json.dumps(asdict(note)).encode()}))
        arrays.append(array)
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def _arrow(columns: Columns, name: str) -> tuple[FieldNote, Any]:
    values, lengths, present = columns[name], columns.get(LENGTHS + name), columns.get(PRESENT + name)
    text = values.dtype == object
    array = _texts(values) if text else _numbers(values)
    if lengths is not None:
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        array = pa.ListArray.from_arrays(pa.array(offsets), array)
    count = len(array) if present is None else len(present)
    there = _slots(columns[STEP], count)
    note = FieldNote(
        dtype=TEXT if text else values.dtype.name,
        shape=values.shape[1:],
        ragged=lengths is not None,
        sparse=present is not None,
        transition=count < len(there),
        coded=text and _innermost(array.type) == pa.binary(),
    )
    if present is not None:
        there[there] = present
    return note, array if there.all() else _spread(array, there)


def _slots(steps: Array, count: int) -> NDArray[np.bool_]:
    """Return which rows a column of `count` has: all, or those of the steps from 1 on."""
    return np.ones(len(steps), bool) if count == len(steps) else steps != 0


def _spread(array: Any, there: NDArray[np.bool_]) -> Any:
    """Return the rows of `array` where `there` is true, and nulls between them."""
    return array.take(pa.array(np.cumsum(there) - 1, mask=~there))


def _innermost(kind: Any) -> Any:
    while pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
        kind = kind.value_type
    return kind


def _texts(values: Array) -> Any:
    try:
        return pa.array(values.tolist(), pa.string())
    except UnicodeEncodeError:
        return pa.array([text.encode("utf-8", "surrogatepass") for text in values], pa.binary())


def _numbers(values: Array) -> Any:
    """Return arrays of one shape: plain numbers, nested lists of fixed size, or bytes where they are large."""
    if values.dtype.kind == "c":
        values = np.ascontiguousarray(values)[..., None].view(values.real.dtype)
    size = math.prod(values.shape[1:]) * values.dtype.itemsize
    if values.ndim > 1 and size >= BINARY_BYTES:
        data = [None, pa.py_buffer(values.tobytes())]
        return pa.FixedSizeBinaryArray.from_buffers(pa.binary(size), len(values), data)
    array, shape = pa.array(values.reshape(-1)), values.shape
    for axis in range(len(shape) - 1, 0, -1):
        if shape[axis]:
            array = pa.FixedSizeListArray.from_arrays(array, shape[axis])
        else:  # Arrow has no lists of the fixed size 0
            rows = math.prod(shape[:axis])
            array = pa.ListArray.from_arrays(pa.array(np.zeros(rows + 1, np.int32)), array)
    return array


def rows_of(array: Any, note: FieldNote) -> Array | Ragged:
    """Return the rows of a column that are not null."""
    array = array.drop_null()
    if not note.ragged:
        return _values(array, note)
    lengths = pc.list_value_length(array).to_numpy(zero_copy_only=False).astype(np.int64)
    return Ragged(lengths, _values(array.flatten(), note))


def _values(array: Any, note: FieldNote) -> Array:
    if note.dtype == TEXT:
        texts = array.to_pylist()
        return text_array([text.decode("utf-8", "surrogatepass") for text in texts] if note.coded else texts)
    shape, dtype = (len(array), *note.shape), np.dtype(note.dtype)
    while pa.types.is_list(array.type) or pa.types.is_fixed_size_list(array.type):
        array = array.flatten()
    if pa.types.is_fixed_size_binary(array.type):
        size = array.type.byte_width
        data = array.buffers()[1] or b""
        numbers = np.frombuffer(data, np.uint8)[array.offset * size :][: len(array) * size]
    else:
        numbers = array.to_numpy(zero_copy_only=False)
    return np.ascontiguousarray(numbers).view(dtype).reshape(shape).copy()


def fits(kind: Any, note: FieldNote) -> bool:
    """Return whether a column of an Arrow type can hold what its note says, so that no count goes wrong later."""
    sides = note.shape if np.dtype(note.dtype if note.dtype != TEXT else "O").kind != "c" else (*note.shape, 2)
    if note.ragged:
        if not pa.types.is_list(kind):
            return False
        kind = kind.value_type
    if note.dtype == TEXT:
        return bool(kind == (pa.binary() if note.coded else pa.string()))
    if pa.types.is_fixed_size_binary(kind):
        return bool(kind.byte_width == math.prod(note.shape) * np.dtype(note.dtype).itemsize)
    for side in sides:
        is_list = pa.types.is_fixed_size_list(kind) and kind.list_size == side
        if not (is_list or (pa.types.is_list(kind) and not side)):
            return False
        kind = kind.value_type
    base = np.dtype(note.dtype)
    return bool(kind == pa.from_numpy_dtype(np.zeros(0, base).real.dtype))
