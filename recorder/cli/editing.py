"""The commands `merge`, `split`, `filter`, `delete`, `label` and `compact`: recordings made of recordings."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recorder.cli.options import AsJSON, Place
from recorder.cli.printing import counted, printable, say, say_json
from recorder.files import size_text

if TYPE_CHECKING:
    from recorder.edit.merging import Transfer
    from recorder.episodes import EpisodeNote
    from recorder.recording import Recording

MERGE_EXAMPLES = """\b
Examples:
  recorder merge runs/monday runs/tuesday --to runs/week
"""

SPLIT_EXAMPLES = """\b
Examples:
  recorder split runs/car runs/train=:80 runs/validation=80:
"""

FILTER_EXAMPLES = """\b
Examples:
  recorder filter runs/car --to runs/good --min-return 200 --end terminated
  recorder filter runs/car --to runs/small --label success=true --exclude 'observation/depth*'
"""

DELETE_EXAMPLES = """\b
Examples:
  recorder delete runs/car 3 -1
  recorder delete runs/car 7f3a9104c2d8-000012 --dry-run
"""

LABEL_EXAMPLES = """\b
Examples:
  recorder label runs/car 3 7f3a9104c2d8-000012 --set success=true --set task='"pick the cup"'
"""

COMPACT_EXAMPLES = """\b
Examples:
  recorder compact runs/car --dry-run
  recorder compact runs/car
"""

To = Annotated[Path, typer.Option("--to", metavar="PATH", help="The folder to put them into, new or to be added to.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")]
Episodes = Annotated[list[str], typer.Argument(metavar="EPISODE...", help="Positions, or ids.")]


def merge(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", help="The folders of recordings.")],
    to: To,
    dry_run: DryRun = False,
    as_json: AsJSON = False,
) -> None:
    """Put the episodes of several recordings into one.

    Their spaces, dtypes and storages are compared first. Ids stay, and episodes that are there already are skipped.
    Files get second names where that can be, else they are copied; nothing is coded anew.
    """
    from recorder.edit.merging import merge as put_together

    say_transfers([put_together(paths, to, dry_run=dry_run)], dry_run, as_json)


def split(
    path: Place,
    parts: Annotated[
        list[str], typer.Argument(metavar="TARGET=SLICE...", help="Folders, and which positions go there: a=:80 b=80:")
    ],
    as_json: AsJSON = False,
) -> None:
    """Put the episodes of a recording into several others.

    A slice is `first:last` with Python's meaning, or `first:last:step`. The recording stays as it is.
    """
    from recorder.edit.merging import split as put_apart
    from recorder.recording import Recording

    recording = Recording(path)
    ids = ids_of(recording)
    say_transfers(put_apart(path, dict(_part(part, ids) for part in parts)), False, as_json)


def _part(text: str, ids: Sequence[str]) -> tuple[Path, Sequence[str]]:
    target, equals, numbers = text.rpartition("=")
    try:
        bounds = [int(number) if number else None for number in numbers.split(":")]
        if not equals or not target or not 2 <= len(bounds) <= 3:
            raise ValueError(text)
        return Path(target), ids[slice(*bounds)]
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not TARGET=SLICE, such as runs/train=:80") from None


def filter_episodes(
    path: Place,
    to: To,
    min_return: Annotated[float | None, typer.Option(help="Only episodes with at least this return.")] = None,
    max_return: Annotated[float | None, typer.Option(help="Only episodes with at most this return.")] = None,
    min_steps: Annotated[int | None, typer.Option(help="Only episodes of at least so many steps.")] = None,
    max_steps: Annotated[int | None, typer.Option(help="Only episodes of at most so many steps.")] = None,
    end: Annotated[list[str] | None, typer.Option(help="Only episodes that ended so; may be given again.")] = None,
    label: Annotated[list[str] | None, typer.Option(metavar="KEY=JSON", help="Only episodes with this label.")] = None,
    exclude: Annotated[list[str] | None, typer.Option(metavar="GLOB", help="Leaves that are left out.")] = None,
    dry_run: DryRun = False,
    as_json: AsJSON = False,
) -> None:
    """Put some episodes of a recording into another one, perhaps without some leaves.

    Ids stay; nothing is coded anew, and the recording stays as it is.
    """
    from recorder.edit.merging import Transfer, pick
    from recorder.recording import Recording

    recording = Recording(path)
    labels = dict(map(key_value, label or ()))
    notes = [recording.note(i) for i in range(len(recording))]
    wanted = [
        note
        for note in notes
        if _between(note.total, min_return, max_return)
        and _between(note.transitions, min_steps, max_steps)
        and (not end or note.end in end)
        and all(key in note.labels and note.labels[key] == value for key, value in labels.items())
    ]
    if dry_run:
        found = Transfer(str(to), len(wanted), sum(note.transitions for note in wanted))
    else:
        found = pick(path, to, [note.id for note in wanted], exclude=exclude or ())
    say_transfers([found], dry_run, as_json)


def _between(value: float, least: float | None, most: float | None) -> bool:
    return (least is None or value >= least) and (most is None or value <= most)


def key_value(text: str) -> tuple[str, Any]:
    """Return the key and the value of `key=value`, which is JSON or else a text."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise typer.BadParameter(f"{text!r} is not KEY=JSON, such as success=true")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def say_transfers(done: Sequence[Transfer], dry_run: bool, as_json: bool) -> None:
    """Print what went where."""
    if as_json:
        say_json({"dry_run": dry_run, "recordings": [one.to_json() for one in done]})
        return
    for one in done:
        what = f"{counted(one.episodes, 'episode')}, {counted(one.steps, 'step')}"
        skipped = f"; {counted(one.skipped, 'episode')} there already" if one.skipped else ""
        say(printable(f"{one.target}  {'would get' if dry_run else 'got'} {what}{skipped}"))


