"""Runs a scenario again and again, and each time lets it die, or fail, one operation on the disk later.

    python tests/crashing.py die|fail record|recover FOLDER [FIRST STEP]

Prints one JSON object: how many points were tried, and what was wrong at which of them. An audit hook sees every open
for writing, rename, mkdir, link and unlink below the folder; `os.fsync` is wrapped.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
from environments import CountingEnv

from recorder import DictStorage, Recorder, RecorderError, Recording, VideoStorage, ZarrStorage
from recorder.writing import recovery
from recorder.writing.recovery import recover

USUAL_SECONDS = recovery.UNBORN_SECONDS
if __name__ == "__main__":
    recovery.UNBORN_SECONDS = 0.0  # of a staging folder that never got its name; not where tests import this
STORAGE = DictStorage({"render": VideoStorage("h264rgb"), "observation": ZarrStorage()})
EVENTS = {"open", "os.rename", "os.mkdir", "os.link", "os.remove", "os.rmdir"}


class Bomb:
    """Counts operations on the disk below a folder, and does something at one of them."""

    def __init__(self, folder: Path, at: int, act: Callable[[], None]) -> None:
        self.count = 0
        self._folder = str(folder)
        self.at = at
        self._act = act
        self._fsync = os.fsync
        sys.addaudithook(self._hook)
        os.fsync = self._sync  # type: ignore[assignment]

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in EVENTS and str(arguments[0]).startswith(self._folder):
            if event == "open" and not arguments[2] & (os.O_WRONLY | os.O_RDWR):
                return
            self._tick()

    def _sync(self, descriptor: int) -> None:
        self._tick()
        self._fsync(descriptor)

    def _tick(self) -> None:
        self.count += 1
        if self.count == self.at:
            self._act()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fail() -> None:
    raise OSError(28, "No space left on device (on purpose)")


def record(folder: Path, acknowledge: Callable[[str], None]) -> None:
    """Two episodes and a flush, a third with a flush in the middle, an end; after a failure, once more."""
    env = Recorder(
        CountingEnv(None, "rgb_array"),
        folder / "run",
        record_render=True,
        storage=STORAGE,
        flush_every=60,
        verbose=False,
    )
    ids: list[str] = []

    def episode(steps: int, flush_at: int = 0) -> None:
        env.reset(seed=len(ids))
        ids.append(str(env.episode_id))
        for k in range(1, steps + 1):
            env.step(k % 4)
            if k == flush_at:
                env.flush()
                acknowledge(f"{ids[-1]} {k}")

    episode(4)
    episode(3)
    env.reset(seed=99)
    env.flush()
    acknowledge(f"{ids[0]} 4")
    acknowledge(f"{ids[1]} 3")
    episode(9, flush_at=5)
    env.end_episode()
    env.flush()
    acknowledge(f"{ids[-1]} 9")
    env.close()


def check(folder: Path, acknowledged: dict[str, int]) -> None:
    """Raise AssertionError unless every acknowledged episode is there once, whole, with the right rows."""
    if not (folder / "run" / "recording.json").exists():
        assert not acknowledged, "the recording is gone"
        return
    found = Recording(folder / "run")
    ids = [episode.id for episode in found]
    assert len(set(ids)) == len(ids), f"twice: {ids}"
    steps = {episode.id: len(episode) for episode in found}
    for episode, count in acknowledged.items():
        assert steps.get(episode, 0) >= count, f"{episode} has {steps.get(episode)} steps, {count} were acknowledged"
    for episode in found:
        rows = episode.observations[:, 0]
        assert rows.tolist() == list(range(len(episode) + 1)), rows
        assert episode.actions.tolist() == [k % 4 for k in range(1, len(episode) + 1)]
        expected = [frame(k) for k in range(len(episode) + 1)]
        np.testing.assert_array_equal(episode.renders, expected)


def frame(k: int) -> Any:
    env = CountingEnv(None)
    env.steps = k
    return env.render()


def attempt(work: Callable[[Path, Callable[[str], None]], None], folder: Path, at: int, act: Callable[[], None]) -> int:
    """Do the work in a child with a bomb at one operation; return how many operations it made, 0 if it died."""
    acknowledged = os.open(folder / "acknowledged", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        recovery.UNBORN_SECONDS = USUAL_SECONDS  # it may have a writer that fails and one that begins
        try:
            bomb = Bomb(folder / "run", at, act)
            try:
                work(folder, lambda line: os.write(acknowledged, f"{line}\n".encode()) and None)
            except (RecorderError, OSError):
                if act is die:
                    raise
                work(folder, lambda line: os.write(acknowledged, f"{line}\n".encode()) and None)
            os.write(writer, str(bomb.count).encode())
        except BaseException:  # noqa: BLE001 - it is reported
            os.write(writer, b"0 " + traceback.format_exc().encode())
        os._exit(0)
    os.close(writer)
    os.close(acknowledged)
    said = b""
    while piece := os.read(reader, 65536):
        said += piece
    os.close(reader)
    os.waitpid(child, 0)
    if said.startswith(b"0 "):
        raise AssertionError(said.decode())
    return int(said or 0)


def acknowledged_in(folder: Path) -> dict[str, int]:
    lines = (folder / "acknowledged").read_text().split("\n")
    pairs = [line.split() for line in lines if line]
    return {episode: int(steps) for episode, steps in pairs}


def recovering(folder: Path, acknowledge: Callable[[str], None]) -> None:
    recover(folder / "run")


def points(mode: str, what: str, folder: Path, first: int, step: int) -> dict[str, Any]:
    act = die if mode == "die" else fail
    faults: dict[int, str] = {}
    tried, at = 0, first
    half = None
    if what == "recover":
        half = folder / "half"
        half.mkdir()
        killed_after_checkpoint(half)
    while True:
        place = folder / f"{mode}-{what}-{at}"
        if half is not None:
            shutil.copytree(half, place)
        else:
            place.mkdir()
        try:
            operations = attempt(record if what == "record" else recovering, place, at, act)
            recover(place / "run")
            check(place, acknowledged_in(place))
            left = list((place / "run" / "staging").iterdir()) if (place / "run" / "staging").exists() else []
            assert not left, f"left in staging: {left}"
        except Exception:  # noqa: BLE001 - it is reported
            faults[at] = traceback.format_exc()[-2000:]
            operations = 0
        tried += 1
        shutil.rmtree(place, ignore_errors=True)
        if 0 < operations < at:
            return {"tried": tried, "operations": operations, "faults": faults}
        if tried > 2000 or len(faults) > 20:
            return {"tried": tried, "operations": 0, "faults": faults or {0: "no end"}}
        at += step


def killed_after_checkpoint(folder: Path) -> None:
    """Record in a child that dies three operations after the checkpoint in the middle of the third episode."""
    acknowledged = os.open(folder / "acknowledged", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    child = os.fork()
    if child == 0:
        bomb = Bomb(folder / "run", -1, die)

        def acknowledge(line: str) -> None:
            os.write(acknowledged, f"{line}\n".encode())
            if line.endswith(" 5"):
                bomb.at = bomb.count + 3

        record(folder, acknowledge)
        os._exit(0)
    os.close(acknowledged)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), "it was to be killed"


if __name__ == "__main__":
    mode, what, folder, *rest = sys.argv[1:]
    first, step = map(int, rest or (1, 1))
    print(json.dumps(points(mode, what, Path(folder), first, step)))
