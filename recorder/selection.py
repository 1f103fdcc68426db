"""Selection: which episodes are recorded, and how much of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, NamedTuple

from recorder.leaf import JSON


@dataclass(frozen=True)
class Selection:
    """Which episodes a Recorder records; the others run as without one.

    Args:
        every: record each n-th episode: with 10 the episodes 0, 10, 20, …; 0 leaves this out.
        first: record the first n episodes.
        when: a function of the episode's number, counted from 0, that says whether it is recorded.
        max_episodes: begin no more episodes once so many are kept.
        max_steps: begin no more episodes once those that are kept have so many steps; the last one is whole.
        pictures_every: take a picture only in every n-th row, and let the last one stand in the others, which
            `repeated/<leaf>` marks. Pictures that lie in tables are small, and always taken.
        last_seconds: record nothing until `trigger()`; then what the running episode brought in so many seconds
            before, which was kept in memory, and the rest of it. Episodes that `every`, `first` or `when` name are
            recorded whole, the others wait for the trigger.

    `every`, `first` and `when` add up: what one of them names is recorded. Without any, all episodes are, or none
    before a trigger.

    >>> [number for number in range(30) if Selection(first=3, every=10).names(number)]
    [0, 1, 2, 10, 20]
    """

    every: int = 0
    first: int = 0
    when: Callable[[int], bool] | None = None
    max_episodes: int | None = None
    max_steps: int | None = None
    pictures_every: int = 1
    last_seconds: float | None = None

    def __post_init__(self) -> None:
        """Raise `ValueError` for numbers that mean nothing."""
        if self.every < 0 or self.first < 0 or self.pictures_every < 1:
            raise ValueError(f"every and first are at least 0 and pictures_every at least 1, got {self}")
        if not all(isinstance(number, int) for number in (self.every, self.first, self.pictures_every)):
            raise ValueError(f"every, first and pictures_every are whole numbers, got {self}")
        if (self.max_episodes or 0) < 0 or (self.max_steps or 0) < 0:
            raise ValueError(f"max_episodes and max_steps are at least 0, got {self}")
        if self.last_seconds is not None and not self.last_seconds > 0:
            raise ValueError(f"last_seconds is a time in seconds, got {self.last_seconds}")

    def names(self, number: int) -> bool:
        """Return whether the episode with this number, counted from 0, is to be recorded from its reset on."""
        if not self.every and not self.first and self.when is None:
            return self.last_seconds is None
        if number < self.first or (self.every and number % self.every == 0):
            return True
        return self.when is not None and bool(self.when(number))

    def enough(self, episodes: int, steps: int) -> bool:
        """Return whether so many episodes, with so many steps, are all that is wanted."""
        return (self.max_episodes is not None and episodes >= self.max_episodes) or (
            self.max_steps is not None and steps >= self.max_steps
        )

    @property
    def limits(self) -> str:
        """The most that is wanted, in words.

        >>> Selection(max_episodes=5).limits
        'max_episodes=5'
        """
        limits = {"max_episodes": self.max_episodes, "max_steps": self.max_steps}
        return " and ".join(f"{name}={limit}" for name, limit in limits.items() if limit is not None)


class Remembered(NamedTuple):
    """One row, by name of its structures, with its info."""

    values: dict[str, Any]
    info: Mapping[str, Any]


class Memory:
    """The rows of the last seconds of a running episode, which are copies."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.rows: deque[Remembered] = deque()
        self.dropped = 0
        self.labels: dict[str, JSON] = {}

    def clear(self) -> None:
        """Forget everything: another episode begins."""
        self.rows.clear()
        self.labels = {}
        self.dropped = 0

    def add(self, values: Mapping[str, Any], info: Mapping[str, Any]) -> None:
        """Remember a row, and forget those that are too old."""
        self.rows.append(Remembered(deepcopy(dict(values)), deepcopy(dict(info))))
        oldest = values["time"] - self.seconds
        while len(self.rows) > 1 and self.rows[1].values["time"] <= oldest:
            self.rows.popleft()
            self.dropped += 1

    def take(self) -> list[Remembered]:
        """Return the rows with times from the first on, and forget them."""
        rows = list(self.rows)
        began = rows[0].values["time"]
        for row in rows:
            row.values["time"] -= began
        self.rows.clear()
        return rows
