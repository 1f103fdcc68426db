"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

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

AsJSON = Annotated[bool, typer.Option("--json", help="Print strict JSON to stdout, and nothing else.")]
