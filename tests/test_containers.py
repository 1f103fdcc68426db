"""A recording as a container: many episodes open at once, a capacity, clearing, and all of it in memory."""

from __future__ import annotations

import json
import multiprocessing
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from environments import CountingEnv, roll
from gymnasium.spaces import Box, Dict, Discrete, Text
from hypothesis import given, settings
from hypothesis import strategies as st

from recorder import (
    BusyError,
    CommitOptions,
    EpisodeError,
    LayoutError,
    ParquetStorage,
    Recorder,
    Recording,
    RecordingWriter,
    RowError,
    StepSpace,
    Storage,
    ZarrStorage,
)
from recorder.discarded import list_discarded, restore
from recorder.memory import MemoryRecording
from recorder.verify import verify
from recorder.writing.capacity import Capacity

SPACE = StepSpace(Dict(vector=Box(-1e6, 1e6, (2,), np.float32), word=Text(20)), Discrete(5))


def observation(lane: int, k: int) -> dict[str, Any]:
    return {"vector": np.array([lane, k], np.float32), "word": f"{lane}-{k}"}


def row(lane: int, k: int) -> dict[str, Any]:
    """Return row k of an episode, which says whose it is."""
    first = {"observation": observation(lane, k), "info": {"lane": lane} if k % 2 else {}}
    return first if k == 0 else first | {"action": k % 5, "reward": float(k), "terminated": False, "truncated": False}


def put(writer: RecordingWriter, lane: int, steps: int) -> str:
    """Record a whole episode; return its id."""
    episode = writer.begin(seed=lane)
    writer.extend(row(lane, k) for k in range(steps + 1))
    writer.commit()
    return episode


def check(episode: Any, lane: int, steps: int) -> None:
    assert len(episode) == steps
    expected = [[lane, k] for k in range(steps + 1)]
    assert episode.observations["vector"].tolist() == expected
    assert episode.observations["word"].tolist() == [f"{lane}-{k}" for k in range(steps + 1)]
    assert episode.actions.tolist() == [k % 5 for k in range(1, steps + 1)]
    assert episode.return_ == sum(range(1, steps + 1))


