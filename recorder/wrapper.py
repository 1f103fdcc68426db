"""Recorder: the wrapper that records an environment; it knows no format and hands everything to a writer."""

from __future__ import annotations

import secrets
import sys
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, SupportsFloat, TypeVar

import gymnasium as gym
from gymnasium.spaces import Space
from gymnasium.utils import RecordConstructorArgs
from gymnasium.wrappers import Autoreset

from recorder.episode import Episode
from recorder.errors import ClosedError, EpisodeError, RowError
from recorder.leaf import JSON, Leaf
from recorder.routing import layouts
from recorder.routing.planning import Plan
from recorder.schema import StepSpace
from recorder.shard import Origin
from recorder.spaces.env_spec import spec_to_json
from recorder.storages.base import Storage
from recorder.storages.dict import DictStorage
from recorder.writing.committing import CommitOptions
from recorder.writing.opening import end_for, plain_json
from recorder.writing.rows import Put, refused
from recorder.writing.writer import Existing, RecordingWriter

ObsType = TypeVar("ObsType")
ActType = TypeVar("ActType")


class Recorder(gym.Wrapper[ObsType, ActType, ObsType, ActType], RecordConstructorArgs):
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
        record_render: bool = False,
        auto_seed: bool = False,
        existing: Existing = "append",
        about: Mapping[str, JSON] | None = None,
        flush_every: float = 10.0,
        fsync: bool = True,
        trash: int = 1 << 30,
        verbose: bool = True,
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
            record_render: also keep `env.render()` of every moment, as the leaf `render`.
            auto_seed: give each reset without a seed one of 32 bits, so that every episode replays from its seed.
            existing: what to do when the folder holds a recording: `append`, `refuse`, or `replace` it.
            about: what is said of all episodes: name, author, licence, algorithm, anything JSON.
            flush_every: seconds until a finished episode is on disk; 0 commits it before `reset` returns.
            fsync: whether committed episodes survive a power loss, not only a kill.
            trash: bytes of discarded episodes that are kept in `discarded/`; 0 deletes them at once.
            verbose: say at `close` what was recorded.

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
        spec = env.spec
        self._writer = RecordingWriter(
            path,
            StepSpace(env.observation_space, env.action_space, dict(extra or {}), record_render),
            storage=storage,
            metadata=metadata,
            exclude=exclude,
            existing=existing,
            keep_if=keep_if,
            options=CommitOptions(flush_every, fsync, trash),
            origin=Origin(
                None if spec is None else spec_to_json(spec),
                layouts.render_fps(env),
                plain_json(about or {}, "about"),
            ),
        )
        self._extra: dict[str, Any] | None = None
        self._extra_names = tuple(extra or ())
        self._has_extra = bool(extra)
        self._render = record_render
        self._auto_seed = auto_seed
        self._autoreset = any(isinstance(level, Autoreset) for level in levels(env))
        self._verbose = verbose
        self._base = env.unwrapped
        self._active = False
        self._attempted = -1
        self._ignored = 0
        self._began = 0.0
        self._ring = self._writer.ring
        self._puts: tuple[Put, Put] | None = None
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
        origin = Start.seeded(seed, options) if seed is not None else Start.of(self._base, options)
        observation, info = self.env.reset(seed=seed, options=options)
        self._begin(origin, observation, info)
        return observation, info

    def _begin(self, start: Start, observation: ObsType, info: dict[str, Any]) -> None:
        """Open an episode with the observation that a reset gave."""
        writer = self._writer
        writer.begin(seed=start.seed, options=start.options, generator=start.generator)
        if writer.ring is not self._ring:  # it is another one in a forked child
            self._ring, self._puts = writer.ring, None
        self._began = time.perf_counter()
        try:
            values = {"observation": observation, "time": 0.0}
            if self._render:
                values["render"] = self.env.render()
                writer.declare_render(values["render"])
            writer.prepare(values)
            writer.put(values, info)
        except BaseException:
            writer.finish("reset")
            raise
        self._attempted = -1
        self._active = True

    def step(self, action: ActType) -> tuple[ObsType, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step the environment and record the transition.

        Raises:
            RowError: the action does not fit, and the environment was not stepped; or what the environment returned
                does not fit, and this step is missing from the recording, which says so.
            WriteError: work in the background failed since the last call; the environment was not stepped.
        """
        if not self._active:
            return self._step_outside(action)
        writer = self._writer
        if self._has_extra and self._extra is None:
            raise RowError(f"this step has no extra values: call record({', '.join(self._extra_names)}) before step")
        if self._puts is None or writer.pipeline is None:
            self._prepare(action)
        ring = writer.ring
        row = ring.head
        if row >= ring.limit:
            writer.boundary()
        if row == self._attempted:
            self._note_hole()
        put_action, put_result = self._puts  # type: ignore[misc]
        slot = row & ring.mask
        try:
            put_action.fast(slot, action)
        except Exception:  # noqa: BLE001 - the plain walk says what is wrong
            put_action.slow(slot, action)
        if self._has_extra:
            self._put_extra(slot)
        self._attempted = row
        try:
            result = self.env.step(action)
        except BaseException as error:
            self._break(error)
            raise
        observation, reward, terminated, truncated, info = result
        now = time.perf_counter() - self._began
        try:
            put_result.fast(slot, observation, reward, terminated, truncated, now)
        except Exception:  # noqa: BLE001 - the plain walk says what is wrong
            self._put_slowly(put_result, slot, (observation, reward, terminated, truncated, now))
        if self._render:
            self._put_render(slot)
        if info:
            writer.info(info)
        ring.head = row + 1
        if terminated or truncated:
            self._active = False
            writer.note.end = "terminated" if terminated else "truncated"
        return result

    def _prepare(self, action: ActType) -> None:
        """Let the first action decide its dtype, and compile what puts a row."""
        writer = self._writer
        writer.prepare({"action": action} | ({"extra": self._extra} if self._has_extra else {}))
        self._puts = (
            writer.compile(("action",)),
            writer.compile(("observation", "reward", "terminated", "truncated", "time")),
        )

    def _put_slowly(self, put: Put, slot: int, values: tuple[Any, ...]) -> None:
        """Put a row with casts where they are exact; a row that does not fit is refused and listed."""
        try:
            put.slow(slot, *values)
        except RowError as error:
            call = self._writer.calls
            self._note_hole()
            raise refused(error, call) from error

    def _put_extra(self, slot: int) -> None:
        """Put what `record` gave for this step."""
        self._writer.compile(("extra",)).slow(slot, self._extra)
        self._extra = None

    def _put_render(self, slot: int) -> None:
        """Put the frame of this moment."""
        self._put_slowly(self._writer.compile(("render",)), slot, (self.env.render(),))

    def _note_hole(self) -> None:
        """List a step that was made and not recorded: it was refused, or interrupted on its way."""
        self._writer.note.refused.append(self._writer.calls)
        self._attempted = -1

    def _break(self, error: BaseException) -> None:
        """End the rows of the episode at a step that raised."""
        self._active = False
        self._attempted = -1
        self._writer.note.end = end_for(type(error))

    def _step_outside(self, action: ActType) -> tuple[ObsType, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step an environment whose episode has ended or not begun; under `Autoreset` that begins the next one."""
        over = self._writer.episode_id is not None and self._writer.note.end in ("terminated", "truncated")
        if self._autoreset and over:
            self._finish("reset")
            self._writer.check()
            start = Start.of(self._base, None)
            result = self.env.step(action)
            self._begin(start, result[0], result[4])
            return result
        if not self._ignored:
            warnings.warn(
                "steps after the end of an episode, or before the first reset, are not recorded; call reset()",
                stacklevel=3,
            )
        self._ignored += 1
        return self.env.step(action)

    def _finish(self, end: str) -> None:
        """Close the episode that is open, if there is one."""
        if self._writer.episode_id is None:
            return
        if self._writer.ring.head == self._attempted:
            self._note_hole()
            self._writer.note.end = "interrupted"
        self._active = False
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
        self._writer.label(**labels)

    def discard(self, reason: str = "discarded") -> None:
        """Put the episode aside: nothing of it will be in the data; later steps are not recorded until `reset`."""
        self._active = False
        self._writer.discard(reason)

    def end_episode(self, **labels: JSON) -> None:
        """End the episode here and keep it; later steps are not recorded until `reset`."""
        self._writer.label(**labels)
        self._finish("ended")

    def flush(self) -> None:
        """Return when every episode that is over is on disk, and the rows of a running one survive a kill."""
        if not self._active:
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
                print(summary(self._writer, self._ignored), file=sys.stderr)
        finally:
            super().close()

    def __exit__(self, *raised: Any) -> Literal[False]:
        self._close(end_for(raised[0]))
        return False

    @property
    def path(self) -> Path:
        """The folder of the recording."""
        return self._writer.path

    @property
    def leaves(self) -> list[Leaf]:
        """The leaves of a row, with the dtypes that are known by now."""
        return self._writer.leaves

    @property
    def storage(self) -> DictStorage:
        """Which storage keeps which leaf."""
        return self._writer.storage

    @property
    def episode_id(self) -> str | None:
        """The id of the episode since the last reset, or None."""
        return self._writer.episode_id

    @property
    def unkept(self) -> dict[str, str]:
        """The keys of infos that hold no data and are not recorded, with the type of what they hold."""
        return dict(self._writer.pipeline.unkept) if self._writer.pipeline is not None else {}

    def __getstate__(self) -> Any:
        raise ClosedError(
            "a Recorder cannot be copied or pickled: it owns a thread and files. Pass a function that makes it, "
            "such as lambda: Recorder(gym.make(...), path), or its spec"
        )


class Start(NamedTuple):
    """What is needed to begin the same episode again."""

    seed: int | None
    options: Mapping[str, JSON] | None
    generator: Mapping[str, Any] | None

    @classmethod
    def seeded(cls, seed: int, options: Mapping[str, Any] | None) -> Start:
        """Return the start of an episode with a seed."""
        return cls(int(seed), kept_options(options), None)

    @classmethod
    def of(cls, base: gym.Env[Any, Any], options: Mapping[str, Any] | None) -> Start:
        """Return the start of an episode without a seed: the state of the generator before the reset.

        At the very first reset, Gymnasium seeds the generator itself; that seed is as good as one that was given.
        """
        unseeded = getattr(base, "_np_random", "none") is None
        generator = getattr(base, "np_random", None)
        state = getattr(getattr(generator, "bit_generator", None), "state", None)
        seed = base.np_random_seed if unseeded and state is not None else None
        return cls(seed, kept_options(options), state)


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


def levels(env: gym.Env[Any, Any]) -> Iterator[gym.Env[Any, Any]]:
    """Yield an environment and what it wraps, from the outside in."""
    while True:
        yield env
        if not isinstance(env, gym.Wrapper):
            return
        env = env.env


def find(env: gym.Env[Any, Any]) -> Recorder[Any, Any]:
    """Return the Recorder in or below the wrappers of an environment.

    Raises:
        EpisodeError: there is none.
    """
    for level in levels(env):
        if isinstance(level, Recorder):
            return level
    raise EpisodeError(f"no Recorder is among the wrappers of {env}")


def plan(env: Any, **options: Any) -> Plan:
    """Return what a recording of `env` keeps how, and why: print it, or read its `rows`.

    For an environment with a Recorder it is the plan of that Recorder; the options are those of
    `recorder.routing.layouts.plan`.
    """
    level = next((level for level in levels(env) if isinstance(level, Recorder)), None)
    if level is None:
        return layouts.plan(env, **options)
    return layouts.plan(level.env, leaves=level.leaves, storage=level.storage, **options)


def summary(writer: RecordingWriter, ignored: int) -> str:
    """Return one line about what was recorded."""
    tally = writer.tally
    parts = [f"{tally.episodes:,} episodes, {tally.steps:,} steps in {writer.path}"]
    if tally.discarded:
        parts.append(f"{tally.discarded:,} put aside")
    if ignored:
        parts.append(f"{ignored:,} steps outside of episodes ignored")
    if writer.pipeline is not None and writer.pipeline.unkept:
        kinds = (f"{path} ({kind})" for path, kind in sorted(writer.pipeline.unkept.items()))
        parts.append(f"no data and not kept: {', '.join(kinds)}")
    return "recorder: " + "; ".join(parts)
