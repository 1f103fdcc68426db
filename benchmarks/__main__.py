"""All benchmarks in one run: this package, its peers, and the limits of the machine.

    python -m benchmarks [--rounds 3] [--quick] [--only env,large,…] [--write docs/performance.md] [--plot FILE.png]

Ours and peers take turns, A B C A B C …, each in a process of its own; medians over the rounds are told. The
environments of peers are made when they are first needed; one that cannot be had is skipped with a note. What was found
is kept as JSON in the cache folder, and `--from FILE` makes the table and the plot of it again.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.frames import CACHE, frames
from benchmarks.peers import PEERS, PeerError, run, version_of
from benchmarks.report import plot, report

Facts = dict[str, Any]
HERE = Path(__file__).resolve().parent

WORKS = ("limits", "env", "large", "small", "realtime", "reset", "sizes", "memory", "episodes", "opening")

CAMERA_PEERS = {
    "Minari, hdf5": ("minari", {"format": "hdf5"}),
    "Minari, arrow": ("minari", {"format": "arrow"}),
    "RecordVideo": ("recordvideo", {}),
    "LeRobot": ("lerobot", {"read": 200}),
    "diffusion_policy": ("diffusion_policy", {}),
    "UniEnv": ("unienv", {"read": 200}),
    "VersatIL": ("versatil", {"read": 200}),
}
"""Peers that record pictures: the environment, and what else they are told."""

SLOW = {"LeRobot", "RecordVideo", "VersatIL", "diffusion_policy"}
"""Peers that are given a part of the steps."""


class Bench:
    """One run of all benchmarks: how much of each, and what was found."""

    def __init__(self, rounds: int, share: float, without: Iterable[str]) -> None:
        self.rounds = rounds
        self.share = share
        self.without = set(without)
        self.facts: Facts = {}
        self.notes: dict[str, str] = {}

    def many(self, count: int, least: int = 1) -> int:
        """Return a number of steps, fewer in a quick run."""
        return max(least, int(count * self.share))

    def ours(self, work: str, **arguments: Any) -> Facts:
        """Do one of our works in a process of its own."""
        command = [sys.executable, "-m", "benchmarks.ours", json.dumps({"work": work, **arguments})]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=HERE.parent)
        if done.returncode:
            raise RuntimeError(f"{work} failed:\n{done.stderr[-2000:]}")
        found: Facts = json.loads(done.stdout.strip().splitlines()[-1])
        return found

    def peer(self, name: str, work: str, **arguments: Any) -> Facts | None:
        """Let a peer do a work; None, and a note, where it cannot."""
        if name in self.without or name in self.notes:
            return None
        try:
            return run(name, work, **arguments)
        except PeerError as error:
            self.notes[name] = str(error)
            print(f"{name} is skipped: {error}", file=sys.stderr)
            return None

    def turns(self, contenders: Mapping[str, Callable[[], Facts | None]]) -> dict[str, Facts]:
        """Let contenders take turns, and return the medians of what each found."""
        found: dict[str, list[Facts]] = {name: [] for name in contenders}
        for _ in range(self.rounds):
            for name, contender in contenders.items():
                if (one := contender()) is not None:
                    found[name].append(one)
        return {name: medians(each) for name, each in found.items() if each}

    def do(self, work: str) -> None:
        """Do one kind of work and keep what was found."""
        started = time.perf_counter()
        self.facts[work] = getattr(self, f"_{work}")()
        self.facts.setdefault("load", {})[work] = os.getloadavg()[0]
        print(f"{work}: {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)

    def _limits(self) -> Facts:
        path = str(saved("MuJoCo 480x640", self.many(240, 60)))
        return self.turns({"machine": lambda: self.ours("limits", frames=path)})["machine"]

    def _env(self) -> Facts:
        return {name: self._one_env(name, self.many(steps)) for name, steps in ENVIRONMENTS.items()}

    def _one_env(self, name: str, steps: int) -> Facts:
        few = max(1000, steps // 10)
        return self.turns(
            {
                "ours": lambda: self.ours("env", env=name, steps=steps),
                "Minari, hdf5": lambda: self.peer("minari", "env", env=name, steps=few, format="hdf5"),
                "Minari, arrow": lambda: self.peer("minari", "env", env=name, steps=few, format="arrow"),
            }
        )

    def _large(self) -> Facts:
        return self._camera("MuJoCo 480x640", self.many(600, 60), self.many(300, 30))

    def _small(self) -> Facts:
        return self._camera("CarRacing 96x96", self.many(4000, 200), self.many(200, 50))

    def _camera(self, source: str, steps: int, length: int) -> Facts:
        path = str(saved(source, self.many(240, 60)))
        said = {"frames": path, "length": length}
        contenders: dict[str, Callable[[], Facts | None]] = {
            "ours": lambda: self.ours("camera", steps=steps, read=self.many(400, 40), **said)
        }
        for name, (peer, options) in CAMERA_PEERS.items():
            count = max(length, steps // 4) if name in SLOW else steps
            contenders[name] = lambda peer=peer, options=options, count=count: _counted(
                self.peer(peer, "camera", steps=count, **said, **options), count
            )
        found = self.turns(contenders)
        found["ours"]["steps"] = steps
        return found

    def _realtime(self) -> Facts:
        path = str(saved("MuJoCo 480x640", self.many(240, 60)))
        return self.turns({"ours": lambda: self.ours("realtime", frames=path, cameras=1, steps=self.many(450, 60))})

    def _reset(self) -> Facts:
        path, steps = str(saved("MuJoCo 480x640", self.many(240, 60))), self.many(450, 60)
        found = {"ours": self.ours("realtime", frames=path, cameras=2, steps=steps)}
        other = self.peer("lerobot", "camera", frames=path, cameras=2, steps=steps, length=steps)
        return found | ({"LeRobot": {"reset": other["saves"][0] * 1e3}} if other else {})

    def _sizes(self) -> Facts:
        found: Facts = {}
        for source in ("MuJoCo 480x640", "natural 480x640"):
            path, count = str(saved(source, self.many(240, 60))), self.many(240, 60)
            mine = self.ours("sizes", frames=path, crf=[12, 16, 20, 24, 28])
            other = self.peer("lerobot", "camera", frames=path, steps=count, length=count, read=60)
            found[source] = {"ours": mine["points"]}
            if other:
                found[source]["LeRobot"] = [other["video_bytes"] / count, other["psnr"]]
        return found

    def _memory(self) -> Facts:
        path = str(saved("CarRacing 96x96", self.many(240, 60)))
        return self.ours("memory", frames=path, steps=self.many(100_000, 4000), length=1000)

    def _episodes(self) -> Facts:
        return self.ours("episodes", episodes=self.many(10_000, 500))

    def _opening(self) -> Facts:
        from benchmarks.many_shards import measure

        found = measure(self.many(100_000, 1000), 10, self.rounds)
        return {name: opening._asdict() for name, opening in found.items()}


ENVIRONMENTS = {"CartPole-v1": 100_000, "Pendulum-v1": 50_000}


def _counted(found: Facts | None, steps: int) -> Facts | None:
    return None if found is None else {**found, "steps": steps}


def medians(found: Sequence[Facts]) -> Facts:
    """Return the median of each number; of ratios that of the pairs, and of what is no number the last."""
    said = dict(found[-1])
    for name, value in said.items():
        if isinstance(value, int | float):
            said[name] = statistics.median(one[name] for one in found)
    if said.get("bare"):
        said["ratio"] = statistics.median(one["recorded"] / one["bare"] for one in found)
    return said


def saved(source: str, count: int) -> Path:
    """Return the file of some frames."""
    frames(source, count)
    return CACHE / "frames" / f"{source.replace(' ', '-')}-{count}.npy"


def circumstances(bench: Bench) -> Facts:
    """Return where and when this was measured, and with which versions."""
    peers: dict[str, str] = {}
    for name in PEERS:
        if name not in bench.without and name not in bench.notes:
            try:
                peers[name] = version_of(name)
            except PeerError as error:
                bench.notes[name] = str(error)
    return {
        "when": datetime.now(UTC).isoformat(timespec="minutes"),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "rounds": bench.rounds,
        "share": bench.share,
        "peers": peers,
    }


def measured(options: argparse.Namespace) -> Facts:
    """Run what was asked for."""
    bench = Bench(options.rounds, 0.05 if options.quick else options.share, filter(None, options.without.split(",")))
    names = options.only.split(",") if options.only else WORKS
    for name in names:
        bench.do(name)
        bench.facts["notes"] = bench.notes
        keep(bench.facts)
    bench.facts["circumstances"] = circumstances(bench)
    keep(bench.facts)
    return bench.facts


def keep(facts: Facts) -> None:
    """Write what was found so far."""
    CACHE.mkdir(parents=True, exist_ok=True)
    (CACHE / "found.json").write_text(json.dumps(facts, indent=1))


def main() -> None:
    """Measure, and print a report in Markdown."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--share", type=float, default=1.0, help="the part of the steps that is done")
    parser.add_argument("--quick", action="store_true", help="a twentieth of the steps: to see that all of it works")
    parser.add_argument("--only", default="", help=f"some of {','.join(WORKS)}")
    parser.add_argument("--without", default="", help=f"peers to leave out: some of {','.join(PEERS)}")
    parser.add_argument("--from", dest="file", type=Path, help="report what was found before")
    parser.add_argument("--write", type=Path, help="write the report into a page, between its markers")
    parser.add_argument("--plot", type=Path, help="draw the report as a PNG")
    options = parser.parse_args()
    facts = json.loads(options.file.read_text()) if options.file else measured(options)
    text = report(facts)
    print(text)
    if options.write is not None:
        from benchmarks.report import put

        put(options.write, text)
    if options.plot is not None:
        plot(facts, options.plot)


if __name__ == "__main__":
    main()
