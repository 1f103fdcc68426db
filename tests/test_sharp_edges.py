"""What users ran into: values of infos, a last step that is refused, limits with `keep_if`, folders in the way."""

import copy
import enum
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from recorder import (
    ClosedError,
    LayoutError,
    Recorder,
    Recording,
    RecordingWriter,
    RowError,
    compact,
    delete,
    label,
    merge,
    pick,
    rewrite,
    to_zarr,
)
from recorder.selection import Selection


class Lab(int, enum.Enum):
    """A value with a label, as people write it."""

    A = (1, "alpha")

    def __new__(cls, value: int, label: str) -> "Lab":
        made = int.__new__(cls, value)
        made._value_ = label
        return made


class Telling(gym.Env[np.ndarray, int]):
    """Five steps an episode, with an info of the test's choice."""

    observation_space = Box(-1, 9, (), np.float64)
    action_space = Discrete(2)

    def __init__(self, info=lambda episode, step: {"ok": step}) -> None:
        self.info = info
        self.episode = -1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode += 1
        self.count = 0
        return np.array(0.0), {}

    def step(self, action):
        self.count += 1
        info = self.info(self.episode, self.count)
        return np.array(float(self.count)), 1.0, self.count == 5, False, info


def play(env, episodes: int) -> None:
    for _ in range(episodes):
        env.reset()
        for _ in range(5):
            env.step(0)


@pytest.mark.parametrize(
    "strange",
    [
        pytest.param({"k": 10**5000}, id="a number of many digits"),
        pytest.param({"k": np.zeros((1,) * 40)}, id="an array of many axes"),
        pytest.param([1, 2], id="no mapping"),
        pytest.param("abc", id="a text"),
    ],
)
def test_an_info_that_cannot_be_kept_takes_no_row_with_it(tmp_path: Path, strange, capsys) -> None:
    with Recorder(Telling(lambda episode, step: strange if episode == 2 else {"ok": step}), tmp_path) as env:
        play(env, 4)
    episodes = list(Recording(tmp_path))
    assert [len(episode) for episode in episodes] == [5] * 4
    for episode in (episodes[0], episodes[1], episodes[3]):
        assert episode.infos["ok"][1:].tolist() == [1, 2, 3, 4, 5]
    assert "not kept" in capsys.readouterr().err


def test_a_number_with_a_label_is_kept_as_the_number(tmp_path: Path) -> None:
    with Recorder(Telling(lambda episode, step: {"k": Lab.A}), tmp_path, verbose=0) as env:
        play(env, 1)
    assert Recording(tmp_path)[0].infos["k"][1:].tolist() == [1] * 5


def test_an_episode_is_over_also_where_its_last_step_was_refused(tmp_path: Path) -> None:
    class Bad(Telling):
        def step(self, action):
            observation, *rest = super().step(action)
            return (np.zeros(3) if self.count == 5 else observation, *rest)

    with Recorder(Bad(), tmp_path, verbose=0) as env:
        env.reset()
        for _ in range(4):
            env.step(0)
        with pytest.raises(RowError):
            env.step(0)
        with pytest.warns(UserWarning, match="not recorded"):
            env.step(0)
    (episode,) = Recording(tmp_path)
    assert (len(episode), episode.end, episode.refused) == (4, "terminated", [5])


def test_as_many_episodes_are_kept_as_were_asked_for_whatever_is_rejected(tmp_path: Path) -> None:
    keep = Selection(max_episodes=3)
    with Recorder(
        Telling(lambda episode, step: {"good": episode % 4 == 3}),
        tmp_path,
        select=keep,
        keep_if=lambda episode: episode.infos["good"][1:].all(),
        verbose=0,
    ) as env:
        play(env, 30)
    assert len(Recording(tmp_path)) == 3


@pytest.mark.parametrize("arguments", [{"max_episodes": -1}, {"every": 2.5}, {"last_seconds": float("nan")}])
def test_a_selection_that_means_nothing_is_refused(arguments) -> None:
    with pytest.raises(ValueError, match=r"whole numbers|at least 0|seconds"):
        Selection(**arguments)


@pytest.mark.parametrize("arguments", [{"flush_every": -1}, {"flush_every": float("nan")}, {"trash": -1}])
def test_options_that_mean_nothing_are_refused_when_wrapping(tmp_path: Path, arguments) -> None:
    with pytest.raises(ValueError, match="0 or more"):
        Recorder(Telling(), tmp_path, **arguments)


@pytest.mark.parametrize("path", ["extra/..", "../../x", "extra/a/../b", "extra/a\0b", "extra/x\\y", "extra//b"])
def test_no_leaf_is_added_at_a_path_that_no_reader_takes(tmp_path: Path, path: str) -> None:
    with Recorder(Telling(), tmp_path, verbose=0) as env:
        play(env, 1)
    with pytest.raises(LayoutError, match=r"cannot be added|no path of a leaf"):
        rewrite(tmp_path, {path: np.arange(5.0)})
    assert Recording(tmp_path)[0].rewards.tolist() == [1.0] * 5


def test_edits_with_arguments_of_another_form_say_what_they_take(tmp_path: Path) -> None:
    with Recorder(Telling(), tmp_path, verbose=0) as env:
        play(env, 2)
    ids = [episode.id for episode in Recording(tmp_path)]
    with pytest.raises(RowError, match=r"has 5 rows in episode .*, got one float"):
        rewrite(tmp_path, {"reward": 1.0})
    with pytest.raises(RowError, match="no one shape"):
        rewrite(tmp_path, {"extra/x": [[1], [1, 2], [], [], []]})
    with pytest.raises(ValueError, match="a list of ids, got the text"):
        delete(tmp_path, ids[0])
    with pytest.raises(ValueError, match="mappings of names by id"):
        label(tmp_path, {ids[0]: None})
    assert [episode.id for episode in Recording(tmp_path)] == ids


def test_a_writer_is_not_pickled_and_says_what_to_do(tmp_path: Path) -> None:
    with RecordingWriter(tmp_path / "run", Box(0, 1, (2,))) as writer:
        for what in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(ClosedError, match="Make one in each process"):
                what(writer)


def test_episodes_in_memory_have_no_folder_to_read(tmp_path: Path) -> None:
    with RecordingWriter(None, Box(0, 1, (2,), np.float64)) as writer:
        writer.begin()
        writer.append(np.zeros(2))
        writer.commit()
        writer.flush()
        uses: list[Callable[[Any], object]] = [
            Recording,
            lambda held: to_zarr(held, tmp_path / "out.zarr"),
            lambda held: pick(held, tmp_path),
            lambda held: merge([held], tmp_path),
            lambda held: rewrite(held, lambda episode: None),
            lambda held: delete(held, []),
            compact,
        ]
        for use in uses:
            with pytest.raises(TypeError, match=r"these episodes are in memory"):
                use(writer.recording)
        assert not list(tmp_path.iterdir())
        assert len(writer.recording.filter(lambda episode: True)) == 1


def test_an_edit_is_given_a_path_and_not_an_opened_recording(tmp_path: Path) -> None:
    with RecordingWriter(tmp_path / "run", Box(0, 1, (2,), np.float64)) as writer:
        writer.begin()
        writer.append(np.zeros(2))
        writer.commit()
    opened: Any = Recording(tmp_path / "run")
    for use in (compact, lambda held: delete(held, []), lambda held: pick(held, tmp_path / "other")):
        with pytest.raises(TypeError, match=r"takes the path of a recording, not an opened one: give it '.*run'"):
            use(opened)
