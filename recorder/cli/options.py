"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

Place = Annotated[Path, typer.Argument(metavar="PATH", help="The folder of a recording.")]

EnvId = Annotated[
    str,
    typer.Argument(
        metavar="ENV_ID",
        help="The id for gymnasium.make: CartPole-v1, or package:id, which imports the package.",
    ),
]

Arguments = Annotated[
    str, typer.Option("--kwargs", metavar="JSON", help="Arguments of the environment, as a JSON object.")
]

EpisodeNames = Annotated[
    list[str] | None,
    typer.Argument(metavar="[EPISODES]", help="Positions (-1 is the last), ids, or ranges such as 2:5; else all."),
]

ReplayMode = Annotated[
    Literal["actions", "states", "first-state"],
    typer.Option("--mode", help="Give the actions; or also set each recorded state before; or only the first."),
]

SkipUnrebuildable = Annotated[
    bool, typer.Option("--skip-unrebuildable", help="Leave out wrappers of which the recording has only names.")
]

AsJSON = Annotated[bool, typer.Option("--json", help="Print strict JSON to stdout, and nothing else.")]
