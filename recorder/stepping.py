"""Stepping: all that a recorded step does, as one function that is made once for the spaces of an environment.

To look up what a step needs costs a small simulator as much as its physics, so the function is written down as
straight Python code, with the checks and copies of `recorder.writing.rows` in their places.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, SupportsFloat

from recorder.spaces.structure import NoNode
from recorder.writing.rows import define, put_lines
from recorder.writing.writer import RecordingWriter

RESULT = ("observation", "reward", "terminated", "truncated", "time")
"""What of a row comes from the environment's step, in the order in which it is put."""


class Hooks(NamedTuple):
    """What a step calls where something is out of the ordinary; each takes the recorder first."""

    extra: Callable[[Any, int], None] | None
    """Puts the user's own values into a slot, before the environment steps."""

    render: Callable[[Any, int], None] | None
    """Puts a rendered frame into a slot, after the environment stepped."""

    put_slowly: Callable[..., None]
    """Puts what does not fit as it is, or says why: `(recorder, names, slot, *values)`."""

    failed: Callable[..., None]
    """Takes note of an exception: `(recorder, row, result, error)`; there is no result where the environment raised."""

    over: Callable[[Any, bool], None]
    """Takes note of the end of an episode: `(recorder, terminated)`."""


StepResult = tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]
"""What `env.step` returns."""

Step = Callable[[Any, Any], StepResult]
"""A function `(recorder, action)` that does one step."""


def compile_step(writer: RecordingWriter, hooks: Hooks) -> Step:
    """Return the function `(recorder, action)` that steps `recorder.env` and records the row.

    The row counts when `ring.head` is stored, which is the last thing that happens; an interrupt before that leaves
    a row that nobody reads.
    """
    ring = writer.ring
    names: dict[str, Any] = {
        "ring": ring,
        "mask": ring.mask,
        "boundary": writer.boundary,
        "add_info": writer.info,
        "perf_counter": time.perf_counter,
        "RESULT": RESULT,
        "ACTION": ("action",),
        **hooks._asdict(),
    }
    lines = [
        "row = ring.head",
        "if row >= ring.limit: boundary()",
        "i = row & mask",
        *_put(writer, {"action": "action"}, names, "put_slowly(recorder, ACTION, i, action)"),
        *(["extra(recorder, i)"] if hooks.extra else []),
        "result = None",
        "try:",
        "    result = recorder.env.step(action)",
        "    observation, reward, terminated, truncated, info = result",
        "    now = perf_counter() - recorder._began",
        *_indented(
            _put(
                writer,
                {"observation": "observation", "reward": "reward", "terminated": "terminated"}
                | {"truncated": "truncated", "now": "time"},
                names,
                "put_slowly(recorder, RESULT, i, observation, reward, terminated, truncated, now)",
            )
        ),
        *(["    render(recorder, i)"] if hooks.render else []),
        "    if info: add_info(info)",
        "    ring.head = row + 1",
        "except BaseException as error:",
        "    failed(recorder, row, result, error)",
        "    raise",
        "if terminated or truncated: over(recorder, terminated)",
        "return result",
    ]
    return define("step", ["recorder", "action"], lines, names)


def _put(writer: RecordingWriter, arguments: Mapping[str, str], names: dict[str, Any], otherwise: str) -> list[str]:
    """Return the lines that put variables as the structures of these names, and what to do where that raises."""
    nodes = {argument: writer.schema.nodes.get(name, NoNode()) for argument, name in arguments.items()}
    lines = put_lines(nodes, writer.ring.leaves, writer.ring.slots, names)
    return ["try:", *_indented(lines), "except Exception:", f"    {otherwise}"]


def _indented(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]
