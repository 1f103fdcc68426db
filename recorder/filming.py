"""Filming: pictures with a caption, one after another, into a video that any player shows."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from recorder.errors import ExistsError, RecorderError
from recorder.leaf import Leaf
from recorder.preview import BACKGROUND, GAP, GLYPH, Picture, draw_text
from recorder.storages.video import VideoStorage
from recorder.storages.video_codecs import Encoder

WIDTH = 320
"""Narrower pictures are enlarged by a whole number, so that a caption has room."""

WIDE = 960
"""From this width on the letters of a caption are twice as large."""

CRF = 20
"""The quality of the video, in units of H.264: good to look at."""


def captioned(picture: Picture, lines: Sequence[str]) -> Picture:
    """Return an RGB picture with lines of text below it; what is too long is cut.

    Pictures of one size with as many lines each have one size.
    """
    factor = -(-WIDTH // picture.shape[1])
    large = picture.repeat(factor, axis=0).repeat(factor, axis=1)
    height, width = large.shape[:2]
    scale = 1 + (width >= WIDE)
    step = GLYPH[0] * scale + GAP // 2
    sheet = np.full((height + GAP + step * len(lines), width, 3), BACKGROUND, np.uint8)
    sheet[:height] = large
    letters = (width - GAP) // ((GLYPH[1] + 1) * scale)
    for place, line in enumerate(lines):
        draw_text(sheet, cut(line, letters), (height + GAP // 2 + place * step, GAP // 2), scale=scale)
    return sheet


def cut(text: str, letters: int) -> str:
    """Return text of at most so many letters.

    >>> cut("action 0.25 0.75", 12), cut("action 1", 12)
    ('action 0.2..', 'action 1')
    """
    return text if len(text) <= letters else f"{text[: max(letters - 2, 0)]}.."


def in_numbers(value: Any) -> str:
    """Return a value of a space in few letters.

    >>> in_numbers(np.float32([0.25, -1])), in_numbers({"gripper": np.int64(1)})
    ('0.25 -1', 'gripper 1')
    """
    match value:
        case dict():
            return "  ".join(f"{key} {in_numbers(item)}" for key, item in value.items())
        case tuple() | list():
            return "  ".join(map(in_numbers, value))
        case str():
            return value
    return " ".join(f"{number:.3g}" for number in np.asarray(value).reshape(-1)[:64].tolist())


class Film:
    """A video file in the making: H.264 in MP4, there under its name when it is closed, and not at all if that fails.

    ```python
    with Film("out.mp4", fps=30) as film:
        film.add(picture)  # RGB, uint8 (H, W, 3), all of one size
    ```
    """

    def __init__(self, path: Path | str, fps: float, *, overwrite: bool = False) -> None:
        """Prepare; nothing is on disk before the first picture.

        Raises:
            ExistsError: the file is there already and may not be replaced.
        """
        self.path = Path(path)
        self.frames = 0
        if self.path.exists() and not overwrite:
            raise ExistsError(f"{self.path} is there already; give another name, or let it be overwritten")
        self._storage = VideoStorage(crf=CRF, fps=fps)
        self._temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}.tmp")
        self._encoder: Encoder | None = None
        self._shape: tuple[int, ...] = ()

    def add(self, picture: Picture) -> None:
        """Add the next picture.

        Raises:
            RecorderError: it is not of the size of the first.
        """
        if self._encoder is None:
            self._shape = picture.shape
            self._temporary.unlink(missing_ok=True)
            self._encoder = Encoder(
                self._temporary, self._storage.coding(Leaf("film", picture.shape, "uint8", "image"))
            )
        if picture.shape != self._shape:
            raise RecorderError(f"the pictures of a film have one size, {self._shape}; got {picture.shape}")
        self._encoder.write(np.ascontiguousarray(picture)[None])
        self.frames += 1

    def close(self) -> None:
        """Finish the file and give it its name."""
        if self._encoder is not None:
            encoder, self._encoder = self._encoder, None
            encoder.close()
            self._temporary.replace(self.path)

    def abandon(self) -> None:
        """Leave nothing of the file."""
        if self._encoder is not None:
            encoder, self._encoder = self._encoder, None
            encoder.abandon()
            self._temporary.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()
