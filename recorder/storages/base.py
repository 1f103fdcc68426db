"""The contract of a storage: how a group of leaves is written, survives, is packed and is read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from itertools import repeat
from pathlib import Path
from typing import ClassVar, NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from recorder.columns import Column, Rows
from recorder.errors import FormatError, LayoutError
from recorder.leaf import JSON, Leaf, Per


class Run(NamedTuple):
    """Rows `[start, stop)` of a batch that belong to one segment; `first` when they begin with its row 0.

    Row k of a segment is moment k and the transition that led to it, so row 0 has no transition.
    """

    segment: int
    start: int
    stop: int
    first: bool = False


def runs_of(segments: Iterable[int], starts: Iterable[int], stops: Iterable[int], firsts: Iterable[bool]) -> list[Run]:
    """Return runs from columns of what they say, a third of the time faster than one by one."""
    # A vector environment brings tens of thousands at once, and the constructor of a NamedTuple is written in Python.
    return list(map(tuple.__new__, repeat(Run), zip(segments, starts, stops, firsts, strict=True)))


NO_LEAF = -1
"""The rows of a class that a writer has no leaf of, where it tells of its segments."""


class Segment(NamedTuple):
    """A segment as it is packed: its number in the writer, and how many rows of each class it has."""

    number: int
    moments: int
    transitions: int

    def rows(self, per: Per) -> int:
        """Return the rows in one class of leaves."""
        return self.moments if per == "moment" else self.transitions


@dataclass(frozen=True)
class Counts:
    """Rows of each class for each episode of a shard, in order."""

    moments: NDArray[np.int64]
    transitions: NDArray[np.int64]

    @classmethod
    def of(cls, segments: Sequence[Segment]) -> Counts:
        """Return the counts of segments that are packed in this order."""
        table = np.array([segment[1:] for segment in segments], np.int64).reshape(-1, 2)
        return cls(table[:, 0], table[:, 1])

    def __len__(self) -> int:
        return len(self.moments)

    def rows(self, per: Per) -> NDArray[np.int64]:
        """Return the rows of each episode in one class of leaves."""
        return self.moments if per == "moment" else self.transitions

    def total(self, per: Per) -> int:
        """Return the rows of all episodes in one class of leaves."""
        return int(self.rows(per).sum())

    def span(self, per: Per, i: int) -> tuple[int, int]:
        """Return where the rows of episode `i` begin and end among all rows of the shard."""
        ends = np.cumsum(self.rows(per)[: i + 1])
        return int(ends[i] - self.rows(per)[i]), int(ends[i])


@dataclass(frozen=True)
class Storage(ABC):
    """How a group of leaves is kept. A frozen value that round-trips through JSON by a short registered id."""

    id: ClassVar[str]
    table: ClassVar[bool] = False
    """Whether all leaves share one file, so that a second such storage in a shard needs a folder of its own."""

    lossy_kinds: ClassVar[frozenset[str]] = frozenset({"image"})
    """The kinds of leaves that it may keep other than bit for bit."""

    @abstractmethod
    def check(self, leaves: Sequence[Leaf]) -> None:
        """Raise `LayoutError` if these leaves cannot be kept as promised; import and probe the backend."""

    def check_names(self, leaves: Sequence[Leaf]) -> None:
        """Raise `LayoutError` if an option names a leaf that is not among these, which are all that it keeps."""
        return

    @abstractmethod
    def exact(self, leaf: Leaf) -> bool:
        """Return whether rows of `leaf` come back bit for bit."""

    def owns(self, leaf: Leaf, name: str) -> bool:
        """Return whether the file `name`, relative to the storage's folder in a shard, holds rows of `leaf`."""
        return name.startswith((f"{leaf.path}/", f"{leaf.path}."))

    def delay(self, leaf: Leaf) -> int:
        """Return how many of the newest rows of `leaf` a kill takes although a checkpoint has seen them."""
        return 0

    @abstractmethod
    def writer(self, directory: Path, leaves: Sequence[Leaf]) -> Writer:
        """Return a writer that stages below `directory`; nothing is on disk until it must be."""

    @abstractmethod
    def recover(self, directory: Path, leaves: Sequence[Leaf]) -> Writer:
        """Return a writer that holds what a dead writer left in `directory`, ready to be packed."""

    @abstractmethod
    def reader(self, directory: Path, leaves: Sequence[Leaf], counts: Counts) -> Reader:
        """Return a reader of the shard in `directory`, whose episodes have `counts` rows."""

    def to_json(self) -> dict[str, JSON]:
        """Return this storage as JSON: its id and its options."""
        return {"id": self.id, **{field.name: getattr(self, field.name) for field in fields(self)}}

    @classmethod
    def from_options(cls, options: Mapping[str, JSON]) -> Self:
        """Return the storage of this class with options as `to_json` wrote them."""
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(options) - known):
            raise LayoutError(f"storage {cls.id!r} has no option {unknown[0]!r}; it has {sorted(known)}")
        return cls(**options)


