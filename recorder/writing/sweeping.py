"""Sweeping: shards of which nothing counts any more leave the disk, and never before all that hides them is there.

Only one process at a time edits or sweeps a recording; the kernel lock that says so is on `recording.json`, which
readers and writers of episodes never lock.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from recorder.episodes import decode_notes, encode_episodes
from recorder.errors import BusyError, NotARecordingError, RecorderError, WriteError
from recorder.files import read_small, remove, sync
from recorder.holdings import Holdings, ids_of
from recorder.schema import NOTE
from recorder.shard import EPISODES, Origin, Shard, manifest_of, seal, shard_name
from recorder.writing.staging import NOTE_BYTES, RUNNING, SHARD, Staging, lock, staged

PATIENCE = 10.0
"""Seconds for which an edit waits for another one to end."""

_held: set[int] = set()


def _leave_to_parent() -> None:
    """Give up, in a forked child, the locks that it has inherited."""
    while _held:
        os.close(_held.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)


@contextmanager
def alone(recording: Path, patience: float = PATIENCE) -> Iterator[None]:
    """Be the only process that edits or sweeps a recording.

    Raises:
        NotARecordingError: the folder holds no recording.
        BusyError: another process has been editing it for longer than `patience` seconds.
        WriteError: it cannot be written.
    """
    try:
        descriptor = os.open(recording / NOTE, os.O_RDWR)
    except FileNotFoundError:
        raise NotARecordingError(f"{recording} is no recording: it has no {NOTE}") from None
    except OSError as error:
        raise WriteError(f"{recording} cannot be edited: {error}") from error
    _held.add(descriptor)
    try:
        _wait(descriptor, recording, patience)
        yield
    finally:
        if descriptor in _held:
            _held.discard(descriptor)
            os.close(descriptor)


def _wait(descriptor: int, recording: Path, patience: float) -> None:
    until = time.monotonic() + patience
    while not lock(descriptor):
        if time.monotonic() >= until:
            raise BusyError(f"another process is editing {recording}; try again when it has ended")
        time.sleep(0.02)


def recoverable(recording: Path) -> frozenset[str] | None:
    """Return the ids of episodes that recovery may find in staging, or None where that cannot be known."""
    found: set[str] = set()
    for folder in staged(recording):
        file = folder / RUNNING
        try:
            found.update(note.id for note in decode_notes(file, read_small(file, NOTE_BYTES)))
        except FileNotFoundError:
            continue
        except (RecorderError, OSError):
            return None
    return frozenset(found)


def needed(recording: Path, dropped: Collection[str], remaining: Mapping[str, Shard]) -> list[str]:
    """Return what of `dropped` has to be said on: of episodes that a shard holds, or that recovery may bring back."""
    back = recoverable(recording) if dropped else frozenset()
    held = {episode for shard in remaining.values() for episode in ids_of(shard)} if dropped else set()
    return sorted(said for said in dropped if _hides(said, remaining, held, back))


def _hides(said: str, shards: Mapping[str, Shard], held: Collection[str], back: frozenset[str] | None) -> bool:
    """Return whether there is an episode that counted if it were not `said` to be dropped."""
    shard, slash, episode = said.rpartition("/")
    if slash:
        return shard in shards
    return back is None or episode in held or episode in back


def sweep(recording: Path, room: Path, holdings: Holdings) -> list[str]:
    """Remove the shards of which nothing counts and that hide nothing; return their names. To be called `alone`.

    Each leaves by one rename into `room`, a staging folder, so that no reader sees half of it; what it says of
    others is moot by then.
    """
    shards = dict(holdings.shards)
    waiting = sorted(set(shards) - {holding.shard.name for holding in holdings.counting if len(holding.kept)})
    back = recoverable(recording) if any(shards[name].manifest.dropped for name in waiting) else frozenset()
    gone: list[str] = []
    found = True
    while found:
        found = False
        for name in [name for name in waiting if name in shards and _is_moot(shards[name], shards, back)]:
            if _is_moot(shards[name], shards, back):
                take_away(recording, room, name)
                del shards[name]
                gone.append(name)
                found = True
    if gone:
        sync(recording / "shards")
    return gone


def _is_moot(shard: Shard, shards: Mapping[str, Shard], back: frozenset[str] | None) -> bool:
    """Return whether nothing that is there needs what a shard says of others."""
    if not shard.manifest.replaces and not shard.manifest.dropped:
        return True
    others = {name: other for name, other in shards.items() if name != shard.name}
    replaced = {name for other in others.values() for name in other.manifest.replaces}
    if any(name in others and name not in replaced for name in shard.manifest.replaces):
        return False
    said = set(shard.manifest.dropped).difference(*(other.manifest.dropped for other in others.values()))
    held = {episode for other in others.values() for episode in ids_of(other)} if said else set()
    return not any(_hides(one, others, held, back) for one in said)


def say(
    recording: Path, staging: Staging, number: int, *, replaces: Sequence[str] = (), dropped: Sequence[str] = ()
) -> str:
    """Commit a shard without episodes, which only says what no longer counts; return its name."""
    folder = staging.path / SHARD
    remove(folder)
    folder.mkdir(parents=True)
    (folder / EPISODES).write_bytes(encode_episodes([]))
    manifest = manifest_of([], [], staging.writer, Origin())
    manifest.replaces, manifest.dropped = list(replaces), list(dropped)
    seal(folder, manifest, durable=True)
    name = shard_name(staging.writer, number, datetime.now(UTC))
    (recording / "shards").mkdir(exist_ok=True)
    folder.rename(recording / "shards" / name)
    sync(recording / "shards")
    return name


def take_away(recording: Path, room: Path, name: str) -> None:
    """Remove a shard: first out of sight, by one rename, then from the disk."""
    gone = room / f"gone-{name}"
    with suppress(FileNotFoundError):
        (recording / "shards" / name).rename(gone)
    remove(gone)
