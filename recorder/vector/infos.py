"""Infos of vector environments: dictionaries of arrays, a value a lane, with masks under `_key`, as columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from recorder.columns import Rows, Sparse
from recorder.infos import flatten, sparse_columns, unkept
from recorder.leaf import Leaf, encode_key, join

FINAL_OBSERVATION, FINAL_INFO = "final_obs", "final_info"
"""Where a vector environment that resets at once keeps what an episode ended with."""

Mask = NDArray[np.bool_]


class Given(NamedTuple):
    """The values that one key has in the lanes of one row: an array of all lanes, or a list, and who has one."""

    path: str
    values: NDArray[Any] | Sequence[Any]
    mask: Mask


def without_final(infos: Any) -> Any:
    """Return infos without the final observations."""
    if isinstance(infos, list):
        return [without_final(info) for info in infos]
    return {key: value for key, value in infos.items() if key not in (FINAL_OBSERVATION, f"_{FINAL_OBSERVATION}")}


def given(infos: Any, lanes: int, path: str = "info") -> Iterator[Given]:
    """Yield all keys of a snapshot of infos, which are a dictionary of batches or a list of one for each lane."""
    if isinstance(infos, list):
        for lane, info in enumerate(infos):
            mask = np.arange(lanes) == lane
            for key, value in flatten(info, path).items():
                yield Given(key, [value] * lanes, mask)
    elif isinstance(infos, dict):
        yield from _given(infos, path, np.ones(lanes, bool))


def _given(infos: Mapping[str, Any], path: str, above: Mask) -> Iterator[Given]:
    for key, value in infos.items():
        if key.startswith("_") and key[1:] in infos:
            continue
        name, mask = join(path, encode_key(key)), _mask(infos.get(f"_{key}"), above)
        if isinstance(value, dict):
            yield from _given(value, name, mask)
        elif _one_for_each(value, len(above)):
            yield Given(name, value, mask)
        elif value is not None:
            yield Given(name, [value] * len(above), mask)


def _one_for_each(value: Any, lanes: int) -> bool:
    """Return whether a value is a batch; any other is shared by all lanes."""
    return (isinstance(value, list) or (isinstance(value, np.ndarray) and value.ndim > 0)) and len(value) == lanes


def _mask(mask: Any, above: Mask) -> Mask:
    """Return who has a value: those of the mask, where one was given, that have the dictionary around it."""
    if isinstance(mask, np.ndarray) and mask.shape == above.shape and mask.dtype == bool:
        return mask & above
    return above


@dataclass(frozen=True)
class Place:
    """Where the rows of a piece go: `steps` rows of each lane, lane by lane, and after them the `finals` (k, lane)."""

    steps: int
    lanes: int
    finals: Sequence[tuple[int, int]] = ()

    @property
    def length(self) -> int:
        """All rows of the piece."""
        return self.steps * self.lanes + len(self.finals)


def columns(
    infos: Sequence[tuple[int, Any]], place: Place, keep: Callable[[str], bool], note_unkept: Callable[[str, str], None]
) -> dict[str, Rows]:
    """Return the infos of some rows `(k, snapshot)` as columns of the piece.

    Under `final_info` they are those of the last row of an episode, which then comes among the finals.
    """
    main: dict[str, list[tuple[int, Given]]] = {}
    final: dict[str, list[tuple[int, Given]]] = {}
    ending = {k for k, _ in place.finals}
    for k, snapshot in infos:
        rest, last = _parted(snapshot) if k in ending else (snapshot, {})
        for each in given(rest, place.lanes):
            main.setdefault(each.path, []).append((k, each))
        for each in given(last, place.lanes):
            final.setdefault(each.path, []).append((k, each))
    found: dict[str, Rows] = {}
    others: list[tuple[int, str, Any]] = []
    for path in filter(keep, dict.fromkeys([*main, *final])):
        column = _stacked(path, main.get(path, []), final.get(path, []), place)
        if column is None:
            others += [(row, path, value) for row, value in _single(main.get(path, []), final.get(path, []), place)]
        elif len(column.values):
            found[path] = column
    return {**found, **_by_value(others, place.length, keep, note_unkept)}


def _parted(infos: Any) -> tuple[Any, Any]:
    """Return infos without what belongs to the last rows of episodes, and that."""
    if isinstance(infos, list):
        parts = [_parted(info) for info in infos]
        return [rest for rest, _ in parts], [last for _, last in parts]
    rest = {key: value for key, value in infos.items() if key not in (FINAL_INFO, f"_{FINAL_INFO}")}
    return rest, infos.get(FINAL_INFO, {})


def _stacked(
    path: str, main: Sequence[tuple[int, Given]], final: Sequence[tuple[int, Given]], place: Place
) -> Sparse | None:
    """Return a key as one column if all its values are arrays of one kind."""
    arrays = [each.values for _, each in (*main, *final)]
    if not all(isinstance(array, np.ndarray) for array in arrays):
        return None
    kinds = {(array.shape, array.dtype) for array in arrays if isinstance(array, np.ndarray)}
    if len(kinds) != 1:
        return None
    shape, dtype = kinds.pop()
    present = np.zeros(place.length, bool)
    parts = [np.empty((0, *shape[1:]), dtype)]
    if main:
        masks = np.stack([each.mask for _, each in main], axis=1)
        grid = present[: place.steps * place.lanes].reshape(place.lanes, place.steps)
        grid[:, [k for k, _ in main]] = masks
        parts.append(np.stack([np.asarray(each.values) for _, each in main], axis=1)[masks])
    if final:
        held = dict(final)
        for i, (k, lane) in enumerate(place.finals):
            if k in held and held[k].mask[lane]:
                present[place.steps * place.lanes + i] = True
                parts.append(np.asarray(held[k].values[lane])[np.newaxis])
    return Sparse(Leaf(path, shape[1:], dtype.name, sparse=True), present, np.concatenate(parts))


def _single(
    main: Sequence[tuple[int, Given]], final: Sequence[tuple[int, Given]], place: Place
) -> Iterator[tuple[int, Any]]:
    """Yield the values of a key one by one, with the rows that they belong to."""
    for k, each in main:
        for lane in np.flatnonzero(each.mask).tolist():
            yield lane * place.steps + k, each.values[lane]
    for i, (k, lane) in enumerate(place.finals):
        for at, each in final:
            if at == k and each.mask[lane]:
                yield place.steps * place.lanes + i, each.values[lane]


def _by_value(
    items: Sequence[tuple[int, str, Any]],
    length: int,
    keep: Callable[[str], bool],
    note_unkept: Callable[[str, str], None],
) -> dict[str, Sparse]:
    """Return values of any kind as columns."""
    rows: dict[int, dict[str, Any]] = {}
    for row, path, value in items:
        if value is None:
            continue
        flat = flatten(value, path) if isinstance(value, dict) else {path: value}
        flat = {name: inner for name, inner in flat.items() if keep(name)}
        for name, kind in unkept(flat).items():
            note_unkept(name, kind)
            del flat[name]
        rows.setdefault(row, {}).update(flat)
    return sparse_columns(sorted(rows.items(), key=lambda item: item[0]), length) if rows else {}
