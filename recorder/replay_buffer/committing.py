"""Committing: whole episodes added to all arrays of a buffer, and made part of it by one write of `episode_ends`."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import Any, Self

import numpy as np

from recorder.asking import whole
from recorder.errors import ClosedError, DamagedError, EpisodeError, LayoutError, NotAReplayBufferError
from recorder.leaf import Leaf
from recorder.replay_buffer.arrays import Node, find_arrays, read_node
from recorder.replay_buffer.encoding import Encoders
from recorder.replay_buffer.fitting import fit_episode
from recorder.replay_buffer.metadata import ArrayMetadata, parse_array
from recorder.replay_buffer.places import Place, together
from recorder.replay_buffer.writing import ArrayWriter, clear_halves

ENDS, IDS, COMPLETE = "meta/episode_ends", "meta/episode_ids", "meta/complete"

COMMIT_SECONDS, COMMIT_SHARE = 1.0, 20
"""Episodes are committed after so many seconds, or so many times as long as the last commit took."""


class BufferWriter:
    """Adds episodes to a buffer: rows to all arrays, then the ends of episodes, in one order that a kill may cut.

    Files of rows come first, then how many rows each array has, then the ids of the episodes, and last of all
    `meta/episode_ends`: what it does not name is not there, and is cut off by the next writer. There is one at a time.
    """

    def __init__(self, place: Place, workers: int | None = None) -> None:
        """Open a buffer for writing, and cut what a killed writer left beyond the last committed episode.

        Raises:
            NotAReplayBufferError: there is none.
            LayoutError: an array is of a form that is only read here.
            DamagedError: an array is shorter than the episodes.
            WriteError: another process writes to it.
        """
        self.place = place
        self._stack = ExitStack()
        try:
            self._stack.enter_context(place.writing())
            self._encoders = Encoders(workers)
            self._stack.callback(self._encoders.close)
            self._open()
        except BaseException:
            self._stack.close()
            raise
        self._closed = False
        self._pid = os.getpid()
        self._committed_at, self._commit_seconds = time.monotonic(), 0.0

    def _open(self) -> None:
        self._ends = self._meta(ENDS)
        if self._ends is None:
            raise NotAReplayBufferError(f"{self.place.name} holds no replay buffer: there is no {ENDS}")
        self.ends: list[int] = [int(end) for end in self._ends.column()[:]]
        self._ids = self._meta(IDS)
        self.ids: list[str] = []
        if self._ids is not None:
            self.ids = [str(each) for each in self._ids.column()[: len(self.ends)]]
            self._ids.cut(len(self.ends))
        self.arrays = {key: self._array(key, node) for key, node in find_arrays(self.place, "data").items()}
        for writer in self._writers:
            writer.clear_beyond()
        for folder in ("", "data", "meta", COMPLETE):
            clear_halves(self.place, folder)

    @property
    def _writers(self) -> list[ArrayWriter]:
        return [*self.arrays.values(), *([self._ids] if self._ids else []), *([self._ends] if self._ends else [])]

    def _meta(self, name: str) -> ArrayWriter | None:
        node = read_node(self.place, name)
        if node is None:
            return None
        metadata = self._metadata(name, node)
        return ArrayWriter(self.place, name, metadata, self._encoders, metadata.rows)

    def _array(self, key: str, node: Node) -> ArrayWriter:
        metadata = self._metadata(key, node)
        if metadata.rows < self.rows:
            raise DamagedError(
                f"{self.place.name}: {key!r} has {metadata.rows} rows, but the episodes end at row {self.rows}"
            )
        return ArrayWriter(self.place, node.name, metadata, self._encoders, self.rows)

    def _metadata(self, key: str, node: Node) -> ArrayMetadata:
        metadata = parse_array(key, node.data, node.attributes)
        if metadata is None:
            raise LayoutError(
                f"{self.place.name}: chunks of {key!r} are cut across rows, or of a dtype that is only read here; "
                f"copy_to(path) makes a buffer that can be added to"
            )
        if not metadata.codec.writable:
            raise LayoutError(
                f"{self.place.name}: pictures of {key!r} are coded by a codec that is only read here; "
                f"copy_to(path) makes a buffer that can be added to"
            )
        return metadata

    @property
    def rows(self) -> int:
        """The rows of all episodes that were added."""
        return self.ends[-1] if self.ends else 0

    @property
    def leaves(self) -> dict[str, Leaf]:
        """What a row of each key looks like."""
        return {key: writer.metadata.leaf for key, writer in self.arrays.items()}

    def length(self, episode: int) -> int:
        """Return how many rows an episode has."""
        return self.ends[episode] - (self.ends[episode - 1] if episode else 0)

    def append(self, episode: Mapping[str, Any], episode_id: str = "") -> None:
        """Add an episode, a row a step of every key. It is on disk after the next `commit`.

        Raises:
            RowError: a key is missing, extra, of another shape, or would not be exact in its array; nothing was added.
        """
        self._check_open()
        rows = fit_episode(episode, self.leaves)
        count = len(next(iter(rows.values())))
        for key, column in rows.items():
            self.arrays[key].add(column)
        self.end_episodes([count], [episode_id])

    def end_episodes(self, lengths: Sequence[int], ids: Sequence[str]) -> None:
        """Note that rows that were added to the arrays are so many whole episodes."""
        start = self.rows
        self.ends += [start + int(length) for length in np.cumsum(lengths)]
        self.ids += ids
        for key, writer in self.arrays.items():
            assert writer.rows == self.rows, (key, writer.rows, self.rows)
        assert self._ends is not None
        self._ends.add(np.array(self.ends[-len(lengths) :], self._ends.metadata.leaf.numpy_dtype))
        if self._ids is not None:
            self._ids.add(np.array(list(ids), object))

    def commit_if_due(self) -> None:
        """Commit when that is long ago, beside what a commit takes."""
        if time.monotonic() - self._committed_at > max(COMMIT_SECONDS, COMMIT_SHARE * self._commit_seconds):
            self.commit()

    def commit(self) -> None:
        """Make all episodes that were added part of the buffer."""
        self._check_open()
        begun = time.monotonic()
        *others, ends = self._writers
        self._save(others)
        if any(not writer.metadata.shard_chunks for writer in self.arrays.values()):
            self.place.barrier()
        rows = [len(self.ends) if writer is self._ids else self.rows for writer in others]
        together([partial(writer.publish, count) for writer, count in zip(others, rows, strict=True)])
        self._save([ends])
        ends.publish(len(self.ends))
        self._committed_at = time.monotonic()
        self._commit_seconds = self._committed_at - begun

    def _save(self, writers: Sequence[ArrayWriter]) -> None:
        together([save for writer in writers if (save := writer.unsaved()) is not None])

    def drop(self, episodes: int = 1) -> None:
        """Take the last episodes away.

        Raises:
            EpisodeError: there are not so many.
        """
        self._check_open()
        if whole("episodes", episodes, 0, error=EpisodeError) > len(self.ends) or not episodes:
            raise EpisodeError(f"{episodes} episodes cannot be dropped: the buffer has {len(self.ends)}")
        self.commit()
        del self.ends[-episodes:]
        del self.ids[len(self.ends) :]
        assert self._ends is not None
        self._ends.cut(len(self.ends))
        self._ends.publish(len(self.ends))  # first, or a reader would meet ends that are gone
        if self._ids is not None:
            self._ids.cut(len(self.ends))
        for writer in self.arrays.values():
            writer.cut(self.rows)
        self.commit()
        for writer in self._writers:
            writer.clear_beyond()

    def close(self) -> None:
        """Give the buffer free for other writers; what was not committed is not in it. May be called twice."""
        self._closed = True
        self._stack.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"the writer of {self.place.name} is closed")
        if os.getpid() != self._pid:
            raise ClosedError(f"{self.place.name} is written to by the parent of this process; open it anew here")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
