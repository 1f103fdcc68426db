"""Reading video: the index of an MP4 file, and frames by their number, decoded from the key frame before.

The index is read here and not by FFmpeg, in 0.2 ms instead of 1.5: no frame is decoded, and the size that a
file claims is known before a decoder sees it. Frames are found by number: no timestamp can misplace one.
"""

from __future__ import annotations

import os
import struct
import threading
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from typing import IO, cast

import av
import numpy as np
from av.video.reformatter import VideoReformatter
from numpy.typing import NDArray

from recorder.columns import Array, Column
from recorder.errors import DamagedError
from recorder.files import missing
from recorder.leaf import Leaf
from recorder.storages.base import Counts
from recorder.storages.streams import StreamReader
from recorder.storages.video_codecs import CODECS, Coding, plane
from recorder.threads import cores, side_by_side

INDEX_BYTES = 64 << 20
"""A larger index is refused before it is read: an hour at 50 frames/s takes 2 MB."""

MOST_FRAMES = INDEX_BYTES // 4
"""More frames are refused before memory is taken: such an index lists a size for each."""

MOST_PARTS = 1_000
"""A closed file has a handful of outermost boxes; of a million tiny ones no more than these are looked at."""

DECODERS = 8
"""Decoders that a reader keeps, each where it stopped."""

HEAD = 64
"""Bytes of a coded frame that are looked at first to see that it is not all zeros, as after a power loss."""

KEPT_FRAMES = 100_000
"""Frames of files whose index a reader keeps, 24 bytes each."""

PARALLEL_PIXELS = 1 << 20
"""So many pixels of rows for each core are worth a decoder of their own: 4 frames of 480 x 640 take 2 ms."""

SAMPLE_ENTRY = struct.Struct(">6xH16xHH")
"""What is read of the description of a video: a reference, the width and the height."""

EXTRADATA = (b"avcC", b"hvcC", b"av1C", b"glbl")
"""The boxes that hold what a decoder has to know before the first frame."""


class Boxes:
    """The boxes of an MP4 file in a piece of memory; `boxes["mdia/minf"]` is what a box in a box holds."""

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
    """Where the frames of a video file are, in bytes, and which of them are key frames."""

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
        raise missing(path) from None
    except (OSError, ValueError, struct.error) as error:
        raise DamagedError(f"{path} cannot be read as a video: {error}") from error


def _index(file: IO[bytes]) -> tuple[Boxes, int]:
    """Return the `moov` box of a file and the file's size; fragments tell that it was not closed."""
    end = os.fstat(file.fileno()).st_size
    parts = dict(islice(_parts(file, end), MOST_PARTS))
    if b"moov" not in parts or b"moof" in parts:
        raise ValueError("it has no index: it is cut, or was not closed")
    start, size = parts[b"moov"]
    if size > INDEX_BYTES:
        raise ValueError(f"its index of {size} bytes is too large")
    file.seek(start)
    return Boxes(memoryview(file.read(size))), end


def whole_size(file: IO[bytes]) -> int:
    """Return the bytes of a file up to the first outermost box that is cut, or a fragment that is none."""
    size = 0
    with suppress(ValueError, struct.error):
        for kind, (start, length) in _parts(file, os.fstat(file.fileno()).st_size):
            if kind == b"moof":
                file.seek(start)
                Boxes(memoryview(file.read(length)))["traf/trun"]
            size = start + length
    return size


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
    if count > min(end, MOST_FRAMES):
        raise ValueError(f"its index names {count} frames in {end} bytes")
    return np.full(count, size, np.int64) if size else _numbers(table[12:], count)


