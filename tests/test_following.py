"""Episodes are seen once each, as they are committed, also by whoever was there before the recording."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path

import pytest
from environments import CountingEnv, roll

from recorder import Recorder, Recording
from recorder.cli import main
from recorder.following import follow


def record(path: Path, episodes: int = 2) -> None:
    with Recorder(CountingEnv(3), path, verbose=False) as env:
        roll(env, episodes)


def test_new_episodes_are_yielded_once_each_and_known_ones_when_asked_for(tmp_path: Path) -> None:
    record(tmp_path)
    waits = []

    def write(seconds: float) -> None:
        waits.append(seconds)
        record(tmp_path)

    fresh = list(follow(tmp_path, until=6, every=0.25, wait=write))
    assert waits == [0.25, 0.25]
    assert [arrival.position for arrival in fresh] == [2, 3, 4, 5]
    everything = [arrival.note.id for arrival in follow(tmp_path, known=True, until=6)]
    assert everything == [episode.id for episode in Recording(tmp_path)]
    assert everything[2:] == [arrival.note.id for arrival in fresh]
    assert fresh[0].recording[fresh[0].position].actions.shape == (3,)


def test_one_may_follow_a_recording_that_is_not_there_yet(tmp_path: Path) -> None:
    found = list(islice(follow(tmp_path / "run", wait=lambda _: record(tmp_path / "run")), 2))
    assert [arrival.position for arrival in found] == [0, 1]


def test_a_damaged_shard_does_not_end_the_following(tmp_path: Path) -> None:
    record(tmp_path)
    (shard,) = (tmp_path / "shards").iterdir()
    (shard / "shard.json").write_bytes(b"")
    found = list(islice(follow(tmp_path, known=True, wait=lambda _: record(tmp_path)), 2))
    assert [arrival.note.transitions for arrival in found] == [3, 3]


def test_the_command_prints_lines_of_json_and_ends_when_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record(tmp_path)
    assert main(["follow", str(tmp_path), "--all", "--until", "2", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["position"] for line in lines] == [0, 1]
    assert lines[0]["end"] == "terminated"


def test_the_command_ends_cleanly_at_an_interrupt(tmp_path: Path) -> None:
    record(tmp_path)
    command = [sys.executable, "-m", "recorder", "follow", str(tmp_path), "--every", "0.05"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert "following" in process.stderr.readline()
        time.sleep(0.5)
        record(tmp_path, 1)
        assert "3 steps" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (0, "", "")
