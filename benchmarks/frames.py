"""Frames to measure with: rendered ones, natural ones and pixel art, always the same.

Natural frames are a camera that moves over photographs, with the noise of a sensor. The photographs are those of
scikit-image, which `pip` downloads once into the cache folder; without a network, the one that matplotlib brings.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
os.environ.setdefault("MUJOCO_GL", "egl")

import gymnasium as gym
import imageio.v3 as imageio
import numpy as np
from numpy.typing import NDArray

Frames = NDArray[np.uint8]

CACHE = Path(os.environ.get("RECORDER_BENCHMARKS", "~/.cache/recorder-benchmarks")).expanduser()
"""Where downloads, made recordings and the environments of peers are kept."""

PICTURES = "scikit-image==0.26.0"
NAMES = ("motorcycle_left.png", "coffee.png", "astronaut.png", "chelsea.png", "rocket.jpg")


def photographs() -> list[Frames]:
    """Return photographs `(H, W, 3)`."""
    folder = CACHE / "pictures"
    if not list(folder.glob("*.whl")):
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", PICTURES, "-d", str(folder)]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            import matplotlib

            print("scikit-image cannot be had; natural frames are of one photograph", file=sys.stderr)
            return [imageio.imread(Path(matplotlib.get_data_path(), "sample_data", "grace_hopper.jpg"))]
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        return [imageio.imread(io.BytesIO(wheel.read(f"skimage/data/{name}")))[..., :3] for name in NAMES]


def natural(count: int, height: int, width: int) -> Frames:
    """Return frames of a camera that moves over photographs: 90 of each, then the next."""
    import cv2

    random = np.random.default_rng(0)
    noise = random.normal(0, 1.5, (8, height, width, 3))
    pictures = [_enlarged(cv2, picture, int(height * 1.3), int(width * 1.3)) for picture in photographs()]
    frames = np.empty((count, height, width, 3), np.uint8)
    for i in range(count):
        picture = pictures[i // 90 % len(pictures)]
        angle = i / 40
        centre = (
            picture.shape[1] / 2 + 0.12 * width * np.sin(angle),
            picture.shape[0] / 2 + 0.12 * height * np.cos(1.3 * angle),
        )
        view = cv2.getRectSubPix(picture, (width, height), centre)
        frames[i] = np.clip(view + noise[i % len(noise)], 0, 255)
    return frames


def _enlarged(cv2: Any, picture: Frames, height: int, width: int) -> Frames:
    """Return a picture scaled so that it covers a size."""
    scale = max(height / picture.shape[0], width / picture.shape[1])
    size = (int(np.ceil(picture.shape[1] * scale)), int(np.ceil(picture.shape[0] * scale)))
    return np.asarray(cv2.resize(picture, size, interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_CUBIC))


def played(name: str, look: Callable[[gym.Env[Any, Any], Any], Any], **options: Any) -> Iterator[Frames]:
    """Yield what `look` sees in an environment under random actions, for ever."""
    env = gym.make(name, **options)
    env.action_space.seed(0)
    seed = 0
    while True:
        observation, _ = env.reset(seed=seed)
        seed, done = seed + 1, False
        while not done:
            yield look(env, observation)
            observation, _, terminated, truncated, _ = env.step(env.action_space.sample())
            done = terminated or truncated


def observation(env: gym.Env[Any, Any], observed: Any) -> Any:
    """See what the environment shows."""
    return observed


def rendering(env: gym.Env[Any, Any], observed: Any) -> Any:
    """See what the environment renders."""
    return env.render()


def stacked(frames: Iterator[Frames], count: int) -> Frames:
    """Return the next frames as one array."""
    return np.stack([next(frames) for _ in range(count)])


def _fetch(height: int, width: int, count: int) -> Frames:
    """Return frames that MuJoCo renders of a robot arm."""
    import gymnasium_robotics

    gym.register_envs(gymnasium_robotics)
    options = {"render_mode": "rgb_array", "width": width, "height": height}
    return stacked(played("FetchPickAndPlace-v4", rendering, **options), count)


def _atari(count: int) -> Frames:
    import ale_py

    gym.register_envs(ale_py)
    return stacked(played("ALE/Breakout-v5", observation), count)


def _pusht(count: int) -> Frames:
    import gym_pusht  # noqa: F401 - it registers itself

    frames = played("gym_pusht/PushT-v0", lambda env, observed: observed["pixels"], obs_type="pixels_agent_pos")
    return stacked(frames, count)


SOURCES: dict[str, Callable[[int], Frames]] = {
    "natural 480x640": lambda count: natural(count, 480, 640),
    "natural 96x96": lambda count: natural(count, 96, 96),
    "MuJoCo 480x640": lambda count: _fetch(480, 640, count),
    "CarRacing 96x96": lambda count: stacked(played("CarRacing-v3", observation), count),
    "Breakout 210x160": _atari,
    "PushT 96x96": _pusht,
}
"""Frames by name; each function is given how many."""


def frames(name: str, count: int) -> Frames:
    """Return frames of a source, kept in the cache folder after the first time."""
    path = CACHE / "frames" / f"{name.replace(' ', '-').replace('/', '-')}-{count}.npy"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".tmp.npy")
        np.save(temporary, SOURCES[name](count))
        temporary.rename(path)
    return np.asarray(np.load(path))
