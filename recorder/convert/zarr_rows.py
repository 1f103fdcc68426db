"""The rows of a conversion to zarr: many short episodes read at once, long ones block by block, coded ones as bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from recorder.columns import Array, Column, SpanColumn, positions
from recorder.convert.zarr_plan import KeyPlan, ZarrPlan
from recorder.episode import Episode
from recorder.errors import RowError
from recorder.leaf import TEXT
from recorder.recording import Recording
from recorder.replay_buffer.copying import Span, coded_alike, copy_spans
from recorder.replay_buffer.fitting import fit_rows
from recorder.replay_buffer.writing import ArrayWriter

GROUP_BYTES, GROUP_EPISODES = 32 << 20, 1024
"""Episodes that are read at once: no more of either, but for one that is longer."""

HELD_BYTES = 64 << 20
"""After so many bytes of rows files are closed: small columns of up to 32 shards are kept, all of each."""


def grouped(recording: Recording, plan: ZarrPlan, done: frozenset[str]) -> Iterator[list[Episode]]:
    """Yield the episodes in their order, those that are short several at once, without those that are done.

    The recording gives up its open files now and then, with the columns that it keeps of them.
    """
    row = sum(each.nbytes for each in plan.keys)
    group: list[Episode] = []
    rows = read = 0
    for position in plan.episodes:
        episode = recording[position]
        if episode.id in done or not len(episode):
            continue
        if group and ((rows + len(episode)) * row > GROUP_BYTES or len(group) >= GROUP_EPISODES):
            yield group
            read += rows * row
            group, rows = [], 0
            if read > HELD_BYTES:
                recording.close()
                episode, read = recording[position], 0
        group.append(episode)
        rows += len(episode)
    if group:
        yield group


def check_first(recording: Recording, plan: ZarrPlan) -> None:
    """Look at the first row of each array, before anything is written or removed.

    Raises:
        RowError: it is absent, or its value is not exact in the array.
    """
    filled = (recording[position] for position in plan.episodes)
    first = next((episode for episode in filled if len(episode)), None)
    if first is not None:
        for each in plan.keys:
            checked(each, _column(each, first)[each.shift : each.shift + 1])


def _column(plan: KeyPlan, episode: Episode) -> Column:
    column = episode.columns.get(plan.leaf.path)
    if column is None:
        raise RowError(f"episode {episode.id} has no {plan.leaf.path!r}; leave it out of keys")
    return column


def add_rows(plan: KeyPlan, group: Sequence[Episode], writer: ArrayWriter) -> None:
    """Add the rows of some episodes to an array.

    Raises:
        RowError: a row is absent, or its value is not exact in the array.
    """
    columns = [_column(plan, episode) for episode in group]
    lengths = [len(episode) for episode in group]
    if len(columns) == 1 or not _add_joined(plan, columns, lengths, writer):
        spans = [Span(column, plan.shift, plan.shift + length) for column, length in zip(columns, lengths, strict=True)]
        copy_spans(spans, writer, partial(checked, plan))


def _add_joined(plan: KeyPlan, columns: Sequence[Column], lengths: Sequence[int], writer: ArrayWriter) -> bool:
    """Add rows of episodes that lie in one column with one reading; return whether they do."""
    places = [column.place for column in columns if isinstance(column, SpanColumn)]
    if len(places) < len(columns) or any(source is not places[0][0] for source, _ in places):
        return False
    source, starts = places[0][0], np.array([start for _, start in places]) + plan.shift
    if coded_alike(source, writer):
        return False
    index = positions(starts, starts + np.array(lengths))
    rows = source.read(index.start, index.stop) if isinstance(index, slice) else source.take(index)
    writer.add(checked(plan, rows))
    return True


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
