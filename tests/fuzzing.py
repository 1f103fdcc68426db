"""Changes files of recordings at random, and reads each in a child process with little memory and little time.

    python tests/fuzzing.py FOLDER SEED COUNT [KIND…]

Prints one JSON object: how many mutants were tried, how they ended, the most memory and time that one took, and what
was wrong with which. Half of the mutants are sealed: every checksum is made to fit again, as a stranger can do; those
of HDF5's own headers, of zarr's chunks and of checkpoints too.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import struct
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent))

import google_crc32c
import numpy as np
from lookup3 import hdf5_headers_mended

from recorder import Recorder, RecorderError, Recording
from recorder.discarded import list_discarded
from recorder.files import checksum, files_below, sealed, unsealed
from recorder.limits import Limits, set_limits
from recorder.verify import verify
from recorder.writing.recovery import recover

MEMORY = 1 << 30
SECONDS = 5
"""Of the processor; the clock on the wall may show more on a busy machine, and is looked at after a minute."""

GOLDEN = Path(__file__).parent / "data" / "format-0"
NUMBERS = [0, 1, 2, 127, 128, 255, 256, 65535, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63 - 1, 2**64 - 1]
WAYS = ["flip", "byte", "number", "number", "cut", "grow", "drop", "repeat", "zero", "swap", "head"]
TEXTS = ["", "/", "..", "../../../../etc/passwd", "/etc/passwd", "a" * 100_000, "\0", "\ud800", "info", "é", "%2E%2E"]


class Mutant(NamedTuple):
    """What was changed, and whether the sums were made to fit."""

    sample: str
    file: str
    change: str
    sealed: bool


def changed(data: bytes, chance: random.Random) -> tuple[bytes, str]:
    """Return bytes of which something was changed, and what."""
    at = chance.randrange(len(data)) if data else 0
    far = min(len(data), at + 1 + int(2 ** chance.uniform(0, 12)))
    number = chance.choice(NUMBERS) & (2**64 - 1)
    match chance.choice(WAYS):
        case "flip":
            places = [chance.randrange(len(data)) for _ in range(chance.choice([1, 1, 2, 8]))] if data else []
            new = bytearray(data)
            for place in places:
                new[place] ^= 1 << chance.randrange(8)
            return bytes(new), f"flip {places}"
        case "byte":
            return data[:at] + bytes([number & 255]) + data[at + 1 :], f"byte {at} is {number & 255}"
        case "number":
            size, order = chance.choice([2, 4, 8]), chance.choice(["little", "big"])
            word = (number & (256**size - 1)).to_bytes(size, order)  # type: ignore[arg-type]
            return data[:at] + word + data[at + size :], f"{size} bytes at {at} are {number} {order}"
        case "cut":
            return data[:at], f"cut to {at}"
        case "grow":
            return data + chance.randbytes(far - at), f"{far - at} bytes more"
        case "drop":
            return data[:at] + data[far:], f"without {at} to {far}"
        case "repeat":
            return data[:far] + data[at:far] + data[far:], f"{at} to {far} twice"
        case "zero":
            return data[:at] + bytes(far - at) + data[far:], f"zeros from {at} to {far}"
        case "swap":
            other = chance.randrange(len(data)) if data else 0
            return data[:at] + data[other : other + far - at] + data[far:], f"{at} to {far} as from {other}"
        case _:
            return data[far - at :], f"without its first {far - at}"


def changed_json(value: Any, chance: random.Random) -> tuple[Any, str]:
    """Return JSON of which one value was changed, and what."""
    places = list(_places(value, ()))
    path = chance.choice(places)
    new: Any = chance.choice(
        [
            lambda: chance.choice(NUMBERS),
            lambda: -chance.choice(NUMBERS),
            lambda: chance.choice(TEXTS),
            lambda: chance.choice([None, True, False, [], {}, 0.5, 1e300]),
            lambda: [1] * 1000,
            lambda: 10**400,
            lambda: Deep(chance.choice([50, 500, 5000])),
        ]
    )()
    if chance.random() < 0.2:
        new = copy.deepcopy(_at(value, chance.choice(places)))
    if chance.random() < 0.15 and path and isinstance(_at(value, path[:-1]), dict):
        del _at(value, path[:-1])[path[-1]]
        return value, f"without {path}"
    if not path:
        return new, "all of it"
    _at(value, path[:-1])[path[-1]] = new
    return value, f"{path} is {new!r:.60}"


class Deep(NamedTuple):
    """Lists in lists in lists."""

    depth: int


def _places(value: Any, path: tuple[Any, ...]) -> Any:
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from _places(inner, (*path, key))


def _at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def text_of(value: Any) -> bytes:
    """Return JSON as bytes, however deep it is."""
    if isinstance(value, Deep):
        return b"[" * value.depth + b"]" * value.depth
    if isinstance(value, dict):
        return b"{" + b",".join(json.dumps(k).encode() + b":" + text_of(v) for k, v in value.items()) + b"}"
    if isinstance(value, list):
        return b"[" + b",".join(map(text_of, value)) + b"]"
    return json.dumps(value).encode()


def mutate(folder: Path, file: Path, seal: bool, chance: random.Random) -> str:
    """Change one file of a recording; with `seal`, let all sums fit again."""
    data = file.read_bytes()
    if seal and file.suffix in (".json", ".jsonl") and chance.random() < 0.7:
        said = json.loads(unsealed(file, data)) if data.startswith(b'{"sum"') else json.loads(data)
        said, change = changed_json(said, chance)
        new = text_of(said)
        if data.startswith(b'{"sum"') and new.startswith(b"{") and len(new) > 2:
            new = sealed(new)
    else:
        new, change = changed(data, chance)
    if seal:
        new = mended(file, new, data)
    file.write_bytes(new)
    if seal:
        seal_shards(folder)
    return change


def mended(file: Path, new: bytes, old: bytes) -> bytes:
    """Return bytes with the sums fitted that their own format has."""
    if new.startswith(b"\x89HDF"):
        return hdf5_headers_mended(new)
    if file.name.startswith("c."):
        return zarr_mended(new, old)
    if new.startswith(b"chunks0\n"):
        return new[:8] + google_crc32c.value(new[12 : _part_head(new)]).to_bytes(4, "little") + new[12:]
    return new


def _part_head(data: bytes) -> int:
    names, lines = struct.unpack_from("<IQ", data.ljust(24, b"\0"), 12)
    return min(len(data), 24 + names + lines * 40)


def zarr_mended(new: bytes, old: bytes) -> bytes:
    """Let the sums of chunks, and of the index at the end, fit again."""
    data = bytearray(new)
    count = next((k for k in range(1, len(old) // 16) if _is_index(old, k)), 0)
    if not count or len(data) < count * 16 + 4:
        return new
    end = len(data) - count * 16 - 4
    for start, size in np.frombuffer(bytes(data[end : end + count * 16]), "<u8").reshape(-1, 2).tolist():
        if size > 4 and start + size <= end:
            data[start + size - 4 : start + size] = google_crc32c.value(bytes(data[start : start + size - 4])).to_bytes(
                4, "little"
            )
    data[-4:] = google_crc32c.value(bytes(data[end:-4])).to_bytes(4, "little")
    return bytes(data)


def _is_index(data: bytes, count: int) -> bool:
    tail = data[-count * 16 - 4 :]
    return google_crc32c.value(tail[:-4]).to_bytes(4, "little") == tail[-4:]


def seal_shards(folder: Path) -> None:
    """Let the sums in all manifests, and of all manifests, fit the files that are there."""
    for manifest in folder.glob("*/*/shard.json"):
        try:
            said = json.loads(unsealed(manifest, manifest.read_bytes()))
            for name in said["files"]:
                path = manifest.parent / name
                said["files"][name] = [path.stat().st_size, checksum(path)]
        except (OSError, ValueError, TypeError, KeyError, RecursionError, RecorderError):
            continue
        manifest.write_bytes(sealed(json.dumps(said, separators=(",", ":")).encode()))


# The child.


def read_all(path: Path) -> dict[str, str]:
    """Read every row there is, and return for each leaf of each episode what it holds, or which error it is."""
    found: dict[str, str] = {}
    if any((path / "staging").glob("*")):
        for recovery in recover(path, foreign=True):
            str(recovery)
    list_discarded(path)
    recording = Recording(path, damaged="skip")
    ids = recording.table()["id"]
    for shard in recording.shards:
        str(shard.manifest)
    note(found, "spec", lambda: recording.spec)
    for i in range(len(recording)):
        read_episode(found, recording, i, str(ids[i]))
    note(found, "verify", lambda: json.dumps(verify(path, decode=True).to_json()))
    return found


def read_episode(found: dict[str, str], recording: Recording, i: int, name: str) -> None:
    if (episode := note(found, name, lambda: recording[i])) is None:
        return
    names = ("observations", "actions", "infos", "rewards") if recording.schema.rows == "episode" else ()
    for each in names:
        note(found, f"{name} {each}", lambda each=each: digest(getattr(episode, each)))  # type: ignore[misc]
    for leaf in list(episode.columns):
        note(found, f"{name} {leaf}", lambda leaf=leaf: digest(episode.columns[leaf][:]))  # type: ignore[misc]
        note(found, f"{name} {leaf} last", lambda leaf=leaf: digest(episode.columns[leaf][[-1]]))  # type: ignore[misc]


def note(found: dict[str, str], name: str, read: Callable[[], Any]) -> Any:
    """Read something; an error that is ours is noted, any other ends the child."""
    try:
        value = read()
    except (RecorderError, IndexError, KeyError) as error:
        if not isinstance(error, RecorderError) and not name.endswith("last"):
            raise
        found[name] = f"error {type(error).__name__}"
        return None
    found[name] = str(value)
    return value


def digest(value: Any) -> str:
    if isinstance(value, dict):
        return str({key: digest(inner) for key, inner in value.items()})
    if isinstance(value, np.ndarray) and value.dtype != object:
        return f"{value.dtype} {value.shape} {hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()[:12]}"
    return hashlib.sha256(repr(value).encode("utf-8", "backslashreplace")).hexdigest()[:12]


def child(path: Path, answer: int) -> None:
    """Read all of a recording with little memory and time, and write down how it ended."""
    with Path("/proc/self/statm").open() as statm:
        used = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    spent = int(time.process_time())
    resource.setrlimit(resource.RLIMIT_CPU, (spent + SECONDS + 1, spent + SECONDS + 2))
    set_limits(Limits(read_bytes=MEMORY // 4))
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 2)
    try:
        said: dict[str, Any] = {"data": read_all(path)}
    except RecorderError as error:
        said = {"own": f"{type(error).__name__}: {error}"}
    except BaseException:  # noqa: BLE001 - it is what the parent looks for
        said = {"other": traceback.format_exc()[-3000:]}
    os.write(answer, json.dumps(said).encode("utf-8", "backslashreplace"))
    os._exit(0)


class End(NamedTuple):
    """How a child ended: what it said, or what killed it, and what it took."""

    said: dict[str, Any]
    killed: str
    memory: int
    seconds: float


def run(path: Path) -> End:
    """Read a recording in a child process."""
    reader, writer = os.pipe()
    process = os.fork()
    if process == 0:
        os.close(reader)
        child(path, writer)
    os.close(writer)
    signal.alarm(60)
    said = b""
    try:
        while piece := os.read(reader, 1 << 20):
            said += piece
    except TimeoutError:
        os.kill(process, signal.SIGKILL)
    signal.alarm(0)
    os.close(reader)
    _, status, used = os.wait4(process, 0)
    killed = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else ""
    return End(json.loads(said or b"{}"), killed, used.ru_maxrss * 1024, used.ru_utime + used.ru_stime)


# The parent.


def faults_of(mutant: Mutant, end: End, sound: dict[str, str]) -> str:
    """Return what is wrong with how a mutant ended; empty if nothing is."""
    if end.killed or not end.said:
        return f"killed by {end.killed or 'nothing, it said nothing'}"
    if "other" in end.said:
        return str(end.said["other"])
    if end.memory > MEMORY or end.seconds > SECONDS:
        return f"it took {end.memory >> 20} MiB and {end.seconds:.1f} s"
    if "data" in end.said and not mutant.sealed and "/" in mutant.file:
        return wrong(mutant, end.said["data"], sound)
    return ""


def wrong(mutant: Mutant, data: dict[str, str], sound: dict[str, str]) -> str:
    """Return which rows are wrong in silence; those of a video may be, but `verify` has to say so."""
    if mutant.file.startswith(("staging", "discarded", "cache")):
        return ""
    if '"sound": true' in data.get("verify", ""):
        return "verify finds it sound"
    for name, value in data.items():
        other = "error" in value or name == "verify" or name not in sound
        if not other and value != sound[name] and not mutant.file.endswith((".mp4", ".png", ".jpg", ".jpeg", ".webp")):
            return f"{name} is {value}, not {sound[name]}, in silence"
    return ""


def _stop(*_: object) -> None:
    raise TimeoutError


def samples(folder: Path) -> dict[str, Path]:
    """Return small recordings of every kind, and one of a writer that died."""
    return {**{path.name: path for path in sorted(GOLDEN.iterdir())}, **dict(made(folder))}


def made(folder: Path) -> Any:
    """Record what is no golden recording yet: other tables, and all storages in staging, after a kill."""
    from environments import CountingEnv, roll

    from recorder import (
        DictStorage,
        HDF5Storage,
        ImageFileStorage,
        NpzStorage,
        ParquetStorage,
        VideoStorage,
        ZarrStorage,
    )

    tables = {"npz": NpzStorage(), "npz-compressed": NpzStorage(compressed=True), "parquet": ParquetStorage()}
    for name, table in tables.items():
        storage = DictStorage({"render": ImageFileStorage()}, table)
        env = CountingEnv(5, "rgb_array")
        with Recorder(env, folder / name, record_render=True, storage=storage, verbose=False) as recorder:
            roll(recorder, 2)
            recorder.reset()
            recorder.step(0)
            recorder.discard()
        yield name, folder / name
    for name, default in {"dead": HDF5Storage(), **{f"dead-{key}": value for key, value in tables.items()}}.items():
        storage = DictStorage({"render": VideoStorage(), "observation": ZarrStorage()}, default)
        if os.fork() == 0:
            env = CountingEnv(None, "rgb_array")
            dying = Recorder(env, folder / name, record_render=True, storage=storage, verbose=False)
            dying.reset(seed=1)
            for k in range(12):
                dying.step(k % 4)
                if k in (5, 11):
                    dying.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        os.wait()
        yield name, folder / name


def fuzz(folder: Path, seed: int, count: int, kinds: list[str]) -> dict[str, Any]:
    """Try so many mutants."""
    signal.signal(signal.SIGALRM, _stop)
    warnings.simplefilter("ignore")
    known = {name: path for name, path in samples(folder).items() if not kinds or name in kinds}
    sound = {}
    for name, path in known.items():
        place = Path(shutil.copytree(path, folder / "copy"))
        end = run(place)
        assert "data" in end.said and not end.killed, (name, end)
        sound[name] = end.said["data"]
        shutil.rmtree(place)
    read_all(next(iter(known.values())))  # what is imported once need not be imported in each child
    ends: Counter[str] = Counter()
    faults: list[Any] = []
    memory, seconds = 0, 0.0
    for i in range(seed, seed + count):
        chance = random.Random(i)
        name = chance.choice(list(known))
        place = Path(shutil.copytree(known[name], folder / "copy"))
        files = [path for path in files_below(place) if path.name != "lock" and path.stat().st_size]
        file, seal = chance.choice(files), chance.random() < 0.5
        before = file.read_bytes()
        change = mutate(place, file, seal, chance)
        mutant = Mutant(name, file.relative_to(place).as_posix(), change, seal)
        end = run(place) if file.read_bytes() != before else None
        if end is not None:
            same = end.said.get("data") == sound[name]
            ends[next(iter(end.said), end.killed) if not same else "same"] += 1
            memory, seconds = max(memory, end.memory), max(seconds, end.seconds)
            if fault := faults_of(mutant, end, sound[name]):
                faults.append([i, mutant, fault])
        shutil.rmtree(place)
    return {"tried": count, "ends": ends, "memory": memory, "seconds": seconds, "faults": faults}


if __name__ == "__main__":
    folder, first, many, *only = sys.argv[1:]
    Path(folder).mkdir(parents=True, exist_ok=True)
    print(json.dumps(fuzz(Path(folder), int(first), int(many), only)))
