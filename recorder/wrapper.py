"""Recorder: the wrapper that records an environment; it knows no format and hands everything to a writer."""

from __future__ import annotations

import secrets
import sys
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, Literal, SupportsFloat, TypeVar

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Space
from gymnasium.utils import RecordConstructorArgs
from gymnasium.vector import VectorWrapper
from gymnasium.wrappers import Autoreset

from recorder.episode import Episode
from recorder.episodes import Start
from recorder.errors import ClosedError, EpisodeError, RowError
from recorder.leaf import JSON, MOMENT_NAMES
from recorder.recorded import Recorded
from recorder.repeated import WhenBehind
from recorder.replaying.states import GetState, required_get, state_space
from recorder.routing import layouts
from recorder.routing.planning import Plan
from recorder.schema import StepSpace
from recorder.selection import Memory, Selection
from recorder.step_cost import StepCost
from recorder.stepping import Hooks, MeasuredStep, Step, StepResult, compile_measured_step, compile_step
from recorder.storages.base import Storage
from recorder.summary import summarize
from recorder.writing.capacity import Capacity
from recorder.writing.committing import CommitOptions
from recorder.writing.opening import end_for, plain_json
from recorder.writing.origin import origin_of
from recorder.writing.rows import refused
from recorder.writing.writer import Existing, Kept, RecordingWriter

ObsType = TypeVar("ObsType")
ActType = TypeVar("ActType")


class Records:
    """Marks a wrapper that records, of a single environment or of a vector environment."""


