"""The contract of a storage as a test class, for the storages here and for those from outside the package.

    class TestHDF5Storage(StorageContract):
        storage, leaves = HDF5Storage(), TABLE_LEAVES

It needs pytest. The class attributes of `StorageContract` say what a storage promises beyond the least.
"""

from __future__ import annotations

import gc
import json
import math
import os
import pickle
import shutil
import time
import traceback
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

from recorder.columns import Array, Ragged, Rows, Sparse, concatenate, split, take
from recorder.errors import DamagedError, FormatError, LayoutError
from recorder.files import files_below
from recorder.infos import join_sparse
from recorder.leaf import JSON_TEXT, NUMBERS, TEXT, Leaf, encode_key, join, text_array
from recorder.storages.adopting import adopt
from recorder.storages.base import Counts, Reader, Run, Segment, Storage, Writer, storage_from_json

SMALL_BYTES = 64
"""Leaves with rows up to this size are also tried with `longest` rows."""

CHILD_SECONDS = 60.0
"""A forked child that has not ended by then hangs."""

NO_LEAF = -1
"""The rows of a class that a writer has no leaf of."""

TEXTS = ("", "a", "pick up the cup", "\0", "a\0b\0", "\ud800", "\U0001f916 é e\u0301", "\n", "%", "x" * 500)
"""Texts that are hard to keep; the sixth is half of a surrogate pair."""

VALUES: tuple[Any, ...] = (7, 0.5, True, "text", [1, "x"], [], {"a": [1.5, None]}, "\ud83d", [[1], [2, 3]])
"""Values of infos that are no arrays."""

TABLE_LEAVES = (
    *(Leaf(f"observation/{name}", (2, 3), name) for name in sorted(NUMBERS)),
    *(Leaf(f"action/{name}", (), name, "action", "transition") for name in ("bool", "float32", "int64")),
    Leaf("observation/picture", (16, 24, 3), "uint8", "image"),
    Leaf("observation/no rows", (0, 3)),
    Leaf("observation/no columns", (3, 0), "uint8"),
    Leaf(join("observation", encode_key("a/b"), encode_key("é *."), "c"), (5,), "float32"),
    Leaf("observation/task", (), TEXT, "task"),
    Leaf("action/words", (), TEXT, "action", "transition"),
    Leaf("observation/points", (3,), "float32", "pointcloud", ragged=True),
    Leaf("observation/counts", (), "uint64", ragged=True),
    Leaf("observation/nothing", (0,), ragged=True),
    Leaf("observation/texts", (), TEXT, ragged=True),
    Leaf("action/path", (2, 2), "int16", "action", "transition", ragged=True),
)
"""Leaves of every dtype in both classes, of no size, of text, and ragged ones: what a table keeps."""

INFO_LEAVES = (
    Leaf("info/score", sparse=True),
    Leaf("info/success", (), "bool", sparse=True),
    Leaf("info/arm/position", (3,), "float32", sparse=True),
    Leaf("info/note", (), TEXT, sparse=True),
    Leaf("info/contacts", (2,), "int64", ragged=True, sparse=True),
    Leaf("info/anything", (), JSON_TEXT, sparse=True),
)
"""Keys of infos, which no writer is told of beforehand."""

PICTURE_LEAVES = (
    Leaf("observation/camera/front", (64, 64, 3), "uint8", "image"),
    Leaf("observation/camera/odd", (33, 47, 3), "uint8", "image"),
    Leaf("observation/camera/tiny", (1, 1, 3), "uint8", "image"),
    Leaf("action/canvas", (16, 24, 3), "uint8", "image", "transition"),
)
"""RGB pictures."""

GREY_LEAVES = (
    Leaf("observation/grey", (24, 33), "uint8", "image"),
    Leaf("observation/grey channel", (17, 32, 1), "uint8", "image"),
)
"""Pictures without colours."""

ALPHA_LEAVES = (Leaf("observation/alpha", (20, 31, 4), "uint8", "image"),)
"""RGBA pictures."""

ARRAY_LEAVES = (
    Leaf("observation/depth", (48, 64), "uint16", "depth"),
    Leaf("observation/range", (24, 32, 1), "float32", "depth"),
    Leaf("observation/mask", (16, 16), "bool", "mask"),
    Leaf("observation/stack", (4, 20, 20), "uint8", "stack"),
    Leaf("observation/objects", (7, 7, 3), "uint8"),
    Leaf("observation/waves", (6,), "complex64"),
    Leaf("observation/half", (3, 1), "float16"),
    Leaf("action/torque", (7,), "float64", "action", "transition"),
    Leaf("reward", (), "float64", "reward", "transition"),
)
"""Arrays of one shape that are no natural pictures."""

RAGGED = Leaf("observation/points", (3,), "float32", ragged=True)
TEXT_LEAF = Leaf("observation/task", (), TEXT, "task")
"""Leaves whose rows are no arrays of one shape, for storages that must refuse them."""


# Rows, the same at each call.


