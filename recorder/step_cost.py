"""The cost of a step: what the recorder adds to the environment's own time, measured on a sample of all steps."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

SAMPLES = 4096
"""The last so many measured steps decide the quantiles."""


class Quantiles(NamedTuple):
    """Seconds that the recorder added to a step: half of the steps, 99 in 100, and all of them took no more."""

    p50: float
    p99: float
    most: float

    def __str__(self) -> str:
        return ", ".join(
            f"{name} {seconds_text(value)}" for name, value in zip(("p50", "p99", "max"), self, strict=True)
        )


class StepCost:
    """The seconds of measured steps: the last `SAMPLES` of them, and the most of all."""

    def __init__(self) -> None:
        self._seconds = np.zeros(SAMPLES)
        self._most = 0.0
        self.count = 0

    def add(self, seconds: float) -> None:
        """Take the seconds that one step cost besides the environment's own."""
        self._seconds[self.count % SAMPLES] = seconds
        self._most = max(self._most, seconds)
        self.count += 1

    def quantiles(self) -> Quantiles | None:
        """Return the quantiles of what was measured, or None if nothing was."""
        if not self.count:
            return None
        p50, p99 = np.quantile(self._seconds[: self.count], (0.5, 0.99))
        return Quantiles(float(p50), float(p99), self._most)


def seconds_text(seconds: float) -> str:
    """Return seconds as people read them.

    >>> seconds_text(3.2e-06), seconds_text(0.0421), seconds_text(2.5)
    ('3.2 µs', '42.1 ms', '2.5 s')
    """
    for size, unit in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds * 1e6:.1f} µs"
