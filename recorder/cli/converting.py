"""The command that converts: `convert`, from a recording to a zarr replay buffer."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from recorder.cli.converting_words import option_words
from recorder.cli.options import AsJSON, Place
from recorder.cli.printing import Heading, counted, facts, say, say_json, table, terminal_width
from recorder.files import size_text

if TYPE_CHECKING:
    from recorder.convert.zarr_checking import ZarrCheck
    from recorder.convert.zarr_plan import ZarrPlan
    from recorder.convert.zarr_sizes import Size
    from recorder.recording import Recording

EXAMPLES = """\b
Examples:
  recorder convert runs/car car.zarr --dry-run
  recorder convert runs/car car.zarr --quality 90 --next-observation
  recorder convert runs/car car.zarr.zip --keys observation --keys action --flat
  recorder convert runs/car car.zarr --append
  recorder convert runs/car dp.zarr --zarr-format 2 --rename observation/pixels=img
"""

TITLES = ("key", "rows of", "kept as", "", "before", "about", "leaf")


def convert(
    place: Place,
    out: Annotated[
        str,
        typer.Argument(metavar="OUT", help="The buffer: a folder, NAME.zip, or a URL such as s3://bucket/car.zarr."),
    ],
    keys: Annotated[
        list[str] | None,
        typer.Option("--keys", metavar="LEAF", help="A leaf, what holds some, or a glob. May be given again."),
    ] = None,
    rename: Annotated[
        list[str] | None,
        typer.Option("--rename", metavar="LEAF=KEY", help="Another key for a leaf. May be given again."),
    ] = None,
    flat: Annotated[bool, typer.Option("--flat", help="Join the parts of a path by _ instead of /.")] = False,
    episode: Annotated[
        list[str] | None,
        typer.Option("--episode", metavar="EPISODE", help="A position or an id. May be given again; all by default."),
    ] = None,
    next_observation: Annotated[
        bool, typer.Option("--next-observation", help="Add next_observation, which keeps the final one.")
    ] = False,
    quality: Annotated[
        float | None, typer.Option(min=0, max=100, help="Pictures as lossy WebP of this quality; lossless if not said.")
    ] = None,
    numeric: Annotated[Literal["lz4", "zstd", "none"], typer.Option(help="What packs the rest.")] = "lz4",
    frames_per_shard: Annotated[int | None, typer.Option(min=1, help="Pictures of one file, in format 3.")] = None,
    zarr_format: Annotated[int, typer.Option(min=2, max=3, help="3 with shards; 2 for diffusion_policy.")] = 3,
    workers: Annotated[int | None, typer.Option(min=1, help="Threads; as many as cores if not said.")] = None,
    statistics: Annotated[bool, typer.Option("--statistics", help="Keep statistics of each key, too.")] = False,
    append: Annotated[bool, typer.Option("--append", help="Go on with what is there.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what is there, once this is whole.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be written, and how large.")] = False,
    check: Annotated[bool, typer.Option(help="Read every row again at the end, and compare.")] = True,
    as_json: AsJSON = False,
) -> None:
    """Convert a recording to a zarr replay buffer: data/LEAF with one row a step, and meta/episode_ends.

    At the end every row is read again and compared with the recording: each leaf is exact, or differs by so much.
    After a kill --append goes on at the last whole episode; on a complete buffer it adds what was recorded since.
    """
    from recorder.convert.zarr import write_zarr
    from recorder.convert.zarr_plan import Choice, plan_zarr
    from recorder.convert.zarr_sizes import guess_sizes
    from recorder.recording import Recording
    from recorder.replay_buffer.codecs import WebP
    from recorder.replay_buffer.creating import BufferOptions
    from recorder.replay_buffer.filling import Target

    names = dict(map(_renamed, rename or []))
    chosen = None if episode is None else [_episode(name) for name in episode]
    packed = None if numeric == "none" else numeric
    bar = False if as_json else None
    with option_words():
        recording = Recording(place)
        options = BufferOptions(WebP(quality), packed, frames_per_shard, 2 if zarr_format == 2 else 3)
        choice = Choice(keys, names, flat, "next" if next_observation else "drop")
        plan = plan_zarr(recording, choice, options, chosen)
        target = Target(out, None, append, overwrite)
        if dry_run:
            say_plan(recording, plan, guess_sizes(recording, plan), as_json)
            return
        write_zarr(recording, plan, target, workers=workers, statistics=statistics, progress=bar)
        _check(recording, out, check, as_json)


def _check(recording: Recording, out: str, wanted: bool, as_json: bool) -> None:
    """Compare what was written, if that is wanted, and say what became of it."""
    from recorder.convert.zarr_checking import check_zarr

    if not wanted:
        say_json({"path": out, "checked": False}) if as_json else say(f"{out} is written; nothing was compared")
        return
    result = check_zarr(recording, out, progress=False if as_json else None)
    say_check(result, as_json)
    if not result.sound:
        raise typer.Exit(1)


def _renamed(text: str) -> tuple[str, str]:
    leaf, mark, key = text.partition("=")
    if not (leaf and mark and key):
        raise typer.BadParameter(f"{text!r} is not LEAF=KEY", param_hint="--rename")
    return leaf, key


def _episode(name: str) -> int | str:
    return int(name) if name.removeprefix("-").isdecimal() else name


def say_plan(recording: Recording, plan: ZarrPlan, sizes: dict[str, Size], as_json: bool) -> None:
    """Say what a conversion would write."""
    rows = [
        (
            each.key,
            f"{each.spec.dtype} {each.spec.shape}",
            "WebP" if each.spec.picture and plan.options.image_codec is not None else str(plan.options.numeric),
            "exact" if each.exact else "lossy",
            sizes[each.key].raw,
            sizes[each.key].coded,
            f"{each.leaf.path}, after the step" if each.shift else each.leaf.path,
        )
        for each in plan.keys
    ]
    total = {"bytes": plan.nbytes, "coded": sum(size.coded for size in sizes.values())}
    if as_json:
        names = ("key", "rows", "codec", "exact", "bytes", "coded", "leaf")
        values = [(*row[:3], each.exact, *row[4:]) for each, row in zip(plan.keys, rows, strict=True)]
        arrays = [dict(zip(names, row, strict=True)) for row in values]
        said = {"episodes": len(plan.episodes), "steps": plan.steps, "arrays": arrays, "left_out": dict(plan.left_out)}
        say_json({**said, **total})
        return
    columns = [Heading(title, title in ("before", "about")) for title in TITLES]
    say(table(columns, [(*row[:4], size_text(row[4]), size_text(row[5]), row[6]) for row in rows], terminal_width()))
    lost = {f"without {path}": why for path, why in plan.left_out.items()}
    amount = f"{counted(len(plan.episodes), 'episode')}, {counted(plan.steps, 'step')}"
    said = {"all": f"{amount}, {size_text(total['bytes'])}, coded about {size_text(total['coded'])}", **lost}
    say(facts(said))


def say_check(result: ZarrCheck, as_json: bool) -> None:
    """Say what was converted, and what became of each leaf."""
    if as_json:
        say_json(result.to_json())
        return
    say(str(result))
    say(f"open it with recorder.ReplayBuffer({shlex.quote(result.path)!r})")
