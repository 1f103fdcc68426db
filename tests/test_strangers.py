"""Whatever a stranger puts into a recording ends in an error of ours or in data, quickly and in little memory."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from environments import CountingEnv, roll
from fuzzing import seal_shards

from recorder import (
    DictStorage,
    FormatError,
    HDF5Storage,
    Recorder,
    RecorderError,
    Recording,
    VideoStorage,
    ZarrStorage,
)
from recorder.files import sealed, unsealed
from recorder.limits import Limits, limits, set_limits
from recorder.storages.hdf5 import HDF5File
from recorder.verify import verify


def fuzz(folder: Path, seed: int, count: int) -> dict[str, Any]:
    command = [sys.executable, str(Path(__file__).with_name("fuzzing.py")), str(folder), str(seed), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert not found["faults"], "\n".join(f"{seed}: {mutant}: {fault}" for seed, mutant, fault in found["faults"])
    return found


@pytest.mark.timeout(600)
def test_some_mutants_end_in_our_errors_or_in_data(tmp_path: Path) -> None:
    found = fuzz(tmp_path, 0, 250)
    assert found["memory"] < 1 << 30
    assert found["ends"]["data"] > 50
    assert found["ends"]["own"] > 10


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_ten_thousand_mutants_end_in_our_errors_or_in_data(tmp_path: Path) -> None:
    found = fuzz(tmp_path, 1_000_000, 10_000)
    assert found["memory"] < 1 << 30
    assert found["seconds"] < 5


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("made") / "run"
    storage = DictStorage({"render": VideoStorage(), "observation": ZarrStorage()}, HDF5Storage("gzip"))
    with Recorder(CountingEnv(40, "rgb_array"), path, record_render=True, storage=storage, verbose=False) as env:
        roll(env, 2)
    return path


@pytest.fixture
def path(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "run"))


def shard_of(path: Path) -> Path:
    (shard,) = (path / "shards").iterdir()
    return shard


def rewrite(path: Path, change: Callable[[h5py.File], None], name: str = "data.h5") -> None:
    """Change a table with h5py, and let all sums fit."""
    with h5py.File(shard_of(path) / name, "r+") as file:
        change(file)
    seal_shards(path)


def read(path: Path, leaf: str = "reward") -> Any:
    return Recording(path)[0].columns[leaf][:]


def replace(name: str, make: Callable[[h5py.File], Any]) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        del file[name]
        make(file)

    return change


class TestHDF5:
    def test_external_storage_is_refused(self, path: Path, tmp_path: Path) -> None:
        (tmp_path / "secret").write_bytes(bytes(640))
        external = [(str(tmp_path / "secret"), 0, 640)]
        rewrite(path, replace("reward", lambda file: file.create_dataset("reward", (80,), "f8", external=external)))
        with pytest.raises(RecorderError, match="other files"):
            read(path)

    @pytest.mark.parametrize("link", ["external", "soft"])
    def test_links_are_refused(self, path: Path, tmp_path: Path, link: str) -> None:
        with h5py.File(tmp_path / "other.h5", "w") as other:
            other["reward"] = np.zeros(80)
        to = h5py.ExternalLink(str(tmp_path / "other.h5"), "reward") if link == "external" else h5py.SoftLink("/action")
        rewrite(path, replace("reward", lambda file: file.__setitem__("reward", to)))
        with pytest.raises(RecorderError, match="link"):
            read(path)

    def test_virtual_datasets_are_refused(self, path: Path, tmp_path: Path) -> None:
        layout = h5py.VirtualLayout((80,), "f8")
        layout[:] = h5py.VirtualSource(str(tmp_path / "other.h5"), "reward", (80,))
        rewrite(path, replace("reward", lambda file: file.create_virtual_dataset("reward", layout)))
        with pytest.raises(RecorderError, match="other files"):
            read(path)

    def test_zeros_that_unpack_to_gigabytes_are_refused(self, path: Path) -> None:
        def bomb(file: h5py.File) -> None:
            shape, options = (80, 1 << 24), {"compression": "gzip", "compression_opts": 9}
            data = file.create_dataset("reward", shape, "f8", chunks=(1, 1 << 20), **options)
            for row in range(80):
                for start in range(0, 1 << 24, 1 << 20):
                    data.id.write_direct_chunk((row, start), b"x" * 100)

        rewrite(path, replace("reward", bomb))
        with pytest.raises(RecorderError, match="would become"):
            read(path)

    def test_chunks_that_are_not_there_are_no_zeros(self, path: Path) -> None:
        rewrite(path, replace("reward", lambda file: file.create_dataset("reward", (80,), "f8", chunks=(10,))))
        with pytest.raises(RecorderError, match="has 0 chunks of 8"):
            read(path)

    def test_room_that_was_never_filled_is_no_zeros(self, path: Path) -> None:
        rewrite(path, replace("reward", lambda file: file.create_dataset("reward", (80,), "f8")))
        with pytest.raises(RecorderError, match="has 0 bytes for 640"):
            read(path)

    def test_a_filter_that_is_none_of_ours_is_refused(self, path: Path) -> None:
        values = np.arange(80.0)
        rewrite(
            path,
            replace("reward", lambda file: file.create_dataset("reward", data=values, chunks=(80,), scaleoffset=2)),
        )
        with pytest.raises(RecorderError, match="filters"):
            read(path)

    @pytest.mark.parametrize("values", [np.zeros(80, "f4"), np.zeros((80, 2)), np.zeros(80, "S3"), np.zeros(80, bool)])
    def test_rows_of_another_shape_or_dtype_are_refused(self, path: Path, values: Any) -> None:
        rewrite(path, replace("reward", lambda file: file.create_dataset("reward", data=values)))
        with pytest.raises(FormatError, match="'reward'"):
            read(path)

    @pytest.mark.parametrize("dtype", [np.dtype("V4"), np.dtype([("a", "i4")]), h5py.ref_dtype, h5py.vlen_dtype("f8")])
    def test_what_is_no_number_at_all_is_refused(self, path: Path, dtype: Any) -> None:
        rewrite(path, replace("reward", lambda file: file.create_dataset("reward", (80,), dtype)))
        with pytest.raises(RecorderError):
            read(path)

    def test_many_rows_that_share_one_long_text_are_refused(self, tmp_path: Path) -> None:
        rows = 5000
        with h5py.File(tmp_path / "bomb.h5", "w") as file:
            file["text"] = np.array(["x" * 1_000_000, *[""] * (rows - 1)], object)
            offset = file["text"].id.get_offset()
        data = bytearray((tmp_path / "bomb.h5").read_bytes())
        data[offset : offset + 16 * rows] = bytes(data[offset : offset + 16]) * rows
        (tmp_path / "bomb.h5").write_bytes(data)
        column = HDF5File(tmp_path / "bomb.h5")["text"]
        assert len(column[:1][0]) == 1_000_000
        with pytest.raises(FormatError, match="longer than the file"):
            column[:]

    def test_counts_that_no_episode_has_are_refused(self, path: Path) -> None:
        for values in ([-1, 82], [2**62, 2**62], [2**41, 3]):
            rewrite(
                path,
                replace("moments", lambda file, values=values: file.__setitem__("moments", np.array(values))),  # type: ignore[misc]
                "episodes.h5",
            )
            with pytest.raises(FormatError, match="numbers of rows"):
                read(path)

    def test_labels_that_nest_too_deep_are_an_error_of_ours(self, path: Path) -> None:
        deep = np.array(["[" * 100_000] * 2, object)
        rewrite(path, lambda file: file.__setitem__("labels", deep), "episodes.h5")
        with pytest.raises(FormatError):
            Recording(path)[0].labels  # noqa: B018


class TestFolders:
    @pytest.mark.parametrize("name", ["render/000000.mp4", "data.h5", "observation.zarr/zarr.json", "shard.json"])
    def test_links_out_of_the_folder_are_not_followed(self, path: Path, tmp_path: Path, name: str) -> None:
        file = shard_of(path) / name
        file.rename(tmp_path / "elsewhere")
        file.symlink_to(tmp_path / "elsewhere")
        with pytest.raises(RecorderError, match="link"):
            read(path)
        assert not verify(path).sound

    def test_folders_that_are_links_are_not_followed(self, path: Path, tmp_path: Path) -> None:
        folder = shard_of(path) / "render"
        folder.rename(tmp_path / "elsewhere")
        folder.symlink_to(tmp_path / "elsewhere")
        with pytest.raises(RecorderError, match="link"):
            read(path)
        assert not verify(path).sound

    @pytest.mark.parametrize("name", ["recording.json", "render/000001.mp4", "data-0001.h5", "observation.zarr/c.1.0"])
    def test_pipes_do_not_hang_whoever_reads(self, path: Path, name: str) -> None:
        place = path / name if name == "recording.json" else shard_of(path) / name
        place.unlink(missing_ok=True)
        os.mkfifo(place)
        with pytest.raises(RecorderError, match="pipe"):
            read(path)

    def test_a_table_that_nobody_listed_is_not_opened(self, path: Path) -> None:
        shutil.copy(shard_of(path) / "data.h5", shard_of(path) / "data-0001.h5")
        with pytest.raises(FormatError, match="not listed"):
            read(path)

    def test_a_listed_name_that_leaves_the_folder_is_refused(self, path: Path, tmp_path: Path) -> None:
        (tmp_path / "secret").write_text("mine")
        manifest = shard_of(path) / "shard.json"
        said = json.loads(unsealed(manifest, manifest.read_bytes()))
        for name in ("../../../secret", "/etc/passwd", "a\\b", ""):
            said["files"][name] = [4, "0" * 16]
            manifest.write_bytes(sealed(json.dumps(said).encode()))
            with pytest.raises(FormatError, match="leaves the folder"):
                read(path)
            del said["files"][name]


class TestSizes:
    @pytest.fixture
    def small(self) -> Iterator[None]:
        before = set_limits(Limits(row_bytes=1 << 20, read_bytes=1 << 20))
        yield
        assert set_limits(before).read_bytes == 1 << 20
        assert limits() == before

    @pytest.mark.usefixtures("small")
    def test_the_limits_can_be_set(self, path: Path) -> None:
        episode = Recording(path)[0]
        frames = np.asarray(episode.columns["render"])
        assert frames.nbytes < 1 << 20
        set_limits(Limits(row_bytes=1 << 20, read_bytes=1000))
        with pytest.raises(FormatError, match="read_bytes"):
            episode.columns["render"][:]
        set_limits(Limits(row_bytes=1000, read_bytes=1 << 20))
        with pytest.raises(FormatError, match="row_bytes"):
            Recording(path)

    def change(self, path: Path, change: Callable[[dict[str, Any]], None]) -> None:
        file = path / "recording.json"
        said = json.loads(file.read_bytes())
        change(said)
        file.write_text(json.dumps(said))

    def test_a_leaf_that_its_space_does_not_have_is_refused(self, path: Path) -> None:
        self.change(path, lambda said: said["leaves"][0].update(shape=[2, 3]))
        with pytest.raises(FormatError, match="its space says"):
            Recording(path)

    def test_a_space_of_gigabytes_costs_no_memory(self, path: Path) -> None:
        self.change(path, lambda said: said["spaces"]["observation"].update(shape=[1 << 14, 1 << 13], dtype="float64"))
        with pytest.raises(FormatError, match="elements"):
            Recording(path)

    def test_an_array_of_many_rows_needs_its_files(self, path: Path) -> None:
        file = shard_of(path) / "observation.zarr" / "zarr.json"
        said = json.loads(file.read_bytes())
        rows = 1 << 39
        said["shape"][0] = rows
        file.write_text(json.dumps(said))

        def counts(table: h5py.File) -> None:
            for name in ("moments", "transitions"):
                del table[name]
                table[name] = np.array([1, rows - 1])

        rewrite(path, counts, "episodes.h5")
        with pytest.raises(RecorderError, match="lacks files"):
            Recording(path)[0].columns["observation"][:]

    def test_a_video_of_a_million_tiny_boxes_is_not_gone_through(self, path: Path) -> None:
        file = shard_of(path) / "render" / "000000.mp4"
        file.write_bytes(struct.pack(">I4s", 8, b"free") * 1_000_000 + file.read_bytes())
        seal_shards(path)
        with pytest.raises(RecorderError, match="no index"):
            Recording(path)[0].columns["render"][:]
