"""The commands `info` and `list`: what a recording holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import typer

from recorder.cli.options import AsJSON, Place
from recorder.cli.printing import (
    Heading,
    counted,
    facts,
    frequencies,
    on_terminal,
    say,
    say_json,
    span,
    table,
    terminal_width,
)
from recorder.files import size_text

INFO_EXAMPLES = """\b
Examples:
  recorder info runs/cart
  recorder info runs/cart --json | jq .episodes
  recorder info runs/cart --index
"""

LIST_EXAMPLES = """\b
Examples:
  recorder list runs/cart
  recorder list runs/cart --sort return --descending --limit 10
"""

Order = Literal["position", "id", "steps", "end", "return", "seed", "start"]
"""What episodes can be sorted by."""

ROWS = 50
"""Episodes that a terminal is given, if it is not said how many."""


def info(
    path: Place,
    index: Annotated[
        bool, typer.Option("--index", help="Bring cache/ up to date first: it makes opening many shards fast.")
    ] = False,
    as_json: AsJSON = False,
) -> None:
    """Say what a recording holds.

    Its episodes, steps and bytes, its leaves and how they are kept, and where it comes from.
    """
    from recorder.cli.describing import recording_facts
    from recorder.indexing import save_index
    from recorder.recording import Recording

    if index:
        save_index(path)
    said = recording_facts(Recording(path))
    if as_json:
        say_json(said)
        return
    say(facts(dict(info_lines(said))))
    columns = [Heading(title) for title in ("leaf", "kind", "shape", "dtype", "rows", "kept in", "")]
    rows = [leaf_cells(leaf, said["rows"] == "episode") for leaf in said["leaves"]]
    say("\n" + table(columns, rows, terminal_width()))


def info_lines(said: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield names and texts of what is known of a recording."""
    environment = said["environment"]
    yield "recording", said["path"]
    yield "episodes", said["episodes"]
    yield ("steps" if said["rows"] == "episode" else "rows"), said["steps"]
    yield "size", f"{size_text(said['bytes'])} in {counted(said['shards'], 'shard')}"
    yield "ended", frequencies(said["ends"])
    yield "return", span(said["return"])
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


def leaf_cells(leaf: Mapping[str, Any], steps: bool) -> Sequence[Any]:
    """Return one row of the table of leaves, of a recording of steps or of single rows."""
    shape = tuple(leaf["shape"])
    rows = ("steps + 1" if leaf["per"] == "moment" else "steps") if steps else "rows"
    if leaf["sparse"]:
        rows = "some"
    exact = "exact" if leaf["exact"] else "LOSSY"
    return (
        leaf["path"],
        leaf["kind"],
        ("n", *shape) if leaf["ragged"] else shape,
        leaf["dtype"],
        rows,
        leaf["storage"],
        exact,
    )


def list_episodes(
    path: Place,
    sort: Annotated[Order, typer.Option(help="What to sort by.")] = "position",
    descending: Annotated[bool, typer.Option("--descending", help="The greatest first.")] = False,
    limit: Annotated[
        int | None,
        typer.Option(min=0, help=f"How many episodes; 0 is all. By default {ROWS} on a terminal, all elsewhere."),
    ] = None,
    as_json: AsJSON = False,
) -> None:
    """List the episodes of a recording.

    With position, id, steps, end, return, seed and labels. `recorder show` takes a position or an id.
    """
    from recorder.cli.describing import episode_rows
    from recorder.recording import Recording

    episodes = sorted_episodes(episode_rows(Recording(path)), sort, descending)
    if limit is None:
        limit = ROWS if on_terminal() and not as_json else 0
    chosen = episodes[:limit] if limit else episodes
    if as_json:
        say_json({"path": str(path), "episodes": chosen, "more": len(episodes) - len(chosen)})
        return
    titles = ("position", "id", "steps", "end", "return", "seed", "labels")
    columns = [Heading(title, title in ("position", "steps", "return")) for title in titles]
    say(table(columns, map(episode_cells, chosen), terminal_width()))
    if len(chosen) < len(episodes):
        say(f"{len(episodes) - len(chosen):,} more; --limit 0 lists all")


def sorted_episodes(episodes: list[dict[str, Any]], key: str, descending: bool) -> list[dict[str, Any]]:
    """Return episodes in the order of one of their values; those without it are last."""
    # In JSON, numbers that are not finite, and the longest integers, are text.
    number = {"return": float, "seed": int}.get(key)
    known = [episode for episode in episodes if episode[key] not in (None, "nan")]
    known.sort(key=lambda episode: number(episode[key]) if number else episode[key], reverse=descending)
    return known + [episode for episode in episodes if episode[key] in (None, "nan")]


def episode_cells(episode: Mapping[str, Any]) -> Sequence[Any]:
    """Return one row of the table of episodes; positions and seeds are to be copied, and have no commas."""
    position, seed = str(episode["position"]), None if episode["seed"] is None else str(episode["seed"])
    labels = episode["labels"] or ""
    return position, episode["id"], episode["steps"], episode["end"], episode["return"], seed, labels
