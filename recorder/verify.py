"""Verification: whether every file of a recording is as it was written, and every row is there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from recorder.damage import number_in
from recorder.errors import DamagedError, FormatError, RecorderError
from recorder.files import check_sum, files_below, inside
from recorder.holdings import Statements, shard_names
from recorder.leaf import JSON, Leaf
from recorder.schema import Schema, read_schema
from recorder.shard import MANIFEST, NAME, Manifest, Shard, read_manifest
from recorder.storages.base import Counts, Reader
from recorder.writing.staging import staged

BLOCK, BLOCK_BYTES = 256, 128 << 20
"""Rows that are decoded at once: no more than either, but one at least."""


@dataclass(frozen=True)
class Fault:
    """Something that is not as it should be: where, which episodes it concerns, and what."""

    shard: str
    file: str
    episodes: tuple[str, ...]
    message: str

    def __str__(self) -> str:
        whose = f" ({', '.join(self.episodes[:3])}{', …' if len(self.episodes) > 3 else ''})" if self.episodes else ""
        return f"{self.shard}/{self.file}{whose}: {self.message}".lstrip("/")


@dataclass(frozen=True)
class Verification:
    """What a recording was found to hold, and what is wrong with it."""

    path: str
    shards: int
    episodes: int
    steps: int
    files: int
    level: Literal["checksums", "decoded"]
    faults: tuple[Fault, ...]
    unfinished: tuple[str, ...]

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong; work that a writer left in staging is not wrong."""
        return not self.faults

    def to_json(self) -> dict[str, JSON]:
        """Return all of it as JSON."""
        return {**asdict(self), "sound": self.sound}

    def __str__(self) -> str:
        what = f"{self.episodes:,} episodes, {self.steps:,} steps, {self.files:,} files in {self.shards:,} shards"
        lines = [f"{self.path}: {what}; {self.level}: {'sound' if self.sound else f'{len(self.faults)} faults'}"]
        lines += [f"  {fault}" for fault in self.faults]
        lines += [f"  writer {writer} has unfinished work in staging" for writer in self.unfinished]
        return "\n".join(lines)


def verify(path: Path | str, *, decode: bool = False) -> Verification:
    """Check every shard of a recording: files against sizes and checksums, rows against counts.

    Args:
        path: the folder of the recording.
        decode: also read and decode every row.

    Raises:
        NotARecordingError: the folder holds no recording.
        FormatError: `recording.json` cannot be read, so nothing else can.
    """
    folder = Path(path)
    schema = read_schema(folder)
    faults: list[Fault] = []
    statements = Statements(_manifests(folder))
    seen: dict[str, str] = {}
    episodes = steps = files = shards = 0
    for item in sorted((folder / "shards").iterdir()) if (folder / "shards").is_dir() else []:
        if not NAME.fullmatch(item.name):
            faults.append(Fault("", f"shards/{item.name}", (), "is no shard of a recording"))
            continue
        check = ShardCheck(item, schema, statements, seen)
        faults += check.faults(decode)
        shards, episodes, steps, files = shards + 1, episodes + check.episodes, steps + check.steps, files + check.files
    left = tuple(item.name.lstrip(".") for item in staged(folder))
    level: Literal["checksums", "decoded"] = "decoded" if decode else "checksums"
    return Verification(str(folder), shards, episodes, steps, files, level, tuple(faults), left)


def _manifests(recording: Path) -> Iterator[Manifest]:
    """Yield what the shards say of themselves and of others, but for those of which that cannot be read."""
    for name in shard_names(recording):
        with suppress(RecorderError, OSError):
            yield read_manifest(recording / "shards" / name)


