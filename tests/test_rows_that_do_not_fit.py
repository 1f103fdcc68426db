"""Rows and frames: what fits is kept exactly, what does not is refused by name and leaves the episode aligned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from environments import CountingEnv, ReusingEnv, ScriptEnv, roll
from gymnasium import spaces

from recorder import Recorder, Recording, RowError

PICTURE = spaces.Box(0, 255, (96, 96, 3), np.uint8)
GOOD = np.full((96, 96, 3), 7, np.uint8)

REFUSED = {
    "float picture in a uint8 leaf": (PICTURE, GOOD, np.full((96, 96, 3), 0.5, np.float32)),
    "smaller picture": (PICTURE, GOOD, np.zeros((64, 64, 3), np.uint8)),
    "one number for seven": (spaces.Box(-1, 1, (7,)), np.zeros(7, np.float32), np.zeros(1, np.float32)),
    "fraction in an integer": (spaces.Discrete(9), 3, 3.7),
    "not a number in an integer": (spaces.Discrete(9), 3, float("nan")),
    "text in a number": (spaces.Box(-1, 1, ()), np.float32(0), "left"),
    "None": (spaces.Box(-1, 1, (2,)), np.zeros(2, np.float32), None),
    "number in a text": (spaces.Text(5), "left", 3),
    "text that is too long": (spaces.Text(5), "left", "leftmost"),
    "missing key": (spaces.Dict(a=spaces.Discrete(3), b=PICTURE), {"a": 1, "b": GOOD}, {"a": 1}),
    "extra key": (spaces.Dict(a=spaces.Discrete(3)), {"a": 1}, {"a": 1, "c": 2}),
    "shorter tuple": (spaces.Tuple([spaces.Discrete(3)] * 2), (1, 2), (1,)),
    "large number in a small integer": (spaces.Box(0, 255, (2,), np.uint8), np.zeros(2, np.uint8), np.array([1, 300])),
    "64-bit float in a 32-bit leaf": (spaces.Box(-9, 9, (2,)), np.zeros(2, np.float32), np.array([0.1, 0.2])),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_row_that_does_not_fit_is_refused_and_the_episode_goes_on(tmp_path: Path, name: str) -> None:
    space, good, bad = REFUSED[name]
    env = Recorder(ScriptEnv(space, [good, good, bad, good, good]), tmp_path, verbose=False)
    env.reset()
    env.step(0)
    with pytest.raises(RowError, match=r"step 2 is not recorded: 'observation") as refused:
        env.step(1)
    assert any(word in str(refused.value) for word in ("got", "lacks", "unknown"))
    env.step(0)
    env.step(1)
    env.close()
    (episode,) = Recording(tmp_path)
    assert episode.refused == [2]
    assert episode.actions.tolist() == [0, 0, 1]
    assert [len(column) for column in episode.columns.values()] == [
        4 if leaf.per == "moment" else 3 for leaf in Recording(tmp_path).schema.leaves.values()
    ]
    assert episode.terminations.tolist() == [False, False, True]


EXACT = {
    "float picture first": (PICTURE, np.full((96, 96, 3), 0.1, np.float32), "float32"),
    "64-bit float in a 32-bit space": (spaces.Box(-9, 9, (2,), np.float32), np.array([0.1, 1e300]), "float64"),
    "32-bit integer in a 64-bit space": (spaces.Discrete(5), np.int32(3), "int32"),
    "Python integer": (spaces.Discrete(5), 3, "int64"),
    "list of exact numbers": (spaces.Box(-9, 9, (2,), np.float32), [0.5, 1.0], "float32"),
    "list of numbers that are not exact": (spaces.Box(-9, 9, (2,), np.float32), [0.1, 1.0], "float64"),
    "NaN and infinity": (
        spaces.Box(-9, 9, (3,), np.float32),
        np.array([np.nan, np.inf, -np.inf], np.float32),
        "float32",
    ),
    "beyond its bounds": (spaces.Box(-1, 1, (2,), np.float32), np.array([5, -7], np.float32), "float32"),
    "bool": (spaces.MultiBinary(3), np.array([True, False, True]), "bool"),
    "other byte order": (spaces.Box(-9, 9, (2,), np.float32), np.array([1, 2], ">f4"), "float32"),
    "not contiguous": (spaces.Box(-9, 9, (2,), np.float32), np.arange(4, dtype=np.float32)[::2], "float32"),
}


@pytest.mark.parametrize("name", EXACT)
def test_the_first_row_decides_the_dtype_and_every_value_comes_back(tmp_path: Path, name: str) -> None:
    space, value, dtype = EXACT[name]
    with Recorder(ScriptEnv(space, [value] * 4), tmp_path, verbose=False) as env:
        roll(env)
    (episode,) = Recording(tmp_path)
    assert str(episode.columns["observation"].dtype) == dtype
    np.testing.assert_array_equal(episode.observations, [np.asarray(value)] * 4)


def test_a_later_dtype_is_taken_where_the_cast_is_exact(tmp_path: Path) -> None:
    space = spaces.Box(-9, 9, (2,), np.float64)
    rows = [np.array([0.5, 1.0]), np.array([1, 2]), np.array([0.1, 2], np.float32), [3, 4.5]]
    with Recorder(ScriptEnv(space, rows), tmp_path, verbose=False) as env:
        roll(env)
    np.testing.assert_array_equal(
        Recording(tmp_path)[0].observations, np.array([list(map(float, row)) for row in rows])
    )


def test_a_bad_first_observation_is_refused_and_nothing_is_recorded(tmp_path: Path) -> None:
    env = Recorder(ScriptEnv(PICTURE, [np.zeros((3, 3, 3), np.uint8), GOOD]), tmp_path / "run", verbose=False)
    with pytest.raises(RowError, match=r"'observation' has shape \(96, 96, 3\), got \(3, 3, 3\)"):
        env.reset()
    env.close()
    assert not (tmp_path / "run").exists()


def test_a_bad_action_is_refused_before_the_environment_steps(tmp_path: Path) -> None:
    inner = CountingEnv(5)
    with Recorder(inner, tmp_path, verbose=False) as env:
        env.reset()
        env.step(0)
        with pytest.raises(RowError, match="'action' is int64, got float64"):
            env.step(0.5)  # type: ignore[arg-type]
        assert inner.steps == 1
        env.step(1)
    (episode,) = Recording(tmp_path)
    assert (episode.actions.tolist(), list(episode.refused)) == ([0, 1], [])


def test_arrays_that_the_environment_fills_again_are_copied(tmp_path: Path) -> None:
    with Recorder(ReusingEnv(6, "rgb_array"), tmp_path, record_render=True, verbose=False) as env:
        roll(env)
    (episode,) = Recording(tmp_path)
    assert episode.observations[:, 0].tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert episode.renders[:, 0, 0, 0].tolist() == [0, 1, 2, 3, 4, 5, 6]


def test_an_action_that_the_environment_changes_is_kept_as_it_was_given(tmp_path: Path) -> None:
    class Clipping(CountingEnv):
        def __init__(self) -> None:
            super().__init__(3)
            self.action_space = spaces.Box(-1, 1, (2,))  # type: ignore[assignment]

        def step(self, action: Any) -> Any:
            np.clip(action, -1, 1, out=action)
            return super().step(action)

    with Recorder(Clipping(), tmp_path, verbose=False) as env:
        roll(env, policy=lambda _: np.array([5, -7], np.float32))
    assert Recording(tmp_path)[0].actions.tolist() == [[5, -7]] * 3


def test_infos_never_raise_and_come_back_where_they_are_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    array = np.arange(3)
    infos: list[Any] = [
        {"always": 1, "text": "é", "array": array},
        {"always": 2, "none": None, "array": np.arange(2), "number": 1},
        {"always": 3, "late": True, "number": 0.5, "nested": {"x/y": np.float32(2), "object": object()}},
        {"always": 4, "shape": np.zeros(2), "list": [1, "b", None]},
        {"always": 5, "shape": np.zeros((2, 2)), "dtype": 7},
    ]
    space = spaces.Discrete(9)
    with Recorder(ScriptEnv(space, [0, 1, 2, 3, 4], infos), tmp_path, exclude=["info/dtype"]) as env:
        roll(env)
        array[:] = 9
    assert "nested/object (object)" in capsys.readouterr().err
    (episode,) = Recording(tmp_path)
    found = episode.infos
    assert found["always"].tolist() == [1, 2, 3, 4, 5] and not np.ma.isMaskedArray(found["always"])
    assert found["text"].tolist() == ["é", None, None, None, None]
    assert found["late"].tolist() == [None, None, True, None, None]
    assert found["number"].tolist() == [None, 1.0, 0.5, None, None]
    assert [None if np.ma.is_masked(row) else row.tolist() for row in found["array"]] == [
        [0, 1, 2],
        [0, 1],
        None,
        None,
        None,
    ]
    assert found["nested"]["x/y"].tolist() == [None, None, 2.0, None, None]
    assert found["list"].tolist() == [None, None, None, [1, "b", None], None]
    assert [step.info.get("shape") for step in episode][:2] == [None, None]
    assert episode[4].info["shape"] == [[0.0, 0.0], [0.0, 0.0]]
    assert "none" not in found and "dtype" not in found


def test_extra_values_are_recorded_with_the_step(tmp_path: Path) -> None:
    extra = {"log_prob": spaces.Box(-np.inf, np.inf, ()), "plan": spaces.Text(20)}
    with Recorder(CountingEnv(3), tmp_path, extra=extra, verbose=False) as env:
        env.reset()
        with pytest.raises(RowError, match="call record"):
            env.step(0)
        with pytest.raises(RowError, match="takes"):
            env.record(logprob=1)
        for k in range(3):
            env.record(log_prob=np.float32(-k), plan=f"go {k}")
            env.step(0)
    (episode,) = Recording(tmp_path)
    assert episode.extras["log_prob"].tolist() == [0, -1, -2]
    assert episode.extras["plan"].tolist() == ["go 0", "go 1", "go 2"]


def test_excluded_leaves_are_not_recorded(tmp_path: Path) -> None:
    space = spaces.Dict(keep=spaces.Discrete(3), drop=spaces.Dict(a=PICTURE, b=spaces.Discrete(2)))
    rows = [{"keep": k % 3, "drop": {"a": GOOD, "b": 1}} for k in range(4)]
    with Recorder(ScriptEnv(space, rows), tmp_path, exclude=["observation/drop", "time"], verbose=False) as env:
        roll(env)
    found = Recording(tmp_path)
    assert list(found[0].observations) == ["keep"]
    assert not [path for path in found.leaves if "drop" in path or path == "time"]
    assert found.observation_space == spaces.Dict(keep=spaces.Discrete(3))
