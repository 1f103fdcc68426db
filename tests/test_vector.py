"""Vector environments: where episodes begin and end, what users say of them, and what does not fit."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space

from recorder import EpisodeError, Recorder, Recording, RowError, VectorRecorder, find, plan
from recorder.writing.recovery import recover
from tests.environments import CountingEnv

MODES = list(AutoresetMode)


class FailingEnv(CountingEnv):
    """Raises in a step, or returns an observation that does not fit."""

    def __init__(self, length: int = 5, fails_at: int = 3) -> None:
        super().__init__(length)
        self.fails_at = fails_at

    def step(self, action: Any) -> Any:
        if self.steps + 1 == self.fails_at:
            raise ValueError("the simulator broke")
        return super().step(action)


class BatchedEnv(VectorEnv[Any, Any, Any]):
    """Counts steps in arrays, as simulators on a GPU do; what it says and does of resets can be set apart."""

    def __init__(self, lengths: tuple[int, ...], does: AutoresetMode, says: Any = None, *, finals: bool = True) -> None:
        self.num_envs = len(lengths)
        self.lengths = np.array(lengths)
        self.single_observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.single_action_space = spaces.Discrete(3)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.metadata = {"autoreset_mode": says or does}
        self.does = does
        self.finals = finals

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        mask = np.ones(self.num_envs, bool) if options is None else options["reset_mask"]
        if not hasattr(self, "steps") or mask.all():
            self.steps = np.zeros(self.num_envs, int)
            self.over = np.zeros(self.num_envs, bool)
        self.steps[mask], self.over[mask] = 0, False
        return self._observe(), {"score": np.arange(self.num_envs) * 10}

    def _observe(self) -> Any:
        return np.stack([self.steps, np.arange(self.num_envs)], axis=1).astype(np.float32)

    def step(self, actions: Any) -> Any:
        filler = self.over if self.does == AutoresetMode.NEXT_STEP else np.zeros(self.num_envs, bool)
        self.steps = np.where(filler, 0, self.steps + 1)
        done = (self.steps >= self.lengths) & ~filler
        infos: dict[str, Any] = {"score": self.steps * 2}
        if self.does == AutoresetMode.SAME_STEP and done.any():
            if self.finals:
                infos |= {"final_obs": self._observe()}
            self.steps = np.where(done, 0, self.steps)
        self.over = done
        rewards = np.where(filler, 0, 1).astype(np.float32)
        return self._observe(), rewards, done, np.zeros(self.num_envs, bool), infos


def counting(*lengths: int) -> list[Any]:
    return [partial(CountingEnv, length) for length in lengths]


def run(envs: VectorRecorder, steps: int) -> None:
    for _ in range(steps):
        _, _, terminated, truncated, _ = envs.step(envs.action_space.sample())
        done = terminated | truncated
        if envs.autoreset_mode == AutoresetMode.DISABLED and done.any():
            envs.reset(options={"reset_mask": done})


def quiet(envs: Any, path: Path, **options: Any) -> VectorRecorder:
    return VectorRecorder(envs, path, fsync=False, verbose=0, **options)


@pytest.mark.parametrize("make", [SyncVectorEnv, AsyncVectorEnv])
@pytest.mark.parametrize("mode", MODES)
def test_each_episode_has_all_its_steps_and_the_final_observation(tmp_path: Path, mode: Any, make: Any) -> None:
    with quiet(make(counting(3, 3), autoreset_mode=mode), tmp_path) as envs:
        envs.reset(seed=1)
        run(envs, 12)
    episodes = [episode for episode in Recording(tmp_path) if episode.end == "terminated"]
    assert len(episodes) == (6 if mode == AutoresetMode.NEXT_STEP else 8)
    for episode in episodes:
        assert len(episode) == 3 and episode.return_ == 3
        assert episode.observations[:, 0].tolist() == [0, 1, 2, 3]
        assert episode.terminations.tolist() == [False, False, True]


@pytest.mark.parametrize("mode", MODES)
def test_a_batched_environment_is_recorded_as_it_returned(tmp_path: Path, mode: AutoresetMode) -> None:
    with quiet(BatchedEnv((2, 3, 5), mode), tmp_path) as envs:
        envs.reset(seed=4)
        run(envs, 20)
    for episode in Recording(tmp_path):
        lane = episode.labels["env_index"]
        assert episode.observations[:, 0].tolist() == list(range(len(episode) + 1))
        assert (episode.observations[:, 1] == lane).all()
        assert episode.rewards.tolist() == [1.0] * len(episode)
        assert episode.seed is None and episode.generator is None
        if episode.end == "terminated":
            assert len(episode) == (2, 3, 5)[lane]


def test_the_seed_of_a_batched_environment_is_a_label_of_the_episodes_that_it_began(tmp_path: Path) -> None:
    with quiet(BatchedEnv((2, 3), AutoresetMode.NEXT_STEP), tmp_path) as envs:
        envs.reset(seed=4)
        run(envs, 6)
    seeds = [episode.labels.get("vector_seed") for episode in sorted(Recording(tmp_path), key=lambda one: one.id)]
    assert seeds == [4, 4, None, None]


@pytest.mark.parametrize("mode", MODES)
def test_infos_without_masks_belong_to_all(tmp_path: Path, mode: AutoresetMode) -> None:
    with quiet(BatchedEnv((2, 3), mode), tmp_path) as envs:
        envs.reset()
        run(envs, 4)
    first = next(iter(sorted(Recording(tmp_path), key=lambda one: one.id)))
    scores = first.infos["score"]
    if mode == AutoresetMode.SAME_STEP:  # that of the last row is of the episode after it
        assert np.ma.getmaskarray(scores).tolist() == [False, False, True]
        assert scores[:2].tolist() == [0, 2]
    else:
        assert scores.tolist() == [0, 2, 4]


def test_a_final_observation_that_is_not_given_is_marked_missing(tmp_path: Path) -> None:
    with quiet(BatchedEnv((2, 3), AutoresetMode.SAME_STEP, finals=False), tmp_path) as envs:
        envs.reset()
        run(envs, 6)
    for episode in Recording(tmp_path):
        if episode.end == "terminated":
            assert episode.labels["final_observation"] == "missing"
            assert np.isnan(episode.observations[-1]).all()
            assert episode.observations[:-1, 0].tolist() == list(range(len(episode)))
        else:
            assert "final_observation" not in episode.labels


def test_what_an_environment_does_counts_more_than_what_it_says(tmp_path: Path) -> None:
    env = BatchedEnv((2, 3), AutoresetMode.SAME_STEP, says=AutoresetMode.NEXT_STEP)
    with quiet(env, tmp_path) as envs:
        envs.reset()
        with pytest.warns(UserWarning, match="says autoreset_mode=NextStep, but an episode ended with its final"):
            run(envs, 6)
        assert envs.autoreset_mode == AutoresetMode.SAME_STEP
    assert {len(episode) for episode in Recording(tmp_path) if episode.end == "terminated"} == {2, 3}


def test_a_step_after_the_end_that_is_no_reset_is_reported(tmp_path: Path) -> None:
    env = BatchedEnv((2, 2), AutoresetMode.SAME_STEP, says=AutoresetMode.NEXT_STEP, finals=False)
    with quiet(env, tmp_path) as envs:
        envs.reset()
        with pytest.warns(UserWarning, match="it gave a reward or an end"):
            run(envs, 4)


def test_a_mode_that_is_not_said_is_assumed_aloud_or_given(tmp_path: Path) -> None:
    env = BatchedEnv((2, 2), AutoresetMode.SAME_STEP)
    env.metadata = {}
    with pytest.warns(UserWarning, match="NextStep is assumed"):
        quiet(env, tmp_path / "a").close()
    assert quiet(env, tmp_path / "b", autoreset_mode="SameStep").autoreset_mode == AutoresetMode.SAME_STEP
    with pytest.raises(EpisodeError, match="none of"):
        quiet(env, tmp_path / "c", autoreset_mode="never")


@pytest.mark.parametrize("seed", [7, [7, 8, 9], [3, None, 5]])
def test_each_episode_has_its_own_seed(tmp_path: Path, seed: Any) -> None:
    with quiet(SyncVectorEnv(counting(3, 3, 3)), tmp_path) as envs:
        envs.reset(seed=seed)
        run(envs, 2)
    found = {episode.labels["env_index"]: episode.seed for episode in Recording(tmp_path)}
    expected = [7, 8, 9] if seed != [3, None, 5] else [3, found[1], 5]
    assert [found[lane] for lane in range(3)] == expected and found[1] is not None


def test_a_partial_reset_cuts_only_the_masked_ones(tmp_path: Path) -> None:
    options = {"reset_mask": np.array([False, True, False]), "other": 5}
    with quiet(SyncVectorEnv(counting(9, 9, 9), autoreset_mode=AutoresetMode.DISABLED), tmp_path) as envs:
        envs.reset(seed=3)
        run(envs, 2)
        envs.reset(seed=[11, 12, 13], options=options)
        run(envs, 3)
    lanes = {lane: [e for e in Recording(tmp_path) if e.labels["env_index"] == lane] for lane in range(3)}
    assert [(len(one), one.end) for one in lanes[0]] == [(5, "closed")]
    assert sorted((len(one), one.end, one.seed) for one in lanes[1]) == [(2, "reset", 4), (3, "closed", 12)]
    assert lanes[2][0].observations[:, 0].tolist() == [0, 1, 2, 3, 4, 5]
    assert [one.options for one in lanes[1] if one.end == "closed"] == [{"other": 5}]


def test_a_reset_of_all_cuts_all_and_empty_episodes_are_not_kept(tmp_path: Path) -> None:
    with quiet(SyncVectorEnv(counting(9, 9)), tmp_path) as envs:
        envs.reset()
        envs.reset()
        run(envs, 2)
        envs.reset()
        envs.reset()
        run(envs, 1)
    ends = sorted((len(episode), episode.end) for episode in Recording(tmp_path))
    assert ends == [(1, "closed"), (1, "closed"), (2, "reset"), (2, "reset")]


def test_nothing_is_on_disk_before_the_first_step(tmp_path: Path) -> None:
    with quiet(SyncVectorEnv(counting(9, 9)), tmp_path / "none") as envs:
        envs.reset()
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("mode", MODES)
def test_an_episode_can_be_labelled_until_the_next_step(tmp_path: Path, mode: AutoresetMode) -> None:
    with quiet(SyncVectorEnv(counting(2, 3), autoreset_mode=mode), tmp_path) as envs:
        envs.reset()
        for step in range(1, 4):
            _, _, terminated, _, _ = envs.step(envs.action_space.sample())
            for lane in np.flatnonzero(terminated).tolist():
                envs.label(lane, ended_at=step)
            if mode == AutoresetMode.DISABLED and terminated.any():
                envs.reset(options={"reset_mask": terminated})
            envs.flush()
    first = [next(e for e in Recording(tmp_path) if e.labels["env_index"] == lane) for lane in (0, 1)]
    assert [(len(episode), episode.labels["ended_at"]) for episode in first] == [(2, 2), (3, 3)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("flush", [True, False])
def test_a_discarded_episode_is_put_aside_and_the_next_one_recorded(tmp_path: Path, mode: Any, flush: bool) -> None:
    with quiet(SyncVectorEnv(counting(4, 4), autoreset_mode=mode), tmp_path) as envs:
        envs.reset()
        for step in range(1, 11):
            _, _, terminated, _, _ = envs.step(envs.action_space.sample())
            if step == 2:
                envs.discard(0, "boring")
            if flush:
                envs.flush()
            if mode == AutoresetMode.DISABLED and terminated.any():
                envs.reset(options={"reset_mask": terminated})
    whole = [e.labels["env_index"] for e in Recording(tmp_path) if e.end == "terminated"]
    assert sorted(whole) == [0, 1, 1]
    assert len(list((tmp_path / "discarded").iterdir())) == 1
    assert all(episode.observations[0, 0] == 0 for episode in Recording(tmp_path))


def test_a_whole_episode_can_be_discarded_after_its_end(tmp_path: Path) -> None:
    with quiet(SyncVectorEnv(counting(3, 3)), tmp_path) as envs:
        envs.reset()
        run(envs, 3)
        envs.discard(1)
        run(envs, 4)
    found = sorted((e.labels["env_index"], len(e)) for e in Recording(tmp_path))
    assert found == [(0, 3), (0, 3), (1, 3)]


def test_an_episode_can_be_ended_by_hand(tmp_path: Path) -> None:
    with quiet(SyncVectorEnv(counting(5, 5)), tmp_path) as envs:
        envs.reset()
        run(envs, 2)
        envs.end_episode(0, success=True)
        run(envs, 6)
    found = sorted((e.labels["env_index"], len(e), e.end, e.labels.get("success")) for e in Recording(tmp_path))
    assert found[0] == (0, 2, "closed", None) and found[1] == (0, 2, "ended", True)
    assert [one[:3] for one in found[2:]] == [(1, 2, "closed"), (1, 5, "terminated")]


def test_keep_if_sees_each_whole_episode(tmp_path: Path) -> None:
    with quiet(SyncVectorEnv(counting(2, 4)), tmp_path, keep_if=lambda episode: len(episode) > 3) as envs:
        envs.reset()
        run(envs, 10)
    assert {episode.labels["env_index"] for episode in Recording(tmp_path)} == {1}


def test_an_exception_in_a_step_ends_all_episodes(tmp_path: Path) -> None:
    envs = quiet(SyncVectorEnv([partial(CountingEnv, 9), partial(FailingEnv, 9, 4)]), tmp_path)
    envs.reset(seed=2)
    with pytest.raises(ValueError, match="the simulator broke"):
        run(envs, 9)
    with pytest.warns(UserWarning, match="call reset"), pytest.raises(ValueError, match="broke"):
        run(envs, 1)
    envs.reset()
    run(envs, 1)
    envs.close()
    found = sorted((len(episode), episode.end) for episode in Recording(tmp_path))
    assert found == [(1, "closed"), (1, "closed"), (3, "exception"), (3, "exception")]


def test_a_step_that_does_not_fit_is_missing_from_all_and_listed(tmp_path: Path) -> None:
    env = BatchedEnv((3, 6), AutoresetMode.NEXT_STEP)
    with quiet(env, tmp_path) as envs:
        envs.reset()
        run(envs, 1)
        observe = env._observe
        env._observe = lambda: observe()[:, :1]  # type: ignore[method-assign]
        with pytest.raises(RowError, match="observation"):
            run(envs, 1)
        env._observe = observe  # type: ignore[method-assign]
        run(envs, 4)
    found = {(e.labels["env_index"], len(e), e.end, tuple(e.refused)) for e in Recording(tmp_path)}
    assert (0, 2, "terminated", (2,)) in found
    assert (1, 5, "terminated", (2,)) in found
    assert all(e.observations[0, 0] == 0 for e in Recording(tmp_path))


def test_an_end_in_a_step_that_does_not_fit_is_still_an_end(tmp_path: Path) -> None:
    env = BatchedEnv((2, 9), AutoresetMode.NEXT_STEP)
    with quiet(env, tmp_path) as envs:
        envs.reset()
        run(envs, 1)
        observe = env._observe
        env._observe = lambda: observe()[:, :1]  # type: ignore[method-assign]
        with pytest.raises(RowError, match="observation"):
            run(envs, 1)
        env._observe = observe  # type: ignore[method-assign]
        run(envs, 3)
    found = sorted((e.labels["env_index"], len(e), e.end) for e in Recording(tmp_path))
    assert found == [(0, 1, "terminated"), (0, 2, "terminated"), (1, 4, "closed")]


def test_actions_that_do_not_fit_are_refused_before_the_environment_steps(tmp_path: Path) -> None:
    env = BatchedEnv((9, 9), AutoresetMode.NEXT_STEP)
    with quiet(env, tmp_path) as envs:
        envs.reset()
        run(envs, 1)
        with pytest.raises(RowError, match="action"):
            envs.step(np.array([0.5, 1.5]))
        assert env.steps.tolist() == [1, 1]
        envs.step([1, 2])
    assert [episode.actions.tolist()[1] for episode in sorted(Recording(tmp_path), key=lambda one: one.id)] == [1, 2]


def test_nothing_of_a_reused_buffer_is_kept(tmp_path: Path) -> None:
    with quiet(SyncVectorEnv(counting(9, 9), copy=False), tmp_path) as envs:
        envs.reset()
        run(envs, 5)
    for episode in Recording(tmp_path):
        assert episode.observations[:, 0].tolist() == [0, 1, 2, 3, 4, 5]


def test_values_of_the_user_are_recorded_for_each(tmp_path: Path) -> None:
    extra = {"log_prob": spaces.Box(-np.inf, np.inf, (), np.float32)}
    with quiet(SyncVectorEnv(counting(3, 3), autoreset_mode="SameStep"), tmp_path, extra=extra) as envs:
        envs.reset()
        with pytest.raises(RowError, match="call record"):
            run(envs, 1)
        for step in range(3):
            envs.record(log_prob=np.array([step, -step], np.float32))
            run(envs, 1)
    found = {e.labels["env_index"]: e.extras["log_prob"].tolist() for e in Recording(tmp_path)}
    assert found == {0: [0, 1, 2], 1: [0, -1, -2]}


def test_vector_wrappers_below_and_above_work(tmp_path: Path) -> None:
    inner = gym.wrappers.vector.RecordEpisodeStatistics(SyncVectorEnv(counting(3, 4)))
    envs = gym.wrappers.vector.ClipReward(quiet(inner, tmp_path), max_reward=0.5)
    envs.reset(seed=1)
    for _ in range(6):
        _, rewards, _, _, _ = envs.step(envs.action_space.sample())
        assert rewards.max() <= 0.5
    envs.close()
    whole = [episode for episode in Recording(tmp_path) if episode.end == "terminated"]
    assert {episode.infos["episode"]["l"][-1] for episode in whole} == {3, 4}
    assert {episode.return_ for episode in whole} == {3, 4}


def test_infos_as_a_list_are_understood(tmp_path: Path) -> None:
    inner = gym.wrappers.vector.DictInfoToList(BatchedEnv((2, 3), AutoresetMode.SAME_STEP))
    with quiet(inner, tmp_path) as envs:
        envs.reset()
        run(envs, 6)
    for episode in Recording(tmp_path):
        assert episode.observations[:, 0].tolist() == list(range(len(episode) + 1))
        assert set(episode.infos) == {"score"}
    first = min(Recording(tmp_path), key=lambda episode: episode.id)
    assert first.infos["score"][:2].tolist() == [0, 2]


def test_a_recording_of_single_environments_is_appended_to(tmp_path: Path) -> None:
    with Recorder(CountingEnv(3), tmp_path, verbose=0) as single:
        single.reset(seed=1)
        single.step(np.int64(1))
    with quiet(SyncVectorEnv(counting(3, 3)), tmp_path) as envs:
        envs.reset(seed=1)
        run(envs, 3)
    assert len(Recording(tmp_path)) == 3


def test_the_spec_that_is_stored_is_that_of_one_environment(tmp_path: Path) -> None:
    with quiet(gym.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync"), tmp_path / "sync") as envs:
        envs.reset(seed=0)
        run(envs, 2)
    with quiet(gym.make_vec("CartPole-v1", num_envs=2, vectorization_mode="async"), tmp_path / "async") as envs:
        envs.reset(seed=0)
        run(envs, 2)
    for name in ("sync", "async"):
        episode = Recording(tmp_path / name)[0]
        assert episode.environment is not None and episode.environment["id"] == "CartPole-v1"
        assert "num_envs" not in episode.environment.get("kwargs", {})


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
def test_what_the_environment_returns_passes_through_unchanged(tmp_path: Path, mode: AutoresetMode) -> None:
    bare, recorded = (SyncVectorEnv(counting(2, 3), autoreset_mode=mode) for _ in range(2))
    with quiet(recorded, tmp_path) as envs:
        assert envs.metadata == bare.metadata and envs.num_envs == 2
        assert envs.observation_space == bare.observation_space
        first, second = bare.reset(seed=5), envs.reset(seed=5)
        np.testing.assert_array_equal(first[0], second[0])
        for _ in range(9):
            action = bare.action_space.sample()
            one, two = bare.step(action), envs.step(action)
            for a, b in zip(one[:4], two[:4], strict=True):
                np.testing.assert_array_equal(a, b)
                assert a.dtype == b.dtype
            if mode == AutoresetMode.DISABLED and one[2].any():
                bare.reset(options={"reset_mask": one[2]})
                envs.reset(options={"reset_mask": one[2]})


def test_a_recorder_that_is_dropped_still_commits(tmp_path: Path) -> None:
    envs = quiet(SyncVectorEnv(counting(3, 3)), tmp_path)
    envs.reset()
    run(envs, 4)
    del envs
    assert len(Recording(tmp_path)) == 2


def test_the_summary_counts_steps_after_the_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    env = BatchedEnv((2, 9), AutoresetMode.DISABLED)
    with VectorRecorder(env, tmp_path, fsync=False) as envs:
        envs.reset()
        for _ in range(4):
            envs.step(envs.action_space.sample())
    assert "2 episodes, 6 steps" in (said := capsys.readouterr().err) and "2 steps outside" in said


class TestRecordersInTheWorkers:
    def test_each_worker_records_into_one_folder_and_the_dummy_leaves_nothing(self, tmp_path: Path) -> None:
        wrap = partial(Recorder, path=tmp_path, verbose=0, fsync=False)
        envs = gym.make_vec("CartPole-v1", num_envs=3, vectorization_mode="async", wrappers=(wrap,))
        envs.reset(seed=0)
        for _ in range(40):
            envs.step(envs.action_space.sample())
        envs.close()
        recording = Recording(tmp_path)
        assert len({episode.id.split("-")[0] for episode in recording}) == 3
        assert sum(len(episode) for episode in recording) >= 40
        assert not list((tmp_path / "staging").iterdir())

    def test_episodes_are_on_disk_when_workers_are_terminated(self, tmp_path: Path) -> None:
        program = f"""
