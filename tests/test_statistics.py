"""Statistics against NumPy on all rows at once: streamed, merged, stored, and by the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray

from recorder import (
    EpisodeError,
    Leaf,
    Recorder,
    Recording,
    RecordingWriter,
    ReplayBuffer,
    StepSpace,
    create_zarr_replay_buffer,
)
from recorder.cli import main
from recorder.columns import ArrayColumn
from recorder.leaf import text_array
from recorder.statistics.computing import Statistics, episode_statistics, statistics, statistics_from_json
from recorder.statistics.counting import SAMPLE
from recorder.statistics.gathering import QUANTILES, Gatherer
from recorder.statistics.leaves import LeafStatistics, components
from recorder.statistics.spans import RecordingSpans, blocks
from recorder.statistics.storing import store_statistics, stored_statistics

DTYPES = ("bool", "uint8", "int8", "int32", "uint16", "float16", "float32", "float64")


@st.composite
def columns(draw: st.DrawFn) -> tuple[Leaf, NDArray[Any]]:
    """Rows of any dtype and small shape, without infinities, some of them NaN."""
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    shape = draw(st.sampled_from([(), (1,), (3,), (2, 2)]))
    elements = npst.from_dtype(dtype)
    if dtype.kind == "f":
        elements = st.integers(-1000, 1000).map(lambda n: n / 8) | st.just(np.nan)
    rows = draw(npst.arrays(dtype, (draw(st.integers(0, 40)), *shape), elements=elements))
    return Leaf("x", shape, dtype.name), rows


def check(found: LeafStatistics, rows: NDArray[Any]) -> None:
    """Fail unless the statistics of rows with the leaf's own components are those that NumPy gives."""
    wide = rows.astype(np.float64)
    assert found.count.tolist() == (~np.isnan(wide)).sum(axis=0).tolist()
    assert found.nan == int(np.isnan(wide).sum()) and found.rows == len(rows)
    there = found.count > 0
    if not len(rows) or not there.any():
        assert np.isnan(found.mean).all()
        return
    filled = wide.reshape(len(rows), -1)[:, there.reshape(-1)]
    for name, function in (("mean", np.nanmean), ("std", np.nanstd), ("min", np.nanmin), ("max", np.nanmax)):
        np.testing.assert_allclose(getattr(found, name)[there], function(filled, axis=0), rtol=1e-6, atol=1e-6)
    for q, values in found.quantiles.items():
        np.testing.assert_allclose(values[there], np.nanquantile(filled, q, axis=0), rtol=1e-6, atol=1e-6)
    assert found.min.dtype == rows.dtype


@given(columns(), st.lists(st.integers(0, 40), max_size=4))
def test_blocks_give_what_numpy_gives_for_all(column: tuple[Leaf, NDArray[Any]], cuts: list[int]) -> None:
    leaf, rows = column
    gatherer = Gatherer(leaf)
    for block in np.split(rows, sorted(min(cut, len(rows)) for cut in cuts)):
        gatherer.add(block)
    check(gatherer.result(), rows)


@given(columns(), st.integers(0, 40))
def test_parts_are_merged_to_what_the_whole_gives(column: tuple[Leaf, NDArray[Any]], cut: int) -> None:
    leaf, rows = column
    parts = [Gatherer(leaf, seed=[i]) for i in range(2)]
    for part, block in zip(parts, (rows[:cut], rows[cut:]), strict=True):
        part.add(block)
    parts[0].merge(parts[1])
    check(parts[0].result(), rows)


def test_quantiles_of_many_rows_are_near_and_do_not_depend_on_blocks() -> None:
    rows = np.random.default_rng(0).normal(size=(10 * SAMPLE, 2)) * [1, 100] + [0, 5000]
    found = []
    for size in (1000, 7777):
        gatherer = Gatherer(Leaf("x", (2,)))
        for first in range(0, len(rows), size):
            gatherer.add(rows[first : first + size])
        found.append(gatherer.result())
    assert {q: v.tolist() for q, v in found[0].quantiles.items()} == {
        q: v.tolist() for q, v in found[1].quantiles.items()
    }
    np.testing.assert_allclose(found[0].std, rows.std(axis=0), rtol=1e-9)
    for q, values in found[0].quantiles.items():
        ranks = (rows <= values).mean(axis=0)
        np.testing.assert_allclose(ranks, q, atol=0.02)


