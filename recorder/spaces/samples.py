"""A plain space that has the samples of a space whose class nobody knows."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import singledispatch
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from recorder.errors import SpaceError
from recorder.spaces.array_json import dtype_to_json

TEXT_LENGTH = 2**16
"""The longest text of a space that has texts as samples."""

TEXT_CHARACTERS = "\t\n\r" + "".join(filter(str.isprintable, map(chr, range(0x250))))
"""The characters of such a text beside those of the sample: those of the Latin alphabets."""


def draw(space: Space[Any]) -> Any:
    """Return the sample of `space` under seed 0, whatever state it and the global generators are in."""
    copied = copy.deepcopy(space)
    with _global_generators_untouched():
        copied.seed(0)
        return copied.sample()


@contextmanager
def _global_generators_untouched() -> Iterator[None]:
    """Put the global random states back: some spaces draw from those."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


@singledispatch
def plain_like(sample: object) -> Space[Any]:
    """Return the widest space that has values such as `sample`: same structure, shapes and dtypes.

    >>> plain_like((1, np.zeros(2, "uint8")))
    Tuple(Box(-9223372036854775808, 9223372036854775807, (), int64), Box(0, 255, (2,), uint8))

    Raises:
        SpaceError: it is no array, number or text, nor a dict or tuple of those.
    """
    raise SpaceError(f"a sample is {type(sample).__name__} {sample!r:.80}, no array, number, text, dict or tuple")


@plain_like.register
def _(sample: str) -> Space[Any]:
    characters = dict.fromkeys(TEXT_CHARACTERS + "".join(sorted(set(sample))))
    return spaces.Text(TEXT_LENGTH, min_length=0, charset="".join(characters))


@plain_like.register(bool)
@plain_like.register(int)
@plain_like.register(float)
@plain_like.register(np.generic)
@plain_like.register(np.ndarray)
def _(sample: NDArray[Any] | complex) -> Space[Any]:
    array = np.asarray(sample)
    dtype_to_json(array.dtype)
    match array.dtype.kind:
        case "b":
            low, high = 0.0, 1.0
        case "u":
            low, high = 0, int(np.iinfo(array.dtype).max)
        case _:
            low, high = -np.inf, np.inf
    return spaces.Box(low, high, array.shape, array.dtype)


@plain_like.register
def _(sample: dict) -> Space[Any]:  # type: ignore[type-arg]  # register reads the annotation
    return spaces.Dict([(key, plain_like(value)) for key, value in sample.items()])


@plain_like.register
def _(sample: tuple) -> Space[Any]:  # type: ignore[type-arg]
    return spaces.Tuple([plain_like(value) for value in sample])
