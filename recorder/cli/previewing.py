"""The command `preview`: an episode as a video, an animated picture, or a sheet of pictures."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recorder.cli.options import AsJSON, Place
from recorder.cli.printing import counted, say, say_json

if TYPE_CHECKING:
    from recorder.episode import Episode
    from recorder.preview import Picture

EXAMPLES = """\b
Examples:
  recorder preview runs/car 3
  recorder preview runs/car -1 --to last.gif --every 4 --speed 2
  recorder preview runs/car 7f3a9104c2d8-000004 --to sheet.png
  recorder preview runs/arm 0 --camera observation/wrist --side 480
"""

FPS = 30.0
"""Frames a second where a recording does not say it."""


def preview(
    path: Place,
    episode: Annotated[str, typer.Argument(metavar="EPISODE", help="Its position, -1 being the last, or its id.")],
    to: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="An .mp4, .gif or .png; by default an MP4 named after the episode, here."),
    ] = None,
    camera: Annotated[list[str] | None, typer.Option(metavar="LEAF", help="Only this camera; can be repeated.")] = None,
    every: Annotated[int, typer.Option(min=1, help="Only every n-th moment.")] = 1,
    speed: Annotated[float, typer.Option(min=0.01, help="How much faster than it was.")] = 1.0,
    side: Annotated[int, typer.Option(min=16, help="About the longest side of each camera, in pixels.")] = 256,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file if it is there.")] = False,
    as_json: AsJSON = False,
) -> None:
    """Show the cameras of an episode side by side, with step, reward and action, in a file.

    A .png is a sheet with a few moments of each camera.
    """
    from recorder.cli.describing import find_episode
    from recorder.recording import Recording

    recording = Recording(path)
    found = find_episode(recording, episode)
    target = to or Path(f"{found.id}.mp4")
    check_target(target, overwrite)
    if target.suffix == ".png":
        frames = write_sheet(found, target, overwrite)
    else:
        fps = (recording.fps or FPS) * speed / every
        frames = write_moving(target, moments(found, every, side, camera), fps, overwrite)
    if as_json:
        say_json({"episode": found.id, "file": str(target), "frames": frames})
    else:
        say(f"{counted(frames, 'frame')} of episode {found.id} in {target}")


def check_target(target: Path, overwrite: bool) -> None:
    """Raise an error for a file that cannot be written, before anything is read."""
    from recorder.errors import ExistsError, RecorderError

    if target.suffix not in (".mp4", ".gif", ".png"):
        raise RecorderError(f"a preview is an .mp4, a .gif or a .png, not {target.name!r}")
    if target.exists() and not overwrite:
        raise ExistsError(f"{target} is there already; give another name, or --overwrite")


def moments(episode: Episode, every: int, side: int, camera: list[str] | None) -> Iterator[Picture]:
    """Yield the pictures, with a progress bar for people."""
    from tqdm import tqdm

    from recorder.tiling import tiled

    total = len(range(0, len(episode) + 1, every))
    yield from tqdm(
        tiled(episode, every=every, side=side, paths=camera or None),
        total=total,
        unit="frame",
        disable=None,
        leave=False,
    )


def write_moving(target: Path, pictures: Any, fps: float, overwrite: bool) -> int:
    """Write a video or an animated picture; return how many frames it has."""
    from recorder.filming import Film
    from recorder.gif import write_gif

    if target.suffix == ".mp4":
        with Film(target, fps, overwrite=overwrite) as film:
            for picture in pictures:
                film.add(picture)
            return film.frames
    unfinished = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        frames = write_gif(unfinished, pictures, fps)
        unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)
    return frames


def write_sheet(episode: Episode, target: Path, overwrite: bool) -> int:
    """Write a contact sheet; return how many moments it shows."""
    from recorder.cli import showing
    from recorder.preview import FRAMES

    showing.write_sheet(episode, target, FRAMES, overwrite)
    return min(FRAMES, len(episode) + 1)
