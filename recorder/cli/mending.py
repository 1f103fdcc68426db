"""The commands `verify` and `recover`: whether a recording is whole, and what a dead writer left."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from recorder.cli.options import AsJSON, Place
from recorder.cli.printing import counted, printable, say, say_json

if TYPE_CHECKING:
    from recorder.verify import Verification
    from recorder.writing.recovery import Recovery

VERIFY_EXAMPLES = """\b
Examples:
  recorder verify runs/car
  recorder verify runs/car --decode --json | jq '.faults[]'
"""

RECOVER_EXAMPLES = """\b
Examples:
  recorder recover runs/car --dry-run
  recorder recover /mnt/shared/runs/car --foreign
"""

SHOWN = 20
"""Faults that are listed for people."""


def verify(
    path: Place,
    decode: Annotated[bool, typer.Option("--decode", help="Also read and decode every row.")] = False,
    as_json: AsJSON = False,
) -> None:
    """Check that every file and row is as it was written.

    The exit code is 0 if it is, and 1 if anything is wrong. Nothing is changed.
    """
    from recorder.verify import verify as check

    found = check(path, decode=decode)
    if as_json:
        say_json(found.to_json())
    else:
        say_verification(found)
    if not found.sound:
        raise typer.Exit(1)


def say_verification(found: Verification) -> None:
    """Print what was found, of many faults the first."""
    holds = [counted(found.episodes, "episode"), counted(found.steps, "step"), counted(found.files, "file")]
    done = "every row was decoded" if found.level == "decoded" else "every checksum was compared"
    say(f"{'sound' if found.sound else 'DAMAGED'}: {', '.join(holds)} in {counted(found.shards, 'shard')}; {done}")
    for fault in found.faults[:SHOWN]:
        say(f"  {printable(str(fault))}")
    if len(found.faults) > SHOWN:
        say(f"  and {len(found.faults) - SHOWN:,} more; --json lists all")
    for writer in found.unfinished:
        say(f"  writer {printable(writer)} has work in staging: it is alive, or `recorder recover` will help")


def recover(
    path: Place,
    foreign: Annotated[
        bool, typer.Option("--foreign", help="Also take over what writers of other hosts left; they must be dead.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be kept.")] = False,
    as_json: AsJSON = False,
) -> None:
    """Make episodes of what dead writers left in staging.

    What cannot be saved goes to the trash with the reason. Opening a recording for writing does the same, but for
    writers of other hosts.
    """
    from recorder.writing.recovery import recover as rescue

    found = rescue(path, foreign=foreign, dry_run=dry_run)
    if as_json:
        writers = [recovery.to_json() for recovery in found]
        say_json({"path": str(path), "dry_run": dry_run, "writers": writers})
        return
    if not found:
        say("nothing to recover: no writer has left anything in staging")
    for recovery in found:
        say_recovery(recovery, dry_run)


def say_recovery(recovery: Recovery, dry_run: bool) -> None:
    """Print what became of one writer's work."""
    if recovery.left:
        say(printable(f"writer {recovery.writer}  left as it is: {recovery.left}"))
        return
    count = f"{counted(len(recovery.kept), 'episode')}, {counted(sum(recovery.kept.values()), 'step')}"
    say(printable(f"writer {recovery.writer}  {'would recover' if dry_run else 'recovered'} {count}"))
    for episode, steps in recovery.kept.items():
        say(printable(f"  kept  {episode}  {counted(steps, 'step')}"))
    for episode, reason in recovery.lost.items():
        say(printable(f"  lost  {episode}  {reason}"))
    if recovery.remains:
        say(printable(f"  its files are in discarded/{recovery.remains}"))
