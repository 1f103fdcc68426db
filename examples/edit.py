"""Record a few episodes, then relabel, mend, delete, merge and compact them: python examples/edit.py FOLDER."""

import sys
from pathlib import Path

import gymnasium as gym
import numpy as np

import recorder
from recorder import Recorder, Recording


def record(path: Path, episodes: int, seed: int) -> None:
    """Record episodes of a random policy."""
    with Recorder(gym.make("CartPole-v1"), path, verbose=False) as env:
        env.action_space.seed(seed)
        for k in range(episodes):
            env.reset(seed=seed + k)
            done = False
            while not done:
                _, _, terminated, truncated, _ = env.step(env.action_space.sample())
                done = terminated or truncated


def main(folder: Path) -> None:
    """Go through all edits."""
    record(folder / "monday", 5, seed=0)
    record(folder / "tuesday", 5, seed=100)

    merged = recorder.merge([folder / "monday", folder / "tuesday"], folder / "week")
    print(f"merged   {merged.episodes} episodes in {merged.shards} shards")

    week = folder / "week"
    ids = [episode.id for episode in Recording(week)]
    recorder.rewrite(week, lambda episode: {"reward": episode.rewards / 10})
    recorder.rewrite(week, lambda episode: {"extra/left": np.cumsum(episode.rewards[::-1])[::-1]}, episodes=ids[:3])
    recorder.label(week, {ids[0]: {"success": True}})
    recorder.delete(week, ids[-2:])

    done = recorder.compact(week)
    print(f"compact  {done.shards} shards became {done.shards_after}, {done.episodes} episodes")

    first = Recording(week)[ids[0]]
    print(f"first    return {first.return_:.2f}, labels {dict(first.labels)}")
    print(f"left     {first.columns['extra/left'][:3]}")

    best = recorder.pick(week, folder / "best", lambda episode: len(episode) >= 15)
    print(f"picked   {best.episodes} episodes of 15 steps or more")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
