"""Editing makes new shards that stand for old ones; what was not changed keeps its bytes, its id and its place."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from environments import CountingEnv, roll
from gymnasium import spaces

from recorder import (
    BusyError,
    DepthStorage,
    DictStorage,
    EpisodeError,
    ExistsError,
    GoneError,
    HDF5Storage,
    ImageFileStorage,
    LayoutError,
    MismatchError,
    NpzStorage,
    ParquetStorage,
    Recorder,
    Recording,
    RecordingWriter,
    RowError,
    StepSpace,
    Storage,
    VideoStorage,
    ZarrStorage,
    annotate,
)
from recorder.discarded import list_discarded, restore
from recorder.edit.compacting import compact
from recorder.edit.deleting import delete
from recorder.edit.merging import merge, pick, split
from recorder.edit.rows import label, rewrite
from recorder.following import follow
from recorder.verify import verify
from recorder.writing.sweeping import alone

STREAMS = DictStorage({"render": VideoStorage("h264rgb"), "observation": ZarrStorage()})
STORAGES: Mapping[str, Storage] = {
    "hdf5": HDF5Storage(),
    "npz": NpzStorage(),
    "parquet": ParquetStorage(),
    "streams": STREAMS,
}


def record(path: Path, episodes: int = 3, storage: Storage | None = STREAMS, steps: int = 4) -> list[str]:
    """Record episodes into one shard; return their ids."""
    ids = []
    with Recorder(
        CountingEnv(steps, "rgb_array"), path, record_render=True, storage=storage, verbose=False, digests=False
    ) as env:
        for seed in range(episodes):
            roll(env, seed=seed)
            ids.append(str(env.episode_id))
    return ids


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run"


def ids_of(path: Path) -> list[str]:
    return [episode.id for episode in Recording(path)]


def shards(path: Path) -> list[Path]:
    return sorted((path / "shards").iterdir())


def frames(path: Path) -> dict[str, Any]:
    return {episode.id: episode.renders for episode in Recording(path)}


def sound(path: Path, episodes: int) -> None:
    found = verify(path, decode=True)
    assert found.sound, found
    assert found.episodes == episodes
    assert not list((path / "staging").iterdir())


class TestRewriting:
    @pytest.mark.parametrize("name", STORAGES)
    def test_a_column_gets_other_rows_in_the_chosen_episodes_only(self, path: Path, name: str) -> None:
        ids = record(path, storage=STORAGES[name])
        before = frames(path)
        done = rewrite(path, lambda episode: {"reward": episode.rewards * 3}, episodes=ids[1:2])
        assert done.changed == (ids[1],)
        found = {episode.id: episode for episode in Recording(path)}
        assert sorted(found) == sorted(ids)
        assert [found[one].rewards.tolist() for one in ids] == [[1.0] * 4, [3.0] * 4, [1.0] * 4]
        assert [found[one].return_ for one in ids] == [4, 12, 4]
        assert all(np.array_equal(found[one].renders, before[one]) for one in ids)
        assert found[ids[1]].seed == 1
        sound(path, 3)

    def test_files_of_columns_that_stay_get_second_names(self, path: Path) -> None:
        record(path)
        (old,) = shards(path)
        rewrite(path, lambda episode: {"reward": episode.rewards + 1})
        new = next(shard for shard in shards(path) if shard != old)
        for name in ("render/000000.mp4", "render/000002.mp4", "observation.zarr/zarr.json"):
            assert (new / name).stat().st_ino == (old / name).stat().st_ino
        assert (new / "data.h5").read_bytes() != (old / "data.h5").read_bytes()
        assert json.loads((new / "shard.json").read_bytes())["replaces"] == [old.name]

    def test_frames_of_some_episodes_of_a_shard_are_linked_and_not_coded(self, path: Path) -> None:
        ids = record(path)
        (old,) = shards(path)
        rewrite(path, {"reward": [0.0] * 4}, episodes=[ids[2]])
        new = next(shard for shard in shards(path) if shard != old)
        assert (new / "render/000000.mp4").stat().st_ino == (old / "render/000002.mp4").stat().st_ino
        assert json.loads((new / "shard.json").read_bytes())["dropped"] == [f"{old.name}/{ids[2]}"]

    @pytest.mark.parametrize("name", STORAGES)
    def test_a_column_is_added_for_steps_and_for_moments(self, path: Path, name: str) -> None:
        ids = record(path, storage=STORAGES[name])
        rewrite(path, {"advantage/value": np.arange(4.0), "info/note": ["a", "b", "c", "d", "é"]}, episodes=[ids[0]])
        compact(path)
        found = {episode.id: episode for episode in Recording(path)}
        assert found[ids[0]].columns["advantage/value"][:].tolist() == [0, 1, 2, 3]
        assert found[ids[0]].infos["note"].tolist() == ["a", "b", "c", "d", "é"]
        assert np.ma.getmaskarray(found[ids[1]].columns["advantage/value"][:]).all()
        sound(path, 3)

    def test_a_column_is_left_out_of_some_episodes(self, path: Path) -> None:
        ids = record(path)
        rewrite(path, {"render": None}, episodes=ids[:2])
        found = {episode.id: episode for episode in Recording(path)}
        assert "render" not in found[ids[0]].columns
        with pytest.raises(EpisodeError, match="an edit left out"):
            found[ids[0]].renders  # noqa: B018 - it raises
        assert len(found[ids[2]].renders) == 5
        assert found[ids[1]].observations[:, 0].tolist() == [0, 1, 2, 3, 4]
        assert len(compact(path).to_json()) and len(list(path.rglob("*.mp4"))) == 1
        sound(path, 3)

    def test_a_column_that_was_left_out_comes_back(self, path: Path) -> None:
        ids = record(path)
        pictures = frames(path)[ids[0]]
        rewrite(path, {"render": None}, episodes=[ids[0]])
        rewrite(path, {"render": pictures}, episodes=[ids[0]])
        np.testing.assert_array_equal(Recording(path)[ids[0]].renders, pictures)
        sound(path, 3)

    def test_labels_are_added_and_taken_away_without_a_file_of_rows(self, path: Path) -> None:
        ids = record(path)
        label(path, {ids[0]: {"success": True, "task": "pick"}, ids[1]: {"success": False}})
        label(path, {ids[0]: {"task": None}})
        found = {episode.id: dict(episode.labels) for episode in Recording(path)}
        assert found == {ids[0]: {"success": True}, ids[1]: {"success": False}, ids[2]: {}}
        assert len({file.stat().st_ino for file in path.rglob("render/*.mp4")}) == 3
        sound(path, 3)

    @pytest.mark.parametrize(
        ("change", "error", "text"),
        [
            ({"reward": [1.0]}, RowError, "4 rows"),
            ({"reward": ["a"] * 4}, RowError, "'reward'"),
            ({"observation": np.zeros((5, 9))}, RowError, "shape"),
            ({"reward": None}, LayoutError, "no episode is whole"),
            ({"nothing": None}, LayoutError, "no leaf"),
            ({"observation/more": np.zeros(5)}, LayoutError, "cannot be added"),
            ({"render": np.zeros((5, 4, 4, 3), np.uint8)}, RowError, "shape"),
        ],
    )
    def test_what_does_not_fit_is_refused_and_nothing_is_changed(
        self, path: Path, change: Any, error: type[Exception], text: str
    ) -> None:
        record(path)
        before = shards(path)
        with pytest.raises(error, match=text):
            rewrite(path, change)
        assert shards(path) == before
        sound(path, 3)

    def test_an_unknown_id_changes_nothing(self, path: Path) -> None:
        record(path)
        with pytest.raises(KeyError, match="0123456789ab-000000"):
            rewrite(path, {"reward": [0.0] * 4}, episodes=["0123456789ab-000000"])

    def test_only_one_process_edits_at_a_time(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        ids = record(path)
        monkeypatch.setattr("recorder.writing.sweeping.PATIENCE", 0.0)
        with alone(path), pytest.raises(BusyError, match="another process is editing"), alone(path, 0.0):
            pass
        delete(path, [ids[0]])

    def test_a_rewritten_picture_that_is_kept_with_loss_gets_a_new_digest(self, tmp_path: Path) -> None:
        path = tmp_path / "run"
        storage = DictStorage({"render": VideoStorage()})
        metadata = {"render": {"kind": "image"}}
        with Recorder(
            CountingEnv(2, "rgb_array"), path, record_render=True, storage=storage, metadata=metadata, verbose=False
        ) as env:
            roll(env)
        before = Recording(path)[0].columns["digest/render"][:]
        rewrite(path, lambda episode: {"render": 255 - episode.renders})
        assert not np.array_equal(Recording(path)[0].columns["digest/render"][:], before)
        sound(path, 1)


class TestDeleting:
    def test_a_deleted_episode_is_gone_at_once_and_its_bytes_with_compact(self, path: Path) -> None:
        ids = record(path)
        delete(path, [ids[1]])
        assert ids_of(path) == [ids[0], ids[2]]
        assert len(list(path.rglob("*.mp4"))) == 3
        compact(path)
        assert ids_of(path) == [ids[0], ids[2]]
        assert len(list(path.rglob("*.mp4"))) == 2
        sound(path, 2)

    def test_a_shard_of_which_nothing_is_left_leaves_at_once_with_all_that_was_said_of_it(self, path: Path) -> None:
        delete(path, record(path))
        assert not shards(path)
        assert len(Recording(path)) == 0

    def test_ids_of_those_that_stay_are_what_they_were(self, path: Path) -> None:
        ids = record(path, 6)
        delete(path, [ids[1], ids[3], ids[4]])
        compact(path)
        assert ids_of(path) == [ids[0], ids[2], ids[5]]

    def test_a_deleted_episode_does_not_come_back_from_the_trash_before_a_compaction(self, path: Path) -> None:
        with Recorder(CountingEnv(3), path, verbose=False) as env:
            roll(env)
            kept = env.episode_id
            roll(env)
            env.discard()
        (one,) = list_discarded(path)
        restore(path, one.name)
        delete(path, list(one.episodes))
        assert ids_of(path) == [kept]


class TestCompacting:
    @pytest.mark.parametrize("name", STORAGES)
    def test_small_shards_become_one_with_the_same_rows_in_the_same_order(self, path: Path, name: str) -> None:
        ids = [one for _ in range(3) for one in record(path, 2, STORAGES[name])]
        before = [episode.infos | {"frames": episode.renders, "seed": episode.seed} for episode in Recording(path)]
        done = compact(path)
        assert (done.shards, done.shards_after, done.joined, done.removed) == (3, 1, 3, 3)
        assert ids_of(path) == ids
        for episode, said in zip(Recording(path), before, strict=True):
            np.testing.assert_array_equal(episode.renders, said["frames"])
            assert episode.seed == said["seed"]
        sound(path, 6)

    def test_a_second_compaction_finds_nothing_to_do(self, path: Path) -> None:
        record(path)
        record(path)
        compact(path)
        before = shards(path)
        assert compact(path).joined == 0
        assert shards(path) == before

    def test_a_dry_run_changes_nothing_and_says_what_would_be_done(self, path: Path) -> None:
        record(path)
        delete(path, record(path)[:1])
        before = shards(path)
        said = compact(path, dry_run=True)
        assert shards(path) == before
        done = compact(path)
        assert (said.shards, said.shards_after, said.episodes) == (done.shards, done.shards_after, done.episodes)

    def test_frames_are_linked_and_never_coded(self, path: Path) -> None:
        record(path)
        record(path)
        before = {file.stat().st_ino for file in path.rglob("*.mp4")}
        compact(path)
        assert {file.stat().st_ino for file in path.rglob("*.mp4")} == before

    def test_pictures_with_loss_keep_their_bytes(self, tmp_path: Path) -> None:
        path = tmp_path / "run"
        storage = DictStorage({"render": ZarrStorage(quality=50)})
        metadata = {"render": {"kind": "image"}}
        for _ in range(2):
            with Recorder(
                CountingEnv(3, "rgb_array"), path, record_render=True, storage=storage, metadata=metadata, verbose=False
            ) as env:
                roll(env)
        before = frames(path)
        compact(path)
        for one, pictures in frames(path).items():
            np.testing.assert_array_equal(pictures, before[one])
        assert len(shards(path)) == 1

    def test_shards_that_say_different_things_of_their_episodes_stay_apart(self, path: Path) -> None:
        with Recorder(CountingEnv(3), path, verbose=False, about={"robot": "left"}) as env:
            roll(env)
        with Recorder(CountingEnv(3), path, verbose=False, about={"robot": "right"}) as env:
            roll(env)
        assert compact(path).joined == 0
        assert [shard.manifest.metadata for shard in Recording(path).shards] == [{"robot": "left"}, {"robot": "right"}]

    def test_a_writer_goes_on_while_its_shards_are_joined(self, path: Path) -> None:
        with Recorder(CountingEnv(3), path, verbose=False, flush_every=0) as env:
            for _ in range(4):
                roll(env)
            env.reset()
            compact(path)
            env.step(0)
            env.step(1)
        found = Recording(path)
        assert [len(episode) for episode in found] == [3, 3, 3, 3, 2]
        assert len({episode.id for episode in found}) == 5


class TestReadersMeanwhile:
    def test_a_reader_from_before_reads_on_or_is_told_to_refresh(self, path: Path) -> None:
        ids = [*record(path), *record(path)]
        reader = Recording(path)
        held = reader[1]
        held.rewards  # noqa: B018 - the table of its shard is open now
        compact(path)
        assert held.rewards.tolist() == [1.0] * 4
        with pytest.raises(GoneError, match=r"refresh\(\)"):
            reader[4].renders  # noqa: B018 - it is read
        assert reader.refresh() == 0
        assert [episode.id for episode in reader] == ids
        assert all(len(episode.renders) == 5 for episode in reader)

    def test_a_refresh_sees_edits_and_deletions_once(self, path: Path) -> None:
        ids = record(path)
        reader = Recording(path)
        rewrite(path, {"reward": [9.0] * 4}, episodes=[ids[0]])
        delete(path, [ids[1]])
        more = record(path, 1)
        assert reader.refresh() == 1
        assert sorted(episode.id for episode in reader) == sorted([ids[0], ids[2], *more])
        assert reader[ids[0]].return_ == 36
        assert reader[-1].id == more[0]

    def test_following_yields_each_episode_once_whatever_is_edited(self, path: Path) -> None:
        ids = record(path)
        seen: list[str] = []

        def act(_: float) -> None:
            match len(seen):
                case 3:
                    ids.extend(record(path, 1))
                    compact(path)
                    rewrite(path, {"reward": [0.0] * 4}, episodes=[ids[1]])
                case 4:
                    delete(path, [ids[0]])
                    ids.extend(record(path, 1))

        for arrival in follow(path, known=True, every=0, wait=act):
            seen.append(arrival.note.id)
            if len(seen) == 5:
                break
        assert seen[:3] == ids[:3]
        assert seen[-1] == ids[-1]

    def test_pickled_readers_find_their_episodes_until_they_are_replaced(self, path: Path) -> None:
        record(path)
        record(path)
        held = Recording(path)[0]
        again, arguments = held.__reduce__()[:2]
        compact(path)
        with pytest.raises(GoneError):
            again(*arguments)


class TestMerging:
    def test_recordings_become_one_with_their_ids_and_linked_files(self, tmp_path: Path) -> None:
        ids = [*record(tmp_path / "a"), *record(tmp_path / "b")]
        files = {file.stat().st_ino for file in tmp_path.rglob("*.mp4")}
        done = merge([tmp_path / "a", tmp_path / "b"], tmp_path / "c")
        assert (done.episodes, done.shards, done.skipped) == (6, 2, 0)
        assert ids_of(tmp_path / "c") == ids
        assert {file.stat().st_ino for file in (tmp_path / "c").rglob("*.mp4")} == files
        sound(tmp_path / "c", 6)

    def test_a_merge_can_be_done_again(self, tmp_path: Path) -> None:
        record(tmp_path / "a")
        merge([tmp_path / "a"], tmp_path / "c")
        record(tmp_path / "a")
        done = merge([tmp_path / "a"], tmp_path / "c")
        assert (done.episodes, done.skipped) == (3, 3)

    def test_what_was_edited_or_deleted_is_merged_as_it_counts(self, tmp_path: Path) -> None:
        ids = record(tmp_path / "a")
        rewrite(tmp_path / "a", {"reward": [5.0] * 4}, episodes=[ids[0]])
        delete(tmp_path / "a", [ids[1]])
        merge([tmp_path / "a"], tmp_path / "c")
        found = {episode.id: episode.return_ for episode in Recording(tmp_path / "c")}
        assert found == {ids[0]: 20, ids[2]: 4}
        sound(tmp_path / "c", 2)

    def test_recordings_that_differ_are_refused_before_anything_is_done(self, tmp_path: Path) -> None:
        record(tmp_path / "a")
        with Recorder(CountingEnv(3), tmp_path / "b", verbose=False) as env:
            roll(env)
        with pytest.raises(MismatchError, match="render"):
            merge([tmp_path / "a", tmp_path / "b"], tmp_path / "c")
        assert not (tmp_path / "c").exists()

    def test_one_id_with_two_contents_is_refused(self, tmp_path: Path) -> None:
        ids = record(tmp_path / "a")
        merge([tmp_path / "a"], tmp_path / "b")
        rewrite(tmp_path / "b", {"reward": [5.0] * 4}, episodes=[ids[0]])
        with pytest.raises(ExistsError, match=ids[0]):
            merge([tmp_path / "a", tmp_path / "b"], tmp_path / "c")

    def test_episodes_are_picked_without_a_leaf_and_recording_goes_on(self, tmp_path: Path) -> None:
        ids = record(tmp_path / "a")
        done = pick(tmp_path / "a", tmp_path / "b", lambda episode: episode.seed != 1, exclude=["render"])
        assert done.episodes == 2
        assert ids_of(tmp_path / "b") == [ids[0], ids[2]]
        assert "render" not in Recording(tmp_path / "b").leaves
        with Recorder(CountingEnv(3), tmp_path / "b", verbose=False) as env:
            roll(env)
        sound(tmp_path / "b", 3)

    def test_a_recording_is_split_by_ids(self, tmp_path: Path) -> None:
        ids = record(tmp_path / "a", 5)
        split(tmp_path / "a", {tmp_path / "b": ids[:3], tmp_path / "c": ids[3:]})
        assert ids_of(tmp_path / "b") == ids[:3]
        assert ids_of(tmp_path / "c") == ids[3:]
        with pytest.raises(ValueError, match="into two"):
            split(tmp_path / "a", {tmp_path / "d": ids[:3], tmp_path / "e": ids[2:]})
        assert not (tmp_path / "d").exists()

    @pytest.mark.parametrize("exclude", ["action", "nope", "reward"])
    def test_what_cannot_be_left_out_is_refused(self, tmp_path: Path, exclude: str) -> None:
        record(tmp_path / "a")
        with pytest.raises(LayoutError, match=exclude):
            pick(tmp_path / "a", tmp_path / "b", exclude=[exclude])
        assert not (tmp_path / "b").exists()


SPACES: Mapping[str, Any] = {
    "steps": StepSpace(
        spaces.Dict(
            vector=spaces.Box(-1e6, 1e6, (2,), np.float32),
            word=spaces.Text(20),
            many=spaces.Sequence(spaces.Discrete(9)),
        ),
        spaces.Discrete(5),
        {"note": spaces.Text(20)},
    ),
    "single": spaces.Dict(word=spaces.Text(20), many=spaces.Sequence(spaces.Box(-9, 9, (2,)), stack=True)),
}


def some_row(name: str, generator: np.random.Generator, k: int) -> Any:
    """Return row k of an episode: texts, rows of changing length, and infos that come and go."""
    word, count = "é" * int(generator.integers(0, 9)), int(generator.integers(0, 4))
    if name == "single":
        return {"word": word, "many": generator.normal(size=(count, 2)).astype(np.float32)}
    vector = generator.normal(size=2).astype(np.float32)
    said: dict[str, Any] = {
        "observation": {"vector": vector, "word": word, "many": tuple(generator.integers(0, 9, count))},
        "info": {"k": k, "list": [1] * count, "odd": {"a": word}} if generator.random() < 0.4 else {},
    }
    if k:
        said |= {"action": k % 5, "reward": float(k), "terminated": False, "truncated": False, "extra": {"note": word}}
    return said


@pytest.mark.parametrize("storage", [None, ParquetStorage(file_rows=7), NpzStorage(), HDF5Storage(compression="lzf")])
@pytest.mark.parametrize("name", SPACES)
def test_whatever_was_recorded_is_the_same_after_edits_and_compaction(
    path: Path, name: str, storage: Storage | None
) -> None:
    generator = np.random.default_rng(7)
    for _ in range(3):
        with RecordingWriter(path, SPACES[name], storage=storage) as writer:
            for _ in range(6):
                writer.begin()
                writer.extend(some_row(name, generator, k) for k in range(int(generator.integers(2, 12))))
                writer.commit()
    before = {episode.id: columns_of(episode) for episode in Recording(path)}
    gone = list(before)[4::5]
    rewrite(path, lambda episode: {"mine/number": np.arange(len(episode))}, episodes=list(before)[::4])
    delete(path, gone)
    compact(path)
    found = {episode.id: columns_of(episode) for episode in Recording(path)}
    assert set(found) == set(before) - set(gone)
    for one, columns in found.items():
        added = columns.pop("mine/number", None)
        if one in list(before)[::4]:
            assert added == list(range(len(columns[next(iter(columns))]) - (name == "steps")))
        # A key of an info that other episodes of the shard have is there, and all of it absent.
        assert {key: rows for key, rows in columns.items() if any(row is not None for row in rows)} == before[one]
    sound(path, len(found))


def columns_of(episode: Any) -> dict[str, list[Any]]:
    """Return all rows of an episode as plain values, None where one is absent."""
    found = {}
    for key, column in episode.columns.items():
        rows = column[:]
        absent = np.ma.getmaskarray(rows).reshape(len(rows), -1).any(axis=1)
        found[key] = [
            None if gone else row.tolist() if hasattr(row, "tolist") else row
            for row, gone in zip(np.ma.getdata(rows), absent, strict=True)
        ]
    return {key: rows for key, rows in found.items() if any(row is not None for row in rows)}


def _record_and_flush(path: str) -> None:
    with Recorder(CountingEnv(3), path, verbose=False, flush_every=0) as env:
        for seed in range(25):
            roll(env, seed=seed)


def test_compaction_while_others_record_and_read_loses_nothing_and_brings_nothing_twice(path: Path) -> None:
    with Recorder(CountingEnv(3), path, verbose=False) as env:
        roll(env)
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_record_and_flush, args=(str(path),)) for _ in range(2)]
    for process in processes:
        process.start()
    reader, most = Recording(path), 0
    while any(process.is_alive() for process in processes):
        compact(path)
        reader.refresh()
        for one in (reader, Recording(path)):
            ids = [one.note(i).id for i in range(len(one))]
            assert len(set(ids)) == len(ids), "twice"
            assert len(ids) >= most, "an episode was not there for a while"
            most = len(ids)
    for process in processes:
        process.join()
        assert process.exitcode == 0
    compact(path)
    assert len(Recording(path)) == 51
    reader.refresh()
    assert sorted(episode.id for episode in reader) == sorted(ids_of(path))
    sound(path, 51)


@pytest.mark.parametrize(
    "camera", [ImageFileStorage(format="jpeg"), VideoStorage(), ZarrStorage(quality=60)], ids=["jpeg", "h264", "webp"]
)
def test_pictures_and_depth_that_are_kept_with_loss_are_not_coded_again_by_any_edit(
    path: Path, camera: Storage
) -> None:
    inner = spaces.Dict(camera=spaces.Box(0, 255, (48, 64, 3), np.uint8), depth=spaces.Box(0, 10, (48, 64), np.float32))
    space = StepSpace(annotate(inner, {"camera": {"kind": "image"}, "depth": {"kind": "depth"}}), spaces.Discrete(5))
    storage = DictStorage({"observation/camera": camera, "observation/depth": DepthStorage()})
    generator = np.random.default_rng(0)

    def seen() -> dict[str, Any]:
        depth = generator.uniform(0.1, 9, (48, 64)).astype(np.float32)
        return {"observation": {"camera": generator.integers(0, 255, (48, 64, 3), np.uint8), "depth": depth}}

    for _ in range(2):
        with RecordingWriter(path, space, storage=storage) as writer:
            for _ in range(2):
                writer.begin()
                writer.append(seen())
                step = {"action": 1, "reward": 1.0, "terminated": False, "truncated": False}
                writer.extend(seen() | step for _ in range(3))
                writer.commit()
    before = {episode.id: episode.observations for episode in Recording(path)}
    ids = list(before)
    rewrite(path, {"reward": [2.0] * 3}, episodes=ids[:1])
    delete(path, ids[1:2])
    compact(path)
    pick(path, path.with_name("some"), ids[2:3])
    for episode in [*Recording(path), *Recording(path.with_name("some"))]:
        for name in ("camera", "depth"):
            np.testing.assert_array_equal(episode.observations[name], before[episode.id][name])
    sound(path, 3)
    rewrite(path, lambda episode: {"observation/camera": 255 - episode.observations["camera"]}, episodes=ids[3:])
    sound(path, 3)
