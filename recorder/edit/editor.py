"""The editor of a recording: it alone makes shards that replace others, while all go on reading and recording."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from recorder.edit.folders import folder_of
from recorder.episodes import EpisodeNote
from recorder.files import remove, sync, sync_tree
from recorder.holdings import Holdings, look
from recorder.schema import Schema, read_schema
from recorder.shard import MANIFEST, Manifest, Origin, encode_manifest, manifest_of, seal, shard_name
from recorder.writing.recovery import recover
from recorder.writing.staging import SHARD, Staging
from recorder.writing.sweeping import alone, say, sweep

WORK = "work"
"""What an editor's storages stage; recovery takes no episodes from there."""

TIME_LENGTH = 20
"""The name of a shard begins with a time of so many letters."""


class Editor:
    """What one edit of a recording needs: a folder for unfinished work, and the way by which it becomes a shard."""

    def __init__(self, path: Path, schema: Schema, staging: Staging) -> None:
        self.path = path
        self.schema = schema
        self.staging = staging
        self.shards: list[str] = []

    @property
    def folder(self) -> Path:
        """Where a shard is made that has no name yet."""
        return self.staging.path / SHARD

    @property
    def work(self) -> Path:
        """Where storages stage what goes into that shard."""
        return self.staging.path / WORK

    def clean(self) -> None:
        """Make room for the next shard."""
        remove(self.folder)
        remove(self.work)

    def look(self) -> Holdings:
        """Return what is in the recording now."""
        return look(self.path)

    def commit(
        self, manifest: Manifest, place_of: str | None = None, sums: Mapping[str, tuple[int, str]] | None = None
    ) -> str:
        """Make the shard in `folder` visible, at the place in the order where `place_of` is; return its name.

        The `sums` of files that are known need not be computed again.
        """
        manifest.writer = self.staging.writer
        seal(self.folder, manifest, durable=True, known=sums)
        name = shard_name(self.staging.writer, len(self.shards), datetime.now(UTC))
        if place_of is not None:
            name = place_of[:TIME_LENGTH] + name[TIME_LENGTH:]
        self._show(name)
        return name

    def adopt(self, manifest: Manifest, name: str) -> None:
        """Make the shard in `folder` visible, which is that of another recording, under the name that it has there."""
        (self.folder / MANIFEST).write_bytes(encode_manifest(manifest))
        sync_tree(self.folder)
        self._show(name)

    def _show(self, name: str) -> None:
        shards = self.path / "shards"
        shards.mkdir(exist_ok=True)
        self.folder.rename(shards / name)
        self.shards.append(name)
        sync(shards)
        self.clean()

    def state(self, *, replaces: Sequence[str] = (), dropped: Sequence[str] = ()) -> str:
        """Commit a shard without episodes, which only says what no longer counts; return its name."""
        self.shards.append(say(self.path, self.staging, len(self.shards), replaces=replaces, dropped=dropped))
        return self.shards[-1]

    def manifest(self, notes: Sequence[EpisodeNote], origin: Origin) -> Manifest:
        """Return the manifest of a shard in the making."""
        return manifest_of(notes, [], self.staging.writer, origin)

    def sweep(self) -> list[str]:
        """Remove from the disk what does not count and hides nothing; return the names of the shards."""
        return sweep(self.path, self.staging.path, self.look())


@contextmanager
def editing(path: Path | str) -> Iterator[Editor]:
    """Edit a recording, as the only one who does; what dead writers left is recovered first.

    Raises:
        NotARecordingError: the folder holds no recording.
        BusyError: another process is editing it.
        WriteError: it cannot be written.
    """
    folder = folder_of(path)
    schema = read_schema(folder)
    with alone(folder):
        recover(folder)
        staging = Staging.make(folder, secrets.token_hex(6))
        try:
            yield Editor(folder, schema, staging)
        finally:
            staging.close()
