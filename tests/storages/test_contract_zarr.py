"""ZarrStorage keeps the contract: pictures as WebP, exact or not, and arrays of all kinds as zstd."""

import os

import pytest

from recorder.storages.zarr import ZarrStorage
from recorder.testing import (
    ALPHA_LEAVES,
    ARRAY_LEAVES,
    GREY_LEAVES,
    INFO_LEAVES,
    PICTURE_LEAVES,
    RAGGED,
    TEXT_LEAF,
    StorageContract,
)

NEVER = (RAGGED, TEXT_LEAF, INFO_LEAVES[0])


@pytest.fixture(autouse=True)
def _quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do without fsync where many files are written."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


class TestZarrStorageOfPictures(StorageContract):
    storage, leaves = ZarrStorage(shard_bytes=1), (*PICTURE_LEAVES, *ALPHA_LEAVES)
    refused, block, longest = NEVER, 16, 1000


class TestZarrStorageOfLossyPictures(StorageContract):
    storage, leaves = ZarrStorage(codec="webp", quality=90, shard_bytes=1), PICTURE_LEAVES
    refused, block, longest = (*NEVER, *ARRAY_LEAVES, *GREY_LEAVES), 16, 100
    tolerance = 4.0


class TestZarrStorageOfArrays(StorageContract):
    storage, leaves = ZarrStorage(chunk_bytes=1024, shard_bytes=1), (*ARRAY_LEAVES, *GREY_LEAVES)
    refused, block = NEVER, 16


class TestZarrStorageAsItIsByDefault(StorageContract):
    storage, leaves = ZarrStorage(), (*ARRAY_LEAVES, *PICTURE_LEAVES[:2])
    block, longest = 2, 3
