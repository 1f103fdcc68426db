"""What users do to a Recorder and around it: threads, forks, vectors, closing in any order, other folders."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import subprocess
import sys
import textwrap
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from cameras import camera_env, camera_rows, check_camera_rows
from environments import CountingEnv, ScriptEnv, roll
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from recorder import (
    ClosedError,
    DictStorage,
    EpisodeError,
    HDF5Storage,
    LayoutError,
    Recorder,
    Recording,
    RowError,
    SpaceError,
    VideoStorage,
    WriteError,
    ZarrStorage,
    layout,
)
from recorder.files import files_below
from recorder.storages.base import Writer, register_storage


def quiet(env: gym.Env[Any, Any], path: Path | str, **options: Any) -> Recorder[Any, Any]:
    return Recorder(env, path, **{"verbose": False, **options})


def counted(path: Path) -> list[list[float]]:
    return [episode.observations[:, 0].tolist() for episode in Recording(path)]


def in_threads(count: int, work: Callable[[], object]) -> None:
    """Do work in many threads that begin at once; raise what one of them raised."""
    barrier = threading.Barrier(count)

    def run(_: int) -> None:
        barrier.wait()
        work()

    with ThreadPoolExecutor(count) as pool:
        list(pool.map(run, range(count)))


class TestThreads:
    def test_many_threads_record_into_one_folder(self, tmp_path: Path) -> None:
        def record() -> None:
            with quiet(CountingEnv(3), tmp_path / "run") as env:
                roll(env, 10)

        in_threads(6, record)
        assert counted(tmp_path / "run") == [[0, 1, 2, 3]] * 60

    def test_many_threads_fill_one_trash_beyond_its_quota(self, tmp_path: Path) -> None:
        def record() -> None:
            with quiet(CountingEnv(3), tmp_path / "run", trash=20_000, flush_every=0) as env:
                for _ in range(10):
                    roll(env)
                    env.discard()

        in_threads(4, record)
        assert len(Recording(tmp_path / "run")) == 0

    def test_many_threads_read_one_recording(self, tmp_path: Path) -> None:
        with quiet(CountingEnv(3, "rgb_array"), tmp_path, record_render=True, flush_every=0) as env:
            roll(env, 40)
        found = Recording(tmp_path)  # of more shards than readers are open

        def read() -> None:
            for k in np.random.default_rng(threading.get_ident()).integers(40, size=60).tolist():
                assert found[k].observations[:, 0].tolist() == [0, 1, 2, 3]
                assert found[k].renders[:, 1, 0, 0].tolist() == [0, 1, 0, 0]

        in_threads(4, read)

    def test_a_recorder_may_step_in_another_thread_than_it_was_made_in(self, tmp_path: Path) -> None:
        with quiet(CountingEnv(3), tmp_path) as env:
            in_threads(1, lambda: roll(env, 3))
            roll(env)
        assert counted(tmp_path) == [[0, 1, 2, 3]] * 4


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
class TestForks:
    @pytest.mark.parametrize("flush_every", [10.0, 0.0])
    def test_a_child_cannot_step_its_parents_episode_and_records_its_own(
        self, tmp_path: Path, flush_every: float
    ) -> None:
        with quiet(CountingEnv(9), tmp_path, flush_every=flush_every) as env:
            env.reset(seed=0)
            for _ in range(4):
                env.step(0)
            child = in_child(partial(self._record_anew, env))
            for _ in range(5):
                env.step(3)
            assert child() == 0
        assert sorted(episode.actions.tolist() for episode in Recording(tmp_path)) == [[0] * 4 + [3] * 5, [2] * 9]
        assert len({episode.id.split("-")[0] for episode in Recording(tmp_path)}) == 2

    @pytest.mark.parametrize("steps", [0, 2])
    def test_a_child_that_only_ends_takes_nothing_from_its_parent(self, tmp_path: Path, steps: int) -> None:
        rows = camera_rows(8)
        env = quiet(camera_env(rows), tmp_path)
        env.reset()
        for _ in range(steps):
            env.step(0)
        assert in_child(env.close)() == 0
        for _ in range(7 - steps):
            env.step(0)
        env.close()
        check_camera_rows(Recording(tmp_path)[0], rows)

    def test_a_child_before_the_first_step_of_an_episode_is_not_its_parent(self, tmp_path: Path) -> None:
        with quiet(CountingEnv(9), tmp_path) as env:
            env.reset(seed=0)
            child = in_child(partial(self._record_anew, env))
            for _ in range(9):
                env.step(3)
            assert child() == 0
        assert sorted(episode.actions.tolist() for episode in Recording(tmp_path)) == [[2] * 9, [3] * 9]

    @staticmethod
    def _record_anew(env: Recorder[Any, Any]) -> None:
        with pytest.raises(ClosedError, match="starts its own at `reset`"):
            env.step(1)
        env.reset()
        for _ in range(9):
            env.step(2)
        env.close()

    def test_an_open_episode_is_read_in_children_and_parent_at_once(self, tmp_path: Path) -> None:
        rows = camera_rows(12)
        with quiet(camera_env(rows), tmp_path) as env:
            roll(env)
        (episode,) = Recording(tmp_path)
        check_camera_rows(episode, rows)
        children = [in_child(partial(check_camera_rows, episode, rows)) for _ in range(3)]
        check_camera_rows(episode, rows)
        assert [child() for child in children] == [0, 0, 0]


def in_child(work: Callable[[], object]) -> Callable[[], int]:
    """Start work in a forked child; return what waits for it and returns 0 if nothing was raised."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            if status:
                traceback.print_exc()
            os._exit(status)
    return lambda: os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def record_and_leave_open(path: Path) -> None:
    global left_open
    left_open = quiet(CountingEnv(3), path)
    roll(left_open, 5)


