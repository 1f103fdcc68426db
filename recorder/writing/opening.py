"""Opening a folder for writing: what is in it, whether it can be used, and what the user's options mean for it."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.spaces import Box, Space

from recorder.errors import ExistsError, LayoutError, NotARecordingError, WriteError
from recorder.files import remove
from recorder.leaf import JSON
from recorder.metadata.annotation import annotate, did_you_mean
from recorder.schema import NOTE, Schema, StepSpace, read_schema

OURS = (NOTE, "shards", "staging", "discarded", "cache")
"""What a recording's folder holds; nothing else in it is ever touched."""

PROBE = "recorder-"
"""How the name of a folder begins, after a dot, that is made and removed to see whether one can be."""


def existing_schema(path: Path, beside_others: bool = False) -> Schema | None:
    """Return the schema of the recording in a folder, or None where a new one can be made, `beside_others` if need be.

    Raises:
        ExistsError: there is a file, or a folder with other things in it.
    """
    if path.exists() and not path.is_dir():
        raise ExistsError(f"{path} is a file; a recording is a folder")
    try:
        return read_schema(path)
    except NotARecordingError:
        others = sorted(item.name for item in path.iterdir() if not _is_ours(item.name)) if path.exists() else []
        if others and not beside_others:
            raise ExistsError(
                f"{path} is no recording and holds other things ({', '.join(others[:3])}); record into a new folder"
            ) from None
        return None


def _is_ours(name: str) -> bool:
    """Return whether a recording has a file of this name, or has it for a moment while it is being made."""
    return name in OURS or (name.startswith(".") and name.lstrip(".").startswith((NOTE, PROBE)))


def replace_recording(path: Path) -> None:
    """Remove the recording in a folder, and nothing else that is there."""
    try:
        read_schema(path)
    except NotARecordingError:
        return
    for name in OURS:
        remove(path / name)


def check_writable(path: Path) -> None:
    """Raise `WriteError` if no folder can be made at `path`, without leaving anything behind."""
    place = path.absolute()
    while not place.exists():
        place = place.parent
    try:
        tempfile.TemporaryDirectory(dir=place, prefix=f".{PROBE}").cleanup()
    except OSError as error:
        raise WriteError(f"nothing can be written below {place}: {error}; record into another folder") from error


def excluder(globs: Sequence[str]) -> Callable[[str], bool]:
    """Return what says of a path whether it, or something above it, matches one of the globs."""
    if isinstance(globs, str):
        raise TypeError(f"exclude takes a list of globs, got the string {globs!r}: write exclude=[{globs!r}]")

    def excluded(path: str) -> bool:
        return any(fnmatchcase(path, glob) or fnmatchcase(path, f"{glob}/*") for glob in globs)

    return excluded


def check_excluded(globs: Sequence[str], paths: Sequence[str]) -> None:
    """Raise `LayoutError` for a glob that matches no leaf; what infos, a render and a state hold, nobody knows yet."""
    for glob in globs:
        head = glob.split("/")[0]
        if head not in ("info", "render", "state") and "*" not in head and not any(map(excluder([glob]), paths)):
            nearest = did_you_mean(glob, paths)
            raise LayoutError(f"no leaf {glob!r} to exclude{nearest}; the leaves are {sorted(paths)}")


def annotated(space: StepSpace | Space[Any], metadata: Mapping[str, Mapping[str, JSON]]) -> StepSpace | Space[Any]:
    """Return a space with metadata given by leaf path; it is copied, never changed.

    Paths of a `StepSpace` begin with `observation`, `action`, `extra` or `render`, as those of its leaves do; a path
    without it is one of the observation.
    """
    if not metadata:
        return space
    if not isinstance(space, StepSpace):
        return annotate(space, metadata)
    extra = spaces.Dict(dict(space.extra))
    parts = {"observation": space.observation, "action": space.action, **({"extra": extra} if space.extra else {})}
    if space.render is not False:  # True stands for a space that the first frame decides, see `annotated_render`
        parts["render"] = space.render if isinstance(space.render, Space) else Box(0, 255, (1, 1, 3), np.uint8)
    inside: dict[str, dict[str, Mapping[str, JSON]]] = {name: {} for name in parts}
    for path, data in metadata.items():
        head, _, rest = path.partition("/")
        name, inner = (head, rest) if head in parts else ("observation", path)
        inside[name][inner] = data
    parts |= {name: annotate(parts[name], each) for name, each in inside.items() if each}
    assert isinstance(parts.get("extra", extra), spaces.Dict)
    return replace(
        space,
        observation=parts["observation"],
        action=parts["action"],
        extra=getattr(parts.get("extra", extra), "spaces", {}),
        render=parts["render"] if isinstance(space.render, Space) else space.render,
    )


def annotated_render(space: Space[Any], metadata: Mapping[str, Mapping[str, JSON]]) -> Space[Any]:
    """Return the space of rendered frames with the metadata given for `render`."""
    return annotate(space, {"": metadata["render"]}) if "render" in metadata else space


def check_same_device(path: Path, failures: Path) -> None:
    """Raise `WriteError` where episodes cannot be put into another recording by a rename."""
    if _standing(path).stat().st_dev != _standing(failures).stat().st_dev:
        raise WriteError(
            f"failures={failures} is on another file system than {path}, and episodes get there by a rename: choose a "
            f"folder on the same one"
        )


def _standing(path: Path) -> Path:
    """Return a folder, or the nearest one above it that is there."""
    return next(folder for folder in (path, *path.parents) if folder.exists())


def plain_json(value: Mapping[str, Any], what: str) -> dict[str, JSON]:
    """Return a copy of a mapping that is strict JSON.

    Raises:
        ValueError: it is not; the message says what of it.
    """
    try:
        copy: dict[str, JSON] = json.loads(json.dumps(value, allow_nan=False, default=_number))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{what} are kept as JSON, which {value!r:.120} is not: {error}") from error
    return copy


def _number(value: Any) -> Any:
    """Return a NumPy number or array as Python's."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not JSON")


def end_for(kind: type[BaseException] | None) -> str:
    """Return why an episode ends that was open when a `with` block ended so."""
    if kind is None or issubclass(kind, GeneratorExit):
        return "closed"
    return "interrupted" if issubclass(kind, KeyboardInterrupt) else "exception"
