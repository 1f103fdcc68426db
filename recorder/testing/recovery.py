"""The contract of staging: what a kill leaves, and what comes back of it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

from recorder.files import files_below
from recorder.testing.contract import Contract
from recorder.testing.diary import Diary, Recovered
from recorder.testing.shards import cut


class RecoveryContract(Contract):
    """What survives of a writer."""

    # Staging and recovery.

    def test_nothing_is_on_disk_before_there_are_rows(self, tmp_path: Path) -> None:
        writer = self.storage.writer(tmp_path / "staging", self.leaves)
        writer.checkpoint()
        writer.close()
        assert not any(tmp_path.iterdir())

    def test_forgotten_segments_leave_no_file_in_staging(self, tmp_path: Path) -> None:
        diary = self._diary(tmp_path)
        diary.grow({0: self.block + 1, 1: 3, 2: 2})
        diary.end(1)
        diary.writer.checkpoint()
        diary.grow({0: 2, 2: 5})
        diary.writer.checkpoint()
        for segment in (1, 0, 2):
            diary.forget(segment)
        assert list(files_below(tmp_path)) == []

    def test_forgotten_segments_are_not_recovered(self, tmp_path: Path) -> None:
        diary = self._filled(tmp_path)
        diary.writer.checkpoint()
        diary.forget(1)
        with self._recovered(diary, tmp_path) as dead:
            assert sorted(dead.held) == [0, 2]
            self._check(dead, tmp_path / "shard")

    def test_a_dead_writer_is_recovered_up_to_its_checkpoint(self, tmp_path: Path) -> None:
        diary = self._diary(tmp_path)
        diary.append((0, 5), (1, 3))
        diary.append((1, 2), (2, 4))
        diary.end(0)
        diary.writer.checkpoint()
        saved = dict(diary.held)
        self._check_recovered(diary, tmp_path / "first", tmp_path, saved)
        diary.append((1, self.block))
        self._check_recovered(diary, tmp_path / "second", tmp_path, saved)
        diary.writer.checkpoint()
        self._check_recovered(diary, tmp_path / "third", tmp_path, dict(diary.held))

    def _check_recovered(self, diary: Diary, folder: Path, source: Path, saved: Mapping[int, int]) -> None:
        """Recover a copy of the staging folder, twice as after a kill of recovery, and compare its rows."""
        with self._recovered(diary, source, folder):
            pass
        with self._recovered(diary, folder, folder / "again") as dead:
            assert dead.held.keys() == saved.keys()
            for number, rows in dead.held.items():
                assert saved[number] - self.delay <= rows <= diary.held[number], (number, rows, saved)
            self._check(dead, folder / "shard", dead.told)
            dead.forget(*dead.held)
            assert list(files_below(folder / "again" / "staging")) == []

    def test_recovery_from_a_cut_file_gives_what_came_before(self, tmp_path: Path) -> None:
        diary = self._diary(tmp_path)
        for _ in range(2):
            diary.append((0, 3), (1, 2))
            diary.writer.checkpoint()
        staged = [path.relative_to(tmp_path) for path in files_below(tmp_path / "staging")]
        assert staged, "a checkpoint left nothing"
        for i, name in enumerate(staged):
            folder = tmp_path / f"{i}"
            shutil.copytree(tmp_path / "staging", folder / "staging")
            cut(folder / name, (folder / name).stat().st_size // 2)
            with self._recovered(diary, folder, folder / "dead") as dead:
                if whole := [segment for segment in dead.told if min(segment[1:]) > 0]:
                    self._check(dead, folder / "shard", whole)

    @contextmanager
    def _recovered(self, diary: Diary, source: Path, folder: Path | None = None) -> Iterator[Recovered]:
        """Recover a copy of the staging folder in `source`, as it is while its writer lives."""
        copy = (folder or source / "dead") / "staging"
        shutil.copytree(source / "staging", copy)
        with closing(self.storage.recover(copy, diary.leaves)) as writer:
            dead = Recovered(writer, diary.leaves, diary.infos, diary.series)
            dead.told = [self._told(segment, diary) for segment in writer.segments()]
            dead.held = {number: max(moments, transitions + diary.series) for number, moments, transitions in dead.told}
            yield dead
