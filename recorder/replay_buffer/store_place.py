"""A store of zarr as the place of a replay buffer: memory, zip files, and what is far away."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from zarr.abc.store import RangeByteRequest, Store, SuffixByteRequest
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync as wait_for
from zarr.storage import MemoryStore, ZipStore

from recorder.errors import WriteError
from recorder.replay_buffer.places import File, MissingFileError, Place, Span


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

    def holds(self, other: Place) -> bool:
        if not isinstance(other, StorePlace) or not other._prefix.startswith(self._prefix):
            return False
        if isinstance(self._store, MemoryStore) and isinstance(other._store, MemoryStore):
            return self._store._store_dict is other._store._store_dict  # two that hold the same are equal
        return self._store == other._store

    @contextmanager
    def replacing(self) -> Iterator[Place]:
        if not isinstance(self._store, MemoryStore):
            yield self
            return
        files: dict[str, Any] = {}
        yield StorePlace(MemoryStore(files), self.path)
        there = self._store._store_dict
        for name in [name for name in there if name.startswith(self._prefix)]:
            del there[name]
        there.update(files)

    @contextmanager
    def writing(self) -> Iterator[None]:
        if self._store.read_only:
            raise WriteError(f"{self.name} is only read here; copy_to(path) makes a buffer that can be added to")
        yield
