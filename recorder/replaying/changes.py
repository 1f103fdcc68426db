"""Changes: what of an environment is not as it was when an episode was recorded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium as gym

from recorder.episode import Episode
from recorder.errors import RecorderError
from recorder.leaf import JSON
from recorder.rebuilding import left_out
from recorder.spaces.differences import differences
from recorder.spaces.env_spec import spec_to_json
from recorder.spaces.space_json import space_to_json
from recorder.versions import version_differences

FIELDS = {"id": "the environment", "max_episode_steps": "its limit of steps"}
"""What of a spec is compared as it is, and how it is called."""


def environment_changes(env: gym.Env[Any, Any], episode: Episode, skipped: bool = False) -> Iterator[str]:
    """Yield what has changed, a line each: versions, spaces, the spec; with `skipped` also what was left out."""
    yield from version_differences(episode.versions)
    for name, space in (("observation", env.observation_space), ("action", env.action_space)):
        try:
            yield from differences(space_to_json(space), space_to_json(episode.schema.spaces[name]), name)
        except RecorderError as error:
            yield f"{name}: {error}"
    if episode.environment is None:
        return
    if env.spec is not None:
        yield from _spec_changes(episode.environment, spec_to_json(env.spec), wrappers=not skipped)
    if skipped:
        yield from (f"left out: {problem}" for problem in left_out(episode.environment))


def _spec_changes(recorded: Mapping[str, JSON], now: Mapping[str, JSON], *, wrappers: bool) -> Iterator[str]:
    for name, title in FIELDS.items():
        if recorded[name] != now[name]:
            yield f"{title} was {recorded[name]}, is {now[name]} here"
    before, after = recorded["kwargs"], now["kwargs"]
    for name in (name for name in {**before, **after} if name != "render_mode"):
        if before.get(name) != after.get(name):
            yield f"argument {name} was {_shown(before, name)}, is {_shown(after, name)} here"
    if wrappers and (one := _names(recorded)) != (other := _names(now)):
        yield f"wrappers were {one or 'none'}, are {other or 'none'} here"


def _shown(arguments: Mapping[str, JSON], name: str) -> str:
    return f"{arguments[name]!s:.60}" if name in arguments else "not given"


def _names(spec: Mapping[str, JSON]) -> str:
    return ", ".join(wrapper["name"] for wrapper in spec["additional_wrappers"])
