"""The index makes opening fast, and whatever happens to it never changes what is read."""

from __future__ import annotations

import hashlib
import json
import pickle
import shutil
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recorder import Recorder, Recording, catalogue, indexing
from recorder.cli import main
from recorder.errors import DamagedError
from recorder.files import files_below
from recorder.index import INDEX, MOST_LINES, Entries, append, entries_of, line_of, read_index, write_index
from recorder.indexing import save_index
from recorder.shard import Shard, encode_manifest, read_manifest


def record(path: Path, shards: int, episodes: int = 2) -> None:
    """Record short episodes, in as many shards."""
    with Recorder(gym.make("CartPole-v1", max_episode_steps=3), path, verbose=False) as env:
        for seed in range(shards * episodes):
            env.reset(seed=seed)
            for _ in range(3):
                env.step(0)
            env.end_episode()
            if seed % episodes == episodes - 1:
                env.flush()


def seen(path: Path | list[Path]) -> list[tuple[str, int | None, float]]:
    """Return what a reader finds, in its order."""
    recording = Recording(path)
    assert len(list(recording)) == len(recording)
    assert recording.steps == sum(len(episode) for episode in recording)
    assert recording.table()["id"].tolist() == [episode.id for episode in recording]
    return [(episode.id, episode.seed, float(episode.observations.sum())) for episode in recording]


def rewrite(shard: Path, **changes: object) -> None:
    """Change what a shard says of itself."""
    manifest = read_manifest(shard)
    for name, value in changes.items():
        setattr(manifest, name, value)
    (shard / "shard.json").write_bytes(encode_manifest(manifest))


@pytest.fixture(autouse=True)
def _few_shards_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "FROM_SHARDS", 2)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    record(tmp_path / "run", 4)
    return tmp_path / "run"


