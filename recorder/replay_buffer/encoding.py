"""Encoding: chunks coded by many threads while the next rows are fetched, with only so many rows waiting."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

WAITING_BYTES = 32 << 20
"""Rows that may wait for each thread."""


class Encoders:
    """A few threads. Codecs release the interpreter, so as many threads as cores use all of them."""

    def __init__(self, workers: int | None = None) -> None:
        affinity = getattr(os, "sched_getaffinity", None)
        self.workers = workers or (len(affinity(0)) if affinity else os.cpu_count() or 1)
        # With one worker, too, chunks are coded on a thread: Blosc takes other ways on the main one.
        self._pool = ThreadPoolExecutor(self.workers, thread_name_prefix="recorder-encode")
        self._waiting: deque[tuple[Future[object], int]] = deque()
        self._bytes = 0
        self._limit = WAITING_BYTES * self.workers

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
