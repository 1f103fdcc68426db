"""HDF5Storage keeps the contract, compressed or not; what is special about its files."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from recorder.columns import Column, Rows
from recorder.errors import DamagedError, LayoutError
from recorder.infos import flatten, snapshot, sparse_columns
from recorder.leaf import Leaf
from recorder.storages import hdf5_files, table
from recorder.storages.base import Counts, Run, Segment, Writer
from recorder.storages.hdf5 import HDF5File, HDF5Storage, hdf5_image
from recorder.storages.hdf5_files import MOST_OPEN
from recorder.testing import INFO_LEAVES, TABLE_LEAVES, StorageContract

FEW_LEAVES = tuple(leaf for leaf in TABLE_LEAVES if leaf.path in ("observation/picture", "action/words", "action/path"))


@pytest.fixture(autouse=True)
def _quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do without fsync where many files are written."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


class TestHDF5Storage(StorageContract):
    storage, leaves, infos = HDF5Storage(), TABLE_LEAVES, INFO_LEAVES


class TestHDF5StorageWithLZF(StorageContract):
    storage, leaves, infos = HDF5Storage("lzf"), FEW_LEAVES, INFO_LEAVES
    block = longest = 200


class TestHDF5StorageWithGzip(StorageContract):
    storage, leaves, infos = HDF5Storage("gzip", level=9), FEW_LEAVES, INFO_LEAVES
    block = longest = 200


class TestHDF5StorageOfManyFiles(StorageContract):
    """Rows leave memory all the time, and a shard has a table file for nearly each segment."""

    storage, leaves, infos = HDF5Storage(), FEW_LEAVES, INFO_LEAVES
    longest = 200

    @pytest.fixture(autouse=True)
    def _small_tables(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(table, "TABLE_BYTES", 2000)


@pytest.mark.parametrize("options", [{"compression": "zstd"}, {"level": 10}, {"level": "1"}], ids=str)
def test_options_that_hdf5_has_not_are_refused(options: Mapping[str, Any]) -> None:
    with pytest.raises(LayoutError, match="HDF5Storage"):
        HDF5Storage(**options).check(FEW_LEAVES)


@pytest.mark.parametrize("compression", ["lzf", "gzip"])
def test_large_columns_are_compressed(compression: Any) -> None:
    rows = np.zeros((1000, 100))
    assert len(hdf5_image({"a": rows}, compression)) * 10 < len(hdf5_image({"a": rows}))


def test_a_table_has_a_dataset_for_each_leaf_at_its_path(tmp_path: Path) -> None:
    leaves = [Leaf("observation/arm/joints", (2,)), Leaf("action", (), "int64", per="transition")]
    _pack(
        HDF5Storage().writer(tmp_path / "staging", leaves),
        {"observation/arm/joints": np.arange(6.0).reshape(3, 2), "action": np.array([9, 1, 2])},
        tmp_path / "shard",
    )
    with h5py.File(tmp_path / "shard" / "data.h5") as file:
        assert file["observation/arm/joints"][:].tolist() == [[0, 1], [2, 3], [4, 5]]
        assert file["action"][:].tolist() == [1, 2]


def test_a_key_of_an_info_may_be_a_number_first_and_a_dict_later(tmp_path: Path) -> None:
    infos = [{"a": 1}, {"a": {"b": 2.5, "c": {"d": "x"}}}, {}, {"a": {"c": 7}}]
    found = _packed_infos(tmp_path, [infos])
    assert {path: list(column[:]) for path, column in found.items()} == {
        "info/a": [1, MASKED, MASKED, MASKED],
        "info/a/b": [MASKED, 2.5, MASKED, MASKED],
        "info/a/c": [MASKED, MASKED, MASKED, 7],
        "info/a/c/d": [MASKED, "x", MASKED, MASKED],
    }


def test_a_key_of_an_info_may_change_its_type_between_batches(tmp_path: Path) -> None:
    batches = [[{"n": 1, "m": [1, 2]}, {"n": 2}], [{}, {"n": 0.5, "m": [3]}], [{"n": "many", "m": {"k": 1}}]]
    found = _packed_infos(tmp_path, batches)
    assert found["info/n"][:].tolist() == [1, 2, None, 0.5, "many"]
    assert [None if row is MASKED else row.tolist() for row in found["info/m"][:]] == [
        [1, 2],
        None,
        None,
        [3],
        None,
    ]
    assert found["info/m/k"][:].tolist() == [None, None, None, None, 1]


MASKED = np.ma.masked


def _packed_infos(folder: Path, batches: Sequence[Sequence[Mapping[str, Any]]]) -> Mapping[str, Column]:
    """Return the columns of infos of one segment, which came in batches with a checkpoint after each."""
    storage = HDF5Storage()
    writer = storage.writer(folder / "staging", [])
    for i, infos in enumerate(batches):
        flat = [(row, flatten(snapshot(info))) for row, info in enumerate(infos)]
        writer.append(sparse_columns(flat, len(infos)), [Run(0, 0, len(infos), first=not i)])
        writer.checkpoint()
    (folder / "shard").mkdir()
    segments = [Segment(0, rows := sum(map(len, batches)), rows - 1)]
    leaves = storage.recover(folder / "staging", []).pack(folder / "shard", segments)
    return storage.reader(folder / "shard", leaves, Counts.of(segments)).segment(0)


def test_a_file_that_leads_outside_of_itself_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(bytes(80))
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["a"] = np.arange(3.0)
    with h5py.File(tmp_path / "data.h5", "w", libver="latest") as file:
        file["good"] = np.arange(3.0)
        file["soft"] = h5py.SoftLink("/good")
        file["link"] = h5py.ExternalLink(str(tmp_path / "other.h5"), "a")
        file.create_group("group")["link"] = h5py.ExternalLink(str(tmp_path / "other.h5"), "a")
        file.create_dataset("outside", (10,), "f8", external=[(str(tmp_path / "secret"), 0, 80)])
        layout = h5py.VirtualLayout((3,), "f8")
        layout[:] = h5py.VirtualSource(str(tmp_path / "other.h5"), "a", (3,))
        file.create_virtual_dataset("virtual", layout)
    names = ["soft", "link", "group/link", "outside", "virtual"]
    leaves = [Leaf(name, per="transition") for name in names]
    for name in names:
        reader = HDF5Storage().reader(tmp_path, leaves, Counts.of([Segment(0, 3, 3)]))
        with pytest.raises(DamagedError, match="refused"):
            reader.whole(name)
        reader.close()


@pytest.mark.parametrize("name", ["group", "good/below", "nothing", "group/nothing"])
def test_a_name_without_a_dataset_is_not_in_a_file(tmp_path: Path, name: str) -> None:
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file["good"] = np.arange(3.0)
        file.create_group("group/inner")
    with closing(HDF5File(tmp_path / "data.h5")) as opened:
        assert name not in opened
        with pytest.raises(KeyError):
            opened[name]


def test_rows_of_a_column_beyond_16_mib_are_read_when_they_are_asked_for(tmp_path: Path) -> None:
    leaves = [Leaf("observation", (256, 256), "uint8")]
    rows = np.random.default_rng(0).integers(0, 256, (300, 256, 256), np.uint8)
    _pack(HDF5Storage().writer(tmp_path / "staging", leaves), {"observation": rows}, tmp_path / "shard")
    reader = HDF5Storage().reader(tmp_path / "shard", leaves, Counts.of([Segment(0, 300, 299)]))
    column = reader.segment(0)["observation"]
    assert np.array_equal(column[100:103], rows[100:103])
    assert np.array_equal(column[[299, 0, 0, 150]], rows[[299, 0, 0, 150]])
    reader.close()


def _pack(writer: Writer, rows: Mapping[str, Rows], folder: Path) -> Sequence[Leaf]:
    """Append rows as one segment, and pack it."""
    count = len(next(iter(rows.values())))
    writer.append(rows, [Run(0, 0, count, first=True)])
    folder.mkdir()
    return writer.pack(folder, [Segment(0, count, count - 1)])


def test_few_files_are_open_however_many_are_read_and_all_go_on(tmp_path: Path) -> None:
    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir())) if Path("/proc/self/fd").exists() else 0

    before = descriptors()
    files = []
    for i in range(MOST_OPEN + 20):
        path = tmp_path / f"{i}.h5"
        path.write_bytes(hdf5_image({"rows": np.arange(10) + i}))
        files.append(HDF5File(path))
    datasets = [file["rows"] for file in files]
    for _ in range(2):
        for i, dataset in enumerate(datasets):
            assert dataset[2:4].tolist() == [i + 2, i + 3]
            assert "rows" in files[-i]
    assert descriptors() <= before + MOST_OPEN
    del files, datasets, dataset
    assert descriptors() <= before


def test_threads_read_files_that_are_closed_by_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hdf5_files, "MOST_OPEN", 2)
    datasets = []
    for i in range(5):
        (tmp_path / f"{i}.h5").write_bytes(hdf5_image({"rows": np.arange(10) + i}))
        datasets.append(HDF5File(tmp_path / f"{i}.h5")["rows"])
    wrong: list[int] = []

    def read() -> None:
        wrong.extend(k for k in range(200) if datasets[k % 5][3:4].tolist() != [3 + k % 5])

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
