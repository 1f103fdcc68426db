"""The command `stats`: mean, spread, ends and quantiles of every leaf of a recording or a replay buffer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recorder.cli.options import AsJSON
from recorder.cli.printing import Heading, counted, say, say_json, table, terminal_width

if TYPE_CHECKING:
    from recorder.statistics.computing import Statistics
    from recorder.statistics.leaves import LeafStatistics

EXAMPLES = """\b
Examples:
  recorder stats runs/car
  recorder stats car.zarr --store
  recorder stats runs/car --episode 3 --json
"""

TITLES = ("leaf", "count", "mean", "std", "min", "1 %", "median", "99 %", "max", "")

SHOWN = 16
"""Components of a leaf with more of them are not listed for people."""


def stats(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="The folder of a recording, or a replay buffer.")],
    episode: Annotated[int | None, typer.Option(help="Only this episode, by its position, -1 being the last.")] = None,
    frames: Annotated[
        int, typer.Option(min=0, help="Look at no more than so many pictures of a leaf, evenly spaced; 0 is all.")
    ] = 1000,
    store: Annotated[bool, typer.Option("--store", help="Keep them in the attributes of a replay buffer.")] = False,
    as_json: AsJSON = False,
) -> None:
    """Say how the numbers of each leaf are spread.

    Count, mean, standard deviation, least, greatest, and quantiles. Those that a replay buffer keeps are shown as they
    are, unless --episode or --store asks for new ones.
    """
    said = gathered(path, episode, frames or None, store)
    if as_json:
        say_json(said.to_json())
        return
    say(f"{counted(said.episodes, 'episode')}, {counted(said.steps, 'step')}\n")
    columns = [Heading(title, title not in ("leaf", "")) for title in TITLES]
    rows = [row for name, leaf in said.leaves.items() for row in leaf_cells(name, leaf)]
    say(table(columns, rows, terminal_width()))


def gathered(path: Path, episode: int | None, frames: int | None, store: bool) -> Statistics:
    """Return the statistics that were asked for."""
    from tqdm import tqdm

    from recorder.errors import NotAReplayBufferError
    from recorder.replay_buffer.buffer import ReplayBuffer
    from recorder.statistics.computing import statistics
    from recorder.statistics.storing import store_statistics, stored_statistics
    from recorder.training_data import opened

    source = opened(path)
    if store and not isinstance(source, ReplayBuffer):
        raise NotAReplayBufferError(f"{path} is a recording, which is not changed; a replay buffer keeps statistics")
    if store:
        return store_statistics(path, most_frames=frames)
    kept = stored_statistics(source) if isinstance(source, ReplayBuffer) and episode is None else None
    if kept is not None:
        return kept
    with tqdm(unit="leaf", disable=None, leave=False) as bar:
        chosen = None if episode is None else [episode]
        return statistics(source, episodes=chosen, most_frames=frames, watch=lambda _: bar.update())


def leaf_cells(name: str, leaf: LeafStatistics) -> Iterator[Sequence[Any]]:
    """Yield the rows of the table of a leaf: one for each component, or one for all."""
    more = ", ".join(notes(leaf))
    if not leaf.count.size or leaf.count.size > SHOWN or not leaf.count.any():
        whole = leaf.overall()
        known = (whole["mean"], whole["std"], whole["min"], None, None, None, whole["max"])
        yield name, whole["count"], *known, more
        return
    quantiles = [leaf.quantiles.get(q) for q in (0.01, 0.5, 0.99)]
    for place in product(*map(range, leaf.count.shape)):
        index = f"[{', '.join(map(str, place))}]" if place else ""
        values = [None if each is None else each[place].item() for each in (leaf.mean, leaf.std, leaf.min, *quantiles)]
        yield f"{name}{index}", int(leaf.count[place]), *values, leaf.max[place].item(), more


def notes(leaf: LeafStatistics) -> Iterator[str]:
    """Yield what else is to be said of a leaf."""
    if leaf.rows < leaf.of:
        yield f"{leaf.rows:,} of {leaf.of:,} rows"
    if leaf.lengths:
        yield "n from {:,} to {:,}".format(*leaf.lengths)
    if leaf.distinct:
        yield f"{leaf.distinct:,} different"
    if leaf.nan:
        yield f"{leaf.nan:,} NaN"
    if leaf.absent:
        yield f"absent from {counted(leaf.absent, 'row')}"
