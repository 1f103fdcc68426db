"""Re-observing makes a recording again with other eyes: the same episodes, of which it shows something else."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from environments import CountingEnv, roll
from gymnasium import spaces
from gymnasium.wrappers import AddRenderObservation, FlattenObservation, TransformReward

from recorder import (
    EpisodeError,
    ExistsError,
    MismatchError,
    Recorder,
    Recording,
    RowError,
    VideoStorage,
    layout,
    reobserve,
    replay,
    replay_all,
)
from recorder.cli import main
from recorder.verify import verify
from recorder.writing.recovery import recover


@pytest.fixture
def carts(tmp_path: Path) -> Recording:
    """Return a recording of three episodes with labels and values of the user, one of them not seeded."""
    path = tmp_path / "carts"
    env = gym.make("CartPole-v1", max_episode_steps=8)
    with Recorder(
        env, path, extra={"log_prob": spaces.Box(-9, 0, (), np.float64)}, fsync=False, verbose=False
    ) as recorded:
        env.action_space.seed(0)
        for seed in (4, None, 5):
            recorded.reset(seed=seed, options={"low": -0.04, "high": 0.04})
            recorded.label(task="balance", k=seed)
            for k in range(8):
                recorded.record(log_prob=np.float64(-k))
                if recorded.step(env.action_space.sample())[2]:
                    break
    return Recording(path)


def pixels() -> gym.Env[Any, Any]:
    env = gym.make("CartPole-v1", max_episode_steps=8, render_mode="rgb_array")
    return AddRenderObservation(env, render_only=False, render_key="pixels", obs_key="state")


def test_pictures_are_added_and_everything_else_is_carried_over(carts: Recording, tmp_path: Path) -> None:
    target = tmp_path / "pixels"
    done = reobserve(carts, pixels, target, progress=False)
    assert done.kept == tuple(episode.id for episode in carts) and not done.diverged
    found = Recording(target)
    assert found.observation_space["pixels"].shape == (400, 600, 3)
    for old, new in zip(carts, found, strict=True):
        assert (new.id, new.seed, new.generator, new.options) == (old.id, old.seed, old.generator, old.options)
        assert (new.labels, new.end, new.start, new.return_) == (old.labels, old.end, old.start, old.return_)
        for before, after in ((old.actions, new.actions), (old.rewards, new.rewards), (old.times, new.times)):
            np.testing.assert_array_equal(before, after)
        np.testing.assert_array_equal(old.extras["log_prob"], new.extras["log_prob"])
        np.testing.assert_array_equal(old.observations, new.observations["state"])
        assert new.observations["pixels"].std() > 0
    assert found.metadata["reobserved"] == [str(carts.paths[0])]
    assert verify(target, decode=True).sound
    assert {report.verdict for report in replay_all(found)} == {"exact"}, "what was made again can be made again"


def get(env: gym.Env[Any, Any]) -> Any:
    return np.array(env.unwrapped.state)  # type: ignore[attr-defined]


def put(env: gym.Env[Any, Any], state: Any) -> None:
    env.unwrapped.state = state  # type: ignore[attr-defined]


def test_states_are_set_on_the_way_and_carried_over(tmp_path: Path) -> None:
    class Upright(gym.Wrapper[Any, Any, Any, Any]):
        """Begins elsewhere than the seed says."""

        def reset(self, **given: Any) -> Any:
            _, info = super().reset(**given)
            put(self, np.zeros(4))
            return np.zeros(4, np.float32), info

    env = Upright(gym.make("CartPole-v1", max_episode_steps=8))
    with Recorder(env, tmp_path / "states", record_state=get, fsync=False, verbose=False) as recorded:
        env.action_space.seed(0)
        recorded.reset(seed=1)
        while not any(recorded.step(env.action_space.sample())[2:4]):
            pass
    done = reobserve(tmp_path / "states", pixels, tmp_path / "new", mode="states", states=(get, put), progress=False)
    assert len(done.kept) == 1
    ((old,), (new,)) = Recording(tmp_path / "states"), Recording(tmp_path / "new")
    np.testing.assert_array_equal(old.states, new.states)
    np.testing.assert_array_equal(old.observations[1:], new.observations["state"][1:])
    assert replay(new, mode="states", states=(get, put)).verdict == "exact"


def test_an_episode_is_found_by_its_id_in_both(carts: Recording, tmp_path: Path) -> None:
    reobserve(carts, pixels, tmp_path / "pixels", episodes=[2], progress=False)
    (episode,) = Recording(tmp_path / "pixels")
    assert Recording(tmp_path / "pixels")[carts[2].id].id == episode.id == carts[2].id


def test_rendered_frames_and_a_storage(carts: Recording, tmp_path: Path) -> None:
    def make() -> gym.Env[Any, Any]:
        return gym.make("CartPole-v1", max_episode_steps=8, render_mode="rgb_array")

    storage = layout(make(), default=None)
    reobserve(carts, make, tmp_path / "frames", record_render=True, storage=storage, progress=False)
    found = Recording(tmp_path / "frames")
    assert found[0].renders.shape == (len(found[0]) + 1, 400, 600, 3)
    assert isinstance(found.schema.storage.of(found.leaves["render"]), object)


def test_an_episode_whose_outcome_is_another_is_put_aside(carts: Recording, tmp_path: Path) -> None:
    def make() -> gym.Env[Any, Any]:
        return TransformReward(gym.make("CartPole-v1", max_episode_steps=8), lambda reward: reward * 2)

    done = reobserve(carts, make, tmp_path / "twice", episodes=[0], progress=False)
    assert done.kept == ()
    assert done.diverged == {carts[0].id: "step 1: reward was 1.0, is 2.0, which differs by 1"}
    assert "1 put aside" in str(done) and "differs by 1" in str(done)
    done = reobserve(carts, make, tmp_path / "within", tolerance=1, progress=False)
    assert len(done.kept) == 3


def test_an_environment_that_ends_elsewhere_or_raises_is_put_aside(carts: Recording, tmp_path: Path) -> None:
    def shorter() -> gym.Env[Any, Any]:
        return gym.make("CartPole-v1", max_episode_steps=3)

    done = reobserve(carts, shorter, tmp_path / "shorter", progress=False)
    assert all("step 3: truncated was False, is True" in reason for reason in done.diverged.values())

    assert len(Recording(tmp_path / "shorter")) == 0
    assert len(list((tmp_path / "shorter" / "discarded").iterdir())) == 1, "one shard of three"

    class Failing(gym.Wrapper[Any, Any, Any, Any]):
        def step(self, action: Any) -> Any:
            raise RuntimeError("no camera")

    done = reobserve(carts, lambda: Failing(shorter()), tmp_path / "failing", progress=False)
    assert all("the environment raised RuntimeError: no camera" in reason for reason in done.diverged.values())


def test_a_step_that_is_missing_puts_the_episode_aside(tmp_path: Path) -> None:
    class Wide(CountingEnv):
        def _observe(self) -> Any:
            return super()._observe() if self.steps != 2 else np.zeros(3, np.float32)

    with Recorder(Wide(5), tmp_path / "holes", fsync=False, verbose=False) as env:
        env.reset(seed=0)
        for _ in range(4):
            try:
                env.step(0)
            except RowError:
                continue
    done = reobserve(tmp_path / "holes", CountingEnv, tmp_path / "again", progress=False)
    assert list(done.diverged.values()) == ["step 2 was refused when it was recorded and is missing"]


def test_what_cannot_be_done_is_said_before_anything_is_written(carts: Recording, tmp_path: Path) -> None:
    with pytest.raises(ExistsError, match="record into another folder"):
        reobserve(carts, pixels, carts.paths[0])
    with pytest.raises(MismatchError, match="takes other actions"):
        reobserve(carts, CountingEnv, tmp_path / "new", progress=False)
    with pytest.raises(EpisodeError, match="cannot be read and set"):
        reobserve(carts, pixels, tmp_path / "new", mode="states", progress=False)
    assert not (tmp_path / "new").exists()
    reobserve(carts, pixels, tmp_path / "new", episodes=[0], progress=False)
    with pytest.raises(ExistsError):
        reobserve(carts, pixels, tmp_path / "new", progress=False)


def test_other_wrappers_by_the_name_of_a_function(tmp_path: Path) -> None:
    with Recorder(CountingEnv(3), tmp_path / "counts", fsync=False, verbose=False) as env:
        roll(env, seed=1)
    with pytest.raises(MismatchError):
        reobserve(tmp_path / "counts", "test_reobserve:pixels", tmp_path / "other", progress=False)
    done = reobserve(tmp_path / "counts", lambda: FlattenObservation(CountingEnv(3)), tmp_path / "flat", progress=False)
    assert len(done.kept) == 1


def test_video_of_a_new_camera_has_digests(carts: Recording, tmp_path: Path) -> None:
    storage = layout(pixels(), keys={"observation/pixels": VideoStorage()})
    reobserve(carts, pixels, tmp_path / "video", episodes=[0], storage=storage, progress=False)
    (episode,) = Recording(tmp_path / "video")
    report = replay(episode)
    assert report.verdict == "exact"
    assert {leaf.path: leaf.method for leaf in report.leaves}["observation/pixels"] == "digests"


KILLED = """
import os, sys
sys.path.insert(0, sys.argv[3])
from environments import CountingEnv
from recorder import CommitOptions, reobserve

