"""Reading video: the index of an MP4 file, and frames by their number, decoded from the key frame before.

The index is read here and not by FFmpeg: in 0.1 ms instead of 1.5, without decoding a frame, and the size that a file
claims is known before a decoder sees it. Samples are taken by number, so no timestamp can put a frame at another row.
"""

from __future__ import annotations

import os
import struct
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NoReturn, cast

import av
import numpy as np
from av.video.reformatter import VideoReformatter
from numpy.typing import NDArray

from recorder.columns import Array, Column, JoinedColumn
from recorder.errors import DamagedError
from recorder.leaf import Leaf
from recorder.storages.base import Counts, Reader
from recorder.storages.video_codecs import CODECS, Coding, plane, threads

INDEX_BYTES = 256 << 20
"""A larger index is refused before it is read: that of an hour at 50 frames/s takes 2 MB."""

OPEN_FILES = 8
"""Decoders that a reader keeps open, each where it stopped."""

SAMPLE_ENTRY = struct.Struct(">6xH16xHH")
"""Of the description of a video: a reference, and the width and height."""

EXTRADATA = (b"avcC", b"hvcC", b"av1C", b"glbl")
"""The boxes that hold what a decoder has to know before the first frame."""


class Boxes:
    """The boxes of an MP4 file in a piece of memory: `boxes["mdia/minf"]` is the content of a box in a box."""

    def __init__(self, data: memoryview) -> None:
        self._data = data

    def __iter__(self) -> Iterator[tuple[bytes, memoryview]]:
        position = 0
        while position + 8 <= len(self._data):
            size, kind = struct.unpack_from(">I4s", self._data, position)
            if not 8 <= size <= len(self._data) - position:
                raise ValueError(f"a box {kind!r} of {size} bytes in {len(self._data) - position}")
            yield kind, self._data[position + 8 : position + size]
            position += size

    def get(self, path: str) -> memoryview | None:
        """Return the content of the first box at a path."""
        name, _, rest = path.partition("/")
        found = next((content for kind, content in self if kind == name.encode()), None)
        return found if found is None or not rest else Boxes(found).get(rest)

    def __getitem__(self, path: str) -> memoryview:
        found = self.get(path)
        if found is None:
            raise ValueError(f"there is no box {path!r}")
        return found


@dataclass(frozen=True)
class Track:
    """Where the frames of a video file are: `offsets` and `sizes` in bytes, and the numbers of its key frames."""

    tag: bytes
    height: int
    width: int
    extradata: bytes
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    keys: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.sizes)

    def key_before(self, row: int) -> int:
        """Return the key frame from which `row` can be decoded."""
        return int(self.keys[np.searchsorted(self.keys, row, side="right") - 1])


def read_track(path: Path) -> Track:
    """Return the index of a video file that was closed.

    Raises:
        DamagedError: the file is missing, cut, not closed, or no MP4 file.
    """
    try:
        with path.open("rb") as file:
            return _track(*_index(file))
    except FileNotFoundError:
        raise DamagedError(f"{path} is missing") from None
    except (OSError, ValueError, struct.error) as error:
        raise DamagedError(f"{path} cannot be read as a video: {error}") from error


def _index(file: IO[bytes]) -> tuple[Boxes, int]:
    """Return the `moov` box of a file, and the size of the file; fragments tell of a file that was not closed."""
    end = os.fstat(file.fileno()).st_size
    parts = dict(_parts(file, end))
    if b"moov" not in parts or b"moof" in parts:
        raise ValueError("it has no index: it is cut, or was not closed")
    start, size = parts[b"moov"]
    if size > INDEX_BYTES:
        raise ValueError(f"its index of {size} bytes is too large")
    file.seek(start)
    return Boxes(memoryview(file.read(size))), end


def _parts(file: IO[bytes], end: int) -> Iterator[tuple[bytes, tuple[int, int]]]:
    """Yield the outermost boxes of a file: their kinds, where their content begins, and its size."""
    position = 0
    while position < end:
        file.seek(position)
        header = file.read(16)
        size, kind = struct.unpack_from(">I4s", header)
        head = 8
        if size == 1:
            head, size = 16, struct.unpack_from(">Q", header, 8)[0]
        if not head <= size <= end - position:
            raise ValueError(f"its part {kind!r} has {size} bytes, {end - position} are there")
        yield kind, (position + head, size - head)
        position += size


def _track(movie: Boxes, end: int) -> Track:
    tables = Boxes(movie["trak/mdia/minf/stbl"])
    tag, entry = next(iter(Boxes(tables["stsd"][8:])))
    _, width, height = SAMPLE_ENTRY.unpack_from(entry)
    extradata = next((bytes(content) for kind, content in Boxes(entry[78:]) if kind in EXTRADATA), b"")
    sizes = _sizes(tables["stsz"], end)
    offsets = _offsets(tables, sizes)
    if len(sizes) and (sizes.min() <= 0 or offsets.min() < 0 or (offsets + sizes).max() > end):
        raise ValueError(f"its index names bytes beyond its {end}")
    return Track(tag, height, width, extradata, offsets, sizes, _keys(tables, len(sizes)))


