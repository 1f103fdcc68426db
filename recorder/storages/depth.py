"""DepthStorage: depth in floats as whole numbers of 16 bits, in video or pictures, each value off by half a step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from recorder.columns import Array, Column, Rows
from recorder.errors import FormatError, LayoutError, WriteError
from recorder.leaf import JSON, Leaf
from recorder.storages.adopting import Adopting, adopt
from recorder.storages.base import Counts, Reader, Run, Segment, Storage, Writer, register_storage, storage_from_json
from recorder.storages.video import VideoStorage

MOST = 65_535
"""The largest number of 16 bits; 0 stands for what is invalid."""

SPOKEN = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
"""Numbers that JSON has no numerals for."""


@register_storage
@dataclass(frozen=True)
class DepthStorage(Storage):
    """Depth pictures of floats as `round(depth / scale)` in 16 bits, kept by another storage: FFV1 video by default.

    A depth comes back as its number times `scale`: off by half of that at most. `invalid` is the value that means "no
    depth" (a number, or `"nan"`, `"inf"`, `"-inf"`): it is kept as 0 and comes back as it was. Any other depth must
    lie from `scale` to 65,535 times that: one that does not is an error, or with `beyond="invalid"` becomes invalid.
    `units`, if given, must be those of the leaf's metadata. Depth that must come back bit for bit belongs in a table
    or in `ZarrStorage()`, where the layout sends it by itself.
    """

    id = "depth"
    lossy_kinds = frozenset({"depth"})
    scale: float = 0.001
    invalid: float | str = 0.0
    units: str | None = None
    beyond: str = "refuse"
    storage: Storage = field(default_factory=lambda: VideoStorage(codec="ffv1"))

    @property
    def nothing(self) -> float:
        """The value that means that there is no depth."""
        return SPOKEN[self.invalid] if isinstance(self.invalid, str) else float(self.invalid)

    def check(self, leaves: Sequence[Leaf]) -> None:
        for leaf in leaves:
            self._check_leaf(leaf)
        self.storage.check(self.inner(leaves))

    def __post_init__(self) -> None:
        """Raise `LayoutError` for options that mean nothing."""
        if not (_is_number(self.scale) and math.isfinite(self.scale) and self.scale > 0):
            raise self._refused("scale", "a number above 0 is needed")
        spoken = isinstance(self.invalid, str) and self.invalid in SPOKEN
        if not (spoken or (_is_number(self.invalid) and math.isfinite(float(self.invalid)))):
            raise self._refused("invalid", f"a number, or one of {', '.join(SPOKEN)} is needed")
        if not (self.units is None or isinstance(self.units, str)):
            raise self._refused("units", "a text, or None, is needed")
        if self.beyond not in ("refuse", "invalid"):
            raise self._refused("beyond", "'refuse' or 'invalid' is needed")
        if not isinstance(self.storage, Storage) or self.storage.table:
            raise self._refused("storage", "one of pictures is needed, such as VideoStorage(codec='ffv1')")

    def _refused(self, option: str, why: str) -> LayoutError:
        return LayoutError(f"DepthStorage({option}={getattr(self, option)!r}): {why}")

    def _check_leaf(self, leaf: Leaf) -> None:
        if not (
            leaf.fixed and leaf.nbytes and leaf.dtype in ("float16", "float32", "float64") and len(leaf.shape) in (2, 3)
        ):
            shape = leaf.shape if leaf.fixed else "(rows of no one shape)"
            raise LayoutError(
                f"{leaf.path!r}: {leaf.dtype} {shape} is no depth picture of floats; keep it with HDF5Storage()"
                f"{' or ZarrStorage()' if leaf.fixed and leaf.nbytes else ''}"
            )
        if leaf.kind != "depth":
            raise LayoutError(
                f"{leaf.path!r} is of kind {leaf.kind!r}, not 'depth': DepthStorage() would round it; keep it with "
                f"ZarrStorage(), or let its metadata say that its kind is 'depth'"
            )
        units = leaf.metadata.get("units", self.units)
        if self.units is not None and units != self.units:
            raise LayoutError(f"{leaf.path!r} is in {units!r}: DepthStorage(units={self.units!r}) takes no other")
        if not self.storage.exact(self._inner(leaf)):
            raise LayoutError(f"{self.storage} would lose more of {leaf.path!r}: DepthStorage() needs an exact one")

    def check_names(self, leaves: Sequence[Leaf]) -> None:
        self.storage.check_names(self.inner(leaves))

    def exact(self, leaf: Leaf) -> bool:
        return False

    def owns(self, leaf: Leaf, name: str) -> bool:
        return self.storage.owns(self._inner(leaf), name)

    def delay(self, leaf: Leaf) -> int:
        return self.storage.delay(self._inner(leaf))

    def _inner(self, leaf: Leaf) -> Leaf:
        return replace(leaf, dtype="uint16")

    def inner(self, leaves: Sequence[Leaf]) -> list[Leaf]:
        """Return the leaves as the other storage keeps them."""
        return [self._inner(leaf) for leaf in leaves]

    def encode(self, leaf: Leaf, depth: Array) -> Array:
        """Return depths as numbers of 16 bits.

        Raises:
            WriteError: one lies beyond what they hold.
        """
        absent = np.isnan(depth) if math.isnan(self.nothing) else depth == self.nothing
        with np.errstate(all="ignore"):
            steps = np.rint(depth.astype(np.float64) / self.scale)
        wrong = ~(absent | ((steps >= 1) & (steps <= MOST)))
        if wrong.any() and self.beyond == "refuse":
            raise WriteError(
                f"{leaf.path!r} has a depth of {depth[wrong][0]}; DepthStorage(scale={self.scale:g}) keeps "
                f"{self.scale:g} to {MOST * self.scale:g}, and {self.invalid} for none. Give it another scale, "
                f"or beyond='invalid', or keep the leaf with ZarrStorage()"
            )
        return np.where(absent | wrong, 0, steps).astype(np.uint16)

    def decode(self, leaf: Leaf, steps: Array) -> Array:
        """Return the depths of which `encode` made numbers."""
        return np.where(steps == 0, self.nothing, steps * self.scale).astype(leaf.numpy_dtype)

    def writer(self, directory: Path, leaves: Sequence[Leaf]) -> Writer:
        return DepthWriter(self, leaves, self.storage.writer(directory, self.inner(leaves)))

    def recover(self, directory: Path, leaves: Sequence[Leaf]) -> Writer:
        return DepthWriter(self, leaves, self.storage.recover(directory, self.inner(leaves)))

    def reader(self, directory: Path, leaves: Sequence[Leaf], counts: Counts) -> Reader:
        return DepthReader(self, directory, leaves, counts)

    def column(self, leaf: Leaf, column: Column) -> Column:
        """Return a column of depths over one of numbers."""
        return DepthColumn(leaf, column, self)

    def to_json(self) -> dict[str, JSON]:
        return {**super().to_json(), "storage": self.storage.to_json()}

    @classmethod
    def from_options(cls, options: Mapping[str, JSON]) -> Self:
        inner = options.get("storage")
        if inner is not None and not isinstance(inner, dict):
            raise FormatError(f"the storage in a depth storage is an object, got {inner!r:.80}")
        return super().from_options({**options, **({"storage": storage_from_json(inner)} if inner else {})})


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class DepthColumn(Column):
    """Depths over a column of numbers of 16 bits."""

    def __init__(self, leaf: Leaf, steps: Column, storage: DepthStorage) -> None:
        super().__init__(leaf, len(steps))
        self._steps = steps
        self._storage = storage

    def read(self, start: int, stop: int) -> Array:
        return self._storage.decode(self.leaf, self._steps.read(start, stop))

    def take(self, index: NDArray[np.intp]) -> Array:
        return self._storage.decode(self.leaf, self._steps.take(index))


class DepthWriter(Writer, Adopting):
    """The writer of another storage, which gets numbers of 16 bits instead of depths."""

    def __init__(self, storage: DepthStorage, leaves: Sequence[Leaf], writer: Writer) -> None:
        self._storage = storage
        self._leaves = tuple(leaves)
        self._writer = writer

    @property
    def nbytes(self) -> int:
        return self._writer.nbytes

    def append(self, rows: Mapping[str, Rows], runs: Sequence[Run]) -> None:
        own = {leaf.path: self._encoded(leaf, rows[leaf.path], runs) for leaf in self._leaves}
        self._writer.append({**rows, **own}, runs)

    def _encoded(self, leaf: Leaf, depth: Rows, runs: Sequence[Run]) -> Array:
        """Return rows that belong to a run as numbers; what lies between them may be anything."""
        assert isinstance(depth, np.ndarray)
        steps = np.zeros(depth.shape, np.uint16)
        for run in runs:
            rows = slice(run.start + (leaf.per == "transition" and run.first), run.stop)
            steps[rows] = self._storage.encode(leaf, depth[rows])
        return steps

    def end(self, segment: int) -> None:
        self._writer.end(segment)

    def checkpoint(self) -> None:
        self._writer.checkpoint()

    def segments(self) -> Sequence[Segment]:
        return self._writer.segments()

    def adopt(self, segment: Segment, reader: Reader, i: int) -> None:
        assert isinstance(reader, DepthReader)
        adopt(self._writer, segment, reader.steps, i)

    def view(self, segment: Segment) -> Mapping[str, Column]:
        columns = self._writer.view(segment)
        return {leaf.path: self._storage.column(leaf, columns[leaf.path]) for leaf in self._leaves}

    def pack(self, directory: Path, segments: Sequence[Segment]) -> Sequence[Leaf]:
        return self._writer.pack(directory, segments)

    def forget(self, segments: Sequence[int]) -> None:
        self._writer.forget(segments)

    def close(self) -> None:
        self._writer.close()


class DepthReader(Reader):
    """The reader of another storage, whose numbers of 16 bits come back as depths."""

    def __init__(self, storage: DepthStorage, directory: Path, leaves: Sequence[Leaf], counts: Counts) -> None:
        super().__init__(directory, leaves, counts)
        self._storage = storage
        self.steps = storage.storage.reader(directory, storage.inner(leaves), counts)

    def segment(self, i: int) -> Mapping[str, Column]:
        columns = self.steps.segment(i)
        return {path: self._storage.column(leaf, columns[path]) for path, leaf in self.leaves.items()}

    def whole(self, path: str) -> Column:
        return self._storage.column(self.leaves[path], self.steps.whole(path))

    def count(self) -> Mapping[str, int]:
        return self.steps.count()

    def close(self) -> None:
        self.steps.close()
