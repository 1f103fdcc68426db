"""Pieces: rows of all lanes that the worker takes over at once, and how they are laid out lane by lane."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from recorder.columns import Array, Ragged, Rows, concatenate, dense_take, ragged
from recorder.leaf import JSON_TEXT, TEXT, Leaf, text_array
from recorder.schema import SEEN
from recorder.storages.base import Run
from recorder.vector.batching import lane_by_lane, nothing
from recorder.vector.cutting import Mask, empty_marks
from recorder.vector.events import Finals, Said, Stopped
from recorder.vector.infos import Place


class Piece:
    """Rows `[start, stop)` of the ring while they are cut, and what was said in between."""

    def __init__(self, start: int, stop: int, lanes: int) -> None:
        self.start = start
        self.steps = stop - start
        self.lanes = lanes
        self.marks = empty_marks(self.steps, lanes)
        self.terminated: Mask = np.zeros((self.steps, lanes), bool)
        self.done: Mask = np.zeros((self.steps, lanes), bool)
        self.resets: list[tuple[int, Mask]] = []
        self.labels: list[tuple[int, Mapping[str, Any]]] = []
        self.said: list[tuple[int, Said | Stopped]] = []
        self.finals: dict[int, Finals] = {}


def piece_column(
    leaf: Leaf, rows: Mapping[str, Rows], piece: Piece, finals: Sequence[tuple[int, int]]
) -> Array | Ragged:
    """Return the rows of one leaf lane by lane, and the final ones."""
    if leaf.path == "time":
        return np.empty(0)
    lengths = rows.get(f"{leaf.path}%lengths") if leaf.ragged else None
    main = lane_by_lane(rows[leaf.path], lengths, leaf, piece.lanes)
    if not finals:
        return main
    if leaf.path.split("/")[0] == "observation":
        values = [_final(piece.finals.get(k), leaf, lane) for k, lane in finals]
        return concatenate([main, _rows_of(values, leaf)])
    if leaf.path.split("/")[0] in SEEN:  # what could be seen there was the next episode already
        return concatenate([main, _rows_of([nothing(leaf)] * len(finals), leaf)])
    index = np.array([lane * piece.steps + k for k, lane in finals])
    return concatenate([main, dense_take(main, index)])


def piece_times(times: Rows, runs: Sequence[Run], place: Place, began: Mapping[int, float]) -> Array:
    """Return the seconds since the row 0 of the episode that each row belongs to."""
    assert isinstance(times, np.ndarray)
    all_times = np.concatenate([np.tile(times, place.lanes), times[[k for k, _ in place.finals]]])
    if not runs:
        return all_times
    starts = np.array([run.start for run in runs])
    origins = np.array([began[run.segment] for run in runs])
    order = np.argsort(starts)
    edges = np.append(starts[order], place.length)
    offsets = np.zeros(place.length)
    offsets[edges[0] :] = np.repeat(origins[order], np.diff(edges))
    return all_times - offsets


def _final(final: Finals | None, leaf: Leaf, lane: int) -> Any:
    """Return the final value of a leaf in a lane, or what stands for one that is missing."""
    if final is None or lane in final.missing or lane not in final.lanes:
        return nothing(leaf)
    return final.rows[leaf.path][final.lanes.index(lane)]


def _rows_of(values: list[Any], leaf: Leaf) -> Array | Ragged:
    """Return values of one leaf as rows."""
    if leaf.ragged:
        return ragged(values, leaf)
    return text_array(values) if leaf.dtype in (TEXT, JSON_TEXT) else np.array(values, leaf.numpy_dtype)
