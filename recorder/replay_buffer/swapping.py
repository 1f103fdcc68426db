"""Swapping: a folder takes the place of another, which is there whole until the moment when the new one is."""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from recorder.files import remove, sync

CANNOT = {errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP}
"""What a system or a file system says that cannot let two names change places."""

SWAP = 2
"""`RENAME_EXCHANGE` of Linux, and `RENAME_SWAP` of macOS."""

HERE = -100
"""`AT_FDCWD`: paths are as they are written."""


@contextmanager
def successor(folder: Path) -> Iterator[Path]:
    """Give a new folder beside one that is there, whose place it takes if all went well; else it is removed.

    A kill leaves either the one or the other under the name, and perhaps a hidden folder beside it, which the next
    call removes.
    """
    made = _beside(folder, "new")
    remove(made)
    try:
        yield made
        swap(made, folder)
    finally:
        remove(made)


def swap(made: Path, folder: Path) -> None:
    """Let two folders change names; where no system call can do that at once, one after the other."""
    if not _exchanged(made, folder):
        aside = _beside(folder, "old")
        remove(aside)
        folder.rename(aside)
        made.rename(folder)
        aside.rename(made)
    sync_folder(folder.parent)


def mend(folder: Path) -> None:
    """Give a folder its name back that a kill between two renamings has left without."""
    aside = _beside(folder, "old")
    if aside.exists() and not folder.exists():
        aside.rename(folder)
        sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power loss, where a folder can be opened for that."""
    if os.name != "nt":
        sync(folder)


def _beside(folder: Path, what: str) -> Path:
    return folder.with_name(f".{folder.name}.{what}")


def _exchanged(one: Path, other: Path) -> bool:
    """Let two names change places in one step; return whether that can be done here."""
    if os.name == "nt":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    names = os.fsencode(one), os.fsencode(other)
    if sys.platform == "darwin":
        done = libc.renamex_np(*names, SWAP)
    elif hasattr(libc, "renameat2"):
        done = libc.renameat2(HERE, names[0], HERE, names[1], SWAP)
    else:
        return False
    if done == 0:
        return True
    if (code := ctypes.get_errno()) in CANNOT:
        return False
    raise OSError(code, os.strerror(code), str(one), None, str(other))
