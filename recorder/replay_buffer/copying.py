"""Copying: rows from columns into arrays, pictures as they are coded where both are coded alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from recorder.asking import names, whole
from recorder.columns import Array, Column
from recorder.errors import LayoutError
from recorder.leaf import Leaf
from recorder.replay_buffer.codecs import WebP
from recorder.replay_buffer.committing import BufferWriter
from recorder.replay_buffer.creating import BufferOptions
from recorder.replay_buffer.filling import Target, filled
from recorder.replay_buffer.metadata import OURS
from recorder.replay_buffer.pictures import WEBP, PictureCodec
from recorder.replay_buffer.specs import ArraySpec
from recorder.replay_buffer.targets import BEGUN
from recorder.replay_buffer.writing import ArrayWriter
from recorder.storages.zarr_columns import PARALLEL_BYTES
from recorder.threads import cores, side_by_side

BLOCK_BYTES, MOST_BLOCK_BYTES = 16 << 20, 64 << 20
"""Rows that are read at once, for each core and of all: a group of pictures of a video of 640 x 480, or four."""


class Source(Protocol):
    """What is read of a replay buffer that is copied."""

    @property
    def n_episodes(self) -> int:
        """How many episodes there are."""

    @property
    def episode_ids(self) -> Sequence[str]:
        """The id of each episode."""

    @property
    def attributes(self) -> Mapping[str, Any]:
        """The attributes of the buffer."""

    def keys(self) -> Sequence[str]:
        """Return the keys of its arrays."""

    def __getitem__(self, key: str) -> Column:
        """Return the rows of an array."""

    def episode_slice(self, i: int) -> slice:
        """Return where the rows of an episode are."""


def as_they_are(rows: Array) -> Array:
    """Return rows unchanged."""
    return rows


def coded_alike(column: Column, writer: ArrayWriter) -> bool:
    """Return whether pictures are WebP of one quality here and there, so that their bytes can be copied."""
    codec, coded = writer.metadata.codec, column.encoded(0, 0)
    if coded is None or not isinstance(codec, PictureCodec) or codec.name != WEBP:
        return False
    return coded.quality == codec.quality


class Span(NamedTuple):
    """The rows `[start, stop)` of a column."""

    column: Column
    start: int
    stop: int

    @property
    def nbytes(self) -> int:
        """The bytes of the rows."""
        return (self.stop - self.start) * max(1, self.column.leaf.nbytes)


def copy_spans(spans: Sequence[Span], writer: ArrayWriter, fit: Callable[[Array], Array] = as_they_are) -> None:
    """Add the rows of spans to an array, block by block; `fit` sees those that are decoded.

    What is decoded of one block is decoded side by side: several episodes, or parts of a long one.
    """
    for block in blocks(spans, min(BLOCK_BYTES * cores(), MOST_BLOCK_BYTES)):
        rows: list[Array | Sequence[bytes]] = [()] * len(block)

        def read(i: int, block: Sequence[Span] = block, rows: list[Any] = rows) -> None:
            column, start, stop = block[i]
            coded = column.encoded(start, stop) if coded_alike(column, writer) else None
            rows[i] = fit(column.read(start, stop)) if coded is None else coded.pictures

        large = sum(span.nbytes for span in block) >= PARALLEL_BYTES
        side_by_side([partial(read, i) for i in range(len(block))], None if large else 1)
        for found in rows:
            if isinstance(found, np.ndarray):
                writer.add(found)
            else:
                writer.lay(found)


def blocks(spans: Sequence[Span], nbytes: int) -> Iterator[list[Span]]:
    """Yield spans, the long ones cut, in groups of about so many bytes."""
    group: list[Span] = []
    room = nbytes
    for column, start, stop in spans:
        size = max(1, column.leaf.nbytes)
        while start < stop:
            last = min(stop, start + max(1, room // size))
            group.append(Span(column, start, last))
            room -= group[-1].nbytes
            start = last
            if room < size:
                yield group
                group, room = [], nbytes
    if group:
        yield group


@dataclass(frozen=True)
class Copy:
    """What of a buffer is copied, and how many rows a chunk has."""

    keys: Sequence[str] | None = None
    episodes: Sequence[int] | None = None
    chunk_rows: int | Mapping[str, int] | None = None

    def specs(self, columns: Mapping[str, Column]) -> dict[str, ArraySpec]:
        """Return the spec of each array.

        Raises:
            LayoutError: rows of a chunk were asked for that cannot be, or of a key that is not copied.
        """
        if isinstance(self.chunk_rows, Mapping) and (unknown := self.chunk_rows.keys() - columns.keys()):
            raise LayoutError(f"chunk_rows names {sorted(unknown)[0]!r}, which is not copied; keys are {list(columns)}")
        return {key: _spec(column.leaf, self._rows(key)) for key, column in columns.items()}

    def _rows(self, key: str) -> int | None:
        said = self.chunk_rows.get(key) if isinstance(self.chunk_rows, Mapping) else self.chunk_rows
        return None if said is None else whole("chunk_rows", said, 1)


def copy_buffer(buffer: Source, target: Target, chosen: Copy, options: BufferOptions) -> None:
    """Write some keys and episodes of a buffer as a new one.

    Raises:
        KeyError: there is no such key.
        IndexError: there is no such episode.
    """
    columns = {key: buffer[key] for key in (buffer.keys() if chosen.keys is None else names("keys", chosen.keys))}
    numbers = range(buffer.n_episodes) if chosen.episodes is None else [int(i) for i in chosen.episodes]
    slices, ids = [buffer.episode_slice(i) for i in numbers], buffer.episode_ids
    specs, copied = chosen.specs(columns), [ids[i] for i in numbers]
    said = {key: value for key, value in buffer.attributes.get(OURS, {}).items() if key != BEGUN}
    with filled(target, specs, options, said) as place, BufferWriter(place) as writer:
        for first, last in _groups([len_of(each) for each in slices], sum(spec.nbytes for spec in specs.values())):
            for key, column in columns.items():
                spans = [Span(column, each.start, each.stop) for each in joined(slices[first:last])]
                copy_spans(spans, writer.arrays[key])
            writer.end_episodes([len_of(each) for each in slices[first:last]], copied[first:last])
            writer.commit_if_due()
        writer.commit()


def len_of(rows: slice) -> int:
    """Return how many rows a slice of rows has."""
    return int(rows.stop - rows.start)


def _spec(leaf: Leaf, rows: int | None) -> ArraySpec:
    kind = "" if leaf.kind == "other" else leaf.kind
    return ArraySpec(leaf.shape, leaf.dtype, rows, kind=kind, metadata=leaf.metadata)


def image_codec(columns: Iterable[Column]) -> WebP:
    """Return the codec with which pictures need not be coded anew: the quality that most of them have."""
    found = [coded.quality for column in columns if (coded := column.encoded(0, 0)) is not None]
    return WebP(max(set(found), key=found.count) if found else None)


def _groups(lengths: Sequence[int], nbytes: int) -> Iterator[tuple[int, int]]:
    """Yield from which episode to which rows are copied before anything is committed."""
    most = max(1, (64 << 20) // max(1, nbytes))
    ends = np.cumsum(lengths)
    first = 0
    while first < len(lengths):
        begun = ends[first] - lengths[first]
        last = max(first + 1, int(np.searchsorted(ends, begun + most, "right")))
        yield first, last
        first = last


def joined(slices: Sequence[slice]) -> list[slice]:
    """Return slices, those that follow one another as one.

    >>> joined([slice(0, 3), slice(3, 5), slice(9, 12)])
    [slice(0, 5, None), slice(9, 12, None)]
    """
    runs: list[slice] = []
    for each in slices:
        if runs and runs[-1].stop == each.start:
            runs[-1] = slice(runs[-1].start, each.stop)
        else:
            runs.append(each)
    return runs
