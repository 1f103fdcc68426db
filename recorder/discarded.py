"""The trash of a recording: what was put aside, why, and how it comes back or goes."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from recorder.errors import ExistsError, FormatError, NotARecordingError, RecorderError
from recorder.files import files_below, link_or_copy, read_small, remove, sync, sync_tree, write_file
from recorder.holdings import look
from recorder.leaf import JSON
from recorder.shard import MANIFEST, MANIFEST_BYTES, NAME, Shard, encode_manifest, shard_name
from recorder.writing.staging import LOCK, SHARD, Staging

FOLDER = "discarded"
QUOTA = 1 << 30
"""Bytes that are kept of what was put aside, unless another quota is given."""

REMAINS = ".remains"
"""How the name of a folder ends that holds what could not be saved of a dead writer's work, as it was found."""

REASON = "reason.json"


class Reason(msgspec.Struct, forbid_unknown_fields=True):
    """What `reason.json` beside remains says: why they are here, and what is known of each episode."""

    reason: str
    episodes: dict[str, str] = {}


@dataclass(frozen=True)
class Discarded:
    """A folder of the trash: what was put aside together, and whether it can come back."""

    name: str
    reason: str
    episodes: tuple[str, ...]
    steps: int
    bytes: int
    restorable: bool

    def to_json(self) -> dict[str, JSON]:
        """Return all of it as JSON."""
        return asdict(self)


def list_discarded(recording: Path | str) -> list[Discarded]:
    """Return what is in the trash of a recording, the oldest first."""
    return [_describe(folder) for folder in _folders(Path(recording))]


def _folders(recording: Path) -> list[Path]:
    place = recording / FOLDER
    if not place.is_dir():
        return []
    return sorted(item for item in place.iterdir() if _is_ours(item) and not item.is_symlink() and item.is_dir())


def _is_ours(item: Path) -> bool:
    return NAME.fullmatch(item.name.removesuffix(REMAINS)) is not None


def _describe(folder: Path) -> Discarded:
    size = nbytes(folder)
    try:
        if folder.name.endswith(REMAINS):
            said = msgspec.json.decode(read_small(folder / REASON, MANIFEST_BYTES), type=Reason)
            return Discarded(folder.name, said.reason, tuple(said.episodes), 0, size, False)
        shard = Shard(folder)
        ids = tuple(map(str, shard.episodes.required("id")))
        return Discarded(folder.name, shard.manifest.reason, ids, shard.manifest.transitions, size, True)
    except (RecorderError, OSError, msgspec.MsgspecError) as error:
        return Discarded(folder.name, f"cannot be read: {error}", (), 0, size, False)


def restore(recording: Path | str, name: str) -> tuple[str, ...]:
    """Make what was put aside under a name part of the recording again; return the ids of its episodes.

    A kill at any point leaves it in the trash, in the recording, or in both, and then it counts as restored.

    Args:
        recording: the folder of the recording.
        name: the name of a folder of the trash, or the id of an episode that is the only one in its folder.

    Raises:
        NotARecordingError: nothing of that name is in the trash.
        FormatError: it is what recovery could not make episodes of, or was put aside together with others.
        ExistsError: an episode of it is in the recording already.
    """
    found = _named(Path(recording), name)
    if not found.restorable:
        raise FormatError(f"{found.name} is no shard: {found.reason}; look at its files in {FOLDER}/{found.name}")
    holdings = look(Path(recording))
    if twice := sorted(set(found.episodes) & {one for holding in holdings.counting for one in holding.ids}):
        raise ExistsError(f"episode {twice[0]} of {found.name} is in the recording already; empty it from the trash")
    if deleted := sorted(set(found.episodes) & holdings.statements.dropped):
        raise ExistsError(f"episode {deleted[0]} was deleted since; `recorder compact` forgets that, then restore it")
    staging = Staging.make(Path(recording), secrets.token_hex(6))
    try:
        _bring_back(Path(recording), staging, found.name)
    finally:
        staging.close()
    remove(Path(recording) / FOLDER / found.name)
    return found.episodes


def _named(recording: Path, name: str) -> Discarded:
    listed = list_discarded(recording)
    for one in listed:
        if one.name == name:
            return one
    holding = [one for one in listed if name in one.episodes]
    if not holding:
        raise NotARecordingError(f"nothing called {name!r} is in {recording / FOLDER}; `recorder discarded list` lists")
    if len(holding[0].episodes) > 1:
        others = len(holding[0].episodes) - 1
        raise FormatError(
            f"episode {name} was put aside together with {others} others; restore {holding[0].name} to have all of them"
        )
    return holding[0]


def _bring_back(recording: Path, staging: Staging, name: str) -> None:
    """Make a shard of what is in the trash, under the name that it has there."""
    shard, folder = Shard(recording / FOLDER / name), staging.path / SHARD
    for file in shard.manifest.files:
        link_or_copy(shard.file(file), folder / file)
    shard.manifest.reason = ""
    (folder / MANIFEST).write_bytes(encode_manifest(shard.manifest))
    sync_tree(folder)
    (recording / "shards").mkdir(exist_ok=True)
    folder.rename(recording / "shards" / name)
    sync(recording / "shards")


def empty(recording: Path | str, names: Sequence[str] = ()) -> tuple[Discarded, ...]:
    """Delete what is in the trash, or only what has one of `names`; return what is gone.

    Raises:
        NotARecordingError: nothing of a name is in the trash; then nothing is deleted.
    """
    folder = Path(recording)
    gone = tuple(_named(folder, name) for name in names) if names else tuple(list_discarded(folder))
    for one in gone:
        remove(folder / FOLDER / one.name)
    return gone


def put_aside(recording: Path, staging: Staging, number: int, reason: str, episodes: Mapping[str, str]) -> str:
    """Move what a dead writer left into the trash as it is, with the reason; return its name there."""
    said = msgspec.json.encode(Reason(reason, dict(episodes)))
    write_file(staging.path / REASON, said)
    place = recording / FOLDER
    place.mkdir(exist_ok=True)
    name = f"{shard_name(staging.writer, number, datetime.now(UTC))}{REMAINS}"
    staging.path.rename(place / name)
    sync(place)
    sync(recording / "staging")
    remove(place / name / LOCK)
    return name


def trim(recording: Path, quota: int) -> list[str]:
    """Remove from the trash the oldest until the rest fits into the quota; return the names of what is gone."""
    total, gone = 0, []
    for folder in reversed(_folders(recording)):
        with suppress(FileNotFoundError):  # another writer trims, too
            total += nbytes(folder)
            if total > quota:
                remove(folder)
                gone.append(folder.name)
    return gone


def nbytes(folder: Path) -> int:
    """Return the bytes of all files below a folder."""
    return sum(_sizes(folder))


def _sizes(folder: Path) -> Iterator[int]:
    for path in files_below(folder):
        with suppress(FileNotFoundError):
            yield path.lstat().st_size
