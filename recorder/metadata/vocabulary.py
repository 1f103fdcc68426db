"""The vocabulary of metadata: builders for its usual forms, and the check of metadata against their space."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from recorder.errors import MetadataError
from recorder.leaf import JSON
from recorder.metadata.annotation import AnySpace, did_you_mean, json_copy, metadata_of, walk
from recorder.metadata.kinds import KINDS, PICTURES

FORMATS = {"rgb": 3, "bgr": 3, "rgba": 4, "bgra": 4, "gray": 1}
"""What the channels of a picture are, and how many."""

LAYOUTS = {"HWC": 3, "CHW": 3, "HW": 2}
"""The order of the axes of a picture, and how many."""

_WORDS = {"kind": KINDS, "format": tuple(FORMATS), "layout": tuple(LAYOUTS)}
_PICTURE_WORDS = {**_WORDS, "kind": PICTURES}
_DTYPES = {"mask": "biu", "segmentation": "iu", "depth": "iuf", "normal": "iuf"}
_DTYPE_NAMES = {"b": "bool", "i": "integers", "u": "unsigned integers", "f": "floats"}
_CHANNELS = {"image": (1, 3, 4), "depth": (1,), "normal": (3,)}

Faults = Iterator[str]
Word = str | None


def _is_text(value: JSON) -> bool:
    return isinstance(value, str)


def _is_flag(value: JSON) -> bool:
    return isinstance(value, bool)


def _is_number(value: JSON) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_rate(value: JSON) -> bool:
    return _is_number(value) and value > 0


def _is_range(value: JSON) -> bool:
    numbers = isinstance(value, list) and len(value) == 2 and all(map(_is_number, value))
    return numbers and value[0] <= value[1]


def _is_names(value: JSON) -> bool:
    return isinstance(value, list) and all(map(_is_text, value)) and len(set(value)) == len(value)


def _is_units(value: JSON) -> bool:
    return _is_text(value) or (isinstance(value, list) and all(map(_is_text, value)))


class _Form(NamedTuple):
    """What a value of a key must be: a test, and its words in a message."""

    fits: Callable[[JSON], bool]
    text: str


_FORMS = {
    "units": _Form(_is_units, "a text or a list of texts"),
    "fps": _Form(_is_rate, "a number above 0"),
    "range": _Form(_is_range, "[lowest, highest]"),
    "names": _Form(_is_names, "a list of different texts"),
    **dict.fromkeys(("frame", "rotation", "control", "mode", "source"), _Form(_is_text, "a text")),
    **dict.fromkeys(("normalized", "label", "lossless"), _Form(_is_flag, "true or false")),
}
"""The keys with values of a fixed form; any further key may hold any JSON."""


def image_metadata(
    format: str | None = "rgb", layout: str | None = "HWC", fps: float | None = None, **more: JSON
) -> dict[str, JSON]:
    """Return metadata of a camera picture; a value of None is left out.

    >>> image_metadata(fps=30, source="wrist")
    {'kind': 'image', 'format': 'rgb', 'layout': 'HWC', 'fps': 30, 'source': 'wrist'}

    Raises:
        MetadataError: a word is not in the vocabulary, or a value is of the wrong type.
    """
    return _built("image", more, format=format, layout=layout, fps=fps)


def depth_metadata(
    units: str | None = "m", layout: str | None = None, fps: float | None = None, **more: JSON
) -> dict[str, JSON]:
    """Return metadata of a depth picture in `units`, as `image_metadata` does."""
    return _built("depth", more, units=units, layout=layout, fps=fps)


def proprio_metadata(
    names: Sequence[str] | None = None,
    units: str | Sequence[str] | None = None,
    frame: str | None = None,
    **more: JSON,
) -> dict[str, JSON]:
    """Return metadata of what a robot knows of its body; `names` and `units` may be one for each number."""
    return _built("proprio", more, names=names, units=units, frame=frame)


def action_metadata(
    names: Sequence[str] | None = None,
    units: str | Sequence[str] | None = None,
    control: str | None = None,
    mode: str | None = None,
    **more: JSON,
) -> dict[str, JSON]:
    """Return metadata of an action: what it controls (`joint_position`), its mode (`absolute`, `delta`)."""
    return _built("action", more, names=names, units=units, control=control, mode=mode)


def _built(kind: str, more: Mapping[str, Any], **values: Any) -> dict[str, JSON]:
    if more.get("kind", kind) != kind:
        raise MetadataError(f"{kind}_metadata makes metadata of kind {kind!r}, got kind={more['kind']!r}: leave it out")
    said = {"kind": kind, **values, **more}
    metadata: dict[str, JSON] = json_copy({key: value for key, value in said.items() if value is not None})
    if faults := list(_value_faults(metadata)):
        raise MetadataError("; ".join(faults))
    return metadata


def require_valid(space: AnySpace, path: str = "") -> None:
    """Raise `MetadataError` with all that `check_metadata` finds."""
    if faults := check_metadata(space, path):
        raise MetadataError("\n".join(faults))


def check_metadata(space: AnySpace, path: str = "") -> list[str]:
    """Return one message for each fault in the metadata of `space`, each naming the path, below `path`.

    >>> space = spaces.Box(0, 255, (64, 64, 4), np.uint8)
    >>> space.metadata = {"format": "rgb"}
    >>> check_metadata(space)
    ["'': format 'rgb' has 3 channels, shape (64, 64, 4) has 4"]
    """
    return [fault for where, inner in walk(space, path) for fault in _faults(inner, where)]


def _faults(space: AnySpace, path: str) -> Faults:
    try:
        metadata = metadata_of(space, path)
    except MetadataError as error:
        yield str(error)
        return
    if metadata and isinstance(space, spaces.Sequence):
        yield f"{path!r}: metadata of a Sequence belongs on its element, where annotate puts it"
    yield from (f"{path!r}: {fault}" for fault in _value_faults(metadata))
    yield from (f"{path!r}: {fault}" for check in _CHECKS for fault in check(metadata, space))


def _value_faults(metadata: Mapping[str, JSON]) -> Faults:
    """Yield what is wrong with values whatever their space."""
    for key, value in metadata.items():
        if key in _WORDS and not (_is_text(value) and value in _WORDS[key]):
            nearest = did_you_mean(str(value), _WORDS[key]) or f"; there are {list(_WORDS[key])}"
            yield f"{key} {value!r} is not known{nearest}"
        elif key in _FORMS and not _FORMS[key].fits(value):
            yield f"{key} is {_FORMS[key].text}, got {value!r:.200}"


def _picture_faults(metadata: Mapping[str, JSON], space: AnySpace) -> Faults:
    """Yield where kind, format, layout, shape and dtype of a picture disagree."""
    said = {key: metadata[key] for key, words in _PICTURE_WORDS.items() if metadata.get(key) in words}
    kind, format, layout = (said.get(key) for key in _WORDS)
    shape = space.shape or ()
    axes = LAYOUTS[layout] if layout else max(2, min(len(shape), 3))
    if not said:
        return
    if len(shape) != axes:
        key, word = list(said.items())[-1]
        wanted = axes if layout else "2 or 3"
        yield f"{key} {word!r} has {wanted} axes, the {type(space).__name__} has shape {shape}"
    else:
        yield from _channel_faults(kind, format, layout, shape)
        yield from _dtype_faults(kind, np.dtype(space.dtype), metadata.get("normalized") is True)


def _channel_faults(kind: Word, format: Word, layout: Word, shape: tuple[int, ...]) -> Faults:
    first, last = (shape[0], shape[-1]) if len(shape) == 3 else (1, 1)
    channels, others, opposite = (first, last, "HWC") if layout == "CHW" else (last, first, "CHW")
    key, word = ("format", format) if format else ("kind", kind)
    wanted = (FORMATS[format],) if format else _CHANNELS.get(kind or "", (channels,))
    if channels not in wanted:
        hint = f"; say layout {opposite!r}" if others in wanted else ""
        has = f"has {' or '.join(map(str, wanted))} channels"
        yield f"{key} {word!r} {has}, shape {shape} has {channels}{f' in {layout}' if layout else ''}{hint}"


def _dtype_faults(kind: Word, dtype: np.dtype[Any], normalized: bool) -> Faults:
    if kind == "image" and not (dtype in (np.uint8, np.uint16) or (normalized and dtype.kind == "f")):
        yield f"kind 'image' is uint8 or uint16, got {dtype}; a picture scaled to floats says normalized"
    elif kind in _DTYPES and dtype.kind not in _DTYPES[kind]:
        named = [_DTYPE_NAMES[letter] for letter in _DTYPES[kind]]
        yield f"kind {kind!r} is {' or '.join(named)}, got {dtype}"


def _range_faults(metadata: Mapping[str, JSON], space: AnySpace) -> Faults:
    """Yield where the range of values goes beyond the bounds of a Box."""
    span = metadata.get("range")
    if isinstance(space, spaces.Box) and space.low.size and _is_range(span):
        low, high = space.low.min(), space.high.max()
        lowest, highest = np.asarray(span, space.dtype if space.dtype.kind == "f" else np.float64)
        if lowest < low or highest > high:
            yield f"range {span} goes beyond the bounds {low:g} to {high:g} of the space"


def _length_faults(metadata: Mapping[str, JSON], space: AnySpace) -> Faults:
    """Yield where lists with an item for each number are longer or shorter than the space."""
    shape = (int(space.n),) if isinstance(space, spaces.Discrete) else space.shape
    for key in ("names", "units"):
        items = metadata.get(key)
        if isinstance(items, list) and shape is not None and len(items) not in (shape or (1,)):
            yield f"{key} has {len(items)} items, the space has shape {shape}"


_CHECKS = (_picture_faults, _range_faults, _length_faults)
