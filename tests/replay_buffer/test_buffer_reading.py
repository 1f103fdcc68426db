"""ReplayBuffer: what is read of keys, rows and episodes, from wherever a buffer may be."""

from __future__ import annotations

import io
import multiprocessing
import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from zarr.storage import LocalStore, MemoryStore, ZipStore

from recorder import (
    ClosedError,
    DamagedError,
    EpisodeError,
    ExistsError,
    FormatError,
    LayoutError,
    NotAReplayBufferError,
    ReplayBuffer,
    RowError,
    WriteError,
    create_zarr_replay_buffer,
)

SPECS = {
    "observation/camera": {"shape": (0, 16, 24, 3), "dtype": "uint8"},
    "observation/joints": {"shape": (0, 3), "dtype": "float32", "chunks": (4, 3)},
    "action": {"shape": (), "dtype": "int64"},
    "task": {"shape": (0,), "dtype": str, "chunks": 5},
}
LENGTHS = (6, 1, 21, 4)


def episode(rows: int, seed: int) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    return {
        "observation/camera": random.integers(0, 256, (rows, 16, 24, 3), np.uint8),
        "observation/joints": random.normal(size=(rows, 3)).astype(np.float32),
        "action": random.integers(0, 9, rows),
        "task": np.array([f"step {i}" for i in range(rows)], object),
    }


EPISODES = [episode(rows, seed) for seed, rows in enumerate(LENGTHS)]
ROWS = {key: np.concatenate([each[key] for each in EPISODES]) for key in SPECS}


def made(where: Any, **options: Any) -> ReplayBuffer:
    shard = {} if options.get("zarr_format") == 2 else {"frames_per_shard": 8}
    return create_zarr_replay_buffer(where, SPECS, EPISODES, progress=False, **shard, **options)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("buffer") / "buffer.zarr"
    made(path)
    return path


@pytest.fixture(scope="module")
def buffer(folder: Path) -> ReplayBuffer:
    return ReplayBuffer(folder)


def equal(found: ReplayBuffer, rows: dict[str, Any] = ROWS) -> None:
    assert set(found.keys()) == set(rows)
    for key in rows:
        np.testing.assert_array_equal(found[key][:], rows[key])
        assert found[key].dtype == rows[key].dtype and found[key].shape == rows[key].shape


def test_keys_steps_and_episodes(buffer: ReplayBuffer) -> None:
    assert sorted(buffer.keys()) == sorted(SPECS)
    assert "action" in buffer and "actions" not in buffer
    assert buffer.n_steps == len(buffer) == 32 and buffer.n_episodes == 4
    assert buffer.episode_ends.tolist() == [6, 7, 28, 32] and buffer.episode_ends.dtype == np.int64
    assert buffer.episode_lengths.tolist() == list(LENGTHS)
    assert buffer.complete
    equal(buffer)


def test_an_episode_has_its_rows_of_every_key(buffer: ReplayBuffer) -> None:
    for i in range(-4, 4):
        found = buffer.episode(i)
        for key in SPECS:
            np.testing.assert_array_equal(found[key], EPISODES[i][key])
    assert list(buffer.episode(0, ["action"])) == ["action"]
    assert buffer.episode_slice(-1) == slice(28, 32)


@given(index=st.lists(st.integers(-32, 31), max_size=40))
def test_rows_in_any_order_and_again(buffer: ReplayBuffer, index: list[int]) -> None:
    for key in SPECS:
        np.testing.assert_array_equal(buffer[key][np.array(index, int)], ROWS[key][np.array(index, int)])


@given(st.slices(32))
def test_any_slice(buffer: ReplayBuffer, index: slice) -> None:
    for key in SPECS:
        np.testing.assert_array_equal(buffer[key][index], ROWS[key][index])


def test_what_is_not_there_is_named(buffer: ReplayBuffer) -> None:
    with pytest.raises(KeyError, match=r"'actoin'.*'action'"):
        buffer["actoin"]
    with pytest.raises(IndexError, match="episode 4 of a replay buffer of 4 episodes"):
        buffer.episode(4)
    with pytest.raises(IndexError, match="row 32"):
        buffer["action"][32]
    with pytest.raises(TypeError):
        iter(buffer)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_memory_as_a_dict_or_a_store(zarr_format: Any) -> None:
    files: dict[str, Any] = {}
    equal(made(files, zarr_format=zarr_format))
    equal(ReplayBuffer(MemoryStore(files)))
    equal(pickle.loads(pickle.dumps(ReplayBuffer(MemoryStore(files)))))


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_zip_file_is_written_whole_and_read(tmp_path: Path, zarr_format: Any) -> None:
    path = tmp_path / "buffer.zarr.zip"
    equal(made(path, zarr_format=zarr_format))
    assert [file.name for file in tmp_path.iterdir()] == ["buffer.zarr.zip"]
    equal(ReplayBuffer(ZipStore(path)))
    equal(pickle.loads(pickle.dumps(ReplayBuffer(path))))
    with pytest.raises(WriteError, match="only read here"):
        ReplayBuffer(path).append(EPISODES[0])
    with pytest.raises(ExistsError):
        made(path)
    with pytest.raises(LayoutError, match="cannot be added to"):
        made(path, append=True)


