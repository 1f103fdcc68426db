"""Bare Parquet and HDF5 files are recordings as they lie, cut by what they say, and are imported bit for bit."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from gymnasium import spaces

import recorder
from recorder import RecordingWriter, open_bare, space_from_parquet
from recorder.bare.importing import import_bare
from recorder.cli import main
from recorder.errors import DamagedError, ExistsError, FormatError, NotARecordingError
from recorder.recording import Recording

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

LENGTHS = [3, 1, 4]
ROWS = sum(LENGTHS)
RNG = np.random.default_rng(0)
STATE = RNG.normal(size=(ROWS, 2)).astype(np.float32)
IMAGES = RNG.integers(0, 256, (ROWS, 20, 20, 3), np.uint8)
EPISODE = np.repeat([7, 9, 8], LENGTHS)
DONE = np.array([0, 0, 1, 1, 0, 0, 0, 1], bool)
TASKS = ["pick", "pick", "pick", "", "é\U0001f916", "a", "b", "c"]


def state_column() -> Any:
    return pa.FixedSizeListArray.from_arrays(pa.array(STATE.reshape(-1)), 2)


def parquet(path: Path, **more: Any) -> Path:
    """Write a file as another program would."""
    columns = {
        "observation.state": state_column(),
        "action": pa.array(STATE.tolist(), pa.list_(pa.float64())),
        "reward": pa.array(np.arange(ROWS, dtype=np.float64)),
        "task": pa.array(TASKS).dictionary_encode(),
        "points": pa.array([list(range(i)) for i in range(ROWS)], pa.large_list(pa.int32())),
        "episode_index": pa.array(EPISODE),
        "time": pa.array(range(ROWS), pa.timestamp("ns")),
        **more,
    }
    pq.write_table(pa.table(columns), path, row_group_size=3)
    return path


def check(recording: Recording) -> None:
    """Compare a recording with what the files hold."""
    assert [len(episode) for episode in recording] == LENGTHS
    assert len(recording) == 3 and recording.steps == ROWS
    start = 0
    for episode, length in zip(recording, LENGTHS, strict=True):
        rows = slice(start, start + length)
        assert np.array_equal(episode.rows["observation.state"], STATE[rows])
        assert np.array_equal(episode.rows["action"], STATE[rows].astype(float))
        assert episode.rows["task"].tolist() == TASKS[rows]
        assert [row.tolist() for row in episode.columns["points"][:]] == [list(range(i)) for i in range(ROWS)][rows]
        start += length


def test_a_parquet_file_from_elsewhere_is_a_recording_as_it_lies(tmp_path: Path) -> None:
    before = parquet(tmp_path / "a.parquet").read_bytes()
    recording = open_bare(tmp_path / "a.parquet")
    check(recording)
    assert recording.cut == "index column 'episode_index'"
    assert list(recording.left_out) == ["time"] and "timestamp" in recording.left_out["time"]
    assert recording.leaves["observation.state"].shape == recording.leaves["action"].shape == (2,)
    assert recording.leaves["action"].dtype == "float64" and recording.leaves["points"].ragged
    assert recording[-1].columns["observation.state"][[3, 0]].tolist() == STATE[[7, 4]].tolist()
    assert pickle.loads(pickle.dumps(recording[1])).rows["reward"].tolist() == [3.0]
    assert recording["bare-000002"].rows["reward"].tolist() == [4, 5, 6, 7]
    assert recording.table()["steps"].tolist() == LENGTHS
    assert [path.name for path in tmp_path.iterdir()] == ["a.parquet"] and (
        tmp_path / "a.parquet"
    ).read_bytes() == before


def test_a_folder_of_parquet_files_is_one_table(tmp_path: Path) -> None:
    table = pq.read_table(parquet(tmp_path / "all.parquet"))
    (tmp_path / "data" / "chunk-000").mkdir(parents=True)
    for i, (start, stop) in enumerate([(0, 2), (2, 8)]):
        pq.write_table(table.slice(start, stop - start), tmp_path / "data" / "chunk-000" / f"file-{i:03d}.parquet")
    check(open_bare(tmp_path / "data"))
    pq.write_table(table.drop_columns(["reward"]), tmp_path / "data" / "other.parquet")
    with pytest.raises(FormatError, match=r"other\.parquet has other columns"):
        open_bare(tmp_path / "data")


@pytest.mark.parametrize(
    ("episodes", "rule"),
    [
        ("episode_index", "index column 'episode_index'"),
        (["done"], "flags 'done'"),
        (LENGTHS, "the lengths that were given"),
        (None, "index column 'episode_index'"),
    ],
    ids=str,
)
def test_episodes_are_cut_by_an_index_by_flags_or_by_lengths(tmp_path: Path, episodes: Any, rule: str) -> None:
    recording = open_bare(parquet(tmp_path / "a.parquet", done=pa.array(DONE)), episodes=episodes)
    check(recording)
    assert recording.cut == rule


def test_without_a_word_flags_are_found_and_then_each_file_is_an_episode(tmp_path: Path) -> None:
    flags = {"terminated": pa.array(DONE & (np.arange(8) == 2)), "truncated": pa.array(DONE & (np.arange(8) != 2))}
    pq.write_table(pa.table({"x": pa.array(range(8)), **flags}), tmp_path / "a.parquet")
    found = open_bare(tmp_path / "a.parquet")
    assert ([len(episode) for episode in found], found.cut) == (LENGTHS, "flags 'terminated', 'truncated'")
    (tmp_path / "many").mkdir()
    for i, length in enumerate(LENGTHS):
        pq.write_table(pa.table({"x": pa.array(range(length))}), tmp_path / "many" / f"{i}.parquet")
    assert [len(episode) for episode in open_bare(tmp_path / "many")] == LENGTHS


@pytest.mark.parametrize(
    ("episodes", "message"),
    [
        ("episode_indx", "did you mean 'episode_index'"),
        ("back", "comes back after others"),
        (["dnoe"], "did you mean 'done'"),
        ([3, 4], "episodes of 7 rows together"),
        ([0, 8], "each 1 or more"),
        (["done", 3], "are needed"),
        ("observation.state", "of one value a row"),
    ],
    ids=str,
)
def test_a_cut_that_cannot_be_is_refused(tmp_path: Path, episodes: Any, message: str) -> None:
    more = {"done": pa.array(DONE), "back": pa.array([0, 0, 1, 1, 0, 0, 0, 0])}
    with pytest.raises(FormatError, match=message):
        open_bare(parquet(tmp_path / "a.parquet", **more), episodes=episodes)


def test_nulls_become_nan_or_what_was_given_or_are_refused(tmp_path: Path) -> None:
    table = pa.table({"f": pa.array([1.0, None, 3.0]), "i": pa.array([1, None, 3])})
    pq.write_table(table, tmp_path / "a.parquet")
    found = open_bare(tmp_path / "a.parquet", fill={"i": -1})[0].rows
    assert np.array_equal(found["f"], [1, np.nan, 3], equal_nan=True)
    assert found["i"].tolist() == [1, -1, 3]
    with pytest.raises(FormatError, match=r"column 'i' has nulls, which int64 cannot be; give fill="):
        _ = open_bare(tmp_path / "a.parquet")[0].rows
    assert list(open_bare(tmp_path / "a.parquet", columns=["f"])[0].rows) == ["f"]


def test_the_space_of_a_parquet_file_is_inferred(tmp_path: Path) -> None:
    space, steps, capacity = space_from_parquet(parquet(tmp_path / "a.parquet"))
    assert (steps, capacity) == (ROWS, None)
    assert space["observation.state"].shape == (2,) and space["observation.state"].dtype == np.float32
    assert "é\U0001f916" in space["task"]
    table = pq.read_table(tmp_path / "a.parquet").replace_schema_metadata({"capacity": "100"})
    pq.write_table(table, tmp_path / "a.parquet")
    assert space_from_parquet(tmp_path / "a.parquet")[2] == 100


def test_what_this_package_wrote_opens_as_a_bare_file_too(tmp_path: Path) -> None:
    space = spaces.Dict(a=spaces.Box(-1, 1, (2, 3), np.float32))
    with RecordingWriter(tmp_path / "run", space, storage=recorder.ParquetStorage()) as writer:
        for length in (2, 3):
            writer.begin()
            for i in range(length):
                writer.append({"a": np.full((2, 3), i, np.float32)})
            writer.commit()
    (file,) = (tmp_path / "run").glob("shards/*/data.parquet")
    found = open_bare(file)
    assert [len(episode) for episode in found] == [2, 3] and found.cut == "index column '%episode'"
    assert found[1].rows["a"].shape == (3, 2, 3)


def groups(path: Path) -> Path:
    """Write a file as robomimic does."""
    with h5py.File(path, "w") as file:
        start = 0
        for i, length in zip((0, 2, 10), LENGTHS, strict=True):
            demo = file.create_group(f"data/demo_{i}")
            demo["obs/state"] = STATE[start : start + length]
            demo["obs/image"] = IMAGES[start : start + length]
            demo["actions"] = STATE[start : start + length].astype(float)
            demo["task"] = TASKS[start : start + length]
            start += length
        file["data/demo_0/extra"] = np.zeros(3)
        file["mask/train"] = np.array([b"demo_0"])
    return path


def flat(path: Path, ends: bool = True) -> Path:
    """Write a file with flat arrays, as D4RL or a replay buffer has them."""
    with h5py.File(path, "w") as file:
        file["obs/state"], file["obs/image"], file["actions"] = STATE, IMAGES, STATE.astype(">f8")
        file["task"] = TASKS
        file["version"] = np.array([1, 2])
        if ends:
            file["meta/episode_ends"] = np.cumsum(LENGTHS)
        else:
            file["terminals"], file["timeouts"] = DONE & (np.arange(8) < 3), DONE & (np.arange(8) > 2)
    return path


@pytest.mark.parametrize("write", [groups, flat, lambda path: flat(path, ends=False)], ids=["groups", "ends", "flags"])
def test_an_hdf5_file_from_elsewhere_is_a_recording_and_is_imported_exactly(
    tmp_path: Path, write: Callable[[Path], Path]
) -> None:
    bare = open_bare(write(tmp_path / "a.hdf5"))
    done = import_bare(bare, tmp_path / "run")
    assert (done.episodes, done.rows) == (3, ROWS)
    for recording in (bare, Recording(tmp_path / "run")):
        assert [len(episode) for episode in recording] == LENGTHS
        rows = recording[2].rows
        assert np.array_equal(rows["obs"]["state"], STATE[4:])
        assert np.array_equal(rows["obs"]["image"], IMAGES[4:]), "pictures are kept without loss"
        assert np.array_equal(rows["actions"], STATE[4:].astype(float))
        assert rows["task"].tolist() == TASKS[4:]
    assert set(bare.left_out) in ({"extra", "mask/train"}, {"version", "meta/episode_ends"}, {"version"})


@pytest.mark.parametrize("write", [groups, lambda path: parquet(path.with_suffix(".parquet"))], ids=["hdf5", "parquet"])
def test_a_bare_recording_is_pickled_and_converted_like_any_other(
    tmp_path: Path, write: Callable[[Path], Path]
) -> None:
    bare = open_bare(write(tmp_path / "a.hdf5"))
    again = pickle.loads(pickle.dumps(bare))
    path = "obs/state" if "obs/state" in bare.leaves else "observation.state"
    assert np.array_equal(again[2].columns[path][:], STATE[4:])
    numbers = [path for path, leaf in bare.leaves.items() if leaf.fixed]
    buffer = recorder.to_zarr(bare, tmp_path / "buffer.zarr", keys=numbers, progress=False)
    assert np.array_equal(buffer[path][:], STATE)
    assert np.array_equal(buffer.episode_ends, np.cumsum(LENGTHS))


def test_groups_with_columns_of_several_lengths_need_a_choice(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for i in range(2):
            file[f"episode_{i}/observations"], file[f"episode_{i}/actions"] = np.zeros((4, 2)), np.zeros((3, 1))
    with pytest.raises(FormatError, match=r"episode_0 has columns of several lengths.*actions: 3, observations: 4"):
        open_bare(tmp_path / "a.h5")
    assert [len(episode) for episode in open_bare(tmp_path / "a.h5", columns=["actions"])] == [3, 3]


def test_a_file_that_leads_outside_of_itself_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(bytes(80))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.zeros(10)
        file["soft"] = h5py.SoftLink("/x")
        file["external"] = h5py.ExternalLink(str(tmp_path / "other.h5"), "x")
    assert list(open_bare(tmp_path / "a.h5").leaves) == ["x"]
    with h5py.File(tmp_path / "a.h5", "a") as file:
        file.create_dataset("outside", (10,), "f8", external=[(str(tmp_path / "secret"), 0, 80)])
    with pytest.raises(DamagedError, match="refused"):
        open_bare(tmp_path / "a.h5")


def test_what_is_no_bare_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1 and no more")
    (tmp_path / "a.h5").write_bytes(b"no HDF5")
    (tmp_path / "a.csv").write_text("1,2")
    for name, error in [("a.parquet", DamagedError), ("a.h5", DamagedError), ("a.csv", NotARecordingError)]:
        with pytest.raises(error, match=name.replace(".", r"\.")):
            open_bare(tmp_path / name)
    with pytest.raises(NotARecordingError, match="is opened by open_bare"):
        Recording(tmp_path / "a.h5")
    with pytest.raises(NotARecordingError, match="is not there"):
        open_bare(tmp_path / "b.parquet")


def test_the_command_imports_and_says_what_was_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parquet(tmp_path / "a.parquet")
    assert main(["import", str(tmp_path / "a.parquet"), str(tmp_path / "run"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["episodes"], said["rows"], list(said["left_out"])) == (3, 8, ["time"])
    check(Recording(tmp_path / "run"))
    assert main(["import", str(tmp_path / "a.parquet"), str(tmp_path / "run")]) == 1
    assert "holds a recording" in capsys.readouterr().err
    options = ["--existing", "append", "--columns", "observation.state", "--columns", "episode_index"]
    assert main(["import", str(tmp_path / "a.parquet"), str(tmp_path / "other"), *options]) == 0
    assert main(["import", str(tmp_path / "a.parquet"), str(tmp_path / "other"), *options]) == 0
    assert len(Recording(tmp_path / "other")) == 6
    options = ["--flags", "done", "--lengths", "3", "--index", "episode_index"]
    assert main(["import", str(tmp_path / "a.parquet"), str(tmp_path / "third"), *options]) == 2


def test_an_import_into_a_recording_that_is_there_is_refused(tmp_path: Path) -> None:
    bare = open_bare(parquet(tmp_path / "a.parquet"))
    import_bare(bare, tmp_path / "run")
    with pytest.raises(ExistsError):
        import_bare(bare, tmp_path / "run")
