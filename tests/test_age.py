"""`step` waits rather than let unsaved rows grow old, and goes on when they are saved."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from recorder import WriteError
from recorder.episodes import EpisodeNote
from recorder.leaf import Leaf
from recorder.storages.base import Run
from recorder.writing.pipeline import Pipeline, Ring

LEAF = Leaf("value", (), "int64", per="transition")


class SlowSink:
    """A sink whose disk is as slow, or as full, as the test wants."""

    def __init__(self) -> None:
        self.saved = time.monotonic()
        self.rows = 0
        self.stuck = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()
        self.full = False

    def begin(self, note: EpisodeNote) -> None: ...

    def end(self, note: EpisodeNote, reason: str) -> None: ...

    def append(self, rows: Mapping[str, Any], runs: Sequence[Run]) -> None:
        self.rows += sum(run.stop - run.start for run in runs)

    def tick(self, taken: float) -> float:
        if self.full:
            raise OSError(28, "No space left on device")
        if not self.go_on.is_set():
            self.stuck.set()
        self.go_on.wait()
        self.saved = taken
        return 0.01

    def flush(self, taken: float) -> None:
        self.saved = taken

    def close(self) -> None: ...


@pytest.fixture
def sink() -> SlowSink:
    return SlowSink()


class Stepper:
    """Puts rows in its own thread, one after another, as a slow environment would."""

    def __init__(self, sink: SlowSink) -> None:
        self.ring = Ring([LEAF])
        self.pipeline = Pipeline(self.ring, lambda: sink, lambda path: True, moments=False, oldest=0.2)
        self.pipeline.begin(EpisodeNote(0), 0)
        self.pipeline.start()
        self.errors: list[Exception] = []
        self.end = threading.Event()
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        while not self.end.wait(0.002):
            try:
                if self.ring.head >= self.ring.limit:
                    self.pipeline.boundary()
            except WriteError as error:
                self.errors.append(error)
                continue
            slots = self.ring.slots["value"]
            assert isinstance(slots, np.ndarray)
            slots[self.ring.head & self.ring.mask] = self.ring.head
            self.ring.head += 1

    def settled(self) -> int:
        """Wait until no more rows come, and return how many there are."""
        before = -1
        while before != self.ring.head:
            before = self.ring.head
            time.sleep(0.1)
        return before

    def close(self) -> None:
        self.end.set()
        self.thread.join()
        self.pipeline.close()


def test_a_disk_that_hangs_stops_the_stepping_long_before_the_ring_is_full(sink: SlowSink) -> None:
    stepper = Stepper(sink)
    sink.go_on.clear()
    assert sink.stuck.wait(20)
    rows = stepper.settled()
    assert rows < stepper.ring.batch, "no boundary of a batch was near"
    sink.go_on.set()
    while stepper.ring.head <= rows + 3:
        time.sleep(0.01)
    stepper.close()
    assert sink.rows == stepper.ring.head
    assert not stepper.errors
    assert not [thread for thread in threading.enumerate() if thread.name in ("recorder", "recorder-watch")]


def test_a_disk_that_is_full_raises_and_does_not_stop_the_stepping(sink: SlowSink) -> None:
    stepper = Stepper(sink)
    sink.full = True
    while len(stepper.errors) < 3:
        time.sleep(0.01)
    before = stepper.ring.head
    while stepper.ring.head <= before + 3:
        time.sleep(0.01)
    sink.full = False
    while sink.rows <= before:
        time.sleep(0.01)
    stepper.end.set()
    stepper.thread.join()
    count = len(stepper.errors)
    try:
        stepper.pipeline.close()
    except WriteError:  # one that was not raised yet
        count += 1
    assert sink.rows == stepper.ring.head
    assert "No space left" in str(stepper.errors[0])
