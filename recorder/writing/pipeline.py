"""The pipeline: rows wait in a ring of bounded size until a worker takes them to the storages.

The ring has two counters. `head` is stored by the stepping thread only, when a row is complete; `tail` by the worker
only, when rows have been taken over. So an interrupt at any point leaves it whole, and no lock is held that a Ctrl-C
could leave locked.
"""

from __future__ import annotations

import math
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from recorder.columns import Array, Rows
from recorder.episodes import EpisodeNote
from recorder.errors import ClosedError, RecorderError, WriteError
from recorder.infos import flatten, size, sparse_columns, unkept
from recorder.leaf import Leaf
from recorder.repeated import WhenBehind, mark_path, stand_in
from recorder.storages.base import Run
from recorder.writing.advice import advice_for
from recorder.writing.rows import Slots, empty_slots, slot_rows

RING_BYTES = 64 << 20
"""Memory for rows that wait; also the bound for infos, text and ragged rows that wait beside the ring."""

RING_ROWS = 8192
"""More rows than this gain nothing."""

BATCH_BYTES = 4 << 20
"""The worker is woken for so many bytes, or for half a ring: to wake it costs both threads more than small rows do."""

EACH_BELOW, ATTEND_EVERY, MOST_STRIDE = 1250.0, 4e-3, 256
"""Below so many rows a second each step is measured, above it one in so many seconds, or in so many steps: it costs
some microseconds more than others."""

PATIENCE = 0.05
"""Seconds that the worker rests after something went wrong."""

FORKED = "this recorder belongs to the process that made it; a forked child starts its own at `reset`"


class Resumed(NamedTuple):
    """Stands among the events for an episode whose rows go on after those of another one."""

    note: EpisodeNote


class Sink(Protocol):
    """What the worker feeds: it keeps rows, commits, and says when it next wants to be called."""

    def begin(self, note: EpisodeNote) -> None:
        """Expect rows of a new episode."""

    def end(self, note: EpisodeNote, reason: str) -> None:
        """Take the end of an episode; with a reason it is to be put aside."""

    def append(self, rows: Mapping[str, Rows], runs: Sequence[Run]) -> None:
        """Take rows of some segments."""

    saved: float
    """All rows that were taken over before this time, of the monotonic clock, survive a kill."""

    def tick(self, taken: float) -> float:
        """Do what is due by the clock; return the seconds until something is due again.

        All rows of before `taken` have been taken over.
        """

    def flush(self, taken: float) -> None:
        """Commit what is finished and checkpoint what is running."""

    def close(self) -> None:
        """Commit all and give up everything."""