def sum_of_frames(episode: Any) -> int:
    return int(sum(episode.observations[name].sum() for name in ("front", "wrist", "depth")))


class TestProcesses:
    @pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
    def test_what_a_process_left_open_is_committed_at_its_end(self, tmp_path: Path, method: str) -> None:
        process = multiprocessing.get_context(method).Process(target=record_and_leave_open, args=(tmp_path,))
        process.start()
        process.join()
        assert process.exitcode == 0
        assert counted(tmp_path) == [[0, 1, 2, 3]] * 5
        assert not any((tmp_path / "staging").iterdir())

    def test_cameras_left_open_are_committed_at_the_end_of_the_interpreter(self, tmp_path: Path) -> None:
        text = """
            import sys
            sys.path.insert(0, sys.argv[2])
            from cameras import camera_env, camera_rows
            from environments import roll
            from recorder import Recorder
            seen = lambda episode: episode.observations["wrist"].any() and episode.observations["front"].any()
            env = Recorder(camera_env(camera_rows(30)), sys.argv[1], keep_if=seen)
            roll(env, 2)
            env.reset()
            for _ in range(20):
                env.step(0)
            """
        arguments = [textwrap.dedent(text), str(tmp_path), str(Path(__file__).parent)]
        done = subprocess.run([sys.executable, "-c", *arguments], capture_output=True, text=True, timeout=100)
        assert (done.returncode, done.stderr) == (0, "")
        found = Recording(tmp_path)
        assert [(len(episode), episode.end) for episode in found] == [(29, "terminated")] * 2 + [(20, "exit")]
        check_camera_rows(found[1], camera_rows(30))
        check_camera_rows(found[2], camera_rows(30)[:21])

    @pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
    def test_workers_are_given_episodes(self, tmp_path: Path, method: str) -> None:
        with quiet(camera_env(camera_rows(6)), tmp_path) as env:
            roll(env, 3)
        found = Recording(tmp_path)
        expected = [sum_of_frames(episode) for episode in found]
        with multiprocessing.get_context(method).Pool(1) as pool:
            assert pool.map(sum_of_frames, found) == expected
            assert pool.apply(list, (found,))[2].id == found[2].id

    def test_an_episode_that_is_not_on_disk_yet_is_not_pickled(self, tmp_path: Path) -> None:
        errors = []

        def keep(episode: Any) -> bool:
            with pytest.raises(EpisodeError, match="not on disk yet") as error:
                pickle.dumps(episode)
            errors.append(error)
            return True

        with quiet(CountingEnv(3), tmp_path, keep_if=keep) as env:
            roll(env)
        assert len(errors) == 1


