"""RecordingWriter: adds episodes to a recording, with or without an environment."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from gymnasium.spaces import Space

from recorder.columns import Column
from recorder.episode import Episode
from recorder.episodes import ID, EpisodeNote, Start
from recorder.errors import ClosedError, EpisodeError, ExistsError, LayoutError, RowError
from recorder.infos import Unkept, snapshot
from recorder.leaf import JSON, MOMENT_NAMES, Leaf
from recorder.memory import MemoryCommitter, MemoryRecording
from recorder.repeated import mark_leaf
from recorder.schema import (
    NOTE,
    ROW,
    TIMES,
    Schema,
    StepSpace,
    check_marks,
    compare,
    create,
    declare,
    digest_leaves,
    read_schema,
    times_value,
    with_beside,
)
from recorder.shard import Origin
from recorder.spaces.structure import NoNode
from recorder.storages.base import Storage
from recorder.storages.dict import DictStorage
from recorder.writing.capacity import Capacity
from recorder.writing.clearing import clear
from recorder.writing.committing import FAILED, GRACE, CommitOptions, Committer, Tally
from recorder.writing.draft import Draft, FirstValues, first_values
from recorder.writing.ending import close_at_exit, is_closed
from recorder.writing.opening import (
    check_excluded,
    check_same_device,
    check_writable,
    end_for,
    excluder,
    existing_schema,
    plain_json,
    replace_recording,
)
from recorder.writing.pipeline import FORKED, Pipeline, Resumed, Ring
from recorder.writing.recovery import Recovery, recover
from recorder.writing.rows import Put, compile_put, refused
from recorder.writing.staging import Staging

Existing = Literal["append", "refuse", "replace"]


NOWHERE = f"{os.devnull}/memory"
"""The path of a writer that has none: nothing can be made below it."""


class Lane(NamedTuple):
    """An open episode that is not the current one: its rows so far, and when it began."""

    note: EpisodeNote
    rows: int
    began: float


class Kept(NamedTuple):
    """A number of episodes and of their steps."""

    episodes: int
    steps: int

    def plus(self, steps: int) -> Kept:
        """Return this with one more episode of so many steps."""
        return Kept(self.episodes + (steps > 0), self.steps + steps)


PICTURE_BYTES = 4096
"""Smaller arrays are never skipped when the loop is too fast."""


class RecordingWriter:
    """Adds episodes to the recording in a folder, or, without a path, to one in memory.

    ```python
    with RecordingWriter("runs/robot", StepSpace(observation_space, action_space)) as writer:
        writer.begin(seed=3)
        writer.append({"observation": observation})
        writer.append({"observation": observation, "action": action, "reward": 0.0, "terminated": False, ...})
        writer.commit(success=True)
    ```

    With a `StepSpace` an episode has T+1 rows of moments and T of transitions, and the first row has no transition.
    With any other space, also a single Box, a row is one value of the space, and an episode has N of them.
    """

    def __init__(
        self,
        path: Path | str | None,
        space: StepSpace | Space[Any],
        *,
        storage: Storage | None = None,
        metadata: Mapping[str, Mapping[str, JSON]] | None = None,
        exclude: Sequence[str] = (),
        existing: Existing = "append",
        keep_if: Callable[[Episode], object] | None = None,
        options: CommitOptions | None = None,
        origin: Origin | None = None,
        capacity: Capacity | None = None,
    ) -> None:
        """Prepare to record into `path`; nothing is on disk before the first whole row.

        Args:
            path: the folder of the recording, new or to be appended to; None keeps all in memory, as `recording`.
            space: what a row is.
            storage: which storage keeps which leaf, from `layout(...)`, or one storage for all leaves; by default
                that of the recording appended to, else the default layout.
            metadata: metadata of leaves and spaces by path, merged over what the spaces carry.
            exclude: globs of leaf paths that are not recorded, such as `info/debug*`.
            existing: what to do when the folder holds a recording: append if it matches, refuse, or replace it.
            keep_if: called with each finished episode; a false result puts it aside.
            options: when and how finished episodes reach the disk.
            origin: the environment that rows come from, and what is said of all episodes.
            capacity: how many steps, bytes or episodes the recording keeps; the oldest go as new ones come.

        Raises:
            MismatchError: the recording in the folder differs; the message lists how.
            ExistsError: the folder holds a recording, or files that are none, and may not be used.
            LayoutError: a storage cannot keep a leaf as promised, or `exclude` names no leaf.
            WriteError: the folder cannot be written.
        """
        self.memory = MemoryRecording() if path is None else None
        if path is None and storage is not None:
            raise LayoutError(f"in memory rows are kept as they are; storage={storage} is for a folder")
        self.path = Path(NOWHERE if path is None else path).absolute()  # whatever becomes of the working directory
        self.options = options or CommitOptions()
        if capacity is not None:
            self.options = replace(self.options, capacity=capacity)
        self.origin = origin or Origin()
        self.excluded = excluder(exclude)
        self._keep_if = keep_if
        self._draft = Draft(
            self.path,
            space,
            storage,
            metadata=metadata or {},
            excluded=self.excluded,
            fps=self.origin.fps,
            in_memory=path is None,
        )
        check_excluded(exclude, list(declare(self._draft.space).leaves))
        self._closed = False
        self.rejected = Kept(0, 0)
        self._renew()
        self._meet(existing)

    def _renew(self) -> None:
        """Begin as a new writer: at first, and in a forked child."""
        self.writer = secrets.token_hex(6)
        self.ring = self._new_ring()
        self.pipeline: Pipeline | None = None
        self.recovered: list[Recovery] = []
        self._committer: Committer | MemoryCommitter | None = None
        self._note: EpisodeNote | None = None
        self.skipped = 0
        self._episodes = 0
        self._first = 0
        self._opened = False
        self._began = 0.0
        self._lanes: dict[str, Lane] = {}
        self._waiting_events: list[tuple[int, EpisodeNote | Resumed, str | None]] = []
        self._waiting_infos: list[tuple[int, Mapping[str, Any]]] = []
        self._compiled: dict[tuple[tuple[str, ...], bool], Put] = {}
        self._pid = os.getpid()

    def _new_ring(self) -> Ring:
        """Return a ring for the leaves as they are known by now."""
        pictures = [leaf for leaf in self.leaves if self._may_wait(leaf)]
        return Ring(self.leaves, self.options.when_behind, pictures)

    def _may_wait(self, leaf: Leaf) -> bool:
        """Return whether rows of a leaf may be repeated: pictures, of an observation or rendered, that are streamed."""
        storage = self.storage.of(leaf)
        return leaf.per == "moment" and leaf.fixed and leaf.nbytes >= PICTURE_BYTES and not storage.table

    def _meet(self, existing: Existing) -> None:
        """Look at what is in the folder, and take over the schema of a recording that matches."""
        if existing not in get_args(Existing):
            raise ValueError(f"existing={existing!r} is none of {get_args(Existing)}")
        theirs = None
        if self.memory is None:
            if existing == "replace":
                replace_recording(self.path)
            theirs = existing_schema(self.path, beside_others=existing == "replace")
            if theirs is not None and existing == "refuse":
                raise ExistsError(f"{self.path} holds a recording already; pass existing='append' or record elsewhere")
        self._draft.meet(theirs)
        if self.memory is not None:
            self.memory.schema = self.schema
        else:
            check_writable(self.path)
        if self.memory is None and self.options.failures is not None:
            check_same_device(self.path, self.options.failures)
        self.ring = self._new_ring()
        if theirs is not None:
            check_marks(self.path, theirs, list(self.ring.pictures.values()))

    @property
    def schema(self) -> Schema:
        """What all episodes have in common, as far as it is known by now."""
        return self._draft.schema

    @property
    def storage(self) -> DictStorage:
        """Which storage keeps which leaf."""
        return self.schema.storage

    @property
    def leaves(self) -> list[Leaf]:
        """The leaves of a row, with the dtypes that are known by now."""
        return self._draft.leaves

    @property
    def closed(self) -> bool:
        """Whether `close` was called and came to its end."""
        return self._closed

    @property
    def tally(self) -> Tally:
        """What this writer has committed so far."""
        return self._committer.tally if self._committer is not None else Tally()

    @property
    def recording(self) -> MemoryRecording:
        """The episodes that are kept in memory, and are there as soon as they have ended and `flush` was called.

        Raises:
            EpisodeError: this writer has a folder, which `Recording(path)` reads.
        """
        if self.memory is None:
            raise EpisodeError(f"the episodes of this writer are on disk: Recording({str(self.path)!r}) reads them")
        return self.memory

    # Episodes.

    @property
    def episode_id(self) -> str | None:
        """The id of the running episode, or None between episodes."""
        return self._note.id if self._note is not None else None

    @property
    def note(self) -> EpisodeNote:
        """What is known of the running episode.

        Raises:
            EpisodeError: no episode is running.
        """
        if self._note is None:
            raise EpisodeError("no episode is open: call begin() (or reset()) first")
        return self._note

    def begin(
        self,
        *,
        seed: int | None = None,
        options: Mapping[str, JSON] | None = None,
        generator: Mapping[str, Any] | None = None,
        episode_id: str | None = None,
        beside: bool = False,
    ) -> str:
        """Open an episode and return its id: a new one, or that of an episode which is recorded here anew.

        With `beside` other episodes may be open, and stay so: `append(row, episode=id)` says whose row it is.

        Raises:
            ValueError: the id is not of the form of ids.
            EpisodeError: another episode is open.
            ClosedError: the writer is closed.
            WriteError: work in the background failed since the last call.
        """
        if episode_id is not None and not ID.fullmatch(episode_id):
            raise ValueError(f"episode_id={episode_id!r} is no id such as '7f3a9104c2d8-000012'")
        self.check()
        if beside:
            self._step_aside()
        return self.begin_checked(Start(seed, options, generator), episode_id)

    def begin_checked(self, start: Start, episode_id: str | None = None) -> str:
        """Open an episode right after `check`, which asks the system what process this is."""
        if self._note is not None:
            raise EpisodeError(
                f"episode {self._note.id} is still open: commit() or discard() it first, or begin(beside=True)"
            )
        number = self._episodes
        note = EpisodeNote(number, episode_id or f"{self.writer}-{number:06d}", *start, time.time())
        self._episodes += 1
        if self.pipeline is None and not self._lanes:
            self.ring.head = 0
            self._draft.restart()
            self._waiting_events, self._waiting_infos = [], []
        self._first = self.ring.head
        self._began = time.perf_counter()
        self._note = note
        if self.pipeline is not None:
            self.pipeline.begin(note)
        else:
            self._waiting_events.append((self._first, note, None))
        return note.id

    @property
    def open_episodes(self) -> list[str]:
        """The ids of all episodes that are open, the current one last."""
        return [*(episode for episode in self._lanes if episode != self.episode_id), *filter(None, [self.episode_id])]

    def select(self, episode: str) -> None:
        """Let an open episode be the current one, which `append`, `label`, `commit` and `discard` mean.

        Raises:
            EpisodeError: no open episode has this id.
        """
        if episode == self.episode_id:
            return
        if (lane := self._lanes.get(episode)) is None:
            raise EpisodeError(f"no open episode has the id {episode!r}; open are {self.open_episodes}")
        self._step_aside()
        if self.pipeline is not None:
            self.pipeline.resume(lane.note)
        else:
            self._waiting_events.append((self.ring.head, Resumed(lane.note), None))
        self._first, self._began = self.ring.head - lane.rows, lane.began
        self._note = lane.note  # from here on it is the current one, whatever interrupts this
        self._lanes.pop(episode, None)

    def _step_aside(self) -> None:
        """Let no episode be the current one; the one that was stays open."""
        if self._note is not None:
            self._lanes[self._note.id] = Lane(self._note, self.ring.head - self._first, self._began)
            self._note = None

    def extend(self, rows: Iterable[Any], *, episode: str | None = None) -> int:
        """Add rows to the open episode, or to the one with an id; return how many they were.

        Raises:
            RowError: a row does not fit; those before it were recorded, those after it were not looked at.
        """
        count = 0
        for row in rows:
            self.append(row, episode=episode)
            count += 1
        return count

    def append(self, row: Any, *, episode: str | None = None) -> None:
        """Add a row to the open episode, or to the one with an id where several are open.

        In a recording of episodes a row is a mapping: `observation` (and `time` in seconds since `begin`, else now)
        for the first, and also `action`, `reward`, `terminated`, `truncated` and `extra` for the others; `info` may
        come with each. Where the space has `times`, so do `times`: seconds since `begin` by path. Else it is one value
        of the space.

        Raises:
            RowError: the row does not fit; nothing of it was recorded, and the episode goes on.
        """
        if episode is not None:
            self.select(episode)
        note = self.note
        values = {ROW: row} if self.schema.rows == "single" else self._step_values(row)
        info = values.pop("info", None)
        self.prepare(values)
        try:
            self.put(values, info)
        except RowError as error:
            call = self.calls
            note.refused.append(call)
            raise refused(error, call) from error

    def since_begin(self, reading: float | None = None) -> float:
        """Return the seconds from `begin` to now, or to a `reading` of `time.perf_counter()`: the clock of `time`."""
        return (time.perf_counter() if reading is None else reading) - self._began

    def put(self, values: Mapping[str, Any], info: Mapping[str, Any] | None) -> None:
        """Put one whole row, by name of its structures, and make it count."""
        ring = self.ring
        skip = ring.head >= ring.limit and self.boundary(skip=ring.head > self._first)
        put, slot = self.compile(tuple(values), skip), ring.head & ring.mask
        if ring.skipped is not None:
            ring.skipped[slot] = skip
        try:
            put.fast(slot, *values.values())
        except Exception:  # noqa: BLE001 - the plain walk says what is wrong
            put.slow(slot, *values.values())
        if info:
            self.info(info)
        ring.head += 1

    def _step_values(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parts of a row of an episode in a fixed order; row 0 has no transition."""
        if not isinstance(row, Mapping):
            raise RowError(f"a row is a mapping with 'observation', 'action', …, got {type(row).__name__}")
        first = self.ring.head == self._first
        names = [name for name in self.schema.nodes if not first or name in (*MOMENT_NAMES, TIMES)]
        values = {"time": time.perf_counter() - self._began, **row}
        if missing := [name for name in names if name not in values]:
            raise RowError(f"a row lacks {missing}; {'the first row' if first else 'a row'} has {names}")
        if unknown := [name for name in values if name not in names and name not in ("info", "time")]:
            raise RowError(
                f"a row has {unknown}, which it cannot have; {'the first' if first else 'a'} row has {names}"
            )
        if TIMES in names:
            values[TIMES] = times_value(self._draft.space.times, values[TIMES])  # type: ignore[union-attr]
        return {name: values[name] for name in names} | ({"info": row["info"]} if row.get("info") else {})

    @property
    def steps(self) -> int:
        """How many steps (or rows, where a recording is no series of steps) the open episode has."""
        return self.ring.head - self._first - (self.schema.rows == "episode")

    @property
    def first_row(self) -> int:
        """The position of row 0 of the open episode in the ring."""
        return self._first

    @property
    def calls(self) -> int:
        """The number of the next step, counting those that were refused."""
        return self.steps + len(self.note.refused) + 1

    def label(self, **labels: JSON) -> None:
        """Add labels to the open episode: anything JSON.

        Raises:
            EpisodeError: no episode is open.
            ValueError: a label is not JSON.
        """
        self.note.labels.update(plain_json(labels, "labels"))

    def commit(self, episode: str | None = None, /, **labels: JSON) -> None:
        """End the open episode, or the one with an id, and keep it.

        It is on disk within `flush_every` seconds, or after `flush()`.
        """
        if episode is not None:
            self.select(episode)
        self.label(**labels)
        self.finish("ended")

    def discard(self, reason: str = "discarded", *, episode: str | None = None) -> None:
        """End the open episode, or the one with an id, and put it aside: nothing of it is in the data."""
        if episode is not None:
            self.select(episode)
        self.note.labels.setdefault("reason", reason)
        self.finish("ended", reason)

    def finish(self, end: str, reason: str = "") -> None:
        """End the open episode for one of the reasons that the format names; with a `reason` it is put aside."""
        note = self.note
        note.end = note.end or end
        if self.pipeline is not None:
            self.pipeline.end(note, reason)
        else:
            self._waiting_events.append((self.ring.head, note, reason))
        self._note = None
        self._lanes.pop(note.id, None)
        if self.options.flush_every == 0:
            self.flush()

    # What the Recorder does inline, for speed.

    def prepare(self, values: Mapping[str, Any]) -> None:
        """Let the first values of some structures decide their dtypes; open the recording when all are decided.

        Raises:
            RowError: a value does not fit; it decides nothing.
            LayoutError: a storage cannot keep what a leaf turned out to be.
            MismatchError: another process made a different recording in the folder in the meantime.
            ClosedError: this is a forked child, and the episode is its parent's.
        """
        if self._opened:
            return
        if os.getpid() != self._pid:
            raise ClosedError(FORKED)
        fresh = self._draft.fresh(values)
        if fresh or self.pipeline is None:
            self._settle(fresh)
            if self._draft.settled:
                self._open()

    def _first_values(self, name: str, value: Any) -> FirstValues:
        """Yield the leaves of a structure as the first value of it decides them, and the value of each."""
        return first_values(self.schema.nodes[name], value)

    def _settle(self, values: Mapping[str, Any]) -> None:
        """Let the first values of some structures decide their leaves."""
        first = (pair for name, value in values.items() for pair in self._first_values(name, value))
        for leaf in self._draft.settle(values.keys(), first):
            self.ring.set_leaf(leaf)
        self._compiled.clear()

    def declare_render(self, frame: Any) -> None:
        """Let the first rendered frame decide the space of all."""
        if "render" in self._draft.unseen:
            self._draft.see_render(frame)
            self.ring = self._new_ring()

    def declare_state(self, space: Space[Any]) -> None:
        """Let the space of the first state of the simulator be that of all."""
        if "state" in self._draft.unseen:
            self._draft.see("state", space)
            self.ring = self._new_ring()

    def _open(self) -> None:
        """Start the worker, which makes the recording, and hand it the episode that is open."""
        if self.pipeline is None:
            self.schema.storage.check(self.leaves)
            pipeline = self._make_pipeline(lru_cache(4096)(lambda path: not self.excluded(path)))
            close_at_exit(self)
            self.pipeline = pipeline
        self.pipeline.start()
        self._opened = True

    def _make_pipeline(self, keep_info: Callable[[str], bool]) -> Pipeline:
        """Return a pipeline that knows of the episode that is open."""
        moments = self.schema.rows == "episode"
        oldest = self.options.flush_every + GRACE
        pipeline = Pipeline(self.ring, self._make_committer, keep_info, moments=moments, oldest=oldest)
        pipeline.replay(self._waiting_events)
        for position, info in self._waiting_infos:
            pipeline.info(info, position)
        self._waiting_events, self._waiting_infos = [], []
        return pipeline

    def _make_committer(self) -> Committer | MemoryCommitter:
        """Make the recording on disk, or in memory, and what commits to it; called by the worker."""
        if self.memory is not None:
            judge = None if self._keep_if is None else self._judge
            self._committer = MemoryCommitter(self.memory, self.schema, self.origin, self.options, judge)
            return self._committer
        beside = digest_leaves(self.schema) if self.options.digests else []
        kept = with_beside(self.schema, [*beside, *map(mark_leaf, self.ring.pictures.values())])
        if not create(self.path, kept):
            kept = read_schema(self.path)
            self._draft.follow(kept, dtypes=True)
            check_marks(self.path, kept, list(self.ring.pictures.values()))
        if self.options.failures is not None and not create(self.options.failures, kept):
            compare(self.options.failures, read_schema(self.options.failures), kept, dtypes=True)
        self.recovered = recover(self.path)
        staging = Staging.make(self.path, self.writer)
        judge = None if self._keep_if is None else self._judge
        leaves = list(kept.leaves.values())
        try:
            committer = Committer(self.path, kept.storage, leaves, self.origin, self.options, staging, judge)
        except BaseException:
            staging.close()  # the worker tries again
            raise
        self._committer = committer
        return committer

    def _judge(self, note: EpisodeNote, columns: Mapping[str, Column]) -> str | None:
        """Ask `keep_if` whether an episode is to be kept."""
        assert self._keep_if is not None
        if self._keep_if(Episode(self.schema, note, columns)):
            return None
        self.rejected = self.rejected.plus(note.transitions)
        return FAILED

    def compile(self, names: tuple[str, ...], skip: bool = False) -> Put:
        """Return what puts one value of each named structure into a slot of the ring; with `skip`, no pictures."""
        if (names, skip) not in self._compiled:
            nodes = {name: self.schema.nodes.get(name, NoNode()) for name in names}
            skipped = self.ring.pictures if skip else ()
            self._compiled[names, skip] = compile_put(nodes, self.ring.leaves, self.ring.slots, skipped)
        return self._compiled[names, skip]

    def info(self, info: Mapping[str, Any]) -> None:
        """Keep a copy of the info of the row that is about to be complete."""
        copy = snapshot(info)
        if not isinstance(copy, dict):
            copy = {"": Unkept(type(info).__name__)}
        if self.pipeline is not None:
            self.pipeline.info(copy)
        else:
            self._waiting_infos.append((self.ring.head, copy))

    def boundary(self, *, skip: bool = False) -> bool:
        """Wait for room in the ring, and raise what went wrong in the background.

        With `skip` there need be none for pictures, if they may be repeated; return whether there is none.
        """
        if self.pipeline is None:
            if self.ring.head >= self.ring.rows:
                raise EpisodeError(
                    f"{len(self.open_episodes)} episodes have begun, and no step of one has come: of so many rows "
                    f"there is memory for {self.ring.rows}; take a step of one of them first"
                )
            return False
        behind = self.pipeline.boundary(skip=skip and self.ring.skipped is not None)
        self.skipped += behind
        return behind

    def check(self) -> None:
        """Raise what went wrong in the background, or if the writer is closed; begin anew in a forked child."""
        if self._closed:
            raise ClosedError(f"this writer of {self.path} is closed")
        if os.getpid() != self._pid:
            self._renew()
        elif self.pipeline is not None:
            self.pipeline.check()

    def flush(self) -> None:
        """Return when all finished episodes are committed and the rows of the open one survive a kill."""
        if self.pipeline is not None and os.getpid() == self._pid:
            self.pipeline.flush()

    def clear(self) -> int:
        """Put all episodes of the recording into the trash, and return how many they were; it can be recorded into.

        Raises:
            EpisodeError: an episode is open.
            BusyError: another writer is writing into the recording, or another process is editing it.
        """
        self.check()
        if self.open_episodes:
            raise EpisodeError(f"episode {self.open_episodes[-1]} is open: commit() or discard() it first")
        self.flush()
        if self.memory is not None:
            return self.memory.clear()
        if not (self.path / NOTE).exists():
            return 0
        return clear(self.path, self.options.trash, self.writer)

    def close(self, end: str = "closed") -> None:
        """Commit everything, the open episode too, and end the worker; may be called again, also after an interrupt."""
        if self._closed:
            return
        if os.getpid() == self._pid:
            for episode in self.open_episodes:
                self.select(episode)
                self.finish(end)
            if self.pipeline is not None:
                self.pipeline.close()
        self._closed = True
        is_closed(self)

    def leave_to_parent(self) -> None:
        """Refuse the next row: this is a forked child, and the episode and the worker are its parent's."""
        self.ring.limit = -1

    def __getstate__(self) -> Any:
        raise ClosedError(
            "a RecordingWriter cannot be copied or pickled: it owns a thread and files. Make one in each process; any "
            "number may write into one folder"
        )

    def __enter__(self) -> RecordingWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(end_for(kind))
