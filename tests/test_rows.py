"""Rows into slots: the compiled code and the plain walk keep the same, refuse the same, and alias nothing."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from gymnasium import Space, spaces
from gymnasium.spaces import GraphInstance
from hypothesis import given, reject
from hypothesis import strategies as st
from spaces import CONTAINERS, SPACES, nested_spaces
from test_structure import _short_texts, same, samples

from recorder.columns import Rows, ragged
from recorder.errors import RowError
from recorder.leaf import TEXT, Leaf, text_array
from recorder.spaces.structure import Node, structure
from recorder.testing import as_read
from recorder.writing.rows import Put, Slots, compile_put, refused

SLOTS = 4


class Slotted:
    """Slots for a few rows of a space, and what puts rows there: `fast`, `slow`, or as the recorder does."""

    def __init__(self, space: Space[Any], first: Any) -> None:
        self.node: Node = structure(space, "observation")
        parts = zip(self.node.leaves, self.node.flatten(first), strict=True)
        self.leaves: Mapping[str, Leaf] = {leaf.path: leaf.of(part) for leaf, part in parts}
        self.slots: dict[str, Slots] = {path: _slot(leaf) for path, leaf in self.leaves.items()}
        self.put: Put = compile_put({"observation": self.node}, self.leaves, self.slots)

    def record(self, i: int, value: Any) -> None:
        """Put a row as the recorder does: fast, and again if there was anything out of the ordinary."""
        try:
            self.put.fast(i, value)
        except Exception:  # noqa: BLE001  # whatever it is, the plain walk says what is wrong
            self.put.slow(i, value)

    def value(self, i: int) -> Any:
        """Return the value that was put into a slot."""
        rows = [as_read(self.leaves[leaf.path], _row(leaf, self.slots[leaf.path], i))[0] for leaf in self.node.leaves]
        return self.node.unflatten(iter(rows))


def _slot(leaf: Leaf) -> Slots:
    return np.zeros((SLOTS, *leaf.shape), leaf.numpy_dtype) if leaf.fixed else [None] * SLOTS


def _row(leaf: Leaf, slot: Slots, i: int) -> Rows:
    if leaf.ragged:
        return ragged([slot[i]], leaf)
    return text_array([slot[i]]) if leaf.dtype == TEXT else np.asarray(slot)[i : i + 1]


@pytest.mark.parametrize("space", SPACES)
def test_a_value_of_every_space_comes_back_from_its_slot(space: Space[Any]) -> None:
    values = samples(space)
    slotted = Slotted(space, values[0])
    for i, value in enumerate(values):
        slotted.record(i, value)
    for i, value in enumerate(values):
        assert same(value, slotted.value(i))


ORDINARY = [
    pytest.param(space, id=name)
    for name, space in {
        "float32": spaces.Box(-1, 1, (3,)),
        "picture": spaces.Box(0, 255, (8, 8, 3), np.uint8),
        "scalar float64": spaces.Box(-1, 1, (), np.float64),
        "discrete": spaces.Discrete(3),
        "binary": spaces.MultiBinary((2, 2)),
        "text": spaces.Text(4),
        "dict": spaces.Dict({"a'b\\\n": spaces.Discrete(2), "é": spaces.Dict(x=spaces.Box(0, 1)), "": spaces.Text(3)}),
        "tuple": spaces.Tuple([spaces.Discrete(2), spaces.Tuple([spaces.Box(0, 1), spaces.Text(2)])]),
        "nothing": spaces.Dict({}),
    }.items()
]


@pytest.mark.parametrize("space", ORDINARY)
def test_ordinary_values_take_the_fast_way_and_come_back(space: Space[Any]) -> None:
    values = [_scalars(space, value) for value in samples(space)]
    slotted = Slotted(space, values[0])
    for i, value in enumerate(values):
        slotted.put.fast(i, value)
    for i, value in enumerate(values):
        assert same(value, slotted.value(i))


def _scalars(space: Space[Any], value: Any) -> Any:
    """Return a value as environments give it: numbers rather than arrays without axes."""
    return value[()] if isinstance(space, spaces.Box) and space.shape == () else value


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        *(("float64", value) for value in (0.5, np.float64(-0.0), float("nan"), float("inf"), 1e308)),
        *(("float32", np.float32(value)) for value in (0.1, "nan", "-inf", 3.4e38)),
        *(("int64", value) for value in (3, np.int64(-(2**63)), 2**63 - 1)),
        *(("int32", np.int32(value)) for value in (-(2**31), 7)),
        *(("uint8", np.uint8(255)), ("int8", np.int8(-128)), ("bool", True), ("bool", np.bool_(False))),
    ],
)
def test_numbers_take_the_fast_way_bit_for_bit(dtype: str, value: Any) -> None:
    put, slot = _number(dtype)
    put.fast(1, value)
    assert slot[1].tobytes() == np.dtype(dtype).type(value).tobytes()
    assert not slot[0]


def _number(dtype: str) -> tuple[Put, Any]:
    """Return what puts numbers of a dtype, and where."""
    space = spaces.Box(0, 1, (), np.dtype(dtype).type)
    node, slot = structure(space, "x"), np.zeros(SLOTS, dtype)
    leaf = Leaf("x", (), dtype)
    return compile_put({"x": node}, {"x": leaf}, {"x": slot}), slot


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "int32", "int64", "uint8", "uint64", "float16", "float32", "float64"]
)
@pytest.mark.parametrize("value", [True, 1, 1.0, np.int16(1), np.uint64(1), np.float32(1), np.array(1)], ids=repr)
def test_numbers_of_other_types_are_kept_exactly_either_way(dtype: str, value: Any) -> None:
    put, slot = _number(dtype)
    try:
        put.fast(0, value)
    except Exception:  # noqa: BLE001
        put.slow(0, value)
    assert slot[0] == 1


@pytest.mark.parametrize("dtype", ["bool", "int8", "int64", "uint8", "uint64", "float16", "float32", "float64"])
@pytest.mark.parametrize(
    "value", [2**70, 1e39, 0.1 + 1j, "1", None, [1], np.zeros(1), {}, float("nan"), 1 / 3, -1, 300]
)
def test_a_number_is_refused_both_ways_or_kept_the_same(dtype: str, value: Any) -> None:
    put, slot = _number(dtype)
    slow = _outcome(put.slow, value, slot)
    fast = _outcome(put.fast, value, slot)
    assert fast in (slow, "refused")


def _outcome(put: Any, value: Any, slot: Any) -> Any:
    slot[0] = 0
    try:
        put(0, value)
    except Exception:  # noqa: BLE001
        return "refused"
    return slot[:1].tobytes()


# Any space and any value.


@st.composite
def spaces_with_values(draw: st.DrawFn) -> tuple[Space[Any], list[Any]]:
    """A space, and values of it: some as they are, some changed in one place."""
    space = draw(st.sampled_from([param.values[0] for param in CONTAINERS]) | nested_spaces.map(_short_texts))
    space.seed(draw(st.integers(0, 9)))
    try:
        values = [space.sample() for _ in range(3)]
    except ValueError:  # bounds that Gymnasium cannot draw from
        reject()
    return space, [values[0], values[1], draw(_changed(values[2]))]


ODD = [None, 3, 0.5, "text", 2**70, [], (), {}, np.zeros(2), np.float64(0.25), np.zeros((2, 2), np.uint8), object()]


def _changed(value: Any) -> st.SearchStrategy[Any]:
    """A value that differs from another one in one place, or in none."""
    ways: list[st.SearchStrategy[Any]] = [st.just(value), st.sampled_from(ODD)]
    match value:
        case dict():
            ways += [st.just({**value, "extra": 1}), st.just(OrderedDict(value))]
            if value:
                keys = st.sampled_from(list(value))
                ways.append(keys.map(lambda gone: {key: part for key, part in value.items() if key != gone}))
                ways.append(keys.flatmap(lambda key: _changed(value[key]).map(lambda part: {**value, key: part})))
        case GraphInstance():
            ways.append(
                st.integers(0, 2).flatmap(
                    lambda k: _changed(value[k]).map(lambda part: GraphInstance(*value[:k], part, *value[k + 1 :]))
                )
            )
        case tuple():
            ways += [st.just(list(value)), st.just((*value, 1)), st.just(value[1:])]
            if value:
                places = st.integers(0, len(value) - 1)
                ways.append(
                    places.flatmap(lambda k: _changed(value[k]).map(lambda part: (*value[:k], part, *value[k + 1 :])))
                )
        case np.ndarray() | np.generic():
            array = np.asarray(value)
            ways += [st.sampled_from(["f8", "f4", "i8", "i4", "u1", ">f4"]).map(lambda dtype: _cast(array, dtype))]
            ways += [st.just(array.tolist()), st.just(array[None]), st.just(array.T), st.just(array.copy(order="F"))]
    return st.one_of(ways)


def _cast(array: Any, dtype: str) -> Any:
    with np.errstate(all="ignore"):
        return array.astype(dtype)


@given(spaces_with_values())
def test_both_ways_keep_the_same_or_the_fast_one_gives_up(case: tuple[Space[Any], list[Any]]) -> None:
    space, values = case
    for value in values:
        fast, slow = Slotted(space, values[0]), Slotted(space, values[0])
        try:
            fast.put.fast(0, value)
        except Exception:  # noqa: BLE001
            continue
        slow.put.slow(0, value)
        assert same(fast.value(0), slow.value(0))


@given(spaces_with_values())
def test_the_slow_way_keeps_every_value_exactly_or_names_the_leaf(case: tuple[Space[Any], list[Any]]) -> None:
    space, values = case
    slotted = Slotted(space, values[0])
    for i, value in enumerate(values):
        before = copy.deepcopy(value)
        told = "observation"
        try:
            slotted.put.slow(i, value)
            assert _equal(slotted.value(i), before)
        except RowError as error:
            told = str(error)
        assert "observation" in told


def _equal(found: Any, value: Any) -> bool:
    """Tell whether what is in a slot is what was given, but for types that it was cast to exactly."""
    match found:
        case dict():
            return isinstance(value, Mapping) and all(_equal(part, value[key]) for key, part in found.items())
        case tuple():
            return len(found) == len(value) and all(map(_equal, found, value))
        case str() | None:
            return bool(found == value)
    found, value = np.asarray(found), np.asarray(value)
    return found.shape == value.shape and np.array_equal(found, value, equal_nan=found.dtype.kind in "fc")


# No alias.

REUSED = [
    pytest.param(space, id=name)
    for name, space in {
        "array": spaces.Box(-1, 1, (3,)),
        "sequence": spaces.Sequence(spaces.Box(-1, 1, (3,))),
        "stack": spaces.Sequence(spaces.Box(-1, 1, (3,)), stack=True),
        "graph": spaces.Graph(spaces.Box(-1, 1, (3,)), spaces.Discrete(3)),
        "one of": spaces.OneOf([spaces.Box(-1, 1, (3,)), spaces.Box(-1, 1, (2,))]),
        "dict": spaces.Dict(a=spaces.Box(-1, 1, (3,)), b=spaces.Tuple([spaces.MultiBinary(3)])),
    }.items()
]


@pytest.mark.parametrize("space", REUSED)
@pytest.mark.parametrize("way", ["fast", "slow"])
def test_a_slot_keeps_no_array_of_the_environment(space: Space[Any], way: str) -> None:
    (value,) = samples(space, 1)
    before = copy.deepcopy(value)
    slotted = Slotted(space, value)
    getattr(slotted.put, way)(0, value)
    for array in _arrays(value):
        array[...] = 1
    assert same(slotted.value(0), before)


def _arrays(value: Any) -> list[Any]:
    if isinstance(value, np.ndarray):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, tuple | list) else []
    return [array for part in parts for array in _arrays(part)]


# Refusals.

TWO = spaces.Dict(camera=spaces.Box(0, 255, (4, 4, 3), np.uint8), n=spaces.Discrete(3))
FRAME = np.full((4, 4, 3), 7, np.uint8)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({"camera": FRAME}, r"'observation' lacks \['n'\]: a row needs \['camera', 'n'\], got \['camera'\]"),
        ({"camera": FRAME, "n": 1, "m": 2}, r"'observation' has unknown keys \['m'\]"),
        ({"camera": FRAME[:2], "n": 1}, r"'observation/camera' has shape \(4, 4, 3\), got \(2, 4, 3\)"),
        ({"camera": FRAME / 2, "n": 1}, "'observation/camera' is uint8, got float64 with values that are not exact"),
        ({"camera": None, "n": 1}, "'observation/camera' is an array of uint8"),
        ({"camera": FRAME, "n": 3.7}, "'observation/n' is int64, got float64"),
        ({"camera": FRAME, "n": "1"}, "'observation/n' is an array of int64"),
        ([FRAME, 1], "'observation' is a dict of"),
    ],
)
def test_a_row_that_does_not_fit_is_refused_with_leaf_expected_and_got(value: Any, told: str) -> None:
    slotted = Slotted(TWO, {"camera": FRAME, "n": 1})
    with pytest.raises(RowError, match=told):
        slotted.record(0, value)
    slotted.record(0, {"camera": FRAME, "n": 2})
    assert slotted.value(0)["n"] == 2


def test_a_refusal_tells_the_step_and_what_becomes_of_it() -> None:
    told = str(refused(RowError("'observation' is missing"), 17))
    assert told.startswith("step 17 is not recorded: 'observation' is missing.")


def test_several_structures_are_put_in_their_order() -> None:
    nodes = {
        "observation": structure(spaces.Discrete(9), "observation"),
        "action": structure(spaces.Text(3), "action", "transition"),
    }
    leaves = {leaf.path: leaf for node in nodes.values() for leaf in node.leaves}
    slots: dict[str, Slots] = {path: _slot(leaf) for path, leaf in leaves.items()}
    for put in compile_put(nodes, leaves, slots):
        put(2, 5, "up")
        assert (slots["observation"][2], slots["action"][2]) == (5, "up")


def test_excluded_keys_may_come_or_not() -> None:
    node = structure(TWO, "observation", excluded=lambda path: path == "observation/camera")
    leaves = {leaf.path: leaf for leaf in node.leaves}
    slots: dict[str, Slots] = {path: _slot(leaf) for path, leaf in leaves.items()}
    put = compile_put({"observation": node}, leaves, slots)
    put.fast(0, {"camera": "anything", "n": 1})
    put.slow(1, {"n": 2})
    assert list(slots["observation/n"])[:2] == [1, 2]
