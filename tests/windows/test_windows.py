"""Windows against a plain reference: which there are, what is in them, and in which order they come."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recorder import ReplayBuffer, create_zarr_replay_buffer
from recorder.errors import WindowError
from recorder.windows.ordering import file_by_file
from recorder.windows.placing import Places, Reach
from recorder.windows.sampler import Windows, WindowSampler
from recorder.windows.weights import WeightTree

SPECS = {
    "action": {"shape": (0, 2), "dtype": "float32"},
    "count": {"shape": (0,), "dtype": "int64"},
    "camera": {"shape": (0, 6, 5, 3), "dtype": "uint8"},
    "task": {"shape": (0,), "dtype": "str"},
}


def episode(rows: Sequence[int]) -> dict[str, Any]:
    """Make an episode of which every value says which row it is of."""
    numbers = np.array(rows, np.int64)
    camera = np.broadcast_to(numbers.astype(np.uint8)[:, None, None, None], (len(rows), 6, 5, 3))
    action = np.stack([numbers, -numbers], axis=1).astype(np.float32)
    return {"action": action, "count": numbers, "camera": camera, "task": [f"row {row}" for row in rows]}


def buffer_of(lengths: Sequence[int], **options: Any) -> ReplayBuffer:
    """Make a buffer in memory with episodes of some lengths; rows count from 1."""
    ends = np.cumsum(lengths)
    episodes = [episode(range(end - length + 1, end + 1)) for length, end in zip(lengths, ends, strict=True)]
    return create_zarr_replay_buffer({}, SPECS, episodes, progress=False, **options)


class Case(NamedTuple):
    lengths: list[int]
    mask: list[bool]
    length: int
    before: int
    after: int
    skip: int
    stride: int


@st.composite
def cases(draw: st.DrawFn) -> Case:
    lengths = draw(st.lists(st.integers(1, 9), min_size=1, max_size=6))
    mask = draw(st.lists(st.booleans(), min_size=len(lengths), max_size=len(lengths)))
    length = draw(st.integers(1, 6))
    before, after = draw(st.integers(0, length - 1)), draw(st.integers(0, length - 1))
    return Case(lengths, mask, length, before, after, draw(st.integers(0, 3)), draw(st.integers(1, 3)))


def expected_windows(case: Case) -> list[tuple[int, list[int], list[bool]]]:
    """Return of each window its episode, its rows, counted from 1, and which of them are real; one row at a time."""
    found, first = [], 1
    for i, steps in enumerate(case.lengths):
        start = case.skip - case.before
        while case.mask[i] and steps > case.skip and start + case.length <= steps + case.after:
            rows, valid = [], []
            for t in range(start, start + case.length):
                valid.append(case.skip <= t < steps)
                rows.append(first + (case.skip if t < case.skip else steps - 1 if t >= steps else t))
            found.append((i, rows, valid))
            start += case.stride
        first += steps
    return found


@given(cases())
@settings(max_examples=200)
def test_windows_lie_where_a_plain_loop_finds_them(case: Case) -> None:
    places = Places(np.array(case.lengths), np.array(case.mask), Reach(*case[2:]))
    expected = expected_windows(case)
    assert len(places) == len(expected)
    numbers = np.arange(len(places))
    episodes, starts = places.find(numbers)
    rows, valid = places.rows(numbers, np.arange(case.length))
    assert [
        (int(i), (row + 1).tolist(), each.tolist()) for i, row, each in zip(episodes, rows, valid, strict=True)
    ] == expected
    firsts = np.cumsum(case.lengths) - case.lengths
    begins = np.maximum(starts, case.skip) + firsts[episodes]
    ends = np.arange(sum(case.lengths) + 1)
    assert places.beginning_before(ends).tolist() == [int((begins < end).sum()) for end in ends]


@given(cases(), st.sampled_from(["edge", "zero"]), st.integers(1, 3), st.integers(0, 2**32 - 1))
@settings(max_examples=25)
def test_a_batch_holds_what_a_plain_loop_reads(case: Case, pad: Any, depth: int, seed: int) -> None:
    buffer = buffer_of(case.lengths)
    sampler = WindowSampler(
        buffer, *case[2:5], mask=case.mask, skip=case.skip, stride=case.stride, pad=pad, stack={"action": depth}
    )
    expected = expected_windows(case)
    assert len(sampler) == len(expected)
    if not expected:
        return
    chosen = np.random.default_rng(seed).integers(len(expected), size=7)
    batch = sampler.read(chosen)
    whole = buffer.rows(slice(None))
    assert batch.index.tolist() == chosen.tolist()
    for k, number in enumerate(chosen.tolist()):
        i, rows, valid = expected[number]
        assert batch.valid["count"][k].tolist() == valid
        for key in ("count", "camera", "task"):
            for j, (row, real) in enumerate(zip(rows, valid, strict=True)):
                value = whole[key][row - 1]
                padding = value if pad == "edge" else "" if key == "task" else np.zeros_like(value)
                np.testing.assert_array_equal(batch.rows[key][k, j], value if real else padding)
        first = sum(case.lengths[:i]) + 1
        bounds = first + case.skip, first + case.lengths[i] - 1
        _, starts = sampler.places([number])
        for j in range(case.length):
            for d in range(depth):
                row = first + int(starts[0]) + j - depth + 1 + d
                real = bounds[0] <= row <= bounds[1]
                assert batch.valid["action"][k, j, d] == real
                value = min(max(row, bounds[0]), bounds[1]) * (real or pad == "edge")
                assert batch.rows["action"][k, j, d].tolist() == [value, -value]


@pytest.fixture(scope="module")
def buffer() -> ReplayBuffer:
    return buffer_of([4, 7, 1, 5])


@pytest.fixture(scope="module")
def sampler() -> WindowSampler:
    return WindowSampler(buffer_of([30, 50, 7, 80], frames_per_shard=16), 4, before=1)


class TestReading:
    def test_one_window_is_a_batch_without_its_first_axis(self, buffer: ReplayBuffer) -> None:
        sampler = WindowSampler(buffer, 3)
        one, batch = sampler[-1], sampler.read([len(sampler) - 1])
        assert one.rows["camera"].shape == (3, 6, 5, 3) and one.rows["camera"].dtype == np.uint8
        np.testing.assert_array_equal(one.rows["camera"], batch.rows["camera"][0])
        assert one.rows["count"].tolist() == [15, 16, 17] and one.index == len(sampler) - 1
        with pytest.raises(IndexError, match="a window beyond the"):
            sampler[len(sampler)]

    def test_of_a_key_only_the_first_rows_are_read(self, buffer: ReplayBuffer) -> None:
        sampler = WindowSampler(buffer, 4, before=1, first_k={"camera": 2})
        batch = sampler.read([0, 1])
        assert batch.rows["camera"].shape == (2, 2, 6, 5, 3)
        assert batch.rows["camera"][:, :, 0, 0, 0].tolist() == [[1, 1], [1, 2]]
        assert batch.valid["camera"].tolist() == [[False, True], [True, True]]
        assert batch.rows["count"].tolist() == [[1, 1, 2, 3], [1, 2, 3, 4]]

    def test_times_are_turned_into_rows_around_the_first(self, buffer: ReplayBuffer) -> None:
        deltas = {"camera": [-0.1, 0.0], "action": [0.0, 0.1, 0.2]}
        sampler = WindowSampler(buffer, keys=["camera", "action", "count"], delta_timestamps=deltas, fps=10)
        assert len(sampler) == 17
        batch = sampler.read([0, 4, 10])
        assert batch.rows["camera"][:, :, 0, 0, 0].tolist() == [[1, 1], [5, 5], [10, 11]]
        assert batch.valid["camera"].tolist() == [[False, True], [False, True], [True, True]]
        assert batch.rows["action"][:, :, 0].tolist() == [[1, 2, 3], [5, 6, 7], [11, 11, 11]]
        assert batch.valid["action"].tolist() == [[True] * 3, [True] * 3, [True, False, False]]
        assert batch.rows["count"].tolist() == [[1], [5], [11]]

    def test_each_chunk_of_a_batch_is_decoded_once(self, buffer: ReplayBuffer, monkeypatch: pytest.MonkeyPatch) -> None:
        column: Any = buffer["camera"]
        read: list[int] = []
        chunks = column._chunks
        before = chunks.read
        monkeypatch.setattr(chunks, "read", lambda wanted: read.extend(wanted) or before(wanted))
        WindowSampler(buffer, 4, keys=["camera"]).read([0, 1, 2, 1, 3])
        assert read == list(range(10))

    def test_it_is_the_same_after_pickling(self, buffer: ReplayBuffer, tmp_path: Any) -> None:
        stored = buffer.copy_to(tmp_path / "b.zarr")
        sampler = WindowSampler(stored, 3, weights=np.arange(1, 11))
        again: WindowSampler = pickle.loads(pickle.dumps(sampler))
        same(again.read([3, 0]), sampler.read([3, 0]))
        assert again.weights.tolist() == sampler.weights.tolist()

    @pytest.mark.parametrize("name", ["b.zarr", "b.zarr.zip"])
    def test_a_path_is_opened(self, buffer: ReplayBuffer, tmp_path: Any, name: str) -> None:
        buffer.copy_to(tmp_path / name)
        same(WindowSampler(tmp_path / name, 3).read([1]), WindowSampler(buffer, 3).read([1]))

    def test_keys_may_lie_in_memory(self, buffer: ReplayBuffer) -> None:
        held = WindowSampler(buffer.copy_to_memory(["camera", "count"]), 3, pad="zero", after=2)
        first = held.read(range(len(held)))
        same(first, WindowSampler(buffer, 3, pad="zero", after=2).read(range(len(held))))
        first.rows["camera"][:] = 0  # what was read is the caller's
        same(held.read([2]), WindowSampler(buffer, 3, pad="zero", after=2).read([2]))

    @pytest.mark.parametrize("zarr_format", [2, 3])
    def test_buffers_of_either_format_give_the_same(self, buffer: ReplayBuffer, zarr_format: Any) -> None:
        other = buffer_of([4, 7, 1, 5], zarr_format=zarr_format)
        same(WindowSampler(other, 3, 1).read([3, 0, 3]), WindowSampler(buffer, 3, 1).read([3, 0, 3]))

    def test_an_empty_buffer_has_no_windows(self) -> None:
        sampler = WindowSampler(buffer_of([]), 3)
        assert len(sampler) == 0 and list(sampler.batches(4, shuffle="shards")) == []
        with pytest.raises(WindowError, match="has no window of 3 steps"):
            sampler.sample(1, np.random.default_rng())

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"length": 0}, "length=0"),
            ({"length": 3, "before": 3}, "before=3: a window of 3 rows would lie outside"),
            ({"length": 3, "after": -1}, "after=-1"),
            ({"keys": ["camra"]}, "has no rows 'camra'"),
            ({"keys": ["action"], "first_k": {"camera": 1}}, "first_k names 'camera', which is not read"),
            ({"length": 3, "first_k": {"camera": 4}}, "first_k of 'camera' is 4"),
            ({"stack": {"camera": 0}}, "stack of 'camera'=0"),
            ({"delta_timestamps": {"action": [0.0]}}, "fps=…"),
            ({"delta_timestamps": {"action": [0.05]}, "fps": 10}, "0.05 s lies between two steps"),
            ({"delta_timestamps": {"action": []}, "fps": 10}, "are some seconds"),
            ({"delta_timestamps": {"action": [0]}, "stack": {"action": 2}, "fps": 10}, "leave out its first_k"),
            ({"mask": [True]}, "4 episodes, a bool for each"),
            ({"mask": [1, 0, 1, 1]}, "4 episodes, a bool for each"),
            ({"pad": "wrap"}, "pad='wrap'"),
            ({"length": 4.5}, "length=4.5: a whole number from 1 on"),
            ({"length": "3"}, "length='3': a whole number"),
            ({"length": 3, "before": -1}, "before=-1: a whole number from 0 on"),
            ({"length": 3, "after": 1.0}, "after=1.0: a whole number"),
            ({"skip": -1}, "skip=-1"),
            ({"stride": 0}, "stride=0"),
            ({"stride": True}, "stride=True"),
            ({"fps": 0}, "fps=0: steps a second"),
            ({"fps": -1.5}, "fps=-1.5"),
            ({"length": 3, "first_k": {"camera": 1.5}}, "first_k of 'camera'=1.5"),
            ({"keys": "action"}, "keys='action': a list of names"),
            ({"weights": [1, 2]}, "there must be one for each"),
        ],
    )
    def test_what_does_not_fit_is_named(self, buffer: ReplayBuffer, options: dict[str, Any], message: str) -> None:
        with pytest.raises(WindowError, match=message):
            WindowSampler(buffer, **options)

    def test_numbers_of_orders_and_draws_that_do_not_go_are_named(self, buffer: ReplayBuffer) -> None:
        sampler = WindowSampler(buffer, 2)
        wrong: list[tuple[str, Any]] = [
            ("size=0", lambda: sampler.order(0)),
            ("size=2.5", lambda: sampler.batches(2.5)),  # type: ignore[arg-type]
            ("seed=-1", lambda: sampler.order(2, seed=-1)),
            ("epoch=0.5", lambda: sampler.order(2, epoch=0.5)),  # type: ignore[arg-type]
            ("ahead=-1", lambda: sampler.batches(2, ahead=-1)),
            ("count=-3", lambda: sampler.sample(-3, np.random.default_rng(0))),
        ]
        for message, call in wrong:
            with pytest.raises(WindowError, match=message):
                call()


def same(a: Windows, b: Windows) -> None:
    """Fail unless two batches are equal."""
    assert a.rows.keys() == b.rows.keys()
    for key in a.rows:
        np.testing.assert_array_equal(a.rows[key], b.rows[key])
        np.testing.assert_array_equal(a.valid[key], b.valid[key])
    np.testing.assert_array_equal(a.index, b.index)


class TestOrders:
    @pytest.mark.parametrize("shuffle", [False, True, "shards"])
    def test_an_epoch_has_every_window_once(self, sampler: WindowSampler, shuffle: Any) -> None:
        numbers = [batch.tolist() for batch in sampler.order(16, shuffle=shuffle)]
        assert sorted(chain(*numbers)) == list(range(len(sampler)))
        assert [len(batch) for batch in numbers[:-1]] == [16] * (len(sampler) // 16)
        fewer = [batch.tolist() for batch in sampler.order(16, shuffle=shuffle, drop_last=True)]
        assert fewer == [batch for batch in numbers if len(batch) == 16]

    @pytest.mark.parametrize("shuffle", [True, "shards", "weights"])
    def test_the_order_is_that_of_seed_and_epoch(self, sampler: WindowSampler, shuffle: Any) -> None:
        def order(**options: int) -> list[int]:
            return np.concatenate(list(sampler.order(16, shuffle=shuffle, **options))).tolist()

        assert order(seed=1, epoch=2) == order(seed=1, epoch=2)
        assert order(seed=1, epoch=2) != order(seed=1, epoch=3) != order(seed=2, epoch=3)

    @pytest.mark.parametrize("ahead", [0, 1, 3])
    def test_batches_are_those_of_the_order(self, sampler: WindowSampler, ahead: int) -> None:
        orders = list(sampler.order(16, shuffle=True, seed=5))
        batches = list(sampler.batches(16, shuffle=True, seed=5, ahead=ahead))
        assert [batch.index.tolist() for batch in batches] == [order.tolist() for order in orders]
        same(batches[2], sampler.read(orders[2]))

    def test_an_iteration_that_is_left_leaves_no_thread(self, sampler: WindowSampler) -> None:
        batches = sampler.batches(16)
        next(batches)
        batches.close()  # type: ignore[attr-defined]
        assert not [thread for thread in threading.enumerate() if "recorder-windows" in thread.name]

    def test_a_shuffle_by_shards_stays_in_a_few_files_at_a_time(self) -> None:
        ends = np.arange(1, 41) * 1000
        numbers = np.concatenate(list(file_by_file(ends, np.random.default_rng(0))))
        assert sorted(numbers.tolist()) == list(range(40_000))
        assert np.unique(numbers[:8000] // 1000).size == 8
        assert (np.diff(numbers) != 1).mean() > 0.99

    def test_files_are_those_of_the_key_with_the_largest_rows(self, sampler: WindowSampler) -> None:
        ends = sampler._source.file_ends(["count", "camera"])
        assert ends.tolist() == [*range(16, 167, 16), 167]


class TestWeights:
    @given(
        st.lists(st.integers(0, 5), min_size=1, max_size=40),
        st.lists(st.tuples(st.integers(0, 39), st.integers(0, 5)), max_size=20),
        st.integers(0, 2**32 - 1),
    )
    def test_the_tree_is_a_list_of_weights(self, weights: list[int], changes: list[tuple[int, int]], seed: int) -> None:
        tree, model = WeightTree(np.array(weights, float)), np.array(weights, float)
        changes = [(i % len(weights), weight) for i, weight in changes]
        for i, weight in changes:
            model[i] = weight
        if changes:
            index, new = zip(*changes, strict=True)
            tree.update(np.array(index), np.array(new, float))
        assert tree.weights.tolist() == model.tolist()
        assert tree.total == model.sum()
        if model.sum():
            drawn = tree.draw(50, np.random.default_rng(seed))
            assert (model[drawn] > 0).all()
            expected = np.searchsorted(np.cumsum(model), np.random.default_rng(seed).random(50) * model.sum(), "right")
            assert drawn.tolist() == expected.tolist()

    def test_windows_are_drawn_as_often_as_their_weights_say(self) -> None:
        sampler = WindowSampler(buffer_of([10]), keys=["count"], weights=[0, 1, 2, 3, 4, 0, 0, 0, 0, 0])
        drawn = np.bincount(sampler.draw(20_000, np.random.default_rng(0)), minlength=10)
        np.testing.assert_allclose(drawn / 20_000, sampler.probabilities(range(10)), atol=0.02)
        assert drawn[0] == 0
        sampler.set_weights([7.0, 0.0], [9, 4])
        assert sampler.weights.tolist() == [0, 1, 2, 3, 0, 0, 0, 0, 0, 7]
        assert sampler.sample(3, np.random.default_rng(1)).rows["count"].shape == (3, 1)

    def test_what_changes_during_an_epoch_holds_for_what_is_drawn_later(self) -> None:
        sampler = WindowSampler(buffer_of([10]), keys=["count"])
        order = sampler.order(3, shuffle="weights")
        assert len(next(order)) == 3
        sampler.set_weights(np.eye(10)[7])
        assert [batch.tolist() for batch in order] == [[7, 7, 7], [7, 7, 7], [7]]

    def test_priorities_begin_with_equal_weights(self) -> None:
        sampler = WindowSampler(buffer_of([4]), keys=["count"])
        assert sampler.probabilities([0]).tolist() == [0.25]
        sampler.set_weights([2.0], [-1])
        assert sampler.weights.tolist() == [1, 1, 1, 2]
        with pytest.raises(WindowError, match="finite"):
            sampler.set_weights([-1.0], [0])
        with pytest.raises(WindowError, match="for 2 windows"):
            sampler.set_weights([1.0], [0, 1])
        sampler.set_weights(np.zeros(4))
        with pytest.raises(WindowError, match="all weights are 0"):
            sampler.sample(1, np.random.default_rng())
