"""What recording costs: the wall time of the same loop with a Recorder over that without one.

    python benchmarks/overhead.py [CartPole-v1 CarRacing-v3 ...] [--runs 5] [--json]

Both sides run in turn in one process, A B A B …, with the same actions; the ratio of each pair is taken, and its median
quoted. Closing the Recorder, which commits everything to disk with fsync, is part of the recorded side.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("SDL_VIDEODRIVER", "dummy")

import gymnasium as gym

from recorder import Recorder

STEPS = {"CartPole-v1": 100_000, "Pendulum-v1": 50_000, "CarRacing-v3": 600, "LunarLander-v3": 20_000}


class Pair(NamedTuple):
    """Microseconds a step without and with a Recorder, in one pair of runs."""

    bare: float
    recorded: float


def loop(env: gym.Env[Any, Any], steps: int) -> None:
    """Take random steps, always the same ones, and reset at the end of episodes."""
    env.action_space.seed(0)
    env.reset(seed=0)
    for _ in range(steps):
        _, _, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            env.reset()


def pair(name: str, steps: int) -> Pair:
    """Time one pair of runs."""
    bare = gym.make(name)
    started = time.perf_counter()
    loop(bare, steps)
    between = time.perf_counter()
    bare.close()
    folder = Path(tempfile.mkdtemp())
    recorded = Recorder(gym.make(name), folder / "run", verbose=False)
    again = time.perf_counter()
    loop(recorded, steps)
    recorded.close()
    ended = time.perf_counter()
    shutil.rmtree(folder)
    return Pair((between - started) / steps * 1e6, (ended - again) / steps * 1e6)


def main() -> None:
    """Run the pairs and print medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=["CartPole-v1", "Pendulum-v1", "CarRacing-v3"])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found: dict[str, dict[str, float]] = {}
    for name in options.names:
        pair(name, max(STEPS.get(name, 5_000) // 10, 1))
        pairs = [pair(name, STEPS.get(name, 5_000)) for _ in range(options.runs)]
        ratios = [each.recorded / each.bare for each in pairs]
        found[name] = {
            "bare_microseconds": statistics.median(each.bare for each in pairs),
            "recorded_microseconds": statistics.median(each.recorded for each in pairs),
            "ratio": statistics.median(ratios),
            "ratio_min": min(ratios),
            "ratio_max": max(ratios),
        }
    if options.json:
        print(json.dumps(found, indent=1))
        return
    print("| environment | bare µs/step | recorded µs/step | ratio, median (min to max) |")
    print("|---|---:|---:|---:|")
    for name, row in found.items():
        ratio = f"{row['ratio']:.2f} ({row['ratio_min']:.2f} to {row['ratio_max']:.2f})"
        print(f"| {name} | {row['bare_microseconds']:.2f} | {row['recorded_microseconds']:.2f} | {ratio} |")


if __name__ == "__main__":
    main()
