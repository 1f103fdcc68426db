"""TableStorage: the base of storages that keep rows as named columns in files, of which each says two things.

How columns become the bytes of a file, and how a file is opened as columns: see `NpzStorage` for one in full.
"""

from __future__ import annotations

import sys
import zlib
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from recorder.errors import DamagedError, RecorderError
from recorder.leaf import Leaf
from recorder.storages.base import Counts, Reader, Storage, Writer
from recorder.storages.table import TableWriter
from recorder.storages.table_reading import Columns, TableFile, TableReader, is_table_name


@dataclass(frozen=True)
class TableStorage(Storage):
    """Table leaves in one file a shard, or several. A subclass has an `id`, a `suffix`, `encode` and `open`."""

    table = True
    suffix: ClassVar[str]
    numbered: ClassVar[bool] = False
    """Whether `encode` also gets the episode and the step of each row, as columns."""

    broken: ClassVar[tuple[type[Exception], ...]] = (OSError, ValueError, EOFError, KeyError, zlib.error)
    """What `open` raises over a file that is damaged."""

    @abstractmethod
    def encode(self, columns: Columns) -> bytes:
        """Return the bytes of a file that holds each column under its name; those of `object` are texts."""

    @abstractmethod
    def open(self, path: Path) -> TableFile:
        """Open a file: `file[name]` has a length and a size, and gives rows for a slice."""

    def check(self, leaves: Sequence[Leaf]) -> None:
        """Take all leaves."""

    def exact(self, leaf: Leaf) -> bool:
        return True

    def owns(self, leaf: Leaf, name: str) -> bool:
        return is_table_name(name, self.suffix)

    def most_rows(self) -> int:
        """Return how many rows a file may have."""
        return sys.maxsize

    def writer(self, directory: Path, leaves: Sequence[Leaf]) -> Writer:
        return self._writer(directory, leaves)

    def recover(self, directory: Path, leaves: Sequence[Leaf]) -> Writer:
        writer = self._writer(directory, leaves)
        writer.recover()
        return writer

    def _writer(self, directory: Path, leaves: Sequence[Leaf]) -> TableWriter:
        return TableWriter(
            directory,
            leaves,
            self.encode,
            self._opened,
            self.suffix,
            numbered=self.numbered,
            file_rows=self.most_rows(),
        )

    def reader(self, directory: Path, leaves: Sequence[Leaf], counts: Counts) -> Reader:
        return TableReader(directory, leaves, counts, self._opened, self.suffix)

    def _opened(self, path: Path) -> TableFile:
        try:
            return self.open(path)
        except RecorderError:
            raise
        except self.broken as error:
            raise DamagedError(f"{path} cannot be opened as {type(self).__name__} wrote it: {error}") from error
