"""Clearing: all episodes of a recording go to the trash at once; the recording stays, and can be recorded into."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from pathlib import Path

from msgspec.structs import replace

from recorder.discarded import FOLDER, trim
from recorder.errors import BusyError
from recorder.files import link_or_copy, remove, sync, sync_tree
from recorder.holdings import Holding, Holdings, ids_of, look
from recorder.shard import MANIFEST, encode_manifest, shard_name
from recorder.writing.recovery import recover
from recorder.writing.staging import SHARD, Staging, staged
from recorder.writing.sweeping import alone, say, sweep

REASON = "cleared"


def clear(recording: Path, trash: int, own: str = "") -> int:
    """Put all episodes of a recording into `discarded/`, or delete them where `trash` is 0; return how many they were.

    They go by one rename: a kill before it leaves all of them where they were.

    Args:
        recording: the folder of the recording.
        trash: bytes of discarded episodes that are kept.
        own: the writer that asks for it, which may be writing.

    Raises:
        BusyError: another writer has work in staging, or another process is editing the recording.
    """
    with alone(recording):
        recover(recording, trash=trash)
        if others := [folder.name.lstrip(".") for folder in staged(recording) if folder.name != own]:
            raise BusyError(f"writer {others[0]} is writing into {recording}; clear it when that has ended")
        holdings = look(recording)
        staging = Staging.make(recording, secrets.token_hex(6))
        try:
            return _clear(recording, staging, holdings, trash)
        finally:
            staging.close()


def _clear(recording: Path, staging: Staging, holdings: Holdings, trash: int) -> int:
    counting = [holding for holding in holdings.counting if len(holding.kept)]
    if trash:
        for number, holding in enumerate(counting):
            _put_aside(recording, staging, holding, number)
        sync_tree(recording / FOLDER)
    if holdings.shards:
        say(recording, staging, len(counting), replaces=sorted(holdings.shards))
        sweep(recording, staging.path, look(recording))
    trim(recording, trash)
    return sum(len(holding.kept) for holding in counting)


def _put_aside(recording: Path, staging: Staging, holding: Holding, number: int) -> None:
    """Give the files of a shard second names in the trash, with what of it does not count."""
    shard, folder = holding.shard, staging.path / SHARD
    remove(folder)
    folder.mkdir()
    for name in shard.manifest.files:
        link_or_copy(shard.path / name, folder / name)
    kept = set(holding.ids)
    gone = [episode for episode in ids_of(shard) if episode not in kept]
    manifest = replace(shard.manifest, reason=REASON, replaces=[], dropped=gone)
    (folder / MANIFEST).write_bytes(encode_manifest(manifest))
    place = recording / FOLDER
    place.mkdir(exist_ok=True)
    folder.rename(place / shard_name(staging.writer, number, datetime.now(UTC)))
    sync(place)
