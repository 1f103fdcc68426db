"""WebP pictures and the zarr codec: exact where they must be, refused where they cannot be."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import imagecodecs
import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from zarr.codecs import Crc32cCodec
from zarr.storage import MemoryStore

from recorder.errors import DamagedError, FormatError, LayoutError
from recorder.webp import SIDE, decode_webp, encode_webp, webp_size
from recorder.webp_codec import NAME, Webp, WebpCodec, register

ROOT = Path(__file__).parents[1]
ENTRY_POINT = f"{NAME} = recorder.webp_codec:Webp"
SIZES = [(1, 1, 3), (1, 1, 4), (1, 9, 3), (9, 1, 4), (97, 95, 3), (97, 95, 4), (1, SIDE, 3)]

try:
    import imagecodecs.zarr

    HAS_OWN = True
except ImportError:
    HAS_OWN = False


def noise(*shape: int, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def smooth(height: int, width: int, channels: int = 3) -> NDArray[np.uint8]:
    y, x = np.mgrid[:height, :width]
    planes = [x * 255 // width, y * 255 // height, (x + y) % 256, np.full_like(x, 255)]
    return np.stack(planes[:channels], axis=-1).astype(np.uint8)


@pytest.mark.parametrize("shape", SIZES)
@pytest.mark.parametrize("method", [0, 4])
def test_a_lossless_picture_of_any_size_comes_back_exactly(shape: tuple[int, ...], method: int) -> None:
    frame = noise(*shape)
    assert np.array_equal(decode_webp(encode_webp(frame, method=method), shape), frame)


@pytest.mark.parametrize("alpha", [0, 7, 255])
def test_the_colours_below_any_alpha_come_back_exactly(alpha: int) -> None:
    frame = noise(20, 30, 4)
    frame[:10, :, 3] = alpha
    assert np.array_equal(decode_webp(encode_webp(frame), frame.shape), frame)
    frame[..., 3] = alpha
    assert np.array_equal(decode_webp(encode_webp(frame), frame.shape), frame)


def test_a_picture_that_is_not_contiguous_is_coded_as_it_looks() -> None:
    frame = noise(40, 60, 3)[::2, ::-1]
    assert np.array_equal(decode_webp(encode_webp(frame), frame.shape), frame)


def test_a_quality_is_lossy_and_smaller_for_that() -> None:
    frame = smooth(120, 160)
    exact, lossy = encode_webp(frame + noise(120, 160, 3) % 8), encode_webp(frame, quality=80)
    assert lossy[12:16] == b"VP8 "
    assert len(lossy) < len(exact) / 4
    difference = np.abs(decode_webp(lossy, frame.shape).astype(int) - frame).mean()
    assert 0 < difference < 4


def test_a_lossy_picture_keeps_its_alpha_channel() -> None:
    assert decode_webp(encode_webp(smooth(20, 30, 4), quality=80), (20, 30, 4)).shape == (20, 30, 4)


@pytest.mark.parametrize(
    "frame",
    [
        np.zeros((4, 4), np.uint8),
        np.zeros((4, 4, 1), np.uint8),
        np.zeros((4, 4, 2), np.uint8),
        np.zeros((4, 4, 3), np.uint16),
        np.zeros((4, 4, 3), np.float32),
        np.zeros((4, 4, 3), bool),
        np.zeros((0, 4, 3), np.uint8),
        np.zeros((1, SIDE + 1, 3), np.uint8),
        np.zeros((2, 4, 4, 3), np.uint8),
    ],
    ids=lambda frame: f"{frame.dtype}{frame.shape}",
)
def test_what_webp_would_change_is_refused(frame: NDArray[Any]) -> None:
    with pytest.raises(LayoutError, match="uint8 pictures"):
        encode_webp(frame)


@pytest.mark.parametrize("shape", SIZES)
@pytest.mark.parametrize("quality", [None, 50])
def test_the_size_is_told_from_the_header(shape: tuple[int, ...], quality: float | None) -> None:
    assert webp_size(encode_webp(noise(*shape), quality)) == shape[:2]


def test_a_picture_that_says_another_size_is_refused_before_memory_is_taken() -> None:
    data = bytearray(encode_webp(noise(4, 4, 3)))
    data[21:25] = (16382 | 16382 << 14).to_bytes(4, "little")
    with pytest.raises(FormatError, match="16383"):
        decode_webp(bytes(data), (4, 4, 3))


def test_a_small_canvas_does_not_hide_a_large_picture() -> None:
    data = bytearray(encode_webp(smooth(40, 30, 4) - noise(40, 30, 4) % 9, quality=50))
    assert data[12:16] == b"VP8X"
    data[24:30] = (3).to_bytes(3, "little") * 2
    with pytest.raises(DamagedError):
        decode_webp(bytes(data), (4, 4, 4))


@pytest.mark.parametrize("data", [b"", b"RIFF", b"RIFF\0\0\0\0WEBPVP8Q" + bytes(40), bytes(100)])
def test_what_is_no_picture_is_refused(data: bytes) -> None:
    with pytest.raises(FormatError, match="no WebP picture"):
        decode_webp(data, (4, 4, 3))


def test_an_animation_is_refused() -> None:
    data = bytearray(encode_webp(smooth(8, 8, 4) - noise(8, 8, 4) % 9, quality=50))
    data[20] |= 0x02
    with pytest.raises(FormatError, match="no WebP picture"):
        decode_webp(bytes(data), (8, 8, 4))


@given(st.data())
def test_damaged_pictures_raise_errors_of_this_package_or_decode(data: st.DataObject) -> None:
    channels, quality = data.draw(st.sampled_from([3, 4])), data.draw(st.sampled_from([None, 40]))
    coded = bytearray(encode_webp(noise(6, 5, channels), quality))
    for place, value in data.draw(st.lists(st.tuples(st.integers(0, len(coded) - 1), st.integers(0, 255)))):
        coded[place] = value
    try:
        found = decode_webp(bytes(coded[: data.draw(st.integers(0, len(coded)))]), (6, 5, channels))
    except (FormatError, DamagedError):
        return
    assert found.shape == (6, 5, channels)


def array_of(frames: NDArray[Any], codec: Any, sharded: bool = True) -> MemoryStore:
    store = MemoryStore()
    array = zarr.create_array(
        store,
        shape=frames.shape,
        dtype=frames.dtype,
        chunks=(1, *frames.shape[1:]),
        shards=(4, *frames.shape[1:]) if sharded else None,
        serializer=codec,
        compressors=[Crc32cCodec()],
        config={"write_empty_chunks": True},
    )
    array[:] = frames
    return store


@pytest.mark.parametrize("shape", [(97, 95, 3), (97, 95, 4), (1, 1, 3), (1, 7, 4), (7, 1, 3)])
@pytest.mark.parametrize("sharded", [True, False])
def test_zarr_keeps_pictures_exactly(shape: tuple[int, ...], sharded: bool) -> None:
    register()
    frames = noise(5, *shape)
    frames[2] = 0
    codec = WebpCodec(lossless=True, method=0, hasalpha=True if shape[2] == 4 else None)
    store = array_of(frames, codec, sharded)
    assert np.array_equal(zarr.open_array(store, mode="r")[:], frames)


@pytest.mark.parametrize(
    "frames",
    [
        np.full((2, 8, 8, 3), 300, np.uint16),
        np.ones((2, 8, 8), np.uint8),
        np.ones((2, 8, 8, 1), np.uint8),
        np.ones((2, 8), np.uint8),
        np.ones((2, 2, SIDE + 1, 3), np.uint8),
    ],
    ids=lambda frames: f"{frames.dtype}{frames.shape}",
)
@pytest.mark.parametrize("sharded", [True, False])
def test_zarr_is_refused_what_the_codec_would_change(frames: NDArray[Any], sharded: bool) -> None:
    with pytest.raises(LayoutError, match="one picture a chunk"):
        array_of(frames, WebpCodec(lossless=True), sharded)


def test_two_pictures_a_chunk_are_refused() -> None:
    array = zarr.create_array(
        MemoryStore(), shape=(4, 8, 8, 3), dtype="uint8", chunks=(2, 8, 8, 3), serializer=WebpCodec()
    )
    with pytest.raises(LayoutError, match="one picture a chunk"):
        array[:] = noise(4, 8, 8, 3)


def test_a_level_alone_is_refused_for_it_would_be_lossless() -> None:
    with pytest.raises(LayoutError, match="lossless=False"):
        WebpCodec(level=80)


def test_a_level_alone_in_a_file_is_read_as_what_it_is() -> None:
    data = {"name": NAME, "configuration": {"level": 80.0}}
    assert WebpCodec.from_dict(data) == WebpCodec(level=80.0, lossless=True)


@pytest.mark.parametrize(
    "codec",
    [
        WebpCodec(),
        WebpCodec(lossless=True, method=0),
        WebpCodec(level=80.0, lossless=False, method=4),
        WebpCodec(numthreads=2, index=0, delay=3, hasalpha=True),
    ],
)
def test_the_configuration_comes_back_from_json(codec: WebpCodec) -> None:
    assert WebpCodec.from_dict(codec.to_dict()) == codec


def test_an_unknown_option_in_a_file_is_named() -> None:
    with pytest.raises(FormatError, match="'speed'"):
        WebpCodec.from_dict({"name": NAME, "configuration": {"speed": 1}})


@pytest.mark.skipif(not HAS_OWN, reason="imagecodecs has no codec for zarr 3 on this Python")
@pytest.mark.parametrize(
    "options", [{}, {"lossless": True, "method": 0}, {"level": 80.0, "lossless": False, "method": 0}]
)
def test_bytes_and_configuration_are_those_of_imagecodecs(options: dict[str, Any]) -> None:
    theirs = imagecodecs.zarr.Webp(**options)
    assert WebpCodec(**options).to_dict().get("configuration", {}) == theirs.to_dict().get("configuration", {})
    frames = np.stack([smooth(20, 30), noise(20, 30, 3)])
    files = [array_of(frames, codec)._store_dict for codec in (WebpCodec(**options), theirs)]
    assert files[0]["c/0/0/0/0"].to_bytes() == files[1]["c/0/0/0/0"].to_bytes()


@pytest.mark.skipif(not HAS_OWN, reason="imagecodecs has no codec for zarr 3 on this Python")
def test_the_codec_of_imagecodecs_is_named_where_there_is_one() -> None:
    assert Webp is imagecodecs.zarr.Webp


def run_python(code: str, *paths: Path) -> str:
    """Run code in a new interpreter that sees nothing but the installed packages and `paths`."""
    process = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)],
        env={"PYTHONPATH": ":".join(map(str, paths)), "PATH": ""},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout.strip()


def installed(folder: Path, name: str, *entry_points: str) -> Path:
    """Make a folder in which a package of that name seems to be installed."""
    package = folder / f"{name}-1.0.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("\n".join(["[zarr.codecs]", *entry_points, ""]))
    return folder


def stored(folder: Path) -> NDArray[np.uint8]:
    frames = noise(3, 8, 9, 3)
    zarr.create_array(
        folder / "frames.zarr",
        data=frames,
        chunks=(1, 8, 9, 3),
        serializer=WebpCodec(lossless=True, method=0),
        compressors=None,
    )
    return frames


READ = """
import sys, zarr
array = zarr.open_array({path!r}, mode="r")
print(int(array[:].astype(int).sum()), array.metadata.codecs[0].__class__.__module__)
"""


def test_a_fresh_process_reads_with_zarr_alone_by_the_entry_point(tmp_path: Path) -> None:
    frames = stored(tmp_path)
    folder = installed(tmp_path / "site", "gymnasium_recorder", ENTRY_POINT)
    found = run_python(READ.format(path=str(tmp_path / "frames.zarr")), folder, ROOT)
    assert found.split() == [str(frames.astype(int).sum()), Webp.__module__]


@pytest.mark.skipif(not HAS_OWN, reason="imagecodecs has no codec for zarr 3 on this Python")
def test_two_entry_points_for_the_codec_give_no_warning(tmp_path: Path) -> None:
    frames = stored(tmp_path)
    installed(tmp_path / "site", "gymnasium_recorder", ENTRY_POINT)
    folder = installed(tmp_path / "site", "imagecodecs_zarr", f"{NAME} = imagecodecs.zarr:Webp")
    found = run_python(READ.format(path=str(tmp_path / "frames.zarr")), folder, ROOT)
    assert found.split() == [str(frames.astype(int).sum()), "imagecodecs.zarr"]


def test_registering_twice_and_beside_others_gives_no_warning(tmp_path: Path) -> None:
    stored(tmp_path)
    theirs = "import imagecodecs.zarr; imagecodecs.zarr.register_codecs(['webp'])" if HAS_OWN else ""
    code = f"from recorder.webp_codec import register\nregister(); register()\n{theirs}\n"
    folder = installed(tmp_path / "site", "gymnasium_recorder")
    assert run_python(code + READ.format(path=str(tmp_path / "frames.zarr")), folder, ROOT)


def test_a_codec_that_another_package_registered_stays() -> None:
    code = f"""
    import zarr.registry
    from zarr.registry import get_codec_class, register_codec
    from recorder.webp_codec import WebpCodec, register
    class Other(WebpCodec): pass
    # As if this package had no entry point.
    registry = getattr(zarr.registry, "__codec_registries").get({NAME!r})
    if registry is not None:
        registry.lazy_load_list.clear()
    register_codec({NAME!r}, Other)
    register()
    assert get_codec_class({NAME!r}) is Other
    """
    run_python(code, ROOT)
