"""A folder as the place of a replay buffer: files read without any of zarr, and written whole."""

from __future__ import annotations

import glob
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

from zarr.abc.store import Store
from zarr.storage import LocalStore

from recorder.errors import DamagedError, WriteError
from recorder.files import remove, sync, write_file
from recorder.replay_buffer.places import File, MissingFileError, Place, Span
from recorder.replay_buffer.swapping import successor


class FolderFile(File):
    """An open file of a folder."""

    def __init__(self, path: Path, file: FileIO) -> None:
        self._path = path
        self._file = file
        status = os.fstat(file.fileno())
        self.size = status.st_size
        self.version = (status.st_ino, status.st_size, status.st_mtime_ns)

    def tail(self, size: int) -> bytes:
        return self._read(max(0, self.size - size), size)

    def spans(self, spans: Sequence[Span]) -> list[bytes]:
        return [self._span(*span) for span in spans]

    def _span(self, start: int, stop: int) -> bytes:
        data = self._read(start, stop - start)
        if len(data) != stop - start:
            raise DamagedError(f"{self._path} ends at {start + len(data)} bytes, expected {stop}")
        return data

    def _read(self, start: int, size: int) -> bytes:
        self._file.seek(start)
        return self._file.read(size)


class FolderPlace(Place):
    """A local folder. Files are opened anew for each reading: nothing to close, to lose in a fork, or to run out of."""

    def __init__(self, folder: Path, name: str = "") -> None:
        """Take a folder, and what errors call it, if that is not its path."""
        self.folder = folder
        self._name = name or str(folder)

    @property
    def name(self) -> str:
        return self._name

    @property
    def store(self) -> Store:
        return LocalStore(self.folder)

    @contextmanager
    def open(self, name: str) -> Iterator[File]:
        path = self.folder / name
        try:
            file = path.open("rb", buffering=0)
        except FileNotFoundError:
            raise MissingFileError(f"{path} is missing") from None
        with file:
            yield FolderFile(path, file)

    def get(self, name: str) -> bytes | None:
        try:
            return (self.folder / name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def put(self, name: str, data: bytes, durable: bool = True) -> None:
        path = self.folder / name
        try:
            write_file(path, data, durable)
        except FileNotFoundError:
            self._make(path.parent)
            write_file(path, data, durable)

    def _make(self, folder: Path) -> None:
        """Make a folder with those above it, so that they are there after a power loss."""
        if not folder.exists():
            self._make(folder.parent)
            folder.mkdir(exist_ok=True)
            sync(folder.parent)

    def delete(self, name: str) -> None:
        path = self.folder / name
        if not name:
            self._remove_all()
        elif path.exists():
            remove(path)
            sync(path.parent)

    def _remove_all(self) -> None:
        """Remove the folder; under another name, so that nobody meets half of it, and what a kill left of that."""
        if self.folder.exists():
            self.folder.rename(self.folder.with_name(f".{self.folder.name}.{os.getpid()}.removed"))
        for gone in self.folder.parent.glob(f".{glob.escape(self.folder.name)}.*.removed"):
            remove(gone)

    def children(self, name: str) -> list[str]:
        try:
            return sorted(os.listdir(self.folder / name))  # noqa: PTH208 - a hundred thousand names
        except (FileNotFoundError, NotADirectoryError):
            return []

    def barrier(self) -> None:
        if sys.platform != "win32":
            os.sync()  # the files of a hundred thousand frames one by one would take longer than coding them

    def holds(self, other: Place) -> bool:
        return isinstance(other, FolderPlace) and other.folder.resolve().is_relative_to(self.folder.resolve())

    @contextmanager
    def replacing(self) -> Iterator[Place]:
        with self.writing(), successor(self.folder.resolve()) as made:
            yield FolderPlace(made, self.name)

    @contextmanager
    def writing(self) -> Iterator[None]:
        self._make(self.folder)
        try:
            import fcntl
        except ImportError:  # Windows, where two writers are not told apart
            yield
            return
        descriptor = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise WriteError(
                f"another process or object is writing to {self.folder}; wait for it, or write elsewhere"
            ) from None
        try:
            yield
        finally:
            os.close(descriptor)
