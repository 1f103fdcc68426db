"""Spaces of all kinds, for every test that goes over them."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
from gymnasium import Space, spaces
from hypothesis import strategies as st
from hypothesis.extra import numpy as numpy_st

INT64 = np.iinfo(np.int64)


def annotated(space: Space[Any], /, **metadata: Any) -> Space[Any]:
    """Give a space the attribute that users set."""
    space.metadata = metadata
    return space


def param(name: str, space: Space[Any]) -> Any:
    return pytest.param(space, id=name)


BOXES = [
    param("box-default", spaces.Box(0, 1)),
    param("box-scalar", spaces.Box(-1, 1, ())),
    param("box-picture", spaces.Box(0, 255, (480, 640, 3), np.uint8)),
    param("box-depth", spaces.Box(0, 65535, (48, 64), np.uint16)),
    param("box-bool", spaces.Box(0, 1, (2, 3), np.bool_)),
    param("box-float16", spaces.Box(-np.inf, np.inf, (3,), np.float16)),
    param(
        "box-float64",
        spaces.Box(np.array([-np.inf, -0.1, 0]), np.array([0.1, np.inf, 1e308]), dtype=np.float64),
    ),
    param("box-half-infinite", spaces.Box(0, np.inf, (2,))),
    param("box-tenths", spaces.Box(np.float32(0.1), np.float32(0.3), (2,))),
    param("box-int8", spaces.Box(-128, 127, (2, 2), np.int8)),
    param("box-int64", spaces.Box(INT64.min, INT64.max, (2,), np.int64)),
    param(
        "box-int64-each",
        spaces.Box(np.array([INT64.min, -(2**53) - 1]), np.array([2**53 + 1, INT64.max]), dtype=np.int64),
    ),
    param("box-int64-unbounded", spaces.Box(-np.inf, np.inf, (2,), np.int64)),
    param("box-int32-half", spaces.Box(np.array([-np.inf, 0.0]), np.array([5.0, np.inf]), dtype=np.int32)),
    param("box-uint64", spaces.Box(0, 2**64 - 1, (2,), np.uint64)),
    param("box-big-endian", spaces.Box(-1, 1, (2,), np.dtype(">f4"))),
    param("box-empty", spaces.Box(0, 1, (0,))),
    param("box-empty-rows", spaces.Box(0, 255, (3, 0), np.uint8)),
    param("box-one-element", spaces.Box(3, 3, (1, 1), np.int32)),
    param(
        "box-metadata",
        annotated(spaces.Box(0, 255, (4, 4, 3), np.uint8), kind="image", fps=30.0, names=["a"]),
    ),
]

COUNTS = [
    param("discrete", spaces.Discrete(3)),
    param("discrete-start", spaces.Discrete(3, start=-1)),
    param("discrete-huge", spaces.Discrete(2**62, start=-(2**61) - 1)),
    param("multi-discrete", spaces.MultiDiscrete([5, 2, 2])),
    param("multi-discrete-2d", spaces.MultiDiscrete(np.array([[1, 2], [3, 4]]), dtype=np.int32)),
    param("multi-discrete-start", spaces.MultiDiscrete([2, 2], start=[-1, 10])),
    param("multi-discrete-uint8", spaces.MultiDiscrete([255, 2], dtype=np.uint8)),
    param("multi-binary", spaces.MultiBinary(4)),
    param("multi-binary-one", spaces.MultiBinary(1)),
    param("multi-binary-tuple", spaces.MultiBinary((1,))),
    param("multi-binary-2d", spaces.MultiBinary([3, 2])),
]

TEXTS = [
    param("text", spaces.Text(5)),
    param("text-empty", spaces.Text(4, min_length=0, charset="ba")),
    param("text-order", spaces.Text(4, charset='zaé€\U0001f600"\\\n')),
    param("text-endless", spaces.Text(INT64.max, charset="01")),
]

CONTAINERS = [
    param("dict", spaces.Dict({"position": spaces.Box(-1, 1, (2,)), "color": spaces.Discrete(3)})),
    param(
        "dict-order",
        spaces.Dict(OrderedDict(z=spaces.Discrete(2), a=spaces.Discrete(3), m=spaces.Discrete(4))),
    ),
    param(
        "dict-keys",
        spaces.Dict(
            {key: spaces.Discrete(2) for key in ("a/b", "a.b", "a b", "é", "*", "", "..", "type", "a%", "\x00")}
        ),
    ),
    param("dict-empty", spaces.Dict({})),
    param("tuple", spaces.Tuple([spaces.Discrete(2), spaces.Box(0, 1, (2,), np.float64)])),
    param("tuple-empty", spaces.Tuple([])),
    param("sequence", spaces.Sequence(spaces.Box(0, 1, (2,)))),
    param("sequence-stack", spaces.Sequence(spaces.Box(0, 1, (2,)), stack=True)),
    param("sequence-of-dict", spaces.Sequence(spaces.Dict(a=spaces.Discrete(2), b=spaces.Text(3)))),
    param("graph", spaces.Graph(spaces.Box(-1, 1, (3,)), spaces.Discrete(4))),
    param("graph-no-edges", spaces.Graph(spaces.Discrete(5), None)),
    param("one-of", spaces.OneOf([spaces.Discrete(2), spaces.Box(0, 1, (2,)), spaces.Text(3)])),
    param(
        "nested",
        annotated(
            spaces.Dict(
                camera=spaces.Dict(
                    front=annotated(spaces.Box(0, 255, (8, 8, 3), np.uint8), kind="image"),
                    depth=spaces.Box(0, np.inf, (8, 8)),
                ),
                parts=spaces.Tuple(
                    [spaces.MultiBinary(2), spaces.Sequence(spaces.Graph(spaces.Box(0, 1, (2,)), None))]
                ),
                either=spaces.OneOf([spaces.Tuple([spaces.Discrete(2)]), spaces.Dict(x=spaces.Text(2))]),
            ),
            source={"simulator": "none", "version": [1, None, True]},
        ),
    ),
]

SPACES = BOXES + COUNTS + TEXTS + CONTAINERS
"""All kinds of spaces, for `pytest.mark.parametrize("space", SPACES)`."""

_UNDRAWABLE = {"box-int64", "box-int64-each", "box-uint64", "discrete-huge", "text-endless"}
DRAWABLE = [space for space in SPACES if space.id not in _UNDRAWABLE]
"""Those from which Gymnasium can draw samples that they contain."""


def facts(value: Any) -> Any:
    """Return all that a space holds but its random state, down to bits, dtypes and order, to be compared.

    Gymnasium's own `==` does not see rounding, boundedness, characters' order, keys' order or metadata.
    """
    match value:
        case Space():
            passing = {"_np_random", "low_repr", "high_repr"}
            kept = {name: inner for name, inner in vars(value).items() if name not in passing}
            return type(value), {name: facts(inner) for name, inner in kept.items()}
        case np.ndarray() | np.generic():
            return value.dtype.str, value.shape, value.tobytes()
        case dict():
            return [(facts(key), facts(inner)) for key, inner in value.items()]
        case list() | tuple():
            return type(value), [facts(inner) for inner in value]
    return type(value), value


NUMBERS = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
NUMBERS += ("float16", "float32", "float64", ">i2", ">f8")

shapes = numpy_st.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)
metadata = st.none() | st.dictionaries(
    st.text(max_size=5),
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(2**53), 2**53)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
        max_leaves=4,
    ),
    min_size=1,
    max_size=3,
)


@st.composite
def boxes(draw: st.DrawFn) -> spaces.Box[Any]:
    """Boxes of every dtype, with infinite bounds where there are any."""
    dtype, shape = np.dtype(draw(st.sampled_from(NUMBERS))), draw(shapes)
    fill = st.nothing() if draw(st.booleans()) else None
    bounds = numpy_st.arrays(dtype, shape, elements=numpy_st.from_dtype(dtype, allow_nan=False), fill=fill)
    one, two = draw(bounds), draw(bounds)
    if dtype.kind == "i" and draw(st.booleans()):
        return spaces.Box(-np.inf, two, shape, dtype)
    low, high = (np.asarray(pick(one, two), dtype) for pick in (np.minimum, np.maximum))
    return spaces.Box(low, high, shape, dtype)


@st.composite
def multi_discretes(draw: st.DrawFn) -> spaces.MultiDiscrete[Any]:
    shape = draw(numpy_st.array_shapes(max_dims=2, max_side=3))
    nvec = draw(numpy_st.arrays(np.int16, shape, elements=st.integers(1, 2**15 - 1)))
    start = draw(numpy_st.arrays(np.int16, shape, elements=st.integers(-100, 100)))
    return spaces.MultiDiscrete(nvec, dtype=draw(st.sampled_from([np.int16, np.int32, np.int64])), start=start)


discretes = st.builds(spaces.Discrete, st.integers(1, 2**62), start=st.integers(-(2**62), 2**62))
multi_binaries = st.builds(
    spaces.MultiBinary, st.integers(1, 5) | st.lists(st.integers(1, 3), min_size=1, max_size=3).map(tuple)
)
texts = st.builds(
    lambda shortest, more, charset: spaces.Text(shortest + more, min_length=shortest, charset=charset),
    *(st.integers(0, 5), st.integers(0, 2**60), st.text(min_size=1)),
)
simple_spaces = boxes() | discretes | multi_discretes() | multi_binaries | texts


@st.composite
def with_metadata(draw: st.DrawFn, inner: st.SearchStrategy[Space[Any]]) -> Space[Any]:
    space, given = draw(inner), draw(metadata)
    return space if given is None else annotated(space, **given)


def _containers(inner: st.SearchStrategy[Space[Any]]) -> st.SearchStrategy[Space[Any]]:
    return with_metadata(
        st.dictionaries(st.text(max_size=5), inner, max_size=3).map(OrderedDict).map(spaces.Dict)
        | st.lists(inner, max_size=3).map(spaces.Tuple)
        | st.lists(inner, min_size=1, max_size=3).map(spaces.OneOf)
        | st.builds(spaces.Sequence, inner, stack=st.booleans())
        | st.builds(spaces.Graph, boxes() | discretes, st.none() | boxes() | discretes)
    )


nested_spaces = st.recursive(with_metadata(simple_spaces), _containers, max_leaves=6)
"""A Hypothesis strategy: spaces of all kinds in one another, some of them with metadata."""
