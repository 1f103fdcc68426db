"""Many episodes: by one process or several, and from the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from environments import CountingEnv, roll

from recorder import EpisodeError, FormatError, Recorder, Recording, replay_all
from recorder.cli import main


@pytest.fixture
def carts(tmp_path: Path) -> Path:
    """Return a recording of four episodes, the second of which began otherwise than its seed says."""
    path = tmp_path / "carts"
    with Recorder(gym.make("CartPole-v1"), path, fsync=False, verbose=False) as env:
        env.action_space.seed(0)
        for seed in range(4):
            env.reset(seed=seed)
            if seed == 1:
                env.unwrapped.state = np.zeros(4)  # type: ignore[attr-defined]
            while not any(env.step(env.action_space.sample())[2:4]):
                pass
    return path


def test_a_report_for_each_episode_in_order(carts: Path) -> None:
    recording = Recording(carts)
    here = replay_all(recording)
    assert [report.episode for report in here] == [episode.id for episode in recording]
    assert [report.verdict for report in here] == ["exact", "diverged", "exact", "exact"]
    assert here[1].divergence is not None
    assert (here[1].divergence.step, here[1].divergence.leaf) == (1, "observation")
    beside = replay_all(carts, workers=2)
    assert beside == here
    chosen = replay_all(carts, episodes=[-1, recording[0].id])
    assert [report.episode for report in chosen] == [recording[3].id, recording[0].id]


def test_an_environment_by_the_name_of_what_makes_it(tmp_path: Path) -> None:
    with Recorder(CountingEnv(), tmp_path, fsync=False, verbose=False) as env:
        roll(env, 3)
    with pytest.raises(FormatError, match="make_env"):
        replay_all(tmp_path)
    assert [report.verdict for report in replay_all(tmp_path, make_env=CountingEnv)] == ["exact"] * 3
    with pytest.raises(EpisodeError, match="record_state=True"):
        replay_all(tmp_path, make_env=CountingEnv, mode="states")


def test_an_episode_that_is_damaged_has_a_row_of_its_own(tmp_path: Path) -> None:
    for seed in range(2):
        with Recorder(gym.make("CartPole-v1"), tmp_path, fsync=False, verbose=False) as env:
            roll(env, seed=seed)
    (table, _) = sorted(tmp_path.glob("shards/*/data.h5"))
    data = bytearray(table.read_bytes())
    data[len(data) // 2] ^= 1
    table.write_bytes(data)
    damaged, sound = replay_all(tmp_path)
    assert sound.verdict == "exact"
    assert not damaged.agrees and "cannot be read" in str(damaged) and "data.h5" in str(damaged)
    assert damaged.compared == 0 < damaged.steps


class TestCommand:
    def test_a_table_and_an_exit_code(self, carts: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["replay", str(carts), "--check"]) == 1
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].split() == ["position", "id", "steps", "compared", "verdict", "step", "leaf", "error"]
        assert "diverged" in lines[2] and "observation" in lines[2]
        assert lines[-1] == "exact 3, diverged 1"
        assert main(["replay", str(carts), "0", "2:4"]) == 0
        assert capsys.readouterr().out.splitlines()[-1] == "exact 3"
        assert main(["replay", str(carts), "1", "--tolerance", "100"]) == 1, "it ends at another step"

    def test_json(self, carts: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["replay", str(carts), "1", "-1", "--json"]) == 1
        said = json.loads(capsys.readouterr().out)
        assert (said["agree"], said["verdicts"]) == (False, {"exact": 1, "diverged": 1})
        assert [episode["position"] for episode in said["episodes"]] == [1, 3]
        assert said["episodes"][0]["divergence"]["step"] == 1
        assert said["episodes"][0]["divergence"]["leaf"] == "observation"

    def test_episodes_by_id_and_none_that_is_not_there(self, carts: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["replay", str(carts), Recording(carts)[2].id]) == 0
        capsys.readouterr()
        assert main(["replay", str(carts), "9"]) == 1
        assert "no episode '9'" in capsys.readouterr().err

    def test_a_plot_of_the_errors(self, carts: Path, capsys: pytest.CaptureFixture[str]) -> None:
        pytest.importorskip("matplotlib")
        picture = carts.parent / "errors.png"
        assert main(["replay", str(carts), "0:2", "--plot", str(picture), "--json"]) == 1
        assert json.loads(capsys.readouterr().out)["plot"] == str(picture)
        assert picture.read_bytes().startswith(b"\x89PNG")
        assert [path.name for path in carts.parent.glob("*errors*")] == ["errors.png"]

    def test_states_are_recorded_and_set_from_the_command_line(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        pytest.importorskip("mujoco")
        path = str(tmp_path / "hopper")
        assert main(["record", "Hopper-v5", "--to", path, "--state", "--max-steps", "20", "--episodes", "2"]) == 0
        for mode in ("actions", "states", "first-state"):
            assert main(["replay", path, "--mode", mode]) == 0
        assert main(["record", "CartPole-v1", "--to", str(tmp_path / "cart"), "--state"]) == 1
        assert "record_state is not to be had" in capsys.readouterr().err

    def test_an_environment_of_ones_own(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        with Recorder(CountingEnv(), tmp_path, fsync=False, verbose=False) as env:
            roll(env)
        assert main(["replay", str(tmp_path)]) == 1
        assert "make_env" in capsys.readouterr().err
        assert main(["replay", str(tmp_path), "--env", "environments:CountingEnv"]) == 0

    def test_workers_in_a_process_of_its_own(self, carts: Path) -> None:
        command = [sys.executable, "-m", "recorder", "replay", str(carts), "--workers", "2", "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 1, done.stderr
        assert json.loads(done.stdout)["verdicts"] == {"exact": 3, "diverged": 1}
