"""Real environments: what is recorded is what the bare environment gives, and it makes the same episode again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import h5py
import numpy as np
import pytest
from gymnasium.utils.env_checker import data_equivalence

import recorder
from recorder import Episode, Recorder, Recording, Step, VideoStorage, ZarrStorage, layout
from recorder.metadata.kinds import few_values

# Box2D's SWIG types: raised as an error inside its import, this warning ends in a segmentation fault.
pytestmark = pytest.mark.filterwarnings("ignore:builtin type .* has no __module__:DeprecationWarning")

PACKAGES = {
    "ALE/": "ale_py",
    "CarRacing": "Box2D",
    "Fetch": "gymnasium_robotics",
    "FrankaKitchen": "gymnasium_robotics",
    "HalfCheetah": "mujoco",
    "MiniGrid": "minigrid",
    "gym_pusht/": "gym_pusht",
}
"""What an environment needs, by how its id begins."""

OPTIONS = {"gym_pusht/PushT-v0": {"obs_type": "pixels_agent_pos"}}
STEPS = {"FrankaKitchen-v1": 4, "CarRacing-v3": 20, "gym_pusht/PushT-v0": 20}
ENVIRONMENTS = [
    "CartPole-v1",
    "Blackjack-v1",
    "Pendulum-v1",
    "CarRacing-v3",
    "gym_pusht/PushT-v0",
    "ALE/Pong-v5",
    "HalfCheetah-v5",
    "MiniGrid-DoorKey-5x5-v0",
    "FetchReach-v4",
    "FrankaKitchen-v1",
]

Make = Callable[..., gym.Env[Any, Any]]


@pytest.fixture
def make() -> Iterator[Make]:
    """Make environments of packages that may not be installed, and close them."""
    with ExitStack() as stack:

        def make(name: str, **options: Any) -> gym.Env[Any, Any]:
            for start in (start for start in PACKAGES if name.startswith(start)):
                module = pytest.importorskip(PACKAGES[start])
                if start not in ("CarRacing", "HalfCheetah"):
                    gym.register_envs(module)
            env = gym.make(name, disable_env_checker=True, **{**OPTIONS.get(name, {}), **options})
            stack.callback(env.close)
            return env

        yield make


class Rollout(NamedTuple):
    """What one episode gave: a result of `reset`, actions, and results of `step`."""

    reset: tuple[Any, dict[str, Any]]
    actions: list[Any]
    results: list[tuple[Any, ...]]

    @property
    def observations(self) -> list[Any]:
        return [self.reset[0], *(result[0] for result in self.results)]

    @property
    def infos(self) -> list[Any]:
        return [self.reset[1], *(result[-1] for result in self.results)]


def roll_out(env: gym.Env[Any, Any], steps: int, seed: int | None = None) -> Rollout:
    found = Rollout(env.reset(seed=seed), [], [])
    while len(found.actions) < steps:
        found.actions.append(env.action_space.sample())
        found.results.append(env.step(found.actions[-1]))
        if found.results[-1][2] or found.results[-1][3]:
            break
    return found


def equal(recorded: Any, given: Any) -> bool:
    """Whether a value came back: of the same structure, arrays with their dtype, numbers by their value."""
    if isinstance(given, dict):
        return recorded.keys() == given.keys() and all(equal(recorded[key], given[key]) for key in given)
    if isinstance(given, tuple):
        return len(recorded) == len(given) and all(map(equal, recorded, given))
    array = np.asarray(given)
    same = np.array_equal(recorded, array, equal_nan=array.dtype.kind == "f")
    return same and (not isinstance(given, np.ndarray) or recorded.dtype == given.dtype)


def row(nested: Any, t: int) -> Any:
    """Return one row of whole columns."""
    if isinstance(nested, dict):
        return {key: row(value, t) for key, value in nested.items()}
    return tuple(row(value, t) for value in nested) if isinstance(nested, tuple) else nested[t]


def check(episode: Episode, rollout: Rollout) -> None:
    """Assert that all of a rollout is in an episode, read whole and step by step."""
    assert len(episode) == len(rollout.actions)
    for t, observation in enumerate(rollout.observations):
        assert equal(row(episode.observations, t), observation)
    for step, action, given in zip(episode, rollout.actions, rollout.results, strict=True):
        _check_step(step, action, given)
    assert equal(episode[1].observation, rollout.observations[0])
    for t, info in enumerate(rollout.infos):
        found = {key: row(episode.infos[key], t) for key in info}
        assert sorted(found) == sorted(info)
        assert all(equal(found[key], info[key]) for key in info)


def _check_step(step: Step, action: Any, given: tuple[Any, ...]) -> None:
    assert equal(step.action, action)
    assert equal(step.next_observation, given[0])
    assert (step.reward, step.terminated, step.truncated) == given[1:4]
    assert sorted(step.info) == sorted(given[4])


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_what_is_recorded_is_what_the_bare_environment_gives_and_it_replays(
    tmp_path: Path, make: Make, name: str
) -> None:
    bare, inner = make(name), make(name)
    with Recorder(inner, tmp_path, verbose=False) as env:
        rollouts = []
        for each in (bare, env):
            each.action_space.seed(3)
            rollouts.append(roll_out(each, STEPS.get(name, 30), seed=3))
    assert data_equivalence(*rollouts)
    found = Recording(tmp_path)
    (episode,) = found
    check(episode, rollouts[0])
    assert found.observation_space.contains(episode[1].observation) or name == "FetchReach-v4"

    again = found.make_env(disable_env_checker=True)
    replayed = [again.reset(seed=episode.seed), *(again.step(step.action) for step in episode)]
    again.close()
    assert data_equivalence(replayed, [rollouts[0].reset, *rollouts[0].results])


@pytest.mark.parametrize(
    "name", ["CartPole-v1", "Blackjack-v1", "Pendulum-v1", "HalfCheetah-v5", "MiniGrid-DoorKey-5x5-v0"]
)
def test_episodes_without_a_seed_begin_again_from_the_state_of_the_generator(
    tmp_path: Path, make: Make, name: str
) -> None:
    with Recorder(make(name), tmp_path, verbose=False) as env:
        rollouts = [roll_out(env, 10) for _ in range(3)]
    again = make(name)
    again.reset(seed=1)
    for episode, rollout in zip(Recording(tmp_path), rollouts, strict=True):
        again.unwrapped.np_random.bit_generator.state = episode.generator
        replayed = [again.reset(), *(again.step(step.action) for step in episode)]
        assert data_equivalence(replayed, [rollout.reset, *rollout.results])


def test_a_game_is_planned_lossy_and_kept_exactly_for_its_few_colours(tmp_path: Path, make: Make) -> None:
    bare = make("ALE/Pong-v5")
    planned = {row.path: row for row in recorder.plan(bare).rows}["observation"]
    assert (planned.storage, planned.exact) == ("VideoStorage(fps=30)", False)
    assert any("unless its first frame has few colours" in note for note in recorder.plan(bare).notes)

    with Recorder(bare, tmp_path, verbose=False) as env:
        rollout = roll_out(env, 30, seed=1)
        settled = {row.path: row for row in recorder.plan(env).rows}["observation"]
    assert settled.storage == "ZarrStorage()" and settled.exact
    assert "the first frame has few colours" in settled.note
    np.testing.assert_array_equal(Recording(tmp_path)[0].observations, rollout.observations)


def test_a_game_is_lossy_video_where_that_is_named(tmp_path: Path, make: Make) -> None:
    bare = make("ALE/Pong-v5")
    storage = layout(bare, keys={"observation": VideoStorage()})
    with Recorder(bare, tmp_path, storage=storage, verbose=False) as env:
        rollout = roll_out(env, 30, seed=1)
    (episode,) = Recording(tmp_path)
    assert list(tmp_path.rglob("*.mp4"))
    assert psnr(episode.observations, np.array(rollout.observations)) > 30


@pytest.mark.parametrize("storage", [ZarrStorage(), VideoStorage(codec="h264rgb")])
def test_pictures_are_exact_with_a_storage_that_is(tmp_path: Path, make: Make, storage: recorder.Storage) -> None:
    bare = make("gym_pusht/PushT-v0")
    with Recorder(bare, tmp_path, storage=layout(bare, kinds={"image": storage}), verbose=False) as env:
        rollout = roll_out(env, 20, seed=1)
    check(Recording(tmp_path)[0], rollout)


def psnr(one: np.ndarray[Any, Any], two: np.ndarray[Any, Any]) -> float:
    """Return how near frames are to others, in decibel: the worst of all frames."""
    errors = (one.astype(np.float64) - two).reshape(len(two), -1)
    return float(10 * np.log10(255**2 / np.maximum((errors**2).mean(axis=1), 1e-9)).min())


@pytest.mark.parametrize("size", [(128, 160), (131, 129)])
def test_a_camera_of_mujoco_is_video_near_to_what_was_rendered_and_frame_i_is_row_i(
    tmp_path: Path, make: Make, size: tuple[int, int]
) -> None:
    inner = make("HalfCheetah-v5", render_mode="rgb_array", height=size[0], width=size[1])
    quality = inner.unwrapped.model.vis.quality  # type: ignore[attr-defined]
    quality.shadowsize = quality.offsamples = 0  # a tenth of the time
    with Recorder(inner, tmp_path, record_render=True, verbose=False) as env:
        env.reset(seed=0)
        frames = [env.render()]
        for _ in range(25):
            env.step(env.action_space.sample())
            frames.append(env.render())
    rendered = np.array(frames)
    assert not few_values(rendered[0])
    (episode,) = Recording(tmp_path)
    assert episode.renders.shape == rendered.shape
    assert len(list(tmp_path.rglob("render/*.mp4"))) == 1
    assert psnr(episode.renders, rendered) > 30
    distances = ((episode.renders[:, None].astype(np.float32) - rendered[None]) ** 2).mean(axis=(2, 3, 4))
    assert distances.argmin(axis=1).tolist() == list(range(26))


def test_numbers_of_objects_are_no_picture_and_a_mission_is_text(tmp_path: Path, make: Make) -> None:
    with Recorder(make("MiniGrid-DoorKey-5x5-v0"), tmp_path, verbose=False) as env:
        roll_out(env, 5, seed=1)
    found = Recording(tmp_path)
    leaf = found.leaves["observation/image"]
    assert (leaf.shape, leaf.dtype, leaf.kind) == ((7, 7, 3), "uint8", "other")
    assert found.leaves["observation/mission"].dtype == "text"
    assert set(found[0].observations["mission"]) == {"use the key to open the door and then get to the goal"}


def test_goals_keep_their_64_bits_and_keys_their_spaces(tmp_path: Path, make: Make) -> None:
    with Recorder(make("FrankaKitchen-v1"), tmp_path, verbose=False) as env:
        rollout = roll_out(env, 3, seed=1)
    found = Recording(tmp_path)
    assert found.leaves["observation/achieved_goal/bottom burner"].dtype == "float64"
    (data,) = tmp_path.rglob("data.h5")
    with h5py.File(data) as file:
        kettle = file["observation/achieved_goal/kettle"][:]
        burner = file["observation/achieved_goal"]["bottom burner"][:]
    assert kettle.tolist() == [o["achieved_goal"]["kettle"].tolist() for o in rollout.observations]
    assert burner.tolist() == [o["achieved_goal"]["bottom burner"].tolist() for o in rollout.observations]
