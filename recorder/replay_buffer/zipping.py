"""Zipping: a buffer in one zip file, made as a folder beside it and packed when it is complete."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from recorder.errors import ExistsError, LayoutError
from recorder.files import files_below, remove, sync
from recorder.replay_buffer.folder_place import FolderPlace
from recorder.replay_buffer.opening import StoreLike, open_place
from recorder.replay_buffer.places import Place
from recorder.replay_buffer.targets import check_ours


@contextmanager
def zip_place(path: Path, *, append: bool, overwrite: bool) -> Iterator[Place]:
    """Give a folder, of which a zip file is packed at the end, if all went well.

    Raises:
        ExistsError: the zip file exists and is not to be overwritten, or holds no buffer.
        LayoutError: it is to be added to, which zip files do not allow.
        WriteError: another process makes the same zip file.
    """
    if path.exists() and append:
        raise LayoutError(f"{path} is a zip file, which cannot be added to; copy_to(folder) makes what can")
    if path.exists() and not overwrite:
        raise ExistsError(f"{path} exists; overwrite=True begins anew")
    if path.exists():
        _check_buffer(path)
    unpacked = FolderPlace(path.with_name(f".{path.name}.unpacked"), str(path))
    if unpacked.folder.exists() and not append:
        with unpacked.writing():
            remove(unpacked.folder)
    yield unpacked
    pack_zip(unpacked.folder, path)
    remove(unpacked.folder)


def _check_buffer(path: Path) -> None:
    """Raise `ExistsError` unless a file is a zip file with a buffer."""
    if not zipfile.is_zipfile(path):
        raise ExistsError(f"{path} is no zip file, so it is not replaced; choose another path")
    check_ours(open_place(path))


def zip_path(where: StoreLike) -> Path | None:
    """Return the path of the zip file that is meant; None where it is something else."""
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
