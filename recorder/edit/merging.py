"""Merging, picking and splitting: episodes of recordings go into another one with their ids, and none is coded anew."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import msgspec

from recorder.digests import DIGEST
from recorder.edit.building import Builder, Piece
from recorder.edit.editor import Editor, editing
from recorder.edit.folders import folder_of
from recorder.episode import Episode
from recorder.errors import ExistsError, GoneError, LayoutError, MismatchError
from recorder.files import check_size, inside, link_or_copy
from recorder.holdings import Holding, ids_of, look
from recorder.leaf import JSON
from recorder.recording import open_reader
from recorder.schema import Schema, compare, create, read_schema
from recorder.shard import Shard
from recorder.spaces.structure import Excluded, keep_all, prune
from recorder.storages.base import Reader
from recorder.writing.opening import check_excluded, check_writable, excluder, existing_schema

Keep = Callable[[Episode], object] | Collection[str] | None
"""Which episodes are taken: those for which a function is true, those with some ids, or all."""


@dataclass(frozen=True)
class Transfer:
    """What went into a recording: episodes and steps, in how many shards, and how many episodes were there already."""

    target: str
    episodes: int = 0
    steps: int = 0
    shards: int = 0
    skipped: int = 0

    def to_json(self) -> dict[str, JSON]:
        """Return all of it as JSON."""
        return asdict(self)


def merge(sources: Sequence[Path | str], target: Path | str, *, dry_run: bool = False) -> Transfer:
    """Put all episodes of some recordings into one, which is made if it is not there.

    All schemas are compared first. Ids stay; an episode whose id is in the target already is skipped, so that an
    interrupted merge can be started again. Files get second names where the file system has links.

    Args:
        sources: the folders of recordings.
        target: the folder to put them into.
        dry_run: only compare, and say what would be done.

    Raises:
        NotARecordingError: a source holds no recording.
        MismatchError: the spaces, dtypes or storages of two of them differ; the message lists how.
        ExistsError: one id is in two sources, with different rows; or was deleted from the target.
        BusyError: another process is editing the target.
    """
    folders = [folder_of(source) for source in sources]
    if not folders:
        raise ValueError("merge([]) has no recording to merge")
    place = Path(target).absolute()
    schema = _agreed(place, read_schema(folders[0]))
    for folder in folders:
        _compare(folder, read_schema(folder), schema)
    _check_twice(folders)
    if dry_run:
        return _foreseen(folders, place)
    total = Transfer(str(place))
    for folder in folders:
        total = _plus(total, _transfer(folder, place, schema, None))
    return total


def pick(source: Path | str, target: Path | str, keep: Keep = None, *, exclude: Sequence[str] = ()) -> Transfer:
    """Put some episodes of a recording into another one, which is made if it is not there.

    Args:
        source: the folder of a recording.
        target: the folder to put them into.
        keep: a function that says of an episode whether it is taken, or the ids of those that are; by default all.
        exclude: globs of leaves that are left out, such as `observation/depth*` or `info/debug`.

    Raises:
        NotARecordingError: the source holds no recording.
        KeyError: an id is that of no episode.
        LayoutError: `exclude` names no leaf, or one without which no episode is whole.
        MismatchError: the target differs; the message lists how.
        BusyError: another process is editing the target.
    """
    folder, place = folder_of(source), Path(target).absolute()
    schema = read_schema(folder)
    excluded = excluder(exclude)
    check_excluded(exclude, list(schema.leaves))
    if isinstance(keep, Collection) and (unknown := set(keep) - _ids(folder)):
        raise KeyError(f"no episode of {folder} has the id {sorted(unknown)[0]!r}")
    return _transfer(folder, place, _agreed(place, without(schema, excluded)), keep, excluded)


def split(source: Path | str, targets: Mapping[Path | str, Collection[str]]) -> list[Transfer]:
    """Put the episodes of a recording into several others, by id; the recording stays as it is.

    Raises:
        KeyError: an id is that of no episode.
        ValueError: an id is to go into two of them.
        NotARecordingError, MismatchError, BusyError: as `pick` does.
    """
    seen: set[str] = set()
    for ids in targets.values():
        if twice := seen & set(ids):
            raise ValueError(f"episode {sorted(twice)[0]} is to go into two recordings")
        seen |= set(ids)
    return [pick(source, target, list(ids)) for target, ids in targets.items()]


def without(schema: Schema, excluded: Excluded) -> Schema:
    """Return a schema without some leaves.

    Raises:
        LayoutError: no episode is whole without one of them, or it is no item of a Dict.
    """
    wrong = [name for name in ("observation", "action", "reward", "terminated", "truncated", "row") if excluded(name)]
    if wrong:
        raise LayoutError(f"{wrong[0]!r} cannot be left out: no episode is whole without it")
    names = [name for name in schema.spaces if not excluded(name)]
    single = schema.rows == "single"
    spaces = {name: prune(schema.spaces[name], "" if single else name, excluded) for name in names}
    kept = {path: leaf for path, leaf in schema.leaves.items() if not excluded(path.removeprefix(f"{DIGEST}/"))}
    storages = {path: storage for path, storage in schema.storage.storages.items() if path in kept}
    nodes = {name: node for name, node in schema.nodes.items() if all(leaf.path in kept for leaf in node.leaves)}
    return replace(schema, spaces=spaces, nodes=nodes, leaves=kept, storage=replace(schema.storage, storages=storages))


def _agreed(target: Path, schema: Schema) -> Schema:
    """Return the schema of the target, after it has been compared if it is there."""
    theirs = existing_schema(target)
    if theirs is None:
        check_writable(target)
        return schema
    _compare(target, theirs, schema)
    return theirs


def _compare(folder: Path, theirs: Schema, ours: Schema) -> None:
    try:
        compare(folder, theirs, ours, dtypes=True)
    except MismatchError as error:
        listed = str(error).partition("\n")[2].rpartition("\n")[0]
        raise MismatchError(
            f"{folder} cannot be merged with the others, from which it differs:\n{listed}\nNothing was done"
        ) from error


def _ids(folder: Path) -> set[str]:
    return {one for holding in look(folder).counting for one in holding.ids}


def _check_twice(folders: Sequence[Path]) -> None:
    """Raise `ExistsError` where an id is in two recordings, but for copies of one shard."""
    seen: dict[str, Shard] = {}
    for folder in folders:
        for holding in look(folder).counting:
            for one in holding.ids:
                other = seen.setdefault(one, holding.shard)
                if other.manifest.files != holding.shard.manifest.files:
                    raise ExistsError(
                        f"episode {one} is in {other.path} and, with other rows, in {holding.shard.path}; delete one"
                    )


def _foreseen(folders: Sequence[Path], target: Path) -> Transfer:
    there = _ids(target) if (target / "shards").is_dir() else set[str]()
    episodes = steps = shards = skipped = 0
    for folder in folders:
        for shard, kept in look(folder).counting:
            ids = ids_of(shard)
            fresh = [i for i in kept.tolist() if ids[i] not in there]
            there.update(ids[i] for i in fresh)
            episodes, skipped = episodes + len(fresh), skipped + len(kept) - len(fresh)
            steps += int(shard.episodes.counts().transitions[fresh].sum())
            shards += bool(fresh)
    return Transfer(str(target), episodes, steps, shards, skipped)


def _plus(one: Transfer, other: Transfer) -> Transfer:
    return Transfer(
        one.target,
        one.episodes + other.episodes,
        one.steps + other.steps,
        one.shards + other.shards,
        one.skipped + other.skipped,
    )


def _transfer(source: Path, target: Path, schema: Schema, keep: Keep, excluded: Excluded = keep_all) -> Transfer:
    """Put episodes of a recording into another of `schema`; start again where the source is being compacted."""
    create(target, schema)
    done = Transfer(str(target))
    with editing(target) as editor:
        mover = Mover(editor, read_schema(source), keep, excluded)
        while True:
            try:
                for holding in look(source).counting:
                    done = _plus(done, mover.move(holding))
                return done
            except GoneError:
                continue


class Mover:
    """Moves episodes of one recording into that of an editor."""

    def __init__(self, editor: Editor, source: Schema, keep: Keep, excluded: Excluded) -> None:
        holdings = editor.look()
        self._editor = editor
        self._source = source
        self._keep = keep
        self._excluded = excluded
        self._there = {one for holding in holdings.counting for one in holding.ids}
        self._deleted = holdings.statements.dropped
        self._moved: set[str] = set()

    def move(self, holding: Holding) -> Transfer:
        """Put what is wanted of a shard into the recording; return how much it was."""
        wanted, skipped = self._wanted(holding)
        if not wanted:
            return Transfer("", skipped=skipped)
        shard = holding.shard
        steps = int(shard.episodes.counts().transitions[wanted].sum())
        gone = frozenset(leaf.path for leaf in shard.leaves if self._excluded(leaf.path))
        whole = (
            len(wanted) == shard.manifest.episodes and not gone and self._source.leaves == self._editor.schema.leaves
        )
        if whole and not (self._editor.path / "shards" / shard.name).exists():
            self._link(shard)
        else:
            builder = Builder(self._editor, [Piece(shard, i, without=gone) for i in wanted], self._source)
            self._editor.commit(builder.build(), shard.name, builder.sums)
        ids = ids_of(shard)
        self._moved.update(ids[i] for i in wanted)
        return Transfer("", len(wanted), steps, 1, skipped)

    def _wanted(self, holding: Holding) -> tuple[list[int], int]:
        """Return which episodes of a shard are to be taken, and how many were there before."""
        ids = ids_of(holding.shard)
        fresh = [i for i in holding.kept.tolist() if ids[i] not in self._moved]
        chosen = [i for i in self._chosen(holding.shard, fresh) if ids[i] not in self._moved]
        if deleted := sorted({ids[i] for i in chosen} & self._deleted):
            raise ExistsError(
                f"episode {deleted[0]} was deleted from {self._editor.path}; `recorder compact` forgets that, then "
                f"it can be put there again"
            )
        wanted = [i for i in chosen if ids[i] not in self._there]
        return wanted, len(chosen) - len(wanted)

    def _chosen(self, shard: Shard, numbers: Sequence[int]) -> list[int]:
        if self._keep is None or not numbers:
            return list(numbers)
        if isinstance(self._keep, Collection):
            ids, kept = ids_of(shard), set(self._keep)
            return [i for i in numbers if ids[i] in kept]
        reader = open_reader(shard, self._source)
        try:
            return [i for i in numbers if self._keep(self._episode(shard, i, reader))]
        finally:
            reader.close()

    def _episode(self, shard: Shard, i: int, reader: Reader) -> Episode:
        return Episode(self._source, shard.episodes.note(i), reader.segment(i), manifest=shard.manifest)

    def _link(self, shard: Shard) -> None:
        """Give the files of a whole shard second names, and the shard the name that it has."""
        editor = self._editor
        editor.clean()
        editor.folder.mkdir(parents=True)
        for name, (size, _) in shard.manifest.files.items():
            check_size(inside(shard.path, name), size)
            link_or_copy(inside(shard.path, name), editor.folder / name)
        manifest = msgspec.structs.replace(shard.manifest, replaces=[], dropped=[], reason="")
        editor.adopt(manifest, shard.name)
