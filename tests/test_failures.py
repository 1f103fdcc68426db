"""What fails is heard of and fails alone: what is on disk stays, the environment goes on, and so does the recording."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from environments import CountingEnv, roll

from recorder import ClosedError, DictStorage, HDF5Storage, NpzStorage, Recorder, Recording, WriteError, ZarrStorage
from recorder.columns import Rows
from recorder.leaf import Leaf
from recorder.storages.base import Run, Segment, Writer, register_storage
from recorder.verify import verify


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of two megabytes."""
    place = tmp_path / "disk"
    place.mkdir()
    if os.name != "posix" or os.geteuid() != 0:
        pytest.skip("only root may mount a file system")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(place)], check=False)
    if mounted.returncode:
        pytest.skip("no file system can be mounted here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def quiet(path: Path, length: int | None = 3, **options: Any) -> Recorder[Any, Any]:
    env = CountingEnv(length, "rgb_array")
    return Recorder(env, path, **{"verbose": False, "flush_every": 60, **options})


def fill(disk: Path) -> None:
    with (disk / "filling").open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            return


READ_ONLY = """
    import os, sys
    sys.path.insert(0, sys.argv[2])
    from environments import CountingEnv, roll
    from recorder import Recorder, Recording, WriteError

    with Recorder(CountingEnv(3), sys.argv[1], flush_every=60, verbose=False) as env:
        roll(env, 2)
        env.flush()
        roll(env)
        os.chmod(f"{sys.argv[1]}/shards", 0o555)
        try:
            env.flush()
        except WriteError as error:
            print(error)
        roll(env)
        assert len(Recording(sys.argv[1])) == 2
        os.chmod(f"{sys.argv[1]}/shards", 0o755)
"""

STORAGES = {
    "table": DictStorage(),
    "pictures": DictStorage({"render": ZarrStorage(), "observation": ZarrStorage()}),
}


class TestDisks:
    @pytest.mark.parametrize("storage", STORAGES)
    def test_a_full_disk_is_heard_of_and_with_room_again_all_is_written(self, disk: Path, storage: str) -> None:
        pictures = {"record_render": True} if storage == "pictures" else {}
        with quiet(disk / "run", storage=STORAGES[storage], **pictures) as env:
            roll(env, 2)
            env.flush()
            before = [episode.id for episode in Recording(disk / "run")]
            fill(disk)
            roll(env)
            with pytest.raises(WriteError, match="the disk is full: free some space"):
                env.flush()
            env.reset()
            env.step(0)  # it goes on
            assert [episode.id for episode in Recording(disk / "run")][: len(before)] == before
            assert verify(disk / "run", decode=True).sound
            (disk / "filling").unlink()
            env.step(0)
            env.step(0)
            roll(env)
            env.flush()
        assert [len(episode) for episode in Recording(disk / "run")] == [3] * 5
        assert verify(disk / "run", decode=True).sound
        assert not list((disk / "run" / "staging").iterdir())

    def test_a_disk_that_stays_full_fails_loudly_at_close_and_keeps_what_was_committed(self, disk: Path) -> None:
        env = quiet(disk / "run")
        roll(env, 2)
        env.flush()
        fill(disk)
        roll(env)
        with pytest.raises(WriteError, match="disk is full"):
            env.close()
        env.close()
        assert [len(episode) for episode in Recording(disk / "run")] == [3, 3]
        (disk / "filling").unlink()
        with quiet(disk / "run") as again:
            roll(again)
        assert verify(disk / "run", decode=True).sound

    def test_a_folder_that_becomes_read_only_is_heard_of_and_may_be_writable_again(self, tmp_path: Path) -> None:
        command = [sys.executable, "-c", textwrap.dedent(READ_ONLY), str(tmp_path / "run"), str(Path(__file__).parent)]
        if os.name != "posix" or os.geteuid() == 0:  # root may write anywhere, unless it gives that up
            if shutil.which("setpriv") is None:
                pytest.skip("root may write anywhere")
            command = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", *command]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "it is not allowed: change the permissions" in done.stdout
        assert [len(episode) for episode in Recording(tmp_path / "run")] == [3] * 4

    @pytest.mark.parametrize("what", ["all", "staging", "shards"])
    def test_a_folder_that_is_removed_is_heard_of_and_the_environment_goes_on(self, tmp_path: Path, what: str) -> None:
        env = quiet(tmp_path / "run")
        roll(env)
        env.flush()
        shutil.rmtree(tmp_path / "run" / ("" if what == "all" else what))
        roll(env)
        if what == "shards":
            env.flush()
            assert len(Recording(tmp_path / "run")) == 1
            env.close()
            return
        with pytest.raises(WriteError, match=r"removed or renamed.*record anew"):
            env.flush()
        roll(env)
        with pytest.raises(WriteError):
            env.close()
        with quiet(tmp_path / "run") as again:
            roll(again)
        assert len(Recording(tmp_path / "run")) == (1 if what == "all" else 2)


class Broken(Writer):
    """Hands everything on to another writer, but for one call, which raises."""

    def __init__(self, inner: Writer, call: str) -> None:
        self._inner = inner
        self._call = call
        self._calls = 0

    def _break(self, call: str) -> None:
        self._calls += call == self._call
        if call == self._call and self._calls == 2:
            raise RuntimeError(f"the encoder is out of ink in {call}")

    def append(self, rows: Mapping[str, Rows], runs: Sequence[Run]) -> None:
        self._break("append")
        self._inner.append(rows, runs)

    def end(self, segment: int) -> None:
        self._break("end")
        self._inner.end(segment)

    def checkpoint(self) -> None:
        self._break("checkpoint")
        self._inner.checkpoint()

    def segments(self) -> Sequence[Segment]:
        return self._inner.segments()

    def view(self, segment: Segment) -> Any:
        return self._inner.view(segment)

    def pack(self, directory: Path, segments: Sequence[Segment]) -> Sequence[Leaf]:
        self._break("pack")
        return self._inner.pack(directory, segments)

    def forget(self, segments: Sequence[int]) -> None:
        self._break("forget")
        self._inner.forget(segments)

    def close(self) -> None:
        self._break("close")
        self._inner.close()

    @property
    def nbytes(self) -> int:
        return self._inner.nbytes


@register_storage
@dataclass(frozen=True)
class BrokenStorage(NpzStorage):
    """A storage of which the second call of one kind raises."""

    id = "broken-for-a-test"
    call: str = "append"

    def writer(self, directory: Path, leaves: Sequence[Leaf]) -> Writer:
        return Broken(super().writer(directory, leaves), self.call)


class TestEncoders:
    @pytest.mark.parametrize("call", ["append", "end", "checkpoint", "pack", "forget"])
    def test_one_that_raises_costs_one_episode_at_most_and_is_heard_of(self, tmp_path: Path, call: str) -> None:
        storage = DictStorage({"observation": BrokenStorage(call=call)}, HDF5Storage())
        heard = []
        env = quiet(tmp_path / "run", storage=storage)
        for _ in range(5):
            try:
                roll(env)
                env.reset()
                env.step(0)
                env.flush()
            except WriteError as error:
                heard.append(str(error))
        try:
            env.close()
        except WriteError as error:
            heard.append(str(error))
        assert heard
        assert f"out of ink in {call}" in heard[0]
        with quiet(tmp_path / "run"):
            pass  # recovers what was left in staging
        found = Recording(tmp_path / "run")
        assert sum(len(episode) == 3 for episode in found) >= 4
        for episode in found:
            assert episode.observations[:, 0].tolist() == list(range(len(episode) + 1))
        assert verify(tmp_path / "run", decode=True).sound

    @pytest.mark.parametrize("call", ["pack", "forget"])
    def test_of_many_that_are_committed_together_none_is_there_twice(self, tmp_path: Path, call: str) -> None:
        storage = DictStorage({"observation": BrokenStorage(call=call)}, HDF5Storage())
        env = quiet(tmp_path / "run", storage=storage)
        roll(env)
        env.flush()
        roll(env, 3)
        with pytest.raises(WriteError, match="out of ink"):
            env.flush()
        env.close()
        ids = [episode.id for episode in Recording(tmp_path / "run")]
        assert len(ids) == len(set(ids)) == 4
        assert verify(tmp_path / "run", decode=True).sound

    def test_one_that_cannot_be_closed_does_not_keep_the_others_open(self, tmp_path: Path) -> None:
        storage = DictStorage({"observation": BrokenStorage(call="end"), "render": ZarrStorage()}, HDF5Storage())
        env = quiet(tmp_path / "run", storage=storage, record_render=True)
        roll(env, 2)
        with pytest.raises(WriteError, match="out of ink"):
            env.close()
        found = Recording(tmp_path / "run")
        assert [len(episode) for episode in found] == [3, 3]
        np.testing.assert_array_equal(found[1].columns["render"][3], frame(3))
        assert verify(tmp_path / "run", decode=True).sound


def frame(steps: int) -> Any:
    env = CountingEnv(None)
    env.steps = steps
    return env.render()


class Breaking(CountingEnv):
    """Raises in one of its steps."""

    def __init__(self, error: type[BaseException]) -> None:
        super().__init__(20)
        self._error = error

    def step(self, action: Any) -> Any:
        if self.steps == 6:
            self.steps += 1
            raise self._error("on purpose")
        return super().step(action)


class TestLoops:
    @pytest.mark.parametrize(("error", "end"), [(ZeroDivisionError, "exception"), (KeyboardInterrupt, "interrupted")])
    def test_what_raises_in_a_step_ends_the_episode_and_the_next_one_is_recorded(
        self, tmp_path: Path, error: type[BaseException], end: str
    ) -> None:
        with Recorder(Breaking(error), tmp_path, verbose=False) as env:
            for _ in range(2):
                with pytest.raises(error):
                    roll(env)
        found = Recording(tmp_path)
        assert [(len(episode), episode.end) for episode in found] == [(6, end)] * 2

    def test_a_recorder_that_is_pickled_says_what_to_do_and_goes_on(self, tmp_path: Path) -> None:
        with quiet(tmp_path) as env:
            env.reset()
            env.step(0)
            with pytest.raises(ClosedError, match="Pass a function that makes it"):
                pickle.dumps(env)
            env.step(0)
        assert len(Recording(tmp_path)[0]) == 2
