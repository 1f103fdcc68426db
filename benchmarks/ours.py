"""What this package does with the same work as its peers, and the limits of the machine.

    python -m benchmarks.ours '{"work": "env", "env": "CartPole-v1", "steps": 100000, "folder": "/tmp/x"}'

Each work is a function that is given `wanted` and returns numbers; the command `python -m benchmarks` calls each in a
process of its own.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
sys.path.insert(0, str(Path(__file__).parent / "peers"))

import av
import gymnasium as gym
import imagecodecs
import numpy as np
from workloads import answer, arguments, play, player, seconds, size_of

from benchmarks.defaults import quality
from recorder import Recorder, Recording, VideoStorage
from recorder.leaf import Leaf
from recorder.storages.video_codecs import CODECS

Wanted = dict[str, Any]
Found = dict[str, Any]


def recorded(env: gym.Env[Any, Any], wanted: Wanted, random: bool = False) -> float:
    """Return the seconds that recording takes, all of it on disk."""

    def record() -> None:
        with Recorder(env, Path(wanted["folder"]) / "run", verbose=False) as recorder:
            play(recorder, wanted["steps"], random)

    return seconds(record)


def env(wanted: Wanted) -> Found:
    """Record an environment, and step it without."""
    bare = seconds(lambda: play(gym.make(wanted["env"]), wanted["steps"]))
    return {
        "bare": bare,
        "recorded": recorded(gym.make(wanted["env"]), wanted, True),
        "bytes": size_of(wanted["folder"]),
    }


def camera(wanted: Wanted) -> Found:
    """Record frames and floats; the limit is the bare codec, over the same frames, with the same settings."""
    frames = np.load(wanted["frames"])
    count, length = wanted["steps"], wanted["length"]
    took = recorded(player(frames, length), wanted)
    size = size_of(wanted["folder"])
    folder = Path(wanted["folder"])
    lossy = min(frames.shape[1:3]) >= 128
    limit = seconds(lambda: (bare_video if lossy else bare_webp)(folder, frames, count))
    found: Found = {"recorded": took, "bare": limit, "bytes": size}
    if wanted.get("read"):
        found |= reading(folder / "run", wanted["read"])
        found["psnr"] = quality_of(folder / "run", frames)
    return found


def bare_video(folder: Path, frames: Any, count: int) -> None:
    """Code frames by a plain loop over PyAV, with the settings of our default."""
    coding = VideoStorage().coding(Leaf("camera", frames.shape[1:], "uint8", "image"))
    codec = CODECS[coding.codec]
    with av.open(str(folder / "bare.mp4"), "w") as container:
        stream = container.add_stream(codec.encoder, 30, dict(codec.options(coding)))
        stream.height, stream.width, stream.pix_fmt = *frames.shape[1:3], codec.pixels[coding.pixels]
        stream.codec_context.gop_size, stream.codec_context.max_b_frames = coding.keyframe_every, 0
        stream.codec_context.thread_count = 1
        for i in range(count):
            for packet in stream.encode(av.VideoFrame.from_ndarray(frames[i % len(frames)], format="rgb24")):
                container.mux(packet)
        for packet in stream.encode(None):
            container.mux(packet)


def bare_webp(folder: Path, frames: Any, count: int) -> None:
    """Code frames by a plain loop over the codec, and write one file."""
    with (folder / "bare.webp").open("wb") as file:
        for i in range(count):
            file.write(imagecodecs.webp_encode(frames[i % len(frames)], lossless=True, method=0))


def reading(path: Path, count: int) -> Found:
    """Return random frames a second: one after another, and by a bare seek and decode of the same files."""
    recording = Recording(path)
    columns = [episode.columns["observation/camera"] for episode in recording]
    random = np.random.default_rng(0)
    picks = [(int(random.integers(len(columns))), random.random()) for _ in range(count)]
    columns[0][0]
    took = seconds(lambda: [columns[k][int(at * len(columns[k]))] for k, at in picks])
    starts = [(k, int(at * (len(columns[k]) - 16))) for k, at in picks[: count // 8]]
    windows = seconds(lambda: [columns[k][start : start + 16] for k, start in starts])
    found = {"items_per_second": count / took, "windows_per_second": len(starts) / windows}
    videos = sorted(path.rglob("*.mp4"))
    if videos:
        found["bare_per_second"] = count / bare_seeks(videos, picks)
    return found


def bare_seeks(videos: Sequence[Path], picks: Sequence[tuple[int, float]]) -> float:
    """Return the seconds that seeking in open videos and decoding takes."""
    containers = [av.open(str(video)) for video in videos]
    times = []
    for container in containers:
        times.append([packet.pts for packet in container.demux(video=0) if packet.pts is not None])
        container.streams.video[0].thread_count = 1

    def read() -> None:
        for k, at in picks:
            pts = times[k][int(at * len(times[k]))]
            stream = containers[k].streams.video[0]
            containers[k].seek(pts, stream=stream)
            next(frame for frame in containers[k].decode(stream) if frame.pts >= pts).to_ndarray(format="rgb24")

    took = seconds(read)
    for container in containers:
        container.close()
    return took


def quality_of(path: Path, frames: Any) -> float:
    """Return the PSNR of the frames of the first episode."""
    back = Recording(path)[0].columns["observation/camera"][:60]
    return quality(frames[: len(back)], back)[0]


def realtime(wanted: Wanted) -> Found:
    """Step at 30 Hz with cameras of 480 x 640; milliseconds of `step` and of the reset after it."""
    frames = np.load(wanted["frames"])
    cameras = wanted["cameras"]
    steps = wanted["steps"]

    class Robot(gym.Env[Any, Any]):
        observation_space = gym.spaces.Dict(
            {f"camera{k}": gym.spaces.Box(0, 255, frames.shape[1:], np.uint8) for k in range(cameras)}
        )
        action_space = gym.spaces.Box(-1, 1, (7,), np.float32)
        i = 0

        def _seen(self) -> Any:
            return {f"camera{k}": frames[(self.i + 7 * k) % len(frames)] for k in range(cameras)}

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            return self._seen(), {}

        def step(self, action: Any) -> Any:
            self.i += 1
            return self._seen(), 0.0, False, False, {}

    took = []
    action = np.zeros(7, np.float32)
    with Recorder(Robot(), Path(wanted["folder"]) / "run", verbose=False) as robot:
        robot.reset(seed=0)
        due = time.perf_counter()
        for _ in range(steps):
            due += 1 / 30
            time.sleep(max(due - time.perf_counter(), 0))
            took.append(seconds(lambda: robot.step(action)) * 1e3)
        reset = seconds(lambda: robot.reset()) * 1e3
        robot.step(action)
    p50, p99 = np.percentile(took, [50, 99])
    return {"p50": float(p50), "p99": float(p99), "max": max(took), "reset": reset}


def memory(wanted: Wanted) -> Found:
    """Record many camera steps; how much the memory of the process changes after the first tenth, in MB."""
    frames = np.load(wanted["frames"])
    env = player(frames, wanted["length"])
    sizes = []
    with Recorder(env, Path(wanted["folder"]) / "run", verbose=False) as recorder:
        for part in range(20):
            play(recorder, wanted["steps"] // 20, False)
            if part >= 2:
                sizes.append(resident())
    return {"grown": sizes[-1] - sizes[0], "spread": max(sizes) - min(sizes), "most": max(sizes)}


def resident() -> float:
    """Return the memory of this process in MB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def episodes(wanted: Wanted) -> Found:
    """Record many short episodes; microseconds of the reset and the first step of each."""
    took = []
    with Recorder(gym.make("CartPole-v1"), Path(wanted["folder"]) / "run", verbose=False) as env:
        for _ in range(wanted["episodes"]):
            started = time.perf_counter()
            env.reset()
            env.step(0)
            took.append((time.perf_counter() - started) * 1e6)
            for k in range(6):
                env.step(k % 2)
    tenth = wanted["episodes"] // 10
    first, last = statistics.median(took[:tenth]), statistics.median(took[-tenth:])
    return {"first": first, "last": last, "ratio": last / first}