def counting(path: Path) -> Recorder[Any, Any]:
    return quiet(CountingEnv(3), path)


class TestVectors:
    @pytest.mark.parametrize("mode", ["sync", "async"])
    def test_make_vec_takes_a_recorder_as_a_wrapper(self, tmp_path: Path, mode: str) -> None:
        wrapper = partial(Recorder, path=tmp_path / "run", verbose=False)
        envs = gym.make_vec("CartPole-v1", num_envs=2, vectorization_mode=mode, wrappers=[wrapper])
        observations = [envs.reset(seed=1)[0]]
        envs.action_space.seed(0)
        observations += [envs.step(envs.action_space.sample())[0] for _ in range(50)]
        envs.close()
        found = {episode.seed: episode for episode in Recording(tmp_path / "run")}
        for i, seed in enumerate((1, 2)):
            rows = found[seed].observations
            np.testing.assert_array_equal(rows, [row[i] for row in observations][: len(rows)])

    @pytest.mark.parametrize("autoreset", AutoresetMode)
    @pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
    def test_no_episode_is_lost_below_a_vector_environment(
        self, tmp_path: Path, kind: type[Any], autoreset: AutoresetMode
    ) -> None:
        envs = kind([partial(counting, tmp_path)] * 2, autoreset_mode=autoreset)
        envs.reset(seed=1)
        for _ in range(12):
            terminated = envs.step(np.zeros(2, np.int64))[2]
            if autoreset is AutoresetMode.DISABLED and terminated.any():
                envs.reset(options={"reset_mask": terminated})
        envs.close()
        lengths = sorted(map(len, counted(tmp_path)))
        assert lengths == [4] * (6 if autoreset is AutoresetMode.NEXT_STEP else 8)


class TestWrappers:
    def test_one_recorder_records_another(self, tmp_path: Path) -> None:
        with quiet(quiet(CountingEnv(3), tmp_path / "in"), tmp_path / "out") as env:
            roll(env, 2)
        assert counted(tmp_path / "in") == counted(tmp_path / "out") == [[0, 1, 2, 3]] * 2

    def test_what_is_recorded_lies_between_the_wrappers_below_and_above(self, tmp_path: Path) -> None:
        below = gym.wrappers.FlattenObservation(gym.make("CartPole-v1"))
        env = quiet(gym.wrappers.TransformReward(below, lambda reward: 2 * reward), tmp_path)
        with gym.wrappers.FrameStackObservation(gym.wrappers.ClipReward(env, 0, 1), 3) as outer:
            rewards = roll(outer, seed=1)[0]["rewards"]
        (episode,) = Recording(tmp_path)
        assert set(rewards) == {1.0} and set(episode.rewards.tolist()) == {2.0}
        assert episode.observations.shape == (len(rewards) + 1, 4)

    def test_a_registered_environment_may_bring_its_recorder(self, tmp_path: Path) -> None:
        spec = Recorder.wrapper_spec(path=str(tmp_path), verbose=False)
        gym.register("Tests/Counting-v0", "environments:CountingEnv", additional_wrappers=(spec,))
        try:
            with gym.make("Tests/Counting-v0") as env:
                roll(env, 2)
        finally:
            del gym.registry["Tests/Counting-v0"]
        assert len(Recording(tmp_path)) == 2

    def test_two_recorders_take_turns_in_one_folder(self, tmp_path: Path) -> None:
        with quiet(CountingEnv(2), tmp_path) as one, quiet(CountingEnv(3), tmp_path) as two:
            for _ in range(3):
                roll(one)
                roll(two)
        assert sorted(map(len, counted(tmp_path))) == [3, 3, 3, 4, 4, 4]


