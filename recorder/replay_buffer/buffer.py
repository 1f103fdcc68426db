"""ReplayBuffer: reads rows, episodes and keys of a zarr replay buffer, and hands appending on to a writer."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from recorder.asking import names
from recorder.columns import Array, Column, Index, SpanColumn
from recorder.errors import DamagedError, EpisodeError, FormatError, NotAReplayBufferError, RowError
from recorder.leaf import JSON
from recorder.replay_buffer.arrays import MemoryColumn, Node, find_arrays, open_array, parsed, read_node
from recorder.replay_buffer.committing import COMPLETE, ENDS, IDS, BufferWriter
from recorder.replay_buffer.copying import Copy, copy_buffer, image_codec
from recorder.replay_buffer.creating import BufferOptions
from recorder.replay_buffer.filling import Target
from recorder.replay_buffer.opening import StoreLike, open_place
from recorder.replay_buffer.places import Place


class ReplayBuffer:
    """Episodes as rows of a few zarr arrays: `buffer["action"][10:20]`, `buffer.episode(3)`.

    `buffer[key]` is a column with `shape` and `dtype` that takes an int, a slice, a mask or rows in any order; only
    those are read and decoded, many of them on all cores. Buffers of diffusion_policy, UMI and VersatIL
    open as well as our own. A buffer can be pickled, and used in forked and spawned workers.
    """

    def __init__(self, where: StoreLike, storage_options: dict[str, Any] | None = None) -> None:
        """Open a buffer for reading.

        Args:
            where: a folder, a zip file, a URL of fsspec or obstore, a store or group of zarr, or a dict.
            storage_options: what fsspec or obstore needs to open a URL.

        Raises:
            NotAReplayBufferError: there is no `meta/episode_ends`.
            DamagedError: an array has fewer rows than the episodes need.
        """
        self._place = open_place(where, storage_options)
        self._writer: BufferWriter | None = None
        self._memory: frozenset[str] = frozenset()
        self._columns: dict[str, Column] = {}
        self._ends = np.zeros(0, np.int64)
        self._attributes: dict[str, JSON] = {}
        self.refresh()

    def refresh(self) -> int:
        """Look for episodes that were added since, and return how many are new."""
        before = self.n_episodes
        self._ends = _read_ends(self._place.name, read_node(self._place, ENDS), self._place)
        rows = int(self._ends[-1]) if len(self._ends) else 0
        columns = {key: self._column(key, node, rows) for key, node in find_arrays(self._place, "data").items()}
        for key in self._memory & columns.keys():
            columns[key] = MemoryColumn(columns[key].leaf, columns[key][:])
        self._columns = columns
        self._attributes = _read_attributes(self._place)
        return self.n_episodes - before

    def _column(self, key: str, node: Node, rows: int) -> Column:
        declared, column = open_array(self._place, key, node)
        if declared < rows:
            raise DamagedError(
                f"{self._place.name}: {key!r} has {declared} rows, but the episodes end at row {rows}; it was cut"
            )
        return column if declared == rows else SpanColumn(column, 0, rows)

    def keys(self) -> list[str]:
        """Return the paths of the arrays below `data`: `observation/camera`, `action`, …."""
        return list(self._columns)

    def values(self) -> list[Column]:
        """Return the columns of all keys."""
        return list(self._columns.values())

    def items(self) -> list[tuple[str, Column]]:
        """Return keys and columns."""
        return list(self._columns.items())

    def __contains__(self, key: object) -> bool:
        return key in self._columns

    def __getitem__(self, key: str) -> Column:
        """Return the rows of one key, read on demand.

        Raises:
            KeyError: there is no such key; those that there are are named.
        """
        if key not in self._columns:
            raise KeyError(f"{key!r}; {self._place.name} has {self.keys()}")
        return self._columns[key]

    __iter__ = None  # rows or keys: `keys()` and `n_steps` say which

    def __len__(self) -> int:
        """The rows, which are the steps of all episodes."""
        return self.n_steps

    @property
    def n_steps(self) -> int:
        """The rows, which are the steps of all episodes."""
        return int(self._ends[-1]) if len(self._ends) else 0

    @property
    def n_episodes(self) -> int:
        """The number of episodes."""
        return len(self._ends)

    @property
    def episode_ends(self) -> NDArray[np.int64]:
        """The row after the last one of each episode (n_episodes,)."""
        return self._ends

    @property
    def episode_lengths(self) -> NDArray[np.int64]:
        """The steps of each episode (n_episodes,)."""
        return np.diff(self._ends, prepend=0)

    @property
    def episode_ids(self) -> list[str]:
        """The id that each episode had in its recording; empty ones where it had none."""
        node = read_node(self._place, IDS)
        if node is None:
            return [""] * self.n_episodes
        return [str(name) for name in open_array(self._place, IDS, node)[1][: self.n_episodes]]

    def episode_slice(self, i: int) -> slice:
        """Return the rows of an episode, negative ones from the end.

        Raises:
            IndexError: there are fewer episodes.
        """
        at = int(i) + self.n_episodes * (i < 0)
        if not 0 <= at < self.n_episodes:
            raise IndexError(f"episode {i} of a replay buffer of {self.n_episodes} episodes")
        return slice(int(self._ends[at - 1]) if at else 0, int(self._ends[at]))

    def episode(self, i: int, keys: Sequence[str] | None = None) -> dict[str, Array]:
        """Return the rows of an episode, of all keys or some."""
        return self.rows(self.episode_slice(i), keys)

    def rows(self, index: Index, keys: Sequence[str] | None = None) -> dict[str, Array]:
        """Return rows by an int, a slice, a mask or a list in any order, of all keys or some."""
        return {key: self[key][index] for key in (self._columns if keys is None else names("keys", keys))}

    def append(self, episode: Mapping[str, Any]) -> None:
        """Add an episode: a row a step of every key. It is on disk, and read here, when this returns.

        Raises:
            RowError: a key is missing or extra, has another number of rows, or rows that are not exact in its array;
                nothing was added.
            WriteError: another process writes to the buffer.
        """
        self._change(lambda writer: writer.append(episode))

    def drop(self, episodes: int = 1) -> None:
        """Take the last episodes away.

        Raises:
            EpisodeError: there are not so many.
        """
        self._change(lambda writer: writer.drop(episodes))

    def pop(self) -> dict[str, Array]:
        """Take the last episode away, and return its rows.

        Raises:
            EpisodeError: there is none.
        """
        if not self.n_episodes:
            raise EpisodeError(f"{self.name} has no episode to take away")
        episode = self.episode(-1)
        self.drop()
        return episode

    def _change(self, change: Callable[[BufferWriter], None]) -> None:
        """Have something done by the writer, which is held from the first time on until `close`."""
        if self._memory:
            raise EpisodeError(f"keys of {self.name} are in memory: open the buffer anew to change it")
        if self._writer is None:
            self._writer = BufferWriter(self._place)
        try:
            change(self._writer)
            self._writer.commit()
        except RowError:
            raise
        except BaseException:
            self.close()  # the next writer cuts off what this one has left
            raise
        self.refresh()

    def close(self) -> None:
        """Let others write; reading goes on. May be called twice."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def copy_to_memory(self, keys: Sequence[str] | None = None) -> ReplayBuffer:
        """Return a buffer of which some keys, or all, lie decoded in memory; the others are read as here."""
        copied = copy.copy(self)
        wanted = self.keys() if keys is None else names("keys", keys)
        memory = {key: MemoryColumn(self[key].leaf, self[key][:]) for key in wanted}
        copied._writer, copied._memory = None, frozenset(wanted)
        copied._columns = {**self._columns, **memory}
        return copied

    def copy_to(
        self,
        where: StoreLike,
        *,
        keys: Sequence[str] | None = None,
        episodes: Sequence[int] | None = None,
        chunk_rows: int | Mapping[str, int] | None = None,
        options: BufferOptions | None = None,
        zarr_format: Literal[2, 3] = 3,
        overwrite: bool = False,
        storage_options: dict[str, Any] | None = None,
    ) -> ReplayBuffer:
        """Write some keys and episodes, or all, as a new buffer, and return it opened.

        Pictures in WebP are copied as bytes, whatever becomes of their files; other ones become lossless WebP.

        Args:
            where: a folder, a zip file, a URL, or a store of zarr.
            keys: which keys.
            episodes: which episodes, in this order.
            chunk_rows: rows a chunk of all keys but pictures, or of each by key; about 64 KiB if not said.
            options: codecs, frames a shard and format; by default those with which no picture is coded anew.
            zarr_format: 3 with shards, or 2, if `options` do not say it.
            overwrite: replace a buffer that is there, when the new one is whole.
            storage_options: what fsspec or obstore needs to open a URL.

        Raises:
            ExistsError: the path exists, or is that of this buffer.
            KeyError: there is no such key.
            IndexError: there is no such episode.
        """
        target = Target(where, storage_options, overwrite=overwrite)
        target.check_apart(self._place)
        made = options or BufferOptions(image_codec(self.values()), zarr_format=zarr_format)
        copy_buffer(self, target, Copy(keys, episodes, chunk_rows), made)
        return ReplayBuffer(where, storage_options)

    @property
    def attributes(self) -> Mapping[str, JSON]:
        """The attributes of the root group; what this package wrote there is under `recorder`."""
        return self._attributes

    @property
    def complete(self) -> bool:
        """Whether a conversion has said that it wrote all it meant to."""
        return read_node(self._place, COMPLETE) is not None

    @property
    def name(self) -> str:
        """Where the buffer is, for messages."""
        return self._place.name

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_writer": None}

    def __repr__(self) -> str:
        return f"<ReplayBuffer {self.name}: {self.n_episodes:,} episodes, {self.n_steps:,} steps, {self.keys()}>"


def _read_ends(name: str, node: Node | None, place: Place) -> NDArray[np.int64]:
    if node is None:
        raise NotAReplayBufferError(f"{name} holds no replay buffer: there is no {ENDS}")
    _, column = open_array(place, ENDS, node)
    ends = np.asarray(column[:])
    if ends.ndim != 1 or ends.dtype.kind not in "iu" or (np.diff(ends, prepend=0) < 0).any():
        raise FormatError(f"{name}: {ENDS} are not growing whole numbers: {ends.dtype} {ends.shape}")
    return ends.astype(np.int64)


def _read_attributes(place: Place) -> dict[str, JSON]:
    document = place.get("zarr.json")
    if document is not None:
        said = parsed(place.name, document).get("attributes") or {}
    else:
        said = parsed(place.name, place.get(".zattrs") or b"{}")
    return dict(said)
