"""Many processes record into one folder while others read it: no error, and each episode seen once and whole."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from environments import CountingEnv

from recorder import DictStorage, Recorder, Recording, VideoStorage, ZarrStorage
from recorder.following import follow
from recorder.verify import verify

SPAWN = multiprocessing.get_context("spawn")
LENGTHS = (1, 3, 8)


def write(path: Path, episodes: int, number: int) -> None:
    """Record episodes of different lengths; the reward says which writer it was."""
    storage = DictStorage({"render": VideoStorage("h264rgb"), "observation": ZarrStorage()})
    env = CountingEnv(None, "rgb_array")
    with Recorder(
        env, path, record_render=True, storage=storage, flush_every=number % 3 / 10, verbose=False
    ) as recorder:
        for i in range(episodes):
            recorder.reset(seed=number)
            for k in range(LENGTHS[(i + number) % 3]):
                recorder.step(k % 4)
            recorder.label(writer=number)


def read(path: Path, episodes: int) -> None:
    """Follow the recording to its end, and decode each episode when it comes."""
    seen: set[str] = set()
    for arrival in follow(path, known=True, until=episodes, every=0.05):
        assert arrival.note.id not in seen, "seen twice"
        seen.add(arrival.note.id)
        check(arrival.recording, arrival.position)
    assert len(seen) == episodes
    os._exit(0)


def look(path: Path, episodes: int) -> None:
    """Open the recording anew again and again: it only grows, and never shows half an episode."""
    before: list[str] = []
    while len(before) < episodes:
        if not (path / "recording.json").exists():
            continue
        recording = Recording(path)
        ids = [str(name) for name in recording.table()["id"]]
        assert set(before) <= set(ids), "an episode is gone"
        for position in range(max(0, len(ids) - 2), len(ids)):
            check(recording, position)
        before = ids
    os._exit(0)


def check(recording: Recording, position: int) -> None:
    episode = recording[position]
    steps = len(episode)
    assert episode.observations[:, 0].tolist() == list(range(steps + 1))
    assert episode.actions.tolist() == [k % 4 for k in range(steps)]
    expected = CountingEnv(None)
    expected.steps = steps
    np.testing.assert_array_equal(episode.columns["render"][steps], expected.render())


def run(path: Path, writers: int, episodes: int, readers: int) -> None:
    total = writers * episodes
    works: list[tuple[Callable[..., None], tuple[object, ...]]] = [
        *((read, (path, total)) for _ in range(readers)),
        *((look, (path, total)) for _ in range(readers)),
        *((write, (path, episodes, number)) for number in range(writers)),
    ]
    processes = [SPAWN.Process(target=work, args=arguments) for work, arguments in works]
    for process in processes:
        process.start()
    for process in processes:
        process.join(500)
    assert [process.exitcode for process in processes] == [0] * len(processes)
    recording = Recording(path)
    table = recording.table()
    assert len(set(table["id"].tolist())) == len(recording) == total
    for number in range(writers):
        mine = [i for i, labels in enumerate(table["labels"]) if labels["writer"] == number]
        assert table["steps"][mine].tolist() == [LENGTHS[(i + number) % 3] for i in range(episodes)], "in its order"
    names = [shard.name for shard in recording.shards]
    assert names == sorted(names), "in the order of completion"
    assert verify(path, decode=True).sound
    assert not list((path / "staging").iterdir())


@pytest.mark.timeout(600)
def test_eight_processes_record_while_two_read(tmp_path: Path) -> None:
    run(tmp_path / "run", 8, 4, 1)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_eight_processes_record_much_while_six_read(tmp_path: Path) -> None:
    run(tmp_path / "run", 8, 100, 3)
