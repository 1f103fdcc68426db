"""The storage in the documentation: it keeps the contract, and its package brings it by an entry point."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from recorder.errors import FormatError
from recorder.storages import base
from recorder.testing import INFO_LEAVES, TABLE_LEAVES, StorageContract

PAGE = Path(__file__).parents[2] / "docs" / "storages.md"
ROOT = Path(__file__).parents[2]

SOME = ("observation/task", "observation/points", "observation/picture", "action/words", "action/int64")


def example() -> str:
    """Return the program in the documentation."""
    found = re.search(r"<!-- custom-storage -->\n```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    return found[1]


module = ModuleType("my_package")
sys.modules["my_package"] = module
exec(compile(example(), str(PAGE), "exec"), vars(module))  # our own page
Gzip: Any = vars(module)["GzipStorage"]


@pytest.fixture(autouse=True)
def _quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do without fsync where many files are written."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture(autouse=True)
def _known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register the storage for the tests of this file only."""
    monkeypatch.setattr(base, "_registered", {**base._registered, Gzip.id: Gzip})


class TestGzipStorage(StorageContract):
    storage, infos = Gzip(level=1), INFO_LEAVES
    leaves = tuple(leaf for leaf in TABLE_LEAVES if leaf.path in SOME)
    block = longest = 100


def test_it_has_ten_lines() -> None:
    body = example().split("class GzipStorage")[1].split("\n\n", 1)[1]
    assert len([line for line in body.splitlines() if line.strip()]) <= 10


RECORD = """
import sys, gymnasium as gym
from recorder import Recorder, layout
from my_package import GzipStorage
env = gym.make("CartPole-v1")
with Recorder(env, sys.argv[1], storage=layout(env, default=GzipStorage(level=2))) as env:
    env.reset(seed=0)
    for _ in range(5):
        env.step(0)
"""

READ = """
import sys
from recorder import Recording
recording = Recording(sys.argv[1])
assert "my_package" in sys.modules, "the entry point was used"
print(recording[0].actions.tolist(), recording.schema.storage.default)
"""


def run(program: str, folder: Path, path: str) -> subprocess.CompletedProcess[str]:
    """Run a program that finds packages in `path` too."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), path])}
    command = [sys.executable, "-c", program, str(folder)]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def test_a_package_brings_a_storage_by_an_entry_point(tmp_path: Path) -> None:
    installed = tmp_path / "site-packages"
    (installed / "my_package-1.0.dist-info").mkdir(parents=True)
    (installed / "my_package.py").write_text(example())
    (installed / "my_package-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\n")
    (installed / "my_package-1.0.dist-info" / "entry_points.txt").write_text(
        "[recorder.storages]\ngzip-npz = my_package:GzipStorage\n"
    )
    recorded = run(RECORD, tmp_path / "run", str(installed))
    assert recorded.returncode == 0, recorded.stderr
    assert list((tmp_path / "run" / "shards").glob("*/data.npz.gz"))
    found = run(READ, tmp_path / "run", str(installed))
    assert found.stdout.strip() == "[0, 0, 0, 0, 0] GzipStorage(level=2)", found.stderr
    without = run(READ, tmp_path / "run", "")
    assert "storage 'gzip-npz' is not known here, only" in without.stderr
    assert "install the package that brings it" in without.stderr


@pytest.mark.parametrize("value", ["json:dumps", "recorder.storages.npz:NpzStorage"])
def test_an_entry_point_that_is_no_storage_of_its_name_is_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    entry = EntryPoint("other", value, base.GROUP)
    monkeypatch.setattr(base, "entry_points", lambda group, name: [entry] if name == "other" else [])
    with pytest.raises(FormatError, match="no Storage of that id"):
        base.storage_from_json({"id": "other"})
