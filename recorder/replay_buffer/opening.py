"""Opening: from what a user writes, a path, a URL or a store, to the place it means."""

from __future__ import annotations

from collections.abc import MutableMapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import zarr
from zarr.abc.store import Store
from zarr.storage import FsspecStore, LocalStore, MemoryStore, ObjectStore, ZipStore

from recorder.errors import LayoutError, MissingExtraError
from recorder.replay_buffer.folder_place import FolderPlace
from recorder.replay_buffer.places import Place
from recorder.replay_buffer.store_place import StorePlace

StoreLike = Path | str | Store | zarr.Group | MutableMapping[str, Any]
"""What a replay buffer may be in: a folder, a zip file, a URL, a store or group of zarr, a dict for memory."""


def open_place(where: StoreLike, storage_options: dict[str, Any] | None = None) -> Place:
    """Return the place that a path, a URL, a store, a group or a dict means.

    Raises:
        MissingExtraError: nothing that is installed knows the scheme of the URL.
    """
    match where:
        case zarr.Group():
            return _store_place(where.store, where.path)
        case Store():
            return _store_place(where, "")
        case Path():
            return _path_place(where)
        case str():
            return _url_place(where, storage_options) if "://" in where else _path_place(Path(where))
        case MutableMapping():
            return StorePlace(MemoryStore(where))
    raise LayoutError(f"a replay buffer is in a path, a URL, or a store of zarr, not in {where!r:.80}")


def _store_place(store: Store, path: str) -> Place:
    if isinstance(store, LocalStore):
        return FolderPlace(Path(store.root) / path)
    return StorePlace(store, path)


def _path_place(path: Path) -> Place:
    path = path.expanduser()
    if path.suffix == ".zip" or path.is_file():
        return StorePlace(ZipStore(path, mode="r"))
    return FolderPlace(path.absolute())


def _url_place(url: str, storage_options: dict[str, Any] | None) -> Place:
    scheme, _, rest = url.partition("://")
    if scheme in ("file", "local"):
        return _path_place(Path(rest))
    if find_spec("fsspec") is not None:
        try:
            return StorePlace(FsspecStore.from_url(url, storage_options=storage_options))
        except (ImportError, ValueError):  # fsspec lacks what serves this scheme
            if find_spec("obstore") is None:
                raise
    if find_spec("obstore") is None:
        raise MissingExtraError("fsspec", "remote")
    from obstore.store import from_url

    return StorePlace(ObjectStore(from_url(url, **(storage_options or {}))))
