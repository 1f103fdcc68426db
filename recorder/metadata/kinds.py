"""Kinds: what a leaf is, by its metadata or by the shape, dtype, bounds and name of its space.

`docs/metadata.md` has the rules as a table. A rule that is unsure says something that is kept exactly.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import singledispatch
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from gymnasium.spaces import Space
from numpy.typing import NDArray

from recorder.leaf import JSON, RESERVED_NAMES, Leaf, decode_key

PICTURES = ("image", "depth", "mask", "segmentation", "normal")
"""Kinds whose rows are one picture each, `(H, W)`, `(H, W, C)` or `(C, H, W)`."""

KINDS = (
    *PICTURES,
    *("pointcloud", "proprio", "action", "pose", "force", "tactile", "keypoints", "intrinsics", "extrinsics"),
    *("teleop", "privileged", "state", "task", "stack", "other"),
)
"""All kinds; `stack` and `other` are for what inference finds without knowing more."""

PICTURE_SIDE = 16
"""A shorter side is no picture: MiniGrid's `(7, 7, 3)` uint8 holds object numbers."""

NATURAL_SIDE = 128
"""Pictures with a shorter side are always kept exactly."""

FEW_COLOURS, FEW_LEVELS = 256, 32
"""A frame with no more colours, or no more numbers in it, is a drawing or a label picture.

Measured on first frames: Atari 5 to 20 colours, CartPole 32, Pendulum 142; Fetch and HalfCheetah over 2,000.
"""

_PICTURE_HINTS = {
    "depth": re.compile(r"depth"),
    "mask": re.compile(r"mask"),
    "segmentation": re.compile(r"segm|semantic|label|\b(seg|instance)s?\b"),
    "normal": re.compile(r"\bnormals?\b"),
    "tactile": re.compile(r"tactile"),
}
_VECTOR_HINTS = {
    "proprio": re.compile(r"\b(proprio|proprioception)\b"),
    "pose": re.compile(r"\bposes?\b"),
    "force": re.compile(r"\bforces?\b"),
    "tactile": re.compile(r"tactile"),
    "keypoints": re.compile(r"\bkey ?points?\b"),
    "intrinsics": re.compile(r"\bintrinsics?\b"),
    "extrinsics": re.compile(r"\bextrinsics?\b"),
    "pointcloud": re.compile(r"\bpoint ?cloud\b"),
    "teleop": re.compile(r"\bteleop\b"),
    "privileged": re.compile(r"\bprivileged\b"),
}
_TEXT_HINTS = {"task": re.compile(r"\b(mission|task|instruction|language|prompt)s?\b")}

_STATELESS = RESERVED_NAMES - {"observation", "state"}

Bounds = tuple[float, float] | None
"""The lowest and highest value, where all elements have the same."""

_TRUTH: Bounds = (0, 1)
_BYTE: Bounds = (0, 255)


class Kind(NamedTuple):
    """A kind, and a short reason for it that the plan shows."""

    kind: str
    why: str


def infer(space: Space[Any], metadata: Mapping[str, JSON], path: str = "") -> Kind:
    """Return what a leaf is: what its metadata say, else what its space and the words of its path suggest.

    >>> infer(spaces.Box(0, 255, (480, 640, 3), np.uint8), {}, "observation/camera")
    Kind(kind='image', why='uint8 (480, 640, 3), 0 to 255: an RGB picture')
    """
    if "kind" in metadata:
        return Kind(str(metadata["kind"]), "kind from metadata")
    if metadata.get("label") is True:
        return Kind("segmentation", "label from metadata")
    if "format" in metadata:
        return Kind("image", f"format {metadata['format']!r} from metadata")
    if path.split("/")[0] == "action":
        return Kind("action", "an action")
    return _infer(space, path)


@singledispatch
def _infer(space: Space[Any], path: str) -> Kind:
    return Kind("other", f"a {type(space).__name__}: nothing known of it")


@_infer.register
def _(space: spaces.Text, path: str) -> Kind:
    return _hinted(path, _TEXT_HINTS, "text") or Kind("other", "text")


@_infer.register
def _(space: spaces.Box, path: str) -> Kind:
    low, high = (space.low.min(), space.high.max()) if space.low.size else (0, 0)
    uniform = bool((space.low == low).all() and (space.high == high).all())
    return _array(_described(space, f", {low:g} to {high:g}"), space, path, (low, high) if uniform else None)


