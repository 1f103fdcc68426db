"""Numbers, arrays and dtypes as strict JSON, and back.

Numbers that JSON cannot carry are strings: `"inf"`, `"-inf"`, `"nan"`, and integers beyond 2**53 in decimal.
An array is one number where all its elements are that number, else the list of its elements in C order.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, SupportsInt, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from recorder.errors import SpaceError

_NATIVE = [np.dtype(np.dtype(code).name) for code in "?bhilqBHILQefd"]
_SWAPPED = [dtype.newbyteorder() for dtype in _NATIVE if dtype.itemsize > 1]

DTYPES = {dtype.name: dtype for dtype in _NATIVE} | {dtype.str: dtype for dtype in _SWAPPED}
"""The dtypes of spaces by name; those of the other byte order have names such as `>f4`."""

Number: TypeAlias = int | float | Annotated[str, msgspec.Meta(pattern=r"^(nan|-?inf|-?[0-9]{1,20})\Z")]
Numbers: TypeAlias = Number | list[Number]
Integer: TypeAlias = int | Annotated[str, msgspec.Meta(pattern=r"^-?[0-9]{1,20}\Z")]
Length: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
Shape: TypeAlias = tuple[Length, ...]


def number_to_json(value: float) -> Number:
    """Return a Python number as one that every parser of JSON reads exactly.

    >>> number_to_json(0.5), number_to_json(float("-inf")), number_to_json(2**63 - 1)
    (0.5, '-inf', '9223372036854775807')
    """
    if isinstance(value, int):
        return integer_to_json(value)
    return value if math.isfinite(value) else str(value)


def integer_to_json(value: SupportsInt) -> Integer:
    """Return an integer of Python or NumPy as one that every parser of JSON reads exactly."""
    number = int(value)
    return number if abs(number) <= 2**53 else str(number)


def numbers_to_json(array: NDArray[Any]) -> Numbers:
    """Return the elements of an array: one number if they are equal bit for bit, else all in C order."""
    flat = np.ascontiguousarray(array).reshape(-1)
    bits = flat.view(f"u{flat.itemsize}")
    if flat.size and (bits == bits[0]).all():
        return number_to_json(flat[0].item())
    return [number_to_json(value) for value in flat.tolist()]


def numbers_from_json(data: Numbers, shape: Shape, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the array that `numbers_to_json` wrote; an infinity among integers is the dtype's own limit.

    Raises:
        ValueError: there are more or fewer numbers than `shape` says, or one that `dtype` cannot hold.
    """
    convert = _float if dtype.kind == "f" else _integer
    values = [convert(value, dtype) for value in (data if isinstance(data, list) else [data])]
    array = np.array(values, dtype=dtype)
    return array.reshape(shape) if isinstance(data, list) else np.full(shape, array[0], dtype=dtype)


def _float(value: Number, dtype: np.dtype[Any]) -> float:
    number = float(value)
    if math.isfinite(number) and abs(number) > float(np.finfo(dtype).max):
        raise ValueError(f"{number} is beyond {dtype}")
    return number


def _integer(value: Number, dtype: np.dtype[Any]) -> int:
    lowest, highest = (0, 1) if dtype.kind == "b" else (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    match value:
        case "inf":
            return highest
        case "-inf":
            return lowest
    number = int(value)
    if (isinstance(value, float) and number != value) or not lowest <= number <= highest:
        raise ValueError(f"{value} is no {dtype}")
    return number


def dtype_to_json(dtype: Any) -> str:
    """Return the name of a dtype in `DTYPES`.

    Raises:
        SpaceError: it is none of those, `longdouble` or `object` for example.
    """
    dtype = np.dtype(dtype)
    name = str(dtype.name if dtype.isnative else dtype.str)
    if name not in DTYPES:
        raise SpaceError(f"the dtype {name} is not kept, those are {', '.join(DTYPES)}: wrap the environment")
    return name


def dtype_from_json(name: str) -> np.dtype[Any]:
    """Return the dtype of that name; raise `ValueError` if it is none of `DTYPES`."""
    if name not in DTYPES:
        raise ValueError(f"{name!r} is no dtype of a space, those are {', '.join(DTYPES)}")
    return DTYPES[name]
