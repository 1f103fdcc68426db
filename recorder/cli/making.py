"""The commands that make environments: `record` and `plan`."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from recorder.cli.options import Arguments, AsJSON, EnvId
from recorder.cli.printing import (
    Heading,
    counted,
    facts,
    frequencies,
    own_stdout,
    say,
    say_json,
    span,
    table,
    terminal_width,
)
from recorder.files import size_text

RECORD_EXAMPLES = """\b
Examples:
  recorder record CartPole-v1 --episodes 20 --to runs/cart --seed 0
  recorder record CarRacing-v3 --to runs/car --max-steps 200 --kwargs '{"continuous": false}'
  recorder record ale_py:ALE/Pong-v5 --to runs/pong --policy human
  recorder record CartPole-v1 --to runs/cart --policy human --keys '{"a": 0, "d": 1}'
  recorder record CartPole-v1 --to runs/cart --policy sb3:ppo.zip --episodes 100
  recorder record minigrid:MiniGrid-Empty-5x5-v0 --to runs/grid --policy my_policy:act --label expert=false
"""

PLAN_EXAMPLES = """\b
Examples:
  recorder plan CarRacing-v3
  recorder plan ale_py:ALE/Pong-v5 --steps 100
"""

PLAN_TITLES = ("leaf", "shape", "dtype", "kind", "kept in", "", "bytes/step", "ms/step", "why")


def record(
    env_id: EnvId,
    to: Annotated[Path, typer.Option("--to", metavar="PATH", help="The folder of the recording.")],
    episodes: Annotated[int, typer.Option("--episodes", "-n", min=1, help="How many episodes.")] = 1,
    policy: Annotated[
        str,
        typer.Option(
            help="What chooses the actions: random; human, in a window; sb3:file.zip, of Stable-Baselines3; or "
            "module:function, which is given (observation) or (observation, info). The current folder is searched "
            "for the module."
        ),
    ] = "random",
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="Seeds the random policy, and the reset of the first episode; the next has one more."),
    ] = None,
    render: Annotated[
        bool, typer.Option("--render", help="Also keep what env.render() shows, as the leaf render.")
    ] = False,
    state: Annotated[
        bool,
        typer.Option("--state", help="Also keep the simulator's state, as the leaf state, for replays that set it."),
    ] = False,
    max_steps: Annotated[
        int | None,
        typer.Option(min=1, help="Truncate episodes after so many steps, whatever limit the environment has."),
    ] = None,
    kwargs: Arguments = "{}",
    existing: Annotated[
        Literal["append", "refuse", "replace"],
        typer.Option(help="What to do if the folder holds a recording."),
    ] = "append",
    label: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A label of every episode; JSON or text. May be given again."),
    ] = None,
    keys: Annotated[
        str | None, typer.Option(metavar="JSON", help="For a human: the actions by the letters that are pressed.")
    ] = None,
    as_json: AsJSON = False,
) -> None:
    """Record episodes of an environment into a folder.

    After Ctrl-C the episodes so far are kept, and the running one up to that step.
    """
    if policy not in ("random", "human") and not all(policy.partition(":")):
        raise typer.BadParameter(
            f"{policy!r} is neither random, human, sb3:file.zip nor module:function", param_hint="--policy"
        )
    arguments, labels = object_of(kwargs), labels_of(label or [])
    actions = None if keys is None else object_of(keys, "--keys")
    from recorder.cli.running import Run, Task

    search_here()
    with own_stdout():
        run = Run(
            Task(
                env_id,
                to,
                episodes=episodes,
                policy=policy,
                seed=seed,
                render=render,
                state=state,
                max_steps=max_steps,
                arguments=arguments,
                existing=existing,
                labels=labels,
                keys=actions,
            )
        )
    try:
        with own_stdout():
            run.record()
    finally:
        say_recorded(run.result(), as_json)


def say_recorded(result: dict[str, Any], as_json: bool) -> None:
    """Say what was recorded, and where it is."""
    if as_json:
        say_json(result)
        return
    episodes, steps = counted(result["episodes"], "episode"), counted(result["steps"], "step")
    said = {
        "recorded": f"{episodes}, {steps}, {size_text(result['bytes'])}",
        "ended": frequencies(result["ends"]),
        "return": span(result["return"]),
        "not kept": ", ".join(f"{path} ({kind})" for path, kind in result["unkept"].items()) or None,
        "recording": f"{result['path']}, now {counted(result['in_all'], 'episode')}",
        "look": f"recorder list {shlex.quote(result['path'])}",
    }
    if result["episodes"]:
        say(facts(said))


def plan(
    env_id: EnvId,
    steps: Annotated[
        int, typer.Option(min=0, help="Measure on what so many random steps show, not on synthetic pictures.")
    ] = 0,
    kwargs: Arguments = "{}",
    as_json: AsJSON = False,
) -> None:
    """Say what a recording would keep, how, and why.

    Each leaf of the environment's spaces, whether it is kept exactly, and what a step costs.
    """
    arguments = object_of(kwargs)
    from recorder.cli.running import plan_of

    search_here()
    with own_stdout():
        made = plan_of(env_id, arguments, steps)
    if as_json:
        say_json(made.to_json())
        return
    columns = [Heading(title, title in ("bytes/step", "ms/step")) for title in PLAN_TITLES]
    rows = [
        (
            row.path,
            row.shape,
            row.dtype,
            row.kind,
            row.storage,
            "exact" if row.exact else "LOSSY",
            round(row.bytes_per_step),
            f"{row.milliseconds_per_step:.3f}",
            "; ".join(filter(None, (row.why, row.note))),
        )
        for row in made.rows
    ]
    total = ("total", "", "", "", "", "", round(made.bytes_per_step), f"{made.milliseconds_per_step:.3f}", "")
    say(table(columns, [*rows, total], terminal_width()))
    say("\n".join(["", *(f"- {note}" for note in made.notes)]))


def object_of(text: str, option: str = "--kwargs") -> dict[str, Any]:
    """Return the JSON object that an option gives."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is not JSON: {error}", param_hint=option) from error
    if not isinstance(value, dict):
        raise typer.BadParameter(f"{text!r} is no JSON object such as '{{\"mode\": 1}}'", param_hint=option)
    return value


def labels_of(texts: Sequence[str]) -> dict[str, Any]:
    """Return labels given as `name=value`; a value that is no JSON is text."""
    labels = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise typer.BadParameter(f"{text!r} is not name=value", param_hint="--label")
        try:
            labels[name] = json.loads(value, parse_constant=str)
        except ValueError:
            labels[name] = value
    return labels


def search_here() -> None:
    """Let modules be imported from the current folder, as `python -m` does."""
    if "" not in sys.path:
        sys.path.insert(0, "")
