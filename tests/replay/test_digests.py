"""Digests: pictures that are kept with loss replay exactly, or to the right step, and nothing else has them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import gymnasium as gym
import h5py
import numpy as np
import pytest
from gymnasium import spaces

from recorder import (
    CommitOptions,
    FormatError,
    MismatchError,
    Recorder,
    Recording,
    RecordingWriter,
    StepSpace,
    VideoStorage,
    ZarrStorage,
    layout,
    replay,
)
from recorder.digests import digest
from recorder.storages.video_writing import VideoWriter
from recorder.verify import verify
from recorder.writing.recovery import recover

SIDE = 128


class CameraEnv(gym.Env[Any, Any]):
    """Shows a natural picture that moves with the actions, and a number that is kept exactly."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012

    def __init__(self, length: int = 6, flipped: int | None = None, shift: int = 0, render_mode: str | None = None):
        self.observation_space = spaces.Dict(
            camera=spaces.Box(0, 255, (SIDE, SIDE, 3), np.uint8), number=spaces.Box(-9, 99, (), np.float64)
        )
        self.action_space = spaces.Discrete(4)
        self.render_mode = render_mode
        self.length, self.flipped, self.shift = length, flipped, shift
        self.scene = np.random.default_rng(0).normal(0, 6, (SIDE, SIDE, 3))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps, self.place = 0, int(self.np_random.integers(SIDE))
        return self._observe(), {}

    def _observe(self) -> Any:
        return {"camera": self.render(), "number": np.float64(self.place)}

    def render(self) -> Any:
        y, x = np.mgrid[:SIDE, :SIDE]
        ramp = np.stack([x, y, (x + y) // 2], axis=-1) + np.roll(self.scene, self.place, 1) + self.shift
        picture = np.clip(ramp, 0, 255).astype(np.uint8)
        if self.flipped == self.steps:
            picture[5, 7, 1] ^= 1
        return picture

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        self.place += int(action)
        return self._observe(), 1.0, self.steps == self.length, False, {}


def record(path: Path, episodes: int = 1, env: Any = None, **options: Any) -> Recording:
    with Recorder(env or CameraEnv(), path, fsync=False, verbose=False, **options) as recorded:
        recorded.action_space.seed(0)
        for seed in range(episodes):
            recorded.reset(seed=seed)
            while not recorded.step(recorded.action_space.sample())[2]:
                pass
    return Recording(path)


def test_a_picture_that_is_kept_with_loss_is_compared_to_the_last_bit(tmp_path: Path) -> None:
    recording = record(tmp_path, 2)
    assert [path for path in recording.leaves if path.startswith("digest/")] == ["digest/observation/camera"]
    for episode in recording:
        report = replay(episode, CameraEnv())
        assert report.verdict == "exact"
        assert {leaf.path: leaf.method for leaf in report.leaves}["observation/camera"] == "digests"
        changed = replay(episode, CameraEnv(flipped=4))
        assert changed.divergence is not None
        assert (changed.divergence.step, changed.divergence.leaf) == (4, "observation/camera")
        assert 0 < changed.divergence.error < 100
    env = CameraEnv()
    env.reset(seed=0)
    assert recording[0].columns["digest/observation/camera"][0] == digest(env.render())


def test_digests_lie_in_the_table_and_plain_h5py_reads_them(tmp_path: Path) -> None:
    record(tmp_path)
    (table,) = tmp_path.glob("shards/*/data.h5")
    with h5py.File(table) as file:
        assert file["digest/observation/camera"].dtype == np.uint32
        assert file["digest/observation/camera"].shape == (7,)
        assert "number" not in file["digest/observation"]
    assert verify(tmp_path, decode=True).sound


def test_without_loss_there_are_no_digests(tmp_path: Path) -> None:
    exact = layout(CameraEnv(), keys={"observation/camera": ZarrStorage()})
    recording = record(tmp_path, storage=exact)
    assert not any(path.startswith("digest") for path in recording.leaves)
    assert replay(recording[0], CameraEnv()).verdict == "exact"


def test_turned_off_a_picture_is_compared_within_what_its_codec_does(tmp_path: Path) -> None:
    recording = record(tmp_path, digests=False)
    assert not any(path.startswith("digest") for path in recording.leaves)
    assert "digest" not in (tmp_path / "recording.json").read_text()
    report = replay(recording[0], CameraEnv())
    assert report.verdict == "within tolerance"
    assert report.leaves[0].method == "codec" and report.leaves[0].largest > 0
    changed = replay(recording[0], CameraEnv(shift=60))
    assert changed.divergence is not None
    assert (changed.divergence.step, changed.divergence.leaf) == (0, "observation/camera")


def test_without_digests_the_codec_is_measured_in_every_mode(tmp_path: Path) -> None:
    def get(env: Any) -> Any:
        return np.array([env.unwrapped.steps, env.unwrapped.place])

    def put(env: Any, state: Any) -> None:
        env.unwrapped.steps, env.unwrapped.place = map(int, state)

    (episode,) = record(tmp_path, digests=False, record_state=get)
    assert replay(episode, CameraEnv(), mode="states", states=(get, put)).verdict == "within tolerance"


def test_what_is_appended_has_digests_as_the_recording_has(tmp_path: Path) -> None:
    for name, first, second in (("with", True, False), ("without", False, True)):
        record(tmp_path / name, digests=first)
        recording = record(tmp_path / name, digests=second)
        assert len(recording) == 2
        assert ("digest/observation/camera" in recording.leaves) is first
        assert {replay(episode, CameraEnv()).verdict for episode in recording} == {
            "exact" if first else "within tolerance"
        }
    assert len(Recording([tmp_path / "with", tmp_path / "without"])) == 4
    with pytest.raises(MismatchError, match="kept as"):
        record(tmp_path / "with", storage=layout(CameraEnv(), keys={"observation/camera": ZarrStorage()}))


def test_rendered_frames_have_digests_too(tmp_path: Path) -> None:
    recording = record(tmp_path, env=CameraEnv(render_mode="rgb_array"), record_render=True)
    episode = recording[0]
    assert list(episode.columns["digest/render"][:]) == list(episode.columns["digest/observation/camera"][:])


def test_pictures_that_were_not_taken_are_counted_and_not_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recorder.writing.pipeline.RING_BYTES", 8 * SIDE * SIDE * 3 + 1024)
    gate, append = threading.Event(), VideoWriter.append

    def held_up(self: Any, rows: Any, runs: Any) -> None:
        gate.wait(30)
        append(self, rows, runs)

    monkeypatch.setattr(VideoWriter, "append", held_up)
    with Recorder(CameraEnv(40), tmp_path, when_behind="repeat", fsync=False, verbose=False) as env:
        env.reset(seed=0)
        for k in range(40):
            env.step(k % 4)
        gate.set()
    (episode,) = Recording(tmp_path)
    marked = int(episode.columns["repeated/observation/camera"][:].sum())
    report = replay(episode, CameraEnv(40))
    assert report.verdict == "exact" and marked > 10
    assert report.notes == (
        f"{marked} rows of observation/camera were not taken when it was recorded, and are not compared",
    )
    unmarked = int(np.flatnonzero(~episode.columns["repeated/observation/camera"][:])[-1])
    found = replay(episode, CameraEnv(40, flipped=unmarked)).divergence
    assert found is not None and found.step == unmarked


def test_keep_if_sees_an_episode_with_its_digests(tmp_path: Path) -> None:
    seen: list[int] = []
    record(tmp_path, keep_if=lambda episode: seen.append(len(episode.columns["digest/observation/camera"])) is None)
    assert seen == [7]


def test_one_storage_of_pictures_for_all_rows_leaves_digests_to_a_table(tmp_path: Path) -> None:
    space = spaces.Box(0, 255, (SIDE, SIDE, 3), np.uint8)
    rows = np.random.default_rng(0).integers(0, 255, (5, SIDE, SIDE, 3), np.uint8)
    for _ in range(2):
        with RecordingWriter(tmp_path, space, storage=VideoStorage()) as writer:
            writer.begin()
            for row in rows:
                writer.append(row)
            writer.commit()
    for episode in Recording(tmp_path):
        assert list(episode.columns["digest/value"][:]) == [digest(row) for row in rows]
    assert verify(tmp_path, decode=True).sound


KILLED = """
import os, sys
sys.path.insert(0, sys.argv[2])
from test_digests import CameraEnv
from recorder import Recorder
env = Recorder(CameraEnv(60), sys.argv[1], fsync=False, verbose=False)
env.reset(seed=0)
for k in range(40):
    env.step(k % 4)
env.flush()
os._exit(0)
"""


def test_digests_survive_a_kill(tmp_path: Path) -> None:
    here = str(Path(__file__).parent)
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), here], check=True, env=os.environ)
    (recovery,) = recover(tmp_path)
    assert sum(recovery.kept.values()) >= 30
    (episode,) = Recording(tmp_path)
    report = replay(episode, CameraEnv(60))
    assert report.verdict == "exact" and report.compared == len(episode) >= 30
    assert report.leaves[0].method == "digests"


