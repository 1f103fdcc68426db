"""Compacting: small shards become one, and what no longer counts leaves the disk; no frame is coded anew."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from recorder.edit.building import Builder, Piece
from recorder.edit.editor import Editor, editing
from recorder.edit.folders import folder_of
from recorder.holdings import Holding, Holdings, look, transitive
from recorder.leaf import JSON, leaf_to_json
from recorder.schema import read_schema
from recorder.shard import Shard
from recorder.writing.committing import GROUP_BYTES, GROUP_EPISODES
from recorder.writing.sweeping import needed


@dataclass(frozen=True)
class Compaction:
    """What was done, or would be: shards and bytes before and after, and which shards were joined to how many."""

    episodes: int
    shards: int
    shards_after: int
    bytes: int
    bytes_after: int
    joined: int
    removed: int

    def to_json(self) -> dict[str, JSON]:
        """Return all of it as JSON."""
        return asdict(self)


def compact(path: Path | str, *, dry_run: bool = False) -> Compaction:
    """Join small shards, leave out what was replaced or dropped, and remove what nothing refers to.

    Others may read and record meanwhile. A kill at any point loses nothing, and leaves at most what the next
    compaction removes. Videos and pictures are linked, or copied as they are coded; tables are written anew.

    Args:
        path: the folder of the recording.
        dry_run: only say what would be done; sizes after it are then estimated.

    Raises:
        NotARecordingError: the folder holds no recording.
        BusyError: another process is editing it.
        DamagedError: a shard is damaged; `recorder verify` says which.
        LayoutError: a storage cannot copy rows without coding them with loss once more.
    """
    folder = folder_of(path)
    if dry_run:
        read_schema(folder)
        return _foreseen(look(folder))
    with editing(folder) as editor:
        before = editor.look()
        removed = len(editor.sweep())
        groups = list(groups_of(editor.look()))
        for group in groups:
            join(editor, group)
            removed += len(editor.sweep())
        after = editor.look()
    return Compaction(
        sum(len(holding.kept) for holding in after.counting),
        len(before.shards),
        len(after.shards),
        _nbytes(before),
        _nbytes(after),
        sum(map(len, groups)),
        removed,
    )


def _foreseen(holdings: Holdings) -> Compaction:
    groups = list(groups_of(holdings))
    counting = [holding for holding in holdings.counting if len(holding.kept)]
    joined = sum(map(len, groups))
    after = len(counting) - joined + len(groups)
    return Compaction(
        sum(len(holding.kept) for holding in counting),
        len(holdings.shards),
        after,
        _nbytes(holdings),
        int(sum(map(weight, counting))),
        joined,
        len(holdings.shards) - len(counting) + joined,
    )


def _nbytes(holdings: Holdings) -> int:
    return sum(shard.nbytes for shard in holdings.shards.values())


def weight(holding: Holding) -> float:
    """Return about how many bytes of a shard are of episodes that count."""
    return holding.shard.nbytes * len(holding.kept) / max(holding.shard.manifest.episodes, 1)


def groups_of(holdings: Holdings) -> Iterator[list[Holding]]:
    """Yield the shards that are to become one each, in their order."""
    group: list[Holding] = []
    for holding in holdings.counting:
        if not len(holding.kept):
            continue
        if group and not _fits(group, holding):
            yield from [group] if _is_worth_it(group) else []
            group = []
        group.append(holding)
    yield from [group] if group and _is_worth_it(group) else []


def _is_worth_it(group: Sequence[Holding]) -> bool:
    return len(group) > 1 or len(group[0].kept) < group[0].shard.manifest.episodes


def _fits(group: Sequence[Holding], holding: Holding) -> bool:
    """Return whether a shard can be joined to a group without changing what any of its episodes says."""
    size = sum(map(weight, group)) + weight(holding)
    episodes = sum(len(member.kept) for member in group) + len(holding.kept)
    if size > GROUP_BYTES or episodes > GROUP_EPISODES or _origin(group[0].shard) != _origin(holding.shard):
        return False
    known = {leaf.path: leaf_to_json(leaf) for member in group for leaf in member.shard.leaves}
    return all(known.get(leaf.path, leaf_to_json(leaf)) == leaf_to_json(leaf) for leaf in holding.shard.leaves)


def _origin(shard: Shard) -> str:
    """Return all that a manifest says of each of its episodes."""
    manifest = shard.manifest
    said = (manifest.environment, manifest.fps, manifest.metadata, manifest.versions, manifest.absent)
    return json.dumps(said, sort_keys=True)


def join(editor: Editor, group: Sequence[Holding]) -> str:
    """Make one shard of the episodes of several that count, which stands for them; return its name."""
    pieces = [Piece(holding.shard, number) for holding in group for number in holding.kept.tolist()]
    builder = Builder(editor, pieces)
    manifest = builder.build()
    there = editor.look().shards
    manifest.replaces = transitive([holding.shard for holding in group], there)
    said = {one for name in manifest.replaces for one in there[name].manifest.dropped}
    remaining = {name: shard for name, shard in there.items() if name not in manifest.replaces}
    manifest.dropped = needed(editor.path, said, remaining)
    return editor.commit(manifest, group[0].shard.name, builder.sums)
