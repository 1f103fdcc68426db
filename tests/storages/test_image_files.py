"""ImageFileStorage keeps the contract in each of its formats; other programs open its files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import imageio.v3 as imageio
import numpy as np
import pytest

from recorder.columns import Array
from recorder.errors import DamagedError, FormatError, LayoutError, WriteError
from recorder.leaf import Leaf
from recorder.storages import image_files_writing
from recorder.storages.base import Counts, Segment
from recorder.storages.image_files import ImageFileStorage
from recorder.testing import (
    ALPHA_LEAVES,
    ARRAY_LEAVES,
    GREY_LEAVES,
    INFO_LEAVES,
    PICTURE_LEAVES,
    RAGGED,
    TEXT_LEAF,
    Diary,
    StorageContract,
)

NEVER = (RAGGED, TEXT_LEAF, INFO_LEAVES[0])
DEPTH = ARRAY_LEAVES[0]
DEEP = Leaf("observation/deep", (9, 7, 3), "uint16", "image")
BLUE_FIRST = Leaf("observation/blue", (20, 30, 3), "uint8", "image", metadata={"format": "bgr"})
BLUE_ALPHA = Leaf("action/blue", (8, 9, 4), "uint8", "image", "transition", metadata={"format": "bgra"})


@pytest.fixture(autouse=True)
def _quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do without fsync where many files are written."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


class TestImageFilesAsPNG(StorageContract):
    storage = ImageFileStorage()
    leaves = (PICTURE_LEAVES[2], GREY_LEAVES[1], DEPTH, DEEP, BLUE_ALPHA)
    refused = (*NEVER, *ARRAY_LEAVES[1:4], *ARRAY_LEAVES[5:])
    block, longest = 8, 50


class TestImageFilesAsWebP(StorageContract):
    storage = ImageFileStorage("webp", effort=0)
    leaves = (GREY_LEAVES[1], *ALPHA_LEAVES, BLUE_FIRST)
    refused, block, longest = (*NEVER, DEPTH, DEEP), 4, 10


class TestImageFilesAsLossyWebP(StorageContract):
    storage, leaves = ImageFileStorage("webp", quality=90), (GREY_LEAVES[0], BLUE_FIRST)
    refused, block, longest, tolerance = (*NEVER, *ARRAY_LEAVES), 4, 10, 4.0


class TestImageFilesAsJPEG(StorageContract):
    storage, leaves = ImageFileStorage("jpeg"), (PICTURE_LEAVES[3], GREY_LEAVES[1])
    refused, block, longest, tolerance = (*NEVER, *ARRAY_LEAVES, *ALPHA_LEAVES), 8, 20, 4.0


def packed(folder: Path, storage: ImageFileStorage, leaf: Leaf, rows: int = 3) -> tuple[Path, Array]:
    """Pack an episode of one leaf, and return the folder of its files and what is in them."""
    diary = Diary(storage.writer(folder / "staging", [leaf]), [leaf])
    diary.append((0, rows))
    (folder / "shard").mkdir()
    diary.writer.pack(folder / "shard", diary.segments())
    return folder / "shard" / leaf.path / "000000", diary.expected(leaf, diary.segments())


@pytest.mark.parametrize("storage", [ImageFileStorage(), ImageFileStorage("webp"), ImageFileStorage("jpeg")], ids=str)
def test_other_programs_see_each_row_in_its_colours(tmp_path: Path, storage: ImageFileStorage) -> None:
    folder, rows = packed(tmp_path, storage, BLUE_FIRST)
    files = sorted(folder.iterdir())
    assert [path.stem for path in files] == ["000000", "000001", "000002"]
    for path, row in zip(files, rows, strict=True):
        seen = imageio.imread(path)
        assert seen.shape == (20, 30, 3)
        assert np.abs(seen.astype(int) - row[..., ::-1]).max() <= (0 if storage.exact(BLUE_FIRST) else 10)


def test_depth_of_sixteen_bits_is_seen_by_other_programs(tmp_path: Path) -> None:
    folder, rows = packed(tmp_path, ImageFileStorage(), DEPTH)
    assert np.array_equal(imageio.imread(folder / "000001.png"), rows[1])


def test_a_file_with_another_picture_is_refused_before_memory_is_taken(tmp_path: Path) -> None:
    for storage in (ImageFileStorage(), ImageFileStorage("webp"), ImageFileStorage("jpeg")):
        own = tmp_path / storage.format
        own.mkdir()
        packed(own, storage, BLUE_FIRST)
        leaf = Leaf(BLUE_FIRST.path, (21, 30, 3), "uint8", "image")
        reader = storage.reader(own / "shard", [leaf], Counts.of([Segment(0, 3, 2)]))
        with pytest.raises(FormatError, match=f"000001{'.jpg' if storage.format == 'jpeg' else ''}"):
            reader.whole(leaf.path)[1]


def test_a_missing_file_is_an_error_and_no_zeros(tmp_path: Path) -> None:
    folder, rows = packed(tmp_path, ImageFileStorage(), BLUE_FIRST, rows=30)
    (folder / "000017.png").unlink()
    reader = ImageFileStorage().reader(tmp_path / "shard", [BLUE_FIRST], Counts.of([Segment(0, 30, 29)]))
    column = reader.segment(0)[BLUE_FIRST.path]
    with pytest.raises(DamagedError, match=r"000017\.png is missing"):
        column[:]
    assert np.array_equal(column[18:], rows[18:])
    assert reader.count() == {BLUE_FIRST.path: 17}


def test_a_full_disk_keeps_the_rows_before_it_and_other_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leaves = [BLUE_FIRST, PICTURE_LEAVES[2]]
    diary = Diary(ImageFileStorage(threads=2).writer(tmp_path / "staging", leaves), leaves)
    diary.append((0, 4))
    write = image_files_writing.write_file

    def fail(path: Path, data: bytes, durable: bool = True) -> None:
        if "blue" in str(path) and path.stem == "000006":
            raise OSError(28, "No space left on device")
        write(path, data, durable)

    monkeypatch.setattr(image_files_writing, "write_file", fail)
    with pytest.raises(WriteError, match=r"000006\.png cannot be written.*No space left"):
        diary.append((0, 8))
    monkeypatch.setattr(image_files_writing, "write_file", write)
    diary.append((0, 2))
    assert diary.writer.segments() == [Segment(0, 6, -1)]
    view = diary.writer.view(Segment(0, 6, 5))
    for leaf in leaves:
        assert np.array_equal(view[leaf.path][:], diary.expected(leaf, [Segment(0, 6, 5)]))


@pytest.mark.parametrize(
    "options",
    [
        {"format": "gif"},
        {"quality": 80},
        {"format": "jpeg", "quality": 101},
        {"format": "webp", "effort": 7},
        {"effort": -1},
        {"threads": 0},
        {"threads": True},
    ],
    ids=str,
)
def test_options_that_it_has_not_are_refused(options: Mapping[str, Any]) -> None:
    with pytest.raises(LayoutError, match=r"ImageFileStorage\("):
        ImageFileStorage(**options).check([BLUE_FIRST])


def test_a_lossy_format_takes_no_leaf_that_is_no_picture() -> None:
    leaf = Leaf("observation/labels", (20, 30, 3), "uint8", "segmentation")
    ImageFileStorage().check([leaf])
    with pytest.raises(LayoutError, match=r"of kind 'segmentation'.*ImageFileStorage\(\)"):
        ImageFileStorage("jpeg").check([leaf])