import gymnasium as gym
from functools import partial
from recorder import Recorder
wrap = partial(Recorder, path={str(tmp_path)!r}, verbose=0, flush_every=0)
envs = gym.make_vec("CartPole-v1", num_envs=2, vectorization_mode="async", wrappers=(wrap,))
envs.reset(seed=0)
ended = [0, 0]
while min(ended) < 2:
    _, _, terminated, _, _ = envs.step(envs.action_space.sample())
    ended = [count + int(end) for count, end in zip(ended, terminated)]
envs.step(envs.action_space.sample())
envs.close(terminate=True)
"""
        subprocess.run([sys.executable, "-c", program], check=True, timeout=100)
        assert len([e for e in Recording(tmp_path) if e.end == "terminated"]) >= 4


def test_no_warning_comes_without_a_reason(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for i, mode in enumerate(MODES):
            with quiet(SyncVectorEnv(counting(1, 2), autoreset_mode=mode), tmp_path / str(i)) as envs:
                envs.reset()
                run(envs, 7)
    assert {len(e) for i in range(3) for e in Recording(tmp_path / str(i)) if e.end == "terminated"} == {1, 2}


class Tensor:
    """An array of another library, which NumPy takes through `__array__`."""

    def __init__(self, array: Any) -> None:
        self.array = np.asarray(array)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.array


def test_arrays_of_other_libraries_are_taken(tmp_path: Path) -> None:
    class TensorEnv(BatchedEnv):
        def reset(self, **options: Any) -> Any:
            observations, infos = super().reset(**options)
            return Tensor(observations), {"score": Tensor(infos["score"])}

        def step(self, actions: Any) -> Any:
            *values, infos = super().step(actions)
            return (*map(Tensor, values), {"score": Tensor(infos["score"])})

    with quiet(TensorEnv((2, 3), AutoresetMode.NEXT_STEP), tmp_path) as envs:
        envs.reset()
        for _ in range(6):
            envs.step(envs.action_space.sample())
    for episode in Recording(tmp_path):
        assert episode.observations[:, 0].tolist() == list(range(len(episode) + 1))
        assert episode.infos["score"].dtype == np.int64


@pytest.mark.parametrize("mode", MODES)
def test_interrupts_at_any_time_leave_whole_episodes(tmp_path: Path, mode: AutoresetMode) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    env = BatchedEnv((5, 9, 13), mode)
    recorder = quiet(env, tmp_path)
    gc.disable()  # Hypothesis has a callback there, out of which an interrupt would not come
    before = signal.signal(signal.SIGALRM, interrupt)
    generator = np.random.default_rng(0)
    hit = 0
    try:
        for _ in range(40):
            try:
                signal.setitimer(signal.ITIMER_REAL, float(generator.uniform(0.0002, 0.02)))
                recorder.reset()
                for _ in range(1000):
                    _, _, terminated, _, _ = recorder.step(recorder.action_space.sample())
                    if mode == AutoresetMode.DISABLED and terminated.any():
                        recorder.reset(options={"reset_mask": terminated})
            except KeyboardInterrupt:
                hit += 1
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.signal(signal.SIGALRM, before)
        gc.enable()
    recorder.close()
    assert hit > 20
    for episode in Recording(tmp_path):
        lane = episode.labels["env_index"]
        counts = episode.observations[:, 0]
        assert len(counts) == len(episode) + 1 == len(episode.actions) + 1
        assert (episode.observations[:, 1] == lane).all()
        assert counts[0] == 0 and (np.diff(counts) >= 1).all()
        assert episode.refused or (np.diff(counts) == 1).all() or episode.end == "interrupted"
        if episode.end == "terminated" and not episode.refused:
            assert len(episode) == (5, 9, 13)[lane]


@pytest.mark.parametrize("mode", MODES)
def test_a_kill_loses_nothing_that_was_flushed(tmp_path: Path, mode: AutoresetMode) -> None:
    program = f"""
