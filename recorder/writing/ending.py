"""Ending: what becomes of writers that are open when the interpreter ends, or when the process forks."""

from __future__ import annotations

import atexit
import os
from multiprocessing import parent_process
from multiprocessing.util import Finalize
from typing import Protocol


class Open(Protocol):
    """A writer that is open."""

    def close(self, end: str) -> None:
        """Commit everything and end."""

    def leave_to_parent(self) -> None:
        """Refuse the next row: this is a forked child, and the episode and the worker are its parent's."""


_open: set[Open] = set()


def close_at_exit(writer: Open) -> None:
    """Let a writer be closed at the end of this process, if nobody does it before."""
    if not _open and parent_process() is not None:  # a child of multiprocessing may end without hooks of `atexit`
        Finalize(None, _close_all, exitpriority=0)
    _open.add(writer)


def is_closed(writer: Open) -> None:
    """Note that a writer needs no end any more."""
    _open.discard(writer)


@atexit.register
def _close_all() -> None:
    """Commit at the end of the interpreter what nobody closed."""
    for writer in list(_open):
        writer.close("exit")


def _leave_to_parent() -> None:
    while _open:
        _open.pop().leave_to_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)
