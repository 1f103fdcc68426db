"""The commands that look at a recording: `info`, `list` and `show`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from recorder.cli.printing import Column, cell, facts, on_terminal, say, say_json, size, table, terminal_width

INFO_EXAMPLES = """\b
Examples:
  recorder info runs/cart
  recorder info runs/cart --json | jq .episodes
"""

LIST_EXAMPLES = """\b
Examples:
  recorder list runs/cart
  recorder list runs/cart --sort return --descending --limit 10
"""

SHOW_EXAMPLES = """\b
Examples:
  recorder show runs/car 3
  recorder show runs/car -1 --frames last.png
  recorder show runs/car 7f3a9104c2d8-000004 --step 17
"""

ROWS = 50
"""Episodes that a terminal is given, if it is not said how many."""


class Order(StrEnum):
    """What episodes can be sorted by."""

    position = "position"
    id = "id"
    steps = "steps"
    end = "end"
    return_ = "return"
    seed = "seed"
    start = "start"


Place = Annotated[Path, typer.Argument(metavar="PATH", help="The folder of a recording.")]
AsJSON = Annotated[bool, typer.Option("--json", help="Print strict JSON, and nothing else, to stdout.")]


def info(path: Place, as_json: AsJSON = False) -> None:
    """Say what a recording holds: episodes, steps, bytes, leaves and how they are kept, where it comes from."""
    from recorder.cli.describing import recording_facts
    from recorder.recording import Recording

    said = recording_facts(Recording(path))
    if as_json:
        say_json(said)
        return
    say(facts(dict(info_lines(said))))
    columns = [Column(title) for title in ("leaf", "kind", "shape", "dtype", "rows", "kept in", "")]
    say("\n" + table(columns, map(leaf_cells, said["leaves"]), terminal_width()))


def info_lines(said: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield names and texts of what is known of a recording."""
    environment, spread = said["environment"], said["return"]
    yield "recording", said["path"]
    yield "episodes", said["episodes"]
    yield ("steps" if said["rows"] == "episode" else "rows"), said["steps"]
    yield "size", f"{size(said['bytes'])} in {cell(said['shards'])} shards"
    yield "ended", ", ".join(f"{end} {cell(count)}" for end, count in said["ends"].items()) or None
    yield "return", spread and f"{cell(spread['min'])} to {cell(spread['max'])}, mean {cell(spread['mean'])}"
    yield "begun", said["first"] and f"{said['first']} to {said['last']}"
    if environment:
        yield "environment", environment["id"]
        yield "arguments", environment["kwargs"] or None
        yield "wrappers", ", ".join(wrapper["name"] for wrapper in environment["additional_wrappers"]) or None
        yield "names only", ", ".join(said["not_rebuildable"]) or None
    yield "frame rate", said["fps"]
    yield "metadata", said["metadata"] or None
    yield "writers", ", ".join(f"{one['writer']} on {one['host']}" for one in said["writers"]) or None
    yield "made with", ", ".join(f"{name} {version}" for name, version in said["versions"].items()) or None


def leaf_cells(leaf: Mapping[str, Any]) -> Sequence[Any]:
    """Return one row of the table of leaves."""
    shape = tuple(leaf["shape"])
    rows = "steps + 1" if leaf["per"] == "moment" else "steps"
    if leaf["sparse"]:
        rows = "some"
    exact = "exact" if leaf["exact"] else "LOSSY"
    return leaf["path"], leaf["kind"], ("n", *shape) if leaf["ragged"] else shape, leaf["dtype"], rows, leaf["storage"], exact


def list_episodes(
    path: Place,
    sort: Annotated[Order, typer.Option(help="What to sort by.")] = Order.position,
    descending: Annotated[bool, typer.Option("--descending", help="The greatest first.")] = False,
    limit: Annotated[
        int | None,
        typer.Option(min=0, help=f"How many episodes; 0 is all. By default {ROWS} on a terminal, all elsewhere."),
    ] = None,
    as_json: AsJSON = False,
) -> None:
    """List the episodes of a recording: position, id, steps, end, return, seed and labels."""
    from recorder.cli.describing import episode_rows
    from recorder.recording import Recording

    episodes = sorted_episodes(episode_rows(Recording(path)), sort.value, descending)
    if limit is None:
        limit = ROWS if on_terminal() and not as_json else 0
    chosen = episodes[:limit] if limit else episodes
    if as_json:
        say_json({"path": str(path), "episodes": chosen, "more": len(episodes) - len(chosen)})
        return
    titles = ("position", "id", "steps", "end", "return", "seed", "labels")
    columns = [Column(title, title in ("position", "steps", "return", "seed")) for title in titles]
    say(table(columns, map(episode_cells, chosen), terminal_width()))
    if len(chosen) < len(episodes):
        say(f"{len(episodes) - len(chosen):,} more; --limit 0 lists all")


def sorted_episodes(episodes: list[dict[str, Any]], key: str, descending: bool) -> list[dict[str, Any]]:
    """Return episodes in the order of one of their values; those without it are last."""
    known = [episode for episode in episodes if episode[key] is not None]
    known.sort(key=lambda episode: episode[key], reverse=descending)
    return known + [episode for episode in episodes if episode[key] is None]


def episode_cells(episode: Mapping[str, Any]) -> Sequence[Any]:
    """Return one row of the table of episodes; positions and seeds are to be copied, and have no commas."""
    position, seed = str(episode["position"]), None if episode["seed"] is None else str(episode["seed"])
    labels = episode["labels"] or ""
    return position, episode["id"], episode["steps"], episode["end"], episode["return"], seed, labels