import sys
from functools import partial
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from recorder import VectorRecorder
from recorder.writing.recovery import recover
from tests.environments import CountingEnv
envs = SyncVectorEnv([partial(CountingEnv, 4), partial(CountingEnv, 50)], autoreset_mode={mode.value!r})
recorder = VectorRecorder(envs, {str(tmp_path)!r}, verbose=0)
recorder.reset(seed=1)
for step in range(20):
    _, _, terminated, _, _ = recorder.step(recorder.action_space.sample())
    if envs.autoreset_mode == AutoresetMode.DISABLED and terminated.any():
        recorder.reset(options={{"reset_mask": terminated}})
    if step == 9:
        recorder.flush()
print("ready", flush=True)
while True:
    pass
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        process.kill()
    recover(tmp_path)
    found = sorted((e.labels["env_index"], e.end, len(e)) for e in Recording(tmp_path))
    running = [one for one in found if one[1] == "recovered"]
    assert [one for one in found if one[:2] == (0, "terminated")] == [(0, "terminated", 4)] * 2
    assert (1, "recovered", 10) in running
    for episode in Recording(tmp_path):
        assert episode.observations[:, 0].tolist() == list(range(len(episode) + 1))


def test_the_recorder_is_found_below_vector_wrappers_and_has_a_plan(tmp_path: Path) -> None:
    envs = quiet(SyncVectorEnv(counting(3, 4)), tmp_path, exclude=["time"])
    outer = gym.wrappers.vector.ClipReward(envs, max_reward=0.5)
    assert find(outer) is envs
    assert [row.path for row in plan(outer).rows] == ["observation", "action", "reward", "terminated", "truncated"]
    envs.close()


def test_time_can_be_excluded(tmp_path: Path) -> None:
    with quiet(SyncVectorEnv(counting(3, 4)), tmp_path, exclude=["time"]) as envs:
        envs.reset(seed=1)
        run(envs, 6)
    assert all("time" not in episode.columns for episode in Recording(tmp_path))


def test_generators_are_left_alone_where_that_is_wanted(tmp_path: Path) -> None:
    with quiet(AsyncVectorEnv(counting(2, 3)), tmp_path, generators=False) as envs:
        envs.reset(seed=1)
        run(envs, 9)
    assert sorted(str(episode.seed) for episode in Recording(tmp_path)) == ["1", "2", *["None"] * 4]
    assert all(episode.generator is None for episode in Recording(tmp_path))
