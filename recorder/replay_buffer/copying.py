"""Copying: rows from columns into arrays, pictures as they are coded where both are coded alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol

import numpy as np

from recorder.columns import Array, Column
from recorder.leaf import Leaf
from recorder.replay_buffer.codecs import WebP
from recorder.replay_buffer.committing import BufferWriter
from recorder.replay_buffer.creating import BufferOptions
from recorder.replay_buffer.metadata import OURS
from recorder.replay_buffer.opening import StoreLike
from recorder.replay_buffer.pictures import WEBP, PictureCodec
from recorder.replay_buffer.specs import ArraySpec
from recorder.replay_buffer.targets import mark_complete, open_target
from recorder.replay_buffer.writing import ArrayWriter
from recorder.replay_buffer.zipping import writable_place

BLOCK_BYTES = 8 << 20
"""Rows that are read at once."""


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


def copy_rows(
    column: Column, start: int, stop: int, writer: ArrayWriter, fit: Callable[[Array], Array] = as_they_are
) -> None:
    """Add the rows `[start, stop)` of a column to an array, block by block; `fit` sees those that are decoded."""
    block = max(1, BLOCK_BYTES // max(1, column.leaf.nbytes))
    copied = coded_alike(column, writer)
    for first in range(start, stop, block):
        last = min(first + block, stop)
        coded = column.encoded(first, last) if copied else None
        if coded is not None:
            writer.lay(coded.pictures)
        else:
            writer.add(fit(column.read(first, last)))


def copy_buffer(
    buffer: Source,
    where: StoreLike,
    options: BufferOptions | None,
    zarr_format: Literal[2, 3],
    *,
    keys: Sequence[str] | None,
    episodes: Sequence[int] | None,
    chunk_rows: int | Mapping[str, int] | None,
    overwrite: bool,
) -> None:
    """Write some keys and episodes of a buffer as a new one."""
    wanted = buffer.keys() if keys is None else list(keys)
    columns = {key: buffer[key] for key in wanted}
    specs = {key: _spec(column.leaf, _rows_of(chunk_rows, key)) for key, column in columns.items()}
    chosen = range(buffer.n_episodes) if episodes is None else [int(i) for i in episodes]
    slices, ids = [buffer.episode_slice(i) for i in chosen], buffer.episode_ids
    made = options or BufferOptions(_image_codec(columns.values()), zarr_format=zarr_format)
    said = {key: value for key, value in buffer.attributes.get(OURS, {}).items() if key != "begun"}
    with writable_place(where, None, append=False, overwrite=overwrite) as place:
        open_target(place, specs, made, said, append=False, overwrite=overwrite)
        with BufferWriter(place) as writer:
            for first, last in _groups(
                [each.stop - each.start for each in slices], sum(s.nbytes for s in specs.values())
            ):
                for key, column in columns.items():
                    for each in joined(slices[first:last]):
                        copy_rows(column, each.start, each.stop, writer.arrays[key])
                lengths = [each.stop - each.start for each in slices[first:last]]
                writer.end_episodes(lengths, [ids[i] for i in chosen[first:last]])
                writer.commit_if_due()
            writer.commit()
        mark_complete(place)


def _spec(leaf: Leaf, rows: int | None) -> ArraySpec:
    kind = "" if leaf.kind == "other" else leaf.kind
    return ArraySpec(leaf.shape, leaf.dtype, rows, kind=kind, metadata=leaf.metadata)


def _rows_of(said: int | Mapping[str, int] | None, key: str) -> int | None:
    return said.get(key) if isinstance(said, Mapping) else said


def _image_codec(columns: Any) -> WebP:
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
