"""Computing: the statistics of all leaves of a recording or a replay buffer, or of some of its episodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from recorder.asking import names, whole
from recorder.columns import Column
from recorder.errors import EpisodeError, FormatError
from recorder.leaf import JSON, JSON_TEXT, Leaf
from recorder.replay_buffer.buffer import ReplayBuffer
from recorder.replay_buffer.copying import Span
from recorder.statistics.gathering import QUANTILES, Gatherer
from recorder.statistics.leaves import LeafStatistics, leaf_statistics_from_json
from recorder.statistics.spans import BufferSpans, RecordingSpans, SpanSource, blocks
from recorder.training_data import Source, opened

LARGE_BYTES = 4 << 10
"""Rows of so many bytes are pictures or the like, of which `most_frames` may be enough."""

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
        watch: called with the path of each leaf before rows of it are read, of a recording for each of its shards.

    Raises:
        EpisodeError: there is no such key or episode.
    """
    found = _spans_of(source)
    asked = _Asked(_leaves(found, keys), _quantiles(quantiles), _most(most_frames), watch)
    chosen = [_position(i, len(found.lengths)) for i in (range(len(found.lengths)) if episodes is None else episodes)]
    return _of_episodes(found, chosen, asked)


def episode_statistics(
    source: Source,
    *,
    keys: Sequence[str] | None = None,
    quantiles: Sequence[float] = QUANTILES,
    most_frames: int | None = None,
) -> Iterator[Statistics]:
    """Yield the statistics of each episode, in their order; the arguments are those of `statistics`."""
    found = _spans_of(source)
    asked = _Asked(_leaves(found, keys), _quantiles(quantiles), _most(most_frames), None)
    return (_of_episodes(found, [i], asked) for i in range(len(found.lengths)))


class _Asked(NamedTuple):
    """Of what statistics are wanted, and which."""

    leaves: Mapping[str, Leaf]
    quantiles: Sequence[float]
    most: int | None
    watch: Watch | None


def _spans_of(source: Source) -> SpanSource:
    found = opened(source)
    return BufferSpans(found) if isinstance(found, ReplayBuffer) else RecordingSpans(found)


def _of_episodes(source: SpanSource, episodes: Sequence[int], asked: _Asked) -> Statistics:
    gathering = {path: _gathering(source, leaf, episodes, asked.most) for path, leaf in asked.leaves.items()}
    for group in source.groups(episodes):
        spans = source.spans(list(gathering), group)
        for path, each in gathering.items():
            if asked.watch is not None:
                asked.watch(path)
            for span in spans[path]:
                each.add(span)
    leaves = {path: each.gatherer.result(asked.quantiles, each.seen) for path, each in gathering.items()}
    return Statistics(len(episodes), int(source.lengths[list(episodes)].sum()), leaves)


@dataclass
class _Gathering:
    """The rows of one leaf as they come: all, or every so many."""

    gatherer: Gatherer
    every: int
    seen: int = 0

    def add(self, span: Span) -> None:
        for rows in blocks(span.column, span.start + -self.seen % self.every, span.stop, self.every):
            self.gatherer.add(rows)
        self.seen += span.stop - span.start


def _gathering(source: SpanSource, leaf: Leaf, episodes: Sequence[int], most: int | None) -> _Gathering:
    forms = source.forms(leaf.path, episodes)
    total = sum(rows for _, rows in forms)
    every = -(-total // most) if most and leaf.nbytes >= LARGE_BYTES else 1
    return _Gathering(Gatherer(_common(leaf, [form for form, _ in forms])), max(1, every))


def _leaves(source: SpanSource, keys: Sequence[str] | None) -> dict[str, Leaf]:
    there = source.leaves
    for key in names("keys", keys or (), error=EpisodeError):
        if key not in there:
            raise EpisodeError(f"{source.name} has no {key!r}; it has {list(there)}")
    return dict(there) if keys is None else {key: there[key] for key in keys}


def _quantiles(quantiles: Sequence[float]) -> Sequence[float]:
    for q in quantiles:
        if not 0 <= q <= 1:
            raise EpisodeError(f"quantiles={quantiles!r}: each from 0 to 1")
    return quantiles


def _most(most_frames: int | None) -> int | None:
    return None if most_frames is None else whole("most_frames", most_frames, 1, error=EpisodeError)


def _position(episode: int, count: int) -> int:
    at = int(episode) + count * (episode < 0)
    if not 0 <= at < count:
        raise EpisodeError(f"no episode {episode}; there are {count}")
    return at


def _common(leaf: Leaf, leaves: Sequence[Leaf]) -> Leaf:
    """Return what the rows of all spans are: where shards differ, as they may in infos, numbers or just values."""
    forms = {(each.shape, each.dtype, each.ragged) for each in leaves}
    if len(forms) <= 1:
        return leaves[0] if leaves else leaf
    numbers = all(each.numpy_dtype.kind in "biuf" for each in leaves)
    return Leaf(leaf.path, (), "float64" if numbers else JSON_TEXT, ragged=any(each.ragged for each in leaves))


def summary(column: Column) -> LeafStatistics:
    """Return the statistics of one column."""
    gatherer = Gatherer(column.leaf)
    for rows in blocks(column, 0, len(column)):
        gatherer.add(rows)
    return gatherer.result()
