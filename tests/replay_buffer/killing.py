"""Makes a replay buffer again and again, and each time dies, or fails, one operation on the disk later; then goes on.

    python tests/replay_buffer/killing.py die|fail arrays|zarr|video 2|3 FOLDER [FIRST STEP]
    python tests/replay_buffer/killing.py die|fail overwrite 2|3 FOLDER [FIRST STEP]
    python tests/replay_buffer/killing.py once arrays 2|3 FOLDER

Prints one JSON object: how many points were tried, and what was wrong at which of them. `once` makes one and says so.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np
from crashing import Bomb, die, fail
from environments import CountingEnv, roll

from recorder import (
    DictStorage,
    NotAReplayBufferError,
    Recorder,
    Recording,
    ReplayBuffer,
    Storage,
    VideoStorage,
    ZarrStorage,
    create_zarr_replay_buffer,
    to_zarr,
)
from recorder.files import files_below
from recorder.replay_buffer import committing

LENGTHS = (5, 1, 20, 3, 9, 12)
SPECS = {
    "observation/camera": {"shape": (0, 16, 16, 3), "dtype": "uint8"},
    "observation/joints": {"shape": (0, 3), "dtype": "float32", "chunks": 4},
    "task": {"shape": (0,), "dtype": str, "chunks": 7},
}


def episode(number: int) -> dict[str, Any]:
    """Return the rows of an episode, the same each time."""
    random, rows = np.random.default_rng(number), LENGTHS[number % len(LENGTHS)]
    return {
        "observation/camera": random.integers(0, 256, (rows, 16, 16, 3), np.uint8),
        "observation/joints": random.normal(size=(rows, 3)).astype(np.float32),
        "task": [f"épisode {number}, {i}" for i in range(rows)],
    }


def from_arrays(folder: Path, zarr_format: Any, append: bool, episodes: int = len(LENGTHS)) -> None:
    """Make a buffer of arrays."""
    shard = {"frames_per_shard": 8} if zarr_format == 3 else {}
    create_zarr_replay_buffer(
        folder / "run",
        SPECS,
        map(episode, range(episodes)),
        zarr_format=zarr_format,
        append=append,
        progress=False,
        **shard,  # type: ignore[arg-type]
    )


def from_recording(folder: Path, zarr_format: Any, append: bool, pictures: Storage) -> None:
    """Make a buffer of a recording that lies beside it."""
    shard = {"frames_per_shard": 8} if zarr_format == 3 else {}
    to_zarr(
        recorded(folder.parent, pictures),
        folder / "run",
        zarr_format=zarr_format,
        append=append,
        final_observation="next",
        progress=False,
        **shard,  # type: ignore[arg-type]
    )


def recorded(folder: Path, pictures: Storage) -> Recording:
    """Return a recording of a few episodes; made if it is not there."""
    path = folder / "recording"
    if not path.exists():
        storage = DictStorage({"render": pictures})
        for length in LENGTHS:
            with Recorder(
                CountingEnv(length, "rgb_array"), path, record_render=True, storage=storage, verbose=False
            ) as env:
                roll(env)
    return Recording(path)


PICTURES = {"zarr": ZarrStorage(), "video": VideoStorage("h264rgb")}
WORKS = {"arrays": from_arrays, **{what: partial(from_recording, pictures=PICTURES[what]) for what in PICTURES}}


def check(folder: Path, what: str) -> None:
    """Raise AssertionError unless what is there are the first episodes, whole and right."""
    try:
        buffer = ReplayBuffer(folder / "run")
    except NotAReplayBufferError:
        return
    assert buffer.episode_lengths.tolist() == list(LENGTHS[: buffer.n_episodes])
    for i in range(buffer.n_episodes):
        found, meant = buffer.episode(i), expected(folder, what, i)
        assert found.keys() == meant.keys()
        for key in meant:
            np.testing.assert_array_equal(found[key], meant[key], f"episode {i}, {key}")


def expected(folder: Path, what: str, i: int) -> dict[str, Any]:
    if what == "arrays":
        return episode(i)
    found = recorded(folder.parent, PICTURES[what])[i]
    return {
        "observation": found.observations[:-1],
        "next_observation": found.observations[1:],
        "action": found.actions,
        "render": found.renders[:-1],
        "reward": found.rewards,
        "terminated": found.terminations,
        "truncated": found.truncations,
        "time": found.times[:-1],
    }


def contents(folder: Path) -> dict[str, bytes]:
    """Return every file of a buffer with its bytes."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files_below(folder)}


def complete(path: Path) -> bool:
    """Return whether a buffer was made to its end."""
    return any((path / committing.COMPLETE / name).exists() for name in ("zarr.json", ".zarray"))


