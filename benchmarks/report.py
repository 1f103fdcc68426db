"""The report of a run: the goals, what was found of each, all contenders side by side; as Markdown and as a plot."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

Facts = Mapping[str, Any]

MARKS = re.compile(r"(<!-- tables -->\n).*?(<!-- end of tables -->)", re.DOTALL)

SIZES = {"MuJoCo 480x640": "rendered", "natural 480x640": "natural"}


class Row(NamedTuple):
    """One goal: what is measured, what it is to be, what was found, and whether that is enough."""

    what: str
    goal: str
    found: str
    met: bool

    def line(self) -> str:
        """Return it as a row of a table."""
        return f"| {self.what} | {self.goal} | {self.found} | {'yes' if self.met else '**no**'} |"


def most(what: str, value: float, goal: float, unit: str = "", more: str = "") -> Row:
    """Return a goal that a value is not to exceed."""
    return Row(what, f"≤ {goal:g}{unit}", f"{value:.3g}{unit}{more}", value <= goal)


def least(what: str, value: float, goal: float, unit: str = "", more: str = "") -> Row:
    """Return a goal that a value is to reach."""
    return Row(what, f"≥ {goal:g}{unit}", f"{value:.3g}{unit}{more}", value >= goal)


def goals(facts: Facts) -> Iterator[Row]:
    """Yield all goals of which something was measured."""
    for name, goal in (("CartPole-v1", 1.25), ("Pendulum-v1", 1.15)):
        if ours := facts.get("env", {}).get(name, {}).get("ours"):
            yield most(f"{name}, random policy, recorded / bare wall time", ours["ratio"], goal)
    if large := facts.get("large"):
        yield from large_goals(large)
    if small := facts.get("small"):
        yield from small_goals(small)
    if realtime := facts.get("realtime"):
        yield most("`step` p99 with one 640×480 camera at 30 Hz", realtime["ours"]["p99"], 1, " ms")
    if reset := facts.get("reset"):
        other = f" (LeRobot {reset['LeRobot']['reset'] / 1e3:.1f} s)" if "LeRobot" in reset else ""
        yield most("`reset` after 450 frames × 2 cameras", reset["ours"]["reset"], 20, " ms", other)
    for source, found in facts.get("sizes", {}).items():
        if "LeRobot" in found:
            yield size_goal(source, found)
    if memory := facts.get("memory"):
        yield most("memory during 100,000 camera steps, largest difference", memory["spread"], 50, " MB")
    if episodes := facts.get("episodes"):
        yield most("first step of the last tenth of 10,000 episodes over the first tenth", episodes["ratio"], 1.3)
    if opening := facts.get("opening"):
        indexed = opening["with its index"]
        count = f"{indexed['episodes']:,.0f} episodes"
        yield most(f"opening {count} with the index, `len`, first and last episode", indexed["all"], 1, " s")
        yield most(f"memory an episode of {count} that is not read", indexed["bytes"], 200, " bytes")


def large_goals(large: Facts) -> Iterator[Row]:
    """Yield the goals for 640×480 frames."""
    ours = large["ours"]
    yield least("640×480 RGB + 7 floats, frames/s over the bare codec loop", 1 / ours["ratio"], 0.92)
    if other := large.get("LeRobot", {}).get("items_per_second"):
        mine = ours["items_per_second"]
        more = f" ({mine:,.0f} and {other:,.0f} a second)"
        yield least("random frames/s of 640×480 video over LeRobot's items/s", mine / other, 2, "", more)
    if bare := ours.get("bare_per_second"):
        yield least("random frames/s over a bare seek and decode", ours["items_per_second"] / bare, 1)


def small_goals(small: Facts) -> Iterator[Row]:
    """Yield the goals for 96×96 frames."""
    ours = small["ours"]
    yield least("96×96 RGB, default layout, steps/s over the bare codec loop", 1 / ours["ratio"], 0.9)
    if other := small.get("UniEnv"):
        ratio = rate(ours) / rate(other)
        yield least("96×96 RGB, steps/s over UniEnv's JPEG and Parquet", ratio, 1)
    exact = ours.get("psnr") == float("inf")
    yield Row("96×96 RGB, default layout", "exact", "exact" if exact else f"{ours.get('psnr'):.1f} dB", exact)


def size_goal(source: str, found: Facts) -> Row:
    """Return the goal for the size at equal quality: ours is interpolated between the qualities that were measured."""
    theirs, psnr = found["LeRobot"]
    points = sorted((point[2], np.log(point[1])) for point in found["ours"])
    mine = float(np.exp(np.interp(psnr, *zip(*points, strict=True))))
    default = next(size for crf, size, _ in found["ours"] if crf == 20)
    more = f" ({mine / 1e3:.1f} and {theirs / 1e3:.1f} kB a frame at {psnr:.1f} dB; our default {default / 1e3:.1f} kB)"
    return most(f"size at equal PSNR over LeRobot's AV1, {SIZES[source]} 640×480", mine / theirs, 1.5, "", more)


def rate(found: Facts) -> float:
    """Return steps a second."""
    return float(found["steps"] / found["recorded"])


def contenders(facts: Facts) -> Iterator[str]:
    """Yield tables of all contenders side by side."""
    for name, found in facts.get("env", {}).items():
        yield f"## {name}\n\n| | recorded / bare wall time |\n|---|---:|"
        for who, one in found.items():
            yield f"| {who} | {one['ratio']:.2f} |"
        yield ""
    for work, title in (("large", "640×480 RGB and 7 floats"), ("small", "96×96 RGB and 7 floats")):
        if work in facts:
            yield f"## {title}\n"
            yield "| | steps/s | kB a step | random frames/s | windows of 16 a second |\n|---|---:|---:|---:|---:|"
            yield from (contender(who, one) for who, one in facts[work].items())
            ours = facts[work]["ours"]
            yield f"| the bare codec, our settings | {ours['steps'] / ours['bare']:,.0f} | | {bare_reads(ours)} | |"
            yield ""
    if limits := facts.get("limits"):
        yield "## Limits of the machine, 640×480 frames\n\n| | |\n|---|---:|"
        yield f"| copying a frame in memory | {limits['copy_ms']:.2f} ms |"
        yield f"| writing to the disk, with fsync | {limits['disk_mib_per_second']:,.0f} MiB/s |"
        yield f"| coding by H.264, our settings | {limits['encode_per_second']:,.0f} frames/s |"
        yield f"| decoding it in order | {limits['decode_per_second']:,.0f} frames/s |"
        yield ""
    if opening := facts.get("opening"):
        yield "## Opening a large recording\n"
        yield "| | episodes | `len`, s | first and last episode, s | bytes an episode |\n|---|---:|---:|---:|---:|"
        for who, one in opening.items():
            yield f"| {who} | {one['episodes']:,.0f} | {one['open']:.2f} | {one['all']:.2f} | {one['bytes']:.0f} |"
        yield ""


def contender(who: str, one: Facts) -> str:
    """Return the row of one recorder of pictures."""
    reads = f"{one['items_per_second']:,.0f}" if "items_per_second" in one else ""
    windows = f"{one['windows_per_second']:,.0f}" if "windows_per_second" in one else ""
    return f"| {who} | {rate(one):,.0f} | {one['bytes'] / one['steps'] / 1e3:.2f} | {reads} | {windows} |"


def bare_reads(ours: Facts) -> str:
    """Return how many frames a second a bare seek and decode gives, where there is a video."""
    return f"{ours['bare_per_second']:,.0f}" if "bare_per_second" in ours else ""


def preface(facts: Facts) -> str:
    """Say where and when this was measured."""
    where = facts.get("circumstances", {})
    loads = facts.get("load", {})
    peers = ", ".join(where.get("peers", {}).values()) or "no peers"
    load = f"{min(loads.values()):.1f} to {max(loads.values()):.1f}" if loads else "unknown"
    text = (
        f"Measured {where.get('when', '')} on {where.get('cores', '?')} cores ({where.get('machine', '')}), Python "
        f"{where.get('python', '')}, medians of {where.get('rounds', '?')} rounds; the load was {load}, this run's own "
        f"included. Peers: {peers}."
    )
    if where.get("share", 1) != 1:
        text += f" {where['share']:.0%} of the steps were done."
    skipped = "".join(f"\n- {name} was skipped: {why}" for name, why in facts.get("notes", {}).items())
    return text + ("\n" + skipped if skipped else "") + "\n"


def report(facts: Facts) -> str:
    """Return the whole report."""
    lines = [preface(facts), "## Goals\n\n| what | goal | found | met |\n|---|---:|---:|---|"]
    lines += [row.line() for row in goals(facts)]
    return "\n".join([*lines, "", *contenders(facts)])


def put(page: Path, text: str) -> None:
    """Put a report between the markers of a page."""
    changed, count = MARKS.subn(lambda found: f"{found[1]}{text}\n{found[2]}", page.read_text())
    if count != 1:
        raise SystemExit(f"{page} has no markers for tables")
    page.write_text(changed)


def plot(facts: Facts, path: Path) -> None:
    """Draw the contenders as bars, one panel for each kind of work."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels: list[tuple[str, dict[str, float]]] = []
    for name, found in facts.get("env", {}).items():
        panels.append(
            (f"{name}\nrecorded / bare wall time, less is better", {who: one["ratio"] for who, one in found.items()})
        )
    for work, title in (("large", "640×480"), ("small", "96×96")):
        if work in facts:
            bars = {who: rate(one) for who, one in facts[work].items()}
            bars["bare codec"] = facts[work]["ours"]["steps"] / facts[work]["ours"]["bare"]
            panels.append((f"{title} RGB and 7 floats\nsteps a second, more is better", bars))
    figure, axes = pyplot.subplots(1, max(len(panels), 1), figsize=(4.5 * max(len(panels), 1), 3.6), squeeze=False)
    for axis, (title, bars) in zip(axes[0], panels, strict=False):
        names = list(bars)[::-1]
        colours = ["#c44e52" if name == "ours" else "#8c8c8c" for name in names]
        drawn = axis.barh(names, [bars[name] for name in names], color=colours)
        axis.bar_label(drawn, fmt="{:,.3g}", padding=3, fontsize=8)
        axis.set_title(title, fontsize=9)
        axis.set_xscale("log")
        axis.xaxis.set_visible(False)
        axis.margins(x=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
