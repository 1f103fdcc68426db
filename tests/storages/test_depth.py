"""DepthStorage keeps the contract within half a step; what it refuses; how other programs see its files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recorder.columns import Array
from recorder.errors import LayoutError, WriteError
from recorder.leaf import Leaf
from recorder.routing.layouts import layout
from recorder.storages.base import Counts, Run, Segment
from recorder.storages.depth import DepthStorage
from recorder.storages.hdf5 import HDF5Storage
from recorder.storages.image_files import ImageFileStorage
from recorder.storages.video import VideoStorage
from recorder.storages.zarr import ZarrStorage
from recorder.testing import RAGGED, TEXT_LEAF, StorageContract

RANGE = {"range": [0.1, 60.0]}
NEAR = Leaf("observation/near", (12, 17), "float32", "depth", metadata=RANGE)
FAR = Leaf("action/far", (8, 6, 1), "float64", "depth", "transition", metadata=RANGE)
OTHER = (
    RAGGED,
    TEXT_LEAF,
    Leaf("observation/height", (12, 17), "float32"),
    Leaf("observation/depth", (12, 17), "uint16", "depth"),
    Leaf("observation/distance", (), "float32", "depth"),
)


@pytest.fixture(autouse=True)
def _quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do without fsync where many files are written."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


class TestDepthAsVideo(StorageContract):
    storage, leaves, refused = DepthStorage(), (NEAR, FAR), OTHER
    tolerance, block, delay, longest = 0.000_51, 10, 1, 50


class TestDepthAsPictures(StorageContract):
    storage = DepthStorage(scale=0.01, invalid="nan", storage=ImageFileStorage())
    leaves, refused = (NEAR,), OTHER
    tolerance, block, longest = 0.005_1, 4, 10


class TestDepthInZarr(StorageContract):
    storage = DepthStorage(scale=0.001, invalid="inf", storage=ZarrStorage(shard_bytes=1))
    leaves, refused = (NEAR, FAR), OTHER
    tolerance, block, longest = 0.000_51, 16, 50


def kept(folder: Path, storage: DepthStorage, depth: Array, leaf: Leaf = NEAR) -> Array:
    """Write rows as one episode, and return them as they are read."""
    writer = storage.writer(folder / "staging", [leaf])
    writer.append({leaf.path: depth}, [Run(0, 0, len(depth), first=True)])
    writer.end(0)
    (folder / "shard").mkdir()
    writer.pack(folder / "shard", [segment := Segment(0, len(depth), len(depth) - 1)])
    rows: Array = storage.reader(folder / "shard", [leaf], Counts.of([segment])).whole(leaf.path)[:]
    return rows


@pytest.mark.parametrize(("invalid", "value"), [(0.0, 0.0), ("nan", np.nan), ("inf", np.inf), (-1, -1.0)])
def test_what_is_invalid_comes_back_as_it_was(tmp_path: Path, invalid: Any, value: float) -> None:
    depth = np.full((3, 12, 17), 1.5, np.float32)
    depth[1, 3:5] = value
    found = kept(tmp_path, DepthStorage(invalid=invalid), depth)
    assert np.array_equal(found, depth, equal_nan=True)


@pytest.mark.parametrize("value", [0.0, 0.0004, 65.536, np.inf, -2.0])
def test_a_depth_beyond_the_range_is_refused_and_named(tmp_path: Path, value: float) -> None:
    depth = np.full((2, 12, 17), 1.5, np.float32)
    depth[1, 2, 3] = value
    with pytest.raises(WriteError, match=r"'observation/near' has a depth of .*keeps 0\.001 to 65\.535, and nan"):
        kept(tmp_path, DepthStorage(invalid="nan"), depth)
    (tmp_path / "other").mkdir()
    found = kept(tmp_path / "other", DepthStorage(invalid="nan", beyond="invalid"), depth)
    assert np.isnan(found[1, 2, 3]) and np.isnan(found).sum() == 1


@given(st.lists(st.floats(2**-9, 65.5, width=32), min_size=1, max_size=50), st.sampled_from(["float32", "float64"]))
def test_no_depth_is_off_by_more_than_half_a_step(depths: list[float], dtype: str) -> None:
    leaf = Leaf("depth", (1, len(depths)), dtype, "depth")
    storage = DepthStorage()
    depth = np.array(depths, dtype).reshape(1, 1, -1)
    once = storage.decode(leaf, storage.encode(leaf, depth))
    assert np.abs(once - depth).max() <= 0.0005 + 4e-6
    assert np.array_equal(storage.decode(leaf, storage.encode(leaf, once)), once), "coding it again changes nothing"


def test_other_programs_see_the_numbers_in_the_video(tmp_path: Path) -> None:
    depth = np.linspace(0.5, 5, 2 * 12 * 17, dtype=np.float32).reshape(2, 12, 17)
    kept(tmp_path, DepthStorage(), depth)
    with av.open(tmp_path / "shard/observation/near/000000.mp4") as video:
        frames = [frame.to_ndarray() for frame in video.decode(video=0)]
    assert [frame.dtype for frame in frames] == [np.uint16] * 2
    assert np.array_equal(frames, np.rint(depth.astype(float) / 0.001))


@pytest.mark.parametrize(
    "options",
    [
        {"scale": 0},
        {"scale": "mm"},
        {"invalid": "none"},
        {"invalid": True},
        {"beyond": "clip"},
        {"storage": HDF5Storage()},
        {"storage": VideoStorage()},
    ],
    ids=str,
)
def test_options_that_it_has_not_are_refused(options: Mapping[str, Any]) -> None:
    with pytest.raises(LayoutError):
        DepthStorage(**options).check([NEAR])


def test_units_are_those_of_the_metadata() -> None:
    leaf = Leaf("depth", (12, 17), "float32", "depth", metadata={"units": "mm"})
    DepthStorage(scale=1, units="mm").check([leaf])
    with pytest.raises(LayoutError, match=r"is in 'mm': DepthStorage\(units='m'\)"):
        DepthStorage(units="m").check([leaf])


def test_the_layout_gives_it_depth_when_it_is_named_and_nothing_else() -> None:
    mask = Leaf("mask", (12, 17), "float32", "other")
    assert isinstance(layout([NEAR, mask], keys={"observation/*": DepthStorage()}).of(NEAR), DepthStorage)
    assert isinstance(layout([NEAR, mask], kinds={"depth": DepthStorage()}).of(NEAR), DepthStorage)
    assert layout([NEAR]).exact(NEAR), "by itself the layout rounds nothing"
    with pytest.raises(LayoutError, match="not 'depth'"):
        layout([NEAR, mask], keys={"mask": DepthStorage()})
    said = Leaf("depth", (12, 17), "float32", "depth", metadata={"lossless": True})
    with pytest.raises(LayoutError, match="its metadata say lossless"):
        layout([said], keys={"depth": DepthStorage()})
