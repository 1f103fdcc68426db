"""The wrapped environment behaves as the bare one, and what is stored of it rebuilds it."""

from __future__ import annotations

import copy
import pickle
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from environments import CountingEnv, roll
from gymnasium.utils.env_checker import check_env, data_equivalence
from gymnasium.wrappers import TimeLimit, TransformObservation

import recorder
from recorder import ClosedError, EpisodeError, Recorder, Recording, SpaceError

ENVIRONMENTS = ["CartPole-v1", "Pendulum-v1", "Blackjack-v1", "FrozenLake-v1", "MountainCarContinuous-v0"]


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_the_environment_checker_passes(tmp_path: Path, name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_env(gym.make(name, disable_env_checker=True).unwrapped)
        check_env(Recorder(gym.make(name).unwrapped, tmp_path, verbose=False), skip_render_check=True)


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_everything_that_comes_out_is_the_same(tmp_path: Path, name: str) -> None:
    bare, wrapped = gym.make(name), Recorder(gym.make(name), tmp_path, verbose=False)
    for env in (bare, wrapped):
        env.action_space.seed(5)
    for seed in (1, None, 2, None, None):
        assert data_equivalence(bare.reset(seed=seed), wrapped.reset(seed=seed))
        done = False
        for _ in range(60):
            action = bare.action_space.sample()
            assert data_equivalence(action, wrapped.action_space.sample())
            ours, theirs = wrapped.step(action), bare.step(action)
            assert data_equivalence(ours, theirs)
            assert [type(value) for value in ours] == [type(value) for value in theirs]
            done = theirs[2] or theirs[3]
            if done:
                break
    assert bare.np_random.bit_generator.state == wrapped.np_random.bit_generator.state
    wrapped.close()


def test_spaces_metadata_and_render_are_those_of_the_environment(tmp_path: Path) -> None:
    inner = CountingEnv(3, "rgb_array")
    env = Recorder(inner, tmp_path, metadata={"observation": {"kind": "proprio"}}, verbose=False)
    assert env.observation_space is inner.observation_space
    assert env.action_space is inner.action_space
    assert env.metadata is inner.metadata
    assert not hasattr(inner.observation_space, "metadata")
    env.reset()
    np.testing.assert_array_equal(env.render(), inner.render())
    assert env.unwrapped is inner


def test_the_spec_is_the_bare_one_plus_the_recorder(tmp_path: Path) -> None:
    bare = gym.make("CartPole-v1")
    env = Recorder(bare, tmp_path, about={"author": "me"}, verbose=False)
    assert env.spec is not None and bare.spec is not None
    assert env.spec.additional_wrappers[:-1] == bare.spec.additional_wrappers
    assert env.spec.additional_wrappers[-1].name == "Recorder"
    assert env.spec.additional_wrappers[-1].entry_point == "recorder.wrapper:Recorder"
    roll(env)
    env.close()
    again = gym.make(env.spec)
    assert isinstance(again, Recorder)
    again.close()


def test_the_stored_spec_rebuilds_the_environment_with_its_wrappers(tmp_path: Path) -> None:
    inner = gym.wrappers.FrameStackObservation(
        gym.make("CartPole-v1", max_episode_steps=7, sutton_barto_reward=True), 3
    )
    with Recorder(inner, tmp_path, verbose=False) as env:
        (rows,) = roll(env, seed=3)
    found = Recording(tmp_path)
    again = found.make_env()
    assert again.spec == inner.spec
    observation, _ = again.reset(seed=3)
    np.testing.assert_array_equal(observation, rows["observations"][0])
    assert found.fps == 50


def test_a_wrapper_that_cannot_be_rebuilt_is_named(tmp_path: Path) -> None:
    bare = gym.make("CartPole-v1")
    with Recorder(TransformObservation(bare, lambda o: o, bare.observation_space), tmp_path, verbose=False) as env:
        roll(env)
    with pytest.raises(SpaceError, match="TransformObservation"):
        Recording(tmp_path).make_env()


def test_an_environment_without_a_spec_is_recorded_and_says_so(tmp_path: Path) -> None:
    with Recorder(CountingEnv(2), tmp_path, verbose=False) as env:
        roll(env)
    assert Recording(tmp_path).spec is None
    with pytest.raises(ValueError, match="does not say which environment"):
        Recording(tmp_path).make_env()


def test_copying_or_pickling_the_wrapper_is_refused_with_what_to_do(tmp_path: Path) -> None:
    env = Recorder(CountingEnv(2), tmp_path, verbose=False)
    for attempt in (pickle.dumps, copy.deepcopy, copy.copy):
        with pytest.raises(ClosedError, match="Pass a function that makes it"):
            attempt(env)
    roll(env)
    env.close()
    assert len(Recording(tmp_path)) == 1


def test_the_recorder_is_found_below_other_wrappers(tmp_path: Path) -> None:
    env = TimeLimit(Recorder(CountingEnv(5), tmp_path, verbose=False), 3)
    roll(env)
    recorder.find(env).label(found=True)
    env.close()
    assert Recording(tmp_path)[0].labels == {"found": True}
    with pytest.raises(EpisodeError, match="no Recorder"):
        recorder.find(CountingEnv())


def test_seeds_are_the_ones_that_were_effective(tmp_path: Path) -> None:
    with Recorder(gym.make("CartPole-v1"), tmp_path, verbose=False) as env:
        rows = [roll(env, seed=seed)[0] for seed in (None, 1, 2, None)]
    first, second, third, fourth = Recording(tmp_path)
    assert first.seed is not None and [second.seed, third.seed, fourth.seed] == [1, 2, None]
    assert fourth.generator is not None and second.generator is None
    for episode, row in zip((first, second, third), rows[:3], strict=True):
        fresh = gym.make("CartPole-v1")
        np.testing.assert_array_equal(fresh.reset(seed=episode.seed)[0], row["observations"][0])
    fresh = gym.make("CartPole-v1")
    fresh.unwrapped.np_random.bit_generator.state = fourth.generator
    np.testing.assert_array_equal(fresh.reset()[0], rows[3]["observations"][0])


def test_automatic_seeds_fit_a_legacy_generator(tmp_path: Path) -> None:
    class Legacy(CountingEnv):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            self.legacy = np.random.RandomState(seed)
            return super().reset(seed=seed)

    with Recorder(Legacy(2), tmp_path, auto_seed=True, verbose=False) as env:
        roll(env, 20)
    seeds = [episode.seed for episode in Recording(tmp_path)]
    assert len(set(seeds)) == 20 and all(seed is not None and 0 <= seed < 2**32 for seed in seeds)


def test_options_come_back_equal_and_never_raise(tmp_path: Path) -> None:
    with Recorder(CountingEnv(2), tmp_path, verbose=False) as env:
        roll(env, options={"a": None, "b": [1, "x"]})
        roll(env, options={"array": np.arange(3), "object": object()})
    first, second = Recording(tmp_path)
    assert first.options == {"a": None, "b": [1, "x"]}
    assert second.options is not None and second.options["array"] == [0, 1, 2]
    assert "object object" in second.options["object"]["unkept"]


def test_labels_are_json_and_come_back(tmp_path: Path) -> None:
    with Recorder(CountingEnv(2), tmp_path, verbose=False, about={"licence": "CC0"}) as env:
        with pytest.raises(EpisodeError, match="no episode is open"):
            env.label(success=True)
        roll(env)
        env.label(success=True, task="pick the cup", score=np.float32(0.5))
        with pytest.raises(ValueError, match="kept as JSON"):
            env.label(thing=object())
    found = Recording(tmp_path)
    assert found[0].labels == {"success": True, "task": "pick the cup", "score": 0.5}
    assert found.metadata == {"licence": "CC0"}


def test_end_episode_ends_it_where_it_is(tmp_path: Path) -> None:
    env = Recorder(CountingEnv(None), tmp_path, verbose=False)
    env.reset()
    env.step(0)
    env.end_episode(success=False)
    with pytest.warns(UserWarning, match="not recorded"):
        env.step(0)
    env.flush()
    (episode,) = Recording(tmp_path)
    assert (len(episode), episode.end, episode.labels) == (1, "ended", {"success": False})
    env.close()


def test_with_no_flush_delay_an_episode_is_on_disk_before_reset_returns(tmp_path: Path) -> None:
    env = Recorder(CountingEnv(3), tmp_path, flush_every=0, verbose=False)
    for k in range(3):
        env.reset()
        if k:
            assert len(Recording(tmp_path)) == k
        for _ in range(3):
            env.step(0)
    env.close()
    assert len(Recording(tmp_path)) == 3


def test_the_cleanrl_way_of_looping_records_every_episode(tmp_path: Path) -> None:
    """RecordEpisodeStatistics above, an infinite loop over steps with resets in it."""
    env = gym.wrappers.RecordEpisodeStatistics(Recorder(gym.make("CartPole-v1"), tmp_path, verbose=False))
    returns = []
    env.reset(seed=0)
    env.action_space.seed(0)
    for _ in range(2000):
        _, _, terminated, truncated, info = env.step(env.action_space.sample())
        if terminated or truncated:
            returns.append(float(info["episode"]["r"]))
            env.reset()
    env.close()
    assert [episode.return_ for episode in Recording(tmp_path)][: len(returns)] == returns