class TestClosing:
    def test_the_environment_may_be_closed_first_and_the_recorder_twice(self, tmp_path: Path) -> None:
        inner = gym.make("CartPole-v1")
        env = quiet(inner, tmp_path)
        env.reset()
        env.step(0)
        inner.close()
        env.close()
        env.close()
        assert len(Recording(tmp_path)[0]) == 1

    def test_an_environment_that_cannot_close_loses_nothing(self, tmp_path: Path) -> None:
        class Stuck(CountingEnv):
            def close(self) -> None:
                raise RuntimeError("no display")

        env = quiet(Stuck(3), tmp_path)
        roll(env)
        with pytest.raises(RuntimeError, match="no display"):
            env.close()
        assert counted(tmp_path) == [[0, 1, 2, 3]]

    def test_a_closed_recorder_records_no_more_and_says_so(self, tmp_path: Path) -> None:
        env = quiet(CountingEnv(3), tmp_path)
        roll(env)
        env.close()
        with pytest.raises(ClosedError):
            env.reset()
        with pytest.warns(UserWarning, match="not recorded"):
            env.step(0)
        with pytest.raises(EpisodeError):
            env.label(late=True)

    def test_the_working_directory_may_change(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path)
        env = quiet(CountingEnv(3), "run")
        monkeypatch.chdir("elsewhere")
        roll(env)
        env.close()
        monkeypatch.chdir(tmp_path)
        found = Recording("run")
        monkeypatch.chdir("elsewhere")
        assert found[0].observations[:, 0].tolist() == [0, 1, 2, 3]

    def test_a_judge_that_fails_discards_nothing_and_is_heard_of(self, tmp_path: Path) -> None:
        env = quiet(CountingEnv(3), tmp_path, keep_if=lambda episode: episode.infos["success"].any())
        roll(env)
        with pytest.raises(WriteError, match="KeyError: 'success'"):
            env.close()
        assert counted(tmp_path) == [[0, 1, 2, 3]]

    def test_a_reset_that_fails_costs_no_episode(self, tmp_path: Path) -> None:
        class Failing(CountingEnv):
            def reset(self, **options: Any) -> Any:
                if options["options"]:
                    raise RuntimeError("simulator")
                return super().reset(**options)

        with quiet(Failing(3), tmp_path) as env:
            roll(env)
            with pytest.raises(RuntimeError, match="simulator"):
                env.reset(options={"fail": True})
            roll(env)
        assert counted(tmp_path) == [[0, 1, 2, 3]] * 2


class BrokenCamera(CountingEnv):
    """Raises where it renders at some steps."""

    broken: tuple[int, ...] = ()

    def render(self) -> Any:
        if self.steps in self.broken:
            raise RuntimeError("no context")
        return super().render()


class TestRendering:
    def test_a_frame_that_cannot_be_rendered_is_a_hole_that_is_listed(self, tmp_path: Path) -> None:
        inner = BrokenCamera(6, "rgb_array")
        inner.broken = (3,)
        with quiet(inner, tmp_path, record_render=True) as env:
            env.reset()
            for step in range(1, 7):
                if step == 3:
                    with pytest.raises(RuntimeError, match="no context"):
                        env.step(step % 4)
                else:
                    env.step(step % 4)
        (episode,) = Recording(tmp_path)
        assert episode.refused == [3]
        assert episode.observations[:, 0].tolist() == [0, 1, 2, 4, 5, 6]
        assert episode.actions.tolist() == [1, 2, 0, 1, 2]
        assert [frame.max() for frame in episode.renders] == [0, 1, 2, 4, 5, 6]

    def test_a_first_frame_that_cannot_be_rendered_is_raised_by_reset(self, tmp_path: Path) -> None:
        inner = BrokenCamera(3, "rgb_array")
        inner.broken = (0,)
        with quiet(inner, tmp_path, record_render=True) as env:
            with pytest.raises(RuntimeError, match="no context"):
                env.reset()
            inner.broken = ()
            roll(env)
        assert counted(tmp_path) == [[0, 1, 2, 3]]

    def test_a_frame_that_is_none_is_refused_by_name(self, tmp_path: Path) -> None:
        class Blind(CountingEnv):
            def render(self) -> Any:
                return None

        env = quiet(Blind(3, "rgb_array"), tmp_path / "run", record_render=True)
        with pytest.raises(RowError, match="'render'"):
            env.reset()
        env.close()
        with pytest.raises(EpisodeError, match="render_mode='rgb_array', this one has None"):
            quiet(CountingEnv(3), tmp_path, record_render=True)


