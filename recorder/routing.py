"""Routing: which storage keeps which leaf, by key, by kind, by what the leaf is, and after the first row.

`docs/layout.md` has the rules as tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import gymnasium as gym
from gymnasium.spaces import Space
from gymnasium.vector import VectorEnv

from recorder.columns import Array
from recorder.errors import LayoutError
from recorder.kinds import KINDS, NATURAL_SIDE, few_values, natural
from recorder.leaf import JSON_TEXT, Leaf
from recorder.metadata import AnyEnv, AnySpace, did_you_mean
from recorder.schema import StepSpace, declare
from recorder.storages.base import Storage
from recorder.storages.dict import DictStorage
from recorder.storages.hdf5 import HDF5Storage
from recorder.storages.video import VideoStorage
from recorder.storages.zarr import ZarrStorage

Subject = AnyEnv | StepSpace | AnySpace | Sequence[Leaf]
"""What has leaves: an environment, what its steps bring, a space of single rows, or the leaves themselves."""

ARRAY_BYTES = 4096
"""Rows of smaller arrays are kept in the table."""

INFO = Leaf("info", (), JSON_TEXT, sparse=True)
"""A key of `info` as the default storage of episodes must be able to keep it."""


class Wish(NamedTuple):
    """A storage that a rule wants for a leaf, and the reason."""

    storage: Storage
    reason: str


class Route(NamedTuple):
    """The storage that keeps a leaf, the reason, and whether another one was wanted."""

    storage: Storage
    reason: str
    fallen: bool


def layout(
    of: Subject,
    *,
    keys: Mapping[str, Storage | None] | None = None,
    kinds: Mapping[str, Storage | None] | None = None,
    default: Storage | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
) -> DictStorage:
    """Return which storage keeps which leaf.

    An exact key comes before a longer glob, that before a shorter one, that before a kind, that before the rules
    for what a leaf is. None as a storage means `default`.

    Args:
        of: an environment, whose leaves are `observation/…`, `action/…`, `reward`, `terminated`, `truncated` and
            `time`; a space, whose leaves have the keys of the space; or leaves.
        keys: storages by leaf path or by glob; `*` crosses `/`.
        kinds: storages by kind. One that cannot keep a leaf exactly leaves it to `default`.
        default: keeps what no rule sends elsewhere, and every key of `info`; `HDF5Storage()` if not given.
        options: single options by kind, glob or leaf path, the later ones stronger, over those of the storage that
            is chosen: `{"image": {"fps": 30}}`. A kind or a glob passes over storages without the option.

    Raises:
        LayoutError: a key, kind or option is unknown; or a storage that was named for a key, or the default, cannot
            keep a leaf exactly. Only leaves of kind `image` may be coded with loss.
    """
    leaves = leaves_of(of)
    rules = Rules(keys or {}, kinds or {}, default or HDF5Storage(), options or {}, {leaf.path for leaf in leaves})
    rules.check(leaves)
    routes = {leaf.path: route(leaf, rules.wishes(leaf)) for leaf in leaves}
    return DictStorage(
        {path: routed.storage for path, routed in routes.items() if routed.storage != rules.default},
        rules.default,
        named=frozenset(leaf.path for leaf in leaves if rules.name(leaf) and not routes[leaf.path].fallen),
        fallen=frozenset(path for path, routed in routes.items() if routed.fallen),
        reasons={path: routed.reason for path, routed in routes.items()},
    )


def extend(storage: DictStorage, leaves: Sequence[Leaf]) -> DictStorage:
    """Return `storage` with those of `leaves` that it says nothing of, kept as they are by default."""
    known = storage.storages.keys() | storage.reasons.keys()
    added = layout([leaf for leaf in leaves if leaf.path not in known], default=storage.default)
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

    A leaf that `layout` gave to a lossy storage on its own moves to an exact one if its first row, a uint8 picture,
    has few values. A leaf whose storage cannot keep its new dtype moves as well. Nothing moves from exact to lossy,
    and nothing that was named by its user moves.

    Raises:
        LayoutError: a storage that was named cannot keep what its leaf turned out to be, or the default cannot.
    """
    moved = {leaf.path: route(leaf, wishes) for leaf in leaves if (wishes := _moves(storage, leaf, first_rows))}
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