def _offsets(tables: Boxes, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where each frame begins: frames lie in chunks, and runs of chunks have equally many."""
    short = tables.get("stco")
    chunks = _counted(tables["co64"], ">i8") if short is None else _counted(short, ">u4")
    first, held, _ = _counted(tables["stsc"], ">u4", 3).reshape(-1, 3).T
    runs = np.diff(np.append(first - 1, len(chunks)))
    whole = (first[:1] == 1).all() and (runs >= 0).all() and (held <= len(sizes)).all()
    if not whole or runs @ held != len(sizes):
        raise ValueError(f"its index does not place its {len(sizes)} frames")
    held = np.repeat(held, runs)
    before = np.append(0, np.cumsum(sizes))
    starts = chunks - before[np.cumsum(held) - held]
    offsets: NDArray[np.int64] = np.repeat(starts, held) + before[:-1]
    return offsets


def _keys(tables: Boxes, count: int) -> NDArray[np.int64]:
    """Return the numbers of the key frames, all where no table names them."""
    table = tables.get("stss")
    keys = np.arange(count) if table is None else _counted(table, ">u4") - 1
    first = keys[:1].tolist() == [0][:count]
    if not first or (np.diff(keys) <= 0).any() or (keys >= count).any():
        raise ValueError("its index names no key frames that could be")
    return keys


def _counted(table: memoryview, dtype: str, columns: int = 1) -> NDArray[np.int64]:
    (count,) = struct.unpack_from(">4xI", table)
    return _numbers(table[8:], count * columns, dtype)


def _numbers(data: memoryview, count: int, dtype: str = ">u4") -> NDArray[np.int64]:
    return np.frombuffer(data, dtype, count).astype(np.int64)


class Decoder:
    """The frames of one file. It stays where it stopped: reading on costs no seek."""

    def __init__(self, path: Path, coding: Coding, track: Track) -> None:
        self.path = path
        self._coding = coding
        self._track = track
        self._count = len(track)
        self._padded = coding.padded
        self._check()
        self._context = self._open()
        self._reformatter = VideoReformatter()
        self._ready: deque[av.VideoFrame] = deque()
        self._next = -1
        self._fed = 0

    def stands_before(self, row: int) -> bool:
        """Return whether `row` is reached from where the decoder stopped at least as soon as from a key frame."""
        return self._next <= row < self._count and self._track.key_before(row) <= self._next

    def _check(self) -> None:
        """Raise `DamagedError` unless the file says that it holds what its leaf needs."""
        track, tag = self._track, CODECS[self._coding.codec].tag
        if (track.height, track.width) != self._padded or track.tag != tag:
            expected = f"{self._padded} {tag.decode()}"
            found = f"{(track.height, track.width)} {track.tag.decode('latin-1')}"
            raise DamagedError(f"{self.path} holds other pictures: expected {expected}, found {found}")

    def _open(self) -> av.VideoCodecContext:
        height, width = self._padded
        context = cast(av.VideoCodecContext, av.CodecContext.create(CODECS[self._coding.codec].decoder, "r"))
        context.height, context.width = height, width
        context.extradata = self._track.extradata or None
        context.thread_count = 1  # freeing one with threads hangs in a forked child
        # Codecs round sides up to blocks of at most 128; a stream that claims more gets no memory.
        most = (height + 127) * (width + 127)
        context.options = {"max_pixels": str(most), "err_detect": "crccheck+explode"}
        return context

    def read(self, rows: Sequence[int], into: Array) -> None:
        """Decode rows, given in increasing order, into an array `(k, H, W)` or `(k, H, W, C)`.

        Raises:
            DamagedError: the file is missing or cut, or a frame is not there or cannot be decoded.
        """
        row = -1
        try:
            with self.path.open("rb", buffering=0) as file:
                for place, row in enumerate(rows):
                    into[place] = self._pixels(self._frame(file, row))
        except FileNotFoundError:
            raise missing(self.path) from None
        except (av.FFmpegError, OSError, ValueError) as error:
            self._next = -1
            raise DamagedError(f"{self.path}: row {row} cannot be read: {error}") from error

    def _frame(self, file: IO[bytes], row: int) -> av.VideoFrame:
        """Return one frame, going on from the last one unless a key frame lies in between."""
        if row >= self._count:
            raise ValueError(f"expected more than {row} frames, found {self._count}")
        if not self.stands_before(row):
            self._seek(self._track.key_before(row))
        while True:
            while not self._ready:
                self._feed(file)
            frame = self._ready.popleft()
            self._verify(frame)
            self._next += 1
            if self._next > row:
                return frame

    def _seek(self, key: int) -> None:
        if self._context.is_open:
            self._context.flush_buffers()
        self._ready.clear()
        self._next = self._fed = key

    def _feed(self, file: IO[bytes]) -> None:
        """Give the decoder the next coded frame; after the last one, ask it for those that it holds back."""
        i = self._fed
        if i > self._count:
            raise ValueError(f"expected frame {self._next}, found no more")
        packet = None
        if i < self._count:
            size = int(self._track.sizes[i])
            file.seek(int(self._track.offsets[i]))
            data = file.read(size)
            if len(data) != size or not (any(data[:HEAD]) or data.strip(b"\0")):
                raise ValueError(f"expected frame {i} of {size} bytes, found {len(data)} or zeros")
            packet = av.Packet(data)
            packet.pts = packet.dts = i
        self._fed += 1
        self._ready.extend(self._context.decode(packet))

    def _verify(self, frame: av.VideoFrame) -> None:
        size = frame.height, frame.width
        if size != self._padded or frame.pts != self._next or frame.is_corrupt:
            corrupt = " corrupt" if frame.is_corrupt else ""
            expected = f"frame {self._next} of {self._padded}"
            raise ValueError(f"expected {expected}, found{corrupt} frame {frame.pts} of {size}")

    def _pixels(self, frame: av.VideoFrame) -> Array:
        """Return a frame as its leaf has it; of a grey picture coded with loss, its luma."""
        pixels = self._coding.pixels
        if pixels == "gray":
            array = plane(frame)
        elif frame.format.name == pixels:
            array = frame.to_ndarray()
        else:
            array = self._reformatter.reformat(frame, format=pixels, threads=1).to_ndarray()
        return array[: self._coding.height, : self._coding.width]


class Decoders:
    """A few decoders, of the files that were read last; none after pickling or in a forked child.

    Each is used by one thread at a time. Rows of several groups of pictures are decoded side by side where that pays.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[Decoder] = []
        self._tracks: OrderedDict[Path, Track] = OrderedDict()
        self._pid = os.getpid()

    def __reduce__(self) -> tuple[type[Decoders], tuple[()]]:
        return Decoders, ()

    def read(self, path: Path, coding: Coding, rows: Sequence[int]) -> Array:
        """Return rows of a file, given in increasing order."""
        array = np.empty((len(rows), *coding.row_shape), coding.dtype)
        if len(rows):
            self._leave_parent()
            track = self._track(path)
            ends = shares(track, rows, coding)
            tasks = [
                partial(self._read, path, coding, track, rows[start:stop], array[start:stop])
                for start, stop in pairwise([0, *ends])
            ]
            side_by_side(tasks)
        return array

    def _read(self, path: Path, coding: Coding, track: Track, rows: Sequence[int], into: Array) -> None:
        decoder = self._borrow(path, int(rows[0])) or Decoder(path, coding, track)
        decoder.read(rows, into)
        with self._lock:
            self._idle.append(decoder)
            del self._idle[:-DECODERS]

    def _borrow(self, path: Path, row: int) -> Decoder | None:
        """Take a decoder of a file out of the idle ones, if there is one: rather one that need not seek."""
        with self._lock:
            own = [decoder for decoder in self._idle if decoder.path == path]
            chosen = next((decoder for decoder in own if decoder.stands_before(row)), own[0] if own else None)
            if chosen is not None:
                self._idle.remove(chosen)
            return chosen

    def _track(self, path: Path) -> Track:
        """Return the index of a file; those that were read last are kept."""
        with self._lock:
            if path in self._tracks:
                self._tracks.move_to_end(path)
                return self._tracks[path]
        track = read_track(path)
        with self._lock:
            self._tracks[path] = track
            while len(self._tracks) > 1 and sum(map(len, self._tracks.values())) > KEPT_FRAMES:
                self._tracks.popitem(last=False)
        return track

    def _leave_parent(self) -> None:
        """Drop, in a forked child, what a thread of its parent may have been using."""
        if os.getpid() != self._pid:
            self._lock, self._idle, self._tracks, self._pid = threading.Lock(), [], OrderedDict(), os.getpid()

    def close(self) -> None:
        """Drop all decoders; a later reading makes new ones."""
        self._leave_parent()
        with self._lock:
            self._idle.clear()
            self._tracks.clear()


def shares(track: Track, rows: Sequence[int], coding: Coding) -> list[int]:
    """Return where to cut rows into parts that are decoded side by side: where a group of pictures ends.

    The last cut is their end. Few rows, or rows of one group, are one part.
    """
    worth = min(cores(), DECODERS, len(rows) * coding.height * coding.width // PARALLEL_PIXELS)
    if worth < 2:
        return [len(rows)]
    inside = np.asarray(rows)[np.asarray(rows) < len(track)]
    cuts = np.flatnonzero(np.diff(np.searchsorted(track.keys, inside, side="right"))) + 1
    parts = min(worth, len(cuts) + 1)
    if parts < 2:
        return [len(rows)]
    wanted = np.arange(1, parts) * len(rows) // parts
    nearest = cuts[np.abs(cuts[:, None] - wanted).argmin(axis=0)]
    return [*np.unique(nearest).tolist(), len(rows)]


class VideoColumn(Column):
    """The frames of one file as rows; what is read is decoded from the key frame before."""

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
        return rows if np.array_equal(wanted, index) else rows[back]

    def _rows(self, rows: Sequence[int]) -> Array:
        return self._decoders.read(self._path, self._coding, rows).reshape(len(rows), *self.leaf.shape)


def video_name(leaf: Leaf, i: int) -> str:
    """Return the name of the file of one leaf and episode in a shard."""
    return f"{leaf.path}/{i:06d}.mp4"


class VideoReader(StreamReader):
    """The video files of one shard: one for each leaf and episode that has rows of it."""

    def __init__(self, directory: Path, leaves: Sequence[Leaf], counts: Counts, codings: Mapping[str, Coding]) -> None:
        super().__init__(directory, leaves, counts)
        self._codings = codings
        self._decoders = Decoders()

    def _column(self, leaf: Leaf, i: int) -> Column:
        rows = int(self.counts.rows(leaf.per)[i])
        return VideoColumn(leaf, rows, self._path(leaf, i), self._codings[leaf.path], self._decoders)

    def _path(self, leaf: Leaf, i: int) -> Path:
        return self.directory / video_name(leaf, i)

    def count(self) -> Mapping[str, int]:
        return {path: self._count(leaf) for path, leaf in self.leaves.items()}

    def _count(self, leaf: Leaf) -> int:
        episodes = np.flatnonzero(self.counts.rows(leaf.per)).tolist()
        return sum(len(read_track(self._path(leaf, i))) for i in episodes)

    def close(self) -> None:
        self._decoders.close()
