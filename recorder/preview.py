"""Preview: contact sheets of an episode's cameras, and the letters that are drawn on pictures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import imagecodecs
import numpy as np
from numpy.typing import NDArray

from recorder.columns import Array
from recorder.episode import Episode
from recorder.errors import EpisodeError
from recorder.leaf import Leaf
from recorder.metadata.kinds import PICTURES
from recorder.metadata.vocabulary import FORMATS, LAYOUTS

Picture = NDArray[np.uint8]
"""An RGB picture, (H, W, 3)."""

FRAMES, COLUMNS = 12, 6
"""Frames of each camera on a sheet, and how many of them are side by side."""

SIDE = 256
"""The longest side of a frame on a sheet: larger ones are shrunk, smaller ones grow, by whole numbers."""

_CHANNELS = {1: "gray", 3: "rgb", 4: "rgba"}
"""What a picture of so many channels is, if its metadata do not say it."""

GAP = 8
BACKGROUND, INK, DIM = (24, 24, 28), (240, 240, 240), (160, 160, 170)

GLYPH = (8, 5)
"""Height and width of a letter in dots; one column of dots is between letters."""

_GLYPHS = (
    "000000000000005f00000007000700147f147f14242a7f2a12231308646236495620500004030000001c2241000041221c00"
    "2a1c7f1c2a08083e080800806000000808080808006060000020100804023e5149453e00427f400062514949462241494936"
    "1814127f1027454545393c4a49493001710905033649494936064949291e003636000000806c000008142241001414141414"
    "004122140802015109063e415d551e7e1111117e7f494949363e414141227f4141413e7f494949417f090909013e4149493a"
    "7f0808087f00417f4100204040403f7f081422417f404040407f020c027f7f0408107f3e4141413e7f090909063e4151215e"
    "7f09192946264949493201017f01013f4040403f1f2040201f3f4038403f631408146307087008076151494543007f414100"
    "02040810200041417f0004020102048080808080000102040020545454787f484444383844444428384444487f3854545418"
    "087e09010218a4a4a47c7f0804047800447d40004080847d007f1028440000417f40007c041804787c080404783844444438"
    "fc2424241818242424fc7c080404084854545424043f4440203c4040207c1c2040201c3c4030403c44281028441ca0a0a07c"
    "4464544c440008364100000077000000413608000201020402"
)
"""The printable characters of ASCII, from the space on: a byte a column of dots, its lowest bit on top."""

_FONT = (
    np.unpackbits(np.frombuffer(bytes.fromhex(_GLYPHS), np.uint8), bitorder="little")
    .reshape(-1, GLYPH[1], GLYPH[0])
    .swapaxes(1, 2)
    .astype(bool)
)


def text_mask(text: str, scale: int = 2) -> NDArray[np.bool_]:
    """Return a line of text as dots (8 * scale, 6 * scale * len(text)); what is not ASCII is a `?`."""
    codes = [ord(letter) - 32 if " " <= letter <= "~" else ord("?") - 32 for letter in text]
    letters = np.pad(_FONT[codes], ((0, 0), (0, 0), (0, 1)))
    line = letters.swapaxes(0, 1).reshape(GLYPH[0], -1)
    return line.repeat(scale, axis=0).repeat(scale, axis=1)


def draw_text(picture: Picture, text: str, at: tuple[int, int], *, scale: int = 2, ink: Sequence[int] = INK) -> None:
    """Draw a line of text into a picture, its upper left corner `at` (y, x); what goes beyond is cut."""
    y, x = at
    place = picture[y : y + GLYPH[0] * scale, x : x + (GLYPH[1] + 1) * scale * len(text)]
    place[text_mask(text, scale)[: place.shape[0], : place.shape[1]]] = ink


class Shown(NamedTuple):
    """Frames as one sees them: RGB (n, H, W, 3), and what was done to them, such as `0.2 to 4 m`."""

    pictures: NDArray[np.uint8]
    note: str


def shown(frames: Array, leaf: Leaf) -> Shown:
    """Return frames of a camera, (n, *leaf.shape), as RGB pictures.

    Labels get colours, RGBA is laid on grey, of a stack the last picture is shown. Depth, floats and 16 bits
    are scaled from the lowest to the highest number in these frames; what is not finite is black.
    """
    frames, note = _channels_last(frames, leaf)
    if frames.dtype == bool:
        return Shown(_coloured(frames * np.uint8(255), leaf), note)
    if leaf.kind in ("mask", "segmentation") and frames.dtype.kind in "iu" and frames.shape[-1] == 1:
        return Shown(_palette(frames[..., 0]), "labels in colours")
    if frames.dtype == np.uint8 and leaf.kind != "depth":
        return Shown(_coloured(frames, leaf), note)
    scaled, span = _scaled(frames, str(leaf.metadata.get("units", "")))
    return Shown(_coloured(scaled, leaf), ", ".join(filter(None, (note, span))))


def _channels_last(frames: Array, leaf: Leaf) -> tuple[Array, str]:
    """Return frames as (n, H, W, C), and what was left out."""
    match _axes(leaf):
        case "HW":
            return frames[..., np.newaxis], ""
        case "CHW":
            return np.moveaxis(frames, 1, -1), ""
        case "kHWC":
            return frames[:, -1], f"last of {frames.shape[1]}"
        case "kHW":
            return frames[:, -1, ..., np.newaxis], f"last of {frames.shape[1]}"
        case "HWk":
            return frames[..., -1:], f"last of {frames.shape[-1]}"
    return frames, ""


def _axes(leaf: Leaf) -> str | None:
    """Return what the axes of a row are, `k` being pictures one after another; None if it is no picture."""
    sides = leaf.shape
    if not leaf.fixed or leaf.kind not in (*PICTURES, "stack") or 0 in sides:
        return None
    if leaf.metadata.get("layout") in LAYOUTS:
        return str(leaf.metadata["layout"])
    match len(sides):
        case 2:
            return "HW"
        case 3 if leaf.kind == "stack":
            return "kHW" if sides[0] <= sides[2] else "HWk"
        case 3 if sides[2] in _CHANNELS or sides[0] in _CHANNELS:
            return "HWC" if sides[2] in _CHANNELS else "CHW"
        case 4 if leaf.kind == "stack" and sides[3] in _CHANNELS:
            return "kHWC"
    return None


def _scaled(frames: Array, units: str) -> tuple[NDArray[np.uint8], str]:
    """Return numbers as 8 bits, and the numbers that have become black and white."""
    finite = np.isfinite(frames)
    if not finite.any():
        return np.zeros(frames.shape, np.uint8), "no finite number"
    values = frames.astype(np.float64)
    low, high = values[finite].min(), values[finite].max()
    share = (values - low) / ((high - low) or 1)
    note = f"black {low:.4g} to white {high:.4g} {units}".rstrip()
    return (255 * np.where(finite, share, 0)).astype(np.uint8), note


def _coloured(frames: NDArray[np.uint8], leaf: Leaf) -> NDArray[np.uint8]:
    """Return frames of one, three or four channels as RGB."""
    format = leaf.metadata.get("format") or _CHANNELS[frames.shape[-1]]
    colours = frames[..., 2::-1] if format.startswith("bgr") else frames[..., :3]
    if FORMATS[format] == 4:
        alpha = frames[..., 3:].astype(np.uint16)
        return ((colours * alpha + 128 * (255 - alpha)) // 255).astype(np.uint8)
    return np.broadcast_to(colours, (*frames.shape[:-1], 3))


def _palette(labels: Array) -> NDArray[np.uint8]:
    """Return labels as colours: 0 is black, and equal labels have equal colours on every sheet."""
    numbers = labels.astype(np.int64).astype(np.uint64)[..., np.newaxis]
    # Multiples of odd constants, a hash: neighbouring labels become colours that are far apart.
    spread = numbers * np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9], np.uint64)
    colours = 64 + (spread >> np.uint64(56)) * np.uint64(3) // np.uint64(4)
    return np.where(numbers == 0, 0, colours).astype(np.uint8)


def cameras(episode: Episode) -> list[str]:
    """Return the paths of the leaves that are pictures, or stacks of them."""
    return [path for path, column in episode.columns.items() if _axes(column.leaf)]


def contact_sheet(episode: Episode, frames: int = FRAMES) -> Picture:
    """Return a picture with a band for each camera of an episode: so many frames, evenly spaced in time.

    Raises:
        EpisodeError: the episode has no pictures.
    """
    paths = cameras(episode)
    if not paths:
        leaves = ", ".join(episode.columns)
        raise EpisodeError(f"episode {episode.id} has no pictures; its leaves are {leaves}")
    title = f"{episode.id}   {len(episode):,} steps   {episode.end}   return {episode.return_:.6g}"
    bands = [_band(episode, path, frames) for path in paths]
    width = max(cell.shape[1] for band in bands for cell in band.cells)
    strips = [strip for band in bands for strip in (_line(band.title, DIM), *_rows(band.cells, width))]
    return _framed(_below([_line(title), *strips], GAP), GAP)


def encode_png(picture: Picture) -> bytes:
    """Return a picture as the bytes of a PNG file."""
    return bytes(imagecodecs.png_encode(np.ascontiguousarray(picture)))


class Band(NamedTuple):
    """What a sheet shows of one camera: a title, and its frames with the step above each."""

    title: str
    cells: list[Picture]


def _band(episode: Episode, path: str, frames: int) -> Band:
    column = episode.columns[path]
    rows = np.unique(np.linspace(0, len(column) - 1, max(frames, 1)).round().astype(np.intp))
    pictures, note = shown(column[rows], column.leaf)
    title = ", ".join(filter(None, (f"{path}  {column.leaf.dtype} {column.leaf.shape}", note)))
    # Row 0 of a moment is before the first step, row 0 of a transition is the first step.
    labels = [_line(f"step {row + (column.leaf.per == 'transition')}") for row in rows]
    cells = [_below([label, resized(frame)], 2) for label, frame in zip(labels, pictures, strict=True)]
    return Band(title, cells)


def _rows(cells: Sequence[Picture], width: int) -> Iterator[Picture]:
    """Yield cells side by side, all of one width, so that a step of all cameras is in one column."""
    even = [_filled(cell, cell.shape[0], width) for cell in cells]
    for first in range(0, len(even), COLUMNS):
        yield _beside(even[first : first + COLUMNS], GAP)


def resized(frame: Picture, side: int = SIDE) -> Picture:
    """Return a picture whose longest side is about `side`, shrunk or enlarged by a whole number."""
    longest = max(frame.shape[:2])
    if longest <= side:
        return frame.repeat(side // longest, axis=0).repeat(side // longest, axis=1)
    factor = -(-longest // side)
    missing = [(0, -length % factor) for length in frame.shape[:2]]
    whole = np.pad(frame, (*missing, (0, 0)), mode="edge")
    height, width = (length // factor for length in whole.shape[:2])
    small: NDArray[np.float64] = whole.reshape(height, factor, width, factor, 3).mean(axis=(1, 3))
    return small.astype(np.uint8)


def _line(text: str, ink: Sequence[int] = INK) -> Picture:
    mask = text_mask(text)
    return np.where(mask[..., np.newaxis], ink, BACKGROUND).astype(np.uint8)


def _filled(picture: Picture, height: int, width: int) -> Picture:
    """Return a picture on background of that size, in its upper left corner."""
    sheet = np.full((height, width, 3), BACKGROUND, np.uint8)
    sheet[: picture.shape[0], : picture.shape[1]] = picture
    return sheet


def _below(pictures: Sequence[Picture], gap: int) -> Picture:
    """Return pictures one below the other."""
    width = max(picture.shape[1] for picture in pictures)
    return np.concatenate([_filled(picture, picture.shape[0] + gap, width) for picture in pictures])


def _beside(pictures: Sequence[Picture], gap: int) -> Picture:
    """Return pictures side by side."""
    height = max(picture.shape[0] for picture in pictures)
    return np.concatenate([_filled(picture, height, picture.shape[1] + gap) for picture in pictures], axis=1)


def _framed(picture: Picture, gap: int) -> Picture:
    """Return a picture with background all around."""
    height, width = picture.shape[:2]
    sheet = np.full((height + 2 * gap, width + 2 * gap, 3), BACKGROUND, np.uint8)
    sheet[gap:-gap, gap:-gap] = picture
    return sheet
