"""Sizes of a conversion to zarr, guessed from a few rows that are coded on trial."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import zarr
from zarr.storage import MemoryStore

from recorder.convert.zarr_plan import KeyPlan, ZarrPlan
from recorder.convert.zarr_rows import checked
from recorder.episode import Episode
from recorder.recording import Recording
from recorder.replay_buffer.arrays import find_arrays
from recorder.replay_buffer.creating import create_array
from recorder.replay_buffer.metadata import parse_array
from recorder.replay_buffer.store_place import StorePlace

TRIED_EPISODES, TRIED_ROWS = 4, 4


class Size(NamedTuple):
    """Bytes of one array: before coding, and about how many after."""

    raw: int
    coded: int


def guess_sizes(recording: Recording, plan: ZarrPlan) -> dict[str, Size]:
    """Return about how large each array will be; a few rows of a few episodes are coded for that."""
    place = StorePlace(MemoryStore())
    group = zarr.create_group(place.store, zarr_format=plan.options.zarr_format)
    for key, spec in plan.specs.items():
        create_array(group, key, spec, plan.options)
    tried = [recording[i] for i in _spread(plan.episodes, TRIED_EPISODES)]
    nodes, sizes = find_arrays(place, ""), {}
    for each in plan.keys:
        metadata = parse_array(each.key, nodes[each.key].data, nodes[each.key].attributes)
        share = 1.0
        rows = [_rows(each, episode) for episode in tried if each.leaf.path in episode.columns and len(episode)]
        if metadata is not None and rows:
            joined = np.concatenate(rows)
            # A chunk that is not full is filled up: as many rows as it has are coded, some again.
            size = max(1, -(-len(joined) // metadata.chunk_rows)) * metadata.chunk_rows
            filled = np.resize(joined, (size, *joined.shape[1:])) if metadata.chunk_rows > 1 else joined
            chunks = [filled[i : i + metadata.chunk_rows] for i in range(0, len(filled), metadata.chunk_rows)]
            share = sum(len(metadata.encode(chunk)) for chunk in chunks) / max(1, len(filled) * each.nbytes)
        raw = plan.steps * each.nbytes
        sizes[each.key] = Size(raw, int(raw * share))
    return sizes


def _spread(items: Sequence[int], count: int) -> list[int]:
    """Return a few items from begin to end."""
    count = min(count, len(items))
    return [items[i * (len(items) - 1) // max(1, count - 1)] for i in range(count)]


def _rows(plan: KeyPlan, episode: Episode) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    """Return a few neighbouring rows from the middle of an episode; of small ones up to a thousand."""
    column, wanted = episode.columns[plan.leaf.path], TRIED_ROWS if plan.nbytes > 4096 else 1024
    start = max(0, (len(episode) - wanted) // 2) + plan.shift
    return checked(plan, column[start : min(start + wanted, len(episode) + plan.shift)])
