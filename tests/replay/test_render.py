"""A replay as a video: a frame for each moment, with a caption, drawn by what draws previews."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import av
import gymnasium as gym
import numpy as np
import pytest
from environments import CountingEnv, roll

from recorder import EpisodeError, ExistsError, Recorder, RecorderError, Recording
from recorder.cli import main
from recorder.filming import Film, captioned, cut, in_numbers
from recorder.replaying.many import Task
from recorder.replaying.rendering import replay_rendered


@pytest.fixture
def carts(tmp_path: Path) -> Path:
    path = tmp_path / "carts"
    with Recorder(gym.make("CartPole-v1", max_episode_steps=7), path, fsync=False, verbose=False) as env:
        env.action_space.seed(0)
        roll(env, 2)
    return path


def frames(path: Path) -> Any:
    with av.open(path) as file:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)])


def test_a_video_has_a_frame_for_each_moment_and_the_verdict_comes_with_it(
    carts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    video = carts.parent / "out.mp4"
    assert main(["replay", str(carts), "-1", "--render", str(video), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["verdicts"] == {"exact": 1} and said["video"] == str(video)
    shown = frames(video)
    episode = Recording(carts)[-1]
    assert len(shown) == len(episode) + 1
    assert shown.shape[2] == 600 and 400 < shown.shape[1] < 460
    with av.open(video) as file:
        assert file.streams.video[0].average_rate == 50
    env = gym.make("CartPole-v1", render_mode="rgb_array")
    env.reset(seed=episode.seed)
    if episode.seed is not None:
        assert np.abs(shown[0][:400].astype(int) - env.render()).mean() < 3  # type: ignore[operator, arg-type]
    assert shown[3][400:].max() > 200, "there are letters below the frame"
    assert np.abs(shown[3][400:].astype(int) - shown[4][400:]).max() > 100, "which change"
    assert [path.name for path in carts.parent.iterdir() if "out" in path.name] == ["out.mp4"]


def test_a_video_is_not_replaced_unless_asked_and_is_of_one_episode(
    carts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    video = carts.parent / "out.mp4"
    video.write_bytes(b"mine")
    assert main(["replay", str(carts), "0", "--render", str(video)]) == 1
    assert "is there already" in capsys.readouterr().err
    assert video.read_bytes() == b"mine"
    assert main(["replay", str(carts), "--render", str(video), "--overwrite"]) == 1
    assert "a video is of one episode, 2 are named" in capsys.readouterr().err
    assert main(["replay", str(carts), "0", "--render", str(video), "--overwrite"]) == 0
    assert len(frames(video)) > 3
    assert main(["replay", str(carts), "0", "--render", str(video), "--window"]) == 2


def test_a_window_is_that_of_the_environment(carts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(carts), "0", "--window"]) == 0  # the screen of the tests is a dummy
    assert "exact 1" in capsys.readouterr().out


def test_an_environment_of_ones_own_is_told_the_render_mode(tmp_path: Path) -> None:
    with Recorder(CountingEnv(3), tmp_path / "counts", fsync=False, verbose=False) as env:
        roll(env)
    recording = Recording(tmp_path / "counts")
    task = Task(recording, make_env=CountingEnv)
    report = replay_rendered(task, 0, tmp_path / "out.mp4")
    assert report.verdict == "diverged", "it is five steps long, and still it is filmed"
    assert frames(tmp_path / "out.mp4").shape[0] == 4
    with pytest.raises(EpisodeError, match="has no window"):
        replay_rendered(Task(recording, make_env=lambda: CountingEnv(3)), 0, None)
    with pytest.raises(EpisodeError, match="render_mode='rgb_array'"):
        replay_rendered(Task(recording, make_env=lambda: CountingEnv(3)), 0, tmp_path / "none.mp4")
    assert not (tmp_path / "none.mp4").exists()


def test_a_caption_is_below_the_picture_and_small_pictures_grow() -> None:
    picture = np.random.default_rng(0).integers(0, 255, (30, 40, 3), np.uint8)
    sheet = captioned(picture, ["step 1", "action 0.5"])
    assert sheet.shape == (30 * 8 + 8 + 2 * 12, 320, 3)
    np.testing.assert_array_equal(sheet[:240:8, ::8], picture)
    assert captioned(picture, ["", "x" * 999]).shape == sheet.shape
    large = np.zeros((10, 1000, 3), np.uint8)
    assert captioned(large, ["a"]).shape == (10 + 8 + 20, 1000, 3)


def test_values_in_few_letters() -> None:
    assert in_numbers(np.float32([0.12345, -1])) == "0.123 -1"
    assert in_numbers((np.int64(3), "left")) == "3  left"
    assert cut("abcdef", 4) == "ab.." and cut("abc", 4) == "abc"


def film_of(path: Path, pictures: list[Any]) -> None:
    with Film(path, 30) as film:
        for picture in pictures:
            film.add(picture)


def test_a_film_that_fails_leaves_nothing(tmp_path: Path) -> None:
    pictures = [np.zeros((16, width, 3), np.uint8) for width in (16, 18)]
    with pytest.raises(RecorderError, match="one size"):
        film_of(tmp_path / "a.mp4", pictures)
    assert not list(tmp_path.iterdir())
    with Film(tmp_path / "empty.mp4", 30):
        pass
    assert not list(tmp_path.iterdir())
    (tmp_path / "b.mp4").touch()
    with pytest.raises(ExistsError):
        Film(tmp_path / "b.mp4", 30)
