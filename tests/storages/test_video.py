"""VideoStorage: exact and lossy pictures, frames by number, kills, damage, strange files, forks, failures."""

from __future__ import annotations

import errno
import os
import pickle
import shutil
import signal
import struct
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from recorder.errors import ClosedError, DamagedError, EpisodeError, FormatError, LayoutError, WriteError
from recorder.leaf import Leaf
from recorder.storages import video_codecs, video_probe, video_reading, video_salvage, video_writing
from recorder.storages.base import Counts, Reader, Run, Segment, Writer, storage_from_json
from recorder.storages.video import VideoStorage
from recorder.storages.video_codecs import CODECS, Encoder, GrowingFile, plane
from recorder.storages.video_reading import DECODERS, Decoder, Decoders, Track, read_track
from recorder.storages.video_salvage import salvaged
from recorder.testing import ALPHA_LEAVES, GREY_LEAVES, PICTURE_LEAVES, RAGGED, StorageContract, in_child

Array = NDArray[Any]

ROOT = Path(__file__).parents[2]

IMAGE = Leaf("observation/camera/front", (32, 48, 3), "uint8", "image")
SMALL = Leaf("observation/small", (16, 16, 3), "uint8", "image")
CANVAS = Leaf("action/canvas", (24, 16, 3), "uint8", "image", "transition")
DEPTH = Leaf("observation/depth", (24, 33), "uint16", "depth")
MASK = Leaf("observation/mask", (16, 16, 3), "uint8", "mask")
RANGE = Leaf("observation/range", (16, 16), "float32", "depth")

EXACT = [name for name, codec in CODECS.items() if not codec.lossy]
LOSSY = [name for name, codec in CODECS.items() if codec.lossy]
EVERY = list(CODECS)


@pytest.fixture
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do without fsync where many files are written."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.mark.usefixtures("quick_disk")
class TestH264(StorageContract):
    storage, leaves = VideoStorage(), (PICTURE_LEAVES[1], PICTURE_LEAVES[3], GREY_LEAVES[1])
    refused = (DEPTH, MASK, RANGE, RAGGED, *ALPHA_LEAVES)
    tolerance, block, delay, longest = 4.0, 10, 1, 50


@pytest.mark.usefixtures("quick_disk")
class TestH264RGB(StorageContract):
    storage, leaves = VideoStorage(codec="h264rgb"), (*PICTURE_LEAVES[2:], MASK)
    refused = (DEPTH, RANGE, RAGGED, *GREY_LEAVES, *ALPHA_LEAVES)
    block, delay, longest = 10, 1, 50


@pytest.mark.usefixtures("quick_disk")
class TestFFV1(StorageContract):
    storage, leaves = VideoStorage(codec="ffv1"), (PICTURE_LEAVES[3], GREY_LEAVES[0], *ALPHA_LEAVES, DEPTH)
    refused = (RANGE, RAGGED)
    block, delay, longest = 10, 1, 50


class OtherCodec(StorageContract):
    leaves, refused = PICTURE_LEAVES[2:], (DEPTH, MASK)
    tolerance, block, delay, longest = 4.0, 10, 1, 20


@pytest.mark.usefixtures("quick_disk")
class TestAV1(OtherCodec):
    storage = VideoStorage(codec="av1")


@pytest.mark.usefixtures("quick_disk")
class TestVP9(OtherCodec):
    storage = VideoStorage(codec="vp9")


@pytest.mark.usefixtures("quick_disk")
class TestHEVC(OtherCodec):
    storage = VideoStorage(codec="hevc")


# Pictures, and a shard of them.


