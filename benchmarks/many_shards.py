"""Opening a large recording: seconds until `len`, the first and the last episode are there, and bytes an episode.

    python benchmarks/many_shards.py [--shards 100000] [--episodes 10] [--folder PLACE]

The recording is made of one real shard with new names: every file is a hard link, so 100,000 shards of 10 episodes take
a minute and 400 MB of folders. Each opening is a process of its own; the imports of the package are not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import gymnasium as gym

from recorder import Recorder
from recorder.catalogue import save_index
from recorder.index import INDEX
from recorder.shard import shard_name

LINKS = 50_000
"""Names that a file is given; ext4 allows 65,000."""

OPEN = """
import json, os, resource, sys, time
import h5py
from recorder import Recording
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
small = Recording(sys.argv[2]); small[0].rewards; small.close()
before = resident()
started = time.perf_counter()
recording = Recording(sys.argv[1])
count = len(recording)
opened = time.perf_counter()
first, last = recording[0].rewards, recording[-1].rewards
ended = time.perf_counter()
grown = (resident() - before) / count
print(json.dumps({"episodes": count, "open": opened - started, "all": ended - started, "bytes": grown}))
"""


class Opening(NamedTuple):
    """Medians over some openings: seconds to `len`, seconds to the last episode, and memory an episode."""

    episodes: int
    open: float
    all: float
    bytes: float


def record_one(folder: Path, episodes: int) -> Path:
    """Record CartPole episodes into one shard and return its folder."""
    with Recorder(gym.make("CartPole-v1"), folder, verbose=False) as env:
        env.action_space.seed(0)
        for seed in range(episodes):
            env.reset(seed=seed)
            done = False
            while not done:
                _, _, terminated, truncated, _ = env.step(env.action_space.sample())
                done = terminated or truncated
    (shard,) = (folder / "shards").iterdir()
    return shard


def multiply(shard: Path, folder: Path, shards: int) -> None:
    """Make a recording of as many shards out of one."""
    (folder / "shards").mkdir(parents=True)
    shutil.copyfile(shard.parent.parent / "recording.json", folder / "recording.json")
    files = [path.name for path in shard.iterdir()]
    writer, begun = shard.name.split("-")[1], datetime(2026, 1, 1, tzinfo=UTC)
    source = shard
    for i in range(shards):
        place = folder / "shards" / shard_name(writer, i, begun + timedelta(seconds=10 * i))
        place.mkdir()
        for name in files:
            if i % LINKS:
                os.link(source / name, place / name)
            else:
                shutil.copyfile(shard / name, place / name)
        source = source if i % LINKS else place


def opening(folder: Path, small: Path, runs: int) -> Opening:
    """Open a recording in new processes, `small` before it so that no library is first used."""
    command = [sys.executable, "-c", OPEN, str(folder), str(small)]
    found = [
        json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout) for _ in range(runs)
    ]
    return Opening(*(statistics.median(one[name] for one in found) for name in Opening._fields))


def measure(shards: int, episodes: int, runs: int, place: Path | None = None) -> dict[str, Opening]:
    """Return what opening takes without the index, and with it."""
    folder = Path(tempfile.mkdtemp(dir=place))
    try:
        shard = record_one(folder / "small", episodes)
        multiply(shard, folder / "large", shards)
        small, large = folder / "small", folder / "large"
        without = opening(large, small, 1)
        save_index(large)
        found = {"without an index": without, "with its index": opening(large, small, runs)}
        (large / INDEX).write_bytes((large / INDEX).read_bytes()[:-2])
        return {**found, "with an index that is cut": opening(large, small, 1)}
    finally:
        shutil.rmtree(folder)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, default=100_000)
    parser.add_argument("--episodes", type=int, default=10, help="episodes a shard")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where the recording is made")
    options = parser.parse_args()
    print("| | episodes | `len`, s | and first and last episode, s | bytes an episode |\n|---|---:|---:|---:|---:|")
    for name, row in measure(options.shards, options.episodes, options.runs, options.folder).items():
        print(f"| {name} | {row.episodes:,.0f} | {row.open:.2f} | {row.all:.2f} | {row.bytes:.0f} |")


if __name__ == "__main__":
    main()
