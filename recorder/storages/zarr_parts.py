"""Checkpoints: the newest chunks of all segments in one small file, which is written once and never grows.

A file holds a head (magic, the CRC-32C of what follows up to the chunks, lengths), the paths of leaves as
JSON, a table of int64 `(segment, leaf, start, rows, bytes)` with a line for each chunk, and the chunks.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from recorder.errors import DamagedError
from recorder.files import write_file
from recorder.storages.zarr_array import crc_bytes

MAGIC = b"chunks0\n"
HEAD = struct.Struct("<8s4sIQ")
"""Magic, checksum, bytes of the paths, lines of the table."""

COLUMNS = 5

MOST_ROWS = 1 << 40
"""No segment has a higher number, and none has more rows."""


class Entry(NamedTuple):
    """A chunk of a leaf in a segment: rows `[start, start + rows)`, coded, its checksum at the end."""

    segment: int
    path: str
    start: int
    rows: int
    data: bytes


class Part:
    """A checkpoint file, and what in it is of use."""

    def __init__(self, path: Path, first: int, entries: Iterable[Entry]) -> None:
        self.path = path
        self.ends: dict[tuple[int, str], int] = {}
        self._spans: dict[int, tuple[int, int]] = {}
        for segment, leaf, start, rows, data in entries:
            self.ends[segment, leaf] = start + rows
            begin = self._spans.get(segment, (first, 0))[0]
            first += len(data)
            self._spans[segment] = (begin, first)

    def erase(self, segments: Iterable[int]) -> None:
        """Overwrite the bytes of segments, which share the file with others, with zeros."""
        spans = [self._spans.pop(segment) for segment in segments if segment in self._spans]
        if self._spans and spans:
            with self.path.open("r+b", buffering=0) as file:
                for start, stop in spans:
                    file.seek(start)
                    file.write(bytes(stop - start))


def write_part(path: Path, entries: Sequence[Entry]) -> Part:
    """Write a checkpoint so that it survives a kill and a power loss; entries of a segment stand together."""
    paths = sorted({entry.path for entry in entries})
    places = {path: i for i, path in enumerate(paths)}
    lines = [(segment, places[leaf], start, rows, len(data)) for segment, leaf, start, rows, data in entries]
    body = json.dumps(paths).encode(), np.array(lines, "<i8").tobytes()
    head = HEAD.pack(MAGIC, b"", len(body[0]), len(entries))[12:] + b"".join(body)
    write_file(path, b"".join((MAGIC, crc_bytes(head), head, *(entry.data for entry in entries))))
    return Part(path, len(MAGIC) + 4 + len(head), entries)


def read_part(path: Path) -> tuple[Part, list[Entry]]:
    """Return a checkpoint that a dead writer left, its chunks not yet checked.

    Raises:
        DamagedError: the table of its chunks is not as it was written.
    """
    data = path.read_bytes()
    if len(data) < HEAD.size or not data.startswith(MAGIC):
        raise DamagedError(f"{path} is no checkpoint")
    _, crc, names, lines = HEAD.unpack_from(data)
    first = HEAD.size + names + lines * COLUMNS * 8
    if first > len(data) or crc_bytes(data[12:first]) != crc:
        raise DamagedError(f"{path} has changed since it was written: the CRC-32C of its table differs")
    paths = _paths(path, data[HEAD.size : HEAD.size + names])
    table = np.frombuffer(data, "<i8", lines * COLUMNS, HEAD.size + names).reshape(-1, COLUMNS)
    segments, leaves, starts, rows, sizes = table.T
    if (table < 0).any() or (rows == 0).any() or (leaves >= len(paths)).any() or (sizes > len(data)).any():
        raise DamagedError(f"{path} has a table of chunks that cannot be")
    if (starts > MOST_ROWS).any() or (rows > MOST_ROWS).any() or (segments > MOST_ROWS).any():
        raise DamagedError(f"{path} has a table of chunks that cannot be")
    ends = first + np.cumsum(sizes)
    entries = [
        Entry(segment, paths[leaf], start, count, data[end - size : end])
        for (segment, leaf, start, count, size), end in zip(table.tolist(), ends.tolist(), strict=True)
    ]
    return Part(path, first, entries), entries


def _paths(path: Path, data: bytes) -> list[str]:
    try:
        return msgspec.json.decode(data, type=list[str])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise DamagedError(f"{path} does not name its leaves: {error}") from error
