"""Record 16 CartPoles at once, and look at what came of each.

python examples/vector.py runs/cartpoles
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

import gymnasium as gym
import numpy as np

from recorder import Recording, VectorRecorder


def main() -> None:
    """Record some thousand steps and count the episodes of each sub-environment."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    envs = gym.make_vec("CartPole-v1", num_envs=16, vectorization_mode="sync")
    with VectorRecorder(envs, options.path) as recorder:  # the only line that changes
        observations, _ = recorder.reset(seed=0)
        for _ in range(options.steps):
            actions = (observations[:, 2] > 0).astype(np.int64)  # your policy
            observations, _, terminations, _, _ = recorder.step(actions)
            for index in np.flatnonzero(terminations).tolist():
                recorder.label(index, fell=True)
    recording = Recording(options.path)
    print(Counter(episode.labels["env_index"] for episode in recording))
    print(max(recording, key=len))


if __name__ == "__main__":
    main()
