"""Running: an environment is made by its id, stepped by a policy, and recorded."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.error import UnregisteredEnv
from tqdm import tqdm

from recorder.cli.describing import counts, spread
from recorder.cli.playing import play_episodes
from recorder.cli.policies import HUMAN, Policy, load_policy
from recorder.errors import NotARecordingError, RecorderError
from recorder.leaf import JSON
from recorder.recording import Recording
from recorder.routing.layouts import plan
from recorder.routing.planning import Plan
from recorder.wrapper import Recorder
from recorder.writing.writer import Existing

REFRESH = 0.2
"""Seconds between two looks of the progress bar at a running episode."""


@dataclass(frozen=True)
class Task:
    """What is to be recorded."""

    env_id: str
    path: Path
    episodes: int = 1
    policy: str = "random"
    seed: int | None = None
    render: bool = False
    state: bool = False
    max_steps: int | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    existing: Existing = "append"
    labels: Mapping[str, JSON] = field(default_factory=dict)
    keys: Mapping[str, JSON] | None = None


class Run:
    """One run of a task: it steps the environment, and knows afterwards what it has recorded."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._writer = ""
        given = {"render_mode": "rgb_array"} if task.render or task.policy == HUMAN else {}
        env = make_env(task.env_id, {**given, **task.arguments}, task.max_steps)
        about = {"policy": task.policy}
        self._env = Recorder(
            env,
            task.path,
            record_render=task.render,
            record_state=task.state,
            existing=task.existing,
            about=about,
            verbose=False,
        )
        self._bar = tqdm(total=task.episodes, unit="episode", disable=None, dynamic_ncols=True, leave=False)
        self._steps = 0
        self._looked = 0.0

    def record(self) -> None:
        """Record all episodes; after an error or Ctrl-C those so far are committed."""
        task = self._task
        with self._env, self._bar:
            if task.policy == HUMAN:
                play_episodes(
                    self._env, task.episodes, keys=task.keys, seed=task.seed, after_step=self._after_human_step
                )
                return
            policy = load_policy(task.policy, self._env, task.seed)
            for k in range(task.episodes):
                self._roll(policy, None if task.seed is None else task.seed + k)
                self._bar.update()

    def _after_human_step(self, over: bool) -> None:
        """Take note of a step of `play`, which resets by itself."""
        self._steps += 1
        self._writer = str(self._env.episode_id).split("-")[0]
        if over:
            self._env.label(**self._task.labels)
            self._bar.update()

    def _roll(self, policy: Policy, seed: int | None) -> None:
        """Record one episode."""
        observation, info = self._env.reset(seed=seed)
        self._writer = str(self._env.episode_id).split("-")[0]
        self._env.label(**self._task.labels)
        done = False
        while not done:
            observation, _, terminated, truncated, info = self._env.step(policy(observation, info))
            done = terminated or truncated
            self._steps += 1
            if not self._bar.disable and time.monotonic() - self._looked > REFRESH:
                self._bar.set_postfix_str(f"{self._steps:,} steps")
                self._looked = time.monotonic()

    def result(self) -> dict[str, JSON]:
        """Return what this run has added to the recording, as it is on disk."""
        recording = recording_if_there(self._task.path)
        shards = [shard for shard in recording.shards if shard.manifest.writer == self._writer] if recording else []
        ends, returns = (
            np.concatenate([shard.episodes.required(name) for shard in shards] or [np.empty(0)])
            for name in ("end", "return")
        )
        return {
            "path": str(self._task.path),
            "episodes": len(ends),
            "steps": sum(shard.manifest.transitions for shard in shards),
            "bytes": sum(size for shard in shards for size, _ in shard.manifest.files.values()),
            "ends": counts(ends),
            "return": spread(returns),
            "unkept": self._env.unkept,
            "in_all": len(recording) if recording else 0,
        }


def recording_if_there(path: Path) -> Recording | None:
    """Return the recording in a folder, or None: nothing is on disk before the first step."""
    try:
        return Recording(path)
    except NotARecordingError:
        return None


def make_env(env_id: str, arguments: Mapping[str, Any], max_steps: int | None = None) -> gym.Env[Any, Any]:
    """Return a new environment.

    Raises:
        RecorderError: nothing is registered under that id, or it cannot be made of these arguments.
    """
    try:
        return gym.make(env_id, max_episode_steps=max_steps, **arguments)
    except UnregisteredEnv as error:
        hint = "" if ":" in env_id else " If a package brings it, name that too: ale_py:ALE/Pong-v5"
        raise RecorderError(f"{env_id}: {error}{hint}") from error
    except Exception as error:
        raise RecorderError(f"{env_id} cannot be made: {type(error).__name__}: {error}") from error


def plan_of(env_id: str, arguments: Mapping[str, Any], steps: int) -> Plan:
    """Return the plan for an environment, measured on so many random steps, or on synthetic rows."""
    with closing(make_env(env_id, arguments)) as env:
        return plan(env, frames=list(random_observations(env, steps)) if steps else None)


def random_observations(env: gym.Env[Any, Any], steps: int) -> Iterator[Any]:
    """Yield copies of the observations of a walk of random steps, one more than there are steps."""
    over = True
    for k in range(steps + 1):
        if over:
            observation, _ = env.reset(seed=k)
            over = False
        else:
            observation, _, terminated, truncated, _ = env.step(env.action_space.sample())
            over = terminated or truncated
        yield deepcopy(observation)
