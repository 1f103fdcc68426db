"""Shards of a test: packed, damaged and opened anew."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recorder.leaf import Leaf
from recorder.storages.base import Reader, Segment, Storage
from recorder.testing.diary import Diary


def rows_for(leaf: Leaf, count: int) -> int:
    """Return how many rows to append so that a leaf has `count` of them."""
    return count + (leaf.per == "transition")


def pack(diary: Diary, folder: Path, segments: Sequence[Segment]) -> list[Leaf]:
    """Pack segments into a new folder, and return all leaves that are in it."""
    folder.mkdir(parents=True)
    return [*diary.leaves, *diary.writer.pack(folder, segments)]


def cut(path: Path, size: int) -> None:
    """Cut a file, and nothing that was linked to it."""
    data = path.read_bytes()[:size]
    path.unlink()
    path.write_bytes(data)


def read_all(reader: Reader) -> None:
    """Read all rows of all leaves."""
    for path in reader.leaves:
        reader.whole(path)[:]


def read_anew(told: bytes) -> Reader:
    """Open a shard by what was pickled of it."""
    storage, folder, leaves, counts = _unpickled(told)
    reader: Reader = storage.reader(folder, leaves, counts)
    return reader


def _unpickled(data: bytes) -> Any:
    return pickle.loads(data)  # noqa: S301  # what this very test pickled


def through_json(storage: Storage) -> dict[str, Any]:
    """Return what a file says of a storage."""
    data: dict[str, Any] = json.loads(json.dumps(storage.to_json(), allow_nan=False))
    return data