def attempt(
    folder: Path, work: Callable[[], None], at: int, act: Callable[[], None], watched: Path | None = None
) -> int:
    """Do the work in a child with a bomb at one operation; return how many operations it made, 0 if it was hit."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        said = ""
        try:
            committing.COMMIT_SECONDS = 0.0
            committing.COMMIT_SHARE = 0
            bomb = Bomb(watched or folder / "run", at, act)
            try:
                work()
                said = str(bomb.count)
            except OSError as error:
                if "on purpose" not in str(error):
                    raise
        except BaseException:  # noqa: BLE001 - it is reported
            said = f"? {traceback.format_exc()}"
        os.write(writer, said.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        answer = pipe.read().decode()
    os.waitpid(child, 0)
    if answer.startswith("?"):
        raise AssertionError(answer)
    return int(answer or 0)


def points(
    mode: str, what: str, zarr_format: int, folder: Path, first: int, step: int
) -> Iterator[tuple[int, int, str]]:
    """Yield each point that was tried: its number, how many operations there were, and what was wrong."""
    work, act = WORKS[what], die if mode == "die" else fail
    whole = folder / "whole"
    whole.mkdir()
    if what in PICTURES:
        attempt(folder, lambda: print(recorded(folder, PICTURES[what]), file=sys.stderr), -1, act)
    operations = attempt(whole, lambda: work(whole, zarr_format, False), -1, act)
    meant = contents(whole / "run")
    for at in range(first, operations + 1, step):
        place, fault = folder / f"at-{at}", ""
        place.mkdir()
        try:
            attempt(place, lambda: work(place, zarr_format, False), at, act)  # noqa: B023 - called at once
            check(place, what)
            if what != "arrays" or not complete(place / "run"):  # to a whole buffer all arrays would be added again
                attempt(place, lambda: work(place, zarr_format, True), -1, act)  # noqa: B023
            check(place, what)
            found = contents(place / "run")
            assert found.keys() == meant.keys(), f"other files: {sorted(found.keys() ^ meant.keys())}"
            differing = [name for name in meant if found[name] != meant[name]]
            assert not differing, f"other bytes: {differing}"
        except Exception:  # noqa: BLE001 - it is reported
            fault = traceback.format_exc()[-2000:]
        shutil.rmtree(place)
        yield at, operations, fault


NEW = (4, 2)
"""The numbers of the episodes with which a buffer is overwritten."""


def overwrite(folder: Path, zarr_format: Any) -> None:
    """Replace a buffer by one of other episodes."""
    specs, episodes = {**SPECS, "task": {"shape": (0,), "dtype": str}}, map(episode, NEW)
    create_zarr_replay_buffer(folder / "run", specs, episodes, zarr_format=zarr_format, overwrite=True, progress=False)


def overwriting(mode: str, zarr_format: int, folder: Path, first: int, step: int) -> Iterator[tuple[int, int, str]]:
    """Yield the same for a buffer that is overwritten: either it is there as it was, or the new one is, whole."""
    act = die if mode == "die" else fail
    before, after = folder / "before", folder / "after"
    from_arrays(before, zarr_format, False)
    shutil.copytree(before, after)
    operations = attempt(after, lambda: overwrite(after, zarr_format), -1, act, after)
    old, new = contents(before / "run"), contents(after / "run")
    for at in range(first, operations + 1, step):
        place, fault = folder / f"at-{at}", ""
        shutil.copytree(before, place)
        try:
            attempt(place, lambda: overwrite(place, zarr_format), at, act, place)  # noqa: B023 - called at once
            found = contents(place / "run")
            assert found in (old, new), f"neither the old nor the new buffer: {sorted(found)}"
            overwrite(place, zarr_format)
            assert contents(place / "run") == new
            assert [path.name for path in place.iterdir()] == ["run"], f"left behind: {list(place.iterdir())}"
        except Exception:  # noqa: BLE001 - it is reported
            fault = traceback.format_exc()[-2000:]
        shutil.rmtree(place)
        yield at, operations, fault


def main() -> None:
    mode, what, zarr_format, name, *rest = sys.argv[1:]
    folder = Path(name)
    if mode == "once":
        committing.COMMIT_SECONDS = 0.0
        from_arrays(folder, int(zarr_format), (folder / "run").exists(), 120)
        return
    first, step = map(int, rest or (1, 1))
    if what == "overwrite":
        tried = list(overwriting(mode, int(zarr_format), folder, first, step))
    else:
        tried = list(points(mode, what, int(zarr_format), folder, first, step))
    faults = {at: fault for at, _, fault in tried if fault}
    print(json.dumps({"tried": len(tried), "operations": tried[0][1] if tried else 0, "faults": faults}))


if __name__ == "__main__":
    main()
