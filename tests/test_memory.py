"""Memory: what a recording holds is bounded, however long an episode is and however many there are.

Measured in a child process by the peak of its resident memory, less that of the bare environment.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is told by /proc")

CHILD = """
    import sys
    from pathlib import Path
    import gymnasium as gym
    import numpy as np
    from recorder import Recorder, Recording, VideoStorage, layout

    class Camera(gym.Env):
        '''Moves a window over a large picture.'''

        action_space = gym.spaces.Discrete(2)

        def __init__(self, height, width, length):
            self.observation_space = gym.spaces.Box(0, 255, (height, width, 3), np.uint8)
            self.height, self.width, self.length = height, width, length
            y, x = np.mgrid[: height + 64, : width + 64]
            self.scene = np.stack([x // 2, y // 2, (x * y) // 99], -1).astype(np.uint8)

        def observe(self):
            shift = self.t % 64
            return self.scene[shift : shift + self.height, shift : shift + self.width].copy()

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.t = 0
            return self.observe(), {}

        def step(self, action):
            self.t += 1
            return self.observe(), 1.0, self.t == self.length, False, {"t": self.t}

    def peak():
        '''Return the highest resident memory so far, in MB.'''
        (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024

    def run(env, episodes):
        peaks = []
        for _ in range(episodes):
            env.reset()
            while not env.step(0)[2]:
                pass
            peaks.append(peak())
        return peaks

    height, width, steps, episodes, path = *map(int, sys.argv[1:5]), sys.argv[5]
    inner = Camera(height, width, steps)
    bare = max(run(inner, 1))
    env = Recorder(inner, path, storage=layout(inner, kinds={"image": VideoStorage()}), flush_every=0.5, verbose=False)
    with env:
        peaks = run(env, episodes)
    print(bare, max(peaks), peaks[len(peaks) // 5], peak())
    """


def measure(path: Path, height: int, width: int, steps: int, episodes: int) -> tuple[float, float, float, float]:
    """Return peaks in MB: of the bare environment, while recording, after a fifth of the episodes, and at the end."""
    arguments = map(str, (height, width, steps, episodes, path))
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(CHILD), *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    bare, recording, early, end = map(float, done.stdout.split())
    return bare, recording, early, end


@pytest.mark.parametrize(
    ("height", "width", "steps"),
    [
        (240, 320, 3_000),
        pytest.param(480, 640, 10_000, marks=[pytest.mark.slow, pytest.mark.timeout(1200)]),
    ],
)
def test_a_long_episode_with_a_camera_holds_less_than_300_mb(
    tmp_path: Path, height: int, width: int, steps: int
) -> None:
    bare, _, _, end = measure(tmp_path, height, width, steps, 1)
    assert end - bare < 300


@pytest.mark.parametrize(
    ("height", "width", "steps", "episodes"),
    [
        (128, 128, 11, 500),
        pytest.param(128, 128, 100, 500, marks=[pytest.mark.slow, pytest.mark.timeout(1200)]),
    ],
)
def test_memory_is_flat_over_many_episodes(tmp_path: Path, height: int, width: int, steps: int, episodes: int) -> None:
    bare, recording, early, _ = measure(tmp_path, height, width, steps, episodes)
    assert recording - early < 60  # the ring, 64 MiB, has been filled once by then
    assert recording - bare < 300
