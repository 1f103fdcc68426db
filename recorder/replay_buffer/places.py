"""Places: where the files of a replay buffer are, as names and bytes: a folder, or any store that zarr has.

zarr-python takes about a millisecond for one row of one sharded array, ten times what decoding it takes. So the
bytes are fetched here by name, and a folder is read without any of zarr.
"""

from __future__ import annotations

import asyncio
import glob
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Any

from zarr.abc.store import RangeByteRequest, Store, SuffixByteRequest
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync as wait_for
from zarr.storage import LocalStore, ZipStore

from recorder.errors import DamagedError, WriteError
from recorder.files import remove, sync, write_file

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

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Be the only writer of this place where that can be told: in folders of one host.

        Raises:
            WriteError: another one writes.
        """
        yield


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

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def name(self) -> str:
        return str(self.folder)

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


class StoreFile(File):
    """A name of a store; each reading is a request."""

    def __init__(self, place: StorePlace, name: str) -> None:
        self._place = place
        self._name = name

    def tail(self, size: int) -> bytes:
        return self._place.fetch(self._name, [SuffixByteRequest(size)])[0]

    def spans(self, spans: Sequence[Span]) -> list[bytes]:
        return self._place.fetch(self._name, [RangeByteRequest(*span) for span in spans])


class StorePlace(Place):
    """Any store of zarr: memory, zip, fsspec, obstore. Requests are made side by side."""

    durable = False

    def __init__(self, store: Store, prefix: str = "") -> None:
        self._store = store
        self._prefix = f"{prefix}/" if prefix else ""

    @property
    def name(self) -> str:
        store = str(self._store.path) if isinstance(self._store, ZipStore) else str(self._store)
        return f"{store}/{self.path}" if self._prefix else store

    @property
    def store(self) -> Store:
        return self._store

    @property
    def path(self) -> str:
        return self._prefix.rstrip("/")

    @contextmanager
    def open(self, name: str) -> Iterator[File]:
        yield StoreFile(self, name)

    def fetch(self, name: str, requests: Sequence[Any]) -> list[bytes]:
        """Return parts of a file."""
        found = wait_for(self._gather([name] * len(requests), requests))
        if None in found:
            raise MissingFileError(f"{self.name}/{name} is missing")
        return [data for data in found if data is not None]

    async def _gather(self, names: Sequence[str], requests: Sequence[Any]) -> list[bytes | None]:
        prototype = default_buffer_prototype()
        await self._store._ensure_open()
        found = await asyncio.gather(
            *(
                self._store.get(self._prefix + name, prototype, request)
                for name, request in zip(names, requests, strict=True)
            )
        )
        return [None if buffer is None else buffer.to_bytes() for buffer in found]

    def get(self, name: str) -> bytes | None:
        return self.get_many([name])[0]

    def get_many(self, names: Sequence[str]) -> list[bytes | None]:
        return wait_for(self._gather(names, [None] * len(names)))

    def put(self, name: str, data: bytes, durable: bool = True) -> None:
        buffer = default_buffer_prototype().buffer.from_bytes(data)
        wait_for(self._store.set(self._prefix + name, buffer))

    def delete(self, name: str) -> None:
        wait_for(self._delete(self._prefix + name))

    async def _delete(self, name: str) -> None:
        if await self._store.exists(name):
            await self._store.delete(name)
        else:
            await self._store.delete_dir(name)

    def children(self, name: str) -> list[str]:
        return sorted(set(wait_for(self._children((self._prefix + name).rstrip("/")))))

    async def _children(self, name: str) -> list[str]:
        await self._store._ensure_open()
        return [child.rstrip("/") async for child in self._store.list_dir(name)]

    def barrier(self) -> None:
        """Do nothing: what a store has taken it has."""

    @contextmanager
    def writing(self) -> Iterator[None]:
        if self._store.read_only:
            raise WriteError(f"{self.name} is only read here; copy_to(path) makes a buffer that can be added to")
        yield
