"""What a Recorder makes of the ends of episodes, of rows that do not fit, and of what users do around it."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from environments import CountingEnv, ScriptEnv, roll
from gymnasium import spaces
from gymnasium.wrappers import Autoreset, TimeLimit

from recorder import Recorder, Recording
from recorder.writing.recovery import recover


def quiet(env: gym.Env[Any, Any], path: Path, **options: Any) -> Recorder[Any, Any]:
    return Recorder(env, path, **{"verbose": False, **options})


def ends(path: Path) -> list[tuple[int, str]]:
    return [(len(episode), episode.end) for episode in Recording(path)]


def run_python(text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    folder = Path(__file__).parent
    code = f"import sys; sys.path.insert(0, {str(folder)!r})\n" + textwrap.dedent(text)
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60)


class TestEndsAndBoundaries:
    def test_an_episode_keeps_every_observation_and_one_row_less_of_the_rest(self, tmp_path: Path) -> None:
        with quiet(CountingEnv(5), tmp_path) as env:
            (rows,) = roll(env, seed=3)
        (episode,) = Recording(tmp_path)
        np.testing.assert_array_equal(episode.observations, rows["observations"])
        np.testing.assert_array_equal(episode.actions, rows["actions"])
        assert episode.rewards.tolist() == [1.0] * 5
        assert episode.terminations.tolist() == [False] * 4 + [True]
        assert not episode.truncations.any()
        assert len(episode.times) == 6 and (np.diff(episode.times) >= 0).all() and episode.times[0] == 0
        assert (episode.seed, episode.end, episode.return_) == (3, "terminated", 5.0)

    def test_an_exception_of_the_environment_ends_the_episode_where_it_was(self, tmp_path: Path) -> None:
        done = run_python(
            """
            from environments import CountingEnv, roll
            from recorder import Recorder
            class Breaking(CountingEnv):
                def step(self, action):
                    if self.fragile and self.steps == 6:
                        raise RuntimeError("simulator")
                    return super().step(action)
            inner = Breaking(9)
            env = Recorder(inner, sys.argv[1])
            inner.fragile = False
            roll(env, 3)
            inner.fragile = True
            roll(env)
            """,
            str(tmp_path),
        )
        assert "RuntimeError: simulator" in done.stderr
        assert ends(tmp_path) == [(9, "terminated")] * 3 + [(6, "exception")]

    def test_twenty_resets_without_an_end_are_twenty_episodes(self, tmp_path: Path) -> None:
        with quiet(CountingEnv(None), tmp_path) as env:
            for _ in range(20):
                env.reset()
                for _ in range(57):
                    env.step(0)
        assert ends(tmp_path) == [(57, "reset")] * 19 + [(57, "closed")]

    def test_a_reset_without_steps_is_no_episode(self, tmp_path: Path) -> None:
        with quiet(CountingEnv(3), tmp_path) as env:
            env.reset()
            env.reset()
            env.step(0)
        assert ends(tmp_path) == [(1, "closed")]

    def test_a_reset_alone_leaves_nothing(self, tmp_path: Path) -> None:
        with quiet(CountingEnv(3), tmp_path / "run") as env:
            env.reset()
        assert list(tmp_path.iterdir()) == []

    def test_an_empty_episode_between_others_is_not_kept(self, tmp_path: Path) -> None:
        with quiet(CountingEnv(3), tmp_path) as env:
            roll(env)
            env.reset()
            env.reset()
            roll(env)
        assert ends(tmp_path) == [(3, "terminated")] * 2

    def test_steps_after_the_end_are_ignored_and_said_once(self, tmp_path: Path) -> None:
        env = quiet(CountingEnv(3), tmp_path)
        env.reset()
        for _ in range(3):
            env.step(0)
        with pytest.warns(UserWarning, match="not recorded") as warned:
            _ = [env.step(0) for _ in range(3)]
        env.close()
        assert len(warned) == 1
        assert ends(tmp_path) == [(3, "terminated")]

    @pytest.mark.parametrize("above", [True, False])
    def test_no_episode_is_lost_under_or_over_autoreset(self, tmp_path: Path, above: bool) -> None:
        inner = CountingEnv(3)
        env: gym.Env[Any, Any] = quiet(Autoreset(inner), tmp_path) if above else Autoreset(quiet(inner, tmp_path))
        env.reset(seed=0)
        for _ in range(200):
            env.step(1)
        env.close()
        found = Recording(tmp_path)
        assert [len(episode) for episode in found] == [3] * 50
        for episode in found:
            assert episode.observations[:, 0].tolist() == [0, 1, 2, 3]

    def test_an_episode_of_one_step_has_two_observations_and_one_action(self, tmp_path: Path) -> None:
        with quiet(CountingEnv(1), tmp_path) as env:
            roll(env)
        (episode,) = Recording(tmp_path)
        assert (episode.observations.shape, episode.actions.shape) == ((2, 2), (1,))

    def test_a_time_limit_truncates_and_does_not_terminate(self, tmp_path: Path) -> None:
        with quiet(TimeLimit(CountingEnv(None), 40), tmp_path) as env:
            roll(env)
        (episode,) = Recording(tmp_path)
        assert (len(episode), episode.end) == (40, "truncated")
        assert episode.truncations.tolist() == [False] * 39 + [True]
        assert not episode.terminations.any()

    def test_nothing_of_a_discarded_episode_is_in_the_data(self, tmp_path: Path) -> None:
        with quiet(CountingEnv(None, "rgb_array"), tmp_path, record_render=True, trash=0) as env:
            env.reset()
            for _ in range(50):
                env.step(0)
            env.discard()
            env.reset()
            for _ in range(30):
                env.step(0)
        (episode,) = Recording(tmp_path)
        assert len(episode) == 30
        assert len(episode.renders) == 31
        assert sum(len(shard.episodes) for shard in Recording(tmp_path).shards) == 1
        assert not (tmp_path / "discarded").exists()

    def test_discarded_episodes_go_to_the_trash_with_a_reason(self, tmp_path: Path) -> None:
        with quiet(CountingEnv(3), tmp_path) as env:
            roll(env)
            env.discard("dropped the cup")
            roll(env)
        assert len(Recording(tmp_path)) == 1
        (trashed,) = (tmp_path / "discarded").iterdir()
        assert '"reason":"dropped the cup"' in (trashed / "shard.json").read_text()

    def test_keep_if_sees_the_whole_episode(self, tmp_path: Path) -> None:
        infos = [[{}, {}, {}, {"success": True}, {}, {}], [{}, {}, {}, {}, {}, {"success": True}], [{}] * 6]
        space = spaces.Box(0, 9, (), np.float32)
        for k, script in enumerate(infos):
            inner = ScriptEnv(space, [np.float32(i) for i in range(6)], script)
            with quiet(inner, tmp_path, keep_if=lambda e: e.infos.get("success", np.zeros(1)).any()) as env:
                roll(env)
                env.label(k=k)
        assert [episode.labels["k"] for episode in Recording(tmp_path)] == [0, 1]

    def test_ids_of_kept_episodes_stay_what_they_were(self, tmp_path: Path) -> None:
        seen = []
        with quiet(CountingEnv(2), tmp_path, keep_if=lambda episode: episode.labels["k"] in (0, 2, 5)) as env:
            for k in range(6):
                roll(env)
                seen.append(env.episode_id)
                env.label(k=k)
        found = Recording(tmp_path)
        assert [episode.id for episode in found] == [seen[0], seen[2], seen[5]]
        assert found[str(seen[2])].labels == {"k": 2}

    def test_recorders_dropped_without_close_commit_and_leave_no_thread(self, tmp_path: Path) -> None:
        before = threading.active_count()
        for k in range(20):
            env = quiet(CountingEnv(3), tmp_path)
            roll(env, 2)
            env.label(k=k)
            del env
        gc.collect()
        assert len(Recording(tmp_path)) == 40
        assert threading.active_count() == before

    def test_an_episode_open_at_the_end_of_the_interpreter_is_kept(self, tmp_path: Path) -> None:
        done = run_python(
            """
            from environments import CountingEnv, roll
            from recorder import Recorder
            env = Recorder(CountingEnv(None), sys.argv[1])
            env.reset()
            for _ in range(4):
                env.step(0)
            """,
            str(tmp_path),
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert ends(tmp_path) == [(4, "exit")]

    def test_a_thousand_interrupts_leave_every_episode_aligned_and_mark_the_holes(self, tmp_path: Path) -> None:
        done = run_python(
            """
            import random, signal, threading, time, os, json
            from environments import CountingEnv
            from recorder import Recorder
            env = Recorder(CountingEnv(50), sys.argv[1], verbose=False)
            armed, over, caught = False, False, 0
            def interrupted(*_):
                if armed:
                    raise KeyboardInterrupt
            def shoot():
                while not over:
                    time.sleep(random.uniform(0, 0.008))
                    os.kill(os.getpid(), signal.SIGINT)
            signal.signal(signal.SIGINT, interrupted)
            gun = threading.Thread(target=shoot)
            gun.start()
            while caught < 1000:
                try:
                    armed = True
                    env.reset()
                    while True:
                        _, _, terminated, _, _ = env.step(1)
                        if terminated:
                            env.reset()
                except KeyboardInterrupt:
                    armed = False
                    caught += 1
            over = True
            gun.join()
            env.close()
            """,
            str(tmp_path),
        )
        assert done.returncode == 0, done.stderr
        found = Recording(tmp_path)
        assert len(found) > 100
        for episode in found:
            counted = episode.observations[:, 0]
            assert len(counted) == len(episode.actions) + 1 == len(episode.rewards) + 1
            steps = [k for k in range(1, int(counted[-1]) + 1) if k not in episode.refused]
            assert counted.tolist() == [0, *steps]
            if not episode.terminations[-1]:
                assert episode.end in ("interrupted", "reset", "closed")


def test_a_discarded_episode_does_not_come_back_by_recovery(tmp_path: Path) -> None:
    done = run_python(
        """
        import os, signal
        from environments import CountingEnv
        from recorder import Recorder
        env = Recorder(CountingEnv(None), sys.argv[1], trash=0)
        env.reset()
        env.step(0)
        env.flush()
        env.discard()
        env.reset()
        env.step(0)
        env.flush()
        os.kill(os.getpid(), signal.SIGKILL)
        """,
        str(tmp_path),
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    (recovery,) = recover(tmp_path)
    assert len(recovery.kept) == 1
    assert [episode.id for episode in Recording(tmp_path)] == list(recovery.kept)
