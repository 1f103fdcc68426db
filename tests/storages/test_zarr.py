"""ZarrStorage: what is kept how, the bytes on disk, damage, kills, and any splits against plain lists."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from zarr.codecs import Crc32cCodec, ZstdCodec
from zarr.storage import MemoryStore

from recorder import files
from recorder.errors import ClosedError, DamagedError, FormatError, LayoutError
from recorder.leaf import Leaf
from recorder.storages import zarr_columns, zarr_writer
from recorder.storages.base import Counts, Reader, Run, Segment, Writer, storage_from_json
from recorder.storages.zarr import ZarrStorage
from recorder.storages.zarr_array import DTYPES, Webp, Zstd, array_json, crc_bytes
from recorder.webp import SIDE, decode_webp
from recorder.webp_codec import WebpCodec, register

Array = NDArray[Any]
Episode = Mapping[str, Array]
"""The rows of one segment by leaf path; row 0 of a leaf of a transition means nothing."""

ROOT = Path(__file__).parents[2]

IMAGE = Leaf("observation/camera/front", (6, 5, 3), "uint8", "image")
RGBA = Leaf("observation/rgba", (5, 6, 4), "uint8", "image")
DEPTH = Leaf("observation/depth", (4, 3), "float32", "depth")
ACTION = Leaf("action", (), "int64", "action", per="transition")
LEAVES = [IMAGE, RGBA, DEPTH, ACTION]

SMALL = ZarrStorage(chunk_bytes=256, shard_bytes=1)
"""16 chunks a shard file; 4 rows of DEPTH a chunk, 32 of ACTION."""


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do without fsync: a kill does not need it, and it is most of the time of these tests."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def values(leaf: Leaf, count: int, seed: int = 0) -> Array:
    """Return rows of any bits: floats are inf and NaN among others."""
    random = np.random.default_rng([seed, *leaf.path.encode()])
    if leaf.dtype == "bool":
        return random.integers(0, 2, (count, *leaf.shape)).astype(bool)
    bits = random.integers(0, 256, count * leaf.nbytes, np.uint8)
    return bits.view(leaf.numpy_dtype).reshape(count, *leaf.shape)


def episode(count: int, seed: int = 0, leaves: Sequence[Leaf] = LEAVES) -> Episode:
    return {leaf.path: values(leaf, count, seed) for leaf in leaves}


def record(writer: Writer, segment: int, rows: Episode, step: int = 7, end: bool = True) -> Segment:
    """Append an episode `step` rows at a time."""
    count = len(next(iter(rows.values())))
    for start in range(0, count, step):
        batch = {path: array[start : start + step] for path, array in rows.items()}
        writer.append(batch, [Run(segment, 0, min(step, count - start), start == 0)])
    if end:
        writer.end(segment)
    return Segment(segment, count, max(count - 1, 0))


def expected(leaf: Leaf, rows: Episode, segment: Segment) -> Array:
    if leaf.per == "transition":
        return rows[leaf.path][1 : segment.transitions + 1]
    return rows[leaf.path][: segment.moments]


def equal(found: Array, wanted: Array) -> bool:
    """Return whether two arrays are the same bit for bit."""
    return (found.dtype, found.shape, found.tobytes()) == (wanted.dtype, wanted.shape, wanted.tobytes())


def packed(
    folder: Path,
    episodes: Sequence[Episode],
    storage: ZarrStorage = SMALL,
    leaves: Sequence[Leaf] = LEAVES,
) -> Reader:
    """Record and pack episodes; return the reader of the shard in `folder`."""
    writer = storage.writer(folder.with_name("staging"), leaves)
    segments = [record(writer, i, rows) for i, rows in enumerate(episodes)]
    folder.mkdir()
    assert writer.pack(folder, segments) == []
    return storage.reader(folder, leaves, Counts.of(segments))


def assert_holds(reader: Reader, episodes: Sequence[Episode], segments: Sequence[Segment]) -> None:
    assert reader.count() == {path: reader.counts.total(leaf.per) for path, leaf in reader.leaves.items()}
    for leaf in reader.leaves.values():
        parts = [expected(leaf, *pair) for pair in zip(episodes, segments, strict=True)]
        assert equal(reader.whole(leaf.path)[:], np.concatenate(parts))
        for i, part in enumerate(parts):
            assert equal(reader.segment(i)[leaf.path][:], part)


def shard_files(folder: Path, leaf: Leaf) -> list[Path]:
    return sorted((folder / f"{leaf.path}.zarr").glob("c.*"), key=lambda path: int(path.name.split(".")[1]))


# What is kept how


def test_the_options_round_trip_through_json() -> None:
    storage = ZarrStorage(codec="webp", quality=90, method=4, level=9, chunk_bytes=1 << 20, shard_bytes=1 << 22)
    assert storage_from_json(json.loads(json.dumps(storage.to_json()))) == storage


def test_pictures_are_webp_and_everything_else_is_zstd_unless_a_codec_is_named() -> None:
    grey = Leaf("grey", (8, 8), "uint8", "image")
    stack = Leaf("stack", (8, 8, 3), "uint8", "stack")
    assert [type(ZarrStorage().coding(leaf)) for leaf in (IMAGE, RGBA, grey, stack)] == [
        Webp,
        Webp,
        Zstd,
        Zstd,
    ]
    assert isinstance(ZarrStorage(codec="zstd").coding(IMAGE), Zstd)
    assert isinstance(ZarrStorage(codec="webp").coding(stack), Webp)


def test_only_images_are_ever_lossy_and_not_those_that_say_lossless() -> None:
    said = Leaf("said", (8, 8, 3), "uint8", "image", metadata={"lossless": True})
    mask = Leaf("mask", (8, 8, 3), "uint8", "mask")
    lossy = ZarrStorage(quality=80)
    assert [lossy.exact(leaf) for leaf in (IMAGE, RGBA, said, mask, DEPTH)] == [
        False,
        False,
        True,
        True,
        True,
    ]
    assert ZarrStorage().exact(IMAGE)


@pytest.mark.parametrize(
    ("storage", "leaf", "words"),
    [
        (ZarrStorage(), Leaf("a", (), "text"), "is text.*HDF5Storage"),
        (ZarrStorage(), Leaf("a", (3,), "float32", ragged=True), "is ragged.*HDF5Storage"),
        (ZarrStorage(), Leaf("a", (3,), "float32", sparse=True), "is sparse.*HDF5Storage"),
        (ZarrStorage(), Leaf("a", (0, 3), "float32"), "no chunks.*HDF5Storage"),
        (ZarrStorage(codec="webp"), Leaf("a", (8, 8), "uint8", "image"), r"uint8 \(8, 8\).*codec='zstd'"),
        (ZarrStorage(codec="webp"), Leaf("a", (8, 8, 1), "uint8", "image"), "codec='zstd'"),
        (ZarrStorage(codec="webp"), Leaf("a", (8, 8, 3), "uint16", "depth"), "uint16.*codec='zstd'"),
        (ZarrStorage(codec="webp"), Leaf("a", (1, SIDE + 1, 3), "uint8", "image"), f"up to {SIDE}"),
        (ZarrStorage(codec="webp", quality=80), Leaf("a", (8, 8, 3), "uint8", "mask"), "kind 'mask'.*change"),
        (ZarrStorage(codec="webp", quality=80), Leaf("a", (8, 8, 3), "uint8", "stack"), "kind 'stack'"),
    ],
)
def test_a_leaf_that_cannot_be_kept_as_promised_is_refused(storage: ZarrStorage, leaf: Leaf, words: str) -> None:
    with pytest.raises(LayoutError, match=words):
        storage.check([IMAGE, leaf])


@pytest.mark.parametrize(
    "options",
    [
        {"codec": "png"},
        {"codec": "zstd", "quality": 80},
        {"quality": 101},
        {"quality": "high"},
        {"method": 7},
        {"level": 0},
        {"chunk_bytes": 0},
        {"shard_bytes": None},
    ],
    ids=str,
)
def test_an_option_out_of_range_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(LayoutError, match="ZarrStorage"):
        ZarrStorage(**options).check([])


def test_every_numeric_dtype_passes_the_check() -> None:
    ZarrStorage().check([Leaf(f"x/{dtype}", (3, 2), dtype) for dtype in sorted(DTYPES)])


def test_a_codec_that_changes_values_is_found_by_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Zstd, "decode", lambda self, data, out: out.fill(0))
    with pytest.raises(LayoutError, match="does not give back"):
        ZarrStorage().check([DEPTH])


# Rows come back


@pytest.mark.parametrize(
    "leaf",
    [
        Leaf("x", (1, 1, 3), "uint8", "image"),
        Leaf("x", (1, 9, 4), "uint8", "image"),
        Leaf("x", (97, 95, 3), "uint8", "image"),
        Leaf("x", (97, 95), "uint8", "image"),
        Leaf("x", (3, 4, 4), "uint8", "stack"),
        Leaf("x", (2, 64, 64), "uint8", "stack"),
        Leaf("x", (300, 200), "float32", "depth"),
        Leaf("x", (7, 5), "bool", "mask"),
        Leaf("x", (48, 64), "uint16", "depth"),
        Leaf("x", (7,), "int64", "state"),
        Leaf("x", (), "float16", "state"),
        Leaf("x", (2,), "complex128", "other"),
    ],
    ids=lambda leaf: f"{leaf.kind}-{leaf.dtype}{leaf.shape}",
)
def test_rows_come_back_bit_for_bit(tmp_path: Path, leaf: Leaf) -> None:
    episodes = [episode(count, count, [leaf]) for count in (5, 1, 40)]
    storage = ZarrStorage()
    storage.check([leaf])
    reader = packed(tmp_path / "shard", episodes, storage, [leaf])
    assert_holds(reader, episodes, [Segment(i, len(rows["x"]), 0) for i, rows in enumerate(episodes)])


def test_lossy_pictures_come_back_alike(tmp_path: Path) -> None:
    leaf = Leaf("x", (64, 64, 3), "uint8", "image")
    y, x = np.mgrid[:64, :64]
    frames = np.stack([np.stack([x * 4, y * 4, x + y + i], -1).astype(np.uint8) for i in range(5)])
    found = packed(tmp_path / "shard", [{"x": frames}], ZarrStorage(quality=90), [leaf]).whole("x")[:]
    assert 0 < np.abs(found.astype(int) - frames).mean() < 4


def test_a_column_is_read_by_rows_slices_lists_and_masks(tmp_path: Path) -> None:
    rows = episode(100)
    reader = packed(tmp_path / "shard", [rows])
    for leaf in LEAVES:
        column, wanted = reader.whole(leaf.path), expected(leaf, rows, Segment(0, 100, 99))
        assert column.shape == wanted.shape
        for index in (0, -1, 57, slice(3, 90), slice(90, 3), slice(None, None, 7), [5, 2, 2, 98], []):
            assert equal(np.asarray(column[index]), np.asarray(wanted[index]))
        mask = np.arange(len(wanted)) % 3 == 0
        assert equal(column[mask], wanted[mask])


def test_large_slices_are_decoded_on_several_cores_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zarr_columns, "PARALLEL_BYTES", 1)
    monkeypatch.setattr(zarr_columns, "cores", lambda: 3)
    rows = episode(50)
    reader = packed(tmp_path / "shard", [rows])
    assert_holds(reader, [rows], [Segment(0, 50, 49)])


def test_rows_are_copied_before_append_returns(tmp_path: Path) -> None:
    writer = SMALL.writer(tmp_path / "staging", LEAVES)
    room = episode(1)
    for i in range(40):
        for array in room.values():
            array.view(np.uint8)[...] = i
        writer.append(room, [Run(0, 0, 1, i == 0)])
    view = writer.view(Segment(0, 40, 39))
    assert view[IMAGE.path][:][:, 0, 0, 0].tolist() == list(range(40))
    assert view[DEPTH.path][:].view(np.uint8)[:, 0, 0].tolist() == list(range(40))


def test_black_frames_are_stored(tmp_path: Path) -> None:
    black = {leaf.path: np.zeros((40, *leaf.shape), leaf.dtype) for leaf in LEAVES}
    reader = packed(tmp_path / "shard", [black])
    assert_holds(reader, [black], [Segment(0, 40, 39)])
    for leaf in LEAVES:
        for file in shard_files(tmp_path / "shard", leaf)[:-1]:
            assert (np.frombuffer(file.read_bytes()[-260:-4], "<u8") != 2**64 - 1).all()


def test_many_runs_in_one_batch_go_to_their_segments(tmp_path: Path) -> None:
    rows = episode(60)
    writer = SMALL.writer(tmp_path / "staging", LEAVES)
    writer.append(rows, [Run(4, 0, 20, True), Run(9, 20, 21, True), Run(2, 25, 60, False)])
    assert writer.segments() == [Segment(2, 35, 35), Segment(4, 20, 19), Segment(9, 1, 0)]
    assert equal(writer.view(Segment(9, 1, 0))[IMAGE.path][:], rows[IMAGE.path][20:21])
    assert equal(writer.view(Segment(2, 35, 35))["action"][:], rows["action"][25:60])


def test_a_class_without_leaves_has_no_count(tmp_path: Path) -> None:
    writer = SMALL.writer(tmp_path / "a", [IMAGE])
    writer.append(episode(3), [Run(0, 0, 3, True)])
    assert writer.segments() == [Segment(0, 3, -1)]
    writer = SMALL.writer(tmp_path / "b", [ACTION])
    writer.append(episode(3), [Run(0, 0, 3, True)])
    assert writer.segments() == [Segment(0, -1, 2)]


def test_leaves_of_unequal_length_count_as_the_shorter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = SMALL.writer(tmp_path, LEAVES)
    record(writer, 0, episode(5), end=False)
    monkeypatch.setattr(Zstd, "encode", lambda self, rows: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        writer.append(episode(9), [Run(0, 0, 9)])
    monkeypatch.undo()
    [segment] = writer.segments()
    assert 5 <= segment.moments < 14
    record(writer, 1, episode(3, 1))
    (tmp_path / "shard").mkdir()
    writer.pack(tmp_path / "shard", [segment, Segment(1, 3, 2)])
    reader = SMALL.reader(tmp_path / "shard", LEAVES, Counts.of([segment, Segment(1, 3, 2)]))
    joined = {path: np.concatenate([episode(5)[path], episode(9)[path]]) for path in episode(1)}
    assert_holds(reader, [joined, episode(3, 1)], [segment, Segment(1, 3, 2)])


# Packing


def test_segments_are_packed_in_any_order_and_cut(tmp_path: Path) -> None:
    episodes = [episode(count, count) for count in (100, 3, 32, 130)]
    writer = SMALL.writer(tmp_path / "staging", LEAVES)
    for i, rows in enumerate(episodes):
        record(writer, i, rows)
    segments = [Segment(3, 129, 128), Segment(0, 33, 32), Segment(1, 1, 0), Segment(2, 32, 31)]
    for name in ("one", "two"):  # nothing is consumed
        (tmp_path / name).mkdir()
        writer.pack(tmp_path / name, segments)
        reader = SMALL.reader(tmp_path / name, LEAVES, Counts.of(segments))
        assert_holds(reader, [episodes[segment.number] for segment in segments], segments)


def test_whole_shard_files_are_linked_where_they_fit(tmp_path: Path) -> None:
    writer = SMALL.writer(tmp_path / "staging", [IMAGE])
    for i in range(2):
        record(writer, i, episode(40, i, [IMAGE]))
    (tmp_path / "shard").mkdir()
    writer.pack(tmp_path / "shard", [Segment(0, 32, 0), Segment(1, 40, 0)])
    links = [file.stat().st_nlink for file in shard_files(tmp_path / "shard", IMAGE)]
    assert links == [2, 2, 2, 2, 1]


def test_files_are_copied_where_there_are_no_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    rows = episode(40)
    assert_holds(packed(tmp_path / "shard", [rows]), [rows], [Segment(0, 40, 39)])
    assert {file.stat().st_nlink for file in shard_files(tmp_path / "shard", IMAGE)} == {1}


def test_no_chunk_is_coded_twice_where_it_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = SMALL.writer(tmp_path / "staging", [IMAGE, DEPTH])
    rows = [episode(24, i, [IMAGE, DEPTH]) for i in range(3)]
    segments = [record(writer, i, item) for i, item in enumerate(rows)]
    monkeypatch.setattr(Webp, "encode", lambda *_: pytest.fail("coded twice"))
    monkeypatch.setattr(Zstd, "encode", lambda *_: pytest.fail("coded twice"))
    (tmp_path / "shard").mkdir()
    writer.pack(tmp_path / "shard", segments)
    reader = SMALL.reader(tmp_path / "shard", [IMAGE, DEPTH], Counts.of(segments))
    assert_holds(reader, rows, segments)


def test_no_segments_make_empty_arrays(tmp_path: Path) -> None:
    writer = SMALL.writer(tmp_path / "staging", LEAVES)
    (tmp_path / "shard").mkdir()
    writer.pack(tmp_path / "shard", [])
    reader = SMALL.reader(tmp_path / "shard", LEAVES, Counts.of([]))
    assert set(reader.count().values()) == {0}
    assert reader.whole(IMAGE.path)[:].shape == (0, 6, 5, 3)


def test_a_segment_without_transitions_is_packed(tmp_path: Path) -> None:
    episodes = [episode(1), episode(1, 1)]
    reader = packed(tmp_path / "shard", episodes)
    assert_holds(reader, episodes, [Segment(0, 1, 0), Segment(1, 1, 0)])


# The files


def test_a_shard_has_few_flat_files(tmp_path: Path) -> None:
    packed(tmp_path / "shard", [episode(200)], ZarrStorage())
    names = sorted(str(path.relative_to(tmp_path / "shard")) for path in files.files_below(tmp_path / "shard"))
    assert names == [
        "action.zarr/c.0",
        "action.zarr/zarr.json",
        "observation/camera/front.zarr/c.0.0.0.0",
        "observation/camera/front.zarr/zarr.json",
        "observation/depth.zarr/c.0.0.0",
        "observation/depth.zarr/zarr.json",
        "observation/rgba.zarr/c.0.0.0.0",
        "observation/rgba.zarr/zarr.json",
    ]


def test_an_array_of_one_file_has_no_index_entry_that_it_does_not_need(tmp_path: Path) -> None:
    rows = episode(3)
    reader = packed(tmp_path / "shard", [rows], ZarrStorage())
    coded = reader.encoded(IMAGE.path, slice(None))
    assert coded is not None
    [file] = shard_files(tmp_path / "shard", IMAGE)
    assert file.stat().st_size == sum(len(data) + 4 for data in coded) + 3 * 16 + 4


@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize("shape", [(), (4, 3)])
def test_zarr_json_is_what_zarr_itself_would_write(dtype: str, shape: tuple[int, ...]) -> None:
    leaf = Leaf("a/b", shape, dtype, "state", metadata={"unit": "m"})
    grid = ZarrStorage().grid(leaf)
    store = MemoryStore()
    zarr.create_array(
        store,
        shape=(77, *shape),
        dtype=dtype,
        chunks=(grid.chunk_rows, *shape),
        shards=(grid.shard_rows, *shape),
        compressors=[ZstdCodec(level=3), Crc32cCodec()],
        chunk_key_encoding={"name": "default", "separator": "."},
        fill_value=0,
        attributes={"path": "a/b", "kind": "state", "metadata": {"unit": "m"}},
    )
    assert json.loads(array_json(grid, 77)) == json.loads(store._store_dict["zarr.json"].to_bytes())


@pytest.mark.parametrize("leaf", [IMAGE, RGBA])
@pytest.mark.parametrize("quality", [None, 80])
def test_zarr_json_of_pictures_is_what_zarr_itself_would_write(leaf: Leaf, quality: float | None) -> None:
    grid = ZarrStorage(quality=quality).grid(leaf)
    store = MemoryStore()
    lossy = {"lossless": True} if quality is None else {"lossless": False, "level": 80.0}
    zarr.create_array(
        store,
        shape=(77, *leaf.shape),
        dtype="uint8",
        chunks=(1, *leaf.shape),
        shards=(grid.shard_rows, *leaf.shape),
        serializer=WebpCodec(**lossy, method=0, hasalpha=True if leaf is RGBA else None),
        compressors=[Crc32cCodec()],
        chunk_key_encoding={"name": "default", "separator": "."},
        fill_value=0,
        attributes={"path": leaf.path, "kind": "image", "metadata": {}},
    )
    assert json.loads(array_json(grid, 77)) == json.loads(store._store_dict["zarr.json"].to_bytes())


def test_zarr_reads_all_rows_exactly(tmp_path: Path) -> None:
    register()
    episodes = [episode(count, count) for count in (50, 3, 77)]
    segments = [Segment(i, n, n - 1) for i, n in enumerate((50, 3, 77))]
    packed(tmp_path / "shard", episodes)
    for leaf in LEAVES:
        array = zarr.open_array(tmp_path / "shard" / f"{leaf.path}.zarr", mode="r")
        wanted = np.concatenate([expected(leaf, *pair) for pair in zip(episodes, segments, strict=True)])
        assert equal(np.asarray(array[:]), wanted)
        assert equal(np.asarray(array[13:14]), wanted[13:14])
        assert array.attrs.asdict() == {"path": leaf.path, "kind": leaf.kind, "metadata": {}}


def test_zarr_alone_reads_zstd_arrays_in_a_fresh_process(tmp_path: Path) -> None:
    leaf = Leaf("x", (30, 20), "uint16", "depth")
    rows = episode(50, 0, [leaf])
    packed(tmp_path / "shard", [rows], ZarrStorage(), [leaf])
    code = f"""
    import sys, zarr
    array = zarr.open_array({str(tmp_path / "shard" / "x.zarr")!r}, mode="r")
    assert not any(name.startswith("recorder") for name in sys.modules)
    print(array[:].astype("int64").sum())
    """
    assert int(run_python(code)) == rows["x"].astype("int64").sum()


def test_zarr_reads_pictures_in_a_fresh_process_once_the_codec_is_registered(tmp_path: Path) -> None:
    rows = episode(50)
    packed(tmp_path / "shard", [rows], ZarrStorage())
    code = f"""
    import zarr
    from recorder.webp_codec import register
    register()
    array = zarr.open_array({str(tmp_path / "shard" / f"{IMAGE.path}.zarr")!r}, mode="r")
    print(array[:].astype("int64").sum())
    """
    assert int(run_python(code)) == rows[IMAGE.path].astype("int64").sum()


def run_python(code: str) -> str:
    process = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


def test_recording_and_reading_never_import_zarr(tmp_path: Path) -> None:
    code = f"""
    import sys
    from pathlib import Path
    import numpy as np
    from recorder.leaf import Leaf
    from recorder.storages.base import Counts, Run, Segment
    from recorder.storages.zarr import ZarrStorage
    storage, leaf, folder = ZarrStorage(), Leaf("x", (8, 8, 3), "uint8", "image"), Path({str(tmp_path)!r})
    storage.check([leaf])
    writer = storage.writer(folder / "staging", [leaf])
    writer.append({{"x": np.ones((3, 8, 8, 3), np.uint8)}}, [Run(0, 0, 3, True)])
    writer.checkpoint()
    writer.pack(folder, [Segment(0, 3, 2)])
    assert storage.reader(folder, [leaf], Counts.of([Segment(0, 3, 2)])).whole("x")[:].all()
    assert "zarr" not in sys.modules
    """
    run_python(code)


def test_coded_pictures_are_handed_out_as_they_are(tmp_path: Path) -> None:
    rows = episode(40)
    reader = packed(tmp_path / "shard", [rows])
    for index in (slice(3, 20), slice(None), slice(30, 2, -3), slice(5, 5)):
        coded = reader.encoded(IMAGE.path, index)
        assert coded is not None
        found = [decode_webp(data, IMAGE.shape) for data in coded]
        assert [frame.tobytes() for frame in found] == [frame.tobytes() for frame in rows[IMAGE.path][index]]
    assert reader.encoded(DEPTH.path, slice(0, 3)) is None


def test_a_reader_needs_no_options_of_the_writer(tmp_path: Path) -> None:
    rows = episode(100)
    packed(tmp_path / "shard", [rows])
    reader = ZarrStorage(codec="zstd").reader(tmp_path / "shard", LEAVES, Counts.of([Segment(0, 100, 99)]))
    assert_holds(reader, [rows], [Segment(0, 100, 99)])


# Damage


@pytest.mark.parametrize("leaf", [IMAGE, DEPTH], ids=["webp", "zstd"])
def test_every_flipped_bit_of_a_shard_file_is_found(tmp_path: Path, leaf: Leaf) -> None:
    reader = packed(tmp_path / "shard", [episode(2, 0, [leaf])], SMALL, [leaf])
    [file] = shard_files(tmp_path / "shard", leaf)
    with file.open("r+b", buffering=0) as opened:
        for place, byte in enumerate(file.read_bytes()):
            for damaged in [byte ^ 1 << bit for bit in range(8)]:
                write_byte(opened, place, damaged)
                reader = SMALL.reader(tmp_path / "shard", [leaf], reader.counts)
                with pytest.raises(DamagedError, match=r"c\.0\.0"):
                    reader.whole(leaf.path)[:]
            write_byte(opened, place, byte)
    assert reader.whole(leaf.path)[:].any()


def write_byte(file: Any, place: int, byte: int) -> None:
    file.seek(place)
    file.write(bytes([byte]))


def test_damage_is_named_with_file_and_row_and_the_other_rows_still_read(tmp_path: Path) -> None:
    rows = episode(40)
    reader = packed(tmp_path / "shard", [rows])
    file = shard_files(tmp_path / "shard", IMAGE)[1]
    data = bytearray(file.read_bytes())
    data[int(np.frombuffer(bytes(data[-260:-4]), "<u8")[6])] ^= 1  # the first byte of the fourth chunk
    file.write_bytes(data)
    with pytest.raises(DamagedError, match=r"c\.1\.0\.0\.0, row 19 of 'observation/camera/front'"):
        reader.whole(IMAGE.path)[:]
    assert equal(reader.whole(IMAGE.path)[:19], rows[IMAGE.path][:19])
    assert equal(reader.whole(IMAGE.path)[20:], rows[IMAGE.path][20:])


@pytest.mark.parametrize("size", [0, 3, 200, -1, -300])
def test_a_shard_file_that_was_cut_is_found(tmp_path: Path, size: int) -> None:
    reader = packed(tmp_path / "shard", [episode(40)])
    file = shard_files(tmp_path / "shard", IMAGE)[1]
    os.truncate(file, size if size >= 0 else file.stat().st_size + size)
    for read in (reader.count, lambda: reader.whole(IMAGE.path)[20]):
        with pytest.raises(DamagedError, match=r"c\.1\.0\.0\.0"):
            read()


def test_a_missing_shard_file_is_found(tmp_path: Path) -> None:
    reader = packed(tmp_path / "shard", [episode(40)])
    shard_files(tmp_path / "shard", DEPTH)[0].unlink()
    for read in (reader.count, lambda: reader.whole(DEPTH.path)[0]):
        with pytest.raises(DamagedError, match=r"c\.0\.0\.0 is missing"):
            read()


def test_a_missing_array_is_found(tmp_path: Path) -> None:
    reader = packed(tmp_path / "shard", [episode(4)])
    (tmp_path / "shard" / "action.zarr" / "zarr.json").unlink()
    for read in (reader.count, lambda: reader.whole("action")[0]):
        with pytest.raises(DamagedError, match=r"zarr\.json is missing"):
            read()


def test_a_missing_chunk_is_found(tmp_path: Path) -> None:
    reader = packed(tmp_path / "shard", [episode(40)])
    file = shard_files(tmp_path / "shard", IMAGE)[0]
    edit_index(file, 5, (2**64 - 1, 2**64 - 1), 16)
    for read in (reader.count, lambda: reader.whole(IMAGE.path)[5]):
        with pytest.raises(DamagedError, match="lacks chunk 5"):
            read()
    assert reader.whole(IMAGE.path)[4].any()


def edit_index(file: Path, chunk: int, entry: tuple[int, int], chunks: int) -> None:
    """Change an entry of the index of a shard file, with a checksum that fits."""
    data = file.read_bytes()
    index = np.frombuffer(data[-16 * chunks - 4 : -4], "<u8").copy().reshape(-1, 2)
    index[chunk] = entry
    file.write_bytes(data[: -16 * chunks - 4] + index.tobytes() + crc_bytes(index.tobytes()))


@pytest.mark.parametrize("entry", [(0, 2**40), (2**40, 10), (2**63, 2**63), (2**64 - 1, 1), (5, 2**64 - 1)])
def test_an_index_that_points_outside_of_its_file_is_refused(tmp_path: Path, entry: tuple[int, int]) -> None:
    reader = packed(tmp_path / "shard", [episode(10)])
    edit_index(shard_files(tmp_path / "shard", IMAGE)[0], 3, entry, 10)
    for read in (reader.count, lambda: reader.whole(IMAGE.path)[3]):
        with pytest.raises(FormatError, match="beyond"):
            read()


def edited(folder: Path, leaf: Leaf, edit: Any) -> None:
    path = folder / f"{leaf.path}.zarr" / "zarr.json"
    data = json.loads(path.read_bytes())
    edit(data)
    path.write_text(json.dumps(data))


def sharding(data: Any) -> Any:
    return data["codecs"][0]["configuration"]


@pytest.mark.parametrize(
    "edit",
    [
        lambda data: data.update(zarr_format=2),
        lambda data: data.update(data_type="float64"),
        lambda data: data.update(shape=[-3, 4, 3]),
        lambda data: data.update(shape=[40, 4, 1 << 40]),
        lambda data: data.update(shape=["40", 4, 3]),
        lambda data: data.update(codecs=[]),
        lambda data: data["chunk_grid"]["configuration"].update(chunk_shape=[65, 4, 3]),
        lambda data: data["chunk_grid"]["configuration"].update(chunk_shape=[0, 4, 3]),
        lambda data: data["chunk_key_encoding"].update(name="v2"),
        lambda data: sharding(data).update(chunk_shape=[0, 4, 3]),
        lambda data: sharding(data).update(chunk_shape=[1 << 40, 4, 3]),
        lambda data: sharding(data).update(index_location="start"),
        lambda data: sharding(data)["codecs"].pop(),
        lambda data: sharding(data)["codecs"][0]["configuration"].update(endian="big"),
        lambda data: sharding(data).update(codecs=[{"name": "imagecodecs_webp"}, {"name": "crc32c"}]),
    ],
)
def test_a_zarr_json_that_is_not_ours_is_refused(tmp_path: Path, edit: Any) -> None:
    reader = packed(tmp_path / "shard", [episode(40)])
    edited(tmp_path / "shard", DEPTH, edit)
    for read in (reader.count, lambda: reader.whole(DEPTH.path)[0]):
        with pytest.raises(FormatError, match=r"zarr\.json"):
            read()


@pytest.mark.parametrize("text", [b"", b"{", b"[" * 100_000, b"[]", b"\xff\xfe", b"null"])
def test_a_zarr_json_that_is_no_json_is_refused(tmp_path: Path, text: bytes) -> None:
    reader = packed(tmp_path / "shard", [episode(4)])
    (tmp_path / "shard" / f"{DEPTH.path}.zarr" / "zarr.json").write_bytes(text)
    with pytest.raises(FormatError, match=r"zarr\.json"):
        reader.count()


def test_an_enormous_zarr_json_is_refused_unread(tmp_path: Path) -> None:
    reader = packed(tmp_path / "shard", [episode(4)])
    os.truncate(tmp_path / "shard" / f"{DEPTH.path}.zarr" / "zarr.json", 1 << 40)
    with pytest.raises(FormatError, match="refused"):
        reader.count()


def test_another_number_of_rows_is_counted_and_not_read(tmp_path: Path) -> None:
    reader = packed(tmp_path / "shard", [episode(40)])
    edited(tmp_path / "shard", DEPTH, lambda data: data.update(shape=[39, 4, 3]))
    assert reader.count()[DEPTH.path] == 39
    with pytest.raises(DamagedError, match="has 39 rows, 40 were recorded"):
        reader.whole(DEPTH.path)[0]


def test_more_rows_than_chunks_are_not_believed(tmp_path: Path) -> None:
    reader = packed(tmp_path / "shard", [episode(40)])
    edited(tmp_path / "shard", DEPTH, lambda data: data.update(shape=[10**15, 4, 3]))
    with pytest.raises(DamagedError, match=r"c\.1\.0\.0 is missing"):
        reader.count()


def test_a_chunk_that_unpacks_to_more_than_its_rows_is_refused(tmp_path: Path) -> None:
    leaf = Leaf("x", (100, 100), "uint8", "mask")
    storage = ZarrStorage(chunk_bytes=1)
    reader = packed(tmp_path / "shard", [{"x": np.zeros((3, 100, 100), np.uint8)}], storage, [leaf])
    [file] = shard_files(tmp_path / "shard", leaf)
    bomb = ZarrStorage().grid(Leaf("x", (1 << 24,), "uint8")).encode(np.zeros((1, 1 << 24), np.uint8))
    index = np.array([[0, len(bomb)]] * 3, "<u8").tobytes()
    file.write_bytes(bomb + index + crc_bytes(index))
    with pytest.raises(DamagedError, match="cannot be decoded into"):
        reader.whole("x")[0]


@given(st.data())
def test_damaged_zarr_jsons_raise_errors_of_this_package_or_change_nothing(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("damaged") / "shard"
    rows = episode(10, 0, [DEPTH])
    reader = packed(folder, [rows], SMALL, [DEPTH])
    path = folder / f"{DEPTH.path}.zarr" / "zarr.json"
    text = bytearray(path.read_bytes())
    for place, value in data.draw(st.lists(st.tuples(st.integers(0, len(text) - 1), st.integers(32, 126)), min_size=1)):
        text[place] = value
    path.write_bytes(text)
    try:
        found = reader.whole(DEPTH.path)[:]
    except (FormatError, DamagedError):
        return
    assert equal(found, rows[DEPTH.path])


# Processes


def test_a_reader_and_its_columns_are_pickled_and_still_read(tmp_path: Path) -> None:
    rows = episode(40)
    reader = packed(tmp_path / "shard", [rows])
    column = reader.segment(0)[IMAGE.path]
    column[3]
    again = pickle.loads(pickle.dumps(reader))
    assert equal(again.whole(DEPTH.path)[:], rows[DEPTH.path])
    assert equal(pickle.loads(pickle.dumps(column))[:], rows[IMAGE.path])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_forked_child_reads_with_threads_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zarr_columns, "PARALLEL_BYTES", 1)
    monkeypatch.setattr(zarr_columns, "cores", lambda: 2)
    rows = episode(40)
    reader = packed(tmp_path / "shard", [rows])
    column = reader.whole(IMAGE.path)
    column[:]
    child = os.fork()
    if child == 0:
        os._exit(0 if equal(column[:], rows[IMAGE.path]) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert equal(column[:], rows[IMAGE.path])


def test_a_reader_keeps_no_file_open(tmp_path: Path) -> None:
    reader = packed(tmp_path / "shard", [episode(40)])
    descriptors = Path("/proc/self/fd")
    before = len(list(descriptors.glob("*")))
    for leaf in LEAVES:
        reader.whole(leaf.path)[:]
    assert len(list(descriptors.glob("*"))) == before
    reader.close()
    reader.close()


def test_rows_are_read_while_the_interpreter_exits(tmp_path: Path) -> None:
    leaf = Leaf("x", (500, 500, 3), "uint8", "image")
    packed(tmp_path / "shard", [{"x": np.ones((8, 500, 500, 3), np.uint8)}], ZarrStorage(), [leaf])
    code = f"""
    import atexit
    from pathlib import Path
    from recorder.leaf import Leaf
    from recorder.storages import zarr_columns
    from recorder.storages.base import Counts, Segment
    from recorder.storages.zarr import ZarrStorage
    zarr_columns.cores = lambda: 2
    leaf = Leaf("x", (500, 500, 3), "uint8", "image")
    reader = ZarrStorage().reader(Path({str(tmp_path / "shard")!r}), [leaf], Counts.of([Segment(0, 8, 7)]))
    atexit.register(lambda: print(reader.whole("x")[:].all()))
    """
    assert run_python(code).strip() == "True"


# Staging and kills


def test_nothing_is_on_disk_until_it_must_be(tmp_path: Path) -> None:
    writer = SMALL.writer(tmp_path / "staging", LEAVES)
    record(writer, 0, episode(10))
    assert not (tmp_path / "staging").exists()
    writer.forget([0])
    assert not (tmp_path / "staging").exists()


def test_memory_holds_no_more_than_the_chunks_of_a_shard_file(tmp_path: Path) -> None:
    writer = SMALL.writer(tmp_path / "staging", [IMAGE])
    most = 0
    for i in range(30):
        record(writer, 0, episode(10, i, [IMAGE]), end=False)
        most = max(most, writer.nbytes)
    assert 0 < most < 16 * 2 * IMAGE.nbytes
    assert len(shard_files(tmp_path / "staging" / "000000", IMAGE)) == 18


def recovered(staging: Path, leaves: Sequence[Leaf] = LEAVES) -> Writer:
    return SMALL.recover(staging, leaves)


def assert_recovers(staging: Path, episodes: Mapping[int, Episode], segments: Sequence[Segment]) -> None:
    """Recover without touching what is there, and compare all rows."""
    writer = recovered(staging)
    assert writer.segments() == segments
    for segment in segments:
        view = writer.view(segment)
        for leaf in LEAVES:
            assert equal(view[leaf.path][:], expected(leaf, episodes[segment.number], segment))


def test_what_a_checkpoint_saw_is_recovered_bit_for_bit(tmp_path: Path) -> None:
    staging = tmp_path / "staging"
    writer = SMALL.writer(staging, LEAVES)
    episodes = {3: episode(90, 3), 5: episode(2, 5), 8: episode(33, 8)}
    segments = [record(writer, number, rows) for number, rows in episodes.items()]
    writer.checkpoint()
    record(writer, 9, episode(10), end=False)
    assert_recovers(staging, episodes, segments)


@pytest.mark.parametrize("step", [1, 3, 16, 50])
def test_many_checkpoints_of_growing_segments_are_recovered(tmp_path: Path, step: int) -> None:
    staging = tmp_path / "staging"
    writer = SMALL.writer(staging, LEAVES)
    episodes = {number: episode(100, number) for number in (0, 1)}
    for start in range(0, 100, step):
        for number, rows in episodes.items():
            stop = min(100, start + step)
            writer.append(rows, [Run(number, start, stop, start == 0)])
        writer.checkpoint()
        if start // step % 5 == 0:
            assert_recovers(staging, episodes, [Segment(number, stop, stop - 1) for number in episodes])


def test_checkpoint_files_go_when_a_shard_file_holds_their_rows(tmp_path: Path) -> None:
    staging = tmp_path / "staging"
    writer = SMALL.writer(staging, [IMAGE])
    rows = episode(64, 0, [IMAGE])
    for start in range(0, 64, 8):
        writer.append(rows, [Run(0, start, start + 8, start == 0)])
        writer.checkpoint()
        assert len(list(staging.glob("*.part"))) == (start // 8 + 1) % 2


def test_many_small_checkpoint_files_become_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zarr_writer, "MOST_PARTS", 4)
    staging = tmp_path / "staging"
    writer = SMALL.writer(staging, LEAVES)
    rows = episode(15)
    for start in range(15):
        writer.append(rows, [Run(0, start, start + 1, start == 0)])
        writer.checkpoint()
        assert len(list(staging.glob("*.part"))) <= 4
        assert_recovers(staging, {0: rows}, [Segment(0, start + 1, start)])


def test_a_checkpoint_of_nothing_new_writes_nothing(tmp_path: Path) -> None:
    writer = SMALL.writer(tmp_path / "staging", LEAVES)
    writer.checkpoint()
    assert not (tmp_path / "staging").exists()
    record(writer, 0, episode(10))
    writer.checkpoint()
    before = {path: path.stat().st_mtime_ns for path in files.files_below(tmp_path)}
    writer.checkpoint()
    assert {path: path.stat().st_mtime_ns for path in files.files_below(tmp_path)} == before


def test_forgotten_segments_leave_no_byte_and_do_not_come_back(tmp_path: Path) -> None:
    staging = tmp_path / "staging"
    writer = SMALL.writer(staging, LEAVES)
    episodes = {number: episode(50, number) for number in range(3)}
    segments = [record(writer, number, rows) for number, rows in episodes.items()]
    writer.checkpoint()
    # The last rows of an image are in a checkpoint file that all segments share.
    secret = SMALL.grid(IMAGE).encode(episodes[1][IMAGE.path][49:])
    assert any(secret in path.read_bytes() for path in files.files_below(staging))
    writer.forget([1, 77])
    assert not any(secret in path.read_bytes() for path in files.files_below(staging))
    assert writer.segments() == [segments[0], segments[2]]
    assert_recovers(staging, episodes, [segments[0], segments[2]])
    writer.forget([0, 2])
    assert list(staging.iterdir()) == []
    assert recovered(staging).segments() == []


def test_what_was_recovered_is_packed_and_forgotten(tmp_path: Path) -> None:
    staging = tmp_path / "staging"
    writer = SMALL.writer(staging, LEAVES)
    episodes = {number: episode(50, number) for number in range(3)}
    segments = [record(writer, number, rows) for number, rows in episodes.items()]
    writer.checkpoint()
    again = recovered(staging)
    (tmp_path / "shard").mkdir()
    again.pack(tmp_path / "shard", segments)
    assert_holds(SMALL.reader(tmp_path / "shard", LEAVES, Counts.of(segments)), list(episodes.values()), segments)
    again.forget([0, 1, 2])
    again.close()
    assert list(staging.iterdir()) == []


def staged(tmp_path: Path) -> tuple[Path, Episode]:
    """Leave 60 rows of a picture: three whole shard files and a checkpoint, of a writer that is gone."""
    staging, rows = tmp_path / "staging", episode(60, 0, [IMAGE])
    writer = SMALL.writer(staging, [IMAGE])
    record(writer, 0, rows)
    writer.checkpoint()
    return staging, rows


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "rows"),
    [
        (lambda staging: flip(staging / "000000.part", -1), 59),
        (lambda staging: flip(staging / "000000.part", 20), 48),
        (lambda staging: os.truncate(staging / "000000.part", 40), 48),
        (lambda staging: os.truncate(staging / "000000.part", 0), 48),
        (lambda staging: (staging / "000000.part").unlink(), 48),
        (lambda staging: flip(shard_files(staging / "000000", IMAGE)[2], 0), 32),
        (lambda staging: flip(shard_files(staging / "000000", IMAGE)[1], -3), 16),
        (lambda staging: os.truncate(shard_files(staging / "000000", IMAGE)[1], 0), 16),
        (lambda staging: shard_files(staging / "000000", IMAGE)[0].unlink(), 0),
    ],
)
def test_a_damaged_file_ends_the_rows_that_are_recovered(tmp_path: Path, damage: Any, rows: int) -> None:
    staging, recorded = staged(tmp_path)
    damage(staging)
    writer = recovered(staging, [IMAGE])
    assert writer.segments() == [Segment(0, rows, -1)]
    assert equal(writer.view(Segment(0, rows, 0))[IMAGE.path][:], recorded[IMAGE.path][:rows])
    writer.forget([0])
    assert list(staging.iterdir()) == []


def test_files_that_a_kill_left_half_written_are_not_taken_over(tmp_path: Path) -> None:
    staging, _ = staged(tmp_path)
    (staging / ".000001.part.77.tmp").write_bytes(b"half")
    (staging / ".000007" / "x.zarr").mkdir(parents=True)
    writer = recovered(staging, [IMAGE])
    assert writer.segments() == [Segment(0, 60, -1)]
    assert len(list(staging.glob(".*"))) == 2  # to look changes nothing: they go with the whole staging folder


def test_a_full_disk_leaves_all_rows_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    writer, rows = SMALL.writer(tmp_path / "staging", LEAVES), episode(60)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        writer.append(rows, [Run(0, 0, 60, True)])
    with pytest.raises(OSError, match="No space"):
        writer.checkpoint()
    monkeypatch.undo()
    assert writer.segments() == [Segment(0, 60, 59)]
    writer.checkpoint()
    assert_recovers(tmp_path / "staging", {0: rows}, [Segment(0, 60, 59)])
    writer.forget([0])
    assert list((tmp_path / "staging").iterdir()) == []


def test_a_closed_writer_takes_no_more_rows(tmp_path: Path) -> None:
    writer = SMALL.writer(tmp_path / "staging", LEAVES)
    record(writer, 0, episode(5))
    writer.close()
    writer.close()
    with pytest.raises(ClosedError):
        writer.append(episode(1), [Run(0, 0, 1)])
    with pytest.raises(ClosedError):
        writer.checkpoint()


CHILD = """
import sys
from pathlib import Path
sys.path[:0] = [{tests!r}]
from test_zarr import LEAVES, SMALL, Run, episode
writer, rows = SMALL.writer(Path({staging!r}), LEAVES), {{i: episode(1000, i) for i in range(3)}}
for start in range(0, 1000, 7):
    for segment, array in rows.items():
        writer.append(array, [Run(segment, start, start + 7, start == 0)])
    if start % 5 == 0:
        writer.checkpoint()
        print(start + 7, flush=True)
