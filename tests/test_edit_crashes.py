"""An edit that dies, or fails, at any operation leaves each episode there once, as it was or as it is to be."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


def crash(mode: str, what: str, folder: Path, first: int, step: int) -> dict[str, Any]:
    script = Path(__file__).with_name("crashing_edits.py")
    command = [sys.executable, str(script), mode, what, str(folder), str(first), str(step)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert not found["faults"], "\n".join(f"at {at}: {text}" for at, text in found["faults"].items())
    return found


WHAT = ["compact", "rewrite", "delete", "clear", "evict", "merge"]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("mode", ["die", "fail"])
@pytest.mark.parametrize("what", WHAT)
def test_some_operations_of_an_edit(tmp_path: Path, mode: str, what: str) -> None:
    found = crash(mode, what, tmp_path, 2, 37)
    assert found["tried"] >= 2


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("mode", ["die", "fail"])
@pytest.mark.parametrize("what", WHAT)
def test_every_operation_of_an_edit(tmp_path: Path, mode: str, what: str) -> None:
    found = crash(mode, what, tmp_path, 1, 1)
    assert found["tried"] > found["operations"] > 20
