"""What is said in staging of a part of a table, and how rows of it are checked before recovery takes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from recorder.columns import Array, Ragged, RaggedColumn, checked_rows
from recorder.errors import DamagedError, FormatError
from recorder.files import read_small
from recorder.leaf import Leaf
from recorder.storages.base import Run

NOTE_BYTES = 256 << 20
"""A larger note is refused before it is read."""


def note_of(file: Path) -> Path:
    """Return the file that says whose rows are in a part."""
    return file.with_suffix(".json")


class PartNote(msgspec.Struct, forbid_unknown_fields=True):
    """What is said of a part in staging: its rows, whose they are, which infos it has, and the sum of its file."""

    length: int
    runs: list[Run]
    sparse: list[dict[str, Any]]
    sum: str


def read_note(file: Path) -> PartNote:
    """Return what is said of a part.

    Raises:
        FormatError: it is not of that form.
    """
    try:
        note = msgspec.json.decode(read_small(note_of(file), NOTE_BYTES), type=PartNote)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(f"{note_of(file)} is not what the format says: {error}") from error
    if any(not (0 <= run.start < run.stop <= note.length and run.segment >= 0) for run in note.runs):
        raise FormatError(f"{note_of(file)} names rows beyond its {note.length}")
    return note


def check_rows(leaf: Leaf, rows: Array | Ragged, length: int) -> None:
    """Raise `DamagedError` unless there are so many rows, `FormatError` unless they are such as the leaf has."""
    if len(rows) != length:
        raise DamagedError(f"{len(rows)} rows of {leaf.path!r}, {length} were written")
    if isinstance(rows, Ragged):
        RaggedColumn(leaf, rows.lengths, rows.values)
    checked_rows(leaf, rows.values if isinstance(rows, Ragged) else rows)
