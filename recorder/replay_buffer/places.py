"""Places: where the files of a replay buffer are, as names and bytes: a folder, or any store that zarr has.

zarr-python takes about a millisecond for one row of one sharded array, ten times what decoding it takes. So the
bytes are fetched here by name, and a folder is read without any of zarr.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from zarr.abc.store import Store

from recorder.errors import DamagedError
from recorder.threads import Task, side_by_side

Span = tuple[int, int]
"""From which byte of a file to which."""


class MissingFileError(DamagedError):
    """A name that was to be read is not there."""


class File(ABC):
    """One file that is being read; all of it is of one moment, whatever a writer puts in its place."""

    version: Any = None
    """What changes when the file is replaced; None where nothing tells."""

    @abstractmethod
    def tail(self, size: int) -> bytes:
        """Return the last bytes of the file; fewer where it is shorter."""

    @abstractmethod
    def spans(self, spans: Sequence[Span]) -> list[bytes]:
        """Return some parts of the file."""


WAITING_TASKS = 8
"""Writings that wait for a disk, or for a store that is far away, at the same time."""


def together(tasks: Sequence[Task]) -> None:
    """Do all tasks at the same time, of which each waits more than it computes."""
    if tasks:
        side_by_side(tasks, WAITING_TASKS)


class Place(ABC):
    """Names and bytes. Names are relative and use `/`."""

    durable = True
    """Whether bytes that were put must be synced to survive a power loss."""

    @property
    @abstractmethod
    def name(self) -> str:
        """What an error calls this place."""

    @property
    @abstractmethod
    def store(self) -> Store:
        """This place as zarr takes it."""

    @property
    def path(self) -> str:
        """Where this place is in the store."""
        return ""

    @abstractmethod
    def open(self, name: str) -> Any:
        """Return a context manager that gives the `File` of a name, or raises `MissingFileError`."""

    @abstractmethod
    def get(self, name: str) -> bytes | None:
        """Return all bytes of a name, or None where there is no such name."""

    def get_many(self, names: Sequence[str]) -> list[bytes | None]:
        """Return all bytes of several names."""
        return [self.get(name) for name in names]

    @abstractmethod
    def put(self, name: str, data: bytes, durable: bool = True) -> None:
        """Give a name its bytes, all at once; with `durable` they survive a power loss when this returns."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Remove a name, or all names below it; nothing happens where there is none."""

    @abstractmethod
    def children(self, name: str) -> list[str]:
        """Return the next parts of all names below a name, sorted."""

    @abstractmethod
    def barrier(self) -> None:
        """Return when all that was put, durable or not, survives a power loss."""

    @abstractmethod
    def holds(self, other: Place) -> bool:
        """Return whether another place is this one, or lies in it."""

    @contextmanager
    def replacing(self) -> Iterator[Place]:
        """Give a place for what is to come in the place of this one; this one, where nothing better is to be had."""
        yield self

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Be the only writer of this place where that can be told: in folders of one host.

        Raises:
            WriteError: another one writes.
        """
        yield
