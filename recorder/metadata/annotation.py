"""Metadata of spaces: a JSON object that a space carries as `space.metadata`, found and given by path."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from copy import copy, deepcopy
from difflib import get_close_matches
from functools import singledispatch
from itertools import pairwise
from typing import Any, Never

import gymnasium as gym
from gymnasium import spaces
from gymnasium.spaces import Space
from gymnasium.vector import SyncVectorEnv, VectorEnv, VectorWrapper

from recorder.errors import MetadataError
from recorder.leaf import JSON, encode_keys, join

AnySpace = Space[Any]
Given = Mapping[str, Mapping[str, JSON]]
AnyEnv = gym.Env[Any, Any] | VectorEnv[Any, Any, Any]

_CONTAINERS = (spaces.Dict, spaces.Tuple, spaces.OneOf, spaces.Sequence, spaces.Graph)


class Metadata(dict[str, JSON]):
    """Metadata as a space carries it: a `dict` all the way down that refuses to be changed.

    Copies share it. It pickles as a plain `dict`: a pickled space opens where this package is missing.
    """

    def _refuse(self, *_: Any, **__: Any) -> Never:
        raise MetadataError("metadata is not changed in place: annotate(space, {path: {…}}) returns a new space")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __copy__(self) -> Metadata:
        return self

    def __deepcopy__(self, memo: Mapping[int, Any]) -> Metadata:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


def json_copy(value: Any, path: str = "", key: str = "") -> JSON:
    """Return `value` as a new tree of dicts, lists and scalars that strict JSON can hold.

    Raises:
        MetadataError: it cannot; the message names `path` and, below it, the key.
    """
    try:
        return _json_copy(value, path, key)
    except RecursionError:
        raise MetadataError(f"metadata of {path!r} holds itself, or is nested a thousand deep") from None


def _json_copy(value: Any, path: str, key: str) -> JSON:
    match value:
        case None | bool():
            return value
        case str() if value.encode(errors="ignore").decode() == value:
            return str.__str__(value)
        case int():
            return int(value)
        case float() if math.isfinite(value):
            return float(value)
        case Mapping() if all(isinstance(name, str) for name in value):
            return {str.__str__(name): _json_copy(inner, path, _below(key, name)) for name, inner in value.items()}
        case list() | tuple():
            return [_json_copy(inner, path, f"{key}[{i}]") for i, inner in enumerate(value)]
    where = f"{key!r} in the metadata" if key else "metadata"
    raise MetadataError(
        f"{where} of {path!r} is JSON, got the {type(value).__name__} {value!r:.80}; keys are text, "
        f"NumPy values become JSON with .tolist(), and JSON has no infinity or NaN"
    )


def _below(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name


def _mapping(metadata: Any, path: str) -> dict[str, JSON]:
    if not isinstance(metadata, Mapping):
        got = type(metadata).__name__
        raise MetadataError(f"metadata of {path!r} is a mapping, got the {got} {metadata!r:.80}")
    return dict(json_copy(metadata, path))


def _frozen(value: JSON) -> JSON:
    match value:
        case dict():
            return Metadata((name, _frozen(inner)) for name, inner in value.items())
        case list():
            return tuple(_frozen(inner) for inner in value)
    return value


def metadata_of(space: AnySpace, path: str = "") -> dict[str, JSON]:
    """Return a copy of the metadata that `space` itself carries, empty if none; `path` is for the message.

    Raises:
        MetadataError: `space.metadata` is not a mapping of JSON values.
    """
    metadata = getattr(space, "metadata", None)
    return {} if metadata is None else _mapping(metadata, path)


@singledispatch
def children(space: AnySpace) -> dict[str, AnySpace]:
    """Return the spaces inside `space` by the part of a path that names each: none for that of a Sequence."""
    return {}


@children.register
def _(space: spaces.Dict) -> dict[str, AnySpace]:
    names = encode_keys([str(key) for key in space.spaces])
    return dict(zip(names, space.spaces.values(), strict=True))


@children.register(spaces.Tuple)
@children.register(spaces.OneOf)
def _(space: spaces.Tuple[Any] | spaces.OneOf[Any]) -> dict[str, AnySpace]:
    return {str(i): inner for i, inner in enumerate(space.spaces)}


@children.register
def _(space: spaces.Sequence) -> dict[str, AnySpace]:
    return {"": space.feature_space}


@children.register
def _(space: spaces.Graph) -> dict[str, AnySpace]:
    parts = {"nodes": space.node_space, "edges": space.edge_space}
    return {name: inner for name, inner in parts.items() if inner is not None}


def _put(space: AnySpace, name: str, child: AnySpace) -> None:
    """Put `child` in the place of the one called `name`, without touching what copies of `space` share."""
    renewed = {**children(space), name: child}
    match space:
        case spaces.Dict():
            space.spaces = dict(zip(space.spaces, renewed.values(), strict=True))
        case spaces.Tuple() | spaces.OneOf():
            space.spaces = tuple(renewed.values())
        case spaces.Sequence():
            space.feature_space = child
        case spaces.Graph():
            vars(space)[{"nodes": "node_space", "edges": "edge_space"}[name]] = child


def walk(space: AnySpace, path: str = "") -> Iterator[tuple[str, AnySpace]]:
    """Yield each space in `space` with its path, containers before what they hold.

    A Sequence has the path of its element and comes just before it: `dict(walk(space))` has the element.

    >>> [path for path, _ in walk(spaces.Dict(a=spaces.Discrete(2), b=spaces.Tuple([spaces.Box(0, 1)])))]
    ['', 'a', 'b', 'b/0']
    """
    yield path, space
    for name, child in children(space).items():
        yield from walk(child, join(path, name))


def leaf_spaces(space: AnySpace, path: str = "") -> dict[str, AnySpace]:
    """Return the spaces in `space` that hold no other ones, by path."""
    return {where: inner for where, inner in walk(space, path) if not isinstance(inner, _CONTAINERS)}


def annotate(space: AnySpace, metadata: Given, *, replace: bool = False) -> AnySpace:
    """Return a copy of `space` whose inner spaces carry `metadata`, given by path; `''` is the space itself.

    Keys are merged over those that are there, or with `replace` take the place of all of them. The given
    space and its random generators stay as they are.

    >>> annotated = annotate(spaces.Dict(a=spaces.Discrete(2)), {"a": {"source": "switch"}})
    >>> annotated["a"].metadata
    {'source': 'switch'}

    Raises:
        MetadataError: a path is not in the space, or a value is not JSON.
    """
    annotated = deepcopy(space)
    known = dict(walk(annotated))
    for path, given in metadata.items():
        if path not in known:
            raise MetadataError(f"the space has no {path!r}{did_you_mean(path, known)}; it has {list(known)}")
        before = {} if replace else metadata_of(known[path], path)
        new = _frozen({**before, **_mapping(given, path)})
        annotated = _carrying(annotated, path.split("/") if path else [], new)
    return annotated


def _carrying(space: AnySpace, names: list[str], metadata: Metadata) -> AnySpace:
    """Return `space` with the metadata at the end of `names`.

    The spaces on the way there are copied: an environment may hold one space object at several paths.
    """
    space = copy(space)
    if isinstance(space, spaces.Sequence):
        _put(space, "", _carrying(space.feature_space, names, metadata))
    elif names:
        _put(space, names[0], _carrying(children(space)[names[0]], names[1:], metadata))
    else:
        vars(space)["metadata"] = metadata
    return space


def find(space: AnySpace, /, **criteria: JSON) -> list[str]:
    """Return the paths of leaves whose metadata say all of this: `find(space, kind="image", fps=30)`."""
    wanted = json_copy(criteria).items()
    return [path for path, inner in leaf_spaces(space).items() if wanted <= metadata_of(inner, path).items()]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of a message that names what of `known` is nearest to `name`; empty if nothing is.

    >>> did_you_mean("camra", {"camera", "joints"}), did_you_mean("x", {"camera"})
    (", did you mean 'camera'?", '')
    """
    names = sorted(known)
    related = [one for one in names if one and (name.endswith(f"/{one}") or one.endswith(f"/{name}"))]
    nearest = related or get_close_matches(name, names, 1, 0.5)
    return f", did you mean {nearest[0]!r}?" if nearest else ""


