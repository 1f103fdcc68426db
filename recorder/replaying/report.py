"""What a replay found: a verdict, where it stopped agreeing, and what is different today."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from recorder.leaf import JSON
from recorder.replaying.plotting import Curve, plot_curves
from recorder.spaces.array_json import number_to_json

Mode = Literal["actions", "states", "first-state"]
"""What is given to the environment: the start and all actions, all states and actions, or one state and all actions."""

Verdict = Literal["exact", "within tolerance", "diverged"]

Method = Literal["values", "digests", "codec"]
"""How a leaf was compared: by its values, by sums of the uncoded rows, or within what its codec does to a picture."""


class Divergence(NamedTuple):
    """Where a replay stopped agreeing: the first step, 0 being the reset, the leaf, by how much, and in words."""

    step: int
    leaf: str
    error: float
    message: str = ""

    def __str__(self) -> str:
        by = f" by {self.error:.6g}" if math.isfinite(self.error) else ""
        where = f" in {self.leaf}{by}" if self.leaf else ""
        return f"step {self.step}{where}{f': {self.message}' if self.message else ''}"


@dataclass(frozen=True)
class LeafError:
    """What was found of one leaf: its largest error, the step where it was, and the first step with too large a one.

    `errors` has one number for each row that was compared, empty where all are 0; `first` is the step of the first.
    """

    path: str
    method: Method
    largest: float
    step: int | None
    diverged: int | None
    first: int = 0
    errors: NDArray[np.float64] = field(default_factory=lambda: np.empty(0), compare=False, repr=False)

    def to_json(self) -> dict[str, JSON]:
        """Return all but the single errors as JSON."""
        return {
            "path": self.path,
            "method": self.method,
            "largest": number_to_json(self.largest),
            "step": self.step,
            "diverged": self.diverged,
        }


@dataclass(frozen=True)
class ReplayReport:
    """What came of replaying one episode.

    `verdict` is `exact`, `within tolerance`, or `diverged`; `divergence` then says at which step, in which leaf and
    by how much. `compared` of `steps` recorded steps were compared. `differences` are those of versions, spaces and
    wrappers between the recording and today, `notes` what else may explain the verdict.
    """

    episode: str
    mode: Mode
    tolerance: float
    steps: int
    compared: int
    leaves: tuple[LeafError, ...]
    divergence: Divergence | None = None
    differences: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """The verdict in a word or two."""
        if self.divergence is not None:
            return "diverged"
        same = all(leaf.largest == 0 and leaf.method != "codec" for leaf in self.leaves)
        return "exact" if same else "within tolerance"

    @property
    def agrees(self) -> bool:
        """Whether it is exact or within tolerance."""
        return self.divergence is None

    @property
    def errors(self) -> Mapping[str, float]:
        """The largest error of each leaf that has one."""
        return {leaf.path: leaf.largest for leaf in self.leaves if leaf.largest}

    def plot(self, path: Path | str) -> Path:
        """Draw the error of each leaf over the episode into a PNG file.

        Raises:
            MissingExtraError: matplotlib is not installed.
        """
        return plot_errors([self], path)

    def to_json(self) -> dict[str, JSON]:
        """Return all of it but single errors as strict JSON."""
        found = self.divergence
        where = None if found is None else {**found._asdict(), "error": number_to_json(found.error)}
        return {
            "episode": self.episode,
            "verdict": self.verdict,
            "mode": self.mode,
            "tolerance": number_to_json(self.tolerance),
            "steps": self.steps,
            "compared": self.compared,
            "divergence": where,
            "leaves": [leaf.to_json() for leaf in self.leaves],
            "differences": list(self.differences),
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        return "\n".join([self.line, *(f"  {text}" for text in (*self.differences, *self.notes))])

    @property
    def line(self) -> str:
        """The verdict as one line."""
        over = (
            f"{self.compared:,} steps" if self.compared == self.steps else f"{self.compared:,} of {self.steps:,} steps"
        )
        if self.divergence is not None:
            return f"{self.episode}: diverged at {self.divergence}"
        errors = ", ".join(f"{path} {error:.6g}" for path, error in self.errors.items())
        return f"{self.episode}: {self.verdict}, {over}{f'; largest errors: {errors}' if errors else ''}"


def plot_errors(reports: Sequence[ReplayReport], path: Path | str) -> Path:
    """Draw the error of each leaf over the episodes into one PNG file; return its path.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    curves = [
        Curve(report.episode, leaf.path, leaf.first, leaf.errors)
        for report in reports
        for leaf in report.leaves
        if len(leaf.errors)
    ]
    return plot_curves(curves, path)
