"""The commands `discarded list`, `restore` and `empty`: the trash of a recording."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from recorder.cli.options import AsJSON, Place
from recorder.cli.printing import Heading, counted, say, say_json, table, terminal_width
from recorder.files import size_text

EXAMPLES = """\b
Examples:
  recorder discarded list runs/car
  recorder discarded restore runs/car 20261130T145901.482Z-7f3a9104c2d8-000004
  recorder discarded empty runs/car
"""

TITLES = ("name", "episodes", "steps", "size", "reason")

app = typer.Typer(rich_markup_mode=None)

Names = Annotated[
    list[str],
    typer.Argument(metavar="NAME...", help="Names from `discarded list`, or ids of episodes that lie there alone."),
]


@app.callback(invoke_without_command=True)
def start(context: typer.Context) -> None:
    """List, bring back or delete what was put aside."""
    if context.invoked_subcommand is None:
        print(context.get_help(), file=sys.stderr)
        raise typer.Exit(2)


@app.command("list", epilog=EXAMPLES)
def list_trash(path: Place, as_json: AsJSON = False) -> None:
    """List what was put aside, the oldest first, and why."""
    from recorder.discarded import list_discarded
    from recorder.schema import read_schema

    read_schema(path)
    found = list_discarded(path)
    if as_json:
        say_json({"path": str(path), "discarded": [one.to_json() for one in found]})
        return
    columns = [
        Heading("name"),
        Heading("episodes", True),
        Heading("steps", True),
        Heading("size", True),
        Heading("reason"),
    ]
    rows = [(one.name, len(one.episodes), one.steps, size_text(one.bytes), one.reason) for one in found]
    say(table(columns, rows, terminal_width()) if rows else "nothing was put aside")


@app.command("restore", epilog=EXAMPLES)
def restore(path: Place, names: Names, as_json: AsJSON = False) -> None:
    """Make what was put aside part of the recording again."""
    from recorder.discarded import restore as bring_back

    restored = {name: list(bring_back(path, name)) for name in names}
    if as_json:
        say_json({"path": str(path), "restored": restored})
        return
    for episodes in restored.values():
        say(f"restored {counted(len(episodes), 'episode')}: {', '.join(episodes[:3])}{', …' if episodes[3:] else ''}")


@app.command("empty", epilog=EXAMPLES)
def empty(
    path: Place,
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Only these; else all.")] = None,
    as_json: AsJSON = False,
) -> None:
    """Delete what was put aside; it cannot be brought back."""
    from recorder.discarded import empty as delete
    from recorder.schema import read_schema

    read_schema(path)
    gone = delete(path, names or ())
    if as_json:
        say_json({"path": str(path), "deleted": [one.to_json() for one in gone]})
        return
    episodes = sum(len(one.episodes) for one in gone)
    say(f"deleted {counted(episodes, 'episode')}, {size_text(sum(one.bytes for one in gone))}")
