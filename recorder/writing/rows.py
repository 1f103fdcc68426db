"""Rows on their way into the ring: one check and one copy a leaf, by code that is made once for a space.

A walk over the space at every step costs more than a small simulator's step, so the walk is written down once as
straight Python code. Where that code finds anything out of the ordinary, the plain walk does the row again: it casts
what is exact and names what is wrong.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from recorder.columns import Array, Rows, ragged
from recorder.errors import RowError
from recorder.leaf import TEXT, Leaf, text_array
from recorder.spaces.structure import ArrayNode, DictNode, Node, NoNode, TextNode, TupleNode

Slots = Array | list[Any]
"""Where the rows of a leaf go: an array `(rows, *shape)`; a list for text, ragged rows and the bytes of short ones."""

PACKED_BYTES = 256
"""Arrays up to this size are kept as bytes: a copy into `bytes` takes a quarter of the time of one into an array."""

_SCALARS: Mapping[str, tuple[type, ...]] = {
    "float64": (float, np.float64),
    "float32": (np.float32,),
    "int64": (int, np.int64),
    "int32": (np.int32,),
    "int8": (np.int8,),
    "uint8": (np.uint8,),
    "bool": (bool, np.bool_),
}
_numbers = count()


class Mismatch(Exception):  # noqa: N818 - a signal that never leaves this module's callers
    """The fast code met a row that it leaves to the plain walk."""


class Room(NamedTuple):
    """Where rows go: the slots of each leaf, as many as there are rows, or a power of two less for pictures.

    What is `skipped` is checked, and not copied.
    """

    leaves: Mapping[str, Leaf]
    slots: Mapping[str, Slots]
    skipped: Collection[str] = ()

    @property
    def rows(self) -> int:
        """How many rows there is room for."""
        return max(map(len, self.slots.values()), default=0)


class Code(NamedTuple):
    """Lines of Python under construction, and the objects that they name."""

    lines: list[str]
    names: dict[str, Any]

    def name(self, value: Any) -> str:
        """Return a name for an object that the lines may use."""
        name = f"_{len(self.names)}"
        self.names[name] = value
        return name


class Put(NamedTuple):
    """Two functions `(i, *values)` that check values of some structures and copy them into slot `i`.

    `fast` raises anything where a value is not just as expected; then `slow` does it all again, casts what is exact,
    and raises `RowError` that names the leaf. Slot `i` may then hold some leaves, which nobody may read.
    """

    fast: Callable[..., None]
    slow: Callable[..., None]


def compile_put(
    nodes: Mapping[str, Node],
    leaves: Mapping[str, Leaf],
    slots: Mapping[str, Slots],
    skipped: Collection[str] = (),
) -> Put:
    """Return the functions that put one value for each of `nodes`, in their order.

    `leaves` have the dtypes that the slots have. What is `skipped` is checked, and not copied.
    """
    arguments = [f"value{k}" for k in range(len(nodes))]
    names: dict[str, Any] = {}
    room = Room(leaves, slots, skipped)
    lines = put_lines(dict(zip(arguments, nodes.values(), strict=True)), room, names)
    fast = define("put", ["i", *arguments], lines, names)
    walks = [_slow_put(node, room) for node in nodes.values()]

    def slow(i: int, *values: Any) -> None:
        for walk, value in zip(walks, values, strict=True):
            walk(i, value)

    return Put(fast, slow)


def put_lines(arguments: Mapping[str, Node], room: Room, names: dict[str, Any]) -> list[str]:
    """Return the lines that put the values named by `arguments` into slot `i`, and add what they use to `names`."""
    names.update({"_ndarray": np.ndarray, "_Mismatch": Mismatch})
    code = Code([], names)
    for argument, node in arguments.items():
        _emit(node, argument, code, room)
    return code.lines or ["pass"]


def define(name: str, arguments: Sequence[str], lines: Sequence[str], names: dict[str, Any]) -> Callable[..., Any]:
    """Return the function that these lines define; a traceback through it shows them."""
    text = f"def {name}({', '.join(arguments)}):\n" + "\n".join(f"    {line}" for line in lines)
    file = f"<recorder {name} {next(_numbers)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    exec(compile(text, file, "exec"), names)  # noqa: S102 - the text is made of this package's lines only
    function: Callable[..., Any] = names[name]
    return function


def empty_slots(leaf: Leaf, rows: int) -> Slots:
    """Return slots for so many rows of a leaf."""
    if not leaf.fixed:
        return [None] * rows
    if leaf.shape and 0 < leaf.nbytes <= PACKED_BYTES:
        return [bytes(leaf.nbytes)] * rows
    return np.empty((rows, *leaf.shape), leaf.numpy_dtype)


def slot_rows(leaf: Leaf, slot: Slots, first: int, last: int) -> Rows:
    """Return the rows `[first, last)` of some slots; arrays are views of them."""
    if isinstance(slot, np.ndarray):
        return slot[first:last]
    items = slot[first:last]
    if leaf.fixed:
        return np.frombuffer(b"".join(items), leaf.numpy_dtype).reshape(len(items), *leaf.shape)
    if not leaf.ragged:
        return text_array([item if item is not None else "" for item in items])
    empty = np.empty((0, *leaf.shape), leaf.numpy_dtype)
    return ragged([item if item is not None else empty for item in items], leaf)


def _slow_put(node: Node, room: Room) -> Callable[[int, Any], None]:
    """Return the plain walk: it names the leaf, what was expected and what came."""
    targets = [(room.leaves[leaf.path], room.slots[leaf.path]) for leaf in node.leaves]

    def put(i: int, value: Any) -> None:
        for (leaf, slot), part in zip(targets, node.flatten(value), strict=True):
            value = leaf.fit(part)
            if leaf.path not in room.skipped:
                slot[i % len(slot)] = _own(leaf, slot, value)

    return put


def _own(leaf: Leaf, slot: Slots, value: Any) -> Any:
    """Return a value that nobody else holds; assignment to an array copies by itself."""
    if leaf.ragged:
        return np.array(value)
    return value.tobytes() if leaf.fixed and isinstance(slot, list) else value


def _emit(node: Node, source: str, code: Code, room: Room) -> None:
    """Add the lines that put the value named `source`."""
    match node:
        case NoNode():
            return
        case DictNode() | TupleNode():
            _emit_parts(node, source, code, room)
        case TextNode() if room.leaves[node.leaves[0].path].dtype == TEXT:
            leaf = room.leaves[node.leaves[0].path]
            longest = leaf.metadata.get("max_length", 2**31)
            code.lines.append(f"if {source}.__class__ is not str or len({source}) > {longest}: raise _Mismatch")
            code.lines.append(f"{code.name(room.slots[leaf.path])}[i] = {source}")
        case ArrayNode():
            _emit_array(room.leaves[node.leaves[0].path], source, code, room)
        case _:
            code.lines.append(f"{code.name(_slow_put(node, room))}(i, {source})")


def _emit_parts(node: DictNode | TupleNode, source: str, code: Code, room: Room) -> None:
    """Add the lines for the items of a Dict or Tuple."""
    classes = "(dict,)" if isinstance(node, DictNode) else "(tuple, list)"
    size = len(node.nodes) + (len(node.dropped) if isinstance(node, DictNode) else 0)
    code.lines.append(f"if {source}.__class__ not in {classes} or len({source}) != {size}: raise _Mismatch")
    items: Iterable[tuple[Any, Node]] = node.nodes.items() if isinstance(node, DictNode) else enumerate(node.nodes)
    for key, inner in items:
        part = f"part{len(code.lines)}"
        code.lines.append(f"{part} = {source}[{key!r}]")
        _emit(inner, part, code, room)


def _emit_array(leaf: Leaf, source: str, code: Code, room: Room) -> None:
    """Add the lines that check and copy one array or scalar."""
    slot = room.slots[leaf.path]
    if leaf.shape == () and leaf.dtype in _SCALARS:
        # A typed memoryview takes a number in half the time that an array needs.
        classes = code.name(frozenset(_SCALARS[leaf.dtype]))
        code.lines.append(f"if {source}.__class__ not in {classes}: raise _Mismatch")
        code.lines.append(f"{code.name(memoryview(slot))}[i] = {source}")  # type: ignore[arg-type]
        return
    dtype, shape = code.name(leaf.numpy_dtype), code.name(leaf.shape)
    code.lines.append(
        f"if {source}.__class__ is not _ndarray or {source}.dtype is not {dtype} or {source}.shape != {shape}: "
        f"raise _Mismatch"
    )
    if leaf.path not in room.skipped:
        place = "i" if len(slot) == room.rows else f"i & {len(slot) - 1}"
        code.lines.append(f"{code.name(slot)}[{place}] = {source}{'.tobytes()' if isinstance(slot, list) else ''}")


def refused(error: RowError, step: int) -> RowError:
    """Return the error of a row with what became of the episode."""
    return RowError(f"step {step} is not recorded: {error}. The episode goes on, and lists the step as refused")
