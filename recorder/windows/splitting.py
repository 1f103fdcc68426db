"""Splitting: which episodes are for training and which for validation, and fewer of them, seeded by episode."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from recorder.asking import whole
from recorder.errors import WindowError

Mask = NDArray[np.bool_]


def split_episodes(episodes: int, validation: float, seed: int = 0) -> tuple[Mask, Mask]:
    """Return masks of the episodes for training and of those for validation; each is in one of the two.

    Each episode has a random number that depends on the seed and its position only; those with the smallest are for
    validation. So when episodes are added, hardly one changes sides. At least one is on either side, if there are two
    and `validation` is neither 0 nor 1.

    Args:
        episodes: how many there are.
        validation: which share of them is for validation, from 0 to 1.
        seed: another seed gives another split.

    >>> training, validation = split_episodes(10, 0.2)
    >>> int(training.sum()), int(validation.sum()), bool((training ^ validation).all())
    (8, 2, True)
    """
    whole("episodes", episodes, 0, error=WindowError)
    if isinstance(validation, bool) or not 0 <= validation <= 1:
        raise WindowError(f"validation={validation!r}: a share of the episodes, from 0 to 1")
    count = round(episodes * validation)
    if 0 < validation < 1 and episodes > 1:
        count = min(max(count, 1), episodes - 1)
    held = np.zeros(episodes, bool)
    held[_ranked(episodes, seed, 0)[:count]] = True
    return ~held, held


def downsample_episodes(mask: Mask, most: int, seed: int = 0) -> Mask:
    """Return a mask of at most so many of the episodes of a mask.

    With one seed, fewer episodes are always some of the more ones: so 10, 20 and 50 show what more data would give.

    >>> downsample_episodes(np.ones(10, bool), 3).sum()
    np.int64(3)
    """
    whole("most", most, 0, error=WindowError)
    mask = np.asarray(mask)
    if mask.dtype != bool or mask.ndim != 1:
        raise WindowError(f"mask is {mask.dtype} {mask.shape}; it has a bool for each episode")
    ranked = _ranked(len(mask), seed, 1)
    kept = np.zeros(len(mask), bool)
    kept[ranked[mask[ranked]][:most]] = True
    return kept


def _ranked(episodes: int, seed: int, purpose: int) -> NDArray[np.intp]:
    """Return the episodes in the order of their random numbers; another purpose has others."""
    whole("seed", seed, 0, error=WindowError)
    return np.argsort(np.random.default_rng([seed, purpose]).random(episodes), kind="stable")
