"""What a dead writer left becomes episodes once; what cannot be saved is kept with its reason; the living are left."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from environments import CountingEnv, roll

from recorder import Recorder, Recording
from recorder.discarded import list_discarded
from recorder.verify import verify
from recorder.writing.recovery import recover
from recorder.writing.staging import LOCK, NOTE, RUNNING, boot_id

DIE = """
    import os, signal, sys
    sys.path.insert(0, sys.argv[2])
    from environments import CountingEnv
    from recorder import DictStorage, Recorder, VideoStorage, ZarrStorage

    storage = DictStorage({"render": VideoStorage(), "observation": ZarrStorage()})
    env = Recorder(CountingEnv(None, "rgb_array"), sys.argv[1], record_render=True, storage=storage, verbose=False)
    env.reset(seed=7)
    for k in range(40):
        env.step(k % 4)
    env.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def left_by_the_dead(path: Path) -> Path:
    """Let a process die after a checkpoint of 40 steps; return its staging folder."""
    command = [sys.executable, "-c", textwrap.dedent(DIE), str(path), str(Path(__file__).parent)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    (folder,) = (path / "staging").iterdir()
    return folder


def tree(path: Path) -> dict[str, Any]:
    return {
        str(file): (file.lstat().st_mtime_ns, file.read_bytes() if file.is_file() else None) for file in path.rglob("*")
    }


@pytest.fixture(scope="module")
def dead(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("dead") / "run"
    left_by_the_dead(path)
    return path


@pytest.fixture
def path(dead: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(dead, tmp_path / "run"))


def test_a_dry_run_says_what_would_be_kept_and_changes_nothing(path: Path) -> None:
    before = tree(path)
    (found,) = recover(path, dry_run=True)
    assert list(found.kept.values()) == [40] or list(found.kept.values()) == [39]
    assert tree(path) == before
    (done,) = recover(path)
    assert done == found
    assert len(Recording(path)[0]) == found.kept[Recording(path)[0].id]


def test_what_is_recovered_is_whole_and_nothing_is_left(path: Path) -> None:
    recover(path)
    (episode,) = Recording(path)
    assert episode.end == "recovered"
    assert episode.seed == 7
    assert episode.observations[:, 0].tolist() == list(range(len(episode) + 1))
    assert episode.return_ == len(episode)
    assert verify(path, decode=True).sound
    assert not list((path / "staging").iterdir())
    assert not list_discarded(path)
    assert recover(path) == []


@pytest.mark.parametrize("damage", ["cut", "zero", "garbage"])
@pytest.mark.parametrize("which", [RUNNING, "part-", "000000.part", "render.mp4", "origin.json"])
def test_what_cannot_be_saved_is_kept_with_the_reason_and_does_not_block_recording(
    path: Path, which: str, damage: str
) -> None:
    (file, *_) = [file for file in sorted(path.rglob("*")) if file.name.startswith(which) or file.name == which]
    data = file.read_bytes()
    changed = {"cut": data[:20], "zero": bytes(len(data)), "garbage": b"{" * len(data)}[damage]
    file.write_bytes(changed)
    with Recorder(CountingEnv(3, "rgb_array"), path, record_render=True, verbose=False) as env:
        roll(env)
    assert verify(path, decode=True).sound
    (remains,) = list_discarded(path)
    assert "recovery could not save all of it" in remains.reason
    assert not remains.restorable
    (kept,) = (path / "discarded").rglob(file.name)
    assert kept.read_bytes() == changed
    assert not list((path / "staging").iterdir())


def test_with_no_trash_what_cannot_be_saved_is_deleted(path: Path) -> None:
    (running,) = path.rglob(RUNNING)
    running.write_bytes(b"")
    (found,) = recover(path, trash=0)
    assert found.lost
    assert not (path / "discarded").exists()


def staging_of(path: Path) -> Path:
    (folder,) = (path / "staging").iterdir()
    return folder


def note(path: Path, **changes: Any) -> None:
    file = staging_of(path) / NOTE
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_a_writer_of_another_host_is_left_until_it_is_said_to_be_dead(path: Path) -> None:
    note(path, host="elsewhere", boot="another")
    (found,) = recover(path)
    assert "another host" in found.left
    assert "--foreign" in found.left
    (found,) = recover(path, foreign=True)
    assert found.kept
    assert len(Recording(path)) == 1


def test_a_dead_container_of_this_machine_is_known_by_the_boot(path: Path) -> None:
    note(path, host="3f2a91cc", boot=boot_id())
    (found,) = recover(path)
    assert found.kept


def test_a_boot_of_this_host_that_is_over_is_dead(path: Path) -> None:
    note(path, host=socket.gethostname(), boot="before")
    (found,) = recover(path)
    assert found.kept


def test_a_pid_that_lives_again_does_not_make_a_writer_alive(path: Path) -> None:
    note(path, pid=os.getpid())
    (found,) = recover(path)
    assert found.kept


@pytest.mark.parametrize("foreign", [False, True])
def test_a_living_writer_is_left_alone(tmp_path: Path, foreign: bool) -> None:
    with Recorder(CountingEnv(None), tmp_path, verbose=False) as env:
        env.reset()
        env.step(0)
        env.flush()
        if foreign:
            note(tmp_path, host="elsewhere", boot="another")
        (found,) = recover(tmp_path, foreign=foreign)
        assert "alive" in found.left
    assert len(Recording(tmp_path)) == 1


def test_an_episode_is_recovered_though_an_older_shard_of_its_writer_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "run"
    left_by_the_dead(path)
    writer = staging_of(path).name
    recover(path)
    (shard,) = (path / "shards").iterdir()
    left_by_the_dead(path)
    # The second writer gets a damaged shard of its own.
    broken = path / "shards" / shard.name.replace(writer, staging_of(path).name)
    broken.mkdir()
    (broken / "shard.json").write_bytes(b"")
    (found,) = recover(path)
    assert found.kept
    assert len(Recording(path, damaged="skip")) == 2


def test_a_link_in_staging_is_never_followed(path: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / LOCK).write_text("")
    (mine / "thesis.tex").write_text("mine")
    (path / "staging" / "0123456789ab").symlink_to(mine)
    recover(path, foreign=True)
    assert (mine / "thesis.tex").read_text() == "mine"


def test_staging_that_may_not_be_opened_does_not_keep_one_from_recording(path: Path) -> None:
    lock = staging_of(path) / LOCK
    lock.unlink()
    lock.mkdir()
    (found,) = recover(path)
    assert "cannot be opened" in found.left
    with Recorder(CountingEnv(3, "rgb_array"), path, record_render=True, verbose=False) as env:
        roll(env)
    assert len(Recording(path)) == 1