class Ring:
    """Slots for rows of fixed leaves in arrays, and for text and ragged rows in lists."""

    def __init__(
        self, leaves: Sequence[Leaf], when_behind: WhenBehind = "block", pictures: Sequence[Leaf] = ()
    ) -> None:
        """Make slots; with another `when_behind` than `block` those of `pictures` may be fewer than rows."""
        self.leaves = {leaf.path: leaf for leaf in leaves}
        self.pictures = {} if when_behind == "block" else {leaf.path: leaf for leaf in pictures}
        row_bytes = sum(leaf.nbytes for leaf in leaves) or 1
        self.frames = _slots_for(row_bytes)
        self.rows = _slots_for(sum(leaf.nbytes for leaf in leaves if leaf.path not in self.pictures))
        self.mask = self.rows - 1
        self.batch = 1 << max(0, min(self.frames // 2, BATCH_BYTES // row_bytes).bit_length() - 1)
        self.slots: dict[str, Slots] = {leaf.path: empty_slots(leaf, self._slots(leaf)) for leaf in leaves}
        self.skipped = bytearray(self.rows) if self.pictures else None
        self._black = when_behind == "drop"
        self._last: dict[str, Array] = {}
        self.head = 0
        self.tail = 0
        self.limit = self.batch

    def set_leaf(self, leaf: Leaf) -> None:
        """Give a leaf the dtype that its first row decides, before that row is put."""
        if leaf != self.leaves[leaf.path]:
            self.leaves[leaf.path] = leaf
            self.slots[leaf.path] = empty_slots(leaf, self._slots(leaf))

    def _slots(self, leaf: Leaf) -> int:
        return self.frames if leaf.path in self.pictures else self.rows

    def take(self, start: int, stop: int) -> dict[str, Rows]:
        """Return the rows `[start, stop)`, which do not cross the end of any slots; arrays are views of them."""
        rows: dict[str, Rows] = {}
        for path, leaf in self.leaves.items():
            size = self._slots(leaf)
            rows[path] = slot_rows(leaf, self.slots[path], start % size, (stop - 1) % size + 1)
        if self.skipped is not None:
            self._complete(rows, np.frombuffer(self.skipped, bool)[start % self.rows : (stop - 1) % self.rows + 1])
        return rows

    def _complete(self, rows: dict[str, Rows], marks: NDArray[np.bool_]) -> None:
        """Let other pictures stand for those that were not taken, and add the marks of these rows."""
        for path, leaf in self.pictures.items():
            taken = rows[path]
            assert isinstance(taken, np.ndarray)
            if marks.any():
                # The very first row is a reset, whose picture is always taken.
                last = None if self._black else self._last.get(path, taken[0])
                taken = rows[path] = stand_in(taken, marks, last)
            self._last[path] = taken[-1].copy()
            rows[mark_path(leaf)] = marks.copy()


def _slots_for(row_bytes: int) -> int:
    """Return for how many rows of this size there is room: a power of two."""
    return 1 << max(3, min(RING_ROWS, RING_BYTES // (row_bytes or 1)).bit_length() - 1)


class Pipeline:
    """A ring, a queue of events at positions in it, and the worker thread that empties both into a sink."""

    def __init__(
        self,
        ring: Ring,
        make_sink: Callable[[], Sink],
        keep_info: Callable[[str], bool],
        *,
        moments: bool = True,
        oldest: float = math.inf,
    ) -> None:
        """Prepare; with `moments`, row 0 of a segment has no transition.

        No row is put while others have waited longer than `oldest` seconds to be saved.
        """
        self.ring = ring
        self._moments = moments
        self._oldest = oldest
        self._over = threading.Event()
        self._failing = False
        self.waited = 0.0
        self.unkept: dict[str, str] = {}
        self._make_sink = make_sink
        self._sink: Sink | None = None
        self._keep_info = keep_info
        self._events: deque[tuple[int, Any, str | None]] = deque()
        self._infos: deque[tuple[int, Any, int]] = deque()
        self._info_bytes = [0, 0]
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._asked = 0
        self._drains = 0
        self._done = 0
        self._closing = False
        self._closed = False
        self._error: BaseException | None = None
        self._pid = os.getpid()
        self._segment: int | None = None
        self._fresh = False
        self._unstarted: set[int] = set()
        self._claim = threading.Lock()
        self._next_wake = ring.batch
        self._attended = time.perf_counter(), 0
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the worker, which opens the sink, and wait until it has; may be called again after an interrupt.

        All the work is done by the worker, where no Ctrl-C can leave it half done. Rows, infos and events from before
        wait for it.
        """
        while self._thread is None:
            # Should an interrupt have hidden a worker that did start, only one of two gets the claim.
            threading.Thread(target=self._work, name="recorder", daemon=True).start()
            time.sleep(0)
        self._wait(lambda: self._sink is not None or self._error is not None)
        self.check()

    # The stepping thread's side.

    def boundary(self, *, skip: bool = False) -> bool:
        """Wake the worker if it is time, wait until there is room, and raise what went wrong in the background.

        With `skip` there need be no room for pictures, only for the rest of a row; return whether there is none.

        Raises:
            WriteError: work in the background failed.
            ClosedError: the pipeline is closed, or belongs to another process.
        """
        ring = self.ring
        rows = ring.rows if skip else ring.frames
        # Whoever would rather have a picture twice than wait does not wait for late saving either.
        latest = math.inf if skip else 0.0
        if ring.head >= self._next_wake or not self._has_room(rows, latest):
            self._next_wake = (ring.head // ring.batch + 1) * ring.batch
            self._wake.put(None)
        if not self._has_room(rows, latest):
            self._wait(lambda: self._has_room(rows, latest) or self._error is not None)
        ring.limit = min(self._next_wake, ring.tail + ring.frames, ring.head + self._stride())
        self.check()
        return ring.head - ring.tail >= ring.frames

    def _has_room(self, rows: int, latest: float) -> bool:
        waiting = self.ring.head - self.ring.tail, self._info_bytes[0] - self._info_bytes[1]
        return waiting[0] < rows and waiting[1] <= RING_BYTES and self._late() <= latest

    def _stride(self) -> int:
        """Return for how many rows nothing need be attended to: one of a slow loop, milliseconds of a fast one."""
        now, before = time.perf_counter(), self._attended
        self._attended = now, self.ring.head
        pace = (self.ring.head - before[1]) / max(now - before[0], 1e-9)
        return 1 if pace <= EACH_BELOW else min(MOST_STRIDE, int(ATTEND_EVERY * pace))

    def _late(self) -> float:
        """Return by how many seconds a row has waited too long to be saved; less than nothing if none has.

        Where saving fails, waiting does not help: that was raised, and is raised again as often as it fails.
        """
        if self._sink is None or self._failing:
            return -self._oldest
        return time.monotonic() - self._sink.saved - self._oldest

    def check(self) -> None:
        """Raise what went wrong in the background, once, and whether this is the wrong time or process."""
        if os.getpid() != self._pid:
            raise ClosedError(FORKED)
        if self._error is not None:
            error, self._error = self._error, None
            if isinstance(error, RecorderError) and not advice_for(error):
                raise error
            what = f"{error}" if isinstance(error, RecorderError) else f"{type(error).__name__}: {error}"
            raise WriteError(f"recording failed in the background: {what}{advice_for(error)}") from error
        if self._closed:
            raise ClosedError("this recorder is closed")

    def info(self, snapshot: Mapping[str, Any], position: int | None = None) -> None:
        """Add the info of the row that is about to be complete, or of the one at `position`."""
        weight = size(snapshot)
        self._info_bytes[0] += weight
        self._infos.append((self.ring.head if position is None else position, snapshot, weight))
        if self._info_bytes[0] - self._info_bytes[1] > RING_BYTES:
            self.ring.limit = -1

    def begin(self, note: EpisodeNote, position: int | None = None) -> None:
        """Let the rows from here on, or from `position`, belong to an episode."""
        self._events.append((self.ring.head if position is None else position, note, None))

    def resume(self, note: EpisodeNote, position: int | None = None) -> None:
        """Let the rows from here on, or from `position`, belong to an episode that was begun before another one."""
        self._events.append((self.ring.head if position is None else position, Resumed(note), None))

    def end(self, note: EpisodeNote, reason: str = "", position: int | None = None) -> None:
        """Let the rows of an episode end here, or at `position`; with a reason it is to be put aside."""
        self._events.append((self.ring.head if position is None else position, note, reason))

    def replay(self, events: Sequence[tuple[int, EpisodeNote | Resumed, str | None]]) -> None:
        """Take over what began, went on and ended before this pipeline was made."""
        self._events.extend(events)

    def flush(self) -> None:
        """Wait until all rows so far are on disk: finished segments committed, running ones checkpointed."""
        self.check()
        self._asked += 1
        asked = self._asked
        self._wake.put(None)
        self._wait(lambda: self._done >= asked)
        self.check()

    def catch_up(self) -> None:
        """Wait until the worker has taken over all rows and ends so far, and `keep_if` has judged them."""
        begun = self._drains

        def caught_up() -> bool:
            self._wake.put(None)
            return self._drains >= begun + 2 or self._error is not None  # one may have begun before

        self._wait(caught_up)
        self.check()

    def close(self) -> None:
        """Wait until everything is committed and the worker has ended; may be called again after an interrupt."""
        if self._closed or os.getpid() != self._pid:
            return
        self._closing = True
        self._wake.put(None)
        thread = self._thread
        if thread is not None and threading.current_thread() is not thread:
            self._wait(lambda: not thread.is_alive())
        self._closed = True
        self.ring.limit = -1
        if self._error is not None:
            self._closed = False
            try:
                self.check()
            finally:
                self._closed = True

    def _wait(self, ready: Callable[[], bool]) -> None:
        """Wait for the worker in short naps, so that its death or a fork cannot hang the caller."""
        started, nap = time.perf_counter(), 0.0001
        while not ready():
            if self._thread is None or not (self._thread.is_alive() or self._closing):
                raise WriteError("the recorder's worker thread has ended; rows since the last commit stay in staging")
            time.sleep(nap)
            nap = min(nap * 1.5, 0.005)
        self.waited += time.perf_counter() - started

    # The worker's side.

    def _work(self) -> None:
        if not self._claim.acquire(blocking=False):
            return
        self._thread = threading.current_thread()
        while self._sink is None and not self._closing:
            self._guard(self._open)
        watcher = self._start_watcher()
        while not self._closing:
            if not self._guard(self._round):
                self._failing = True
                time.sleep(PATIENCE)
        if self._sink is not None:
            self._guard(self._drain)
            self._guard(self._sink.close)
        self._over.set()
        if watcher is not None:
            watcher.join()

    def _start_watcher(self) -> threading.Thread | None:
        """Start what stops the stepping thread when saving is late, which the worker is too busy for just then."""
        if not math.isfinite(self._oldest):
            return None
        watcher = threading.Thread(target=self._watch, name="recorder-watch", daemon=True)
        try:
            watcher.start()
        except RuntimeError:  # the interpreter ends, and starts no more threads
            return None
        return watcher

    def _watch(self) -> None:
        while not self._over.wait(max(-self._late(), PATIENCE)):
            if self._late() > 0:
                self.ring.limit = -1

    def _open(self) -> None:
        try:
            self._sink = self._make_sink()
        except BaseException:
            time.sleep(PATIENCE)
            raise

    @property
    def sink(self) -> Sink:
        """What the worker feeds; only the worker asks, and only after it was opened."""
        assert self._sink is not None
        return self._sink

    def _guard(self, work: Callable[..., object], *arguments: object) -> bool:
        """Do a piece of work; what goes wrong is raised in the stepping thread, and the worker goes on."""
        try:
            work(*arguments)
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            self._note_error(error)
            return False
        return True

    def _note_error(self, error: BaseException) -> None:
        """Let the stepping thread raise what went wrong, the first of it."""
        if self._error is None:
            self._error = error
        self.ring.limit = -1

    def _round(self) -> None:
        """Take over what is there, do what is due, and sleep until more comes."""
        asked, taken, saved = self._asked, time.monotonic(), self.sink.saved
        try:
            self._drain()
            if asked > self._done:
                self.sink.flush(taken)
        finally:
            self._drains += 1
            self._done = asked
        pause = self.sink.tick(taken)
        if self.sink.saved != saved:
            self._failing = False
        try:
            self._wake.get(timeout=max(pause, 0.001))
            while True:
                self._wake.get_nowait()
        except queue.Empty:
            pass

    def _drain(self) -> None:
        """Take over all rows and events that are complete, in pieces that do not cross the end of the ring."""
        ring = self.ring
        head = ring.head
        while ring.tail < head or (self._events and self._events[0][0] <= head):
            stop = min(head, (ring.tail // ring.frames + 1) * ring.frames, ring.tail + ring.batch)
            try:
                self._take(ring.tail, stop)
            finally:
                ring.tail = stop

    def _take(self, start: int, stop: int) -> None:
        """Take over the rows `[start, stop)` and the events up to `stop`."""
        runs: list[Run] = []
        ended: list[tuple[EpisodeNote, str]] = []
        row = start
        while self._events and self._events[0][0] <= stop:
            position, note, reason = self._events.popleft()
            self._run(runs, row - start, position - start)
            row = position
            if reason is not None:
                self._segment = None if self._segment == note.number else self._segment
                ended.append((note, reason))
            elif isinstance(note, Resumed):
                self._turn_to(note.note.number)
            else:
                self._unstarted.add(note.number)
                self._turn_to(note.number)
                self.sink.begin(note)
        self._run(runs, row - start, stop - start)
        try:
            if runs:
                rows: dict[str, Rows] = self.ring.take(start, stop)
                self.sink.append({**rows, **self._info_columns(start, stop)}, runs)
        finally:
            for note, reason in ended:
                self._guard(self.sink.end, note, reason)

    def _turn_to(self, segment: int) -> None:
        """Let the next rows belong to a segment; its first one has no transition."""
        self._segment, self._fresh = segment, self._moments and segment in self._unstarted

    def _run(self, runs: list[Run], start: int, stop: int) -> None:
        if stop > start and self._segment is not None:
            runs.append(Run(self._segment, start, stop, self._fresh))
            self._unstarted.discard(self._segment)
            self._fresh = False

    def _info_columns(self, start: int, stop: int) -> Mapping[str, Rows]:
        """Return the infos of the rows `[start, stop)` as columns."""
        infos: dict[int, Mapping[str, Any]] = {}
        while self._infos and self._infos[0][0] < stop:
            position, info, weight = self._infos.popleft()
            self._info_bytes[1] += weight
            flat = {path: value for path, value in flatten(info).items() if self._keep_info(path)}
            for path, kind in unkept(flat).items():
                self.unkept[path] = kind
                del flat[path]
            if position >= start:
                infos[position - start] = flat
        return self._sparse(list(infos.items()), stop - start) if infos else {}

    def _sparse(self, infos: Sequence[tuple[int, Mapping[str, Any]]], length: int) -> Mapping[str, Rows]:
        """Return infos as columns; a key that makes none, for whatever reason, must not take the rows with it."""
        try:
            return sparse_columns(infos, length)
        except Exception:  # noqa: BLE001 - found below, key by key, and reported at close
            columns: dict[str, Rows] = {}
            for path in dict.fromkeys(path for _, flat in infos for path in flat):
                try:
                    own = [(row, {path: flat[path]}) for row, flat in infos if path in flat]
                    columns.update(sparse_columns(own, length))
                except Exception as error:  # noqa: BLE001
                    self.unkept[path] = f"{type(error).__name__}: {error}"
            return columns
