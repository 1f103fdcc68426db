"""A leaf: one array-valued position of a space, its path, and what a value of it must look like."""

from __future__ import annotations

import hashlib
import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from recorder.errors import FormatError, RowError
from recorder.limits import limits

Per = Literal["moment", "transition"]
JSON = Any

TEXT, JSON_TEXT = "text", "json"
"""The dtypes of leaves that are no arrays: strings, and values kept as JSON."""

MOMENT_NAMES = frozenset({"observation", "info", "time", "render", "state"})
"""First parts of a path whose leaves have a row for the reset and one for each step."""

RESERVED_NAMES = MOMENT_NAMES | {
    "action",
    "reward",
    "terminated",
    "truncated",
    "extra",
    "repeated",
    "digest",
}
"""First parts of a path that mean something to this package."""

NUMBERS = frozenset(np.dtype(code).name for code in "?bBhHiIlLqQefdFD")
"""The dtypes that a leaf of numbers may have."""

NAME_BYTES = 200
"""A longer name of a key is cut and told apart by a hash: file systems allow 255 bytes."""


@dataclass(frozen=True)
class Leaf:
    """One array-valued position of a space: `observation/camera/front`.

    `shape` and `dtype` are those of one row; a `ragged` leaf has rows of shape `(n, *shape)` with a new `n` each
    time. `dtype` is a NumPy name, or `text` for strings, or `json` for values that are no array. `per` says whether
    the leaf has a row for each moment (T+1 in an episode of T steps) or for each transition (T). A `sparse` leaf is
    absent from some rows, as a key of `info` is.
    """

    path: str
    shape: tuple[int, ...] = ()
    dtype: str = "float64"
    kind: str = "other"
    per: Per = "moment"
    ragged: bool = False
    sparse: bool = False
    metadata: Mapping[str, JSON] = field(default_factory=dict)
    why: str = field(default="", compare=False)

    @cached_property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The dtype of the arrays that hold this leaf: `object` for text and ragged rows of text."""
        return np.dtype(object if self.dtype in (TEXT, JSON_TEXT) else self.dtype)

    @property
    def fixed(self) -> bool:
        """Whether each row is an array of one shape, as storages for pictures and numbers need."""
        return not (self.ragged or self.sparse or self.dtype in (TEXT, JSON_TEXT))

    @property
    def nbytes(self) -> int:
        """Bytes of one row as it lies in memory; of a ragged row or a text, those of one element."""
        return math.prod(self.shape) * self.numpy_dtype.itemsize

    def __hash__(self) -> int:
        return hash((self.path, self.shape, self.dtype, self.per))

    def of(self, value: Any) -> Leaf:
        """Return this leaf with the dtype that its first row decides.

        Arrays and NumPy scalars keep their own dtype. Python scalars and lists take the leaf's where that is
        exact, else NumPy's choice for them.
        """
        if self.dtype in (TEXT, JSON_TEXT) or (self.ragged and not len(value)):
            return self
        array = as_array(self, value)
        if array.dtype == self.numpy_dtype:
            return self
        if not isinstance(value, np.ndarray | np.generic) and cast_exactly(array, self.numpy_dtype) is not None:
            return self
        return replace(self, dtype=array.dtype.name)

    def fit(self, value: Any) -> Any:
        """Return `value` as an array of this leaf's shape and dtype (a `str` for text).

        Raises:
            RowError: the shape differs, or the dtype does and the cast would change a value.
        """
        if self.dtype in (TEXT, JSON_TEXT):
            return self._fit_text(value)
        array = as_array(self, value)
        shape = array.shape[1:] if self.ragged else array.shape
        if shape != self.shape or (self.ragged and array.ndim == 0):
            raise RowError(f"{self.path!r} has shape {self._shape_text()}, got {array.shape}")
        if array.dtype == self.numpy_dtype:
            return array
        exact = cast_exactly(array, self.numpy_dtype)
        if exact is None:
            raise RowError(
                f"{self.path!r} is {self.dtype}, got {array.dtype} with values that are not exact in {self.dtype}; "
                f"convert it in the environment, or record into a new folder, where the first row decides the dtype"
            )
        return exact

    def _fit_text(self, value: Any) -> Any:
        if self.ragged:
            return text_array([self._text(item) for item in value])
        return self._text(value)

    def _text(self, value: Any) -> str:
        if not isinstance(value, str):
            raise RowError(f"{self.path!r} is text, got {type(value).__name__} {value!r:.80}")
        longest = self.metadata.get("max_length")
        if longest is not None and len(value) > longest:
            raise RowError(f"{self.path!r} holds at most {longest} characters, got {len(value)}: {value!r:.80}")
        return str(value)

    def _shape_text(self) -> str:
        return f"(n, {', '.join(map(str, self.shape))})" if self.ragged else str(self.shape)


def as_array(leaf: Leaf, value: Any) -> NDArray[Any]:
    """Return `value` as an array of numbers, or raise `RowError` that names the leaf."""
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        masked = int(np.ma.getmaskarray(value).sum())
        raise RowError(f"{leaf.path!r} has {masked} masked values, for which an array has no place")
    try:
        array = np.asarray(value)
    except (ValueError, TypeError) as error:
        raise RowError(f"{leaf.path!r} is an array of {leaf.dtype} {leaf.shape}, got {value!r:.80}: {error}") from error
    if array.dtype.name not in NUMBERS:
        got = f"{type(value).__name__} {value!r:.80}" if array.dtype.kind not in "fc" else str(array.dtype)
        raise RowError(f"{leaf.path!r} is an array of {leaf.dtype} {leaf.shape}, got {got}")
    return array


def cast_exactly(array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any] | None:
    """Return `array` as `dtype` if every value survives, else None."""
    if array.dtype.kind == "c" and dtype.kind != "c":
        return None
    if array.dtype.kind in "iuf" and dtype.kind in "iu" and not _within(array, dtype):
        return None
    with np.errstate(all="ignore"):
        cast = array.astype(dtype)
        if array.dtype.kind in "iu" and dtype.kind in "fc" and _beyond_mantissa(array, dtype):
            finite = bool(np.isfinite(cast).all())
            exact = finite and all(int(a) == int(b) for a, b in zip(array.flat, cast.real.flat, strict=True))
            return cast if exact else None
        back = (cast if array.dtype.kind == "c" else cast.real).astype(array.dtype)
    return cast if _equal(back, array) else None


def _equal(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Whether two arrays of one dtype hold the same values; NumPy takes any two complex NaN for equal."""
    if one.dtype.kind == "c":
        return _equal(one.real, other.real) and _equal(one.imag, other.imag)
    return np.array_equal(one, other, equal_nan=one.dtype.kind == "f")