"""


@pytest.mark.parametrize("seen", [1, 4, 12])
def test_a_kill_loses_nothing_that_a_checkpoint_saw(tmp_path: Path, seen: int) -> None:
    staging = tmp_path / "staging"
    code = CHILD.format(tests=str(Path(__file__).parent), staging=str(staging))
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as child:
        assert child.stdout is not None
        saved = [int(child.stdout.readline()) for _ in range(seen)][-1]
        child.send_signal(signal.SIGKILL)
    writer = recovered(staging)
    assert [segment.number for segment in writer.segments()] == [0, 1, 2]
    for segment in writer.segments():
        assert segment.moments >= saved
        assert segment.transitions >= saved - 1
        view = writer.view(segment)
        for leaf in LEAVES:
            assert equal(view[leaf.path][:], expected(leaf, episode(1000, segment.number), segment))
    writer.forget([0, 1, 2])
    assert list(staging.iterdir()) == []


# Any splits, against plain lists

POOL = episode(400)


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[str, int, int]]:
    """Return what happens: rows of a segment, a checkpoint, a recovery, or that a segment is forgotten."""
    rows = st.tuples(st.just("rows"), st.integers(0, 2), st.integers(1, 70))
    other = st.tuples(st.sampled_from(["checkpoint", "recover", "forget", "end"]), st.integers(0, 2), st.just(0))
    return draw(st.lists(rows | other, max_size=20))


def cut(segments: Sequence[Segment], data: st.DataObject) -> Iterator[Segment]:
    for segment in segments:
        moments = data.draw(st.integers(1, segment.moments))
        yield Segment(segment.number, moments, moments - 1)


@given(histories(), st.data())
def test_any_history_gives_the_rows_of_plain_lists(
    tmp_path_factory: pytest.TempPathFactory, history: list[tuple[str, int, int]], data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("history")
    writer = SMALL.writer(folder / "staging", LEAVES)
    model: dict[int, Episode] = {}
    names = {0: 0, 1: 1, 2: 2}  # a number is never used again
    at = 0
    for what, lane, count in history:
        number = names[lane]
        if what == "rows":
            at = (at + 13) % 300
            batch = {path: array[at : at + count] for path, array in POOL.items()}
            known = model.get(number)
            writer.append(POOL, [Run(number, at, at + count, known is None)])
            model[number] = (
                batch if known is None else {path: np.concatenate([known[path], batch[path]]) for path in batch}
            )
        elif what == "forget":
            writer.forget([number])
            model.pop(number, None)
            names[lane] = max(names.values()) + 1
        elif what == "end":
            writer.end(number)
        else:
            writer.checkpoint()
            if what == "recover":
                writer = recovered(folder / "staging")
    segments = [Segment(number, len(rows["action"]), len(rows["action"]) - 1) for number, rows in sorted(model.items())]
    assert writer.segments() == segments
    chosen = list(cut(data.draw(st.permutations(segments)), data))
    (folder / "shard").mkdir()
    writer.pack(folder / "shard", chosen)
    reader = SMALL.reader(folder / "shard", LEAVES, Counts.of(chosen))
    if chosen:
        assert_holds(reader, [model[segment.number] for segment in chosen], chosen)
    writer.forget([segment.number for segment in segments])
    assert not (folder / "staging").exists() or list((folder / "staging").iterdir()) == []
