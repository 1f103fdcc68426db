"""ReplayEnv plays back what was recorded, as an environment that passes Gymnasium's check."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from environments import CountingEnv, ScriptEnv, roll
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

from recorder import (
    DivergedError,
    EpisodeError,
    Recorder,
    Recording,
    RecordingWriter,
    ReplayEnv,
    ReplayVectorEnv,
)


@pytest.fixture
def lander(tmp_path: Path) -> Path:
    """Return a recording of three episodes of 20 steps, with frames."""
    path = tmp_path / "counting"
    with Recorder(
        CountingEnv(20, render_mode="rgb_array"), path, record_render=True, fsync=False, verbose=False
    ) as env:
        env.action_space.seed(3)
        for seed in (10, 11, 12):
            roll(env, seed=seed)
    return path


@pytest.mark.filterwarnings("ignore:.*:UserWarning")
@pytest.mark.parametrize("render_mode", [None, "rgb_array"])
def test_it_passes_the_check_of_gymnasium(lander: Path, render_mode: str | None) -> None:
    check_env(ReplayEnv(lander, render_mode=render_mode), skip_render_check=render_mode is None)


@pytest.mark.filterwarnings("ignore:.*:UserWarning")
def test_it_passes_the_check_with_nested_spaces(tmp_path: Path) -> None:
    space = spaces.Dict(a=spaces.Tuple([spaces.Discrete(9), spaces.Box(0, 9, (2,))]), b=spaces.Text(4))
    values = [{"a": (np.int64(k), np.float32([k, 0])), "b": "xy"} for k in range(8)]
    with Recorder(ScriptEnv(space, values), tmp_path, fsync=False, verbose=False) as env:
        roll(env)
    check_env(ReplayEnv(tmp_path), skip_render_check=True)


def test_what_comes_out_is_what_was_recorded_without_the_environment(lander: Path) -> None:
    recording = Recording(lander)
    env = ReplayEnv(recording, strict=True)
    for episode in recording:
        observation, info = env.reset()
        assert env.episode.id == episode.id and info == {}
        np.testing.assert_array_equal(observation, episode[1].observation)
        for step in episode:
            observation, *rest = env.step(step.action)
            np.testing.assert_array_equal(observation, step.next_observation)
            assert rest == [step.reward, step.terminated, step.truncated, step.info]
        with pytest.raises(ResetNeeded, match="no more than 20 steps"):
            env.step(0)
    env.reset()
    assert env.episode.id == recording[0].id, "after the last comes the first"


def test_infos_come_back_with_the_keys_that_each_had(tmp_path: Path) -> None:
    infos = [{"a": 1}, {"b": {"c": 2.5}}, {"a": 3, "text": "é"}]
    with Recorder(ScriptEnv(spaces.Discrete(3), [0, 1, 2], infos), tmp_path, fsync=False, verbose=False) as env:
        roll(env)
    played = ReplayEnv(tmp_path)
    assert [played.reset()[1], played.step(0)[-1], played.step(0)[-1]] == infos


def test_episodes_are_chosen_by_order_seed_or_option(lander: Path) -> None:
    recording = Recording(lander)
    ids = [episode.id for episode in recording]
    env = ReplayEnv(recording, episodes=[2, ids[0]])
    for expected in (ids[2], ids[0], ids[2]):
        env.reset()
        assert env.episode.id == expected
    env = ReplayEnv(recording)
    for seed, expected in ((12, ids[2]), (None, ids[0]), (11, ids[1]), (99, ids[0])):
        env.reset(seed=seed)
        assert env.episode.id == expected
    env.reset(options={"episode": -1})
    assert env.episode.id == ids[2]
    with pytest.raises(DivergedError, match="seed 99"):
        ReplayEnv(recording, strict=True).reset(seed=99)


def test_strict_raises_where_the_action_is_not_the_recorded_one(lander: Path) -> None:
    (first, second, *_) = Recording(lander)[0]
    env = ReplayEnv(lander, strict=True)
    env.reset()
    env.step(int(first.action))
    with pytest.raises(DivergedError, match=r"step 2 of episode .*action is 3, recorded was"):
        env.step(3 if second.action != 3 else 2)
    loose = ReplayEnv(lander)
    loose.reset()
    loose.step(3 - first.action)


def test_where_the_recording_ends_the_last_step_is_truncated(tmp_path: Path) -> None:
    with Recorder(CountingEnv(9), tmp_path, fsync=False, verbose=False) as env:
        env.reset()
        env.step(0)
        env.step(0)
    played = ReplayEnv(tmp_path)
    played.reset()
    assert played.step(0)[2:4] == (False, False)
    assert played.step(0)[2:4] == (False, True)


def test_it_renders_the_recorded_frames_or_the_camera(lander: Path, tmp_path: Path) -> None:
    env = ReplayEnv(lander, render_mode="rgb_array")
    frames = Recording(lander)[0].renders
    env.reset()
    np.testing.assert_array_equal(env.render(), frames[0])
    env.step(0)
    np.testing.assert_array_equal(env.render(), frames[1])
    camera = spaces.Box(0, 255, (16, 24, 3), np.uint8)
    pictures = np.random.default_rng(0).integers(0, 255, (4, 16, 24, 3), np.uint8)
    with Recorder(ScriptEnv(camera, list(pictures)), tmp_path / "camera", fsync=False, verbose=False) as recorded:
        roll(recorded)
    shown = ReplayEnv(tmp_path / "camera", render_mode="rgb_array")
    shown.reset()
    np.testing.assert_array_equal(shown.render(), pictures[0])


def test_what_cannot_be_played_is_said(tmp_path: Path) -> None:
    with Recorder(CountingEnv(2), tmp_path / "blind", fsync=False, verbose=False) as env:
        roll(env)
    with pytest.raises(EpisodeError, match="no pictures"):
        ReplayEnv(tmp_path / "blind", render_mode="rgb_array")
    with pytest.raises(EpisodeError, match="nothing to play"):
        ReplayEnv(tmp_path / "blind", episodes=[])
    with pytest.raises(ResetNeeded):
        ReplayEnv(tmp_path / "blind").step(0)
    with RecordingWriter(tmp_path / "rows", spaces.Discrete(2)) as writer:
        writer.begin()
        writer.append(1)
        writer.commit()
    with pytest.raises(EpisodeError, match="no series of steps"):
        ReplayEnv(tmp_path / "rows")


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_a_vector_of_them_deals_the_episodes_out(tmp_path: Path, mode: AutoresetMode) -> None:
    with Recorder(gym.make("CartPole-v1"), tmp_path, fsync=False, verbose=False) as env:
        env.action_space.seed(0)
        for seed in range(6):
            roll(env, seed=seed)
    recording = Recording(tmp_path)
    envs = ReplayVectorEnv(recording, 2, autoreset_mode=mode)
    assert envs.single_observation_space == recording.observation_space
    observations, _ = envs.reset()
    np.testing.assert_array_equal(observations, [recording[0][1].observation, recording[1][1].observation])
    returns: list[Any] = [[0.0, 0.0]]
    finished = np.zeros(2, bool)
    for _ in range(max(len(recording[0]), len(recording[1]))):
        _, rewards, terminated, truncated, _ = envs.step(envs.action_space.sample())
        returns[0] += np.where(finished, 0, rewards)
        finished |= terminated | truncated
        if mode is AutoresetMode.DISABLED and finished.any():
            break
    if mode is not AutoresetMode.DISABLED:
        np.testing.assert_array_equal(returns[0], [recording[0].return_, recording[1].return_])
    envs.close()
    with pytest.raises(EpisodeError, match="as many episodes"):
        ReplayVectorEnv(recording, 7)
