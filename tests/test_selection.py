"""Selection: which episodes are recorded, which are put aside, and what a trigger brings from memory."""

from __future__ import annotations

import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from recorder import EpisodeError, MismatchError, Recorder, Recording, RowError, VectorRecorder
from recorder.selection import Memory, Selection
from tests.environments import CountingEnv


class CameraEnv(gym.Env[Any, Any]):
    """Has a camera that is larger than what lies in tables, each frame of which is one number."""

    def __init__(self, length: int = 9) -> None:
        self.length = length
        self.observation_space = spaces.Dict(
            camera=spaces.Box(0, 255, (128, 128, 3), np.uint8), count=spaces.Box(0, 1e9, (), np.int64)
        )
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self._observe(), {}

    def _observe(self) -> Any:
        return {"camera": np.full((128, 128, 3), self.steps * 20, np.uint8), "count": np.int64(self.steps)}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self._observe(), 1.0, self.steps == self.length, False, {}


def run(env: Any, episodes: int) -> None:
    for _ in range(episodes):
        env.reset()
        done = False
        while not done:
            _, _, terminated, truncated, _ = env.step(0)
            done = terminated or truncated


def numbered(path: Path, episodes: int, select: Selection, **options: Any) -> list[int]:
    """Run episodes of 1, 2, 3, … steps; return the lengths of those that are recorded."""
    env = CountingEnv(0)
    with Recorder(env, path, select=select, verbose=0, fsync=False, **options) as recorder:
        for number in range(episodes):
            env.length = number + 1
            run(recorder, 1)
    return sorted(len(episode) for episode in Recording(path)) if path.exists() else []


@pytest.mark.parametrize(
    ("select", "expected"),
    [
        (Selection(), [1, 2, 3, 4, 5, 6, 7]),
        (Selection(every=3), [1, 4, 7]),
        (Selection(first=2), [1, 2]),
        (Selection(first=2, every=5), [1, 2, 6]),
        (Selection(when=lambda number: number in (1, 4)), [2, 5]),
        (Selection(max_episodes=3), [1, 2, 3]),
        (Selection(max_steps=5), [1, 2, 3]),
        (Selection(every=2, max_episodes=2), [1, 3]),
    ],
)
def test_episodes_are_selected(tmp_path: Path, select: Selection, expected: list[int]) -> None:
    assert numbered(tmp_path / "run", 7, select) == expected


def test_episodes_that_are_not_kept_do_not_count(tmp_path: Path) -> None:
    found = numbered(tmp_path, 8, Selection(max_episodes=3), keep_if=lambda e: len(e) % 2 == 0, flush_every=0)
    assert found == [2, 4, 6]


def test_an_episode_that_is_not_selected_takes_labels_in_silence(tmp_path: Path) -> None:
    with (
        warnings.catch_warnings(),
        Recorder(CountingEnv(2), tmp_path, select=Selection(first=1), verbose=0) as env,
    ):
        warnings.simplefilter("error")
        for _ in range(3):
            run(env, 1)
            env.label(success=True)
            env.end_episode()
    assert len(Recording(tmp_path)) == 1


def test_selection_works_below_autoreset(tmp_path: Path) -> None:
    env = Recorder(gym.wrappers.Autoreset(CountingEnv(2)), tmp_path, select=Selection(every=2), verbose=0)
    env.reset()
    for _ in range(14):
        env.step(0)
    env.close()
    assert [len(episode) for episode in Recording(tmp_path)] == [2, 2, 2]


def test_numbers_that_mean_nothing_are_refused() -> None:
    for wrong in ({"every": -1}, {"pictures_every": 0}, {"last_seconds": 0}):
        with pytest.raises(ValueError, match=r"at least|seconds"):
            Selection(**wrong)


