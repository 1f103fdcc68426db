"""Memory that is there before it is needed: the first touch of a page takes the system longer than a copy into it."""

from __future__ import annotations

import ctypes
import mmap
import sys

from recorder.columns import Array

POPULATE_WRITE = 23
"""`MADV_POPULATE_WRITE` of Linux 5.14: pages are given as by a write, and what is in them stays."""

LEAST_BYTES = 1 << 20
"""Smaller arrays are left as they are."""


def make_resident(array: Array) -> None:
    """Let the system give all pages of a large array now; where it cannot be asked, nothing happens.

    Others may write into the array meanwhile, and the interpreter is free.
    """
    if sys.platform != "linux" or array.nbytes < LEAST_BYTES:
        return
    first = -(-array.ctypes.data // mmap.PAGESIZE) * mmap.PAGESIZE
    length = array.ctypes.data + array.nbytes - first
    ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(length), POPULATE_WRITE)