def delete(path: Place, episodes: Episodes, dry_run: DryRun = False, as_json: AsJSON = False) -> None:
    """Delete episodes; they cannot be brought back.

    Readers that open the recording from now on do not see them. The bytes of those that share a shard with others
    leave the disk with `recorder compact`.
    """
    from recorder.edit.deleting import delete as drop
    from recorder.recording import Recording

    notes = chosen(Recording(path), episodes)
    if not dry_run:
        drop(path, [note.id for note in notes])
    if as_json:
        say_json({"path": str(path), "dry_run": dry_run, "deleted": [note.id for note in notes]})
        return
    for note in notes:
        text = f"{note.id}  {counted(note.transitions, 'step')}  {note.end}"
        say(printable(f"{'would delete' if dry_run else 'deleted'}  {text}"))


def label(
    path: Place,
    episodes: Episodes,
    set_: Annotated[
        list[str],
        typer.Option("--set", metavar="KEY=JSON", help="A label; KEY=null takes it away. May be given again."),
    ],
    as_json: AsJSON = False,
) -> None:
    """Add labels to episodes, or take them away."""
    from recorder.edit.rows import label as relabel
    from recorder.recording import Recording

    given = dict(map(key_value, set_))
    notes = chosen(Recording(path), episodes)
    done = relabel(path, {note.id: given for note in notes})
    if as_json:
        say_json({"path": str(path), **done.to_json()})
        return
    say(f"labelled {counted(done.episodes, 'episode')}")


def compact(path: Place, dry_run: DryRun = False, as_json: AsJSON = False) -> None:
    """Join small shards, and remove what was replaced or deleted.

    Others may read and record meanwhile. Videos and pictures are not coded anew.
    """
    from recorder.edit.compacting import compact as tidy

    done = tidy(path, dry_run=dry_run)
    if as_json:
        say_json({"path": str(path), "dry_run": dry_run, **done.to_json()})
        return
    shards = f"{counted(done.shards, 'shard')} of {size_text(done.bytes)}"
    after = f"{counted(done.shards_after, 'shard')} of {size_text(done.bytes_after)}"
    say(f"{'would make' if dry_run else 'made'} {shards} into {after}, with {counted(done.episodes, 'episode')}")


def chosen(recording: Recording, episodes: Sequence[str]) -> list[EpisodeNote]:
    """Return what is known of episodes that are named by position or id."""
    if by_id := [name for name in episodes if not _is_number(name)]:
        known = {episode: position for position, episode in enumerate(ids_of(recording))}
        if unknown := [name for name in by_id if name not in known]:
            raise typer.BadParameter(f"no episode has the id {unknown[0]!r}; `recorder list` lists them")
    positions = [int(name) if _is_number(name) else known[name] for name in episodes]
    count = len(recording)
    if wrong := [position for position in positions if not -count <= position < count]:
        raise typer.BadParameter(f"there is no episode {wrong[0]} in a recording of {counted(count, 'episode')}")
    return [recording.note(position) for position in dict.fromkeys(position % count for position in positions)]


def _is_number(text: str) -> bool:
    return text.lstrip("-").isdecimal()


def ids_of(recording: Recording) -> list[str]:
    """Return the ids of all episodes, by position."""
    return [str(episode) for episode in recording.table()["id"]]
