"""Making replay buffers of dicts of arrays: specs, codecs, formats, refusals, and going on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr
from threadpoolctl import threadpool_info
from zarr.codecs import BloscCodec, GzipCodec, ZstdCodec

from recorder import (
    ExistsError,
    LayoutError,
    MismatchError,
    ReplayBuffer,
    RowError,
    WebP,
    create_zarr_arrays,
    create_zarr_replay_buffer,
    is_uint8_image_spec,
)
from recorder.webp_codec import WebpCodec

CAMERA = {"shape": (0, 16, 16, 3), "dtype": "uint8", "chunks": (16, 16, 16, 3), "needs_compressor": True}
JOINTS = {"shape": (0, 3), "dtype": "float32", "chunks": (100, 3), "needs_compressor": True}
SPECS = {"camera": CAMERA, "joints": JOINTS}


def episode(seed: int, rows: int = 9) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    camera = np.cumsum(random.integers(0, 3, (rows, 16, 16, 3)), axis=1).astype(np.uint8)
    return {"camera": camera, "joints": random.normal(size=(rows, 3)).astype(np.float32)}


def make(where: Any, episodes: Any, specs: Any = SPECS, **options: Any) -> ReplayBuffer:
    return create_zarr_replay_buffer(where, specs, episodes, progress=False, **options)


@pytest.mark.parametrize(
    ("shape", "dtype", "picture"),
    [
        ((0, 96, 96, 3), "uint8", True),
        ((0, 96, 96, 4), np.uint8, True),
        ((None, 1, 1, 3), np.dtype("uint8"), True),
        ((96, 96, 3), "uint8", True),
        ((0, 4, 84, 84), "uint8", False),
        ((0, 84, 84, 1), "uint8", False),
        ((0, 2, 96, 96, 3), "uint8", False),
        ((0, 96, 96, 3), "float32", False),
        ((0, 96, 96, 3), "uint16", False),
        ((0, 17000, 96, 3), "uint8", False),
    ],
)
def test_which_specs_are_pictures(shape: Any, dtype: Any, picture: bool) -> None:
    assert is_uint8_image_spec({"shape": shape, "dtype": dtype}) is picture
    assert not is_uint8_image_spec({"shape": shape, "dtype": dtype, "kind": "segmentation"})


class Schema:
    """What VersatIL hands over: an object that names the arrays and the path."""

    def __init__(self, path: Path) -> None:
        self.zarr_path = str(path)

    def get_zarr_array_specs(self) -> dict[str, Any]:
        return {**SPECS, "task": {"shape": (0, 1), "chunks": (100, 1), "dtype": "str", "needs_compressor": False}}


def test_a_schema_says_path_and_arrays(tmp_path: Path) -> None:
    rows = {**episode(0), "task": np.full((9, 1), "pick up the bowl", dtype=object)}
    found = create_zarr_replay_buffer(Schema(tmp_path / "b"), episodes=[rows], total_episodes=1, progress=False)
    assert found.name == str(tmp_path / "b")
    assert found["task"][3].tolist() == ["pick up the bowl"]
    root = zarr.open_group(tmp_path / "b", mode="r")
    assert root["data/joints"].chunks == (100, 3) and root["data/camera"].chunks == (1, 16, 16, 3)  # type: ignore[union-attr]


def test_arrays_are_made_in_any_group() -> None:
    for zarr_format in (2, 3):
        group = zarr.create_group({}, zarr_format=zarr_format)
        create_zarr_arrays(group, SPECS, WebP(quality=80), "zstd")
        assert group["camera"].shape == (0, 16, 16, 3)  # type: ignore[union-attr]
        group["camera"].append(episode(0)["camera"])  # type: ignore[union-attr]
        error = np.abs(group["camera"][:].astype(int) - episode(0)["camera"])  # type: ignore[index, union-attr]
        assert 0 < error.max() < 40


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_zero_episodes_are_a_valid_buffer(tmp_path: Path, zarr_format: Any) -> None:
    found = make(tmp_path / "b", [], zarr_format=zarr_format)
    assert found.n_episodes == found.n_steps == 0 and found.complete
    assert found["camera"][:].shape == (0, 16, 16, 3)
    root = zarr.open_group(tmp_path / "b", mode="r")
    assert root["meta/episode_ends"][:].shape == (0,)  # type: ignore[index, union-attr]
    assert make(tmp_path / "b", [episode(0)], append=True, zarr_format=zarr_format).n_episodes == 1


CODECS = [
    (3, WebP(), "lz4"),
    (3, WebP(quality=90, method=2), "zstd"),
    (3, WebpCodec(level=70, lossless=False), None),
    (3, GzipCodec(level=1), BloscCodec(cname="zstd", clevel=3, shuffle="bitshuffle")),
    (3, None, ZstdCodec(level=5)),
    (3, [ZstdCodec(level=1)], [GzipCodec(level=1), ZstdCodec(level=1)]),
    (2, WebP(), "lz4"),
    (2, WebP(quality=90), "zstd"),
    (2, numcodecs.Zstd(1), numcodecs.Blosc("zstd", 3, numcodecs.Blosc.BITSHUFFLE)),
    (2, None, None),
    (2, None, numcodecs.GZip(1)),
    (2, None, numcodecs.LZ4()),
]


@pytest.mark.parametrize(("zarr_format", "image_codec", "numeric"), CODECS)
def test_every_codec_is_read_by_us_and_by_zarr(
    tmp_path: Path, zarr_format: Any, image_codec: Any, numeric: Any
) -> None:
    rows = [episode(seed, 5 + seed) for seed in range(3)]
    found = make(tmp_path / "b", rows, zarr_format=zarr_format, image_codec=image_codec, numeric=numeric)
    root = zarr.open_group(tmp_path / "b", mode="r")
    lossy = getattr(image_codec, "quality", None) or getattr(image_codec, "level", None) == 70
    for key in SPECS:
        meant = np.concatenate([each[key] for each in rows])
        np.testing.assert_array_equal(found[key][:], root["data"][key][:])  # type: ignore[index]
        if key == "joints" or not lossy:
            np.testing.assert_array_equal(found[key][:], meant)
        else:
            assert 0 < np.abs(found[key][:].astype(int) - meant).max() < 60


def test_a_stack_of_four_frames_and_masks_are_never_changed(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    rows = {
        name: random.integers(0, 256, (7, 20, 20, 4 if name == "stack" else 3), np.uint8) for name in ("stack", "mask")
    }
    specs = {
        "stack": {"shape": (0, 20, 20, 4), "dtype": "uint8"},
        "mask": {"shape": (0, 20, 20, 3), "dtype": "uint8", "kind": "segmentation"},
    }
    found = make(tmp_path / "b", [rows], specs, image_codec=WebP(quality=10))
    for name, meant in rows.items():
        np.testing.assert_array_equal(found[name][:], meant)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int64", "float16", "float64", "complex64"])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_every_dtype_comes_back_bit_for_bit(tmp_path: Path, dtype: str, zarr_format: Any) -> None:
    random = np.random.default_rng(0)
    rows = np.frombuffer(random.bytes(50 * 3 * np.dtype(dtype).itemsize), "uint8" if dtype == "bool" else dtype)
    rows = (rows > 99 if dtype == "bool" else rows).reshape(50, 3)
    found = make(tmp_path / "b", [{"x": rows}], {"x": {"shape": (3,), "dtype": dtype}}, zarr_format=zarr_format)
    assert found["x"][:].tobytes() == rows.tobytes() and found["x"].dtype == dtype


@pytest.mark.parametrize(
    ("specs", "said"),
    [
        ({}, "not empty"),
        ({"x": {"dtype": "uint8"}}, "shape and dtype"),
        ({"x": {"shape": (3,), "dtype": "uint8", "fill": 3}}, "shape and dtype"),
        ({"x": {"shape": (0, 3, 0), "dtype": "uint8"}}, "every side"),
        ({"x": {"shape": (3,), "dtype": "datetime64[s]"}}, "no dtype of numbers"),
        ({"x": {"shape": (3,), "dtype": "uint7"}}, "no dtype"),
        ({"x": {"shape": (0, 3), "dtype": "uint8", "chunks": (5, 2)}}, "whole rows"),
        ({"x": {"shape": (0, 3), "dtype": "uint8", "chunks": 0}}, "whole rows"),
        ({"x": JOINTS, "x/y": JOINTS}, "lies below the key 'x'"),
        ({"../x": JOINTS}, "is no key"),
        ({"": JOINTS}, "is no key"),
        ({"x//y": JOINTS}, "is no key"),
    ],
)
def test_specs_that_say_nothing_are_refused(specs: Any, said: str) -> None:
    with pytest.raises(LayoutError, match=said):
        make({}, [], specs)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"zarr_format": 4}, "2 or 3"),
        ({"frames_per_shard": 0}, "1 to 65,536"),
        ({"frames_per_shard": 8, "zarr_format": 2}, "no shards"),
        ({"numeric": "lz5"}, "'lz5'"),
        ({"image_codec": numcodecs.Zstd(1)}, "zarr_format=2"),
        ({"numeric": ZstdCodec(), "zarr_format": 2}, "zarr_format=3"),
        ({"append": True, "overwrite": True}, "one of them"),
    ],
)
def test_options_that_do_not_go_are_refused(options: Any, said: str) -> None:
    with pytest.raises(LayoutError, match=said):
        make({}, [], **options)
    with pytest.raises(LayoutError, match="quality"):
        WebP(quality=101)
    with pytest.raises(LayoutError, match="method"):
        WebP(method=7)


def test_a_path_that_exists_is_refused_and_never_wiped(tmp_path: Path) -> None:
    make(tmp_path / "b", [episode(0)])
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(ExistsError, match="with 1 episodes, complete; append=True goes on, overwrite=True begins anew"):
        make(tmp_path / "b", [episode(1)])
    with pytest.raises(MismatchError, match="'joints' has other codecs"):
        make(tmp_path / "b", [episode(1)], append=True, numeric="zstd")
    with pytest.raises(MismatchError, match=r"'joints' has rows float32 \(3,\), not float64 \(3,\)"):
        make(tmp_path / "b", [episode(1)], {**SPECS, "joints": {**JOINTS, "dtype": "float64"}}, append=True)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert make(tmp_path / "b", [episode(1)], overwrite=True).n_episodes == 1


def test_a_folder_that_is_no_buffer_is_neither_removed_nor_added_to(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    for options in ({}, {"append": True}, {"overwrite": True}):
        with pytest.raises(ExistsError):
            make(tmp_path, [episode(0)], **options)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_generator_that_fails_leaves_the_episodes_before(tmp_path: Path) -> None:
    def episodes(fails: bool) -> Iterator[dict[str, Any]]:
        yield episode(0)
        yield episode(1, 20)
        if fails:
            raise ZeroDivisionError("the simulator is gone")
        yield episode(2)

    with pytest.raises(ZeroDivisionError):
        make(tmp_path / "b", episodes(fails=True))
    found = ReplayBuffer(tmp_path / "b")
    assert found.episode_lengths.tolist() == [9, 20] and not found.complete
    np.testing.assert_array_equal(found.episode(1)["camera"], episode(1, 20)["camera"])
    found = make(tmp_path / "b", episodes(fails=False), append=True)
    assert found.episode_lengths.tolist() == [9, 20, 9] and found.complete
    found = make(tmp_path / "b", [episode(7, 2)], append=True)
    assert found.episode_lengths.tolist() == [9, 20, 9, 2]


def test_an_episode_that_does_not_fit_leaves_those_before(tmp_path: Path) -> None:
    wrong = {**episode(1), "joints": np.zeros((9, 3))}
    wrong["joints"][4, 1] = 0.1
    with pytest.raises(RowError, match="'joints' is float32, got float64 with values that are not exact"):
        make(tmp_path / "b", [episode(0), wrong, episode(2)])
    assert ReplayBuffer(tmp_path / "b").n_episodes == 1


def test_going_on_with_other_episodes_is_refused(tmp_path: Path) -> None:
    def breaks(*episodes: Any) -> Iterator[Any]:
        yield from episodes
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make(tmp_path / "b", breaks(episode(0), episode(1)))
    with pytest.raises(MismatchError, match="episode 1 has 5 rows, but 9 in"):
        make(tmp_path / "b", [episode(0), episode(1, 5)], append=True)
    with pytest.raises(MismatchError, match="1 episodes came, but 2 are in"):
        make(tmp_path / "b", [episode(0)], append=True)
    assert not ReplayBuffer(tmp_path / "b").complete


def test_a_broken_append_goes_on_with_the_same_episodes(tmp_path: Path) -> None:
    def more(breaks: bool) -> Iterator[dict[str, Any]]:
        yield episode(5, 3)
        if breaks:
            raise OSError("the disk is gone")
        yield episode(6, 4)

    make(tmp_path / "b", [episode(0), episode(1)])
    with pytest.raises(OSError, match="the disk is gone"):
        make(tmp_path / "b", more(breaks=True), append=True)
    assert not ReplayBuffer(tmp_path / "b").complete
    found = make(tmp_path / "b", more(breaks=False), append=True)
    assert found.episode_lengths.tolist() == [9, 9, 3, 4] and found.complete


def test_the_threads_of_blas_do_not_multiply_with_ours(tmp_path: Path) -> None:
    found: list[int] = []

    def episodes() -> Iterator[dict[str, Any]]:
        found.extend(each["num_threads"] for each in threadpool_info())
        yield episode(0)

    make(tmp_path / "b", episodes())
    assert set(found) <= {1}


def test_how_often_episodes_are_committed_changes_no_byte(tmp_path: Path) -> None:
    rows = [episode(seed, 1 + 7 * seed % 13) for seed in range(12)]
    for zarr_format, options in ((3, {"frames_per_shard": 8}), (2, {})):
        whole = tmp_path / f"whole-{zarr_format}"
        make(whole, rows, zarr_format=zarr_format, workers=3, **options)
        parts = tmp_path / f"parts-{zarr_format}"
        make(parts, [], zarr_format=zarr_format, workers=1, **options)
        with ReplayBuffer(parts) as buffer:
            for each in rows:
                buffer.append(each)
        for path in whole.rglob("*"):
            if path.is_file():
                assert path.read_bytes() == (parts / path.relative_to(whole)).read_bytes(), path


def test_attributes_say_what_rows_are(tmp_path: Path) -> None:
    make(
        tmp_path / "b", [episode(0)], {"camera": {**CAMERA, "kind": "image", "metadata": {"fps": 30}}, "joints": JOINTS}
    )
    said = json.loads((tmp_path / "b" / "data" / "camera" / "zarr.json").read_text())["attributes"]["recorder"]
    assert said == {"every_chunk": True, "kind": "image", "metadata": {"fps": 30}}
    leaf = ReplayBuffer(tmp_path / "b")["camera"].leaf
    assert leaf.kind == "image" and leaf.metadata == {"fps": 30}
