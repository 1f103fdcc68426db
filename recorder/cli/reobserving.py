"""The command `reobserve`: a recording made again with other cameras, wrappers or observation modes."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from recorder.cli.making import object_of, search_here
from recorder.cli.options import Arguments, AsJSON, EpisodeNames, Place, ReplayMode, SkipUnrebuildable
from recorder.cli.printing import own_stdout, say, say_json
from recorder.cli.replaying import named

if TYPE_CHECKING:
    from recorder.replaying.reobserving import Reobservation

EXAMPLES = """\b
Examples:
  recorder reobserve runs/push runs/push-pixels --kwargs '{"obs_type": "pixels"}'
  recorder reobserve runs/car runs/car-depth --env my_robot:make_env
  recorder reobserve runs/cart runs/cart-film 0:20 --render
"""


def reobserve(
    path: Place,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder of the new recording.")],
    episodes: EpisodeNames = None,
    env: Annotated[
        str | None,
        typer.Option(
            "--env", metavar="MODULE:FUNCTION", help="What makes the other environment; else the recorded one is made."
        ),
    ] = None,
    kwargs: Arguments = "{}",
    skip: SkipUnrebuildable = False,
    mode: ReplayMode = "actions",
    tolerance: Annotated[float, typer.Option(min=0, help="The largest difference of a reward that agrees.")] = 0.0,
    render: Annotated[
        bool, typer.Option("--render", help="Also keep what env.render() shows, as the leaf render.")
    ] = False,
    existing: Annotated[
        Literal["append", "refuse", "replace"], typer.Option(help="What to do if OUT holds a recording.")
    ] = "refuse",
    as_json: AsJSON = False,
) -> None:
    """Make episodes again in another environment, and record what that one shows.

    It is begun as it was, and given the recorded actions. Rewards and ends have to be as they were: an episode of which
    they are not is put aside in OUT/discarded, and the exit code is 1. Ids, seeds and labels are carried over.
    """
    from recorder.rebuilding import environment_of
    from recorder.recording import Recording
    from recorder.replaying.reobserving import reobserve

    search_here()
    recording = Recording(path)
    given: dict[str, Any] = {"render_mode": "rgb_array"} if render else {}
    given |= object_of(kwargs)
    make: Any = partial(recording.make_env, skip_unrebuildable=skip, **given)
    if env is not None:
        make = partial(environment_of, None, str(path), env, **given)
    with own_stdout():
        done = reobserve(
            recording,
            make,
            out,
            episodes=named(recording, episodes or []),
            mode=mode,
            tolerance=tolerance,
            record_render=render,
            existing=existing,
        )
    if as_json:
        say_json(said(done))
    else:
        say(str(done))
    if done.diverged:
        raise typer.Exit(1)


def said(done: Reobservation) -> dict[str, Any]:
    """Return what was made again as JSON."""
    return {"path": str(done.path), "kept": list(done.kept), "put_aside": dict(done.diverged)}
