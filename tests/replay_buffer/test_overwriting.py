"""Overwriting: the old buffer stays until the new one is whole, whatever goes wrong, and what is no buffer stays."""

from __future__ import annotations

import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from environments import CountingEnv, roll
from killing import contents
from zarr.storage import LocalStore, MemoryStore

from recorder import (
    ExistsError,
    LayoutError,
    NotAReplayBufferError,
    Recorder,
    Recording,
    ReplayBuffer,
    RowError,
    WriteError,
    create_zarr_replay_buffer,
    to_zarr,
)
from recorder.replay_buffer import swapping

SPECS = {"action": {"shape": (2,), "dtype": "float32"}}


def episode(number: int, rows: int = 5) -> dict[str, Any]:
    return {"action": np.full((rows, 2), number, np.float32)}


def make(where: Any, episodes: Any, specs: Any = SPECS, **options: Any) -> ReplayBuffer:
    return create_zarr_replay_buffer(where, specs, episodes, progress=False, **options)


def folder(tmp_path: Path) -> Any:
    return tmp_path / "b.zarr"


def zip_file(tmp_path: Path) -> Any:
    return tmp_path / "b.zarr.zip"


def url(tmp_path: Path) -> Any:
    return f"memory://{tmp_path}/b.zarr"


def dictionary(tmp_path: Path, kept: dict[Path, dict[str, Any]] = {}) -> Any:  # noqa: B006 - one for each test
    return kept.setdefault(tmp_path, {})


def link(tmp_path: Path) -> Any:
    (tmp_path / "elsewhere").mkdir(exist_ok=True)
    path = tmp_path / "link.zarr"
    if not path.is_symlink():
        (tmp_path / "elsewhere" / "b.zarr").mkdir()
        path.symlink_to(tmp_path / "elsewhere" / "b.zarr")
    return path


def group(tmp_path: Path) -> Any:
    return zarr.open_group(tmp_path / "root.zarr", mode="a").require_group("runs/b")


SWAPPED = [folder, zip_file, dictionary, link, group]
"""Places in which the new buffer takes the place of the old one at the end."""

Where = Callable[[Path], Any]


def rows(where: Any) -> list[float]:
    return [float(value) for value in ReplayBuffer(where)["action"][:][:, 0]]


@pytest.mark.parametrize("place", [*SWAPPED, url])
def test_overwriting_leaves_the_new_buffer_and_nothing_else(place: Where, tmp_path: Path) -> None:
    where = place(tmp_path)
    make(where, [episode(1), episode(2)])
    found = make(where, [episode(3)], overwrite=True)
    assert found.n_episodes == 1 and found.complete and rows(where) == [3.0] * 5
    assert not [path for path in tmp_path.rglob("*") if path.name.endswith((".new", ".old", ".removed", ".unpacked"))]
    assert place is not link or where.is_symlink()


def failing(error: BaseException) -> Iterator[dict[str, Any]]:
    yield episode(8)
    yield episode(9, 3000)
    raise error


@pytest.mark.parametrize("place", SWAPPED)
@pytest.mark.parametrize("error", [ZeroDivisionError("the simulator is gone"), KeyboardInterrupt()], ids=repr)
def test_the_old_buffer_stays_where_the_episodes_end_in_an_error(
    place: Where, error: BaseException, tmp_path: Path
) -> None:
    where = place(tmp_path)
    make(where, [episode(1), episode(2)])
    with pytest.raises(type(error)):
        make(where, failing(error), overwrite=True)
    assert rows(where) == [1.0] * 5 + [2.0] * 5
    assert make(where, [episode(3)], overwrite=True).n_steps == 5


