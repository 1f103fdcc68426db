"""Real simulators as vector environments: what is recorded replays exactly, or is what they returned."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from recorder import Episode, Recording, VectorRecorder, replay


@pytest.fixture(autouse=True)
def _no_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    monkeypatch.setenv("MUJOCO_GL", "egl")


def record(envs: Any, path: Path, steps: int) -> list[Episode]:
    with VectorRecorder(envs, path, verbose=0, fsync=False) as recorder:
        recorder.reset(seed=3)
        recorder.action_space.seed(3)
        for _ in range(steps):
            recorder.step(recorder.action_space.sample())
    return sorted(Recording(path), key=lambda episode: episode.id)


def test_64_cart_poles_replay_exactly(tmp_path: Path) -> None:
    episodes = record(gym.make_vec("CartPole-v1", num_envs=64, vectorization_mode="sync"), tmp_path, 60)
    assert sum(len(episode) for episode in episodes) <= 64 * 60
    assert {episode.labels["env_index"] for episode in episodes} == set(range(64))
    chosen = [episodes[0], episodes[63], episodes[70], episodes[-1]]
    assert [replay(episode).verdict for episode in chosen] == ["exact"] * 4
    assert chosen[0].seed == 3 and chosen[2].seed is None


def test_half_cheetahs_in_processes_replay_exactly(tmp_path: Path) -> None:
    pytest.importorskip("mujoco")
    envs = gym.make_vec("HalfCheetah-v5", num_envs=8, vectorization_mode="async", max_episode_steps=12)
    episodes = record(envs, tmp_path, 30)
    assert sorted({len(episode) for episode in episodes}) == [4, 12]
    assert set(episodes[0].infos) >= {"x_position", "reward_ctrl"}
    assert [replay(episodes[i]).verdict for i in (1, 9)] == ["exact"] * 2


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_an_atari_game_is_recorded_as_it_returned(tmp_path: Path, mode: AutoresetMode) -> None:
    vectors = pytest.importorskip("ale_py.vector_env")
    envs = vectors.AtariVectorEnv("pong", 4, autoreset_mode=mode, max_num_frames_per_episode=6)
    recorder = VectorRecorder(envs, tmp_path, verbose=0, fsync=False)
    observation, _ = recorder.reset(seed=3)
    rows: list[list[list[Any]]] = [[[observation[lane].copy()]] for lane in range(4)]
    over = np.zeros(4, bool)
    for _ in range(20):
        observation, _, terminated, truncated, infos = recorder.step(recorder.action_space.sample())
        done = terminated | truncated
        for lane in range(4):
            if over[lane] and mode == AutoresetMode.NEXT_STEP:
                rows[lane].append([])
            if done[lane] and mode == AutoresetMode.SAME_STEP:
                rows[lane][-1].append(infos["final_obs"][lane].copy())
                rows[lane].append([])
            rows[lane][-1].append(observation[lane].copy())
        over = done
    recorder.close()
    found = sorted(Recording(tmp_path), key=lambda episode: episode.id)
    assert len(found) > 8
    for lane in range(4):
        own = [episode for episode in found if episode.labels["env_index"] == lane]
        expected = [np.array(each) for each in rows[lane] if len(each) > 1]
        assert len(own) == len(expected)
        for episode, observations in zip(own, expected, strict=True):
            np.testing.assert_array_equal(episode.observations, observations)
            assert set(episode.infos) == {"env_id", "lives", "frame_number", "episode_frame_number"}


def test_two_racing_cars_are_recorded_with_their_pictures(tmp_path: Path) -> None:
    envs = gym.make_vec("CarRacing-v3", num_envs=2, vectorization_mode="sync", max_episode_steps=6)
    episodes = record(envs, tmp_path, 13)
    assert [len(episode) for episode in episodes] == [6, 6, 6, 6]
    assert episodes[0].observations.shape == (7, 96, 96, 3)
    assert replay(episodes[1]).verdict == "exact"


def test_the_example_runs(tmp_path: Path) -> None:
    example = Path(__file__).parent.parent / "examples" / "vector.py"
    command = [sys.executable, str(example), str(tmp_path / "run"), "--steps", "60"]
    assert "Counter" in subprocess.run(command, capture_output=True, text=True, timeout=100, check=True).stdout
    recording = Recording(tmp_path / "run")
    assert {episode.labels["env_index"] for episode in recording} == set(range(16))
    assert any(episode.labels.get("fell") for episode in recording)
