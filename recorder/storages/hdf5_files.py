"""Which HDF5 files are open: a bounded number in a process, however many episodes are held.

Columns open their file again when it was closed. HDF5 does one thing at a time anyway, so that a lock around what is
done with a file costs nothing, and no file is closed while another thread reads it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol
from weakref import WeakValueDictionary

MOST_OPEN = 64
"""Files that are open at once: a process may often have no more than 256, or 1,024, of all kinds."""


class Closable(Protocol):
    """A file that is opened again when it is used again."""

    def close(self) -> None: ...


_lock = threading.RLock()
_open: WeakValueDictionary[int, Closable] = WeakValueDictionary()


@contextmanager
def in_use(file: Closable) -> Iterator[None]:
    """Let a file be used by this thread, and close those that were not used for longest if it is one too many."""
    with _lock:
        key = id(file)
        _open.pop(key, None)
        _open[key] = file
        for other in list(_open)[:-MOST_OPEN]:
            if (idle := _open.pop(other, None)) is not None:
                idle.close()
        yield


def _renew_lock() -> None:
    """Have a lock that no thread of the parent holds."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)
