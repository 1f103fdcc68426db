"""What replay buffers cost: ours beside the bare codec on all cores, and beside the layouts of others through zarr.

    python benchmarks/replay_buffer.py [write video rows windows files memory] [--runs 5] [--json]

Both sides run in turn in one process, A B A B …, on the same frames and codec; the ratio of each pair is taken, and its
median quoted. `frame files` is one WebP a frame in folders, as VersatIL lays it out, written and read by zarr-python
with arrays kept open; `shards` is our own buffer through zarr-python. `memory` converts raw video of 10 GB and takes
long; it only runs when it is named.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("SDL_VIDEODRIVER", "dummy")

import gymnasium as gym
import numpy as np
import zarr
from zarr.codecs import BloscCodec

from recorder import (
    DictStorage,
    Recorder,
    Recording,
    ReplayBuffer,
    VideoStorage,
    WebP,
    WindowSampler,
    create_zarr_replay_buffer,
    to_zarr,
)
from recorder.replay_buffer.encoding import Encoders
from recorder.threads import share_cores
from recorder.webp import decode_webp, encode_webp
from recorder.webp_codec import WebpCodec, register

QUALITY, ROWS, EPISODE = 80, 2000, 200
Call = Callable[[], object]
CORES = Encoders().workers


class Ratio(NamedTuple):
    """What was compared, in one run: rates a second, and theirs over that of the other."""

    what: str
    ours: float
    other: float

    @property
    def ratio(self) -> float:
        """Ours over the other."""
        return self.ours / self.other


@cache
def frames(count: int, height: int = 96, width: int = 96) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return pictures that are smooth, move, and have some texture."""
    random = np.random.default_rng(0)
    y, x = np.mgrid[:height, :width]
    texture = random.integers(0, 24, (height, width, 3))
    made = np.empty((count, height, width, 3), np.uint8)
    for k in range(count):
        base = np.stack([(x + 3 * k) % 200, (y + 2 * k) % 180, (x + y + k) % 220], axis=-1)
        made[k] = base + np.roll(texture, k, axis=1)
    return made


@cache
def data(count: int) -> list[dict[str, Any]]:
    """Return episodes of four keys."""
    random, pictures = np.random.default_rng(1), frames(count)
    rows = {
        "camera": pictures,
        "joints": random.normal(size=(count, 7)).astype(np.float32),
        "action": random.normal(size=(count, 7)).astype(np.float32),
        "reward": random.normal(size=count),
    }
    return [{key: value[i : i + EPISODE] for key, value in rows.items()} for i in range(0, count, EPISODE)]


SPECS = {
    "camera": {"shape": (0, 96, 96, 3), "dtype": "uint8"},
    "joints": {"shape": (0, 7), "dtype": "float32"},
    "action": {"shape": (0, 7), "dtype": "float32"},
    "reward": {"shape": (0,), "dtype": "float64"},
}


def seconds(call: Callable[[], object]) -> float:
    """Return how long a call takes."""
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def side_by_side(what: str, work: int, ours: Call, other: Call, runs: int) -> list[Ratio]:
    """Time both in turn."""
    ours(), other()
    return [Ratio(what, work / seconds(ours), work / seconds(other)) for _ in range(runs)]


