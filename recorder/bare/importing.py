"""Importing: the rows of a bare file copied into a recording, and compared with what is then on disk."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from recorder.bare.recordings import BareRecording
from recorder.columns import Array
from recorder.errors import FormatError, WriteError
from recorder.recording import Recording
from recorder.routing.layouts import layout
from recorder.schema import ROW
from recorder.storages.base import Storage
from recorder.storages.zarr import ZarrStorage
from recorder.writing.writer import Existing, RecordingWriter

BLOCK = 4096
"""Rows that are read at once."""


class Imported(NamedTuple):
    """What was copied: how many episodes and rows, and which columns were left out and why."""

    episodes: int
    rows: int
    left_out: dict[str, str]


def import_bare(
    bare: BareRecording, path: Path | str, *, storage: Storage | None = None, existing: Existing = "refuse"
) -> Imported:
    """Copy a bare recording into a folder, bit for bit, and read it back.

    Without a `storage` the default layout is taken, but pictures are kept without loss.

    Raises:
        FormatError: there are no rows to copy.
        ExistsError: there is a recording already, and it may not be appended to.
        WriteError: what was read back is not what was copied.
    """
    if not len(bare):
        raise FormatError(f"{bare.paths[0]} has columns but no rows: there is nothing to import")
    before = len(Recording(path)) if existing == "append" and (Path(path) / "recording.json").exists() else 0
    kept = storage if storage is not None else layout(list(bare.leaves.values()), kinds={"image": ZarrStorage()})
    with RecordingWriter(path, bare.space, storage=kept, existing=existing) as writer:
        for episode in bare:
            writer.begin()
            for start in range(0, len(episode), BLOCK):
                for row in episode.values(ROW, start, min(start + BLOCK, len(episode))):
                    writer.append(row)
            writer.commit()
    _compare(bare, Recording(path), before)
    return Imported(len(bare), bare.steps, bare.left_out)


def _compare(bare: BareRecording, copied: Recording, before: int) -> None:
    """Raise `WriteError` unless the episodes after the first `before` are those of the bare recording."""
    if len(copied) != before + len(bare):
        raise WriteError(f"{len(copied) - before} episodes are in {copied.paths[0]}, {len(bare)} were copied")
    for i, episode in enumerate(bare):
        other = copied[before + i]
        for path, leaf in bare.leaves.items():
            exact = copied.schema.storage.exact(leaf)
            for start in range(0, len(episode), BLOCK) if exact else ():
                rows, found = (one.columns[path][start : start + BLOCK] for one in (episode, other))
                if not _same(rows, found):
                    raise WriteError(f"{path!r} of episode {i} is not in {copied.paths[0]} as it was copied")


def _same(rows: Array, found: Array) -> bool:
    if rows.dtype != object:
        return rows.dtype == found.dtype and rows.tobytes() == found.tobytes()
    return len(rows) == len(found) and all(np.array_equal(one, other) for one, other in zip(rows, found, strict=True))
