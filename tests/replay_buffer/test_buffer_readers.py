"""Buffers read by others: plain zarr in a fresh process, and zarr 2.18 the way diffusion_policy does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import venv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recorder import create_zarr_replay_buffer

SPECS = {
    "img": {"shape": (0, 24, 32, 3), "dtype": "uint8"},
    "rgba": {"shape": (0, 8, 8, 4), "dtype": "uint8"},
    "state": {"shape": (0, 5), "dtype": "float32"},
    "action": {"shape": (0, 2), "dtype": "float64"},
    "task": {"shape": (0,), "dtype": "str"},
}
LENGTHS = (7, 1, 30)


def episodes() -> list[dict[str, Any]]:
    random = np.random.default_rng(0)
    return [
        {
            "img": random.integers(0, 256, (rows, 24, 32, 3), np.uint8),
            "rgba": random.integers(0, 256, (rows, 8, 8, 4), np.uint8),
            "state": random.normal(size=(rows, 5)).astype(np.float32),
            "action": random.normal(size=(rows, 2)),
            "task": [f"größe {i}" for i in range(rows)],
        }
        for rows in LENGTHS
    ]


def made(folder: Path, zarr_format: Any) -> Path:
    """Make a buffer, and beside it the rows that must be in it."""
    create_zarr_replay_buffer(folder / "buffer.zarr", SPECS, episodes(), zarr_format=zarr_format, progress=False)
    arrays = {key: np.concatenate([np.asarray(episode[key]) for episode in episodes()]) for key in SPECS}
    np.savez(folder / "rows.npz", **arrays)
    return folder


PLAIN = """
    import sys

    import numpy as np
    import zarr

    folder = sys.argv[1]
    rows = np.load(f"{folder}/rows.npz")
    root = zarr.open_group(f"{folder}/buffer.zarr", mode="r")
    assert "recorder" not in sys.modules or not any(name.startswith("recorder.replay") for name in sys.modules)
    ends = root["meta/episode_ends"][:]
    assert ends.tolist() == [7, 8, 38] and ends.dtype == "int64"
    assert root["meta/complete"][()]
    for key in rows:
        found = root["data"][key][:]
        assert found.tolist() == rows[key].tolist(), key
        assert np.array_equal(root["data"][key][5:20], found[5:20])
    print("read")
"""


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_plain_zarr_in_a_fresh_process_reads_it(tmp_path: Path, zarr_format: int) -> None:
    # Numcodecs learns of WebP from imagecodecs, as everyone does who reads such arrays of format 2.
    first = "import imagecodecs.numcodecs; imagecodecs.numcodecs.register_codecs()\n" if zarr_format == 2 else ""
    command = [sys.executable, "-W", "error", "-c", first + textwrap.dedent(PLAIN), str(made(tmp_path, zarr_format))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout == "read\n", done.stderr


@pytest.fixture(scope="session")
def zarr2(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the Python of an environment with zarr 2.18, made anew unless `ZARR2_PYTHON` names one."""
    if named := os.environ.get("ZARR2_PYTHON"):
        return named
    folder = tmp_path_factory.mktemp("zarr2")
    try:
        venv.create(folder, with_pip=True)
        python = str(folder / "bin" / "python")
        wanted = ["zarr==2.18.7", "numcodecs<0.16", "imagecodecs"]
        subprocess.run([python, "-m", "pip", "install", "-q", *wanted], check=True, capture_output=True, timeout=600)
    except (subprocess.SubprocessError, OSError) as error:
        pytest.skip(f"an environment with zarr 2.18 cannot be made here: {error}")
    return python


OLD = """
    import sys

    import numpy as np
    import zarr
    from imagecodecs.numcodecs import register_codecs

    register_codecs()
    assert zarr.__version__.startswith("2.18"), zarr.__version__
    folder = sys.argv[1]
    rows = np.load(f"{folder}/rows.npz")
    on_disk = zarr.open(f"{folder}/buffer.zarr", "r")

    # All of it compressed in memory, as a training run holds it.
    copied = zarr.group(zarr.MemoryStore())
    zarr.copy_store(source=on_disk.store, dest=copied.store, if_exists="replace")

    for root in (on_disk, copied):
        ends = root["meta"]["episode_ends"]
        assert ends[:].tolist() == [7, 8, 38] and ends.compressor is None
        assert {key for key, _ in root["data"].items()} == set(rows)
        for key, array in root["data"].items():
            assert array.shape[0] == ends[-1], key
            assert array[:].tolist() == rows[key].tolist(), key
            assert array.chunks[1:] == array.shape[1:]
        for value in root["meta"].values():
            np.array(value) if len(value.shape) == 0 else value[:]
    assert on_disk["data"]["img"].chunks[0] == 1 and on_disk["data"]["img"].compressor.codec_id == "imagecodecs_webp"

    # A buffer that is added to and cut.
    writable = zarr.open(f"{folder}/buffer.zarr", "r+")
    img = writable["data"]["img"]
    img.resize((40, *img.shape[1:]))
    img[-2:] = rows["img"][:2]
    assert np.array_equal(img[38:], rows["img"][:2])
    img.resize((38, *img.shape[1:]))
    print("read")
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_zarr_2_reads_format_2_the_way_diffusion_policy_does(tmp_path: Path, zarr2: str) -> None:
    command = [zarr2, "-c", textwrap.dedent(OLD), str(made(tmp_path, 2))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout == "read\n", done.stderr


def test_format_2_says_no_more_of_webp_than_old_versions_of_imagecodecs_know(tmp_path: Path) -> None:
    folder = made(tmp_path, 2) / "buffer.zarr" / "data"
    said = json.loads((folder / "img" / ".zarray").read_text())["compressor"]
    assert said == {"id": "imagecodecs_webp", "lossless": True, "method": 0}