class Writer(ABC):
    """All that one recording writer has not committed in one storage: running and finished segments."""

    @abstractmethod
    def append(self, rows: Mapping[str, Rows], runs: Sequence[Run]) -> None:
        """Take a batch: for each leaf path an array `(n, *shape)`, and which rows belong to which segment.

        The arrays are only lent: what is kept of them is copied. Leaves of a transition have `n` rows like the
        others; where a run is `first`, its first one means nothing. Sparse rows may come under paths that are not
        among the writer's leaves.
        """

    def end(self, segment: int) -> None:  # noqa: B027 - most storages have nothing to do then
        """Note that no more rows of `segment` come."""

    @abstractmethod
    def checkpoint(self) -> None:
        """Make all that was appended survive a kill."""

    @abstractmethod
    def segments(self) -> Sequence[Segment]:
        """Return the segments that are held, each with the rows that all leaves of the class have."""

    @abstractmethod
    def view(self, segment: Segment) -> Mapping[str, Column]:
        """Return the columns of a segment before it is packed."""

    @abstractmethod
    def pack(self, directory: Path, segments: Sequence[Segment]) -> Sequence[Leaf]:
        """Write segments, in this order, into the shard folder `directory`; return sparse leaves that it found.

        Nothing is consumed: what was staged stays until `forget`. A segment may be packed with fewer rows than
        it has; the rest is left out.
        """

    @abstractmethod
    def forget(self, segments: Sequence[int]) -> None:
        """Drop segments, packed or not, with every byte that was staged of them."""

    @abstractmethod
    def close(self) -> None:
        """Give up all files; may be called twice."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """About how many bytes a pack of all that is held would have to write or hold in memory."""


class Reader(ABC):
    """The leaves of one storage in one shard."""

    def __init__(self, directory: Path, leaves: Sequence[Leaf], counts: Counts) -> None:
        self.directory = directory
        self.leaves = {leaf.path: leaf for leaf in leaves}
        self.counts = counts

    @abstractmethod
    def segment(self, i: int) -> Mapping[str, Column]:
        """Return the columns of episode `i` of the shard; nothing is read before rows are asked for."""

    @abstractmethod
    def whole(self, path: str) -> Column:
        """Return all rows of one leaf, episodes one after another."""

    @abstractmethod
    def count(self) -> Mapping[str, int]:
        """Return how many rows of each leaf the files really hold."""

    def encoded(self, path: str, rows: slice) -> Sequence[bytes] | None:
        """Return coded rows where one row is one chunk, to be copied without decoding; else None."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Give up all files; may be called twice."""


S = TypeVar("S", bound=type[Storage])
BUILTIN = ("depth", "dict", "hdf5", "image_files", "npz", "parquet", "video", "zarr")
"""The ids of the storages of this package; each registers itself when its module is imported."""

GROUP = "recorder.storages"
"""The group of entry points by which packages bring storages."""

_registered: dict[str, type[Storage]] = {}


def register_storage(storage: S) -> S:
    """Make a storage class readable from JSON by its `id`; a decorator."""
    _registered[storage.id] = storage
    return storage


def storage_class(name: str) -> type[Storage]:
    """Return the storage class with an id: one of this package, one that was registered, or one that a package brings.

    Packages name theirs as entry points of the group `recorder.storages`. Only what is installed can be named.

    Raises:
        FormatError: the id is not known here.
    """
    if name in BUILTIN:
        import_module(f"recorder.storages.{name}")
    if name not in _registered:
        for entry in entry_points(group=GROUP, name=name):
            _registered[name] = _checked_class(entry)
    if name not in _registered:
        known = sorted({*BUILTIN, *_registered, *entry_points(group=GROUP).names})
        raise FormatError(
            f"storage {name!r} is not known here, only {known}; install the package that brings it, or a newer "
            f"gymnasium-recorder"
        )
    return _registered[name]


def _checked_class(entry: EntryPoint) -> type[Storage]:
    """Return the class that an entry point names, if it is the storage that it says it is."""
    storage = entry.load()
    if isinstance(storage, type) and issubclass(storage, Storage) and storage.id == entry.name:
        return storage
    raise FormatError(f"the entry point {entry.name!r} of {GROUP!r} is {entry.value!r}, no Storage of that id")


def storage_from_json(data: JSON) -> Storage:
    """Return the storage that `to_json` wrote.

    Raises:
        FormatError: the id is not known here, or an option is not.
    """
    if not isinstance(data, dict) or not isinstance(data.get("id"), str):
        raise FormatError(f"a storage is an object with an 'id', got {data!r:.80}")
    kind = storage_class(data["id"])
    try:
        return kind.from_options({key: value for key, value in data.items() if key != "id"})
    except (LayoutError, TypeError) as error:
        raise FormatError(f"the options of storage {data['id']!r} are not of its form: {error}") from error
