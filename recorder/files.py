"""Files: the few ways in which bytes reach the disk, and how they are known to be the same later."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import google_crc32c

from recorder.errors import DamagedError, FormatError, GoneError

PIECE = 4 << 20
"""Bytes that are summed at once: a checksum holds the interpreter, 29 ms for 64 MB."""

SUM_HEAD = b'{"sum":"'
SUM_DIGITS = 16
"""How every JSON file begins that has the sum of itself, and how long the sum is that follows."""

_NO_LINKS = {errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.EACCES}


NOT_NOW = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.EMFILE, errno.ENFILE}
"""What the system says when it could not do something that may well be done later."""


def is_not_now(error: BaseException | None) -> bool:
    """Return whether an error came of what the system could not do, rather than of what is in a file."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in NOT_NOW:
            return True
        error = error.__cause__
    return False


def write_file(path: Path, data: bytes, durable: bool = True) -> None:
    """Write a whole file so that it is there complete or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.rename(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync(path.parent)


def sync(path: Path) -> None:
    """Make the bytes of a file, or the names in a folder, survive a power loss."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path, durable: bool) -> None:
    """Make a folder, if need be with those above it, so that it is there after a power loss."""
    if not folder.exists():
        make_folder(folder.parent, durable)
        folder.mkdir(exist_ok=True)
        if durable:
            sync(folder.parent)


def sync_tree(folder: Path) -> None:
    """Make all that is below a folder survive a power loss."""
    for parent, _, names in os.walk(folder, topdown=False):
        for name in names:
            sync(Path(parent, name))
        sync(Path(parent))


def link_new(source: Path, target: Path) -> bool:
    """Let a file appear whole under a name that nothing has yet; return whether it did.

    Where the file system has no links it is copied, and for a moment a reader may see half of it.
    """
    try:
        os.link(source, target)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        return _copy_new(source, target)
    return True


def _copy_new(source: Path, target: Path) -> bool:
    try:
        with target.open("xb") as file:
            file.write(source.read_bytes())
            os.fsync(file.fileno())
    except FileExistsError:
        return False
    return True


def link_or_copy(source: Path, target: Path) -> None:
    """Give a file a second name; where the file system has no links, copy it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        shutil.copyfile(source, target)


def remove(path: Path) -> None:
    """Remove a file or a whole folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def checksum(path: Path) -> str:
    """Return the sum of a file's bytes: its CRC-32C and its CRC-32, 8 hex digits each.

    One is not enough. A message followed by its own CRC has the same CRC as any other such message, so all zarr shards
    of one size have one CRC-32C, and all PNG pictures of one size one CRC-32: swapped files would not be found.
    """
    sums = 0, 0
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            sums = google_crc32c.extend(sums[0], piece), zlib.crc32(piece, sums[1])
    return f"{sums[0]:08x}{sums[1]:08x}"


def checksum_of(data: bytes) -> str:
    """Return the sum of bytes, as `checksum` does of a file's."""
    return f"{google_crc32c.value(data):08x}{zlib.crc32(data):08x}"


def files_below(folder: Path) -> Iterator[Path]:
    """Yield all files below a folder in the order of their names."""
    for parent, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            yield Path(parent, name)


def check_plain(folder: Path) -> list[str]:
    """Return the names of all files below a folder, relative to it.

    Raises:
        DamagedError: it is not there.
        FormatError: something is a link, a pipe or a device: reading it may lead elsewhere, or hang.
    """
    names: list[str] = []
    root = str(folder)
    folders = [root]
    while folders:
        try:
            entries = os.scandir(place := folders.pop())
        except FileNotFoundError:
            raise missing(Path(place)) from None
        with entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                elif entry.is_file(follow_symlinks=False):
                    names.append(entry.path[len(root) + 1 :].replace(os.sep, "/"))
                else:
                    plain_size(Path(entry.path))
    return names