def _moves(storage: DictStorage, leaf: Leaf, first_rows: Mapping[str, Array]) -> list[Wish]:
    """Return the storages that a leaf is to move to, best first; none if it stays."""
    current = storage.of(leaf)
    by_hand = leaf.path in storage.named or not storage.reasons
    if fault := unable(current, leaf):
        if by_hand:
            raise LayoutError(f"{describe(current)} was named, and after the first row {fault}")
        fault = f"after the first row {fault}"
    elif not (by_hand or current.exact(leaf)) and _drawn(first_rows.get(leaf.path)):
        fault = "the first frame has few colours, as drawings and labels do"
    else:
        return []
    exact = [wish for wish in default_wishes(leaf, storage.default) if wish.storage.exact(leaf)]
    return [Wish(wish.storage, f"{fault}; {wish.reason}") for wish in exact]


def _drawn(frame: Array | None) -> bool:
    return frame is not None and frame.dtype == "uint8" and frame.ndim in (2, 3) and few_values(frame)


def leaves_of(of: Subject) -> list[Leaf]:
    """Return the leaves of what has leaves; of a vector environment, those of one of its environments."""
    match of:
        case gym.Env():
            return leaves_of(StepSpace(of.observation_space, of.action_space))
        case VectorEnv():
            return leaves_of(StepSpace(of.single_observation_space, of.single_action_space))
        case StepSpace() | Space():
            return list(declare(of).leaves.values())
    return list(of)


@dataclass(frozen=True)
class Rules:
    """What the caller of `layout` wants, and the paths that there are."""

    keys: Mapping[str, Storage | None]
    kinds: Mapping[str, Storage | None]
    default: Storage
    options: Mapping[str, Mapping[str, Any]]
    paths: Iterable[str]

    def wishes(self, leaf: Leaf) -> list[Wish]:
        """Return the storages wanted for a leaf with the options given for it, best first."""
        options = self._options(leaf)
        return [Wish(with_options(storage, options), reason) for storage, reason in self._wishes(leaf)]

    def _wishes(self, leaf: Leaf) -> list[Wish]:
        if matching := self._matching(self.keys, leaf):
            return [Wish(self.keys[matching[-1]] or self.default, f"key {matching[-1]!r}")]
        if leaf.kind in self.kinds:
            named = Wish(self.kinds[leaf.kind] or self.default, f"kind {leaf.kind!r}")
            return [named, Wish(self.default, "kept in the default")]
        return default_wishes(leaf, self.default)

    def name(self, leaf: Leaf) -> bool:
        """Return whether the caller named a storage for a leaf, by key or kind."""
        return leaf.kind in self.kinds or bool(self._matching(self.keys, leaf))

    def _options(self, leaf: Leaf) -> dict[str, Any]:
        by_kind = {} if leaf.kind in self.paths else self.options.get(leaf.kind, {})
        by_key = [self.options[key] for key in self._matching(self.options, leaf)]
        return {name: value for given in (by_kind, *by_key) for name, value in given.items()}

    def _matching(self, keys: Iterable[str], leaf: Leaf) -> list[str]:
        """Return those of `keys` that match a leaf, the strongest last; of two equal globs that is the first."""
        matching = [key for key in reversed(list(keys)) if self._matches(key, leaf.path)]
        return sorted(matching, key=lambda key: (key == leaf.path, len(key)))

    def _matches(self, key: str, path: str) -> bool:
        return key == path or (key not in self.paths and fnmatchcase(path, key))

    def check(self, leaves: Sequence[Leaf]) -> None:
        """Raise `LayoutError` if a key, kind, option or storage is none, or the default cannot keep `info`."""
        kinds = {*KINDS, *(leaf.kind for leaf in leaves)}
        for key in self.keys:
            self._check_key(key, "")
        for kind in self.kinds:
            if kind not in kinds:
                raise LayoutError(f"no kind {kind!r}{did_you_mean(kind, kinds)}; the kinds are {sorted(kinds)}")
        for name, storage in [*self.keys.items(), *self.kinds.items(), ("default", self.default)]:
            if not isinstance(storage, Storage | None):
                raise LayoutError(f"{name!r} is given a storage such as HDF5Storage(), or None, not {storage!r:.80}")
        for name, given in self.options.items():
            if name not in kinds:
                self._check_key(name, f", and no such kind{did_you_mean(name, kinds)}; the kinds are {sorted(kinds)}")
            self._check_options(name, given, leaves)
        if any(leaf.per == "moment" for leaf in leaves) and (fault := unable(self.default, INFO)):
            raise LayoutError(f"{describe(self.default)} as default would keep the keys of info as well: {fault}")

    def _check_key(self, key: str, more: str) -> None:
        if any(self._matches(key, path) for path in self.paths):
            return
        inside = any(path.startswith(f"{key}/") for path in self.paths)
        nearest = f", did you mean '{key}/*'?" if inside else did_you_mean(key, self.paths)
        infos = "; keys of info are always kept in the default" if key.startswith("info") else ""
        raise LayoutError(f"no leaf {key!r}{nearest}; the leaves are {sorted(self.paths)}{infos}{more}")

    def _check_options(self, name: str, given: Mapping[str, Any], leaves: Sequence[Leaf]) -> None:
        """Raise if an option fits none of the storages that are first wanted where `name` reaches."""
        reached = [leaf for leaf in leaves if self._matches(name, leaf.path) or leaf.kind == name]
        wanted = [self._wishes(leaf)[0].storage for leaf in reached]
        known = {option for storage in wanted for option in option_names(storage)}
        for option in given:
            if wanted and option not in known:
                kept = " and ".join(sorted({type(storage).__name__ for storage in wanted}))
                nearest = did_you_mean(option, known)
                raise LayoutError(f"{name!r}: {kept} has no option {option!r}{nearest}; it has {sorted(known)}")


