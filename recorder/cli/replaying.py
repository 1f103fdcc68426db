"""The command `replay`: whether a recording can be made again, and what that looks like."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recorder.cli.making import search_here
from recorder.cli.options import AsJSON, EpisodeNames, Place, ReplayMode, SkipUnrebuildable
from recorder.cli.printing import Heading, cell, frequencies, own_stdout, say, say_json, table, terminal_width

if TYPE_CHECKING:
    from recorder.recording import Recording
    from recorder.replaying.report import ReplayReport

EXAMPLES = """\b
Examples:
  recorder replay runs/car
  recorder replay runs/car 3 7 -1 --mode first-state --plot errors.png
  recorder replay runs/robot 0:20 --env my_robot:make_env --tolerance 1e-6 --workers 4
  recorder replay runs/car 3 --render out.mp4
"""

NUMBERS = ("position", "steps", "compared", "step", "error")


def replay(
    path: Place,
    episodes: EpisodeNames = None,
    check: Annotated[
        bool, typer.Option("--check", help="Exit with 1 if an episode diverged, with --render or --window too.")
    ] = False,
    mode: ReplayMode = "actions",
    tolerance: Annotated[float, typer.Option(min=0, help="The largest difference that still agrees.")] = 0.0,
    env: Annotated[
        str | None,
        typer.Option(
            "--env", metavar="MODULE:FUNCTION", help="What makes the environment, if the recording does not say it."
        ),
    ] = None,
    skip: SkipUnrebuildable = False,
    workers: Annotated[int, typer.Option(min=1, help="How many processes.")] = 1,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Draw the error of each leaf over the episode.")
    ] = None,
    render: Annotated[
        Path | None,
        typer.Option(metavar="FILE.mp4", help="Film one episode, with step, reward and action below each frame."),
    ] = None,
    window: Annotated[bool, typer.Option("--window", help="Show it in the window of the environment.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the video if it is there.")] = False,
    as_json: AsJSON = False,
) -> None:
    """Make episodes again, and say whether the same comes out.

    The environment is rebuilt and begun as it was, and given the recorded actions. The exit code is 0 only if all
    episodes are exact or within the tolerance, else 1; with --render or --window so it is with --check only.
    Replay only recordings that you trust: the environment that one names is imported and run.
    """
    if render is not None and window:
        raise typer.BadParameter("a replay goes into a video or a window, not both", param_hint="--window")
    from recorder.recording import Recording
    from recorder.replaying.many import Task, replay_all
    from recorder.replaying.rendering import replay_rendered
    from recorder.replaying.report import plot_errors

    search_here()
    recording = Recording(path)
    chosen = named(recording, episodes or [])
    task = Task(recording, mode, tolerance, env, skip)
    with own_stdout():
        if render is not None or window:
            reports = [replay_rendered(task, which, film_path(render, chosen), overwrite=overwrite) for which in chosen]
        else:
            reports = replay_all(
                recording,
                episodes=chosen,
                mode=mode,
                tolerance=tolerance,
                make_env=env,
                skip_unrebuildable=skip,
                workers=workers,
            )
    drawn = None if plot is None else str(plot_errors(reports, plot))
    if as_json:
        files = {"plot": drawn, "video": None if render is None else str(render)}
        say_json(said(path, chosen, reports) | {name: file for name, file in files.items() if file})
    else:
        say_reports(chosen, reports)
    if not all(report.agrees for report in reports) and (check or not (render or window)):
        raise typer.Exit(1)


def film_path(path: Path | None, chosen: Sequence[int | str]) -> Path | None:
    """Return where the video of the only episode goes.

    Raises:
        EpisodeError: there is not one episode, but none or several.
    """
    from recorder.errors import EpisodeError

    if path is not None and len(chosen) != 1:
        raise EpisodeError(f"a video is of one episode, {len(chosen)} are named: say which, such as 3 or -1")
    return path


def named(recording: Recording, names: Sequence[str]) -> list[int | str]:
    """Return the positions, or ids, of the episodes that are named, each once; all if none is.

    Raises:
        EpisodeError: there is no such episode.
    """
    from recorder.errors import EpisodeError

    found: list[int | str] = []
    for name in names or [":"]:
        start, colon, stop = name.partition(":")
        try:
            if colon:
                ends = (int(end) if end else None for end in (start, stop))
                found += range(*slice(*ends).indices(len(recording)))
            elif name.removeprefix("-").isdecimal():
                found.append(range(len(recording))[int(name)])
            else:
                found.append(recording[name].id)
        except (IndexError, KeyError, ValueError) as error:
            known = f"this recording has {len(recording):,}, called 0, -1, 2:5 or by their ids"
            raise EpisodeError(f"no episode {name!r}: {known}") from error
    return list(dict.fromkeys(found))


def said(path: Path, chosen: Sequence[int | str], reports: Sequence[ReplayReport]) -> dict[str, Any]:
    """Return what was found as JSON."""
    episodes = [
        {"position": place if isinstance(place, int) else None, **report.to_json()}
        for place, report in zip(chosen, reports, strict=True)
    ]
    agree = all(report.agrees for report in reports)
    return {"path": str(path), "agree": agree, "verdicts": verdicts(reports), "episodes": episodes}


def verdicts(reports: Sequence[ReplayReport]) -> dict[str, int]:
    """Return how often there is each verdict."""
    counts = {"exact": 0, "within tolerance": 0, "diverged": 0}
    for report in reports:
        counts[report.verdict] += 1
    return {verdict: count for verdict, count in counts.items() if count}


def say_reports(chosen: Sequence[int | str], reports: Sequence[ReplayReport]) -> None:
    """Print a row for each episode, and below what explains the verdicts."""
    titles = ("position", "id", "steps", "compared", "verdict", "step", "leaf", "error", "")
    rows = [report_cells(place, report) for place, report in zip(chosen, reports, strict=True)]
    if rows:
        say(table([Heading(title, title in NUMBERS) for title in titles], rows, terminal_width()))
    for text, ids in explanations(chosen, reports).items():
        whose = "" if len(ids) == len(reports) else f" ({', '.join(map(str, ids[:5]))}{', …' if len(ids) > 5 else ''})"
        say(f"- {text}{whose}")
    say(frequencies(verdicts(reports)) or "no episodes")


def report_cells(place: int | str, report: ReplayReport) -> Sequence[Any]:
    """Return the row of one episode: where it diverged, or its largest error."""
    found = report.divergence
    if found is not None:
        where: tuple[Any, ...] = (str(found.step), found.leaf or None, found.error, found.message)
    else:
        worst = max((leaf for leaf in report.leaves if leaf.largest), key=lambda leaf: leaf.largest, default=None)
        where = ("", "", "", "") if worst is None else (str(worst.step), worst.path, worst.largest, "")
    return (
        str(place) if isinstance(place, int) else None,
        report.episode,
        report.steps,
        report.compared,
        report.verdict,
        *where,
    )


def explanations(chosen: Sequence[int | str], reports: Sequence[ReplayReport]) -> Mapping[str, list[int | str]]:
    """Return what differs today, and what else is to be said, with the positions of the episodes concerned."""
    found: dict[str, list[int | str]] = {}
    for place, report in zip(chosen, reports, strict=True):
        for text in (*report.differences, *report.notes):
            found.setdefault(cell(text), []).append(place)
    return found
