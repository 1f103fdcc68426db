"""Stepping: all that a recorded step does, as one function that is made once for the spaces of an environment.

To look up what a step needs costs a small simulator as much as its physics, so the function is written down as
straight Python code, with the checks and copies of `recorder.writing.rows` in their places.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, SupportsFloat

from recorder.spaces.structure import NoNode
from recorder.step_cost import StepCost
from recorder.writing.rows import Room, define, put_lines
from recorder.writing.writer import RecordingWriter

RESULT = ("observation", "reward", "terminated", "truncated", "time")
"""What of a row comes from the environment's step, in the order in which it is put."""


StepResult = tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]
"""What `env.step` returns."""

Step = Callable[[Any, Any], StepResult]
"""A function `(recorder, action)` that does one step."""

MeasuredStep = Callable[[Any, Any, float], StepResult]
"""A function `(recorder, action, started)` that does one step and measures it."""


class Hooks(NamedTuple):
    """What a step calls where something is out of the ordinary; each takes the recorder first."""

    attend: Callable[[Any, Any], StepResult]
    """Does the step at a row that needs attention: the worker is to be woken, or there may be no room."""

    extra: Callable[[Any, int], None] | None
    """Puts the user's own values into a slot, before the environment steps."""

    render: Callable[[Any, bool, int], None] | None
    """Puts a rendered frame into a slot, after the environment stepped: `(recorder, skip, slot)`."""

    put_slowly: Callable[..., None]
    """Puts what does not fit as it is, or says why: `(recorder, names, skip, slot, *values)`."""

    failed: Callable[..., None]
    """Takes note of an exception: `(recorder, row, result, error)`; there is no result where the environment raised."""

    over: Callable[[Any, bool], None]
    """Takes note of the end of an episode: `(recorder, terminated)`."""


def compile_step(writer: RecordingWriter, hooks: Hooks) -> Step:
    """Return the function `(recorder, action)` that steps `recorder.env` and records the row.

    The row counts when `ring.head` is stored, which is the last thing that happens; an interrupt before that leaves
    a row that nobody reads.
    """
    names = _names(writer, hooks, False)
    lines = [
        "row = ring.head",
        "if row >= ring.limit: return attend(recorder, action)",
        *_before(writer, names),
        "try:",
        "    result = recorder.env.step(action)",
        "    now = perf_counter() - recorder._began",
        *_after(writer, names),
    ]
    return define("step", ["recorder", "action"], lines, names)


def compile_measured_step(writer: RecordingWriter, hooks: Hooks, cost: StepCost, *, skip: bool = False) -> MeasuredStep:
    """Return the function `(recorder, action, started)` for a row at which there was something to attend to.

    It adds to `cost` the time since `started` without that of the environment. With `skip` no picture is taken.
    """
    names = {**_names(writer, hooks, skip), "add_cost": cost.add}
    lines = [
        "row = ring.head",
        *_before(writer, names),
        "try:",
        "    before = perf_counter()",
        "    result = recorder.env.step(action)",
        "    after = perf_counter()",
        "    now = after - recorder._began",
        *_after(writer, names),
    ]
    lines.insert(-1, "add_cost(before - started + perf_counter() - after)")
    return define("measured_step", ["recorder", "action", "started"], lines, names)


def _names(writer: RecordingWriter, hooks: Hooks, skip: bool) -> dict[str, Any]:
    return {
        "skip": skip,
        "skipped": writer.ring.skipped,
        "ring": writer.ring,
        "mask": writer.ring.mask,
        "add_info": writer.info,
        "perf_counter": time.perf_counter,
        "RESULT": RESULT,
        "ACTION": ("action",),
        **hooks._asdict(),
    }


def _before(writer: RecordingWriter, names: dict[str, Any]) -> list[str]:
    """Return the lines that put what is known before the environment steps."""
    return [
        "i = row & mask",
        *_put(writer, {"action": "action"}, names, "put_slowly(recorder, ACTION, skip, i, action)"),
        *(["extra(recorder, i)"] if names["extra"] else []),
        "result = None",
    ]


def _after(writer: RecordingWriter, names: dict[str, Any]) -> list[str]:
    """Return the lines, from within a `try`, that put what the environment returned, and end the step."""
    variables = {"observation": "observation", "reward": "reward", "terminated": "terminated"}
    variables |= {"truncated": "truncated", "now": "time"}
    otherwise = "put_slowly(recorder, RESULT, skip, i, observation, reward, terminated, truncated, now)"
    return [
        "    observation, reward, terminated, truncated, info = result",
        *_indented(_put(writer, variables, names, otherwise)),
        *(["    render(recorder, skip, i)"] if names["render"] else []),
        *(["    skipped[i] = skip"] if names["skipped"] is not None else []),
        "    if info: add_info(info)",
        "    ring.head = row + 1",
        "except BaseException as error:",
        "    failed(recorder, row, result, error)",
        "    raise",
        "if terminated or truncated: over(recorder, terminated)",
        "return result",
    ]


def _put(writer: RecordingWriter, arguments: Mapping[str, str], names: dict[str, Any], otherwise: str) -> list[str]:
    """Return the lines that put variables as the structures of these names, and what to do where that raises."""
    nodes = {argument: writer.schema.nodes.get(name, NoNode()) for argument, name in arguments.items()}
    room = Room(writer.ring.leaves, writer.ring.slots, writer.ring.pictures if names["skip"] else ())
    lines = put_lines(nodes, room, names)
    return ["try:", *_indented(lines), "except Exception:", f"    {otherwise}"]


def _indented(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]
