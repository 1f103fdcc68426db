"""Sources: the steps of a replay buffer or a recording, numbered through all episodes, read for a batch at once."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from recorder.columns import Array, Column, SpanColumn
from recorder.errors import RowError
from recorder.leaf import JSON_TEXT, Leaf
from recorder.recording import Recording
from recorder.replay_buffer.arrays import ArrayChunkColumn
from recorder.replay_buffer.buffer import ReplayBuffer
from recorder.threads import side_by_side
from recorder.training_data import Source, opened
from recorder.windows.placing import Numbers

NOT_ASKED = frozenset({"info", "digest", "repeated"})
"""First parts of paths of a recording that are only read when they are named."""

NEXT = "next_"
"""Before the path of an observation: the one that a step returned."""

BLOCK_STEPS = 1024
"""Steps that are taken for one file where nothing says how many one has."""

LARGE_BYTES = 64 << 10
"""Rows of fewer bytes are read sooner than another thread wakes up."""

KEPT_SHARDS, KEPT_EPISODES = 64, 1 << 14
"""Shards, and episodes of all shards, of a recording whose columns are kept open."""


class RowSource(ABC):
    """Rows by key, one a step, numbered through all episodes."""

    leaves: dict[str, Leaf]
    lengths: Numbers
    fps: float | None
    name: str

    @property
    def usual(self) -> list[str]:
        """The keys that are read if none are named."""
        return list(self.leaves)

    @abstractmethod
    def read(self, wanted: Mapping[str, NDArray[np.intp]]) -> dict[str, Array]:
        """Return the rows of keys, in any order; what several of them lie in is decoded once."""

    @abstractmethod
    def file_ends(self, keys: Sequence[str]) -> Numbers:
        """Return after which steps a file ends, of the key with the largest rows; the last are all steps."""


def source_of(source: Source) -> RowSource:
    """Return the rows of a buffer or a recording; a path is opened."""
    data = opened(source)
    return BufferRows(data) if isinstance(data, ReplayBuffer) else RecordingRows(data)


class BufferRows(RowSource):
    """The rows of a replay buffer."""

    def __init__(self, buffer: ReplayBuffer) -> None:
        self.buffer = buffer
        self.name = buffer.name
        self.leaves = {key: column.leaf for key, column in buffer.items()}
        self.lengths = buffer.episode_lengths
        said = buffer.attributes.get("recorder")
        self.fps = said.get("fps") if isinstance(said, dict) else None

    def read(self, wanted: Mapping[str, NDArray[np.intp]]) -> dict[str, Array]:
        parts = [Part(self.buffer[key], rows, rows) for key, rows in wanted.items()]
        return dict(zip(wanted, read_parts(parts), strict=True))

    def file_ends(self, keys: Sequence[str]) -> Numbers:
        largest = max(map(self.buffer.__getitem__, keys), key=lambda column: column.leaf.nbytes)
        steps, rows = self.buffer.n_steps, file_rows(largest) or BLOCK_STEPS
        return np.append(np.arange(rows, steps, rows), steps)


def file_rows(column: Column) -> int | None:
    """Return how many rows one file of a column holds, if it is one that lies in files of chunks."""
    column = column.place[0] if isinstance(column, SpanColumn) else column
    return column.file_rows if isinstance(column, ArrayChunkColumn) else None


class Part(NamedTuple):
    """Rows that lie in one column: which of it, and where they are to come in the result."""

    column: Column
    rows: NDArray[np.intp]
    where: NDArray[np.intp]

    @property
    def nbytes(self) -> int:
        """The bytes of the rows."""
        return len(self.rows) * self.column.leaf.nbytes


def read_parts(parts: Sequence[Part]) -> list[Array]:
    """Return the rows of parts: of large ones side by side, of all small ones together by one thread."""
    found = [np.empty(0)] * len(parts)

    def read(which: Sequence[int]) -> None:
        for i in which:
            found[i] = parts[i].column[parts[i].rows]

    large = [i for i, part in enumerate(parts) if part.nbytes >= LARGE_BYTES]
    small = [i for i, part in enumerate(parts) if part.nbytes < LARGE_BYTES]
    side_by_side([partial(read, each) for each in [*([i] for i in large), *([small] if small else [])]])
    return found


class RecordingRows(RowSource):
    """The rows of a recording: row t has the observation before step t+1, its action, and what came back from it.

    `next_observation/…` is the observation that the step returned; `info/…` comes from there too.
    """

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.name = ", ".join(str(path) for path in recording.paths)
        known = {path: leaf for path, leaf in recording.leaves.items() if not (leaf.ragged or leaf.dtype == JSON_TEXT)}
        following = {NEXT + path: path for path in known if path.split("/")[0] == "observation"}
        self.leaves = {**known, **{key: known[path] for key, path in following.items()}}
        self._paths = {**{path: path for path in known}, **following}
        self.lengths = np.asarray(recording.table()["steps"], np.int64) if len(recording) else np.zeros(0, np.int64)
        self.fps = recording.fps
        self._firsts = np.cumsum(self.lengths) - self.lengths
        self._shard_ends = recording.shard_ends
        self._open: OrderedDict[int, dict[int, dict[str, Column]]] = OrderedDict()
        self._pid = os.getpid()

    @property
    def usual(self) -> list[str]:
        return [key for key in self.leaves if key.split("/")[0] not in NOT_ASKED and not key.startswith(NEXT)]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": OrderedDict()}

    def read(self, wanted: Mapping[str, NDArray[np.intp]]) -> dict[str, Array]:
        if os.getpid() != self._pid:  # files that were opened before a fork are the parent's
            self._open, self._pid = OrderedDict(), os.getpid()
        parts = {key: self._parts(key, rows) for key, rows in wanted.items()}
        found = iter(read_parts([part for each in parts.values() for part in each]))
        rows = {key: [self._present(key, next(found)) for _ in each] for key, each in parts.items()}
        return {key: self._joined(self.leaves[key], parts[key], rows[key], len(wanted[key])) for key in wanted}

    def _parts(self, key: str, rows: NDArray[np.intp]) -> list[Part]:
        """Return where rows are to be read; episodes that lie in one column have one part."""
        episodes = np.searchsorted(self._firsts + self.lengths, rows, "right")
        chosen, which = np.unique(episodes, return_inverse=True)
        shift = int(key != self._paths[key] or key.startswith("info/"))
        starts = np.zeros(len(chosen), np.intp)
        groups: dict[int, tuple[Column, list[int]]] = {}
        path = self._paths[key]
        shards = np.searchsorted(self._shard_ends, chosen, "right").tolist()
        for i, (shard, episode) in enumerate(zip(shards, chosen.tolist(), strict=True)):
            column = self._column(shard, episode, path)
            if isinstance(column, SpanColumn):
                column, starts[i] = column.place
            groups.setdefault(id(column), (column, []))[1].append(i)
        inside = rows - self._firsts[episodes] + starts[which] + shift
        if len(groups) == 1:
            return [Part(column, inside, np.arange(len(rows))) for column, _ in groups.values()]
        places = [(column, np.flatnonzero(np.isin(which, members))) for column, members in groups.values()]
        return [Part(column, inside[where], where) for column, where in places]

    def _column(self, shard: int, episode: int, path: str) -> Column:
        """Return a column of an episode, which is kept with those of its shard."""
        kept = self._open.setdefault(shard, {})
        self._open.move_to_end(shard)
        if episode not in kept:
            kept[episode] = {}
            while len(self._open) > KEPT_SHARDS or (
                len(self._open) > 1 and sum(map(len, self._open.values())) > KEPT_EPISODES
            ):
                self._open.popitem(last=False)
        if path not in kept[episode]:
            columns = self.recording[episode].columns
            if path not in columns:
                raise RowError(f"episode {self.recording[episode].id} has no {path!r}; leave it out of keys")
            kept[episode][path] = columns[path]
        return kept[episode][path]

    def _present(self, key: str, rows: Array) -> Array:
        """Return rows that are all there."""
        if isinstance(rows, np.ma.MaskedArray):
            if absent := int(np.ma.getmaskarray(rows).reshape(len(rows), -1).any(axis=1).sum()):
                raise RowError(f"{key!r} is absent from {absent} of {len(rows)} steps; leave it out of keys")
            rows = np.asarray(rows.data)
        leaf = self.leaves[key]
        if rows.dtype != leaf.numpy_dtype or rows.shape[1:] != leaf.shape:
            found, other = f"{rows.dtype} {rows.shape[1:]}", f"{leaf.dtype} {leaf.shape}"
            raise RowError(f"{key!r} is {found} in some episodes and {other} in others; leave it out of keys")
        return rows

    def _joined(self, leaf: Leaf, parts: list[Part], found: list[Array], count: int) -> Array:
        if len(parts) == 1:
            return found[0]
        rows = np.empty((count, *leaf.shape), leaf.numpy_dtype)
        for part, read in zip(parts, found, strict=True):
            rows[part.where] = read
        return rows

    def file_ends(self, keys: Sequence[str]) -> Numbers:
        return np.asarray(np.append(0, np.cumsum(self.lengths))[self._shard_ends])