def rows_of(leaf: Leaf, count: int, seed: int = 0) -> Rows:
    """Return `count` rows of a leaf; those of a larger count begin with those of a smaller one.

    Numbers are of any bits, with infinities, NaN and the limits of their dtype among them; floats whose metadata
    name a `range` lie in it. Rows of kind `image` are smooth pictures, each as a whole brighter or darker than its
    neighbours.
    """
    return take(_many_rows(leaf, max(16, 1 << (count - 1).bit_length()), seed), slice(0, count))


@lru_cache(maxsize=256)
def _many_rows(leaf: Leaf, count: int, seed: int) -> Rows:
    generator = np.random.default_rng([zlib.crc32(leaf.path.encode()), seed])
    if leaf.sparse:
        present = generator.random(count) < 0.7
        return Sparse(leaf, present, _dense(rows_of(replace(leaf, sparse=False), int(present.sum()), seed)))
    if leaf.ragged:
        lengths = (generator.random(count) * 4).astype(np.int64)
        values = rows_of(replace(leaf, ragged=False), int(lengths.sum()), seed)
        assert isinstance(values, np.ndarray)
        return Ragged(lengths, values)
    if leaf.dtype in (TEXT, JSON_TEXT):
        return _texts(leaf, (generator.random(count) * 1000).astype(int))
    return _pictures(leaf, count, seed) if leaf.kind == "image" else _numbers(leaf, count, generator)


def _texts(leaf: Leaf, choices: Array) -> Array:
    if leaf.dtype == JSON_TEXT:
        return text_array([json.dumps(VALUES[choice % len(VALUES)]) for choice in choices])
    return text_array([TEXTS[choice % len(TEXTS)] for choice in choices])


def _numbers(leaf: Leaf, count: int, generator: np.random.Generator) -> Array:
    shape, dtype = (count, *leaf.shape), leaf.numpy_dtype
    if dtype.kind == "b":
        return generator.random(shape) < 0.5
    if dtype.kind == "f" and "range" in leaf.metadata:
        low, high = leaf.metadata["range"]
        uniform: Array = generator.uniform(low, high, shape).astype(dtype)
        return uniform
    values = np.frombuffer(generator.bytes(count * leaf.nbytes), dtype).reshape(shape).copy()
    flat, limits = values.reshape(-1), _limits(dtype)
    flat[::3] = np.resize(limits, flat[::3].shape)
    return values


def _limits(dtype: np.dtype[Any]) -> Array:
    if dtype.kind in "iu":
        integers = np.iinfo(dtype)
        return np.array([integers.min, integers.max, 0, 1], dtype)
    floats = np.finfo(dtype)
    numbers = [0.0, -0.0, np.inf, -np.inf, np.nan, floats.max, floats.tiny, floats.smallest_subnormal, 1 / 3]
    return np.array(numbers).astype(dtype)


def _pictures(leaf: Leaf, count: int, seed: int) -> Array:
    height, width, *channels = leaf.shape
    t = (5 * (np.arange(count) + seed)) % 10
    brightness = (30 + 15 * t).reshape(count, *[1] * len(leaf.shape))
    picture = np.add.outer(np.linspace(0, 30, height), np.linspace(0, 30, width))
    for channel in channels:
        picture = np.add.outer(picture, 15 * np.arange(channel))
    return np.asarray(brightness + picture).astype(leaf.numpy_dtype)


def as_read(leaf: Leaf, rows: Rows) -> Array:
    """Return rows as a column gives them: ragged as objects, sparse masked, JSON as what it says."""
    match rows:
        case Sparse(_, present, values):
            there = as_read(replace(leaf, sparse=False), values)
            filled = np.zeros((len(present), *there.shape[1:]), there.dtype)
            filled[present] = there
            absent = np.broadcast_to(~present.reshape(-1, *[1] * (there.ndim - 1)), filled.shape)
            return np.ma.MaskedArray(filled, mask=absent)
        case Ragged(lengths, values):
            return text_array(split(values, lengths))
    return text_array([json.loads(text) for text in rows]) if leaf.dtype == JSON_TEXT else rows


# Comparing.


def assert_rows(leaf: Leaf, found: Array, expected: Array, tolerance: float | None = 0.0) -> None:
    """Raise `AssertionError` unless rows are those expected, bit for bit and with their dtype.

    With a `tolerance` above 0 the numbers of each row may differ by so much on average; with None only the
    shape and the dtype are compared.
    """
    told = f"{leaf.path!r}: {found.dtype} {found.shape} instead of {expected.dtype} {expected.shape}"
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape), told
    absent = _absent(expected)
    assert np.array_equal(_absent(found), absent), f"{leaf.path!r}: other rows are absent"
    if tolerance == 0.0:
        _assert_same(leaf, np.ma.getdata(found), np.ma.getdata(expected), absent)
    elif tolerance is not None and expected.size:
        off = np.abs(found.astype(float) - expected.astype(float)).reshape(len(expected), -1).mean(axis=1)
        worst = int(off.argmax())
        assert off[worst] <= tolerance, f"{leaf.path!r}: row {worst} is off by {off[worst]:.2f} on average"


def _absent(rows: Array) -> Array:
    """Return which rows are masked."""
    return np.asarray(np.ma.getmaskarray(rows).reshape(len(rows), math.prod(rows.shape[1:])).any(axis=1))


