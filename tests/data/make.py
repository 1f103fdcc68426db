"""The golden recordings: small ones of every storage and every family of spaces, which have to be readable for ever.

`python tests/data/make.py NAME…` makes those that are named, or all that are missing. One that was released is never
made again: a new format gets new ones. Values are formulas, so that nothing but this file says what they are.
"""

from __future__ import annotations

import socket
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from gymnasium.spaces import GraphInstance, Space

from recorder import (
    DepthStorage,
    DictStorage,
    HDF5Storage,
    ImageFileStorage,
    NpzStorage,
    ParquetStorage,
    RecordingWriter,
    StepSpace,
    Storage,
    VideoStorage,
    ZarrStorage,
)

FOLDER = Path(__file__).parent
FORMAT = 0


class Golden(NamedTuple):
    """What a golden recording holds: in each of its two episodes `lengths` observations of `row`.

    A `full` one also has infos, values of the user, options, long seeds and labels, and a shard for each episode.
    """

    space: Space[Any]
    row: Callable[[int], Any]
    storage: Mapping[str, Storage]
    default: Storage = HDF5Storage()
    metadata: Mapping[str, Any] = {}
    lengths: tuple[int, int] = (5, 3)
    full: bool = False


def numbers(shape: tuple[int, ...], t: int, dtype: str = "float64", scale: float = 0.125) -> Any:
    """Return an array of different numbers."""
    return ((np.arange(np.prod(shape)).reshape(shape) + 7 * t) * scale).astype(dtype)


def picture(height: int, width: int, channels: int, t: int) -> Any:
    """Return a picture of a ramp that moves, with something else in each channel."""
    y, x = np.mgrid[:height, :width]
    parts = [x * 5 + t, y * 7 + 2 * t, (x + y) * 3, 255 - x * 2]
    return np.stack(parts[:channels], axis=-1).astype(np.uint8)


def table_row(t: int) -> dict[str, Any]:
    return {
        "vector": numbers((3,), t, "float32"),
        "matrix": numbers((2, 2), t),
        "number": np.float64(t) / 3,
        "count": np.int64(2 - t % 3),
        "counts": np.int64([t % 3, 1]),
        "bits": np.int8([t % 2, 1, 0]),
        "truth": np.array([t % 2 == 0, True]),
        "byte": np.uint8([255 - t]),
        "huge": np.int64([2**62 + t, -(2**62)]),
        "text": ["", "é", "日本", "a\x00b", "🙂" * 3][t % 5],
        "special": np.float32([np.inf, -np.inf, np.nan, -0.0]),
    }


TABLE = spaces.Dict(
    vector=spaces.Box(-9, 99, (3,)),
    matrix=spaces.Box(-9, 99, (2, 2), np.float64),
    number=spaces.Box(0, 9, (), np.float64),
    count=spaces.Discrete(3),
    counts=spaces.MultiDiscrete([3, 2]),
    bits=spaces.MultiBinary(3),
    truth=spaces.Box(0, 1, (2,), np.bool_),
    byte=spaces.Box(0, 255, (1,), np.uint8),
    huge=spaces.Box(-(2**62), 2**62 + 99, (2,), np.int64),
    text=spaces.Text(8, min_length=0),
    special=spaces.Box(-np.inf, np.inf, (4,)),
)


LARGE = spaces.Box(-9, 999, (40, 60), np.float64)


def large_row(t: int) -> Any:
    return numbers((40, 60), t) // 32


def container_row(t: int) -> dict[str, Any]:
    return {
        "z last": np.int64(t % 5),
        "a/b": {"a.b": numbers((2,), t), "*": (np.int64(1), {"é": numbers((1,), t, "float32")})},
        "%": np.int64(0),
    }


CONTAINERS = spaces.Dict(
    OrderedDict(
        [
            ("z last", spaces.Discrete(5)),
            (
                "a/b",
                spaces.Dict(
                    {
                        "a.b": spaces.Box(-9, 99, (2,), np.float64),
                        "*": spaces.Tuple([spaces.Discrete(2), spaces.Dict({"é": spaces.Box(-9, 99, (1,))})]),
                    }
                ),
            ),
            ("%", spaces.Discrete(1)),
        ]
    )
)