class Recorder(Recorded, gym.Wrapper[ObsType, ActType, ObsType, ActType], RecordConstructorArgs, Records):
    """Records every episode of an environment into a folder.

    ```python
    with Recorder(gym.make("CarRacing-v3"), "runs/car") as env:
        ...
    ```

    The environment behaves as without it. Rows of an episode end at `terminated` or `truncated`; until the next
    `reset` the episode can still be labelled, discarded or judged by `keep_if`. Finished episodes are on disk
    within `flush_every` seconds, and after `flush()` or `close()`.
    """

    def __init__(
        self,
        env: gym.Env[ObsType, ActType],
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
        existing: Existing = "append",
        about: Mapping[str, JSON] | None = None,
        flush_every: float = 10.0,
        fsync: bool = True,
        trash: int = 1 << 30,
        capacity: Capacity | None = None,
        digests: bool = True,
        when_behind: WhenBehind = "block",
        verbose: int = 1,
    ) -> None:
        """Wrap `env`; nothing is on disk before its first step.

        Args:
            env: the environment.
            path: the folder of the recording; a matching one is appended to.
            storage: which storage keeps which leaf, from `layout(env, ...)`, or one storage for all.
            metadata: metadata of leaves by path, such as `{"observation/camera": {"kind": "image", "fps": 30}}`.
            extra: spaces of your own values of a step, which `record(...)` gives before each `step`.
            exclude: globs of leaf paths that are not recorded, such as `info/debug*`.
            keep_if: called with each finished `Episode`; a false result puts it aside. It runs on another thread.
            select: which episodes are recorded, and how much of them; by default all of all.
            failures: the folder of a second recording for episodes that `keep_if` does not keep.
            record_render: also keep `env.render()` of every moment, as the leaf `render`.
            record_state: also keep the simulator's state of every moment, as the leaf `state`, for replays that set it:
                True where the environment offers it, or a function `get(env)`.
            auto_seed: give each reset without a seed one of 32 bits, so that every episode replays from its seed.
            existing: what to do when the folder holds a recording: `append`, `refuse`, or `replace` it.
            about: what is said of all episodes: name, author, licence, algorithm, anything JSON.
            flush_every: seconds until a finished episode is on disk; 0 commits it before `reset` returns.
            fsync: whether committed episodes survive a power loss, not only a kill.
            trash: bytes of discarded episodes that are kept in `discarded/`; 0 deletes them at once.
            capacity: how many steps, bytes or episodes the recording keeps; the oldest go as new ones come.
            digests: keep a sum of each picture that is coded with loss, by which a replay is compared exactly.
            when_behind: what becomes of a picture when the encoder or the disk is slower than the loop: `block` waits,
                `repeat` lets the last picture stand for it, `drop` a black one; `repeated/<leaf>` marks such rows.
                Numbers are never skipped, nor is the picture of a reset.
            verbose: what to say at `close`: 0 or False nothing, 1 a line with what is on disk, 2 all that is known.

        Raises:
            MismatchError: the folder holds a recording that differs; the message lists how.
            ExistsError: the folder cannot be used.
            LayoutError: a storage cannot keep a leaf as promised, or `exclude` names no leaf.
            WriteError: nothing can be written there.
        """
        arguments = {name: value for name, value in locals().items() if name not in ("self", "env", "__class__")}
        RecordConstructorArgs.__init__(self, **arguments)
        gym.Wrapper.__init__(self, env)
        if record_render and env.render_mode not in ("rgb_array", "depth_array"):
            raise EpisodeError(
                f"record_render needs an environment with render_mode='rgb_array', this one has {env.render_mode!r}"
            )
        self._select = select or Selection()
        self._memory = Memory(self._select.last_seconds) if self._select.last_seconds is not None else None
        self._skips = when_behind != "block"
        if self._select.pictures_every > 1 and when_behind == "block":
            when_behind = "repeat"  # so rows without a picture have marks; for room the step still waits
        get_state = None
        if record_state:
            get_state = required_get(env, None if record_state is True else record_state, "record_state")
        self._writer = RecordingWriter(
            path,
            StepSpace(env.observation_space, env.action_space, dict(extra or {}), record_render, bool(record_state)),
            storage=storage,
            metadata=metadata,
            exclude=exclude,
            existing=existing,
            keep_if=keep_if,
            options=CommitOptions(
                flush_every=flush_every,
                fsync=fsync,
                trash=trash,
                capacity=capacity,
                digests=digests,
                when_behind=when_behind,
                failures=None if failures is None else Path(failures).absolute(),
            ),
            origin=origin_of(env, about or {}),
        )
        self._extra: dict[str, Any] | None = None
        self._extra_names = tuple(extra or ())
        self._has_extra = bool(extra)
        self._render = record_render
        self._get_state = get_state
        self._auto_seed = auto_seed
        self._autoreset = any(isinstance(level, Autoreset) for level in levels(env))
        self._verbose = verbose
        self._base = env.unwrapped
        self._ignored = 0
        self._numbers = 0
        self._kept = Kept(0, 0)
        self._enough = False
        self._unrecorded_end = False
        self._began = 0.0
        self._broken_at = -1
        self._step: Step = Recorder._step_outside  # or the step that records, while an episode runs
        self._recorded_step: Step | None = None
        self._measured_step: MeasuredStep
        self._skipping_step: MeasuredStep
        self.cost = StepCost()
        self._ring = self._writer.ring
        # The thread keeps the writer alive, so what ends with the wrapper must hang on the wrapper.
        self._finalizer = weakref.finalize(self, self._writer.close)
        self._finalizer.atexit = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[ObsType, dict[str, Any]]:
        """Close the episode before, reset the environment, and begin to record the next.

        Raises:
            RowError: the observation does not fit the space; nothing is recorded until the next `reset`.
            WriteError: work in the background failed since the last call.
        """
        self._finish("reset")
        self._writer.check()
        if seed is None and self._auto_seed:
            seed = secrets.randbelow(1 << 32)
        start = unseeded_start(self._base, options) if seed is None else Start(int(seed), kept_options(options), None)
        observation, info = self.env.reset(seed=seed, options=options)
        self._meet(start, observation, info)
        return observation, info

    def _has_enough(self) -> bool:
        """Return whether as many episodes are kept as are wanted, once `keep_if` has judged them."""
        if self._enough or not self._select.enough(*self._kept):
            return self._enough
        if self._writer.pipeline is not None:
            self._writer.pipeline.catch_up()
        rejected = self._writer.rejected
        # It stays so, since no other episode begins; and no reset waits again.
        self._enough = self._select.enough(self._kept.episodes - rejected.episodes, self._kept.steps - rejected.steps)
        return self._enough

    def _meet(self, start: Start, observation: ObsType, info: dict[str, Any]) -> None:
        """Record the episode that a reset began, remember it, or let it run, as the selection says."""
        number = self._numbers
        self._numbers += 1
        self._unrecorded_end = False
        if self._memory is not None:
            self._memory.clear()
        if self._has_enough():
            self._step = Recorder._unselected_step
        elif self._select.names(number):
            self._begin(start, observation, info)
        elif self._memory is not None:
            self._began = time.perf_counter()
            self._memory.add({"observation": observation, "time": 0.0, **self._seen()}, info)
            self._remembered_start = start
            self._step = Recorder._remembered_step
        else:
            self._step = Recorder._unselected_step

    def _seen(self) -> dict[str, Any]:
        """Return what is looked at in each moment besides the observation."""
        if not self._render and self._get_state is None:
            return {}
        seen = {"render": self.env.render()} if self._render else {}
        return seen | ({"state": self._get_state()} if self._get_state is not None else {})

    def _begin(self, start: Start, observation: ObsType, info: dict[str, Any]) -> None:
        """Open an episode with the observation that a reset gave."""
        writer = self._writer
        writer.begin_checked(start)
        self._began = time.perf_counter()
        try:
            self._put_first({"observation": observation, "time": 0.0, **self._seen()}, info)
        except BaseException:
            writer.finish("reset")
            raise
        self._go_on()

    def _put_first(self, values: dict[str, Any], info: Mapping[str, Any]) -> None:
        """Put row 0 of an episode, the very first of which decides what frames and states look like."""
        if self._render:
            self._writer.declare_render(values["render"])
        if self._get_state is not None:
            self._writer.declare_state(state_space(values["state"]))
        self._writer.prepare(values)
        self._writer.put(values, info)

    def _go_on(self) -> None:
        """Record the steps from here on."""
        if self._writer.ring is not self._ring:  # another leaf was found, or this is a forked child
            self._ring, self._recorded_step = self._writer.ring, None
        self._broken_at = -1
        self._step = self._recorded_step or Recorder._first_step

    def step(self, action: ActType) -> tuple[ObsType, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step the environment and record the transition.

        Raises:
            RowError: the action does not fit, and the environment was not stepped; or what the environment returned
                does not fit, and this step is missing from the recording, which says so.
            WriteError: work in the background failed since the last call; the environment was not stepped.
        """
        return self._step(self, action)

    def _first_step(self, action: ActType) -> StepResult:
        """Step for the first time: the action decides its dtype, and then it is known what a step has to do."""
        writer = self._writer
        if self._has_extra:
            self._require_extra()
        writer.prepare({"action": action} | ({"extra": self._extra} if self._has_extra else {}))
        hooks = Hooks(
            attend=Recorder._attended_step,
            extra=Recorder._put_extra if self._has_extra else None,
            render=Recorder._put_seen if self._render or self._get_state is not None else None,
            put_slowly=Recorder._put_slowly,
            failed=Recorder._failed,
            over=Recorder._over,
        )
        self._measured_step = compile_measured_step(writer, hooks, self.cost)
        self._skipping_step = compile_measured_step(writer, hooks, self.cost, skip=True)
        self._step = self._recorded_step = compile_step(writer, hooks)
        if self._select.pictures_every > 1:
            self._every_step, self._step = self._step, Recorder._sparse_step
            self._recorded_step = self._step
        return self._step(self, action)

    def _sparse_step(self, action: ActType) -> StepResult:
        """Step, and take pictures in every n-th row only."""
        row = self._ring.head
        if (row - self._writer.first_row) % self._select.pictures_every == 0:
            return self._every_step(self, action)
        started = time.perf_counter()
        if row >= self._ring.limit:
            self._writer.boundary(skip=True)
        return self._skipping_step(self, action, started)

    def _attended_step(self, action: ActType) -> StepResult:
        """Step at a row where the worker is woken, or waited for; such steps are measured."""
        started = time.perf_counter()
        skip = self._writer.boundary(skip=self._skips)
        return (self._skipping_step if skip else self._measured_step)(self, action, started)

    def _put_slowly(self, names: tuple[str, ...], skip: bool, slot: int, *values: Any) -> None:
        """Put a part of a row with casts where they are exact.

        Raises:
            RowError: it does not fit; where the environment has stepped, that step is listed as refused.
        """
        try:
            self._writer.compile(names, skip).slow(slot, *values)
        except RowError as error:
            if names == ("action",):
                raise
            raise refused(error, self._writer.calls) from error

    def _put_extra(self, slot: int) -> None:
        """Put what `record` gave for this step."""
        self._require_extra()
        self._writer.compile(("extra",)).slow(slot, self._extra)
        self._extra = None

    def _require_extra(self) -> None:
        if self._extra is None:
            raise RowError(f"this step has no extra values: call record({', '.join(self._extra_names)}) before step")

    def _put_seen(self, skip: bool, slot: int) -> None:
        """Put the frame of this moment, unless there is no room for pictures, and the state."""
        if self._render and not (skip and "render" in self._ring.pictures):
            self._put_slowly(("render",), skip, slot, self.env.render())
        if self._get_state is not None:
            self._put_slowly(("state",), skip, slot, self._get_state())

    def _failed(self, row: int, result: object, error: BaseException) -> None:
        """Take note of what ended a step: the environment raised, its row was refused, or an interrupt came."""
        if result is None:
            self._step = Recorder._step_outside
            self._writer.note.end = end_for(type(error))
        elif self._ring.head == row:
            self._writer.note.refused.append(self._writer.calls)
            self._broken_at = -1 if isinstance(error, RowError) else row
            flags = [isinstance(flag, bool | np.bool_) and bool(flag) for flag in flags_of(result)]
            if any(flags):
                self._over(flags[0])

    def _over(self, terminated: bool) -> None:
        """Take note of the end of the episode; it stays open to `label` and `discard`."""
        self._step = Recorder._step_outside
        self._writer.note.end = "terminated" if terminated else "truncated"

    def _step_outside(self, action: ActType) -> StepResult:
        """Step an environment whose episode has ended or not begun; under `Autoreset` that begins the next one."""
        over = self._writer.episode_id is not None and self._writer.note.end in ("terminated", "truncated")
        if self._autoreset and (over or self._unrecorded_end):
            self._finish("reset")
            self._writer.check()
            start = unseeded_start(self._base, None)
            result = self.env.step(action)
            self._meet(start, result[0], result[4])
            return result
        if not self._ignored:
            warnings.warn(
                "steps after the end of an episode, or before the first reset, are not recorded; call reset()",
                stacklevel=3,
            )
        self._ignored += 1
        return self.env.step(action)

    def _unselected_step(self, action: ActType) -> StepResult:
        """Step in an episode that is not recorded."""
        result = self.env.step(action)
        if self._autoreset and (result[2] or result[3]):
            self._unrecorded_end, self._step = True, Recorder._step_outside
        return result

    def _remembered_step(self, action: ActType) -> StepResult:
        """Step, and keep the row in memory."""
        assert self._memory is not None
        values: dict[str, Any] = {"action": deepcopy(action)}
        if self._has_extra:
            self._require_extra()
            values["extra"], self._extra = self._extra, None
        result = self.env.step(action)
        parts = zip(("observation", "reward", "terminated", "truncated"), result, strict=False)
        now = {"time": time.perf_counter() - self._began}
        self._memory.add(values | dict(parts) | now | self._seen(), result[4])
        if result[2] or result[3]:
            self._unrecorded_end, self._step = True, Recorder._step_outside
        return result

    def trigger(self, **labels: JSON) -> None:
        """Record the last seconds of the running episode from memory, and the rest of it; label it.

        The first row of such an episode comes from the middle of one, unless that is younger than `last_seconds`;
        the label `first_step` is the number of steps before it.

        Raises:
            RowError: a row in memory does not fit; it is listed as refused, and the others are recorded.
            EpisodeError: there is no memory, which `select=Selection(last_seconds=…)` gives; or nothing is in it, since
                no episode has begun, or it was discarded or ended by hand, or as many are kept as are wanted.
        """
        if self._memory is None:
            raise EpisodeError("trigger() needs a memory: pass select=Selection(last_seconds=10)")
        if self._writer.episode_id is not None:
            self._writer.label(**labels)
            return
        if self._enough:
            raise EpisodeError(f"trigger() comes too late: {self._select.limits} is reached, and no more is recorded")
        if not self._memory.rows:
            raise EpisodeError("trigger() has no episode: none has begun, or it was discarded or ended; call reset()")
        self._record_memory(self._memory, labels)

    def _record_memory(self, memory: Memory, labels: Mapping[str, JSON]) -> None:
        """Put the rows that were remembered, and go on with those to come."""
        writer, dropped, ended = self._writer, memory.dropped, self._unrecorded_end
        self._began += memory.rows[0].values["time"]
        (first, info), *rest = memory.take()
        writer.begin_checked(Start(None, None, None) if dropped else self._remembered_start)
        writer.label(**memory.labels, **({"first_step": dropped} if dropped else {}), **labels)
        try:
            self._put_first({name: value for name, value in first.items() if name in MOMENT_NAMES}, info)
        except BaseException:
            writer.finish("reset")
            self._step = Recorder._unselected_step
            raise
        unfit = [error for values, info in rest if (error := self._put_remembered(values, info)) is not None]
        self._go_on()
        if ended:
            self._over(bool(rest and rest[-1].values["terminated"]))
        if unfit:
            raise unfit[0]

    def _put_remembered(self, values: dict[str, Any], info: Mapping[str, Any]) -> RowError | None:
        """Put a row from memory, or list it as refused where it does not fit, and return why."""
        writer = self._writer
        try:
            writer.prepare(values)
            writer.put(values, info)
        except RowError as error:
            call = writer.calls
            writer.note.refused.append(call)
            return refused(error, call)
        return None

    def _finish(self, end: str) -> None:
        """Close the episode that is open, if there is one."""
        if self._writer.episode_id is None:
            return
        if self._writer.ring.head == self._broken_at:
            self._writer.note.end = "interrupted"
        self._step = Recorder._step_outside
        self._kept = self._kept.plus(self._writer.steps)
        self._writer.finish(end)

    # What a user says of the episode.

    def record(self, **values: Any) -> None:
        """Give the values of `extra` for the next `step`.

        Raises:
            RowError: the names are not those of `extra`.
        """
        if set(values) != set(self._extra_names):
            raise RowError(f"record() takes {sorted(self._extra_names)}, got {sorted(values)}")
        self._extra = values

    def label(self, **labels: JSON) -> None:
        """Add labels to the episode: anything JSON, until the next `reset`.

        Raises:
            EpisodeError: there is no episode since the last reset.
        """
        if self._memory is not None and self._writer.episode_id is None:
            self._memory.labels.update(plain_json(labels, "labels"))
        elif self._step is not Recorder._unselected_step:
            self._writer.label(**labels)

    def discard(self, reason: str = "discarded") -> None:
        """Put the episode aside: nothing of it will be in the data; later steps are not recorded until `reset`."""
        if self._is_unrecorded():
            return
        self._step = Recorder._step_outside
        self._writer.discard(reason)

    def end_episode(self, **labels: JSON) -> None:
        """End the episode here and keep it; later steps are not recorded until `reset`."""
        if not self._is_unrecorded():
            self._writer.label(**labels)
            self._finish("ended")

    def _is_unrecorded(self) -> bool:
        """Return whether the running episode was not selected, or is only in memory, which is then cleared."""
        if self._memory is not None and self._writer.episode_id is None:
            self._memory.clear()
            if self._step is Recorder._remembered_step:
                self._step = Recorder._unselected_step
            return True
        return self._step is Recorder._unselected_step

    def flush(self) -> None:
        """Return when every episode that is over is on disk, and the rows of a running one survive a kill."""
        if self._step is Recorder._step_outside:
            self._finish("ended")
        self._writer.flush()

    def close(self) -> None:
        """Commit everything and close the environment; may be called twice."""
        self._close("closed")

    def _close(self, end: str) -> None:
        try:
            first = not self._writer.closed
            self._finish(end)
            self._writer.close(end)
            if first and self._verbose:
                print(summarize(self._writer, self._ignored, self.cost).said(self._verbose), file=sys.stderr)
        finally:
            super().close()

    def __exit__(self, *raised: Any) -> Literal[False]:
        self._close(end_for(raised[0]))
        return False

    @property
    def episode_id(self) -> str | None:
        """The id of the episode since the last reset, or None."""
        return self._writer.episode_id

    def __getstate__(self) -> Any:
        raise ClosedError(
            "a Recorder cannot be copied or pickled: it owns a thread and files. Pass a function that makes it, "
            "such as lambda: Recorder(gym.make(...), path), or its spec"
        )


def flags_of(result: object) -> tuple[object, object]:
    """Return `terminated` and `truncated` of what a step returned, if it looks like that."""
    match result:
        case (_, _, terminated, truncated, _):
            return terminated, truncated
    return False, False


def unseeded_start(base: gym.Env[Any, Any], options: Mapping[str, Any] | None) -> Start:
    """Return the start of an episode without a seed: the state of the generator before the reset.

    At the very first reset, Gymnasium seeds the generator itself; that seed is as good as one that was given.
    """
    unseeded = getattr(base, "_np_random", "none") is None
    generator = getattr(base, "np_random", None)
    state = getattr(getattr(generator, "bit_generator", None), "state", None)
    seed = base.np_random_seed if unseeded and state is not None else None
    return Start(seed, kept_options(options), state)


def kept_options(options: Mapping[str, Any] | None) -> Mapping[str, JSON] | None:
    """Return the options of a reset as JSON; what is not JSON is kept as text, never an error in `reset`."""
    if options is None:
        return None
    try:
        return plain_json(options, "options")
    except ValueError:
        return {str(key): kept_value(value) for key, value in options.items()}


def kept_value(value: Any) -> JSON:
    """Return one option as JSON, or its text marked as such."""
    try:
        return plain_json({"value": value}, "options")["value"]
    except ValueError:
        return {"unkept": repr(value)[:1000]}


def levels(env: Any) -> Iterator[Any]:
    """Yield an environment, or a vector environment, and what it wraps, from the outside in."""
    while True:
        yield env
        if not isinstance(env, gym.Wrapper | VectorWrapper):
            return
        env = env.env


def find(env: Any) -> Any:
    """Return the Recorder in or below the wrappers of an environment, or the VectorRecorder of a vector environment.

    Raises:
        EpisodeError: there is none.
    """
    for level in levels(env):
        if isinstance(level, Records):
            return level
    raise EpisodeError(f"no Recorder is among the wrappers of {env}")


def plan(env: Any, **options: Any) -> Plan:
    """Return what a recording of `env` keeps how, and why: print it, or read its `rows`.

    For an environment with a Recorder it is the plan of that Recorder; the options are those of
    `recorder.routing.layouts.plan`.
    """
    level: Any = next((level for level in levels(env) if isinstance(level, Records)), None)
    if level is None:
        return layouts.plan(env, **options)
    return layouts.plan(level.env, leaves=level.leaves, storage=level.storage, **options)
