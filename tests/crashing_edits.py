"""Runs an edit again and again, and each time lets it die, or fail, one operation on the disk later.

    python tests/crashing_edits.py die|fail compact|rewrite|delete|clear|evict|merge FOLDER [FIRST STEP]

Prints one JSON object, as `crashing.py` does, whose bomb it uses.
"""

from __future__ import annotations

import json
import shutil
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
from crashing import STORAGE, attempt, die, fail
from environments import CountingEnv, roll

from recorder import Recorder, Recording
from recorder.discarded import list_discarded
from recorder.edit.compacting import compact
from recorder.edit.deleting import delete
from recorder.edit.merging import merge
from recorder.edit.rows import rewrite
from recorder.verify import verify
from recorder.writing import recovery
from recorder.writing.capacity import Capacity
from recorder.writing.clearing import clear

if __name__ == "__main__":
    recovery.UNBORN_SECONDS = 0.0  # of a staging folder that never got its name; not where tests import this
IDS = "ids.json"


def prepare(folder: Path) -> None:
    """Three writers with two episodes each; of one the rewards were changed, another was deleted."""
    for _ in range(3):
        with Recorder(
            CountingEnv(3, "rgb_array"), folder / "run", record_render=True, storage=STORAGE, verbose=False
        ) as env:
            roll(env)
            roll(env)
    ids = [episode.id for episode in Recording(folder / "run")]
    (folder / IDS).write_text(json.dumps(ids))
    with Recorder(
        CountingEnv(3, "rgb_array"), folder / "other", record_render=True, storage=STORAGE, verbose=False
    ) as env:
        roll(env)
        roll(env)
    rewrite(folder / "run", lambda episode: {"reward": episode.rewards * 10}, episodes=[ids[1]])
    delete(folder / "run", [ids[2]])


def known(folder: Path) -> list[str]:
    ids: list[str] = json.loads((folder / IDS).read_text())
    return ids


def compacting(folder: Path, acknowledge: Callable[[str], None]) -> None:
    compact(folder / "run")


def rewriting(folder: Path, acknowledge: Callable[[str], None]) -> None:
    ids = known(folder)
    rewrite(
        folder / "run", lambda episode: {"reward": np.full(3, 7.0), "render": None}, episodes=[ids[0], ids[4], ids[5]]
    )


def deleting(folder: Path, acknowledge: Callable[[str], None]) -> None:
    wanted = [known(folder)[i] for i in (4, 5)]
    left = [episode.id for episode in Recording(folder / "run")]
    delete(folder / "run", [episode for episode in wanted if episode in left])


def clearing(folder: Path, acknowledge: Callable[[str], None]) -> None:
    recovery.recover(folder / "run")
    clear(folder / "run", 1 << 30)


def evicting(folder: Path, acknowledge: Callable[[str], None]) -> None:
    """One episode comes, and there may be three."""
    with Recorder(
        CountingEnv(3, "rgb_array"), folder / "run", record_render=True, storage=STORAGE, verbose=False, **EVICTING
    ) as env:
        roll(env)


def merging(folder: Path, acknowledge: Callable[[str], None]) -> None:
    """Another recording comes into this one."""
    if not (folder / "other").exists():
        raise OSError(2, "the other recording is gone")
    merge([folder / "other"], folder / "run")


EVICTING: dict[str, Any] = {"capacity": Capacity(episodes=3)}
WORK = {
    "compact": compacting,
    "rewrite": rewriting,
    "delete": deleting,
    "clear": clearing,
    "evict": evicting,
    "merge": merging,
}


def check(folder: Path, what: str) -> None:
    """Raise AssertionError unless each episode is there once, as it was or as it was to be."""
    ids = known(folder)
    found = {}
    for episode in Recording(folder / "run"):
        assert episode.id not in found, f"twice: {episode.id}"
        found[episode.id] = episode
    expected = {ids[i] for i in (0, 1, 3, 4, 5)}
    fresh = set(found) - expected
    match what:
        case "delete":
            assert set(found) in (expected, expected - {ids[4], ids[5]}), set(found) ^ expected
        case "clear":
            assert set(found) in (expected, set()), set(found) ^ expected
            aside = {one for folder in list_discarded(folder / "run") for one in folder.episodes}
            assert set(found) | aside >= expected, "an episode is neither there nor in the trash"
        case "evict":
            assert len(fresh) <= 2
            assert set(found) == expected or len(found) == 3, set(found)
            assert set(found) & expected == {ids[i] for i in (0, 1, 3, 4, 5)[-(len(found) - len(fresh)) :]}
        case "merge":
            assert set(found) - fresh == expected
            assert fresh <= {episode.id for episode in Recording(folder / "other")}
        case _:
            assert set(found) == expected, set(found) ^ expected
    for episode in found.values():
        assert episode.observations[:, 0].tolist() == [0, 1, 2, 3]
        rewards = [10.0] * 3 if episode.id == ids[1] else [1.0] * 3
        if what == "rewrite" and episode.id in (ids[0], ids[4], ids[5]) and "render" not in episode.columns:
            rewards = [7.0] * 3
        else:
            assert len(episode.renders) == 4
        assert episode.rewards.tolist() == rewards, (episode.id, episode.rewards)
        assert episode.return_ == sum(rewards)
    found_faults = verify(folder / "run", decode=True).faults
    assert not found_faults, found_faults


def points(mode: str, what: str, folder: Path, first: int, step: int) -> dict[str, Any]:
    """Let the edit die or fail at each of its operations; then check, finish it, compact, and check again."""
    act = die if mode == "die" else fail
    ready = folder / "ready"
    ready.mkdir()
    prepare(ready)
    faults: dict[int, str] = {}
    tried, at = 0, first
    while True:
        place = folder / f"{mode}-{what}-{at}"
        shutil.copytree(ready, place)
        try:
            operations = attempt(WORK[what], place, at, act)
            check(place, what)
            compact(place / "run")
            check(place, what)
            counting = [shard for shard in (place / "run" / "shards").iterdir() if json_of(shard)["episodes"]]
            assert len(counting) == len(list((place / "run" / "shards").iterdir())), "what nothing needs is still there"
            assert len(counting) <= 4, [shard.name for shard in counting]
            assert not list((place / "run" / "staging").iterdir()), "left in staging"
        except Exception:  # noqa: BLE001 - it is reported
            faults[at] = traceback.format_exc()[-2000:]
            operations = 0
        tried += 1
        shutil.rmtree(place, ignore_errors=True)
        if 0 < operations < at:
            return {"tried": tried, "operations": operations, "faults": faults}
        if tried > 2000:
            return {"tried": tried, "operations": 0, "faults": faults or {0: "no end"}}
        at += step


def json_of(shard: Path) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads((shard / "shard.json").read_bytes())
    return manifest


if __name__ == "__main__":
    mode, what, folder, *rest = sys.argv[1:]
    first, step = map(int, rest or (1, 1))
    print(json.dumps(points(mode, what, Path(folder), first, step)))
