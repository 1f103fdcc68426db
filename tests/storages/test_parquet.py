"""ParquetStorage keeps the contract; what is special about its files, and how other readers see them."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recorder.errors import DamagedError, FormatError, LayoutError
from recorder.leaf import NUMBERS, Leaf, text_array
from recorder.storages import table, table_reading
from recorder.storages.base import Counts, Segment
from recorder.storages.dict import DictStorage
from recorder.storages.table_reading import LENGTHS, PRESENT, STEP
from recorder.testing import INFO_LEAVES, TABLE_LEAVES, Diary, StorageContract, rows_of

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

from recorder.storages.parquet import ParquetStorage  # noqa: E402
from recorder.storages.parquet_columns import NOTE, parquet_table  # noqa: E402
from recorder.storages.parquet_file import ParquetFile  # noqa: E402

FEW_LEAVES = tuple(
    leaf
    for leaf in TABLE_LEAVES
    if leaf.path in ("observation/picture", "action/words", "action/path", "observation/float32", "action/int64")
)


@pytest.fixture(autouse=True)
def _quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do without fsync where many files are written."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


class TestParquetStorage(StorageContract):
    storage, leaves, infos = ParquetStorage(), TABLE_LEAVES, INFO_LEAVES


class TestParquetStorageOfSmallGroups(StorageContract):
    """Files of 100 rows in groups of 7, each column with a codec of its own."""

    storage = ParquetStorage({"action/*": "zstd", "*": "gzip"}, file_rows=100, group_rows=7, statistics=False)
    leaves, infos = FEW_LEAVES, INFO_LEAVES
    block = 100
    longest = 250


class TestParquetStorageOfManyFiles(StorageContract):
    storage, leaves, infos = ParquetStorage("none"), FEW_LEAVES, INFO_LEAVES
    longest = 200

    @pytest.fixture(autouse=True)
    def _small_tables(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(table, "TABLE_BYTES", 2000)


LEAVES = (
    Leaf("observation/joints", (2,), "float32"),
    Leaf("observation/grid", (2, 3), "int16"),
    Leaf("observation/depth", (40, 60), "uint16", "depth"),
    Leaf("observation/points", (3,), "float64", ragged=True),
    Leaf("observation/wave", (2,), "complex64"),
    Leaf("action", (), "int64", "action", "transition"),
)
SCORE = Leaf("info/score", sparse=True)


def packed(folder: Path, storage: ParquetStorage, leaves: Sequence[Leaf] = LEAVES, rows: int = 5) -> Path:
    """Pack two episodes of `rows` rows and of 3, and return the shard."""
    diary = Diary(storage.writer(folder / "staging", leaves), leaves, [SCORE])
    diary.append((0, rows), (1, 3))
    (folder / "shard").mkdir()
    diary.writer.pack(folder / "shard", diary.segments())
    return folder / "shard"


def foreign(program: str, path: Path) -> Any:
    """Run a program that knows nothing of this package, in a process of its own, and return the JSON that it prints."""
    head = "import json, sys; path = sys.argv[1]"
    run = subprocess.run([sys.executable, "-c", f"{head}\n{program}", str(path)], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


EXPECTED_TYPES = {
    "%episode": pa.int64(),
    "%step": pa.int64(),
    "observation/joints": pa.list_(pa.field("element", pa.float32()), 2),
    "observation/grid": pa.list_(pa.field("element", pa.list_(pa.field("element", pa.int16()), 3)), 2),
    "observation/depth": pa.binary(4800),
    "observation/points": pa.list_(pa.field("element", pa.list_(pa.field("element", pa.float64()), 3))),
    "observation/wave": pa.list_(pa.field("element", pa.list_(pa.field("element", pa.float32()), 2)), 2),
    "action": pa.int64(),
    "info/score": pa.float64(),
}


def test_a_table_has_one_row_a_moment_and_one_flat_column_a_leaf(tmp_path: Path) -> None:
    table = pq.read_table(packed(tmp_path, ParquetStorage()) / "data.parquet")
    assert {name: table.schema.field(name).type for name in table.column_names} == EXPECTED_TYPES
    assert table["%episode"].to_pylist() == [0] * 5 + [1] * 3
    assert table["%step"].to_pylist() == [0, 1, 2, 3, 4, 0, 1, 2]
    assert [value is None for value in table["action"].to_pylist()] == [
        step == 0 for step in table["%step"].to_pylist()
    ]


def test_texts_are_strings_and_bytes_only_where_they_are_no_unicode() -> None:
    columns = {STEP: np.arange(2), "a": text_array(["é", "\0"]), "b": text_array(["é", "\ud800"])}
    schema = parquet_table(columns).schema
    assert (schema.field("a").type, schema.field("b").type) == (pa.string(), pa.binary())


READERS = {
    "pandas": """