class Dying(CountingEnv):
    resets = 0

    def reset(self, **given):
        Dying.resets += 1
        return super().reset(**given)

    def step(self, action):
        if Dying.resets == 3 and self.steps == 300:
            import time
            time.sleep(2.5)  # the running episode is saved every second
            os._exit(9)
        return super().step(action)

reobserve(sys.argv[1], lambda: Dying(400), sys.argv[2], options=CommitOptions(flush_every=1, fsync=False))
"""


def test_a_kill_on_the_way_loses_no_episode_and_brings_none_twice(tmp_path: Path) -> None:
    with Recorder(CountingEnv(400), tmp_path / "counts", fsync=False, verbose=False) as env:
        for seed in range(3):
            roll(env, seed=seed)
    ids = [episode.id for episode in Recording(tmp_path / "counts")]
    target, here = tmp_path / "again", str(Path(__file__).parent.parent)
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "counts"), str(target), here], check=False)
    assert done.returncode == 9
    recover(target)
    found = Recording(target)
    assert sorted(episode.id for episode in found) == sorted(ids)
    assert [found[name].end for name in ids] == ["terminated", "terminated", "recovered"]
    assert len(found[ids[2]]) >= 290
    assert {replay(found[name], CountingEnv(400)).verdict for name in ids} == {"exact"}


class TestCommand:
    def test_the_recorded_environment_made_otherwise(self, carts: Recording, tmp_path: Path, capsys: Any) -> None:
        target = tmp_path / "film"
        assert main(["reobserve", str(carts.paths[0]), str(target), "0", "-1", "--render", "--json"]) == 0
        said = json.loads(capsys.readouterr().out)
        assert said == {"path": str(target), "kept": [carts[0].id, carts[2].id], "put_aside": {}}
        for episode in Recording(target):
            assert episode.columns["render"].shape == (len(episode) + 1, 400, 600, 3)
            assert replay(episode).verdict == "exact"
        assert main(["reobserve", str(carts.paths[0]), str(target)]) == 1
        assert "existing" in capsys.readouterr().err

    def test_another_environment_by_name_and_what_is_put_aside(
        self, carts: Recording, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "carts_of_mine.py").write_text(
            "import gymnasium as gym\nfrom gymnasium.wrappers import FlattenObservation, TransformReward\n"
            "def good(): return FlattenObservation(gym.make('CartPole-v1', max_episode_steps=8))\n"
            "def bad(): return TransformReward(good(), lambda reward: 2 * reward)\n"
        )
        monkeypatch.chdir(tmp_path)
        path = str(carts.paths[0])
        assert main(["reobserve", path, "good", "--env", "carts_of_mine:good"]) == 0
        assert capsys.readouterr().out.strip().endswith("3 episodes made again, 0 put aside")
        assert main(["reobserve", path, "bad", "1:3", "--env", "carts_of_mine:bad", "--json"]) == 1
        said = json.loads(capsys.readouterr().out)
        assert said["kept"] == [] and list(said["put_aside"]) == [carts[1].id, carts[2].id]
        assert main(["reobserve", path, "bad2", "--env", "carts_of_mine:bad", "--tolerance", "1"]) == 0

    def test_other_arguments_of_the_environment(self, tmp_path: Path) -> None:
        pytest.importorskip("gym_pusht")
        path, target = str(tmp_path / "push"), tmp_path / "pixels"
        assert main(["record", "gym_pusht:gym_pusht/PushT-v0", "--to", path, "--max-steps", "4", "--seed", "0"]) == 0
        assert main(["reobserve", path, str(target), "--kwargs", '{"obs_type": "pixels"}']) == 0
        (episode,) = Recording(target)
        assert episode.observations.shape == (5, 96, 96, 3)
