"""The spaces of what was recorded, the same for recordings on disk and in memory."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from gymnasium.spaces import Space

from recorder.schema import ROW, Schema


class RecordedSpaces:
    """The spaces that a schema has, by the names that people look for."""

    @property
    @abstractmethod
    def schema(self) -> Schema:
        """What all episodes have in common."""

    @property
    def observation_space(self) -> Space[Any]:
        """The observation space, as it was recorded."""
        return self._space("observation")

    @property
    def action_space(self) -> Space[Any]:
        """The action space, as it was recorded."""
        return self._space("action")

    @property
    def space(self) -> Space[Any]:
        """The space of a row, in a recording that is no series of steps."""
        return self._space(ROW)

    def _space(self, name: str) -> Space[Any]:
        if name not in self.schema.spaces:
            raise KeyError(f"this recording has the spaces {list(self.schema.spaces)}, not {name!r}")
        return self.schema.spaces[name]