import pandas
t = pandas.read_parquet(path)
actions, joints = int(t["action"].count()), [float(x) for x in t["observation/joints"][3]]
""",
    "polars": """
import polars
t = polars.read_parquet(path)
actions, joints = t["action"].count(), t["observation/joints"][3].to_list()
""",
    "duckdb": """
import duckdb
(actions,), = duckdb.sql(f"select count(action) from '{path}'").fetchall()
joints, = duckdb.sql(f"select \\"observation/joints\\" from '{path}'").fetchall()[3]
""",
    "pyarrow": """
import pyarrow.parquet
t = pyarrow.parquet.read_table(path)
actions, joints = len(t) - t["action"].null_count, t["observation/joints"][3].as_py()
""",
}


@pytest.mark.parametrize("reader", READERS)
def test_other_readers_open_a_table_without_this_package(tmp_path: Path, reader: str) -> None:
    if find_spec(reader) is None:
        pytest.skip(f"{reader} is not installed")
    shard = packed(tmp_path, ParquetStorage())
    actions, joints = foreign(READERS[reader] + "print(json.dumps([actions, list(joints)]))", shard / "data.parquet")
    expected = rows_of(LEAVES[0], 5, 1)
    assert isinstance(expected, np.ndarray)
    assert actions == 6
    assert np.array_equal(np.array(joints, np.float32), expected[3], equal_nan=True)


def test_files_and_row_groups_have_the_rows_that_were_asked_for(tmp_path: Path) -> None:
    shard = packed(tmp_path, ParquetStorage(file_rows=4, group_rows=3))
    files = sorted(shard.glob("*.parquet"))
    groups = [[f.metadata.row_group(i).num_rows for i in range(f.num_row_groups)] for f in map(pq.ParquetFile, files)]
    assert groups == [[3, 1], [3, 1]]


def test_each_column_has_its_own_compression_and_statistics(tmp_path: Path) -> None:
    storage = ParquetStorage({"observation/*": "gzip", "observation/j*": "zstd", "action": "none"}, level=5)
    group = pq.ParquetFile(packed(tmp_path, storage) / "data.parquet").metadata.row_group(0)
    columns = [group.column(i) for i in range(group.num_columns)]
    found = {column.path_in_schema.split(".")[0]: column.compression for column in columns}
    assert found["observation/joints"] == "ZSTD"
    assert found["observation/grid"] == "GZIP"
    assert (found["action"], found["%step"]) == ("UNCOMPRESSED", "SNAPPY")
    action = next(column for column in columns if column.path_in_schema == "action")
    assert action.statistics.has_min_max and action.statistics.null_count == 2
    (tmp_path / "other").mkdir()
    group = pq.ParquetFile(packed(tmp_path / "other", ParquetStorage(statistics=False)) / "data.parquet").metadata
    assert not any(group.row_group(0).column(i).is_stats_set for i in range(group.num_columns))


@pytest.mark.parametrize(
    "options",
    [
        {"compression": "lzma"},
        {"compression": {"*": "snapy"}},
        {"compression": "zstd", "level": 99},
        {"level": "high"},
        {"file_rows": 0},
        {"group_rows": True},
        {"statistics": 1},
    ],
    ids=str,
)
def test_options_that_parquet_has_not_are_refused(options: Mapping[str, Any]) -> None:
    with pytest.raises(LayoutError, match=r"ParquetStorage\(.* is needed"):
        ParquetStorage(**options).check(LEAVES)


def test_a_compression_for_a_leaf_that_is_not_there_is_refused() -> None:
    storage = DictStorage({}, ParquetStorage({"observation/joint": "zstd"}))
    with pytest.raises(LayoutError, match=r"'observation/joint'.*matches no leaf.*'observation/joints'"):
        storage.check(LEAVES)
    DictStorage({}, ParquetStorage({"observation/j*": "zstd", "info/score": "none"})).check(LEAVES)


def test_some_rows_of_a_large_column_are_read_without_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_reading, "CACHED_BYTES", 0)
    leaf = Leaf("action", (40,), "float64", "action", "transition")
    shard = packed(tmp_path, ParquetStorage(group_rows=10), [leaf], rows=100)
    read, original = [], ParquetFile.arrow
    monkeypatch.setattr(
        ParquetFile,
        "arrow",
        lambda file, name, start=0, stop=None: read.append((name, start, stop)) or original(file, name, start, stop),
    )
    reader = ParquetStorage().reader(shard, [leaf], Counts.of([Segment(0, 100, 99), Segment(1, 3, 2)]))
    expected = rows_of(leaf, 100, 1)
    assert isinstance(expected, np.ndarray)
    assert np.array_equal(reader.segment(0)["action"][50:52], expected[51:53], equal_nan=True)
    assert ("action", 51, 53) in read and ("action", 0, None) not in read


@pytest.mark.parametrize(
    "note",
    [
        b"{}",
        b"[]",
        b'{"dtype": "object", "shape": []}',
        b'{"dtype": "float64", "shape": [-1]}',
        b'{"dtype": "float64", "shape": [1000000000]}',
        b'{"dtype": "int64", "shape": []}',
        b'{"dtype": "float64", "shape": [], "ragged": true}',
    ],
)
def test_a_column_that_is_not_what_it_says_is_refused(tmp_path: Path, note: bytes) -> None:
    field = pa.field("a", pa.float64(), metadata={NOTE: note})
    pq.write_table(pa.Table.from_arrays([pa.array([1.0, 2.0])], schema=pa.schema([field])), tmp_path / "data.parquet")
    reader = ParquetStorage().reader(tmp_path, [Leaf("a", per="transition")], Counts.of([Segment(0, 2, 2)]))
    with pytest.raises((FormatError, DamagedError)):
        reader.whole("a")[:]


def test_without_pyarrow_the_error_says_what_to_install() -> None:
    program = (
        "sys.modules['pyarrow'] = None; import recorder\n"
        "try: recorder.ParquetStorage\n"
        "except recorder.MissingExtraError as error: print(json.dumps(str(error)))"
    )
    assert "pip install 'gymnasium-recorder[parquet]'" in foreign(program, Path())


@st.composite
def tables(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a table of three episodes with one column: of moments or transitions, ragged or not, sparse or not."""
    steps = np.concatenate([np.arange(draw(st.integers(1, 6))) for _ in range(3)])
    count = len(steps) if draw(st.booleans()) else int((steps > 0).sum())
    columns: dict[str, Any] = {STEP: steps}
    if draw(st.booleans()):
        columns[PRESENT + "a"] = np.array(draw(st.lists(st.booleans(), min_size=count, max_size=count)), bool)
        count = int(columns[PRESENT + "a"].sum())
    if draw(st.booleans()):
        lengths = draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
        columns[LENGTHS + "a"] = np.array(lengths, np.int64)
        count = sum(lengths)
    shape = draw(st.sampled_from([(), (1,), (3,), (2, 3), (0,), (2, 0), (0, 2), (1025,), (2, 2, 2)]))
    if draw(st.booleans()) and not shape:
        columns["a"] = text_array(draw(st.lists(st.text(st.characters(), max_size=4), min_size=count, max_size=count)))
    else:
        dtype = np.dtype(draw(st.sampled_from(sorted(NUMBERS))))
        size = count * math.prod(shape) * dtype.itemsize
        data = np.random.default_rng(draw(st.integers(0, 99))).bytes(size)
        values = np.frombuffer(data, np.uint8) % 2 == 1 if dtype.kind == "b" else np.frombuffer(data, dtype)
        columns["a"] = values.reshape(count, *shape)
    return columns


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tables(), st.integers(1, 5))
def test_any_column_comes_back_bit_for_bit(tmp_path: Path, columns: dict[str, Any], group_rows: int) -> None:
    (tmp_path / "data.parquet").write_bytes(ParquetStorage(group_rows=group_rows).encode(columns))
    file = ParquetFile(tmp_path / "data.parquet")
    for name, values in columns.items():
        assert name in file
        found = np.asarray(file[name][:])
        assert (found.dtype, found.shape) == (values.dtype, values.shape), name
        same = found.tolist() == values.tolist() if values.dtype == object else found.tobytes() == values.tobytes()
        assert same, name


def test_storages_that_are_equal_have_one_hash() -> None:
    one, other = ParquetStorage({"a": "zstd", "b": "gzip"}), ParquetStorage({"b": "gzip", "a": "zstd"})
    assert one == other and hash(one) == hash(other)
