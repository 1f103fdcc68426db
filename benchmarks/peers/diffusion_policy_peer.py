"""A zarr replay buffer as diffusion_policy writes it: zarr format 2, one frame a chunk, episodes appended at their end.

Made after the layout of its `ReplayBuffer`: `data/<key>`, `meta/episode_ends`; pictures as JPEG 2000 of level 50, as in
its recordings of robots, numbers with Blosc.
"""

from __future__ import annotations

import numcodecs
import numpy as np
import zarr
from imagecodecs.numcodecs import Jpeg2k, register_codecs
from workloads import ACTION, answer, arguments, seconds, size_of, state

wanted = arguments()
register_codecs()
frames = np.load(wanted["frames"])
DISK = numcodecs.Blosc("zstd", clevel=5, shuffle=numcodecs.Blosc.BITSHUFFLE)


def record() -> None:
    """Collect an episode in memory, and append it when it has ended."""
    root = zarr.group(zarr.DirectoryStore(f"{wanted['folder']}/buffer.zarr"))
    data, meta = root.create_group("data"), root.create_group("meta")
    ends = meta.zeros("episode_ends", shape=(0,), dtype=np.int64, compressor=None)
    arrays: dict[str, zarr.Array] = {}
    for start in range(0, wanted["steps"], wanted["length"]):
        stop = min(start + wanted["length"], wanted["steps"])
        episode = {
            "camera": np.stack([frames[i % len(frames)].copy() for i in range(start, stop)]),
            "state": np.stack([state(i) for i in range(start, stop)]),
            "action": np.zeros((stop - start, ACTION), np.float32),
        }
        for name, values in episode.items():
            if name not in arrays:
                picture = name == "camera"
                chunk = (1 if picture else len(values), *values.shape[1:])
                codec = Jpeg2k(level=50) if picture else DISK
                arrays[name] = data.zeros(
                    name, shape=(0, *values.shape[1:]), chunks=chunk, dtype=values.dtype, compressor=codec
                )
            arrays[name].append(values)
        ends.append(np.array([stop]))


answer(bare=0.0, recorded=seconds(record), bytes=size_of(wanted["folder"]))
