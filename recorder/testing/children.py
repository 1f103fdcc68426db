"""Work in a forked child."""

from __future__ import annotations

import gc
import os
import time
import traceback
import warnings
from collections.abc import Callable
from typing import NoReturn

import pytest

CHILD_SECONDS = 60.0
"""A forked child that has not ended by then hangs."""


def in_child(work: Callable[[], None]) -> None:
    """Do work in a forked child, and fail if it fails or hangs there."""
    gc.collect()  # encoders that other tests dropped: an AV1 encoder that a forked child frees hangs there
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of threads
        child = os.fork()
    if not child:
        _work_and_exit(work)
    end = time.monotonic() + CHILD_SECONDS
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > end:
            os.kill(child, 9)
            os.waitpid(child, 0)
            pytest.fail("a forked child hangs")
        time.sleep(0.002)
    assert ended[1] == 0, "it failed in a forked child"


def _work_and_exit(work: Callable[[], None]) -> NoReturn:
    code = 1
    try:
        work()
        code = 0
    except BaseException:  # noqa: BLE001  # told, and then this child ends
        traceback.print_exc()
    finally:
        os._exit(code)