def inside(folder: Path, relative: str) -> Path:
    """Return the path of a file named in a file, which must lie below `folder`.

    Raises:
        FormatError: the name leaves the folder, or a folder on the way is a link.
    """
    pure = PurePosixPath(relative)
    if pure.is_absolute() or ".." in pure.parts or "\\" in relative or "\0" in relative or not pure.parts:
        raise FormatError(f"{folder}: the file name {relative!r} leaves the folder")
    for parent in list(pure.parents)[:-1]:
        if (folder / parent).is_symlink():
            raise FormatError(f"{folder / parent} is a link, which a recording does not have")
    return folder / pure


def plain_size(path: Path) -> int:
    """Return the bytes of a file.

    Raises:
        FileNotFoundError: it is not there.
        FormatError: it is a pipe, a device, a folder or a link, which a recording does not have: reading it may hang,
            or lead elsewhere.
    """
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode):
        raise FormatError(f"{path} is no plain file, but a {_kind(found.st_mode)}; a recording has only plain files")
    return found.st_size


def _kind(mode: int) -> str:
    kinds = {stat.S_IFLNK: "link", stat.S_IFDIR: "folder", stat.S_IFIFO: "pipe", stat.S_IFSOCK: "socket"}
    return kinds.get(stat.S_IFMT(mode), "device")


def read_small(path: Path, most: int) -> bytes:
    """Return the bytes of a plain file that has at most so many.

    Raises:
        FileNotFoundError: it is not there.
        FormatError: it has more, or is no plain file.
    """
    if (size := plain_size(path)) > most:
        raise FormatError(f"{path} has {size:,} bytes; more than {most:,} are refused")
    with path.open("rb") as file:
        return file.read(most)


def sealed(body: bytes) -> bytes:
    """Return a JSON object with the sum of itself as its first item: that of everything from the comma on."""
    rest = b"," + body[1:]
    return SUM_HEAD + f'{checksum_of(rest)}"'.encode() + rest


def unsealed(path: Path, data: bytes) -> bytes:
    """Return the JSON object of which `sealed` made `data`.

    Raises:
        FormatError: it does not begin with a sum.
        DamagedError: the sum is not that of the rest.
    """
    end = len(SUM_HEAD) + SUM_DIGITS
    stated, quote, rest = data[len(SUM_HEAD) : end].decode("ascii", "replace"), data[end : end + 1], data[end + 1 :]
    if not data.startswith(SUM_HEAD) or quote != b'"' or not rest.startswith(b","):
        raise FormatError(f"{path} is not what the format says: it does not begin with the sum of itself")
    if (found := checksum_of(rest)) != stated:
        raise DamagedError(f"{path} has changed since it was written: its sum is {found}, not {stated}")
    return b"{" + rest[1:]


def missing(path: Path, what: str = "is missing") -> DamagedError:
    """Return the error of a file that is not there: it was lost, or another process has replaced its whole shard."""
    shard = next((folder for folder in (path, *path.parents) if folder.parent.name == "shards"), None)
    if shard is None or shard.exists():
        return DamagedError(f"{path} {what}")
    return GoneError(
        f"{shard} is not there any more: its episodes were rewritten, joined to others or deleted by another process; "
        f"refresh() of the recording finds those that there are"
    )


def check_size(path: Path, size: int) -> None:
    """Raise `DamagedError` unless the file is there and has `size` bytes, `FormatError` unless it is a plain file."""
    try:
        found = plain_size(path)
    except (FileNotFoundError, NotADirectoryError):
        raise missing(path, f"is missing; it had {size} bytes when it was written") from None
    if found != size:
        raise DamagedError(f"{path} has {found} bytes, {size} were written")


def check_sum(path: Path, size: int, crc: str) -> None:
    """Raise `DamagedError` unless the file has the size and the checksum that were written."""
    check_size(path, size)
    if (found := checksum(path)) != crc:
        raise DamagedError(f"{path} has changed since it was written: its sum is {found}, not {crc}")


def size_text(count: float) -> str:
    """Return a number of bytes for people.

    >>> size_text(999), size_text(1_234_567)
    ('999 B', '1.2 MB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} TB"
