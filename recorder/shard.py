"""Shards: whole episodes in one folder, packed in staging, counted, summed and made visible by one rename."""

from __future__ import annotations

import platform
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache, cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from recorder.damage import DamagedReader
from recorder.episodes import EpisodeNote, EpisodeTable, encode_episodes
from recorder.errors import DamagedError, FormatError, WriteError
from recorder.files import (
    check_plain,
    check_size,
    check_sum,
    checksum,
    files_below,
    inside,
    missing,
    read_small,
    sealed,
    sync_tree,
    unsealed,
)
from recorder.leaf import Leaf, leaf_from_json, leaf_to_json
from recorder.storages.base import Counts, Reader, Segment, Storage, Writer

FORMAT = 0
"""The number of the format that is written; newer ones are refused."""

MANIFEST, EPISODES = "shard.json", "episodes.h5"
NAME = re.compile(r"\d{8}T\d{6}\.\d{3}Z-[0-9a-f]{12}-\d{6,}")
CHECKED = {".h5", ".parquet", ".npz"}
"""Files that are summed before anything opens them: libraries crash on, or believe, what a damaged one says."""

MANIFEST_BYTES = 256 << 20
"""A larger manifest is refused before it is read."""


class Manifest(msgspec.Struct, forbid_unknown_fields=True):
    """What `shard.json` says, after the checksum of itself."""

    format: int
    episodes: int
    moments: int
    transitions: int
    written: str
    writer: str
    files: dict[str, tuple[int, str]]
    environment: dict[str, Any] | None = None
    fps: float | None = None
    metadata: dict[str, Any] = {}
    versions: dict[str, str] = {}
    host: str = ""
    leaves: list[dict[str, Any]] = []
    absent: list[str] = []
    replaces: list[str] = []
    dropped: list[str] = []
    reason: str = ""


@dataclass(frozen=True)
class Origin:
    """Where the episodes of a shard come from: the environment, its frame rate, what the user says of them, and the
    versions of what the environment is made of.
    """

    environment: Mapping[str, Any] | None = None
    fps: float | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)


def shard_name(writer: str, counter: int, now: datetime) -> str:
    """Return the name of a shard: it sorts by time and never collides."""
    return f"{now:%Y%m%dT%H%M%S}.{now.microsecond // 1000:03d}Z-{writer}-{counter:06d}"


def pack(
    directory: Path, storage: Storage, writer: Writer, leaves: Sequence[Leaf], notes: Sequence[EpisodeNote]
) -> Sequence[Leaf]:
    """Write episodes into a new folder, count their rows, and return the leaves that only this shard has.

    Raises:
        WriteError: the rows that are in the files are not those that were recorded.
    """
    segments = [Segment(note.number, note.moments, note.transitions) for note in notes]
    directory.mkdir(parents=True)
    found = writer.pack(directory, segments)
    check_rows(directory, storage, [*leaves, *found], Counts.of(segments))
    (directory / EPISODES).write_bytes(encode_episodes(notes))
    return found


def check_rows(directory: Path, storage: Storage, leaves: Sequence[Leaf], counts: Counts) -> None:
    """Count the rows of a packed folder.

    Raises:
        WriteError: they are not those that were recorded.
    """
    reader = storage.reader(directory, leaves, counts)
    try:
        rows = reader.count()
        for leaf in leaves:
            if rows[leaf.path] != counts.total(leaf.per):
                raise WriteError(
                    f"{directory}: {leaf.path!r} has {rows[leaf.path]} rows in its files, {counts.total(leaf.per)} "
                    f"were recorded; the episodes stay in staging"
                )
    finally:
        reader.close()


def seal(
    directory: Path, manifest: Manifest, durable: bool, known: Mapping[str, tuple[int, str]] | None = None
) -> None:
    """Sum the files of a packed folder and write its manifest: then it lacks only its name in `shards/`.

    The sums of files that are `known`, second names of those of another shard, are taken over.
    """
    names = {path.relative_to(directory).as_posix(): path for path in files_below(directory)}
    sums = known or {}
    manifest.files = {name: sums.get(name) or (path.stat().st_size, checksum(path)) for name, path in names.items()}
    (directory / MANIFEST).write_bytes(encode_manifest(manifest))
    if durable:
        sync_tree(directory)


