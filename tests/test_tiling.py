"""Previews: the cameras of an episode side by side, in a video, a GIF or a sheet."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import av
import gymnasium as gym
import imagecodecs
import numpy as np
import pytest
from gymnasium import spaces

from recorder import EpisodeError, Recorder, Recording
from recorder.cli import main
from recorder.tiling import caption, tiled
from tests.environments import CountingEnv


class TwoCameras(gym.Env[Any, Any]):
    """Has a colour camera and one for depth, of different sizes."""

    metadata = {"render_fps": 10}  # noqa: RUF012

    def __init__(self) -> None:
        self.observation_space = spaces.Dict(
            front=spaces.Box(0, 255, (40, 64, 3), np.uint8),
            wrist=spaces.Box(0, 255, (32, 32, 3), np.uint8),
            depth=spaces.Box(0, 9, (24, 32), np.float32),
        )
        self.action_space = spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self._observe(), {}

    def _observe(self) -> Any:
        return {
            "front": np.full((40, 64, 3), self.steps * 20, np.uint8),
            "wrist": np.full((32, 32, 3), 255 - self.steps * 20, np.uint8),
            "depth": np.full((24, 32), self.steps, np.float32),
        }

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self._observe(), 0.25, self.steps == 9, False, {}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("previews") / "run"
    metadata = {"observation/depth": {"kind": "depth", "units": "m"}}
    with Recorder(TwoCameras(), place, metadata=metadata, verbose=0) as env:
        env.reset(seed=1)
        for _ in range(9):
            env.step(np.array([0.5, -1], np.float32))
    return place


def test_each_moment_shows_all_cameras_and_what_was_done(path: Path) -> None:
    episode = Recording(path)[0]
    pictures = list(tiled(episode))
    assert len(pictures) == 10 and len({picture.shape for picture in pictures}) == 1
    assert caption(episode, 0, 0.0)[0].startswith("step 0/9") and "reset" in caption(episode, 0, 0.0)[0]
    assert "reward 0.25  return 0.75" in caption(episode, 3, 0.75)[0]
    assert caption(episode, 3, 0.75)[1] == "action 0.5 -1"
    # Each tile has its own brightness: front gets lighter, wrist darker, depth spans from black to white.
    assert [int(pictures[k][20, 20, 0]) for k in (1, 5, 9)] == [20, 100, 180]
    assert len(np.unique(pictures[9].reshape(-1, 3), axis=0)) > 3


def test_a_film_of_every_nth_moment_of_one_camera(path: Path) -> None:
    episode = Recording(path)[0]
    assert len(list(tiled(episode, every=4, paths=["observation/depth"]))) == 3
    with pytest.raises(EpisodeError, match="'observation/left' is no camera"):
        list(tiled(episode, paths=["observation/left"]))


def test_the_command_writes_videos_gifs_and_sheets(path: Path, tmp_path: Path, capsys: Any) -> None:
    for name, frames in (("a.mp4", 10), ("a.gif", 10)):
        assert main(["preview", str(path), "0", "--to", str(tmp_path / name)]) == 0
        with av.open(str(tmp_path / name)) as container:
            decoded = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
            assert len(decoded) == frames
            assert float(container.streams.video[0].average_rate) == pytest.approx(10, rel=0.05)
        assert abs(int(decoded[5][20, 20, 0]) - 100) < 12
    capsys.readouterr()
    assert main(["preview", str(path), "-1", "--to", str(tmp_path / "a.png"), "--json"]) == 0
    assert imagecodecs.png_decode((tmp_path / "a.png").read_bytes()).shape[2] == 3
    said = json.loads(capsys.readouterr().out)
    assert said["frames"] == 10
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.gif", "a.mp4", "a.png"]


def test_nothing_is_overwritten_unasked_and_other_files_are_refused(path: Path, tmp_path: Path, capsys: Any) -> None:
    target = tmp_path / "a.gif"
    target.write_bytes(b"mine")
    assert main(["preview", str(path), "0", "--to", str(target)]) == 1
    assert target.read_bytes() == b"mine" and "--overwrite" in capsys.readouterr().err
    assert main(["preview", str(path), "0", "--to", str(target), "--overwrite", "--every", "3"]) == 0
    assert main(["preview", str(path), "0", "--to", str(tmp_path / "a.avi")]) == 1
    assert "not 'a.avi'" in capsys.readouterr().err


def test_an_episode_without_cameras_is_named(tmp_path: Path, capsys: Any) -> None:
    with Recorder(CountingEnv(2), tmp_path / "run", verbose=0) as env:
        env.reset()
        env.step(0)
    assert main(["preview", str(tmp_path / "run"), "0", "--to", str(tmp_path / "a.mp4")]) == 1
    assert "has no pictures; its leaves are" in capsys.readouterr().err
    assert not (tmp_path / "a.mp4").exists()
