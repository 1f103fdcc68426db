"""Infos: nobody declares them, they do what they want, nothing is aliased and data come back exactly."""

from __future__ import annotations

import copy
import enum
import json
import math
from collections import OrderedDict, defaultdict, namedtuple
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as numpy_st

from recorder.columns import Ragged, Sparse
from recorder.infos import Unkept, flatten, join_sparse, nest, size, snapshot, sparse_columns, unkept
from recorder.leaf import JSON_TEXT, NUMBERS, TEXT, encode_key
from recorder.testing import as_read


def columns(infos: Sequence[Mapping[str, Any]]) -> dict[str, Sparse]:
    """Return infos of neighbouring rows as columns, without what is no data, as the worker does."""
    rows = []
    for row, info in enumerate(infos):
        flat = flatten(snapshot(info))
        rows.append((row, {path: value for path, value in flat.items() if path not in unkept(flat)}))
    return sparse_columns(rows, len(infos))


def rows(column: Sparse) -> list[Any]:
    """Return a column row by row; None where it is absent."""
    read = as_read(column.leaf, column)
    gone = ~column.present
    return [None if absent else row for row, absent in zip(np.ma.getdata(read), gone, strict=True)]


# Snapshots.


class Colour(enum.Enum):
    RED = 1


class Level(enum.IntEnum):
    LOW = 3


class Word(str, enum.Enum):  # noqa: UP042  # whose `str` is not its value
    LEFT = "left"


