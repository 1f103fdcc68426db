"""Replaying one episode, with a verdict."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, get_args

import gymnasium as gym

from recorder.episode import Episode
from recorder.errors import EpisodeError
from recorder.rebuilding import MakeEnv, environment_of, without_window
from recorder.replaying.changes import environment_changes
from recorder.replaying.checking import EpisodeCheck
from recorder.replaying.driving import Moment, Raised, drive, playable, start_notes
from recorder.replaying.report import Divergence, Mode, ReplayReport
from recorder.replaying.states import GetState, SetState, StateAccess, required_access


def replay(
    episode: Episode,
    env: gym.Env[Any, Any] | None = None,
    *,
    mode: Mode = "actions",
    tolerance: float = 0.0,
    make_env: MakeEnv | str | None = None,
    skip_unrebuildable: bool = False,
    states: tuple[GetState, SetState] | None = None,
) -> ReplayReport:
    """Make an episode again, and say whether the same comes out.

    The environment is reset with the recorded seed, or the state of its generator, and options, and given the recorded
    actions. Observation, reward, terminated and truncated are compared leaf by leaf, step by step.

    Args:
        episode: of a recording of steps.
        env: the environment, which stays open. If not given, it is made from the recording and closed.
        mode: `actions` as above; `states` sets the recorded state before each step; `first-state` sets that of the
            reset, then gives the actions. The latter two do not compare the reset.
        tolerance: the largest difference of a number that is still agreed with. Flags and texts have to be equal.
        make_env: a function, or its name `module:function`, that makes the environment.
        skip_unrebuildable: make the environment without wrappers of which the recording has only names.
        states: functions `get(env)` and `set(env, state)`, where the environment has no such methods.

    Raises:
        EpisodeError: the recording is no series of steps; or the environment or the recording cannot do this mode, and
            the message says what is missing.
        SpaceError: a part of the environment cannot be rebuilt; the message names it.
    """
    if not isinstance(episode, Episode):
        raise EpisodeError(
            f"replay() takes an episode, such as Recording(path)[0], got {type(episode).__name__}; "
            f"replay_all() takes a recording"
        )
    if env is not None and not isinstance(env, gym.Env):
        raise EpisodeError(
            f"env= is an environment, got {type(env).__name__}; make_env= takes a function that makes one"
        )
    with ExitStack() as stack:
        if env is None:
            recorded, where = without_window(episode.environment), f"episode {episode.id}"
            env = environment_of(recorded, where, make_env, skip_unrebuildable=skip_unrebuildable)
            stack.callback(env.close)
        return replay_in(
            env, episode, mode=mode, tolerance=tolerance, states=states, skipped=skip_unrebuildable and make_env is None
        )


def replay_in(
    env: gym.Env[Any, Any],
    episode: Episode,
    *,
    mode: Mode,
    tolerance: float,
    states: tuple[GetState, SetState] | None = None,
    skipped: bool = False,
    watch: Callable[[Moment], object] | None = None,
) -> ReplayReport:
    """Replay an episode in an environment that is there; `watch` is called with each moment."""
    check_mode(episode, mode, tolerance)
    access = None if mode == "actions" else required_access(env, states, f"replaying in the mode {mode!r}")
    report = ReplayReport(episode.id, mode, tolerance, len(episode), 0, ())
    changes = tuple(environment_changes(env, episode, skipped))
    report = compared(env, episode, report, access, watch)
    notes = (*report.notes, *start_notes(episode, diverged=report.divergence is not None))
    return replace(report, differences=changes, notes=notes)


def check_mode(episode: Episode, mode: Mode, tolerance: float) -> None:
    """Raise `EpisodeError` if an episode cannot be replayed in a mode."""
    if mode not in get_args(Mode):
        raise ValueError(f"mode={mode!r} is none of {get_args(Mode)}")
    if not 0 <= tolerance < math.inf:
        raise ValueError(f"tolerance={tolerance!r} is no finite number from 0 on")
    if episode.schema.rows != "episode":
        raise EpisodeError(
            f"episode {episode.id} is of a recording that is no series of steps; there is nothing to replay"
        )
    if mode != "actions" and "state" not in episode.schema.nodes:
        raise EpisodeError(
            f"episode {episode.id} has no leaf 'state', which the mode {mode!r} needs: record with "
            f"Recorder(env, path, record_state=True)"
        )


def compared(
    env: gym.Env[Any, Any],
    episode: Episode,
    report: ReplayReport,
    access: StateAccess | None,
    watch: Callable[[Moment], object] | None = None,
) -> ReplayReport:
    """Drive an environment through an episode, and compare."""
    check = EpisodeCheck(episode, episode.schema, report.tolerance)
    done, raised = 0, None
    notes: list[str] = []
    try:
        for moment in drive(env, episode, report.mode, access):
            done = moment.step
            if watch is not None:
                watch(moment)
            if done or access is None:
                check.observation(done, moment.observation)
            if done:
                check.outcome(done, moment.reward, moment.terminated, moment.truncated)
    except Raised as error:
        raised = Divergence(error.step, "", math.inf, str(error))
    notes += check.notes()
    missing = playable(episode) - done
    if missing and raised is None:
        notes.append(f"the environment was over after step {done}; {missing} recorded steps were not compared")
    return replace(
        report,
        compared=done,
        leaves=check.results(),
        divergence=first_of(check.divergence, raised),
        notes=tuple(notes),
    )


def first_of(one: Divergence | None, other: Divergence | None) -> Divergence | None:
    """Return the divergence that came first."""
    found = [divergence for divergence in (one, other) if divergence is not None]
    return min(found, key=lambda divergence: divergence.step, default=None)
