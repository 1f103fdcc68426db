"""Staging: the folder of one writer's unfinished work, locked by the kernel as long as the writer lives."""

from __future__ import annotations

import json
import os
import socket
import weakref
from pathlib import Path

from recorder.files import remove, sync

try:
    import fcntl
except ImportError:  # Windows has no such lock; recovery there needs to be asked for by name.
    fcntl = None  # type: ignore[assignment]

LOCK = "lock"
NOTE = "writer.json"

_open: weakref.WeakSet[Staging] = weakref.WeakSet()


class Staging:
    """The folder `staging/<writer>` of a recording, made at once and removed by `close` when nothing is left in it."""

    def __init__(self, recording: Path, writer: str) -> None:
        self.writer = writer
        self.path = recording / "staging" / self.writer
        self._lock = self._make()
        _open.add(self)

    def _make(self) -> int:
        """Make the folder under another name, lock it, then give it its name: nobody sees it without its lock."""
        hidden = self.path.with_name(f".{self.writer}")
        hidden.mkdir(parents=True)
        note = {"host": socket.gethostname(), "boot": boot_id(), "pid": os.getpid()}
        (hidden / NOTE).write_text(json.dumps(note))
        descriptor = os.open(hidden / LOCK, os.O_CREAT | os.O_RDWR, 0o644)
        if fcntl is not None:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        hidden.rename(self.path)
        sync(self.path.parent)
        return descriptor

    def close(self, keep: bool = False) -> None:
        """Give up the lock, and remove the folder unless it is to be kept for recovery; the lock goes last."""
        if self._lock < 0:
            return
        if not keep and self.path.exists():
            for item in self.path.iterdir():
                if item.name != LOCK:
                    remove(item)
            remove(self.path)
        self.release()

    def release(self) -> None:
        """Give up the lock only."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
        _open.discard(self)


def _release_in_child() -> None:
    """Close inherited locks: a forked child that outlives the writer would keep it looking alive."""
    for staging in list(_open):
        staging.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_in_child)


def boot_id() -> str:
    """Return what tells one boot of this machine from the next, empty where the system does not say."""
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text().strip() if path.exists() else ""
