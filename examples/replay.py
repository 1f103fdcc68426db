"""Record a pendulum, replay it with a verdict, with other physics, with a camera, and without the simulator.

python examples/replay.py [folder]
"""

import os
import sys
from pathlib import Path

os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # no window is needed

import gymnasium as gym
from gymnasium.wrappers import AddRenderObservation

from recorder import Recorder, Recording, ReplayEnv, reobserve, replay, replay_all

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/pendulum")


def with_camera() -> gym.Env:
    """Make the same environment with its picture in the observation."""
    env = gym.make("Pendulum-v1", max_episode_steps=50, render_mode="rgb_array")
    return AddRenderObservation(env, render_only=False, render_key="camera", obs_key="angles")


with Recorder(gym.make("Pendulum-v1", max_episode_steps=50), folder / "blind", verbose=False) as env:
    env.action_space.seed(0)
    for seed in (0, None, None):  # the last two begin in mid-stream, with the state of the generator
        env.reset(seed=seed)
        while not env.step(env.action_space.sample())[3]:
            pass

recording = Recording(folder / "blind")
print("The environment is rebuilt from the recording, and makes the same again:")
for report in replay_all(recording):
    print(f"  {report}")

print("\nWith another gravity it does not, and the report says where that begins:")
report = replay(recording[0], gym.make("Pendulum-v1", max_episode_steps=50, g=9.81))
print(f"  {report}")
print(f"  largest errors: { {path: round(error, 3) for path, error in report.errors.items()} }")

print("\nWith a camera, into a new recording:")
print(f"  {reobserve(recording, with_camera, folder / 'seen', existing='replace')}")
seen = Recording(folder / "seen")
print(f"  {seen[0].id}: {seen[0].observations['camera'].shape}, and the angles are those of {recording[0].id}")

print("\nWithout the simulator:")
env = ReplayEnv(seen)
observation, info = env.reset(seed=0)
total, over = 0.0, False
while not over:
    observation, reward, terminated, truncated, info = env.step(env.action_space.sample())  # played back all the same
    total, over = total + reward, terminated or truncated
print(f"  return {total:.3f}, recorded was {seen[0].return_:.3f}")
