"""Policies from the command line: files of Stable-Baselines3, and people who play."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import recorder
from recorder import Recorder, RecorderError, Recording, replay_all
from recorder.cli import main
from recorder.cli.policies import load_policy, sb3_algorithm


@pytest.fixture(autouse=True)
def _no_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")


def saved(path: Path, module: str, **settings: Any) -> Path:
    """Make what Stable-Baselines3 writes first into its files."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data", json.dumps({"policy_class": {"__module__": module}, **settings}))
    return path


@pytest.mark.parametrize(
    ("module", "settings", "algorithm"),
    [
        ("stable_baselines3.common.policies", {"clip_range": 0.2}, "PPO"),
        ("stable_baselines3.common.policies", {}, "A2C"),
        ("stable_baselines3.dqn.policies", {}, "DQN"),
        ("stable_baselines3.sac.policies", {}, "SAC"),
        ("stable_baselines3.td3.policies", {}, "TD3"),
    ],
)
def test_the_algorithm_of_a_file_is_found(tmp_path: Path, module: str, settings: Any, algorithm: str) -> None:
    assert sb3_algorithm(saved(tmp_path / "model.zip", module, **settings)) == algorithm


def test_a_file_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(b"no zip")
    env = gym.make("CartPole-v1")
    for name in ("a.zip", "absent.zip"):
        with pytest.raises(RecorderError, match=f"{name} is no file of Stable-Baselines3"):
            load_policy(f"sb3:{tmp_path / name}", env, None)


@pytest.mark.sb3
def test_a_policy_of_stable_baselines_is_recorded(tmp_path: Path) -> None:
    from stable_baselines3 import A2C, DQN, PPO

    for algorithm in (A2C, DQN, PPO):
        model = algorithm("MlpPolicy", "CartPole-v1", device="cpu")
        model.save(tmp_path / "model.zip")
        path = tmp_path / algorithm.__name__
        assert main(["record", "CartPole-v1", "--to", str(path), "--policy", f"sb3:{tmp_path / 'model.zip'}"]) == 0
        episode = Recording(path)[0]
        chosen = [model.predict(one, deterministic=True)[0] for one in episode.observations[:-1]]
        np.testing.assert_array_equal(chosen, episode.actions)


@pytest.mark.sb3
def test_a_policy_that_was_trained_is_recorded_by_the_command_and_replays(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="stable-baselines3 needs torch")
    from stable_baselines3 import PPO

    model = PPO("MlpPolicy", "CartPole-v1", n_steps=128, batch_size=64, seed=0, device="cpu").learn(512)
    model.save(tmp_path / "ppo.zip")
    command = ["record", "CartPole-v1", "--episodes", "3", "--seed", "5", "--policy", "sb3:ppo.zip", "--to", "run"]
    done = subprocess.run(
        [sys.executable, "-m", "recorder", *command, "--json"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(recorder.__file__).parent.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["episodes"] == 3
    recording = Recording(tmp_path / "run")
    assert recording.metadata["policy"] == "sb3:ppo.zip"
    assert [episode.seed for episode in recording] == [5, 6, 7]
    for episode in recording:
        chosen = [model.predict(one, deterministic=True)[0] for one in episode.observations[:-1]]
        np.testing.assert_array_equal(chosen, episode.actions)
    assert {report.verdict for report in replay_all(recording, progress=False)} == {"exact"}


def test_a_person_plays_as_many_episodes_as_are_wanted(tmp_path: Path) -> None:
    command = ["record", "CartPole-v1", "--to", str(tmp_path), "--policy", "human", "--keys", '{"a": 0, "d": 1}']
    assert main([*command, "--episodes", "2", "--seed", "3", "--label", "who=me", "--max-steps", "5"]) == 0
    recording = Recording(tmp_path)
    assert [len(episode) for episode in recording] == [5, 5]
    assert all(episode.labels["who"] == "me" and episode.seed == 3 for episode in recording)
    assert all((episode.actions == 0).all() for episode in recording)


def test_an_environment_without_keys_says_how_to_give_them(tmp_path: Path, capsys: Any) -> None:
    assert main(["record", "CartPole-v1", "--to", str(tmp_path / "run"), "--policy", "human"]) == 1
    assert "--keys" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_play_in_user_code_records(tmp_path: Path) -> None:
    from gymnasium.utils.play import play  # which warns where matplotlib is absent

    class StopError(Exception):
        pass

    ends = 0

    def count(*step: Any) -> None:
        nonlocal ends
        ends += step[4] or step[5]
        if ends == 2:
            raise StopError

    env = Recorder(gym.make("CartPole-v1", render_mode="rgb_array", max_episode_steps=4), tmp_path, verbose=0)
    with env, pytest.raises(StopError):
        play(env, keys_to_action={"a": 0}, noop=1, callback=count, fps=500)
    assert [len(episode) for episode in Recording(tmp_path)] == [4, 4]
