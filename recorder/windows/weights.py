"""Weights: how often each window is drawn, as a tree of sums in which drawing and changing take logarithmic time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from recorder.errors import WindowError

Floats = NDArray[np.float64]


class WeightTree:
    """Weights that may be changed: an inner node is the sum of the two below it, `_nodes[1]` that of all.

    The structure is that of Schaul et al., Prioritized Experience Replay, 2016, appendix B.2.1, for many at once.
    """

    def __init__(self, weights: Floats) -> None:
        self._count = len(weights)
        self._first = 1 << max(self._count - 1, 0).bit_length()
        self._nodes = np.zeros(2 * self._first)
        self._nodes[self._first : self._first + self._count] = checked(weights)
        level = self._first
        while level > 1:
            below = self._nodes[level : 2 * level]
            self._nodes[level // 2 : level] = below[::2] + below[1::2]
            level //= 2

    @property
    def weights(self) -> Floats:
        """All weights."""
        return self._nodes[self._first : self._first + self._count].copy()

    @property
    def total(self) -> float:
        """The sum of all weights."""
        return float(self._nodes[1])

    def of(self, index: NDArray[np.int64]) -> Floats:
        """Return the weights of some."""
        return self._nodes[self._first + index]

    def update(self, index: NDArray[np.int64], weights: Floats) -> None:
        """Change some weights; of one that is named twice the last counts."""
        self._nodes[self._first + index] = checked(weights)
        nodes = np.unique((self._first + index) // 2)
        while len(nodes) and nodes[0] > 0:
            self._nodes[nodes] = self._nodes[2 * nodes] + self._nodes[2 * nodes + 1]
            nodes = np.unique(nodes // 2)

    def draw(self, count: int, generator: np.random.Generator) -> NDArray[np.int64]:
        """Return so many, each independent of the others, by their weights."""
        if not self.total > 0:
            raise WindowError("no window can be drawn: all weights are 0")
        left_over = generator.random(count) * self.total
        nodes = np.ones(count, np.int64)
        for _ in range(self._first.bit_length() - 1):
            left = self._nodes[2 * nodes]
            # Rounded sums may point past the last weight of a side: what weighs nothing is never taken.
            right = (left_over >= left) & (self._nodes[2 * nodes + 1] > 0)
            left_over -= np.where(right, left, 0)
            nodes = 2 * nodes + right
        return nodes - self._first


def checked(weights: Floats) -> Floats:
    """Return weights, or raise `WindowError` where one is none."""
    weights = np.asarray(weights, np.float64)
    if not (np.isfinite(weights) & (weights >= 0)).all():
        raise WindowError("weights are finite numbers from 0 on")
    return weights