def noise(leaf: Leaf, count: int, seed: int = 0) -> Array:
    """Return pictures of all values, among them many of the least and the greatest."""
    generator = np.random.default_rng([seed, *leaf.path.encode()])
    high = np.iinfo(leaf.dtype).max
    rows = generator.integers(0, high, (count, *leaf.shape), leaf.dtype, endpoint=True)
    rows[rows < high // 10] = 0
    rows[rows > high - high // 10] = high
    return rows


def scene(shape: Sequence[int], count: int) -> Array:
    """Return pictures such as a camera gives: smooth colours with a texture, and things that move."""
    height, width = shape[:2]
    x, y = np.linspace(0, 1, width), np.linspace(0, 1, height)[:, None]
    grain = np.random.default_rng(0).normal(0, 2, (height, width))
    rows = np.empty((count, height, width, 3))
    for t in range(count):
        rows[t, ..., 0] = 120 + 80 * np.sin(4 * x + 0.05 * t) * np.cos(3 * y) + grain
        rows[t, ..., 1] = 110 + 70 * np.cos(5 * y - 0.04 * t) + 20 * x + grain
        rows[t, ..., 2] = 90 + 60 * np.sin(3 * x + 2 * y) + grain
        disc = (x - 0.5 - 0.3 * np.cos(0.1 * t)) ** 2 + (y - 0.5 - 0.3 * np.sin(0.1 * t)) ** 2 < 0.02
        rows[t, disc] = rows[t, disc] * 0.5 + 40
    return rows.clip(0, 255).astype(np.uint8)


def numbered(leaf: Leaf, count: int) -> Array:
    """Return pictures that tell which row they are, also after lossy coding."""
    return np.broadcast_to(shades(count).reshape(-1, *[1] * len(leaf.shape)), (count, *leaf.shape)).copy()


def shades(count: int) -> Array:
    return (np.arange(count) * 37 % 221 + 16).astype(np.uint8)


def read_shades(rows: Array) -> Array:
    """Return the shade of each picture."""
    return np.median(rows.reshape(len(rows), -1), axis=1)


def psnr(found: Array, expected: Array) -> float:
    """Return the likeness of pictures in decibels."""
    error = np.mean((found.astype(float) - expected) ** 2)
    return float(10 * np.log10(255**2 / max(error, 1e-9)))


def fill(writer: Writer, rows: dict[str, Array], segment: int = 0, step: int = 7, end: bool = True) -> Segment:
    """Append rows of all leaves, `step` at a time; the first row of a transition means nothing."""
    count = len(next(iter(rows.values())))
    for start in range(0, count, step):
        part = {path: array[start : start + step] for path, array in rows.items()}
        writer.append(part, [Run(segment, 0, min(step, count - start), start == 0)])
    if end:
        writer.end(segment)
    return Segment(segment, count, max(count - 1, 0))


def packed(folder: Path, storage: VideoStorage, leaf: Leaf, *episodes: Array, close: bool = True) -> Reader:
    """Record and pack episodes of one leaf, and open the shard."""
    writer = storage.writer(folder / "staging", [leaf])
    segments = [fill(writer, {leaf.path: rows}, i) for i, rows in enumerate(episodes)]
    writer.pack(folder / "shard", segments)
    if close:
        writer.forget(range(len(episodes)))
    writer.close()
    return storage.reader(folder / "shard", [leaf], Counts.of(segments))


def kept(folder: Path, storage: VideoStorage, leaf: Leaf, rows: Array) -> Array:
    """Return rows after recording, packing and reading."""
    found: Array = packed(folder, storage, leaf, rows).segment(0)[leaf.path][:]
    return found


def coded_packets(path: Path) -> list[tuple[int | None, int | None, bool, bytes]]:
    """Return the coded frames of a file, as FFmpeg sees them: pts, dts, key frame, bytes."""
    with av.open(str(path)) as container:
        packets = container.demux(container.streams.video[0])
        return [(packet.pts, packet.dts, packet.is_keyframe, bytes(packet)) for packet in packets if packet.size]


# Options.


@pytest.mark.parametrize(
    "options",
    [
        {"codec": "h263"},
        {"crf": -1},
        {"crf": 20.5},
        {"crf": True},
        {"crf": 52},
        {"codec": "av1", "crf": 64},
        {"codec": "ffv1", "crf": 0},
        {"codec": "h264rgb", "crf": 0},
        {"codec": "ffv1", "preset": "slow"},
        {"preset": 3},
        {"keyframe_every": 0},
        {"keyframe_every": "10"},
        {"threads": 0},
        {"fps": 0},
        {"fps": float("nan")},
        {"fps": float("inf")},
        {"fps": "30"},
    ],
    ids=repr,
)
def test_an_option_that_means_nothing_is_named(options: dict[str, Any]) -> None:
    with pytest.raises(LayoutError, match=rf"VideoStorage\({list(options)[-1]}="):
        VideoStorage(**options)
    with pytest.raises(FormatError, match="VideoStorage"):
        storage_from_json({"id": "video", **options})


@pytest.mark.parametrize(
    ("fps", "metadata", "rate"),
    [
        (None, {}, Fraction(30)),
        (None, {"fps": 12.5}, Fraction(25, 2)),
        (50, {"fps": 12.5}, Fraction(50)),
        (29.97, {}, Fraction(2997, 100)),
        (1 / 3, {}, Fraction(1, 3)),
        (1e-9, {}, Fraction(1, 1001)),
        (1e6, {}, Fraction(1_000_000)),
    ],
)
def test_the_frame_rate_of_the_storage_goes_before_that_of_the_leaf(
    tmp_path: Path, fps: float | None, metadata: dict[str, float], rate: Fraction
) -> None:
    leaf = Leaf("observation", (16, 16, 3), "uint8", "image", metadata=metadata)
    packed(tmp_path, VideoStorage(fps=fps), leaf, numbered(leaf, 12))
    with av.open(str(tmp_path / "shard/observation/000000.mp4")) as container:
        stream = container.streams.video[0]
        assert stream.average_rate == rate
        assert stream.time_base == Fraction(1, rate.numerator)


@pytest.mark.parametrize("fps", [0, -1, "fast", None, float("nan")])
def test_a_frame_rate_in_metadata_that_is_none_is_refused(fps: Any) -> None:
    leaf = Leaf("observation/camera", (16, 16, 3), "uint8", "image", metadata={"fps": fps})
    with pytest.raises(LayoutError, match="'observation/camera' has fps"):
        VideoStorage().check([leaf])


# What is kept, and what is refused.


def test_a_refusal_says_what_would_keep_the_leaf() -> None:
    with pytest.raises(LayoutError) as raised:
        VideoStorage().check([Leaf("observation/depth", (480, 640), "uint16", "depth")])
    assert str(raised.value) == (
        "'observation/depth': uint16 (480, 640) is no picture that h264 takes, which is uint8 (H, W, 3), "
        "(H, W) or (H, W, 1); keep it with HDF5Storage(), ZarrStorage() or VideoStorage(codec='ffv1')"
    )


@pytest.mark.parametrize("codec", LOSSY)
@pytest.mark.parametrize("kind", ["depth", "mask", "segmentation", "other"])
def test_lossy_codecs_take_nothing_but_images(codec: str, kind: str) -> None:
    leaf = Leaf("observation/labels", (16, 16, 3), "uint8", kind)
    with pytest.raises(LayoutError, match=f"of kind '{kind}', which {codec} would change.*h264rgb.*ffv1"):
        VideoStorage(codec=codec).check([leaf])


@pytest.mark.parametrize(
    "leaf",
    [
        Leaf("observation", (3, 64, 64), "uint8", "image"),
        Leaf("observation", (3, 64, 3), "uint8", "image", metadata={"layout": "CHW"}),
        Leaf("observation", (4, 84, 84), "uint8", "stack"),
        Leaf("observation", (64, 64, 2), "uint8", "image"),
        Leaf("observation", (64,), "uint8", "image"),
        Leaf("observation", (2, 8, 8, 3), "uint8", "image"),
        Leaf("observation", (0, 8, 3), "uint8", "image"),
        Leaf("observation", (8, 8, 3), "int8", "image"),
        Leaf("observation", (8, 8, 3), "uint16", "image"),
        Leaf("observation", (8, 8, 3), "float32", "image"),
        Leaf("observation", (8, 8, 3), "uint8", "image", sparse=True),
    ],
    ids=lambda leaf: f"{leaf.dtype}-{leaf.shape}",
)
@pytest.mark.parametrize("codec", EVERY)
def test_what_is_no_picture_is_refused_by_every_codec(codec: str, leaf: Leaf) -> None:
    with pytest.raises(LayoutError, match=r"'observation': .* keep it with HDF5Storage"):
        VideoStorage(codec=codec).check([leaf])


def test_a_codec_that_is_listed_and_does_not_open_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    leaf = Leaf("observation/camera", (66, 70, 3), "uint8", "image")
    for encoder in ("h264_nvenc", "h264_v4l2m2m", "no such encoder"):
        monkeypatch.setattr(video_codecs, "CODECS", {**CODECS, "h264": CODECS["h264"]._replace(encoder=encoder)})
        with pytest.raises(LayoutError, match=r"'observation/camera'.*cannot be coded as h264 by PyAV"):
            VideoStorage().check([leaf])


@pytest.mark.parametrize("codec", [*LOSSY, "h264rgb"])
def test_a_preset_that_an_encoder_refuses_is_found_by_the_check(codec: str) -> None:
    with pytest.raises(LayoutError, match=r"'observation/small'.*cannot be coded.*choose another codec or preset"):
        VideoStorage(codec=codec, preset="no such preset").check([SMALL])


def test_a_codec_that_would_change_what_it_may_not_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def spoilt(context: video_codecs.Coding) -> dict[str, str]:
        return {"preset": "ultrafast", "qp": "20", "tune": "zerolatency"}

    monkeypatch.setitem(CODECS, "h264rgb", CODECS["h264rgb"]._replace(options=spoilt))
    with pytest.raises(LayoutError, match="what it decodes is not what was coded"):
        VideoStorage(codec="h264rgb").check([Leaf("observation", (18, 20, 3), "uint8", "image")])


def test_a_codec_is_probed_once_for_each_size(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Path] = []
    video_probe.probe.cache_clear()  # another test may have asked for this size

    class Counted(Encoder):
        def __init__(self, path: Path, coding: video_codecs.Coding) -> None:
            opened.append(path)
            super().__init__(path, coding)

    monkeypatch.setattr(video_probe, "Encoder", Counted)
    leaves = [Leaf(f"observation/{name}", (18, 26, 3), "uint8", "image") for name in "abc"]
    VideoStorage().check(leaves)
    VideoStorage().check(leaves)
    assert len(opened) == 1
    assert not opened[0].exists()


# Exact and lossy.


@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (95, 97), (101, 101), (481, 641)], ids=str)
@pytest.mark.parametrize(
    ("codec", "channels", "dtype", "order"),
    [
        ("h264rgb", (3,), "uint8", "rgb"),
        ("h264rgb", (3,), "uint8", "bgr"),
        ("ffv1", (3,), "uint8", "rgb"),
        ("ffv1", (3,), "uint8", "bgr"),
        ("ffv1", (4,), "uint8", "rgba"),
        ("ffv1", (4,), "uint8", "bgra"),
        ("ffv1", (), "uint8", "gray"),
        ("ffv1", (1,), "uint8", "gray"),
        ("ffv1", (), "uint16", "gray"),
        ("ffv1", (1,), "uint16", "gray"),
    ],
)
def test_lossless_codecs_give_every_bit_back(
    tmp_path: Path, codec: str, channels: tuple[int, ...], dtype: str, order: str, shape: tuple[int, int]
) -> None:
    leaf = Leaf("observation", (*shape, *channels), dtype, "segmentation", metadata={"format": order})
    storage = VideoStorage(codec=codec)
    assert storage.exact(leaf)
    storage.check([leaf])
    rows = noise(leaf, 2 if shape == (481, 641) else 23)
    found = kept(tmp_path, storage, leaf, rows)
    assert (found.dtype, found.shape) == (rows.dtype, rows.shape)
    assert np.array_equal(found, rows)


