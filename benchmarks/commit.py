"""What a commit and a checkpoint cost: milliseconds of the worker's time each, and their share of the run time.

    python benchmarks/commit.py [--seconds 10] [--flush-every 1] [--to FOLDER]

The worker does both while the environment steps; a loop that does not flush waits for neither. Times are those of the
clock and, in brackets, of the processor, which tell more on a busy machine. `--to` names a folder on the disk that is
to be measured.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from recorder import DictStorage, HDF5Storage, Recorder, Storage, VideoStorage, ZarrStorage
from recorder.writing.committing import Committer


class Cameras(gym.Env[Any, Any]):
    """Gives numbers, and so many pictures of 480 x 640 that move."""

    def __init__(self, cameras: int, length: int, pause: float) -> None:
        picture = spaces.Box(0, 255, (480, 640, 3), np.uint8)
        self.observation_space = spaces.Dict(
            {f"camera{i}": picture for i in range(cameras)} | {"joints": spaces.Box(-1, 1, (16,), np.float32)}
        )
        self.action_space = spaces.Box(-1, 1, (8,), np.float32)
        self._length, self._pause, self._steps = length, pause, 0
        y, x = np.mgrid[:480, :640]
        self._picture = np.stack([x, y, (x + y) // 2], axis=-1).astype(np.uint8)

    def _observe(self) -> dict[str, Any]:
        frames = {name: np.roll(self._picture, self._steps, 1) for name in self.observation_space if name != "joints"}
        return {**frames, "joints": np.full(16, self._steps / 1e6, np.float32)}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(self._pause)
        self._steps += 1
        return self._observe(), 0.0, self._steps == self._length, False, {}


class Case(NamedTuple):
    """What is recorded: cameras, steps of an episode, seconds of a step, and how it is kept."""

    name: str
    cameras: int
    length: int
    pause: float
    storage: Storage


CASES = [
    Case("numbers, episodes of 50 steps", 0, 50, 0.0, HDF5Storage()),
    Case("numbers, one long episode at 200 Hz", 0, 10**9, 0.005, HDF5Storage()),
    Case("a camera at 30 Hz as video, one long episode", 1, 10**9, 1 / 30, DictStorage({"camera0": VideoStorage()})),
    Case("a camera at 30 Hz as video, episodes of 60 steps", 1, 60, 1 / 30, DictStorage({"camera0": VideoStorage()})),
    Case("a camera at 10 Hz as WebP, one long episode", 1, 10**9, 0.1, DictStorage({"camera0": ZarrStorage()})),
]


class Taken(NamedTuple):
    """Milliseconds of one call: by the clock, and of the processor."""

    wall: float
    processor: float


class Times:
    """What the calls of some methods took."""

    def __init__(self) -> None:
        self.taken: dict[str, list[Taken]] = {"commit": [], "checkpoint": []}
        self._kept = {"_commit": Committer._commit, "_checkpoint": Committer._checkpoint}

    def __enter__(self) -> Times:
        for name, method in self._kept.items():
            setattr(Committer, name, self._timed(name.lstrip("_"), method))
        return self

    def __exit__(self, *_: object) -> None:
        for name, method in self._kept.items():
            setattr(Committer, name, method)

    def _timed(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def timed(committer: Committer, *arguments: Any) -> Any:
            idle = name == "checkpoint" and not (committer._running and committer._unsaved)
            wall, processor = time.perf_counter(), time.thread_time()
            result = method(committer, *arguments)
            if not idle:
                taken = Taken((time.perf_counter() - wall) * 1000, (time.thread_time() - processor) * 1000)
                self.taken[name].append(taken)
            return result

        return timed


def paths(case: Case) -> Storage:
    """Return the storage with the paths of leaves."""
    if not isinstance(case.storage, DictStorage):
        return case.storage
    return DictStorage({f"observation/{name}": storage for name, storage in case.storage.storages.items()})


def measure(case: Case, folder: Path, seconds: float, flush_every: float, fsync: bool) -> str:
    """Record for so long, and return a line of the table."""
    env = Cameras(case.cameras, case.length, case.pause)
    with Times() as times:
        recorder = Recorder(
            env, folder / "run", storage=paths(case), flush_every=flush_every, fsync=fsync, verbose=False
        )
        action = np.zeros(8, np.float32)
        recorder.reset(seed=0)
        ends = time.perf_counter() + seconds
        while time.perf_counter() < ends:
            if recorder.step(action)[2]:
                recorder.reset()
        recorder.flush()
        recorder.close()
    cells = [case.name, "yes" if fsync else "no"]
    for taken in times.taken.values():
        medians = [statistics.median(column) for column in zip(*taken, strict=True)]
        cells += [f"{medians[0]:.1f} ({medians[1]:.1f})", f"{max(taken).wall:.1f}"] if taken else ["-", "-"]
    used = sum(one.processor for taken in times.taken.values() for one in taken)
    cells.append(f"{used / seconds / 10:.2f} %")
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--flush-every", type=float, default=1)
    parser.add_argument("--to", type=Path, default=None)
    options = parser.parse_args()
    print("| recorded | fsync | commit, ms | most | checkpoint, ms | most | processor, of the run time |")
    print("|---|---|---|---|---|---|---|")
    for case in CASES:
        for fsync in (True, False):
            with tempfile.TemporaryDirectory(dir=options.to) as folder:
                print(measure(case, Path(folder), options.seconds, options.flush_every, fsync), flush=True)


if __name__ == "__main__":
    main()
