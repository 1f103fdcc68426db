"""The structure of a space: its leaves, values taken apart into them, and values put together again."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import singledispatch
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.spaces import GraphInstance, Space
from numpy.typing import NDArray

from recorder.columns import ragged, split
from recorder.errors import RowError, SpaceError
from recorder.leaf import TEXT, Leaf, Per, as_array, cast_exactly, encode_keys, join, text_array
from recorder.metadata.annotation import metadata_of
from recorder.metadata.kinds import infer
from recorder.spaces.space_json import plain_space

Values = Iterator[Any]


class Node(ABC):
    """One position of a space: it knows the leaves at and below it, in a fixed order."""

    leaves: tuple[Leaf, ...]

    @abstractmethod
    def flatten(self, value: Any) -> list[Any]:
        """Return the value of each leaf, not yet checked; raise `RowError` where the structure differs."""

    @abstractmethod
    def unflatten(self, values: Values) -> Any:
        """Return one value of the space from the next rows of its leaves."""

    def nest(self, columns: Values) -> Any:
        """Return whole columns nested as the space nests: a Dict of arrays, a Tuple of arrays, an array.

        Below ragged spaces, where rows are no arrays, it is a list of values.
        """
        own = [next(columns) for _ in self.leaves]
        return [self.unflatten(iter(row)) for row in zip(*own, strict=True)]


class ArrayNode(Node):
    """A Box, Discrete, MultiDiscrete or MultiBinary: one leaf."""

    def __init__(self, leaf: Leaf, scalar: bool) -> None:
        self.leaves = (leaf,)
        self._scalar = scalar

    def flatten(self, value: Any) -> list[Any]:
        return [value]

    def unflatten(self, values: Values) -> Any:
        value = next(values)
        return value[()] if self._scalar else np.asarray(value)

    def nest(self, columns: Values) -> Any:
        return next(columns)


class TextNode(ArrayNode):
    """A Text: one leaf of strings."""

    def unflatten(self, values: Values) -> Any:
        return next(values)


class NoNode(Node):
    """A position that is not recorded."""

    leaves = ()

    def flatten(self, value: Any) -> list[Any]:
        return []

    def unflatten(self, values: Values) -> Any:
        return None


class DictNode(Node):
    """A Dict: its items in the order of the space; keys in `dropped` are in its values and not kept."""

    def __init__(self, path: str, nodes: Mapping[str, Node], dropped: frozenset[str] = frozenset()) -> None:
        self.path = path
        self.nodes = nodes
        self.dropped = dropped
        self.leaves = tuple(leaf for node in nodes.values() for leaf in node.leaves)

    def flatten(self, value: Any) -> list[Any]:
        return [leaf for node, part in self.parts(value) for leaf in node.flatten(part)]

    def parts(self, value: Any) -> list[tuple[Node, Any]]:
        """Return the nodes below this one with their values; raise `RowError` where the keys differ."""
        if not isinstance(value, Mapping):
            raise RowError(f"{self.path!r} is a dict of {list(self.nodes)}, got {type(value).__name__}")
        if missing := [key for key in self.nodes if key not in value]:
            raise RowError(f"{self.path!r} lacks {missing}: a row needs {list(self.nodes)}, got {list(value)}")
        if unknown := [key for key in value if key not in self.nodes and key not in self.dropped]:
            raise RowError(f"{self.path!r} has unknown keys {unknown}: the space has {list(self.nodes)}")
        return [(node, value[key]) for key, node in self.nodes.items()]

    def unflatten(self, values: Values) -> Any:
        return {key: node.unflatten(values) for key, node in self.nodes.items()}

    def nest(self, columns: Values) -> Any:
        return {key: node.nest(columns) for key, node in self.nodes.items()}


class TupleNode(Node):
    """A Tuple: its elements."""

    def __init__(self, path: str, nodes: Sequence[Node]) -> None:
        self.path = path
        self.nodes = tuple(nodes)
        self.leaves = tuple(leaf for node in self.nodes for leaf in node.leaves)

    def flatten(self, value: Any) -> list[Any]:
        return [leaf for node, part in self.parts(value) for leaf in node.flatten(part)]

    def parts(self, value: Any) -> list[tuple[Node, Any]]:
        """Return the nodes below this one with their values; raise `RowError` where their number differs."""
        if not isinstance(value, tuple | list) or len(value) != len(self.nodes):
            raise RowError(f"{self.path!r} is a tuple of {len(self.nodes)}, got {value!r:.80}")
        return list(zip(self.nodes, value, strict=True))

    def unflatten(self, values: Values) -> Any:
        return tuple(node.unflatten(values) for node in self.nodes)

    def nest(self, columns: Values) -> Any:
        return tuple(node.nest(columns) for node in self.nodes)


class SequenceNode(Node):
    """A Sequence: the rows of all elements one after another in ragged leaves."""

    def __init__(self, path: str, space: spaces.Sequence, element: Node, per: Per) -> None:
        self.path = path
        self.space = space
        self.element = element
        self.leaves = listed_leaves(element.leaves) or (Leaf(f"{path}%count", (), "int64", per=per),)

    def flatten(self, value: Any) -> list[Any]:
        if self.space.stack:
            columns = stacked_columns(self.element, value, self.path)
        elif isinstance(value, tuple | list):
            columns = columns_of(self.element, [self.element.flatten(item) for item in value])
        else:
            raise RowError(f"{self.path!r} is a tuple of any length, got {type(value).__name__}")
        if len(lengths := {len(column) for column in columns}) > 1:
            raise RowError(f"{self.path!r} is a stack whose parts are equally long, got lengths {sorted(lengths)}")
        return list_columns(self.element, columns) or [len(value)]

    def unflatten(self, values: Values) -> Any:
        own = [next(values) for _ in self.leaves]
        if self.space.stack:
            return stacked(self.element, iter(own))
        if self.element.leaves:
            return tuple(elements(self.element, iter(own)))
        return tuple(self.element.unflatten(iter(())) for _ in range(int(own[0])))


class GraphNode(Node):
    """A Graph: nodes, edges and edge links, and whether the latter two are there at all."""

    def __init__(self, path: str, space: spaces.Graph, per: Per) -> None:
        self.path = path
        node = _structure(space.node_space, join(path, "nodes"), per, keep_all).leaves[0]
        edge = Leaf(join(path, "edges"), (), "int64", per=per)
        if space.edge_space is not None:
            edge = _structure(space.edge_space, edge.path, per, keep_all).leaves[0]
        links = Leaf(join(path, "edge_links"), (2,), "int32", per=per)
        self._ragged = tuple(replace(leaf, ragged=True) for leaf in (node, edge, links))
        flags = (Leaf(join(path, name), (), "bool", per=per) for name in ("has_edges", "has_edge_links"))
        self.leaves = (*self._ragged, *flags)

    def flatten(self, value: Any) -> list[Any]:
        if not isinstance(value, GraphInstance) or value.nodes is None:
            raise RowError(f"{self.path!r} is a GraphInstance with nodes, got {value!r:.80}")
        absent = [np.empty((0, *leaf.shape), leaf.dtype) for leaf in self._ragged]
        parts = [empty if part is None else part for part, empty in zip(value, absent, strict=True)]
        return [*parts, value.edges is not None, value.edge_links is not None]

    def unflatten(self, values: Values) -> Any:
        nodes, edges, links, has_edges, has_links = (next(values) for _ in self.leaves)
        return GraphInstance(nodes, edges if has_edges else None, links if has_links else None)


class OneOfNode(Node):
    """A OneOf: which option was chosen, and of each option no row or one."""

    def __init__(self, path: str, options: Sequence[Node], per: Per) -> None:
        self.path = path
        self.options = options
        listed = (leaf for option in options for leaf in listed_leaves(option.leaves))
        self.leaves = (Leaf(join(path, "choice"), (), "int64", per=per), *listed)

    def flatten(self, value: Any) -> list[Any]:
        choice, chosen = self._choice(value)
        rows: list[Any] = [choice]
        for i, option in enumerate(self.options):
            rows += list_columns(option, columns_of(option, [option.flatten(chosen)] if i == choice else []))
        return rows

    def _choice(self, value: Any) -> tuple[int, Any]:
        """Return which option a value takes, and the value of that option."""
        if isinstance(value, tuple | list) and len(value) == 2 and isinstance(value[0], int | np.integer | np.ndarray):
            with suppress(TypeError):
                choice = operator.index(value[0])
                if 0 <= choice < len(self.options):
                    return choice, value[1]
        raise RowError(
            f"{self.path!r} is a pair of (option, value) with {len(self.options)} options, got {value!r:.80}"
        )

    def unflatten(self, values: Values) -> Any:
        choice = int(next(values))
        chosen = [
            elements(option, values) if option.leaves else [option.unflatten(iter(()))] for option in self.options
        ]
        return np.int64(choice), chosen[choice][0]


def listed_leaves(leaves: Sequence[Leaf]) -> tuple[Leaf, ...]:
    """Return the leaves of a list of elements: each made ragged, and its row lengths if it was so before."""
    taken = {leaf.path for leaf in leaves}
    listed: list[Leaf] = []
    for leaf in leaves:
        listed.append(replace(leaf, ragged=True))
        if leaf.ragged:
            path = f"{leaf.path}%lengths"
            while path in taken:  # those of a list in a list
                path += "%lengths"
            taken.add(path)
            listed.append(Leaf(path, (), "int64", per=leaf.per, ragged=True))
    return tuple(listed)


def columns_of(element: Node, rows: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """Return the rows of many elements leaf by leaf."""
    return [[row[i] for row in rows] for i in range(len(element.leaves))]


def stacked_columns(element: Node, value: Any, path: str) -> list[list[Any]]:
    """Return what a stacked Sequence holds leaf by leaf.

    It is a Dict of arrays, a Tuple of arrays, an array; of what Gymnasium does not stack, such as Text, a tuple.
    """
    match element:
        case DictNode() | TupleNode():
            parts = element.parts(value)
            return [column for inner, part in parts for column in stacked_columns(inner, part, path)]
    if not isinstance(value, tuple | list) and not (isinstance(value, np.ndarray) and value.ndim):
        raise RowError(f"{path!r} is a stack of elements, got {type(value).__name__} {value!r:.80}")
    return columns_of(element, [element.flatten(item) for item in value])


def stacked(element: Node, values: Values) -> Any:
    """Return the stacked Sequence that `stacked_columns` took apart; takes from `values` what belongs to it."""
    match element:
        case DictNode():
            return {key: stacked(inner, values) for key, inner in element.nodes.items()}
        case TupleNode():
            return tuple(stacked(inner, values) for inner in element.nodes)
        case ArrayNode() if not isinstance(element, TextNode):
            return np.asarray(next(values))
    return tuple(elements(element, values))


def list_columns(element: Node, columns: Sequence[Sequence[Any]]) -> list[Any]:
    """Return the columns of many elements as the values of `listed_leaves`."""
    return [value for pair in zip(element.leaves, columns, strict=True) for value in list_values(*pair)]


def list_values(leaf: Leaf, items: Sequence[Any]) -> list[Any]:
    """Return values of one leaf as one ragged row, and their lengths if the leaf was ragged before."""
    if leaf.dtype == TEXT and not leaf.ragged:
        return [text_array(items)]
    arrays = [np.asarray(item) if leaf.dtype == TEXT else as_array(leaf, item) for item in items]
    if len({array.dtype for array in arrays}) > 1:
        arrays = _of_one_dtype(leaf, arrays)
    try:
        if leaf.ragged:
            joined = ragged(arrays, leaf)
            return [joined.values, joined.lengths]
        return [np.stack(arrays) if items else np.empty((0, *leaf.shape), leaf.dtype)]
    except (ValueError, TypeError) as error:
        raise RowError(f"{leaf.path!r} holds elements of shape {leaf.shape}, got different ones: {error}") from error


def _of_one_dtype(leaf: Leaf, arrays: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    """Return arrays in the dtype that NumPy promotes them to, if that keeps every value."""
    common = np.result_type(*arrays)
    cast = [cast_exactly(array, common) for array in arrays]
    if any(array is None for array in cast):
        names = sorted({array.dtype.name for array in arrays})
        raise RowError(f"{leaf.path!r} holds elements of {names}, which have no common dtype that is exact")
    return [array for array in cast if array is not None]


def elements(element: Node, values: Values) -> list[Any]:
    """Return the elements of which `list_columns` made `values`; takes from `values` what belongs to them."""
    columns = [list_items(leaf, values) for leaf in element.leaves]
    return [element.unflatten(iter(row)) for row in zip(*columns, strict=True)]


def list_items(leaf: Leaf, values: Values) -> list[Any]:
    """Return the values that `list_values` joined."""
    joined = next(values)
    if not leaf.ragged:
        return list(joined)
    lengths = next(values)
    return split(joined, lengths)


Excluded = Callable[[str], bool]
"""Says of a path whether what lies there is left out of the recording."""


def keep_all(path: str) -> bool:
    """Exclude nothing."""
    return False


def structure(space: Space[Any], path: str, per: Per = "moment", excluded: Excluded = keep_all) -> Node:
    """Return the structure of `space` whose leaves lie at and below `path`, without items of Dicts that are excluded.

    >>> [leaf.path for leaf in structure(spaces.Dict(a=spaces.Box(0, 1), b=spaces.Discrete(2)), "action").leaves]
    ['action/a', 'action/b']
    """
    return _structure(plain_space(space, path), path, per, excluded)


def prune(space: Space[Any], path: str, excluded: Excluded) -> Space[Any]:
    """Return `space` without the items of Dicts that are excluded."""
    if isinstance(space, spaces.Tuple):
        return _annotated(
            spaces.Tuple([prune(item, join(path, str(i)), excluded) for i, item in enumerate(space)]), space
        )
    if not isinstance(space, spaces.Dict):
        return space
    names = encode_keys(list(space.spaces))
    inner = {key: (join(path, name), item) for name, (key, item) in zip(names, space.spaces.items(), strict=True)}
    kept = OrderedDict((key, prune(item, at, excluded)) for key, (at, item) in inner.items() if not excluded(at))
    if len(kept) == len(inner) and all(item is space[key] for key, item in kept.items()):
        return space
    return _annotated(spaces.Dict(kept), space)


def _annotated(space: Space[Any], source: Space[Any]) -> Space[Any]:
    """Return `space` with the metadata of another one."""
    if metadata := metadata_of(source):
        space.metadata = metadata  # type: ignore[attr-defined]
    return space


@singledispatch
def _structure(space: Space[Any], path: str, per: Per, excluded: Excluded) -> Node:
    raise SpaceError(f"{path!r} is a {type(space).__name__}, whose values cannot be kept")


@_structure.register(spaces.Box)
@_structure.register(spaces.Discrete)
@_structure.register(spaces.MultiDiscrete)
@_structure.register(spaces.MultiBinary)
def _array(space: Space[Any], path: str, per: Per, excluded: Excluded) -> Node:
    kind, why = infer(space, metadata_of(space), path)
    shape, dtype = tuple(space.shape or ()), np.dtype(space.dtype).name
    leaf = Leaf(path, shape, dtype, kind, per, metadata=metadata_of(space), why=why)
    return ArrayNode(leaf, scalar=isinstance(space, spaces.Discrete))


@_structure.register
def _text(space: spaces.Text, path: str, per: Per, excluded: Excluded) -> Node:
    kind, why = infer(space, metadata_of(space), path)
    metadata = {**metadata_of(space), "max_length": space.max_length}
    return TextNode(Leaf(path, (), TEXT, kind, per, metadata=metadata, why=why), scalar=False)


@_structure.register
def _dict(space: spaces.Dict, path: str, per: Per, excluded: Excluded) -> Node:
    if wrong := [key for key in space.spaces if not isinstance(key, str)]:
        raise SpaceError(f"{path!r} has the key {wrong[0]!r}, which is no string")
    paths = dict(zip(space.spaces, (join(path, name) for name in encode_keys(list(space.spaces))), strict=True))
    dropped = frozenset(key for key, at in paths.items() if excluded(at))
    kept = {key: inner for key, inner in space.spaces.items() if key not in dropped}
    return DictNode(path, {key: _structure(inner, paths[key], per, excluded) for key, inner in kept.items()}, dropped)


@_structure.register(spaces.Tuple)
def _tuple(space: spaces.Tuple[Any], path: str, per: Per, excluded: Excluded) -> Node:
    inner = enumerate(space.spaces)
    return TupleNode(path, [_structure(item, join(path, str(i)), per, excluded) for i, item in inner])


@_structure.register
def _sequence(space: spaces.Sequence, path: str, per: Per, excluded: Excluded) -> Node:
    return SequenceNode(path, space, _structure(space.feature_space, path, per, keep_all), per)


@_structure.register
def _graph(space: spaces.Graph, path: str, per: Per, excluded: Excluded) -> Node:
    return GraphNode(path, space, per)


@_structure.register(spaces.OneOf)
def _one_of(space: spaces.OneOf[Any], path: str, per: Per, excluded: Excluded) -> Node:
    options = [_structure(item, join(path, str(i)), per, keep_all) for i, item in enumerate(space.spaces)]
    return OneOfNode(path, options, per)