@pytest.mark.parametrize("shape", [(1, 1), (1, 40), (95, 97), (101, 33)], ids=str)
@pytest.mark.parametrize("channels", [(3,), (), (1,)], ids=str)
@pytest.mark.parametrize("codec", LOSSY)
def test_lossy_codecs_take_any_size_and_give_it_back(
    tmp_path: Path, codec: str, channels: tuple[int, ...], shape: tuple[int, int]
) -> None:
    leaf = Leaf("observation", (*shape, *channels), "uint8", "image")
    storage = VideoStorage(codec=codec)
    storage.check([leaf])
    rows = numbered(leaf, 23)
    found = kept(tmp_path, storage, leaf, rows)
    assert (found.dtype, found.shape) == (rows.dtype, rows.shape)
    assert np.abs(found.astype(int) - rows).max() <= 6
    track = read_track(tmp_path / "shard/observation/000000.mp4")
    assert track.height % 2 == track.width % 2 == 0


def test_odd_pictures_are_padded_with_their_own_edge(tmp_path: Path) -> None:
    leaf = Leaf("observation", (33, 35, 3), "uint8", "image")
    rows = np.full((1, 33, 35, 3), 40, np.uint8)
    rows[:, -1] = rows[:, :, -1] = 200
    packed(tmp_path, VideoStorage(crf=1), leaf, rows)
    with av.open(str(tmp_path / "shard/observation/000000.mp4")) as container:
        frame = next(container.decode(video=0))
    luma = plane(frame)
    assert luma.shape == (34, 36)
    assert np.abs(luma[-1].astype(int) - luma[-2]).max() <= 2
    assert np.abs(luma[:, -1].astype(int) - luma[:, -2]).max() <= 2


@pytest.mark.parametrize("codec", LOSSY)
def test_a_natural_picture_looks_the_same(tmp_path: Path, codec: str) -> None:
    leaf = Leaf("observation", (240, 320, 3), "uint8", "image")
    rows = scene(leaf.shape, 12)
    found = kept(tmp_path, VideoStorage(codec=codec), leaf, rows)
    assert min(psnr(*pair) for pair in zip(found, rows, strict=True)) > 35
    assert (tmp_path / "shard/observation/000000.mp4").stat().st_size < rows.nbytes / 20


@pytest.mark.parametrize("order", ["rgb", "bgr"])
@pytest.mark.parametrize("codec", LOSSY)
def test_colours_keep_their_place_and_strength(tmp_path: Path, codec: str, order: str) -> None:
    colours = np.array([[0, 0, 0], [255, 255, 255], [255, 0, 0], [0, 255, 0], [0, 0, 255], [90, 140, 200]], np.uint8)
    leaf = Leaf("observation", (32, 32, 3), "uint8", "image", metadata={"format": order})
    rows = np.broadcast_to(colours[:, None, None], (6, 32, 32, 3))
    found = kept(tmp_path, VideoStorage(codec=codec, crf=4), leaf, rows)
    assert np.abs(found.mean((1, 2)) - colours).max() < 4


def test_a_grey_picture_keeps_its_whole_range(tmp_path: Path) -> None:
    leaf = Leaf("observation", (32, 256), "uint8", "image")
    rows = np.broadcast_to(np.arange(256, dtype=np.uint8), (3, 32, 256))
    found = kept(tmp_path, VideoStorage(crf=1), leaf, rows)
    assert np.abs(found.astype(int) - rows).max() <= 2


@pytest.mark.parametrize("codec", LOSSY)
def test_a_player_is_told_the_colours_that_were_coded(tmp_path: Path, codec: str) -> None:
    red = np.zeros((3, 32, 32, 3), np.uint8)
    red[..., 0] = 255
    leaf = Leaf("observation", (32, 32, 3), "uint8", "image")
    packed(tmp_path, VideoStorage(codec=codec, crf=4), leaf, red)
    with av.open(str(tmp_path / "shard/observation/000000.mp4")) as container:
        context = container.streams.video[0].codec_context
        told = [context.colorspace, context.color_primaries, context.color_trc]
        assert told == [1, 1, 1], "BT.709"
        assert context.color_range == 1, "luma from 16 to 235"
        frame = next(container.decode(video=0))
        assert abs(plane(frame).mean() - 63) <= 2, "red is 63 in BT.709, 82 in BT.601"
        assert np.abs(frame.to_ndarray(format="rgb24").mean((0, 1)) - [255, 0, 0]).max() < 5


def test_arrays_that_do_not_lie_in_one_piece_are_taken(tmp_path: Path) -> None:
    for codec in EXACT:
        rows = noise(SMALL, 20)
        turned = np.asfortranarray(rows)[::2, ::-1, :, ::-1]
        assert np.array_equal(kept(tmp_path / codec, VideoStorage(codec=codec), SMALL, turned), turned)


def test_lines_of_any_width_are_read_no_further_than_they_go(tmp_path: Path) -> None:
    """Conversions read 32 pixels at once: the last row of a batch has to be copied, the others need not."""
    for width in (31, 32, 33, 600):
        leaf = Leaf(f"observation/{width}", (6, width, 3), "uint8", "image")
        rows = noise(leaf, 9)
        assert np.array_equal(kept(tmp_path / f"{width}", VideoStorage(codec="ffv1"), leaf, rows), rows)


@pytest.mark.parametrize("codec", EVERY)
def test_more_threads_change_nothing_that_is_promised(tmp_path: Path, codec: str) -> None:
    leaf = Leaf("observation", (96, 160, 3), "uint8", "image")
    storage = VideoStorage(codec=codec, threads=2)
    storage.check([leaf])
    rows = scene(leaf.shape, 12)
    found = kept(tmp_path, storage, leaf, rows)
    assert np.array_equal(found, rows) if storage.exact(leaf) else psnr(found, rows) > 33
    assert storage.delay(leaf) == 1


