"""What a Recorder does about what is in its folder already: append, refuse, replace, and never touch a stranger's."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from environments import CountingEnv, ScriptEnv, roll
from gymnasium import spaces

from recorder import (
    ExistsError,
    FormatError,
    HDF5Storage,
    MismatchError,
    NotARecordingError,
    Recorder,
    Recording,
    RecordingWriter,
    StepSpace,
    WriteError,
    ZarrStorage,
)


def record(path: Path, episodes: int = 2, **options: Any) -> None:
    with Recorder(CountingEnv(3), path, **{"verbose": False, **options}) as env:
        roll(env, episodes)


def files(path: Path) -> dict[str, int]:
    return {str(file.relative_to(path)): file.stat().st_size for file in path.rglob("*") if file.is_file()}


def test_recording_into_a_matching_folder_appends(tmp_path: Path) -> None:
    record(tmp_path)
    first = files(tmp_path)
    record(tmp_path)
    assert len(Recording(tmp_path)) == 4
    assert first.items() <= files(tmp_path).items()


def test_appending_keeps_the_storage_that_the_recording_has(tmp_path: Path) -> None:
    record(tmp_path, storage=HDF5Storage(compression="gzip"))
    record(tmp_path)
    found = Recording(tmp_path)
    assert found.schema.storage.default == HDF5Storage(compression="gzip")
    assert len(found) == 4


@pytest.mark.parametrize(
    ("space", "difference"),
    [
        (spaces.Box(-np.inf, np.inf, (3,), np.float32), "observation: shape"),
        (spaces.Box(-np.inf, np.inf, (2,), np.float64), "observation: dtype"),
        (spaces.Box(0, 1, (2,), np.float32), "observation"),
        (spaces.Dict(a=spaces.Discrete(2)), "observation"),
    ],
)
def test_a_recording_of_another_space_is_refused_with_the_differences(
    tmp_path: Path, space: spaces.Space[Any], difference: str
) -> None:
    record(tmp_path)
    before = files(tmp_path)
    other = CountingEnv(3)
    other.observation_space = space  # type: ignore[assignment]
    with pytest.raises(MismatchError, match=difference) as error:
        Recorder(other, tmp_path)
    assert "existing='replace'" in str(error.value)
    assert files(tmp_path) == before


def test_another_storage_is_refused_with_the_leaf(tmp_path: Path) -> None:
    record(tmp_path)
    with pytest.raises(MismatchError, match="observation: kept as"):
        Recorder(CountingEnv(3), tmp_path, storage=HDF5Storage(compression="gzip"))


def test_refusing_and_replacing_are_done_when_asked_for(tmp_path: Path) -> None:
    record(tmp_path / "run")
    (tmp_path / "run" / "notes.txt").write_text("mine")
    with pytest.raises(ExistsError, match="holds a recording already"):
        Recorder(CountingEnv(3), tmp_path / "run", existing="refuse")
    record(tmp_path / "run", 1, existing="replace")
    assert len(Recording(tmp_path / "run")) == 1
    assert (tmp_path / "run" / "notes.txt").read_text() == "mine"
    with pytest.raises(ValueError, match="existing='overwrite'"):
        Recorder(CountingEnv(3), tmp_path / "run", existing="overwrite")  # type: ignore[arg-type]


def test_a_folder_with_other_things_is_never_used(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(ExistsError, match=r"holds other things \(thesis.tex\)"):
        Recorder(CountingEnv(3), tmp_path)
    with pytest.raises(ExistsError, match="is a file"):
        Recorder(CountingEnv(3), tmp_path / "thesis.tex")
    assert [item.name for item in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_folder_that_cannot_be_written_is_found_when_wrapping() -> None:
    with pytest.raises(WriteError, match="nothing can be written below"):
        Recorder(CountingEnv(3), "/proc/recording")


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (None, NotARecordingError),
        (b"", FormatError),
        (b"{", FormatError),
        (b"[]", FormatError),
        (b'{"format": 99, "surprise": 1}', FormatError),
        (b'{"format": 0, "rows": "episode", "spaces": {}, "leaves": [], "storage": {}}', FormatError),
        (b'{"format": 0, "rows": "single", "spaces": {"row": {}}, "leaves": [], "storage": {}}', FormatError),
    ],
)
def test_what_is_no_recording_is_one_clear_error_and_nothing_changes(
    tmp_path: Path, content: bytes | None, error: type[Exception]
) -> None:
    if content is not None:
        (tmp_path / "recording.json").write_bytes(content)
    before = files(tmp_path)
    with pytest.raises(error, match=str(tmp_path)):
        Recording(tmp_path)
    if content is not None:
        with pytest.raises(error):
            Recorder(CountingEnv(3), tmp_path)
    assert files(tmp_path) == before


def test_a_newer_format_says_to_install_a_newer_version(tmp_path: Path) -> None:
    (tmp_path / "recording.json").write_text('{"format": 99, "surprise": 1}')
    with pytest.raises(FormatError, match="format 99, this version reads up to 0; install a newer one"):
        Recording(tmp_path)


def test_an_unknown_storage_says_what_is_known(tmp_path: Path) -> None:
    record(tmp_path)
    note = tmp_path / "recording.json"
    note.write_text(note.read_text().replace('"hdf5"', '"lmdb"'))
    with pytest.raises(FormatError, match="storage 'lmdb' is not known here"):
        Recording(tmp_path)


def test_a_cut_or_missing_file_is_named_with_its_episode_and_the_rest_reads(tmp_path: Path) -> None:
    record(tmp_path)
    record(tmp_path)
    first, _ = sorted((tmp_path / "shards").iterdir())
    data = first / "data.h5"
    data.write_bytes(data.read_bytes()[:-100])
    found = Recording(tmp_path)
    with pytest.raises(OSError, match=rf"episode {found.table()['id'][0]}: .*data.h5 has .* bytes"):
        found[0]
    assert len(found[2].observations) == 4
    data.unlink()
    with pytest.raises(OSError, match="is missing"):
        Recording(tmp_path)[0]


def test_a_moved_recording_opens(tmp_path: Path) -> None:
    record(tmp_path / "a")
    (tmp_path / "a").rename(tmp_path / "b")
    assert len(Recording(tmp_path / "b")[1].observations) == 4


def test_reading_a_folder_that_cannot_be_written_works_and_changes_nothing(tmp_path: Path) -> None:
    record(tmp_path)
    before = files(tmp_path)
    for folder, _, _ in os.walk(tmp_path):
        Path(folder).chmod(0o555)
    try:
        assert [len(episode.observations) for episode in Recording(tmp_path)] == [4, 4]
    finally:
        for folder, _, _ in os.walk(tmp_path):
            Path(folder).chmod(0o755)
    assert files(tmp_path) == before


def test_several_folders_are_one_view_and_must_have_the_same_spaces(tmp_path: Path) -> None:
    record(tmp_path / "a", 2)
    record(tmp_path / "b", 3)
    both = Recording([tmp_path / "a", tmp_path / "b"])
    assert len(both) == 5
    assert both[4].id == Recording(tmp_path / "b")[2].id
    with Recorder(ScriptEnv(spaces.Discrete(4), [1, 2]), tmp_path / "c", verbose=False) as env:
        roll(env)
    with pytest.raises(MismatchError, match="observation"):
        Recording([tmp_path / "a", tmp_path / "c"])


def test_a_reader_sees_new_episodes_after_refresh_at_the_end(tmp_path: Path) -> None:
    record(tmp_path)
    found = Recording(tmp_path)
    first = found[0].id
    record(tmp_path)
    assert len(found) == 2
    assert found.refresh() == 2
    assert (len(found), found[0].id) == (4, first)


def _record_many(path: Path, episodes: int) -> None:
    with Recorder(CountingEnv(3), path, verbose=False, flush_every=0.05) as env:
        for k in range(episodes):
            roll(env, seed=k)


def test_processes_record_into_one_folder_while_another_reads(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_record_many, args=(tmp_path, 200)) for _ in range(2)]
    for writer in writers:
        writer.start()
    found: Recording | None = None
    while any(writer.is_alive() for writer in writers):
        try:
            found = found or Recording(tmp_path)
        except NotARecordingError:
            continue
        found.refresh()
        for episode in found[-3:]:
            assert episode.observations[:, 0].tolist() == [0, 1, 2, 3]
    assert found is not None
    found.refresh()
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert len({episode.id for episode in found}) == len(found) == 400
    assert not any((tmp_path / "staging").iterdir())


def test_a_recording_without_an_environment_has_rows_of_any_space(tmp_path: Path) -> None:
    space = spaces.Box(-1, 1, (2,), np.float32)
    with RecordingWriter(tmp_path, space) as writer:
        for length in (3, 1):
            writer.begin()
            for k in range(length):
                writer.append(np.array([k, length], np.float32))
            writer.commit(length=length)
        writer.begin()
        writer.append(np.zeros(2, np.float32))
        writer.discard("a test")
    found = Recording(tmp_path)
    assert [len(episode) for episode in found] == [3, 1]
    assert found[0].rows.tolist() == [[0, 3], [1, 3], [2, 3]]
    assert found[1].labels == {"length": 1}
    assert found.space == space


def test_a_recording_without_an_environment_has_episodes_of_steps(tmp_path: Path) -> None:
    space = StepSpace(spaces.Box(-9, 9, (2,)), spaces.Discrete(3), {"note": spaces.Text(9)})
    with RecordingWriter(tmp_path, space) as writer:
        writer.begin(seed=4, options={"a": None})
        writer.append({"observation": np.zeros(2, np.float32), "info": {"first": 1}})
        for k in range(3):
            writer.append(
                {
                    "observation": np.full(2, k, np.float32),
                    "action": k,
                    "reward": 0.5,
                    "terminated": False,
                    "truncated": False,
                    "extra": {"note": f"{k}"},
                    "time": 0.1 * k,
                }
            )
        writer.commit()
    (episode,) = Recording(tmp_path)
    assert (episode.seed, episode.options, episode.return_, episode.end) == (4, {"a": None}, 1.5, "ended")
    assert episode.times[1:].tolist() == [0.0, 0.1, 0.2]
    assert episode.infos["first"].tolist() == [1, None, None, None]
    assert episode.extras["note"].tolist() == ["0", "1", "2"]


def test_a_picture_space_alone_can_be_recorded(tmp_path: Path) -> None:
    frames = np.random.default_rng(0).integers(0, 256, (9, 20, 30, 3), np.uint8)
    with RecordingWriter(tmp_path, spaces.Box(0, 255, (20, 30, 3), np.uint8), storage=ZarrStorage()) as writer:
        writer.begin()
        for frame in frames:
            writer.append(frame)
        writer.commit()
    np.testing.assert_array_equal(Recording(tmp_path)[0].rows, frames)


def test_async_workers_record_and_the_dummy_environment_leaves_nothing(tmp_path: Path) -> None:
    def make() -> gym.Env[Any, Any]:
        return Recorder(CountingEnv(3), tmp_path / "run", verbose=False)

    envs = gym.vector.AsyncVectorEnv([make, make], context="fork")
    assert not (tmp_path / "run").exists()
    envs.reset(seed=0)
    for _ in range(8):
        envs.step(np.zeros(2, np.int64))
    envs.close()
    assert [len(episode) for episode in Recording(tmp_path / "run")] == [3, 3, 3, 3]
