"""Record CarRacing with its camera, then read the recording back.

    python examples/record_car_racing.py [folder]
"""

import os
import sys

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
print(f"Everything is in {os.path.abspath(folder)}:")
for root, _, names in sorted(os.walk(folder)):
    for name in sorted(names):
        path = os.path.join(root, name)
        print(f"  {os.path.getsize(path):>9,} bytes  {os.path.relpath(path, folder)}")
