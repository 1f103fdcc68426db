"""Checking a conversion to zarr: every array read again beside the recording, exact or wrong by so much."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from recorder.columns import Array, Column
from recorder.convert.zarr_rows import HELD_BYTES
from recorder.episode import Episode
from recorder.errors import FormatError
from recorder.leaf import JSON, cast_exactly
from recorder.recording import Recording
from recorder.replay_buffer.arrays import find_arrays
from recorder.replay_buffer.buffer import ReplayBuffer
from recorder.replay_buffer.metadata import OURS, parse_array
from recorder.replay_buffer.opening import StoreLike, open_place
from recorder.replay_buffer.pictures import PictureCodec
from recorder.replay_buffer.places import Place
from recorder.spaces.array_json import number_to_json

BLOCK_BYTES = 8 << 20
"""Rows that are compared at once."""


@dataclass(frozen=True)
class KeyCheck:
    """What became of one leaf: whether its rows are the same bit for bit, else by how much they differ."""

    key: str
    leaf: str
    rows: int
    exact: bool
    error: float
    mean_error: float

    def __str__(self) -> str:
        said = "exact" if self.exact else f"bounded by {self.error:g}, {self.mean_error:.3g} on average"
        return f"{self.key}: {said}"


@dataclass(frozen=True)
class ZarrCheck:
    """What a replay buffer was found to hold of a recording, and what is wrong with it."""

    path: str
    episodes: int
    recorded: int
    steps: int
    keys: tuple[KeyCheck, ...]
    left_out: Mapping[str, str]
    faults: tuple[str, ...]

    @property
    def sound(self) -> bool:
        """Whether every array that should be exact is, and every row is there."""
        return not self.faults

    def to_json(self) -> dict[str, JSON]:
        """Return all of it as JSON."""
        keys = [{**asdict(key), "error": number_to_json(key.error)} for key in self.keys]
        return {**asdict(self), "keys": keys, "left_out": dict(self.left_out), "sound": self.sound}

    def __str__(self) -> str:
        verdict = "sound" if self.sound else "NOT SOUND"
        count = f"{self.episodes:,} of {self.recorded:,} recorded episodes, {self.steps:,} steps"
        head = f"{self.path}: {count}: {verdict}"
        lost = [f"  {path} is not in it: {why}" for path, why in self.left_out.items()]
        return "\n".join([head, *(f"  {key}" for key in self.keys), *lost, *(f"  {fault}" for fault in self.faults)])


@dataclass
class Difference:
    """By how much the rows of one array differ from those of its leaf, so far."""

    rows: int = 0
    numbers: int = 0
    exact: bool = True
    error: float = 0.0
    total: float = 0.0

    def add(self, found: Array, meant: Array) -> None:
        """Compare some rows."""
        self.rows += len(meant)
        self.numbers += meant.size
        if meant.dtype != found.dtype and meant.dtype.kind != "O":  # a key of info may have another dtype elsewhere
            cast = cast_exactly(meant, found.dtype)
            meant = meant if cast is None else cast
        if same(found, meant):
            return
        self.exact = False
        if meant.dtype.kind in "biuf":
            error = np.abs(found.astype(np.float64) - meant.astype(np.float64))
            self.error, self.total = max(self.error, float(error.max())), self.total + float(error.sum())
        else:
            self.error = float("inf")


def same(found: Array, meant: Array) -> bool:
    """Return whether rows are the same bit for bit, NaN and the sign of zero too."""
    if found.dtype != meant.dtype or found.shape != meant.shape:
        return False
    if found.dtype.kind == "O":
        return bool((found == meant).all())
    return np.ascontiguousarray(found).tobytes() == np.ascontiguousarray(meant).tobytes()


class Origin(NamedTuple):
    """Of what an array was made: the leaf, how many rows later its rows begin, and whether they must be the same."""

    leaf: str
    shift: int
    exact: bool


def origins_of(place: Place) -> dict[str, Origin]:
    """Return of what each array was made.

    Raises:
        FormatError: one does not say so.
    """
    origins = {}
    for key, node in find_arrays(place, "data").items():
        metadata = parse_array(key, node.data, node.attributes)
        ours = {} if metadata is None else metadata.attributes.get(OURS, {})
        if metadata is None or "leaf" not in ours:
            raise FormatError(f"{place.name}: {key!r} does not say which leaf it was made of: to_zarr did not make it")
        lossless = not isinstance(metadata.codec, PictureCodec) or metadata.codec.quality is None
        origins[key] = Origin(ours["leaf"], int(ours["shift"]), lossless)
    return origins


def check_zarr(
    recording: Recording | Path | str,
    path: StoreLike,
    *,
    progress: bool | None = None,
    storage_options: dict[str, Any] | None = None,
) -> ZarrCheck:
    """Compare every row of a buffer that `to_zarr` made with the recording that it was made of.

    What pictures of a recording looked like is what they are decoded to there: the loss that is measured is that of
    the conversion alone.

    Raises:
        FormatError: the buffer was not made by `to_zarr`.
        NotAReplayBufferError: there is none.
    """
    source = copy.copy(recording) if isinstance(recording, Recording) else Recording(recording)
    buffer = ReplayBuffer(path, storage_options)
    origins = origins_of(open_place(path, storage_options))
    faults: list[str] = []
    found = {key: Difference() for key in origins}
    read = 0
    bar = tqdm(total=buffer.n_steps, desc="checking", unit="step", disable=None if progress is None else not progress)
    with closing(bar):
        for i, episode in _episodes(source, buffer, faults):
            rows = buffer.episode_slice(i)
            for key, origin in origins.items():
                for there, meant in _blocks(buffer[key], rows, episode.columns[origin.leaf], origin.shift):
                    found[key].add(there, meant)
            bar.update(len(episode))
            read += len(episode) * sum(buffer[key].leaf.nbytes for key in origins)
            if read > HELD_BYTES:
                source.close()
                read = 0
    faults += [
        f"{key!r} should be exact and differs by up to {found[key].error:g}"
        for key in origins
        if origins[key].exact and not found[key].exact
    ]
    if not buffer.complete:
        faults.append("meta/complete is missing: the conversion did not end; append=True goes on")
    keys = tuple(_checked(key, origins[key].leaf, difference) for key, difference in found.items())
    left_out = buffer.attributes.get(OURS, {}).get("left_out", {})
    return ZarrCheck(buffer.name, buffer.n_episodes, len(source), buffer.n_steps, keys, left_out, tuple(faults))


def _checked(key: str, leaf: str, found: Difference) -> KeyCheck:
    return KeyCheck(key, leaf, found.rows, found.exact, found.error, found.total / max(1, found.numbers))


def _episodes(source: Recording, buffer: ReplayBuffer, faults: list[str]) -> Iterator[tuple[int, Episode]]:
    """Yield the episodes of a buffer beside those of the recording; note those that there are not."""
    positions = {str(name): i for i, name in enumerate(source.table()["id"])} if len(source) else {}
    for i, name in enumerate(buffer.episode_ids):
        if name not in positions:
            faults.append(f"episode {name} is not in the recording")
            continue
        episode = source[positions[name]]
        if len(episode) != buffer.episode_lengths[i]:
            faults.append(
                f"episode {name} has {buffer.episode_lengths[i]} rows, and {len(episode)} steps were recorded"
            )
            continue
        yield i, episode


def _blocks(there: Column, rows: slice, meant: Column, shift: int) -> Iterator[tuple[Array, Array]]:
    """Yield rows of a buffer beside those of the recording."""
    block = max(1, BLOCK_BYTES // max(1, there.leaf.nbytes))
    for start in range(rows.start, rows.stop, block):
        stop = min(start + block, rows.stop)
        first = start - rows.start + shift
        yield there[start:stop], np.asarray(meant[first : first + stop - start])
