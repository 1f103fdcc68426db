"""Computing: the statistics of all leaves of a recording or a replay buffer, or of some of its episodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from recorder.columns import Array, Column, SpanColumn
from recorder.errors import EpisodeError, FormatError
from recorder.leaf import JSON, JSON_TEXT, Leaf
from recorder.recording import Recording
from recorder.replay_buffer.buffer import ReplayBuffer
from recorder.statistics.gathering import QUANTILES, Gatherer
from recorder.statistics.leaves import LeafStatistics, leaf_statistics_from_json
from recorder.training_data import Source, opened

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
    return _of_episodes(found, _leaves(found, keys), chosen, quantiles, most_frames, watch)


def episode_statistics(
    source: Source,
    *,
    keys: Sequence[str] | None = None,
    quantiles: Sequence[float] = QUANTILES,
    most_frames: int | None = None,
) -> Iterator[Statistics]:
    """Yield the statistics of each episode, in their order; the arguments are those of `statistics`."""
    found = opened(source)
    declared = _leaves(found, keys)
    for i in range(found.n_episodes if isinstance(found, ReplayBuffer) else len(found)):
        yield _of_episodes(found, declared, [i], quantiles, most_frames, None)


def _of_episodes(
    source: ReplayBuffer | Recording,
    declared: Mapping[str, Leaf],
    episodes: Sequence[int],
    quantiles: Sequence[float],
    most_frames: int | None,
    watch: Watch | None,
) -> Statistics:
    spans = _spans(source, list(declared), episodes)
    leaves = {}
    for path, leaf in declared.items():
        if watch is not None:
            watch(path)
        leaves[path] = _of_spans(leaf, spans[path], quantiles, most_frames)
    return Statistics(len(episodes), _steps(source, episodes), leaves)


def _leaves(source: ReplayBuffer | Recording, keys: Sequence[str] | None) -> dict[str, Leaf]:
    there = {key: column.leaf for key, column in source.items()} if isinstance(source, ReplayBuffer) else source.leaves
    for key in keys or ():
        if key not in there:
            raise EpisodeError(f"{source!r} has no {key!r}; it has {list(there)}")
    return dict(there) if keys is None else {key: there[key] for key in keys}


def _position(episode: int, count: int) -> int:
    at = int(episode) + count * (episode < 0)
    if not 0 <= at < count:
        raise EpisodeError(f"no episode {episode}; there are {count}")
    return at


def _steps(source: ReplayBuffer | Recording, episodes: Sequence[int]) -> int:
    if isinstance(source, ReplayBuffer):
        return int(source.episode_lengths[list(episodes)].sum())
    whole = list(episodes) == list(range(len(source)))
    return source.steps if whole else sum(len(source[i]) for i in episodes)


def _spans(source: ReplayBuffer | Recording, paths: Sequence[str], episodes: Sequence[int]) -> dict[str, list[Span]]:
    """Return for each path where its rows lie; those of episodes that follow one another are one span."""
    found: dict[str, list[Span]] = {path: [] for path in paths}
    for i in episodes:
        columns = None if isinstance(source, ReplayBuffer) else source[i].columns
        for path, spans in found.items():
            if isinstance(source, ReplayBuffer):
                rows = source.episode_slice(i)
                _extend(spans, source[path], rows.start, rows.stop)
            elif columns is not None and path in columns:  # a shard lacks keys of info that none of its episodes had
                column = columns[path]
                whole, start = column.place if isinstance(column, SpanColumn) else (column, 0)
                _extend(spans, whole, start, start + len(column))
    return found


def _extend(spans: list[Span], column: Column, start: int, stop: int) -> None:
    if spans and spans[-1][0] is column and spans[-1][2] == start:
        spans[-1] = column, spans[-1][1], stop
    else:
        spans.append((column, start, stop))


def _of_spans(leaf: Leaf, spans: Sequence[Span], quantiles: Sequence[float], most: int | None) -> LeafStatistics:
    total = sum(stop - start for _, start, stop in spans)
    every = -(-total // most) if most and leaf.nbytes >= LARGE_BYTES else 1
    gatherer = Gatherer(_common(leaf, [column.leaf for column, _, _ in spans]))
    seen = 0
    for column, start, stop in spans:
        for rows in blocks(column, start + -seen % every, stop, every):
            gatherer.add(rows)
        seen += stop - start
    return gatherer.result(quantiles, total)


def _common(leaf: Leaf, leaves: Sequence[Leaf]) -> Leaf:
    """Return what the rows of all spans are: where shards differ, as they may in infos, numbers or just values."""
    forms = {(each.shape, each.dtype, each.ragged) for each in leaves}
    if len(forms) <= 1:
        return leaves[0] if leaves else leaf
    numbers = all(each.numpy_dtype.kind in "biuf" for each in leaves)
    return Leaf(leaf.path, (), "float64" if numbers else JSON_TEXT, ragged=any(each.ragged for each in leaves))


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