def ragged_row(t: int) -> dict[str, Any]:
    edges = numbers((2, 1), t, "float32") if t % 2 else None
    links = np.array([[0, 1], [1, 0]], np.int32) if t % 2 else None
    return {
        "sequence": tuple(numbers((2,), k, "float32") for k in range(t % 3)),
        "stack": numbers((t % 3, 2), t, "float32"),
        "texts": ("é", "")[: t % 3],
        "graph": GraphInstance(numbers((2 + t % 2, 3), t, "float32"), edges, links),
        "either": (np.int64(1), numbers((2,), t, "float32")) if t % 2 else (np.int64(0), np.int64(t)),
    }


RAGGED = spaces.Dict(
    sequence=spaces.Sequence(spaces.Box(-9, 99, (2,))),
    stack=spaces.Sequence(spaces.Box(-9, 99, (2,)), stack=True),
    texts=spaces.Sequence(spaces.Text(4, min_length=0)),
    graph=spaces.Graph(spaces.Box(-9, 99, (3,)), spaces.Box(-9, 99, (1,))),
    either=spaces.OneOf([spaces.Discrete(99), spaces.Box(-9, 99, (2,))]),
)


def array_row(t: int) -> dict[str, Any]:
    metres = numbers((16, 20), t, "float32")
    metres[::5] = np.inf
    return {
        "depth": numbers((16, 20), t, "uint16", 200),
        "metres": metres,
        "stack": np.stack([picture(12, 16, 1, t - k)[..., 0] for k in range(4)]),
        "mask": picture(16, 16, 1, t)[..., 0] % 2 == 0,
    }


ARRAYS = spaces.Dict(
    depth=spaces.Box(0, 65535, (16, 20), np.uint16),
    metres=spaces.Box(0, np.inf, (16, 20)),
    stack=spaces.Box(0, 255, (4, 12, 16), np.uint8),
    mask=spaces.Box(0, 1, (16, 16), np.bool_),
)


def camera(height: int, width: int, channels: int) -> spaces.Box[Any]:
    return spaces.Box(0, 255, (height, width, channels), np.uint8)


def cameras(sizes: Mapping[str, tuple[int, int, int]], storage: Storage, **metadata: Any) -> Golden:
    """Return a golden recording of cameras that one storage keeps."""
    return Golden(
        spaces.Dict({name: camera(*size) for name, size in sizes.items()}),
        lambda t: {name: picture(*size, t) for name, size in sizes.items()},
        {f"observation/{name}": storage for name in sizes},
        metadata={f"observation/{name}": {"kind": "image", **metadata} for name in sizes},
    )


def depth_row(t: int) -> Any:
    return numbers((16, 20), t, "uint16", 200)


def metres_row(t: int) -> Any:
    return (numbers((16, 20), t, "float64", 10) * 0.001).astype(np.float32)


@cache
def golden() -> dict[str, Golden]:
    """Return what each golden recording holds, by its name."""
    depth = spaces.Box(0, 65535, (16, 20), np.uint16)
    zstd = {f"observation/{name}": ZarrStorage(codec="zstd") for name in ARRAYS}
    rgb, odd = (16, 24, 3), (17, 19, 3)
    return {
        "hdf5": Golden(TABLE, table_row, {}, full=True),
        "hdf5-lzf": Golden(LARGE, large_row, {}, HDF5Storage("lzf")),
        "hdf5-gzip": Golden(LARGE, large_row, {}, HDF5Storage("gzip")),
        "containers": Golden(CONTAINERS, container_row, {}),
        "ragged": Golden(RAGGED, ragged_row, {}),
        "zarr-zstd": Golden(ARRAYS, array_row, zstd),
        "zarr-webp": cameras({"rgb": rgb, "rgba": (16, 24, 4)}, ZarrStorage()),
        "video-h264": cameras({"rgb": (32, 48, 3), "odd": odd, "grey": (16, 24, 1)}, VideoStorage(), fps=12.5),
        "video-digests": cameras({"rgb": (32, 48, 3)}, VideoStorage(), fps=12.5),
        "video-h264rgb": cameras({"rgb": rgb, "odd": odd}, VideoStorage(codec="h264rgb")),
        "video-ffv1": cameras({"rgb": rgb, "rgba": (16, 24, 4), "grey": (17, 19, 1)}, VideoStorage(codec="ffv1")),
        "video-ffv1-depth": Golden(depth, depth_row, {"observation": VideoStorage(codec="ffv1")}),
        "parquet": Golden(TABLE, table_row, {}, ParquetStorage(), full=True),
        "parquet-ragged": Golden(RAGGED, ragged_row, {}, ParquetStorage("zstd")),
        "npz": Golden(TABLE, table_row, {}, NpzStorage(), full=True),
        "npz-ragged": Golden(RAGGED, ragged_row, {}, NpzStorage(compressed=True)),
        "files-png": cameras({"rgb": rgb, "rgba": (16, 24, 4), "grey": (17, 19, 1)}, ImageFileStorage()),
        "files-png-depth": Golden(depth, depth_row, {"observation": ImageFileStorage()}),
        "files-webp": cameras({"bgr": rgb}, ImageFileStorage("webp"), format="bgr"),
        "files-webp-grey": cameras({"grey": (17, 19, 1)}, ImageFileStorage("webp")),
        "files-jpeg": cameras({"rgb": rgb}, ImageFileStorage("jpeg")),
        "depth": Golden(
            spaces.Box(0, 65, (16, 20)),
            metres_row,
            {"observation": DepthStorage()},
            metadata={"observation": {"kind": "depth"}},
        ),
    }


