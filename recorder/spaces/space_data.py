"""What a file says of a Gymnasium space: a class for each type of space, and how the space is made of it."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from recorder.errors import FormatError
from recorder.leaf import JSON, encode_keys
from recorder.spaces.array_json import DTYPES, Integer, Length, Numbers, Shape, dtype_from_json, numbers_from_json

DEEPEST = 64
"""A space nests no deeper than this."""

MOST_ELEMENTS = 2**27
"""The elements of all arrays of a space together: four stacked 4K pictures fit, bounds of 5 GB do not."""

ELEMENTS_OF_A_SPACE = 1000
"""What a space takes in memory beside its arrays, as elements: a pile of small ones is bounded too."""


class SpaceData(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    tag=lambda name: name.removesuffix("Data"),
):
    """What a file says of a space; one subclass for each type."""

    name: str | None = None
    metadata: dict[str, Any] | None = None

    def build(self) -> Space[Any]:
        """Return the space, without its metadata."""
        raise NotImplementedError

    def parts(self) -> Mapping[str, SpaceData]:
        """Return the spaces inside, by their part of a path."""
        return {}

    def elements(self) -> int:
        """Return the number of elements of each array that the space itself holds."""
        return 0

    def copies(self) -> int:
        """Return how often the space holds its parts."""
        return 1


class BoxData(SpaceData, frozen=True):
    """A Box."""

    shape: Shape
    dtype: str
    low: Numbers
    high: Numbers

    def build(self) -> Space[Any]:
        dtype = dtype_from_json(self.dtype)
        low, high = (numbers_from_json(bound, self.shape, dtype) for bound in (self.low, self.high))
        box: spaces.Box[Any] = spaces.Box(low, high, self.shape, dtype)
        box.bounded_below = np.asarray(box.bounded_below & ~_is(self.low, "-inf", self.shape))
        box.bounded_above = np.asarray(box.bounded_above & ~_is(self.high, "inf", self.shape))
        return box

    def elements(self) -> int:
        # Bounds have the dtype of the values, and two flags go with them: four bytes for each of uint8.
        bound = dtype_from_json(self.dtype).itemsize if self.dtype in DTYPES else 8
        return math.prod(self.shape) * (2 * bound + 2) // 4


class DiscreteData(SpaceData, frozen=True):
    """A Discrete."""

    n: Integer
    dtype: str
    start: Integer = 0

    def build(self) -> Space[Any]:
        n, start, dtype = int(self.n), int(self.start), dtype_from_json(self.dtype)
        if dtype == np.int64:
            return spaces.Discrete(n, start=start)
        return spaces.Discrete(n, start=start, dtype=dtype)


class MultiDiscreteData(SpaceData, frozen=True):
    """A MultiDiscrete."""

    shape: Shape
    dtype: str
    nvec: Numbers
    start: Numbers = 0

    def build(self) -> Space[Any]:
        dtype = dtype_from_json(self.dtype)
        nvec, start = (numbers_from_json(values, self.shape, dtype) for values in (self.nvec, self.start))
        return spaces.MultiDiscrete(nvec, dtype=dtype, start=start)

    def elements(self) -> int:
        return math.prod(self.shape)


class MultiBinaryData(SpaceData, frozen=True):
    """A MultiBinary; `n` is a number or a list, as it was given."""

    n: Length | Shape

    def build(self) -> Space[Any]:
        return spaces.MultiBinary(self.n)

    def elements(self) -> int:
        return self.n if isinstance(self.n, int) else math.prod(self.n)


class TextData(SpaceData, frozen=True):
    """A Text; `charset` has the order of its characters."""

    min_length: Integer
    max_length: Integer
    charset: str

    def build(self) -> Space[Any]:
        return spaces.Text(int(self.max_length), min_length=int(self.min_length), charset=self.charset)


class DictData(SpaceData, frozen=True):
    """A Dict; `sort_keys` is Gymnasium's, and older versions have none: whether batched spaces are sorted."""

    spaces: dict[str, AnySpaceData]
    sort_keys: bool = True

    def build(self) -> Space[Any]:
        space = spaces.Dict([(key, build_space(part)) for key, part in self.spaces.items()])
        if not self.sort_keys:
            space.sort_keys = False
        return space

    def parts(self) -> Mapping[str, SpaceData]:
        return dict(zip(encode_keys(list(self.spaces)), self.spaces.values(), strict=True))


