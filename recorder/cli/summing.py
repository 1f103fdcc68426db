"""Summing up a column for `show`: of its statistics what fits into a line."""

from __future__ import annotations

from recorder.columns import Column
from recorder.leaf import JSON
from recorder.spaces.array_json import number_to_json
from recorder.statistics.computing import summary


def sum_up(column: Column) -> dict[str, JSON]:
    """Return `min`, `mean` and `max` of all rows of a column, of texts how many differ.

    `lengths`, `distinct`, `nan` and `absent` are there only where there is something to say.
    """
    found = summary(column)
    whole = found.overall()
    said: dict[str, JSON] = {
        name: whole[name] if whole[name] is None or isinstance(whole[name], bool) else number_to_json(whole[name])
        for name in ("min", "mean", "max")
    }
    lengths = None if found.lengths is None else list(found.lengths)
    more = {"lengths": lengths, "distinct": found.distinct, "nan": found.nan, "absent": found.absent}
    return said | {name: value for name, value in more.items() if value}