def _within(array: NDArray[Any], dtype: np.dtype[Any]) -> bool:
    """Whether all of `array` lies in the range of an integer dtype; NumPy itself would wrap or saturate."""
    if not array.size:
        return True
    limits = np.iinfo(dtype)
    smallest, largest = array.min(), array.max()
    if array.dtype.kind == "f":
        return float(smallest) >= float(limits.min) and float(largest) < float(limits.max) + 1
    return int(smallest) >= limits.min and int(largest) <= limits.max


def _beyond_mantissa(array: NDArray[Any], dtype: np.dtype[Any]) -> bool:
    """Whether an integer of `array` may have more digits than a float of `dtype` holds."""
    limit = 2 ** (np.finfo(dtype).nmant + 1)
    return bool(array.size) and (int(array.max()) > limit or int(array.min()) < -limit)


def text_array(items: Sequence[Any]) -> NDArray[Any]:
    """Return `items` as a one-dimensional array of objects, whatever they are."""
    array = np.empty(len(items), dtype=object)
    array[:] = items
    return array


_UNSAFE = re.compile(r"[/%\\\x00-\x1f\x7f\ud800-\udfff]")
_CODED = re.compile(r"%[0-7][0-9A-F]|%ED%[AB][0-9A-F]%[89AB][0-9A-F]")
_EMPTY = "%-"