def test_nothing_is_printed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for codec in EVERY:
        storage = VideoStorage(codec=codec)
        storage.check([SMALL])
        writer = storage.writer(tmp_path / codec, [SMALL])
        fill(writer, {SMALL.path: numbered(SMALL, 5)}, 0)
        fill(writer, {SMALL.path: numbered(SMALL, 5)}, 1, end=False)
        writer.forget([1])
        writer.close()
        with pytest.raises(LayoutError):
            VideoStorage(codec=codec).check([DEPTH, RANGE])
    assert capfd.readouterr() == ("", "")


# Frame i is row i.


@pytest.mark.usefixtures("quick_disk")
@pytest.mark.parametrize("fps", [10, 24, 25, 30, 43, 50, 60])
def test_every_number_of_frames_is_exact(tmp_path: Path, fps: int) -> None:
    storage = VideoStorage(fps=fps)
    writer = storage.writer(tmp_path / "staging", [SMALL])
    rows = numbered(SMALL, 121)
    segments = []
    for count in range(1, 122):
        segments.append(fill(writer, {SMALL.path: rows[:count]}, count, step=50))
        path = tmp_path / f"staging/{count:06d}/observation/small.mp4"
        if count % 20 == 1:
            assert [packet[:2] for packet in coded_packets(path)] == [(i, i) for i in range(count)]
            with av.open(str(path)) as container:
                stream = container.streams.video[0]
                assert [stream.frames, stream.duration] == [count, count]
                assert [stream.average_rate, stream.time_base] == [Fraction(fps), Fraction(1, fps)]
        assert len(read_track(path)) == count
    assert writer.segments() == [Segment(count, count, -1) for count in range(1, 122)]
    writer.pack(tmp_path / "shard", segments)
    reader = storage.reader(tmp_path / "shard", [SMALL], Counts.of(segments))
    assert reader.count() == {SMALL.path: sum(range(122))}
    column = reader.segment(120)[SMALL.path]
    assert np.abs(read_shades(column[:]) - shades(121)).max() <= 3
    writer.close()


@pytest.mark.parametrize("codec", EVERY)
def test_there_is_a_key_frame_when_it_was_promised_and_no_frame_waits_for_a_later_one(
    tmp_path: Path, codec: str
) -> None:
    for every in (1, 6, 10):
        packed(tmp_path / f"{every}", VideoStorage(codec=codec, keyframe_every=every), SMALL, numbered(SMALL, 40))
        path = tmp_path / f"{every}/shard/observation/small/000000.mp4"
        packets = coded_packets(path)
        assert [packet[0] for packet in packets] == [packet[1] for packet in packets] == list(range(40))
        keys = np.flatnonzero([packet[2] for packet in packets])
        assert np.diff([*keys, 40]).max() <= every
        assert np.array_equal(read_track(path).keys, keys)


@pytest.mark.parametrize("codec", EVERY)
def test_a_file_is_an_ordinary_one_in_which_players_find_any_frame(tmp_path: Path, codec: str) -> None:
    packed(tmp_path, VideoStorage(codec=codec, fps=25), SMALL, numbered(SMALL, 40))
    with av.open(str(tmp_path / "shard/observation/small/000000.mp4")) as container:
        stream = container.streams.video[0]
        assert [stream.frames, stream.duration, stream.average_rate] == [40, 40, Fraction(25)]
        assert len(container.streams) == 1
        for row in (0, 39, 17, 23):
            container.seek(row, stream=stream)
            frame = next(frame for frame in container.decode(stream) if frame.pts == row)
            assert abs(np.median(frame.to_ndarray(format="rgb24")) - shades(40)[row]) <= 3


@pytest.mark.parametrize("codec", EVERY)
def test_rows_are_found_in_any_order(tmp_path: Path, codec: str) -> None:
    column = packed(tmp_path, VideoStorage(codec=codec), SMALL, numbered(SMALL, 64)).segment(0)[SMALL.path]
    for row in (0, 63, 5, 4, 4, 20, 29, 30, 31, 63):
        assert abs(np.median(column[row]) - shades(64)[row]) <= 3, row
    index = np.random.default_rng(0).integers(-64, 64, 100)
    assert np.abs(read_shades(column[index]) - shades(64)[index]).max() <= 3
    assert np.abs(read_shades(column[50:3:-7]) - shades(64)[50:3:-7]).max() <= 3


@settings(max_examples=30)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.booleans())
def test_batches_of_any_size_make_one_video(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], first: bool
) -> None:
    folder = tmp_path_factory.mktemp("batches")
    storage = VideoStorage(codec="ffv1")
    writer = storage.writer(folder / "staging", [SMALL, CANVAS])
    rows = {leaf.path: noise(leaf, sum(sizes)) for leaf in (SMALL, CANVAS)}
    start = 0
    for size in sizes:
        batch = {path: array[start : start + size] for path, array in rows.items()}
        writer.append(batch, [Run(4, 0, size, first and start == 0)])
        start += size
    writer.end(4)
    assert writer.segments() == [Segment(4, start, start - first)]
    columns = writer.view(Segment(4, start, start - first))
    assert np.array_equal(columns[SMALL.path][:], rows[SMALL.path])
    assert np.array_equal(columns[CANVAS.path][:], rows[CANVAS.path][int(first) :])
    writer.forget([4])
    writer.close()


