"""Minari: DataCollector in its own environment, with the formats that it has."""

from __future__ import annotations

import os

from workloads import answer, arguments, play, player, seconds, size_of

wanted = arguments()
os.environ["MINARI_DATASETS_PATH"] = wanted["folder"]

import gymnasium as gym  # noqa: E402
import minari  # noqa: E402
import numpy as np  # noqa: E402


def made() -> gym.Env:
    """Return the environment to record."""
    if wanted["work"] == "env":
        return gym.make(wanted["env"])
    return player(np.load(wanted["frames"], mmap_mode="r"), wanted["length"])


def record(steps: int, name: str) -> None:
    """Record and create the dataset."""
    env = minari.DataCollector(made(), record_infos=False, data_format=wanted["format"])
    play(env, steps, wanted["work"] == "env")
    env.create_dataset(dataset_id=f"benchmark/{name}-v0")


record(20, "first")  # it imports half of its libraries when they are first used
before = size_of(wanted["folder"])
bare = seconds(lambda: play(made(), wanted["steps"], wanted["work"] == "env"))
recorded = seconds(lambda: record(wanted["steps"], "run"))
answer(bare=bare, recorded=recorded, bytes=size_of(wanted["folder"]) - before)
