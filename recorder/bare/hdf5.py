"""Bare HDF5: a group for each episode, as robomimic has it, or flat arrays with ends, an index or flags."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from recorder.bare.tables import BareSource, Form
from recorder.columns import Array
from recorder.errors import DamagedError, FormatError, NotARecordingError
from recorder.leaf import NUMBERS, TEXT, text_array

ENDS = ("episode_ends", "meta/episode_ends", "ends")
"""Datasets that say after which row each episode ends."""

GROUPS = ("data", "")
"""Groups that may hold one group for each episode."""


class HDF5Source(BareSource):
    """The datasets of an HDF5 file. What leads out of the file is refused."""

    def __init__(self, path: Path, columns: Sequence[str] | None = None) -> None:
        self.path = path
        self.forms, self.left_out = {}, {}
        self._names: dict[str, list[str]] = {}
        with self._open() as file:
            shapes = dict(_datasets(file, ""))
            if groups := _episode_groups(file):
                self._take_groups(file, groups, shapes)
            else:
                self._take_flat(file, shapes)
        self.select(columns)
        if groups:
            self.pieces = [self._rows_of(i, group, shapes) for i, group in enumerate(groups)]
            self.lengths = self.pieces
        self._ends = np.cumsum([0, *self.pieces])

    def _open(self) -> h5py.File:
        try:
            return h5py.File(self.path, "r", locking=False)
        except FileNotFoundError:
            raise NotARecordingError(f"{self.path} is missing") from None
        except OSError as error:
            raise DamagedError(f"{self.path} cannot be opened as HDF5: {error}") from error

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
                self.left_out[name] = f"of shape {shape}, and rows are {rows}"
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
                _decoded(_dataset(file, place)[max(start, first) - first : min(stop, last) - first])
                for place, first, last in zip(self._names[name], self._ends[:-1], self._ends[1:], strict=False)
                if start < last and stop > first
            ]
        form = self.forms[name]
        empty = np.empty((0, *form.shape), object if form.dtype == TEXT else form.dtype)
        return np.concatenate(parts) if parts else empty


def _datasets(group: Any, path: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the datasets below a group by name, with their shapes; no link is followed."""
    for name in group:
        where = f"{path}{name}"
        if not isinstance(group.get(name, getlink=True), h5py.HardLink):
            continue
        place = group[name]
        if isinstance(place, h5py.Group):
            yield from _datasets(place, f"{where}/")
        elif isinstance(place, h5py.Dataset) and place.shape is not None:
            yield where, place.shape


def _episode_groups(file: h5py.File) -> list[str]:
    """Return the groups that are an episode each, in the order of the numbers in their names, if there are any."""
    for name in GROUPS:
        group = file.get(name) if name else file
        if not isinstance(group, h5py.Group) or not len(group):
            continue
        names = [key for key in group if isinstance(group.get(key), h5py.Group)]
        if len(names) == len(group) and all(re.search(r"\d+$", key) for key in names):
            ordered = sorted(names, key=lambda key: int(re.findall(r"\d+$", key)[0]))
            return [f"{name}/{key}" if name else key for key in ordered]
    return []


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


def _decoded(rows: Any) -> Array:
    if rows.dtype.kind in "OS":
        return text_array([item.decode("utf-8") if isinstance(item, bytes) else str(item) for item in rows])
    return np.asarray(rows.astype(rows.dtype.newbyteorder("="), copy=False))
