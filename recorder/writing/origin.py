"""The origin of a recording: what is kept of the environment, so that it can be made again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym

from recorder.leaf import JSON
from recorder.routing.layouts import render_fps
from recorder.shard import Origin
from recorder.spaces.env_spec import spec_to_json
from recorder.versions import environment_versions
from recorder.writing.opening import plain_json


def origin_of(env: gym.Env[Any, Any], about: Mapping[str, JSON]) -> Origin:
    """Return the spec of an environment, its frame rate, the versions it is made of, and what is said of all episodes.

    Raises:
        ValueError: what is said is not JSON.
    """
    spec = None if env.spec is None else spec_to_json(env.spec)
    return Origin(spec, render_fps(env), plain_json(about, "about"), environment_versions(env))
