"""Buffers that diffusion_policy, UMI and VersatIL wrote, and what plain zarr may make of one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import imagecodecs
import imagecodecs.numcodecs
import numcodecs
import numpy as np
import pytest
import zarr
from zarr.codecs import BloscCodec, BytesCodec, ShardingCodec, TransposeCodec

from recorder import DamagedError, FormatError, LayoutError, ReplayBuffer
from recorder.webp import decode_webp, encode_webp

RANDOM = np.random.default_rng(0)
PICTURES = np.cumsum(RANDOM.integers(0, 3, (30, 32, 40, 3)), axis=1).astype(np.uint8)
ACTIONS = RANDOM.normal(size=(30, 7)).astype(np.float32)
ENDS = np.array([4, 5, 30])


def skeleton(path: Path, zarr_format: Any) -> zarr.Group:
    """Return the group for arrays of a buffer that has everything but these."""
    root = zarr.create_group(path, zarr_format=zarr_format)
    meta = root.create_group("meta")
    meta.create_array("episode_ends", data=ENDS, chunks=(3,), compressors=None)
    return root.create_group("data")


def versatil(path: Path) -> None:
    """Write what VersatIL writes: a WebP of its own name for each frame, in folders, and lz4."""
    data = skeleton(path, 3)
    lz4 = BloscCodec(cname="lz4", clevel=5, shuffle="noshuffle")
    array = data.create_array("front", shape=PICTURES.shape, chunks=(1, *PICTURES.shape[1:]), dtype="uint8")
    data.create_array("action", data=ACTIONS, chunks=(100, 7), compressors=[lz4])
    text = data.create_array("language", shape=(30, 1), chunks=(100, 1), dtype=str, compressors=None)
    text[:] = np.full((30, 1), "pick up the bowl", object)
    folder = path / "data" / "front"
    said = json.loads((folder / "zarr.json").read_text())
    said["codecs"] = [{"name": "versatil_webp", "configuration": {"level": 99}}]
    (folder / "zarr.json").write_text(json.dumps(said))
    for i, picture in enumerate(PICTURES):
        file = folder / "c" / str(i) / "0" / "0" / "0"
        file.parent.mkdir(parents=True)
        file.write_bytes(encode_webp(picture, 99))
    assert array.shape == PICTURES.shape


def decoded() -> Any:
    return np.array([decode_webp(np.frombuffer(encode_webp(each, 99), np.uint8), each.shape) for each in PICTURES])


def test_versatil(tmp_path: Path) -> None:
    versatil(tmp_path / "b")
    with ReplayBuffer(tmp_path / "b") as buffer:
        np.testing.assert_array_equal(buffer["front"][:], decoded())
        np.testing.assert_array_equal(buffer["action"][:], ACTIONS)
        assert buffer["language"].shape == (30, 1) and buffer["language"][7, 0] == "pick up the bowl"
        assert buffer.episode_lengths.tolist() == [4, 1, 25] and not buffer.complete
        more = {"front": PICTURES[:3], "action": ACTIONS[:3], "language": np.full((3, 1), "again", object)}
        buffer.append(more)
        assert buffer.n_steps == 33
        np.testing.assert_array_equal(buffer["front"][30:], decoded()[:3])
        buffer.drop(2)
        np.testing.assert_array_equal(buffer["front"][:], decoded()[:5])


def test_pictures_of_versatil_are_copied_as_bytes(tmp_path: Path) -> None:
    versatil(tmp_path / "b")
    copied = ReplayBuffer(tmp_path / "b").copy_to(tmp_path / "ours")
    np.testing.assert_array_equal(copied["front"][:], decoded())
    root = zarr.open_group(tmp_path / "ours", mode="r")
    np.testing.assert_array_equal(root["data/front"][:], decoded())  # type: ignore[index, union-attr]
    coded = copied["front"].encoded(0, 1)
    assert coded is not None and coded.pictures == [encode_webp(PICTURES[0], 99)]


FORMS = {
    "jpegxl": imagecodecs.numcodecs.Jpegxl(level=99, numthreads=1),
    "jpegxl lossless": imagecodecs.numcodecs.Jpegxl(lossless=True),
    "jpeg2k": imagecodecs.numcodecs.Jpeg2k(level=50),
    "jpeg": imagecodecs.numcodecs.Jpeg(level=90),
    "png": imagecodecs.numcodecs.Png(),
    "webp": imagecodecs.numcodecs.Webp(level=80, lossless=False),
    "blosc": numcodecs.Blosc("zstd", 5, numcodecs.Blosc.BITSHUFFLE),
}


@pytest.mark.parametrize("form", FORMS)
def test_diffusion_policy_and_umi(tmp_path: Path, form: str) -> None:
    data = skeleton(tmp_path / "b", 2)
    chunk = 30 if form == "blosc" else 1
    camera = data.create_array(
        "camera0_rgb", shape=PICTURES.shape, chunks=(chunk, 32, 40, 3), dtype="uint8", compressors=FORMS[form]
    )
    imagecodecs.numcodecs.register_codecs(verbose=False)
    camera[:] = PICTURES
    lz4 = numcodecs.Blosc("lz4", 5, numcodecs.Blosc.NOSHUFFLE)
    data.create_array("action", data=ACTIONS.astype(">f4"), chunks=(13, 7), compressors=lz4)
    np.savez(tmp_path / "rows.npz", camera0_rgb=camera[:], action=ACTIONS)
    # In a fresh process nothing has registered a codec.
    script = """
