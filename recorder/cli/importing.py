"""The command that imports: `import`, from a bare Parquet or HDF5 file to a recording."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from recorder.cli.options import AsJSON
from recorder.cli.printing import counted, say, say_json

if TYPE_CHECKING:
    from recorder.bare.cutting import Episodes

EXAMPLES = """\b
Examples:
  recorder import demo.hdf5 runs/demo
  recorder import data/ runs/lerobot --index episode_index
  recorder import rows.parquet runs/rows --flags terminated --flags truncated
  recorder import rows.h5 runs/rows --lengths 200 --lengths 150 --columns 'obs/*' --columns actions
"""


def import_file(
    source: Annotated[Path, typer.Argument(metavar="FILE", help="A Parquet or HDF5 file, or a folder of Parquet.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder of the recording.")],
    index: Annotated[
        str | None, typer.Option("--index", metavar="COLUMN", help="The column that numbers the episodes.")
    ] = None,
    flags: Annotated[
        list[str] | None,
        typer.Option("--flags", metavar="COLUMN", help="True in the last row of an episode. May be given again."),
    ] = None,
    lengths: Annotated[
        list[int] | None, typer.Option("--lengths", min=1, help="The rows of an episode. Given once for each.")
    ] = None,
    columns: Annotated[
        list[str] | None, typer.Option("--columns", metavar="COLUMN", help="A column or a glob. May be given again.")
    ] = None,
    existing: Annotated[
        Literal["refuse", "append", "replace"], typer.Option(help="What to do if OUT holds a recording.")
    ] = "refuse",
    as_json: AsJSON = False,
) -> None:
    """Copy a bare Parquet or HDF5 file into a recording, bit for bit, and compare it with what is on disk.

    Where episodes end is found in groups, `episode_ends`, columns of the usual names, or as you say.
    """
    from recorder.bare.importing import import_bare
    from recorder.bare.recordings import open_bare

    bare = open_bare(source, episodes=_episodes(index, flags, lengths), columns=columns)
    done = import_bare(bare, out, existing=existing)
    if as_json:
        say_json({"source": str(source), "path": str(out), "cut": bare.cut, **done._asdict()})
        return
    say(f"{counted(done.episodes, 'episode')} of {done.rows:,} rows in {out}, the same as in {source}")
    say(f"cut by {bare.cut}")
    for name, why in done.left_out.items():
        say(f"left out {name}: {why}")


def _episodes(index: str | None, flags: list[str] | None, lengths: list[int] | None) -> Episodes:
    given: list[Episodes] = [one for one in (index, flags, lengths) if one]
    if len(given) > 1:
        raise typer.BadParameter("one of --index, --flags and --lengths is enough")
    return given[0] if given else None
