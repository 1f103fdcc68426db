"""Batches: one row of the ring holds a value of every sub-environment, a *lane* each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recorder.columns import Array, Ragged, Rows, dense_take
from recorder.errors import RowError
from recorder.leaf import JSON_TEXT, TEXT, Leaf
from recorder.spaces.structure import (
    ArrayNode,
    DictNode,
    Node,
    NoNode,
    TextNode,
    TupleNode,
    columns_of,
    list_columns,
    listed_leaves,
)
from recorder.writing.pipeline import Ring

SHARED = frozenset({"time"})
"""Leaves of which a row holds one value for all lanes."""


PIECE_BYTES = 16 << 20
MOST_STEPS = 256
"""The worker takes over so many steps at once: a lane of a piece costs it some Python, which is then little a row."""


class LanesNode(Node):
    """A space whose values are no arrays: a batch of it is a tuple of values, one after another in ragged leaves."""

    def __init__(self, single: Node, lanes: int) -> None:
        self.single = single
        self.lanes = lanes
        self.leaves = listed_leaves(single.leaves)

    def flatten(self, value: Any) -> list[Any]:
        if not isinstance(value, tuple | list) or len(value) != self.lanes:
            raise RowError(f"{self.leaves[0].path!r} comes as a tuple of {self.lanes} values, got {value!r:.80}")
        return list_columns(self.single, columns_of(self.single, [self.single.flatten(item) for item in value]))

    def unflatten(self, values: Any) -> Any:
        raise NotImplementedError("a batch is never put together again")


def batched(node: Node, lanes: int) -> Node:
    """Return the structure of a batch of values, as Gymnasium batches them."""
    match node:
        case NoNode():
            return node
        case DictNode():
            return DictNode(node.path, {key: batched(inner, lanes) for key, inner in node.nodes.items()}, node.dropped)
        case TupleNode():
            return TupleNode(node.path, [batched(inner, lanes) for inner in node.nodes])
        case ArrayNode() if not isinstance(node, TextNode):
            return ArrayNode(_of_all(node.leaves[0], lanes), scalar=False)
    return LanesNode(node, lanes)


def batched_nodes(nodes: Mapping[str, Node], lanes: int) -> dict[str, Node]:
    """Return the structures of a row that holds all lanes."""
    return {name: node if name in SHARED else batched(node, lanes) for name, node in nodes.items()}


def _of_all(leaf: Leaf, lanes: int) -> Leaf:
    return replace(leaf, shape=(lanes, *leaf.shape))


class LanesRing(Ring):
    """A ring of which a row is one step of a vector environment."""

    def __init__(self, leaves: Sequence[Leaf], nodes: Mapping[str, Node]) -> None:
        """Take the leaves as they are known by now, and the structures of rows."""
        dtypes = {leaf.path: leaf.dtype for leaf in leaves}
        wide = [leaf for node in nodes.values() for leaf in node.leaves]
        super().__init__([replace(leaf, dtype=dtypes.get(leaf.path, leaf.dtype)) for leaf in wide])
        row_bytes = sum(leaf.nbytes for leaf in self.leaves.values()) or 1
        most = min(self.rows // 4, MOST_STEPS, PIECE_BYTES // row_bytes)
        self.batch = max(self.batch, 1 << max(most, 1).bit_length() - 1)
        self.limit = self.batch

    def set_leaf(self, leaf: Leaf) -> None:
        super().set_leaf(replace(self.leaves[leaf.path], dtype=leaf.dtype))


def first_of_lanes(node: Node, value: Any, leaves: Mapping[str, Leaf]) -> Iterable[tuple[Leaf, Any]]:
    """Yield the leaves of a lane as the first batch decides them, and the value of the first lane."""
    for leaf, part in zip(node.leaves, node.flatten(value), strict=True):
        decided = leaf.of(part)
        fitted = decided.fit(part)
        if leaf.path in leaves:
            yield replace(leaves[leaf.path], dtype=decided.dtype), fitted[0] if len(fitted) else fitted


def lane_by_lane(rows: Rows, lengths: Rows | None, leaf: Leaf, lanes: int) -> Array | Ragged:
    """Return `steps` rows of all lanes as the rows of the first lane, then those of the second, and so on.

    `lengths` are those of the rows of each lane, where `leaf`, of one lane, is ragged.
    """
    if isinstance(rows, np.ndarray):
        return np.ascontiguousarray(rows.swapaxes(0, 1)).reshape(-1, *leaf.shape)
    assert isinstance(rows, Ragged)
    order = np.arange(len(rows) * lanes).reshape(len(rows), lanes).T.ravel()
    if lengths is None:
        return dense_take(rows.values, order)
    assert isinstance(lengths, Ragged)
    return dense_take(Ragged(lengths.values, rows.values), order)


def fitted_rows(node: Node, leaves: Mapping[str, Leaf], values: Sequence[Any]) -> dict[str, list[Any]]:
    """Return values of single lanes leaf by leaf, checked and copied.

    Raises:
        RowError: one of them does not fit.
    """
    rows: dict[str, list[Any]] = {leaf.path: [] for leaf in node.leaves}
    for value in values:
        for leaf, part in zip(node.leaves, node.flatten(value), strict=True):
            rows[leaf.path].append(_own(leaves[leaf.path].fit(part)))
    return rows


def _own(value: Any) -> Any:
    return value if isinstance(value, str) else np.array(value)


def nothing(leaf: Leaf) -> NDArray[Any] | str:
    """Return what stands in a row that the environment did not give: NaN where there is one, else zeros."""
    if leaf.dtype in (TEXT, JSON_TEXT) and not leaf.ragged:
        return ""
    if leaf.ragged:
        return np.empty((0, *leaf.shape), leaf.numpy_dtype)
    return np.full(leaf.shape, np.nan if leaf.numpy_dtype.kind in "fc" else 0, leaf.numpy_dtype)
