"""Cutting: where the episodes of a bare table end, by an index, by flags, by lengths, or by its files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from recorder.bare.tables import BareSource, usable
from recorder.errors import FormatError
from recorder.metadata.annotation import did_you_mean

INDEXES = ("%episode", "episode_index", "episode", "episode_id", "episode_idx", "traj_id")
"""Columns that number the episodes, where nothing else is said."""

FLAGS = (
    ("terminated", "truncated"),
    ("terminals", "timeouts"),
    ("terminations", "truncations"),
    ("done",),
    ("dones",),
    ("next.done",),
    ("is_last",),
)
"""Columns of flags of which one is true in the last row of an episode."""

Episodes = str | Sequence[str] | Sequence[int] | None
"""How a table is cut: an index column, columns of flags, the rows of each episode, or whatever is found."""


class Cut(NamedTuple):
    """The row after the last one of each episode, and by what rule."""

    ends: NDArray[np.int64]
    rule: str


def cut(source: BareSource, episodes: Episodes = None) -> Cut:
    """Return where the episodes of a table end.

    Without a word: where the file says it (groups, `episode_ends`), else by an index column, else by flags, else each
    file is an episode.

    Raises:
        FormatError: a column is not there or is none of single numbers, an index comes back after others, or lengths do
            not add up.
    """
    if episodes is None:
        return _found(source)
    if isinstance(episodes, str):
        return _by_index(source, episodes)
    names = [name for name in episodes if isinstance(name, str)]
    lengths = [int(length) for length in episodes if isinstance(length, int | np.integer)]
    if names and len(names) == len(episodes):
        return _by_flags(source, names)
    if lengths and len(lengths) == len(episodes):
        return _by_lengths(source, lengths, "the lengths that were given")
    raise FormatError(f"episodes={episodes!r}: the name of an index column, names of flags, or lengths are needed")


def _found(source: BareSource) -> Cut:
    if source.lengths is not None:
        return _by_lengths(source, source.lengths, "groups or ends in the file")
    if indexes := usable(INDEXES, source.forms):
        return _by_index(source, indexes[0])
    for names in FLAGS:
        if flags := usable(names, source.forms):
            return _by_flags(source, flags)
    filled = [rows for rows in source.pieces if rows]
    return _by_lengths(source, filled, "one episode a file, as no column says more")


def _column(source: BareSource, name: str) -> NDArray[np.generic]:
    if name not in usable([name], source.forms):
        nearest = did_you_mean(name, source.forms)
        raise FormatError(f"no column {name!r} of one value a row{nearest}; the columns are {sorted(source.forms)}")
    values = source.read(name, 0, source.rows)
    if values.dtype.kind == "f" and np.isnan(values).any():
        raise FormatError(
            f"column {name!r} has nulls or NaN, by which no episode can be cut; give fill={{{name!r}: …}}"
        )
    return values


def _by_index(source: BareSource, name: str) -> Cut:
    values = _column(source, name)
    ends = np.append(np.flatnonzero(values[1:] != values[:-1]) + 1, len(values)) if len(values) else np.empty(0, int)
    firsts = values[np.append(0, ends[:-1])] if len(values) else values
    if len(set(firsts.tolist())) != len(firsts):
        raise FormatError(f"the rows of an episode do not lie together: a number of {name!r} comes back after others")
    return Cut(ends.astype(np.int64), f"index column {name!r}")


def _by_flags(source: BareSource, names: Sequence[str]) -> Cut:
    last = np.any([_flags(source, name) for name in names], axis=0)
    if source.rows:
        last[-1] = True  # the last episode may have been cut off
    return Cut(np.flatnonzero(last).astype(np.int64) + 1, f"flags {', '.join(map(repr, names))}")


def _flags(source: BareSource, name: str) -> NDArray[np.bool_]:
    values = _column(source, name)
    if values.dtype == object:
        raise FormatError(f"column {name!r} holds text, of which every word would count as true; flags are numbers")
    return values.astype(bool)


def _by_lengths(source: BareSource, lengths: Sequence[int], rule: str) -> Cut:
    ends = np.cumsum(np.asarray(lengths, np.int64)) if len(lengths) else np.empty(0, np.int64)
    if any(length < 1 for length in lengths) or (ends[-1] if len(ends) else 0) != source.rows:
        raise FormatError(f"episodes of {sum(lengths)} rows together, each 1 or more, for a table of {source.rows}")
    return Cut(ends, rule)
