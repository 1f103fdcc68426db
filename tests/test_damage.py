"""One file of a shard is missing or cut: what does not lie in it is read all the same."""

from collections.abc import Callable
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

from recorder import DamagedError, ImageFileStorage, Recorder, Recording, Storage, VideoStorage, ZarrStorage, layout
from recorder.verify import verify


class Camera(gym.Env[dict[str, np.ndarray], int]):
    """Pictures that show the number of the episode and of the step, and a number beside them."""

    observation_space = Dict({"camera": Box(0, 255, (64, 64, 3), np.uint8), "count": Box(0, 99, (), np.int64)})
    action_space = Discrete(2)

    def __init__(self) -> None:
        self.episode = -1
        self.count = 0

    def _observation(self) -> dict[str, np.ndarray]:
        shown = 50 * self.episode + self.count
        return {"camera": np.full((64, 64, 3), shown, np.uint8), "count": np.array(self.count)}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode += 1
        self.count = 0
        return self._observation(), {}

    def step(self, action):
        self.count += 1
        return self._observation(), 1.0, self.count == 4, False, {}


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def empty(path: Path) -> None:
    path.write_bytes(b"")


STORAGES = [
    pytest.param(VideoStorage("h264rgb"), "*/observation/camera/000002.mp4", id="video"),
    pytest.param(ImageFileStorage(), "*/observation/camera/000002/000003.png", id="files"),
]


@pytest.mark.parametrize("damage", [Path.unlink, cut, empty])
@pytest.mark.parametrize(("storage", "file"), STORAGES)
def test_only_the_episode_of_a_damaged_file_cannot_be_read(
    tmp_path: Path, storage: Storage, file: str, damage: Callable[[Path], None]
) -> None:
    with Recorder(Camera(), tmp_path, storage=layout(Camera(), keys={"observation/camera": storage}), verbose=0) as env:
        for _ in range(4):
            env.reset()
            for _ in range(4):
                env.step(0)
    (found,) = (tmp_path / "shards").glob(file)
    damage(found)
    recording = Recording(tmp_path)
    for i, episode in enumerate(recording):
        assert episode.columns["observation/count"][:].tolist() == [0, 1, 2, 3, 4]
        if i != 2:
            assert episode.columns["observation/camera"][:, 0, 0, 0].tolist() == [50 * i + k for k in range(5)]
    with pytest.raises(DamagedError, match=f"(?s){recording[2].id}.*{found.name}"):
        recording[2].columns["observation/camera"][:]
    faults = verify(tmp_path).faults
    assert any(found.name in str(fault) for fault in faults)


@pytest.mark.parametrize("damage", [Path.unlink, cut])
def test_tables_are_read_where_an_array_of_pictures_is_damaged(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    storage = layout(Camera(), keys={"observation/camera": ZarrStorage()})
    with Recorder(Camera(), tmp_path, storage=storage, verbose=0) as env:
        env.reset()
        for _ in range(4):
            env.step(0)
    files = [path for path in (tmp_path / "shards").rglob("*.zarr/**/*") if path.is_file() and path.suffix != ".json"]
    damage(files[0])
    (episode,) = Recording(tmp_path)
    assert episode.columns["observation/count"][:].tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(DamagedError):
        episode.columns["observation/camera"][:]
