"""A conversion that dies, or fails, at any operation on the disk leaves whole episodes, and goes on to the same."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from killing import complete, contents, episode

from recorder import NotAReplayBufferError, ReplayBuffer

SCRIPT = str(Path(__file__).with_name("killing.py"))


def points(mode: str, what: str, zarr_format: int, folder: Path, first: int, step: int) -> dict[str, Any]:
    command = [sys.executable, SCRIPT, mode, what, str(zarr_format), str(folder), str(first), str(step)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert not found["faults"], "\n".join(f"at {at}: {text}" for at, text in found["faults"].items())
    return found


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("mode", "what", "zarr_format", "step"),
    [("die", "arrays", 3, 53), ("fail", "arrays", 2, 67), ("fail", "video", 3, 47), ("die", "zarr", 2, 83)],
)
def test_some_operations_of_making_a_buffer(tmp_path: Path, mode: str, what: str, zarr_format: int, step: int) -> None:
    assert points(mode, what, zarr_format, tmp_path, 11, step)["tried"] >= 4


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("what", ["arrays", "zarr", "video"])
@pytest.mark.parametrize("mode", ["die", "fail"])
def test_every_operation_of_making_a_buffer(tmp_path: Path, mode: str, what: str, zarr_format: int) -> None:
    found = points(mode, what, zarr_format, tmp_path, 1, 1)
    assert found["tried"] == found["operations"] > 100


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("mode", "zarr_format", "step"), [("die", 3, 23), ("fail", 2, 29)])
def test_some_operations_of_overwriting_a_buffer(tmp_path: Path, mode: str, zarr_format: int, step: int) -> None:
    assert points(mode, "overwrite", zarr_format, tmp_path, 7, step)["tried"] >= 4


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("mode", ["die", "fail"])
def test_every_operation_of_overwriting_a_buffer(tmp_path: Path, mode: str, zarr_format: int) -> None:
    found = points(mode, "overwrite", zarr_format, tmp_path, 1, 1)
    assert found["tried"] == found["operations"] > 50


def killed_at_random_instants(folder: Path, kills: int, zarr_format: int) -> None:
    """Kill a conversion again and again, each time further on, and compare what it ends as with one that was not.

    One that came to its end before it was killed is not gone on with: to a whole buffer, `append` adds all once more.
    """
    command = [sys.executable, SCRIPT, "once", "arrays", str(zarr_format)]
    (folder / "whole").mkdir()
    begun = time.monotonic()
    subprocess.run([*command, str(folder / "whole")], check=True)
    longest = time.monotonic() - begun
    left, chance = kills, random.Random(zarr_format)
    for attempt in count():
        if not left:
            break
        place = folder / f"attempt-{attempt}"
        place.mkdir()
        for _ in range(3):
            child = subprocess.Popen([*command, str(place)])
            try:
                child.wait(longest * chance.uniform(0.3, 1.0))
            except subprocess.TimeoutExpired:
                child.send_signal(signal.SIGKILL)
                child.wait()
                left -= left > 0
            check(place / "run")
            if complete(place / "run"):
                break
        else:
            subprocess.run([*command, str(place)], check=True)
        assert contents(place / "run") == contents(folder / "whole" / "run")


def check(path: Path) -> None:
    try:
        buffer = ReplayBuffer(path)
    except NotAReplayBufferError:
        return
    for i in range(buffer.n_episodes):
        found, meant = buffer.episode(i), episode(i)
        for key in meant:
            np.testing.assert_array_equal(found[key], meant[key])


@pytest.mark.timeout(300)
def test_a_few_kills_at_random_instants(tmp_path: Path) -> None:
    killed_at_random_instants(tmp_path, 3, 3)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_hundred_kills_at_random_instants(tmp_path: Path, zarr_format: int) -> None:
    killed_at_random_instants(tmp_path, 100, zarr_format)