def test_pictures_are_counted_by_channel_and_large_rows_together() -> None:
    pictures = np.random.default_rng(0).integers(0, 256, (5, 8, 9, 3), np.uint8)
    gatherer = Gatherer(Leaf("camera", (8, 9, 3), "uint8"))
    gatherer.add(pictures)
    found = gatherer.result()
    np.testing.assert_allclose(found.mean, pictures.reshape(-1, 3).mean(axis=0))
    np.testing.assert_allclose(found.quantiles[0.5], np.median(pictures.reshape(-1, 3), axis=0))
    assert components(Leaf("depth", (64, 64), "float32")) == () and components(Leaf("state", (6,))) == (6,)


def test_infinities_and_whole_numbers_beyond_floats_are_told() -> None:
    gatherer = Gatherer(Leaf("x", (), "float64"))
    gatherer.add(np.array([1.0, np.inf, -np.inf, np.nan]))
    found = gatherer.result()
    assert (found.min, found.max, found.nan) == (-np.inf, np.inf, 1) and np.isnan(found.std)
    assert json.loads(json.dumps(found.to_json(), allow_nan=False))
    large = Gatherer(Leaf("x", (), "int64"))
    large.add(np.array([2**63 - 1, -(2**63)]))
    assert large.result().overall()["max"] == 2**63 - 1


def test_text_ragged_and_absent_rows_are_counted() -> None:
    text = Gatherer(Leaf("task", (), "text"))
    text.add(np.array(["a", "b", "a"], object))
    assert text.result().distinct == 2 and text.result().overall()["mean"] is None
    ragged = Gatherer(Leaf("points", (2,), "float32", ragged=True))
    ragged.add(np.array([np.ones((3, 2), np.float32), np.zeros((1, 2), np.float32), None], object)[:2])
    assert ragged.result().lengths == (1, 3) and ragged.result().mean.tolist() == [0.75, 0.75]
    sparse = Gatherer(Leaf("info/x", (), sparse=True))
    sparse.add(np.ma.MaskedArray([1.0, 2.0, 9.0], [False, False, True]))
    assert (sparse.result().absent, sparse.result().overall()["mean"]) == (1, 1.5)


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    with Recorder(gym.make("CartPole-v1"), tmp_path / "cart", verbose=False) as env:
        env.action_space.seed(0)
        for seed in range(4):
            env.reset(seed=seed)
            while not any(env.step(env.action_space.sample())[2:4]):
                pass
    return tmp_path / "cart"


@pytest.fixture
def buffer(tmp_path: Path) -> ReplayBuffer:
    generator = np.random.default_rng(0)
    specs = {"camera": {"shape": (0, 40, 40, 3), "dtype": "uint8"}, "action": {"shape": (0, 2), "dtype": "float32"}}
    episodes = [
        {"camera": generator.integers(0, 256, (n, 40, 40, 3), np.uint8), "action": generator.random((n, 2), np.float32)}
        for n in (30, 5, 17)
    ]
    return create_zarr_replay_buffer(tmp_path / "b.zarr", specs, episodes, progress=False)


