"""Storing: statistics in the attributes of a replay buffer, and whether they are still those of its rows."""

from __future__ import annotations

from typing import Any
from zlib import crc32

import numpy as np

from recorder.leaf import JSON
from recorder.replay_buffer.buffer import ReplayBuffer
from recorder.replay_buffer.metadata import OURS
from recorder.replay_buffer.opening import StoreLike, open_place
from recorder.replay_buffer.targets import put_attributes, root_attributes
from recorder.statistics.computing import Statistics, statistics, statistics_from_json

STATISTICS = "statistics"
"""Under `recorder` in the attributes of the root."""


def store_statistics(
    where: StoreLike, *, storage_options: dict[str, Any] | None = None, most_frames: int | None = None
) -> Statistics:
    """Compute the statistics of all keys of a replay buffer, and keep them in its attributes.

    Raises:
        WriteError: another process writes to it, or it is a zip file.
    """
    buffer, place = ReplayBuffer(where, storage_options), open_place(where, storage_options)
    with place.writing():
        buffer.refresh()
        found = statistics(buffer, most_frames=most_frames)
        said = root_attributes(place).get(OURS) or {}
        put_attributes(place, {**said, STATISTICS: {**found.to_json(), "rows": fingerprint(buffer)}})
    return found


def stored_statistics(buffer: ReplayBuffer) -> Statistics | None:
    """Return the statistics that are kept with a buffer; None where there are none, or where its rows are others now.

    Raises:
        FormatError: what is kept is no statistics.
    """
    ours = buffer.attributes.get(OURS)
    said = ours.get(STATISTICS) if isinstance(ours, dict) else None
    if not isinstance(said, dict) or said.get("rows") != fingerprint(buffer):
        return None
    return statistics_from_json(said)


def fingerprint(buffer: ReplayBuffer) -> JSON:
    """Return a number that hardly stays the same when episodes are added or dropped, or keys are others."""
    crc = crc32(np.ascontiguousarray(buffer.episode_ends, "<i8").tobytes())
    for key in sorted(buffer.keys()):
        crc = crc32(key.encode(), crc)
        if buffer.n_steps:
            last = buffer[key][-1:]
            crc = crc32(repr(last.tolist()).encode() if last.dtype == object else last.tobytes(), crc)
    return crc