def _assert_same(leaf: Leaf, found: Array, expected: Array, absent: Array) -> None:
    if expected.dtype != object and found.tobytes() == expected.tobytes():
        return
    for i in np.flatnonzero(~absent):
        if _facts(found[i]) != _facts(expected[i]):
            raise AssertionError(f"{leaf.path!r}: row {i} is {found[i]!r}, not {expected[i]!r}")


def _facts(value: Any) -> Any:
    """Return all that makes a value what it is, down to the bits, to be compared."""
    if value is np.ma.masked:
        return None
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype, value.shape, value.tolist() if value.dtype == object else value.tobytes()
    return type(value), value


# A writer, and what it was given.


class Diary:
    """A writer, and beside it what it was given: row k of segment s is row k of `rows_of(leaf, …, seed=s)`.

    In a `series` each segment begins with a row without a transition.
    """

    def __init__(self, writer: Writer, leaves: Sequence[Leaf], infos: Sequence[Leaf] = (), series: bool = True) -> None:
        self.writer = writer
        self.leaves = tuple(leaves)
        self.infos = tuple(infos)
        self.series = series
        self.held: dict[int, int] = {}

    def append(self, *parts: tuple[int | None, int], spoil: bool = False) -> None:
        """Append so many next rows of segments in one batch; those of segment None belong to no run.

        The arrays are parts of larger ones. With `spoil` they are overwritten afterwards.
        """
        runs: list[Run] = []
        spans: list[tuple[int, int, int]] = []
        row = 0
        for segment, count in parts:
            done = 0 if segment is None else self.held.get(segment, 0)
            spans.append((-1 if segment is None else segment, done, done + count))
            if segment is not None:
                runs.append(Run(segment, row, row + count, self.series and not done and count > 0))
                self.held[segment] = done + count
            row += count
        rows = {leaf.path: _in_ring(_spliced(leaf, spans)) for leaf in (*self.leaves, *self.infos)}
        self.writer.append(rows, runs)
        if spoil:
            for column in rows.values():
                _spoil(column)

    def grow(self, rows: Mapping[int, int]) -> None:
        """Append so many rows of each segment, in batches of 1, 2, 4, … of each in turn."""
        size, rest = 1, dict(rows)
        while rest:
            self.append(*((segment, min(size, count)) for segment, count in rest.items()))
            rest = {segment: count - size for segment, count in rest.items() if count > size}
            size *= 2

    def end(self, *segments: int) -> None:
        """Say that no more rows of these segments come; by default, of any."""
        for segment in segments or self.held:
            self.writer.end(segment)

    def forget(self, *segments: int) -> None:
        """Let the writer forget segments."""
        self.writer.forget(segments)
        for segment in segments:
            del self.held[segment]

    def segment(self, number: int, rows: int | None = None) -> Segment:
        """Return a segment with all rows that were appended, or with fewer."""
        moments = self.held[number] if rows is None else rows
        return Segment(number, moments, max(moments - self.series, 0))

    def segments(self) -> list[Segment]:
        """Return all segments."""
        return [self.segment(number) for number in sorted(self.held)]

    def expected(self, leaf: Leaf, segments: Iterable[Segment]) -> Array:
        """Return the rows of a leaf in segments, one after another, as a column gives them."""
        skipped = 0 if leaf.per == "moment" else int(self.series)
        spans = [
            (number, skipped, skipped + (moments if leaf.per == "moment" else transitions))
            for number, moments, transitions in segments
        ]
        return as_read(leaf, _spliced(leaf, spans))


def _spliced(leaf: Leaf, spans: Iterable[tuple[int, int, int]]) -> Rows:
    """Return rows `[start, stop)` of segments, one after another."""
    pieces = [take(rows_of(leaf, stop, segment + 1), slice(start, stop)) for segment, start, stop in spans]
    if leaf.sparse:
        return join_sparse(leaf.path, [piece for piece in pieces if isinstance(piece, Sparse)])
    dense = [piece for piece in pieces if not isinstance(piece, Sparse)]
    return concatenate(dense or [_dense(rows_of(leaf, 0))])


def _dense(rows: Rows) -> Array | Ragged:
    assert not isinstance(rows, Sparse)
    return rows


def _in_ring(rows: Rows) -> Rows:
    """Return a copy of rows whose arrays are parts of larger ones."""
    match rows:
        case Ragged(lengths, values):
            return Ragged(lengths.copy(), values.copy())
        case Sparse(leaf, present, values):
            return Sparse(leaf, present.copy(), _dense(_in_ring(values)))
    ring = np.concatenate([rows[:2], rows, rows[:1]])
    return ring[min(2, len(rows)) :][: len(rows)]


def _spoil(rows: Rows) -> None:
    """Overwrite what was lent."""
    match rows:
        case Ragged(lengths, values):
            lengths[:] = 0
            _spoil(values)
        case Sparse(_, present, values):
            present[:] = ~present
            _spoil(values)
        case _:
            rows[:] = "spoilt" if rows.dtype == object else ~rows if rows.dtype == bool else 1


# The contract.

INDEXES: tuple[Any, ...] = (
    *(0, -1, 5, np.int64(3)),
    *(
        slice(None),
        slice(2, 5),
        slice(-3, None),
        slice(1, None, 3),
        slice(7, 1, -2),
        slice(5, 2),
        slice(90, 99),
    ),
    *([5, 2, 2, 0], [-1, 0, -9], [], np.array([3, 4, 5], np.uint8), np.arange(9) % 2 == 0, np.zeros(9, bool)),
)
"""What nine rows are asked for by."""

