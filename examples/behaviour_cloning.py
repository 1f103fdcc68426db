"""Record a driver of CarRacing, make a replay buffer of it, and train a policy from pixels to drive like that.

python examples/behaviour_cloning.py [folder] [--episodes 4] [--steps 250] [--epochs 12]

Needs torch: pip install 'gymnasium-recorder[examples,torch]'. On two cores it takes one or two minutes.
"""

import argparse
import math
import os
from pathlib import Path

os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # no window is needed

import gymnasium as gym
import numpy as np
import torch
from torch import nn

from recorder import Recorder, ReplayBuffer, WindowSampler, split_episodes, to_zarr
from recorder.statistics.computing import statistics
from recorder.torch import WindowDataset

ZOOM = 50
"""For so many steps the camera zooms in, and sees nothing that is of use."""

STACK = 2
"""Pictures that the policy sees: from two it can tell how fast the car is."""


def expert(env: gym.Env, noise: np.random.Generator) -> np.ndarray:
    """Steer to a point of the track ahead, which only the simulator knows, now and then a little wrong."""
    car, track = env.unwrapped.car, np.array([point[2:4] for point in env.unwrapped.track])
    away = track - np.array(car.hull.position)
    ahead = away[(np.argmin(np.hypot(*away.T)) + 6) % len(track)]
    turn = (math.atan2(-ahead[0], ahead[1]) - car.hull.angle + math.pi) % (2 * math.pi) - math.pi
    speed, wanted = np.hypot(*car.hull.linearVelocity), 35 if abs(turn) < 0.25 else 20
    steer = np.clip(-2 * turn + noise.normal(0, 0.1), -1, 1)
    return np.array([steer, 0.6 * (speed < wanted), 0.3 * (speed > wanted + 10)], np.float32)


def record(folder: Path, episodes: int, steps: int) -> None:
    """Record what the expert does."""
    noise = np.random.default_rng(0)
    with Recorder(gym.make("CarRacing-v3", max_episode_steps=steps), folder, existing="replace") as env:
        for seed in range(episodes):
            env.reset(seed=seed)
            while not any(env.step(expert(env, noise))[2:4]):
                pass


class Policy(nn.Module):
    """Pictures of bytes in, an action out; it carries the mean and spread of the actions it learned from."""

    def __init__(self, mean: np.ndarray, std: np.ndarray) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32))
        self.register_buffer("std", torch.tensor(std, dtype=torch.float32).clamp_min(1e-3))
        self.layers = nn.Sequential(
            *(nn.Conv2d(3 * STACK, 16, 5, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 5, stride=2), nn.ReLU()),
            *(nn.Conv2d(32, 32, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.LazyLinear(64), nn.ReLU(), nn.Linear(64, 3)),
        )

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        """Return normalized actions (n, 3) for pictures (n, stack, H, W, 3), of which every second pixel counts."""
        small = pictures[:, :, ::2, ::2].float().div(255).sub(0.5)
        return self.layers(small.permute(0, 1, 4, 2, 3).flatten(1, 2))

    @torch.no_grad()
    def act(self, pictures: np.ndarray) -> np.ndarray:
        """Return an action of the environment for a stack of pictures (stack, H, W, 3)."""
        action = self(torch.from_numpy(pictures[None])) * self.std + self.mean
        return np.clip(action[0].numpy(), [-1, 0, 0], 1)


def train(policy: Policy, windows: WindowSampler, held_out: WindowSampler, epochs: int) -> None:
    """Learn the actions of the windows, and say how near those of the other episodes are."""
    loader = WindowDataset(windows).loader(32, shuffle=True, seed=0)
    others = WindowDataset(held_out).loader(64)

    def loss_of(batch) -> torch.Tensor:
        wanted = (batch.rows["action"][:, 0] - policy.mean) / policy.std
        return nn.functional.mse_loss(policy(batch.rows["observation"][:, 0]), wanted)

    policy(torch.zeros(1, STACK, 96, 96, 3, dtype=torch.uint8))  # the last layer learns its size
    optimizer = torch.optim.Adam(policy.parameters(), 1e-3)
    for epoch in range(1, epochs + 1):
        losses = []
        for batch in loader:
            loss = loss_of(batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        with torch.no_grad():
            validation = np.mean([loss_of(batch).item() for batch in others])
        print(f"  epoch {epoch:2}: loss {np.mean(losses):.3f}, of episodes held out {validation:.3f}")


def drive(seed: int, steps: int, act) -> float:
    """Return what is gained in an episode by the actions for the last pictures."""
    env = gym.make("CarRacing-v3", max_episode_steps=steps)
    env.action_space.seed(seed)
    picture, _ = env.reset(seed=seed)
    stack, gained, done = [picture] * STACK, 0.0, False
    while not done:
        picture, reward, terminated, truncated, _ = env.step(act(np.array(stack), env))
        stack, gained, done = [*stack[1:], picture], gained + reward, terminated or truncated
    env.close()
    return gained


def main() -> None:
    """Do all of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("runs/behaviour_cloning"))
    for name, default in (("episodes", 4), ("steps", 250), ("epochs", 12)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    torch.manual_seed(0)

    print("The expert drives:")
    record(options.folder / "run", options.episodes, options.steps)
    to_zarr(options.folder / "run", options.folder / "drive.zarr", keys=["observation", "action"], overwrite=True)
    buffer = ReplayBuffer(options.folder / "drive.zarr")
    print(f"  {buffer}")

    training, validation = split_episodes(buffer.n_episodes, 0.25, seed=0)
    windows, held_out = (
        WindowSampler(buffer, skip=ZOOM, stack={"observation": STACK}, mask=mask) for mask in (training, validation)
    )
    actions = statistics(buffer, keys=["action"], episodes=np.flatnonzero(training).tolist()).leaves["action"]
    print(f"The policy learns from {len(windows)} windows; actions are {actions.mean} ± {actions.std}:")
    policy = Policy(actions.mean, actions.std)
    train(policy, windows, held_out, options.epochs)

    print("On a track that none of them has seen:")
    seed = 1000
    print(f"  at random        {drive(seed, options.steps, lambda _, env: env.action_space.sample()):7.1f}")
    print(f"  the policy       {drive(seed, options.steps, lambda pictures, _: policy.act(pictures)):7.1f}")
    noise = np.random.default_rng(1)
    print(f"  the expert       {drive(seed, options.steps, lambda _, env: expert(env, noise)):7.1f}")


if __name__ == "__main__":
    main()
