"""The commands that edit: what they do, print, and refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from environments import CountingEnv, roll

from recorder import Recorder, Recording
from recorder.cli import main


def record(path: Path, *steps: int) -> list[str]:
    for count in steps:
        with Recorder(CountingEnv(count), path, verbose=False) as env:
            roll(env)
    return [episode.id for episode in Recording(path)]


def steps_of(path: Path) -> list[int]:
    return [len(episode) for episode in Recording(path)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run"


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    assert main([str(argument) for argument in arguments]) == 0
    return capsys.readouterr().out


def test_recordings_are_merged(path: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    record(path, 2, 3)
    record(tmp_path / "other", 4)
    assert "would get 3 episodes" in run(
        capsys, "merge", path, tmp_path / "other", "--to", tmp_path / "all", "--dry-run"
    )
    assert not (tmp_path / "all").exists()
    said = json.loads(run(capsys, "merge", path, tmp_path / "other", "--to", tmp_path / "all", "--json"))
    assert (said["recordings"][0]["episodes"], said["recordings"][0]["steps"]) == (3, 9)
    assert steps_of(tmp_path / "all") == [2, 3, 4]
    assert "3 episodes there already" in run(capsys, "merge", path, tmp_path / "other", "--to", tmp_path / "all")


def test_episodes_are_filtered_by_what_is_known_of_them(
    path: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    ids = record(path, 2, 3, 4, 5)
    run(capsys, "label", path, ids[1], "2", "--set", "success=true", "--set", "task=pick it")
    assert "got 1 episode, 4 steps" in run(
        capsys, "filter", path, "--to", tmp_path / "good", "--label", "success=true", "--min-return", "3.5"
    )
    assert steps_of(tmp_path / "good") == [4]
    assert Recording(tmp_path / "good")[0].labels == {"success": True, "task": "pick it"}
    assert "would get 2 episodes" in run(
        capsys, "filter", path, "--to", tmp_path / "x", "--max-steps", "3", "--dry-run"
    )


def test_a_recording_is_split_by_slices(path: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    record(path, 1, 2, 3, 4)
    run(capsys, "split", path, f"{tmp_path / 'a'}=:3", f"{tmp_path / 'b'}=-1:")
    assert (steps_of(tmp_path / "a"), steps_of(tmp_path / "b")) == ([1, 2, 3], [4])


def test_episodes_are_deleted_by_position_or_id_and_compacted(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ids = record(path, 1, 2, 3, 4)
    assert "would delete" in run(capsys, "delete", path, "0", "-1", ids[1], "--dry-run")
    assert len(Recording(path)) == 4
    run(capsys, "delete", path, "0", "-1", ids[1])
    assert steps_of(path) == [3]
    record(path, 5)
    assert "into 1 shard" in run(capsys, "compact", path, "--dry-run")
    assert json.loads(run(capsys, "compact", path, "--json"))["shards_after"] == 1
    assert steps_of(path) == [3, 5]


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["delete", "{path}", "7"], 2, "no episode 7"),
        (["delete", "{path}", "0123456789ab-000000"], 2, "recorder list"),
        (["label", "{path}", "0", "--set", "success"], 2, "KEY=JSON"),
        (["split", "{path}", "here"], 2, "TARGET=SLICE"),
        (["compact", "{path}-not"], 1, "no recording"),
        (["merge", "{path}", "{path}-not", "--to", "{path}-all"], 1, "no recording"),
        (["filter", "{path}", "--to", "{path}-small", "--exclude", "nope"], 1, "no leaf 'nope'"),
    ],
)
def test_what_is_wrong_is_said_on_one_line(
    path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, text: str
) -> None:
    record(path, 1, 2)
    assert main([argument.format(path=path) for argument in arguments]) == code
    assert text in capsys.readouterr().err
    assert steps_of(path) == [1, 2]
