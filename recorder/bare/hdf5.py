"""Bare HDF5: a group for each episode, as robomimic has it, or flat arrays with ends, an index or flags."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from recorder.bare.hdf5_walk import contents_of
from recorder.bare.tables import BareSource, Form
from recorder.columns import Array
from recorder.errors import DamagedError, FormatError, NotARecordingError, RecorderError
from recorder.leaf import NUMBERS, TEXT, text_array

ENDS = ("episode_ends", "meta/episode_ends", "ends")
"""Datasets that say after which row each episode ends."""

BROKEN = (OSError, RuntimeError, KeyError, ValueError, TypeError, OverflowError, NotImplementedError)
"""What h5py raises over a file that is damaged, or needs a plug-in that is not there."""


class HDF5Source(BareSource):
    """The datasets of an HDF5 file. Links are left out, and rows that lie in other files are refused."""

    def __init__(self, path: Path, columns: Sequence[str] | None = None) -> None:
        self.path = path
        self.forms = {}
        self._names: dict[str, list[str]] = {}
        with self._open() as file:
            shapes, groups, self.left_out = contents_of(file)
            groups = self._filled(groups, shapes)
            if groups:
                self._take_groups(file, groups, shapes)
            else:
                self._take_flat(file, shapes)
        self.select(columns)
        if groups:
            self._count(groups, shapes)
        self._ends = np.cumsum([0, *self.pieces])

    @contextmanager
    def _open(self) -> Iterator[h5py.File]:
        """Open the file; what h5py raises then and meanwhile is an error that names it."""
        try:
            with h5py.File(self.path, "r", locking=False) as file:
                yield file
        except FileNotFoundError:
            raise NotARecordingError(f"{self.path} is missing") from None
        except RecorderError:
            raise
        except BROKEN as error:
            raise DamagedError(f"{self.path} cannot be read as HDF5: {error}") from error

    def _filled(self, groups: Sequence[str], shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
        """Return the groups of episodes that have any datasets."""
        filled = [group for group in groups if any(name.startswith(f"{group}/") for name in shapes)]
        self.left_out.update((group, "an episode without datasets") for group in groups if group not in filled)
        return filled

    def _take_groups(self, file: h5py.File, groups: list[str], shapes: dict[str, tuple[int, ...]]) -> None:
        """Take the datasets that all groups have; in a group all must have equally many rows."""
        names = [[name for name in shapes if name.startswith(f"{group}/")] for group in groups]
        inner = [{name.removeprefix(f"{group}/") for name in own} for group, own in zip(groups, names, strict=True)]
        shared = set.intersection(*inner)
        for name in sorted(set.union(*inner) - shared):
            self.left_out[name] = "not in all episodes"
        inside = tuple(f"{group}/" for group in groups)
        self.left_out.update((name, "in no episode") for name in shapes if not name.startswith(inside))
        for name in sorted(shared):
            self._declare(file, name, [f"{group}/{name}" for group in groups])

    def _count(self, groups: Sequence[str], shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Note the rows of each group; those without any are no episodes."""
        self.pieces = [self._rows_of(i, group, shapes) for i, group in enumerate(groups)]
        self.lengths = [rows for rows in self.pieces if rows]
        empty = [group for group, rows in zip(groups, self.pieces, strict=True) if not rows]
        self.left_out.update((group, "an episode of no rows") for group in empty)

    def _rows_of(self, i: int, group: str, shapes: Mapping[str, tuple[int, ...]]) -> int:
        rows = {name: shapes[self._names[name][i]][0] for name in self.forms}
        if len(set(rows.values())) > 1:
            counts = ", ".join(f"{name}: {count}" for name, count in sorted(rows.items()))
            raise FormatError(f"{self.path}: {group} has columns of several lengths, choose with columns=[…]: {counts}")
        return next(iter(rows.values()), 0)

    def _take_flat(self, file: h5py.File, shapes: dict[str, tuple[int, ...]]) -> None:
        ends = next((name for name in ENDS if name in shapes), None)
        known = np.asarray(_dataset(file, ends)[:], np.int64) if ends is not None else None
        counts = Counter(shape[0] for name, shape in shapes.items() if shape and name != ends)
        most = max(counts, key=lambda count: (counts[count], count), default=0)
        rows = int(known[-1]) if known is not None and len(known) else most
        for name, shape in sorted(shapes.items()):
            if name == ends:
                self.left_out[name] = "says where episodes end"
            elif not shape or shape[0] != rows:
                self.left_out[name] = f"of shape {shape}, and the others have {rows} rows"
            else:
                self._declare(file, name, [name])
        self.pieces = [rows] if rows else []
        self.lengths = np.diff(known, prepend=0).tolist() if known is not None else None

    def _declare(self, file: h5py.File, name: str, places: list[str]) -> None:
        """Take a column that lies in one dataset or several of one form."""
        found = {_form(_dataset(file, place)) for place in places}
        form = found.pop()
        if found or form is None:
            self.left_out[name] = "of several forms" if found else "neither numbers nor text"
            return
        self.forms[name] = form
        self._names[name] = places

    def read(self, name: str, start: int, stop: int) -> Array:
        with self._open() as file:
            parts = [
                self._decoded(name, _dataset(file, place)[max(start, first) - first : min(stop, last) - first])
                for place, first, last in zip(self._names[name], self._ends[:-1], self._ends[1:], strict=False)
                if start < last and stop > first
            ]
        form = self.forms[name]
        empty = np.empty((0, *form.shape), object if form.dtype == TEXT else form.dtype)
        return np.concatenate(parts) if parts else empty

    def _decoded(self, name: str, rows: Any) -> Array:
        if rows.dtype.kind not in "OS":
            return np.asarray(rows.astype(rows.dtype.newbyteorder("="), copy=False))
        try:
            return text_array([item.decode("utf-8") if isinstance(item, bytes) else str(item) for item in rows])
        except UnicodeDecodeError as error:
            raise FormatError(
                f"{self.path}: {name!r} holds bytes that are no UTF-8 text ({error}); leave it out with columns=[…]"
            ) from error


def _dataset(file: h5py.File, name: str) -> h5py.Dataset:
    place = file[name]
    if place.external or place.is_virtual:
        raise DamagedError(f"{file.filename}: {name!r} keeps its rows in other files, which is refused")
    return place


def _form(dataset: h5py.Dataset) -> Form | None:
    if not dataset.shape:
        return None
    if h5py.check_string_dtype(dataset.dtype) is not None:
        return Form(TEXT) if dataset.ndim == 1 else None
    number = dataset.dtype.name in NUMBERS and dataset.dtype.kind != "c"
    return Form(dataset.dtype.name, tuple(dataset.shape[1:])) if number else None
