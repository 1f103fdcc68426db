"""Structures: values of any space are taken apart into leaves and come back equal; others are refused by path."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
from gymnasium import Space, spaces
from gymnasium.spaces import GraphInstance
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from spaces import CONTAINERS, SPACES, nested_spaces

from recorder.columns import Rows, ragged
from recorder.errors import RowError, SpaceError
from recorder.leaf import RESERVED_NAMES, TEXT, Leaf, text_array
from recorder.spaces.structure import Node, prune, structure
from recorder.testing import as_read

SAMPLES = 4


def samples(space: Space[Any], count: int = SAMPLES) -> list[Any]:
    """Return values of a space; those of an endless Text, which Gymnasium draws as it is long, are short."""
    if isinstance(space, spaces.Text) and space.max_length > 1000:
        return ["0", "01", "1", ""][:count]
    if isinstance(space, spaces.Box) and space.dtype == np.int64:
        return [space.low, space.high]  # whose span is more than Gymnasium can draw from
    space.seed(1)
    return [space.sample() for _ in range(count)]


def through_leaves(node: Node, values: list[Any]) -> list[Any]:
    """Return values after they were kept leaf by leaf, as they come from columns."""
    rows = [
        [leaf.fit(part) for leaf, part in zip(_decided(node, value), node.flatten(value), strict=True)]
        for value in values
    ]
    columns = [as_read(leaf, _rows(leaf, [row[i] for row in rows])) for i, leaf in enumerate(node.leaves)]
    if not columns:
        return [node.unflatten(iter(())) for _ in values]
    return [node.unflatten(iter(row)) for row in zip(*columns, strict=True)]


def _decided(node: Node, value: Any) -> list[Leaf]:
    return [leaf.of(part) for leaf, part in zip(node.leaves, node.flatten(value), strict=True)]


def _rows(leaf: Leaf, rows: list[Any]) -> Rows:
    if leaf.ragged:
        return ragged(rows, leaf)
    return text_array(rows) if leaf.dtype == TEXT else np.array(rows)


def same(one: Any, other: Any) -> bool:
    """Tell whether two values are equal down to dtypes and bits; a row in a Discrete may be a Python number."""
    match one:
        case dict():
            return (
                isinstance(other, dict) and list(one) == list(other) and all(same(one[key], other[key]) for key in one)
            )
        case GraphInstance():
            return isinstance(other, GraphInstance) and all(map(same, one, other))
        case tuple():
            return isinstance(other, tuple) and len(one) == len(other) and all(map(same, one, other))
        case np.ndarray() | np.generic():
            exact = one.dtype.newbyteorder("=") == np.asarray(other).dtype and one.shape == np.shape(other)
            return exact and one.astype(np.asarray(other).dtype).tobytes() == np.asarray(other).tobytes()
    return type(one) is type(other) and bool(one == other)


@pytest.mark.parametrize("space", SPACES)
def test_values_of_every_space_come_back(space: Space[Any]) -> None:
    node = structure(space, "observation")
    for value, found in zip(values := samples(space), through_leaves(node, values), strict=True):
        assert same(value, found)


@pytest.mark.parametrize("space", CONTAINERS)
def test_columns_nest_as_the_space_does(space: Space[Any]) -> None:
    node = structure(space, "observation")
    values = samples(space)
    columns = [
        as_read(leaf, _rows(leaf, [node.flatten(value)[i] for value in values])) for i, leaf in enumerate(node.leaves)
    ]
    nested = node.nest(iter(columns))
    for i, value in enumerate(values):
        assert same(value, _picked(space, nested, i))


def _picked(space: Space[Any], nested: Any, i: int) -> Any:
    """Return one row out of nested columns."""
    match space:
        case spaces.Dict():
            return {key: _picked(inner, nested[key], i) for key, inner in space.spaces.items()}
        case spaces.Tuple():
            return tuple(_picked(inner, part, i) for inner, part in zip(space.spaces, nested, strict=True))
    return nested[i]


def _short_texts(space: Space[Any]) -> Space[Any]:
    """Return a space with Text no longer than what can be drawn in a test."""
    match space:
        case spaces.Text():
            shortest = min(space.min_length, 5)
            return spaces.Text(min(space.max_length, 5), min_length=shortest, charset=space.characters)
        case spaces.Dict():
            return spaces.Dict([(key, _short_texts(inner)) for key, inner in space.spaces.items()])
        case spaces.Tuple() | spaces.OneOf():
            return type(space)([_short_texts(inner) for inner in space.spaces])
        case spaces.Sequence():
            return spaces.Sequence(_short_texts(space.feature_space), stack=space.stack)
    return space


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(nested_spaces.map(_short_texts))
def test_values_of_any_nested_space_come_back(space: Space[Any]) -> None:
    node = structure(space, "observation")
    try:
        values = samples(space, 3)
    except (ValueError, OverflowError, NotImplementedError, TypeError, AttributeError):
        return  # what Gymnasium itself cannot draw or stack
    for value, found in zip(values, through_leaves(node, values), strict=True):
        assert same(value, found), (value, found)


@given(nested_spaces)
def test_every_leaf_has_a_path_of_its_own_below_that_of_the_space(space: Space[Any]) -> None:
    leaves = structure(space, "extra", "transition").leaves
    assert len({leaf.path.casefold() for leaf in leaves}) == len(leaves)
    assert {leaf.path.split("/")[0].split("%")[0] for leaf in leaves} <= {"extra"}
    assert {leaf.per for leaf in leaves} <= {"transition"}
    assert "extra" in RESERVED_NAMES


def test_keys_that_look_alike_are_six_leaves() -> None:
    keys = ["a/b", "a.b", "a b", "é", "*", "a"]
    inner = {key: spaces.Dict(b=spaces.Discrete(3)) if key == "a" else spaces.Discrete(9) for key in keys}
    node = structure(spaces.Dict(OrderedDict(inner)), "observation")
    assert [leaf.path for leaf in node.leaves] == [
        f"observation/{name}" for name in ("a%2Fb", "a.b", "a b", "é", "*", "a/b")
    ]
    value = {"a/b": 1, "a.b": 2, "a b": 3, "é": 4, "*": 5, "a": {"b": 1}}
    assert node.unflatten(iter([np.int64(part) for part in node.flatten(value)])) == value


def test_stacked_rows_of_another_dtype_come_back_with_every_bit() -> None:
    space = spaces.Sequence(spaces.Dict(x=spaces.Box(-1, 1, (2,)), n=spaces.Discrete(3)), stack=True)
    value = {"x": np.array([[0.1, 1e300], [2, 3]]), "n": np.array([1, 2])}
    (found,) = through_leaves(structure(space, "observation"), [value])
    assert same(value, found)


def test_a_sequence_of_sequences_keeps_all_lengths() -> None:
    space = spaces.Sequence(spaces.Sequence(spaces.Sequence(spaces.Box(0, 9, (), np.int64))))
    node = structure(space, "observation")
    assert len({leaf.path for leaf in node.leaves}) == len(node.leaves) == 4
    values: list[Any] = [(), ((),), (((),), ()), (((np.array(1),), ()), ((np.array(2), np.array(3)),))]
    for value, found in zip(values, through_leaves(node, values), strict=True):
        assert same(value, found)


def test_a_sequence_of_nothing_keeps_how_often() -> None:
    node = structure(spaces.Sequence(spaces.Dict({})), "observation")
    assert through_leaves(node, [(), ({}, {}, {})]) == [(), ({}, {}, {})]


def test_leaves_after_a_stack_of_nothing_keep_their_place() -> None:
    space = spaces.Dict(a=spaces.Sequence(spaces.Dict({}), stack=True), b=spaces.Discrete(9))
    assert through_leaves(structure(space, "observation"), [{"a": {}, "b": 7}]) == [{"a": {}, "b": 7}]


@pytest.mark.parametrize("edges", [None, np.zeros((0, 2), np.float32), np.ones((3, 2), np.float32)])
@pytest.mark.parametrize("links", [None, np.zeros((0, 2), np.int32), np.ones((3, 2), np.int32)])
def test_a_graph_keeps_whether_it_has_edges_at_all(edges: Any, links: Any) -> None:
    node = structure(spaces.Graph(spaces.Discrete(3), spaces.Box(0, 1, (2,))), "observation")
    value = GraphInstance(np.array([1, 2]), edges, links)
    (found,) = through_leaves(node, [value])
    assert same(value, found)


# What does not fit.

DICT = spaces.Dict(camera=spaces.Dict(front=spaces.Box(0, 1, (2,)), back=spaces.Box(0, 1, (2,))), n=spaces.Discrete(3))
PAIR = spaces.Tuple([spaces.Discrete(2), spaces.Dict(x=spaces.Discrete(2))])
MANY = spaces.Sequence(spaces.Box(0, 1, (2,)))
STACK = spaces.Sequence(spaces.Dict(x=spaces.Box(0, 1, (2,)), y=spaces.Discrete(2)), stack=True)
GRAPH = spaces.Graph(spaces.Box(-1, 1, (3,)), spaces.Discrete(4))
EITHER = spaces.OneOf([spaces.Discrete(2), spaces.Text(3)])
GOOD = np.zeros(2, np.float32)
NODES, LINKS = np.zeros((2, 3), np.float32), np.zeros((1, 2), np.int32)

WRONG = {
    "no dict": (DICT, [1, 2], "'observation' is a dict of .*'camera', 'n'.*got list"),
    "a missing key": (DICT, {"camera": {"front": GOOD, "back": GOOD}}, r"'observation' lacks \['n'\]"),
    "a missing key inside": (DICT, {"camera": {"front": GOOD}, "n": 1}, r"'observation/camera' lacks \['back'\]"),
    "an extra key": (DICT, {"camera": {"front": GOOD, "back": GOOD}, "n": 1, "m": 2}, r"unknown keys \['m'\]"),
    "None for a dict": (DICT, {"camera": None, "n": 1}, "'observation/camera' is a dict .*got NoneType"),
    "a shorter tuple": (PAIR, (1,), r"'observation' is a tuple of 2, got \(1,\)"),
    "a longer tuple": (PAIR, (1, {"x": 1}, 2), "'observation' is a tuple of 2"),
    "an array for a tuple": (PAIR, np.zeros(2), "'observation' is a tuple of 2"),
    "a wrong part of a tuple": (PAIR, (1, {"y": 1}), r"'observation/1' lacks \['x'\]"),
    "no tuple of any length": (
        MANY,
        np.zeros((3, 2), np.float32),
        "'observation' is a tuple of any length, got ndarray",
    ),
    "None for a sequence": (MANY, None, "'observation' is a tuple of any length, got NoneType"),
    "elements of two shapes": (MANY, (GOOD, np.zeros(3)), r"'observation' holds elements of shape \(2,\)"),
    "elements of a wrong shape": (MANY, (np.zeros(3),), r"'observation' has shape \(n, 2\), got \(1, 3\)"),
    "an element that is none": (MANY, (GOOD, None), "'observation' is an array of float32"),
    "elements without a common dtype": (
        spaces.Sequence(spaces.Discrete(2)),
        (np.int64(2**53 + 1), 0.5),
        r"'observation' holds elements of \['float64', 'int64'\]",
    ),
    "lists of two depths": (
        spaces.Sequence(spaces.Sequence(spaces.Box(0, 1, (2,)))),
        ((GOOD,), (np.zeros(3),)),
        "'observation' holds elements",
    ),
    "a list among texts": (spaces.Sequence(spaces.Text(3)), (["a", "b"],), "'observation' is text, got list"),
    "no stack": (STACK, None, "'observation' is a dict of"),
    "a stack without a key": (STACK, {"x": np.zeros((1, 2), np.float32)}, r"'observation' lacks \['y'\]"),
    "a stack with another key": (
        STACK,
        {"x": np.zeros((1, 2), np.float32), "y": np.zeros(1, int), "z": 1},
        r"'observation' has unknown keys \['z'\]",
    ),
    "a stack of two lengths": (
        STACK,
        {"x": np.zeros((2, 2), np.float32), "y": np.zeros(3, int)},
        r"'observation' is a stack whose parts are equally long, got lengths \[2, 3\]",
    ),
    "a number for a stack": (STACK, {"x": 3, "y": np.zeros(3, int)}, "'observation' is a stack of elements, got int 3"),
    "no graph": (GRAPH, (NODES, None, None), "'observation' is a GraphInstance with nodes, got "),
    "a graph without nodes": (GRAPH, GraphInstance(None, None, None), "'observation' is a GraphInstance with nodes"),
    "nodes of a wrong shape": (GRAPH, GraphInstance(np.zeros((2, 4)), None, None), r"'observation/nodes' has shape"),
    "links of a wrong shape": (
        GRAPH,
        GraphInstance(NODES, None, np.zeros((1, 3), int)),
        "'observation/edge_links' has",
    ),
    "edges that are text": (GRAPH, GraphInstance(NODES, ["a"], LINKS), "'observation/edges' is an array of int64"),
    "no pair": (EITHER, 1, r"'observation' is a pair of \(option, value\)"),
    "an option that is text": (EITHER, ("a", 1), r"'observation' is a pair of \(option, value\)"),
    "an option that is a fraction": (EITHER, (0.5, 1), r"'observation' is a pair of \(option, value\)"),
    "an option that is not there": (EITHER, (2, 1), "with 2 options, got"),
    "an option below the first": (EITHER, (-1, 1), "with 2 options, got"),
    "another option's value": (EITHER, (1, 7), "'observation/1' is text, got int 7"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_value_of_another_structure_is_refused_by_path(name: str) -> None:
    space, value, told = WRONG[name]
    node = structure(space, "observation")
    with pytest.raises(RowError, match=told):
        [leaf.fit(part) for leaf, part in zip(node.leaves, node.flatten(value), strict=True)]


def test_a_space_with_a_key_that_is_no_string_is_refused() -> None:
    with pytest.raises(SpaceError, match="'observation'"):
        structure(spaces.Dict({1: spaces.Discrete(2)}), "observation")


# What is left out.


def excluded(path: str) -> bool:
    return path in ("observation/b", "observation/t/1/secret", "observation/c/d")


LEAKY = spaces.Dict(
    a=spaces.Discrete(3),
    b=spaces.Dict(x=spaces.Discrete(3)),
    c=spaces.Dict(d=spaces.Discrete(3)),
    t=spaces.Tuple([spaces.Discrete(2), spaces.Dict(secret=spaces.Discrete(2), open=spaces.Discrete(2))]),
)


def test_excluded_keys_are_in_values_and_not_in_leaves() -> None:
    node = structure(LEAKY, "observation", excluded=excluded)
    assert [leaf.path for leaf in node.leaves] == ["observation/a", "observation/t/0", "observation/t/1/open"]
    value = {"a": 1, "b": {"x": 2}, "c": {"d": 1}, "t": (0, {"secret": 1, "open": 1})}
    assert node.flatten(value) == [1, 0, 1]
    assert node.flatten({"a": 1, "c": {}, "t": (0, {"open": 1})}) == [1, 0, 1]
    with pytest.raises(RowError, match="unknown keys"):
        node.flatten({**value, "z": 1})


def test_a_pruned_space_has_the_leaves_that_are_kept() -> None:
    pruned = prune(LEAKY, "observation", excluded)
    kept = structure(LEAKY, "observation", excluded=excluded)
    assert structure(pruned, "observation").leaves == kept.leaves
    assert pruned == spaces.Dict(
        a=spaces.Discrete(3),
        c=spaces.Dict({}),
        t=spaces.Tuple([spaces.Discrete(2), spaces.Dict(open=spaces.Discrete(2))]),
    )


def test_pruning_keeps_the_metadata_of_what_stays() -> None:
    space = spaces.Dict(a=spaces.Tuple([spaces.Dict(x=spaces.Discrete(2))]), b=spaces.Discrete(2))
    for inner in (space, space["a"], space["a"][0], space["a"][0]["x"]):
        inner.metadata = {"source": "here"}
    pruned: Any = prune(space, "observation", lambda path: path == "observation/b")
    for inner in (pruned, pruned["a"], pruned["a"][0], pruned["a"][0]["x"]):
        assert inner.metadata == {"source": "here"}


@given(nested_spaces, st.data())
def test_pruning_and_excluding_agree(space: Space[Any], data: st.DataObject) -> None:
    paths = [leaf.path for leaf in structure(space, "observation").leaves]
    gone = data.draw(st.sets(st.sampled_from(paths))) if paths else set()
    kept = structure(space, "observation", excluded=gone.__contains__).leaves
    assert structure(prune(space, "observation", gone.__contains__), "observation").leaves == kept
