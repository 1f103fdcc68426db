"""Columns of zarr arrays: rows decoded from the chunks that hold them, on several cores where that pays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from recorder.columns import Array, Column
from recorder.errors import DamagedError, FormatError
from recorder.leaf import Leaf
from recorder.storages.zarr_shards import ChunkSource
from recorder.threads import cores, side_by_side

PARALLEL_BYTES = 2 << 20
"""From so many decoded bytes on, chunks are decoded on several cores.

16 frames of 480 x 640 take 26 ms on one core and 16 ms on two; of 96 x 96, 1.6 ms either way.
"""

MOST_CORES = 4


class Piece(NamedTuple):
    """Rows of one chunk: which chunk, from and to where they are to lie, and which of its rows they are."""

    chunk: int
    start: int
    stop: int
    inside: slice | NDArray[np.intp]


class ChunkColumn(Column):
    """Rows that lie in coded chunks; only those that hold a wanted row are read, each once."""

    def __init__(self, leaf: Leaf, length: int, source: ChunkSource) -> None:
        super().__init__(leaf, length)
        self._source = source

    def read(self, start: int, stop: int) -> Array:
        size = self._source.grid.chunk_rows
        pieces = []
        at = start
        while at < stop:
            chunk, inside = divmod(at, size)
            end = min(stop, at - inside + size)
            pieces.append(Piece(chunk, at - start, end - start, slice(inside, inside + end - at)))
            at = end
        return self._decoded(max(stop - start, 0), pieces)

    def take(self, index: NDArray[np.intp]) -> Array:
        wanted, back = np.unique(index, return_inverse=True)
        chunks, inside = np.divmod(wanted, self._source.grid.chunk_rows)
        starts = np.flatnonzero(np.diff(chunks, prepend=-1))
        stops = [*starts[1:].tolist(), len(wanted)]
        pieces = map(Piece, chunks[starts].tolist(), starts.tolist(), stops, np.split(inside, starts[1:]))
        return self._decoded(len(wanted), list(pieces))[back]

    def _decoded(self, rows: int, pieces: Sequence[Piece]) -> Array:
        grid = self._source.grid
        out = grid.empty(rows)
        coded = self._source.read([piece.chunk for piece in pieces])

        def decode(i: int) -> None:
            chunk, start, stop, inside = pieces[i]
            if stop - start == grid.chunk_rows:
                self._decode(chunk, coded[i], out[start:stop])
            else:
                room = grid.empty(grid.chunk_rows)
                self._decode(chunk, coded[i], room)
                out[start:stop] = room[inside]

        for_each(decode, len(pieces), len(pieces) * grid.chunk_rows * self.leaf.nbytes)
        return out

    def _decode(self, chunk: int, coded: Any, out: Array) -> None:
        try:
            self._source.grid.decode(coded, out)
        except (DamagedError, FormatError) as error:
            place = f"{self._source.place(chunk)}, row {chunk * self._source.grid.chunk_rows}"
            raise type(error)(f"{place} of {self.leaf.path!r}: {error}") from error


def for_each(call: Callable[[int], None], count: int, nbytes: int) -> None:
    """Call with 0 to `count` - 1, on several cores where so many bytes of work are worth it."""
    shares = min(cores(), MOST_CORES, count) if nbytes >= PARALLEL_BYTES else 1

    def share(first: int) -> None:
        for i in range(first, count, shares):
            call(i)

    side_by_side([partial(share, first) for first in range(shares)])
