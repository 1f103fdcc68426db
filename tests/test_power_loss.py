"""What is said to be on disk survives a loss of power: all was synced, in an order in which nothing is half there.

A trace of the system calls tells what is not synced at the moment when a flush returns; and a copy of a file system's
image, made without any sync, is what a loss of power leaves.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from recorder import Recording
from recorder.verify import verify
from recorder.writing.recovery import recover

RECORD = """
    import os, sys
    sys.path.insert(0, sys.argv[2])
    from environments import CountingEnv
    from recorder import DictStorage, ImageFileStorage, Recorder, VideoStorage, ZarrStorage

    storage = DictStorage({"render": VideoStorage(), "observation": ZarrStorage()})
    fsync = sys.argv[3] == "fsync"
    env = Recorder(
        CountingEnv(6, "rgb_array"), sys.argv[1], record_render=True, storage=storage, flush_every=60, fsync=fsync,
        verbose=False,
    )
    for episode in range(4):
        env.reset(seed=episode)
        for k in range(6 if episode < 3 else 4):
            env.step(k % 4)
        if episode > 0:
            if episode < 3:
                env.end_episode()
            env.flush()
            os.write(1, b"on disk\\n")
    sys.stdin.readline()
    os._exit(0)
"""

CALL = re.compile(r"^\d+ +(\w+)\((.*)\) += (-?\d+)")
QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
OPENED = re.compile(r"^(\d+)<([^>]*)>")
CALLS = (
    "openat,write,pwrite64,fsync,fdatasync,rename,renameat,renameat2,link,linkat,mkdir,mkdirat,unlink,unlinkat,rmdir"
)


def command(path: Path, fsync: str = "fsync") -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(RECORD), str(path), str(Path(__file__).parent), fsync]


def calls(trace: Path) -> Iterator[tuple[str, str]]:
    """Yield the calls that succeeded, with their arguments; those that were interrupted by others in one piece."""
    begun: dict[str, str] = {}
    for line in trace.read_text().split("\n"):
        process = line.split(" ")[0]
        if line.endswith("<unfinished ...>"):
            begun[process] = line.removesuffix("<unfinished ...>")
            continue
        if "resumed>" in line:
            line = begun.pop(process, "") + line.split("resumed>", 1)[1]
        found = CALL.match(line)
        if found is not None and int(found[3]) >= 0:
            yield found[1], found[2]


class Disk:
    """What a disk holds and what it only has in memory: files with new bytes, folders with new names."""

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        self._files: dict[str, int] = {}
        self._dirty: set[int] = set()
        self.folders: set[str] = set()
        self._numbers = 0

    def follow(self, call: str, arguments: str) -> None:
        """Take over what a call did."""
        paths = [path for path in QUOTED.findall(arguments) if path.startswith(self._root)]
        opened = OPENED.match(arguments)
        if call == "openat" and paths and "O_CREAT" in arguments and paths[0] not in self._files:
            self._numbers += 1
            self._files[paths[0]] = self._numbers
            self._named(paths[0])
        elif call in ("write", "pwrite64") and opened and opened[2] in self._files:
            self._dirty.add(self._files[opened[2]])
        elif call in ("fsync", "fdatasync") and opened:
            self._dirty.discard(self._files.get(opened[2], 0))
            self.folders.discard(opened[2])
        elif call.startswith("mkdir") and paths:
            self._named(paths[0])
        elif call.startswith("link") and len(paths) == 2:
            self._files[paths[1]] = self._files[paths[0]]
            self._named(paths[1])
        elif call.startswith("rename") and len(paths) == 2:
            self._rename(*paths)
        elif call.startswith(("unlink", "rmdir")):
            self._remove(paths[0] if paths else f"{opened[2]}/{QUOTED.findall(arguments)[0]}" if opened else "")

    def _named(self, path: str) -> None:
        self.folders.add(os.path.dirname(path))  # noqa: PTH120

    def _rename(self, old: str, new: str) -> None:
        moved = {path: number for path, number in self._files.items() if path == old or path.startswith(f"{old}/")}
        for path, number in moved.items():
            del self._files[path]
            self._files[new + path[len(old) :]] = number
        folders = {folder for folder in self.folders if folder == old or folder.startswith(f"{old}/")}
        self.folders = (self.folders - folders) | {new + folder[len(old) :] for folder in folders}
        self._named(new)

    def _remove(self, path: str) -> None:
        self._files.pop(path, None)
        self.folders = {folder for folder in self.folders if folder != path}

    def unsaved(self, below: str = "") -> list[str]:
        """Return what a loss of power would take."""
        files = [path for path, number in self._files.items() if number in self._dirty]
        found = [path for path in (*files, *self.folders) if path.startswith(below or self._root)]
        return sorted(path for path in found if not path.endswith("/lock"))


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """The system calls of a process that records."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    log = tmp_path / "trace"
    traced = ["strace", "-f", "-y", "-qq", "-s", "256", "-e", f"trace={CALLS}", "-o", str(log)]
    done = subprocess.run(
        [*traced, *command(tmp_path / "run")], input="\n", capture_output=True, text=True, check=False, timeout=100
    )
    if "ptrace" in done.stderr or "not permitted" in done.stderr:
        pytest.skip("processes cannot be traced here")
    assert done.stdout == "on disk\n" * 3, done.stderr
    return log


