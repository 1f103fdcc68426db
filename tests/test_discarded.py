"""What is put aside stays in the trash within its quota, says why, and comes back when it is asked for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from environments import CountingEnv, roll

from recorder import ExistsError, FormatError, NotARecordingError, Recorder, Recording
from recorder.discarded import empty, list_discarded, restore, trim
from recorder.verify import verify


def discard(path: Path, episodes: int = 1, steps: int = 3, reason: str = "dropped the cup") -> list[str]:
    """Put episodes aside and keep one; return the ids of those put aside."""
    ids = []
    with Recorder(CountingEnv(steps, "rgb_array"), path, record_render=True, verbose=False) as env:
        for _ in range(episodes):
            env.reset()
            for k in range(steps):
                env.step(k % 4)
            ids.append(str(env.episode_id))
            env.discard(reason)
        roll(env)
    return ids


def test_what_is_put_aside_is_listed_with_its_reason(tmp_path: Path) -> None:
    ids = discard(tmp_path / "run")
    (found,) = list_discarded(tmp_path / "run")
    assert found.reason == "dropped the cup"
    assert found.episodes == tuple(ids)
    assert (found.steps, found.restorable) == (3, True)
    size = sum(file.stat().st_size for file in (tmp_path / "run" / "discarded").rglob("*") if file.is_file())
    assert found.bytes == size > 1000


@pytest.mark.parametrize("by", ["name", "id"])
def test_what_is_restored_counts_again_and_is_whole(tmp_path: Path, by: str) -> None:
    (episode,) = discard(tmp_path / "run")
    (found,) = list_discarded(tmp_path / "run")
    assert len(Recording(tmp_path / "run")) == 1
    assert restore(tmp_path / "run", found.name if by == "name" else episode) == (episode,)
    recording = Recording(tmp_path / "run")
    assert len(recording) == 2
    assert recording[episode].actions.tolist() == [0, 1, 2]
    assert recording[episode].renders.shape == (4, 32, 48, 3)
    assert np.asarray(recording[episode].rewards).sum() == 3
    assert verify(tmp_path / "run", decode=True).sound
    assert not list_discarded(tmp_path / "run")
    assert not list((tmp_path / "run" / "staging").iterdir())


def test_an_episode_that_lies_with_others_is_restored_by_the_name_of_the_folder_only(tmp_path: Path) -> None:
    ids = discard(tmp_path / "run", episodes=3)
    (found,) = list_discarded(tmp_path / "run")
    with pytest.raises(FormatError, match=f"together with 2 others; restore {found.name}"):
        restore(tmp_path / "run", ids[1])
    assert set(restore(tmp_path / "run", found.name)) == set(ids)


def test_a_restoring_that_died_before_it_cleaned_up_brings_nothing_twice(tmp_path: Path) -> None:
    discard(tmp_path / "run")
    (found,) = list_discarded(tmp_path / "run")
    shard = tmp_path / "run" / "discarded" / found.name
    kept = {file.relative_to(shard): file.read_bytes() for file in shard.rglob("*") if file.is_file()}
    restore(tmp_path / "run", found.name)
    for name, data in kept.items():
        (shard / name).parent.mkdir(parents=True, exist_ok=True)
        (shard / name).write_bytes(data)
    with pytest.raises(ExistsError, match="in the recording already"):
        restore(tmp_path / "run", found.name)
    assert verify(tmp_path / "run").sound


def test_a_name_that_is_not_there_says_how_to_list(tmp_path: Path) -> None:
    discard(tmp_path / "run")
    for call in (restore, lambda path, name: empty(path, [name])):
        with pytest.raises(NotARecordingError, match=r"nothing called 'x'.*recorder discarded list"):
            call(tmp_path / "run", "x")


def test_emptying_deletes_all_or_what_is_named_and_nothing_else(tmp_path: Path) -> None:
    discard(tmp_path / "run")
    discard(tmp_path / "run")
    (tmp_path / "run" / "discarded" / "notes.txt").write_text("mine")
    first, second = list_discarded(tmp_path / "run")
    assert empty(tmp_path / "run", [first.name]) == (first,)
    assert list_discarded(tmp_path / "run") == [second]
    assert empty(tmp_path / "run") == (second,)
    assert [item.name for item in (tmp_path / "run" / "discarded").iterdir()] == ["notes.txt"]
    assert len(Recording(tmp_path / "run")) == 2


def test_the_oldest_leave_when_the_quota_is_full_and_the_summary_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Recorder(CountingEnv(None), tmp_path / "run", trash=25_000, flush_every=0) as env:
        for _ in range(8):
            env.reset()
            env.step(0)
            env.discard()
            env.flush()
    kept = list_discarded(tmp_path / "run")
    assert 0 < len(kept) < 8
    assert sum(one.bytes for one in kept) <= 25_000
    assert kept[-1].episodes[0].endswith("-000007")
    assert f"8 put aside, {8 - len(kept)} of their folders deleted since the trash is full" in capsys.readouterr().err


def test_a_link_in_the_trash_is_never_followed(tmp_path: Path) -> None:
    discard(tmp_path / "run")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "data").write_text("mine")
    link = tmp_path / "run" / "discarded" / "20000101T000000.000Z-000000000000-000000"
    link.symlink_to(tmp_path / "mine")
    assert len(list_discarded(tmp_path / "run")) == 1
    trim(tmp_path / "run", 0)
    empty(tmp_path / "run")
    assert (tmp_path / "mine" / "data").read_text() == "mine"


def test_a_damaged_one_is_listed_and_does_not_come_back(tmp_path: Path) -> None:
    discard(tmp_path / "run")
    (found,) = list_discarded(tmp_path / "run")
    (tmp_path / "run" / "discarded" / found.name / "shard.json").write_bytes(b"")
    (found,) = list_discarded(tmp_path / "run")
    assert not found.restorable
    assert "cannot be read" in found.reason
    with pytest.raises(FormatError, match="is no shard"):
        restore(tmp_path / "run", found.name)
    assert len(empty(tmp_path / "run")) == 1
