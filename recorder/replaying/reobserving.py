"""Re-observing: a recording is made again with other cameras, wrappers or observation modes, into a new recording."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium as gym
from tqdm import tqdm

from recorder.episode import Episode
from recorder.errors import DivergedError, ExistsError, MismatchError
from recorder.leaf import JSON
from recorder.rebuilding import MakeEnv, maker
from recorder.recording import Recording
from recorder.replaying.comparing import OUTCOME, RecordedRows, largest_difference
from recorder.replaying.driving import Moment, Raised, drive, playable
from recorder.replaying.replay import check_mode
from recorder.replaying.report import Mode
from recorder.replaying.states import GetState, SetState, StateAccess, required_access
from recorder.schema import StepSpace
from recorder.spaces.differences import differences
from recorder.spaces.space_json import space_to_json
from recorder.storages.base import Storage
from recorder.writing.committing import CommitOptions
from recorder.writing.origin import origin_of
from recorder.writing.writer import Existing, RecordingWriter


@dataclass(frozen=True)
class Reobservation:
    """What was recorded anew: the folder, the ids that are in it, and those that were put aside, with the reasons."""

    path: Path
    kept: tuple[str, ...]
    diverged: Mapping[str, str]

    def __str__(self) -> str:
        lines = [f"{self.path}: {len(self.kept):,} episodes made again, {len(self.diverged):,} put aside"]
        return "\n".join([*lines, *(f"  {episode}: {reason}" for episode, reason in self.diverged.items())])


@dataclass(frozen=True)
class Wish:
    """How episodes are to be made again."""

    mode: Mode
    tolerance: float
    states: tuple[GetState, SetState] | None
    render: bool
    extra: Mapping[str, Any] = field(default_factory=dict)
    carried: tuple[str, ...] = ()


def reobserve(
    recording: Recording | Path | str,
    make_env: MakeEnv | str,
    path: Path | str,
    *,
    episodes: Sequence[int | str] | None = None,
    mode: Mode = "actions",
    tolerance: float = 0.0,
    states: tuple[GetState, SetState] | None = None,
    record_render: bool = False,
    storage: Storage | None = None,
    metadata: Mapping[str, Mapping[str, JSON]] | None = None,
    exclude: Sequence[str] = (),
    existing: Existing = "refuse",
    options: CommitOptions | None = None,
    progress: bool = True,
) -> Reobservation:
    """Make the episodes of a recording again in another environment, and record what that one shows.

    It begins each episode as it was begun and gives the recorded actions. Reward, terminated and truncated have to be
    as they were; an episode of which they are not is put aside, in the folder `discarded/` of the new recording.
    Ids, seeds, generators, options, labels, ends, times, states and values of `extra` are carried over.

    Args:
        recording: the recording or its folder.
        make_env: a function, or its name `module:function`, that makes the environment with other wrappers, cameras,
            render or observation modes. It takes the same actions.
        path: the folder of the new recording.
        episodes: positions or ids, all if not given.
        mode, tolerance, states: as for `replay`; the tolerance is that of the reward.
        record_render: also keep `env.render()` of every moment.
        storage, metadata, exclude, existing, options: as for `RecordingWriter`.
        progress: show a bar, where there is a terminal.

    Raises:
        MismatchError: the environment takes other actions.
        ExistsError: the folder cannot be used.
        EpisodeError: the environment or the recording cannot do this mode.
    """
    opened = recording if isinstance(recording, Recording) else Recording(recording)
    target = Path(path).absolute()
    if target in opened.paths:
        raise ExistsError(f"{target} is the recording that is made again; record into another folder")
    chosen: Sequence[int | str] = range(len(opened)) if episodes is None else episodes
    known = opened.schema.spaces
    carried = tuple(name for name in ("state", "extra") if name in known)
    wish = Wish(mode, tolerance, states, record_render, getattr(known.get("extra"), "spaces", {}), carried)
    with ExitStack() as stack:
        env = maker(make_env)()
        stack.callback(env.close)
        _check_actions(opened, env)
        about = {**opened.metadata, "reobserved": [str(source) for source in opened.paths]}
        writer = RecordingWriter(
            target,
            StepSpace(env.observation_space, env.action_space, wish.extra, record_render, known.get("state", False)),
            storage=storage,
            metadata=metadata,
            exclude=exclude,
            existing=existing,
            options=options,
            origin=origin_of(env, about),
        )
        stack.enter_context(writer)
        bar = tqdm(chosen, unit="episode", disable=None if progress else True, leave=False, dynamic_ncols=True)
        return _all(opened, env, writer, wish, bar)


def _check_actions(recording: Recording, env: gym.Env[Any, Any]) -> None:
    found = differences(space_to_json(env.action_space), space_to_json(recording.action_space), "action")
    if found:
        listed = "\n  ".join(found)
        raise MismatchError(f"the environment takes other actions than those that were recorded:\n  {listed}")


def _all(
    recording: Recording, env: gym.Env[Any, Any], writer: RecordingWriter, wish: Wish, episodes: Any
) -> Reobservation:
    access = None if wish.mode == "actions" else required_access(env, wish.states, f"the mode {wish.mode!r}")
    kept: list[str] = []
    diverged: dict[str, str] = {}
    for which in episodes:
        episode = recording[which]
        check_mode(episode, wish.mode, wish.tolerance)
        try:
            Again(episode, env, writer, wish, access).record()
        except (DivergedError, Raised) as error:
            diverged[episode.id] = str(error)
            writer.discard(f"reobserve: {error}")
        except BaseException as error:
            writer.discard(f"reobserve: {type(error).__name__}: {error}")  # half an episode is none
            raise
        else:
            kept.append(episode.id)
            writer.label(**episode.labels)
            writer.finish(episode.end)
    return Reobservation(writer.path, tuple(kept), diverged)


class Again:
    """One episode on its way into the new recording."""

    def __init__(
        self,
        episode: Episode,
        env: gym.Env[Any, Any],
        writer: RecordingWriter,
        wish: Wish,
        access: StateAccess | None,
    ) -> None:
        self._episode = episode
        self._outcome = {path: RecordedRows(episode.columns[path]) for path in OUTCOME}
        self._env = env
        self._writer = writer
        self._wish = wish
        self._times = RecordedRows(episode.columns["time"]) if "time" in episode.columns else None
        self._access = access

    def record(self) -> None:
        """Make the episode again and append its rows.

        Raises:
            DivergedError: the outcome of a step is not as it was recorded, or a step is missing.
            Raised: the environment raised.
        """
        episode = self._episode
        self._writer.begin(
            seed=episode.seed, options=episode.options, generator=episode.generator, episode_id=episode.id
        )
        self._writer.note.start = episode.start
        done = 0
        for moment in drive(self._env, episode, self._wish.mode, self._access):
            done = moment.step
            self._compare(moment)
            self._writer.append(self._row(moment))
        if playable(episode) < len(episode):
            raise DivergedError(f"step {min(episode.refused)} was refused when it was recorded and is missing")
        if done < len(episode):
            raise DivergedError(f"the environment was over after step {done} of {len(episode)}")

    def _compare(self, moment: Moment) -> None:
        if not moment.step:
            return
        for path, value in zip(OUTCOME, (moment.reward, moment.terminated, moment.truncated), strict=True):
            recorded = self._outcome[path][moment.step - 1]
            if (error := largest_difference(recorded, value)) > self._wish.tolerance:
                raise DivergedError(
                    f"step {moment.step}: {path} was {recorded}, is {value}, which differs by {error:.6g}"
                )

    def _row(self, moment: Moment) -> dict[str, Any]:
        row: dict[str, Any] = {"observation": moment.observation, "info": moment.info}
        if self._times is not None:
            row["time"] = float(self._times[moment.step])
        if self._wish.render:
            row["render"] = self._env.render()
            self._writer.declare_render(row["render"])
        for name in self._wish.carried:
            at = moment.step - (name == "extra")
            if at >= 0:
                (row[name],) = self._episode.values(name, at, at + 1)
        if moment.step:
            row |= {"action": moment.action, **dict(zip(OUTCOME, moment[4:], strict=True))}
        return row