def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that grows by the name of each shard that is opened."""
    names: list[str] = []

    class Watched(Shard):
        def __init__(self, path: Path) -> None:
            names.append(path.name)
            super().__init__(path)

    monkeypatch.setattr(catalogue, "Shard", Watched)
    return names


def test_an_indexed_recording_opens_without_looking_into_a_shard(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = seen(path)
    assert save_index(path) == (4, 4)
    names = opened(monkeypatch)
    recording = Recording(path)
    assert len(recording) == 8
    assert recording.steps == 24
    assert names == []
    assert recording[3].id == before[3][0]
    assert len(names) == 1
    assert seen(path) == before


def test_an_episode_is_found_by_its_id_in_the_one_shard_that_can_have_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [episode.id for episode in Recording(path)]
    save_index(path)
    names = opened(monkeypatch)
    recording = Recording(path)
    assert recording[ids[5]].seed == 5
    assert len(names) == 1
    with pytest.raises(KeyError, match="no episode"):
        recording[ids[5].replace("-", "-9")]
    assert len(names) == 1


def test_reading_changes_nothing(path: Path) -> None:
    def tree() -> dict[str, str]:
        return {str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in files_below(path)}

    without = tree()
    seen(path)
    assert tree() == without
    save_index(path)
    indexed = tree()
    assert set(indexed) - set(without) == {str(path / INDEX)}
    seen(path)
    assert tree() == indexed


def test_shards_that_are_newer_than_the_index_are_there_and_those_that_are_gone_are_not(path: Path) -> None:
    save_index(path)
    record(path, 2)
    assert [seed for _, seed, _ in seen(path)] == [0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3]
    shutil.rmtree(sorted((path / "shards").iterdir())[1])
    assert [seed for _, seed, _ in seen(path)] == [0, 1, 4, 5, 6, 7, 0, 1, 2, 3]
    assert save_index(path) == (5, 2)
    assert [seed for _, seed, _ in seen(path)] == [0, 1, 4, 5, 6, 7, 0, 1, 2, 3]


def test_a_reader_appends_what_came_since_whether_it_is_indexed_or_not(path: Path) -> None:
    save_index(path)
    recording = Recording(path)
    record(path, 2)
    assert recording.refresh() == 4
    save_index(path)
    record(path, 3)
    save_index(path)
    assert recording.refresh() == 6
    assert recording.refresh() == 0
    assert [episode.seed for episode in recording][8:] == [0, 1, 2, 3, 0, 1, 2, 3, 4, 5]
    assert [episode.id for episode in pickle.loads(pickle.dumps(recording))] == [episode.id for episode in recording]


def test_what_shards_replace_and_drop_counts_with_the_index_as_without(path: Path) -> None:
    shards = sorted((path / "shards").iterdir())
    ids = [episode.id for episode in Recording(path)]
    rewrite(shards[3], replaces=[shards[1].name], dropped=[ids[1], ids[6]])
    without = seen(path)
    assert [episode for episode, *_ in without] == [ids[0], ids[4], ids[5], ids[7]]
    save_index(path)
    assert seen(path) == without
    recording = Recording(path)
    assert recording[ids[7]].id == recording[-1].id == ids[7]
    with pytest.raises(KeyError):
        recording[ids[6]]


def test_what_a_newer_shard_drops_is_looked_for_in_indexed_ones(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards = sorted((path / "shards").iterdir())
    ids = [episode.id for episode in Recording(path)]
    last = shards[3].rename(path / "aside")
    save_index(path)
    rewrite(last, dropped=[ids[2]])
    last.rename(shards[3])
    names = opened(monkeypatch)
    recording = Recording(path)
    assert set(names) == {shards[1].name, shards[3].name}
    assert [episode.id for episode in recording] == [*ids[:2], *ids[3:]]


def test_ids_of_other_writers_are_found(path: Path) -> None:
    """An edit brings episodes into a shard of its own, and they keep their ids."""
    shard = sorted((path / "shards").iterdir())[2]
    ids = [episode.id for episode in Recording(path)]
    other = shard.rename(shard.with_name(shard.name.replace(shard.name.split("-")[1], "0123456789ab")))
    save_index(path)
    recording = Recording(path)
    assert recording[ids[4]].seed == 4
    rewrite(other, dropped=[ids[5]])
    shutil.rmtree(path / "cache")
    without = seen(path)
    save_index(path)
    assert seen(path) == without
    assert len(without) == 7


def test_several_folders_have_an_index_each(path: Path, tmp_path: Path) -> None:
    record(tmp_path / "other", 3)
    save_index(path)
    both = [path, tmp_path / "other"]
    assert seen(both) == seen(path) + seen(tmp_path / "other")


@given(data=st.data())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_index_never_changes_what_is_read(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = _indexed(tmp_path_factory)
    whole = (path / "whole").read_bytes()
    index = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(index) - 1))
        index[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.one_of(st.none(), st.integers(0, len(index))))
    (path / INDEX).write_bytes(bytes(index[:cut]))
    assert [note.id for note in map(Recording(path).note, range(8))] == json.loads((path / "ids").read_text())


_made: dict[int, Path] = {}


def _indexed(factory: pytest.TempPathFactory) -> Path:
    """Return one recording whose index has two lines."""
    if id(factory) not in _made:
        path = factory.mktemp("indexed") / "run"
        record(path, 2)
        save_index(path)
        record(path, 2)
        save_index(path)
        (path / "whole").write_bytes((path / INDEX).read_bytes())
        (path / "ids").write_text(json.dumps([episode.id for episode in Recording(path)]))
        _made[id(factory)] = path
    return _made[id(factory)]


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\xff" * 99, b"{}\n", b"[" * 100_000])
def test_what_is_no_index_counts_as_none(path: Path, content: bytes) -> None:
    before = seen(path)
    (path / INDEX).parent.mkdir()
    (path / INDEX).write_bytes(content)
    assert len(read_index(path).names) == 0
    assert seen(path) == before


def test_a_line_of_another_form_or_format_counts_as_not_there(path: Path) -> None:
    save_index(path)
    line = line_of(read_index(path))
    for other in (["x" * 3000, *line.shards[1:]], line.shards[:-1]):
        (path / INDEX).write_bytes(_sealed({**_plain(line), "shards": other}))
        assert len(seen(path)) == 8
    for change in ({"format": 9}, {"more": 1}, {"episodes": [-1, 2, 2, 2]}, {"episodes": [1 << 60, 2, 2, 2]}):
        (path / INDEX).write_bytes(_sealed({**_plain(line), **change}))
        assert len(read_index(path).names) == 0
        assert len(seen(path)) == 8


def _plain(line: object) -> dict[str, object]:
    return {name: getattr(line, name) for name in line.__struct_fields__}  # type: ignore[attr-defined]


def _sealed(said: dict[str, object]) -> bytes:
    from recorder.files import sealed

    return sealed(json.dumps(said).encode())


def test_an_index_that_lies_is_named_and_nothing_else_is_given(path: Path) -> None:
    save_index(path)
    line = line_of(read_index(path))
    line.episodes[1] = 3
    (path / INDEX).unlink()
    append(path, entries_of(line))
    recording = Recording(path)
    assert recording[0].seed == 0
    with pytest.raises(DamagedError, match=r"has 2 episodes, and cache/shards.jsonl says 3.*delete"):
        recording[2]


def test_a_damaged_shard_is_found_when_its_episodes_are_asked_for_and_others_are_read(path: Path) -> None:
    save_index(path)
    shard = sorted((path / "shards").iterdir())[1]
    (shard / "episodes.h5").write_bytes(b"x")
    recording = Recording(path)
    assert recording[0].seed == 0
    assert recording[-1].seed == 7
    with pytest.raises(DamagedError, match=r"episodes\.h5 has 1 bytes"):
        recording[2]
    skipping = Recording(path, damaged="skip")
    assert [episode.seed for episode in skipping] == [0, 1, 4, 5, 6, 7]
    assert list(skipping.damaged) == [shard]


def test_a_torn_line_does_not_spoil_the_next(path: Path) -> None:
    save_index(path)
    entries = read_index(path)
    whole = (path / INDEX).read_bytes()
    (path / INDEX).write_bytes(whole[:-20])
    append(path, entries.at(np.array([2])))
    assert read_index(path).names.tolist() == entries.names[2:3].tolist()


def test_many_lines_become_one(path: Path) -> None:
    save_index(path)
    entries = read_index(path)
    (path / INDEX).unlink()
    for i in range(MOST_LINES + 1):
        write_index(path, entries.at(np.array([i % 4])))
    assert len(list(filter(None, (path / INDEX).read_bytes().split(b"\n")))) == 1
    assert len(seen(path)) == 8


def test_a_shard_takes_little_memory_in_the_catalogue() -> None:
    name = b"20261130T145901.482Z-7f3a9104c2d8-000004"
    entries = Entries(np.full(1000, name), np.zeros((1000, 4), np.int64), {})
    assert (entries.names.nbytes + entries.numbers.nbytes) / 1000 <= 90


def test_the_command_line_brings_the_index_up_to_date(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(path), "--json"]) == 0
    assert not (path / INDEX).exists()
    before = capsys.readouterr().out
    assert main(["info", str(path), "--index", "--json"]) == 0
    assert capsys.readouterr().out == before
    assert len(read_index(path).names) == 4


class TestWriters:
    """Who records keeps the index up to date, where it pays."""

    @pytest.fixture(autouse=True)
    def _often(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(indexing, "FROM_SHARDS", 4)
        monkeypatch.setattr("recorder.writing.committing.COMMITS", 3)

    def test_a_writer_that_closes_indexes_what_there_is(self, tmp_path: Path) -> None:
        record(tmp_path, 2)
        assert not (tmp_path / INDEX).exists()
        record(tmp_path, 3)
        assert len(read_index(tmp_path).names) == 5
        (at,) = {tuple(entry) for entry in read_index(tmp_path).numbers[:2, 2:].tolist()} - {(0, 1)}
        assert at == (2, 3)
        assert len(Recording(tmp_path)) == 10

    def test_a_writer_indexes_as_it_goes(self, tmp_path: Path) -> None:
        with Recorder(gym.make("CartPole-v1", max_episode_steps=3), tmp_path, flush_every=0, verbose=False) as env:
            for count in range(1, 8):
                env.reset(seed=count)
                env.step(0)
                env.end_episode()
                env.flush()
                assert len(read_index(tmp_path).names) == (6 if count >= 6 else 0)

    def test_a_damaged_shard_stays_out_of_it(self, tmp_path: Path) -> None:
        record(tmp_path, 3)
        first = sorted((tmp_path / "shards").iterdir())[0]
        (first / "episodes.h5").write_bytes(b"")
        record(tmp_path, 1)
        assert first.name.encode() not in read_index(tmp_path).names
        assert len(read_index(tmp_path).names) == 3

    def test_it_takes_a_bounded_number_at_a_time(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        record(tmp_path, 3)
        monkeypatch.setattr(indexing, "AT_ONCE", 2)
        record(tmp_path, 1)
        names = [path.name.encode() for path in sorted((tmp_path / "shards").iterdir())]
        assert read_index(tmp_path).names.tolist() == names[2:]

    def test_where_it_cannot_be_written_nothing_else_fails(self, tmp_path: Path) -> None:
        record(tmp_path, 4)
        shutil.rmtree(tmp_path / "cache")
        (tmp_path / "cache").write_text("a file")
        record(tmp_path, 1)
        assert len(Recording(tmp_path)) == 10
