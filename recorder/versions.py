"""Versions: what an episode was made with, and what of that is another version today."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Any

import gymnasium as gym

OURS = frozenset({"gymnasium-recorder", "h5py", "zarr", "imagecodecs", "av", "pyarrow"})
"""What only reads and writes: its versions make no difference to what an environment does."""


def environment_versions(env: gym.Env[Any, Any]) -> dict[str, str]:
    """Return the versions of the packages that an environment and its wrappers are made of, its simulator included.

    These are the packages that hold their classes, and those that the modules of these classes import.
    """
    found = {}
    for name in sorted(_packages(env)):
        if (number := package_version(name)) is not None:
            found[name] = number
    return found


def _packages(env: gym.Env[Any, Any]) -> set[str]:
    """Return the top names of all packages that the classes of an environment lie in, or use."""
    names: set[str] = set()
    for level in _levels(env):
        for kind in type(level).__mro__:
            module = sys.modules.get(kind.__module__)
            if module is not None and kind is not object:
                names |= {kind.__module__.split(".")[0], *_imported(module)}
    return {name for name in names if name not in sys.stdlib_module_names and name not in ("recorder", "__main__")}


def _levels(env: gym.Env[Any, Any]) -> Iterator[gym.Env[Any, Any]]:
    yield env
    while isinstance(env, gym.Wrapper):
        env = env.env
        yield env


def _imported(module: ModuleType) -> Iterator[str]:
    """Yield the top names of the modules that a module holds."""
    for value in vars(module).values():
        if isinstance(value, ModuleType):
            yield value.__name__.split(".")[0]


def package_version(name: str) -> str | None:
    """Return the version of a package by the name that one imports, or of Python; None if it has none here."""
    if (number := _installed(name)) is not None:
        return number
    # The name under which it was installed differs: cv2 is of opencv-python.
    number = getattr(sys.modules.get(name), "__version__", None)
    return number if isinstance(number, str) else None


@cache
def _installed(name: str) -> str | None:
    """Return the version of Python or of a distribution; to look it up takes a millisecond."""
    if name == "python":
        return platform.python_version()
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def version_differences(recorded: Mapping[str, str]) -> list[str]:
    """Return what differs today from the versions that a recording names, a line each.

    >>> version_differences({"python": "2.7.18"})[0].split(" was")[0]
    'python'
    """
    return [
        f"{name} was {number}, {f'is {now} here' if (now := package_version(name)) else 'is not installed here'}"
        for name, number in recorded.items()
        if name not in OURS and package_version(name) != number
    ]