def _sizes(table: memoryview, end: int) -> NDArray[np.int64]:
    size, count = struct.unpack_from(">4xII", table)
    if count > end:
        raise ValueError(f"its index names {count} frames in {end} bytes")
    return np.full(count, size, np.int64) if size else _numbers(table[12:], count)


def _offsets(tables: Boxes, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where each frame begins: frames lie in chunks, of which the tables say where and how many each has."""
    short = tables.get("stco")
    chunks = _counted(tables["co64"], ">i8") if short is None else _counted(short, ">u4")
    runs = _counted(tables["stsc"], ">u4", 3).reshape(-1, 3)
    lengths = np.diff(np.append(runs[:, 0] - 1, len(chunks)))
    if (len(runs) and runs[0, 0] != 1) or (lengths < 0).any() or int(lengths @ runs[:, 1]) != len(sizes):
        raise ValueError(f"its index does not place its {len(sizes)} frames")
    held = np.repeat(runs[:, 1], lengths)
    before = np.cumsum(sizes) - sizes
    firsts = np.minimum(np.cumsum(held) - held, max(0, len(sizes) - 1))
    return np.repeat(chunks - before[firsts] if len(sizes) else chunks, held) + before


def _keys(tables: Boxes, count: int) -> NDArray[np.int64]:
    """Return the numbers of the key frames, all where no table names them."""
    table = tables.get("stss")
    keys = np.arange(count) if table is None else _counted(table, ">u4") - 1
    if count and (not len(keys) or keys[0] != 0 or keys[-1] >= count or (np.diff(keys) <= 0).any()):
        raise ValueError("it does not begin with a key frame")
    return keys


def _counted(table: memoryview, dtype: str, columns: int = 1) -> NDArray[np.int64]:
    (count,) = struct.unpack_from(">4xI", table)
    return _numbers(table[8:], count * columns, dtype)


def _numbers(data: memoryview, count: int, dtype: str = ">u4") -> NDArray[np.int64]:
    return np.frombuffer(data, dtype, count).astype(np.int64)


class Decoder:
    """The frames of one file. It stays where it stopped: reading on costs no seek."""

    def __init__(self, path: Path, coding: Coding) -> None:
        self._path = path
        self._coding = coding
        self._track = read_track(path)
        self._check()
        self._context = self._open()
        self._reformatter = VideoReformatter()
        self._frames: Iterator[av.VideoFrame] = iter(())
        self._next = -1
        self._file = path.open("rb", buffering=0)

    def _check(self) -> None:
        """Raise `DamagedError` unless the file says of itself what its leaf needs; then frames may take memory."""
        track, tag = self._track, CODECS[self._coding.codec].tag
        if (track.height, track.width) != self._coding.padded or track.tag != tag:
            expected = f"{self._coding.padded} {tag.decode()}"
            found = f"{(track.height, track.width)} {track.tag.decode('latin-1')}"
            raise DamagedError(f"{self._path} holds other pictures: expected {expected}, found {found}")

    def _open(self) -> av.VideoCodecContext:
        height, width = self._coding.padded
        context = cast(av.VideoCodecContext, av.CodecContext.create(CODECS[self._coding.codec].decoder, "r"))
        context.height, context.width = height, width
        context.extradata = self._track.extradata or None
        context.thread_count = 1  # freeing one with threads hangs in a forked child
        # Codecs round the size up to whole blocks of at most 128; a stream that claims more gets no memory.
        context.options = {
            "max_pixels": str((height + 127) * (width + 127)),
            "err_detect": "crccheck+explode",
        }
        return context

    def read(self, rows: Sequence[int], into: Array) -> None:
        """Decode rows, given in increasing order, into an array `(k, H, W)` or `(k, H, W, C)`."""
        height, width = self._coding.height, self._coding.width
        for place, row in enumerate(rows):
            into[place] = self._pixels(self._frame(row))[:height, :width]

    def _pixels(self, frame: av.VideoFrame) -> Array:
        """Return a frame in the pixels of its leaf; of a grey picture coded with loss, its luma."""
        pixels = self._coding.pixels
        if pixels == "gray":
            return plane(frame)
        if frame.format.name != pixels:
            frame = self._reformatter.reformat(frame, format=pixels, **threads(1))
        return frame.to_ndarray()

    def _frame(self, row: int) -> av.VideoFrame:
        """Return one frame, going on from the last one unless a key frame lies in between."""
        if row >= len(self._track):
            self._damaged(row, f"the file has {len(self._track)} frames")
        key = self._track.key_before(row)
        if not key <= self._next <= row:
            self._next, self._frames = key, decoded(self._context, self._file, self._track, key)
        try:
            for frame in self._frames:
                self._verify(frame)
                self._next += 1
                if self._next > row:
                    return frame
        except (av.FFmpegError, ValueError) as error:
            self._damaged(self._next, f"it cannot be decoded: {error}", error)
        self._damaged(row, f"the last frame is {self._next - 1}")

    def _verify(self, frame: av.VideoFrame) -> None:
        if (frame.height, frame.width) != self._coding.padded:
            raise ValueError(
                f"expected a frame of {self._coding.padded}, found {(frame.height, frame.width)}"
            )
        if frame.pts != self._next or frame.is_corrupt:
            raise ValueError(f"found {'a corrupt frame' if frame.is_corrupt else f'frame {frame.pts}'}")

    def _damaged(self, row: int, why: str, cause: Exception | None = None) -> NoReturn:
        self._next = -1
        raise DamagedError(f"{self._path}: row {row} is not there: {why}") from cause

    def close(self) -> None:
        """Give up the file."""
        self._frames = iter(())
        self._file.close()


def decoded(
    context: av.VideoCodecContext, file: IO[bytes], track: Track, key: int
) -> Iterator[av.VideoFrame]:
    """Yield all frames of a file from a key frame on, numbered by their `pts`."""
    if context.is_open:
        context.flush_buffers()
    for i in range(key, len(track)):
        file.seek(int(track.offsets[i]))
        sample = file.read(int(track.sizes[i]))
        if len(sample) != track.sizes[i]:
            raise ValueError(f"it has {track.sizes[i]} bytes, {len(sample)} are there")
        packet = av.Packet(sample)
        packet.pts = packet.dts = i
        yield from context.decode(packet)
    yield from context.decode(None)


class Decoders:
    """The few files that are open: the one read longest ago is closed first. Empty after pickling and forking."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: OrderedDict[Path, Decoder] = OrderedDict()
        self._pid = os.getpid()

    def __reduce__(self) -> tuple[type[Decoders], tuple[()]]:
        return Decoders, ()

    def read(self, path: Path, coding: Coding, rows: Sequence[int]) -> Array:
        """Return rows of a file, given in increasing order."""
        array = np.empty((len(rows), *coding.row_shape), coding.dtype)
        if len(rows):
            self._leave_parent()
            with self._lock:
                self._decoder(path, coding).read(rows, array)
        return array

    def _leave_parent(self) -> None:
        """Forget, in a forked child, the files and the lock of its parent: their positions are shared."""
        if os.getpid() != self._pid:
            self._lock, self._open, self._pid = threading.Lock(), OrderedDict(), os.getpid()

    def _decoder(self, path: Path, coding: Coding) -> Decoder:
        if path not in self._open:
            self._open[path] = Decoder(path, coding)
            while len(self._open) > OPEN_FILES:
                self._open.popitem(last=False)[1].close()
        self._open.move_to_end(path)
        return self._open[path]

    def close(self) -> None:
        """Close all files; a later reading opens them again."""
        self._leave_parent()
        with self._lock:
            while self._open:
                self._open.popitem()[1].close()


class VideoColumn(Column):
    """The frames of one file as rows; only those from the key frame before are decoded."""

    def __init__(self, leaf: Leaf, length: int, path: Path, coding: Coding, decoders: Decoders) -> None:
        super().__init__(leaf, length)
        self._path = path
        self._coding = coding
        self._decoders = decoders

    def read(self, start: int, stop: int) -> Array:
        return self._rows(range(start, stop))

    def take(self, index: NDArray[np.intp]) -> Array:
        wanted, back = np.unique(index, return_inverse=True)
        rows = self._rows(wanted.tolist())
        return rows if len(wanted) == len(index) and (back[:-1] < back[1:]).all() else rows[back]

    def _rows(self, rows: Sequence[int]) -> Array:
        return self._decoders.read(self._path, self._coding, rows).reshape(-1, *self.leaf.shape)


def video_name(leaf: Leaf, i: int) -> str:
    """Return the name of the file of one leaf and episode in a shard."""
    return f"{leaf.path}/{i:06d}.mp4"


class VideoReader(Reader):
    """The video files of one shard: one for each leaf and episode."""

    def __init__(
        self, directory: Path, leaves: Sequence[Leaf], counts: Counts, codings: Mapping[str, Coding]
    ) -> None:
        super().__init__(directory, leaves, counts)
        self._codings = codings
        self._decoders = Decoders()

    def segment(self, i: int) -> Mapping[str, Column]:
        return {path: self._column(leaf, i) for path, leaf in self.leaves.items()}

    def _column(self, leaf: Leaf, i: int) -> Column:
        path = self.directory / video_name(leaf, i)
        return VideoColumn(
            leaf, int(self.counts.rows(leaf.per)[i]), path, self._codings[leaf.path], self._decoders
        )

    def whole(self, path: str) -> Column:
        return JoinedColumn(
            self.leaves[path], [self._column(self.leaves[path], i) for i in range(len(self.counts))]
        )

    def count(self) -> Mapping[str, int]:
        return {path: self._count(leaf) for path, leaf in self.leaves.items()}

    def _count(self, leaf: Leaf) -> int:
        """Return the frames in all files of a leaf; an episode without rows has no file."""
        with_rows = np.flatnonzero(self.counts.rows(leaf.per))
        return sum(len(read_track(self.directory / video_name(leaf, int(i)))) for i in with_rows)

    def close(self) -> None:
        self._decoders.close()