SINGLE = "single"
"""The name of the golden recording that is no series of steps."""


def single_row(t: int) -> dict[str, Any]:
    return {"joints": numbers((2,), t, "float32"), "camera": picture(16, 24, 3, t)}


SINGLE_SPACE = spaces.Dict(joints=spaces.Box(-9, 99, (2,)), camera=camera(16, 24, 3))


def info(t: int) -> dict[str, Any]:
    """Return an info whose keys come and go and change."""
    always = {"time/left": 10 - t, "nested": {"x": t / 2}, "list": [1, "b", None]}
    return always | ({"success": True} if t == 2 else {}) | ({"path": np.arange(t)} if t else {})


def step(given: Golden, t: int, last: int) -> dict[str, Any]:
    """Return row `t` of an episode as it is appended."""
    row = {"observation": given.row(t), "time": 0.25 * t, "info": info(t) if given.full else {}}
    if t == 0:
        return row
    flags = {"terminated": t == last, "truncated": False}
    extra = {"extra": {"note": f"é{t}"}} if given.full else {}
    return {**row, "action": np.int64(t % 2), "reward": 0.5 * t, **flags, **extra}


OPTIONS = {"level": [1, "x", None]}


def seed(given: Golden, k: int) -> int:
    """Return the seed of episode `k`."""
    return 2**70 + k if given.full else k


def labels(given: Golden, k: int) -> dict[str, Any]:
    """Return the labels of episode `k`."""
    return {"task": "é", "k": k} if given.full else {"k": k}


def make(name: str) -> None:
    """Make one golden recording of two episodes."""
    given = golden()[name]
    space = StepSpace(given.space, spaces.Discrete(2), {"note": spaces.Text(9)} if given.full else {})
    storage = DictStorage(dict(given.storage), given.default)
    path = FOLDER / f"format-{FORMAT}" / name
    with RecordingWriter(path, space, storage=storage, metadata=given.metadata) as writer:
        for k, length in enumerate(given.lengths):
            writer.begin(seed=seed(given, k), options=OPTIONS if given.full else None)
            for t in range(length):
                writer.append(step(given, t, length - 1))
            writer.commit(**labels(given, k))
            if given.full:
                writer.flush()


def make_single() -> None:
    """Make the golden recording that is no series of steps."""
    with RecordingWriter(FOLDER / f"format-{FORMAT}" / SINGLE, SINGLE_SPACE) as writer:
        writer.begin()
        for t in range(4):
            writer.append(single_row(t))
        writer.commit()


def main(names: list[str]) -> None:
    """Make what is named, or what is missing."""
    socket.gethostname = lambda: "golden"  # no shard need say on which machine it was made
    for name in names or [*golden(), SINGLE]:
        if not (FOLDER / f"format-{FORMAT}" / name).exists():
            make_single() if name == SINGLE else make(name)


if __name__ == "__main__":
    main(sys.argv[1:])
