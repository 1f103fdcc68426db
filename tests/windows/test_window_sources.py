"""Windows straight over recordings: the same rows as those of their episodes, wherever these lie."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from recorder import (
    Recording,
    RecordingWriter,
    RowError,
    StepSpace,
    VideoStorage,
    WindowError,
    WindowSampler,
    layout,
    split_episodes,
    to_zarr,
)

LENGTHS = (6, 3, 11, 4, 9)

SPACE = StepSpace(
    spaces.Dict(
        {"camera": spaces.Box(0, 255, (32, 48, 3), np.uint8), "state": spaces.Box(-999, 999, (2,), np.float32)}
    ),
    spaces.Discrete(50),
)


def observation(episode: int, t: int) -> dict[str, Any]:
    camera = np.random.default_rng([episode, t]).integers(0, 256, (32, 48, 3), np.uint8)
    return {"camera": camera, "state": np.array([episode, t], np.float32)}


def record(path: Path, flush_each: bool = False, **options: Any) -> Recording:
    """Record episodes of which each row tells itself from all others; `info/late` is there from step 2 on."""
    with RecordingWriter(path, SPACE, **options) as writer:
        for i, steps in enumerate(LENGTHS):
            writer.begin()
            writer.append({"observation": observation(i, 0)})
            for t in range(1, steps + 1):
                info = {"number": 100 * i + t} | ({"late": float(t)} if t > 1 else {})
                row = {"reward": float(t), "terminated": t == steps, "truncated": False, "info": info}
                writer.append({"observation": observation(i, t), "action": t, **row})
            writer.commit()
            if flush_each:
                writer.flush()
    return Recording(path)


@pytest.fixture(scope="module", params=["one shard", "a shard each", "video"])
def recording(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Recording:
    path = tmp_path_factory.mktemp("recording")
    options: dict[str, Any] = {}
    if request.param == "video":
        options = {"storage": layout(SPACE, keys={"observation/camera": VideoStorage(codec="ffv1")})}
    return record(path / "run", request.param == "a shard each", **options)


def test_a_batch_has_the_rows_of_the_episodes(recording: Recording) -> None:
    sampler = WindowSampler(recording, 4, before=2, after=1)
    assert sorted(sampler.keys) == sorted(path for path in recording.leaves if not path.startswith("info/"))
    numbers = np.random.default_rng(0).permutation(len(sampler))
    batch = sampler.read(numbers)
    for k, (i, start) in enumerate(zip(*sampler.places(numbers), strict=True)):
        rows = np.clip(np.arange(start, start + 4), 0, LENGTHS[i] - 1)
        for key in sampler.keys:
            np.testing.assert_array_equal(batch.rows[key][k], recording[int(i)].columns[key][rows])


def test_next_observations_and_infos_are_those_that_the_step_returned(recording: Recording) -> None:
    keys = ["observation/state", "next_observation/state", "next_observation/camera", "info/number", "action"]
    sampler = WindowSampler(recording, 3, keys=keys)
    batch = sampler.read(range(len(sampler)))
    np.testing.assert_array_equal(
        batch.rows["next_observation/state"][..., 1], batch.rows["observation/state"][..., 1] + 1
    )
    expected = 100 * batch.rows["observation/state"][..., 0] + batch.rows["action"]
    np.testing.assert_array_equal(batch.rows["info/number"], expected)
    assert batch.rows["next_observation/camera"][-1, -1].tolist() == observation(4, 9)["camera"].tolist()


def test_a_leaf_that_a_step_lacks_is_refused_unless_the_step_is_left_out(recording: Recording) -> None:
    sampler = WindowSampler(recording, 2, keys=["info/late"])
    with pytest.raises(RowError, match="'info/late' is absent from 1 of 2 steps"):
        sampler.read([0])
    assert WindowSampler(recording, 2, keys=["info/late"], skip=1)[0].rows["info/late"].tolist() == [2, 3]


def test_they_are_those_of_the_buffer_that_it_is_converted_to(recording: Recording, tmp_path: Path) -> None:
    buffer = to_zarr(recording, tmp_path / "b.zarr", progress=False)
    training, validation = split_episodes(len(recording), 0.4, seed=1)
    for mask in (training, validation):
        one, other = (
            WindowSampler(source, 3, 1, 1, keys=["observation/camera", "action"], mask=mask, stack={"action": 2})
            for source in (recording, buffer)
        )
        assert len(one) == len(other) > 0
        for a, b in zip(one.batches(7, shuffle=True), other.batches(7, shuffle=True), strict=True):
            assert a.index.tolist() == b.index.tolist()
            for key in one.keys:
                np.testing.assert_array_equal(a.rows[key], b.rows[key])


def test_the_files_of_a_recording_are_its_shards(recording: Recording) -> None:
    ends = WindowSampler(recording)._source.file_ends(["action"])
    assert ends[-1] == sum(LENGTHS) and len(ends) == len(recording.shards)
    shuffled = np.concatenate(list(WindowSampler(recording).order(5, shuffle="shards")))
    assert sorted(shuffled.tolist()) == list(range(sum(LENGTHS)))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_reads_what_is_open_in_its_parent(recording: Recording) -> None:
    sampler = WindowSampler(recording, 3, keys=["observation/camera", "observation/state"])
    expected = sampler.read([5, 1])
    child = os.fork()
    if child == 0:
        code = 1
        try:
            found = sampler.read([5, 1])
            code = int(any(not np.array_equal(found.rows[key], expected.rows[key]) for key in expected.rows))
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_few_shards_are_open_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from recorder.windows import sources

    monkeypatch.setattr(sources, "KEPT_SHARDS", 2)
    recording = record(tmp_path / "run", flush_each=True)
    sampler = WindowSampler(recording, keys=["observation/state"])
    for batch in sampler.batches(8, shuffle=True, ahead=0):
        episodes, starts = sampler.places(batch.index)
        assert batch.rows["observation/state"][:, 0].tolist() == np.stack([episodes, starts], 1).tolist()
        assert len(sampler._source._open) <= 2  # type: ignore[attr-defined]


def test_rows_of_no_one_shape_are_not_offered(tmp_path: Path) -> None:
    with RecordingWriter(
        tmp_path, spaces.Dict({"points": spaces.Sequence(spaces.Box(0, 1, (2,))), "x": spaces.Box(0, 1)})
    ) as writer:
        writer.begin()
        for i in range(4):
            writer.append({"points": (np.zeros(2, np.float32),) * i, "x": np.float32([i / 4])})
        writer.commit()
    sampler = WindowSampler(tmp_path, 2)
    assert sampler.keys == ["x"] and sampler[1].rows["x"].tolist() == [[0.25], [0.5]]
    with pytest.raises(WindowError, match="has no rows 'points'"):
        WindowSampler(tmp_path, keys=["points"])
