"""The folder of a recording, as the edits are given it: by its path, and not by what reads it."""

from __future__ import annotations

from pathlib import Path

from recorder.memory import NO_FOLDER, MemoryRecording
from recorder.recording import Recording


def folder_of(path: Path | str) -> Path:
    """Return the absolute path of a folder that is to be edited or copied from.

    Raises:
        TypeError: it is no path, but a recording that was opened, or one in memory.
    """
    if isinstance(path, MemoryRecording):
        raise TypeError(NO_FOLDER)
    if isinstance(path, Recording):
        raise TypeError(f"an edit takes the path of a recording, not an opened one: give it {str(path.paths[0])!r}")
    return Path(path).absolute()
