"""The commands for what is broken: `verify`, `recover` and `discarded`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from environments import CountingEnv, roll
from test_recovery import left_by_the_dead

from recorder import Recorder, Recording
from recorder.cli import main
from recorder.writing.staging import RUNNING


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with Recorder(CountingEnv(3), tmp_path / "run", verbose=False) as env:
        roll(env, 2)
        env.reset()
        env.step(0)
        env.discard("dropped the cup")
    return tmp_path / "run"


def test_verify_says_sound_or_damaged_and_ends_with_0_or_1(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(path), "--decode"]) == 0
    assert "sound: 2 episodes, 6 steps, 2 files in 1 shard; every row was decoded" in capsys.readouterr().out
    (data,) = (path / "shards").rglob("data.h5")
    data.write_bytes(b"")
    assert main(["verify", str(path)]) == 1
    out = capsys.readouterr().out
    assert "DAMAGED" in out
    assert "data.h5" in out
    assert main(["verify", str(path), "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert not said["sound"]
    assert said["faults"][0]["file"] == "data.h5"
    assert said["faults"][0]["episodes"] == list(Recording(path).table()["id"])


def test_recover_says_what_was_kept_and_what_would_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run"
    left_by_the_dead(path)
    for words, arguments in (("would recover", ["--dry-run"]), ("recovered", [])):
        assert main(["recover", str(path), *arguments]) == 0
        out = capsys.readouterr().out
        assert f"{words} 1 episode" in out
        assert "kept" in out
    assert main(["recover", str(path)]) == 0
    assert "nothing to recover" in capsys.readouterr().out


def test_recover_says_in_json_what_was_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run"
    (left_by_the_dead(path) / RUNNING).write_bytes(b"{}")
    assert main(["recover", str(path), "--json"]) == 0
    (writer,) = json.loads(capsys.readouterr().out)["writers"]
    assert writer["kept"] == {}
    assert "all" in writer["lost"]
    assert (path / "discarded" / writer["remains"] / RUNNING).read_bytes() == b"{}"


def test_the_trash_is_listed_restored_and_emptied(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = Path(shutil.copytree(path, path.with_name("copy")))
    assert main(["discarded", "list", str(path), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["discarded"]
    assert found["reason"] == "dropped the cup"
    assert main(["discarded", "list", str(path)]) == 0
    assert found["name"] in capsys.readouterr().out
    assert main(["discarded", "restore", str(path), found["name"]]) == 0
    assert "restored 1 episode" in capsys.readouterr().out
    assert len(Recording(path)) == 3
    assert main(["discarded", "list", str(path)]) == 0
    assert "nothing was put aside" in capsys.readouterr().out
    assert main(["discarded", "empty", str(copy)]) == 0
    assert "deleted 1 episode" in capsys.readouterr().out
    assert not list((copy / "discarded").iterdir())
    assert main(["discarded", "restore", str(copy), found["name"]]) == 1
    assert main(["discarded", "list", str(path.parent)]) == 1
    assert "no recording" in capsys.readouterr().err
    assert main(["discarded"]) == 2
