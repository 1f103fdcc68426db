"""What recording a vector environment costs: the same loop with a VectorRecorder over that without one.

    python benchmarks/vector.py [--lanes 1024] [--steps 1000] [--runs 3] [--policy random|balance] [--json]

Both sides run in turn in one process, A B A B …; the median of the ratios is quoted, with the cost of one sub-step.
Closing the recorder, which commits everything to disk with fsync, is part of the recorded side.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from recorder import VectorRecorder

MAKERS: dict[str, Callable[[int], Any]] = {
    "SyncVectorEnv": lambda lanes: gym.make_vec("CartPole-v1", num_envs=lanes, vectorization_mode="sync"),
    "CartPoleVectorEnv": lambda lanes: gym.make_vec(
        "CartPole-v1", num_envs=lanes, vectorization_mode="vector_entry_point"
    ),
}


class Pair(NamedTuple):
    """Microseconds a sub-step without and with a recorder, in one pair of runs."""

    bare: float
    recorded: float


def loop(envs: Any, steps: int, balance: bool) -> None:
    """Step with actions that are always the same: random ones, or such that the pole stays up for long."""
    generator = np.random.default_rng(0)
    observations, _ = envs.reset(seed=0)
    for _ in range(steps):
        if balance:
            actions = (observations[:, 2] + 0.4 * observations[:, 3] + 0.02 * observations[:, 1] > 0).astype(np.int64)
        else:
            actions = generator.integers(0, 2, envs.num_envs)
        observations, *_ = envs.step(actions)


def pair(make: Callable[[int], Any], lanes: int, steps: int, balance: bool) -> Pair:
    """Time one pair of runs."""
    bare = make(lanes)
    started = time.perf_counter()
    loop(bare, steps, balance)
    between = time.perf_counter()
    bare.close()
    folder = Path(tempfile.mkdtemp())
    recorded = VectorRecorder(make(lanes), folder / "run", verbose=0)
    again = time.perf_counter()
    loop(recorded, steps, balance)
    recorded.close()
    ended = time.perf_counter()
    shutil.rmtree(folder)
    return Pair((between - started) / steps / lanes * 1e6, (ended - again) / steps / lanes * 1e6)


def main() -> None:
    """Run the pairs and print medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(MAKERS))
    parser.add_argument("--lanes", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--policy", choices=["random", "balance"], default="balance")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = {}
    for name in options.names:
        pairs = [
            pair(MAKERS[name], options.lanes, options.steps, options.policy == "balance") for _ in range(options.runs)
        ]
        found[name] = {
            "bare_microseconds": statistics.median(each.bare for each in pairs),
            "recorded_microseconds": statistics.median(each.recorded for each in pairs),
            "added_microseconds": statistics.median(each.recorded - each.bare for each in pairs),
            "ratio": statistics.median(each.recorded / each.bare for each in pairs),
        }
    if options.json:
        print(json.dumps(found, indent=1))
        return
    print(f"{options.lanes} sub-environments, {options.steps} steps, policy {options.policy}\n")
    print("| vector environment | bare µs/sub-step | recorded | added | ratio |")
    print("|---|---:|---:|---:|---:|")
    for name, row in found.items():
        print(f"| {name} | {' | '.join(f'{value:.3f}' for value in row.values())} |")


if __name__ == "__main__":
    main()
