"""A file that is cut, zeroed, swapped, changed or made shorter is found and named; the rest stays readable."""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Callable
from pathlib import Path

import av
import google_crc32c
import numpy as np
import pytest
from environments import CountingEnv, roll

from recorder import DictStorage, ImageFileStorage, Recorder, Recording, VideoStorage, ZarrStorage
from recorder.files import checksum, checksum_of
from recorder.shard import encode_manifest, read_manifest
from recorder.verify import verify


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sound") / "run"
    storage = DictStorage({"render": VideoStorage(), "observation": ZarrStorage()})
    for _ in range(2):
        with Recorder(CountingEnv(40, "rgb_array"), path, record_render=True, storage=storage, verbose=False) as env:
            roll(env, 2)
    return path


@pytest.fixture
def recording(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "run"))


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def empty(file: Path) -> None:
    file.write_bytes(b"")


def zero(file: Path) -> None:
    file.write_bytes(bytes(file.stat().st_size))


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 4
    file.write_bytes(data)


def swap(file: Path) -> None:
    other = next(
        path for path in sorted(file.parents[2].rglob(file.name)) if path != file and path.suffix == file.suffix
    )
    file.write_bytes(other.read_bytes() if other.read_bytes() != file.read_bytes() else b"x" * file.stat().st_size)


FILES = [
    "data.h5",
    "episodes.h5",
    "shard.json",
    "render/000001.mp4",
    "observation.zarr/zarr.json",
    "observation.zarr/c.0.0",
]


@pytest.mark.parametrize("decode", [False, True])
def test_a_sound_recording_is_found_sound(sound: Path, decode: bool) -> None:
    found = verify(sound, decode=decode)
    assert found.sound, str(found)
    assert (found.shards, found.episodes, found.steps) == (2, 4, 160)
    assert "4 episodes, 160 steps" in str(found)


@pytest.mark.parametrize("damage", [cut, empty, zero, flip, swap, Path.unlink])
@pytest.mark.parametrize("name", FILES)
def test_every_damage_is_found_and_named_and_the_rest_reads(
    recording: Path, name: str, damage: Callable[[Path], None]
) -> None:
    first, second = sorted((recording / "shards").iterdir())
    damage(first / name)
    found = verify(recording)
    assert not found.sound
    fault = found.faults[0]
    assert fault.shard == first.name
    assert fault.file == name or name in fault.message
    if name.startswith("render"):
        assert fault.episodes == (Recording(recording).table()["id"][1],)
    assert not any(fault.shard == second.name for fault in found.faults)


def test_a_video_that_was_coded_again_with_fewer_frames_is_found_even_with_a_mended_manifest(recording: Path) -> None:
    first = sorted((recording / "shards").iterdir())[0]
    video = first / "render" / "000000.mp4"
    video.unlink()
    with av.open(str(video), "w") as container:
        stream = container.add_stream("libx264", 20, pix_fmt="yuv420p", width=48, height=32)
        for _ in range(5):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.zeros((32, 48, 3), np.uint8), "rgb24")))
        container.mux(stream.encode())
    assert verify(recording).faults[0].file == "render/000000.mp4"
    manifest = read_manifest(first)
    manifest.files["render/000000.mp4"] = (video.stat().st_size, checksum(video))
    (first / "shard.json").write_bytes(encode_manifest(manifest))
    found = verify(recording)
    assert "has 46 rows, 82 were written" in found.faults[0].message
    assert found.faults[1].episodes == (Recording(recording).table()["id"][0],)
    assert "render/000000.mp4" in found.faults[1].message


def test_files_that_nobody_wrote_are_named(recording: Path) -> None:
    first = sorted((recording / "shards").iterdir())[0]
    (first / "notes.txt").write_text("x")
    (recording / "shards" / "stranger").mkdir()
    messages = [str(fault) for fault in verify(recording).faults]
    assert any("notes.txt: is not listed" in message for message in messages)
    assert any("shards/stranger: is no shard" in message for message in messages)


def test_an_episode_that_is_there_twice_is_named(recording: Path) -> None:
    first, second = sorted((recording / "shards").iterdir())
    copy = second.with_name(second.name[:-1] + "9")
    shutil.copytree(first, copy)
    assert any("is also in" in fault.message for fault in verify(recording).faults)


@pytest.mark.parametrize("crc", [google_crc32c.value, zlib.crc32])
def test_messages_that_end_in_their_own_crc_have_different_sums(crc: Callable[[bytes], int]) -> None:
    messages = [bytes([k]) * 100 for k in range(20)]
    whole = [message + crc(message).to_bytes(4, "little") for message in messages]
    assert len({crc(message) for message in whole}) == 1, "this is why one CRC is not enough"
    assert len({checksum_of(message) for message in whole}) == 20


def test_a_damaged_picture_is_that_of_its_episode(tmp_path: Path) -> None:
    storage = DictStorage({"render": ImageFileStorage()})
    with Recorder(CountingEnv(5, "rgb_array"), tmp_path, record_render=True, storage=storage, verbose=False) as env:
        roll(env, 3)
    ids = Recording(tmp_path).table()["id"].tolist()
    for episode, row in ((0, 2), (2, 0), (1, 5)):
        (picture,) = tmp_path.glob(f"shards/*/render/{episode:06d}/{row:06d}.png")
        data = picture.read_bytes()
        flip(picture)
        (fault,) = {fault.episodes for fault in verify(tmp_path).faults}
        assert fault == (ids[episode],)
        picture.write_bytes(data)
    assert verify(tmp_path, decode=True).sound
