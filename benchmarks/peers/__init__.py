"""Peers: other recorders, each in a virtual environment of its own with pinned versions, made when first needed.

    python -m benchmarks.peers [NAME ...]        make the environments and say what each has

They lie below the cache folder (`RECORDER_BENCHMARKS`, by default `~/.cache/recorder-benchmarks`). One that cannot be
made, because its Python is not there, or the disk or the network is not, is skipped with a note of why.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.frames import CACHE

HERE = Path(__file__).parent
GYMNASIUM = "gymnasium[classic-control]==1.4.0"
FREE_BYTES = 12 << 30
"""An environment with torch takes 6 GB; with less free than twice that none is begun."""


class PeerError(Exception):
    """A peer cannot be installed, or does not run; the message says why."""


@dataclass(frozen=True)
class Peer:
    """A recorder of others: which Python it needs, what is installed, step by step, and which packages to name."""

    python: str
    steps: Sequence[Sequence[str]]
    named: str
    large: bool = False


TORCH = ("torch==2.14.1", "torchvision==0.29.1")
LEROBOT = (
    *(
        "datasets",
        "pandas",
        "pyarrow",
        "pillow",
        "av<16",
        "huggingface_hub",
        "draccus==0.10.0",
        "jsonlines",
        "deepdiff",
    ),
    *("einops", "imageio[ffmpeg]", "packaging", "termcolor", "opencv-python-headless", "accelerate", "diffusers"),
)

VERSATIL = (
    *(
        "zarr==3.4.2",
        "versatil-constants==0.2.1",
        "threadpoolctl",
        "opencv-python-headless",
        "numba",
        "numpy",
        "pandas",
    ),
    *("python-dotenv", "omegaconf==2.4.0.dev12", "h5py", "psutil", "joblib", "termcolor", "tqdm", "pyyaml"),
    *("google-crc32c", "transformers"),
)
"""What its writer of zarr needs; not torch and the fifty others that its policies need."""

PEERS: Mapping[str, Peer] = {
    "minari": Peer("3.11", [["minari[hdf5,arrow,create]==0.5.4", "pillow", GYMNASIUM]], "minari"),
    "recordvideo": Peer("3.11", [[GYMNASIUM, "moviepy==2.2.1", "numpy"]], "gymnasium"),
    "diffusion_policy": Peer("3.11", [["zarr==2.18.7", "numcodecs==0.15.1", "numpy<2.3", "imagecodecs"]], "zarr"),
    "lerobot": Peer(
        "3.11", [TORCH, ["--no-deps", "lerobot==0.4.4", "torchcodec==0.17.0"], [*LEROBOT, "gymnasium"]], "lerobot", True
    ),
    "unienv": Peer("3.13", [["--pre", "unienv==0.0.1b16", "h5py==3.16.0", "pyarrow==26.0.1", "pillow"]], "unienv"),
    "versatil": Peer("3.13", [["--no-deps", "versatil==0.4.1"], VERSATIL], "versatil"),
}


def python_of(name: str) -> Path:
    """Return the interpreter of a peer, whose environment is made first if it is not there.

    Raises:
        PeerError: it cannot be made.
    """
    place, peer = CACHE / "peers" / name, PEERS[name]
    python, done, failed = place / "bin/python", place / "installed", CACHE / "peers" / f"{name}.failed"
    if done.exists():
        return python
    if failed.exists():
        raise PeerError(f"{failed.read_text()} (delete {failed} to try again)")
    try:
        _install(place, peer)
    except PeerError as error:
        shutil.rmtree(place, ignore_errors=True)
        failed.write_text(str(error))
        raise
    done.touch()
    return python


def _install(place: Path, peer: Peer) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(place.parent).free
    if peer.large and free < FREE_BYTES:
        raise PeerError(f"{free >> 30} GiB are free, {FREE_BYTES >> 30} are needed")
    interpreter = _interpreter(peer.python)
    print(f"installing {peer.named} into {place}", file=sys.stderr)
    _run([interpreter, "-m", "venv", str(place)])
    for step in peer.steps:
        _run([str(place / "bin/python"), "-m", "pip", "install", "-q", "--no-cache-dir", *step])


def _interpreter(version: str) -> str:
    """Return a Python of a version that runs: on the path, or one of pyenv's, whose shim on the path may refuse to.

    Raises:
        PeerError: there is none.
    """
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions"
    found = [f"python{version}", *map(str, sorted(pyenv.glob(f"{version}.*/bin/python")))]
    for python in filter(shutil.which, found):
        if subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0:
            return python
    raise PeerError(f"there is no python{version}")


def _run(command: Sequence[str]) -> str:
    """Run a command and return what it printed.

    Raises:
        PeerError: it failed; the message has the last line that it said.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()
        raise PeerError(f"{' '.join(command[-4:])!r:.120} ended with {done.returncode}: {said[-1]:.300}")
    return done.stdout


def version_of(name: str) -> str:
    """Return the version of a peer that is installed."""
    code = f"from importlib.metadata import version; print(version({PEERS[name].named!r}))"
    return f"{PEERS[name].named} {_run([str(python_of(name)), '-c', code]).strip()}"


def run(name: str, work: str, **arguments: Any) -> dict[str, Any]:
    """Let a peer do a work in a new folder, and return what it says of it.

    Raises:
        PeerError: it is not there, or fails.
    """
    python = python_of(name)
    folder = Path(tempfile.mkdtemp(prefix=f"{name}-"))
    try:
        said = json.dumps({"work": work, "folder": str(folder), **arguments})
        printed = _run([str(python), str(HERE / f"{name}_peer.py"), said])
        found: dict[str, Any] = json.loads(printed.strip().splitlines()[-1])
        return found
    except (IndexError, ValueError) as error:
        raise PeerError(f"{name} does not say what it did: {error}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
