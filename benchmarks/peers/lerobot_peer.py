"""LeRobot: frames and floats as a dataset with videos, and random items of it.

It reads by torchcodec, which needs the shared libraries of FFmpeg (Debian: `ffmpeg`); without them by PyAV.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["SVT_LOG"] = "0"

import numpy as np
from workloads import ACTION, STATE, answer, arguments, seconds, size_of, state

try:
    from lerobot.datasets.lerobot_dataset import LeRobotDataset
except ImportError:
    from lerobot.common.datasets.lerobot_dataset import LeRobotDataset

try:
    import torchcodec  # noqa: F401

    BACKEND = "torchcodec"
except (ImportError, OSError, RuntimeError):
    BACKEND = "pyav"

wanted = arguments()
frames = np.load(wanted["frames"])
root = Path(wanted["folder"]) / "dataset"
CAMERAS = [f"observation.images.{k}" for k in range(wanted.get("cameras", 1))]
FEATURES = {
    **{
        camera: {"dtype": "video", "shape": frames.shape[1:], "names": ["height", "width", "channels"]}
        for camera in CAMERAS
    },
    "observation.state": {"dtype": "float32", "shape": (STATE,), "names": None},
    "action": {"dtype": "float32", "shape": (ACTION,), "names": None},
}


def record(saves: list[float]) -> None:
    """Record episodes; the seconds that each takes to be saved go into `saves`."""
    dataset = LeRobotDataset.create(
        "benchmark/run", fps=30, features=FEATURES, root=root, use_videos=True, image_writer_threads=4 * len(CAMERAS)
    )
    for i in range(wanted["steps"]):
        frame = {"observation.state": state(i), "action": np.zeros(ACTION, np.float32), "task": "play"}
        dataset.add_frame({**{camera: frames[i % len(frames)] for camera in CAMERAS}, **frame})
        if (i + 1) % wanted["length"] == 0 or i + 1 == wanted["steps"]:
            saves.append(seconds(dataset.save_episode))
    if hasattr(dataset, "finalize"):
        dataset.finalize()


saves: list[float] = []
recorded = seconds(lambda: record(saves))
found = {"bare": 0.0, "recorded": recorded, "saves": saves, "bytes": size_of(str(root))}
found["video_bytes"] = sum(path.stat().st_size for path in root.rglob("*.mp4"))
if wanted.get("read"):
    dataset = LeRobotDataset("benchmark/run", root=root, video_backend=BACKEND)
    random = np.random.default_rng(0).integers(0, len(dataset), wanted["read"]).tolist()
    dataset[0]
    started = time.perf_counter()
    errors = []
    items = [dataset[i][CAMERAS[0]] for i in random]
    found["backend"] = BACKEND
    found["items_per_second"] = len(random) / (time.perf_counter() - started)
    for i, item in list(zip(random, items, strict=True))[:60]:
        picture = item.numpy().transpose(1, 2, 0) * 255.0
        errors.append(np.mean((picture - frames[i % len(frames)].astype(np.float64)) ** 2))
    found["psnr"] = float(10 * np.log10(255**2 / np.mean(errors)))
shutil.rmtree(root, ignore_errors=True)
answer(**found)
