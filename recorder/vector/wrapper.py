"""VectorRecorder: the wrapper that records a vector environment, each sub-environment's episodes for themselves."""

from __future__ import annotations

import secrets
import sys
import time
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from gymnasium.spaces import Space
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from numpy.typing import NDArray

from recorder.episode import Episode
from recorder.episodes import Start
from recorder.errors import ClosedError, EpisodeError, RowError
from recorder.leaf import JSON
from recorder.recorded import Recorded
from recorder.replaying.states import GetState
from recorder.schema import StepSpace
from recorder.selection import Selection
from recorder.storages.base import Storage
from recorder.summary import summarize
from recorder.vector.environments import (
    Generators,
    autoreset_mode,
    generator_states,
    is_split,
    origin_of_lanes,
    starts_of,
    taken_mask,
)
from recorder.vector.events import Hole, Reset, Said, Starts, Stopped
from recorder.vector.resetting import Resetting, final_observation, finals_of
from recorder.vector.seeing import Sight
from recorder.vector.writer import VectorWriter
from recorder.wrapper import Records, kept_options
from recorder.writing.capacity import Capacity
from recorder.writing.committing import CommitOptions
from recorder.writing.opening import end_for, plain_json
from recorder.writing.writer import Existing

RESULT = ("observation", "reward", "terminated", "truncated", "time")
"""What of a row comes from the environment's step, in the order in which it is put."""

Mask = NDArray[np.bool_]
VectorResult = tuple[Any, Any, Any, Any, dict[str, Any]]