@_infer.register(spaces.Discrete)
@_infer.register(spaces.MultiDiscrete)
@_infer.register(spaces.MultiBinary)
def _(space: Space[Any], path: str) -> Kind:
    binary = isinstance(space, spaces.MultiBinary)
    return _array(_described(space), space, path, _TRUTH if binary else None)


def _described(space: Space[Any], bounds: str = "") -> str:
    return f"{np.dtype(space.dtype).name} {space.shape}{bounds}"


def _array(shown: str, space: Space[Any], path: str, bounds: Bounds) -> Kind:
    shape = space.shape or ()
    if _is_picture(shape):
        single, dtype = shape[2:] != (3,), np.dtype(space.dtype)
        return _hinted(path, _PICTURE_HINTS, shown) or _picture(shown, single, dtype, bounds)
    if any(min(pair) >= PICTURE_SIDE for pair in pairwise(shape)):
        return Kind("stack", f"{shown}: a stack of pictures or channels")
    if hinted := _hinted(path, _VECTOR_HINTS, shown):
        return hinted
    if len(shape) > 1 or path.split("/")[0] in _STATELESS:
        return Kind("other", f"{shown}: no known meaning")
    return Kind("state", f"{shown}: a vector" if shape else f"{shown}: a number")


def _is_picture(shape: tuple[int, ...]) -> bool:
    return len(shape) in (2, 3) and min(shape[:2]) >= PICTURE_SIDE and shape[2:] in ((), (1,), (3,))


def _picture(shown: str, single: bool, dtype: np.dtype[Any], bounds: Bounds) -> Kind:
    if dtype.kind == "b" or (dtype.kind in "iu" and bounds == _TRUTH):
        return Kind("mask", f"{shown}: true or false")
    if dtype.name == "uint8" and bounds == _BYTE:
        return Kind("image", f"{shown}: {'a grey' if single else 'an RGB'} picture")
    if dtype.name == "uint8":
        return Kind("segmentation", f"{shown}, not the 0 to 255 of a picture: labels")
    if dtype.name == "uint16" and single:
        return Kind("depth", f"{shown}: a depth picture")
    return Kind("other", f"{shown}: no known meaning")


def _hinted(path: str, hints: Mapping[str, re.Pattern[str]], shown: str) -> Kind | None:
    """Return the kind that a word of `path` hints at; the words nearest to its end come first."""
    for part in reversed(path.split("/")):
        words = _words(decode_key(part))
        for kind, hint in hints.items():
            if found := hint.search(words):
                return Kind(kind, f"{shown}, {found.group()!r} in its name")
    return None


def _words(name: str) -> str:
    """Return the words of a name in small letters: `wrist_depthImage2` becomes `wrist depth image`."""
    parted = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", name)
    return " ".join(re.findall(r"[a-z]+", parted.lower()))


def natural(leaf: Leaf) -> bool:
    """Return whether `leaf` is a natural picture, which may go to lossy video unless its user said otherwise.

    It is an RGB or BGR image, uint8 `(H, W, 3)` of at least 128 a side, one in each row, and its metadata
    name no other format, layout or range, nor `label` or `lossless`.
    """
    said = leaf.metadata
    return (
        leaf.kind == "image"
        and leaf.fixed
        and leaf.dtype == "uint8"
        and leaf.shape[2:] == (3,)
        and min(leaf.shape[:2]) >= NATURAL_SIDE
        and said.get("format", "rgb") in ("rgb", "bgr")
        and said.get("layout", "HWC") == "HWC"
        and list(said.get("range", (0, 255))) == [0, 255]
        and not (said.get("label") or said.get("lossless"))
    )


def few_values(frame: NDArray[np.uint8]) -> bool:
    """Return whether a uint8 frame, `(H, W)` or `(H, W, C)`, looks like a drawing or a label picture.

    It has at most 256 colours, as many as a palette holds, or at most 32 different numbers. All pixels are
    counted. A black frame has one colour and gives no reason to call it natural, so it is one with few.
    """
    colours = _colours(frame)
    sample = colours[:: len(colours) // 16_384 + 1].copy()
    if len(np.unique(sample)) > FEW_COLOURS and len(np.unique(sample.view(np.uint8))) > FEW_LEVELS + 1:
        return False
    return len(np.unique(colours)) <= FEW_COLOURS or len(np.unique(frame)) <= FEW_LEVELS


def _colours(frame: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Return each pixel as one number, which holds up to eight channels."""
    channels = frame.shape[2] if frame.ndim == 3 else 1
    padded = np.zeros((frame.size // channels, 8), np.uint8)
    padded[:, :channels] = frame.reshape(-1, channels)
    return padded.view(np.uint64)[:, 0]