@pytest.fixture(params=["disk", "memory"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., RecordingWriter]:
    path = tmp_path / "run" if request.param == "disk" else None
    return lambda **options: RecordingWriter(path, SPACE, **options)


def reading(writer: RecordingWriter) -> Recording | MemoryRecording:
    return writer.recording if writer.memory is not None else Recording(writer.path)


class TestManyOpenAtOnce:
    def test_rows_go_to_the_episode_that_they_name(self, make: Callable[..., RecordingWriter]) -> None:
        with make() as writer:
            ids = [writer.begin(beside=True, seed=lane) for lane in range(3)]
            assert writer.open_episodes == ids
            for k in range(6):
                for lane, episode in enumerate(ids):
                    if k <= 3 + lane:
                        writer.append(row(lane, k), episode=episode)
            writer.commit(ids[1], success=True)
            writer.discard(episode=ids[0])
            assert writer.open_episodes == [ids[2]]
        found = {episode.id: episode for episode in reading(writer)}
        assert set(found) == {ids[1], ids[2]}
        check(found[ids[1]], 1, 4)
        check(found[ids[2]], 2, 5)
        assert found[ids[1]].labels == {"success": True}
        assert (found[ids[1]].end, found[ids[2]].end) == ("ended", "closed")

    @settings(max_examples=15, deadline=None)
    @given(st.lists(st.integers(0, 4), max_size=120), st.sampled_from([None, ZarrStorage(), ParquetStorage()]))
    def test_any_order_of_rows_gives_the_same_episodes(
        self, tmp_path_factory: pytest.TempPathFactory, order: list[int], storage: Storage | None
    ) -> None:
        path = tmp_path_factory.mktemp("run") / "run"
        space = StepSpace(Box(-1e6, 1e6, (2,), np.float32), Discrete(5))
        rows = [0] * 5
        with RecordingWriter(path, space, storage=storage, options=CommitOptions(fsync=False)) as writer:
            ids = [writer.begin(beside=True) for _ in range(5)]
            for lane in order:
                said = row(lane, rows[lane])
                writer.append(said | {"observation": said["observation"]["vector"]}, episode=ids[lane])
                rows[lane] += 1
        expected = {episode: count - 1 for episode, count in zip(ids, rows, strict=True) if count > 1}
        found = {episode.id: episode for episode in Recording(path)} if path.exists() else {}
        assert {episode: len(one) for episode, one in found.items()} == expected
        for lane, episode in enumerate(ids):
            if episode in found:
                assert found[episode].observations.tolist() == [[lane, k] for k in range(rows[lane])]
                assert found[episode].actions.tolist() == [k % 5 for k in range(1, rows[lane])]

    def test_a_row_that_does_not_fit_is_refused_in_its_own_episode(self, make: Callable[..., RecordingWriter]) -> None:
        with make() as writer:
            one, other = writer.begin(beside=True), writer.begin(beside=True)
            writer.extend([row(0, 0), row(0, 1)], episode=one)
            writer.extend([row(1, 0), row(1, 1)], episode=other)
            with pytest.raises(RowError, match="vector"):
                writer.append(row(0, 2) | {"observation": {"vector": np.zeros(3), "word": ""}}, episode=one)
            writer.append(row(1, 2), episode=other)
            writer.append(row(0, 2), episode=one)
        found = {episode.id: episode for episode in reading(writer)}
        check(found[one], 0, 2)
        check(found[other], 1, 2)
        assert (found[one].refused, found[other].refused) == ([2], [])

    def test_without_beside_a_second_episode_is_refused_as_ever(self, make: Callable[..., RecordingWriter]) -> None:
        with make() as writer:
            writer.begin()
            with pytest.raises(EpisodeError, match="still open"):
                writer.begin()

    def test_an_unknown_id_is_named(self, make: Callable[..., RecordingWriter]) -> None:
        with make() as writer:
            episode = writer.begin()
            with pytest.raises(EpisodeError, match=episode):
                writer.append(row(0, 0), episode="0123456789ab-000000")

    def test_extend_says_how_many_and_stops_at_what_does_not_fit(self, make: Callable[..., RecordingWriter]) -> None:
        with make() as writer:
            writer.begin()
            assert writer.extend(row(0, k) for k in range(4)) == 4
            with pytest.raises(RowError):
                writer.extend([row(0, 4), {"observation": 3}, row(0, 5)])
            assert writer.steps == 4


class TestCapacity:
    @pytest.mark.parametrize("capacity", [Capacity(episodes=4), Capacity(steps=20), Capacity(steps=20, episodes=3)])
    def test_the_newest_whole_episodes_stay(self, make: Callable[..., RecordingWriter], capacity: Capacity) -> None:
        lengths = [3, 8, 1, 5, 9, 2, 7, 4, 6]
        with make(capacity=capacity) as writer:
            for lane, steps in enumerate(lengths):
                put(writer, lane, steps)
                writer.flush()
                kept = [(episode.seed, len(episode)) for episode in reading(writer)]
                whole = list(enumerate(lengths))[: lane + 1]
                assert kept == whole[len(whole) - len(kept) :], "a gap, or a headless one"
                assert capacity.episodes is None or len(kept) <= capacity.episodes
                assert capacity.steps is None or sum(steps for _, steps in kept) <= capacity.steps or len(kept) == 1
            most = {"episodes": capacity.episodes or 9, "steps": capacity.steps or 99}
            assert len(kept) == most["episodes"] or sum(steps for _, steps in kept) + lengths[-len(kept) - 1] > 20
        for episode in reading(writer):
            check(episode, episode.seed or 0, len(episode))

    def test_bytes_on_disk_stay_within_the_capacity(self, tmp_path: Path) -> None:
        most = 100_000
        with RecordingWriter(tmp_path / "run", SPACE, capacity=Capacity(bytes=most)) as writer:
            for lane in range(40):
                put(writer, lane, 50)
                writer.flush()
                files = [file.stat().st_size for file in (tmp_path / "run/shards").rglob("*") if file.is_file()]
                assert sum(files) <= most
        seeds = [episode.seed for episode in Recording(tmp_path / "run")]
        assert seeds == list(range(40 - len(seeds), 40))
        assert len(seeds) >= 3
        assert verify(tmp_path / "run", decode=True).sound

    def test_an_episode_larger_than_the_capacity_stays_as_the_newest(
        self, make: Callable[..., RecordingWriter]
    ) -> None:
        with make(capacity=Capacity(steps=5)) as writer:
            put(writer, 0, 3)
            put(writer, 1, 30)
        (episode,) = reading(writer)
        check(episode, 1, 30)

    def test_survivors_keep_their_files_and_readers_read_on(self, tmp_path: Path) -> None:
        path = tmp_path / "run"
        with RecordingWriter(path, SPACE, capacity=Capacity(episodes=3)) as writer:
            for lane in range(3):
                put(writer, lane, 4)
                writer.flush()
            before = {file: file.stat().st_ino for file in path.rglob("data.h5")}
            reader = Recording(path)
            survivor = reader[2]
            put(writer, 3, 4)
            writer.flush()
            check(survivor, 2, 4)
            after = {file: file.stat().st_ino for file in path.rglob("data.h5")}
            assert len(before.items() & after.items()) == 2
            assert reader.refresh() == 1
            assert [episode.seed for episode in reader] == [1, 2, 3]

    def test_the_capacity_is_another_one_the_next_time(self, tmp_path: Path) -> None:
        path = tmp_path / "run"
        for capacity, seeds in ((Capacity(episodes=5), 5), (Capacity(episodes=2), 2), (None, 8)):
            with RecordingWriter(path, SPACE, capacity=capacity) as writer:
                for lane in range(6):
                    put(writer, lane, 2)
            assert len(Recording(path)) == seeds
        assert verify(path, decode=True).sound

    def test_two_writers_keep_to_one_capacity(self, tmp_path: Path) -> None:
        path = tmp_path / "run"
        with (
            RecordingWriter(path, SPACE, capacity=Capacity(episodes=4)) as one,
            RecordingWriter(path, SPACE, capacity=Capacity(episodes=4)) as other,
        ):
            ids = []
            for lane in range(5):
                for writer in (one, other):
                    ids.append(put(writer, lane, 3))
                    writer.flush()
                    assert len(Recording(path)) <= 4
        assert sorted(episode.id for episode in Recording(path)) == sorted(ids[-4:])
        assert len(list((path / "shards").iterdir())) == 4

    def test_a_recorder_takes_a_capacity(self, tmp_path: Path) -> None:
        with Recorder(CountingEnv(3), tmp_path / "run", capacity=Capacity(episodes=2), verbose=False) as env:
            for _ in range(5):
                roll(env)
        assert len(Recording(tmp_path / "run")) == 2

    @pytest.mark.parametrize("wrong", [{"steps": 0}, {"bytes": -1}, {"episodes": 2.5}])
    def test_a_capacity_is_of_whole_things(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match="from 1 on"):
            Capacity(**wrong)


class TestClearing:
    def test_everything_goes_to_the_trash_and_recording_goes_on(self, tmp_path: Path) -> None:
        path = tmp_path / "run"
        with RecordingWriter(path, SPACE) as writer:
            ids = [put(writer, lane, 3) for lane in range(4)]
            assert writer.clear() == 4
            assert len(Recording(path)) == 0
            assert not list((path / "shards").iterdir())
            put(writer, 9, 2)
        assert [episode.seed for episode in Recording(path)] == [9]
        (aside,) = list_discarded(path)
        assert aside.reason == "cleared"
        restore(path, aside.name)
        assert {episode.id for episode in Recording(path)} >= set(ids)
        assert verify(path, decode=True).sound

    def test_what_was_deleted_before_does_not_come_back_with_the_rest(self, tmp_path: Path) -> None:
        from recorder.edit.deleting import delete

        path = tmp_path / "run"
        with RecordingWriter(path, SPACE) as writer:
            ids = [put(writer, lane, 3) for lane in range(3)]
            writer.flush()
            delete(path, [ids[1]])
            assert writer.clear() == 2
        (aside,) = list_discarded(path)
        restore(path, aside.name)
        assert [episode.id for episode in Recording(path)] == [ids[0], ids[2]]

    def test_without_trash_everything_is_deleted(self, tmp_path: Path) -> None:
        with RecordingWriter(tmp_path / "run", SPACE, options=CommitOptions(trash=0)) as writer:
            put(writer, 0, 3)
            assert writer.clear() == 1
        assert not list_discarded(tmp_path / "run")

    def test_it_is_refused_while_another_writes(self, tmp_path: Path) -> None:
        path = tmp_path / "run"
        with RecordingWriter(path, SPACE) as writer, RecordingWriter(path, SPACE) as other:
            put(writer, 0, 3)
            put(other, 1, 3)
            other.flush()
            with pytest.raises(BusyError, match="is writing"):
                writer.clear()
        assert len(Recording(path)) == 2

    def test_it_is_refused_while_an_episode_is_open(self, make: Callable[..., RecordingWriter]) -> None:
        with make() as writer:
            episode = writer.begin()
            with pytest.raises(EpisodeError, match=episode):
                writer.clear()

    def test_nothing_is_there_to_clear(self, make: Callable[..., RecordingWriter]) -> None:
        with make() as writer:
            assert writer.clear() == 0


class TestInMemory:
    def test_it_reads_like_a_recording_on_disk(self, tmp_path: Path) -> None:
        both = [RecordingWriter(None, SPACE), RecordingWriter(tmp_path / "run", SPACE)]
        for writer in both:
            for lane in range(3):
                put(writer, lane, 5)
            writer.close()
        memory, disk = (reading(writer) for writer in both)
        assert len(memory) == len(disk) == 3
        assert memory.steps == disk.steps
        assert list(memory.leaves) == list(disk.leaves)
        assert memory.observation_space == disk.observation_space
        for one, other in zip(memory, disk, strict=True):
            assert type(one) is type(other)
            np.testing.assert_array_equal(one.observations["vector"], other.observations["vector"])
            np.testing.assert_array_equal(one.columns["reward"][[3, 0]], other.columns["reward"][[3, 0]])
            assert one.infos["lane"].tolist() == other.infos["lane"].tolist()
            assert one[2].info == other[2].info
            assert [step.number for step in one] == [step.number for step in other]
        for name in ("steps", "end", "return", "seed", "labels"):
            assert memory.table()[name].tolist() == disk.table()[name].tolist()
        assert memory[memory[1].id].seed == 1
        assert [episode.seed for episode in memory[1:]] == [1, 2]
        with pytest.raises(IndexError):
            memory[3]
        with pytest.raises(KeyError):
            memory["0123456789ab-000000"]

    def test_nothing_of_the_caller_is_kept_and_nothing_is_on_disk(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        buffer = np.zeros(2, np.float32)
        with RecordingWriter(None, Box(-1, 100, (2,))) as writer:
            writer.begin()
            for k in range(10):
                buffer[:] = k
                writer.append(buffer)
        assert writer.recording[0].rows[:, 0].tolist() == list(range(10))
        assert not list(tmp_path.iterdir())

    def test_an_episode_can_be_pickled(self) -> None:
        with RecordingWriter(None, SPACE) as writer:
            put(writer, 3, 4)
        check(pickle.loads(pickle.dumps(writer.recording[0])), 3, 4)

    def test_keep_if_decides_and_discarded_ones_leave_nothing(self) -> None:
        with RecordingWriter(None, SPACE, keep_if=lambda episode: episode.return_ > 5) as writer:
            put(writer, 0, 2)
            put(writer, 1, 4)
            writer.begin()
            writer.extend([row(2, 0), row(2, 1)])
            writer.discard()
        assert [episode.seed for episode in writer.recording] == [1]
        assert writer.tally.discarded == 2

    def test_a_storage_is_refused_and_a_folder_has_no_recording_in_memory(self, tmp_path: Path) -> None:
        with pytest.raises(LayoutError, match="in memory"):
            RecordingWriter(None, SPACE, storage=ZarrStorage())
        with (
            RecordingWriter(tmp_path / "run", SPACE) as writer,
            pytest.raises(EpisodeError, match="Recording"),
        ):
            writer.recording  # noqa: B018 - it raises


def _record_beside(path: str) -> None:
    with RecordingWriter(path, SPACE, capacity=Capacity(episodes=5), options=CommitOptions(flush_every=0)) as writer:
        for lane in range(8):
            put(writer, lane, 3)


def test_processes_evict_side_by_side_while_a_reader_reads(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with RecordingWriter(path, SPACE) as writer:
        put(writer, 0, 3)
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_record_beside, args=(str(path),)) for _ in range(2)]
    for process in processes:
        process.start()
    reader = Recording(path)
    while any(process.is_alive() for process in processes):
        reader.refresh()
        ids = [reader.note(i).id for i in range(len(reader))]
        assert len(set(ids)) == len(ids)
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert len(Recording(path)) <= 6
    found = verify(path, decode=True)
    assert found.sound, found
    for shard in (path / "shards").iterdir():
        json.loads((shard / "shard.json").read_bytes())
