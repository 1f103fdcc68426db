"""Bare files at their edges: nothing in one is left out without a word, and none ends in an error of someone else's."""

from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recorder.bare.importing import import_bare
from recorder.bare.recordings import open_bare
from recorder.errors import DamagedError, FormatError, NotARecordingError
from recorder.recording import Recording


def written(path: Path, **columns: object) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


def test_episodes_are_cut_by_columns_that_are_not_read(tmp_path: Path) -> None:
    file = written(tmp_path / "t.parquet", x=[1.0, 2.0, 3.0, 4.0], episode_index=[0, 0, 1, 1], end=[False, True] * 2)
    assert [len(episode) for episode in open_bare(file, columns=["x"])] == [2, 2]
    assert [len(episode) for episode in open_bare(file, episodes=["end"], columns=["x"])] == [2, 2]
    assert list(open_bare(file, columns=["x"])[0].columns) == ["x"]


def test_what_stands_for_nulls_fits_the_column(tmp_path: Path) -> None:
    file = written(tmp_path / "t.parquet", x=pa.array([1, None, 3]))
    assert open_bare(file, fill={"x": -1})[0].columns["x"][:].tolist() == [1, -1, 3]
    with pytest.raises(FormatError, match="does not fit"):
        open_bare(file, fill={"x": 1.5})[0].columns["x"][:]
    with pytest.raises(FormatError, match="no column 'z'"):
        open_bare(file, fill={"z": 1})


@pytest.mark.parametrize("how", [["done"], "done"])
def test_no_episode_is_cut_by_a_null(tmp_path: Path, how: object) -> None:
    file = written(tmp_path / "t.parquet", x=[1, 2, 3], done=[0.0, None, 1.0])
    with pytest.raises(FormatError, match="nulls or NaN"):
        open_bare(file, episodes=how)


def hdf5(path: Path, fill: Callable[[h5py.File], object]) -> Path:
    with h5py.File(path, "w") as file:
        fill(file)
    return path


def test_links_are_left_out_by_name(tmp_path: Path) -> None:
    def fill(file: h5py.File) -> None:
        file["data/demo_0/x"], file["data/demo_1/x"] = np.arange(3), np.arange(2)
        file["data/demo_0/soft"] = h5py.SoftLink("/data/demo_0/x")
        file["data/demo_1/outside"] = h5py.ExternalLink("other.h5", "/y")
        file["data/demo_2"] = h5py.SoftLink("/data/demo_0")
        file["type"] = np.dtype("f8")
        file["data/demo_0/nothing"] = h5py.Empty("f4")

    found = open_bare(hdf5(tmp_path / "a.h5", fill))
    assert [len(episode) for episode in found] == [3, 2] and list(found.leaves) == ["x"]
    assert found.left_out == {
        "data/demo_0/soft": "a link to '/data/demo_0/x'; links are not followed",
        "data/demo_1/outside": "a link to '/y' in the file 'other.h5'; links are not followed",
        "data/demo_2": "a link to '/data/demo_0'; links are not followed",
        "data/demo_0/nothing": "a dataset without a value",
        "type": "a type, and no dataset",
    }


def test_groups_that_hold_one_another_are_looked_into_once(tmp_path: Path) -> None:
    def fill(file: h5py.File) -> None:
        file["a/x"] = np.arange(3)
        file["a/loop"] = file["/"]
        file["a/itself"] = file["a"]

    found = open_bare(hdf5(tmp_path / "a.h5", fill))
    assert found[0].rows["a"]["x"].tolist() == [0, 1, 2]
    assert found.left_out == {"a/loop": "the same group as '/'", "a/itself": "the same group as 'a'"}


def test_many_names_for_few_groups_take_no_time_of_their_own(tmp_path: Path) -> None:
    def fill(file: h5py.File) -> None:
        inner = file.create_group("0")
        inner["x"] = np.arange(3)
        for i in range(1, 40):  # 2 ** 40 ways lead to x
            outer = file.create_group(f"level {i}")
            outer["left"], outer["right"] = inner, inner
            inner = outer

    assert len(open_bare(hdf5(tmp_path / "a.h5", fill)).left_out) >= 40


def test_groups_that_are_nested_without_end_are_left_out(tmp_path: Path) -> None:
    deep = "/".join(["g"] * 500)

    def fill(file: h5py.File) -> None:
        file["x"], file[f"{deep}/y"] = np.arange(3), np.arange(3)

    found = open_bare(hdf5(tmp_path / "a.h5", fill))
    assert list(found.leaves) == ["x"]
    assert "groups deep" in "".join(found.left_out.values())


@pytest.mark.parametrize("suffix", [".parquet", ".h5"])
def test_columns_that_differ_only_by_case_are_all_kept(tmp_path: Path, suffix: str) -> None:
    columns = {"x": [1.0, 2.0], "X": [3.0, 4.0], "a/y": [5.0, 6.0], "A/Y": [7.0, 8.0]}
    path = tmp_path / f"a{suffix}"
    if suffix == ".h5":
        hdf5(path, lambda file: [file.create_dataset(name, data=values) for name, values in columns.items()])
    else:
        written(path, **columns)
    bare = open_bare(path)
    import_bare(bare, tmp_path / "run")
    for recording in (bare, Recording(tmp_path / "run")):
        rows = recording[0].rows
        assert [rows[name].tolist() for name in ("x", "X")] == [[1, 2], [3, 4]]
        assert [rows["a"]["y"].tolist(), rows["A"]["Y"].tolist()] == [[5, 6], [7, 8]]


