"""Planning: what a recording will keep how, why, and what it will cost, as a value and as text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from recorder.columns import Array, Rows, ragged
from recorder.leaf import JSON, Leaf, text_array
from recorder.routing.rules import ARRAY_BYTES, describe
from recorder.routing.trial import synthetic_rows, trial
from recorder.storages.base import Storage
from recorder.storages.depth import DepthStorage
from recorder.storages.dict import DictStorage

RAW = 0.95
"""An array that shrinks to no less than this is said to be kept raw."""

DEPTH_STEPS = 10_000
"""How many steps of a DepthStorage a synthetic depth has at most: 10 m in millimetres."""

SYNTHETIC = "synthetic pictures and numbers; frames=[…] measures yours"

Frames = Sequence[Any] | Mapping[str, Array]
"""Observations one after another, or rows `(n, *shape)` by leaf path."""


class PlanRow(NamedTuple):
    """What becomes of one leaf; `why` it is of its kind, and in `note` why it is kept as it is."""

    path: str
    shape: tuple[int, ...]
    dtype: str
    kind: str
    why: str
    storage: str
    exact: bool
    bytes_per_step: float
    milliseconds_per_step: float
    note: str


@dataclass(frozen=True)
class Plan:
    """What a recording will keep how, and what it will cost. `print` it, or read its rows."""

    rows: tuple[PlanRow, ...]
    notes: tuple[str, ...] = ()

    @property
    def bytes_per_step(self) -> float:
        """Bytes on disk for each step, all leaves together."""
        return sum(row.bytes_per_step for row in self.rows)

    @property
    def milliseconds_per_step(self) -> float:
        """Milliseconds of work for each step, all leaves one after another."""
        return sum(row.milliseconds_per_step for row in self.rows)

    def to_json(self) -> dict[str, JSON]:
        """Return the plan as JSON."""
        return {
            "rows": [{**row._asdict(), "shape": list(row.shape)} for row in self.rows],
            "bytes_per_step": self.bytes_per_step,
            "milliseconds_per_step": self.milliseconds_per_step,
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        cells = [TITLES, *map(_cells, self.rows), self._total()]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = ["  ".join(_aligned(row, widths)).rstrip() for row in cells]
        return "\n".join([*lines, "", *(f"- {note}" for note in self.notes)])

    def _total(self) -> Sequence[str]:
        cost = _numbers(self.bytes_per_step, self.milliseconds_per_step)
        return ("total", "", "", "", "", "", *cost, "")


TITLES = ("leaf", "shape", "dtype", "kind", "kept in", "", "bytes/step", "ms/step", "why")
RIGHT = ("bytes/step", "ms/step")


def _cells(row: PlanRow) -> Sequence[str]:
    exact = "exact" if row.exact else "LOSSY"
    cost = _numbers(row.bytes_per_step, row.milliseconds_per_step)
    why = "; ".join(part for part in (row.why, row.note) if part)
    return (row.path, str(row.shape), row.dtype, row.kind, row.storage, exact, *cost, why)


def _numbers(size: float, milliseconds: float) -> tuple[str, str]:
    return f"{size:,.0f}", f"{milliseconds:.4f}"


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
    for cell, width, title in zip(cells, widths, TITLES, strict=True):
        yield cell.rjust(width) if title in RIGHT else cell.ljust(width)


def make_plan(
    storage: DictStorage, leaves: Sequence[Leaf], given: Mapping[str, Rows], notes: Iterable[str] = ()
) -> Plan:
    """Return the plan for leaves; those in `given` are tried with these rows, others with synthetic ones."""
    rows = tuple(_row(storage, leaf, given.get(leaf.path)) for leaf in leaves)
    return Plan(rows, (*_notes(storage, leaves, rows, given), *notes))


def _row(storage: DictStorage, leaf: Leaf, given: Rows | None) -> PlanRow:
    own = storage.of(leaf)
    cost = trial(own, leaf, _tried_rows(own, leaf) if given is None else given)
    changing = "rows of changing length; " if leaf.ragged else ""
    return PlanRow(
        leaf.path,
        leaf.shape,
        leaf.dtype,
        leaf.kind,
        leaf.why,
        storage=describe(own),
        exact=own.exact(leaf),
        bytes_per_step=cost.bytes,
        milliseconds_per_step=cost.milliseconds,
        note=changing + storage.reasons.get(leaf.path, ""),
    )


def _tried_rows(storage: Storage, leaf: Leaf) -> Rows:
    """Return synthetic rows of a leaf, in the range that its storage keeps."""
    rows = synthetic_rows(leaf)
    if isinstance(storage, DepthStorage) and isinstance(rows, np.ndarray):
        return (rows * DEPTH_STEPS * storage.scale).astype(rows.dtype)
    return rows


def _notes(
    storage: DictStorage, leaves: Sequence[Leaf], rows: Sequence[PlanRow], given: Mapping[str, Rows]
) -> Iterator[str]:
    """Yield what is said aloud, beside the table."""
    for path in (row.path for row in rows if row.path in storage.fallen):
        yield f"{path}: not kept as wanted: {storage.reasons[path]}"
    for leaf, row in zip(leaves, rows, strict=True):
        if leaf.fixed and leaf.nbytes >= ARRAY_BYTES and row.bytes_per_step > RAW * leaf.nbytes:
            yield f"{row.path}: kept raw, {leaf.nbytes:,} bytes a row are not made smaller by {row.storage}"
        if not row.exact and row.path not in storage.named | given.keys():
            yield f"{row.path}: coded with loss, unless its first frame has few colours, as drawings do"
        if delay := storage.of(leaf).delay(leaf):
            yield f"{row.path}: a kill loses up to {delay} frames beside what was not flushed"
    tried = f"the given rows of {', '.join(given)} and synthetic ones" if given else SYNTHETIC
    yield f"bytes and milliseconds are estimates, measured here and now on {tried}"
    yield "the work is done beside the environment, and waits for it only where it falls behind"


def joined_rows(leaf: Leaf, values: Sequence[Any]) -> Rows:
    """Return values of a leaf as rows.

    Raises:
        RowError: one does not fit the leaf.
    """
    fitted = [leaf.fit(value) for value in values]
    if leaf.ragged:
        return ragged(fitted, leaf)
    return text_array(fitted) if leaf.numpy_dtype.kind == "O" else np.stack(fitted)
