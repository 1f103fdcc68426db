"""Record a few episodes of CarRacing, turn them into a zarr replay buffer, and read windows from it.

python examples/to_zarr.py [FOLDER]
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("SDL_VIDEODRIVER", "dummy")

import gymnasium as gym
import numpy as np

from recorder import Recorder, Recording, to_zarr


def record(path: Path, episodes: int = 3) -> None:
    """Drive at random."""
    with Recorder(gym.make("CarRacing-v3", max_episode_steps=60), path) as env:
        for seed in range(episodes):
            env.reset(seed=seed)
            done = False
            while not done:
                _, _, terminated, truncated, _ = env.step(env.action_space.sample())
                done = terminated or truncated


def main() -> None:
    """Record, convert, read."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp())
    record(folder / "car")
    buffer = to_zarr(Recording(folder / "car"), folder / "car.zarr", final_observation="next")
    print(buffer)

    # 16 steps from somewhere in each episode, their frames decoded together.
    starts = [buffer.episode_slice(i).start + 10 for i in range(buffer.n_episodes)]
    rows = (np.array(starts)[:, None] + np.arange(16)).reshape(-1)
    frames, actions = buffer["observation"][rows], buffer["action"][rows]
    print("windows", frames.reshape(-1, 16, *frames.shape[1:]).shape, actions.reshape(-1, 16, 3).shape)


if __name__ == "__main__":
    main()
