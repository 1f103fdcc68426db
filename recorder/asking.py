"""Asking: the numbers and names that arguments may be, said in one sentence where one is none of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from recorder.errors import LayoutError, RecorderError


def whole(
    name: str, value: Any, least: int, most: int | None = None, *, error: type[RecorderError] = LayoutError
) -> int:
    """Return an argument as an int.

    Raises:
        RecorderError: `error`, where it is no whole number, or lies outside of what is allowed.

    >>> whole("workers", 4, 1)
    4
    """
    is_whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not is_whole or value < least or (most is not None and value > most):
        wanted = f"a whole number from {least} on" if most is None else f"a whole number from {least} to {most:,}"
        raise error(f"{name}={value!r}: {wanted}")
    return int(value)


def names(name: str, value: Iterable[str], *, error: type[RecorderError] = LayoutError) -> list[str]:
    """Return some names as a list; a single one would be taken for as many names as it has letters.

    Raises:
        RecorderError: `error`, where it is a single one, or none.

    >>> names("keys", ("action", "reward"))
    ['action', 'reward']
    """
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise error(f"{name}={value!r}: a list of names, such as [{value!r}]")
    return list(value)