def manifest_of(notes: Sequence[EpisodeNote], found: Sequence[Leaf], writer: str, origin: Origin) -> Manifest:
    """Return the manifest of episodes that were packed; its files are not summed yet."""
    return Manifest(
        format=FORMAT,
        episodes=len(notes),
        moments=sum(note.moments for note in notes),
        transitions=sum(note.transitions for note in notes),
        written=datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        writer=writer,
        files={},
        environment=None if origin.environment is None else dict(origin.environment),
        fps=origin.fps,
        metadata=dict(origin.metadata),
        versions={**versions(), **origin.versions},
        host=socket.gethostname(),
        leaves=[leaf_to_json(leaf) for leaf in found],
    )


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the bytes of `shard.json`: the manifest, and first of all the sum of everything after that."""
    return sealed(msgspec.json.encode(manifest))


def decode_manifest(path: Path, data: bytes) -> Manifest:
    """Return the manifest of which `encode_manifest` made `data`."""
    return msgspec.json.decode(unsealed(path, data), type=Manifest)


@cache
def versions() -> dict[str, str]:
    """Return the versions of what made a shard."""
    found = {"python": platform.python_version()}
    for package in ("gymnasium-recorder", "gymnasium", "numpy", "h5py", "zarr", "imagecodecs", "av", "pyarrow"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


class Shard:
    """A shard folder, read on demand."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest = read_manifest(path)
        self.episodes = EpisodeTable(self.file(EPISODES), self.manifest.episodes)

    @property
    def name(self) -> str:
        """The name of the folder, by which other shards refer to it."""
        return self.path.name

    @property
    def leaves(self) -> list[Leaf]:
        """The leaves that only this shard has."""
        return [leaf_from_json(leaf) for leaf in self.manifest.leaves]

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """The ids of its episodes."""
        return tuple(map(str, self.episodes.required("id"))) if self.manifest.episodes else ()

    @property
    def nbytes(self) -> int:
        """The bytes of its files, as they were written."""
        return sum(size for size, _ in self.manifest.files.values())

    def own(self, leaves: Sequence[Leaf]) -> list[Leaf]:
        """Return the leaves that the episodes of this shard have, of those that all have and of its own."""
        absent, own = set(self.manifest.absent), self.leaves
        kept = [leaf for leaf in leaves if leaf.path not in absent]
        paths = [leaf.path for leaf in (*kept, *own)]
        if len(set(paths)) != len(paths):
            raise FormatError(f"{self.path / MANIFEST} has leaves of its own that all shards have")
        return [*kept, *own]

    def file(self, name: str) -> Path:
        """Return the path of a file of this shard, after it has been found as it was written.

        Raises:
            DamagedError: it is missing, or has another size or checksum.
        """
        if name not in self.manifest.files:
            raise FormatError(f"{self.path / MANIFEST} does not list {name}")
        path = inside(self.path, name)
        check_sum(path, *self.manifest.files[name])
        return path

    def reader(self, storage: Storage, leaves: Sequence[Leaf]) -> Reader:
        """Return a reader of all leaves, after the files have been found as they were written.

        Where a file of pictures is missing or has another size, only what lies in it cannot be read.

        Raises:
            DamagedError: a table is missing, or has another size or checksum.
            FormatError: there is a table that the manifest does not list, a link, a pipe or a device.
        """
        for name in check_plain(self.path):
            if name not in self.manifest.files and PurePosixPath(name).suffix in CHECKED:
                raise FormatError(f"{self.path / name} is not listed in {MANIFEST}: nobody knows whether it is whole")
        damaged: dict[str, DamagedError] = {}
        for name, (size, crc) in self.manifest.files.items():
            path = inside(self.path, name)
            try:
                if path.suffix in CHECKED:
                    check_sum(path, size, crc)
                else:
                    check_size(path, size)
            except DamagedError as error:
                if path.suffix in CHECKED:
                    raise
                damaged[name] = error
        reader = storage.reader(self.path, self.own(leaves), self.episodes.counts())
        return DamagedReader(reader, damaged, self.ids) if damaged else reader


def read_manifest(folder: Path) -> Manifest:
    """Return what `shard.json` in a folder says.

    Raises:
        DamagedError: there is none.
        FormatError: it is of a newer format, or not of the form that the format says.
    """
    path = folder / MANIFEST
    try:
        manifest = decode_manifest(path, read_small(path, MANIFEST_BYTES))
    except (FileNotFoundError, NotADirectoryError):
        raise missing(path) from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(f"{path} is not what the format says: {error}") from error
    if manifest.format > FORMAT:
        raise FormatError(
            f"{path} is of format {manifest.format}, this version reads up to {FORMAT}; install a newer one"
        )
    return manifest
