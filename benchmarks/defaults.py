"""The table behind the defaults: speed, size, quality and the cost of reading, of each way to keep frames and rows.

    python benchmarks/defaults.py [--frames 120] [--write docs/defaults.md]

Each storage writes, packs and reads as it does in a recording; nothing is measured on a codec alone. `--write` puts the
tables between the markers of the page; what is said around them is written by hand.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.frames import frames
from recorder import HDF5Storage, VideoStorage, ZarrStorage
from recorder.leaf import Leaf
from recorder.storages import hdf5
from recorder.storages.base import Counts, Run, Segment, Storage

BATCH, TABLE_BATCH = 16, 1024
"""Frames, and rows of numbers, that a writer is given at once: about as many as wait in the ring."""

WINDOW = 16
RANDOM_ROWS = 40
WINDOWS = 8


class Found(NamedTuple):
    """What one way to keep rows costs and gives."""

    write: float
    bytes: float
    row: float
    window: float
    psnr: float
    ssim: float


def measure(storage: Storage, leaf: Leaf, rows: NDArray[Any], at_once: int = BATCH) -> Found:
    """Write rows with a storage, pack them, and read them back: seconds a row, bytes a row, seconds a reading."""
    folder = Path(tempfile.mkdtemp())
    try:
        segment = Segment(0, len(rows), len(rows) - 1)
        writer = storage.writer(folder / "staging", [leaf])
        started = time.perf_counter()
        for start in range(0, len(rows), at_once):
            batch = rows[start : start + at_once]
            writer.append({leaf.path: batch}, [Run(0, 0, len(batch), start == 0)])
        writer.end(0)
        (folder / "shard").mkdir()
        writer.pack(folder / "shard", [segment])
        wrote = time.perf_counter() - started
        writer.close()
        size = sum(path.stat().st_size for path in (folder / "shard").rglob("*") if path.is_file())
        reader = storage.reader(folder / "shard", [leaf], Counts.of([segment]))
        column = reader.segment(0)[leaf.path]
        row, window = read_costs(column, len(rows))
        back = column[:]
        reader.close()
        return Found(wrote / len(rows), size / len(rows), row, window, *quality(rows, back))
    finally:
        shutil.rmtree(folder)


def read_costs(column: Any, count: int) -> tuple[float, float]:
    """Return the median seconds that a random row and a random window of rows take."""
    random = np.random.default_rng(0)
    column[0]
    rows = [seconds(lambda i=i: column[i]) for i in random.integers(0, count, RANDOM_ROWS).tolist()]
    starts = random.integers(0, count - WINDOW, WINDOWS).tolist()
    windows = [seconds(lambda i=i: column[i : i + WINDOW]) for i in starts]
    return statistics.median(rows), statistics.median(windows)


def seconds(call: Callable[[], object]) -> float:
    """Return how long a call takes."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def quality(rows: NDArray[Any], back: NDArray[Any]) -> tuple[float, float]:
    """Return the PSNR in dB, infinite for equal rows, and the mean SSIM of pictures."""
    if np.array_equal(rows, back):
        return float("inf"), 1.0
    error = np.mean((rows.astype(np.float64) - back) ** 2)
    some = range(0, len(rows), max(1, len(rows) // 10))
    return float(10 * np.log10(255**2 / error)), statistics.mean(ssim(rows[i], back[i]) for i in some)


def ssim(one: NDArray[Any], other: NDArray[Any]) -> float:
    """Return the structural similarity of two pictures: Wang et al., 2004, of the luma, a Gaussian of 11 x 11."""
    a, b = (cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY).astype(np.float64) for picture in (one, other))

    def blurred(values: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(cv2.GaussianBlur(values, (11, 11), 1.5))

    mean_a, mean_b = blurred(a), blurred(b)
    variance_a, variance_b = blurred(a * a) - mean_a**2, blurred(b * b) - mean_b**2
    covariance = blurred(a * b) - mean_a * mean_b
    c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    above = (2 * mean_a * mean_b + c1) * (2 * covariance + c2)
    below = (mean_a**2 + mean_b**2 + c1) * (variance_a + variance_b + c2)
    return float(np.mean(above / below))


def picture_leaf(rows: NDArray[Any]) -> Leaf:
    """Return the leaf of some frames."""
    return Leaf("observation/camera", rows.shape[1:], rows.dtype.name, "image", metadata={"fps": 30})


LARGE: dict[str, Storage] = {
    **{f"H.264 ultrafast, crf {crf}": VideoStorage(crf=crf) for crf in (16, 20, 23, 28)},
    **{f"H.264 {preset}, crf 20": VideoStorage(preset=preset) for preset in ("superfast", "veryfast", "medium")},
    **{f"H.264 ultrafast, crf 20, key frame every {n}": VideoStorage(keyframe_every=n) for n in (2, 5, 15, 30, 120)},
    "HEVC ultrafast, crf 22": VideoStorage(codec="hevc"),
    **{f"AV1 preset {n}, crf 30": VideoStorage(codec="av1", preset=str(n)) for n in (8, 10, 12)},
    "AV1 preset 12, crf 30, key frame every 2": VideoStorage(codec="av1", preset="12", keyframe_every=2),
    "VP9, crf 30": VideoStorage(codec="vp9"),
    "H.264 RGB, exact": VideoStorage(codec="h264rgb"),
    "FFV1, exact": VideoStorage(codec="ffv1"),
    "WebP quality 80, method 0": ZarrStorage(quality=80),
    "WebP exact, method 0": ZarrStorage(),
}

SMALL: dict[str, Storage] = {
    **{f"WebP exact, method {n}": ZarrStorage(method=n) for n in (0, 1, 2, 4, 6)},
    **{f"zstd level {n}": ZarrStorage(codec="zstd", level=n) for n in (1, 3, 9)},
    "zstd level 3, chunks of 64 KiB": ZarrStorage(codec="zstd", chunk_bytes=64 << 10),
    "zstd level 3, chunks of 1 MiB": ZarrStorage(codec="zstd", chunk_bytes=1 << 20),
    "H.264 RGB, exact": VideoStorage(codec="h264rgb"),
    "FFV1, exact": VideoStorage(codec="ffv1"),
    "WebP quality 80, method 0": ZarrStorage(quality=80),
    "H.264 ultrafast, crf 20": VideoStorage(),
}

CHOSEN = {
    "H.264 ultrafast, crf 20",
    "WebP exact, method 0",
    "HDF5, not compressed",
    "zstd level 3, chunks of 256 KiB",
    "shard files of 64 MiB",
}
"""The defaults, where they are defaults: a table of frames up to 128 a side has another one than that of large ones."""

LARGE_SOURCES = ("natural 480x640", "MuJoCo 480x640")
SMALL_SOURCES = ("natural 96x96", "CarRacing 96x96", "PushT 96x96", "Breakout 210x160")


def picture_table(source: str, storages: dict[str, Storage], chosen: str, count: int) -> Iterator[str]:
    """Yield the lines of the table of one source of frames."""
    rows = frames(source, count)
    yield f"### {source}, {count} frames\n"
    yield "| | frames/s | kB a frame | PSNR, dB | SSIM | random frame, ms | window of 16, ms |"
    yield "|---|---:|---:|---:|---:|---:|---:|"
    for name, storage in storages.items():
        found = measure(storage, picture_leaf(rows), rows)
        psnr = "exact" if np.isinf(found.psnr) else f"{found.psnr:.1f}"
        bold = "**" if name == chosen else ""
        yield (
            f"| {bold}{name}{bold} | {1 / found.write:,.0f} | {found.bytes / 1e3:.2f} | {psnr} | {found.ssim:.3f} "
            f"| {found.row * 1e3:.2f} | {found.window * 1e3:.1f} |"
        )
    yield ""


def tables_of_rows() -> dict[str, NDArray[Any]]:
    """Return rows of numbers: what a robot's joints do, and what a simulator says."""
    random = np.random.default_rng(0)
    walk = np.cumsum(random.normal(0, 0.01, (50_000, 24)), axis=0)
    return {
        "24 float64, a random walk": walk,
        "24 float32, rounded to 1/4096": (walk * 4096).round().astype("f4") / 4096,
    }


@contextmanager
def chunks_of(size: int) -> Iterator[None]:
    """Let compressed HDF5 columns have other chunks."""
    before = hdf5.CHUNK_BYTES
    hdf5.CHUNK_BYTES = size
    try:
        yield
    finally:
        hdf5.CHUNK_BYTES = before


def number_table(name: str, rows: NDArray[Any]) -> Iterator[str]:
    """Yield the lines of the table of one kind of numbers."""
    leaf = Leaf("observation/state", rows.shape[1:], rows.dtype.name)
    ways: list[tuple[str, Storage, int]] = [("HDF5, not compressed", HDF5Storage(), 256 << 10)]
    for size in (64 << 10, 256 << 10, 1 << 20):
        ways += [(f"HDF5, lzf, chunks of {size >> 10} KiB", HDF5Storage("lzf"), size)]
    ways += [(f"HDF5, gzip {n}, chunks of 256 KiB", HDF5Storage("gzip", n), 256 << 10) for n in (1, 4, 9)]
    for size in (16 << 10, 64 << 10, 256 << 10, 1 << 20):
        ways += [(f"zstd level 3, chunks of {size >> 10} KiB", ZarrStorage(chunk_bytes=size), 256 << 10)]
    yield f"### {name}, {len(rows):,} rows\n"
    yield "| | rows/s | bytes a row | random row, µs | window of 16, µs |\n|---|---:|---:|---:|---:|"
    for way, storage, size in ways:
        with chunks_of(size):
            found = measure(storage, leaf, rows, TABLE_BATCH)
        assert np.isinf(found.psnr), way
        bold = "**" if way in CHOSEN else ""
        times = f"{found.row * 1e6:.0f} | {found.window * 1e6:.0f}"
        yield f"| {bold}{way}{bold} | {1 / found.write:,.0f} | {found.bytes:.0f} | {times} |"
    yield ""


def shard_table(count: int) -> Iterator[str]:
    """Yield the lines of the table of sizes of zarr shard files, for small pictures."""
    rows = np.concatenate([frames("CarRacing 96x96", count)] * -(-3000 // count))[:3000]
    yield "### Sizes of zarr shard files, 3,000 frames of CarRacing\n"
    yield "| | frames/s | files | random frame, ms | first frame, ms |\n|---|---:|---:|---:|---:|"
    for size in (1, 4, 16, 64, 256):
        storage = ZarrStorage(shard_bytes=size << 20)
        leaf = picture_leaf(rows)
        found = measure(storage, leaf, rows)
        per_file = storage.grid(leaf).shard_rows
        first = first_read(storage, leaf, rows)
        name = f"shard files of {size} MiB"
        bold = "**" if name in CHOSEN else ""
        files = f"{-(-len(rows) // per_file)} of {per_file} frames"
        yield f"| {bold}{name}{bold} | {1 / found.write:,.0f} | {files} | {found.row * 1e3:.2f} | {first * 1e3:.2f} |"
    yield ""


def first_read(storage: Storage, leaf: Leaf, rows: NDArray[Any]) -> float:
    """Return the median seconds that a new reader needs for its first row: it reads an index of chunks."""
    folder = Path(tempfile.mkdtemp())
    try:
        segment = Segment(0, len(rows), len(rows) - 1)
        writer = storage.writer(folder / "staging", [leaf])
        writer.append({leaf.path: rows}, [Run(0, 0, len(rows), True)])
        writer.end(0)
        (folder / "shard").mkdir()
        writer.pack(folder / "shard", [segment])
        writer.close()

        def read() -> None:
            storage.reader(folder / "shard", [leaf], Counts.of([segment])).segment(0)[leaf.path][len(rows) // 2]

        return statistics.median(seconds(read) for _ in range(15))
    finally:
        shutil.rmtree(folder)


def tables(count: int) -> Iterator[str]:
    """Yield the lines of all tables."""
    load = os.getloadavg()[0]
    yield (
        f"Measured by `benchmarks/defaults.py` on {os.cpu_count()} cores ({platform.machine()}), Python "
        f"{platform.python_version()}; the load was {load:.1f} at the start.\n"
    )
    yield "## Large pictures\n"
    for source in LARGE_SOURCES:
        yield from picture_table(source, LARGE, "H.264 ultrafast, crf 20", count)
    yield "## Small pictures\n"
    for source in SMALL_SOURCES:
        yield from picture_table(source, SMALL, "WebP exact, method 0", 2 * count)
    yield "## Numbers\n"
    for name, rows in tables_of_rows().items():
        yield from number_table(name, rows)
    yield "## Files of chunks\n"
    yield from shard_table(2 * count)


MARKS = re.compile(r"(<!-- tables -->\n).*?(<!-- end of tables -->)", re.DOTALL)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables, and write them into a page if told to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=120, help="frames of each source of large pictures")
    parser.add_argument("--write", type=Path, help="the page whose tables are replaced")
    options = parser.parse_args(arguments)
    lines = []
    for line in tables(options.frames):
        print(line, flush=True)
        lines.append(line)
    if options.write is not None:
        page, count = MARKS.subn(lambda found: found[1] + "\n".join(lines) + found[2], options.write.read_text())
        if count != 1:
            raise SystemExit(f"{options.write} has no tables between markers")
        options.write.write_text(page)


if __name__ == "__main__":
    main()
