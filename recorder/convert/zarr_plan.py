"""The plan of a conversion to zarr: which leaf becomes which array, how it is coded, and what is left out and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

import numpy as np

from recorder.asking import names
from recorder.errors import LayoutError
from recorder.leaf import JSON, TEXT, Leaf
from recorder.metadata.annotation import did_you_mean
from recorder.recording import Recording
from recorder.replay_buffer.codecs import WebP
from recorder.replay_buffer.creating import BufferOptions
from recorder.replay_buffer.specs import ArraySpec, check_keys

Rename = Mapping[str, str] | Callable[[str], str] | None

FinalObservation = Literal["drop", "next"]

NOT_ASKED = frozenset({"info", "digest", "repeated"})
"""First parts of paths that are only converted when they are named."""


@dataclass(frozen=True)
class KeyPlan:
    """One array: the leaf whose rows it takes, and by how many rows these begin later.

    The step from moment t to moment t+1 is row t. What belongs to a moment is taken from before the step, shift 0;
    `info` and `next_observation`, which came back from it, from after it, shift 1.
    """

    key: str
    leaf: Leaf
    spec: ArraySpec
    shift: int
    exact: bool

    @property
    def nbytes(self) -> int:
        """Bytes of one row before coding; of a text a guess."""
        return self.spec.nbytes


@dataclass(frozen=True)
class ZarrPlan:
    """What a conversion will do: the arrays, the leaves that are left out, the episodes, and how arrays are made."""

    keys: tuple[KeyPlan, ...]
    left_out: Mapping[str, str]
    episodes: tuple[int, ...]
    steps: int
    options: BufferOptions

    @property
    def specs(self) -> dict[str, ArraySpec]:
        """The spec of each array."""
        return {plan.key: plan.spec for plan in self.keys}

    @property
    def nbytes(self) -> int:
        """Bytes of all rows before coding."""
        return self.steps * sum(plan.nbytes for plan in self.keys)


@dataclass(frozen=True)
class Choice:
    """Which leaves a conversion takes, under which names."""

    keys: Sequence[str] | None = None
    rename: Rename = None
    flat: bool = False
    final_observation: FinalObservation = "drop"

    def name(self, path: str) -> str:
        """Return the key of a leaf, or of the next observation."""
        if callable(self.rename):
            return self.rename(path)
        named = (self.rename or {}).get(path, path)
        return named.replace("/", "_") if self.flat and named == path else named


def plan_zarr(
    recording: Recording, choice: Choice, options: BufferOptions, episodes: Sequence[int | str] | None = None
) -> ZarrPlan:
    """Return what a conversion will do.

    Raises:
        LayoutError: a name is that of no leaf, a leaf has no home in zarr and was asked for, or two have one key.
    """
    if choice.final_observation not in ("drop", "next"):
        raise LayoutError(f"final_observation={choice.final_observation!r}: 'drop' or 'next'")
    leaves = recording.leaves
    wanted = _wanted(leaves, choice)
    why = {path: _why(leaf) or "not asked for" for path, leaf in leaves.items()}
    left_out = {path: reason for path, reason in why.items() if path not in wanted}
    plans = [_plan(leaf, leaf.path, int(path.startswith("info/")), choice, options) for path, leaf in wanted.items()]
    if choice.final_observation == "next":
        observations = {path: leaf for path, leaf in wanted.items() if path.split("/")[0] == "observation"}
        plans += [_plan(leaf, f"next_{path}", 1, choice, options) for path, leaf in observations.items()]
    if not plans:
        raise LayoutError(f"nothing would be converted; the leaves are {sorted(leaves)}")
    _check_names(choice, plans)
    positions = _positions(recording, episodes)
    table = recording.table()["steps"] if len(recording) else np.empty(0)
    steps = int(table[list(positions)].sum()) if len(positions) else 0
    return ZarrPlan(tuple(plans), left_out, positions, steps, options)


def _check_names(choice: Choice, plans: Sequence[KeyPlan]) -> None:
    """Raise `LayoutError` where `rename` names nothing that is converted, or a key is none or is there twice."""
    paths = {_path(plan) for plan in plans}
    for name in choice.rename if isinstance(choice.rename, Mapping) else ():
        if name not in paths:
            raise LayoutError(f"rename names {name!r}{did_you_mean(name, paths)}, which is not converted")
    check_keys([plan.key for plan in plans])


def _path(plan: KeyPlan) -> str:
    """Return the name by which `rename` knows an array."""
    return f"next_{plan.leaf.path}" if plan.shift and plan.leaf.path.startswith("observation") else plan.leaf.path


def _positions(recording: Recording, episodes: Sequence[int | str] | None) -> tuple[int, ...]:
    """Return the positions of the episodes that are taken; ids and negative numbers are looked up."""
    if episodes is None:
        return tuple(range(len(recording)))
    if isinstance(episodes, str | int):
        raise LayoutError(f"episodes={episodes!r}: a list of positions or ids, such as [{episodes!r}]")
    ids = recording.table()["id"].astype(str).tolist() if len(recording) else []
    found = []
    for episode in episodes:
        if isinstance(episode, str) and episode not in ids:
            raise LayoutError(f"no episode has the id {episode!r}")
        at = ids.index(episode) if isinstance(episode, str) else int(episode) + len(ids) * (episode < 0)
        if not 0 <= at < len(ids):
            raise LayoutError(f"episode {episode} of a recording of {len(ids)} episodes")
        found.append(at)
    if len(set(found)) != len(found):
        raise LayoutError("episodes names one episode twice; a buffer holds each once")
    return tuple(found)


def _wanted(leaves: Mapping[str, Leaf], choice: Choice) -> dict[str, Leaf]:
    """Return the leaves that are converted.

    Raises:
        LayoutError: a name matches nothing, or a leaf that it names has no home in zarr.
    """
    if choice.keys is None:
        return {path: leaf for path, leaf in leaves.items() if not _why(leaf)}
    wanted: dict[str, Leaf] = {}
    for key in names("keys", choice.keys):
        exact = [key] if key in leaves else []
        matching = exact or [path for path in leaves if fnmatchcase(path, key) or path.startswith(f"{key}/")]
        if not matching:
            raise LayoutError(f"no leaf {key!r}{did_you_mean(key, leaves)}; the leaves are {sorted(leaves)}")
        for path in matching:
            if exact and (why := homeless(leaves[path])):
                raise LayoutError(f"{path!r} has no home in a replay buffer: {why}; leave it out")
            if not homeless(leaves[path]):
                wanted[path] = leaves[path]
    return wanted


def _why(leaf: Leaf) -> str:
    """Return why a leaf is not converted unless it is named; nothing if it is."""
    if leaf.path.split("/")[0] in NOT_ASKED:
        return "only converted when it is named in keys"
    return homeless(leaf)


def homeless(leaf: Leaf) -> str:
    """Return why a leaf cannot be an array with one row a step; nothing if it can."""
    if leaf.ragged:
        return "its rows have different lengths"
    if leaf.dtype == "json":
        return "its values are no arrays, but JSON"
    if leaf.dtype != TEXT and not leaf.nbytes:
        return "its rows are empty"
    return ""


def _plan(leaf: Leaf, path: str, shift: int, choice: Choice, options: BufferOptions) -> KeyPlan:
    kind = leaf.kind or "other"
    said: dict[str, JSON] = {"leaf": leaf.path, "shift": shift}
    spec = ArraySpec(leaf.shape, leaf.dtype, kind=kind, metadata=leaf.metadata, said=said)
    return KeyPlan(choice.name(path), leaf, spec, shift, _exact(spec, options.image_codec))


def _exact(spec: ArraySpec, image_codec: Any) -> bool:
    """Return whether rows come back bit for bit; of codecs that are not ours it is not known, so no."""
    if not spec.picture or image_codec is None:
        return True
    return isinstance(image_codec, WebP) and (image_codec.quality is None or spec.lossless)
