"""Indexing: bringing the index of a recording up to date, on demand or by a writer that has committed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from recorder.errors import RecorderError
from recorder.holdings import shard_names
from recorder.index import FROM_SHARDS, entries_of_shards, names_array, read_index, write_index
from recorder.shard import Shard

COMMITS = 512
"""After so many commits a writer looks whether the index is behind; it does so, too, when it is closed."""

AT_ONCE = 1024
"""Shards that a writer opens at most to bring the index up to date, the newest; each takes 0.3 ms."""


def save_index(recording: Path) -> tuple[int, int]:
    """Bring the index of a recording up to date; return how many shards there are, and how many were new to it.

    Raises:
        DamagedError: a shard is damaged.
        OSError: the folder cannot be written.
    """
    there, fresh = _behind(recording)
    if fresh:
        write_index(recording, entries_of_shards((Shard(recording / "shards" / name) for name in fresh), ids=True))
    return there, len(fresh)


def keep_index(recording: Path) -> None:
    """Bring the index up to date where there are many shards; it is a hint, so nothing that fails here counts."""
    with suppress(OSError, RecorderError):
        _, fresh = _behind(recording, FROM_SHARDS)
        if fresh:
            write_index(recording, entries_of_shards(_sound(recording, fresh[-AT_ONCE:]), ids=True))


def _behind(recording: Path, fewest: int = 0) -> tuple[int, Sequence[str]]:
    """Return how many shards there are, and which of them, if they are not too few, the index does not know."""
    names = names_array(shard_names(recording))
    if len(names) < fewest:
        return len(names), []
    return len(names), names[~np.isin(names, read_index(recording).names)].astype(str).tolist()


def _sound(recording: Path, names: Sequence[str]) -> Iterator[Shard]:
    """Yield the shards that can be read; the others are found by who reads or verifies the recording."""
    for name in names:
        with suppress(OSError, RecorderError):
            shard = Shard(recording / "shards" / name)
            shard.episodes.required("id")
            yield shard
