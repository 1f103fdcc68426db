"""Routing: which storage keeps which leaf, by key, by kind, by what the leaf is, and after the first row.

`docs/layout.md` has the rules as tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Space
from gymnasium.vector import VectorEnv

from recorder.columns import Array
from recorder.errors import LayoutError, RowError
from recorder.leaf import Leaf
from recorder.metadata.annotation import AnyEnv, AnySpace, Given, did_you_mean, dropped
from recorder.metadata.kinds import few_values
from recorder.routing.planning import Frames, Plan, joined_rows, make_plan
from recorder.routing.rules import Rules, Wish, default_wishes, describe, route, unable, with_rate
from recorder.schema import ROW, StepSpace, declare
from recorder.storages.base import Storage
from recorder.storages.dict import DictStorage
from recorder.storages.hdf5 import HDF5Storage
from recorder.writing.opening import annotated

Subject = AnyEnv | StepSpace | AnySpace | Sequence[Leaf]
"""What has leaves: an environment, what its steps bring, a space of single rows, or the leaves themselves."""

FASTEST = 1_000_000
"""More frames a second than this are no frame rate of an environment."""


def layout(
    of: Subject,
    *,
    keys: Mapping[str, Storage | None] | None = None,
    kinds: Mapping[str, Storage | None] | None = None,
    default: Storage | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    fps: float | None = None,
) -> DictStorage:
    """Return which storage keeps which leaf.

    An exact key comes before a longer glob, that before a shorter one, that before a kind, that before the
    rules for what a leaf is. None as a storage means `default`.

    Args:
        of: an environment, whose leaves are `observation/…`, `action/…`, `reward`, `terminated`, `truncated`
            and `time`; a space, whose leaves have the keys of the space; or leaves.
        keys: storages by leaf path or by glob; `*` crosses `/`.
        kinds: storages by kind. One that cannot keep a leaf exactly leaves it to `default`.
        default: keeps what no rule sends elsewhere, and every key of `info`; `HDF5Storage()` if not given.
        options: single options by kind, glob or leaf path, later ones stronger, over those of the storage
            that is chosen: `{"image": {"crf": 18}}`. A kind or glob passes over storages without the option.
        fps: frames a second of videos whose storage and metadata do not say it; `render_fps` of the
            environment if not given.

    Raises:
        LayoutError: a key, kind or option is unknown; or a storage that was named for a key, or the default,
            cannot keep a leaf exactly. Only leaves of kind `image` may be coded with loss.
    """
    leaves = leaves_of(of)
    paths = {leaf.path for leaf in leaves}
    rules = Rules(keys or {}, kinds or {}, default or HDF5Storage(), options or {}, paths)
    rules.check(leaves)
    rate = render_fps(of) if fps is None else fps
    routes = {leaf.path: with_rate(leaf, route(leaf, rules.wishes(leaf)), rate) for leaf in leaves}
    return DictStorage(
        {path: routed.storage for path, routed in routes.items() if routed.storage != rules.default},
        rules.default,
        named=frozenset(leaf.path for leaf in leaves if rules.name(leaf) and not routes[leaf.path].fallen),
        fallen=frozenset(path for path, routed in routes.items() if routed.fallen),
        reasons={path: routed.reason for path, routed in routes.items()},
    )


def extend(storage: DictStorage, leaves: Sequence[Leaf], fps: float | None = None) -> DictStorage:
    """Return `storage` with those of `leaves` that it says nothing of, kept as they are by default."""
    known = storage.storages.keys() | storage.reasons.keys()
    added = layout([leaf for leaf in leaves if leaf.path not in known], default=storage.default, fps=fps)
    by_hand = frozenset() if storage.reasons else frozenset(storage.storages)
    return replace(
        storage,
        storages={**added.storages, **storage.storages},
        named=storage.named | by_hand,
        fallen=storage.fallen | added.fallen,
        reasons={**added.reasons, **storage.reasons},
    )


def settle(storage: DictStorage, leaves: Sequence[Leaf], first_rows: Mapping[str, Array]) -> DictStorage:
    """Return the storage of a recording after its first row, which decided the dtypes of `leaves`.

    A leaf that `layout` gave to a lossy storage on its own moves to an exact one if its first row, a uint8
    picture, has few values. A leaf whose storage cannot keep its new dtype moves as well. Nothing moves from
    exact to lossy, and nothing that was named by its user moves.

    Raises:
        LayoutError: a storage that was named, or the default, cannot keep what its leaf turned out to be.
    """
    wishes = {leaf: _moves(storage, leaf, first_rows.get(leaf.path)) for leaf in leaves}
    moved = {leaf.path: route(leaf, wanted) for leaf, wanted in wishes.items() if wanted}
    if not moved:
        return storage
    kept = {path: own for path, own in storage.storages.items() if path not in moved}
    given = {path: routed.storage for path, routed in moved.items() if routed.storage != storage.default}
    return replace(
        storage,
        storages={**kept, **given},
        fallen=storage.fallen | moved.keys(),
        reasons={**storage.reasons, **{path: routed.reason for path, routed in moved.items()}},
    )


def _moves(storage: DictStorage, leaf: Leaf, first: Array | None) -> list[Wish]:
    """Return the storages that a leaf is to move to, best first; none if it stays."""
    current = storage.of(leaf)
    by_hand = leaf.path in storage.named or not storage.reasons
    if fault := unable(current, leaf):
        if by_hand:
            raise LayoutError(f"{describe(current)} was named, and after the first row {fault}")
        fault = f"after the first row {fault}"
    elif not (by_hand or current.exact(leaf)) and _drawn(first):
        fault = "the first frame has few colours, as drawings and labels do"
    else:
        return []
    exact = [wish for wish in default_wishes(leaf, storage.default) if wish.storage.exact(leaf)]
    return [Wish(wish.storage, f"{fault}; {wish.reason}") for wish in exact]


def _drawn(frame: Array | None) -> bool:
    return frame is not None and frame.dtype == "uint8" and frame.ndim in (2, 3) and few_values(frame)


def leaves_of(of: Subject) -> list[Leaf]:
    """Return the leaves of what has leaves."""
    space = space_of(of)
    return list(declare(space).leaves.values()) if isinstance(space, StepSpace | Space) else list(space)


def space_of(of: Subject) -> StepSpace | AnySpace | Sequence[Leaf]:
    """Return what the steps of an environment bring; of a vector environment, of one of those in it."""
    match of:
        case gym.Env():
            return StepSpace(of.observation_space, of.action_space)
        case VectorEnv():
            return StepSpace(of.single_observation_space, of.single_action_space)
    return of


def render_fps(of: Subject) -> float | None:
    """Return the frames a second that an environment says of its pictures."""
    said = of.metadata.get("render_fps") if isinstance(of, gym.Env | VectorEnv) else None
    return said if isinstance(said, int | float) and 0 < said <= FASTEST else None


def plan(
    of: Subject,
    *,
    frames: Frames | None = None,
    storage: Storage | None = None,
    metadata: Given | None = None,
    leaves: Sequence[Leaf] | None = None,
) -> Plan:
    """Return what a recording would keep how, why, and at what cost, without touching the environment.

    The cost is measured: each leaf is written for a moment into a temporary folder, with synthetic rows
    unless `frames` are given.

    Args:
        of: an environment, the spaces of its steps, a space of single rows, or leaves.
        frames: two or more values of the observation space, or rows `(n, *shape)` by leaf path. The first one
            decides as the first row of a recording does.
        storage: which storage keeps which leaf, from `layout(…)`, or one for all; else the default layout.
        metadata: metadata of leaves by path, as for `Recorder`.
        leaves: the leaves, where they are not just those of the spaces.

    Raises:
        LayoutError: a storage cannot keep a leaf.
        RowError: a frame does not fit, or there are less than two.
    """
    space = _annotated(of, metadata or {})
    declared = leaves_of(space) if leaves is None else list(leaves)
    columns = {} if frames is None else _columns(space, declared, frames)
    decided = [leaf.of(columns[leaf.path][0]) if leaf.path in columns else leaf for leaf in declared]
    given = {leaf.path: joined_rows(leaf, columns[leaf.path]) for leaf in decided if leaf.path in columns}
    first_rows = {path: rows[0] for path, rows in given.items() if isinstance(rows, np.ndarray)}
    settled = settle(_whole(storage, declared, render_fps(of)), decided, first_rows)
    settled.check(decided)
    return make_plan(settled, decided, given, _lost(of, metadata or {}))


def _annotated(of: Subject, metadata: Given) -> StepSpace | AnySpace | Sequence[Leaf]:
    space = space_of(of)
    return annotated(space, metadata) if isinstance(space, StepSpace | Space) else space


def _whole(storage: Storage | None, leaves: Sequence[Leaf], fps: float | None) -> DictStorage:
    """Return the storage for all leaves."""
    match storage:
        case None:
            return layout(leaves, fps=fps)
        case DictStorage():
            return storage
    return DictStorage({}, storage)


def _columns(
    space: StepSpace | AnySpace | Sequence[Leaf], leaves: Sequence[Leaf], frames: Frames
) -> dict[str, Sequence[Any]]:
    """Return given values by leaf path, two or more of each."""
    paths = {leaf.path for leaf in leaves}
    match frames:
        case Mapping():
            columns: dict[str, Any] = dict(frames)
        case _:
            columns = {path: values for path, values in _flattened(space, frames) if path in paths}
    for path, values in columns.items():
        if path not in paths:
            nearest = did_you_mean(path, paths)
            raise RowError(f"no leaf {path!r} to try{nearest}; the leaves are {sorted(paths)}")
        if len(values) < 2:
            raise RowError(f"a trial of {path!r} takes two frames or more, got {len(values)}")
    return columns


def _flattened(
    space: StepSpace | AnySpace | Sequence[Leaf], frames: Sequence[Any]
) -> Iterator[tuple[str, Sequence[Any]]]:
    """Yield the values of each leaf in observations, or in single rows."""
    if not isinstance(space, StepSpace | Space):
        raise RowError(f"frames of leaves are rows by leaf path: {{{space[0].path!r}: array}}")
    nodes = declare(space).nodes
    node = nodes["observation"] if isinstance(space, StepSpace) else nodes[ROW]
    values = [node.flatten(frame) for frame in frames]
    for i, leaf in enumerate(node.leaves):
        yield leaf.path, [row[i] for row in values]


def _lost(of: Subject, metadata: Given) -> list[str]:
    """Return what wrappers of an environment lost of its metadata; paths may begin within the observation."""
    if not isinstance(of, gym.Env | VectorEnv):
        return []
    inner = {path for path in metadata if path.split("/")[0] not in ("observation", "action")}
    named = {f"observation/{path}" if path in inner else path: said for path, said in metadata.items()}
    return dropped(of, named)
