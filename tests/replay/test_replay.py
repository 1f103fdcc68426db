"""Replay: exact where the environment makes the same again, and the right step and leaf where it does not."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from environments import CountingEnv, ScriptEnv, roll
from gymnasium import spaces
from gymnasium.wrappers import FlattenObservation, TransformObservation

from recorder import (
    EpisodeError,
    FormatError,
    Recorder,
    RecorderError,
    Recording,
    RecordingWriter,
    ReplayReport,
    RowError,
    SpaceError,
    replay,
)
from recorder.edit.rows import rewrite
from recorder.replaying.comparing import largest_difference


def record(env: gym.Env[Any, Any], path: Path, seeds: list[int | None], steps: int | None = None) -> Recording:
    """Record an episode of random actions for each seed."""
    with Recorder(env, path, fsync=False, verbose=False) as recorded:
        env.action_space.seed(0)
        for seed in seeds:
            recorded.reset(seed=seed)
            for _ in range(steps or 1000):
                result = recorded.step(env.action_space.sample())
                if result[2] or result[3]:
                    break
    return Recording(path)


def check_diverged(report: ReplayReport, step: int, leaf: str) -> None:
    assert report.verdict == "diverged" and not report.agrees
    assert report.divergence is not None
    assert (report.divergence.step, report.divergence.leaf) == (step, leaf)


class NoisyEnv(CountingEnv):
    """Adds noise to what it shows at each step, of a generator that no seed reaches."""

    noise = np.random.default_rng()

    def _observe(self) -> Any:
        shown = super()._observe()
        if self.steps:
            shown[1] += 0.5 + self.noise.random()
        return shown


class UnseededEnv(CountingEnv):
    """Begins wherever it likes, whatever the seed is, and can set its state."""

    start = np.random.default_rng()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.offset = float(self.start.random())
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.offset += 0.25 * float(action)
        return super().step(action)

    def get_state(self) -> Any:
        return {"steps": np.int64(self.steps), "offset": np.float64(self.offset)}

    def set_state(self, state: Any) -> None:
        self.steps, self.offset = int(state["steps"]), float(state["offset"])


class TestExact:
    def test_cart_pole_with_seed_0(self, tmp_path: Path) -> None:
        (episode,) = record(gym.make("CartPole-v1"), tmp_path, [0])
        report = replay(episode)
        assert report.verdict == "exact" and report.agrees
        assert report.compared == report.steps == len(episode)
        assert report.differences == report.notes == ()
        assert str(report) == f"{episode.id}: exact, {len(episode)} steps"

    def test_an_episode_that_was_not_seeded_and_began_in_mid_stream(self, tmp_path: Path) -> None:
        recording = record(gym.make("CartPole-v1"), tmp_path, [None, 3, None, None])
        assert [episode.seed is None for episode in recording] == [False, False, True, True]
        for episode in reversed(recording):
            assert replay(episode).verdict == "exact"

    def test_an_environment_that_is_given_stays_open(self, tmp_path: Path) -> None:
        recording = record(gym.make("CartPole-v1"), tmp_path, [0, 1])
        env = gym.make("CartPole-v1")
        assert [replay(episode, env).verdict for episode in recording] == ["exact", "exact"]
        env.reset(seed=0)
        env.close()

    def test_options_are_given_to_the_reset(self, tmp_path: Path) -> None:
        with Recorder(gym.make("CartPole-v1"), tmp_path, fsync=False, verbose=False) as env:
            roll(env, seed=1, options={"low": -0.01, "high": 0.2})
        assert replay(Recording(tmp_path)[0]).verdict == "exact"

    def test_another_bit_generator_of_numpy(self, tmp_path: Path) -> None:
        env = CountingEnv(3)
        env.reset()
        env.np_random = np.random.Generator(np.random.MT19937(4))
        (episode,) = record(env, tmp_path, [None])
        assert episode.generator is not None and episode.generator["bit_generator"] == "MT19937"
        assert replay(episode, CountingEnv(3)).verdict == "exact"

    def test_what_was_excluded_is_not_missed(self, tmp_path: Path) -> None:
        space = spaces.Dict(kept=spaces.Discrete(9), dropped=spaces.Discrete(9))
        values = [{"kept": np.int64(k), "dropped": np.int64(k)} for k in range(4)]
        with Recorder(
            ScriptEnv(space, values), tmp_path, exclude=["observation/dropped"], fsync=False, verbose=False
        ) as env:
            roll(env)
        assert replay(Recording(tmp_path)[0], ScriptEnv(space, values)).verdict == "exact"

    def test_the_report_is_strict_json(self, tmp_path: Path) -> None:
        (episode,) = record(gym.make("CartPole-v1"), tmp_path, [0])
        said = json.loads(json.dumps(replay(episode).to_json(), allow_nan=False))
        assert (said["verdict"], said["divergence"], said["episode"]) == ("exact", None, episode.id)
        assert [leaf["path"] for leaf in said["leaves"]] == ["observation", "reward", "terminated", "truncated"]

    def test_no_window_is_opened_where_the_recording_had_one(self, tmp_path: Path) -> None:
        (episode,) = record(gym.make("CartPole-v1", render_mode="human"), tmp_path, [0])
        made = []
        original = gym.make

        def make(*args: Any, **kwargs: Any) -> gym.Env[Any, Any]:
            made.append(original(*args, **kwargs))
            return made[-1]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(gym, "make", make)
            assert replay(episode).verdict == "exact"
        assert [env.render_mode for env in made] == [None]


class TestDiverged:
    def test_noise_that_no_seed_reaches(self, tmp_path: Path) -> None:
        (episode,) = record(NoisyEnv(5), tmp_path, [0])
        report = replay(episode, NoisyEnv(5))
        check_diverged(report, 1, "observation")
        assert report.divergence is not None and 0 < report.divergence.error < 1
        assert f"diverged at step 1 in observation by {report.divergence.error:.6g}" in str(report)

    def test_an_action_that_was_changed_in_the_recording(self, tmp_path: Path) -> None:
        (episode,) = record(gym.make("CartPole-v1"), tmp_path, [0])
        actions = episode.actions.copy()
        actions[3] = 1 - actions[3]
        rewrite(tmp_path, {"action": actions})
        (changed,) = Recording(tmp_path)
        assert changed.id == episode.id
        check_diverged(replay(changed), 4, "observation")

    def test_a_constant_of_the_physics(self, tmp_path: Path) -> None:
        (episode,) = record(gym.make("Pendulum-v1", g=10.0), tmp_path, [0], 20)
        assert replay(episode).verdict == "exact"
        report = replay(episode, gym.make("Pendulum-v1", g=10.5))
        check_diverged(report, 1, "observation")
        assert report.differences == ("argument g was 10.0, is 10.5 here",)
        (observation, reward, *_) = report.leaves
        assert len(observation.errors) == 21 and observation.errors[0] == 0 and observation.errors[1] > 0
        assert reward.diverged == 2, "the reward of a step is that of the state before it"
        within = replay(episode, gym.make("Pendulum-v1", g=10.0 + 1e-5), tolerance=1e-3)
        assert within.verdict == "within tolerance" and within.agrees
        assert 0 < within.errors["observation"] <= 1e-3

    def test_another_wrapper_around_the_observation_is_said_and_no_crash(self, tmp_path: Path) -> None:
        (episode,) = record(gym.make("CartPole-v1"), tmp_path, [0])
        bare = gym.make("CartPole-v1")
        other = TransformObservation(bare, lambda o: o[:2], spaces.Box(-9, 9, (2,)))
        report = replay(episode, other)
        check_diverged(report, 0, "observation")
        assert "shape" in str(report.divergence)
        assert any("observation: shape (2,) here, (4,) in the recording" in line for line in report.differences)
        assert "wrappers were none, are TransformObservation here" in report.differences
        assert [leaf.largest for leaf in report.leaves] == [math.inf, 0, 0, 0], "the rest is compared all the same"

    def test_another_structure_of_the_observation_is_said_and_no_crash(self, tmp_path: Path) -> None:
        space = spaces.Dict(a=spaces.Discrete(9), b=spaces.Box(0, 9, (2,)))
        values = [{"a": np.int64(k), "b": np.float32([k, k])} for k in range(4)]
        (episode,) = record(ScriptEnv(space, values), tmp_path, [0])
        check_diverged(replay(episode, FlattenObservation(ScriptEnv(space, values))), 0, "observation/a")
        fewer = ScriptEnv(spaces.Dict(a=space["a"]), [{"a": value["a"]} for value in values])
        report = replay(episode, fewer)
        check_diverged(report, 0, "observation/b")
        assert "observation/b: only in the recording" in report.differences

    def test_an_environment_that_ends_early(self, tmp_path: Path) -> None:
        (episode,) = record(CountingEnv(5), tmp_path, [0])
        report = replay(episode, CountingEnv(3))
        check_diverged(report, 3, "terminated")
        assert report.compared == 3 and "2 recorded steps were not compared" in str(report)

    def test_an_environment_that_goes_on(self, tmp_path: Path) -> None:
        (episode,) = record(CountingEnv(3), tmp_path, [0])
        check_diverged(replay(episode, CountingEnv(5)), 3, "terminated")

    def test_an_environment_that_raises(self, tmp_path: Path) -> None:
        class Failing(CountingEnv):
            def step(self, action: Any) -> Any:
                if self.steps == 2:
                    raise RuntimeError("the motor is hot")
                return super().step(action)

        (episode,) = record(CountingEnv(5), tmp_path, [0])
        report = replay(episode, Failing(5))
        check_diverged(report, 3, "")
        assert "step 3: the environment raised RuntimeError: the motor is hot" in str(report)

    def test_another_dtype_that_is_not_exact(self, tmp_path: Path) -> None:
        space = spaces.Box(-9, 9, (2,), np.float32)
        values = [np.float32([k / 3, 0]) for k in range(3)]
        (episode,) = record(ScriptEnv(space, values), tmp_path, [0])
        wider = [np.array([k / 3, 0]) for k in range(3)]
        report = replay(episode, ScriptEnv(space, wider))
        check_diverged(report, 1, "observation")
        assert report.divergence is not None and 0 < report.divergence.error < 1e-6
        assert replay(episode, ScriptEnv(space, wider), tolerance=1e-6).verdict == "within tolerance"

    def test_flags_and_texts_are_never_within_a_tolerance(self, tmp_path: Path) -> None:
        (episode,) = record(ScriptEnv(spaces.Text(3), ["a", "b", "c"]), tmp_path, [0])
        check_diverged(replay(episode, ScriptEnv(spaces.Text(3), ["a", "x", "c"]), tolerance=9), 1, "observation")
        (episode,) = record(CountingEnv(3), tmp_path / "flags", [0])
        check_diverged(replay(episode, CountingEnv(5), tolerance=9), 3, "terminated")

    def test_an_unseeded_reset_is_named_where_it_explains_the_verdict(self, tmp_path: Path) -> None:
        env = UnseededEnv(3)
        env.reset(seed=0)
        (episode,) = record(env, tmp_path, [None])
        report = replay(episode, UnseededEnv(3))
        check_diverged(report, 0, "observation")
        assert "auto_seed=True" in "".join(report.notes)


class TestEnds:
    def test_a_refused_step_ends_the_comparison(self, tmp_path: Path) -> None:
        class Wide(CountingEnv):
            def _observe(self) -> Any:
                return super()._observe() if self.steps != 4 else np.zeros(3, np.float32)

        with Recorder(Wide(9), tmp_path, fsync=False, verbose=False) as env:
            env.reset(seed=0)
            for _ in range(8):
                try:
                    env.step(0)
                except RowError:
                    continue
        (episode,) = Recording(tmp_path)
        assert list(episode.refused) == [4] and len(episode) == 7
        report = replay(episode, CountingEnv(9))
        assert (report.verdict, report.compared, report.steps) == ("exact", 3, 7)
        assert "step 4 was refused" in str(report) and "3 of 7 steps" in str(report)

    def test_an_episode_that_was_cut_by_a_reset(self, tmp_path: Path) -> None:
        recording = record(CountingEnv(9), tmp_path, [0, 1], steps=4)
        assert [replay(episode, CountingEnv(9)).verdict for episode in recording] == ["exact", "exact"]


class TestEnvironments:
    def test_a_wrapper_that_cannot_be_rebuilt_is_named_and_can_be_left_out(self, tmp_path: Path) -> None:
        bare = gym.make("CartPole-v1")
        (episode,) = record(TransformObservation(bare, lambda o: o, bare.observation_space), tmp_path, [0])
        with pytest.raises(SpaceError, match=r"TransformObservation.*skip_unrebuildable=True"):
            replay(episode)
        report = replay(episode, skip_unrebuildable=True)
        assert report.verdict == "exact"
        assert "left out: wrapper TransformObservation: func" in report.differences
        recording = Recording(tmp_path)
        with pytest.raises(SpaceError, match="TransformObservation"):
            recording.make_env()
        env = recording.make_env(skip_unrebuildable=True)
        assert env.reset(seed=0)[0].shape == (4,)
        env.close()

    def test_one_that_is_not_in_the_registry_is_made_by_a_function_or_its_name(self, tmp_path: Path) -> None:
        (episode,) = record(CountingEnv(), tmp_path, [0])
        with pytest.raises(FormatError, match="make_env"):
            replay(episode)
        assert replay(episode, make_env=CountingEnv).verdict == "exact"
        assert replay(episode, make_env="environments:CountingEnv").verdict == "exact"
        assert isinstance(Recording(tmp_path).make_env("environments:CountingEnv", length=4), CountingEnv)
        with pytest.raises(RecorderError, match=r"no function 'CountEnv', did you mean 'CountingEnv'"):
            replay(episode, make_env="environments:CountEnv")

    def test_an_entry_point_that_is_no_environment_is_not_called(self, tmp_path: Path) -> None:
        (episode,) = record(gym.make("CartPole-v1"), tmp_path, [0])
        spec = {**(episode.environment or {}), "id": "Other-v0", "entry_point": "os:getcwd", "kwargs": {}}
        assert episode._manifest is not None
        episode._manifest.environment = spec
        with pytest.raises(FormatError, match=r"'os:getcwd'.*not called"):
            replay(episode)
        spec["entry_point"] = "no_such_module:Env"
        with pytest.raises(RecorderError, match="no_such_module"):
            replay(episode)

    @pytest.mark.filterwarnings("ignore:.*out of date:DeprecationWarning")
    def test_another_environment_is_named(self, tmp_path: Path) -> None:
        (episode,) = record(gym.make("CartPole-v1", max_episode_steps=7), tmp_path, [0])
        report = replay(episode, gym.make("CartPole-v0"))
        assert report.differences == (
            "the environment was CartPole-v1, is CartPole-v0 here",
            "its limit of steps was 7, is 200 here",
        )

    def test_versions_that_differ_are_listed(self, tmp_path: Path) -> None:
        (episode,) = record(gym.make("CartPole-v1"), tmp_path, [0])
        assert {"python", "numpy", "gymnasium"} <= episode.versions.keys()
        assert episode._manifest is not None
        episode._manifest.versions |= {"numpy": "0.9", "no_such_simulator": "1.0", "h5py": "1.0"}
        report = replay(episode)
        assert report.verdict == "exact"
        assert report.differences == (
            f"numpy was 0.9, is {np.__version__} here",
            "no_such_simulator was 1.0, is not installed here",
        )


class TestModes:
    def test_a_recording_without_states_says_how_to_get_them(self, tmp_path: Path) -> None:
        (episode,) = record(gym.make("CartPole-v1"), tmp_path, [0])
        for mode in ("states", "first-state"):
            with pytest.raises(EpisodeError, match="record_state=True"):
                replay(episode, mode=mode)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="none of"):
            replay(episode, mode="other")  # type: ignore[arg-type]
        for tolerance in (-1, math.inf, math.nan):
            with pytest.raises(ValueError, match="no finite number"):
                replay(episode, tolerance=tolerance)

    def test_rows_that_are_no_steps_have_nothing_to_replay(self, tmp_path: Path) -> None:
        with RecordingWriter(tmp_path, spaces.Box(0, 1, (2,))) as writer:
            writer.begin()
            writer.append(np.zeros(2, np.float32))
            writer.commit()
        with pytest.raises(EpisodeError, match="no series of steps"):
            replay(Recording(tmp_path)[0], CountingEnv())


@pytest.mark.parametrize(
    ("one", "other", "error"),
    [
        (np.float32([1, np.nan]), np.float32([1, np.nan]), 0),
        (np.float32([np.inf]), np.float32([np.inf]), 0),
        (np.float32([np.inf]), np.float32([-np.inf]), math.inf),
        (np.float32([np.nan]), np.float32([0]), math.inf),
        (np.uint8([0, 9]), np.uint8([255, 9]), 255),
        (np.array([True]), np.array([False]), math.inf),
        (np.zeros(2), np.zeros(3), math.inf),
        (np.complex64([1j]), np.complex64([2j]), 1),
        ("a", "a", 0),
        ("a", "b", math.inf),
        (np.zeros((0, 2)), np.zeros((0, 2)), 0),
    ],
)
def test_the_difference_of_two_rows(one: Any, other: Any, error: float) -> None:
    assert largest_difference(one, other) == error


def test_integers_that_differ_by_less_than_a_float_can_say_differ() -> None:
    assert largest_difference(np.int64([2**60]), np.int64([2**60 + 1])) > 0


def test_what_is_no_episode_or_no_environment_is_told_so(tmp_path: Path) -> None:
    recording = record(gym.make("CartPole-v1"), tmp_path, [1], steps=3)
    with pytest.raises(EpisodeError, match="replay_all"):
        replay(recording)  # type: ignore[arg-type]
    with pytest.raises(EpisodeError, match="make_env="):
        replay(recording[0], env=gym.make)  # type: ignore[arg-type]