@pytest.mark.parametrize("place", [*SWAPPED, url])
@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"numeric": "lz5"}, LayoutError),
        ({"numeric": 3}, LayoutError),
        ({"image_codec": "webp", "specs": {"camera": {"shape": (8, 8, 3), "dtype": "uint8"}}}, LayoutError),
        ({"workers": -2}, LayoutError),
        ({"workers": 0}, LayoutError),
        ({"workers": 1.5}, LayoutError),
        ({"frames_per_shard": 0}, LayoutError),
        ({"zarr_format": 4}, LayoutError),
        ({"append": True}, LayoutError),
        ({"total_episodes": -1}, LayoutError),
        ({"specs": {"action": {"shape": (2,), "dtype": "no dtype"}}}, LayoutError),
        ({"specs": {"action": {"shape": (2,), "dtype": "float32", "chunks": 0}}}, LayoutError),
        ({"episodes": 3}, LayoutError),
        ({"episodes": {"action": np.zeros((5, 2))}}, LayoutError),
        ({"episodes": [{"action": np.zeros((5, 3), np.float32)}]}, RowError),
        ({"episodes": [{"other": np.zeros((5, 2), np.float32)}]}, RowError),
    ],
)
def test_the_old_buffer_stays_where_something_is_asked_that_does_not_go(
    place: Where, options: Any, error: type[Exception], tmp_path: Path
) -> None:
    where = place(tmp_path)
    make(where, [episode(1)])
    asked = {"episodes": [episode(2)], **options}
    with pytest.raises(error):
        make(where, overwrite=True, **asked)
    assert rows(where) == [1.0] * 5


@pytest.mark.parametrize("place", SWAPPED)
def test_a_buffer_can_be_made_anew_of_its_own_episodes(place: Where, tmp_path: Path) -> None:
    where = place(tmp_path)
    make(where, map(episode, range(4)))
    old = ReplayBuffer(where)
    make(where, (old.episode(i) for i in (3, 1)), overwrite=True)
    assert rows(where) == [3.0] * 5 + [1.0] * 5


@pytest.mark.parametrize("place", SWAPPED[:1] + SWAPPED[2:])
def test_a_buffer_is_not_copied_over_itself(place: Where, tmp_path: Path) -> None:
    where = place(tmp_path)
    buffer = make(where, [episode(1)])
    for overwrite in (False, True):
        with pytest.raises(ExistsError, match="this very source"):
            buffer.copy_to(where, overwrite=overwrite)
    assert rows(where) == [1.0] * 5


def test_a_buffer_is_not_copied_over_what_it_lies_in(tmp_path: Path) -> None:
    make(tmp_path / "outer", [episode(0)])
    inner = make(tmp_path / "outer" / "kept", [episode(1)])
    with pytest.raises(ExistsError, match="holds it"):
        inner.copy_to(tmp_path / "outer", overwrite=True)
    store = MemoryStore()
    inside = make(zarr.create_group(store, path="inner"), [episode(1)])
    with pytest.raises(ExistsError, match="holds it"):
        inside.copy_to(store, overwrite=True)
    assert inside.copy_to(MemoryStore()).n_steps == inner.copy_to(LocalStore(tmp_path / "c")).n_steps == 5


@pytest.mark.parametrize("place", SWAPPED)
def test_a_copy_that_cannot_be_made_leaves_what_was_there(place: Where, tmp_path: Path) -> None:
    source, where = make({}, [episode(1)]), place(tmp_path)
    make(where, [episode(2)])
    wrong: list[dict[str, Any]] = [
        {"keys": ["nothing"]},
        {"episodes": [7]},
        {"chunk_rows": 0},
        {"chunk_rows": {"action": -1}},
        {"chunk_rows": {"reward": 4}},
        {"zarr_format": 5},
    ]
    for options in wrong:
        with pytest.raises((KeyError, IndexError, LayoutError)):
            source.copy_to(where, overwrite=True, **options)
    assert rows(where) == [2.0] * 5


@pytest.fixture
def recording(tmp_path: Path) -> Recording:
    for k in range(2):
        with Recorder(CountingEnv(4 + k), tmp_path / "run", verbose=False) as env:
            roll(env)
    return Recording(tmp_path / "run")


def test_a_conversion_that_cannot_be_made_leaves_what_was_there(recording: Recording, tmp_path: Path) -> None:
    make(tmp_path / "b", [episode(1)])
    before = contents(tmp_path / "b")
    wrong: list[dict[str, Any]] = [
        {"keys": ["nothing"]},
        {"episodes": [7]},
        {"rename": {"nothing": "n"}},
        {"final_observation": "keep"},
        {"workers": -2},
        {"numeric": "lz5"},
    ]
    for options in wrong:
        with pytest.raises(LayoutError):
            to_zarr(recording, tmp_path / "b", overwrite=True, progress=False, **options)
    with pytest.raises(FileNotFoundError):
        to_zarr(tmp_path / "no recording", tmp_path / "b", overwrite=True, progress=False)
    assert contents(tmp_path / "b") == before


