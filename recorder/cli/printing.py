"""Printing: values on stdout as JSON or as aligned text, right for pipes and for narrow terminals."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import Any, NamedTuple

NARROWEST = 8
"""A column of text is not cut to less than this to fit a terminal."""


class ReaderGoneError(Exception):
    """Nobody reads stdout any more: the other end of the pipe is closed, as `head` does."""


def say(text: str) -> None:
    """Print text and hand it on at once."""
    try:
        print(text, flush=True)
    except BrokenPipeError as error:
        raise ReaderGoneError from error


def say_json(value: Any) -> None:
    """Print a value as strict JSON, in ASCII."""
    say(json.dumps(value, indent=1, allow_nan=False))


@contextmanager
def own_stdout() -> Iterator[None]:
    """Send to stderr what environments print, those written in C too: stdout is for the result."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        # What C has printed into its buffer would otherwise come out later, after the result.
        ctypes.CDLL(None).fflush(None)
        os.dup2(kept, 1)
        os.close(kept)


def on_terminal() -> bool:
    """Return whether stdout is a terminal."""
    return sys.stdout is not None and sys.stdout.isatty()


def terminal_width() -> int | None:
    """Return how wide lines may be: None, for as wide as they are, where stdout is no terminal."""
    return shutil.get_terminal_size().columns if on_terminal() else None


class Heading(NamedTuple):
    """A column of a table: its title, and whether it holds numbers, which stand right and are never cut."""

    title: str
    number: bool = False


def table(columns: Sequence[Heading], rows: Iterable[Sequence[Any]], width: int | None = None) -> str:
    """Return rows as aligned text; where they are wider than `width`, the widest columns of text are cut."""
    cells = [[column.title for column in columns], *([cell(value) for value in row] for row in rows)]
    widths = [max(map(columns_of, column)) for column in zip(*cells, strict=True)]
    if width is not None:
        _narrow(columns, widths, width)
    lines = [zip(columns, row, widths, strict=True) for row in cells]
    return "\n".join("  ".join(_aligned(*place) for place in line).rstrip() for line in lines)


def facts(values: Mapping[str, Any]) -> str:
    """Return names and values as lines, those of None left out."""
    shown = {name: cell(value) for name, value in values.items() if value is not None}
    longest = max(map(len, shown), default=0)
    return "\n".join(f"{name.ljust(longest)}  {value}".rstrip() for name, value in shown.items())


def cell(value: Any) -> str:
    """Return a value as one line of text.

    >>> cell(12345), cell(0.1 + 0.2), cell(None), cell({"success": True}), cell((3, 4)), cell("a\\nb")
    ('12,345', '0.3', '-', 'success=true', '(3, 4)', 'a\\\\nb')
    """
    match value:
        case None:
            return "-"
        case bool():
            return str(value).lower()
        case int():
            return f"{value:,}"
        case float():
            return f"{value:.6g}"
        case str():
            return printable(value)
        case tuple():
            return str(value).replace("'", "")
        case Mapping():
            return " ".join(f"{printable(str(key))}={cell(inner)}" for key, inner in value.items())
        case list():
            return f"[{', '.join(str(item) if type(item) is int else cell(item) for item in value)}]"
    return printable(str(value))


def printable(text: str) -> str:
    """Return text with codes that move a terminal's cursor made visible: a recording may be a stranger's."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def counted(number: int, what: str) -> str:
    """Return a number of things.

    >>> counted(1, "episode"), counted(1000, "step")
    ('1 episode', '1,000 steps')
    """
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def frequencies(counts: Mapping[str, int]) -> str | None:
    """Return how often each of some names occurs: `terminated 7, truncated 3`."""
    return ", ".join(f"{name} {count:,}" for name, count in counts.items()) or None


def span(values: Mapping[str, Any] | None) -> str | None:
    """Return from where to where numbers go, and their mean."""
    if not values or values["min"] == values["max"]:
        return cell(values["min"]) if values else None
    return f"{cell(values['min'])} to {cell(values['max'])}, mean {cell(values['mean'])}"


def columns_of(text: str) -> int:
    """Return how many columns of a terminal a text takes: letters of East Asia two, combining marks none."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in text)
    return len(text) + wide - sum(unicodedata.combining(letter) > 0 for letter in text)


def _narrow(columns: Sequence[Heading], widths: list[int], width: int) -> None:
    """Make columns of text narrower, the widest first, until a line fits or none can be cut."""
    texts = [i for i, column in enumerate(columns) if not column.number]
    excess = sum(widths) + 2 * (len(widths) - 1) - width
    while excess > 0 and texts and widths[widest := max(texts, key=lambda i: widths[i])] > NARROWEST:
        widths[widest] -= 1
        excess -= 1


def _aligned(column: Heading, text: str, width: int) -> str:
    if columns_of(text) > width:
        text = _cut(text, width)
    space = " " * (width - columns_of(text))
    return f"{space}{text}" if column.number else f"{text}{space}"


def _cut(text: str, width: int) -> str:
    while columns_of(text) > width - 1:
        text = text[:-1]
    return f"{text}…"
