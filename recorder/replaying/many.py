"""Replaying many episodes: one after another, or by several processes at once."""

from __future__ import annotations

import json
import math
import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
from tqdm import tqdm

from recorder.episode import Episode
from recorder.errors import DamagedError
from recorder.rebuilding import MakeEnv, environment_of, without_window
from recorder.recording import Recording
from recorder.replaying.replay import replay_in
from recorder.replaying.report import Divergence, Mode, ReplayReport
from recorder.replaying.states import GetState, SetState

CHUNKS = 4
"""Pieces of work for each process, so that one with long episodes does not keep the others waiting."""


@dataclass(frozen=True)
class Task:
    """What is to be done with each episode; it goes to other processes."""

    recording: Recording
    mode: Mode = "actions"
    tolerance: float = 0.0
    make_env: MakeEnv | str | None = None
    skip_unrebuildable: bool = False
    states: tuple[GetState, SetState] | None = None


def replay_all(
    recording: Recording | Path | str,
    *,
    episodes: Sequence[int | str] | None = None,
    mode: Mode = "actions",
    tolerance: float = 0.0,
    make_env: MakeEnv | str | None = None,
    skip_unrebuildable: bool = False,
    states: tuple[GetState, SetState] | None = None,
    workers: int = 1,
    progress: bool = True,
) -> list[ReplayReport]:
    """Replay the episodes of a recording, and return a report for each.

    With several workers each is a fresh process with an environment of its own; a script needs
    `if __name__ == "__main__":` then, and `make_env` and `states` have to be functions that can be imported.

    Args:
        recording: the recording or its folder.
        episodes: positions or ids, all if not given.
        mode, tolerance, make_env, skip_unrebuildable, states: as for `replay`.
        workers: how many processes; 1 is this one.
        progress: show a bar, where there is a terminal.

    Raises:
        EpisodeError: the recording is no series of steps; or the environment or the recording cannot do this mode.
        SpaceError: a part of the environment cannot be rebuilt; the message names it.
    """
    opened = recording if isinstance(recording, Recording) else Recording(recording)
    chosen: Sequence[int | str] = range(len(opened)) if episodes is None else episodes
    task = Task(opened, mode, tolerance, make_env, skip_unrebuildable, states)
    done = _here(task, chosen) if workers <= 1 or len(chosen) <= 1 else _beside(task, chosen, workers)
    bar = tqdm(
        done, total=len(chosen), unit="episode", disable=None if progress else True, leave=False, dynamic_ncols=True
    )
    return list(bar)


def _here(task: Task, episodes: Sequence[int | str]) -> Iterator[ReplayReport]:
    with Replayer(task) as replayer:
        for episode in episodes:
            yield replayer.replay(episode)


def _beside(task: Task, episodes: Sequence[int | str], workers: int) -> Iterator[ReplayReport]:
    """Replay in other processes; they are spawned, for simulators and threads do not survive a fork."""
    context = multiprocessing.get_context("spawn")
    size = max(1, len(episodes) // (CHUNKS * workers))
    pool = ProcessPoolExecutor(min(workers, len(episodes)), context, _start, (task,))
    try:
        yield from pool.map(_replay, episodes, chunksize=size)
    finally:
        pool.shutdown(cancel_futures=True)


class Replayer:
    """Replays episodes in environments that are made once: one for each that the recording names."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._made: dict[str, gym.Env[Any, Any]] = {}
        self._stack = ExitStack()

    def replay(self, which: int | str) -> ReplayReport:
        """Replay the episode at a position, or with an id."""
        task = self._task
        try:
            episode = task.recording[which]
            skipped = task.skip_unrebuildable and task.make_env is None
            return replay_in(
                self._env(episode),
                episode,
                mode=task.mode,
                tolerance=task.tolerance,
                states=task.states,
                skipped=skipped,
            )
        except DamagedError as error:  # the others still have a verdict
            return self._unreadable(which, error)

    def _unreadable(self, which: int | str, error: DamagedError) -> ReplayReport:
        """Return the report of an episode that cannot be read."""
        note = self._task.recording.note(which) if isinstance(which, int) else None
        name, steps = (str(which), 0) if note is None else (note.id, note.transitions)
        where = Divergence(0, "", math.inf, f"cannot be read: {error}")
        return ReplayReport(name, self._task.mode, self._task.tolerance, steps, 0, (), where)

    def _env(self, episode: Episode) -> gym.Env[Any, Any]:
        task = self._task
        key = "" if task.make_env is not None else json.dumps(episode.environment, sort_keys=True)
        if key not in self._made:
            where = f"episode {episode.id}"
            env = environment_of(
                without_window(episode.environment), where, task.make_env, skip_unrebuildable=task.skip_unrebuildable
            )
            self._stack.callback(env.close)
            self._made[key] = env
        return self._made[key]

    def __enter__(self) -> Replayer:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


_replayer: Replayer | None = None


def _start(task: Task) -> None:
    """Begin as a worker process."""
    global _replayer
    _replayer = Replayer(task)


def _replay(which: int | str) -> ReplayReport:
    assert _replayer is not None
    return _replayer.replay(which)
