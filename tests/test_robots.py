"""Robots: times of capture for each leaf, rows without an environment, and the example that shows both."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from gymnasium import spaces

from recorder import EpisodeError, MismatchError, Recording, RecordingWriter, RowError, StepSpace
from recorder.timing import slips, timing

FRONT, JOINTS = "observation/front", "observation/arm/a b"
EXAMPLE = Path(__file__).parent.parent / "examples" / "robot.py"


def space(times: tuple[str, ...] = (FRONT, JOINTS)) -> StepSpace:
    arm = spaces.Dict({"a b": spaces.Box(-9, 9, (3,), np.float32)})
    front = spaces.Box(0, 255, (8, 8, 3), np.uint8)
    return StepSpace(spaces.Dict(front=front, arm=arm), spaces.Discrete(2), times=times)


def row(k: int, **times: float) -> dict[str, Any]:
    observation = {"front": np.full((8, 8, 3), k, np.uint8), "arm": {"a b": np.full(3, k, np.float32)}}
    transition = {"action": 1, "reward": 0.0, "terminated": False, "truncated": False} if k else {}
    return {
        "observation": observation,
        "time": k / 10,
        "times": {FRONT: times["front"], JOINTS: times["joints"]},
        **transition,
    }


def test_each_leaf_keeps_its_own_time_of_capture(tmp_path: Path) -> None:
    with RecordingWriter(tmp_path, space()) as writer:
        writer.begin()
        for k in range(5):
            writer.append(row(k, front=k // 2 * 0.2, joints=k / 10 - 0.01 * (k == 3) * 9))
        writer.commit(task="pick up the cup")
    episode = Recording(tmp_path)[0]
    np.testing.assert_allclose(episode.columns[f"time/{FRONT}"][:], [0, 0, 0.2, 0.2, 0.4])
    front, joints = timing(episode, FRONT), timing(episode, JOINTS)
    assert front.repeated.tolist() == [False, True, False, True, False]
    np.testing.assert_allclose(front.age, [0, 0.1, 0, 0.1, 0], atol=1e-9)
    assert joints.late(0.05).tolist() == [False, False, False, True, False]
    np.testing.assert_allclose(episode.times, [0, 0.1, 0.2, 0.3, 0.4])
    assert slips(episode, 10) == {"rows": 4, "late": 0, "longest": pytest.approx(0.1)}
    with h5py.File(next(tmp_path.glob("shards/*/data.h5")), locking=False) as file:
        np.testing.assert_allclose(file[f"time/{FRONT}"][:], [0, 0, 0.2, 0.2, 0.4])


def test_a_row_without_all_times_is_refused_and_the_episode_goes_on(tmp_path: Path) -> None:
    with RecordingWriter(tmp_path, space()) as writer:
        writer.begin()
        writer.append(row(0, front=0, joints=0))
        writer.append(row(1, front=0, joints=0))
        with pytest.raises(RowError, match="lacks"):
            writer.append({name: value for name, value in row(2, front=0, joints=0).items() if name != "times"})
        with pytest.raises(RowError, match="a time for each of"):
            writer.append({**row(2, front=0, joints=0), "times": {FRONT: 0.0}})
        writer.append(row(2, front=0.2, joints=0.2))
        writer.commit()
    assert timing(Recording(tmp_path)[0], JOINTS).captured.tolist() == [0, 0, 0.2]


def test_a_recording_with_other_times_is_another_recording(tmp_path: Path) -> None:
    with RecordingWriter(tmp_path, space()) as writer:
        writer.begin()
        writer.append(row(0, front=0, joints=0))
        writer.append(row(1, front=0, joints=0))
    with RecordingWriter(tmp_path, space()) as writer:
        writer.begin()
        writer.append(row(0, front=0, joints=0))
        writer.append(row(1, front=0, joints=0))
    assert len(Recording(tmp_path)) == 2
    with pytest.raises(MismatchError, match="times"):
        RecordingWriter(tmp_path, space(()))


def test_what_has_no_times_says_so(tmp_path: Path) -> None:
    with RecordingWriter(tmp_path, space((FRONT,))) as writer:
        writer.begin()
        for k in range(2):
            writer.append({**row(k, front=0, joints=0), "times": {FRONT: 0.0}})
    with pytest.raises(EpisodeError, match="no time of capture of 'observation/arm/a b'"):
        timing(Recording(tmp_path)[0], JOINTS)


def test_the_example_records_a_loop_with_cameras_of_different_rates(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLE), str(tmp_path / "run"), "--seconds", "1.5", "--task", "stack two cubes"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    assert "observation/wrist" in done.stdout
    episode = Recording(tmp_path / "run")[0]
    assert len(episode) == 45
    assert episode.labels["task"] == "stack two cubes" and episode.labels["success"] is True
    wrist = timing(episode, "observation/wrist")
    assert wrist.repeated.sum() > timing(episode, "observation/joints").repeated.sum()
    assert (wrist.age >= 0).all()
    frames = episode.observations["wrist"]
    for k in np.flatnonzero(wrist.repeated):
        np.testing.assert_allclose(frames[k].astype(int), frames[k - 1].astype(int), atol=12)
