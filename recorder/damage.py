"""Damage: a shard of which some files are missing or cut, and whose other episodes are read all the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from recorder.columns import Column
from recorder.errors import DamagedError
from recorder.storages.base import Reader
from recorder.storages.table_reading import LazyColumns


class DamagedReader(Reader):
    """A reader that raises for what lies in damaged files, and for nothing else.

    Files of a leaf that hold one episode each are named by its number: `<leaf>/000002.mp4`, `<leaf>/000002/…`.
    """

    def __init__(self, reader: Reader, damaged: Mapping[str, DamagedError], ids: Sequence[str]) -> None:
        """Take a reader, what is wrong with files by their names in the shard, and the ids of its episodes."""
        super().__init__(reader.directory, list(reader.leaves.values()), reader.counts)
        self._reader = reader
        self._damaged = damaged
        self._ids = ids

    def segment(self, i: int) -> Mapping[str, Column]:
        columns = self._reader.segment(i)

        def column(path: str) -> Column:
            self._check(path, i)
            return columns[path]

        return LazyColumns(columns, column)

    def whole(self, path: str) -> Column:
        self._check(path)
        return self._reader.whole(path)

    def count(self) -> Mapping[str, int]:
        return self._reader.count()

    def encoded(self, path: str, rows: slice) -> Sequence[bytes] | None:
        self._check(path)
        return self._reader.encoded(path, rows)

    def close(self) -> None:
        self._reader.close()

    def _check(self, path: str, episode: int | None = None) -> None:
        """Raise what is wrong with a file of a leaf, or of one episode of it."""
        for name, error in self._damaged.items():
            if not name.startswith((f"{path}/", f"{path}.")):
                continue
            if episode is None:
                raise error
            if number_in(name, path) in (None, episode):
                raise DamagedError(f"episode {self._ids[episode]}: {error}") from error


def number_in(name: str, path: str) -> int | None:
    """Return the number of the one episode of which a file of a leaf holds rows, or None where it holds many.

    >>> number_in("observation/wrist/000002/000000.png", "observation/wrist")
    2
    >>> number_in("observation/wrist/000002.mp4", "observation/wrist")
    2
    >>> number_in("observation/wrist.zarr/c.0.0.0.0", "observation/wrist")
    """
    number = name.removeprefix(f"{path}/").split("/")[0].split(".")[0]
    return int(number) if name.startswith(f"{path}/") and number.isdecimal() else None