class TestCameras:
    def test_every_storage_keeps_what_came_between_flushes(self, tmp_path: Path) -> None:
        rows = camera_rows(24)
        with quiet(camera_env(rows), tmp_path) as env:
            for k in range(2):
                env.reset()
                for t in range(23):
                    env.step(0)
                    if t % 6 == 2:
                        env.flush()
                        assert len(Recording(tmp_path)) == k
        for episode in Recording(tmp_path):
            check_camera_rows(episode, rows)
        assert not any((tmp_path / "staging").iterdir())

    def test_a_camera_is_appended_to_as_it_was_begun(self, tmp_path: Path) -> None:
        rows = camera_rows(6)
        black = {**rows[0], "front": np.zeros((130, 131, 3), np.uint8)}
        for first in (rows[0], black):
            with quiet(camera_env([first, *rows[1:]]), tmp_path) as env:
                roll(env, 2)
        found = Recording(tmp_path)
        assert len(found) == 4 and isinstance(found.schema.storage.storages["observation/front"], VideoStorage)
        check_camera_rows(found[1], rows)
        check_camera_rows(found[3], [black, *rows[1:]])

    def test_a_layout_is_appended_to_that_a_first_frame_has_changed(self, tmp_path: Path) -> None:
        rows = camera_rows(4)
        black = {**rows[0], "front": np.zeros((130, 131, 3), np.uint8)}
        for first in (black, rows[0], black):
            inner = camera_env([first, *rows[1:]])
            with quiet(inner, tmp_path, storage=layout(inner)) as env:
                roll(env)
        found = Recording(tmp_path)
        assert found.schema.storage.storages["observation/front"] == ZarrStorage()
        for episode, first in zip(found, (black, rows[0], black), strict=True):
            np.testing.assert_array_equal(episode.observations["front"][0], first["front"])

    def test_writers_whose_first_frames_differ_agree_on_one_storage(self, tmp_path: Path) -> None:
        rows = camera_rows(4)
        black = {**rows[0], "front": np.zeros((130, 131, 3), np.uint8)}
        envs = [quiet(camera_env([first, *rows[1:]]), tmp_path) for first in (black, rows[0])]
        for env in envs:  # both have found an empty folder
            roll(env)
        for env in envs:
            env.close()
        assert len(Recording(tmp_path)) == 2
        assert all(len(episode.observations["front"]) == 4 for episode in Recording(tmp_path))

    def test_nothing_of_a_discarded_episode_stays_in_any_storage(self, tmp_path: Path) -> None:
        rows = camera_rows(10)
        with quiet(camera_env(rows), tmp_path / "run", trash=0) as env:
            env.reset()
            for _ in range(8):
                env.step(0)
            env.flush()
            assert list(tmp_path.rglob("*.mp4"))
            env.discard()
            env.flush()
            left = {path.name for path in files_below(tmp_path)}
            assert left <= {"recording.json", "lock", "writer.json", "origin.json", "running.json"}
            roll(env)
        (episode,) = Recording(tmp_path / "run")
        check_camera_rows(episode, rows)
        assert len(list(tmp_path.rglob("*.mp4"))) == 1

    def test_a_judge_sees_cameras_before_they_are_packed(self, tmp_path: Path) -> None:
        rows = camera_rows(10)
        judged = []

        def keep(episode: Any) -> bool:
            check_camera_rows(episode, rows)
            assert [step.number for step in episode] == list(range(1, 10))
            judged.append(episode.id)
            return len(judged) != 2

        with quiet(camera_env(rows), tmp_path, keep_if=keep) as env:
            roll(env, 3)
        assert [episode.id for episode in Recording(tmp_path)] == [judged[0], judged[2]]

    def test_episodes_of_one_step_have_two_frames_of_each_camera(self, tmp_path: Path) -> None:
        sizes = {"a": (130, 131, 3), "b": (200, 160, 3), "grey": (141, 129, 1), "flat": (33, 47)}
        space = spaces.Dict({name: spaces.Box(0, 255, size, np.uint8) for name, size in sizes.items()})
        space.seed(0)
        rows = [space.sample(), space.sample()]
        named = {f"observation/{name}": VideoStorage(codec="ffv1") for name in ("grey", "flat")}
        inner = ScriptEnv(space, rows)
        with quiet(inner, tmp_path, storage=layout(inner, keys=named)) as env:
            roll(env, 3)
        for episode in Recording(tmp_path):
            for name, size in sizes.items():
                frames = episode.observations[name]
                assert (frames.shape, frames.dtype) == ((2, *size), np.uint8)
                if name in ("grey", "flat"):
                    np.testing.assert_array_equal(frames, [row[name] for row in rows])

    def test_infos_are_kept_where_one_storage_that_is_no_table_was_named_for_all(self, tmp_path: Path) -> None:
        infos = [{"k": k} for k in range(4)]
        inner = ScriptEnv(spaces.Box(0, 9, (2,)), list(np.float32([[0, 1]] * 4)), infos)
        with quiet(inner, tmp_path / "run", storage=ZarrStorage()) as env:
            roll(env)
        found = Recording(tmp_path / "run")
        assert found[0].infos["k"].tolist() == [0, 1, 2, 3]
        assert found.schema.storage.storages["observation"] == ZarrStorage()
        with pytest.raises(LayoutError, match="the default keeps every key of info too"):
            quiet(inner, tmp_path / "other", storage=DictStorage({}, ZarrStorage()))


