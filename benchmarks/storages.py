"""Bytes on disk, and rows written and read a second, of every storage on one stream of 20 episodes.

    python benchmarks/storages.py --episodes 20 --rows 100 --side 128 --repeat 3

The stream is a camera (a moving scene with sensor noise), a depth camera, and the numbers of a robot. Each storage
gets those of them that it takes. Writing includes checkpoints, packing and fsync; reading is of whole episodes, and of
single rows in any order.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import NamedTuple

import numpy as np

from recorder import (
    DepthStorage,
    HDF5Storage,
    ImageFileStorage,
    NpzStorage,
    ParquetStorage,
    VideoStorage,
    ZarrStorage,
)
from recorder.columns import Array
from recorder.errors import LayoutError
from recorder.files import files_below, sync_tree
from recorder.leaf import Leaf
from recorder.storages.base import Counts, Run, Segment, Storage

BATCH = 16
"""Rows that a storage gets at once."""

RANDOM = 200
"""Single rows that are read."""

TABLES: dict[str, Storage] = {
    "HDF5Storage()": HDF5Storage(),
    'HDF5Storage("gzip")': HDF5Storage("gzip"),
    "ParquetStorage()": ParquetStorage(),
    'ParquetStorage("zstd")': ParquetStorage("zstd"),
    "NpzStorage()": NpzStorage(),
    "NpzStorage(compressed=True)": NpzStorage(compressed=True),
    "ZarrStorage()": ZarrStorage(),
}

STORAGES: dict[str, dict[str, Storage]] = {
    "numbers": TABLES,
    "camera": {
        **TABLES,
        "ZarrStorage(quality=80)": ZarrStorage(quality=80),
        "VideoStorage()": VideoStorage(),
        **{
            f"VideoStorage({codec!r})": VideoStorage(codec=codec) for codec in ("hevc", "av1", "vp9", "h264rgb", "ffv1")
        },
        'ImageFileStorage("png")': ImageFileStorage(),
        'ImageFileStorage("webp")': ImageFileStorage("webp", effort=0),
        'ImageFileStorage("jpeg")': ImageFileStorage("jpeg"),
    },
    "depth": {
        **TABLES,
        "DepthStorage()": DepthStorage(),
        "DepthStorage(storage=ImageFileStorage())": DepthStorage(storage=ImageFileStorage()),
        "DepthStorage(storage=ZarrStorage())": DepthStorage(storage=ZarrStorage()),
    },
}


class Result(NamedTuple):
    """What a storage took: bytes of its files, and rows a second."""

    bytes: int
    written: float
    read: float
    random: float


def leaves(side: int) -> dict[str, list[Leaf]]:
    """Return the leaves of the stream, in groups."""
    return {
        "camera": [Leaf("observation/camera", (side, side, 3), "uint8", "image")],
        "depth": [Leaf("observation/depth", (side // 2, side // 2), "float32", "depth")],
        "numbers": [
            Leaf("observation/joints", (14,), "float64", "proprio"),
            Leaf("observation/force", (6,), "float32", "force"),
            Leaf("action", (7,), "float32", "action", "transition"),
            Leaf("reward", (), "float64", "reward", "transition"),
            Leaf("terminated", (), "bool", "flag", "transition"),
        ],
    }


def episode(number: int, count: int, own: list[Leaf]) -> dict[str, Array]:
    """Return the rows of one episode."""
    generator = np.random.default_rng(number)
    return {leaf.path: _rows(leaf, count, generator) for leaf in own}


def _rows(leaf: Leaf, count: int, generator: np.random.Generator) -> Array:
    if leaf.kind == "image":
        return np.stack([_scene(leaf.shape, t, generator) for t in range(count)])
    if leaf.kind == "depth":
        height, width = leaf.shape
        slope = np.linspace(1, 4, height)[:, None] + 0.3 * np.sin(np.linspace(0, 6, width))
        return np.stack([slope + 0.01 * t + generator.normal(0, 0.002, leaf.shape) for t in range(count)]).astype(
            "float32"
        )
    walk = np.cumsum(generator.normal(0, 0.01, (count, *leaf.shape)), axis=0)
    return walk > 0 if leaf.dtype == "bool" else walk.astype(leaf.dtype)


def _scene(shape: tuple[int, ...], t: int, generator: np.random.Generator) -> Array:
    y, x = np.mgrid[: shape[0], : shape[1]] / shape[0]
    picture = 120 + 60 * np.sin(4 * x[..., None] + 0.05 * t + np.arange(3)) + 40 * np.sin(9 * y[..., None])
    disc = (x - 0.5 - 0.3 * np.cos(0.1 * t)) ** 2 + (y - 0.5 - 0.3 * np.sin(0.1 * t)) ** 2 < 0.02
    picture[disc] = (200, 60, 40)
    return np.clip(picture + generator.normal(0, 2, shape), 0, 255).astype(np.uint8)


def measure(storage: Storage, own: list[Leaf], stream: list[Mapping[str, Array]]) -> Result:
    """Write a stream with one storage, and read it."""
    counts = [len(next(iter(rows.values()))) for rows in stream]
    segments = [Segment(i, count, count - 1) for i, count in enumerate(counts)]
    with TemporaryDirectory(prefix="recorder-benchmark-") as folder:
        shard = Path(folder, "shard")
        shard.mkdir()
        start = perf_counter()
        with closing(storage.writer(Path(folder, "staging"), own)) as writer:
            for i, rows in enumerate(stream):
                for first in range(0, counts[i], BATCH):
                    batch = {path: values[first : first + BATCH] for path, values in rows.items()}
                    writer.append(batch, [Run(i, 0, min(BATCH, counts[i] - first), first == 0)])
                writer.end(i)
                writer.checkpoint()
            writer.pack(shard, segments)
            sync_tree(shard)
            written = perf_counter() - start
        size = sum(path.stat().st_size for path in files_below(shard))
        with closing(storage.reader(shard, own, Counts.of(segments))) as reader:
            start = perf_counter()
            for i in range(len(stream)):
                for column in reader.segment(i).values():
                    column[:]
            read = perf_counter() - start
        with closing(storage.reader(shard, own, Counts.of(segments))) as reader:
            picked = np.random.default_rng(0).integers(0, sum(counts) - len(counts), RANDOM)
            columns = [reader.whole(leaf.path) for leaf in own]
            start = perf_counter()
            for row in picked.tolist():
                for column in columns:
                    column[row]
            random = perf_counter() - start
    return Result(size, sum(counts) / written, sum(counts) / read, RANDOM / random)


def results(arguments: argparse.Namespace) -> Iterator[tuple[str, str, Result, float]]:
    """Yield each group of leaves with each storage that takes it, its median results, and the bytes of a row."""
    for group, own in leaves(arguments.side).items():
        stream = [episode(i, arguments.rows, own) for i in range(arguments.episodes)]
        raw = sum(leaf.nbytes for leaf in own)
        found: dict[str, list[Result]] = {}
        for _ in range(arguments.repeat):  # round after round, so that all have the same neighbours
            for name, storage in STORAGES[group].items():
                try:
                    storage.check(own)
                except LayoutError:
                    continue
                found.setdefault(name, []).append(measure(storage, own, stream))
        for name, each in found.items():
            yield group, name, Result(*(statistics.median(one) for one in zip(*each, strict=True))), raw


def main() -> None:
    """Print the results as a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"episodes": 20, "rows": 100, "side": 128, "repeat": 3}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    arguments = parser.parse_args()
    rows = arguments.episodes * arguments.rows
    print("| leaves | storage | bytes a row | of raw | rows written/s | rows read/s | single rows/s |")
    print("|---|---|---:|---:|---:|---:|---:|")
    for group, name, one, raw in results(arguments):
        size = one.bytes / rows
        speeds = f"{one.written:,.0f} | {one.read:,.0f} | {one.random:,.0f}"
        print(f"| {group} | `{name}` | {size:,.0f} | {size / raw:.3f} | {speeds} |", flush=True)


if __name__ == "__main__":
    main()
