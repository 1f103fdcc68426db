"""The command `show`: one episode as a table, as a picture, or one step of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recorder.cli.options import AsJSON, Place
from recorder.cli.printing import Heading, counted, facts, say, say_json, table, terminal_width

if TYPE_CHECKING:
    from recorder.episode import Episode

EXAMPLES = """\b
Examples:
  recorder show runs/car 3
  recorder show runs/car -1 --frames last.png
  recorder show runs/car 7f3a9104c2d8-000004 --step 17
"""

TITLES = ("leaf", "rows", "shape", "dtype", "min", "mean", "max", "")
NUMBERS = ("rows", "min", "mean", "max")


def show(
    path: Place,
    episode: Annotated[str, typer.Argument(metavar="EPISODE", help="Its position, -1 being the last, or its id.")],
    step: Annotated[int | None, typer.Option(help="Show this step, counted from 1, with all its values.")] = None,
    frames: Annotated[
        Path | None,
        typer.Option(metavar="FILE.png", help="Write frames of all cameras, evenly spaced in time, into a picture."),
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="How many frames of each camera.")] = 12,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the picture if it is there.")] = False,
    as_json: AsJSON = False,
) -> None:
    """Show one episode, one step of it, or its pictures.

    Of each leaf the lowest, mean and highest number, of texts how many differ.
    """
    from recorder.cli.describing import episode_facts, find_episode, step_values
    from recorder.recording import Recording

    recording = Recording(path)
    found = find_episode(recording, episode)
    if step is not None:
        say_step(step_values(found, step), as_json)
        return
    said = episode_facts(found)
    if frames is not None:
        said["frames"] = str(write_sheet(found, frames, count, overwrite))
    else:
        said["leaves"] = leaf_sums(found)
    if as_json:
        say_json(said)
    else:
        say_episode(said)


def say_episode(said: Mapping[str, Any]) -> None:
    """Print what is known of an episode."""
    say(facts({name: value for name, value in said.items() if name != "leaves" and value not in ({}, [])}))
    if "leaves" in said:
        columns = [Heading(title, title in NUMBERS) for title in TITLES]
        say("\n" + table(columns, map(sum_cells, said["leaves"]), terminal_width()))


def write_sheet(episode: Episode, path: Path, count: int, overwrite: bool) -> Path:
    """Write a contact sheet."""
    from recorder.errors import ExistsError
    from recorder.files import write_file
    from recorder.preview import contact_sheet, encode_png

    if path.exists() and not overwrite:
        raise ExistsError(f"{path} is there already; give another name, or --overwrite")
    write_file(path, encode_png(contact_sheet(episode, count)), durable=False)
    return path


def leaf_sums(episode: Episode) -> list[dict[str, Any]]:
    """Return what each leaf is, and what its rows are together."""
    from tqdm import tqdm

    from recorder.cli.summing import sum_up

    columns = tqdm(episode.columns.items(), unit="leaf", disable=None, leave=False)
    return [
        {
            "path": path,
            "kind": column.leaf.kind,
            "rows": len(column),
            "shape": list(column.leaf.shape),
            "dtype": column.leaf.dtype,
            "ragged": column.leaf.ragged,
            **sum_up(column),
        }
        for path, column in columns
    ]


def sum_cells(leaf: Mapping[str, Any]) -> Sequence[Any]:
    """Return one row of the table of leaves."""
    shape = (("n",) if leaf["ragged"] else ()) + tuple(leaf["shape"])
    return (
        leaf["path"],
        leaf["rows"],
        shape,
        leaf["dtype"],
        *(leaf[name] for name in NUMBERS[1:]),
        ", ".join(notes(leaf)),
    )


def notes(leaf: Mapping[str, Any]) -> Iterator[str]:
    """Yield what else is to be said of a leaf."""
    if "lengths" in leaf:
        yield "n from {:,} to {:,}".format(*leaf["lengths"])
    if "distinct" in leaf:
        yield f"{leaf['distinct']:,} different"
    if "nan" in leaf:
        yield f"{leaf['nan']:,} NaN"
    if "absent" in leaf:
        yield f"absent from {counted(leaf['absent'], 'row')}"


def say_step(values: Mapping[str, Any], as_json: bool) -> None:
    """Print the values of one step, large arrays in short."""
    from recorder.cli.describing import in_short, plain

    if as_json:
        say_json({name: plain(value) for name, value in values.items()})
    else:
        say(facts({name: in_short(value) for name, value in values.items()}))