@pytest.mark.parametrize("url", ["memory://replay-buffer-{}", "file://{}/b.zarr"])
def test_urls(tmp_path: Path, url: str) -> None:
    pytest.importorskip("fsspec")
    where = url.format(tmp_path if "file" in url else tmp_path.name)
    equal(made(where))
    equal(ReplayBuffer(where))
    with pytest.raises(ExistsError, match="with 4 episodes, complete"):
        made(where)
    with ReplayBuffer(where) as found:
        found.append(EPISODES[2])
        found.drop(2)
        assert found.n_episodes == 3


def test_stores_of_obstore(tmp_path: Path) -> None:
    obstore = pytest.importorskip("obstore.store")
    from zarr.storage import ObjectStore

    equal(made(ObjectStore(obstore.MemoryStore())))
    equal(made(ObjectStore(obstore.LocalStore(str(tmp_path)))))
    equal(ReplayBuffer(tmp_path))


def test_a_group_inside_a_store(tmp_path: Path) -> None:
    zarr.open_group(LocalStore(tmp_path / "more.zarr"), mode="w")
    made(tmp_path / "more.zarr" / "runs")
    equal(ReplayBuffer(zarr.open_group(tmp_path / "more.zarr", path="runs", mode="r")))
    memory = MemoryStore()
    group = zarr.open_group(memory, path="deep/inside", mode="w")
    equal(made(group))
    equal(ReplayBuffer(zarr.open_group(memory, path="deep/inside", mode="r")))


def test_what_is_no_buffer_is_said(tmp_path: Path) -> None:
    for where in (tmp_path / "nothing", tmp_path, {}):
        with pytest.raises(NotAReplayBufferError, match="meta/episode_ends"):
            ReplayBuffer(where)
    with pytest.raises(LayoutError, match="is in a path, a URL, or a store"):
        ReplayBuffer(3)  # type: ignore[arg-type]


def read_in_child(buffer: ReplayBuffer) -> dict[str, Any]:
    return {key: buffer[key][[5, 0, 31]] for key in SPECS}


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_forked_and_spawned_workers_read(buffer: ReplayBuffer, method: str) -> None:
    read_in_child(buffer)
    with multiprocessing.get_context(method).Pool(2) as pool:
        for found in pool.map(read_in_child, [buffer] * 4):
            for key in SPECS:
                np.testing.assert_array_equal(found[key], ROWS[key][[5, 0, 31]])


def test_appending_dropping_and_popping(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "b")
    with ReplayBuffer(tmp_path / "b") as buffer:
        buffer.append(EPISODES[2])
        assert buffer.n_episodes == 5 and len(buffer["action"]) == 53
        np.testing.assert_array_equal(buffer.episode(-1)["task"], EPISODES[2]["task"])
        popped = buffer.pop()
        for key in SPECS:
            np.testing.assert_array_equal(popped[key], EPISODES[2][key])
        equal(buffer)
        equal(ReplayBuffer(tmp_path / "b"))
        buffer.drop(3)
        equal(buffer, {key: EPISODES[0][key] for key in SPECS})
        buffer.append(EPISODES[1])
        buffer.drop(2)
        assert buffer.n_steps == buffer.n_episodes == 0
        with pytest.raises(EpisodeError, match="no episode to take away"):
            buffer.pop()
        with pytest.raises(EpisodeError, match="1 episodes cannot be dropped: the buffer has 0"):
            buffer.drop()
        for each in EPISODES:
            buffer.append(each)
        equal(buffer)
    for key in SPECS:
        assert zarr.open_group(tmp_path / "b", mode="r")["data"][key].shape[0] == 32  # type: ignore[union-attr, index]


def test_an_array_that_is_added_may_be_used_again(tmp_path: Path) -> None:
    reused = {key: rows.copy() for key, rows in EPISODES[2].items()}

    def episodes() -> Iterator[dict[str, Any]]:
        for value in range(20):
            reused["observation/camera"][:] = value
            reused["action"][:] = value
            yield reused

    buffer = create_zarr_replay_buffer(tmp_path / "b", SPECS, episodes(), progress=False)
    for i in range(20):
        assert (buffer.episode(i)["observation/camera"] == i).all() and (buffer.episode(i)["action"] == i).all()


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    with made(tmp_path / "b") as first, made(tmp_path / "c") as other:
        first.append(EPISODES[0])
        other.append(EPISODES[0])
        second = ReplayBuffer(tmp_path / "b")
        with pytest.raises(WriteError, match="another process or object is writing"):
            second.append(EPISODES[1])
        first.close()
        second.append(EPISODES[1])
        assert first.n_episodes == 5 and first.refresh() == 1
        second.close()