def encode_key(key: str) -> str:
    """Return `key` as one part of a path: the same for files, HDF5, Parquet, zarr and the command line.

    >>> encode_key("a/b"), encode_key(".."), encode_key("bottom burner")
    ('a%2Fb', '%2E%2E', 'bottom burner')
    """
    if key in (".", ".."):
        return "%2E" * len(key)
    name = _UNSAFE.sub(lambda match: _percent(match.group()), key) or _EMPTY
    return name if len(name.encode()) <= NAME_BYTES else _with_hash(name, key)


def decode_key(name: str) -> str:
    """Return the key of which `encode_key` made `name`; of a name that was cut, the cut name."""
    if name == _EMPTY:
        return ""
    return _CODED.sub(
        lambda match: bytes.fromhex(match.group().replace("%", "")).decode("utf-8", "surrogatepass"), name
    )


def encode_keys(keys: Sequence[str]) -> list[str]:
    """Return the parts of a path for keys that stand side by side, different even where case is ignored."""
    names: list[str] = []
    seen: set[str] = set()
    for key in keys:
        name = encode_key(key)
        if _folded(name) in seen:
            name = _with_hash(name, key)
        while _folded(name) in seen:  # that name, too, is the key of a sibling
            name = _with_hash(name, name)
        seen.add(_folded(name))
        names.append(name)
    return names


def _folded(name: str) -> str:
    """Return what names have in common that differ in case or in how their accents are coded."""
    return unicodedata.normalize("NFD", unicodedata.normalize("NFD", name).casefold())


def join(*parts: str) -> str:
    """Join the parts of a path that are not empty."""
    return "/".join(part for part in parts if part)


def _percent(characters: str) -> str:
    return "".join(f"%{byte:02X}" for byte in characters.encode("utf-8", "surrogatepass"))


def _with_hash(name: str, key: str) -> str:
    digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{name.encode()[: NAME_BYTES - 13].decode('utf-8', 'ignore')}~{digest}"


def leaf_to_json(leaf: Leaf) -> dict[str, JSON]:
    """Return what a file says of `leaf`; what has its default is left out, but for shape and dtype."""
    data: dict[str, JSON] = {"path": leaf.path, "shape": list(leaf.shape), "dtype": leaf.dtype, "kind": leaf.kind}
    data["per"] = leaf.per
    if leaf.ragged:
        data["ragged"] = True
    if leaf.sparse:
        data["sparse"] = True
    if leaf.metadata:
        data["metadata"] = dict(leaf.metadata)
    return data


def leaf_from_json(data: JSON) -> Leaf:
    """Return the leaf that `leaf_to_json` wrote.

    Raises:
        FormatError: the data is not of that form, or its dtype holds anything but plain numbers.
    """
    try:
        leaf = Leaf(**{**data, "shape": tuple(data["shape"])})
    except (TypeError, KeyError, ValueError) as error:
        raise FormatError(
            f"a leaf is an object with path, shape, dtype, kind and per, got {data!r:.120}: {error}"
        ) from error
    if not _possible(leaf):
        raise FormatError(f"no leaf of a recording looks like this: {data!r:.120}")
    if leaf.nbytes > limits().row_bytes:
        raise FormatError(
            f"a row of {leaf.path!r} has {leaf.nbytes:,} bytes, more than the {limits().row_bytes:,} that are read; "
            f"set_limits(Limits(row_bytes=...)) reads more"
        )
    return leaf


_OUTSIDE = re.compile(r"(?:^|/)\.{0,2}(?:/|$)|[\\\x00-\x1f\x7f\ud800-\udfff]")
"""What no path has: parts that are empty or lead elsewhere, and characters that are always encoded."""


def _possible(leaf: Leaf) -> bool:
    """Return whether a leaf that a file describes is one that could have been written."""
    words = all(isinstance(word, str) for word in (leaf.path, leaf.dtype, leaf.kind))
    flags = all(isinstance(flag, bool) for flag in (leaf.ragged, leaf.sparse))
    sizes = all(type(side) is int and 0 <= side <= 2**31 for side in leaf.shape) and len(leaf.shape) <= 32
    if not (words and flags and sizes and isinstance(leaf.metadata, Mapping)):
        return False
    dtypes = NUMBERS | {TEXT, JSON_TEXT}
    return leaf.dtype in dtypes and leaf.per in ("moment", "transition") and not _OUTSIDE.search(leaf.path)