class ShardCheck:
    """The check of one shard, from its manifest to its rows; what cannot be reached is not checked further.

    All of it is checked; only episodes that count are counted, and may be there but once.
    """

    def __init__(self, path: Path, schema: Schema, statements: Statements, seen: dict[str, str]) -> None:
        self.episodes = self.steps = self.files = 0
        self._path = path
        self._schema = schema
        self._statements = statements
        self._seen = seen
        self._ids: tuple[str, ...] = ()

    def faults(self, decode: bool) -> Iterator[Fault]:
        """Yield what is wrong."""
        try:
            shard = Shard(self._path)
            self._ids = tuple(map(str, shard.episodes.required("id")))
            counts = shard.episodes.counts()
        except (RecorderError, OSError, ValueError) as error:
            yield self._fault(MANIFEST, error)
            return
        kept = self._statements.kept(self._path.name, self._ids)
        self.episodes, self.steps = len(kept), int(counts.transitions[kept].sum())
        yield from self._episode_faults(shard, counts)
        damaged = False
        for fault in self._file_faults(shard):
            damaged = True
            yield fault
        if not damaged:
            yield from self._row_faults(shard, decode)

    def _fault(self, file: str, error: Exception | str, episodes: tuple[str, ...] | None = None) -> Fault:
        message = str(error).replace(f"{self._path}/", "")
        return Fault(self._path.name, file, self._ids if episodes is None else episodes, message)

    def _episode_faults(self, shard: Shard, counts: Counts) -> Iterator[Fault]:
        """Yield episodes that are there twice, and sums that do not agree."""
        for episode in (self._ids[i] for i in self._statements.kept(self._path.name, self._ids)):
            if episode in self._seen:
                yield self._fault("episodes.h5", f"is also in {self._seen[episode]}", (episode,))
            self._seen[episode] = self._path.name
        manifest = shard.manifest
        stated = (manifest.episodes, manifest.moments, manifest.transitions)
        found = (len(self._ids), counts.total("moment"), counts.total("transition"))
        if stated != found:
            yield self._fault(MANIFEST, f"states episodes, moments, transitions {stated}; the table has {found}")

    def _file_faults(self, shard: Shard) -> Iterator[Fault]:
        """Yield files that are missing, changed, or that nobody wrote."""
        for name, (size, crc) in shard.manifest.files.items():
            self.files += 1
            try:
                check_sum(inside(self._path, name), size, crc)
            except (DamagedError, FormatError, OSError) as error:
                yield self._fault(name, error, self._of(name))
        known = {*shard.manifest.files, MANIFEST}
        for path in files_below(self._path):
            if (name := path.relative_to(self._path).as_posix()) not in known:
                yield self._fault(name, "is not listed in the manifest: nobody wrote it", ())

    def _of(self, name: str) -> tuple[str, ...]:
        """Return the episodes that a file holds rows of."""
        paths = sorted((path for path in self._schema.leaves if name.startswith(f"{path}/")), key=len)
        number = number_in(name, paths[-1]) if paths else None
        return self._ids if number is None or number >= len(self._ids) else (self._ids[number],)

    def _row_faults(self, shard: Shard, decode: bool) -> Iterator[Fault]:
        """Yield leaves whose files hold another number of rows than the table of episodes says, or do not decode."""
        if not self._ids:
            return  # it only says what no longer counts, and has no rows
        leaves = shard.own(list(self._schema.leaves.values()))
        counts = shard.episodes.counts()
        try:
            with closing(shard.reader(self._schema.storage, list(self._schema.leaves.values()))) as reader:
                rows = reader.count()
                short = [leaf for leaf in leaves if rows[leaf.path] != counts.total(leaf.per)]
                for leaf in short:
                    yield self._fault(leaf.path, f"has {rows[leaf.path]} rows, {counts.total(leaf.per)} were written")
                # Decoding finds the very episode whose rows are missing.
                yield from self._decoding_faults(reader, leaves if decode else short)
        except (RecorderError, OSError, ValueError, KeyError) as error:
            yield self._fault("", error)

    def _decoding_faults(self, reader: Reader, leaves: Sequence[Leaf]) -> Iterator[Fault]:
        for i, episode in enumerate(self._ids):
            for path in (leaf.path for leaf in leaves):
                try:
                    column = reader.segment(i)[path]
                    rows = max(1, min(BLOCK, BLOCK_BYTES // max(column.leaf.nbytes, 1)))
                    for start in range(0, len(column), rows):
                        column[start : start + rows]
                except (RecorderError, OSError, ValueError) as error:
                    yield self._fault(path, error, (episode,))
