"""A bare table: columns of equally many rows that no recording wrote, and the spaces that their values fit."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.spaces import Space

from recorder.columns import Array, Column
from recorder.errors import FormatError
from recorder.leaf import TEXT, Leaf, encode_keys, join
from recorder.metadata.annotation import did_you_mean

DEEPEST = 64
"""Names are no more than so many parts: what is deeper is no table that anyone made on purpose."""


@dataclass(frozen=True)
class Form:
    """What the rows of a bare column are: arrays of a shape and dtype, or text; of changing length if `ragged`."""

    dtype: str
    shape: tuple[int, ...] = ()
    ragged: bool = False


class BareSource(ABC):
    """The columns of a bare file or folder, by their own names; names are nested where they have a `/`.

    `left_out` says which columns are none of numbers, text or lists of them, and why. `lengths` are the rows of each
    episode where the file itself says so, else None.
    """

    forms: dict[str, Form]
    left_out: dict[str, str]
    lengths: list[int] | None = None
    pieces: list[int]
    """The rows of each file, or of each group, in their order."""

    @property
    def rows(self) -> int:
        """How many rows each column has."""
        return sum(self.pieces)

    @abstractmethod
    def read(self, name: str, start: int, stop: int) -> Array:
        """Return the rows `[start, stop)` of a column; those of changing length as objects."""

    def select(self, patterns: Sequence[str] | None) -> None:
        """Leave out all columns but those that match a name or a glob.

        Raises:
            FormatError: a pattern matches none.
        """
        for pattern in patterns or ():
            if not any(_matches(name, pattern) for name in self.forms):
                nearest = did_you_mean(pattern, self.forms)
                why = f" that can be taken: {self.left_out[pattern]}" if pattern in self.left_out else nearest
                raise FormatError(f"no column {pattern!r}{why}; the columns are {sorted(self.forms)}")
        if patterns is not None:
            gone = [name for name in self.forms if not any(_matches(name, pattern) for pattern in patterns)]
            for name in gone:
                del self.forms[name]
                self.left_out[name] = "not asked for"


def _matches(name: str, pattern: str) -> bool:
    """Return whether a name is the one that was given, brackets and all, or one that a glob means."""
    return name == pattern or fnmatchcase(name, pattern)


class BareColumn(Column):
    """A column of a bare file as one of a recording."""

    def __init__(self, leaf: Leaf, source: BareSource, name: str) -> None:
        super().__init__(leaf, source.rows)
        self._source = source
        self._name = name

    def read(self, start: int, stop: int) -> Array:
        return self._source.read(self._name, start, stop)


def paths_of(space: spaces.Dict, names: Iterable[str]) -> dict[str, str]:
    """Return the name of the column that each leaf is, by its path in `space`, which is that of a row.

    >>> paths_of(spaces.Dict({"x": spaces.Discrete(2), "obs": spaces.Dict(y=spaces.Discrete(2))}), ["obs/y", "x"])
    {'obs/y': 'obs/y', 'x': 'x'}
    """
    known = {tuple(parts_of(name)): name for name in names}
    return {path: known[keys] for path, keys in _places(space)}


def _places(space: spaces.Dict) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the path of each column in the space of a row, and the keys that lead to it."""
    for part, (key, inner) in zip(encode_keys(list(space.spaces)), space.spaces.items(), strict=True):
        for path, keys in _places(inner) if isinstance(inner, spaces.Dict) else [("", ())]:
            yield join(part, path), (key, *keys)


def parts_of(name: str) -> list[str]:
    """Return the keys that a name joins."""
    return [part for part in name.split("/") if part] or [name]


def space_of(source: BareSource) -> spaces.Dict:
    """Return the space of a row: a Dict, nested as the names are.

    Raises:
        FormatError: one name is a column, and also the beginning of another.
    """
    tree: dict[str, Any] = {}
    taken: dict[tuple[str, ...], str] = {}
    for name, form in source.forms.items():
        *outer, last = parts = parts_of(name)
        if len(parts) > DEEPEST:
            raise FormatError(f"{name!r:.80} has more than {DEEPEST} parts; leave it out with columns=[…]")
        if (other := taken.setdefault(tuple(parts), name)) != name:
            raise FormatError(f"{name!r} and {other!r} would be one leaf; leave one of them out with columns=[…]")
        inner = tree
        for part in outer:
            inner = inner.setdefault(part, {})
            if not isinstance(inner, dict):
                raise FormatError(f"{part!r} in {name!r} is a column itself; leave one of them out with columns=[…]")
        if last in inner:
            raise FormatError(
                f"{name!r} is a column and the beginning of another; leave one of them out with columns=[…]"
            )
        inner[last] = _space(form, source, name)
    return _dict(tree)


def _dict(tree: Mapping[str, Any]) -> spaces.Dict:
    return spaces.Dict({key: _dict(inner) if isinstance(inner, dict) else inner for key, inner in tree.items()})


def _space(form: Form, source: BareSource, name: str) -> Space[Any]:
    element = _text_space(source, name) if form.dtype == TEXT else _box(form)
    return spaces.Sequence(element, stack=form.dtype != TEXT) if form.ragged else element


def _box(form: Form) -> spaces.Box:
    dtype = np.dtype(form.dtype)
    if dtype.kind == "f":
        return spaces.Box(-np.inf, np.inf, form.shape, dtype.type)
    if dtype.kind == "b":
        return spaces.Box(0, 1, form.shape, np.bool_)  # type: ignore[arg-type]
    limits = np.iinfo(dtype)
    return spaces.Box(limits.min, limits.max, form.shape, dtype.type)


def _text_space(source: BareSource, name: str) -> spaces.Text:
    """Return the space of all texts that there are."""
    longest, characters = 1, set[str]()
    for text in texts_of(source, name):
        longest = max(longest, len(text))
        characters.update(text)
    return spaces.Text(longest, min_length=0, charset=frozenset(characters or {"a"}))


def texts_of(source: BareSource, name: str, block: int = 65_536) -> Iterator[str]:
    """Yield the texts of a column, those of rows of changing length too."""
    for start in range(0, source.rows, block):
        for row in source.read(name, start, min(start + block, source.rows)):
            yield from (row,) if isinstance(row, str) else row


def usable(names: Iterable[str], forms: Mapping[str, Form]) -> list[str]:
    """Return those of `names` that are columns of one number a row."""
    return [name for name in names if name in forms and not forms[name].shape and not forms[name].ragged]
