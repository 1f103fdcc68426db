"""Recovery knows edits: what was joined elsewhere, or deleted, is not brought back by a writer that died."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from environments import CountingEnv, roll

from recorder import Recorder, Recording
from recorder.edit.compacting import compact
from recorder.edit.deleting import delete
from recorder.verify import verify
from recorder.writing.recovery import recover
from recorder.writing.staging import LOCK


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A recording whose writer died between making an episode visible and forgetting what it had staged of it."""
    path, copy = tmp_path / "run", tmp_path / "copy"
    with Recorder(CountingEnv(None), path, verbose=False) as env:
        roll_some(env)
        env.flush()
        (staging,) = (path / "staging").iterdir()
        shutil.copytree(staging, copy / staging.name)
        env.end_episode()
        env.flush()
    with Recorder(CountingEnv(3), path, verbose=False) as env:
        roll(env)
    shutil.copytree(copy, path / "staging", dirs_exist_ok=True)
    assert (path / "staging" / staging.name / LOCK).exists()
    return path


def roll_some(env: Recorder[object, int]) -> None:
    env.reset(seed=1)
    for k in range(5):
        env.step(k % 4)


def ids_of(path: Path) -> list[str]:
    return [episode.id for episode in Recording(path)]


def test_a_committed_episode_is_not_recovered(path: Path) -> None:
    ids = ids_of(path)
    (found,) = recover(path)
    assert (found.kept, found.committed) == ({}, ids[:1])
    assert ids_of(path) == ids


def test_an_episode_that_was_joined_to_others_is_not_recovered(path: Path, tmp_path: Path) -> None:
    ids = ids_of(path)
    shutil.move(path / "staging", tmp_path / "aside")  # as if its host had been away
    compact(path)
    shutil.rmtree(path / "staging")
    shutil.move(tmp_path / "aside", path / "staging")
    (found,) = recover(path)
    assert (found.kept, found.committed) == ({}, ids[:1])
    assert ids_of(path) == ids
    assert verify(path, decode=True).sound


def test_an_episode_that_was_deleted_is_not_recovered(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = ids_of(path)
    # The writer ran on another host, which may come back: nothing of it is recovered before, and all is remembered.
    monkeypatch.setattr("recorder.writing.staging.ran_here", lambda folder: False)
    delete(path, [ids[0]])
    compact(path)
    assert ids_of(path) == ids[1:]
    (found,) = recover(path, foreign=True)
    assert (found.kept, found.committed) == ({}, ids[:1])
    assert ids_of(path) == ids[1:]
    compact(path)
    assert len(list((path / "shards").iterdir())) == 1, "what was said of the deleted one is needed no longer"
    assert verify(path, decode=True).sound
