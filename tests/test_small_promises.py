"""Small things that were lost in silence once: masks, keys that look alike, metadata of leaves beside the spaces."""

import errno
import os
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from recorder import Recorder, Recording, RecordingWriter, RowError


class Plain(gym.Env[np.ndarray, int]):
    """Returns what it was given."""

    observation_space = Box(-1, 1, (3,), np.float64)
    action_space = Discrete(2)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 5}  # noqa: RUF012 - as Gymnasium does
    render_mode = "rgb_array"

    def __init__(self, observations: list[np.ndarray] | None = None, info: dict | None = None) -> None:
        self.observations = list(observations or [])
        self.info = info or {}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(3), dict(self.info)

    def step(self, action):
        observation = self.observations.pop(0) if self.observations else np.ones(3)
        return observation, 0.0, False, False, dict(self.info)

    def render(self):
        return np.full((64, 64, 3), 7, np.uint8)


def test_a_masked_observation_is_refused_and_one_without_masked_values_is_kept(tmp_path: Path) -> None:
    whole = np.ma.MaskedArray([1.0, 2.0, 3.0], mask=False)
    holey = np.ma.MaskedArray([1.0, 2.0, 3.0], mask=[False, True, False])
    with Recorder(Plain([whole, holey, whole]), tmp_path, verbose=False) as env:
        env.reset()
        env.step(0)
        with pytest.raises(RowError, match="'observation' has 1 masked values"):
            env.step(0)
        env.step(1)
    (episode,) = Recording(tmp_path)
    assert episode.refused == [2]
    assert episode.observations.tolist() == [[0, 0, 0], [1, 2, 3], [1, 2, 3]]


def test_keys_of_an_info_that_look_alike_are_kept_both(tmp_path: Path) -> None:
    with Recorder(Plain(info={1: 10, "1": 20, "deep": {None: 1, "None": 2}}), tmp_path, verbose=False) as env:
        env.reset()
        env.step(0)
    (episode,) = Recording(tmp_path)
    assert episode.infos["1 (int)"].tolist() == [10, 10] and episode.infos["1"].tolist() == [20, 20]
    assert episode.infos["deep"]["None"].tolist() == [2, 2]
    assert episode.infos["deep"]["None (NoneType)"].tolist() == [1, 1]


def test_metadata_is_given_to_extra_leaves_and_rendered_frames(tmp_path: Path) -> None:
    metadata = {
        "extra/force": {"kind": "proprio", "units": "N"},
        "render": {"kind": "image", "fps": 12},
        "": {"note": "all"},
    }
    with Recorder(
        Plain(), tmp_path, extra={"force": Box(0, 9, (2,))}, record_render=True, metadata=metadata, verbose=False
    ) as env:
        env.reset()
        env.record(force=np.ones(2, np.float32))
        env.step(0)
    leaves = Recording(tmp_path).leaves
    assert leaves["extra/force"].kind == "proprio" and leaves["extra/force"].metadata["units"] == "N"
    assert leaves["render"].metadata["fps"] == 12
    assert leaves["observation"].metadata["note"] == "all"


def test_a_recording_is_made_where_the_file_system_has_no_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(source, target, **_):
        raise OSError(errno.EPERM, "no links here", os.fspath(source))

    monkeypatch.setattr(os, "link", no_links)
    for _ in range(2):
        with Recorder(Plain(), tmp_path, record_render=True, verbose=False) as env:
            env.reset(seed=1)
            env.step(0)
    recording = Recording(tmp_path)
    assert len(recording) == 2
    assert all((episode.columns["render"][:] == 7).all() for episode in recording)
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["recording.json"]


def test_rows_that_take_no_bytes_are_kept(tmp_path: Path) -> None:
    with RecordingWriter(tmp_path, Box(0, 1, (0,))) as writer:
        for rows in (4, 1, 3):
            writer.begin()
            for _ in range(rows):
                writer.append(np.zeros(0, np.float32))
            writer.commit()
    recording = Recording(tmp_path)
    assert [len(episode) for episode in recording] == [4, 1, 3]
    assert recording[0].columns["value"][:].shape == (4, 0)
