"""What is known of the rows of one leaf, as a value and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recorder.columns import Array
from recorder.errors import FormatError
from recorder.leaf import JSON, Leaf
from recorder.spaces.array_json import number_to_json
from recorder.webp import is_picture

EACH = 256
"""The elements of a leaf with more of them are counted together."""


@dataclass(frozen=True)
class LeafStatistics:
    """The numbers of a leaf, for each of its components: `count`, `mean`, `std`, `min`, `max`, `quantiles[0.5]`.

    Components are the channels of a picture, the elements of a row of up to 256, and of a larger one all together: the
    arrays have the shape `(channels,)`, that of a row, or `()`. `std` is that of all numbers, as NumPy's. NaN is
    counted in `nan` and left out. `rows` were looked at, of `of` that there are; `absent` of them lacked the leaf.
    `distinct` texts differ. `lengths` are the least and the greatest of ragged rows.
    """

    rows: int
    of: int
    count: NDArray[np.int64]
    mean: NDArray[np.float64]
    std: NDArray[np.float64]
    min: Array
    max: Array
    quantiles: Mapping[float, NDArray[np.float64]] = field(default_factory=dict)
    nan: int = 0
    absent: int = 0
    distinct: int = 0
    lengths: tuple[int, int] | None = None

    def overall(self) -> dict[str, Any]:
        """Return count, mean, std, min and max of all components together; None where there are no numbers."""
        there = self.count > 0
        if not there.any():
            return dict.fromkeys(("mean", "std", "min", "max")) | {"count": 0}
        count, mean, std = self.count[there], self.mean[there], self.std[there]
        with np.errstate(invalid="ignore", over="ignore"):
            middle = float(np.average(mean, weights=count))
            spread = float(np.sqrt(np.average(std**2 + (mean - middle) ** 2, weights=count)))
        low, high = self.min[there].min().item(), self.max[there].max().item()
        return {"count": int(count.sum()), "mean": middle, "std": spread, "min": low, "max": high}

    def to_json(self) -> dict[str, JSON]:
        """Return strict JSON: arrays as nested lists, numbers that are not finite as text."""
        said: dict[str, JSON] = {"rows": self.rows, "of": self.of, "count": self.count.tolist()}
        for name in ("mean", "std", "min", "max"):
            said[name] = _listed(getattr(self, name))
        said["quantiles"] = {str(q): _listed(values) for q, values in self.quantiles.items()}
        more = {"nan": self.nan, "absent": self.absent, "distinct": self.distinct, "lengths": self.lengths}
        return said | {name: list(v) if isinstance(v, tuple) else v for name, v in more.items() if v}


def leaf_statistics_from_json(said: Mapping[str, JSON]) -> LeafStatistics:
    """Return statistics from what `to_json` gave.

    Raises:
        FormatError: they are none.
    """
    try:
        least, greatest = said.get("lengths") or (0, 0)
        return LeafStatistics(
            int(said["rows"]),
            int(said["of"]),
            np.asarray(said["count"], np.int64),
            _array(said["mean"]),
            _array(said["std"]),
            _array(said["min"]),
            _array(said["max"]),
            quantiles={float(q): _array(values) for q, values in said["quantiles"].items()},
            nan=int(said.get("nan", 0)),
            absent=int(said.get("absent", 0)),
            distinct=int(said.get("distinct", 0)),
            lengths=(int(least), int(greatest)) if "lengths" in said else None,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FormatError(f"no statistics of a leaf: {type(error).__name__} {error}") from error


def components(leaf: Leaf) -> tuple[int, ...]:
    """Return the shape of what is counted separately.

    >>> components(Leaf("camera", (96, 96, 3), "uint8")), components(Leaf("a", (7,))), components(Leaf("b", (64, 64)))
    ((3,), (7,), ())
    """
    if is_picture(leaf.shape, leaf.dtype):
        return leaf.shape[-1:]
    return leaf.shape if int(np.prod(leaf.shape)) <= EACH else ()


def _listed(values: Any) -> JSON:
    if isinstance(values, np.ndarray):
        return _listed(values.tolist())
    if isinstance(values, list):
        return [_listed(value) for value in values]
    return values if isinstance(values, bool) else number_to_json(values)


def _array(said: JSON) -> Array:
    """Return nested lists of numbers, of which some may be text, as an array."""
    array = np.asarray(said)
    return array.astype(np.float64) if array.dtype.kind in "US" else array
