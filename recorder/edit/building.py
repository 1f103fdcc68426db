"""Building a shard of episodes of others: what is not changed is linked or copied as it is coded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from recorder.columns import Column
from recorder.edit.editor import Editor
from recorder.episodes import EpisodeNote, encode_episodes
from recorder.errors import LayoutError
from recorder.files import inside, link_or_copy
from recorder.leaf import Leaf, leaf_to_json
from recorder.schema import Schema
from recorder.shard import EPISODES, Manifest, Origin, Shard, check_rows
from recorder.storages.adopting import Copy, adopt, check_copies, copy, copy_neighbours, neighbours
from recorder.storages.base import Counts, Segment, Storage, Writer
from recorder.storages.dict import DictReader


@dataclass(frozen=True)
class Piece:
    """An episode of a shard as it goes into another one: with some columns changed or added, or some left out."""

    shard: Shard
    number: int
    columns: Mapping[str, Column] = field(default_factory=dict)
    without: frozenset[str] = frozenset()
    note: EpisodeNote | None = None

    def noted(self) -> EpisodeNote:
        """Return what is known of the episode from now on."""
        return self.note if self.note is not None else self.shard.episodes.note(self.number)

    @property
    def absent(self) -> frozenset[str]:
        """The leaves that other episodes of the recording have, and this one has not, or no longer."""
        return frozenset(self.shard.manifest.absent) - self.columns.keys() | self.without


@dataclass(frozen=True)
class Part:
    """A writer of some leaves of the new shard, and the folder of their files in it.

    A `free` one also takes the leaves that only some shards have.
    """

    storage: Storage
    leaves: tuple[Leaf, ...]
    writer: Writer
    folder: Path
    free: bool

    @property
    def paths(self) -> set[str]:
        """The paths of its leaves that all episodes have."""
        return {leaf.path for leaf in self.leaves}


class Builder:
    """Makes one shard of episodes of others, in the folder of an editor.

    All episodes are of one origin and lack the same leaves. They are of a recording of the schema `source`, if not of
    the editor's; it has all leaves that the editor's has, in the same storages.
    """

    def __init__(self, editor: Editor, pieces: Sequence[Piece], source: Schema | None = None) -> None:
        self._editor = editor
        self._schema = editor.schema
        self._source = source or editor.schema
        self._pieces = pieces
        self._notes = [replace(piece.noted(), number=number) for number, piece in enumerate(pieces)]
        self._segments = [Segment(note.number, note.moments, note.transitions) for note in self._notes]
        self._absent = pieces[0].absent
        self._whole = whole_shard(pieces)
        self._readers: dict[Path, DictReader] = {}
        self.sums: dict[str, tuple[int, str]] = {}

    def build(self) -> Manifest:
        """Write the files; return the manifest, without what it says of other shards.

        Raises:
            DamagedError: rows of an episode are not as they were written.
            LayoutError: a storage cannot copy rows without coding them with loss once more.
            WriteError: the rows in the new files are not as many as they should be.
        """
        leaves = [leaf for leaf in self._schema.leaves.values() if leaf.path not in self._absent]
        folder = self._editor.folder
        self._editor.clean()
        folder.mkdir(parents=True)
        found: list[Leaf] = []
        with ExitStack() as stack:
            stack.callback(self._close)
            for part in self._parts(leaves):
                stack.callback(part.writer.close)
                found += self._pack(part, folder / part.folder)
        check_rows(folder, self._schema.storage, [*leaves, *found], Counts.of(self._segments))
        (folder / EPISODES).write_bytes(encode_episodes(self._notes))
        return self._manifest(found)

    def _parts(self, leaves: Sequence[Leaf]) -> list[Part]:
        """Return a part for each table, and one for each leaf that has files of its own."""
        parts = []
        for k, (storage, own, folder) in enumerate(self._schema.storage.folders(Path(), leaves)):
            groups = [own] if storage.table else [[leaf] for leaf in own]
            for j, group in enumerate(groups):
                writer = storage.writer(self._editor.work / f"{k}-{j}", group)
                parts.append(Part(storage, tuple(group), writer, folder, free=k == 0 and storage.table))
        if not (parts and parts[0].free) and (added := self._added()):
            raise LayoutError(f"{added[0]!r} cannot be added: the default storage of this recording keeps no tables")
        return parts

    def _added(self) -> list[str]:
        return sorted({path for piece in self._pieces for path in piece.columns} - self._schema.leaves.keys())

    def _pack(self, part: Part, folder: Path) -> Sequence[Leaf]:
        """Write the files of one part; return the leaves in it that only some shards have."""
        folder.mkdir(parents=True, exist_ok=True)
        if self._whole is not None and self._link(part, self._whole, folder):
            return self._whole.leaves if part.free else []
        if not part.storage.table:
            check_copies(part.storage, part.writer, part.leaves)
        for group in groups_of(self._pieces):
            self._add_group(part, group)
        return part.writer.pack(folder, self._segments)

    def _add_group(self, part: Part, group: slice) -> None:
        """Add episodes that are neighbours in one shard: to a table, where nothing of them changes, many at once."""
        pieces, segments = self._pieces[group], self._segments[group]
        reader = self._reader(pieces[0].shard)
        own = reader.part(part.paths)
        if (
            part.storage.table
            and own is not None
            and own.leaves.keys() == self._columns(part, pieces[0], reader).keys()
        ):
            for some in neighbours(segments, sum(leaf.nbytes for leaf in own.leaves.values())):
                if len(segments[some]) > 1:
                    copy_neighbours(part.writer, segments[some], own, pieces[some.start].number)
                else:
                    self._add(part, pieces[some.start], segments[some.start])
            return
        for piece, segment in zip(pieces, segments, strict=True):
            self._add(part, piece, segment)

    def _add(self, part: Part, piece: Piece, segment: Segment) -> None:
        reader = self._reader(piece.shard)
        if part.storage.table or part.paths & piece.columns.keys():
            columns = self._columns(part, piece, reader)
            copy(part.writer, segment, Copy([column.leaf for column in columns.values()], columns))
        else:
            own = reader.part(part.paths)
            assert own is not None
            adopt(part.writer, segment, own, piece.number)

    def _columns(self, part: Part, piece: Piece, reader: DictReader) -> dict[str, Column]:
        """Return the columns of an episode that go into a part."""
        there = reader.segment(piece.number)
        paths = [leaf.path for leaf in part.leaves]
        if part.free:
            known = self._schema.leaves.keys()
            paths += [leaf.path for leaf in piece.shard.leaves if leaf.path not in piece.without]
            paths += [path for path in piece.columns if path not in known and path not in paths]
        return {path: piece.columns[path] if path in piece.columns else there[path] for path in paths}

    def _reader(self, shard: Shard) -> DictReader:
        if shard.path not in self._readers:
            reader = shard.reader(self._source.storage, list(self._source.leaves.values()))
            assert isinstance(reader, DictReader)
            self._readers[shard.path] = reader
        return self._readers[shard.path]

    def _close(self) -> None:
        for reader in self._readers.values():
            reader.close()

    def _link(self, part: Part, shard: Shard, folder: Path) -> bool:
        """Give the files of a part second names, and return True, if all episodes of one shard keep all rows of it."""
        paths = part.paths
        for piece in self._pieces:
            changed = set(piece.columns) | piece.without
            if changed & paths or (part.free and changed - self._schema.leaves.keys()):
                return False
        there = self._place_of(part, shard)
        if there is None:
            return False
        for name, sum_ in shard.manifest.files.items():
            pure = PurePosixPath(name)
            if pure.is_relative_to(there) and self._is_of(part, pure.relative_to(there).as_posix()):
                target = folder / pure.relative_to(there)
                link_or_copy(inside(shard.path, name), target)
                self.sums[target.relative_to(self._editor.folder).as_posix()] = sum_
        return True

    def _place_of(self, part: Part, shard: Shard) -> PurePosixPath | None:
        """Return the folder of a shard that has the files of a part, and of a table no other leaves."""
        for storage, own, folder in self._source.storage.folders(Path(), shard.own(list(self._source.leaves.values()))):
            theirs = {leaf.path for leaf in own} - {leaf.path for leaf in shard.leaves}
            if storage == part.storage and (theirs == part.paths or (not storage.table and part.paths <= theirs)):
                return PurePosixPath(folder.as_posix())
        return None

    def _is_of(self, part: Part, name: str) -> bool:
        if part.storage.table:
            return part.storage.owns(Leaf(""), name)
        return any(part.storage.owns(leaf, name) for leaf in part.leaves)

    def _manifest(self, found: Sequence[Leaf]) -> Manifest:
        first = self._pieces[0].shard.manifest
        origin = Origin(first.environment, first.fps, first.metadata, first.versions)
        manifest = self._editor.manifest(self._notes, origin)
        manifest.leaves = [leaf_to_json(leaf) for leaf in found]
        manifest.versions = dict(first.versions)
        manifest.host = ", ".join(dict.fromkeys(piece.shard.manifest.host for piece in self._pieces))
        manifest.absent = sorted(self._absent & self._schema.leaves.keys())
        return manifest


def groups_of(pieces: Sequence[Piece]) -> Iterator[slice]:
    """Yield pieces in groups of neighbours in one shard of which nothing changes; one that changes is its own group."""
    start = 0
    for i in range(1, len(pieces) + 1):
        if i == len(pieces) or not _goes_on(pieces[i - 1], pieces[i]):
            yield slice(start, i)
            start = i


def _goes_on(piece: Piece, other: Piece) -> bool:
    changed = piece.columns or piece.without or other.columns or other.without
    return not changed and piece.shard.path == other.shard.path and piece.number + 1 == other.number


def whole_shard(pieces: Sequence[Piece]) -> Shard | None:
    """Return the shard of which `pieces` are all episodes in their order, if they are."""
    shard = pieces[0].shard
    numbers = [piece.number for piece in pieces if piece.shard.path == shard.path]
    return shard if numbers == list(range(shard.manifest.episodes)) and len(numbers) == len(pieces) else None
