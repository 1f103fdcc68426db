"""Fitting: an episode of arrays, checked in full before any row of it is written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from recorder.columns import Array
from recorder.errors import RowError
from recorder.leaf import NUMBERS, TEXT, Leaf, cast_exactly, text_array


def fit_episode(episode: Mapping[str, Any], leaves: Mapping[str, Leaf]) -> dict[str, Array]:
    """Return the rows of each key as new arrays of its dtype.

    Raises:
        RowError: a key is missing or extra, the keys have different lengths, or rows do not fit exactly.
    """
    if not isinstance(episode, Mapping):
        raise RowError(f"an episode is a mapping from keys to rows, got {type(episode).__name__}")
    missing, extra = sorted(leaves.keys() - episode.keys()), sorted(episode.keys() - leaves.keys())
    if missing or extra:
        said = [f"lacks {missing}"] * bool(missing) + [f"has {extra}, which the buffer does not"] * bool(extra)
        raise RowError(f"the episode {' and '.join(said)}; the keys are {sorted(leaves)}")
    rows = {key: fit_rows(leaf, episode[key]) for key, leaf in leaves.items()}
    lengths = {key: len(column) for key, column in rows.items()}
    if len(set(lengths.values())) != 1:
        raise RowError(f"the keys of an episode have different numbers of rows: {lengths}")
    if not next(iter(lengths.values())):
        raise RowError("an episode has at least one row, got none")
    return rows


def fit_rows(leaf: Leaf, value: Any) -> Array:
    """Return rows as a new array: the caller may use his own for something else meanwhile."""
    array = _texts(leaf, value) if leaf.dtype == TEXT else _numbers(leaf, value)
    if array.ndim < 1 or array.shape[1:] != leaf.shape:
        raise RowError(f"{leaf.path!r} has rows of shape {leaf.shape}, got an array {array.shape}")
    return array


def _numbers(leaf: Leaf, value: Any) -> Array:
    try:
        array = np.asarray(value)
    except (ValueError, TypeError) as error:
        raise RowError(f"{leaf.path!r} is an array of {leaf.dtype}, got {value!r:.80}: {error}") from error
    if array.dtype.name not in NUMBERS:
        raise RowError(f"{leaf.path!r} is an array of {leaf.dtype}, got {array.dtype}")
    if array.dtype == leaf.numpy_dtype:
        return np.array(array, leaf.numpy_dtype, order="C")
    exact = cast_exactly(array, leaf.numpy_dtype)
    if exact is None:
        raise RowError(
            f"{leaf.path!r} is {leaf.dtype}, got {array.dtype} with values that are not exact in {leaf.dtype}"
        )
    return exact


def _texts(leaf: Leaf, value: Any) -> Array:
    array = np.asarray(value, object)
    for item in array.flat:
        if not isinstance(item, str):
            raise RowError(f"{leaf.path!r} is text, got {type(item).__name__} {item!r:.80}")
        if not item.isascii() and any("\ud800" <= letter <= "\udfff" for letter in item):
            raise RowError(f"{leaf.path!r} is text, got half a character in {item!r:.80}, which UTF-8 does not have")
    return text_array(list(map(str, array.flat))).reshape(array.shape)
