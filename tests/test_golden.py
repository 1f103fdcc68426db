"""Golden recordings, made once by `data/make.py`: they read back to known values for ever, with us and without us."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import av
import google_crc32c
import h5py
import numpy as np
import pytest
import zarr
from data.make import FOLDER, OPTIONS, SINGLE, SINGLE_SPACE, Golden, golden, info, labels, numbers, seed, single_row
from gymnasium.spaces import GraphInstance

from recorder import Recording, VideoStorage
from recorder.webp_codec import register

LOSSY = {"files-jpeg", "video-digests", "video-h264"}
FORMATS = sorted(FOLDER.glob("format-*"))
EVERY = [pytest.param(path, id=f"{path.parent.name}-{path.name}") for folder in FORMATS for path in folder.iterdir()]
STEPS = [param for param in EVERY if param.values[0].name != SINGLE]


def check(found: Any, given: Any, lossy: bool = False) -> None:
    """Assert that a value is as it was given: structure, dtypes and bits, of a lossy picture nearly."""
    match given:
        case None | str():
            assert found == given
        case dict():
            assert found.keys() == given.keys()
            for key in given:
                check(found[key], given[key], lossy)
        case tuple():
            assert len(found) == len(given) and isinstance(found, GraphInstance) == isinstance(given, GraphInstance)
            for one, other in zip(found, given, strict=True):
                check(one, other, lossy)
        case _:
            one, other = np.asarray(found), np.asarray(given)
            assert (one.shape, one.dtype) == (other.shape, other.dtype)
            if lossy:
                assert np.abs(one.astype(np.int16) - other).mean() < 6
            else:
                assert one.tobytes() == other.tobytes()


def test_every_storage_and_space_has_a_golden_recording_and_all_are_small() -> None:
    assert {path.name for path in FORMATS[-1].iterdir()} == {*golden(), SINGLE}
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) < 500_000 * len(FORMATS)


@pytest.mark.parametrize("path", STEPS)
def test_a_golden_recording_reads_back_to_what_was_recorded(path: Path) -> None:
    given, found = golden()[path.name], Recording(path)
    assert len(found) == 2
    for k, (episode, length) in enumerate(zip(found, given.lengths, strict=True)):
        assert (len(episode), episode.end, episode.seed) == (length - 1, "ended", seed(given, k))
        assert (episode.labels, episode.return_) == (labels(given, k), sum(0.5 * t for t in range(length)))
        for step in episode:
            check(step.observation, given.row(step.number - 1), path.name in LOSSY)
            check(step.next_observation, given.row(step.number), path.name in LOSSY)
            assert (step.action, step.reward) == (step.number % 2, 0.5 * step.number)
            assert (step.terminated, step.truncated) == (step.number == length - 1, False)
        assert episode.times.tolist() == [0.25 * t for t in range(length)]
    assert found.observation_space == given.space
    assert list(getattr(found.observation_space, "spaces", [])) == list(getattr(given.space, "spaces", []))


@pytest.mark.parametrize("path", [folder / name for folder in FORMATS for name in ("hdf5", "npz", "parquet")], ids=str)
def test_infos_options_and_values_of_the_user_are_in_a_golden_recording(path: Path) -> None:
    found = Recording(path)
    assert len(found.shards) == 2
    for episode in found:
        assert episode.options == OPTIONS
        assert episode.extras["note"].tolist() == [f"é{t}" for t in range(1, len(episode) + 1)]
        for step in episode:
            given, read = info(step.number), step.info
            assert read.keys() == given.keys()
            assert read.pop("path").tolist() == given.pop("path").tolist()
            assert read == given


@pytest.mark.parametrize("path", [folder / SINGLE for folder in FORMATS], ids=str)
def test_a_golden_recording_of_single_rows_reads_back(path: Path) -> None:
    found = Recording(path)
    assert (len(found), len(found[0]), found.space) == (1, 4, SINGLE_SPACE)
    for t in range(4):
        check({name: rows[t] for name, rows in found[0].rows.items()}, single_row(t))


@pytest.mark.parametrize("path", EVERY)
def test_a_golden_recording_is_strict_json(path: Path) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(name)

    for file in path.rglob("*.json"):
        json.loads(file.read_text(), parse_constant=refuse)


class TestWithoutThisPackage:
    """What others see in the files, by the page of the format and nothing else."""

    @pytest.fixture(params=FORMATS, ids=str)
    def folder(self, request: pytest.FixtureRequest) -> Path:
        return Path(request.param)

    def shard(self, path: Path) -> Path:
        return min((path / "shards").iterdir())

    @pytest.mark.parametrize("name", ["hdf5-lzf", "hdf5-gzip"])
    def test_h5py_reads_tables(self, folder: Path, name: str) -> None:
        given = golden()[name]
        with h5py.File(self.shard(folder / name) / "data.h5") as file:
            rows = file["observation"]
            assert rows.compression == name.removeprefix("hdf5-")
            check(rows[:], np.array([given.row(t) for length in given.lengths for t in range(length)]))
            assert file["action"][:].tolist() == [1, 0, 1, 0, 1, 0]
            assert file["time"][:].tolist() == [0, 0.25, 0.5, 0.75, 1, 0, 0.25, 0.5]

    def test_h5py_reads_text_infos_and_the_table_of_episodes(self, folder: Path) -> None:
        shard = self.shard(folder / "hdf5")
        with h5py.File(shard / "data.h5") as file:
            # A column with a NUL in one of its texts is bytes.
            texts = [row.tobytes().decode() for row in file["observation/text"][:]]
            assert texts == ["", "é", "日本", "a\x00b", "🙂🙂🙂"]
            assert file["%present/info/success"][:].tolist() == [False, False, True, False, False]
            assert file["info/success"][:].tolist() == [True]
            assert file["%lengths/info/path"][:].tolist() == [1, 2, 3, 4]
            assert file["info/time%2Fleft"][:].tolist() == [10, 9, 8, 7, 6]
            assert [json.loads(text) for text in file["info/list"][:]] == [[1, "b", None]] * 5
        with h5py.File(shard / "episodes.h5") as file:
            assert (file["moments"][0], file["transitions"][0], file["return"][0]) == (5, 4, 5.0)
            assert (file["end"][0], file["seed"][0]) == (b"ended", str(2**70).encode())
            assert json.loads(file["labels"][0]) == {"task": "é", "k": 0}

    def test_h5py_reads_rows_of_changing_length(self, folder: Path) -> None:
        with h5py.File(self.shard(folder / "ragged") / "data.h5") as file:
            assert file["%lengths/observation/sequence"][:].tolist() == [0, 1, 2, 0, 1, 0, 1, 2]
            rows = [numbers((2,), k, "float32") for t in (1, 2, 1, 1, 2) for k in range(t)]
            assert file["observation/sequence"][:].tolist() == [row.tolist() for row in rows]
            assert file["observation/either/choice"][:].tolist() == [0, 1, 0, 1, 0, 0, 1, 0]

    @pytest.mark.parametrize(("name", "leaves"), [("zarr-zstd", 4), ("zarr-webp", 2)])
    def test_zarr_reads_arrays_and_pictures(self, folder: Path, name: str, leaves: int) -> None:
        register()
        given = golden()[name]
        arrays = list((self.shard(folder / name) / "observation").glob("*.zarr"))
        assert len(arrays) == leaves
        for path in arrays:
            rows = [given.row(t)[path.stem] for length in given.lengths for t in range(length)]
            check(zarr.open_array(path, mode="r")[:], np.array(rows))

    def test_digests_are_the_crc32c_of_what_was_recorded(self, folder: Path) -> None:
        given = golden()["video-digests"]
        with h5py.File(self.shard(folder / "video-digests") / "data.h5") as file:
            found = file["digest/observation/rgb"][:]
        rows = [given.row(t)["rgb"] for length in given.lengths for t in range(length)]
        assert found.dtype == np.uint32
        assert found.tolist() == [google_crc32c.value(row.tobytes()) for row in rows]
        note = json.loads((folder / "video-digests" / "recording.json").read_text())
        assert {"path": "digest/observation/rgb", "shape": [], "dtype": "uint32"}.items() <= note["leaves"][-1].items()

    @pytest.mark.parametrize("name", ["video-h264", "video-h264rgb", "video-ffv1"])
    def test_pyav_reads_videos(self, folder: Path, name: str) -> None:
        given = golden()[name]
        videos = sorted(self.shard(folder / name).rglob("*.mp4"))
        assert len(videos) == 2 * len(given.storage)
        for path in videos:
            self._check_video(path, given, name in LOSSY)

    def _check_video(self, path: Path, given: Golden, lossy: bool) -> None:
        length = given.lengths[int(path.stem)]
        with av.open(path) as file:
            stream = file.streams.video[0]
            assert stream.frames == length
            frames = list(file.decode(stream))
            numbered = [frame.pts * frame.time_base * stream.average_rate for frame in frames]
        assert numbered == list(range(length))
        for t, frame in enumerate(frames):
            picture = given.row(t)[path.parent.name]
            height, width, channels = picture.shape
            pixels = {1: "gray", 3: "rgb24", 4: "rgba"}[channels]
            decoded = frame.to_ndarray(format=pixels)[:height, :width].reshape(picture.shape)
            if not (lossy and channels == 1):  # players take grey for 16 to 235, and stretch it
                check(decoded, picture, lossy)


def test_the_storages_of_golden_recordings_are_those_that_their_names_say() -> None:
    for folder in FORMATS:
        storages = Recording(folder / "video-ffv1").schema.storage.storages.values()
        assert set(storages) == {VideoStorage(codec="ffv1")}
