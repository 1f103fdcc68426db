"""Contact sheets show the frames that were recorded, at their steps, in colours that make sense."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import imagecodecs
import numpy as np
import pytest
from numpy.typing import NDArray

from recorder import Episode, Leaf
from recorder.columns import ArrayColumn
from recorder.episodes import EpisodeNote
from recorder.errors import EpisodeError
from recorder.preview import (
    INK,
    cameras,
    contact_sheet,
    draw_text,
    encode_png,
    resized,
    shown,
    text_mask,
)

Frames = NDArray[Any]


def leaf(frames: Frames, kind: str = "image", **metadata: Any) -> Leaf:
    return Leaf("observation/camera", frames.shape[1:], frames.dtype.name, kind, metadata=metadata)


def episode(*columns: tuple[Leaf, Frames]) -> Episode:
    found = {one.path: ArrayColumn(one, frames) for one, frames in columns}
    return Episode(None, EpisodeNote(0, "7f3a9104c2d8-000004", transitions=10), found)


def flat(count: int, *values: int, side: int = 64) -> Frames:
    """Return frames of one colour each: `values`, and one more in each next frame."""
    frames = np.empty((count, side, side, len(values)), np.uint8)
    frames[:] = np.add.outer(np.arange(count), values)[:, None, None]
    return frames


def holds(sheet: Frames, colour: Any) -> bool:
    return bool((sheet == colour).all(axis=-1).any())


class TestTheSheet:
    def test_it_shows_the_first_frame_the_last_and_evenly_spaced_ones_between(self) -> None:
        frames = flat(101, 100, 50, 20)
        sheet = contact_sheet(episode((leaf(frames), frames)), 5)
        rows = [t for t in range(101) if holds(sheet, frames[t, 0, 0])]
        assert rows == [0, 25, 50, 75, 100]

    def test_a_short_episode_shows_each_frame_once(self) -> None:
        frames = flat(3, 100, 50, 20)
        sheet = contact_sheet(episode((leaf(frames), frames)), 12)
        area = [(sheet == frames[t, 0, 0]).all(axis=-1).sum() for t in range(3)]
        assert area == [256 * 256] * 3

    def test_a_step_is_written_above_its_frame(self) -> None:
        frames = flat(11, 100, 50, 20)
        sheet = contact_sheet(episode((leaf(frames), frames)), 2)
        y, x = np.argwhere((sheet == frames[10, 0, 0]).all(axis=-1))[0]
        label = (sheet[y - 18 : y - 2, x : x + 12 * len("step 10")] == INK).all(axis=-1)
        np.testing.assert_array_equal(label, text_mask("step 10"))

    def test_the_first_frame_of_a_transition_is_step_1(self) -> None:
        frames = flat(10, 100, 50, 20)
        extra = Leaf("extra/camera", (64, 64, 3), "uint8", "image", "transition")
        sheet = contact_sheet(episode((extra, frames)), 2)
        y, x = np.argwhere((sheet == frames[0, 0, 0]).all(axis=-1))[0]
        label = (sheet[y - 18 : y - 2, x : x + 12 * len("step 1")] == INK).all(axis=-1)
        np.testing.assert_array_equal(label, text_mask("step 1"))

    def test_a_step_of_all_cameras_is_in_one_column(self) -> None:
        small, large = flat(11, 100, 50, 20, side=20), flat(11, 20, 50, 100, side=700)
        one = Leaf("observation/a", (20, 20, 3), "uint8", "image")
        other = Leaf("observation/b", (700, 700, 3), "uint8", "image")
        sheet = contact_sheet(episode((one, small), (other, large)), 4)
        places = [
            [np.argwhere((sheet == frames[t, 0, 0]).all(axis=-1))[0] for t in (0, 10)] for frames in (small, large)
        ]
        assert [x for _, x in places[0]] == [x for _, x in places[1]]
        assert places[0][0][0] < places[1][0][0]

    def test_numbers_are_no_cameras(self) -> None:
        vector = np.zeros((11, 4), np.float32)
        grid = np.zeros((11, 7, 7, 3), np.uint8)
        plain = episode((Leaf("observation/v", (4,), "float32", "state"), vector), (leaf(grid, "other"), grid))
        assert cameras(plain) == []
        with pytest.raises(EpisodeError, match=r"7f3a9104c2d8-000004 has no pictures; its leaves are observation/v"):
            contact_sheet(plain)

    def test_a_png_of_it_holds_the_same_pixels(self) -> None:
        frames = flat(3, 100, 50, 20)
        sheet = contact_sheet(episode((leaf(frames), frames)))
        np.testing.assert_array_equal(imagecodecs.png_decode(encode_png(sheet)), sheet)


class TestWhatFramesLookLike:
    @pytest.mark.parametrize(
        ("values", "metadata", "colour"),
        [
            ((200, 100, 50), {}, [200, 100, 50]),
            ((200, 100, 50), {"format": "bgr"}, [50, 100, 200]),
            ((90,), {}, [90, 90, 90]),
            ((200, 100, 50, 255), {"format": "rgba"}, [200, 100, 50]),
            ((200, 100, 50, 255), {"format": "bgra"}, [50, 100, 200]),
            ((200, 100, 50, 0), {"format": "rgba"}, [128, 128, 128]),
        ],
        ids=["rgb", "bgr", "gray", "rgba", "bgra", "transparent"],
    )
    def test_channels_become_the_colours_that_they_are(
        self, values: tuple[int, ...], metadata: Mapping[str, Any], colour: list[int]
    ) -> None:
        frames = flat(1, *values)
        assert shown(frames, leaf(frames, **metadata)).pictures[0, 3, 5].tolist() == colour

    def test_channels_may_come_first(self) -> None:
        frames = flat(2, 200, 100, 50)
        moved = np.moveaxis(frames, -1, 1)
        for metadata in ({"layout": "CHW"}, {}):
            np.testing.assert_array_equal(shown(moved, leaf(moved, **metadata)).pictures, frames)

    def test_depth_is_scaled_over_all_frames_and_says_so(self) -> None:
        frames = np.full((2, 20, 30), 3.0, np.float32)
        frames[0, 0, 0], frames[1, 0, 0], frames[1, 1] = 1.0, 5.0, np.inf
        pictures, note = shown(frames, leaf(frames, "depth", units="m"))
        assert note == "black 1 to white 5 m"
        assert pictures[0, 0, 0].tolist() == [0] * 3 and pictures[1, 0, 0].tolist() == [255] * 3
        assert pictures[0, 9, 9].tolist() == [127] * 3 and not pictures[1, 1].any()

    @pytest.mark.parametrize("value", [np.nan, 7.0])
    def test_depth_of_one_value_or_none_is_black(self, value: float) -> None:
        frames = np.full((2, 20, 30), value)
        assert not shown(frames, leaf(frames, "depth")).pictures.any()

    def test_sixteen_bits_are_scaled(self) -> None:
        frames = np.zeros((1, 20, 30), np.uint16)
        frames[0, 3] = 40_000
        pictures, note = shown(frames, leaf(frames))
        assert (pictures[0, 3] == 255).all() and note == "black 0 to white 4e+04"

    def test_labels_have_colours_of_their_own_and_0_is_black(self) -> None:
        frames = np.arange(256, dtype=np.int32).reshape(1, 16, 16) - 1
        pictures, note = shown(frames, leaf(frames, "segmentation"))
        assert note == "labels in colours"
        assert not pictures[0, 0, 1].any()
        assert len(np.unique(pictures.reshape(-1, 3), axis=0)) > 250

    def test_a_mask_is_black_and_white(self) -> None:
        frames = np.zeros((1, 20, 20), bool)
        frames[0, 3] = True
        assert np.unique(shown(frames, leaf(frames, "mask")).pictures).tolist() == [0, 255]

    def test_of_a_stack_the_newest_picture_is_shown(self) -> None:
        newest = np.random.default_rng(0).integers(0, 255, (2, 20, 30), np.uint8)
        first = np.stack([np.zeros_like(newest)] * 3 + [newest], axis=1)
        for frames in (first, np.moveaxis(first, 1, -1)):
            pictures, note = shown(frames, leaf(frames, "stack"))
            np.testing.assert_array_equal(pictures[..., 0], newest)
            assert note == "last of 4"

    def test_of_a_stack_of_colours_the_newest_picture_is_shown(self) -> None:
        frames = np.stack([flat(2, 1, 2, 3), flat(2, 200, 100, 50)], axis=1)
        np.testing.assert_array_equal(shown(frames, leaf(frames, "stack")).pictures, frames[:, 1])


class TestSizes:
    @pytest.mark.parametrize(
        ("shape", "expected"),
        [
            ((64, 64), (256, 256)),
            ((96, 96), (192, 192)),
            ((480, 640), (160, 214)),
            ((3, 2000), (1, 250)),
            ((1, 1), (256, 256)),
        ],
    )
    def test_frames_grow_and_shrink_by_whole_numbers(self, shape: tuple[int, int], expected: tuple[int, int]) -> None:
        assert resized(np.full((*shape, 3), 200, np.uint8)).shape == (*expected, 3)

    def test_a_shrunk_frame_is_the_mean_of_its_pixels(self) -> None:
        frame = np.zeros((512, 512, 3), np.uint8)
        frame[::2] = 200
        assert (resized(frame) == 100).all()


class TestLetters:
    def test_each_printable_character_has_a_shape_of_its_own(self) -> None:
        shapes = {text_mask(chr(code), 1).tobytes() for code in range(32, 127)}
        assert len(shapes) == 95

    def test_what_is_not_ascii_is_a_question_mark(self) -> None:
        np.testing.assert_array_equal(text_mask("é杯\n"), text_mask("???"))

    def test_text_that_goes_beyond_a_picture_is_cut(self) -> None:
        picture = np.zeros((20, 30, 3), np.uint8)
        draw_text(picture, "step 100", (10, 10), ink=(255, 0, 0))
        assert picture[10:, 10:, 0].any() and not picture[:10].any() and not picture[..., 1].any()
        draw_text(picture, "beyond", (40, 40))
        draw_text(picture, "", (0, 0))
