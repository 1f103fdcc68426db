"""Threads: short tasks that release the interpreter, done side by side by threads that are started once.

A pool of `concurrent.futures` takes no work while the interpreter ends, which is when much is committed; a daemon
thread that was started earlier does.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from queue import SimpleQueue

Task = Callable[[], object]

MOST_THREADS = 16
"""More threads than this only wait for the interpreter, or for one disk."""


def side_by_side(tasks: Sequence[Task], most: int | None = None) -> None:
    """Do all tasks, on as many threads as there are cores, or on `most`, the caller's among them.

    All are done even where one raises; then what was raised first is raised again. A task may itself call this: the
    caller does what nobody else has begun, so that nothing waits for a thread that waits.
    """
    if len(tasks) == 1:  # a small picture is decoded in 60 µs, what follows takes as long again
        tasks[0]()
        return
    work = Work(tasks)
    helpers = min(len(tasks), most or cores(), MOST_THREADS) - 1
    if helpers > 0:
        _crew(os.getpid()).call(work.help, helpers)
    work.help()
    work.wait()


@contextmanager
def ordinary_threads() -> Iterator[None]:
    """Give this thread, and those that a library starts meanwhile, the scheduling back that this one has now.

    SVT-AV1 lets its threads and its caller run in real time where it may, as root: they keep everything else off the
    cores, the loop that is recorded and other programs.
    """
    before = _threads()
    usual = (os.sched_getscheduler(0), os.sched_getparam(0)) if before else None
    try:
        yield
    finally:
        if usual is not None:
            for thread in (0, *(_threads() - before)):
                with suppress(OSError):  # it has ended, or may not be changed
                    os.sched_setscheduler(thread, *usual)


def _threads() -> set[int]:
    """Return the threads of this process, none where the system does not list them."""
    folder = Path("/proc/self/task")
    return {int(entry.name) for entry in folder.iterdir()} if hasattr(os, "SCHED_FIFO") and folder.is_dir() else set()


_shared_by = 1


def cores() -> int:
    """Return how many cores this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    there = len(affinity(0)) if affinity else os.cpu_count() or 1
    return max(1, there // _shared_by)


def share_cores(processes: int) -> None:
    """Let this process use its share of the cores only: so many of its kind work at the same time."""
    global _shared_by
    _shared_by = processes


class Work:
    """Tasks of one call: whoever is free takes the next, and the caller waits for the last."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._waiting = deque(tasks)
        self._count = len(tasks)
        self._done = threading.Semaphore(0)
        self._raised: list[BaseException] = []

    def help(self) -> None:
        """Do tasks until none is waiting."""
        while True:
            try:
                task = self._waiting.popleft()
            except IndexError:
                return
            try:
                task()
            except BaseException as error:  # noqa: BLE001 - raised again by `wait`
                self._raised.append(error)
            finally:
                self._done.release()

    def wait(self) -> None:
        """Wait until all tasks are done, and raise what one of them raised."""
        for _ in range(self._count):
            self._done.acquire()
        if self._raised:
            raise self._raised[0]


class Crew:
    """Daemon threads that wait for calls."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[Task] = SimpleQueue()
        self._threads = 0
        self._starting = threading.Lock()

    def call(self, task: Task, times: int) -> None:
        """Let so many threads call `task`, when they are free."""
        with self._starting, suppress(RuntimeError):  # the interpreter ends, and starts no more threads
            while self._threads < times:
                threading.Thread(target=self._work, name="recorder-crew", daemon=True).start()
                self._threads += 1
        for _ in range(times):
            self._calls.put(task)

    def _work(self) -> None:
        while True:
            self._calls.get()()


@lru_cache(maxsize=1)
def _crew(process: int) -> Crew:
    """Return the threads of this process: a forked child has none of its parent's."""
    return Crew()
