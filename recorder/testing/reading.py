"""The contract of a reader: rows as from an array, and damage by name."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recorder.errors import DamagedError, FormatError
from recorder.files import files_below
from recorder.storages.base import Counts, Reader
from recorder.testing.children import in_child
from recorder.testing.comparing import assert_rows, facts
from recorder.testing.contract import Contract
from recorder.testing.diary import Diary, overwrite
from recorder.testing.shards import cut, pack, read_all, read_anew

INDEXES: tuple[Any, ...] = (
    *(0, -1, 5, np.int64(3)),
    *(
        slice(None),
        slice(2, 5),
        slice(-3, None),
        slice(1, None, 3),
        slice(7, 1, -2),
        slice(5, 2),
        slice(90, 99),
    ),
    *([5, 2, 2, 0], [-1, 0, -9], [], np.array([3, 4, 5], np.uint8), np.arange(9) % 2 == 0, np.zeros(9, bool)),
)
"""What nine rows are asked for by."""

BEYOND: tuple[Any, ...] = (9, -10, [0, 9], [-10], np.ones(8, bool), [0.5], [[1, 2]])
"""What nine rows have no answer to."""


class ReadingContract(Contract):
    """What a reader promises."""

    # Reading.

    def test_rows_are_picked_as_from_an_array(self, tmp_path: Path) -> None:
        with self._packed(self._nine(tmp_path), tmp_path / "shard") as reader:
            for leaf in reader.leaves.values():
                whole, column = reader.whole(leaf.path)[:], reader.whole(leaf.path)
                for index in INDEXES:
                    picked = whole[np.array(index, int) if isinstance(index, list) else index]
                    if isinstance(index, int | np.integer):
                        assert facts(column[index]) == facts(picked), (leaf.path, index)
                    else:
                        assert_rows(leaf, column[index], picked)

    def test_rows_that_are_not_there_raise_an_index_error(self, tmp_path: Path) -> None:
        with self._packed(self._nine(tmp_path), tmp_path / "shard") as reader:
            for path in reader.leaves:
                for index in BEYOND:
                    with pytest.raises(IndexError):
                        reader.whole(path)[index]

    def _nine(self, folder: Path) -> Diary:
        """Return a diary of nine rows of each class, which lie in two segments or more."""
        leaves = [replace(leaf, per="moment") for leaf in self.leaves]
        diary = Diary(self.storage.writer(folder / "staging", leaves), leaves, self.infos)
        diary.grow({0: 4, 1: 2, 2: 3})
        diary.end()
        return diary

    def test_a_column_tells_its_shape_and_dtype(self, tmp_path: Path) -> None:
        diary = self._filled(tmp_path)
        with self._packed(diary, tmp_path / "shard") as reader:
            for path, leaf in reader.leaves.items():
                column = reader.segment(0)[path]
                rows = diary.segment(0).moments if leaf.per == "moment" else diary.segment(0).transitions
                assert len(column) == rows
                assert column.shape == ((rows,) if leaf.ragged else (rows, *leaf.shape)), path
                assert column.dtype == leaf.numpy_dtype
                assert column[:].dtype == (object if leaf.ragged else leaf.numpy_dtype), path

    def test_inner_axes_are_picked_with_the_rows(self, tmp_path: Path) -> None:
        diary = self._filled(tmp_path)
        with self._packed(diary, tmp_path / "shard") as reader:
            for leaf in diary.leaves:
                if leaf.fixed and leaf.shape and leaf.shape[0]:
                    column = reader.segment(0)[leaf.path]
                    assert_rows(leaf, column[1:4, 0], column[:][1:4, 0])
                    assert facts(column[2, 0]) == facts(column[:][2, 0]), leaf.path

    def test_what_was_read_may_be_changed(self, tmp_path: Path) -> None:
        diary = self._filled(tmp_path)
        with self._packed(diary, tmp_path / "shard") as reader:
            for leaf in diary.leaves:
                column = reader.whole(leaf.path)
                before, spoilt = column[:], column[:]
                overwrite(spoilt)
                assert_rows(leaf, column[:], before)

    def test_a_shard_has_the_columns_of_its_leaves_and_no_others(self, tmp_path: Path) -> None:
        diary = self._filled(tmp_path)
        with self._packed(diary, tmp_path / "shard") as reader:
            assert set(reader.segment(1)) == set(reader.leaves)
            assert {leaf.path for leaf in diary.leaves} <= set(reader.leaves)
            with pytest.raises(KeyError):
                reader.segment(1)["no such leaf"]

    def test_coded_rows_are_one_for_each_row_or_none(self, tmp_path: Path) -> None:
        diary = self._filled(tmp_path)
        with self._packed(diary, tmp_path / "shard") as reader:
            for path in reader.leaves:
                coded = reader.encoded(path, slice(1, 4))
                assert coded is None or [type(row) for row in coded] == [bytes] * 3

    def test_a_reader_is_closed_twice(self, tmp_path: Path) -> None:
        with self._packed(self._filled(tmp_path), tmp_path / "shard") as reader:
            for path in reader.leaves:
                reader.whole(path)[:1]
            reader.close()
            reader.close()

    def test_a_shard_is_read_in_a_forked_child_and_elsewhere(self, tmp_path: Path) -> None:
        diary = self._filled(tmp_path)
        expected = {leaf: diary.expected(leaf, diary.segments()) for leaf in diary.leaves}
        with self._packed(diary, tmp_path / "shard") as reader:

            def compare(opened: Reader) -> None:
                for leaf, rows in expected.items():
                    self._compare(leaf, opened.whole(leaf.path)[:], rows)

            compare(reader)
            in_child(lambda: compare(reader))
            compare(reader)
            moved = (tmp_path / "shard").rename(tmp_path / "moved")
            told = pickle.dumps((self.storage, moved, list(reader.leaves.values()), reader.counts))
            in_child(lambda: compare(read_anew(told)))

    # Damage.

    def test_a_missing_file_is_named(self, tmp_path: Path) -> None:
        self._check_damage(tmp_path, Path.unlink)

    def test_a_file_that_was_cut_is_named(self, tmp_path: Path) -> None:
        self._check_damage(tmp_path, lambda path: cut(path, path.stat().st_size // 2))

    def test_a_file_that_was_emptied_is_named(self, tmp_path: Path) -> None:
        self._check_damage(tmp_path, lambda path: cut(path, 0))

    def _check_damage(self, folder: Path, damage: Callable[[Path], object]) -> None:
        """Damage each file of a shard in turn: reading and counting name it, or fewer rows are counted."""
        diary = self._filled(folder)
        found, counts = pack(diary, folder / "shard", diary.segments()), Counts.of(diary.segments())
        for i, path in enumerate(list(files_below(folder / "shard"))):
            copy = folder / f"{i}"
            shutil.copytree(folder / "shard", copy)
            damaged = copy / path.relative_to(folder / "shard")
            damage(damaged)
            with closing(self._reader(copy, found, diary.segments())) as reader:
                with pytest.raises((DamagedError, FormatError)) as raised:
                    read_all(reader)
                assert damaged.name in str(raised.value)
            with closing(self._reader(copy, found, diary.segments())) as reader:
                try:
                    rows = reader.count()
                except (DamagedError, FormatError) as error:
                    rows, told = {}, str(error)
                assert (
                    damaged.name in told
                    if not rows
                    else any(rows[path] < counts.total(leaf.per) for path, leaf in reader.leaves.items())
                )