BEYOND: tuple[Any, ...] = (9, -10, [0, 9], [-10], np.ones(8, bool), [0.5], [[1, 2]])
"""What nine rows have no answer to."""


class StorageContract:
    """The tests of one storage with some leaves. A subclass says what its storage promises.

    - `storage`, and the `leaves` that it keeps;
    - `infos`: sparse leaves that nobody declares, for a storage that may be a `default`;
    - `refused`: leaves that `check` must refuse, each with a word of what keeps it instead;
    - `tolerance`: how far a lossy row may be off on average; None where only its shape counts;
    - `block`: rows after which the storage does something new, such as beginning a chunk;
    - `delay`: how many of a segment's newest rows a kill may cost beyond the checkpoint;
    - `longest`: rows of the long segments of small leaves.
    """

    storage: Storage
    leaves: Sequence[Leaf]
    infos: Sequence[Leaf] = ()
    refused: Sequence[Leaf] = ()
    tolerance: float | None = 0.0
    block = 64
    delay = 0
    longest = 10_000

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Give tests that want them each leaf, and each leaf with each number of rows."""
        if "count" in metafunc.fixturenames:
            cases = [(leaf, count) for leaf in self.leaves for count in self._counts(leaf)]
            names = [f"{leaf.path}-{count}" for leaf, count in cases]
            metafunc.parametrize(("leaf", "count"), cases, ids=names)
        elif "leaf" in metafunc.fixturenames:
            metafunc.parametrize("leaf", self.leaves, ids=[leaf.path for leaf in self.leaves])

    def _counts(self, leaf: Leaf) -> list[int]:
        few = {1, 2, self.block - 1, self.block, self.block + 1}
        return sorted({*few, self.longest} if leaf.nbytes <= SMALL_BYTES else few)

    def _diary(self, folder: Path, leaves: Sequence[Leaf] | None = None, series: bool = True) -> Diary:
        """Return a diary of a new writer, of all leaves or of some."""
        own = self.leaves if leaves is None else leaves
        infos = self.infos if leaves is None else ()
        return Diary(self.storage.writer(folder / "staging", own), own, infos, series)

    def _filled(self, folder: Path) -> Diary:
        """Return a diary of three segments of 9, 4 and 2 rows that have ended."""
        diary = self._diary(folder)
        diary.grow({0: 9, 1: 4, 2: 2})
        diary.end()
        return diary

    @contextmanager
    def _packed(self, diary: Diary, folder: Path, segments: Sequence[Segment] | None = None) -> Iterator[Reader]:
        """Pack segments, all by default, into a new folder, and open it."""
        own = diary.segments() if segments is None else segments
        with closing(self._reader(folder, pack(diary, folder, own), own)) as reader:
            yield reader

    def _reader(self, folder: Path, leaves: Sequence[Leaf], segments: Sequence[Segment]) -> Reader:
        return self.storage.reader(folder, leaves, Counts.of(segments))

    def _check(self, diary: Diary, folder: Path, segments: Sequence[Segment] | None = None) -> None:
        """Pack segments, all by default, and compare what is read with what was appended."""
        own = diary.segments() if segments is None else segments
        with self._packed(diary, folder, own) as reader:
            counts = Counts.of(own)
            assert dict(reader.count()) == {path: counts.total(leaf.per) for path, leaf in reader.leaves.items()}
            for leaf in (*diary.leaves, *diary.infos):
                expected = diary.expected(leaf, own)
                if leaf.sparse and np.ma.getmaskarray(expected).all():
                    assert leaf.path not in reader.leaves, f"{leaf.path!r} is in no row, and packed"
                    continue
                self._compare(leaf, reader.whole(leaf.path)[:], expected)
                for i, segment in enumerate(own):
                    self._compare(leaf, reader.segment(i)[leaf.path][:], diary.expected(leaf, [segment]))

    def _compare(self, leaf: Leaf, found: Any, expected: Array) -> None:
        assert_rows(leaf, found, expected, 0.0 if leaf.sparse or self.storage.exact(leaf) else self.tolerance)

    def _told(self, found: Segment, diary: Diary) -> Segment:
        """Return a segment that a writer tells of, with what it cannot know of a class without leaves."""
        number, moments, transitions = found
        classes = {leaf.per for leaf in diary.leaves}
        if moments == NO_LEAF and "moment" not in classes:
            moments = transitions + diary.series
        if transitions == NO_LEAF and "transition" not in classes:
            transitions = max(moments - diary.series, 0)
        assert min(moments, transitions) >= 0, f"{found} of leaves of {classes}"
        return Segment(number, moments, transitions)

    # Rows come back.

    def test_one_segment_comes_back(self, tmp_path: Path, leaf: Leaf, count: int) -> None:
        diary = self._diary(tmp_path, [leaf])
        diary.grow({0: rows_for(leaf, count)})
        diary.end()
        self._check(diary, tmp_path / "shard")

    def test_many_segments_that_are_open_at_once_come_back(self, tmp_path: Path, leaf: Leaf, count: int) -> None:
        diary = self._diary(tmp_path, [leaf])
        rows = rows_for(leaf, count)
        diary.grow({3: rows, 0: min(rows, self.block) // 2 + 1, 12: min(rows, self.block)})
        diary.end()
        self._check(diary, tmp_path / "shard")

    def test_the_others_come_back_when_a_segment_is_forgotten(self, tmp_path: Path, leaf: Leaf, count: int) -> None:
        diary = self._diary(tmp_path, [leaf])
        rows = rows_for(leaf, count)
        diary.grow({0: rows, 1: min(rows, self.block) // 2 + 1})
        diary.writer.checkpoint()
        diary.forget(1)
        diary.grow({2: min(rows, self.block), 0: 1})
        diary.end()
        self._check(diary, tmp_path / "shard")

    def test_all_leaves_keep_step_with_one_another(self, tmp_path: Path) -> None:
        diary = self._diary(tmp_path)
        diary.grow({0: 2, 1: self.block + 1, 2: 3})
        diary.end()
        self._check(diary, tmp_path / "shard")

    def test_rows_that_are_no_series_of_steps_come_back(self, tmp_path: Path) -> None:
        leaves = [replace(leaf, per="transition") for leaf in self.leaves]
        diary = self._diary(tmp_path, leaves, series=False)
        diary.grow({0: 1, 1: 5})
        diary.end()
        self._check(diary, tmp_path / "shard")

    def test_lent_arrays_may_be_overwritten_after_append(self, tmp_path: Path) -> None:
        diary = self._diary(tmp_path)
        for _ in range(3):
            diary.append((0, 3), (1, 2), spoil=True)
        diary.end()
        self._check(diary, tmp_path / "shard")

    def test_rows_that_belong_to_no_run_are_left_out(self, tmp_path: Path) -> None:
        diary = self._diary(tmp_path)
        diary.append((None, 2), (0, 3), (None, 1), (1, 2), (None, 4))
        diary.append((1, 2), (0, 1), (None, 1))
        diary.writer.checkpoint()
        diary.append((0, 1), (None, 3))
        diary.end()
        self._check(diary, tmp_path / "shard")

    def test_a_batch_without_rows_changes_nothing(self, tmp_path: Path) -> None:
        diary = self._diary(tmp_path)
        diary.append((0, 3))
        diary.append((0, 0))
        diary.writer.append({leaf.path: rows_of(leaf, 0) for leaf in diary.leaves}, [])
        diary.append((0, 0), (1, 2), (0, 1))
        diary.end()
        self._check(diary, tmp_path / "shard")

    # What a writer holds.

    def test_a_writer_tells_truly_what_it_holds(self, tmp_path: Path) -> None:
        diary = self._diary(tmp_path)
        assert list(diary.writer.segments()) == []
        diary.append((4, 3), (0, 2))
        diary.writer.checkpoint()
        diary.append((4, 1), (1_000_000, 2))
        assert [self._told(segment, diary) for segment in diary.writer.segments()] == diary.segments()
        diary.forget(4)
        assert [self._told(segment, diary) for segment in diary.writer.segments()] == diary.segments()

    def test_a_writer_that_holds_nothing_weighs_nothing(self, tmp_path: Path) -> None:
        diary = self._diary(tmp_path)
        assert diary.writer.nbytes == 0
        diary.grow({0: 3, 1: 2})
        assert diary.writer.nbytes >= 0
        diary.forget(0, 1)
        assert diary.writer.nbytes == 0

    def test_a_view_is_what_will_be_packed(self, tmp_path: Path) -> None:
        diary = self._filled(tmp_path)
        for saved in (False, True):
            for segment in (*diary.segments(), diary.segment(0, 3)):
                columns = diary.writer.view(segment)
                for leaf in diary.leaves:
                    self._compare(leaf, columns[leaf.path][:], diary.expected(leaf, [segment]))
                for leaf in diary.infos:
                    if leaf.path in columns:
                        self._compare(leaf, columns[leaf.path][:], diary.expected(leaf, [segment]))
            if not saved:
                diary.writer.checkpoint()

    def test_a_writer_is_closed_twice_and_shards_stay(self, tmp_path: Path) -> None:
        diary = self._filled(tmp_path)
        with self._packed(diary, tmp_path / "shard") as reader:
            diary.writer.close()
            diary.writer.close()
            for leaf in diary.leaves:
                self._compare(leaf, reader.whole(leaf.path)[:], diary.expected(leaf, diary.segments()))

    # Packing.

    def test_packing_consumes_nothing(self, tmp_path: Path) -> None:
        diary = self._filled(tmp_path)
        self._check(diary, tmp_path / "first")
        self._check(diary, tmp_path / "second")
        diary.writer.checkpoint()
        self._check(diary, tmp_path / "third")

    def test_segments_are_packed_in_any_order(self, tmp_path: Path) -> None:
        diary = self._filled(tmp_path)
        diary.writer.checkpoint()
        self._check(diary, tmp_path / "shard", [diary.segment(number) for number in (2, 0, 1)])
        self._check(diary, tmp_path / "some", [diary.segment(1)])

    def test_segments_are_packed_with_fewer_rows_than_they_have(self, tmp_path: Path) -> None:
        diary = self._filled(tmp_path)
        self._check(diary, tmp_path / "cut", [diary.segment(0, 3), diary.segment(1), diary.segment(2, 2)])
        diary.writer.checkpoint()
        self._check(diary, tmp_path / "other", [diary.segment(1, 2), diary.segment(0, 8)])
        self._check(diary, tmp_path / "whole")

    def test_some_segments_are_packed_while_others_run(self, tmp_path: Path) -> None:
        diary = self._diary(tmp_path)
        diary.append((0, 3), (1, 4))
        diary.end(0)
        self._check(diary, tmp_path / "first", [diary.segment(0)])
        diary.append((1, 2), (2, 2))
        diary.forget(0)
        diary.append((1, 3))
        diary.end()
        self._check(diary, tmp_path / "second")

    def test_a_shard_outlives_what_was_staged(self, tmp_path: Path) -> None:
        diary = self._filled(tmp_path)
        diary.writer.checkpoint()
        with self._packed(diary, tmp_path / "shard") as reader:
            expected = {leaf: diary.expected(leaf, diary.segments()) for leaf in diary.leaves}
            diary.forget(*diary.held)
            shutil.rmtree(tmp_path / "staging", ignore_errors=True)
            for leaf, rows in expected.items():
                self._compare(leaf, reader.whole(leaf.path)[:], rows)

    def test_an_episode_of_a_shard_becomes_a_segment_again_with_the_very_same_rows(self, tmp_path: Path) -> None:
        diary = self._filled(tmp_path)
        with self._packed(diary, tmp_path / "shard") as reader:
            heir = Diary(self.storage.writer(tmp_path / "heir", self.leaves), self.leaves, self.infos)
            for i in (1, 0):
                adopt(heir.writer, diary.segment(i), reader, i)
                heir.held[i] = diary.held[i]
            with self._packed(heir, tmp_path / "again") as again:
                for leaf in again.leaves.values():
                    for i in (0, 1):
                        assert_rows(leaf, again.segment(i)[leaf.path][:], reader.segment(i)[leaf.path][:])

    # Staging and recovery.

    def test_nothing_is_on_disk_before_there_are_rows(self, tmp_path: Path) -> None:
        writer = self.storage.writer(tmp_path / "staging", self.leaves)
        writer.checkpoint()
        writer.close()
        assert not any(tmp_path.iterdir())

    def test_forgotten_segments_leave_no_file_in_staging(self, tmp_path: Path) -> None:
        diary = self._diary(tmp_path)
        diary.grow({0: self.block + 1, 1: 3, 2: 2})
        diary.end(1)
        diary.writer.checkpoint()
        diary.grow({0: 2, 2: 5})
        diary.writer.checkpoint()
        for segment in (1, 0, 2):
            diary.forget(segment)
        assert list(files_below(tmp_path)) == []

    def test_forgotten_segments_are_not_recovered(self, tmp_path: Path) -> None:
        diary = self._filled(tmp_path)
        diary.writer.checkpoint()
        diary.forget(1)
        with self._recovered(diary, tmp_path) as dead:
            assert sorted(dead.held) == [0, 2]
            self._check(dead, tmp_path / "shard")

    def test_a_dead_writer_is_recovered_up_to_its_checkpoint(self, tmp_path: Path) -> None:
        diary = self._diary(tmp_path)
        diary.append((0, 5), (1, 3))
        diary.append((1, 2), (2, 4))
        diary.end(0)
        diary.writer.checkpoint()
        saved = dict(diary.held)
        self._check_recovered(diary, tmp_path / "first", tmp_path, saved)
        diary.append((1, self.block))
        self._check_recovered(diary, tmp_path / "second", tmp_path, saved)
        diary.writer.checkpoint()
        self._check_recovered(diary, tmp_path / "third", tmp_path, dict(diary.held))

    def _check_recovered(self, diary: Diary, folder: Path, source: Path, saved: Mapping[int, int]) -> None:
        """Recover a copy of the staging folder, twice as after a kill of recovery, and compare its rows."""
        with self._recovered(diary, source, folder):
            pass
        with self._recovered(diary, folder, folder / "again") as dead:
            assert dead.held.keys() == saved.keys()
            for number, rows in dead.held.items():
                assert saved[number] - self.delay <= rows <= diary.held[number], (number, rows, saved)
            self._check(dead, folder / "shard", dead.told)
            dead.forget(*dead.held)
            assert list(files_below(folder / "again" / "staging")) == []

    def test_recovery_from_a_cut_file_gives_what_came_before(self, tmp_path: Path) -> None:
        diary = self._diary(tmp_path)
        for _ in range(2):
            diary.append((0, 3), (1, 2))
            diary.writer.checkpoint()
        staged = [path.relative_to(tmp_path) for path in files_below(tmp_path / "staging")]
        assert staged, "a checkpoint left nothing"
        for i, name in enumerate(staged):
            folder = tmp_path / f"{i}"
            shutil.copytree(tmp_path / "staging", folder / "staging")
            cut(folder / name, (folder / name).stat().st_size // 2)
            with self._recovered(diary, folder, folder / "dead") as dead:
                if whole := [segment for segment in dead.told if min(segment[1:]) > 0]:
                    self._check(dead, folder / "shard", whole)

    @contextmanager
    def _recovered(self, diary: Diary, source: Path, folder: Path | None = None) -> Iterator[Recovered]:
        """Recover a copy of the staging folder in `source`, as it is while its writer lives."""
        copy = (folder or source / "dead") / "staging"
        shutil.copytree(source / "staging", copy)
        with closing(self.storage.recover(copy, diary.leaves)) as writer:
            dead = Recovered(writer, diary.leaves, diary.infos, diary.series)
            dead.told = [self._told(segment, diary) for segment in writer.segments()]
            dead.held = {number: max(moments, transitions + diary.series) for number, moments, transitions in dead.told}
            yield dead

    # Reading.

    def test_rows_are_picked_as_from_an_array(self, tmp_path: Path) -> None:
        with self._packed(self._nine(tmp_path), tmp_path / "shard") as reader:
            for leaf in reader.leaves.values():
                whole, column = reader.whole(leaf.path)[:], reader.whole(leaf.path)
                for index in INDEXES:
                    picked = whole[np.array(index, int) if isinstance(index, list) else index]
                    if isinstance(index, int | np.integer):
                        assert _facts(column[index]) == _facts(picked), (leaf.path, index)
                    else:
                        assert_rows(leaf, column[index], picked)

    def test_rows_that_are_not_there_raise_an_index_error(self, tmp_path: Path) -> None:
        with self._packed(self._nine(tmp_path), tmp_path / "shard") as reader:
            for path in reader.leaves:
                for index in BEYOND:
                    with pytest.raises(IndexError):
                        reader.whole(path)[index]

    def _nine(self, folder: Path) -> Diary:
        """Return a diary of nine rows of each class, which lie in two segments or more."""
        leaves = [replace(leaf, per="moment") for leaf in self.leaves]
        diary = Diary(self.storage.writer(folder / "staging", leaves), leaves, self.infos)
        diary.grow({0: 4, 1: 2, 2: 3})
        diary.end()
        return diary

    def test_a_column_tells_its_shape_and_dtype(self, tmp_path: Path) -> None:
        diary = self._filled(tmp_path)
        with self._packed(diary, tmp_path / "shard") as reader:
            for path, leaf in reader.leaves.items():
                column = reader.segment(0)[path]
                rows = diary.segment(0).moments if leaf.per == "moment" else diary.segment(0).transitions
                assert len(column) == rows
                assert column.shape == ((rows,) if leaf.ragged else (rows, *leaf.shape)), path
                assert column.dtype == leaf.numpy_dtype
                assert column[:].dtype == (object if leaf.ragged else leaf.numpy_dtype), path

    def test_inner_axes_are_picked_with_the_rows(self, tmp_path: Path) -> None:
        diary = self._filled(tmp_path)
        with self._packed(diary, tmp_path / "shard") as reader:
            for leaf in diary.leaves:
                if leaf.fixed and leaf.shape and leaf.shape[0]:
                    column = reader.segment(0)[leaf.path]
                    assert_rows(leaf, column[1:4, 0], column[:][1:4, 0])
                    assert _facts(column[2, 0]) == _facts(column[:][2, 0]), leaf.path

    def test_what_was_read_may_be_changed(self, tmp_path: Path) -> None:
        diary = self._filled(tmp_path)
        with self._packed(diary, tmp_path / "shard") as reader:
            for leaf in diary.leaves:
                column = reader.whole(leaf.path)
                before, spoilt = column[:], column[:]
                _spoil(spoilt)
                assert_rows(leaf, column[:], before)

    def test_a_shard_has_the_columns_of_its_leaves_and_no_others(self, tmp_path: Path) -> None:
        diary = self._filled(tmp_path)
        with self._packed(diary, tmp_path / "shard") as reader:
            assert set(reader.segment(1)) == set(reader.leaves)
            assert {leaf.path for leaf in diary.leaves} <= set(reader.leaves)
            with pytest.raises(KeyError):
                reader.segment(1)["no such leaf"]

    def test_coded_rows_are_one_for_each_row_or_none(self, tmp_path: Path) -> None:
        diary = self._filled(tmp_path)
        with self._packed(diary, tmp_path / "shard") as reader:
            for path in reader.leaves:
                coded = reader.encoded(path, slice(1, 4))
                assert coded is None or [type(row) for row in coded] == [bytes] * 3

    def test_a_reader_is_closed_twice(self, tmp_path: Path) -> None:
        with self._packed(self._filled(tmp_path), tmp_path / "shard") as reader:
            for path in reader.leaves:
                reader.whole(path)[:1]
            reader.close()
            reader.close()

    def test_a_shard_is_read_in_a_forked_child_and_elsewhere(self, tmp_path: Path) -> None:
        diary = self._filled(tmp_path)
        expected = {leaf: diary.expected(leaf, diary.segments()) for leaf in diary.leaves}
        with self._packed(diary, tmp_path / "shard") as reader:

            def compare(opened: Reader) -> None:
                for leaf, rows in expected.items():
                    self._compare(leaf, opened.whole(leaf.path)[:], rows)

            compare(reader)
            in_child(lambda: compare(reader))
            compare(reader)
            moved = (tmp_path / "shard").rename(tmp_path / "moved")
            told = pickle.dumps((self.storage, moved, list(reader.leaves.values()), reader.counts))
            in_child(lambda: compare(read_anew(told)))

    # Damage.

    def test_a_missing_file_is_named(self, tmp_path: Path) -> None:
        self._check_damage(tmp_path, Path.unlink)

    def test_a_file_that_was_cut_is_named(self, tmp_path: Path) -> None:
        self._check_damage(tmp_path, lambda path: cut(path, path.stat().st_size // 2))

    def test_a_file_that_was_emptied_is_named(self, tmp_path: Path) -> None:
        self._check_damage(tmp_path, lambda path: cut(path, 0))

    def _check_damage(self, folder: Path, damage: Callable[[Path], object]) -> None:
        """Damage each file of a shard in turn: reading and counting name it, or fewer rows are counted."""
        diary = self._filled(folder)
        found, counts = pack(diary, folder / "shard", diary.segments()), Counts.of(diary.segments())
        for i, path in enumerate(list(files_below(folder / "shard"))):
            copy = folder / f"{i}"
            shutil.copytree(folder / "shard", copy)
            damaged = copy / path.relative_to(folder / "shard")
            damage(damaged)
            with closing(self._reader(copy, found, diary.segments())) as reader:
                with pytest.raises((DamagedError, FormatError)) as raised:
                    read_all(reader)
                assert damaged.name in str(raised.value)
            with closing(self._reader(copy, found, diary.segments())) as reader:
                try:
                    rows = reader.count()
                except (DamagedError, FormatError) as error:
                    rows, told = {}, str(error)
                assert (
                    damaged.name in told
                    if not rows
                    else any(rows[path] < counts.total(leaf.per) for path, leaf in reader.leaves.items())
                )

    # The storage as a value.

    def test_it_is_a_value_that_is_equal_to_its_copies(self) -> None:
        copies = _unpickled(pickle.dumps(self.storage)), storage_from_json(_through_json(self.storage))
        for copy in copies:
            assert copy == self.storage
            assert hash(copy) == hash(self.storage)
            assert copy.to_json() == self.storage.to_json()

    def test_options_that_it_has_not_are_refused(self) -> None:
        with pytest.raises((LayoutError, FormatError)):
            type(self.storage).from_options({"no such option": 1})
        with pytest.raises(FormatError):
            storage_from_json({**_through_json(self.storage), "no such option": 1})

    def test_it_keeps_its_leaves_and_refuses_others_by_name(self) -> None:
        self.storage.check(self.leaves)
        for leaf in self.refused:
            with pytest.raises(LayoutError) as raised:
                self.storage.check([leaf])
            assert repr(leaf.path) in str(raised.value)
            assert "Storage(" in str(raised.value), "it says what would keep the leaf instead"

    def test_it_tells_of_each_leaf_whether_it_is_exact(self, leaf: Leaf) -> None:
        assert self.storage.exact(leaf) is True or self.tolerance != 0.0


class Recovered(Diary):
    """The diary of a recovered writer, with the segments as it told them."""

    told: list[Segment]


def rows_for(leaf: Leaf, count: int) -> int:
    """Return how many rows to append so that a leaf has `count` of them."""
    return count + (leaf.per == "transition")


def pack(diary: Diary, folder: Path, segments: Sequence[Segment]) -> list[Leaf]:
    """Pack segments into a new folder, and return all leaves that are in it."""
    folder.mkdir(parents=True)
    return [*diary.leaves, *diary.writer.pack(folder, segments)]


def cut(path: Path, size: int) -> None:
    """Cut a file, and nothing that was linked to it."""
    data = path.read_bytes()[:size]
    path.unlink()
    path.write_bytes(data)


def read_all(reader: Reader) -> None:
    """Read all rows of all leaves."""
    for path in reader.leaves:
        reader.whole(path)[:]


def read_anew(told: bytes) -> Reader:
    """Open a shard by what was pickled of it."""
    storage, folder, leaves, counts = _unpickled(told)
    reader: Reader = storage.reader(folder, leaves, counts)
    return reader


def _unpickled(data: bytes) -> Any:
    return pickle.loads(data)  # noqa: S301  # what this very test pickled


def _through_json(storage: Storage) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(json.dumps(storage.to_json(), allow_nan=False))
    return data


def in_child(work: Callable[[], None]) -> None:
    """Do work in a forked child, and fail if it fails or hangs there."""
    gc.collect()  # encoders that other tests dropped: an AV1 encoder that a forked child frees hangs there
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of threads
        child = os.fork()
    if not child:
        _work_and_exit(work)
    end = time.monotonic() + CHILD_SECONDS
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > end:
            os.kill(child, 9)
            os.waitpid(child, 0)
            pytest.fail("a forked child hangs")
        time.sleep(0.002)
    assert ended[1] == 0, "it failed in a forked child"


def _work_and_exit(work: Callable[[], None]) -> NoReturn:
    code = 1
    try:
        work()
        code = 0
    except BaseException:  # noqa: BLE001  # told, and then this child ends
        traceback.print_exc()
    finally:
        os._exit(code)
