"""Staging: the folder of one writer's unfinished work, locked by the kernel as long as the writer lives."""

from __future__ import annotations

import errno
import json
import os
import socket
import weakref
from enum import Enum
from pathlib import Path
from typing import Self

from recorder.files import make_folder, read_small, remove, sync, write_file

HAS_LOCKS = os.name == "posix"
"""Whether the system has locks that end with their holder; elsewhere recovery has to be asked for by name."""

LOCK, NOTE = "lock", "writer.json"
ORIGIN, RUNNING, ROWS, SHARD = "origin.json", "running.json", "rows", "shard"
"""What is in a staging folder besides: where the episodes come from, which of them are running since the last
checkpoint, what the storages stage, a shard being packed."""

NOTE_BYTES = 64 << 20
"""A larger note in staging is refused before it is read."""

_open: weakref.WeakSet[Staging] = weakref.WeakSet()


class Staging:
    """The folder `staging/<writer>` of one writer, made at once and locked as long as the writer lives."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self.writer = path.name
        self._lock = lock
        _open.add(self)

    @classmethod
    def make(cls, recording: Path, writer: str) -> Self:
        """Make the folder under another name, lock it, then give it its name: nobody sees it without its lock."""
        path = recording / "staging" / writer
        hidden = path.with_name(f".{writer}")
        remove(hidden)  # what an attempt left that was killed
        make_folder(hidden.parent, durable=True)
        hidden.mkdir()
        descriptor, made = -1, hidden
        try:
            note = {"host": socket.gethostname(), "boot": boot_id(), "pid": os.getpid()}
            write_file(hidden / NOTE, json.dumps(note).encode())
            descriptor = os.open(hidden / LOCK, os.O_CREAT | os.O_RDWR, 0o644)
            if not lock(descriptor):
                raise BlockingIOError(f"{hidden / LOCK} is locked by another process")
            made = hidden.rename(path)
            sync(path.parent)
        except BaseException:  # else it would look like a writer that begins, or is alive
            if descriptor >= 0:
                os.close(descriptor)
            remove(made)
            raise
        return cls(path, descriptor)

    @classmethod
    def take_over(cls, path: Path, foreign: bool = False) -> Self | Standing:
        """Take over the folder of a dead writer, or say why it cannot be.

        The kernel gives up a lock when its holder dies, whatever becomes of the process id. A writer of another host
        is left alone unless `foreign` says that it is dead: not every network file system passes locks on.
        """
        try:
            descriptor = os.open(path / LOCK, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
        except FileNotFoundError:
            return Standing.GONE
        except OSError:
            return Standing.DENIED
        if not foreign and not (HAS_LOCKS and ran_here(path)):
            os.close(descriptor)
            return Standing.FOREIGN
        if not lock(descriptor):
            os.close(descriptor)
            return Standing.ALIVE
        if not (path / LOCK).exists():
            os.close(descriptor)
            return Standing.GONE
        return cls(path, descriptor)

    def check(self) -> None:
        """Raise `FileNotFoundError` if the folder was removed while it is in use: nothing would ever find it again."""
        if not (self.path / LOCK).exists():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self.path))

    def close(self, keep: bool = False) -> None:
        """Give up the lock, and remove the folder unless it is to be kept for recovery; the lock goes last."""
        if self._lock < 0:
            return
        try:
            if not keep and self.path.exists():
                for item in self.path.iterdir():
                    if item.name != LOCK:
                        remove(item)
                remove(self.path)
        finally:
            self.release()

    def release(self) -> None:
        """Give up the lock only."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
        _open.discard(self)


class Standing(Enum):
    """Why the folder of a writer cannot be taken over."""

    ALIVE = "its writer is alive"
    FOREIGN = "its writer ran on another host; `recorder recover --foreign` takes it over if it is dead"
    DENIED = "its lock cannot be opened: it is another user's, or the folder is read-only"
    GONE = "it is gone, or was never whole"


def lock(descriptor: int) -> bool:
    """Lock an open file until it is closed, or return False if another process has it locked."""
    if HAS_LOCKS:
        import fcntl

        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def ran_here(path: Path) -> bool:
    """Return whether the writer of a staging folder ran on this host, so that its lock tells whether it is alive.

    One boot of one machine has one kernel, whatever name the host has in a container. Another boot of a host of this
    name is over. A folder without a note was being removed, its lock last.
    """
    try:
        note = json.loads(read_small(path / NOTE, NOTE_BYTES))
        return bool(note["boot"] == boot_id() != "" or note["host"] == socket.gethostname())
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return True


def staged(recording: Path) -> list[Path]:
    """Return the staging folders of a recording, those included that their writers never finished making."""
    folder = recording / "staging"
    items = sorted(folder.iterdir()) if folder.is_dir() else []
    return [item for item in items if item.is_dir() and not item.is_symlink()]


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