class TupleData(SpaceData, frozen=True):
    """A Tuple."""

    spaces: list[AnySpaceData]

    def build(self) -> Space[Any]:
        return spaces.Tuple([build_space(part) for part in self.spaces])

    def parts(self) -> Mapping[str, SpaceData]:
        return {str(i): part for i, part in enumerate(self.spaces)}


class OneOfData(TupleData, frozen=True):
    """A OneOf."""

    def build(self) -> Space[Any]:
        return spaces.OneOf([build_space(part) for part in self.spaces])


class SequenceData(SpaceData, frozen=True):
    """A Sequence."""

    space: AnySpaceData
    stack: bool = False

    def build(self) -> Space[Any]:
        return spaces.Sequence(build_space(self.space), stack=self.stack)

    def parts(self) -> Mapping[str, SpaceData]:
        return {"": self.space}

    def copies(self) -> int:
        return 1 + self.stack


class GraphData(SpaceData, frozen=True):
    """A Graph, whose edges may carry nothing."""

    node_space: AnySpaceData
    edge_space: AnySpaceData | None

    def build(self) -> Space[Any]:
        edge_space = None if self.edge_space is None else build_space(self.edge_space)
        return spaces.Graph(build_space(self.node_space), edge_space)

    def parts(self) -> Mapping[str, SpaceData]:
        edges = {} if self.edge_space is None else {"edges": self.edge_space}
        return {"nodes": self.node_space, **edges}

    def copies(self) -> int:
        return 2


class OtherData(SpaceData, frozen=True):
    """A space of an unknown class, as the plain space that has the same samples."""

    space: AnySpaceData

    def build(self) -> Space[Any]:
        return build_space(self.space)

    def parts(self) -> Mapping[str, SpaceData]:
        return {"": self.space}


AnySpaceData = (
    BoxData
    | DiscreteData
    | MultiDiscreteData
    | MultiBinaryData
    | TextData
    | DictData
    | TupleData
    | OneOfData
    | SequenceData
    | GraphData
    | OtherData
)


def parse_space(data: JSON) -> AnySpaceData:
    """Return what JSON says of a space.

    Raises:
        FormatError: it is no space; the message names the type, the field or the value.
    """
    try:
        parsed: AnySpaceData = msgspec.convert(data, AnySpaceData)
    except msgspec.ValidationError as error:
        raise FormatError(f"not a space: {error}") from error
    except RecursionError as error:
        raise FormatError("not a space: it nests too deep") from error
    return parsed


def build_space(data: SpaceData) -> Space[Any]:
    """Return the space that `data` says, with its metadata.

    Raises:
        FormatError: there is no such space: a wrong number of bounds, an unknown dtype, low above high.
    """
    try:
        space = data.build()
    except FormatError:
        raise
    except (ValueError, TypeError, OverflowError, AssertionError) as error:
        kind = type(data).__name__.removesuffix("Data")
        raise FormatError(f"the file describes a {kind} that cannot be: {error}") from error
    if data.metadata is not None:
        vars(space)["metadata"] = copy.deepcopy(data.metadata)
    return space


def too_large(data: SpaceData) -> str:
    """Return why the space would take too much memory, before it does; empty if it would not."""
    if _weight(data) <= MOST_ELEMENTS:
        return ""
    return f"a space of more than {MOST_ELEMENTS} elements, or deeper than {DEEPEST}, is not kept"


def _weight(data: SpaceData, depth: int = 0) -> float:
    """Return the memory that the space takes, in elements; infinite if it is too deep."""
    if depth > DEEPEST:
        return math.inf
    inside = sum(_weight(part, depth + 1) for part in data.parts().values())
    return ELEMENTS_OF_A_SPACE + data.elements() + data.copies() * inside


def _is(values: Numbers, infinity: str, shape: Shape) -> NDArray[np.bool_]:
    """Return where `values` is that infinity."""
    if isinstance(values, list):
        return np.array([value == infinity for value in values], dtype=bool).reshape(shape)
    return np.full(shape, values == infinity)
