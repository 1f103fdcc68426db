"""What is said at close is what is on disk, in one line, and all of it when asked for."""

from __future__ import annotations

import re
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
from environments import CountingEnv, roll
from test_recovery import left_by_the_dead

from recorder import Recorder, RowError
from recorder.summary import summarize


def test_the_line_has_what_is_on_disk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Recorder(CountingEnv(3), tmp_path) as env:
        roll(env, 2)
    said = capsys.readouterr().err
    size = sum(file.stat().st_size for file in (tmp_path / "shards").rglob("*.h5"))
    assert said == f"recorder: 2 episodes, 6 steps, {size / 1000:.1f} kB in {tmp_path}\n"


def test_it_can_be_turned_off(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Recorder(CountingEnv(3), tmp_path, verbose=False) as env:
        roll(env, 2)
    assert capsys.readouterr().err == ""


def test_all_of_it_names_end_reasons_and_what_was_refused_ignored_and_put_aside(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inner = CountingEnv(3)
    with Recorder(inner, tmp_path, verbose=2) as env:
        roll(env, 2)
        with warnings.catch_warnings(action="ignore"):
            env.step(0)
        env.reset()
        env.step(0)
        inner._observe = lambda: np.zeros(7, np.float32)  # type: ignore[method-assign]
        with pytest.raises(RowError):
            env.step(0)
        del inner._observe
        env.reset()
        env.step(0)
        env.discard()
    line, *rest = capsys.readouterr().err.splitlines()
    assert "1 put aside; 1 steps refused; 1 steps outside of episodes ignored" in line
    text = "\n".join(rest)
    assert re.search(r"read back +1 shards, 10 \+ 7 rows", text)
    assert re.search(r"ended +terminated 2, reset 1", text)
    assert re.search(r"put aside +1$", text, re.M)
    assert re.search(r"refused +1 steps", text)
    assert re.search(r"ignored +1 steps", text)


def test_what_is_no_longer_there_is_not_counted(tmp_path: Path) -> None:
    env = Recorder(CountingEnv(3), tmp_path, verbose=False)
    roll(env, 2)
    env.flush()
    (shard,) = (tmp_path / "shards").iterdir()
    roll(env)
    env.close()
    shutil.rmtree(shard)
    said = summarize(env._writer)
    assert (said.disk.episodes, said.committed) == (1, 3)
    assert "3 were committed, the others cannot be read any more" in said.line()


def test_what_was_recovered_at_opening_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    left_by_the_dead(tmp_path / "run")
    with Recorder(CountingEnv(3, "rgb_array"), tmp_path / "run", record_render=True) as env:
        roll(env)
    assert re.search(r"writer [0-9a-f]{12}: 1 episodes, (39|40) steps recovered", capsys.readouterr().err)
