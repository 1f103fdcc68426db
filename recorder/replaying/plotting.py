"""Plots: how far replays are from their recording, over the episode."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from recorder.errors import MissingExtraError

INCHES, DOTS = (8.0, 3.0), 100
"""The size of the plot of one leaf, and the dots of an inch."""

MOST = 12
"""Leaves that are drawn, those with the largest errors; more episodes than this have no legend."""


class Curve(NamedTuple):
    """The errors of one leaf in one episode, the first of them at step `first`."""

    episode: str
    leaf: str
    first: int
    errors: NDArray[np.float64]


def plot_curves(curves: Sequence[Curve], path: Path | str) -> Path:
    """Draw the error of each leaf over the steps into a PNG file, a line for each episode; return its path.

    Errors that no number says, such as that of another shape, are marked at the upper edge.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("matplotlib", "plot") from None
    leaves = _largest(curves)
    width, height = INCHES
    figure = Figure(figsize=(width, height * max(len(leaves), 1)), dpi=DOTS, layout="constrained")
    for place, leaf in enumerate(leaves, 1):
        _draw(figure.add_subplot(len(leaves), 1, place), leaf, [curve for curve in curves if curve.leaf == leaf])
    if not leaves:
        figure.text(0.5, 0.5, "no errors: all is exact", ha="center", va="center")
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.png")
    figure.savefig(temporary, format="png")
    temporary.replace(target)
    return target


def _largest(curves: Sequence[Curve]) -> list[str]:
    """Return the leaves with the largest errors, in the order in which they come."""
    largest: dict[str, float] = {}
    for curve in curves:
        largest[curve.leaf] = max(largest.get(curve.leaf, 0.0), float(curve.errors.max(initial=0.0)))
    kept = sorted(largest, key=lambda leaf: -largest[leaf])[:MOST]
    return [leaf for leaf in largest if leaf in kept]


def _draw(axes: Any, leaf: str, curves: Sequence[Curve]) -> None:
    for curve in curves:
        steps = np.arange(len(curve.errors)) + curve.first
        finite = np.isfinite(curve.errors)
        (line,) = axes.plot(steps, np.where(finite, curve.errors, np.nan), label=curve.episode, linewidth=1)
        if not finite.all():
            # In units of the axes: 1 is the upper edge.
            where, edge = axes.get_xaxis_transform(), np.ones(int((~finite).sum()))
            axes.plot(steps[~finite], edge, "v", color=line.get_color(), transform=where, clip_on=False)
    axes.set(title=leaf, xlabel="step", ylabel="error")
    if len(curves) <= MOST:
        axes.legend(fontsize="small")
