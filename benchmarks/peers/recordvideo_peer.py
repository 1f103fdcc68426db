"""Gymnasium's RecordVideo: the rendered frames of every episode as a video; nothing else is kept."""

from __future__ import annotations

import numpy as np
from gymnasium.wrappers import RecordVideo
from workloads import answer, arguments, play, player, seconds, size_of

wanted = arguments()
frames = np.load(wanted["frames"])


def record(steps: int, name: str) -> None:
    """Record all episodes."""
    folder = f"{wanted['folder']}/{name}"
    env = RecordVideo(
        player(frames, wanted["length"]), folder, episode_trigger=lambda episode: True, disable_logger=True
    )
    play(env, steps, False)
    env.close()


record(5, "first")  # it imports half of its libraries when they are first used


bare = seconds(lambda: play(player(frames, wanted["length"]), wanted["steps"], False))
recorded = seconds(lambda: record(wanted["steps"], "run"))
answer(bare=bare, recorded=recorded, bytes=size_of(f"{wanted['folder']}/run"))
