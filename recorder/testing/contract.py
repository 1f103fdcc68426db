"""What the tests of all contracts have in common: a storage, its leaves, and shards of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recorder.columns import Array
from recorder.leaf import Leaf
from recorder.storages.base import NO_LEAF, Counts, Reader, Segment, Storage
from recorder.testing.comparing import assert_rows
from recorder.testing.diary import Diary
from recorder.testing.shards import pack

SMALL_BYTES = 64
"""Leaves with rows up to this size are also tried with `longest` rows."""


class Contract:
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
