"""Long videos keep the contract; `test_video` has it for every codec with short ones."""

from pathlib import Path

import pytest

from recorder.storages.video import VideoStorage
from recorder.testing import PICTURE_LEAVES, StorageContract


class LongVideo(StorageContract):
    leaves = (PICTURE_LEAVES[2],)
    tolerance = 4.0


@pytest.mark.parametrize("codec", ["h264", "ffv1"])
def test_ten_thousand_frames_come_back_in_their_order(tmp_path: Path, codec: str) -> None:
    contract = LongVideo()
    contract.storage = VideoStorage(codec=codec)
    contract.test_one_segment_comes_back(tmp_path, PICTURE_LEAVES[2], 10_000)
