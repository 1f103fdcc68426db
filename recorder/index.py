"""The index of a recording: a file that says which shards there are and what each holds, so that none need be opened.

It is a hint. What is damaged in it counts as not there, and the folder of the shards alone says which there are.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from recorder.errors import RecorderError
from recorder.files import read_small, sealed, unsealed, write_file
from recorder.shard import FORMAT, Shard

INDEX = "cache/shards.jsonl"

INDEX_BYTES = 1 << 30
"""A larger index is not read: a million shards take 100 MB."""

MOST_LINES = 256
"""With more lines the index is written anew as one: of many lines each takes as long to read as 50 shards in one."""

FROM_SHARDS = 256
"""From so many new shards on the index is read; fewer are opened one by one, so that damage is found at once."""

UNKNOWN = -1
"""The lowest and the highest number of ids that are not all of the shard's own writer, or are not known."""

WRITER_AT, WRITER_LENGTH = 21, 12
"""Where the name of a shard has its writer: after the time and a dash."""

Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 40)]
Number = Annotated[int, msgspec.Meta(ge=UNKNOWN, lt=1 << 62)]


class Line(msgspec.Struct, forbid_unknown_fields=True):
    """What one line of the index says of some shards, after the sum of itself."""

    format: int
    shards: list[str]
    episodes: list[Count]
    transitions: list[Count]
    lowest: list[Number]
    highest: list[Number]
    edits: dict[str, tuple[list[str], list[str]]] = {}


class Entries(NamedTuple):
    """Shards in columns, about 80 bytes each; `edits` names what they replace and drop."""

    names: NDArray[np.bytes_]
    numbers: NDArray[np.int64]
    edits: dict[str, tuple[list[str], list[str]]]

    def at(self, rows: NDArray[np.intp] | NDArray[np.bool_]) -> Entries:
        """Return some of the shards."""
        names = self.names[rows]
        edits = self.edits and {name: self.edits[name] for name in names.astype(str).tolist() if name in self.edits}
        return Entries(names, self.numbers[rows], edits)

    @property
    def episodes(self) -> NDArray[np.int64]:
        """The episodes of each shard."""
        return self.numbers[:, 0]

    @property
    def transitions(self) -> NDArray[np.int64]:
        """The transitions of each shard."""
        return self.numbers[:, 1]

    @property
    def lowest(self) -> NDArray[np.int64]:
        """The lowest number in the ids of each shard, or UNKNOWN."""
        return self.numbers[:, 2]

    @property
    def highest(self) -> NDArray[np.int64]:
        """The highest number in the ids of each shard, or UNKNOWN."""
        return self.numbers[:, 3]

    def writers(self) -> NDArray[np.bytes_]:
        """Return the writer of each shard, as its name has it."""
        if not len(self.names):
            return np.empty(0, f"S{WRITER_LENGTH}")
        letters = self.names.view("S1").reshape(len(self.names), -1)[:, WRITER_AT : WRITER_AT + WRITER_LENGTH]
        writers: NDArray[np.bytes_] = np.ascontiguousarray(letters).view(f"S{WRITER_LENGTH}").reshape(-1)
        return writers

    @property
    def replaced(self) -> list[str]:
        """The names of shards that do not count because of these."""
        return [name for replaces, _ in self.edits.values() for name in replaces]

    @property
    def dropped(self) -> list[str]:
        """The ids of episodes that do not count because of these."""
        return [episode for _, dropped in self.edits.values() for episode in dropped]


def names_array(names: Sequence[str]) -> NDArray[np.bytes_]:
    """Return names of shards as a column; those of one recording differ in length only beyond a million of a writer."""
    return np.array(names, "S") if names else np.empty(0, "S48")


def joined(parts: Sequence[Entries]) -> Entries:
    """Return the shards of several lines as one, those that came first staying first."""
    if not parts:
        return entries_of(Line(FORMAT, [], [], [], [], []))
    edits = {name: edit for part in parts for name, edit in part.edits.items()}
    names = np.concatenate([part.names for part in parts])
    return Entries(names, np.concatenate([part.numbers for part in parts]), edits)


