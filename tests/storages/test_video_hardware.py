"""Encoders in hardware are used where a probe really encodes, and refused elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from recorder.errors import LayoutError
from recorder.leaf import Leaf
from recorder.storages.base import Counts, storage_from_json
from recorder.storages.video import VideoStorage
from recorder.storages.video_hardware import HARDWARE, Hardware, kinds_of
from recorder.storages.video_probe import probe, works
from recorder.testing import Diary, assert_rows

LEAF = Leaf("observation/camera", (64, 96, 3), "uint8", "image")


def like_x264(quality: int, preset: str | None) -> Mapping[str, str]:
    return {"crf": str(quality), "preset": preset or "ultrafast", "tune": "zerolatency"}


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Pretend that there is hardware: encoders in software, called as such."""
    probe.cache_clear()
    monkeypatch.setitem(HARDWARE, ("h264", "nvenc"), Hardware("no_such_encoder", "yuv420p", like_x264))
    monkeypatch.setitem(HARDWARE, ("h264", "qsv"), Hardware("libx264", "nv12", like_x264))
    yield
    probe.cache_clear()


def test_every_kind_is_known_by_its_codec() -> None:
    assert kinds_of("h264") == ["nvenc", "videotoolbox", "qsv", "amf"]
    assert kinds_of("ffv1") == kinds_of("vp9") == []


@pytest.mark.parametrize(("codec", "kind"), list(HARDWARE))
def test_an_encoder_that_does_not_encode_here_is_refused(codec: str, kind: str) -> None:
    storage = VideoStorage(codec=codec, hardware=kind)
    if works(storage.coding(LEAF)):
        pytest.skip(f"{codec} by {kind} works here")
    with pytest.raises(LayoutError, match=rf"cannot be coded as {codec}.*choose another codec, hardware"):
        storage.check([LEAF])


@pytest.mark.parametrize("codec", ["h264", "hevc", "av1"])
def test_auto_codes_in_software_where_there_is_no_hardware(codec: str) -> None:
    storage = VideoStorage(codec=codec, hardware="auto")
    storage.check([LEAF])
    assert storage.coding(LEAF).hardware in (None, *kinds_of(codec))


@pytest.mark.usefixtures("devices")
def test_auto_takes_the_first_that_works(tmp_path: Path) -> None:
    storage = VideoStorage(hardware="auto")
    storage.check([LEAF])
    assert storage.coding(LEAF).hardware == "qsv"
    diary = Diary(storage.writer(tmp_path / "staging", [LEAF]), [LEAF])
    diary.append((0, 30))
    diary.end()
    (tmp_path / "shard").mkdir()
    diary.writer.pack(tmp_path / "shard", diary.segments())
    # Whoever reads has no such hardware.
    reader = VideoStorage().reader(tmp_path / "shard", [LEAF], Counts.of(diary.segments()))
    assert_rows(LEAF, reader.whole(LEAF.path)[:], diary.expected(LEAF, diary.segments()), 4.0)


@pytest.mark.usefixtures("devices")
def test_an_encoder_whose_pictures_are_unlike_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recorder.storages.video_probe.UNLIKE", 0.0)
    assert not works(VideoStorage(hardware="qsv").coding(LEAF))


@pytest.mark.parametrize("options", [{"hardware": "gpu"}, {"codec": "ffv1", "hardware": "nvenc"}], ids=str)
def test_hardware_that_a_codec_has_not_is_refused(options: Mapping[str, str]) -> None:
    with pytest.raises(LayoutError, match=r"VideoStorage\(hardware="):
        VideoStorage(**options)  # type: ignore[arg-type]


def test_it_is_kept_in_json() -> None:
    storage = VideoStorage(hardware="auto")
    assert storage_from_json(storage.to_json()) == storage
