"""What a bare HDF5 file holds: its datasets by name, and all that is none, with the reason. No link is followed."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import h5py

from recorder.bare.tables import DEEPEST

GROUPS = ("data", "")
"""Groups that may hold one group for each episode."""


class Contents(NamedTuple):
    """The shapes of the datasets of a file, the groups that are an episode each, and what else there is, and why not.

    Without groups for episodes the datasets are flat arrays.
    """

    shapes: dict[str, tuple[int, ...]]
    groups: list[str]
    left_out: dict[str, str]


def contents_of(file: h5py.File) -> Contents:
    """Return what a file holds. Each group is looked into once, however many names lead to it."""
    shapes: dict[str, tuple[int, ...]] = {}
    left_out: dict[str, str] = {}
    known = {_object(file): "/"}
    waiting: list[tuple[str, Any]] = [("", file)]
    while waiting:
        path, group = waiting.pop()
        for name in group:
            where = f"{path}{name}"
            link = group.get(name, getlink=True)
            place = group[name] if isinstance(link, h5py.HardLink) else None
            if isinstance(place, h5py.Dataset) and place.shape is not None:
                shapes[where] = place.shape
            elif isinstance(place, h5py.Group) and where.count("/") < DEEPEST and _object(place) not in known:
                known[_object(place)] = where
                waiting.append((f"{where}/", place))
            else:
                left_out[where] = _why_not(link, place, known)
    return Contents(shapes, _episode_groups(file, left_out), left_out)


def _object(place: Any) -> int:
    """Return what tells one object of a file from another: two names may lead to the same one."""
    return int(h5py.h5o.get_info(place.id).addr)


def _why_not(link: Any, place: Any, known: dict[int, str]) -> str:
    match link:
        case h5py.SoftLink():
            return f"a link to {link.path!r}; links are not followed"
        case h5py.ExternalLink():
            return f"a link to {link.path!r} in the file {link.filename!r}; links are not followed"
    match place:
        case h5py.Group() if _object(place) in known:
            return f"the same group as {known[_object(place)]!r}"
        case h5py.Group():
            return f"a group that is more than {DEEPEST} groups deep"
        case h5py.Dataset():
            return "a dataset without a value"
    return "a type, and no dataset"


def _episode_groups(file: h5py.File, left_out: dict[str, str]) -> list[str]:
    """Return the groups that are an episode each, in the order of the numbers in their names, if there are any."""
    for name in GROUPS:
        group = file if not name else None if name in left_out else file.get(name)
        if not isinstance(group, h5py.Group):
            continue
        prefix = f"{name}/" if name else ""
        names = [key for key in group if f"{prefix}{key}" not in left_out]
        if names and all(isinstance(group[key], h5py.Group) and re.search(r"\d+$", key) for key in names):
            ordered = sorted(names, key=lambda key: int(re.findall(r"\d+$", key)[0]))
            return [f"{prefix}{key}" for key in ordered]
    return []
