"""The table of a shard's episodes: what is known of each besides its rows, kept in columns."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from recorder.columns import Array
from recorder.errors import DamagedError, FormatError
from recorder.files import sealed, unsealed
from recorder.leaf import JSON, text_array
from recorder.storages.base import Counts
from recorder.storages.hdf5 import HDF5File, hdf5_image

END_REASONS = (
    "terminated",
    "truncated",
    "reset",
    "ended",
    "exception",
    "interrupted",
    "closed",
    "exit",
    "recovered",
)
"""Why an episode ended."""

ID = re.compile(r"[0-9a-f]{12}-\d{6,17}")
"""The form of an id: the writer that gave it, and its count of episodes."""

MOST_ROWS = 1 << 40
"""More rows than this, in one episode or in a shard, are refused: sums of them would not be numbers any more."""

KINDS = {"moments": "iu", "transitions": "iu", "return": "f", "start": "f", "generator_state": "iu"}
"""What the columns of numbers hold, as NumPy names it; all others are text."""

COLUMNS = (
    "id",
    "moments",
    "transitions",
    "end",
    "return",
    "start",
    "seed",
    "options",
    "labels",
    "refused",
    "generator",
    "generator_state",
    "generator_json",
)
"""The columns of `episodes.h5`; those of which every row would be empty are left out."""

_WORD = (1 << 64) - 1


class Start(NamedTuple):
    """What is needed to begin the same episode again."""

    seed: int | None
    options: Mapping[str, JSON] | None
    generator: Mapping[str, Any] | None


@dataclass(slots=True)
class EpisodeNote:
    """What is known of an episode besides its rows, from its begin to its commit."""

    number: int
    id: str = ""
    seed: int | None = None
    options: Mapping[str, JSON] | None = None
    generator: Mapping[str, Any] | None = None
    start: float = 0.0
    end: str = ""
    total: float = 0.0
    labels: dict[str, JSON] = field(default_factory=dict)
    refused: list[int] = field(default_factory=list)
    moments: int = 0
    transitions: int = 0


def encode_episodes(notes: Sequence[EpisodeNote]) -> bytes:
    """Return the bytes of `episodes.h5` for the episodes of one shard, in their order."""
    generators = [note.generator for note in notes]
    columns: dict[str, Array] = {
        "id": words([note.id for note in notes]),
        "moments": np.array([note.moments for note in notes], np.int64),
        "transitions": np.array([note.transitions for note in notes], np.int64),
        "end": words([note.end for note in notes]),
        "return": np.array([note.total for note in notes], np.float64),
        "start": np.array([note.start for note in notes], np.float64),
    }
    optional = {
        "seed": ["" if note.seed is None else str(note.seed) for note in notes],
        "options": [_json(note.options) for note in notes],
        "labels": [_json(note.labels or None) for note in notes],
        "refused": [_json(note.refused or None) for note in notes],
        "generator": ["" if state is None else str(state["bit_generator"]) for state in generators],
        "generator_json": [_json(state) if state and state["bit_generator"] != "PCG64" else "" for state in generators],
    }
    columns.update((name, words(texts)) for name, texts in optional.items() if any(texts))
    if any(state is not None and state["bit_generator"] == "PCG64" for state in generators):
        columns["generator_state"] = np.array([_words(state) for state in generators], np.uint64)
    return hdf5_image(columns)


def words(texts: Sequence[str]) -> Array:
    """Return short ASCII texts as a column of one width, which is written ten times as fast; others as they are."""
    if (
        all(map(str.isascii, texts))
        and max(map(len, texts), default=0) <= 64
        and not any("\0" in text for text in texts)
    ):
        return np.array(texts, "S") if texts else np.empty(0, "S1")
    return text_array(texts)


def _json(value: JSON) -> str:
    if value is None:
        return ""
    if type(value) is dict and all(type(inner) in _SHORT for inner in value.values()):
        try:
            return msgspec.json.encode(value).decode("ascii")
        except ValueError:  # letters and numbers of which JSON has several forms
            pass
    return _ENCODER.encode(value)


def _plain(value: Any) -> JSON:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} {value!r:.60} is not JSON")


_SHORT = frozenset({bool, int})
"""What the faster encoder writes as the other one does; labels of vector environments are no more, and many."""

_ENCODER = json.JSONEncoder(allow_nan=False, default=_plain)
"""`json.dumps` would make one for every episode, which takes longer than to encode its labels."""


def _words(generator: Mapping[str, Any] | None) -> list[int]:
    """Return the state of a PCG64 as six words, or zeros for any other."""
    if generator is None or generator["bit_generator"] != "PCG64":
        return [0] * 6
    state, increment = generator["state"]["state"], generator["state"]["inc"]
    words = [state >> 64, state & _WORD, increment >> 64, increment & _WORD]
    return [*words, generator["has_uint32"], generator["uinteger"]]


def encode_notes(notes: Sequence[EpisodeNote]) -> bytes:
    """Return the bytes of the file in staging that says which episodes are running."""
    return sealed(json.dumps({"episodes": list(map(asdict, notes))}, allow_nan=False, default=_plain).encode())


def decode_notes(path: Path, data: bytes) -> list[EpisodeNote]:
    """Return the episodes of which `encode_notes` made `data`.

    Raises:
        DamagedError: the data have changed since they were written.
        FormatError: they are not of that form.
    """
    try:
        said = json.loads(unsealed(path, data))
        return [msgspec.convert(note, EpisodeNote) for note in said["episodes"]]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"{path} is not what the format says: {error}") from error


class EpisodeTable:
    """The episodes of one shard, as columns; all are read when the first is asked for, by one opening of the file."""

    def __init__(self, path: Path, episodes: int) -> None:
        self._path = path
        self._episodes = episodes
        self._columns: dict[str, Array] | None = None

    def __len__(self) -> int:
        return self._episodes

    def column(self, name: str) -> Array | None:
        """Return a column, or None where every row of it is empty."""
        if self._columns is None:
            with closing(HDF5File(self._path)) as file:
                self._columns = {each: file[each][:] for each in COLUMNS if each in file}
        values = self._columns.get(name)
        if values is not None and len(values) != self._episodes:
            raise DamagedError(f"{self._path}: {name!r} has {len(values)} rows for {self._episodes} episodes")
        if values is not None and values.dtype.kind not in KINDS.get(name, "O"):
            raise FormatError(f"{self._path}: {name!r} is {values.dtype}, which it cannot be")
        return values

    def required(self, name: str) -> Array:
        """Return a column that every table has."""
        values = self.column(name)
        if values is None:
            raise FormatError(f"{self._path} lacks the column {name!r}")
        return values

    def counts(self) -> Counts:
        """Return the rows of each episode.

        Raises:
            FormatError: there are no such counts.
        """
        moments, transitions = self.required("moments"), self.required("transitions")
        for name, rows in (("moments", moments), ("transitions", transitions)):
            if len(rows) and not (rows.min() >= 0 and rows.max() <= MOST_ROWS and float(rows.sum()) <= MOST_ROWS):
                raise FormatError(f"{self._path}: {name!r} has numbers of rows that no episode has")
        return Counts(moments.astype(np.int64), transitions.astype(np.int64))

    def note(self, i: int) -> EpisodeNote:
        """Return all that is known of episode `i`.

        Raises:
            FormatError: something in it is not what the format says.
        """
        try:
            return self._note(i)
        except (ValueError, TypeError, RecursionError, OverflowError) as error:
            if isinstance(error, FormatError):
                raise
            raise FormatError(f"{self._path}: row {i} is not what the format says: {error}") from error

    def _note(self, i: int) -> EpisodeNote:
        seed, options = self._text("seed", i), self._text("options", i)
        labels, refused = self._text("labels", i), self._text("refused", i)
        return EpisodeNote(
            number=i,
            id=str(self.required("id")[i]),
            seed=int(seed) if seed else None,
            options=json.loads(options) if options else None,
            generator=self._generator(i),
            start=float(self.required("start")[i]),
            end=str(self.required("end")[i]),
            total=float(self.required("return")[i]),
            labels=json.loads(labels) if labels else {},
            refused=json.loads(refused) if refused else [],
            moments=int(self.required("moments")[i]),
            transitions=int(self.required("transitions")[i]),
        )

    def _text(self, name: str, i: int) -> str:
        values = self.column(name)
        return "" if values is None else str(values[i])

    def _generator(self, i: int) -> Mapping[str, Any] | None:
        name = self._text("generator", i)
        if not name:
            return None
        if name != "PCG64":
            state: Mapping[str, Any] = json.loads(self._text("generator_json", i))
            return state
        high, low, inc_high, inc_low, has_uint32, uinteger = map(int, self.required("generator_state")[i])
        state = {"state": high << 64 | low, "inc": inc_high << 64 | inc_low}
        return {"bit_generator": name, "state": state, "has_uint32": has_uint32, "uinteger": uinteger}
