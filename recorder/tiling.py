"""Tiling: all cameras of an episode side by side, moment by moment, with what was done and what it brought."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from recorder.episode import Episode
from recorder.errors import EpisodeError
from recorder.filming import captioned, in_numbers
from recorder.preview import BACKGROUND, GAP, SIDE, Picture, cameras, resized, shown

ROWS = 32
"""Rows of a camera that are read at once."""

SCALED_BYTES = 256 << 20
"""Depth and floats up to this size are read at once, so that one grey means one distance in all frames."""


def tiled(
    episode: Episode, *, every: int = 1, side: int = SIDE, paths: Sequence[str] | None = None
) -> Iterator[Picture]:
    """Yield pictures of every n-th moment of an episode, all of one size, from the reset on.

    `paths` are those of the cameras, by default of all.

    Raises:
        EpisodeError: the episode has no pictures, or not these.
    """
    paths = _checked(episode, paths)
    rows = np.arange(0, len(episode) + 1, max(every, 1))
    films = [_frames(episode, path, rows, side) for path in paths]
    returns = np.concatenate([[0.0], np.cumsum(episode.rewards)])
    for k, *frames in zip(rows.tolist(), *films, strict=True):
        yield captioned(_tiles(frames), caption(episode, k, float(returns[k])))


def _checked(episode: Episode, paths: Sequence[str] | None) -> Sequence[str]:
    there = cameras(episode)
    if not there:
        raise EpisodeError(f"episode {episode.id} has no pictures; its leaves are {', '.join(episode.columns)}")
    if wrong := [path for path in paths or () if path not in there]:
        raise EpisodeError(f"{wrong[0]!r} is no camera of episode {episode.id}; it has {', '.join(there)}")
    return list(paths or there)


def _frames(
    episode: Episode, path: str, rows: np.ndarray[tuple[int], np.dtype[np.intp]], side: int
) -> Iterator[Picture]:
    """Yield the frames of a camera in these rows as RGB; row k of a transition leads to moment k + 1."""
    column = episode.columns[path]
    if column.leaf.per == "transition":
        rows = np.maximum(rows - 1, 0)
    scaled = column.leaf.dtype != "uint8" and len(column) * column.leaf.nbytes <= SCALED_BYTES
    block = len(rows) if scaled else ROWS
    for first in range(0, len(rows), block):
        for frame in shown(column[rows[first : first + block]], column.leaf).pictures:
            yield resized(frame, side)


def caption(episode: Episode, k: int, total: float) -> list[str]:
    """Return the lines below moment `k`, of equally many for all moments: step, reward and return, and the action."""
    moment = f"step {k}/{len(episode)}"
    if "time" in episode.columns:
        moment += f"  {float(episode.columns['time'][k]):.2f} s"
    if k == 0:
        return [f"{moment}  reset", "action -"]
    reward = float(episode.columns["reward"][k - 1])
    action = in_numbers(episode.values("action", k - 1, k)[0])
    return [f"{moment}  reward {reward:.4g}  return {total:.5g}", f"action {action}"]


def _tiles(frames: Sequence[Picture]) -> Picture:
    """Return pictures in rows that make about a square."""
    if len(frames) == 1:
        return frames[0]
    columns = math.ceil(math.sqrt(len(frames)))
    height = max(frame.shape[0] for frame in frames) + GAP
    width = max(frame.shape[1] for frame in frames) + GAP
    sheet = np.full((height * math.ceil(len(frames) / columns), width * columns, 3), BACKGROUND, np.uint8)
    for i, frame in enumerate(frames):
        y, x = i // columns * height, i % columns * width
        sheet[y : y + frame.shape[0], x : x + frame.shape[1]] = frame
    return sheet
