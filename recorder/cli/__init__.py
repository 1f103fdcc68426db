"""The command `recorder`: its commands, and how it says that something went wrong.

Commands import what they need when they run: the help and the shell's completion do not wait for it.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from recorder.cli import (
    converting,
    discarding,
    editing,
    following,
    importing,
    making,
    mending,
    previewing,
    reading,
    reobserving,
    replaying,
    showing,
    statistics,
)
from recorder.cli.printing import ReaderGoneError, printable, say

# Typer names no other of Click's errors, and since 0.26 it brings its own Click.
UsageError: Any = typer.BadParameter.__mro__[1]

app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
app.command("record", epilog=making.RECORD_EXAMPLES)(making.record)
app.command("plan", epilog=making.PLAN_EXAMPLES)(making.plan)
app.command("info", epilog=reading.INFO_EXAMPLES)(reading.info)
app.command("list", epilog=reading.LIST_EXAMPLES)(reading.list_episodes)
# So that -1 is the last episode and not an option.
app.command("show", epilog=showing.EXAMPLES, context_settings={"ignore_unknown_options": True})(showing.show)
app.command("preview", epilog=previewing.EXAMPLES, context_settings={"ignore_unknown_options": True})(
    previewing.preview
)
app.command("replay", epilog=replaying.EXAMPLES, context_settings={"ignore_unknown_options": True})(replaying.replay)
app.command("reobserve", epilog=reobserving.EXAMPLES, context_settings={"ignore_unknown_options": True})(
    reobserving.reobserve
)
app.command("follow", epilog=following.EXAMPLES)(following.follow)
app.command("verify", epilog=mending.VERIFY_EXAMPLES)(mending.verify)
app.command("recover", epilog=mending.RECOVER_EXAMPLES)(mending.recover)
app.command("convert", epilog=converting.EXAMPLES)(converting.convert)
app.command("stats", epilog=statistics.EXAMPLES, context_settings={"ignore_unknown_options": True})(statistics.stats)
app.command("import", epilog=importing.EXAMPLES)(importing.import_file)
app.command("merge", epilog=editing.MERGE_EXAMPLES)(editing.merge)
app.command("split", epilog=editing.SPLIT_EXAMPLES)(editing.split)
app.command("filter", epilog=editing.FILTER_EXAMPLES)(editing.filter_episodes)
app.command("delete", epilog=editing.DELETE_EXAMPLES, context_settings={"ignore_unknown_options": True})(editing.delete)
app.command("label", epilog=editing.LABEL_EXAMPLES, context_settings={"ignore_unknown_options": True})(editing.label)
app.command("compact", epilog=editing.COMPACT_EXAMPLES)(editing.compact)
app.add_typer(discarding.app, name="discarded")


@app.callback(invoke_without_command=True)
def start(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Record Gymnasium environments, and look at what was recorded.

    Every command has --help with an example, and --json for programs. The exit code is 0, 1 after an error, 2
    after wrong usage, 130 after Ctrl-C. With RECORDER_TRACEBACK=1 an error shows where it came from.
    """
    if version:
        # Whoever imports this module has imported the package.
        say(f"recorder {sys.modules['recorder'].__version__}")
    elif context.invoked_subcommand is None:
        print(context.get_help(), file=sys.stderr)
        raise typer.Exit(2)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 0, 1 after an error, 2 if it was used wrongly, 130 after Ctrl-C."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = typer.main.get_command(app).main(arguments, "recorder", standalone_mode=False)
    except UsageError as error:
        command = f"{error.ctx.command_path} " if error.ctx else "recorder "
        return fail(f"{error.format_message()} ({command}--help says more)", 2)
    except ReaderGoneError:
        # The interpreter flushes stdout once more when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if os.environ.get("RECORDER_TRACEBACK"):
            raise
        return fail(message_of(error), 1)
    return fail("interrupted", 130) if code == 130 else int(code or 0)


def fail(message: str, code: int) -> int:
    """Say on one line of stderr what went wrong."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    joined = lines[0] if lines else ""
    for line in lines[1:]:
        joined += f"{' ' if joined[-1] in ':;,.' else '; '}{line}"
    print(f"recorder: {printable(joined)}", file=sys.stderr)
    return code


def message_of(error: Exception) -> str:
    """Return what an error says; an error that is not of this package with its name."""
    from recorder.errors import RecorderError

    if isinstance(error, RecorderError | OSError):
        return str(error)
    return f"{type(error).__name__}: {error}"
