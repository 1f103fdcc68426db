"""Computing: the statistics of all leaves of a recording or a replay buffer, or of some of its episodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recorder.columns import Array, Column, SpanColumn
from recorder.errors import EpisodeError, FormatError
from recorder.leaf import JSON
from recorder.recording import Recording
from recorder.replay_buffer.buffer import ReplayBuffer
from recorder.schema import NOTE
from recorder.statistics.gathering import QUANTILES, Gatherer
from recorder.statistics.leaves import LeafStatistics, leaf_statistics_from_json

Source = ReplayBuffer | Recording | Path | str
"""What has statistics; a path is that of a replay buffer or of a recording."""

BLOCK_BYTES, BLOCK_ROWS = 16 << 20, 4096
"""Rows that are read at once: no more than either."""

LARGE_BYTES = 4 << 10
"""Rows of so many bytes are pictures or the like, of which `most_frames` may be enough."""

Span = tuple[Column, int, int]
Watch = Callable[[str], None]


@dataclass(frozen=True)
class Statistics:
    """The statistics of some leaves by path, and of how many episodes and steps they are."""

    episodes: int
    steps: int
    leaves: Mapping[str, LeafStatistics]

    def to_json(self) -> dict[str, JSON]:
        """Return strict JSON."""
        leaves = {path: leaf.to_json() for path, leaf in self.leaves.items()}
        return {"episodes": self.episodes, "steps": self.steps, "leaves": leaves}


def statistics_from_json(said: Any) -> Statistics:
    """Return statistics from what `to_json` gave.

    Raises:
        FormatError: they are none.
    """
    try:
        leaves = {str(path): leaf_statistics_from_json(leaf) for path, leaf in said["leaves"].items()}
        return Statistics(int(said["episodes"]), int(said["steps"]), leaves)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FormatError(f"no statistics: {type(error).__name__} {error}") from error


def statistics(
    source: Source,
    *,
    keys: Sequence[str] | None = None,
    episodes: Sequence[int] | None = None,
    quantiles: Sequence[float] = QUANTILES,
    most_frames: int | None = None,
    watch: Watch | None = None,
) -> Statistics:
    """Return the statistics of all rows, read block by block.

    Args:
        source: a `ReplayBuffer`, a `Recording`, or the path of one.
        keys: of which leaves; all by default.
        episodes: of which episodes; all by default.
        quantiles: which ones, from 0 to 1; exact up to 8,192 rows and for numbers of one byte, else of a sample.
        most_frames: look at no more than so many rows, evenly spaced, of leaves with large rows such as pictures;
            each result says how many it looked at.
        watch: called with the path of each leaf before it is read.

    Raises:
        EpisodeError: there is no such key or episode.
    """
    found = opened(source)
    count = found.n_episodes if isinstance(found, ReplayBuffer) else len(found)
    chosen = [_position(i, count) for i in (range(count) if episodes is None else episodes)]
    paths = _paths(found) if keys is None else list(keys)
    leaves = {}
    for path in paths:
        if watch is not None:
            watch(path)
        leaves[path] = _of_spans(path, joined(_spans(found, path, chosen)), quantiles, most_frames)
    return Statistics(len(chosen), _steps(found, chosen), leaves)


def opened(source: Source) -> ReplayBuffer | Recording:
    """Return what a path holds, opened."""
    if isinstance(source, ReplayBuffer | Recording):
        return source
    recorded = "://" not in str(source) and (Path(source) / NOTE).exists()
    return Recording(source) if recorded else ReplayBuffer(source)


def _paths(source: ReplayBuffer | Recording) -> list[str]:
    return source.keys() if isinstance(source, ReplayBuffer) else list(source.leaves)


def _position(episode: int, count: int) -> int:
    at = int(episode) + count * (episode < 0)
    if not 0 <= at < count:
        raise EpisodeError(f"no episode {episode}; there are {count}")
    return at


def _steps(source: ReplayBuffer | Recording, episodes: Sequence[int]) -> int:
    if isinstance(source, ReplayBuffer):
        return int(source.episode_lengths[list(episodes)].sum())
    return int(source.table()["steps"][list(episodes)].sum()) if len(source) else 0


def _spans(source: ReplayBuffer | Recording, path: str, episodes: Sequence[int]) -> Iterator[Span]:
    if isinstance(source, ReplayBuffer):
        return _buffer_spans(source, path, episodes)
    return _recording_spans(source, path, episodes)


def _buffer_spans(buffer: ReplayBuffer, key: str, episodes: Sequence[int]) -> Iterator[Span]:
    if key not in buffer:
        raise EpisodeError(f"{buffer.name} has no {key!r}; it has {buffer.keys()}")
    for i in episodes:
        rows = buffer.episode_slice(i)
        yield buffer[key], rows.start, rows.stop


def _recording_spans(recording: Recording, path: str, episodes: Sequence[int]) -> Iterator[Span]:
    if path not in recording.leaves:
        raise EpisodeError(f"the recording has no leaf {path!r}; it has {list(recording.leaves)}")
    for i in episodes:
        column = recording[i].columns.get(path)  # a shard lacks keys of info that none of its episodes had
        if isinstance(column, SpanColumn):
            whole, start = column.place
            yield whole, start, start + len(column)
        elif column is not None:
            yield column, 0, len(column)


def joined(spans: Iterator[Span]) -> list[Span]:
    """Return spans, those that follow one another in one column as one."""
    found: list[Span] = []
    for column, start, stop in spans:
        if found and found[-1][0] is column and found[-1][2] == start:
            found[-1] = column, found[-1][1], stop
        else:
            found.append((column, start, stop))
    return found


def _of_spans(path: str, spans: Sequence[Span], quantiles: Sequence[float], most: int | None) -> LeafStatistics:
    if not spans:
        raise EpisodeError(f"no episode was chosen that has {path!r}")
    leaf = spans[0][0].leaf
    total = sum(stop - start for _, start, stop in spans)
    every = -(-total // most) if most and leaf.nbytes >= LARGE_BYTES else 1
    gatherer = Gatherer(leaf)
    seen = 0
    for column, start, stop in spans:
        for rows in blocks(column, start + -seen % every, stop, every):
            gatherer.add(rows)
        seen += stop - start
    return gatherer.result(quantiles, total)


def blocks(column: Column, start: int, stop: int, every: int = 1) -> Iterator[Array]:
    """Yield the rows `[start, stop)` in blocks, all or every so many of them."""
    size = every * max(1, min(BLOCK_ROWS, BLOCK_BYTES // max(column.leaf.nbytes, 1)))
    for first in range(start, stop, size):
        yield column[first : min(first + size, stop) : every]


def summary(column: Column) -> LeafStatistics:
    """Return the statistics of one column."""
    gatherer = Gatherer(column.leaf)
    for rows in blocks(column, 0, len(column)):
        gatherer.add(rows)
    return gatherer.result()
