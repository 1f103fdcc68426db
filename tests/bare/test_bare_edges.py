"""What is asked of a bare file does not change where its episodes end, and nothing stands for a null by a cast."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recorder.bare.recordings import open_bare
from recorder.errors import FormatError


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
