"""Zipping: a buffer in one zip file, made as a folder beside it and packed when it is complete."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from recorder.errors import ExistsError, LayoutError
from recorder.files import files_below, remove, sync
from recorder.replay_buffer.folder_place import FolderPlace
from recorder.replay_buffer.opening import StoreLike, open_place
from recorder.replay_buffer.places import Place


@contextmanager
def writable_place(
    where: StoreLike, storage_options: dict[str, Any] | None, *, append: bool, overwrite: bool
) -> Iterator[Place]:
    """Give a place that can be written to; what is to be a zip file is packed at the end, if all went well.

    Raises:
        ExistsError: the zip file exists and is not to be overwritten.
        LayoutError: it is to be added to, which zip files do not allow.
    """
    path = _zip_path(where)
    if path is None:
        yield open_place(where, storage_options)
        return
    if path.exists() and append:
        raise LayoutError(f"{path} is a zip file, which cannot be added to; copy_to(folder) makes what can")
    if path.exists() and not overwrite:
        raise ExistsError(f"{path} exists; overwrite=True begins anew")
    folder = path.with_name(f".{path.name}.unpacked")
    if folder.exists() and not append:
        remove(folder)
    yield FolderPlace(folder)
    pack_zip(folder, path)
    remove(folder)


def _zip_path(where: StoreLike) -> Path | None:
    if isinstance(where, str | Path) and "://" not in str(where) and Path(where).suffix == ".zip":
        return Path(where).expanduser().absolute()
    return None


def pack_zip(folder: Path, path: Path) -> None:
    """Write all files of a folder into a zip file, as they are; it has its name only when it is whole."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as archive:
            for file in files_below(folder):
                archive.write(file, file.relative_to(folder).as_posix())
        sync(temporary)
        temporary.rename(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    sync(path.parent)
