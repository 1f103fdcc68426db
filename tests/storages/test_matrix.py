"""Every storage with every leaf that it accepts, in segments of many lengths, alone, side by side, and with discards.

What a storage refuses is kept by one that its message names. The lengths that take long are marked `slow`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import recorder
from recorder.errors import LayoutError
from recorder.leaf import TEXT, Leaf
from recorder.storages.base import Storage
from recorder.storages.depth import DepthStorage
from recorder.storages.dict import DictStorage
from recorder.storages.hdf5 import HDF5Storage
from recorder.storages.image_files import ImageFileStorage
from recorder.storages.npz import NpzStorage
from recorder.storages.video import VideoStorage
from recorder.storages.zarr import ZarrStorage
from recorder.testing import StorageContract

pytest.importorskip("pyarrow")

BGR = {"format": "bgr"}

LEAVES = {
    "number": Leaf("reward", (), "float64", "reward", "transition"),
    "whole number": Leaf("action", (), "int64", "action", "transition"),
    "flag": Leaf("terminated", (), "bool", "flag", "transition"),
    "vector": Leaf("observation/joints", (7,), "float32", "proprio"),
    "matrix": Leaf("observation/pose", (4, 4), "float64", "pose"),
    "complex": Leaf("observation/wave", (3,), "complex64"),
    "nothing": Leaf("observation/empty", (0, 3), "float32"),
    "text": Leaf("observation/task", (), TEXT, "task"),
    "ragged": Leaf("observation/points", (3,), "float32", "pointcloud", ragged=True),
    "ragged text": Leaf("action/words", (), TEXT, "action", "transition", ragged=True),
    "RGB": Leaf("observation/rgb", (18, 24, 3), "uint8", "image"),
    "BGR": Leaf("observation/bgr", (18, 24, 3), "uint8", "image", metadata=BGR),
    "RGBA": Leaf("observation/rgba", (18, 24, 4), "uint8", "image"),
    "grey": Leaf("observation/grey", (18, 24), "uint8", "image"),
    "drawn RGB": Leaf("action/canvas", (16, 16, 3), "uint8", "image", "transition"),
    "labels": Leaf("observation/labels", (18, 24, 3), "uint8", "segmentation"),
    "mask": Leaf("observation/mask", (18, 24), "bool", "mask"),
    "stack": Leaf("observation/stack", (4, 16, 16), "uint8", "stack"),
    "depth in 16 bits": Leaf("observation/depth", (18, 24), "uint16", "depth"),
    "depth in floats": Leaf("observation/range", (18, 24), "float32", "depth", metadata={"range": [0.1, 60.0]}),
}

STORAGES: dict[str, tuple[Storage, int, float]] = {
    # The storage, after how many rows it does something new, and by how much a row of what is lossy may be off.
    "HDF5": (HDF5Storage(), 64, 0),
    "HDF5 gzip": (HDF5Storage("gzip"), 64, 0),
    "Parquet": (recorder.ParquetStorage(group_rows=16, file_rows=48), 48, 0),
    "npz": (NpzStorage(), 64, 0),
    "npz compressed": (NpzStorage(compressed=True), 64, 0),
    "zarr": (ZarrStorage(shard_bytes=1), 16, 0),
    "zarr WebP": (ZarrStorage(codec="webp", quality=90, shard_bytes=1), 16, 4.0),
    "H.264": (VideoStorage(), 10, 4.0),
    "H.264 RGB": (VideoStorage(codec="h264rgb"), 10, 0),
    "HEVC": (VideoStorage(codec="hevc"), 10, 6.0),
    "AV1": (VideoStorage(codec="av1"), 10, 6.0),
    "VP9": (VideoStorage(codec="vp9"), 10, 6.0),
    "FFV1": (VideoStorage(codec="ffv1"), 10, 0),
    "PNG": (ImageFileStorage(), 8, 0),
    "WebP": (ImageFileStorage("webp"), 8, 0),
    "lossy WebP": (ImageFileStorage("webp", quality=90), 8, 4.0),
    "JPEG": (ImageFileStorage("jpeg"), 8, 4.0),
    "depth": (DepthStorage(), 10, 0.000_51),
    "dict": (DictStorage({}, HDF5Storage("lzf")), 64, 0),
}

WAYS = {
    "one segment": StorageContract.test_one_segment_comes_back,
    "many open at once": StorageContract.test_many_segments_that_are_open_at_once_come_back,
    "discarded between": StorageContract.test_the_others_come_back_when_a_segment_is_forgotten,
}


def accepts(storage: Storage, leaf: Leaf) -> bool:
    """Return whether a storage accepts a leaf."""
    try:
        storage.check([leaf])
    except LayoutError:
        return False
    return True


def cases() -> Iterator[Any]:
    """Yield each storage with each leaf that it accepts, each number of rows, and each way."""
    for name, (storage, block, _) in STORAGES.items():
        for kind, leaf in LEAVES.items():
            if accepts(storage, leaf):
                for count in (1, 2, block - 1, block, block + 1, 10_000):
                    quick = count in (1, block + 1)
                    for way in WAYS:
                        slow = () if quick else (pytest.mark.slow, pytest.mark.timeout(1200))
                        yield pytest.param(name, kind, count, way, id=f"{name}-{kind}-{count}-{way}", marks=slow)


@pytest.fixture(autouse=True)
def _quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do without fsync where many files are written."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.mark.parametrize(("name", "kind", "count", "way"), list(cases()))
def test_what_is_accepted_comes_back(tmp_path: Path, name: str, kind: str, count: int, way: str) -> None:
    contract = StorageContract()
    contract.storage, contract.block, contract.tolerance = STORAGES[name]
    contract.leaves = (LEAVES[kind],)
    WAYS[way](contract, tmp_path, LEAVES[kind], count)


REFUSED = [
    (name, kind) for name, (storage, _, _) in STORAGES.items() for kind in LEAVES if not accepts(storage, LEAVES[kind])
]


@pytest.mark.parametrize(("name", "kind"), REFUSED)
def test_what_is_refused_is_kept_by_a_storage_that_the_message_names(name: str, kind: str) -> None:
    with pytest.raises(LayoutError) as raised:
        STORAGES[name][0].check([LEAVES[kind]])
    advice = str(raised.value).rpartition("keep it with ")[2]
    named = re.findall(r"(\w+Storage)\(([^)]*)\)", advice)
    assert named, raised.value
    for title, options in named:
        words = dict(re.findall(r"(\w+)='(\w+)'", options))
        getattr(recorder, title)(**words).check([LEAVES[kind]])


def test_every_leaf_is_kept_exactly_by_some_storage_and_every_storage_accepts_some_leaf() -> None:
    for leaf in LEAVES.values():
        assert any(accepts(storage, leaf) and storage.exact(leaf) for storage, _, _ in STORAGES.values())
    for storage, _, _ in STORAGES.values():
        assert any(accepts(storage, leaf) for leaf in LEAVES.values())


def test_every_storage_of_the_package_is_in_the_matrix() -> None:
    from recorder.storages.base import BUILTIN

    assert {storage.id for storage, _, _ in STORAGES.values()} == set(BUILTIN)
