"""Columns: rows in memory and on disk are picked, joined and cut like plain lists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recorder.columns import (
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
    concatenate,
    nbytes,
    positions,
    ragged,
    split,
    take,
)
from recorder.leaf import TEXT, Leaf, text_array
from recorder.testing import as_read

PLAIN = Leaf("plain", (2,), "int32")
TEXTS = Leaf("texts", (), TEXT)
RAGGED = Leaf("ragged", (2,), "int32", ragged=True)
SPARSE = Leaf("sparse", (2,), "int32", sparse=True)
SPARSE_RAGGED = replace(RAGGED, path="sparse ragged", sparse=True)
LEAVES = [PLAIN, TEXTS, RAGGED, SPARSE, SPARSE_RAGGED]

Row = Any
"""A row as a plain value: a list of numbers, a text, None where it is absent."""

numbers = st.integers(-(2**31), 2**31 - 1)
pairs = st.lists(numbers, min_size=2, max_size=2)
VALUES: dict[str, st.SearchStrategy[Row]] = {
    "plain": pairs,
    "texts": st.text(max_size=3),
    "ragged": st.lists(pairs, max_size=3),
    "sparse": st.none() | pairs,
    "sparse ragged": st.none() | st.lists(pairs, max_size=3),
}

cases = st.sampled_from(LEAVES).flatmap(lambda leaf: st.tuples(st.just(leaf), st.lists(VALUES[leaf.path], max_size=9)))


def packed(leaf: Leaf, rows: Sequence[Row]) -> Rows:
    """Return plain rows as the arrays that hold them."""
    if leaf.sparse:
        present = np.array([row is not None for row in rows], bool)
        values = packed(replace(leaf, sparse=False), [row for row in rows if row is not None])
        assert not isinstance(values, Sparse)
        return Sparse(leaf, present, values)
    if leaf.dtype == TEXT:
        return text_array(rows)
    if leaf.ragged:
        return ragged([np.array(row, np.int32).reshape(-1, 2) for row in rows], leaf)
    return np.array(rows, np.int32).reshape(-1, 2)


def plain(rows: Any) -> list[Row]:
    """Return rows that were read as plain values."""
    absent = np.ma.getmaskarray(rows).any(axis=tuple(range(1, np.ndim(rows))))
    return [
        None if gone else row.tolist() if isinstance(row, np.ndarray) else row
        for row, gone in zip(np.ma.getdata(rows), absent, strict=True)
    ]


def column(leaf: Leaf, rows: Rows) -> Column:
    """Return rows as a column that reads them."""
    match rows:
        case Sparse(_, present, values):
            return SparseColumn(leaf, present, column(leaf, values))
        case Ragged(lengths, values):
            return RaggedColumn(leaf, lengths, values)
        case _:
            return ArrayColumn(leaf, rows)


# Rows in memory.


@given(cases, st.data())
def test_rows_are_taken_as_from_a_list(case: tuple[Leaf, list[Row]], data: st.DataObject) -> None:
    leaf, rows = case
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, len(rows))] * 2)))
    assert plain(as_read(leaf, take(packed(leaf, rows), slice(start, stop)))) == rows[start:stop]
    index = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=9)) if rows else []
    found = take(packed(leaf, rows), np.array(index, np.intp))
    assert plain(as_read(leaf, found)) == [rows[i] for i in index]


@given(
    st.sampled_from([PLAIN, TEXTS, RAGGED]).flatmap(
        lambda leaf: st.tuples(st.just(leaf), st.lists(st.lists(VALUES[leaf.path], max_size=4), min_size=1, max_size=4))
    )
)
def test_rows_are_joined_as_lists_are(case: tuple[Leaf, list[list[Row]]]) -> None:
    leaf, parts = case
    dense = [part for rows in parts if not isinstance(part := packed(leaf, rows), Sparse)]
    assert plain(as_read(leaf, concatenate(dense))) == [row for rows in parts for row in rows]


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 6)), max_size=8))
def test_positions_are_those_of_all_spans_one_after_another(spans: list[tuple[int, int]]) -> None:
    starts = np.array([start for start, _ in spans], np.int64)
    found = positions(starts, starts + np.array([length for _, length in spans], np.int64))
    expected = [i for start, length in spans for i in range(start, start + length)]
    if isinstance(found, slice):
        assert list(range(found.start, found.stop)) == expected
    else:
        assert found.tolist() == expected


def test_neighbouring_spans_are_one_slice() -> None:
    assert positions(np.array([3, 5, 5]), np.array([5, 5, 9])) == slice(3, 9)
    assert positions(np.array([3, 3]), np.array([3, 3])) == slice(0, 0)
    assert positions(np.array([], np.int64), np.array([], np.int64)) == slice(0, 0)


@given(st.lists(st.lists(pairs, max_size=3), max_size=6))
def test_ragged_rows_are_split_as_they_were_joined(rows: list[Row]) -> None:
    joined = packed(RAGGED, rows)
    assert isinstance(joined, Ragged)
    assert [row.tolist() for row in split(joined.values, joined.lengths)] == rows


def test_bytes_are_those_of_all_arrays() -> None:
    assert nbytes(packed(PLAIN, [[1, 2]] * 3)) == 24
    assert nbytes(packed(RAGGED, [[[1, 2]], []])) == 8 + 16
    assert nbytes(packed(SPARSE, [None, [1, 2]])) == 2 + 8
    assert nbytes(packed(TEXTS, ["a", "b"])) > 0


# Columns.

indexes = st.one_of(
    st.integers(-12, 12),
    st.slices(9),
    st.builds(
        slice,
        st.none() | st.integers(-12, 12),
        st.none() | st.integers(-12, 12),
        st.sampled_from([None, 1, 2, -1, -3]),
    ),
    st.lists(st.integers(-12, 12), max_size=8),
)


@given(cases, indexes, st.data())
def test_a_column_is_indexed_as_a_list(case: tuple[Leaf, list[Row]], index: Any, data: st.DataObject) -> None:
    leaf, rows = case
    made = _any_column(leaf, rows, data)
    assert len(made) == len(rows)
    picked = index if isinstance(index, list) else [index] if isinstance(index, int) else range(len(rows))[index]
    if any(not -len(rows) <= i < len(rows) for i in picked):
        with pytest.raises(IndexError):
            made[index]
        return
    expected = [rows[i] for i in picked]
    if isinstance(index, int):
        assert plain(made[index : index + 1 or None][:1]) == expected
        assert plain(_as_rows(leaf, made[index])) == expected
    else:
        assert plain(made[index]) == expected


def _as_rows(leaf: Leaf, row: Any) -> Any:
    """Return one row that was read as an array of one row."""
    if row is np.ma.masked:
        return np.ma.masked_all(1, object)
    return row[None] if not leaf.ragged and isinstance(row, np.ndarray) else text_array([row])


def _any_column(leaf: Leaf, rows: list[Row], data: st.DataObject) -> Column:
    """Return rows as a column that is whole, cut out of a longer one, joined of two, or mapped."""
    if not rows:
        return column(leaf, packed(leaf, rows))
    cut = data.draw(st.integers(0, len(rows)))
    match data.draw(st.sampled_from(["whole", "span", "joined", "mapped", "span of joined"])):
        case "span":
            longer = column(leaf, packed(leaf, rows[:2] + rows + rows[:1]))
            return SpanColumn(longer, min(2, len(rows)), min(2, len(rows)) + len(rows))
        case "joined":
            return JoinedColumn(leaf, [column(leaf, packed(leaf, part)) for part in (rows[:cut], [], rows[cut:])])
        case "mapped":
            return MappedColumn(leaf, column(leaf, packed(leaf, rows)), lambda read: read.copy())
        case "span of joined":
            parts = [column(leaf, packed(leaf, part)) for part in (rows[:cut], rows[cut:], rows[:1])]
            return SpanColumn(JoinedColumn(leaf, parts), 0, len(rows))
    return column(leaf, packed(leaf, rows))


@given(cases, st.data())
def test_a_mask_picks_the_rows_where_it_is_true(case: tuple[Leaf, list[Row]], data: st.DataObject) -> None:
    leaf, rows = case
    mask = data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    made = _any_column(leaf, rows, data)
    assert plain(made[np.array(mask, bool)]) == [row for row, wanted in zip(rows, mask, strict=True) if wanted]
    with pytest.raises(IndexError, match="mask"):
        made[np.ones(len(rows) + 1, bool)]


def test_absent_rows_stay_absent_when_the_first_that_is_picked_is_there() -> None:
    made = column(SPARSE, packed(SPARSE, [[1, 2], None, None, [3, 4]]))
    assert plain(made[[0, 2]]) == [[1, 2], None]
    assert plain(made[[3, 1, 0]]) == [[3, 4], None, [1, 2]]
    assert plain(made[::3]) == [[1, 2], [3, 4]]


@pytest.mark.parametrize("index", [0.5, [0.5], [[1, 2]], "a", None, ["a"]], ids=repr)
def test_an_index_that_is_none_raises_an_index_error(index: Any) -> None:
    with pytest.raises(IndexError):
        column(PLAIN, packed(PLAIN, [[1, 2]] * 3))[index]


def test_an_index_beyond_the_rows_names_the_leaf_and_its_rows() -> None:
    made = column(PLAIN, packed(PLAIN, [[1, 2]] * 3))
    with pytest.raises(IndexError, match="row 3 of 'plain', which has 3 rows"):
        made[3]
    with pytest.raises(IndexError, match="beyond the 3 rows of 'plain'"):
        made[[0, -4]]


def test_more_than_rows_are_picked_by_a_tuple() -> None:
    made = column(PLAIN, packed(PLAIN, [[1, 2], [3, 4], [5, 6]]))
    assert made[1, 0] == 3
    assert made[-1, :].tolist() == [5, 6]
    assert made[:2, 1].tolist() == [2, 4]
    assert made[[2, 0], ::-1].tolist() == [[6, 5], [2, 1]]


def test_a_column_is_an_array_when_numpy_asks_for_one() -> None:
    made = column(PLAIN, packed(PLAIN, [[1, 2], [3, 4]]))
    assert np.asarray(made).tolist() == [[1, 2], [3, 4]]
    assert np.asarray(made, np.float32).dtype == np.float32
    assert (made[:] + 1).tolist() == [[2, 3], [4, 5]]


@pytest.mark.parametrize(
    ("leaf", "shape"),
    [(PLAIN, (0, 2)), (TEXTS, (0,)), (RAGGED, (0,)), (SPARSE, (0, 2)), (SPARSE_RAGGED, (0,))],
)
def test_a_column_without_rows_has_the_shape_of_its_leaf(leaf: Leaf, shape: tuple[int, ...]) -> None:
    made = column(leaf, packed(leaf, []))
    assert made.shape == made[:].shape == made[[]].shape == shape
    assert repr(made).startswith(f"<Column {leaf.path}")


def test_a_column_reads_only_the_rows_that_are_asked_for() -> None:
    asked: list[tuple[int, int]] = []

    class Noting(ArrayColumn):
        def read(self, start: int, stop: int) -> Any:
            asked.append((start, stop))
            return super().read(start, stop)

    class Elsewhere:
        """Rows that are no array in memory, as those of a file."""

        def __len__(self) -> int:
            return 100

        def __getitem__(self, rows: slice) -> np.ndarray:
            return np.zeros((100, 2), np.int32)[rows]

    made = Noting(PLAIN, Elsewhere())
    made[[7, 3, 4, 4, 90]]
    assert asked == [(3, 5), (7, 8), (90, 91)]
    asked.clear()
    SpanColumn(made, 50, 60)[2:4]
    assert asked == [(52, 54)]


def test_what_was_read_is_no_part_of_the_column() -> None:
    source = np.zeros((3, 2), np.int32)
    for leaf, rows in ((PLAIN, source), (RAGGED, Ragged(np.array([1, 2]), source))):
        for row in column(leaf, rows)[:]:
            row[...] = 7
    assert not source.any()
