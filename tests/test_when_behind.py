"""What becomes of pictures when the encoder is slower than the loop."""

import threading
import time
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

from recorder import HDF5Storage, MismatchError, Recorder, Recording, ZarrStorage, layout
from recorder.leaf import Leaf
from recorder.storages.zarr_writer import ZarrWriter
from recorder.writing.pipeline import Ring

STEPS = 60
PICTURE = (256, 256, 3)


class Clock(gym.Env[dict[str, np.ndarray], int]):
    """Shows the number of the step in a picture, too large for many to wait, and beside it."""

    observation_space = Dict({"camera": Box(0, 255, PICTURE, np.uint8), "count": Box(0, 255, (), np.uint8)})
    action_space = Discrete(2)

    def __init__(self) -> None:
        self.count = 0

    def _observation(self) -> dict[str, np.ndarray]:
        return {"camera": np.full(PICTURE, self.count, np.uint8), "count": np.array(self.count, np.uint8)}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 1
        return self._observation(), {}

    def step(self, action):
        self.count += 1
        return self._observation(), 1.0, False, False, {}


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Hold the encoder up until the event is set; let few pictures wait."""
    monkeypatch.setattr("recorder.writing.pipeline.RING_BYTES", 8 * 256 * 256 * 3 + 1024)
    opened = threading.Event()
    append = ZarrWriter.append

    def held_up(self, rows, runs):
        opened.wait(30)
        append(self, rows, runs)

    monkeypatch.setattr(ZarrWriter, "append", held_up)
    return opened


def record(path: Path, when_behind: str, gate: threading.Event, episodes: int = 1) -> Recorder:
    env = Recorder(Clock(), path, storage=cameras(), when_behind=when_behind, verbose=False)
    for _ in range(episodes):
        env.reset()
        for _ in range(STEPS):
            env.step(0)
    gate.set()
    env.close()
    return env


def cameras():
    return layout(Clock(), keys={"observation/camera": ZarrStorage()})


@pytest.mark.parametrize("when_behind", ["repeat", "drop"])
def test_the_loop_goes_on_and_rows_equal_pictures(tmp_path: Path, gate: threading.Event, when_behind: str) -> None:
    record(tmp_path, when_behind, gate)
    (episode,) = Recording(tmp_path)
    shown = episode.columns["observation/camera"][:, 0, 0, 0]
    counts = episode.columns["observation/count"][:]
    marks = episode.columns["repeated/observation/camera"][:]
    assert counts.tolist() == list(range(1, STEPS + 2))
    assert len(shown) == len(marks) == STEPS + 1 and marks.sum() >= STEPS // 2 and not marks[0]
    assert (shown[~marks] == counts[~marks]).all()
    expected = np.maximum.accumulate(np.where(marks, 0, counts)) if when_behind == "repeat" else np.zeros_like(counts)
    assert (shown[marks] == expected[marks]).all()


def test_pictures_that_were_not_taken_are_counted_at_close(tmp_path: Path, gate: threading.Event, capsys) -> None:
    env = Recorder(Clock(), tmp_path, storage=cameras(), when_behind="repeat")
    env.reset()
    for _ in range(STEPS):
        env.step(0)
    gate.set()
    env.close()
    (episode,) = Recording(tmp_path)
    marked = int(episode.columns["repeated/observation/camera"][:].sum())
    assert f"{marked} steps repeat a picture" in capsys.readouterr().err


def test_the_first_picture_of_an_episode_is_always_taken(tmp_path: Path, gate: threading.Event) -> None:
    threading.Timer(0.3, gate.set).start()
    record(tmp_path, "repeat", gate, episodes=3)
    for episode in Recording(tmp_path):
        assert not episode.columns["repeated/observation/camera"][0]
        assert episode.columns["observation/camera"][0].max() == 1


def test_the_loop_waits_where_nothing_else_is_asked_for(tmp_path: Path, gate: threading.Event) -> None:
    threading.Timer(0.3, gate.set).start()
    record(tmp_path, "block", gate)
    (episode,) = Recording(tmp_path)
    assert "repeated/observation/camera" not in episode.columns
    assert episode.columns["observation/camera"][:, 0, 0, 0].tolist() == list(range(1, STEPS + 2))


def test_a_loop_that_is_slow_enough_has_no_marks(tmp_path: Path, gate: threading.Event) -> None:
    gate.set()
    with Recorder(Clock(), tmp_path, storage=cameras(), when_behind="repeat", verbose=False) as env:
        env.reset()
        for _ in range(20):
            env.step(0)
            env.flush()
    (episode,) = Recording(tmp_path)
    assert not episode.columns["repeated/observation/camera"][:].any()
    assert episode.columns["observation/camera"][:, 0, 0, 0].tolist() == list(range(1, 22))


def test_a_recording_without_marks_is_not_appended_to(tmp_path: Path, gate: threading.Event) -> None:
    gate.set()
    record(tmp_path, "block", gate)
    with pytest.raises(MismatchError, match="no marks for repeated rows"):
        Recorder(Clock(), tmp_path, storage=cameras(), when_behind="drop")


def test_a_recording_with_marks_is_appended_to_by_one_that_waits(tmp_path: Path, gate: threading.Event) -> None:
    record(tmp_path, "repeat", gate)
    record(tmp_path, "block", gate)
    marks = [episode.columns["repeated/observation/camera"][:] for episode in Recording(tmp_path)]
    assert [bool(each.any()) for each in marks] == [True, False] and len(marks[1]) == STEPS + 1


def test_tables_are_never_repeated(tmp_path: Path) -> None:
    with Recorder(Clock(), tmp_path, storage=HDF5Storage(), when_behind="repeat", verbose=False) as env:
        env.reset()
        env.step(0)
    (episode,) = Recording(tmp_path)
    assert not [path for path in episode.columns if path.startswith("repeated")]


def test_an_unknown_way_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="when_behind='skip' is none of"):
        Recorder(Clock(), tmp_path, when_behind="skip")


def test_the_recorder_measures_what_it_costs(tmp_path: Path) -> None:
    class Slow(Clock):
        def step(self, action):
            time.sleep(0.002)
            return super().step(action)

    with Recorder(Slow(), tmp_path, verbose=False) as env:
        env.reset()
        for _ in range(50):
            env.step(0)
    quantiles = env.cost.quantiles()
    assert env.cost.count >= 25  # of the 50, at two milliseconds each
    assert 0 < quantiles.p50 <= quantiles.p99 <= quantiles.most
    assert quantiles.p50 < 0.002  # the environment's own time is not in it


def test_the_last_picture_stands_for_others_in_the_first_rows_that_are_taken_over_too() -> None:
    leaf = Leaf("observation", (96, 96, 3), "uint8")
    ring = Ring([leaf], "repeat", [leaf])
    pictures, marks = ring.slots["observation"], ring.skipped
    assert isinstance(pictures, np.ndarray) and marks is not None
    for row in range(6):
        marks[row] = row % 3 != 0
        pictures[row] = 99 if marks[row] else row + 1
    rows = ring.take(0, 6)["observation"]
    assert isinstance(rows, np.ndarray) and rows[:, 0, 0, 0].tolist() == [1, 1, 1, 4, 4, 4]