def default_wishes(leaf: Leaf, default: Storage) -> list[Wish]:
    """Return the storages for a leaf that nobody named one for, best first.

    Only a natural picture is wanted by a lossy storage, and where that cannot be had, by an exact one.
    """
    table = Wish(default, "kept in the default")
    if natural(leaf):
        lossy = Wish(VideoStorage(), f"a natural picture of {NATURAL_SIDE} a side and more, coded with loss")
        return [lossy, Wish(ZarrStorage(), "coded without loss"), table]
    if leaf.kind == "image" and leaf.fixed and leaf.dtype == "uint8" and leaf.shape[2:] in ((3,), (4,)):
        small = min(leaf.shape[:2]) < NATURAL_SIDE
        return [Wish(ZarrStorage(), f"{'a small picture' if small else 'a picture'}, coded without loss"), table]
    if leaf.fixed and leaf.nbytes >= ARRAY_BYTES:
        return [Wish(ZarrStorage(), f"an array of {ARRAY_BYTES >> 10} KiB and more"), table]
    return [Wish(default, "the default")]


def route(leaf: Leaf, wishes: Sequence[Wish]) -> Route:
    """Return the first storage that can keep a leaf.

    Raises:
        LayoutError: none of them can.
    """
    faults: list[str] = []
    for storage, reason in wishes:
        fault = unable(storage, leaf)
        if not fault:
            return Route(storage, "; ".join([*faults, reason]), bool(faults))
        faults.append(fault)
    raise LayoutError(f"{wishes[-1].reason}, {describe(wishes[-1].storage)}: {faults[-1]}")


def unable(storage: Storage, leaf: Leaf) -> str:
    """Return why a storage may not be given a leaf; nothing if it may.

    It must keep it, and exactly, unless the leaf is a picture whose metadata do not forbid loss.
    """
    try:
        storage.check([leaf])
    except LayoutError as error:
        return str(error)
    said = [word for word in ("label", "lossless") if leaf.metadata.get(word)]
    if storage.exact(leaf) or (leaf.kind == "image" and not said):
        return ""
    is_no_picture = f"its metadata say {said[0]}" if said else f"its kind is {leaf.kind!r}"
    return f"{leaf.path!r} would lose by {describe(storage)}, and {is_no_picture}; keep it with ZarrStorage()"


def with_options(storage: Storage, options: Mapping[str, Any]) -> Storage:
    """Return `storage` with those of `options` that it has."""
    known = option_names(storage)
    return replace(storage, **{name: value for name, value in options.items() if name in known})


def option_names(storage: Storage) -> list[str]:
    """Return the names of the options of a storage."""
    return [field.name for field in fields(storage)]


def describe(storage: Storage) -> str:
    """Return what one would write to make `storage`.

    >>> describe(HDF5Storage()), describe(HDF5Storage(compression="lzf"))
    ('HDF5Storage()', "HDF5Storage(compression='lzf')")
    """
    return f"{type(storage).__name__}({', '.join(_changed(storage))})"


def _changed(storage: Storage) -> Iterator[str]:
    """Yield the options of a storage that are not as they are by default."""
    for field in fields(storage):
        made = field.default_factory() if field.default_factory is not MISSING else field.default
        if (value := getattr(storage, field.name)) != made:
            yield f"{field.name}={value!r}"