class VectorRecorder(Recorded, VectorWrapper[Any, Any, Any, Any, Any], Records):
    """Records every episode of every sub-environment of a vector environment into one folder.

    ```python
    with VectorRecorder(gym.make_vec("CartPole-v1", num_envs=64), "runs/cartpole") as envs:
        ...
    ```

    The environment behaves as without it. An episode of a sub-environment is one like any other: T+1 observations,
    the final one among them in every autoreset mode, and `env_index` in its labels. The rows that a vector
    environment fills in while it resets are not recorded.
    """

    _writer: VectorWriter

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        path: Path | str,
        *,
        storage: Storage | None = None,
        metadata: Mapping[str, Mapping[str, JSON]] | None = None,
        extra: Mapping[str, Space[Any]] | None = None,
        exclude: Sequence[str] = (),
        keep_if: Callable[[Episode], object] | None = None,
        select: Selection | None = None,
        failures: Path | str | None = None,
        record_render: bool = False,
        record_state: bool | GetState = False,
        auto_seed: bool = False,
        generators: bool = True,
        autoreset_mode: AutoresetMode | str | None = None,
        existing: Existing = "append",
        about: Mapping[str, JSON] | None = None,
        flush_every: float = 10.0,
        fsync: bool = True,
        trash: int = 1 << 30,
        capacity: Capacity | None = None,
        digests: bool = True,
        when_behind: Literal["block"] = "block",
        verbose: int = 1,
    ) -> None:
        """Wrap `env`; nothing is on disk before its first step.

        Args:
            env: the vector environment: Sync, Async, or any other.
            path: the folder of the recording; a matching one is appended to, also one of single environments.
            storage: which storage keeps which leaf, from `layout(...)`, or one storage for all.
            metadata: metadata of leaves of one sub-environment by path.
            extra: spaces of your own values of a step of one sub-environment; `record(...)` gives them as batches.
            exclude: globs of leaf paths that are not recorded, such as `info/debug*`.
            keep_if: called with each finished `Episode`; a false result puts it aside. It runs on another thread.
            select: which episodes are recorded, counted over all sub-environments in the order in which they begin.
            failures: the folder of a second recording for episodes that `keep_if` does not keep.
            record_render: also keep what `env.render()` shows of each sub-environment, as the leaf `render`.
            record_state: also keep the state of each sub-environment, as the leaf `state`: True where they offer it, or
                a function `get(env)`, which for others than a SyncVectorEnv is given the vector environment and
                returns a state for each.
            auto_seed: give each reset without a seed one of 32 bits for each sub-environment.
            generators: keep the state of a sub-environment's generator before a reset without a seed, by which its
                episode replays. An AsyncVectorEnv is asked for them at the end of episodes.
            autoreset_mode: how sub-environments are reset, where `env.metadata["autoreset_mode"]` does not say it.
            existing: what to do when the folder holds a recording: `append`, `refuse`, or `replace` it.
            about: what is said of all episodes: name, author, licence, algorithm, anything JSON.
            flush_every: seconds until a finished episode is on disk.
            fsync: whether committed episodes survive a power loss, not only a kill.
            trash: bytes of discarded episodes that are kept in `discarded/`; 0 deletes them at once.
            capacity: how many steps, bytes or episodes the recording keeps; the oldest go as new ones come.
            digests: keep a sum of each picture that is coded with loss, by which a replay is compared exactly.
            when_behind: `block`: a step waits where the encoder or the disk is slower. Nothing else can be had.
            verbose: what to say at `close`: 0 or False nothing, 1 a line with what is on disk, 2 all that is known.

        Raises:
            MismatchError: the folder holds a recording that differs; the message lists how.
            ExistsError: the folder cannot be used.
            LayoutError: a storage cannot keep a leaf as promised, or `exclude` names no leaf.
            EpisodeError: the autoreset mode is none of Gymnasium's; or frames, states or pictures that are left out
                cannot be had, and the message says why.
            WriteError: nothing can be written there.
        """
        super().__init__(env)
        if when_behind != "block":
            raise EpisodeError(
                f"when_behind={when_behind!r} is for single Recorders: in any step of a vector environment a "
                f"sub-environment may begin an episode, whose picture cannot be left out. A VectorRecorder waits"
            )
        self._resetting = Resetting(env, _mode_of(env, autoreset_mode))
        self._sight = Sight(env, render=record_render, state=record_state)
        self._writer = VectorWriter(
            path,
            StepSpace(
                env.single_observation_space,
                env.single_action_space,
                dict(extra or {}),
                record_render,
                bool(record_state),
            ),
            lanes=env.num_envs,
            select=_for_vectors(select),
            storage=storage,
            metadata=metadata,
            exclude=exclude,
            existing=existing,
            keep_if=keep_if,
            options=CommitOptions(
                flush_every,
                fsync,
                trash,
                digests,
                failures=None if failures is None else Path(failures).absolute(),
                capacity=capacity,
            ),
            origin=origin_of_lanes(env, self._resetting.mode, about or {}),
        )
        self._extra: dict[str, Any] | None = None
        self._extra_names = tuple(extra or ())
        self._auto_seed = auto_seed
        self._split = is_split(env)
        self._generators = generators and self._split
        self._verbose = verbose
        self._recording = False
        self._ready = False
        self._ended: Mask = np.zeros(env.num_envs, bool)
        self._ignored = 0
        # The thread keeps the writer alive, so what ends with the wrapper must hang on the wrapper.
        self._finalizer = weakref.finalize(self, self._writer.close)
        self._finalizer.atexit = False

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Close the episodes of the sub-environments that are reset, and begin to record their next ones.

        Raises:
            RowError: the observations do not fit the space; nothing is recorded until the next `reset`.
            WriteError: work in the background failed since the last call.
        """
        mask, others = taken_mask(options, self.num_envs)
        if mask.all():
            self._recording = False
            self._writer.restart()
        self._writer.check()
        if seed is None and self._auto_seed:
            seeds = [secrets.randbelow(1 << 32) for _ in range(self.num_envs)]
            seed = seeds if self._split else seeds[0]
        generators = Generators(self._generators, unused=not self._ready)
        starts = starts_of(self.env, seed, np.flatnonzero(mask).tolist(), kept_options(others), generators)
        observations, infos = self.env.reset(seed=seed, options=options)
        self._begin(mask, starts, self._labels_of(seed), observations, infos)
        return observations, infos

    def _labels_of(self, seed: Any) -> dict[str, JSON]:
        """Return the seed of a batched environment as a label: it is the seed of no sub-environment."""
        return {"vector_seed": int(seed)} if isinstance(seed, int | np.integer) and not self._split else {}

    def _begin(
        self, mask: Mask, starts: Mapping[int, Start], labels: Mapping[str, JSON], observations: Any, infos: Any
    ) -> None:
        """Record the row of a reset."""
        writer = self._writer
        try:
            values = {"observation": observations, "time": time.perf_counter(), **self._sight.look(writer)}
            writer.prepare(values)
            self._room()
            self._put(tuple(values), tuple(values.values()))
            if infos:
                writer.infos(infos)
            writer.tell(Starts(starts))
            writer.tell(Reset(mask, labels))
            writer.ring.head += 1
        except BaseException:
            self._stop("reset")
            raise
        self._ended &= ~mask
        self._recording = True

    def _room(self) -> None:
        """Wait for room in the ring, and raise what went wrong in the background."""
        if self._writer.ring.head >= self._writer.ring.limit:
            self._writer.boundary()

    def _put(self, names: tuple[str, ...], values: tuple[Any, ...]) -> None:
        """Put a part of the row that is about to be complete."""
        ring = self._writer.ring
        put = self._writer.compile(names)
        try:
            put.fast(ring.head & ring.mask, *values)
        except Exception:  # noqa: BLE001 - the plain walk says what is wrong
            put.slow(ring.head & ring.mask, *values)

    def step(self, actions: Any) -> VectorResult:
        """Step all sub-environments and record their transitions.

        Raises:
            RowError: the actions do not fit, and the environment was not stepped; or what the environment returned
                does not fit, and this step is missing from all its episodes, which say so.
            WriteError: work in the background failed since the last call; the environment was not stepped.
        """
        if not self._recording:
            return self._step_outside(actions)
        self._put_actions(actions)
        row, result = self._writer.ring.head, None
        try:
            result = self.env.step(actions)
            done = self._put_result(*result)
            self._writer.ring.head = row + 1
        except BaseException as error:
            self._failed(row, result, error)
            raise
        self._ended = done
        return result

    def _put_actions(self, actions: Any) -> None:
        writer = self._writer
        extra = {"extra": self._given_extra()} if self._extra_names else {}
        if not self._ready:
            writer.prepare({"action": actions, **extra})
            self._ready = True
            assert writer.cutter is not None
            writer.cutter.mode = self._resetting.mode
        self._room()
        self._put(("action", *extra), (actions, *extra.values()))
        self._extra = None

    def _given_extra(self) -> Mapping[str, Any]:
        if self._extra is None:
            raise RowError(f"this step has no extra values: call record({', '.join(self._extra_names)}) before step")
        return self._extra

    def _put_result(self, observations: Any, rewards: Any, terminations: Any, truncations: Any, infos: Any) -> Mask:
        """Put the rest of a row; return which sub-environments have ended in it."""
        values = (observations, _exact_floats(rewards), np.asarray(terminations), np.asarray(truncations))
        done: Mask = np.logical_or(values[2], values[3])
        self._put(RESULT, (*values, time.perf_counter()))
        if seen := self._sight.look(self._writer):
            self._put(tuple(seen), tuple(seen.values()))
        if self._ended.any():
            self._resetting.check_step(values[1], done, self._ended)
        lanes = np.flatnonzero(done).tolist()
        if lanes:
            self._end(lanes, infos)
        if infos:
            self._writer.infos(infos)
        return done

    def _end(self, lanes: Sequence[int], infos: Any) -> None:
        """Take what there is of sub-environments that ended: their final observations, or how they will begin."""
        final, schema = final_observation(infos), self._writer.schema
        if final is not None:
            self._resetting.meet_final()
            if self._writer.cutter is not None:
                self._writer.cutter.mode = self._resetting.mode
        if self._resetting.mode == AutoresetMode.SAME_STEP:
            self._writer.tell(finals_of(lanes, final, self, schema.nodes["observation"], schema.leaves))
        elif self._resetting.mode == AutoresetMode.NEXT_STEP and self._generators:
            starts = dict(zip(lanes, generator_states(self.env, lanes), strict=True))
            self._tell_next(Starts(starts))

    def _tell_next(self, event: Any) -> None:
        """Let something belong to the row after the one that is about to be complete."""
        assert self._writer.cutter is not None
        self._writer.cutter.tell(event, self._writer.ring.head + 1)

    def _failed(self, row: int, result: VectorResult | None, error: BaseException) -> None:
        """Take note of what ended a step: the environment raised, its row was refused, or an interrupt came."""
        if result is None:
            self._stop(end_for(type(error)))
        elif self._writer.ring.head == row:
            flags = [np.asarray(flag) for flag in result[2:4]]
            fit = all(flag.shape == (self.num_envs,) for flag in flags)
            terminated, truncated = (flag.astype(bool) for flag in (flags if fit else [self._ended & False] * 2))
            self._writer.tell(Hole(terminated, truncated))
            self._ended = terminated | truncated

    def _stop(self, end: str) -> None:
        """Record nothing until the next reset."""
        self._recording = False
        self._writer.finish_all(end)

    def _step_outside(self, actions: Any) -> VectorResult:
        """Step without recording: before the first reset, or after what ended all episodes."""
        if not self._ignored:
            warnings.warn("steps before a reset of all sub-environments are not recorded; call reset()", stacklevel=3)
        self._ignored += self.num_envs
        return self.env.step(actions)

    # What a user says of an episode.

    def record(self, **values: Any) -> None:
        """Give the values of `extra` for the next `step`, each a batch with a value for each sub-environment.

        Raises:
            RowError: the names are not those of `extra`.
        """
        if set(values) != set(self._extra_names):
            raise RowError(f"record() takes {sorted(self._extra_names)}, got {sorted(values)}")
        self._extra = values

    def label(self, env_index: int, **labels: JSON) -> None:
        """Add labels to the episode that a sub-environment was in at the last step: anything JSON.

        Also one that ended there can still be labelled, until the next `step`.

        Raises:
            EpisodeError: there is no such sub-environment, or no episode since the last reset.
            ValueError: a label is not JSON.
        """
        self._writer.tell(Said(self._lane(env_index), plain_json(labels, "labels")))

    def discard(self, env_index: int, reason: str = "discarded") -> None:
        """Put the episode of a sub-environment aside; its later steps are not recorded until its next episode."""
        self._writer.tell(Stopped(self._lane(env_index), "ended", reason))

    def end_episode(self, env_index: int, **labels: JSON) -> None:
        """End the episode of a sub-environment here and keep it; later steps are not recorded until its next one."""
        self.label(env_index, **labels)
        self._writer.tell(Stopped(self._lane(env_index), "ended", ""))

    def _lane(self, env_index: int) -> int:
        if not 0 <= env_index < self.num_envs:
            raise EpisodeError(f"sub-environment {env_index} of {self.num_envs}, which are counted from 0")
        if not self._recording:
            raise EpisodeError("no episode is open: call reset() first")
        return int(env_index)

    def flush(self) -> None:
        """Return when every episode that is over is on disk, and the rows of running ones survive a kill."""
        self._writer.flush()

    def close(self, **kwargs: Any) -> None:
        """Commit everything and close the environment; may be called twice."""
        self._close("closed", **kwargs)

    def _close(self, end: str, **kwargs: Any) -> None:
        try:
            first = not self._writer.closed
            self._recording = False
            self._writer.close(end)
            if first and self._verbose:
                ignored = self._ignored + (self._writer.cutter.ignored if self._writer.cutter is not None else 0)
                print(summarize(self._writer, ignored).said(self._verbose), file=sys.stderr)
        finally:
            super().close(**kwargs)

    def __enter__(self) -> VectorRecorder:
        return self

    def __exit__(self, *raised: Any) -> Literal[False]:
        self._close(end_for(raised[0]))
        return False

    @property
    def autoreset_mode(self) -> AutoresetMode:
        """How sub-environments are reset."""
        return self._resetting.mode

    def __getstate__(self) -> Any:
        raise ClosedError("a VectorRecorder cannot be copied or pickled: it owns a thread and files")


def _for_vectors(select: Selection | None) -> Selection | None:
    """Return a selection, if it is one of whole episodes."""
    if select is not None and (select.last_seconds is not None or select.pictures_every > 1):
        raise EpisodeError("a VectorRecorder selects whole episodes, so not by last_seconds or pictures_every")
    return select


def _mode_of(env: VectorEnv[Any, Any, Any], given: AutoresetMode | str | None) -> AutoresetMode:
    return autoreset_mode(env, given)


def _exact_floats(rewards: Any) -> Any:
    """Return rewards as float64, which holds what most simulators give; others are left to the plain walk."""
    array = np.asarray(rewards)
    return array.astype(np.float64) if array.dtype.name in ("float32", "float16", "int32", "int16", "int8") else array
