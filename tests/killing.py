"""Kills processes that record, at random instants, and looks at what is left after recovery.

    python tests/killing.py FOLDER SEED COUNT

Prints one JSON object: how many were killed, how many episodes and steps there were, how many seconds of steps were
lost (median, 95 of 100, most; for each `flush_every`), and what was wrong with which. Each process notes every step in
a file of its own before it makes the next, and every episode of which it was told that it is on disk.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
from environments import CountingEnv

from recorder import (
    DictStorage,
    HDF5Storage,
    ImageFileStorage,
    NpzStorage,
    ParquetStorage,
    Recorder,
    Recording,
    VideoStorage,
    ZarrStorage,
)
from recorder.verify import verify
from recorder.writing import recovery
from recorder.writing.recovery import recover

USUAL_SECONDS = recovery.UNBORN_SECONDS
if __name__ == "__main__":
    recovery.UNBORN_SECONDS = 0.0  # of a staging folder that never got its name; not where tests import this

STORAGES: dict[str, Any] = {
    "hdf5": HDF5Storage(),
    "hdf5-gzip": HDF5Storage("gzip"),
    "npz": NpzStorage(),
    "parquet": ParquetStorage(),
    "zarr": DictStorage({"observation": ZarrStorage()}),
    "video": DictStorage({"render": VideoStorage("h264rgb"), "observation": ZarrStorage()}),
    "images": DictStorage({"render": ImageFileStorage()}),
}


class Case(NamedTuple):
    """How one recording is made, and for how long."""

    storage: str
    flush_every: float
    length: int | None
    pause: float
    writers: int
    seconds: float


def draw(chance: random.Random) -> Case:
    """Return a case at random."""
    storage = chance.choice(list(STORAGES))
    return Case(
        storage,
        chance.choice([0.0, 0.2, 1.0]),
        chance.choice([1, 3, 20, 20, 200, None]),
        chance.choice([0.0, 0.001, 0.01]) if storage in ("hdf5", "npz", "zarr") else chance.choice([0.001, 0.01]),
        chance.choice([1, 1, 2]),
        chance.uniform(0.05, 2.5),
    )


def record(path: Path, case: Case, log: int, seed: int) -> None:
    """Record until killed; note each step, and what is on disk for sure."""
    chance = random.Random(seed)
    pictures = case.storage in ("video", "images")
    env = Recorder(
        CountingEnv(case.length, "rgb_array" if pictures else None),
        path,
        record_render=pictures,
        storage=STORAGES[case.storage],
        flush_every=case.flush_every,
        verbose=False,
    )
    over: list[tuple[str, int]] = []
    while True:
        env.reset(seed=seed)
        if case.flush_every == 0:
            over = [os.write(log, f"on disk {name} {steps}\n".encode()) and (name, 0) for name, steps in over][:0]
        done, k, name = False, 0, ""
        while not done:
            k += 1
            _, _, terminated, truncated, _ = env.step(k % 4)
            name = name or str(env.episode_id)
            os.write(log, f"step {name} {k} {time.monotonic()}\n".encode())
            done = terminated or truncated
            time.sleep(case.pause)
            if chance.random() < 0.002:
                env.flush()
                for earlier, steps in [*over, (name, k)]:
                    os.write(log, f"on disk {earlier} {steps}\n".encode())
                over = []
        over.append((name, k))


class Told(NamedTuple):
    """What the processes noted: when each step was made, and what is on disk for sure."""

    steps: dict[str, list[float]]
    on_disk: dict[str, int]


def told(logs: list[Path]) -> Told:
    """Read what the processes noted."""
    found = Told({}, {})
    for line in (line for log in logs for line in log.read_text().split("\n")[:-1]):
        what, *rest = line.split(" ")
        if what == "step":
            found.steps.setdefault(rest[0], []).append(float(rest[2]))
        else:
            found.on_disk[rest[1]] = max(int(rest[2]), found.on_disk.get(rest[1], 0))
    return found


def start(work: Callable[[], None]) -> int:
    """Do some work in a child."""
    process = os.fork()
    if process == 0:
        recovery.UNBORN_SECONDS = USUAL_SECONDS  # two writers may begin at once
        try:
            work()
        finally:
            os._exit(0)
    return process


def killed(folder: Path, case: Case, seed: int) -> tuple[Told, float, list[str]]:
    """Let processes record and kill them all; return what they noted, when it was, and which episodes one could see."""
    logs = [folder / f"log-{i}" for i in range(case.writers)]
    processes = []
    for i, log in enumerate(logs):
        descriptor = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        processes.append(start(lambda d=descriptor, i=i: record(folder / "run", case, d, seed + i)))  # type: ignore[misc]
        os.close(descriptor)
    while seed % 10 and not all(log.stat().st_size for log in logs):  # one in ten may be killed before its first step
        time.sleep(0.01)
        assert all(os.waitpid(process, os.WNOHANG) == (0, 0) for process in processes), f"{case}: a writer failed"
    time.sleep(case.seconds)
    seen = visible(folder / "run")
    for process in processes:
        os.kill(process, signal.SIGKILL)
    when = time.monotonic()
    for process in processes:
        os.waitpid(process, 0)
    return told(logs), when, seen


def visible(path: Path) -> list[str]:
    """Return the ids of the episodes that a reader sees."""
    return [str(name) for name in Recording(path).table()["id"]] if (path / "recording.json").exists() else []


def check(path: Path, case: Case, noted: Told, seen: list[str]) -> dict[str, int]:
    """Recover, and raise AssertionError unless all that was told to be on disk is there, once and right."""
    if not (path / "recording.json").exists():
        assert not noted.on_disk and not seen, "the recording is gone"
        return {}
    recovered = recover(path)
    found = Recording(path)
    ids = [str(name) for name in found.table()["id"]]
    assert len(set(ids)) == len(ids), f"twice: {sorted(name for name in ids if ids.count(name) > 1)}"
    assert set(seen) <= set(ids), f"was visible and is lost: {set(seen) - set(ids)}"
    steps = dict(zip(ids, found.table()["steps"].tolist(), strict=True))
    short = {name: (steps.get(name), count) for name, count in noted.on_disk.items() if steps.get(name, 0) < count}
    # A frame of a video that still runs is in the encoder until the next one comes.
    delay = 1 if case.storage == "video" else 0
    assert all((has or 0) >= count - delay for has, count in short.values()), f"acknowledged and lost: {short}"
    for episode in (found[i] for i in range(max(len(found) - 20, 0), len(found))):
        check_rows(episode)
    sound = verify(path, decode=len(found) < 100)
    assert sound.sound, str(sound)
    left = list((path / "staging").iterdir()) if (path / "staging").exists() else []
    assert not left, f"left in staging: {left}, {recovered}"
    return steps


def check_rows(episode: Any) -> None:
    """Raise AssertionError unless an episode has the rows that its environment gives."""
    assert episode.observations[:, 0].tolist() == list(range(len(episode) + 1))
    assert episode.actions.tolist() == [k % 4 for k in range(1, len(episode) + 1)]
    if "render" in episode.columns:
        env = CountingEnv(None)
        for k in (0, len(episode) // 2, len(episode)):
            env.steps = k
            np.testing.assert_array_equal(episode.columns["render"][k], env.render())


class Loss(NamedTuple):
    """Seconds of steps that are lost, from the first of them to the last, and the age of the first at the kill.

    The second is larger where `step` waited for the disk.
    """

    span: float
    age: float


def loss(noted: Told, steps: dict[str, int], when: float) -> Loss:
    """Return what is lost; of two writers, of the one that lost more."""
    worst = Loss(0.0, 0.0)
    for writer in {name.split("-")[0] for name in noted.steps}:
        own = {name: times for name, times in noted.steps.items() if name.startswith(writer)}
        lost = [times[steps.get(name, 0)] for name, times in own.items() if len(times) > steps.get(name, 0)]
        if lost:
            last = max(max(times) for times in own.values())
            worst = max(worst, Loss(last - min(lost), when - min(lost)))
    return worst


def run(folder: Path, seed: int, count: int) -> dict[str, Any]:
    """Kill so many recordings."""
    warnings.simplefilter("ignore")
    faults: list[Any] = []
    losses: dict[float, list[Loss]] = {}
    episodes = steps_made = processes = remains = 0
    for i in range(seed, seed + count):
        chance = random.Random(i)
        case = draw(chance)
        place = folder / f"kill-{i}"
        place.mkdir(parents=True)
        noted, when, seen = killed(place, case, i)
        processes += case.writers
        steps_made += sum(map(len, noted.steps.values()))
        try:
            steps = check(place / "run", case, noted, seen)
            episodes += len(steps)
            remains += len(list((place / "run" / "discarded").glob("*")))
            losses.setdefault(case.flush_every, []).append(loss(noted, steps, when))
        except Exception:  # noqa: BLE001 - it is reported
            faults.append([i, case, traceback.format_exc()[-2000:]])
        shutil.rmtree(place, ignore_errors=True)
    return {
        "killed": processes,
        "recordings": count,
        "episodes": episodes,
        "steps": steps_made,
        "remains": remains,
        "lost": {every: quantiles(values) for every, values in sorted(losses.items())},
        "faults": faults,
    }


def quantiles(losses: list[Loss]) -> dict[str, float]:
    """Return median, 95 of 100, and the most of what was lost, and of its age."""
    spans, ages = zip(*losses, strict=True)
    return {
        "count": len(losses),
        **{name: round(float(np.quantile(spans, q)), 3) for name, q in (("p50", 0.5), ("p95", 0.95), ("max", 1))},
        "oldest": round(max(ages), 3),
    }


if __name__ == "__main__":
    place, first, many = sys.argv[1:]
    print(json.dumps(run(Path(place), int(first), int(many))))
