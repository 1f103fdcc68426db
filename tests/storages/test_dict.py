"""DictStorage keeps the contract with a storage of its own for some leaves; it fans out and joins again."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from recorder.columns import Rows
from recorder.errors import FormatError, LayoutError
from recorder.files import files_below
from recorder.leaf import TEXT, Leaf
from recorder.storages.base import Counts, Run, Segment, Storage, storage_from_json
from recorder.storages.depth import DepthStorage
from recorder.storages.dict import DictStorage, least
from recorder.storages.hdf5 import HDF5Storage
from recorder.storages.image_files import ImageFileStorage
from recorder.storages.npz import NpzStorage
from recorder.storages.parquet import ParquetStorage
from recorder.storages.video import VideoStorage
from recorder.storages.zarr import ZarrStorage
from recorder.testing import INFO_LEAVES, Diary, StorageContract

IMAGE = Leaf("observation/camera", (12, 9, 3), "uint8", "image")
DEPTH = Leaf("observation/depth", (8, 6), "float32", "depth")
POINTS = Leaf("observation/points", (2,), "float32", ragged=True)
CANVAS = Leaf("action/canvas", (4, 3), "int16", "action", "transition")
FORCE = Leaf("action/force", (2,), "float64", "action", "transition")
WORDS = Leaf("action/words", (), TEXT, "action", "transition")
LEAVES = (IMAGE, DEPTH, POINTS, CANVAS, FORCE, WORDS)

SMALL = ZarrStorage(chunk_bytes=256, shard_bytes=1)
MIXED = DictStorage({IMAGE.path: SMALL, CANVAS.path: SMALL, FORCE.path: HDF5Storage("gzip"), DEPTH.path: ZarrStorage()})


@pytest.fixture(autouse=True)
def _quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do without fsync where many files are written."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


class TestDictStorageOfSeveralStorages(StorageContract):
    storage, leaves, infos = MIXED, LEAVES, INFO_LEAVES
    block = longest = 16


class TestDictStorageOfItsDefault(StorageContract):
    storage, leaves, infos = DictStorage(), LEAVES, INFO_LEAVES
    block = longest = 16


class TestDictStorageWhoseDefaultHasNoLeaf(StorageContract):
    storage = DictStorage({leaf.path: SMALL for leaf in (IMAGE, CANVAS)})
    leaves, infos = (IMAGE, CANVAS), INFO_LEAVES
    block = longest = 16


def test_each_storage_gets_its_leaves_and_a_second_table_a_folder(tmp_path: Path) -> None:
    diary = Diary(MIXED.writer(tmp_path / "staging", LEAVES), LEAVES)
    diary.grow({0: 3})
    (tmp_path / "shard").mkdir()
    diary.writer.pack(tmp_path / "shard", diary.segments())
    names = {path.relative_to(tmp_path / "shard").as_posix() for path in files_below(tmp_path / "shard")}
    assert {"data.h5", "hdf5-1/data.h5", "observation/camera.zarr/zarr.json"} <= names
    assert [leaf.path for leaf in dict(MIXED.shares(LEAVES))[HDF5Storage()]] == [POINTS.path, WORDS.path]


def test_a_path_that_is_no_leaf_is_refused() -> None:
    storage = DictStorage({"observation/camrea": SMALL})
    with pytest.raises(LayoutError, match=r"no leaf 'observation/camrea'.*'observation/camera'"):
        storage.check(LEAVES)


def test_what_a_storage_cannot_keep_is_refused_by_that_storage() -> None:
    with pytest.raises(LayoutError, match=r"'observation/points' is ragged.*HDF5Storage"):
        DictStorage({POINTS.path: SMALL}).check(LEAVES)


def test_a_leaf_is_as_exact_as_its_storage() -> None:
    storage = DictStorage({IMAGE.path: ZarrStorage(quality=50)})
    assert not storage.exact(IMAGE)
    assert storage.exact(DEPTH)


@pytest.mark.parametrize(
    "data",
    [
        {"id": "dict"},
        {"id": "dict", "default": {"id": "hdf5"}},
        {"id": "dict", "default": {"id": "hdf5"}, "storages": []},
        {"id": "dict", "default": {"id": "hdf5"}, "storages": {"a": {"id": "nothing"}}},
        {"id": "dict", "default": {"id": "hdf5", "speed": 1}, "storages": {}},
        {"id": "dict", "default": "hdf5", "storages": {}},
    ],
)
def test_json_of_another_form_is_refused(data: object) -> None:
    with pytest.raises(FormatError):
        storage_from_json(data)


def test_a_segment_has_the_whole_rows_that_all_its_storages_have() -> None:
    table, frames, actions = Segment(7, 8, 7), Segment(7, 5, -1), Segment(7, -1, 6)
    assert least([table, frames], series=True) == Segment(7, 5, 4)
    assert least([table, actions], series=True) == Segment(7, 7, 6)
    assert least([frames, actions], series=True) == Segment(7, 5, 4)
    assert least([table, frames, Segment(7, -1, 2)], series=True) == Segment(7, 3, 2)
    assert least([Segment(7, 8, 8), Segment(7, -1, 3)], series=False) == Segment(7, 3, 3)
    assert least([Segment(7, -1, 3)], series=False) == Segment(7, 3, 3)
    assert least([table, Segment(7, 0, -1)], series=True) == Segment(7, 0, 0)


class DiskFullError(OSError):
    pass


def test_an_episode_of_which_a_storage_took_only_a_part_is_packed_up_to_its_last_whole_row(
    tmp_path: Path,
) -> None:
    """As when the disk is full for one storage, or a kill comes between two."""
    diary = Diary(MIXED.writer(tmp_path / "staging", LEAVES), LEAVES)
    diary.append((0, 5), (1, 4))
    zarr = diary.writer._shares[1].writer
    append = zarr.append

    def fail(rows: Mapping[str, Rows], runs: Sequence[Run]) -> None:
        raise DiskFullError("no space left")

    zarr.append = fail
    with pytest.raises(DiskFullError):
        diary.append((0, 3), (1, 1))
    zarr.append = append
    assert diary.writer.segments() == [Segment(0, 5, 4), Segment(1, 4, 3)]
    for leaf in LEAVES:
        found = diary.writer.view(Segment(0, 5, 4))[leaf.path][:]
        assert len(found) == len(diary.expected(leaf, [Segment(0, 5, 4)]))
    (tmp_path / "shard").mkdir()
    diary.writer.pack(tmp_path / "shard", diary.writer.segments())
    reader = MIXED.reader(tmp_path / "shard", LEAVES, Counts.of(diary.writer.segments()))
    assert set(reader.count().values()) == {9, 7}
    reader.close()


def test_a_segment_that_one_storage_lost_is_not_recovered(tmp_path: Path) -> None:
    diary = Diary(MIXED.writer(tmp_path / "staging", LEAVES), LEAVES)
    diary.append((0, 5), (1, 4))
    diary.writer.checkpoint()
    diary.append((2, 3))
    recovered = MIXED.recover(tmp_path / "staging", LEAVES)
    assert recovered.segments() == [Segment(0, 5, 4), Segment(1, 4, 3)]
    shutil.rmtree(tmp_path / "staging" / "1")
    assert MIXED.recover(tmp_path / "staging", LEAVES).segments() == []


@pytest.mark.parametrize(
    ("make", "option"),
    [
        (lambda: HDF5Storage("zip"), "compression"),
        (lambda: HDF5Storage("gzip", level=10), "level"),
        (lambda: HDF5Storage("gzip", level=True), "level"),
        (lambda: NpzStorage("yes"), "compressed"),
        (lambda: ParquetStorage("zip"), "compression"),
        (lambda: ParquetStorage({"a": "zip"}), "compression"),
        (lambda: ParquetStorage(file_rows=0), "file_rows"),
        (lambda: ParquetStorage(group_rows=-1), "group_rows"),
        (lambda: ZarrStorage("jpeg"), "codec"),
        (lambda: ZarrStorage(quality=101), "quality"),
        (lambda: ZarrStorage(quality=True), "quality"),
        (lambda: ZarrStorage(level=0), "level"),
        (lambda: ZarrStorage(shard_bytes=-1), "shard_bytes"),
        (lambda: ImageFileStorage("gif"), "format"),
        (lambda: ImageFileStorage("jpeg", quality=-1), "quality"),
        (lambda: ImageFileStorage(threads=0), "threads"),
        (lambda: DepthStorage(scale=0), "scale"),
        (lambda: DepthStorage(storage="ffv1"), "storage"),
        (lambda: VideoStorage("mpeg"), "codec"),
        (lambda: VideoStorage(crf=99), "crf"),
        (lambda: HDF5Storage("gzp"), "did you mean 'gzip'"),
        (lambda: ParquetStorage("snapy"), "did you mean 'snappy'"),
        (lambda: ParquetStorage({1: "zstd"}), "a mapping of paths"),
        (lambda: ZarrStorage("wepb"), "did you mean 'webp'"),
        (lambda: ImageFileStorage("jpg"), "did you mean 'jpeg'"),
        (lambda: ImageFileStorage(["png"]), "format"),
        (lambda: VideoStorage("h265"), "did you mean 'hevc'"),
        (lambda: VideoStorage(["h264"]), "codec"),
        (lambda: DepthStorage(invalid=[0]), "invalid"),
        (lambda: DepthStorage(units=5), "units"),
        (lambda: DictStorage({"a": "hdf5"}), "'hdf5' for 'a': a storage is needed"),
        (lambda: DictStorage({1: HDF5Storage()}), "for 1: a storage is needed"),
        (lambda: DictStorage(["a"]), "a mapping of paths"),
        (lambda: DictStorage(default=HDF5Storage), "for 'default': a storage is needed"),
    ],
)
def test_an_option_that_means_nothing_is_refused_where_it_is_given(make: Callable[[], Storage], option: str) -> None:
    with pytest.raises(LayoutError, match=option):
        make()