def few(runs: int) -> int:
    """Return how often something slow is done."""
    return max(1, runs // 2)


def on_all_cores(call: Callable[[int], object], count: int) -> None:
    """Call with 0 to `count` - 1 on as many threads as cores, a few at a time."""
    with ThreadPoolExecutor(CORES) as pool:
        list(pool.map(lambda first: [call(i) for i in range(first, min(first + 16, count))], range(0, count, 16)))


def ours(folder: Path) -> Path:
    """Write our buffer."""
    create_zarr_replay_buffer(
        folder / "ours.zarr", SPECS, data(ROWS), image_codec=WebP(QUALITY), overwrite=True, progress=False
    )
    return folder / "ours.zarr"


def frame_files(folder: Path) -> Path:
    """Write the same rows with zarr-python, a file a frame, an append a key and episode."""
    register()
    root = zarr.open_group(folder / "files.zarr", mode="w")
    group, ends = root.create_group("data"), np.arange(EPISODE, ROWS + 1, EPISODE)
    lz4 = BloscCodec(cname="lz4", clevel=5, shuffle="noshuffle")
    codec = WebpCodec(level=float(QUALITY), lossless=False, method=0)
    for key, spec in SPECS.items():
        shape: tuple[int, ...] = spec["shape"]  # type: ignore[assignment]
        made = {"serializer": codec, "compressors": None} if key == "camera" else {"compressors": [lz4]}
        chunks = (1 if key == "camera" else 100, *shape[1:])
        group.create_array(key, shape=shape, chunks=chunks, dtype=spec["dtype"], **made)  # type: ignore[arg-type]
    for episode in data(ROWS):
        for key, rows in episode.items():
            group[key].append(rows)  # type: ignore[union-attr]
    root.create_group("meta").create_array("episode_ends", data=ends, compressors=None)
    return folder / "files.zarr"


def write(folder: Path, runs: int) -> Iterator[Ratio]:
    """Rows a second from arrays."""
    pictures = frames(ROWS)
    bare = lambda: on_all_cores(lambda i: encode_webp(pictures[i], QUALITY), ROWS)  # noqa: E731
    yield from side_by_side("write: bare codec x cores", ROWS, lambda: ours(folder), bare, runs)
    yield from side_by_side("write: frame files", ROWS, lambda: ours(folder), lambda: frame_files(folder), few(runs))


def video(folder: Path, runs: int) -> Iterator[Ratio]:
    """Frames a second from 640 x 480 video to zarr, beside decoding and encoding on all cores without anything else."""
    recording = recorded(folder, 300)
    episode = recording[0]
    shown = episode.columns["render"][:64]
    to = folder / "video.zarr"

    def convert() -> None:
        to_zarr(recording, to, keys=["render"], image_codec=WebP(QUALITY), overwrite=True, progress=False)

    def limit() -> float:
        share_cores(CORES)  # one core decodes, as the time of a frame is meant
        decode = seconds(lambda: episode.columns["render"][:]) / (len(episode) + 1)
        share_cores(1)
        encode = seconds(lambda: [encode_webp(each, QUALITY) for each in shown]) / len(shown)
        return CORES / (decode + encode)

    convert()
    for _ in range(runs):
        yield Ratio("video: cores / (decode + encode)", recording.steps / seconds(convert), limit())


class Moving(gym.Env[Any, Any]):
    """Shows moving pictures of 640 x 480."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012
    observation_space = gym.spaces.Box(-1, 1, (2,))
    action_space = gym.spaces.Discrete(2)
    render_mode = "rgb_array"
    shown = frames(64, 480, 640)

    def __init__(self) -> None:
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Begin anew."""
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        """Show the next picture."""
        self.steps += 1
        return np.zeros(2, np.float32), 0.0, False, False, {}

    def render(self) -> Any:
        """Return a picture."""
        return self.shown[self.steps % len(self.shown)]


def recorded(folder: Path, steps: int) -> Recording:
    """Record a video."""
    path = folder / f"run-{steps}"
    if not path.exists():
        storage = DictStorage({"render": VideoStorage()})
        with Recorder(Moving(), path, record_render=True, storage=storage, verbose=False) as env:
            env.reset()
            for _ in range(steps):
                env.step(0)
    return Recording(path)


def rows(folder: Path, runs: int) -> Iterator[Ratio]:
    """Single rows of four keys, at random places."""
    buffer, theirs = ReplayBuffer(ours(folder)), zarr.open_group(frame_files(folder), mode="r")["data"]
    shards = zarr.open_group(folder / "ours.zarr", mode="r")["data"]
    index = np.random.default_rng(0).integers(0, ROWS, 200).tolist()
    for name, group in (("frame files", theirs), ("shards", shards)):
        arrays = [group[key] for key in SPECS]  # type: ignore[index]
        yield from side_by_side(
            f"random row: {name} through zarr",
            len(index),
            lambda: [[buffer[key][i] for key in SPECS] for i in index],
            lambda arrays=arrays: [[array[i] for array in arrays] for i in index],  # type: ignore[misc]
            runs,
        )


def windows(folder: Path, runs: int) -> Iterator[Ratio]:
    """Windows of 16 rows, 16 a batch, the camera of all rows."""
    buffer, theirs = ReplayBuffer(ours(folder)), zarr.open_group(frame_files(folder), mode="r")["data"]
    shards = zarr.open_group(folder / "ours.zarr", mode="r")["data"]
    pictures = frames(ROWS)
    coded = [np.frombuffer(encode_webp(picture, QUALITY), np.uint8) for picture in pictures]
    sampler = WindowSampler(buffer, 16)
    drawn = [np.random.default_rng(k).integers(0, len(sampler), 16) for k in range(12)]
    count = 16 * len(drawn)
    batches = [episodes * EPISODE + starts for episodes, starts in map(sampler.places, drawn)]

    def read_ours() -> None:
        for numbers in drawn:
            sampler.read(numbers)

    def read(group: Any) -> None:
        arrays = [group[key] for key in SPECS]
        for starts in batches:
            for start in starts.tolist():
                for array in arrays:
                    array[start : start + 16]

    def bare() -> None:
        for starts in batches:
            wanted = (starts[:, None] + np.arange(16)).reshape(-1)
            on_all_cores(lambda i, wanted=wanted: decode_webp(coded[wanted[i]], (96, 96, 3)), len(wanted))  # type: ignore[misc]

    yield from side_by_side("windows: bare decoding x cores", count, read_ours, bare, runs)
    yield from side_by_side("windows: frame files through zarr", count, read_ours, lambda: read(theirs), few(runs))
    yield from side_by_side("windows: shards through zarr", count, read_ours, lambda: read(shards), few(runs))


def files(folder: Path, runs: int) -> Iterator[Ratio]:
    """Files and folders of 2,000 steps."""
    found = [len(list(path.rglob("*"))) for path in (ours(folder), frame_files(folder))]
    yield Ratio("files and folders of 2,000 steps", *map(float, found))


def memory(folder: Path, runs: int) -> Iterator[Ratio]:
    """Megabytes at most while 10 GB of raw pictures are converted, beside those before."""
    recording = recorded(folder, 11_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    to_zarr(recording, folder / "large.zarr", image_codec=WebP(QUALITY), overwrite=True, progress=False)
    yield Ratio("memory: MB at most, and before", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, before)


PARTS = {"write": write, "video": video, "rows": rows, "windows": windows, "files": files, "memory": memory}


def main() -> None:
    """Run the parts and print medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=[name for name in PARTS if name != "memory"])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if find_spec("versatil") is None:
        print("VersatIL is not installed: its layout is written and read through zarr-python instead", file=sys.stderr)
    folder = Path(tempfile.mkdtemp())
    found: dict[str, list[Ratio]] = {}
    for part in options.parts:
        for ratio in PARTS[part](folder, options.runs):
            found.setdefault(ratio.what, []).append(ratio)
    shutil.rmtree(folder)
    table = {
        what: {
            "ours": statistics.median(each.ours for each in ratios),
            "other": statistics.median(each.other for each in ratios),
            "ratio": statistics.median(each.ratio for each in ratios),
        }
        for what, ratios in found.items()
    }
    if options.json:
        print(json.dumps({"cores": CORES, "load": os.getloadavg()[0], **table}, indent=1))
        return
    print(f"{CORES} cores, load {os.getloadavg()[0]:.1f}\n\n| what | ours | other | ratio |\n|---|---:|---:|---:|")
    for what, row in table.items():
        print(f"| {what} | {row['ours']:,.0f} | {row['other']:,.0f} | {row['ratio']:.2f} |")


if __name__ == "__main__":
    main()
