"""The summary at close: what is on disk as it was read back from there, and what did not get there."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from recorder.errors import RecorderError
from recorder.files import check_size, inside, size_text
from recorder.shard import Manifest, read_manifest
from recorder.step_cost import Quantiles, StepCost
from recorder.writing.writer import RecordingWriter

MOST_SHARDS = 5000
"""More shards are not read back: a tenth of a millisecond for each, and nobody waits minutes for a summary."""


@dataclass(frozen=True)
class OnDisk:
    """What the shards of one writer hold, as it was read from them; `more` shards are there and were not read."""

    shards: int = 0
    more: int = 0
    episodes: int = 0
    moments: int = 0
    transitions: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class Summary:
    """What one writer has recorded, and what became of the rest."""

    path: Path
    disk: OnDisk
    ends: Mapping[str, int]
    committed: int
    discarded: int
    trimmed: int
    refused: int
    ignored: int
    recovered: tuple[str, ...]
    unkept: Mapping[str, str]
    waited: float
    skipped: int = 0
    cost: Quantiles | None = None

    def line(self) -> str:
        """Return one line: what is on disk, and whatever is not as one would expect."""
        disk = self.disk
        first = f"{disk.episodes:,} episodes, {disk.transitions:,} steps, {size_text(disk.bytes)} in {self.path}"
        return "recorder: " + "; ".join([first, *self._unexpected()])

    def _unexpected(self) -> Iterator[str]:
        if self.disk.more:
            yield f"{self.committed:,} episodes were committed; {self.disk.more:,} shards were not read back"
        elif self.disk.episodes != self.committed:
            yield f"{self.committed:,} were committed, the others cannot be read any more: `recorder verify` says why"
        if self.discarded:
            yield f"{self.discarded:,} put aside" + (
                f", {self.trimmed:,} of their folders deleted since the trash is full" if self.trimmed else ""
            )
        if self.refused:
            yield f"{self.refused:,} steps refused"
        if self.ignored:
            yield f"{self.ignored:,} steps outside of episodes ignored"
        if self.skipped:
            yield f"{self.skipped:,} steps repeat a picture, since encoder or disk were behind"
        yield from self.recovered
        if self.unkept:
            kinds = (f"{path} ({kind})" for path, kind in sorted(self.unkept.items()))
            yield f"no data and not kept: {', '.join(kinds)}"

    def said(self, verbose: int) -> str:
        """Return the line, or with more than 1 all that is known."""
        return self.text() if verbose > 1 else self.line()

    def text(self) -> str:
        """Return the line, and below it all that is known."""
        disk = self.disk
        ends = ", ".join(f"{end} {count:,}" for end, count in sorted(self.ends.items(), key=lambda item: -item[1]))
        lines = {
            "read back": f"{disk.shards:,} shards, {disk.moments:,} + {disk.transitions:,} rows",
            "ended": ends or "none",
            "put aside": f"{self.discarded:,}",
            "refused": f"{self.refused:,} steps",
            "ignored": f"{self.ignored:,} steps",
            "waited": f"{self.waited:.3f} s for the disk and the encoders",
            "cost": f"{self.cost} a step" if self.cost is not None else "not measured",
        }
        return "\n".join([self.line(), *(f"  {name:<10} {value}" for name, value in lines.items())])


def summarize(writer: RecordingWriter, ignored: int = 0, cost: StepCost | None = None) -> Summary:
    """Return what a writer has recorded; what is on disk is read from there."""
    tally, pipeline = writer.tally, writer.pipeline
    return Summary(
        writer.path,
        read_back(writer.path, writer.writer),
        dict(tally.ends),
        tally.episodes,
        tally.discarded,
        len(tally.trimmed),
        tally.refused,
        ignored,
        tuple(map(str, writer.recovered)),
        dict(pipeline.unkept) if pipeline is not None else {},
        pipeline.waited if pipeline is not None else 0.0,
        writer.skipped,
        cost.quantiles() if cost is not None else None,
    )


def read_back(path: Path, writer: str) -> OnDisk:
    """Return what is in the shards of a writer, whose files have been found to have their sizes."""
    place = path / "shards"
    names = sorted(name for name in os.listdir(place) if f"-{writer}-" in name) if place.is_dir() else []  # noqa: PTH208
    found: list[Manifest] = []
    for name in names[:MOST_SHARDS]:
        with suppress(RecorderError, OSError):
            found.append(_whole(place / name))
    return OnDisk(
        len(found),
        max(len(names) - MOST_SHARDS, 0),
        sum(manifest.episodes for manifest in found),
        sum(manifest.moments for manifest in found),
        sum(manifest.transitions for manifest in found),
        sum(size for manifest in found for size, _ in manifest.files.values()),
    )


def _whole(folder: Path) -> Manifest:
    manifest = read_manifest(folder)
    for name, (size, _) in manifest.files.items():
        check_size(inside(folder, name), size)
    return manifest
