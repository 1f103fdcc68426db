"""Windows in torch: `pytest -m torch tests/windows`, where torch is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from recorder import MissingExtraError, Recorder, Recording, WindowSampler, create_zarr_replay_buffer
from recorder.threads import cores

LENGTHS = (9, 3, 20)


@pytest.fixture
def buffer_path(tmp_path: Path) -> Path:
    specs = {
        "camera": {"shape": (0, 8, 6, 3), "dtype": "uint8"},
        "action": {"shape": (0, 2), "dtype": "float32"},
        "task": {"shape": (0,), "dtype": "str"},
    }
    generator = np.random.default_rng(0)
    episodes = [
        {
            "camera": generator.integers(0, 256, (steps, 8, 6, 3), np.uint8),
            "action": generator.random((steps, 2), np.float32),
            "task": [f"step {t}" for t in range(steps)],
        }
        for steps in LENGTHS
    ]
    create_zarr_replay_buffer(tmp_path / "b.zarr", specs, episodes, progress=False)
    return tmp_path / "b.zarr"


def test_without_torch_the_error_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "recorder.torch", raising=False)
    with pytest.raises(MissingExtraError, match=r"pip install 'gymnasium-recorder\[torch\]'"):
        import recorder.torch  # noqa: F401


def same(batch: Any, sampler: WindowSampler) -> None:
    """Fail unless a batch of tensors is what the sampler reads."""
    import torch

    expected = sampler.read(batch.index.numpy())
    assert batch.rows.keys() == expected.rows.keys()
    for key, rows in expected.rows.items():
        if rows.dtype == object:
            assert batch.rows[key] == rows.tolist()
        else:
            assert isinstance(batch.rows[key], torch.Tensor)
            np.testing.assert_array_equal(batch.rows[key].numpy(), rows)
        np.testing.assert_array_equal(batch.valid[key].numpy(), expected.valid[key])


def numbers(batches: Iterator[Any]) -> list[list[int]]:
    return [batch.index.tolist() for batch in batches]


@pytest.mark.torch
class TestWindowDataset:
    def test_pictures_come_as_bytes_with_their_channels_last(self, buffer_path: Path) -> None:
        import torch

        from recorder.torch import WindowDataset

        dataset = WindowDataset(WindowSampler(buffer_path, 4, before=1))
        batch = next(iter(dataset.loader(5, shuffle=True)))
        assert batch.rows["camera"].shape == (5, 4, 8, 6, 3) and batch.rows["camera"].dtype == torch.uint8
        assert batch.rows["action"].dtype == torch.float32 and batch.valid["action"].dtype == torch.bool
        same(batch, dataset.sampler)

    @pytest.mark.parametrize("workers", [0, 2])
    @pytest.mark.parametrize("shuffle", [False, True, "shards", "weights"])
    def test_epochs_are_those_of_the_sampler(self, buffer_path: Path, workers: int, shuffle: Any) -> None:
        from recorder.torch import WindowDataset

        sampler = WindowSampler(buffer_path, 4, after=2, keys=["action"])
        loader = WindowDataset(sampler).loader(5, shuffle=shuffle, seed=3, workers=workers, context="fork")
        assert len(loader) == len(list(sampler.order(5)))
        for epoch in range(2):
            expected = [order.tolist() for order in sampler.order(5, shuffle=shuffle, seed=3, epoch=epoch)]
            assert numbers(loader) == expected

    @pytest.mark.parametrize("context", ["fork", "spawn"])
    def test_workers_read_the_same(self, buffer_path: Path, context: Any) -> None:
        from recorder.torch import WindowDataset

        sampler = WindowSampler(buffer_path, 4, before=3, stack={"camera": 2})
        sampler.read([0])  # what is open here must do no harm there
        for batch in WindowDataset(sampler).loader(4, shuffle=True, workers=2, context=context):
            same(batch, sampler)

    def test_the_collation_of_torch_gives_the_same(self, buffer_path: Path) -> None:
        from torch.utils.data import DataLoader

        from recorder.torch import WindowDataset, collate

        dataset = WindowDataset(WindowSampler(buffer_path, 3, keys=["action", "camera"]))
        for options in ({}, {"collate_fn": collate}):
            for batch in DataLoader(dataset, 4, **options):
                same(batch, dataset.sampler)
        same(collate([dataset[i] for i in (3, 1)]), dataset.sampler)

    @pytest.mark.parametrize("context", ["fork", "spawn"])
    def test_a_recording_is_read_without_being_converted(self, tmp_path: Path, context: Any) -> None:
        from recorder.torch import WindowDataset

        with Recorder(gym.make("CartPole-v1"), tmp_path, verbose=False) as env:
            env.action_space.seed(0)
            for seed in range(3):
                env.reset(seed=seed)
                while not any(env.step(env.action_space.sample())[2:4]):
                    pass
        recording = Recording(tmp_path)
        sampler = WindowSampler(recording, 5, keys=["observation", "action", "next_observation"])
        sampler.read([0])
        seen = []
        for batch in WindowDataset(sampler).loader(8, shuffle="shards", workers=2, context=context):
            same(batch, sampler)
            seen += batch.index.tolist()
        assert sorted(seen) == list(range(sum(len(episode) - 4 for episode in recording)))

    def test_workers_share_the_cores(self, buffer_path: Path) -> None:
        from recorder.torch import WindowDataset

        class Telling(WindowDataset):
            def __getitems__(self, numbers: Any) -> Any:
                batch = super().__getitems__(numbers)
                batch.windows.rows["cores"] = np.array([cores()])
                return batch

        before = cores()
        loader = Telling(WindowSampler(buffer_path, keys=["action"])).loader(8, workers=2, context="fork")
        assert {int(batch.rows["cores"]) for batch in loader} == {max(1, before // 2)}
        assert cores() == before

    def test_the_example_trains_a_policy(self, tmp_path: Path) -> None:
        pytest.importorskip("Box2D")
        root = Path(__file__).resolve().parents[2]
        sizes = ["--episodes", "2", "--steps", "70", "--epochs", "2"]
        script = [sys.executable, str(root / "examples/behaviour_cloning.py"), str(tmp_path), *sizes]
        done = subprocess.run(
            script, capture_output=True, text=True, check=False, env=os.environ | {"PYTHONPATH": str(root)}
        )
        assert done.returncode == 0, done.stderr
        assert "learns from 20 windows" in done.stdout and "the policy" in done.stdout

    def test_a_path_gives_single_steps(self, buffer_path: Path) -> None:
        from recorder.torch import WindowDataset

        dataset = WindowDataset(buffer_path)
        assert len(dataset) == sum(LENGTHS)
        assert dataset[0].rows["task"] == ["step 0"] and dataset[-1].rows["action"].shape == (1, 2)
