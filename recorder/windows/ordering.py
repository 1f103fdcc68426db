"""Ordering: in which order an epoch goes through all windows, as it is, shuffled, or shuffled file by file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

import numpy as np

from recorder.windows.placing import Numbers

Shuffle = bool | Literal["shards", "weights"]
"""Whether windows are shuffled: not, fully, some files at a time, or drawn by their weights, some perhaps twice."""

MIXED_FILES, LEAST_MIXED = 8, 4096
"""Windows are shuffled among those that begin in so many files, and among more where these are fewer than this."""


def file_by_file(ends: Numbers, generator: np.random.Generator) -> Iterator[Numbers]:
    """Yield all windows: files in random order, some at a time, and the windows of these shuffled.

    What is read then lies in a few files. `ends` says how many windows begin before the end of each file.
    """
    starts = np.append(0, ends[:-1])
    group: list[Numbers] = []
    for i in generator.permutation(len(ends)).tolist():
        group.append(np.arange(starts[i], ends[i]))
        if len(group) >= MIXED_FILES and sum(map(len, group)) >= LEAST_MIXED:
            yield generator.permutation(np.concatenate(group))
            group = []
    if group:
        yield generator.permutation(np.concatenate(group))


def cut(runs: Iterable[Numbers], size: int, drop_last: bool) -> Iterator[Numbers]:
    """Yield what runs hold in pieces of one size; the last is shorter, or dropped.

    >>> [piece.tolist() for piece in cut([np.arange(3), np.arange(3, 7)], 2, drop_last=False)]
    [[0, 1], [2, 3], [4, 5], [6]]
    """
    left = np.empty(0, np.int64)
    for run in runs:
        left = np.concatenate([left, run])
        whole = len(left) // size * size
        yield from np.split(left[:whole], range(size, whole, size)) if whole else ()
        left = left[whole:]
    if len(left) and not drop_last:
        yield left
