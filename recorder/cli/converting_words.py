"""Words of the command `convert`: errors that name arguments of Python, said with the options of the command line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from recorder.errors import RecorderError

FLAGS = ("append", "overwrite")
"""Arguments that are True or False; as options they have no value."""

VALUES = {
    "frames_per_shard": "--frames-per-shard",
    "zarr_format": "--zarr-format",
    "workers": "--workers",
    "numeric": "--numeric",
}
"""Arguments with a value."""

PHRASES = {
    r"leave it out of keys": "name the leaves that are wanted with --keys",
    r"named in keys": "named with --keys",
    r"^rename names": "--rename names",
    r"^episodes names": "--episode names",
    r"^frames_per_shard:": "--frames-per-shard:",
}
"""What else errors say of arguments, and what it is with options."""


@contextmanager
def option_words() -> Iterator[None]:
    """Raise errors of the package anew, in the words of the command line."""
    try:
        yield
    except RecorderError as error:
        said = in_option_words(str(error))
        if said == str(error):
            raise
        raise RecorderError(said) from error


def in_option_words(text: str) -> str:
    """Return an error's text with options for arguments.

    >>> in_option_words("car.zarr exists; append=True goes on")
    'car.zarr exists; --append goes on'
    >>> in_option_words("workers=0: a whole number from 1 on")
    '--workers 0: a whole number from 1 on'
    """
    for name in FLAGS:
        text = re.sub(rf"\b{name}=True\b", f"--{name}", text)
    for name, option in VALUES.items():
        text = re.sub(rf"\b{name}=(\S)", rf"{option} \1", text)
    for phrase, words in PHRASES.items():
        text = re.sub(phrase, words, text)
    return text
