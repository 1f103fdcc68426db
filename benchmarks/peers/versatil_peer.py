"""VersatIL: its writer of zarr replay buffers, one WebP of quality 99 a chunk, from episodes; and random rows of it.

Its modules import torch, which neither the writer nor this uses: a placeholder saves 5 GB.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import numpy as np
import zarr


class Placeholder(ModuleType):
    """Has every name that is asked for, as a class without anything."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


torch = Placeholder("torch")
torch.__spec__, torch.__version__ = ModuleSpec("torch", None), "0"
sys.modules["torch"] = torch

from versatil.data.preprocessing.create_zarr_arrays import create_zarr_replay_buffer  # noqa: E402
from workloads import ACTION, STATE, answer, arguments, seconds, size_of, state  # noqa: E402

wanted = arguments()
frames = np.load(wanted["frames"])


class Schema:
    """What its writer asks of a schema."""

    zarr_path = f"{wanted['folder']}/buffer.zarr"

    def get_zarr_array_specs(self) -> dict[str, dict[str, Any]]:
        """Return the arrays to make."""
        floats = {"dtype": "float32", "needs_compressor": True}
        return {
            "camera": {"shape": (0, *frames.shape[1:]), "dtype": "uint8", "needs_compressor": True},
            "state": {"shape": (0, STATE), "chunks": (1000, STATE), **floats},
            "action": {"shape": (0, ACTION), "chunks": (1000, ACTION), **floats},
        }


def episodes() -> Iterator[dict[str, np.ndarray[Any, Any]]]:
    """Yield episodes, whole as its converters do."""
    for start in range(0, wanted["steps"], wanted["length"]):
        stop = min(start + wanted["length"], wanted["steps"])
        yield {
            "camera": np.stack([frames[i % len(frames)] for i in range(start, stop)]),
            "state": np.stack([state(i) for i in range(start, stop)]),
            "action": np.zeros((stop - start, ACTION), np.float32),
        }


recorded = seconds(lambda: create_zarr_replay_buffer(Schema(), episodes()))
found = {"bare": 0.0, "recorded": recorded, "bytes": size_of(Schema.zarr_path)}
if wanted.get("read"):
    random = np.random.default_rng(0)
    camera = zarr.open_group(Schema.zarr_path, mode="r")["data/camera"]
    rows = random.integers(0, len(camera) if hasattr(camera, "__len__") else camera.shape[0], wanted["read"]).tolist()
    camera[0]
    started = time.perf_counter()
    for row in rows:
        camera[row]
    found["items_per_second"] = len(rows) / (time.perf_counter() - started)
    starts = random.integers(0, camera.shape[0] - 16, wanted["read"] // 8).tolist()
    started = time.perf_counter()
    for start in starts:
        camera[start : start + 16]
    found["windows_per_second"] = len(starts) / (time.perf_counter() - started)
answer(**found)