@register_storage
class SlowStorage(ZarrStorage):
    """Takes 1 ms a row."""

    id = "slow"

    def writer(self, directory: Path, leaves: Any) -> Writer:
        writer = super().writer(directory, leaves)
        append = writer.append

        def slowly(rows: Any, runs: Any) -> None:
            time.sleep(0.001 * sum(run.stop - run.start for run in runs))
            append(rows, runs)

        writer.append = slowly  # type: ignore[method-assign]
        return writer


def test_the_loop_waits_for_an_encoder_that_is_slower_and_no_frame_is_lost(tmp_path: Path) -> None:
    class Fast(CountingEnv):
        def __init__(self) -> None:
            super().__init__(999)
            self.observation_space = spaces.Box(0, 255, (240, 320, 3), np.uint8)  # type: ignore[assignment]

        def _observe(self) -> Any:
            return np.full((240, 320, 3), self.steps % 251, np.uint8)

    storage = DictStorage({"observation": SlowStorage(codec="zstd", level=1)}, HDF5Storage())
    with quiet(Fast(), tmp_path, storage=storage) as env:
        env.reset()
        for _ in range(999):
            env.step(0)
    (episode,) = Recording(tmp_path)
    assert episode.columns["observation"][:, 0, 0, 0].tolist() == [t % 251 for t in range(1000)]


class TestInfos:
    def test_an_info_that_holds_itself_is_kept_up_to_there(self, tmp_path: Path) -> None:
        info: dict[str, Any] = {"a": 1, "list": [2]}
        info["self"] = info
        info["list"].append(info["list"])
        with quiet(ScriptEnv(spaces.Discrete(3), [0, 1, 2], [{}, info, {"deep": nested(1000)}]), tmp_path) as env:
            roll(env)
            env.flush()
            assert "info/self" in env.unkept
        assert Recording(tmp_path)[0].infos["a"].tolist() == [None, 1, None]

    def test_infos_larger_than_what_may_wait_pass_one_by_one(self, tmp_path: Path) -> None:
        infos = [{"large": np.full(40 << 20, k, np.uint8)} for k in range(4)]
        with quiet(ScriptEnv(spaces.Discrete(4), list(range(4)), infos), tmp_path) as env:
            roll(env)
        column = Recording(tmp_path)[0].columns["info/large"]
        assert [int(column[k].sum()) for k in range(4)] == [k * (40 << 20) for k in range(4)]


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"x": value}
    return value


