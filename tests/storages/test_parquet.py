"""ParquetStorage keeps the contract; what is special about its files, and how other readers see them."""

from __future__ import annotations

import os

import pytest

from recorder.storages import table
from recorder.storages.parquet import ParquetStorage
from recorder.testing import INFO_LEAVES, TABLE_LEAVES, StorageContract

FEW_LEAVES = tuple(
    leaf
    for leaf in TABLE_LEAVES
    if leaf.path in ("observation/picture", "action/words", "action/path", "observation/float32", "action/int64")
)


@pytest.fixture(autouse=True)
def _quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do without fsync where many files are written."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


class TestParquetStorage(StorageContract):
    storage, leaves, infos = ParquetStorage(), TABLE_LEAVES, INFO_LEAVES


class TestParquetStorageOfSmallGroups(StorageContract):
    """Files of 100 rows in groups of 7, each column with a codec of its own."""

    storage = ParquetStorage({"action/*": "zstd", "*": "gzip"}, file_rows=100, group_rows=7, statistics=False)
    leaves, infos = FEW_LEAVES, INFO_LEAVES
    block = 100
    longest = 250


class TestParquetStorageOfManyFiles(StorageContract):
    storage, leaves, infos = ParquetStorage("none"), FEW_LEAVES, INFO_LEAVES
    longest = 200

    @pytest.fixture(autouse=True)
    def _small_tables(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(table, "TABLE_BYTES", 2000)
