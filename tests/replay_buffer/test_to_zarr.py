"""to_zarr: recordings as replay buffers, from Python and from the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import gymnasium as gym
import imagecodecs
import numpy as np
import pytest
import zarr
from environments import CountingEnv, ScriptEnv, roll
from gymnasium import spaces

from recorder import (
    DictStorage,
    ExistsError,
    LayoutError,
    Recorder,
    Recording,
    RecordingWriter,
    ReplayBuffer,
    RowError,
    VideoStorage,
    WebP,
    ZarrStorage,
    to_zarr,
)
from recorder.cli import main
from recorder.convert.zarr_checking import check_zarr

LENGTHS = (5, 1, 30, 8)


def record(path: Path, pictures: Any = None, lengths: tuple[int, ...] = LENGTHS) -> Recording:
    """Record episodes of given lengths, with pictures in a storage."""
    storage = DictStorage({"render": pictures or ZarrStorage()})
    for length in lengths:
        env = CountingEnv(length, "rgb_array")
        with Recorder(env, path, record_render=True, storage=storage, verbose=False) as recorder:
            roll(recorder)
    return Recording(path)


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    return record(tmp_path_factory.mktemp("recorded") / "run")


def convert(recording: Any, path: Any, **options: Any) -> ReplayBuffer:
    return to_zarr(recording, path, progress=False, **options)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_one_row_a_step_and_the_final_observation_dropped(
    recording: Recording, tmp_path: Path, zarr_format: Any
) -> None:
    buffer = convert(recording, tmp_path / "b", zarr_format=zarr_format)
    names = {"observation", "action", "render", "reward", "terminated", "truncated", "time"}
    assert set(buffer.keys()) == names and buffer.complete
    assert buffer.episode_lengths.tolist() == list(LENGTHS)
    assert buffer.episode_ids == [episode.id for episode in recording]
    for i, episode in enumerate(recording):
        found = buffer.episode(i)
        np.testing.assert_array_equal(found["observation"], episode.observations[:-1])
        np.testing.assert_array_equal(found["render"], episode.renders[:-1])
        np.testing.assert_array_equal(found["time"], episode.times[:-1])
        np.testing.assert_array_equal(found["action"], episode.actions)
        np.testing.assert_array_equal(found["reward"], episode.rewards)
        np.testing.assert_array_equal(found["terminated"], episode.terminations)


def test_the_final_observation_is_kept_as_that_of_the_next_step(recording: Recording, tmp_path: Path) -> None:
    buffer = convert(recording, tmp_path / "b", final_observation="next", keys=["observation", "action"])
    assert set(buffer.keys()) == {"observation", "next_observation", "action"}
    for i, episode in enumerate(recording):
        np.testing.assert_array_equal(buffer.episode(i)["next_observation"], episode.observations[1:])


def test_pictures_that_are_coded_alike_are_never_decoded(
    recording: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        for name in ("webp_decode", "webp_encode"):
            patch.setattr(imagecodecs, name, lambda *arguments, **options: pytest.fail("a picture was coded anew"))
        convert(recording, tmp_path / "copied", keys=["render"])
    np.testing.assert_array_equal(ReplayBuffer(tmp_path / "copied").episode(2)["render"], recording[2].renders[:-1])


@pytest.mark.parametrize(
    ("there", "here", "copied"),
    [
        (ZarrStorage(quality=70), WebP(quality=70), True),
        (ZarrStorage(quality=70), WebP(quality=71), False),
        (ZarrStorage(quality=70), WebP(), False),
        (ZarrStorage(method=4), WebP(), True),
        (ZarrStorage(), WebP(quality=70), False),
        (ZarrStorage(codec="zstd"), WebP(), False),
    ],
)
def test_bytes_are_copied_where_the_quality_is_the_same(tmp_path: Path, there: Any, here: WebP, copied: bool) -> None:
    recording = record(tmp_path / "run", there, (4,))
    buffer = convert(recording, tmp_path / "b", image_codec=here, keys=["render"])
    source, found = recording[0].columns["render"].encoded(0, 4), buffer["render"].encoded(0, 4)
    assert found is not None
    assert (source is not None and source.pictures == found.pictures) is copied
    if here.quality is None:
        np.testing.assert_array_equal(buffer["render"][:], recording[0].renders[:-1])


def test_videos_are_decoded_to_the_frames_of_their_rows(tmp_path: Path) -> None:
    recording = record(tmp_path / "run", VideoStorage("h264rgb"))
    buffer = convert(recording, tmp_path / "b")
    for i, episode in enumerate(recording):
        np.testing.assert_array_equal(buffer.episode(i)["render"], episode.renders[:-1])
    assert check_zarr(recording, tmp_path / "b", progress=False).sound


def test_keys_names_and_episodes_are_chosen(recording: Recording, tmp_path: Path) -> None:
    last = recording[-1].id
    buffer = convert(
        recording,
        tmp_path / "b",
        keys=["render", "act*", "observation"],
        rename={"render": "camera/front"},
        episodes=[2, last, 0],
    )
    assert set(buffer.keys()) == {"camera/front", "action", "observation"}
    assert buffer.episode_lengths.tolist() == [30, 8, 5]
    np.testing.assert_array_equal(buffer.episode(1)["action"], recording[3].actions)
    buffer = convert(recording, tmp_path / "c", keys=["action"], rename=str.upper)
    assert buffer.keys() == ["ACTION"]


def test_flat_keys(tmp_path: Path) -> None:
    space = spaces.Dict({"arm": spaces.Dict({"joints": spaces.Box(-1, 1, (2,))}), "arm_joints": spaces.Box(-1, 1, ())})
    env = ScriptEnv(space, [space.sample() for _ in range(4)])
    with Recorder(env, tmp_path / "run", verbose=False) as recorder:
        roll(recorder)
    assert "observation/arm/joints" in convert(tmp_path / "run", tmp_path / "b")
    with pytest.raises(LayoutError, match="two keys have one name: 'observation_arm_joints'"):
        convert(tmp_path / "run", tmp_path / "c", flat=True)
    names = {"observation/arm_joints": "other"}
    assert "observation_arm_joints" in convert(tmp_path / "run", tmp_path / "c", flat=True, rename=names)


def test_infos_are_those_that_the_step_returned(tmp_path: Path) -> None:
    infos: list[dict[str, Any]] = [{}, {"success": False}, {"success": False, "late": 1}, {"success": True}]
    env = ScriptEnv(spaces.Box(-9, 9, (1,)), [np.float32([i]) for i in range(4)], infos)
    with Recorder(env, tmp_path / "run", verbose=False) as recorder:
        roll(recorder, 2)
    assert "info/success" not in convert(tmp_path / "run", tmp_path / "a")
    buffer = convert(tmp_path / "run", tmp_path / "b", keys=["info/success"])
    assert buffer["info/success"][:].tolist() == [False, False, True] * 2
    with pytest.raises(RowError, match=r"'info/late' is absent from .* steps"):
        convert(tmp_path / "run", tmp_path / "c", keys=["info/success", "info/late"])
    assert ReplayBuffer(tmp_path / "c").n_episodes == 0


def test_text_and_what_has_no_home(tmp_path: Path) -> None:
    space = spaces.Dict({"text": spaces.Text(9), "many": spaces.Sequence(spaces.Box(-1, 1, (2,)))})
    observations = [{"text": text, "many": ()} for text in ("abc", "zw", "m")]
    with Recorder(ScriptEnv(space, observations), tmp_path / "run", verbose=False) as recorder:
        roll(recorder)
    buffer = convert(tmp_path / "run", tmp_path / "b")
    assert buffer["observation/text"][:].tolist() == ["abc", "zw"]
    lost = buffer.attributes["recorder"]["left_out"]
    assert lost["observation/many"] == "its rows have different lengths"
    with pytest.raises(LayoutError, match="'observation/many' has no home in a replay buffer"):
        convert(tmp_path / "run", tmp_path / "c", keys=["observation/many"])


def test_recordings_that_are_no_series_of_steps(tmp_path: Path) -> None:
    space = spaces.Dict({"x": spaces.Box(-9, 9, (2,)), "done": spaces.MultiBinary(1)})
    rows = {"x": np.arange(12, dtype=np.float32).reshape(6, 2), "done": np.ones((6, 1), np.int8)}
    with RecordingWriter(tmp_path / "run", space) as writer:
        for count in (4, 2):
            writer.begin()
            for k in range(count):
                writer.append({key: value[k] for key, value in rows.items()})
            writer.commit()
    buffer = convert(tmp_path / "run", tmp_path / "b")
    assert buffer.episode_lengths.tolist() == [4, 2]
    np.testing.assert_array_equal(buffer.episode(0)["x"], rows["x"][:4])


def test_append_adds_what_was_recorded_since(tmp_path: Path) -> None:
    record(tmp_path / "run", lengths=(3, 4))
    convert(tmp_path / "run", tmp_path / "b")
    record(tmp_path / "run", lengths=(5,))
    with pytest.raises(ExistsError, match="with 2 episodes, complete; append=True"):
        convert(tmp_path / "run", tmp_path / "b")
    for _ in range(2):
        assert convert(tmp_path / "run", tmp_path / "b", append=True).episode_lengths.tolist() == [3, 4, 5]
    assert check_zarr(tmp_path / "run", tmp_path / "b", progress=False).sound


def test_many_short_episodes_are_as_long_ones(tmp_path: Path) -> None:
    with Recorder(gym.make("CartPole-v1"), tmp_path / "run", verbose=False) as env:
        roll(env, 150)
    recording = Recording(tmp_path / "run")
    buffer = convert(recording, tmp_path / "b", final_observation="next")
    assert buffer.n_steps == recording.steps
    for i in (0, 77, 149):
        np.testing.assert_array_equal(buffer.episode(i)["next_observation"], recording[i].observations[1:])
    assert check_zarr(recording, tmp_path / "b", progress=False).sound


def test_attributes_say_where_rows_come_from(recording: Recording, tmp_path: Path) -> None:
    convert(recording, tmp_path / "b")
    root = zarr.open_group(tmp_path / "b", mode="r")
    said: Any = root.attrs["recorder"]
    assert said["recordings"] == ["run"] and said["fps"] == recording.fps == 20
    assert set(said["spaces"]) == {"observation", "action", "render"}
    assert root["data/render"].attrs["recorder"]["leaf"] == "render"  # type: ignore[index]


def test_statistics_are_kept_when_they_are_asked_for(tmp_path: Path) -> None:
    storing = pytest.importorskip("recorder.statistics.storing")
    recording = record(tmp_path / "run")
    for path in (tmp_path / "b", tmp_path / "b.zip"):
        found = storing.stored_statistics(convert(recording, path, statistics=True))
        assert found is not None
        rewards = np.concatenate([episode.rewards for episode in recording])
        assert found.leaves["reward"].mean == rewards.mean()
    assert storing.stored_statistics(convert(recording, tmp_path / "c")) is None


def test_checking_measures_loss_and_finds_what_was_changed(tmp_path: Path) -> None:
    recording = record(tmp_path / "run")
    convert(recording, tmp_path / "b", image_codec=WebP(quality=50))
    found = check_zarr(recording, tmp_path / "b", progress=False)
    render = {key.key: key for key in found.keys}["render"]
    assert found.sound and not render.exact and 0 < render.mean_error < render.error < 256
    assert "render: bounded by" in str(found) and "observation: exact" in str(found)
    zarr.open_group(tmp_path / "b", mode="r+")["data/observation"][7] = 0.5  # type: ignore[index]
    changed = check_zarr(recording, tmp_path / "b", progress=False)
    assert not changed.sound and "'observation' should be exact" in changed.faults[0]


def test_no_episodes_are_an_empty_buffer(recording: Recording, tmp_path: Path) -> None:
    buffer = convert(recording, tmp_path / "b", episodes=[])
    assert buffer.n_episodes == 0 and buffer.complete and buffer["observation"].shape == (0, 2)
    assert convert(recording, tmp_path / "b", append=True).n_episodes == 4
    assert check_zarr(recording, tmp_path / "b", progress=False).sound


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"keys": ["observaton"]}, "did you mean 'observation'"),
        ({"rename": {"renders": "camera"}}, "did you mean 'render'"),
        ({"episodes": [9]}, "episode 9 of a recording of 4"),
        ({"episodes": ["nobody-000001"]}, "no episode has the id"),
        ({"episodes": [0, -4]}, "names one episode twice"),
        ({"final_observation": "keep"}, "'drop' or 'next'"),
        ({"rename": {"render": "a/../b"}}, "is no key"),
        ({"keys": "render"}, "keys='render': a list of names"),
        ({"episodes": 3}, "episodes=3: a list"),
        ({"workers": -2}, "workers=-2: a whole number from 1 on"),
        ({"workers": 0}, "workers=0"),
        ({"frames_per_shard": 0}, "frames_per_shard=0"),
        ({"frames_per_shard": 2.5}, "frames_per_shard=2.5"),
        ({"zarr_format": "3"}, "zarr_format='3'"),
        ({"image_codec": "webp"}, "'webp' is no codec"),
    ],
)
def test_choices_that_mean_nothing_are_refused(recording: Recording, tmp_path: Path, options: Any, said: str) -> None:
    with pytest.raises(LayoutError, match=said):
        convert(recording, tmp_path / "b", **options)
    assert not (tmp_path / "b").exists()


def run(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> str:
    capsys.readouterr()
    assert main([str(argument) for argument in arguments]) == code
    found = capsys.readouterr()
    return found.out if code == 0 else found.err


def test_the_command_plans_converts_and_checks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record(tmp_path / "run", lengths=(5, 6))
    out = tmp_path / "b.zarr"
    command = ("convert", tmp_path / "run", out)
    planned = run(capsys, *command, "--dry-run")
    assert "11 steps" in planned and "WebP" in planned and not out.exists()
    said = json.loads(run(capsys, *command, "--dry-run", "--json", "--quality", 80))
    assert [each["exact"] for each in said["arrays"] if each["key"] == "render"] == [False]
    assert said["steps"] == 11 and 0 < said["coded"] < said["bytes"]
    assert "render: exact" in run(capsys, *command)
    assert "--append goes on, --overwrite begins anew" in run(capsys, *command, code=1)
    checked = json.loads(run(capsys, *command, "--append", "--json"))
    assert checked["sound"] and checked["episodes"] == 2 and all(key["exact"] for key in checked["keys"])
    names = ("--keys", "render", "--rename", "render=img", "--zarr-format", 2, "--episode", 1, "--no-check")
    run(capsys, *command, "--overwrite", *names)
    assert ReplayBuffer(out).keys() == ["img"] and ReplayBuffer(out).n_steps == 6
    assert "LEAF=KEY" in run(capsys, *command, "--rename", "render", code=2)


def test_the_command_says_errors_in_its_own_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record(tmp_path / "run", lengths=(5,))
    out = tmp_path / "b.zarr"
    command = ("convert", tmp_path / "run", out)
    run(capsys, *command)
    wrong = [
        ((), "--append goes on, --overwrite begins anew"),
        (("--append", "--overwrite"), "--append keeps what is there, --overwrite removes it"),
        (("--overwrite", "--zarr-format", 2, "--frames-per-shard", 8), "--frames-per-shard: format 2 has no shards"),
        (("--overwrite", "--rename", "nothing=n"), "--rename names 'nothing'"),
        (("--overwrite", "--episode", 0, "--episode", -1), "--episode names one episode twice"),
    ]
    for options, said in wrong:
        error = run(capsys, *command, *options, code=1)
        assert said in error, error
        assert not re.search(r"=True|frames_per_shard|zarr_format", error)
    for option in ("--workers", "--frames-per-shard"):
        assert option in run(capsys, *command, option, 0, code=2)
    assert ReplayBuffer(out).n_steps == 5
