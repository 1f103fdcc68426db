"""Recovery: what dead writers left in staging becomes episodes, each exactly once."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from recorder.episodes import EpisodeNote, EpisodeTable
from recorder.errors import RecorderError
from recorder.files import remove, sync
from recorder.leaf import Leaf
from recorder.schema import Schema, read_schema
from recorder.shard import EPISODES, NAME, Origin, Shard, manifest_of, pack, seal, shard_name
from recorder.storages.base import Segment, Writer
from recorder.writing.staging import ORIGIN, ROWS, SHARD, Staging, Standing, staged

UNBORN_SECONDS = 60.0
"""A staging folder that was never given its name is removed when it is older than this."""


@dataclass
class Recovery:
    """What became of one dead writer's work: ids of episodes with the steps that were kept, and what was not."""

    writer: str
    kept: dict[str, int] = field(default_factory=dict)
    committed: list[str] = field(default_factory=list)
    lost: dict[str, str] = field(default_factory=dict)
    left: str = ""

    def __str__(self) -> str:
        if self.left:
            return f"writer {self.writer}: left as it is, {self.left}"
        parts = [f"{len(self.kept)} episodes, {sum(self.kept.values())} steps recovered"]
        parts += [f"{episode}: {reason}" for episode, reason in self.lost.items()]
        return f"writer {self.writer}: {'; '.join(parts)}"


def recover(path: Path | str, *, foreign: bool = False, dry_run: bool = False) -> list[Recovery]:
    """Commit what dead writers of a recording left in staging, up to the last row that all leaves have.

    Living writers are left alone, and those of other hosts unless `foreign` says that they are dead. A kill in the
    middle of this loses nothing: an episode is skipped if it is in a shard already, and what was staged goes last.

    Args:
        path: the folder of the recording.
        foreign: also take over what writers of other hosts left.
        dry_run: only say what would be kept.

    Raises:
        NotARecordingError: the folder holds no recording.
    """
    folders = staged(Path(path))
    if not folders:
        return []
    schema = read_schema(Path(path))
    found = (_recover_one(Path(path), schema, folder, foreign, dry_run) for folder in folders)
    return [recovery for recovery in found if recovery is not None]


def _recover_one(path: Path, schema: Schema, folder: Path, foreign: bool, dry_run: bool) -> Recovery | None:
    if folder.name.startswith("."):
        _remove_unborn(folder)
        return None
    staging = Staging.take_over(folder, foreign)
    if staging is Standing.GONE:
        with suppress(OSError):  # the lock goes last: a folder without one is empty, or is just being removed
            folder.rmdir()
        return None
    if isinstance(staging, Standing):
        return Recovery(folder.name, left=staging.value)
    recovery = Recovery(folder.name)
    done = False
    try:
        done = _salvage(path, schema, staging, recovery, dry_run)
    finally:
        staging.close(keep=dry_run or not done)
    return recovery


def _remove_unborn(folder: Path) -> None:
    """Remove a folder whose writer died, or failed, before it gave it its name."""
    try:
        if time.time() - folder.stat().st_mtime > UNBORN_SECONDS:
            remove(folder)
    except FileNotFoundError:
        return


def _salvage(path: Path, schema: Schema, staging: Staging, recovery: Recovery, dry_run: bool) -> bool:
    """Commit what a dead writer left; return whether nothing remains that would be lost with its folder."""
    leaves = list(schema.leaves.values())
    notes = _notes(staging, recovery)
    earlier = _shards_of(path, staging.writer)
    recovery.committed = [note.id for note in notes if note.id in _ids(earlier)]
    writer = schema.storage.recover(staging.path / ROWS, leaves)
    try:
        whole = _whole([note for note in notes if note.id not in recovery.committed], writer, recovery)
        recovery.kept = {note.id: note.transitions for note in whole}
        if whole and not dry_run:
            _commit(path, schema, staging, writer, leaves, whole, len(earlier))
    finally:
        writer.close()
    return True


def _notes(staging: Staging, recovery: Recovery) -> list[EpisodeNote]:
    """Return what the dead writer's last checkpoint says of its running episodes."""
    file = staging.path / EPISODES
    if not file.exists():
        return []
    try:
        table = EpisodeTable(file, EpisodeTable.length(file))
        notes = [table.note(i) for i in range(len(table))]
    except (RecorderError, ValueError) as error:
        recovery.lost["all"] = f"the note of its episodes cannot be read: {error}"
        return []
    for note in notes:
        note.number = int(note.id.rpartition("-")[2])
    return notes


def _shards_of(path: Path, writer: str) -> list[Path]:
    """Return the shards that a writer committed or put aside."""
    folders = (path / "shards", path / "discarded")
    return [item for folder in folders if folder.is_dir() for item in folder.iterdir() if _is_of(item, writer)]


def _is_of(shard: Path, writer: str) -> bool:
    return NAME.fullmatch(shard.name) is not None and shard.name.split("-")[1] == writer


def _ids(shards: Sequence[Path]) -> set[str]:
    return {str(episode) for shard in shards for episode in Shard(shard).episodes.required("id")}


def _whole(notes: Sequence[EpisodeNote], writer: Writer, recovery: Recovery) -> list[EpisodeNote]:
    """Return the episodes of which a step survives, cut to what every storage has of them."""
    held = {segment.number: segment for segment in writer.segments()}
    whole = []
    for note in notes:
        segment = held.get(note.number, Segment(note.number, 0, 0))
        if segment.transitions < 1:
            if note.transitions:
                recovery.lost[note.id] = "no whole row of it survives"
            continue
        note.moments, note.transitions = segment.moments, segment.transitions
        note.end = "recovered"
        if note.transitions and "reward" in (columns := writer.view(segment)):
            note.total = float(columns["reward"][:].sum())
        whole.append(note)
    return whole


def _commit(
    path: Path,
    schema: Schema,
    staging: Staging,
    writer: Writer,
    leaves: Sequence[Leaf],
    notes: Sequence[EpisodeNote],
    earlier: int,
) -> None:
    folder = staging.path / SHARD
    remove(folder)
    for note in notes:
        writer.end(note.number)
    found = pack(folder, schema.storage, writer, leaves, notes)
    origin = msgspec.json.decode((staging.path / ORIGIN).read_bytes(), type=Origin)
    manifest = manifest_of(notes, found, staging.writer, origin)
    seal(folder, manifest, durable=True)
    shards = path / "shards"
    shards.mkdir(exist_ok=True)
    folder.rename(shards / shard_name(staging.writer, earlier, datetime.now(UTC)))
    sync(shards)
