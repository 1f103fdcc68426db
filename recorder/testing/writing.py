"""The contract of a writer: rows come back, however they were appended and packed."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from recorder.leaf import Leaf
from recorder.storages.adopting import adopt
from recorder.testing.comparing import assert_rows
from recorder.testing.contract import Contract
from recorder.testing.diary import Diary
from recorder.testing.rows import rows_of
from recorder.testing.shards import rows_for


class WritingContract(Contract):
    """What a writer promises."""

    # Rows come back.

    def test_one_segment_comes_back(self, tmp_path: Path, leaf: Leaf, count: int) -> None:
        diary = self._diary(tmp_path, [leaf])
        diary.grow({0: rows_for(leaf, count)})
        diary.end()
        self._check(diary, tmp_path / "shard")

    def test_many_segments_that_are_open_at_once_come_back(self, tmp_path: Path, leaf: Leaf, count: int) -> None:
        diary = self._diary(tmp_path, [leaf])
        rows = rows_for(leaf, count)
        diary.grow({3: rows, 0: min(rows, self.block) // 2 + 1, 12: min(rows, self.block)})
        diary.end()
        self._check(diary, tmp_path / "shard")

    def test_the_others_come_back_when_a_segment_is_forgotten(self, tmp_path: Path, leaf: Leaf, count: int) -> None:
        diary = self._diary(tmp_path, [leaf])
        rows = rows_for(leaf, count)
        diary.grow({0: rows, 1: min(rows, self.block) // 2 + 1})
        diary.writer.checkpoint()
        diary.forget(1)
        diary.grow({2: min(rows, self.block), 0: 1})
        diary.end()
        self._check(diary, tmp_path / "shard")

    def test_all_leaves_keep_step_with_one_another(self, tmp_path: Path) -> None:
        diary = self._diary(tmp_path)
        diary.grow({0: 2, 1: self.block + 1, 2: 3})
        diary.end()
        self._check(diary, tmp_path / "shard")

    def test_rows_that_are_no_series_of_steps_come_back(self, tmp_path: Path) -> None:
        leaves = [replace(leaf, per="transition") for leaf in self.leaves]
        diary = self._diary(tmp_path, leaves, series=False)
        diary.grow({0: 1, 1: 5})
        diary.end()
        self._check(diary, tmp_path / "shard")

    def test_lent_arrays_may_be_overwritten_after_append(self, tmp_path: Path) -> None:
        diary = self._diary(tmp_path)
        for _ in range(3):
            diary.append((0, 3), (1, 2), spoil=True)
        diary.end()
        self._check(diary, tmp_path / "shard")

    def test_rows_that_belong_to_no_run_are_left_out(self, tmp_path: Path) -> None:
        diary = self._diary(tmp_path)
        diary.append((None, 2), (0, 3), (None, 1), (1, 2), (None, 4))
        diary.append((1, 2), (0, 1), (None, 1))
        diary.writer.checkpoint()
        diary.append((0, 1), (None, 3))
        diary.end()
        self._check(diary, tmp_path / "shard")

    def test_a_batch_without_rows_changes_nothing(self, tmp_path: Path) -> None:
        diary = self._diary(tmp_path)
        diary.append((0, 3))
        diary.append((0, 0))
        diary.writer.append({leaf.path: rows_of(leaf, 0) for leaf in diary.leaves}, [])
        diary.append((0, 0), (1, 2), (0, 1))
        diary.end()
        self._check(diary, tmp_path / "shard")

    # What a writer holds.

    def test_a_writer_tells_truly_what_it_holds(self, tmp_path: Path) -> None:
        diary = self._diary(tmp_path)
        assert list(diary.writer.segments()) == []
        diary.append((4, 3), (0, 2))
        diary.writer.checkpoint()
        diary.append((4, 1), (1_000_000, 2))
        assert [self._told(segment, diary) for segment in diary.writer.segments()] == diary.segments()
        diary.forget(4)
        assert [self._told(segment, diary) for segment in diary.writer.segments()] == diary.segments()

    def test_a_writer_that_holds_nothing_weighs_nothing(self, tmp_path: Path) -> None:
        diary = self._diary(tmp_path)
        assert diary.writer.nbytes == 0
        diary.grow({0: 3, 1: 2})
        assert diary.writer.nbytes >= 0
        diary.forget(0, 1)
        assert diary.writer.nbytes == 0

    def test_a_view_is_what_will_be_packed(self, tmp_path: Path) -> None:
        diary = self._filled(tmp_path)
        for saved in (False, True):
            for segment in (*diary.segments(), diary.segment(0, 3)):
                columns = diary.writer.view(segment)
                for leaf in diary.leaves:
                    self._compare(leaf, columns[leaf.path][:], diary.expected(leaf, [segment]))
                for leaf in diary.infos:
                    if leaf.path in columns:
                        self._compare(leaf, columns[leaf.path][:], diary.expected(leaf, [segment]))
            if not saved:
                diary.writer.checkpoint()

    def test_a_writer_is_closed_twice_and_shards_stay(self, tmp_path: Path) -> None:
        diary = self._filled(tmp_path)
        with self._packed(diary, tmp_path / "shard") as reader:
            diary.writer.close()
            diary.writer.close()
            for leaf in diary.leaves:
                self._compare(leaf, reader.whole(leaf.path)[:], diary.expected(leaf, diary.segments()))

    # Packing.

    def test_packing_consumes_nothing(self, tmp_path: Path) -> None:
        diary = self._filled(tmp_path)
        self._check(diary, tmp_path / "first")
        self._check(diary, tmp_path / "second")
        diary.writer.checkpoint()
        self._check(diary, tmp_path / "third")

    def test_segments_are_packed_in_any_order(self, tmp_path: Path) -> None:
        diary = self._filled(tmp_path)
        diary.writer.checkpoint()
        self._check(diary, tmp_path / "shard", [diary.segment(number) for number in (2, 0, 1)])
        self._check(diary, tmp_path / "some", [diary.segment(1)])

    def test_segments_are_packed_with_fewer_rows_than_they_have(self, tmp_path: Path) -> None:
        diary = self._filled(tmp_path)
        self._check(diary, tmp_path / "cut", [diary.segment(0, 3), diary.segment(1), diary.segment(2, 2)])
        diary.writer.checkpoint()
        self._check(diary, tmp_path / "other", [diary.segment(1, 2), diary.segment(0, 8)])
        self._check(diary, tmp_path / "whole")

    def test_some_segments_are_packed_while_others_run(self, tmp_path: Path) -> None:
        diary = self._diary(tmp_path)
        diary.append((0, 3), (1, 4))
        diary.end(0)
        self._check(diary, tmp_path / "first", [diary.segment(0)])
        diary.append((1, 2), (2, 2))
        diary.forget(0)
        diary.append((1, 3))
        diary.end()
        self._check(diary, tmp_path / "second")

    def test_a_shard_outlives_what_was_staged(self, tmp_path: Path) -> None:
        diary = self._filled(tmp_path)
        diary.writer.checkpoint()
        with self._packed(diary, tmp_path / "shard") as reader:
            expected = {leaf: diary.expected(leaf, diary.segments()) for leaf in diary.leaves}
            diary.forget(*diary.held)
            shutil.rmtree(tmp_path / "staging", ignore_errors=True)
            for leaf, rows in expected.items():
                self._compare(leaf, reader.whole(leaf.path)[:], rows)

    def test_an_episode_of_a_shard_becomes_a_segment_again_with_the_very_same_rows(self, tmp_path: Path) -> None:
        diary = self._filled(tmp_path)
        with self._packed(diary, tmp_path / "shard") as reader:
            heir = Diary(self.storage.writer(tmp_path / "heir", self.leaves), self.leaves, self.infos)
            for i in (1, 0):
                adopt(heir.writer, diary.segment(i), reader, i)
                heir.held[i] = diary.held[i]
            with self._packed(heir, tmp_path / "again") as again:
                for leaf in again.leaves.values():
                    for i in (0, 1):
                        assert_rows(leaf, again.segment(i)[leaf.path][:], reader.segment(i)[leaf.path][:])