class TestGenerators:
    @pytest.mark.parametrize("kind", [np.random.MT19937, np.random.Philox, np.random.SFC64, np.random.PCG64DXSM])
    def test_the_state_of_any_generator_begins_the_episode_again(self, tmp_path: Path, kind: type[Any]) -> None:
        class Other(CountingEnv):
            def __init__(self) -> None:
                super().__init__(2)
                self._np_random = np.random.Generator(kind(5))

        with quiet(Other(), tmp_path) as env:
            rows = roll(env, 3)
        generator = Recording(tmp_path)[2].generator
        assert generator is not None and generator["bit_generator"] == kind.__name__
        again = Other()
        again.np_random.bit_generator.state = generator
        np.testing.assert_array_equal(again.reset()[0], rows[2]["observations"][0])

    def test_a_generator_of_another_make_is_no_error(self, tmp_path: Path) -> None:
        class Legacy(CountingEnv):
            def __init__(self) -> None:
                super().__init__(2)
                self._np_random = np.random.RandomState(3)  # type: ignore[assignment]

            def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
                self.steps, self.offset = 0, float(self._np_random.random_sample())  # type: ignore[union-attr]
                return self._observe(), {}

        with quiet(Legacy(), tmp_path) as env:
            roll(env, 2)
        assert [(episode.seed, episode.generator) for episode in Recording(tmp_path)] == [(None, None)] * 2


class TestExcluding:
    @pytest.mark.parametrize("glob", ["observation/depht", "obervation", "observation/z*", "acton"])
    def test_a_glob_that_means_no_leaf_is_refused_with_the_nearest(self, tmp_path: Path, glob: str) -> None:
        with pytest.raises(LayoutError, match=f"no leaf '{glob[:4]}.* to exclude"):
            quiet(camera_env(camera_rows(2)), tmp_path, exclude=[glob])

    @pytest.mark.parametrize("glob", ["observation", "action", "reward"])
    def test_what_an_episode_needs_cannot_be_excluded(self, tmp_path: Path, glob: str) -> None:
        with pytest.raises(SpaceError, match="cannot be excluded"):
            quiet(CountingEnv(3), tmp_path, exclude=[glob])

    def test_elements_of_a_tuple_cannot_be_excluded(self, tmp_path: Path) -> None:
        with pytest.raises(SpaceError, match="only items of a Dict can"):
            quiet(gym.make("Blackjack-v1"), tmp_path, exclude=["observation/0"])


def test_a_folder_is_not_strange_for_what_another_writer_has_in_it_for_a_moment(tmp_path: Path) -> None:
    (tmp_path / ".recorder-x1").mkdir()
    (tmp_path / ".recording.json.0a1b").touch()
    with quiet(CountingEnv(3), tmp_path) as env:
        roll(env)
    assert len(Recording(tmp_path)) == 1


def test_large_columns_of_an_episode_read_on_after_its_files_were_given_up(tmp_path: Path) -> None:
    rows = list(np.random.default_rng(0).random((11, 700, 800), np.float32))
    with quiet(ScriptEnv(spaces.Box(-1, 1, (700, 800)), rows), tmp_path, storage=HDF5Storage()) as env:
        roll(env)
    found = Recording(tmp_path)
    column = found[0].columns["observation"]
    np.testing.assert_array_equal(column[3], rows[3])
    found.close()
    np.testing.assert_array_equal(column[4], rows[4])
    np.testing.assert_array_equal(found[0].observations[5], rows[5])
