"""Record a robot: a loop of 30 Hz, two cameras at rates of their own, a reader of joints, and nothing that blocks.

    python examples/robot.py runs/robot --seconds 3

Cameras and joints are simulated; put your drivers in their place. Each has a thread that keeps its newest reading with
the time of its capture. The loop takes what is there, whether it is new or not, and the recording says which it was.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from recorder import CommitOptions, Recording, RecordingWriter, StepSpace
from recorder.timing import slips, timing

RATE = 30.0
SIDE = (240, 320, 3)
JOINTS = 7
TIMED = ("observation/front", "observation/wrist", "observation/joints")


class Reading(NamedTuple):
    """What a sensor gave, and when, by `time.perf_counter()`."""

    value: np.ndarray
    captured: float


class Sensor:
    """Reads in a thread of its own, and keeps the newest reading."""

    def __init__(self, read: Callable[[int], np.ndarray], rate: float) -> None:
        self._read = read
        self._rate = rate
        self._stop = threading.Event()
        self.newest = Reading(read(0), time.perf_counter())
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        count, due = 1, time.perf_counter()
        while not self._stop.is_set():
            self.newest = Reading(self._read(count), time.perf_counter())
            count, due = count + 1, due + 1 / self._rate
            self._stop.wait(max(due - time.perf_counter(), 0))

    def close(self) -> None:
        """Stop reading."""
        self._stop.set()
        self._thread.join()


def camera(shade: int) -> Callable[[int], np.ndarray]:
    """Return a camera that sees a bar move."""

    def read(count: int) -> np.ndarray:
        frame = np.full(SIDE, shade, np.uint8)
        frame[:, count * 4 % SIDE[1] :][:, :16] = 255
        return frame

    return read


def joints(count: int) -> np.ndarray:
    """Return the angles of a swinging arm."""
    return np.sin(np.arange(JOINTS) + count / 50).astype(np.float32)


def space() -> StepSpace:
    """Return what a row holds."""
    picture = spaces.Box(0, 255, SIDE, np.uint8)
    picture.metadata = {"kind": "image", "fps": RATE}
    angles = spaces.Box(-np.pi, np.pi, (JOINTS,), np.float32)
    angles.metadata = {"kind": "proprio", "units": "rad"}
    return StepSpace(spaces.Dict(front=picture, wrist=picture, joints=angles), angles, times=TIMED)


def row(sensors: dict[str, Sensor], writer: RecordingWriter) -> dict[str, Any]:
    """Return the newest readings, and when they were captured, as seconds since the beginning of the episode."""
    newest = {name: sensor.newest for name, sensor in sensors.items()}
    return {
        "observation": {name: reading.value for name, reading in newest.items()},
        "times": {f"observation/{name}": writer.since_begin(reading.captured) for name, reading in newest.items()},
    }


def record(path: Path, seconds: float, task: str) -> None:
    """Record one episode of a task."""
    sensors = {"front": Sensor(camera(60), 30.0), "wrist": Sensor(camera(160), 12.0), "joints": Sensor(joints, 200.0)}
    # Where an encoder is slower than the loop, the last picture stands for the one that had no room, and is marked.
    options = CommitOptions(when_behind="repeat")
    try:
        with RecordingWriter(path, space(), options=options) as writer:
            writer.begin()
            writer.label(task=task, instruction=f"{task}, and put it into the bowl")
            writer.append(row(sensors, writer))
            due = time.perf_counter()
            for _ in range(round(seconds * RATE)):
                due += 1 / RATE
                time.sleep(max(due - time.perf_counter(), 0))
                action = sensors["joints"].newest.value * 0.9  # your policy
                rest = {"action": action, "reward": 0.0, "terminated": False, "truncated": False}
                writer.append({**row(sensors, writer), **rest})
            writer.commit(success=True)
    finally:
        for sensor in sensors.values():
            sensor.close()


def main() -> None:
    """Record an episode, and say how it went."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--task", default="pick up the cup")
    options = parser.parse_args()
    record(options.path, options.seconds, options.task)
    episode = Recording(options.path)[-1]
    print(episode, dict(episode.labels))
    print("loop:", slips(episode, RATE))
    for path in TIMED:
        found = timing(episode, path)
        print(
            f"{path}: {found.repeated.sum()} of {len(found.age)} rows repeated, "
            f"{found.late(1 / RATE).sum()} older than a row, oldest {found.age.max() * 1000:.0f} ms"
        )


if __name__ == "__main__":
    main()
