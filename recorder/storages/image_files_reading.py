"""Reading pictures that are files, one for each row."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from recorder.columns import Array, Column
from recorder.errors import DamagedError, FormatError
from recorder.files import missing
from recorder.leaf import Leaf
from recorder.storages.base import Counts
from recorder.storages.image_files_coding import PictureCoding, ended
from recorder.storages.streams import StreamReader
from recorder.threads import side_by_side

FEW = 4
"""So many pictures are decoded in less time than it takes to start a thread."""


def file_name(row: int, coding: PictureCoding) -> str:
    """Return the name of the file of a row."""
    return f"{row:06d}{coding.suffix}"


def folder_name(leaf: Leaf, i: int) -> str:
    """Return the name of the folder of a leaf and an episode in a shard."""
    return f"{leaf.path}/{i:06d}"


def read_picture(path: Path, coding: PictureCoding) -> Array:
    """Return the picture in a file.

    Raises:
        DamagedError: the file is missing, cut or cannot be decoded.
        FormatError: it holds a picture of another form.
    """
    try:
        return coding.decode(path.read_bytes())
    except FileNotFoundError:
        raise missing(path) from None
    except (DamagedError, FormatError) as error:
        raise type(error)(f"{path}: {error}") from error


class ImageColumn(Column):
    """The pictures in one folder as rows, decoded when they are asked for."""

    def __init__(self, coding: PictureCoding, length: int, folder: Path, threads: int | None) -> None:
        super().__init__(coding.leaf, length)
        self._coding = coding
        self._folder = folder
        self._threads = threads

    def read(self, start: int, stop: int) -> Array:
        return self.take(np.arange(start, stop))

    def take(self, index: NDArray[np.intp]) -> Array:
        wanted, back = np.unique(index, return_inverse=True)
        rows = np.empty((len(wanted), *self.leaf.shape), self.leaf.numpy_dtype)
        tasks = [partial(self._fill, rows, place, row) for place, row in enumerate(wanted.tolist())]
        side_by_side(tasks, 1 if len(tasks) <= FEW else self._threads)
        return rows if np.array_equal(wanted, index) else rows[back]

    def _fill(self, rows: Array, place: int, row: int) -> None:
        rows[place] = read_picture(self._folder / file_name(row, self._coding), self._coding)


class ImageReader(StreamReader):
    """The picture files of one shard: a folder for each leaf and episode that has rows of it."""

    def __init__(
        self, directory: Path, codings: Mapping[Leaf, PictureCoding], counts: Counts, threads: int | None
    ) -> None:
        super().__init__(directory, list(codings), counts)
        self._codings = {leaf.path: coding for leaf, coding in codings.items()}
        self._threads = threads

    def _column(self, leaf: Leaf, i: int) -> Column:
        rows = int(self.counts.rows(leaf.per)[i])
        return ImageColumn(self._codings[leaf.path], rows, self.directory / folder_name(leaf, i), self._threads)

    def count(self) -> Mapping[str, int]:
        return {path: sum(self._counted(leaf)) for path, leaf in self.leaves.items()}

    def _counted(self, leaf: Leaf) -> Sequence[int]:
        """Return how many files of each episode are there and go on to their end."""
        rows = self.counts.rows(leaf.per).tolist()
        return [
            len(whole_files(self.directory / folder_name(leaf, i), self._codings[leaf.path], count))
            for i, count in enumerate(rows)
        ]

    def close(self) -> None:
        """Give up nothing: no file stays open."""


def whole_files(folder: Path, coding: PictureCoding, most: int | None = None) -> list[Path]:
    """Return the files in a folder that are rows from 0 on, up to the first that is missing or cut."""
    files: list[Path] = []
    while most is None or len(files) < most:
        path = folder / file_name(len(files), coding)
        if not _is_whole(path, coding.format):
            break
        files.append(path)
    return files


def _is_whole(path: Path, format: str) -> bool:
    try:
        with path.open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            head = file.read(8)
            file.seek(max(0, size - 8))
            return ended(format, head, file.read(8), size)
    except FileNotFoundError:
        return False