# Reading costs little.


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that tells of each seek and each frame that is decoded."""
    told: list[str] = []

    def counted(name: str) -> Callable[..., Any]:
        original = getattr(Decoder, name)

        def call(*arguments: Any) -> Any:
            told.append(name)
            return original(*arguments)

        return call

    for name in ("_seek", "_feed"):
        monkeypatch.setattr(Decoder, name, counted(name))
    return told


def test_reading_on_seeks_no_more(tmp_path: Path, work: list[str]) -> None:
    column = packed(tmp_path, VideoStorage(), SMALL, numbered(SMALL, 40)).segment(0)[SMALL.path]
    for start in range(0, 40, 4):
        column[start : start + 4]
    assert (work.count("_seek"), work.count("_feed")) == (1, 40)


def test_neighbours_are_decoded_in_one_pass(tmp_path: Path, work: list[str]) -> None:
    column = packed(tmp_path, VideoStorage(), SMALL, numbered(SMALL, 40)).segment(0)[SMALL.path]
    column[[28, 21, 25, 25, 3]]
    assert (work.count("_seek"), work.count("_feed")) == (2, 4 + 9)
    work.clear()
    column[29]
    assert work == ["_feed"]
    column[12]
    assert (work.count("_seek"), work.count("_feed")) == (1, 1 + 3)


def test_few_decoders_are_kept(tmp_path: Path, work: list[str]) -> None:
    count = DECODERS + 3
    reader = packed(tmp_path, VideoStorage(), SMALL, *[numbered(SMALL, 5)] * count)
    decoders: Decoders = reader._decoders  # type: ignore[attr-defined]
    for _ in range(2):
        for i in range(count):
            reader.segment(i)[SMALL.path][0]
            assert len(decoders._idle) <= DECODERS
    work.clear()
    for i in range(count - DECODERS, count):
        reader.segment(i)[SMALL.path][1]
    assert work == ["_feed"] * DECODERS
    reader.close()
    assert len(decoders._idle) == 0


def test_groups_of_pictures_are_decoded_side_by_side_with_the_same_result(
    tmp_path: Path, work: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    column = packed(tmp_path, VideoStorage(), SMALL, numbered(SMALL, 95)).segment(0)[SMALL.path]
    alone = column[:]
    monkeypatch.setattr(video_reading, "PARALLEL_PIXELS", 1)
    monkeypatch.setattr(video_reading, "cores", lambda: 3)
    work.clear()
    assert np.array_equal(column[:], alone)
    assert work.count("_feed") == 95
    track = read_track(tmp_path / "shard/observation/small/000000.mp4")
    assert video_reading.shares(track, range(95), VideoStorage().coding(SMALL)) == [30, 60, 95]
    assert video_reading.shares(track, [3, 4, 5, 6], VideoStorage().coding(SMALL)) == [4]
    for seed in range(10):
        rows = np.random.default_rng(seed).integers(0, 95, 20)
        assert np.array_equal(column[rows], alone[rows])
    with pytest.raises(IndexError):
        column[[3, 95]]


def test_counting_decodes_nothing(tmp_path: Path, work: list[str]) -> None:
    reader = packed(tmp_path, VideoStorage(), SMALL, numbered(SMALL, 40), numbered(SMALL, 2))
    assert reader.count() == {SMALL.path: 42}
    assert work == []


def test_no_file_stays_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0  # noqa: PTH208, PTH112
    for codec in EVERY:
        reader = packed(tmp_path / codec, VideoStorage(codec=codec), SMALL, numbered(SMALL, 12))
        reader.segment(0)[SMALL.path][3]
        writer = VideoStorage(codec=codec).writer(tmp_path / codec / "again", [SMALL])
        fill(writer, {SMALL.path: numbered(SMALL, 12)}, end=False)
        writer.forget([0])
        assert not (tmp_path / codec / "again/000000").exists()
        assert before in (0, len(os.listdir("/proc/self/fd")))  # noqa: PTH208


def test_two_threads_read_one_column(tmp_path: Path) -> None:
    column = packed(tmp_path, VideoStorage(), SMALL, numbered(SMALL, 60)).segment(0)[SMALL.path]
    wrong: list[int] = []

    def read(seed: int) -> None:
        rows = np.random.default_rng(seed).integers(0, 60, 60).tolist()
        wrong.extend(row for row in rows if abs(np.median(column[row]) - shades(60)[row]) > 3)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_column_is_pickled_without_its_decoder(tmp_path: Path) -> None:
    column = packed(tmp_path, VideoStorage(codec="ffv1"), SMALL, noise(SMALL, 12)).segment(0)[SMALL.path]
    rows = column[3:]
    assert np.array_equal(pickle.loads(pickle.dumps(column))[3:], rows)


# Packing.


def test_a_whole_file_is_linked_and_a_shorter_one_copied_without_coding(tmp_path: Path) -> None:
    storage = VideoStorage()
    writer = storage.writer(tmp_path / "staging", [SMALL])
    fill(writer, {SMALL.path: numbered(SMALL, 30)}, 7)
    staged = tmp_path / "staging/000007/observation/small.mp4"
    writer.pack(tmp_path / "whole", [Segment(7, 30, 29)])
    writer.pack(tmp_path / "cut", [Segment(7, 13, 12)])
    assert (tmp_path / "whole/observation/small/000000.mp4").samefile(staged)
    cut = tmp_path / "cut/observation/small/000000.mp4"
    assert coded_packets(cut) == coded_packets(staged)[:13]
    with av.open(str(cut)) as container:
        assert container.streams.video[0].frames == len(read_track(cut)) == 13
    writer.close()


def test_a_file_is_copied_where_there_are_no_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.EXDEV, "no links from here to there")

    monkeypatch.setattr(os, "link", refuse)
    rows = noise(SMALL, 12)
    assert np.array_equal(kept(tmp_path, VideoStorage(codec="ffv1"), SMALL, rows), rows)


def test_a_segment_without_transitions_has_no_file_of_them(tmp_path: Path) -> None:
    storage = VideoStorage(codec="ffv1")
    writer = storage.writer(tmp_path / "staging", [SMALL, CANVAS])
    segments = [
        fill(writer, {leaf.path: noise(leaf, count) for leaf in (SMALL, CANVAS)}, i)
        for i, count in enumerate((1, 4, 1))
    ]
    assert writer.segments() == segments
    writer.pack(tmp_path / "shard", segments)
    assert sorted(path.name for path in (tmp_path / "shard/action/canvas").iterdir()) == ["000001.mp4"]
    reader = storage.reader(tmp_path / "shard", [SMALL, CANVAS], Counts.of(segments))
    assert reader.count() == {SMALL.path: 6, CANVAS.path: 3}
    assert reader.segment(0)[CANVAS.path][:].shape == (0, *CANVAS.shape)
    assert np.array_equal(reader.whole(CANVAS.path)[:], noise(CANVAS, 4)[1:])
    writer.close()


def test_a_running_segment_is_neither_viewed_nor_packed(tmp_path: Path) -> None:
    writer = VideoStorage().writer(tmp_path / "staging", [SMALL])
    segment = fill(writer, {SMALL.path: numbered(SMALL, 3)}, end=False)
    with pytest.raises(EpisodeError, match="segment 0 still runs"):
        writer.view(segment)
    with pytest.raises(EpisodeError, match="still being written"):
        writer.pack(tmp_path / "shard", [segment])
    writer.close()


def test_more_rows_than_there_are_frames_are_not_packed(tmp_path: Path) -> None:
    writer = VideoStorage().writer(tmp_path / "staging", [SMALL])
    fill(writer, {SMALL.path: numbered(SMALL, 3)})
    with pytest.raises(WriteError, match=r"small\.mp4 has 3 frames, 4 were to be packed"):
        writer.pack(tmp_path / "shard", [Segment(0, 4, 3)])
    with pytest.raises(EpisodeError, match="segment 1 is not held"):
        writer.pack(tmp_path / "shard", [Segment(1, 1, 0)])
    writer.close()


def test_rows_of_no_leaf_are_not_lost_in_silence(tmp_path: Path) -> None:
    writer = VideoStorage().writer(tmp_path / "staging", [SMALL])
    with pytest.raises(WriteError, match="'info/x' is no leaf of this VideoStorage"):
        fill(writer, {SMALL.path: numbered(SMALL, 3), "info/x": np.zeros(3)})
    assert writer.segments() == [Segment(0, 3, -1)]
    writer.close()


def test_a_closed_writer_takes_no_more(tmp_path: Path) -> None:
    writer = VideoStorage().writer(tmp_path / "staging", [SMALL])
    fill(writer, {SMALL.path: numbered(SMALL, 3)}, end=False)
    writer.close()
    for call in (
        lambda: fill(writer, {SMALL.path: numbered(SMALL, 1)}),
        lambda: writer.end(0),
        writer.checkpoint,
        lambda: writer.pack(tmp_path / "shard", []),
        lambda: writer.forget([0]),
    ):
        with pytest.raises(ClosedError, match="closed"):
            call()
    assert len(read_track(tmp_path / "staging/000000/observation/small.mp4")) == 3


# Kills and power losses.

KILLED = """
    import sys
    from pathlib import Path
    import numpy as np
    sys.path[:0] = [{root!r}, {here!r}]
    from test_video import EVERY, IMAGE, Run, VideoStorage, numbered

    writers = [VideoStorage(codec=codec).writer(Path(sys.argv[1], codec), [IMAGE]) for codec in EVERY]
    rows = numbered(IMAGE, 500)
    for i in range(500):
        for writer in writers:
            writer.append({{IMAGE.path: rows[i : i + 1]}}, [Run(3, 0, 1, i == 0)])
        print(i + 1, flush=True)
