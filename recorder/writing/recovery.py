"""Recovery: what dead writers left in staging becomes episodes, each exactly once."""

from __future__ import annotations

import time
from collections.abc import Sequence, Set
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from recorder.discarded import QUOTA, put_aside, trim
from recorder.episodes import ID, EpisodeNote, decode_notes
from recorder.errors import FormatError, RecorderError
from recorder.files import check_plain, is_not_now, make_folder, read_small, remove, sync
from recorder.holdings import ids_of, shard_names
from recorder.leaf import JSON, Leaf
from recorder.schema import Schema, read_schema
from recorder.shard import NAME, Origin, Shard, manifest_of, pack, read_manifest, seal, shard_name
from recorder.storages.base import Segment, Writer
from recorder.writing.staging import NOTE_BYTES, ORIGIN, ROWS, RUNNING, SHARD, Staging, Standing, staged

UNBORN_SECONDS = 60.0
"""A staging folder that was never given its name is removed when it is older than this."""


@dataclass
class Recovery:
    """What became of one dead writer's work.

    `kept` has the ids of the episodes that were made of it, with their steps; `committed` those that were in shards
    already; `lost` what could not be saved of which episode, `all` where that is not known; `remains` where in
    `discarded/` the files are of which something could not be saved; `left` why nothing was done.
    """

    writer: str
    kept: dict[str, int] = field(default_factory=dict)
    committed: list[str] = field(default_factory=list)
    lost: dict[str, str] = field(default_factory=dict)
    remains: str = ""
    left: str = ""

    def to_json(self) -> dict[str, JSON]:
        """Return all of it as JSON."""
        return asdict(self)

    def __str__(self) -> str:
        if self.left:
            return f"writer {self.writer}: left as it is: {self.left}"
        parts = [f"{len(self.kept)} episodes, {sum(self.kept.values())} steps recovered"]
        parts += [f"{episode}: {reason}" for episode, reason in self.lost.items()]
        parts += [f"its files are in discarded/{self.remains}"] if self.remains else []
        return f"writer {self.writer}: {'; '.join(parts)}"


def recover(path: Path | str, *, foreign: bool = False, dry_run: bool = False, trash: int = QUOTA) -> list[Recovery]:
    """Commit what dead writers of a recording left in staging, up to the last row that all leaves have.

    Living writers are left alone, and those of other hosts unless `foreign` says that they are dead. A kill in the
    middle of this loses nothing: an episode is skipped if it is in a shard already, and what was staged goes last.
    What cannot be saved goes to `discarded/` as it is, with the reason, and never keeps a recording from being opened.

    Args:
        path: the folder of the recording.
        foreign: also take over what writers of other hosts left.
        dry_run: only say what would be kept; nothing is changed.
        trash: bytes of discarded episodes and remains that are kept in `discarded/`; 0 deletes them at once.

    Raises:
        NotARecordingError: the folder holds no recording.
        FormatError: `recording.json` cannot be read, so nothing else can.
    """
    folders = staged(Path(path))
    if not folders:
        return []
    rescue = Rescue(Path(path), read_schema(Path(path)), foreign, dry_run, trash)
    found = [rescue.recover(folder) for folder in folders]
    return [recovery for recovery in found if recovery is not None]


