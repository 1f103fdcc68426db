"""The rows of a conversion to zarr: many short episodes read at once, long ones block by block, coded ones as bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from recorder.columns import Array, Column, SpanColumn, positions
from recorder.convert.zarr_plan import KeyPlan, ZarrPlan
from recorder.episode import Episode
from recorder.errors import RowError
from recorder.leaf import TEXT
from recorder.recording import Recording
from recorder.replay_buffer.chunk_codecs import PictureCodec
from recorder.replay_buffer.fitting import fit_rows
from recorder.replay_buffer.writing import ArrayWriter

GROUP_BYTES, GROUP_EPISODES = 8 << 20, 1024
"""Episodes that are read at once: no more of either, but for one that is longer."""

BLOCK_BYTES = 8 << 20
"""Rows of a long episode that are read at once."""


def grouped(recording: Recording, plan: ZarrPlan, done: frozenset[str]) -> Iterator[list[Episode]]:
    """Yield the episodes in their order, those that are short several at once, without those that are done."""
    row = sum(each.nbytes for each in plan.keys)
    group: list[Episode] = []
    rows = 0
    for position in plan.episodes:
        episode = recording[position]
        if episode.id in done or not len(episode):
            continue
        if group and ((rows + len(episode)) * row > GROUP_BYTES or len(group) >= GROUP_EPISODES):
            yield group
            group, rows = [], 0
        group.append(episode)
        rows += len(episode)
    if group:
        yield group


def add_rows(plan: KeyPlan, group: Sequence[Episode], writer: ArrayWriter) -> None:
    """Add the rows of some episodes to an array.

    Raises:
        RowError: a row is absent, or its value is not exact in the array.
    """
    columns = [episode.columns.get(plan.leaf.path) for episode in group]
    lengths = [len(episode) for episode in group]
    for episode, column in zip(group, columns, strict=True):
        if column is None:
            raise RowError(f"episode {episode.id} has no {plan.leaf.path!r}; leave it out of keys")
    there = [column for column in columns if column is not None]
    if len(there) == 1 or not _add_joined(plan, there, lengths, writer):
        for column, length in zip(there, lengths, strict=True):
            _add_episode(plan, column, length, writer)


def _add_joined(plan: KeyPlan, columns: Sequence[Column], lengths: Sequence[int], writer: ArrayWriter) -> bool:
    """Add rows of episodes that lie in one column with one reading; return whether they do."""
    places = [column.place for column in columns if isinstance(column, SpanColumn)]
    if len(places) < len(columns) or any(source is not places[0][0] for source, _ in places):
        return False
    source, starts = places[0][0], np.array([start for _, start in places]) + plan.shift
    if _coded_alike(source, writer):
        return False
    index = positions(starts, starts + np.array(lengths))
    rows = source.read(index.start, index.stop) if isinstance(index, slice) else source.take(index)
    writer.add(checked(plan, rows))
    return True


def _add_episode(plan: KeyPlan, column: Column, length: int, writer: ArrayWriter) -> None:
    block = max(1, BLOCK_BYTES // max(1, plan.nbytes))
    copied = _coded_alike(column, writer)
    for start in range(plan.shift, plan.shift + length, block):
        stop = min(start + block, plan.shift + length)
        coded = column.encoded(start, stop) if copied else None
        if coded is not None:
            writer.lay(coded.pictures)
        else:
            writer.add(checked(plan, column.read(start, stop)))


def _coded_alike(column: Column, writer: ArrayWriter) -> bool:
    """Return whether pictures are WebP of one quality here and there, so that their bytes can be copied."""
    codec, coded = writer.metadata.codec, column.encoded(0, 0)
    if coded is None or not isinstance(codec, PictureCodec) or codec.name != "imagecodecs_webp":
        return False
    return coded.quality == codec.quality


def checked(plan: KeyPlan, rows: Array) -> Array:
    """Return rows of a leaf as rows of its array.

    Raises:
        RowError: one is absent, or not exact in the array.
    """
    if isinstance(rows, np.ma.MaskedArray):
        absent = int(np.ma.getmaskarray(rows).reshape(len(rows), -1).any(axis=1).sum())
        if absent:
            raise RowError(f"{plan.leaf.path!r} is absent from {absent} of {len(rows)} steps; leave it out of keys")
        rows = np.asarray(rows.data)
    dtype = "O" if plan.leaf.dtype == TEXT else plan.leaf.dtype
    fits = rows.dtype == dtype and rows.shape[1:] == plan.leaf.shape
    return rows if fits else fit_rows(plan.leaf, rows)