"""


@pytest.mark.parametrize("after", [2, 25, 61])
def test_a_kill_takes_the_last_frames_only(tmp_path: Path, after: int) -> None:
    script = textwrap.dedent(KILLED).format(root=str(ROOT), here=str(Path(__file__).parent))
    command = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        told = 0
        while told < after:
            told = int(child.stdout.readline())
        child.kill()
        rest = child.stdout.read().split()
        assert child.wait() == -signal.SIGKILL
        assert child.stderr is not None
        assert child.stderr.read() == ""
    appended = int(rest[-1]) if rest else told
    for codec in EVERY:
        storage = VideoStorage(codec=codec)
        writer = storage.recover(tmp_path / codec, [IMAGE])
        (segment,) = writer.segments()
        assert segment.number == 3
        assert appended - storage.delay(IMAGE) <= segment.moments <= appended + 1, codec
        assert np.abs(read_shades(writer.view(segment)[IMAGE.path][:]) - shades(segment.moments)).max() <= 3
        writer.pack(tmp_path / codec / "shard", [segment])
        with av.open(str(tmp_path / codec / f"shard/{IMAGE.path}/000000.mp4")) as container:
            assert container.streams.video[0].frames == segment.moments
        writer.forget([3])
        assert [path for path in (tmp_path / codec).rglob("*") if "shard" not in path.parts] == []
        writer.close()


@pytest.mark.parametrize("codec", EVERY)
def test_the_delay_of_every_codec_is_the_frame_that_the_muxer_holds(codec: str) -> None:
    assert VideoStorage(codec=codec).delay(SMALL) == 1


def test_a_codec_that_holds_frames_back_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(coding: video_codecs.Coding) -> dict[str, str]:
        return {"preset": "veryfast", "rc-lookahead": "9", "sync-lookahead": "0", "threads": "1"}

    monkeypatch.setitem(CODECS, "h264", CODECS["h264"]._replace(options=slow))
    leaf = Leaf("observation/camera", (20, 22, 3), "uint8", "image")
    assert VideoStorage().delay(leaf) >= 9


@pytest.mark.parametrize("codec", EVERY)
def test_whatever_is_left_of_a_file_gives_the_frames_before(tmp_path: Path, codec: str) -> None:
    storage = VideoStorage(codec=codec)
    writer = storage.writer(tmp_path / "staging", [SMALL])
    fill(writer, {SMALL.path: numbered(SMALL, 14)}, end=False)
    file = tmp_path / "staging/000000/observation/small.mp4"
    data = file.read_bytes()
    coding, copy = storage.coding(SMALL), tmp_path / "copy.mp4"
    last = 0
    for size in [*range(0, len(data), max(1, len(data) // 40)), *range(len(data) - 40, len(data) + 1)]:
        copy.write_bytes(data[:size])
        frames = salvaged(copy, coding)
        assert frames >= last or size < len(data) - 40
        last = frames
        if frames:
            (tmp_path / "whole.mp4").unlink(missing_ok=True)
            video_salvage.remux(copy, tmp_path / "whole.mp4", coding, frames)
            found = Decoders().read(tmp_path / "whole.mp4", coding, range(frames))
            assert np.abs(read_shades(found) - shades(frames)).max() <= 3
    assert last == 13
    writer.forget([0])
    writer.close()


def test_zeros_at_the_end_of_a_file_are_no_frames(tmp_path: Path) -> None:
    """A file system may give a file its size before its bytes."""
    for codec in EVERY:
        storage = VideoStorage(codec=codec)
        writer = storage.writer(tmp_path / codec, [SMALL])
        fill(writer, {SMALL.path: numbered(SMALL, 14)}, end=False)
        file = tmp_path / codec / "000000/observation/small.mp4"
        data = file.read_bytes()
        copy = tmp_path / "copy.mp4"
        for cut in (1, 30, 150, 400):
            copy.write_bytes(data[:-cut] + bytes(cut))
            assert 9 <= salvaged(copy, storage.coding(SMALL)) <= 13, (codec, cut)
        writer.forget([0])
        writer.close()


def test_a_file_is_changed_before_its_end_only_when_the_rest_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = VideoStorage()
    writer = storage.writer(tmp_path / "staging", [SMALL])
    fill(writer, {SMALL.path: numbered(SMALL, 14)}, end=False)
    file = tmp_path / "staging/000000/observation/small.mp4"
    on_disk: list[bytes] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: on_disk.append(file.read_bytes()))
    writer.checkpoint()
    writer.checkpoint()
    writer.end(0)
    checkpoint, whole, *_ = [data for i, data in enumerate(on_disk) if i == 0 or data != on_disk[i - 1]]
    assert whole.startswith(checkpoint), "all before the end is as it was"
    copy = tmp_path / "copy.mp4"
    copy.write_bytes(whole)
    assert salvaged(copy, storage.coding(SMALL)) == 14
    with pytest.raises(DamagedError, match="not closed"):
        read_track(copy)
    final = file.read_bytes()
    assert (len(final), len(read_track(file))) == (len(whole), 14)
    assert sum(a != b for a, b in zip(final, whole, strict=True)) <= 16
    writer.close()


def test_a_checkpoint_syncs_files_that_grew_and_folders_that_are_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = VideoStorage().writer(tmp_path / "staging", [SMALL])
    fill(writer, {SMALL.path: numbered(SMALL, 3)}, end=False)
    synced: list[str] = []
    fsync = os.fsync

    def told(descriptor: int) -> None:
        synced.append(os.path.relpath(os.readlink(f"/proc/self/fd/{descriptor}"), tmp_path))  # noqa: PTH115
        fsync(descriptor)

    if Path("/proc/self/fd").is_dir():
        monkeypatch.setattr(os, "fsync", told)
        writer.checkpoint()
        folder = "staging/000000/observation"
        assert synced[0] == f"{folder}/small.mp4"
        assert {folder, "staging/000000", "staging"} <= set(synced)
        synced.clear()
        writer.checkpoint()
        assert synced == []
    writer.close()


# Damaged files, and files of strangers.


def test_a_video_with_fewer_frames_is_found(tmp_path: Path) -> None:
    reader = packed(tmp_path, VideoStorage(), SMALL, numbered(SMALL, 40))
    file = tmp_path / "shard/observation/small/000000.mp4"
    file.unlink()
    writer = VideoStorage().writer(tmp_path / "other", [SMALL])
    fill(writer, {SMALL.path: numbered(SMALL, 5)})
    shutil.copy(tmp_path / "other/000000/observation/small.mp4", file)
    assert reader.count() == {SMALL.path: 5}
    column = reader.segment(0)[SMALL.path]
    assert len(column[:5]) == 5
    with pytest.raises(DamagedError, match=r"000000\.mp4: row 17 .*expected more than 17 frames, found 5"):
        column[17]
    with pytest.raises(DamagedError, match="row 5 "):
        column[:]
    writer.close()


@pytest.mark.parametrize("codec", EVERY)
def test_a_part_of_zeros_is_an_error_that_names_file_and_row(tmp_path: Path, codec: str) -> None:
    reader = packed(tmp_path, VideoStorage(codec=codec), SMALL, noise_or_scene(codec))
    column = reader.segment(0)[SMALL.path]
    column[:]
    reader.close()
    file = tmp_path / "shard/observation/small/000000.mp4"
    track, data = read_track(file), bytearray(file.read_bytes())
    row = 23
    start = int(track.offsets[row])
    data[start : start + int(track.sizes[row])] = bytes(int(track.sizes[row]))
    file.unlink()
    file.write_bytes(data)
    assert len(column[:20]) == 20
    with pytest.raises(DamagedError, match=r"small/000000\.mp4: row 2[3-9] cannot be read"):
        column[20:30]
    assert len(column[30:]) == 10, "the next key frame mends it"


def noise_or_scene(codec: str) -> Array:
    return noise(SMALL, 40) if codec in EXACT else scene(SMALL.shape, 40)


def hostile(folder: Path, storage: VideoStorage, leaf: Leaf) -> Path:
    """Return a video file of 12 frames made with `storage`, at the place where a reader of SMALL looks."""
    packed(folder / "made", storage, leaf, numbered(leaf, 12), close=False)
    file = folder / "shard" / SMALL.path / "000000.mp4"
    file.parent.mkdir(parents=True)
    shutil.copy(folder / "made/shard" / leaf.path / "000000.mp4", file)
    return file


def read_hostile(folder: Path) -> Array:
    reader = VideoStorage().reader(folder / "shard", [SMALL], Counts.of([Segment(0, 12, 11)]))
    rows: Array = reader.segment(0)[SMALL.path][:]
    return rows


def test_a_video_of_another_size_is_refused_before_it_is_decoded(tmp_path: Path, work: list[str]) -> None:
    hostile(tmp_path, VideoStorage(), Leaf("observation", (480, 640, 3), "uint8", "image"))
    with pytest.raises(DamagedError, match=r"other pictures: expected \(16, 16\) avc1, found \(480, 640\) avc1"):
        read_hostile(tmp_path)
    assert work == []


def test_a_video_of_another_codec_is_refused(tmp_path: Path) -> None:
    hostile(tmp_path, VideoStorage(codec="vp9"), SMALL)
    with pytest.raises(DamagedError, match=r"expected .* avc1, found .* vp09"):
        read_hostile(tmp_path)


def test_a_video_that_lies_about_its_size_gets_no_memory_for_it(tmp_path: Path) -> None:
    file = hostile(tmp_path, VideoStorage(), Leaf("observation", (480, 640, 3), "uint8", "image"))
    data = file.read_bytes()
    real, claimed = struct.pack(">HH", 640, 480), struct.pack(">HH", 16, 16)
    start = data.index(real, data.rindex(b"stsd"))
    file.write_bytes(data[:start] + claimed + data[start + 4 :])
    with pytest.raises(DamagedError, match=r"000000\.mp4: row 0 cannot be read"):
        read_hostile(tmp_path)


@pytest.mark.parametrize(
    ("box", "offset", "value"),
    [
        ("stsz", 8, 0xFFFFFFFF),
        ("stsz", 4, 0xFFFFFFFF),
        ("stsz", 4, 1),
        ("stco", 4, 0xFFFFFFFF),
        ("stco", 8, 0xFFFFFFF0),
        ("stsc", 4, 0xFFFFFFFF),
        ("stsc", 8, 2),
        ("stsc", 12, 0xFFFFFFFF),
        ("stss", 4, 0),
        ("stss", 8, 2),
        ("stss", 12, 1),
        ("moov", -4, 0xFFFFFFFF),
    ],
)
def test_an_index_that_lies_is_refused(tmp_path: Path, box: str, offset: int, value: int) -> None:
    file = hostile(tmp_path, VideoStorage(), SMALL)
    data = bytearray(file.read_bytes())
    start = data.rindex(box.encode()) + 4
    struct.pack_into(">I", data, start + (offset if offset >= 0 else -8), value)
    file.write_bytes(data)
    with pytest.raises(DamagedError, match=r"000000\.mp4.* cannot be read"):
        read_hostile(tmp_path)


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a video file of twelve small pictures."""
    return hostile(tmp_path_factory.mktemp("honest"), VideoStorage(), SMALL)