def test_a_digest_of_nothing_is_refused(tmp_path: Path) -> None:
    record(tmp_path)
    note = tmp_path / "recording.json"
    said = json.loads(note.read_text())
    said["leaves"][-1]["path"] = "digest/observation/other"
    note.write_text(json.dumps(said))
    with pytest.raises(FormatError, match="digest/observation/other"):
        Recording(tmp_path)


def test_a_key_of_the_user_that_is_called_digest_stays_his(tmp_path: Path) -> None:
    space = spaces.Dict(
        a=spaces.Box(0, 255, (SIDE, SIDE, 3), np.uint8), digest=spaces.Dict(a=spaces.Box(0, 1, (), np.float64))
    )
    picture = np.random.default_rng(0).integers(0, 255, (SIDE, SIDE, 3), np.uint8)
    with RecordingWriter(tmp_path, space, options=CommitOptions(digests=True)) as writer:
        writer.begin()
        writer.append({"a": picture, "digest": {"a": np.float64(0.5)}})
        writer.commit()
    assert Recording(tmp_path)[0].rows["digest"]["a"].tolist() == [0.5]


def test_a_space_that_differs_is_still_a_mismatch(tmp_path: Path) -> None:
    record(tmp_path)
    with pytest.raises(MismatchError), RecordingWriter(tmp_path, StepSpace(spaces.Discrete(3), spaces.Discrete(2))):
        pass
