"""Describing: what is said of a recording, an episode and a step, as values that are strict JSON."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recorder.cli.printing import cell
from recorder.columns import Array
from recorder.episode import Episode
from recorder.errors import EpisodeError
from recorder.leaf import JSON, Leaf
from recorder.recording import Recording
from recorder.routing.rules import describe
from recorder.spaces.array_json import number_to_json
from recorder.spaces.env_spec import not_rebuildable
from recorder.storages.dict import DictStorage

SHOWN = 32
"""The elements of a larger array are not listed for people."""


def recording_facts(recording: Recording) -> dict[str, JSON]:
    """Return what a recording holds, and where it comes from."""
    table, shards = recording.table(), recording.shards
    newest = shards[-1].manifest if shards else None
    environment = newest.environment if newest else None
    writers = {shard.manifest.writer: shard.manifest.host for shard in shards}
    return {
        "path": str(recording.paths[0]),
        "rows": recording.schema.rows,
        "episodes": len(recording),
        "steps": recording.steps,
        "bytes": sum(size for shard in shards for size, _ in shard.manifest.files.values()),
        "shards": len(shards),
        "ends": counts(table["end"]),
        "return": spread(table["return"]) if "reward" in recording.leaves else None,
        "first": moment(table["start"].min()) if len(table["start"]) else None,
        "last": moment(table["start"].max()) if len(table["start"]) else None,
        "environment": environment,
        "not_rebuildable": not_rebuildable(environment) if environment else [],
        "fps": recording.fps,
        "metadata": dict(recording.metadata),
        "writers": [{"writer": writer, "host": host} for writer, host in writers.items()],
        "versions": newest.versions if newest else {},
        "leaves": leaf_rows(recording.leaves, recording.schema.storage),
    }


def leaf_rows(leaves: Mapping[str, Leaf], storage: DictStorage) -> list[dict[str, JSON]]:
    """Return what each leaf is, and how it is kept."""
    return [
        {
            "path": path,
            "kind": leaf.kind,
            "shape": list(leaf.shape),
            "dtype": leaf.dtype,
            "per": leaf.per,
            "ragged": leaf.ragged,
            "sparse": leaf.sparse,
            "metadata": dict(leaf.metadata),
            "storage": describe(storage.of(leaf)),
            "exact": storage.of(leaf).exact(leaf),
        }
        for path, leaf in leaves.items()
    ]


def episode_rows(recording: Recording) -> list[dict[str, JSON]]:
    """Return one row for each episode, in their order."""
    table = recording.table()
    names = ("id", "steps", "end", "return", "seed", "labels", "start")
    rows = zip(*(table[name].tolist() for name in names), strict=True)
    return [
        {"position": i, **{name: plain(value) for name, value in zip(names, row, strict=True)}}
        for i, row in enumerate(rows)
    ]


def find_episode(recording: Recording, name: str) -> Episode:
    """Return the episode at a position, negative ones from the end, or with an id.

    Raises:
        EpisodeError: there is none.
    """
    try:
        return recording[int(name)] if name.removeprefix("-").isdecimal() else recording[name]
    except (IndexError, KeyError) as error:
        raise EpisodeError(str(error.args[0])) from error


def episode_facts(episode: Episode) -> dict[str, JSON]:
    """Return what is known of an episode besides its rows, and what is in them."""
    return {
        "id": episode.id,
        "steps": len(episode),
        "end": episode.end,
        "return": number_to_json(episode.return_) if "reward" in episode.columns else None,
        "seed": plain(episode.seed),
        "options": episode.options,
        "generator": episode.generator["bit_generator"] if episode.generator else None,
        "labels": dict(episode.labels),
        "refused": list(episode.refused),
        "start": moment(episode.start),
    }


def step_values(episode: Episode, step: int) -> dict[str, JSON]:
    """Return what belongs to one step, counted from 1 or negative from the end, by leaf path.

    `observation` is what was there before it, `next_observation` what came back.

    Raises:
        EpisodeError: the episode has no such step.
    """
    number = step if step > 0 else len(episode) + 1 + step
    if step == 0 or not 1 <= number <= len(episode):
        raise EpisodeError(f"episode {episode.id} has no step {step}, but 1 to {len(episode)}")
    values: dict[str, Any] = {"step": number}
    for path, column in episode.columns.items():
        if path.split("/")[0] == "observation":
            values[path], values[f"next_{path}"] = column[number - 1], column[number]
        else:
            values[path] = column[number - (column.leaf.per == "transition")]
    return {path: value for path, value in values.items() if not absent(value)}


def absent(value: Any) -> bool:
    """Return whether a value stands for one that its row does not have."""
    return isinstance(value, np.ma.MaskedArray) and bool(np.ma.getmaskarray(value).any())


def plain(value: Any) -> JSON:
    """Return a value of a leaf as strict JSON."""
    match value:
        case np.ndarray() if value.dtype.itemsize <= 4 and value.dtype.kind in "biu":
            return value.tolist()
        case np.ndarray() | np.generic():
            return plain(value.tolist())
        case list() | tuple():
            return [plain(item) for item in value]
        case dict():
            return {key: plain(item) for key, item in value.items()}
        case complex():
            return [plain(value.real), plain(value.imag)]
        case float() | int() if not isinstance(value, bool):
            return number_to_json(value)
    return value


def in_short(value: Any) -> JSON:
    """Return a value of a leaf for people: of a large array what it is, and how far its numbers go."""
    if not isinstance(value, np.ndarray) or value.size <= SHOWN or value.dtype == object:
        return plain(value)
    return f"{value.dtype} {value.shape}, {cell(value.min().item())} to {cell(value.max().item())}"


def counts(values: Array) -> dict[str, int]:
    """Return how often each text occurs, the most frequent first."""
    names, numbers = np.unique(values.astype(str), return_counts=True)
    order = np.argsort(-numbers, kind="stable")
    return {str(names[i]): int(numbers[i]) for i in order}


def spread(values: NDArray[np.float64]) -> dict[str, JSON] | None:
    """Return the least, the mean and the greatest of numbers."""
    if not len(values):
        return None
    return {
        name: number_to_json(float(of(values))) for name, of in (("min", np.min), ("mean", np.mean), ("max", np.max))
    }


def moment(seconds: float) -> str:
    """Return a wall clock, in seconds since 1970, as text in ISO 8601."""
    return datetime.fromtimestamp(float(seconds), UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