def test_a_recording_is_not_overwritten_by_its_own_buffer(recording: Recording, tmp_path: Path) -> None:
    before = contents(tmp_path / "run")
    for options in ({}, {"overwrite": True}, {"append": True}):
        with pytest.raises(ExistsError, match="this very source"):
            to_zarr(recording, tmp_path / "run", progress=False, **options)  # type: ignore[arg-type]
    assert contents(tmp_path / "run") == before


def test_a_recording_inside_a_buffer_is_not_overwritten(recording: Recording, tmp_path: Path) -> None:
    make(tmp_path / "b", [episode(1)])
    (tmp_path / "run").rename(tmp_path / "b" / "run")
    with pytest.raises(ExistsError, match="holds it"):
        to_zarr(tmp_path / "b" / "run", tmp_path / "b", overwrite=True, progress=False)
    assert len(Recording(tmp_path / "b" / "run")) == 2


def test_a_zip_file_that_is_no_buffer_is_not_replaced(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "thesis.zip", "w") as archive:
        archive.writestr("thesis.tex", "years of work")
    (tmp_path / "text.zip").write_text("no zip file at all")
    for name in ("thesis.zip", "text.zip"):
        before = (tmp_path / name).read_bytes()
        with pytest.raises((ExistsError, NotAReplayBufferError)):
            make(tmp_path / name, [episode(0)], overwrite=True)
        assert (tmp_path / name).read_bytes() == before


def test_a_buffer_that_lost_its_ends_is_not_taken_for_one_that_was_never_begun(tmp_path: Path) -> None:
    make(tmp_path / "b", [episode(1)])
    (tmp_path / "b" / "meta" / "episode_ends" / "zarr.json").unlink()
    before = contents(tmp_path / "b")
    with pytest.raises(ExistsError):
        make(tmp_path / "b", [episode(1)], append=True)
    assert contents(tmp_path / "b") == before


def test_a_buffer_that_another_one_writes_to_is_not_overwritten(tmp_path: Path) -> None:
    with make(tmp_path / "b", [episode(1)]) as buffer:
        buffer.append(episode(2))
        with pytest.raises(WriteError, match="writing"):
            make(tmp_path / "b", [episode(3)], overwrite=True)
        buffer.append(episode(4))
    assert rows(tmp_path / "b") == [1.0] * 5 + [2.0] * 5 + [4.0] * 5


def test_a_system_that_cannot_swap_names_renames_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swapping, "_exchanged", lambda *names: False)
    make(tmp_path / "b", [episode(1)])
    make(tmp_path / "b", [episode(2)], overwrite=True)
    assert rows(tmp_path / "b") == [2.0] * 5 and [path.name for path in tmp_path.iterdir()] == ["b"]


@pytest.mark.parametrize("options", [{"append": True}, {"overwrite": True}])
def test_what_a_kill_between_two_renamings_left_is_put_back(options: Any, tmp_path: Path) -> None:
    make(tmp_path / "b", [episode(1)])
    (tmp_path / "b").rename(tmp_path / ".b.old")
    make(tmp_path / "other", [episode(2)])
    (tmp_path / "other").rename(tmp_path / ".b.new")
    make(tmp_path / "b", [episode(3)], **options)
    assert rows(tmp_path / "b") == ([1.0] * 5 if "append" in options else []) + [3.0] * 5
    assert "overwrite" not in options or [path.name for path in tmp_path.iterdir()] == ["b"]


CHILD = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from test_overwriting import episode, make

def episodes():
    yield episode(7, 2000)
    yield episode(8, 2000)
    os.kill(os.getpid(), signal.SIGKILL)

make(Path(sys.argv[1]) / sys.argv[2], episodes(), overwrite=True)
"""


@pytest.mark.parametrize("name", ["b.zarr", "b.zarr.zip"])
def test_a_kill_while_overwriting_leaves_the_old_buffer(name: str, tmp_path: Path) -> None:
    make(tmp_path / name, [episode(1)])
    here = str(Path(__file__).parent)
    command = [sys.executable, "-c", CHILD, str(tmp_path), name, here]
    environment = {"PYTHONPATH": f"{here}:{Path(here).parent}", "PATH": ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert rows(tmp_path / name) == [1.0] * 5
    make(tmp_path / name, [episode(2)], overwrite=True)
    assert rows(tmp_path / name) == [2.0] * 5
    assert [path.name for path in tmp_path.iterdir()] == [name]