class TestSources:
    def test_all_rows_of_a_recording_count_and_those_of_one_episode(self, recorded: Path) -> None:
        recording = Recording(recorded)
        found = statistics(recording)
        every = np.concatenate([episode.observations for episode in recording])
        check(found.leaves["observation"], every)
        assert (found.episodes, found.steps, found.leaves["observation"].rows) == (4, recording.steps, len(every))
        one = statistics(recorded, keys=["observation", "action"], episodes=[-1])
        assert list(one.leaves) == ["observation", "action"] and one.episodes == 1
        check(one.leaves["observation"], recording[-1].observations)

    def test_each_episode_has_its_own(self, recorded: Path, buffer: ReplayBuffer) -> None:
        for source in (Recording(recorded), buffer):
            each = list(episode_statistics(source, keys=["action"]))
            assert [one.to_json() for one in each] == [
                statistics(source, keys=["action"], episodes=[i]).to_json() for i in range(len(each))
            ]
            whole = statistics(source, keys=["action"])
            assert sum(one.steps for one in each) == whole.steps and len(each) == whole.episodes
            sums = sum(one.leaves["action"].mean * one.leaves["action"].count for one in each)
            np.testing.assert_allclose(sums / whole.leaves["action"].count, whole.leaves["action"].mean)

    def test_of_large_rows_some_may_be_enough(self, buffer: ReplayBuffer) -> None:
        found = statistics(buffer, most_frames=10).leaves
        assert (found["camera"].rows, found["camera"].of) == (9, 52)
        assert (found["action"].rows, found["action"].of) == (52, 52)
        pictures = buffer["camera"][::6].reshape(-1, 3)
        np.testing.assert_allclose(found["camera"].mean, pictures.mean(axis=0))
        chosen = statistics(buffer, episodes=[2, 0], most_frames=10).leaves["camera"]
        rows = [*range(35, 52), *range(30)][::5]
        np.testing.assert_allclose(chosen.mean, buffer["camera"][rows].reshape(-1, 3).mean(axis=0))

    def test_the_shards_of_a_recording_are_read_one_after_another(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for seed in range(3):
            with Recorder(gym.make("CartPole-v1", max_episode_steps=9), tmp_path / "run", verbose=False) as env:
                for episode in range(2):
                    env.reset(seed=10 * seed + episode)
                    for action in range(3):
                        env.step(action % 2)
                    env.end_episode()
        recording = Recording(tmp_path / "run")
        assert len(recording.shards) == 3
        source = RecordingSpans(recording)
        readers = []
        for group in source.groups(range(6)):
            assert len(source.spans(["observation", "action"], group)["observation"]) == 1
            readers.append(len(source._recording._readers))
        assert readers == [1, 1, 1] and not recording._readers
        rows = np.concatenate([episode.observations for episode in recording])
        check(statistics(recording).leaves["observation"], rows)
        chosen = np.concatenate([recording[i].observations for i in (5, 0, 1)])
        check(statistics(recording, episodes=[5, 0, 1]).leaves["observation"], chosen)

    def test_long_texts_and_rows_of_any_length_are_read_few_at_a_time(self) -> None:
        texts = text_array(["x" * (1 << 20)] * 200)
        sizes = [len(rows) for rows in blocks(ArrayColumn(Leaf("t", (), "text"), texts), 0, 200)]
        assert sum(sizes) == 200 and max(sizes) == 64 and max(sizes[1:]) <= 16
        short = text_array(["x"] * 20_000)
        sizes = [len(rows) for rows in blocks(ArrayColumn(Leaf("t", (), "text"), short), 0, 20_000)]
        assert sum(sizes) == 20_000 and max(sizes) == 4096

    @pytest.mark.parametrize("wrong", [{"most_frames": 0}, {"most_frames": 2.5}, {"quantiles": [1.5]}])
    def test_numbers_that_do_not_go_are_refused(self, buffer: ReplayBuffer, wrong: Any) -> None:
        for compute in (statistics, episode_statistics):
            with pytest.raises(EpisodeError, match=next(iter(wrong))):
                compute(buffer, **wrong)

    def test_what_is_not_there_is_named(self, buffer: ReplayBuffer, recorded: Path) -> None:
        with pytest.raises(EpisodeError, match="no episode 3; there are 3"):
            statistics(buffer, episodes=[3])
        for source in (buffer, recorded):
            with pytest.raises(EpisodeError, match=r"has no .*'camra'"):
                statistics(source, keys=["camra"])

    def test_without_rows_there_are_no_numbers(self, buffer: ReplayBuffer, tmp_path: Path) -> None:
        empty = buffer.copy_to(tmp_path / "empty.zarr", episodes=[])
        found = statistics(empty)
        assert (found.episodes, found.steps) == (0, 0) and found.leaves["camera"].count.tolist() == [0, 0, 0]
        assert json.dumps(store_statistics(empty.name).to_json(), allow_nan=False)
        assert statistics(buffer, episodes=[]).leaves["action"].rows == 0
        assert main(["stats", empty.name]) == 0

    def test_infos_may_be_there_late_and_differ_from_shard_to_shard(self, tmp_path: Path) -> None:
        infos: list[dict[str, Any]] = [{}, {"x": 3, "late": True}, {"x": 0.5}, {"x": [1.0, 2.0]}]
        with RecordingWriter(tmp_path, StepSpace(Box(-1, 1, (1,)), Discrete(2))) as writer:
            for info in infos:
                writer.begin()
                writer.append({"observation": np.zeros(1, np.float32)})
                step = {"action": 0, "reward": 0.0, "terminated": True, "truncated": False, "info": info}
                writer.append({"observation": np.zeros(1, np.float32), **step})
                writer.commit()
                writer.flush()
        found = statistics(tmp_path).leaves
        assert found["info/x"].overall()["max"] == 3 and found["info/x"].overall()["count"] == 4
        assert found["info/late"].overall()["max"] is True
        assert statistics(tmp_path, episodes=[0]).leaves["info/x"].rows == 0

    def test_they_come_back_from_json(self, buffer: ReplayBuffer) -> None:
        found = statistics(buffer, quantiles=(0.25,))
        again = statistics_from_json(json.loads(json.dumps(found.to_json(), allow_nan=False)))
        same(found, again)
        assert list(again.leaves["action"].quantiles) == [0.25]


def same(a: Statistics, b: Statistics) -> None:
    """Fail unless two statistics are equal."""
    assert a.to_json() == b.to_json()


class TestStoring:
    def test_they_are_kept_until_episodes_change(self, buffer: ReplayBuffer) -> None:
        assert stored_statistics(buffer) is None
        found = store_statistics(buffer.name)
        buffer = ReplayBuffer(buffer.name)
        kept = stored_statistics(buffer)
        assert kept is not None
        same(kept, found)
        last = buffer.pop()
        assert stored_statistics(buffer) is None
        buffer.append({key: rows[::-1] for key, rows in last.items()})
        assert stored_statistics(buffer) is None
        buffer.pop()
        buffer.append(last)
        assert stored_statistics(buffer) is not None

    def test_other_attributes_stay(self, buffer: ReplayBuffer) -> None:
        before = dict(buffer.attributes["recorder"])
        store_statistics(buffer.name)
        after = dict(ReplayBuffer(buffer.name).attributes["recorder"])
        after.pop("statistics")
        assert after == before


class TestCommand:
    def test_a_recording_is_shown_by_component(self, recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["stats", str(recorded)]) == 0
        out = capsys.readouterr().out
        assert "observation[3]" in out and "median" in out and "4 episodes" in out

    def test_json_has_all_numbers(self, recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["stats", str(recorded), "--json", "--episode", "1"]) == 0
        same(statistics_from_json(json.loads(capsys.readouterr().out)), statistics(recorded, episodes=[1]))

    def test_a_buffer_keeps_them_if_asked_to(self, buffer: ReplayBuffer, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["stats", buffer.name, "--store", "--frames", "10"]) == 0
        assert "9 of 52 rows" in capsys.readouterr().out
        kept = stored_statistics(ReplayBuffer(buffer.name))
        assert kept is not None and kept.leaves["camera"].rows == 9
        assert list(kept.leaves["action"].quantiles) == list(QUANTILES)

    def test_a_recording_keeps_none(self, recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["stats", str(recorded), "--store"]) == 1
        assert "is a recording, which is not changed" in capsys.readouterr().err