class Tensor:
    """A tensor of another library, on this machine or not."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        if self.array is None:
            raise TypeError("cannot convert a tensor of another device")
        return np.asarray(self.array, dtype)


Point = namedtuple("Point", "x y")

SAME = [True, 3, 2**70, 0.5, 1j, "text", None, np.float32(0.1), np.int8(-1), np.bool_(True)]


@pytest.mark.parametrize("value", SAME, ids=repr)
def test_what_cannot_change_is_kept_as_it_is(value: Any) -> None:
    assert snapshot(value) is value


MADE = {
    "array": (np.arange(3), np.arange(3)),
    "array of another byte order": (np.arange(3, dtype=">i4"), np.arange(3, dtype="<i4")),
    "part of an array": (np.arange(9)[::-2], np.arange(9)[::-2]),
    "array of texts": (np.array(["a", "bc"]), ["a", "bc"]),
    "array of objects": (np.array([{"a": 1}, None, 3], object), [{"a": 1}, None, 3]),
    "array of records": (np.array([(1, 0.5)], [("x", "i4"), ("y", "f8")]), [[1, 0.5]]),
    "masked array": (np.ma.MaskedArray([1, 2], [False, True]), [1, None]),
    "masked": (np.ma.masked, None),
    "NumPy text": (np.str_("a"), "a"),
    "tuple": ((1, (2.5, "x")), [1, [2.5, "x"]]),
    "named tuple": (Point(1, 2), [1, 2]),
    "dict": ({"a": {"b": [1]}, 3: "x"}, {"a": {"b": [1]}, "3": "x"}),
    "ordered dict": (OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
    "dict with a default": (defaultdict(list, a=[1]), {"a": [1]}),
    "member of integers": (Level.LOW, 3),
    "member of texts": (Word.LEFT, "left"),
    "tensor": (Tensor([1.5, 2]), np.array([1.5, 2])),
    "member": (Colour.RED, Unkept("Colour")),
    "bytes": (b"abc", Unkept("bytes")),
    "NumPy bytes": (np.bytes_(b"abc"), Unkept("bytes")),
    "date": (np.datetime64("2020-01-01"), Unkept("date")),
    "set": ({1, 2}, Unkept("set")),
    "object": (Tensor, Unkept("type")),
    "tensor of another device": (Tensor(None), Unkept("Tensor")),
    "function": (len, Unkept("builtin_function_or_method")),
    "object in a list": ([1, len], [1, Unkept("builtin_function_or_method")]),
}


@pytest.mark.parametrize("name", MADE)
def test_a_snapshot_is_made_of_plain_values(name: str) -> None:
    value, expected = MADE[name]
    found = snapshot(value)
    assert type(found) is type(expected)
    np.testing.assert_equal(found, expected)
    if isinstance(expected, np.ndarray):
        assert found.dtype == expected.dtype


@pytest.mark.skipif(np.dtype(np.longdouble) == np.float64, reason="long double is float64 here")
def test_a_number_that_no_file_can_name_is_no_data() -> None:
    assert isinstance(snapshot(np.longdouble(1)), Unkept)
    assert isinstance(snapshot(np.ones(2, np.longdouble)), Unkept)
    assert isinstance(snapshot(Tensor(np.ones(2, np.longdouble))), Unkept)


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.complex_numbers()
    | st.text(st.characters(), max_size=3)
    | st.sampled_from(sorted(NUMBERS)).flatmap(
        lambda dtype: numpy_st.arrays(dtype, numpy_st.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=2))
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=5,
)


@given(values)
def test_a_snapshot_holds_no_part_of_what_the_environment_keeps(value: Any) -> None:
    taken = snapshot(value)
    before = copy.deepcopy(taken)
    _ruin(value)
    np.testing.assert_equal(taken, before)


def _ruin(value: Any) -> None:
    """Change everything in a value that can be changed."""
    match value:
        case np.ndarray() if value.size:
            value[...] = ~value if value.dtype == bool else value + 1
        case list():
            for item in value:
                _ruin(item)
            value.append("ruined")
        case dict():
            for item in value.values():
                _ruin(item)
            value["ruined"] = True


@given(values)
def test_the_size_of_a_snapshot_is_at_least_that_of_its_arrays(value: Any) -> None:
    assert size(snapshot(value)) >= (value.nbytes if isinstance(value, np.ndarray) else 1)


# Paths.


def test_keys_become_paths_and_paths_become_keys() -> None:
    info = {"a": 1, "b": {"c": 2, "d/e": {"f": 3}}, "": 4, "none": None, "empty": {}, "é *": [5]}
    flat = flatten(info)
    assert flat == {
        "info/a": 1,
        "info/b/c": 2,
        "info/b/d%2Fe/f": 3,
        "info/%-": 4,
        "info/é *": [5],
    }
    assert nest(flat) == {"a": 1, "b": {"c": 2, "d/e": {"f": 3}}, "": 4, "é *": [5]}


def test_a_key_has_the_same_path_whatever_stands_beside_it() -> None:
    found = columns([{"a": 1, "A": 2}, {"A": 3}, {"a": 4}])
    assert {path: rows(column) for path, column in found.items()} == {"info/a": [1, None, 4], "info/A": [2, 3, None]}


def test_a_slash_in_a_key_is_no_nesting() -> None:
    assert flatten({"a": {"b": 1}, "a/b": 2}) == {"info/a/b": 1, "info/a%2Fb": 2}


@pytest.mark.parametrize("paths", [["info/a", "info/a/b"], ["info/a/b", "info/a"]])
def test_what_is_a_value_in_some_rows_and_a_dict_in_others_is_nested_with_nothing_lost(paths: list[str]) -> None:
    assert nest({path: path for path in paths}) == {"a": {"": "info/a", "b": "info/a/b"}}


nested = st.recursive(
    st.integers(),
    lambda inner: st.dictionaries(st.text(st.characters(), max_size=4), inner, min_size=1, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(st.characters(), max_size=4), nested, max_size=4))
def test_nested_keys_come_back(info: dict[str, Any]) -> None:
    assert nest(flatten(info)) == info


def test_what_is_no_data_is_told_by_path_and_type() -> None:
    flat = flatten(snapshot({"simulator": object(), "a": {"f": len}, "b": 1, "c": [len]}))
    assert unkept(flat) == {"info/simulator": "object", "info/a/f": "builtin_function_or_method"}


# Columns.

KINDS = {
    "numbers": ([1, 2], "int64", (), [1, 2]),
    "integers, then floats": ([1, 0.5], "float64", (), [1.0, 0.5]),
    "small and large dtypes": ([np.int8(1), np.int32(2**20)], "int32", (), [1, 2**20]),
    "32 and 64 bits": ([np.float32(0.5), 0.1], "float64", (), [0.5, 0.1]),
    "float and complex": ([0.5, 1j], "complex128", (), [0.5, 1j]),
    "arrays": ([np.zeros(2), np.ones(2)], "float64", (2,), [[0, 0], [1, 1]]),
    "lists of numbers": ([[1, 2], [3, 4]], "int64", (2,), [[1, 2], [3, 4]]),
    "nested lists": ([[[1], [2]], [[3], [4]]], "int64", (2, 1), [[[1], [2]], [[3], [4]]]),
    "texts": (["a", ""], TEXT, (), ["a", ""]),
    "bools": ([True, np.bool_(False)], "bool", (), [True, False]),
    "bools and numbers": ([True, 2], JSON_TEXT, (), [True, 2]),
    "numbers and texts": ([1, "a"], JSON_TEXT, (), [1, "a"]),
    "large integers and floats": ([2**53 + 1, 0.5], JSON_TEXT, (), [2**53 + 1, 0.5]),
    "signed and unsigned": ([-1, 2**63 + 1], JSON_TEXT, (), [-1, 2**63 + 1]),
    "very large integers": ([2**70, 1], JSON_TEXT, (), [2**70, 1]),
    "number and array": ([1, np.zeros(2, int)], JSON_TEXT, (), [1, [0, 0]]),
    "arrays of other axes": ([np.zeros((1, 2)), np.zeros((2, 1))], JSON_TEXT, (), [[[0.0, 0.0]], [[0.0], [0.0]]]),
    "list of several types": (
        [[1, "a", None], [True, {"b": [1.5]}]],
        JSON_TEXT,
        (),
        [[1, "a", None], [True, {"b": [1.5]}]],
    ),
    "empty list": ([[], []], JSON_TEXT, (), [[], []]),
    "not finite in a list of several": (
        [["a", math.inf], ["b", math.nan]],
        JSON_TEXT,
        (),
        [["a", "inf"], ["b", "nan"]],
    ),
    "complex in a list of several": ([["a", 1 + 2j]], JSON_TEXT, (), [["a", [1.0, 2.0]]]),
    "object in a list": ([[1, len]], JSON_TEXT, (), [[1, {"unkept": "builtin_function_or_method"}]]),
}


@pytest.mark.parametrize("name", KINDS)
def test_values_are_kept_as_the_simplest_that_has_them_all(name: str) -> None:
    given_values, dtype, shape, expected = KINDS[name]
    (column,) = columns([{"a": value} for value in given_values]).values()
    assert (column.leaf.dtype, column.leaf.shape, column.leaf.ragged, column.leaf.sparse) == (dtype, shape, False, True)
    found = rows(column)
    assert [row.tolist() if isinstance(row, np.ndarray | np.generic) else row for row in found] == expected


def test_arrays_of_changing_length_are_ragged() -> None:
    (column,) = columns([{"a": np.zeros((n, 2), np.float32)} for n in (1, 0, 3)]).values()
    assert isinstance(column.values, Ragged)
    assert (column.leaf.dtype, column.leaf.shape, column.leaf.ragged) == ("float32", (2,), True)
    assert [row.shape for row in rows(column)] == [(1, 2), (0, 2), (3, 2)]


def test_a_key_comes_late_and_vanishes() -> None:
    infos = [{}, {"a": 1}, {}, {"a": None, "b": "x"}, {"a": 2}]
    found = columns(infos)
    assert {path: column.present.tolist() for path, column in found.items()} == {
        "info/a": [False, True, False, False, True],
        "info/b": [False, False, False, True, False],
    }
    assert rows(found["info/a"]) == [None, 1, None, None, 2]


def test_infos_of_some_rows_only_leave_the_others_absent() -> None:
    column = sparse_columns([(2, {"info/a": 1}), (4, {"info/a": 2})], 6)["info/a"]
    assert column.present.tolist() == [False, False, True, False, True, False]


# Batches.


def test_batches_without_the_key_are_absent_rows() -> None:
    (part,) = columns([{"a": 1}, {}]).values()
    joined = join_sparse("info/a", [2, part, 1])
    assert rows(joined) == [None, None, 1, None, None]
    assert rows(join_sparse("info/a", [2, 1])) == [None] * 3


@pytest.mark.parametrize("value", [np.zeros(1), np.zeros((2, 3)), "a", 1.5, [1, "a"]], ids=repr)
def test_a_column_in_which_no_row_is_left_keeps_its_form(value: Any) -> None:
    (part,) = columns([{"a": value}, {"a": value[:0] if isinstance(value, np.ndarray) else value}]).values()
    joined = join_sparse("info/a", [_without_rows(part), 3])
    assert joined.leaf == part.leaf
    assert isinstance(joined.values, Ragged) == part.leaf.ragged
    assert rows(joined) == [None] * 5


def _without_rows(part: Sparse) -> Sparse:
    """Return a column in which every row is absent."""
    values = part.values
    none = Ragged(values.lengths[:0], values.values[:0]) if isinstance(values, Ragged) else values[:0]
    return Sparse(part.leaf, np.zeros(len(part), bool), none)


simple = (
    st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text(st.characters(), max_size=3)
    | st.lists(st.integers(-5, 5) | st.text(max_size=1), max_size=3)
    | st.sampled_from(["bool", "int8", "uint64", "float32", "float64"]).flatmap(
        lambda dtype: numpy_st.arrays(
            dtype,
            numpy_st.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=2),
            elements=numpy_st.from_dtype(np.dtype(dtype), allow_nan=False),
        )
    )
)
infos = st.dictionaries(st.sampled_from(["a", "b", "A", "c/d"]), st.none() | simple, max_size=4)


@given(st.lists(st.lists(infos, max_size=5), max_size=5))
def test_batches_together_hold_what_every_info_held(batches: list[list[dict[str, Any]]]) -> None:
    parts = [columns(batch) for batch in batches]
    everything = [info for batch in batches for info in batch]
    for key in {key for info in everything for key, value in info.items() if value is not None}:
        path = f"info/{encode_key(key)}"
        joined = join_sparse(path, [part.get(path, len(batch)) for part, batch in zip(parts, batches, strict=True)])
        assert len(joined) == len(everything)
        assert joined.leaf.path == path
        for found, info in zip(rows(joined), everything, strict=True):
            assert _equal(found, info.get(key)), (found, info.get(key), joined.leaf)


def _equal(found: Any, value: Any) -> bool:
    """Tell whether what was read is what was given, as data: a list may be an array, 1 may be 1.0."""
    if value is None or found is None:
        return found is value
    if isinstance(found, np.ndarray | np.generic):
        return np.array_equal(found, np.asarray(value)) and np.shape(found) == np.shape(value)
    return json.dumps(_json(found)) == json.dumps(_json(value)) or _json(found) == _json(value)


def _json(value: Any) -> Any:
    """Return a value as JSON says it, with infinity as text."""
    if isinstance(value, np.ndarray | np.generic):
        return _json(value.tolist())
    if isinstance(value, list):
        return [_json(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