def test_pictures_are_taken_in_every_nth_row_and_the_others_marked(tmp_path: Path) -> None:
    with Recorder(CameraEnv(), tmp_path, select=Selection(pictures_every=4), verbose=0) as env:
        run(env, 2)
    for episode in Recording(tmp_path):
        assert episode.observations["count"].tolist() == list(range(10))
        marks = episode.columns["repeated/observation/camera"][:]
        assert marks.tolist() == [k % 4 != 0 for k in range(10)]
        brightness = episode.observations["camera"].mean(axis=(1, 2, 3))
        np.testing.assert_allclose(brightness, [k // 4 * 80 for k in range(10)], atol=3)


class TestFailures:
    def test_failed_episodes_go_to_a_second_recording(self, tmp_path: Path) -> None:
        good, bad = tmp_path / "good", tmp_path / "bad"
        found = numbered(good, 6, Selection(), keep_if=lambda e: len(e) > 2, failures=bad)
        assert found == [3, 4, 5, 6]
        assert sorted(len(episode) for episode in Recording(bad)) == [1, 2]
        assert not (good / "discarded").exists()

    def test_they_are_kept_without_a_trash_too(self, tmp_path: Path) -> None:
        good, bad = tmp_path / "good", tmp_path / "bad"
        numbered(good, 3, Selection(), keep_if=lambda e: len(e) > 1, failures=bad, trash=0)
        assert [len(episode) for episode in Recording(bad)] == [1]

    def test_what_the_user_discards_still_goes_to_the_trash(self, tmp_path: Path) -> None:
        with Recorder(CountingEnv(3), tmp_path / "good", failures=tmp_path / "bad", verbose=0) as env:
            run(env, 1)
            env.discard()
            run(env, 1)
        assert len(Recording(tmp_path / "good")) == 1 and len(Recording(tmp_path / "bad")) == 0
        assert len(list((tmp_path / "good" / "discarded").iterdir())) == 1

    def test_a_second_recording_that_differs_is_refused(self, tmp_path: Path) -> None:
        with Recorder(CameraEnv(2), tmp_path / "bad", verbose=0) as env:
            run(env, 1)
        other = Recorder(CountingEnv(3), tmp_path / "good", failures=tmp_path / "bad", verbose=0)
        with pytest.raises(MismatchError):
            run(other, 1)
        with pytest.raises(MismatchError):
            other.close()


class SlowEnv(CountingEnv):
    """Takes ten milliseconds a step."""

    def step(self, action: Any) -> Any:
        time.sleep(0.01)
        return super().step(action)


class TestTrigger:
    def test_nothing_is_recorded_without_one(self, tmp_path: Path) -> None:
        with Recorder(CountingEnv(3), tmp_path / "run", select=Selection(last_seconds=5), verbose=0) as env:
            run(env, 3)
        assert not (tmp_path / "run").exists()

    def test_an_episode_younger_than_the_memory_is_whole(self, tmp_path: Path) -> None:
        with Recorder(CountingEnv(6), tmp_path, select=Selection(last_seconds=60), verbose=0) as env:
            run(env, 1)
            env.reset(seed=5)
            for step in range(6):
                env.step(step % 4)
                if step == 2:
                    env.label(task="fall")
                    env.trigger(event="fell")
            run(env, 1)
        (episode,) = Recording(tmp_path)
        assert episode.observations[:, 0].tolist() == [0, 1, 2, 3, 4, 5, 6]
        assert episode.actions.tolist() == [0, 1, 2, 3, 0, 1]
        assert episode.seed == 5 and episode.end == "terminated"
        assert dict(episode.labels) == {"event": "fell", "task": "fall"}
        assert (np.diff(episode.times) > 0).all() and episode.times[0] == 0

    def test_only_the_last_seconds_come_from_memory(self, tmp_path: Path) -> None:
        with Recorder(SlowEnv(60), tmp_path, select=Selection(last_seconds=0.1), verbose=0) as env:
            env.reset(seed=5)
            for step in range(40):
                env.step(0)
                if step == 29:
                    env.trigger()
        (episode,) = Recording(tmp_path)
        first = int(episode.labels["first_step"])
        assert 15 <= first < 30
        assert episode.observations[:, 0].tolist() == list(range(first, 41))
        assert episode.seed is None and episode.generator is None

    def test_it_may_come_after_the_end(self, tmp_path: Path) -> None:
        with Recorder(CountingEnv(3), tmp_path, select=Selection(last_seconds=60), verbose=0) as env:
            run(env, 1)
            env.trigger()
            run(env, 1)
        (episode,) = Recording(tmp_path)
        assert len(episode) == 3 and episode.end == "terminated"

    def test_what_an_environment_reuses_is_copied(self) -> None:
        memory, array = Memory(9), np.zeros(2)
        for step in range(3):
            array[:] = step
            memory.add({"observation": array, "time": float(step)}, {})
        assert [row.values["observation"].tolist() for row in memory.take()] == [[0, 0], [1, 1], [2, 2]]

    def test_it_needs_a_memory_and_an_episode(self, tmp_path: Path) -> None:
        with Recorder(CountingEnv(3), tmp_path, verbose=0) as env, pytest.raises(EpisodeError, match="last_seconds"):
            env.trigger()
        select = Selection(last_seconds=1)
        with (
            Recorder(CountingEnv(3), tmp_path, select=select, verbose=0) as env,
            pytest.raises(EpisodeError, match="reset"),
        ):
            env.trigger()

    def test_an_episode_that_no_number_names_waits_for_it(self, tmp_path: Path) -> None:
        select = Selection(every=2, last_seconds=60)
        with Recorder(CountingEnv(3), tmp_path, select=select, verbose=0) as env:
            for number in range(6):
                run(env, 1)
                if number in (2, 3):
                    env.trigger(fell=True)
        found = [(episode.labels.get("fell", False), episode.end) for episode in Recording(tmp_path)]
        assert found == [(False, "terminated"), (True, "terminated"), (True, "terminated"), (False, "terminated")]

    def test_it_says_when_as_much_is_kept_as_is_wanted(self, tmp_path: Path) -> None:
        select = Selection(max_episodes=1, last_seconds=60)
        with Recorder(CountingEnv(3), tmp_path, select=select, verbose=0) as env:
            run(env, 1)
            env.trigger()
            run(env, 1)
            with pytest.raises(EpisodeError, match="max_episodes=1 is reached"):
                env.trigger()
        assert len(Recording(tmp_path)) == 1

    def test_a_row_in_memory_that_does_not_fit_is_listed_and_the_others_kept(self, tmp_path: Path) -> None:
        class Misfit(CountingEnv):
            def step(self, action: Any) -> Any:
                observation, *rest = super().step(action)
                return (np.zeros(7) if self.steps == 2 else observation, *rest)

        with Recorder(Misfit(6), tmp_path, select=Selection(last_seconds=60), verbose=0) as env:
            env.reset(seed=1)
            for step in range(6):
                env.step(0)
                if step == 3:
                    with pytest.raises(RowError, match="step 2 is not recorded"):
                        env.trigger(fell=True)
        (episode,) = Recording(tmp_path)
        assert episode.observations[:, 0].tolist() == [0, 1, 3, 4, 5, 6]
        assert list(episode.refused) == [2] and episode.end == "terminated" and episode.labels["fell"]

    @pytest.mark.parametrize("stop", [Recorder.discard, Recorder.end_episode])
    def test_what_was_given_up_is_not_kept(self, tmp_path: Path, stop: Any) -> None:
        with Recorder(CountingEnv(9), tmp_path / "run", select=Selection(last_seconds=60), verbose=0) as env:
            env.reset()
            env.step(0)
            stop(env)
            env.step(0)  # must not begin a memory in the middle of an episode
            with pytest.raises(EpisodeError, match="discarded or ended"):
                env.trigger()
        assert not (tmp_path / "run").exists()


def test_a_vector_recorder_counts_over_all_sub_environments(tmp_path: Path) -> None:
    envs = SyncVectorEnv([partial(CountingEnv, 2), partial(CountingEnv, 3)])
    with VectorRecorder(envs, tmp_path, select=Selection(every=3, max_episodes=3), verbose=0, fsync=False) as recorder:
        recorder.reset(seed=1)
        for _ in range(40):
            recorder.step(recorder.action_space.sample())
            recorder.flush()
    episodes = sorted(Recording(tmp_path), key=lambda episode: episode.id)
    assert [int(episode.id[-6:]) for episode in episodes] == [0, 3, 6]
    assert all(episode.end == "terminated" for episode in episodes)


def test_a_vector_recorder_sends_failures_elsewhere(tmp_path: Path) -> None:
    envs = SyncVectorEnv([partial(CountingEnv, 2), partial(CountingEnv, 3)])
    options: dict[str, Any] = {"keep_if": lambda episode: len(episode) == 3, "failures": tmp_path / "bad"}
    with VectorRecorder(envs, tmp_path / "good", verbose=0, fsync=False, **options) as recorder:
        recorder.reset(seed=1)
        for _ in range(12):
            recorder.step(recorder.action_space.sample())
    assert {len(episode) for episode in Recording(tmp_path / "good")} == {3}
    assert 3 not in {len(episode) for episode in Recording(tmp_path / "bad")}


def test_a_vector_recorder_selects_whole_episodes_only(tmp_path: Path) -> None:
    with pytest.raises(EpisodeError, match="whole episodes"):
        VectorRecorder(SyncVectorEnv([CountingEnv]), tmp_path, select=Selection(last_seconds=3))
