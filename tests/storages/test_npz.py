"""NpzStorage keeps the contract, compressed or not; plain NumPy opens its files."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recorder.errors import DamagedError, LayoutError
from recorder.leaf import text_array
from recorder.storages import table
from recorder.storages.npz import TEXT_LENGTHS, NpzFile, NpzStorage, npz_bytes
from recorder.testing import INFO_LEAVES, TABLE_LEAVES, StorageContract

FEW_LEAVES = tuple(leaf for leaf in TABLE_LEAVES if leaf.path in ("observation/picture", "action/words", "action/path"))


@pytest.fixture(autouse=True)
def _quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do without fsync where many files are written."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


class TestNpzStorage(StorageContract):
    storage, leaves, infos = NpzStorage(), TABLE_LEAVES, INFO_LEAVES


class TestNpzStorageCompressed(StorageContract):
    storage, leaves, infos = NpzStorage(compressed=True), FEW_LEAVES, INFO_LEAVES
    block = longest = 200


class TestNpzStorageOfManyFiles(StorageContract):
    storage, leaves, infos = NpzStorage(), FEW_LEAVES, INFO_LEAVES
    longest = 200

    @pytest.fixture(autouse=True)
    def _small_tables(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(table, "TABLE_BYTES", 2000)


@pytest.mark.parametrize("compressed", [False, True])
def test_plain_numpy_opens_a_file_without_pickle(tmp_path: Path, compressed: bool) -> None:
    columns = {
        "observation/joints": np.arange(6.0).reshape(3, 2),
        "file": np.array([1, 2]),
        "observation/a.npy": np.array([3], np.uint8),
        "observation/a": np.array([4], np.uint8),
        "observation/task": text_array(["pick", "", "é\U0001f916"]),
    }
    (tmp_path / "data.npz").write_bytes(npz_bytes(columns, compressed))
    with np.load(tmp_path / "data.npz", allow_pickle=False) as file:
        assert np.array_equal(file["observation/joints"], columns["observation/joints"])
        assert file["file"].tolist() == [1, 2]
        assert file["observation/task"].tolist() == ["pick", "", "é\U0001f916"]
    opened = NpzFile(tmp_path / "data.npz")
    assert (opened["observation/a"][:], opened["observation/a.npy"][:]) == ([4], [3])


def test_one_long_text_among_short_ones_is_not_paid_by_all(tmp_path: Path) -> None:
    texts = text_array(["x" * 100_000, *["y"] * 1000])
    (tmp_path / "data.npz").write_bytes(npz_bytes({"task": texts}))
    assert (tmp_path / "data.npz").stat().st_size < 200_000
    assert NpzFile(tmp_path / "data.npz")["task"][:].tolist() == texts.tolist()
    with np.load(tmp_path / "data.npz", allow_pickle=False) as file:
        assert file[f"{TEXT_LENGTHS}task"].tolist() == [100_000, *[1] * 1000]


def test_rows_of_a_large_column_are_read_without_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.random.default_rng(0).integers(0, 256, (1000, 100, 100), np.uint8)
    (tmp_path / "data.npz").write_bytes(npz_bytes({"a": rows}))
    read = []
    monkeypatch.setattr(
        NpzFile, "read", lambda file, member, a, b, of=NpzFile.read: read.append(b - a) or of(file, member, a, b)
    )
    assert np.array_equal(NpzFile(tmp_path / "data.npz")["a"][500:503], rows[500:503])
    assert read == [3]


def _archive(path: Path, data: bytes, name: str = "a.npy", method: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr(name, data)
    return path


def test_what_would_have_to_be_unpickled_is_refused(tmp_path: Path) -> None:
    image = io.BytesIO()
    np.save(image, np.array([{"a": 1}], object), allow_pickle=True)
    with pytest.raises(DamagedError, match="no recording holds"):
        NpzFile(_archive(tmp_path / "data.npz", image.getvalue()))["a"]


def test_an_array_that_claims_more_than_there_is_is_refused_before_memory_is_taken(tmp_path: Path) -> None:
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "<f8", "fortran_order": False, "shape": (10**13,)})
    with pytest.raises(DamagedError, match="bytes for an array"):
        NpzFile(_archive(tmp_path / "data.npz", head.getvalue() + bytes(80)))["a"]


@pytest.mark.parametrize("value", [1, "yes", None])
def test_options_that_it_has_not_are_refused(value: Any) -> None:
    with pytest.raises(LayoutError, match="NpzStorage"):
        NpzStorage(compressed=value).check([])