def dropped(env: AnyEnv, given: Given | None = None) -> list[str]:
    """Return a message for each key of metadata that a wrapper of `env` lost, which is still missing outside.

    `given` holds what is known anew, by the path of the leaf: `{"observation/camera": {…}}`. A leaf that the
    wrapper took away or put elsewhere has lost nothing.
    """
    levels = list(_levels(env))[::-1]
    return [*_dropped(levels, "observation", given or {}), *_dropped(levels, "action", given or {})]


def _dropped(levels: list[AnyEnv], root: str, given: Given) -> Iterator[str]:
    named = [(type(level).__name__, _annotations(_space(level, root), root)) for level in levels]
    outside = named[-1][1]
    for path, keys in _lost(named).items():
        for key, wrapper in keys.items():
            if path in outside and key not in {**outside[path], **given.get(path, {})}:
                yield f"{path!r} lost its {key!r} in {wrapper}: give it again with Recorder(metadata=…)"


def _lost(levels: list[tuple[str, dict[str, dict[str, JSON]]]]) -> dict[str, dict[str, str]]:
    """Return for each path the keys that were lost on the way out, and the wrapper that lost each last."""
    lost: dict[str, dict[str, str]] = {}
    for (_, inner), (wrapper, outer) in pairwise(levels):
        for path in (path for path in inner if path in outer):
            lost.setdefault(path, {}).update({key: wrapper for key in inner[path] if key not in outer[path]})
    return lost


def _annotations(space: AnySpace, path: str) -> dict[str, dict[str, JSON]]:
    return {where: metadata_of(inner, where) for where, inner in leaf_spaces(space, path).items()}


def _levels(env: AnyEnv) -> Iterator[AnyEnv]:
    """Yield `env` and what it wraps, from outside in; below a SyncVectorEnv its first environment."""
    yield env
    match env:
        case gym.Wrapper() | VectorWrapper():
            yield from _levels(env.env)
        case SyncVectorEnv():
            yield from _levels(env.envs[0])


def _space(env: AnyEnv, root: str) -> AnySpace:
    """Return the observation or the action space of `env`; of a vector environment, that of one of them."""
    single = "single_" if isinstance(env, VectorEnv) else ""
    space: AnySpace = getattr(env, f"{single}{root}_space")
    return space