def entries_of(line: Line) -> Entries:
    """Return what a line says as columns.

    Raises:
        ValueError: its columns have different lengths.
    """
    columns = (line.episodes, line.transitions, line.lowest, line.highest)
    if any(len(column) != len(line.shards) for column in columns):
        raise ValueError("the columns of a line of the index have different lengths")
    return Entries(names_array(line.shards), np.array(columns, np.int64).T.copy(), line.edits)


def line_of(entries: Entries) -> Line:
    """Return the line that says what `entries` have."""
    episodes, transitions, lowest, highest = entries.numbers.T.tolist()
    return Line(FORMAT, entries.names.astype(str).tolist(), episodes, transitions, lowest, highest, entries.edits)


def entries_of_shards(shards: Iterable[Shard], *, ids: bool) -> Entries:
    """Return what shards say of themselves; only with `ids` their episodes are looked at, ten times as long."""
    line = Line(FORMAT, [], [], [], [], [])
    for shard in shards:
        lowest, highest = number_range(shard) if ids else (UNKNOWN, UNKNOWN)
        line.shards.append(shard.name)
        line.episodes.append(shard.manifest.episodes)
        line.transitions.append(shard.manifest.transitions)
        line.lowest.append(lowest)
        line.highest.append(highest)
        if shard.manifest.replaces or shard.manifest.dropped:
            line.edits[shard.name] = (shard.manifest.replaces, shard.manifest.dropped)
    return entries_of(line)


def number_range(shard: Shard) -> tuple[int, int]:
    """Return the lowest and the highest number of the ids of a shard, if all are of its own writer."""
    writer = shard.name[WRITER_AT : WRITER_AT + WRITER_LENGTH]
    split = [id_parts(str(text)) for text in shard.episodes.required("id")]
    if not split or any(owner != writer for owner, _ in split):
        return UNKNOWN, UNKNOWN
    numbers = [number for _, number in split]
    return min(numbers), max(numbers)


def id_parts(episode_id: str) -> tuple[str, int]:
    """Return the writer and the number that an id is made of; -1 where it has none."""
    writer, _, number = episode_id.rpartition("-")
    return (writer, int(number)) if number.isascii() and number.isdigit() and len(number) < 18 else ("", UNKNOWN)


def read_index(recording: Path) -> Entries:
    """Return what the index of a recording says, which is nothing where there is none or it is damaged."""
    return joined(_parts(recording))


def _parts(recording: Path) -> list[Entries]:
    path = recording / INDEX
    try:
        data = read_small(path, INDEX_BYTES)
    except (OSError, RecorderError):
        return []
    decoder = msgspec.json.Decoder(Line)
    parts = []
    for text in filter(None, data.split(b"\n")):
        with suppress(RecorderError, msgspec.MsgspecError, ValueError):
            line = decoder.decode(unsealed(path, text))
            if line.format == FORMAT:
                parts.append(entries_of(line))
    return parts


def write_index(recording: Path, fresh: Entries) -> None:
    """Add shards to the index; when it has grown by too many lines, write it anew as one.

    Raises:
        OSError: the folder cannot be written.
    """
    (recording / INDEX).parent.mkdir(exist_ok=True)
    parts = _parts(recording)
    if len(parts) < MOST_LINES:
        append(recording, fresh)
    else:
        write_file(recording / INDEX, b"\n" + _encoded(joined([*parts, fresh])), durable=False)


def append(recording: Path, fresh: Entries) -> None:
    """Add shards to the index by one write, whatever the end of the file looks like."""
    descriptor = os.open(recording / INDEX, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    try:
        os.write(descriptor, b"\n" + _encoded(fresh))
    finally:
        os.close(descriptor)


def _encoded(entries: Entries) -> bytes:
    return sealed(msgspec.json.encode(line_of(entries))) + b"\n"
