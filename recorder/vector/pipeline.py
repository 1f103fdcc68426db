"""The pipeline of a vector environment: the worker cuts the rows of all lanes into segments."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium.vector import AutoresetMode

from recorder.columns import Rows
from recorder.episodes import EpisodeNote, Start
from recorder.leaf import Leaf
from recorder.schema import SEEN
from recorder.selection import Selection
from recorder.storages.base import Run, runs_of
from recorder.vector.cutting import Cut, Mask
from recorder.vector.events import Finals, Finish, Hole, Reset, Said, Starts, Stopped
from recorder.vector.infos import Place, columns
from recorder.vector.pieces import Piece, piece_column, piece_times
from recorder.writing.pipeline import Pipeline, Ring, Sink
from recorder.writing.writer import Kept

UNSEEDED = Start(None, None, None)
MISSING = {"final_observation": "missing"}
"""The label of an episode whose last observation the environment did not give."""


class Ending(NamedTuple):
    """An episode that is over, and why it is to be put aside, if it is."""

    note: EpisodeNote
    reason: str = ""


class VectorPipeline(Pipeline):
    """Finds the ends of episodes in the flags of the rows, so that a step does nothing for a lane.

    An episode that ends in the last row that is there stays open, since a user may label it until the next step.
    """

    def __init__(
        self,
        ring: Ring,
        make_sink: Callable[[], Sink],
        keep_info: Callable[[str], bool],
        *,
        leaves: Mapping[str, Leaf],
        lanes: int,
        writer: str,
        oldest: float,
    ) -> None:
        """Take the `leaves` of one lane; ids of episodes begin with `writer`."""
        super().__init__(ring, make_sink, keep_info, oldest=oldest)
        self.mode = AutoresetMode.NEXT_STEP
        self.ignored = 0
        self.select: Selection | None = None
        self.rejected: Callable[[], Kept] = lambda: Kept(0, 0)
        self._kept = Kept(0, 0)
        self._unselected: set[int] = set()
        self._leaves = leaves
        self._lanes = lanes
        self._writer = writer
        self._notes: dict[int, EpisodeNote] = {}
        self._began: dict[int, float] = {}
        self._number = 0
        self._running: Mask = np.zeros(lanes, bool)
        self._waiting: Mask = np.zeros(lanes, bool)
        self._current = np.full(lanes, -1)
        self._pending: dict[int, Ending] = {}
        self._starts: dict[tuple[int, int], Start] = {}
        self._carried: list[tuple[int, Any]] = []

    def tell(self, event: Any, position: int | None = None) -> None:
        """Let something happen before the row that is about to be complete, or before the one at `position`."""
        self._events.append((self.ring.head if position is None else position, event, None))

    # The worker's side.

    def _take(self, start: int, stop: int) -> None:
        row = start
        while self._events and self._events[0][0] <= stop:
            position, event, _ = self._events.popleft()
            if not isinstance(event, Hole | Finish):
                self._carried.append((position, event))
                continue
            self._guard(self._cut, row, position)
            self._guard(self._apply, event)
            row = position
        self._guard(self._cut, row, stop)

    def _apply(self, event: Hole | Finish) -> None:
        """Take note of a row that is missing, or end all episodes."""
        if isinstance(event, Hole):
            self._note_hole(event)
            return
        self._close_pending()
        if not event.end:
            return
        for lane in np.flatnonzero(self._running).tolist():
            note = self._notes[int(self._current[lane])]
            note.end = note.end or event.end
            self._guard(self._end, Ending(note))
        self._running[:] = False
        self._waiting[:] = False

    def _note_hole(self, hole: Hole) -> None:
        self._close_pending()
        done = hole.terminated | hole.truncated
        for lane in np.flatnonzero(self._running).tolist():
            note = self._notes[int(self._current[lane])]
            note.refused.append(note.transitions + len(note.refused) + 1)
            if done[lane]:
                note.end = "terminated" if hole.terminated[lane] else "truncated"
                self._pending[lane] = Ending(note)
        self._running &= ~done
        # The row 0 of an episode that a reset at once began was in the row that is missing.
        self._waiting = done & (self.mode == AutoresetMode.NEXT_STEP)

    def _cut(self, start: int, stop: int) -> None:
        """Take over the rows `[start, stop)` and what was said up to `stop`."""
        piece = Piece(start, stop, self._lanes)
        self._sort_events(piece, stop)
        if not piece.steps:
            return
        self._close_pending()
        rows = self.ring.take(start, stop)
        self._mark(piece, rows)
        cut = Cut(piece.marks, self._running, self._current, self._number)
        self._begin(piece, cut, rows["time"])
        endings, open_endings = self._endings(piece, cut)
        try:
            self._append(piece, cut, rows)
        finally:
            self._current = cut.after()
            goes_on = True if self.mode == AutoresetMode.SAME_STEP else ~piece.done[-1]
            self._running = cut.on[-1] & goes_on
            self.ignored += int(np.count_nonzero(~(cut.on | piece.marks.absent)))
            self._end_all(endings)
            self._pending = open_endings
            self._starts = {key: start for key, start in self._starts.items() if key[0] >= stop}

    def _sort_events(self, piece: Piece, stop: int) -> None:
        """Put what was said into the piece; at its end, only what concerns rows before it."""
        carried, self._carried = self._carried, []
        for position, event in carried:
            k = position - piece.start
            match event:
                case Starts(starts):
                    self._starts.update({(position, lane): start for lane, start in starts.items()})
                case Said() | Stopped() if k <= 0:
                    self._say_before(event)
                case Said() | Stopped():
                    piece.said.append((k, event))
                case _ if position >= stop:
                    self._carried.append((position, event))
                case Reset(lanes, labels):
                    piece.resets.append((k, lanes))
                    piece.labels.append((k, labels))
                case Finals():
                    piece.finals[k] = event

    def _say_before(self, event: Said | Stopped) -> None:
        """Take what was said of the episode that a lane was in before this piece."""
        lane = event.lane
        note = self._pending[lane].note if lane in self._pending else self._notes.get(int(self._current[lane]))
        if note is None:
            return
        if isinstance(event, Said):
            note.labels.update(event.labels)
            return
        if event.reason:
            note.labels.setdefault("reason", event.reason)
        if lane in self._pending:
            self._pending[lane] = Ending(note, event.reason)
        elif self._running[lane]:
            note.end = note.end or event.end
            self._running[lane] = False
            self._end(Ending(note, event.reason))

    def _mark(self, piece: Piece, rows: Mapping[str, Rows]) -> None:
        """Find in the flags, and in what was said, where episodes begin and end."""
        terminated, truncated = (np.array(rows[name]) for name in ("terminated", "truncated"))
        waiting = terminated | truncated
        before = self._waiting
        for k, lanes in piece.resets:
            terminated[k], truncated[k] = False, False
            waiting[k] = (waiting[k - 1] if k else before) & ~lanes
            piece.marks.absent[k] = ~lanes
        piece.terminated, piece.done = terminated, terminated | truncated
        begin, off = piece.marks.begin, piece.marks.off
        match self.mode:
            case AutoresetMode.NEXT_STEP:
                begin[0], begin[1:] = before, waiting[:-1]
                self._waiting = waiting[-1]
            case AutoresetMode.SAME_STEP:
                begin[:] = piece.done
            case _:
                off[1:] = piece.done[:-1]
        for k, lanes in piece.resets:
            begin[k] = lanes
        for k, event in piece.said:
            if isinstance(event, Stopped) and k < piece.steps and not piece.done[k - 1, event.lane]:
                off[k, event.lane] = True

    def _begin(self, piece: Piece, cut: Cut, times: Rows) -> None:
        """Give the segments that begin in this piece their notes."""
        assert isinstance(times, np.ndarray)
        wall = time.time() - time.perf_counter()
        labels = dict(piece.labels)
        for k, lane in cut.begins.tolist():
            number = self._number
            self._number += 1
            start = self._starts.pop((piece.start + k, lane), UNSEEDED)
            began = float(times[k])
            note = EpisodeNote(number, f"{self._writer}-{number:06d}", *start, start=began + wall)
            note.labels = {"env_index": lane, **labels.get(k, {})}
            self._notes[number] = note
            self._began[number] = began
            if self._is_wanted(number):
                self.sink.begin(note)
            else:
                self._unselected.add(number)

    def _is_wanted(self, number: int) -> bool:
        """Return whether the selection wants an episode that begins now."""
        if self.select is None:
            return True
        rejected = self.rejected()
        enough = self.select.enough(self._kept.episodes - rejected.episodes, self._kept.steps - rejected.steps)
        return not enough and self.select.names(number)

    def _endings(self, piece: Piece, cut: Cut) -> tuple[list[Ending], dict[int, Ending]]:
        """Return the episodes that end in this piece, and those that end in its last row, by lane."""
        for k, event in piece.said:
            if isinstance(event, Said):
                note = self._notes.get(self._segment_of(piece, cut, event.lane, k - 1))
                if note is not None:
                    note.labels.update(event.labels)
        reasons = {(k - 1, event.lane): event for k, event in piece.said if isinstance(event, Stopped)}
        same_step = self.mode == AutoresetMode.SAME_STEP
        ended = piece.done & (cut.before if same_step else cut.on & ~piece.marks.absent)
        endings: list[Ending] = []
        last: dict[int, Ending] = {}
        steps, lanes = np.nonzero(ended)
        numbers = cut.segments_at(lanes, steps - same_step)
        flags = piece.terminated[steps, lanes]
        columns = (column.tolist() for column in (steps, lanes, numbers, flags))
        for k, lane, number, terminated in zip(*columns, strict=True):
            note = self._notes[number]
            note.end = "terminated" if terminated else "truncated"
            reason = self._reason(note, reasons.pop((k, lane), None)) if reasons else ""
            if k == piece.steps - 1:
                last[lane] = Ending(note, reason)
            else:
                endings.append(Ending(note, reason))
        return endings + list(self._cut_short(piece, cut, reasons)), last

    def _segment_of(self, piece: Piece, cut: Cut, lane: int, k: int) -> int:
        """Return the segment that a lane was in at step `k`; where it was reset at once, the one that ended there."""
        before = self.mode == AutoresetMode.SAME_STEP and piece.done[k, lane] and cut.before[k, lane]
        return int(cut.segments_at(np.array([lane]), np.array([k - before]))[0])

    def _reason(self, note: EpisodeNote, event: Stopped | None) -> str:
        if event is None or not event.reason:
            return ""
        note.labels.setdefault("reason", event.reason)
        return event.reason

    def _cut_short(self, piece: Piece, cut: Cut, stopped: Mapping[tuple[int, int], Stopped]) -> Iterator[Ending]:
        """Yield the episodes that end without a flag: by a user's word, or by a reset."""
        for (k, lane), event in stopped.items():
            if not cut.on[k, lane]:
                continue
            note = self._notes[self._segment_of(piece, cut, lane, k)]
            note.end = event.end
            yield Ending(note, self._reason(note, event))
            if k == piece.steps - 1:
                cut.on[k, lane] = False
        for k, lanes in piece.resets:
            over = piece.done[k - 1] if k and self.mode != AutoresetMode.SAME_STEP else np.zeros(self._lanes, bool)
            stopped_here = np.array([(k - 1, lane) in stopped for lane in range(self._lanes)])
            for lane in np.flatnonzero(lanes & cut.before[k] & ~over & ~stopped_here).tolist():
                note = self._notes[int(cut.segments_at(np.array([lane]), np.array([k - 1]))[0])]
                note.end = "reset"
                yield Ending(note)

    def _append(self, piece: Piece, cut: Cut, rows: Mapping[str, Rows]) -> None:
        """Hand the rows lane by lane to the sink, and behind them the final ones of what was reset at once."""
        runs = runs_of(cut.segments.tolist(), cut.starts.tolist(), cut.stops.tolist(), cut.firsts.tolist())
        finals: list[tuple[int, int]] = []
        if self.mode == AutoresetMode.SAME_STEP:
            steps, lanes = np.nonzero(piece.done & cut.before)
            numbers = cut.segments_at(lanes, steps - 1).tolist()
            finals = list(zip(steps.tolist(), lanes.tolist(), strict=True))
            behind = piece.steps * self._lanes
            runs += [Run(number, behind + i, behind + i + 1) for i, number in enumerate(numbers)]
        if self._unselected:
            runs = [run for run in runs if run.segment not in self._unselected]
        place = Place(piece.steps, self._lanes, finals)
        taken: dict[str, Rows] = {path: piece_column(leaf, rows, piece, finals) for path, leaf in self._leaves.items()}
        if "time" in taken:
            taken["time"] = piece_times(rows["time"], runs, place, self._began)
        infos = self._infos_until(piece.start + piece.steps, piece.start)
        if infos:
            taken.update(columns(infos, place, self._keep_info, self.unkept.__setitem__))
        if runs:
            self.sink.append(taken, runs)
        self._note_missing(piece, cut, finals)

    def _note_missing(self, piece: Piece, cut: Cut, finals: list[tuple[int, int]]) -> None:
        unseen = {f"final_{path.split('/')[0]}": "missing" for path in self._leaves if path.split("/")[0] in SEEN}
        for k, lane in finals:
            final = piece.finals.get(k)
            absent = final is None or lane in final.missing or lane not in final.lanes
            if absent or unseen:
                note = self._notes[int(cut.segments_at(np.array([lane]), np.array([k - 1]))[0])]
                note.labels.update(unseen | (MISSING if absent else {}))

    def _infos_until(self, stop: int, start: int) -> list[tuple[int, Any]]:
        """Return the infos of the rows up to `stop`, with their places counted from `start`."""
        found = []
        while self._infos and self._infos[0][0] < stop:
            position, info, weight = self._infos.popleft()
            self._info_bytes[1] += weight
            if position >= start:
                found.append((position - start, info))
        return found

    def _close_pending(self) -> None:
        """End the episodes that were over, of which nothing more can be said."""
        pending, self._pending = self._pending, {}
        self._end_all(list(pending.values()))

    def _end_all(self, endings: Sequence[Ending]) -> None:
        """End episodes; where one of them makes trouble, the others end all the same."""
        end, unselected = self.sink.end, self._unselected
        for note, reason in endings:
            number = note.number
            self._notes.pop(number, None)
            self._began.pop(number, None)
            if number in unselected:
                unselected.remove(number)
                continue
            if self.select is not None and not reason:
                self._kept = self._kept.plus(note.transitions)
            try:
                end(note, reason)
            except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
                self._note_error(error)

    def _end(self, ending: Ending) -> None:
        self._end_all([ending])