def append_in_child(buffer: ReplayBuffer, said: Any) -> None:
    try:
        buffer.append(EPISODES[0])
    except ClosedError as error:
        said.put(str(error))


def test_a_forked_child_does_not_write_for_its_parent(tmp_path: Path) -> None:
    fork = multiprocessing.get_context("fork")
    with made(tmp_path / "b") as buffer:
        buffer.append(EPISODES[0])
        said = fork.Queue()
        child = fork.Process(target=append_in_child, args=(buffer, said))
        child.start()
        assert "is written to by the parent of this process" in said.get(timeout=60)
        child.join()
        buffer.append(EPISODES[1])
        assert buffer.n_episodes == 6


def test_a_reader_that_opened_earlier_reads_on_while_another_appends(tmp_path: Path) -> None:
    reader = made(tmp_path / "b")
    equal(reader)
    with ReplayBuffer(tmp_path / "b") as writer:
        for each in EPISODES:
            writer.append(each)
            equal(reader)
    assert reader.refresh() == 4
    equal(reader, {key: np.concatenate([ROWS[key], ROWS[key]]) for key in SPECS})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda rows: rows.pop("action"), r"lacks \['action'\]"),
        (lambda rows: rows.update(reward=np.zeros(6)), r"has \['reward'\], which the buffer does not"),
        (lambda rows: rows.update(action=np.zeros(5, int)), "different numbers of rows: .*'action': 5"),
        (lambda rows: rows.update(action=np.full(6, 3.7)), "'action' is int64, got float64 with values"),
        (lambda rows: rows.update(action=np.full(6, np.nan)), "'action' is int64, got float64 with values"),
        (lambda rows: rows.update(action=np.zeros((6, 1), int)), r"'action' has rows of shape \(\), got"),
        (lambda rows: rows.update(task=np.zeros(6)), "'task' is text, got float"),
        (lambda rows: rows.update(task=["a", None, "b", "c", "d", "e"]), "'task' is text, got NoneType"),
        (lambda rows: rows.update({"observation/camera": np.full((6, 16, 24, 3), 0.5)}), "camera.*not exact in uint8"),
        (lambda rows: rows.update({"observation/camera": np.zeros((6, 24, 16, 3), np.uint8)}), "has rows of shape"),
        (lambda rows: rows.update({"observation/joints": np.zeros((1, 3), np.float32)}), "different numbers of rows"),
        (lambda rows: rows.update({key: value[:0] for key, value in rows.items()}), "at least one row"),
    ],
)
def test_an_episode_that_does_not_fit_is_refused_as_a_whole(tmp_path: Path, change: Any, said: str) -> None:
    wrong = dict(EPISODES[0])
    change(wrong)
    with made(tmp_path / "b") as buffer:
        with pytest.raises(RowError, match=said):
            buffer.append(wrong)
        equal(buffer)
        buffer.append(EPISODES[3])
        equal(buffer, {key: np.concatenate([ROWS[key], EPISODES[3][key]]) for key in SPECS})


def test_copying_to_memory(buffer: ReplayBuffer) -> None:
    some = buffer.copy_to_memory(["action", "observation/joints"])
    equal(some)
    index = np.random.default_rng(0).integers(0, 32, 100)
    np.testing.assert_array_equal(some["action"][index], ROWS["action"][index])
    some["action"][:][:] = 0
    equal(buffer.copy_to_memory())
    equal(some)
    with pytest.raises(EpisodeError, match="are in memory"):
        some.append(EPISODES[0])


def chunk_bytes(path: Path, key: str) -> bytes:
    """Return all coded pictures of a buffer, one after another."""
    column = ReplayBuffer(path)[key]
    coded = column.encoded(0, len(column))
    assert coded is not None
    return b"".join(coded.pictures)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_copying_keeps_the_bytes_of_pictures(tmp_path: Path, zarr_format: Any) -> None:
    from recorder import WebP

    made(tmp_path / "lossy", image_codec=WebP(quality=40))
    lossy = ReplayBuffer(tmp_path / "lossy")
    copied = lossy.copy_to(tmp_path / "copy", zarr_format=zarr_format, chunk_rows={"observation/joints": 9})
    equal(copied, {key: lossy[key][:] for key in SPECS})
    assert copied.complete
    assert chunk_bytes(tmp_path / "copy", "observation/camera") == chunk_bytes(tmp_path / "lossy", "observation/camera")
    assert zarr.open_group(tmp_path / "copy", mode="r")["data/observation/joints"].chunks == (9, 3)  # type: ignore[union-attr]
    again = copied.copy_to(tmp_path / "again.zip")
    equal(again, {key: lossy[key][:] for key in SPECS})