def test_columns_of_one_name_are_left_out(tmp_path: Path) -> None:
    arrays = [pa.array([1.0, 2.0]), pa.array([3.0, 4.0]), pa.array([5, 6])]
    pq.write_table(pa.Table.from_arrays(arrays, names=["x", "x", "y"]), tmp_path / "a.parquet")
    found = open_bare(tmp_path / "a.parquet")
    assert list(found.leaves) == ["y"] and found.left_out == {"x": "2 columns have this name"}
    written(tmp_path / "b.parquet", **{"a/b": [1.0], "a//b": [2.0]})
    with pytest.raises(FormatError, match=r"'a//b' and 'a/b' would be one leaf; leave one of them out with columns="):
        open_bare(tmp_path / "b.parquet")
    assert open_bare(tmp_path / "b.parquet", columns=["a/b"])[0].rows["a"]["b"].tolist() == [1.0]


def test_lists_of_text_are_kept_whether_they_are_of_one_length_or_not(tmp_path: Path) -> None:
    words = [["a", "b"], ["c", "dé"]]
    file = written(
        tmp_path / "a.parquet",
        equal=pa.array(words),
        fixed=pa.array(words, pa.list_(pa.string(), 2)),
        large=pa.array(words, pa.large_list(pa.large_string())),
        other=pa.array([["a"], []], pa.list_(pa.string())),
    )
    bare = open_bare(file)
    import_bare(bare, tmp_path / "run")
    for recording in (bare, Recording(tmp_path / "run")):
        for name in ("equal", "fixed", "large"):
            assert [row.tolist() for row in recording[0].columns[name][:]] == words
        assert [row.tolist() for row in recording[0].columns["other"][:]] == [["a"], []]
    assert not bare.left_out


def test_files_and_episodes_without_rows_are_named(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    written(data / "0.parquet", x=pa.array([], pa.float64()))
    written(data / "1.parquet", x=[1.0, 2.0])
    found = open_bare(data)
    assert [len(episode) for episode in found] == [2] and found.left_out == {"0.parquet": "a file of no rows"}

    def fill(file: h5py.File) -> None:
        file["data/demo_0/x"], file["data/demo_1/x"] = np.zeros((0, 2)), np.ones((3, 2))
        file.create_group("data/demo_2")

    found = open_bare(hdf5(tmp_path / "a.h5", fill))
    assert found[0].rows["x"].tolist() == [[1, 1]] * 3 and len(found) == 1
    assert found.left_out == {
        "data/demo_0": "an episode of no rows",
        "data/demo_2": "an episode without datasets",
    }


def test_a_file_without_rows_has_no_episodes_and_is_not_imported(tmp_path: Path) -> None:
    columns = {"x": pa.array([], pa.float32()), "t": pa.array([], pa.string())}
    for file in (
        written(tmp_path / "a.parquet", **columns),
        hdf5(tmp_path / "a.h5", lambda file: file.create_dataset("x", (0, 3), "f4")),
    ):
        bare = open_bare(file)
        assert (len(bare), bare.steps, list(bare)) == (0, 0, [])
        with pytest.raises(FormatError, match="has columns but no rows"):
            import_bare(bare, tmp_path / "run")
        assert not (tmp_path / "run").exists()


def test_files_without_anything_in_them_are_named(tmp_path: Path) -> None:
    for name in ("zero.parquet", "zero.h5"):
        (tmp_path / name).touch()
        with pytest.raises(DamagedError, match=rf"{name} is empty: it has not a single byte"):
            open_bare(tmp_path / name)
    (tmp_path / "folder").mkdir()
    with pytest.raises(NotARecordingError, match="folder has no Parquet file"):
        open_bare(tmp_path / "folder")
    for file in (written(tmp_path / "a.parquet"), hdf5(tmp_path / "a.h5", lambda file: file.create_group("data"))):
        with pytest.raises(FormatError, match=r"has no column of numbers or text: there is nothing in it"):
            open_bare(file)


def test_bytes_that_are_no_text_and_text_that_is_no_flag_are_refused(tmp_path: Path) -> None:
    def fill(file: h5py.File) -> None:
        file["x"], file["name"] = np.arange(2), np.array([b"\xff\xfe", b"a"])

    file = hdf5(tmp_path / "a.h5", fill)
    with pytest.raises(FormatError, match="'name' holds bytes that are no UTF-8 text"):
        open_bare(file)
    assert list(open_bare(file, columns=["x"]).leaves) == ["x"]
    with pytest.raises(FormatError, match="column 'done' holds text"):
        open_bare(written(tmp_path / "a.parquet", x=[1, 2], done=["True", "False"]), episodes=["done"])


def test_a_name_with_brackets_is_a_name_and_what_cannot_be_taken_says_why(tmp_path: Path) -> None:
    file = written(tmp_path / "a.parquet", **{"joint[0]": [1.0], "joint[1]": [2.0], "raw": [b"a"]})
    assert list(open_bare(file, columns=["joint[0]"]).leaves) == ["joint[0]"]
    with pytest.raises(FormatError, match="no column 'raw' that can be taken: binary"):
        open_bare(file, columns=["raw"])
