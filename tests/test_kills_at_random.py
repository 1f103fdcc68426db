"""Processes that are killed at random instants lose no episode that is on disk, and seconds of what was running."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SLACK = 2.0
"""Seconds by which a busy machine may keep the worker, and whoever notices that, from running."""


def kill(folder: Path, seed: int, count: int) -> dict[str, Any]:
    script = Path(__file__).with_name("killing.py")
    command = [sys.executable, str(script), str(folder), str(seed), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert not found["faults"], "\n".join(f"{seed}: {case}: {fault}" for seed, case, fault in found["faults"])
    for every, lost in found["lost"].items():
        assert lost["max"] <= float(every) + 1 + SLACK, found["lost"]
    return found


@pytest.mark.timeout(600)
def test_some_kills_cost_seconds_and_no_episode(tmp_path: Path) -> None:
    assert kill(tmp_path, 0, 20)["killed"] >= 20


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_thousand_kills_cost_seconds_and_no_episode(tmp_path: Path) -> None:
    found = kill(tmp_path, 1000, 800)
    assert found["killed"] >= 1000
    print(json.dumps(found, indent=1))
