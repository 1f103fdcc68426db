"""UniEnv: a replay buffer over DictStorage, pictures as JPEG files and everything else in Parquet."""

from __future__ import annotations

import time

import numpy as np
from unienv_data.replay_buffer import ReplayBuffer
from unienv_data.storages.dict_storage import DictStorage
from unienv_data.storages.image_storage import ImageStorage
from unienv_data.storages.parquet import ParquetStorage
from unienv_interface.backends.numpy import NumpyComputeBackend as Backend
from unienv_interface.space import BoxSpace, DictSpace
from workloads import ACTION, STATE, answer, arguments, seconds, size_of, state

wanted = arguments()
frames = np.load(wanted["frames"])
space = DictSpace(
    Backend,
    {
        "image": BoxSpace(Backend, 0, 255, np.uint8, shape=frames.shape[1:]),
        "state": BoxSpace(Backend, -1e6, 1e6, np.float32, shape=(STATE,)),
        "action": BoxSpace(Backend, -1.0, 1.0, np.float32, shape=(ACTION,)),
    },
)
path = f"{wanted['folder']}/buffer"
buffer = ReplayBuffer.create(
    DictStorage,
    space,
    storage_cls_map={"image": ImageStorage, "*": ParquetStorage},
    cache_path=path,
    capacity=wanted["steps"],
    key_kwargs={"image": {"format": "JPEG", "quality": 90}},
)


def record() -> None:
    """Append step by step, and write all that is left."""
    action = np.zeros(ACTION, np.float32)
    for i in range(wanted["steps"]):
        buffer.append({"image": frames[i % len(frames)], "state": state(i), "action": action})
        if (i + 1) % wanted["length"] == 0:
            buffer.mark_segment_end()
    buffer.mark_segment_end()
    buffer.dumps(path)


found = {"bare": 0.0, "recorded": seconds(record), "bytes": size_of(path)}
if wanted.get("read"):
    random = np.random.default_rng(0)
    rows = random.integers(0, len(buffer), wanted["read"]).tolist()
    buffer.get_at(np.array([0]))
    started = time.perf_counter()
    for row in rows:
        buffer.get_at(np.array([row]))
    found["items_per_second"] = len(rows) / (time.perf_counter() - started)
    starts = random.integers(0, len(buffer) - 16, wanted["read"] // 8).tolist()
    started = time.perf_counter()
    for start in starts:
        buffer.get_at(np.arange(start, start + 16))
    found["windows_per_second"] = len(starts) / (time.perf_counter() - started)
answer(**found)