import sys, numpy as np
from recorder import ReplayBuffer
buffer, rows = ReplayBuffer(sys.argv[1] + "/b"), np.load(sys.argv[1] + "/rows.npz")
for key in rows:
    assert np.array_equal(buffer[key][:], rows[key]), key
    assert np.array_equal(buffer[key][[29, 3, 3]], rows[key][[29, 3, 3]]), key
    assert buffer[key].dtype == rows[key].dtype and buffer[key].dtype.isnative
"""
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    buffer = ReplayBuffer(tmp_path / "b")
    if form in ("webp", "blosc"):
        with buffer:
            buffer.append({"camera0_rgb": PICTURES[:2], "action": ACTIONS[:2]})
            assert buffer.n_steps == 32
    else:
        with pytest.raises(LayoutError, match="only read here; copy_to"):
            buffer.append({"camera0_rgb": PICTURES[:2], "action": ACTIONS[:2]})
        copied = buffer.copy_to(tmp_path / "ours")
        np.testing.assert_array_equal(copied["camera0_rgb"][:], buffer["camera0_rgb"][:])


def test_pictures_that_are_no_rgb(tmp_path: Path) -> None:
    data = skeleton(tmp_path / "b", 2)
    depth = RANDOM.integers(0, 256, (30, 20, 24), np.uint8)
    data.create_array("grey", shape=depth.shape, chunks=(1, 20, 24), dtype="uint8", compressors=FORMS["png"])[:] = depth
    np.testing.assert_array_equal(ReplayBuffer(tmp_path / "b")["grey"][:], depth)


def test_a_missing_chunk_of_others_is_the_fill_value(tmp_path: Path) -> None:
    data = skeleton(tmp_path / "b", 3)
    data.create_array("action", shape=(30, 7), chunks=(8, 7), dtype="float32", fill_value=7.5)
    data.create_array("sharded", shape=(30, 7), chunks=(2, 7), shards=(8, 7), dtype="float32", fill_value=-1)
    data["action"][8:16] = ACTIONS[8:16]  # type: ignore[index]
    data["sharded"][2:4] = ACTIONS[2:4]  # type: ignore[index]
    with ReplayBuffer(tmp_path / "b") as buffer:
        for key, array in data.members():
            np.testing.assert_array_equal(buffer[key][:], array[:])  # type: ignore[index]
        buffer.append({"action": ACTIONS[:2], "sharded": ACTIONS[:2]})
        assert (buffer["action"][24:30] == 7.5).all() and (buffer["sharded"][24:30] == -1).all()


def test_arrays_that_only_zarr_can_read(tmp_path: Path) -> None:
    data = skeleton(tmp_path / "b", 3)
    data.create_array("cut", data=ACTIONS, chunks=(8, 3))
    data.create_array("turned", data=ACTIONS, chunks=(8, 7), filters=[TransposeCodec(order=(1, 0))])
    sharding = ShardingCodec(chunk_shape=(2, 7), codecs=[BytesCodec()], index_location="start")
    data.create_array("first", data=ACTIONS, chunks=(8, 7), serializer=sharding, compressors=None)
    buffer = ReplayBuffer(tmp_path / "b")
    for key in ("cut", "turned", "first"):
        np.testing.assert_array_equal(buffer[key][:], ACTIONS)
        np.testing.assert_array_equal(buffer[key][[29, 0, 0, 5]], ACTIONS[[29, 0, 0, 5]])
    with pytest.raises(LayoutError, match="only read here"):
        buffer.append(dict.fromkeys(buffer.keys(), ACTIONS[:1]))
    with buffer.copy_to(tmp_path / "ours") as ours:
        ours.append(dict.fromkeys(buffer.keys(), ACTIONS[:1]))
        np.testing.assert_array_equal(ours["cut"][:], [*ACTIONS, ACTIONS[0]])


def test_filters_of_format_2(tmp_path: Path) -> None:
    data = skeleton(tmp_path / "b", 2)
    numbers = np.arange(30, dtype="int32")
    data.create_array(
        "delta", data=numbers, chunks=(8,), filters=[numcodecs.Delta("int32")], compressors=numcodecs.Zlib()
    )
    data.create_array("fortran", data=ACTIONS, chunks=(8, 7), order="F")
    buffer = ReplayBuffer(tmp_path / "b")
    np.testing.assert_array_equal(buffer["delta"][:], numbers)
    np.testing.assert_array_equal(buffer["fortran"][:], ACTIONS)


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    data = skeleton(tmp_path / "b", 2)
    data.create_array("action", data=ACTIONS, chunks=(8, 7), compressors=numcodecs.Zlib())
    file = tmp_path / "b" / "data" / "action" / ".zarray"
    for change in ({"compressor": {"id": "pickle"}}, {"filters": [{"id": "pickle"}]}, {"dtype": "|O"}):
        file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
        with pytest.raises((FormatError, DamagedError)):
            ReplayBuffer(tmp_path / "b")["action"][:]


@pytest.mark.parametrize(
    "codec",
    [numcodecs.Blosc(), numcodecs.Zstd(), numcodecs.LZ4(), numcodecs.GZip(), numcodecs.Zlib(), numcodecs.BZ2(), None],
)
def test_a_chunk_that_unpacks_to_something_else_is_damage(tmp_path: Path, codec: Any) -> None:
    data = skeleton(tmp_path / "b", 2)
    data.create_array("action", data=ACTIONS, chunks=(8, 7), compressors=codec)
    pack = (lambda rows: rows) if codec is None else codec.encode
    for wrong in (pack(b"\0" * (10 << 20)), b"nothing that was packed", b"\0" * 16, pack(b"1234"), b"", b"\2"):
        (tmp_path / "b" / "data" / "action" / "1.0").write_bytes(wrong)
        with pytest.raises((DamagedError, FormatError)):
            ReplayBuffer(tmp_path / "b")["action"][:]


def test_a_chunk_that_would_be_huge_is_refused(tmp_path: Path) -> None:
    data = skeleton(tmp_path / "b", 3)
    data.create_array("action", shape=(1 << 40, 7), chunks=(1 << 38, 7), dtype="float32")
    with pytest.raises(FormatError, match="are refused"):
        ReplayBuffer(tmp_path / "b")
