"""Following: the episodes of a recording as they are committed, by whoever writes it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from recorder.episodes import EpisodeNote
from recorder.errors import NotARecordingError
from recorder.recording import Recording

EVERY = 0.5
"""Seconds between two looks at the folder."""


class Arrival(NamedTuple):
    """An episode that was committed: what is known of it, and `recording[position]` to read its rows."""

    recording: Recording
    position: int
    note: EpisodeNote


def follow(
    path: Path | str,
    *,
    known: bool = False,
    until: int | None = None,
    every: float = EVERY,
    wait: Callable[[float], object] = time.sleep,
) -> Iterator[Arrival]:
    """Yield each episode of a recording once, when it is on disk; the recording need not be there yet.

    Nothing is changed or locked, and the writers do not notice. Shards that are damaged are skipped.

    Args:
        path: the folder of the recording.
        known: also yield the episodes that are there already.
        until: end when the recording has so many episodes; without it, never.
        every: seconds between two looks at the folder.
        wait: what is called with `every` between two looks.
    """
    recording = _opened(Path(path))
    position = 0 if known or recording is None else len(recording)
    while True:
        if recording is None:
            recording = _opened(Path(path))
        else:  # what was deleted since lets those that stay move up
            fresh = recording.refresh()
            position = min(position, len(recording) - fresh)
        while recording is not None and position < len(recording):
            yield Arrival(recording, position, recording.note(position))
            position += 1
        if until is not None and recording is not None and len(recording) >= until:
            return
        wait(every)


def _opened(path: Path) -> Recording | None:
    try:
        return Recording(path, damaged="skip")
    except NotARecordingError:
        return None
