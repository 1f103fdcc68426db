"""Memory of the ring is given before a step needs it."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

import numpy as np
import pytest

from recorder.leaf import Leaf
from recorder.writing.pipeline import Ring
from recorder.writing.resident import make_resident


def resident() -> int:
    """Return the bytes of memory that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def is_old() -> bool:
    major, minor, *_ = platform.release().split(".")
    return (int(major), int(minor.split("-")[0])) < (5, 14)


@pytest.mark.skipif(sys.platform != "linux" or is_old(), reason="the system cannot be asked for pages")
def test_pictures_have_their_memory_before_the_first_is_put() -> None:
    ring = Ring([Leaf("observation", (480, 640, 3), "uint8", "image")])
    before = resident()
    ring.make_resident()
    assert resident() - before > 50e6
    slots = ring.slots["observation"]
    assert isinstance(slots, np.ndarray)
    assert slots.nbytes > 50e6


@pytest.mark.parametrize("length", [0, 1, 100, (1 << 20) + 1, (4 << 20) + 4097])
@pytest.mark.parametrize("first", [0, 1, 4095])
def test_what_is_in_it_stays(length: int, first: int) -> None:
    array = np.arange(first + length, dtype=np.uint32).view(np.uint8)[first : first + length]
    before = array.copy()
    make_resident(array)
    assert (array == before).all()
