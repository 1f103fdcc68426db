"""Encoding: chunks coded by many threads while the next rows are fetched, with only so many rows waiting."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from recorder.asking import whole
from recorder.threads import cores

T = TypeVar("T")

WAITING_BYTES, MOST_WAITING_BYTES = 32 << 20, 128 << 20
"""Rows that may wait for each thread, and for all of them."""


def threads(workers: int | None) -> int:
    """Return how many threads are meant: so many, or as many as there are cores.

    Raises:
        LayoutError: that is no number of threads.
    """
    return cores() if workers is None else whole("workers", workers, 1)


class Encoders:
    """A few threads. Codecs release the interpreter, so as many threads as cores use all of them."""

    def __init__(self, workers: int | None = None) -> None:
        self.workers = threads(workers)
        # With one worker, too, chunks are coded on a thread: Blosc takes other ways on the main one.
        self._pool = ThreadPoolExecutor(self.workers, thread_name_prefix="recorder-encode")
        self._waiting: deque[tuple[Future[object], int]] = deque()
        self._bytes = 0
        self._limit = min(WAITING_BYTES * self.workers, MOST_WAITING_BYTES)

    def submit(self, call: Callable[[], T], nbytes: int) -> Future[T]:
        """Have a call made by a thread; wait first while too many bytes of rows are in the hands of threads."""
        while self._waiting and self._bytes + nbytes > self._limit:
            self._wait_for_oldest()
        future = self._pool.submit(call)
        self._waiting.append((future, nbytes))  # type: ignore[arg-type]
        self._bytes += nbytes
        return future

    def _wait_for_oldest(self) -> None:
        future, nbytes = self._waiting.popleft()
        self._bytes -= nbytes
        future.exception()  # it is raised where the result is asked for

    def close(self) -> None:
        """Wait for all threads."""
        self._waiting.clear()
        self._pool.shutdown(cancel_futures=True)