@settings(max_examples=150)
@given(st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=4))
def test_a_file_with_any_bytes_changed_is_read_or_named(
    honest: Path, tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[float, int]]
) -> None:
    data = bytearray(honest.read_bytes())
    for place, value in changes:
        data[int(place * len(data))] = value
    file = tmp_path_factory.mktemp("changed") / "000000.mp4"
    file.write_bytes(data)
    coding = VideoStorage().coding(SMALL)
    told = ""
    try:
        rows = Decoders().read(file, coding, range(len(read_track(file))))
    except DamagedError as error:
        told = str(error)
    assert "000000.mp4" in told or rows.shape[1:] == SMALL.shape
    assert 0 <= salvaged(file, coding) <= len(data)


@pytest.mark.parametrize("content", [b"", b"\0" * 8, b"\0\0\0\x01moov", b"x" * 5000, b"#EXTM3U\n/etc/passwd\n"])
def test_what_is_no_video_is_named(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "000000.mp4"
    file.write_bytes(content)
    with pytest.raises(DamagedError, match=r"000000\.mp4 cannot be read as a video"):
        read_track(file)
    assert salvaged(file, VideoStorage().coding(SMALL)) == 0


def test_frames_in_chunks_of_several_are_found(tmp_path: Path) -> None:
    """Other programs put many frames into a chunk; so does a copy that is cut."""
    writer = VideoStorage().writer(tmp_path / "staging", [SMALL])
    fill(writer, {SMALL.path: numbered(SMALL, 30)})
    writer.pack(tmp_path / "shard", [Segment(0, 17, 16)])
    file = tmp_path / "shard" / SMALL.path / "000000.mp4"
    track: Track = read_track(file)
    packets = coded_packets(file)
    assert file.read_bytes().count(b"stco") == 1
    for offset, size, packet in zip(track.offsets, track.sizes, packets, strict=True):
        assert file.read_bytes()[offset : offset + size] == packet[3]
    writer.close()


# Failures.


class Failing(Encoder):
    """An encoder that fails at the fifth frame of one video."""

    def write(self, rows: Array) -> None:
        for row in rows:
            if self.frames == 4 and self._coding.width == CANVAS.shape[1] and self.unlucky:
                raise RuntimeError("the encoder has had enough")
            super().write(row[None])

    unlucky = False

    def __init__(self, path: Path, coding: video_codecs.Coding) -> None:
        super().__init__(path, coding)
        self.unlucky = "000001" in path.parts and "canvas" in path.name


def test_an_encoder_that_fails_takes_nothing_else_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(video_writing, "Encoder", Failing)
    storage = VideoStorage(codec="ffv1")
    leaves = [SMALL, CANVAS, IMAGE]
    writer = storage.writer(tmp_path / "staging", leaves)
    rows = {leaf.path: noise(leaf, 12) for leaf in leaves}
    batch = {path: np.concatenate([array[:8], array[:8]]) for path, array in rows.items()}
    with pytest.raises(WriteError, match=r"000001/action/canvas\.mp4 cannot be coded: the encoder has had enough"):
        writer.append(batch, [Run(0, 0, 8, True), Run(1, 8, 16, True)])
    writer.append({path: array[8:] for path, array in rows.items()}, [Run(1, 0, 4)])
    writer.append({path: array[8:] for path, array in rows.items()}, [Run(0, 0, 4)])
    fill(writer, rows, 2)
    writer.end(0)
    writer.end(1)
    held = writer.segments()
    assert held[0] == Segment(0, 12, 11)
    assert held[2] == Segment(2, 12, 11)
    assert held[1].moments == 12
    assert 3 <= held[1].transitions <= 4
    cut = Segment(1, held[1].transitions + 1, held[1].transitions)
    writer.pack(tmp_path / "shard", [held[0], cut, held[2]])
    reader = storage.reader(tmp_path / "shard", leaves, Counts.of([held[0], cut, held[2]]))
    for leaf in leaves:
        skip = int(leaf.per == "transition")
        for i, count in enumerate((12, cut.moments, 12)):
            assert np.array_equal(reader.segment(i)[leaf.path][:], rows[leaf.path][skip:count])
    writer.close()


def test_a_full_disk_is_told_and_what_was_there_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = VideoStorage(codec="ffv1")
    writer = storage.writer(tmp_path / "staging", [SMALL])
    rows = noise(SMALL, 40)
    append = GrowingFile._append

    def limited(file: GrowingFile, data: memoryview) -> None:
        if file.size + len(data) > 20_000:
            append(file, data[: max(0, 20_000 - file.size)])
            raise OSError(errno.ENOSPC, "No space left on device")
        append(file, data)

    with monkeypatch.context() as full:
        full.setattr(GrowingFile, "_append", limited)
        with pytest.raises(WriteError, match=r"small\.mp4 cannot be coded: .*No space left on device"):
            fill(writer, {SMALL.path: rows}, end=False)
        writer.end(0)
    (segment,) = writer.segments()
    assert 10 < segment.moments < 40
    assert np.array_equal(writer.view(segment)[SMALL.path][:], rows[: segment.moments])
    fill(writer, {SMALL.path: rows}, 1)
    assert writer.segments()[1] == Segment(1, 40, -1)
    writer.close()


def test_a_disk_that_is_full_at_the_end_is_told_and_all_frames_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = VideoStorage(codec="ffv1").writer(tmp_path / "staging", [SMALL])
    rows = noise(SMALL, 9)
    fill(writer, {SMALL.path: rows}, end=False)

    def full(file: GrowingFile, data: memoryview) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as context:
        context.setattr(GrowingFile, "_append", full)
        with pytest.raises(WriteError, match="No space left"):
            writer.end(0)
    writer.end(0)
    (segment,) = writer.segments()
    assert segment.moments == 8
    assert np.array_equal(writer.view(segment)[SMALL.path][:], rows[:8])
    writer.close()


def test_a_folder_that_went_away_is_told(tmp_path: Path) -> None:
    writer = VideoStorage().writer(tmp_path / "staging", [SMALL])
    (tmp_path / "staging").write_text("a file where a folder was expected")
    with pytest.raises(WriteError, match=r"000000/observation/small\.mp4 cannot be coded"):
        fill(writer, {SMALL.path: numbered(SMALL, 3)})
    (tmp_path / "staging").unlink()
    fill(writer, {SMALL.path: numbered(SMALL, 3)}, 1)
    assert writer.segments() == [Segment(0, 0, -1), Segment(1, 3, -1)]
    writer.close()


# Forks.


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("codec", EVERY)
def test_a_forked_child_can_neither_write_nor_hang_nor_harm(tmp_path: Path, codec: str, threads: int) -> None:
    storage = VideoStorage(codec=codec, threads=threads)
    writer = storage.writer(tmp_path / "staging", [SMALL])
    rows = noise(SMALL, 20)
    fill(writer, {SMALL.path: rows[:8]}, end=False)
    inherited = [writer]

    def work_in_child() -> None:
        for call in (
            lambda: writer.append({SMALL.path: rows[:1]}, [Run(0, 0, 1)]),
            lambda: writer.end(0),
            writer.checkpoint,
            lambda: writer.pack(tmp_path / "shard", []),
            lambda: writer.forget([0]),
        ):
            with pytest.raises(ClosedError, match="belongs to the process that made it"):
                call()
        writer.close()
        writer.__dict__.clear()  # the last reference to its encoders
        inherited.clear()
        own = storage.writer(tmp_path / "child", [SMALL])
        fill(own, {SMALL.path: rows})
        assert own.segments() == [Segment(0, 20, -1)]
        own.close()

    in_child(work_in_child)
    writer.append({SMALL.path: rows[8:]}, [Run(0, 0, 12)])
    writer.end(0)
    found = writer.view(Segment(0, 20, -1))[SMALL.path][:]
    assert np.array_equal(found, rows) if storage.exact(SMALL) else len(found) == 20
    writer.close()


def test_a_decoder_is_not_shared_with_a_forked_child(tmp_path: Path) -> None:
    column = packed(tmp_path, VideoStorage(codec="ffv1"), SMALL, noise(SMALL, 40)).segment(0)[SMALL.path]
    rows = noise(SMALL, 40)
    assert np.array_equal(column[:7], rows[:7])

    def read_in_child() -> None:
        assert np.array_equal(column[7:], rows[7:])

    in_child(read_in_child)
    assert np.array_equal(column[7:20], rows[7:20])


def test_decoders_run_no_threads_that_a_child_would_miss(tmp_path: Path) -> None:
    if not Path("/proc/self/task").is_dir():
        pytest.skip("only Linux counts threads there")
    for codec in EVERY:
        storage = VideoStorage(codec=codec, threads=2)
        column = packed(tmp_path / codec, storage, SMALL, numbered(SMALL, 12)).segment(0)[SMALL.path]
        before = len(list(Path("/proc/self/task").iterdir()))
        column[:]
        assert len(list(Path("/proc/self/task").iterdir())) == before


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="the system does not list threads")
def test_an_encoder_takes_no_core_from_the_loop_by_running_in_real_time(tmp_path: Path) -> None:
    before = policies()
    with closing(VideoStorage(codec="av1").writer(tmp_path, [IMAGE])) as writer:
        fill(writer, {IMAGE.path: noise(IMAGE, 7)}, end=False)
        fresh = {thread: policy for thread, policy in policies().items() if before.get(thread) != policy}
        assert len(fresh) > 10
        assert not {os.SCHED_FIFO, os.SCHED_RR} & set(fresh.values())


def policies() -> dict[int, int]:
    """Return how each thread of this process is scheduled."""
    return {int(task.name): os.sched_getscheduler(int(task.name)) for task in Path("/proc/self/task").iterdir()}