@dataclass(frozen=True)
class Rescue:
    """How the work of dead writers of one recording is recovered."""

    path: Path
    schema: Schema
    foreign: bool
    dry_run: bool
    trash: int

    def recover(self, folder: Path) -> Recovery | None:
        """Recover what is in one staging folder; return None where that is nothing."""
        if folder.name.startswith("."):
            if not self.dry_run:
                _remove_unborn(folder)
            return None
        staging = Staging.take_over(folder, self.foreign)
        if staging is Standing.GONE:
            if not self.dry_run:
                with suppress(OSError):  # the lock goes last: a folder without one is empty, or is just being removed
                    folder.rmdir()
            return None
        if isinstance(staging, Standing):
            return Recovery(folder.name, left=staging.value)
        return self._recover(staging)

    def _recover(self, staging: Staging) -> Recovery:
        recovery = Recovery(staging.writer)
        keep = True
        try:
            self._salvage(staging, recovery)
            if not self.dry_run:
                self._put_aside(staging, recovery)
                keep = False
        except OSError as error:
            if not is_not_now(error):
                raise
            recovery.kept.clear()
            recovery.left = f"{error}; try again when the cause is gone"
        finally:
            staging.close(keep)
        return recovery

    def _put_aside(self, staging: Staging, recovery: Recovery) -> None:
        """Keep the files of which something could not be saved."""
        if recovery.lost and self.trash:
            number = len(_shards_of(self.path, staging.writer))
            reason = f"recovery could not save all of it: {next(iter(recovery.lost.values()))}"
            recovery.remains = put_aside(self.path, staging, number, reason, recovery.lost)
            trim(self.path, self.trash)

    def _salvage(self, staging: Staging, recovery: Recovery) -> None:
        """Commit what a dead writer left, and note what could not be saved."""
        earlier = _shards_of(self.path, staging.writer)
        try:
            notes = _notes(staging)
            known = _ids(earlier)
            known |= _elsewhere(self.path, {note.id for note in notes} - known)
            recovery.committed = [note.id for note in notes if note.id in known]
            self._commit_whole(staging, [note for note in notes if note.id not in known], len(earlier), recovery)
        except (RecorderError, ValueError, KeyError, EOFError) as error:
            if is_not_now(error):
                raise
            recovery.kept.clear()
            recovery.lost["all"] = f"{type(error).__name__}: {error}"

    def _commit_whole(self, staging: Staging, notes: Sequence[EpisodeNote], earlier: int, recovery: Recovery) -> None:
        leaves = list(self.schema.leaves.values())
        check_plain(staging.path)
        writer = self.schema.storage.recover(staging.path / ROWS, leaves)
        try:
            whole = self._whole(notes, writer, recovery)
            recovery.kept = {note.id: note.transitions for note in whole}
            if whole and not self.dry_run:
                self._commit(staging, writer, leaves, whole, earlier)
        finally:
            writer.close()

    def _whole(self, notes: Sequence[EpisodeNote], writer: Writer, recovery: Recovery) -> list[EpisodeNote]:
        """Return the episodes of which a step survives, cut to what every storage has of them."""
        held = {segment.number: segment for segment in writer.segments()}
        whole = []
        for note in notes:
            segment = held.get(note.number, Segment(note.number, 0, 0))
            if reason := self._shortfall(note, segment):
                recovery.lost[note.id] = reason
            if segment.transitions < 1:
                continue
            note.moments, note.transitions = segment.moments, segment.transitions
            note.end = "recovered"
            if "reward" in (columns := writer.view(segment)):
                note.total = float(columns["reward"][:].sum())
            whole.append(note)
        return whole

    def _shortfall(self, note: EpisodeNote, segment: Segment) -> str:
        """Return what is missing of an episode beside the frames that an encoder had not yet given back."""
        missing = note.transitions - segment.transitions
        if missing <= 0 or missing <= self._delay():
            return ""
        if segment.transitions < 1:
            return f"none of its {note.transitions} steps is whole in every storage"
        return f"the last {missing} of its {note.transitions} steps are not whole in every storage"

    def _delay(self) -> int:
        return max((self.schema.storage.of(leaf).delay(leaf) for leaf in self.schema.leaves.values()), default=0)

    def _commit(
        self, staging: Staging, writer: Writer, leaves: Sequence[Leaf], notes: Sequence[EpisodeNote], earlier: int
    ) -> None:
        folder = staging.path / SHARD
        remove(folder)
        for note in notes:
            writer.end(note.number)
        found = pack(folder, self.schema.storage, writer, leaves, notes)
        seal(folder, manifest_of(notes, found, staging.writer, _origin(staging)), durable=True)
        shards = self.path / "shards"
        make_folder(shards, durable=True)
        folder.rename(shards / shard_name(staging.writer, earlier, datetime.now(UTC)))
        sync(shards)


def _remove_unborn(folder: Path) -> None:
    """Remove a folder whose writer died, or failed, before it gave it its name."""
    try:
        if time.time() - folder.stat().st_mtime > UNBORN_SECONDS:
            remove(folder)
    except OSError:
        return


def _notes(staging: Staging) -> list[EpisodeNote]:
    """Return what the dead writer's last checkpoint says of its running episodes."""
    file = staging.path / RUNNING
    try:
        notes = decode_notes(file, read_small(file, NOTE_BYTES))
    except FileNotFoundError:
        return []
    for note in notes:
        if not ID.fullmatch(note.id):
            raise FormatError(f"{file} names an episode {note.id!r}, which is no id")
    return notes


def _origin(staging: Staging) -> Origin:
    """Return where a dead writer's episodes came from."""
    file = staging.path / ORIGIN
    try:
        return msgspec.json.decode(read_small(file, NOTE_BYTES), type=Origin)
    except (FileNotFoundError, msgspec.MsgspecError, RecursionError) as error:
        raise FormatError(f"{file} is not what the format says: {error}") from error


def _shards_of(path: Path, writer: str) -> list[Path]:
    """Return the shards that a writer committed or put aside."""
    folders = (path / "shards", path / "discarded")
    return [item for folder in folders if folder.is_dir() for item in folder.iterdir() if _is_of(item, writer)]


def _is_of(shard: Path, writer: str) -> bool:
    return NAME.fullmatch(shard.name) is not None and shard.name.split("-")[1] == writer


def _elsewhere(path: Path, wanted: Set[str]) -> set[str]:
    """Return which episodes are in shards that stand for others, or were deleted: they are not to be recovered."""
    found: set[str] = set()
    for name in shard_names(path) if wanted else ():
        folder = path / "shards" / name
        try:
            manifest = read_manifest(folder)
            found |= wanted & {said.rpartition("/")[2] for said in manifest.dropped}
            if manifest.replaces or manifest.dropped:
                found |= wanted & set(ids_of(Shard(folder)))
        except RecorderError:
            if not folder.exists():  # another stands for it by now
                return _elsewhere(path, wanted)
    return found


def _ids(shards: Sequence[Path]) -> set[str]:
    """Return the ids of episodes in shards. An episode that is in a damaged one only is still to be recovered."""
    found: set[str] = set()
    for shard in shards:
        with suppress(RecorderError, FileNotFoundError):
            found.update(map(str, Shard(shard).episodes.required("id")))
    return found
