"""Rules: which storages are wanted for a leaf, and which of them may keep it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from recorder.errors import LayoutError
from recorder.leaf import JSON_TEXT, Leaf
from recorder.metadata.annotation import did_you_mean
from recorder.metadata.kinds import KINDS, NATURAL_SIDE, natural
from recorder.storages.base import Storage
from recorder.storages.depth import DepthStorage
from recorder.storages.video import FPS, VideoStorage
from recorder.storages.zarr import ZarrStorage

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
        return [Wish(with_options(storage, options, leaf), reason) for storage, reason in self._wishes(leaf)]

    def _wishes(self, leaf: Leaf) -> list[Wish]:
        if matching := self._matching(self.keys, leaf):
            return [Wish(self.keys[matching[-1]] or self.default, f"key {matching[-1]!r}")]
        if leaf.kind in self.kinds:
            named = Wish(self.kinds[leaf.kind] or self.default, f"kind {leaf.kind!r}")
            return [named, Wish(self.default, "left to the default")]
        return default_wishes(leaf, self.default)

    def name(self, leaf: Leaf) -> bool:
        """Return whether the caller named a storage for a leaf, by key or kind."""
        return leaf.kind in self.kinds or bool(self._matching(self.keys, leaf))

    def _options(self, leaf: Leaf) -> dict[str, Any]:
        names = [leaf.kind] if leaf.kind in self.options and self._reaches(leaf.kind, leaf) else []
        names += self._matching(self.options, leaf)
        return {option: value for name in names for option, value in self.options[name].items()}

    def _matching(self, keys: Iterable[str], leaf: Leaf) -> list[str]:
        """Return those of `keys` that match a leaf, the strongest last: of globs of one length, the first."""
        matching = [key for key in reversed(list(keys)) if self._matches(key, leaf.path)]
        return sorted(matching, key=lambda key: (key == leaf.path, len(key)))

    def _reaches(self, name: str, leaf: Leaf) -> bool:
        """Return whether the name of options, a path, a kind or a glob in this order, means a leaf."""
        return self._matches(name, leaf.path) or (name == leaf.kind and name not in self.paths)

    def _matches(self, key: str, path: str) -> bool:
        return key == path or (key not in self.paths and fnmatchcase(path, key))

    def check(self, leaves: Sequence[Leaf]) -> None:
        """Raise `LayoutError` where a name, option or storage is none, or `default` cannot keep infos."""
        kinds = {*KINDS, *(leaf.kind for leaf in leaves)}
        for name, storage in [*self.keys.items(), *self.kinds.items(), ("default", self.default)]:
            if not isinstance(storage, Storage | None):
                raise LayoutError(f"{name!r}: a storage such as ZarrStorage(), or None, not {storage!r:.80}")
            if storage is not None:
                storage.check([])
        for key in self.keys:
            self._check_key(key)
        for kind in sorted(self.kinds.keys() - kinds):
            raise LayoutError(f"no kind {kind!r}{did_you_mean(kind, kinds)}; the kinds are {sorted(kinds)}")
        for name, given in self.options.items():
            if name not in kinds:
                self._check_key(name, kinds)
            self._check_options(name, given, leaves)
        if any(leaf.per == "moment" for leaf in leaves):
            check_infos(self.default)

    def _check_key(self, key: str, kinds: Iterable[str] = ()) -> None:
        """Raise if nothing is called `key`, or matches it."""
        if any(self._matches(key, path) for path in self.paths):
            return
        inside = any(path.startswith(f"{key}/") for path in self.paths)
        nearest = f", did you mean '{key}/*'?" if inside else did_you_mean(key, {*self.paths, *kinds})
        infos = "; keys of info are always kept in the default" if key.split("/")[0] == "info" else ""
        known = f"; the kinds are {sorted(kinds)}" if kinds else ""
        what = "leaf or kind" if kinds else "leaf"
        raise LayoutError(f"no {what} {key!r}{nearest}; the leaves are {sorted(self.paths)}{infos}{known}")

    def _check_options(self, name: str, given: Mapping[str, Any], leaves: Sequence[Leaf]) -> None:
        """Raise if an option fits none of the storages that are first wanted where `name` reaches."""
        wanted = [self._wishes(leaf)[0].storage for leaf in leaves if self._reaches(name, leaf)]
        known = {option for storage in wanted for option in option_names(storage)}
        classes = " and ".join(sorted({type(storage).__name__ for storage in wanted}))
        for option in given if wanted else ():
            if option not in known:
                nearest = did_you_mean(option, known)
                raise LayoutError(f"{classes} for {name!r} has no option {option!r}{nearest}; it has {sorted(known)}")


def default_wishes(leaf: Leaf, default: Storage) -> list[Wish]:
    """Return the storages for a leaf that nobody named one for, best first.

    Only a natural picture is wanted by a lossy storage, and where that cannot be had, by an exact one.
    """
    table = Wish(default, "left to the default")
    if natural(leaf):
        lossy = Wish(VideoStorage(), f"a natural picture of {NATURAL_SIDE} a side and more, coded with loss")
        return [lossy, Wish(ZarrStorage(), "coded without loss"), table]
    if leaf.kind == "image" and leaf.fixed and leaf.dtype == "uint8" and leaf.shape[2:] in ((3,), (4,)):
        small = "small " if min(leaf.shape[:2]) < NATURAL_SIDE else ""
        return [Wish(ZarrStorage(), f"a {small}picture, coded without loss"), table]
    if leaf.fixed and leaf.nbytes >= ARRAY_BYTES:
        return [Wish(ZarrStorage(), f"an array of {ARRAY_BYTES >> 10} KiB and more"), table]
    return [Wish(default, "a table leaf")]


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


def with_rate(leaf: Leaf, routed: Route, fps: float | None) -> Route:
    """Return a route whose video has a frame rate: its own, that of the metadata, `fps`, or a guess."""
    storage = routed.storage
    if isinstance(storage, DepthStorage):
        inner = with_rate(leaf, routed._replace(storage=storage.storage), fps)
        return inner._replace(storage=replace(storage, storage=inner.storage))
    if not isinstance(storage, VideoStorage):
        return routed
    if storage.fps is not None:
        said = f"{storage.fps:g} frames a second"
    elif "fps" in leaf.metadata:
        said = f"{leaf.metadata['fps']:g} frames a second by its metadata"
    elif fps is not None:
        said = f"{fps:g} frames a second by the environment"
        storage = replace(storage, fps=fps)
    else:
        said = f"{FPS:g} frames a second, as nothing says how many"
    return routed._replace(storage=storage, reason=f"{routed.reason}; {said}")


def check_infos(default: Storage) -> None:
    """Raise `LayoutError` if a default of episodes cannot keep keys of `info`."""
    if fault := unable(default, INFO):
        raise LayoutError(f"the default keeps every key of info too, {describe(default)}: {fault}")


def unable(storage: Storage, leaf: Leaf) -> str:
    """Return why a storage may not be given a leaf; nothing if it may.

    It must keep it, and exactly, unless the leaf is of a kind that may lose and its metadata do not forbid that.
    """
    try:
        storage.check([leaf])
    except LayoutError as error:
        return str(error)
    said = [word for word in ("label", "lossless") if leaf.metadata.get(word)]
    if storage.exact(leaf) or (leaf.kind in storage.lossy_kinds and not said):
        return ""
    is_no_picture = f"its metadata say {said[0]}" if said else f"its kind is {leaf.kind!r}"
    return f"{leaf.path!r} would lose by {describe(storage)}, and {is_no_picture}; keep it with ZarrStorage()"


def with_options(storage: Storage, options: Mapping[str, Any], leaf: Leaf) -> Storage:
    """Return `storage` with those of `options` that it has.

    Raises:
        LayoutError: one means nothing to it; or with them, and only with them, it cannot keep the leaf.
    """
    known = option_names(storage)
    try:
        changed = replace(storage, **{name: value for name, value in options.items() if name in known})
    except LayoutError as error:
        raise LayoutError(f"{leaf.path!r}, by its options: {error}") from error
    if changed != storage and not unable(storage, leaf) and (fault := unable(changed, leaf)):
        raise LayoutError(f"{describe(changed)}, by its options: {fault}")
    return changed


def option_names(storage: Storage) -> list[str]:
    """Return the names of the options of a storage."""
    return [field.name for field in fields(storage)]


def describe(storage: Storage) -> str:
    """Return what one would write to make `storage`.

    >>> describe(ZarrStorage()), describe(ZarrStorage(quality=80))
    ('ZarrStorage()', 'ZarrStorage(quality=80)')
    """
    return f"{type(storage).__name__}({', '.join(_changed(storage))})"


def _changed(storage: Storage) -> Iterator[str]:
    """Yield the options of a storage that are not as they are by default."""
    for field in fields(storage):
        made = field.default_factory() if field.default_factory is not MISSING else field.default
        if (value := getattr(storage, field.name)) != made:
            yield f"{field.name}={value!r}"