def test_copying_some_keys_and_episodes(buffer: ReplayBuffer, tmp_path: Path) -> None:
    copied = buffer.copy_to(tmp_path / "b", keys=["action", "task"], episodes=[2, 0, -1])
    order = (2, 0, 3)
    equal(copied, {key: np.concatenate([EPISODES[i][key] for i in order]) for key in ("action", "task")})
    assert copied.episode_lengths.tolist() == [LENGTHS[i] for i in order]
    with pytest.raises(ExistsError):
        buffer.copy_to(tmp_path / "b")
    buffer.copy_to(tmp_path / "b", overwrite=True)


@pytest.mark.parametrize("episodes", [0, -1, 1.5, True, 99])
def test_only_whole_numbers_of_episodes_are_dropped(buffer: ReplayBuffer, episodes: Any) -> None:
    with buffer, pytest.raises(EpisodeError, match=str(episodes)):
        buffer.drop(episodes)
    assert buffer.n_episodes == len(LENGTHS)


def flipped(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(bytes(data))


def test_a_flipped_bit_anywhere_in_a_shard_is_found(folder: Path, tmp_path: Path) -> None:
    for k, place in enumerate(np.random.default_rng(0).integers(0, 3000, 12).tolist()):
        shutil.copytree(folder, tmp_path / str(k))
        shard = tmp_path / str(k) / "data" / "observation" / "camera" / "c.0.0.0.0"
        flipped(shard, place % shard.stat().st_size)
        with pytest.raises(DamagedError, match=r"c\.0\.0\.0\.0"):
            ReplayBuffer(tmp_path / str(k))["observation/camera"][:]


def test_missing_and_cut_files_are_found_not_read_as_zeros(folder: Path, tmp_path: Path) -> None:
    for k, change in enumerate(
        (Path.unlink, lambda path: path.write_bytes(b""), lambda path: path.write_bytes(b"x" * 90))
    ):
        shutil.copytree(folder, tmp_path / str(k))
        for key in SPECS:
            change(next((tmp_path / str(k) / "data" / key).glob("c.0*")))
            with pytest.raises(DamagedError, match=f"{key}/c.0"):
                ReplayBuffer(tmp_path / str(k))[key][:]


def test_an_array_that_is_too_short_is_named(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "b")
    zarr.open_group(tmp_path / "b", mode="r+")["data/action"].resize((31,))  # type: ignore[union-attr]
    with pytest.raises(DamagedError, match="'action' has 31 rows, but the episodes end at row 32"):
        ReplayBuffer(tmp_path / "b")


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{", b'{"zarr_format": 3, "node_type": "array"}', b'{"zarr_format": 3, "shape": [3]}']
)
def test_metadata_that_says_nothing_is_named(folder: Path, tmp_path: Path, data: bytes) -> None:
    shutil.copytree(folder, tmp_path / "b")
    (tmp_path / "b" / "data" / "action" / "zarr.json").write_bytes(data)
    with pytest.raises((FormatError, KeyError)):
        ReplayBuffer(tmp_path / "b")["action"]


def test_all_black_pictures_are_kept(tmp_path: Path) -> None:
    black = {**EPISODES[0], "observation/camera": np.zeros((6, 16, 24, 3), np.uint8)}
    create_zarr_replay_buffer(tmp_path / "b", SPECS, [black], zarr_format=2, progress=False)
    files = list((tmp_path / "b" / "data" / "observation" / "camera").glob("[0-9]*"))
    assert len(files) == 6
    files[3].unlink()
    with pytest.raises(DamagedError, match="missing"):
        ReplayBuffer(tmp_path / "b")["observation/camera"][:]


def test_two_thousand_frames_are_few_files(tmp_path: Path) -> None:
    rows = {
        "observation/camera": np.zeros((2000, 16, 24, 3), np.uint8),
        "observation/joints": np.zeros((2000, 3), np.float32),
        "action": np.zeros(2000, np.int64),
        "task": np.full(2000, "push", object),
    }
    specs = {
        key: {"shape": (0, *value.shape[1:]), "dtype": str if key == "task" else value.dtype}
        for key, value in rows.items()
    }
    create_zarr_replay_buffer(tmp_path / "b", specs, [rows], progress=False)
    assert len([path for path in (tmp_path / "b").rglob("*") if path.is_file()]) <= 20


def test_reading_says_what_it_is(buffer: ReplayBuffer, folder: Path) -> None:
    assert repr(buffer) == f"<ReplayBuffer {folder}: 4 episodes, 32 steps, {buffer.keys()}>"
    print(buffer, file=io.StringIO())
