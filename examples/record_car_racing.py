"""Record CarRacing with its camera, then read the recording back.

python examples/record_car_racing.py [folder]
"""

import os
import sys
from pathlib import Path

os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # no window is needed

import gymnasium as gym

from recorder import Recorder, Recording, plan

folder = sys.argv[1] if len(sys.argv) > 1 else "runs/car"

env = gym.make("CarRacing-v3", max_episode_steps=200)
print(plan(env), "\n")

with Recorder(env, folder, about={"policy": "random"}) as env:  # the only line that changes
    env.action_space.seed(0)
    for seed in range(3):
        observation, info = env.reset(seed=seed)
        done = False
        while not done:
            observation, reward, terminated, truncated, info = env.step(env.action_space.sample())
            done = terminated or truncated
        env.label(task="drive around the track")

recording = Recording(folder)
print(f"\n{recording}")
for episode in recording:
    pictures = episode.observations
    print(f"{episode}  seed {episode.seed}  camera {pictures.shape} {pictures.dtype}")

print(f"\nFrames 100 to 103 of episode 0: {recording[0].columns['observation'][100:104].shape}")
print(f"Everything is in {Path(folder).resolve()}:")
for file in sorted(path for path in Path(folder).rglob("*") if path.is_file()):
    print(f"  {file.stat().st_size:>9,} bytes  {file.relative_to(folder)}")