def limits(wanted: Wanted) -> Found:
    """Measure what no recorder can beat: copying in memory, writing to the disk, coding and decoding alone."""
    frames = np.load(wanted["frames"])
    folder = Path(wanted["folder"])
    room = np.empty_like(frames[0])
    copied = statistics.median(seconds(lambda i=i: np.copyto(room, frames[i])) for i in range(len(frames)))
    data = os.urandom(64 << 20)

    def write() -> None:
        with (folder / "disk").open("wb") as file:
            for _ in range(4):
                file.write(data)
            file.flush()
            os.fsync(file.fileno())

    wrote = 256 / seconds(write)
    coded = seconds(lambda: bare_video(folder, frames, len(frames)))

    def decode() -> None:
        with av.open(str(folder / "bare.mp4")) as container:
            container.streams.video[0].thread_count = 1
            for frame in container.decode(video=0):
                frame.to_ndarray(format="rgb24")

    return {
        "copy_ms": copied * 1e3,
        "disk_mib_per_second": wrote,
        "encode_per_second": len(frames) / coded,
        "decode_per_second": len(frames) / seconds(decode),
    }


def sizes(wanted: Wanted) -> Found:
    """Return bytes a frame and PSNR of our video for several qualities."""
    from benchmarks.defaults import measure, picture_leaf

    frames = np.load(wanted["frames"])
    points = []
    for crf in wanted["crf"]:
        found = measure(VideoStorage(crf=crf), picture_leaf(frames), frames)
        points.append((crf, found.bytes, found.psnr))
    return {"points": points}


WORKS: dict[str, Callable[[Wanted], Found]] = {
    work.__name__: work for work in (env, camera, realtime, memory, episodes, limits, sizes)
}


def works() -> Iterator[str]:
    """Yield the names of all works."""
    yield from WORKS


def main() -> None:
    """Do one work and say what was found."""
    wanted = arguments()
    folder = Path(tempfile.mkdtemp(prefix="recorder-"))
    try:
        answer(**WORKS[wanted["work"]]({"folder": str(folder), **wanted}))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