def test_all_is_synced_when_it_is_said_to_be_on_disk_and_before_it_gets_its_name(trace: Path, tmp_path: Path) -> None:
    disk = Disk(tmp_path / "run")
    said = committed = 0
    for call, arguments in calls(trace):
        paths = QUOTED.findall(arguments)
        if call.startswith("rename") and "/shards/" in paths[-1]:
            assert not disk.unsaved(paths[0]), f"a shard was named before this was on disk: {disk.unsaved(paths[0])}"
            committed += 1
        if call.startswith(("unlink", "rmdir")) and "/rows/" in arguments:
            named = [folder for folder in disk.folders if folder.endswith(("/shards", "/run"))]
            assert not named, f"what was staged was removed before the shard's name was on disk: {named}"
        if call == "write" and '"on disk\\n"' in arguments:
            said += 1
            running = said == 3  # what is staged matters only while something runs
            unsaved = [path for path in disk.unsaved() if running or "/staging/" not in path]
            assert not unsaved, f"said to be on disk, and is not: {unsaved}"
        disk.follow(call, arguments)
    assert (said, committed) == (3, 2)


@pytest.fixture
def image(tmp_path: Path) -> Iterator[Path]:
    """The image of an ext4 file system that is mounted at `mounted` beside it."""
    image, place = tmp_path / "image", tmp_path / "mounted"
    place.mkdir()
    if not hasattr(os, "geteuid") or os.geteuid() != 0 or shutil.which("mkfs.ext4") is None:
        pytest.skip("only root may mount a file system")
    with image.open("wb") as file:
        file.truncate(24 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True, capture_output=True)
    if not mount(image, place):
        pytest.skip("no image can be mounted here")
    yield image
    with suppress(OSError):
        subprocess.run(["umount", "-l", str(place)], check=False, capture_output=True)


def mount(image: Path, place: Path) -> bool:
    place.mkdir(exist_ok=True)
    done = subprocess.run(["mount", "-o", "loop,commit=300", str(image), str(place)], check=False, capture_output=True)
    return done.returncode == 0


@pytest.mark.parametrize("fsync", ["fsync", "no fsync"])
def test_what_a_loss_of_power_leaves_has_all_that_was_on_disk(image: Path, tmp_path: Path, fsync: str) -> None:
    """Without `fsync` nothing is promised but that what is there opens, or is named as damaged."""
    place = tmp_path / "mounted"
    process = subprocess.Popen(command(place / "run", fsync), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(3)] == [b"on disk\n"] * 3
        process.send_signal(signal.SIGSTOP)
        (tmp_path / "after").write_bytes(image.read_bytes())
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            stream.close()
    again = tmp_path / "again"
    assert mount(tmp_path / "after", again)
    try:
        check(again / "run", fsync == "fsync")
    finally:
        subprocess.run(["umount", "-l", str(again)], check=True)


def check(path: Path, promised: bool) -> None:
    """Assert that three whole episodes are there, and of the running one all steps but what its encoder held."""
    if not promised and not (path / "recording.json").exists():
        return
    recover(path)
    found = Recording(path, damaged="skip")
    if not promised:
        assert bool(found.damaged) <= (not verify(path).sound)
        return
    assert not found.damaged
    assert [len(episode) for episode in found][:3] == [6, 6, 6]
    assert len(found[3]) in (3, 4)
    assert verify(path, decode=True).sound
