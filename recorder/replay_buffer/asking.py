"""Asking: the whole numbers that arguments may be, said in one sentence where one is none of them."""

from __future__ import annotations

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
