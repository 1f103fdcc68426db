"""DictStorage: which storage keeps which leaf; itself a storage, which hands everything on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple, Self, TypeVar

from recorder.columns import Column, Rows
from recorder.errors import FormatError, LayoutError
from recorder.leaf import JSON, JSON_TEXT, Leaf
from recorder.storages.adopting import Adopting, Copy, adopt, copy
from recorder.storages.base import (
    NO_LEAF,
    Counts,
    Reader,
    Run,
    Segment,
    Storage,
    Writer,
    register_storage,
    storage_from_json,
)
from recorder.storages.hdf5 import HDF5Storage
from recorder.storages.table import TableWriter
from recorder.storages.table_reading import LazyColumns
from recorder.threads import side_by_side

T = TypeVar("T")

INFO = Leaf("info", (), JSON_TEXT, sparse=True)
"""A key of `info` as a storage of episodes must be able to keep it."""


@register_storage
@dataclass(frozen=True)
class DictStorage(Storage):
    """Leaves by path, each in a storage of its own; all others, and every key of `info`, in `default`.

    `layout` notes which leaves its caller `named` by key or kind, which have `fallen` to another storage than
    was wanted, and the `reasons` for all of them. Notes are no part of what a recording stores or compares.
    """

    id = "dict"
    storages: Mapping[str, Storage] = field(default_factory=dict)
    default: Storage = field(default_factory=HDF5Storage)
    named: frozenset[str] = field(default=frozenset(), compare=False)
    fallen: frozenset[str] = field(default=frozenset(), compare=False)
    reasons: Mapping[str, str] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        """Raise `LayoutError` where something else stands for a storage, or for the path of a leaf."""
        if not isinstance(self.storages, Mapping):
            raise LayoutError(f"DictStorage(storages={self.storages!r:.80}): a mapping of paths to storages is needed")
        for path, storage in (*self.storages.items(), ("default", self.default)):
            if not (isinstance(path, str) and isinstance(storage, Storage)):
                raise LayoutError(
                    f"DictStorage: {storage!r:.80} for {path!r}: a storage is needed for a path, such as HDF5Storage()"
                )
        object.__setattr__(self, "storages", dict(self.storages))
        object.__setattr__(self, "reasons", dict(self.reasons))

    def __hash__(self) -> int:
        return hash((tuple(sorted(self.storages)), self.default))

    def of(self, leaf: Leaf) -> Storage:
        """Return the storage that keeps `leaf`."""
        return self.storages.get(leaf.path, self.default)

    def check(self, leaves: Sequence[Leaf]) -> None:
        paths = {leaf.path for leaf in leaves}
        if unknown := sorted(set(self.storages) - paths):
            raise LayoutError(f"no leaf {unknown[0]!r} to keep; the leaves are {sorted(paths)}")
        for storage, own in self.shares(leaves):
            storage.check(own)
            storage.check_names(own)

    def exact(self, leaf: Leaf) -> bool:
        return self.of(leaf).exact(leaf)

    def shares(self, leaves: Sequence[Leaf]) -> list[tuple[Storage, list[Leaf]]]:
        """Return each storage once with the leaves that it keeps, the default first."""
        shares: list[tuple[Storage, list[Leaf]]] = [(self.default, [])]
        for leaf in leaves:
            storage = self.of(leaf)
            own = next((own for known, own in shares if known == storage), None)
            if own is None:
                shares.append((storage, own := []))
            own.append(leaf)
        return shares

    def folders(self, directory: Path, leaves: Sequence[Leaf]) -> list[tuple[Storage, list[Leaf], Path]]:
        """Return the shares, each with its folder: a second table may not be named as the first."""
        shares = self.shares(leaves)
        tables = [storage for storage, _ in shares if storage.table]
        names = {id(storage): f"{storage.id}-{i}" for i, storage in enumerate(tables) if i}
        return [(storage, own, directory / names.get(id(storage), "")) for storage, own in shares]

    def writer(self, directory: Path, leaves: Sequence[Leaf]) -> Writer:
        return self._writer(directory, leaves, lambda storage, folder, own: storage.writer(folder, own))

    def recover(self, directory: Path, leaves: Sequence[Leaf]) -> Writer:
        return self._writer(directory, leaves, lambda storage, folder, own: storage.recover(folder, own))

    def _writer(
        self, directory: Path, leaves: Sequence[Leaf], make: Callable[[Storage, Path, Sequence[Leaf]], Writer]
    ) -> Writer:
        shares = []
        for i, (storage, own, folder) in enumerate(self.folders(directory, leaves)):
            paths = frozenset(leaf.path for leaf in own)
            counted = bool(own) or self._keeps_infos()
            writer = make(storage, directory / f"{i}", own)
            shares.append(Share(paths, writer, folder.relative_to(directory), counted))
        return DictWriter(shares, series=any(leaf.per == "moment" for leaf in leaves))

    def _keeps_infos(self) -> bool:
        """Whether the default keeps the keys of infos."""
        try:
            self.default.check([INFO])
        except LayoutError:
            return False
        return True

    def reader(self, directory: Path, leaves: Sequence[Leaf], counts: Counts) -> Reader:
        return DictReader(directory, leaves, counts, self.folders(directory, leaves))

    def to_json(self) -> dict[str, JSON]:
        storages = {path: storage.to_json() for path, storage in self.storages.items()}
        return {"id": self.id, "default": self.default.to_json(), "storages": storages}

    @classmethod
    def from_options(cls, options: Mapping[str, JSON]) -> Self:
        if set(options) != {"default", "storages"} or not isinstance(options["storages"], dict):
            raise FormatError(f"a dict storage has 'default' and 'storages', got {sorted(options)}")
        storages = {path: storage_from_json(data) for path, data in options["storages"].items()}
        return cls(storages, storage_from_json(options["default"]))


class Share(NamedTuple):
    """A writer, the leaves that it keeps, its folder in a shard, and whether rows must be in it to be whole."""

    paths: frozenset[str]
    writer: Writer
    folder: Path
    counted: bool


class DictWriter(Writer, Adopting):
    """Writers that share the leaves; the first takes the rows of leaves that nobody declared.

    In a `series` of steps a segment has one moment more than transitions.
    """

    def __init__(self, shares: Sequence[Share], series: bool) -> None:
        self._shares = tuple(shares)
        self._series = series
        self._declared = frozenset().union(*(share.paths for share in shares))
        self._tables = [share for share in shares if isinstance(share.writer, TableWriter)]
        self._streams = [share for share in shares if not isinstance(share.writer, TableWriter)]
        self._ending = [share.writer for share in shares if type(share.writer).end is not Writer.end]

    @property
    def nbytes(self) -> int:
        return sum(share.writer.nbytes for share in self._shares)

    def append(self, rows: Mapping[str, Rows], runs: Sequence[Run]) -> None:
        free = rows.keys() - self._declared

        def append(share: Share) -> None:
            paths = share.paths | free if share is self._shares[0] else share.paths
            share.writer.append({path: rows[path] for path in paths}, runs)

        side_by_side([partial(each, append, self._tables), *(partial(append, share) for share in self._streams)])

    def end(self, segment: int) -> None:
        if self._ending:
            each(lambda writer: writer.end(segment), self._ending)

    def checkpoint(self) -> None:
        each(lambda share: share.writer.checkpoint(), self._shares)

    def segments(self) -> Sequence[Segment]:
        """Return what all writers hold: the least of their rows, for a kill may have come between them."""
        found: dict[int, list[Segment]] = {}
        counted = [share.writer for share in self._shares if share.counted]
        for writer in counted:
            for segment in writer.segments():
                found.setdefault(segment.number, []).append(segment)
        whole = [parts for _, parts in sorted(found.items()) if len(parts) == len(counted)]
        return [least(parts, self._series) for parts in whole]

    def adopt(self, segment: Segment, reader: Reader, i: int) -> None:
        """Let each writer have what is its own of an episode of a shard."""
        assert isinstance(reader, DictReader)
        for share in self._shares:
            own = reader.part(share.paths)
            if own is None and share is self._shares[0]:
                own = reader.part(reader.leaves.keys() - self._declared)
            if own is not None:
                adopt(share.writer, segment, own, i)
            elif share.counted:
                copy(share.writer, segment, Copy([], {}))

    def view(self, segment: Segment) -> Mapping[str, Column]:
        views = [share.writer.view(segment) for share in self._shares if share.counted]
        return {path: column for view in views for path, column in view.items()}

    def pack(self, directory: Path, segments: Sequence[Segment]) -> Sequence[Leaf]:
        found: list[Leaf] = []
        for share in self._shares:
            if share.counted:
                (directory / share.folder).mkdir(exist_ok=True)
                found += share.writer.pack(directory / share.folder, segments)
        return found

    def forget(self, segments: Sequence[int]) -> None:
        each(lambda share: share.writer.forget(segments), self._shares)

    def close(self) -> None:
        each(lambda share: share.writer.close(), self._shares)


def least(parts: Sequence[Segment], series: bool) -> Segment:
    """Return the whole rows that all parts of one segment have; row k is moment k and the transition to it."""
    gaps = [part.moments - part.transitions for part in parts if NO_LEAF not in part[1:]]
    gap = 1 if series else max(gaps, default=0)
    rows = [part.moments for part in parts if part.moments != NO_LEAF]
    rows += [part.transitions + gap for part in parts if part.transitions != NO_LEAF]
    return Segment(parts[0].number, min(rows), max(min(rows) - gap, 0))


def each(call: Callable[[T], object], items: Iterable[T]) -> None:
    """Call for every item even where one raises; then raise what was raised first."""
    raised: BaseException | None = None
    for item in items:
        try:
            call(item)
        except BaseException as error:  # noqa: BLE001 - raised again after the others
            raised = raised or error
    if raised is not None:
        raise raised


class DictReader(Reader):
    """Readers that share the leaves of a shard."""

    def __init__(
        self,
        directory: Path,
        leaves: Sequence[Leaf],
        counts: Counts,
        folders: Sequence[tuple[Storage, Sequence[Leaf], Path]],
    ) -> None:
        super().__init__(directory, leaves, counts)
        self._readers = [storage.reader(folder, own, counts) for storage, own, folder in folders if own]
        self._owners = {path: reader for reader in self._readers for path in reader.leaves}

    def segment(self, i: int) -> Mapping[str, Column]:
        views = {id(reader): reader.segment(i) for reader in self._readers}
        return LazyColumns(self.leaves, lambda path: views[id(self._owners[path])][path])

    def part(self, paths: Iterable[str]) -> Reader | None:
        """Return the reader of the storage that keeps one of some leaves."""
        return next((self._owners[path] for path in paths if path in self._owners), None)

    def whole(self, path: str) -> Column:
        return self._owners[path].whole(path)

    def count(self) -> Mapping[str, int]:
        return {path: rows for reader in self._readers for path, rows in reader.count().items()}

    def encoded(self, path: str, rows: slice) -> Sequence[bytes] | None:
        return self._owners[path].encoded(path, rows)

    def close(self) -> None:
        each(lambda reader: reader.close(), self._readers)
