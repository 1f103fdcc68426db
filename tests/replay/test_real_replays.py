"""Real environments replay exactly in fresh processes, seeded or begun in mid-stream."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from recorder import Recorder, Recording, ReplayReport, replay_all
from recorder.verify import verify

# Box2D's SWIG types: raised as an error inside its import, this warning ends in a segmentation fault.
pytestmark = pytest.mark.filterwarnings("ignore:builtin type .* has no __module__:DeprecationWarning")

Make = Callable[[], gym.Env[Any, Any]]


def registered(package: str, name: str, **options: Any) -> Make:
    """Return what makes an environment of a package that may not be installed."""

    def make() -> gym.Env[Any, Any]:
        module = pytest.importorskip(package)
        if package not in ("Box2D", "mujoco", "gymnasium"):
            gym.register_envs(module)
        return gym.make(name, **options)

    return make


ENVIRONMENTS: dict[str, Make] = {
    "CartPole": registered("gymnasium", "CartPole-v1"),
    "Pendulum": registered("gymnasium", "Pendulum-v1"),
    "LunarLander": registered("Box2D", "LunarLander-v3"),
    "CarRacing": registered("Box2D", "CarRacing-v3"),
    "HalfCheetah": registered("mujoco", "HalfCheetah-v5"),
    "MiniGrid": registered("minigrid", "MiniGrid-DoorKey-5x5-v0"),
    "PushT": registered("gym_pusht", "gym_pusht/PushT-v0", obs_type="pixels_agent_pos"),
}


def record(env: gym.Env[Any, Any], path: Path, episodes: int, steps: int, seeded: Callable[[int], bool]) -> Recording:
    env.action_space.seed(1)
    with Recorder(env, path, fsync=False, verbose=False) as recorded:
        for k in range(episodes):
            recorded.reset(seed=k if seeded(k) else None)
            for _ in range(steps):
                _, _, terminated, truncated, _ = recorded.step(recorded.action_space.sample())
                if terminated or truncated:
                    break
    return Recording(path)


def check(recording: Recording, reports: list[ReplayReport]) -> None:
    assert [report.episode for report in reports] == [episode.id for episode in recording]
    assert all(report.verdict == "exact" for report in reports), "\n".join(map(str, reports))
    assert all(report.compared == report.steps for report in reports)
    assert not any(report.differences for report in reports), reports[0].differences


def every_fifth(k: int) -> bool:
    return k % 5 == 0


SHORT = {"CarRacing": 12, "PushT": 15}
"""Steps of episodes where they are slow."""

FRESH = """
import json, sys
from recorder import replay_all
reports = {name: [report.to_json() for report in replay_all(path)] for name, path in json.loads(sys.argv[1]).items()}
print(json.dumps(reports))
"""


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Recording, list[dict[str, Any]]]]:
    """Record three episodes of each environment that is installed, and replay them all in one fresh process."""
    recordings = {}
    for name, make in ENVIRONMENTS.items():
        try:
            env = make()
        except pytest.skip.Exception:
            continue
        path = tmp_path_factory.mktemp(name)
        recordings[name] = record(env, path, 3, SHORT.get(name, 40), every_fifth)
    paths = json.dumps({name: str(recording.paths[0]) for name, recording in recordings.items()})
    done = subprocess.run([sys.executable, "-c", FRESH, paths], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    reports = json.loads(done.stdout.splitlines()[-1])
    return {name: (recording, reports[name]) for name, recording in recordings.items()}


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_three_episodes_are_exact_in_a_fresh_process_two_of_them_not_seeded(
    replayed: dict[str, tuple[Recording, list[dict[str, Any]]]], name: str
) -> None:
    if name not in replayed:
        pytest.skip(f"{name} is not installed")
    recording, reports = replayed[name]
    assert [episode.seed for episode in recording] == [0, None, None]
    assert [report["episode"] for report in reports] == [episode.id for episode in recording]
    for report in reports:
        assert (report["verdict"], report["differences"], report["notes"]) == ("exact", [], []), report
        assert report["compared"] == report["steps"] > 0


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_twenty_episodes_are_exact_in_fresh_processes_most_of_them_not_seeded(tmp_path: Path, name: str) -> None:
    recording = record(ENVIRONMENTS[name](), tmp_path, 20, 300, every_fifth)
    check(recording, replay_all(recording, workers=2, progress=False))
    assert verify(tmp_path).sound


def record_pong(path: Path, episodes: int, steps: int) -> Recording:
    make = registered("ale_py", "ALE/Pong-v5", repeat_action_probability=0.25)
    return record(make(), path, episodes, steps, lambda _: True)


def test_an_atari_game_with_sticky_actions_is_exact(tmp_path: Path) -> None:
    recording = record_pong(tmp_path, 2, 30)
    assert recording.spec is not None and recording.spec.kwargs["repeat_action_probability"] == 0.25
    check(recording, replay_all(recording, progress=False))
    assert "ale_py" in recording[0].versions


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_twenty_episodes_of_an_atari_game_with_sticky_actions_are_exact(tmp_path: Path) -> None:
    recording = record_pong(tmp_path, 20, 300)
    check(recording, replay_all(recording, workers=2, progress=False))


def test_an_atari_game_that_is_not_seeded_says_what_would_help_where_it_diverges(tmp_path: Path) -> None:
    make = registered("ale_py", "ALE/Pong-v5", repeat_action_probability=0.25)
    recording = record(make(), tmp_path, 2, 60, every_fifth)
    (report,) = replay_all(recording, episodes=[1], progress=False)
    assert report.verdict == "diverged" and "auto_seed=True" in str(report)
