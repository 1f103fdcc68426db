"""The command `follow`: episodes as they come."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from recorder.cli.options import Place
from recorder.cli.printing import cell, say

if TYPE_CHECKING:
    from recorder.following import Arrival

EXAMPLES = """\b
Examples:
  recorder follow runs/car
  recorder follow runs/car --all --until 100 --json | jq .return
"""


def follow(
    path: Place,
    known: Annotated[bool, typer.Option("--all", help="Begin with the episodes that are there already.")] = False,
    until: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="End when the recording has N episodes.")
    ] = None,
    every: Annotated[float, typer.Option(min=0.01, metavar="SECONDS", help="Time between two looks.")] = 0.5,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a line of strict JSON for each episode, and nothing else.")
    ] = False,
) -> None:
    """Show the episodes of a recording as they come.

    The folder may be one in which nothing is recorded yet. Ends with Ctrl-C, or with --until.
    """
    from recorder.following import follow as arrivals

    print(f"recorder: following {path}; Ctrl-C ends", file=sys.stderr)
    try:
        for arrival in arrivals(path, known=known, until=until, every=every):
            say(json_line(arrival) if as_json else line(arrival))
    except KeyboardInterrupt:
        return


def line(arrival: Arrival) -> str:
    """Return an episode as one line for people."""
    note = arrival.note
    cells = [f"{arrival.position:>6}", note.id, f"{note.transitions:>8,} steps", f"{cell(note.end):<11}"]
    cells += [f"return {cell(note.total)}", cell(note.labels or "")]
    return "  ".join(cells).rstrip()


def json_line(arrival: Arrival) -> str:
    """Return an episode as one line of strict JSON."""
    from recorder.cli.describing import plain

    note = arrival.note
    said = {"position": arrival.position, "id": note.id, "steps": note.transitions, "end": note.end}
    said |= {"return": plain(note.total), "seed": plain(note.seed), "labels": dict(note.labels), "start": note.start}
    return json.dumps(said, allow_nan=False)
