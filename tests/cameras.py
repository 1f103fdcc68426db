"""An environment with leaves in every storage, and what its rows are."""

from __future__ import annotations

from typing import Any

import numpy as np
from environments import ScriptEnv
from gymnasium import spaces

from recorder import Episode

SPACE = spaces.Dict(
    front=spaces.Box(0, 255, (130, 131, 3), np.uint8),  # video
    wrist=spaces.Box(0, 255, (40, 56, 3), np.uint8),  # WebP
    depth=spaces.Box(0, 65535, (48, 64), np.uint16),  # zstd
    joints=spaces.Box(-1, 1, (3,)),
    note=spaces.Text(9, min_length=0),
    points=spaces.Sequence(spaces.Box(-1, 1, (2,))),
)


def camera_rows(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Return observations of `SPACE`: a moving picture of many colours, noise, and rows of changing length."""
    generator = np.random.default_rng(seed)
    y, x = np.mgrid[:130, :131]
    return [
        {
            "front": np.stack([x + t, y + t, (x + y) // 2], axis=-1).astype(np.uint8),
            "wrist": generator.integers(0, 256, (40, 56, 3), np.uint8),
            "depth": generator.integers(0, 6000, (48, 64), np.uint16),
            "joints": generator.random(3, np.float32),
            "note": "é" * (t % 9),
            "points": tuple(generator.random((t % 4, 2), np.float32)),
        }
        for t in range(count)
    ]


def camera_env(rows: list[dict[str, Any]]) -> ScriptEnv:
    """Return an environment that gives these observations."""
    return ScriptEnv(SPACE, rows)


def check_camera_rows(episode: Episode, rows: list[dict[str, Any]]) -> None:
    """Assert that an episode has these observations, the front camera nearly, the others exactly."""
    found = episode.observations
    given = {name: [row[name] for row in rows] for name in SPACE}
    front = np.array(given["front"])
    assert found["front"].shape == front.shape
    assert np.abs(found["front"].astype(np.int16) - front).mean() < 8
    for name in ("wrist", "depth", "joints"):
        np.testing.assert_array_equal(found[name], given[name])
    assert list(found["note"]) == given["note"]
    for one, other in zip(found["points"], given["points"], strict=True):
        np.testing.assert_array_equal(np.reshape(one, (-1, 2)), np.reshape(other, (-1, 2)))
