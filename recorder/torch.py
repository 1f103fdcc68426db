"""WindowDataset: windows of a replay buffer or a recording as a dataset of torch, with its collation and orders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Literal, overload

import numpy as np

from recorder.asking import whole
from recorder.columns import Array
from recorder.errors import MissingExtraError, WindowError
from recorder.threads import share_cores
from recorder.training_data import Source
from recorder.windows.ordering import Shuffle
from recorder.windows.placing import Numbers
from recorder.windows.sampler import Windows, WindowSampler

try:
    import torch
    from torch.utils.data import DataLoader, Dataset, Sampler
except ImportError as error:
    raise MissingExtraError("torch", "torch") from error

Context = Literal["fork", "spawn", "forkserver"]


class WindowBatch(Sequence[Windows]):
    """The windows of one batch, read at once: `collate` takes them as they are, other functions one by one."""

    def __init__(self, windows: Windows) -> None:
        self.windows = windows

    def __len__(self) -> int:
        return len(self.windows.index)

    @overload
    def __getitem__(self, i: int) -> Windows: ...
    @overload
    def __getitem__(self, i: slice) -> list[Windows]: ...
    def __getitem__(self, i: int | slice) -> Windows | list[Windows]:
        if isinstance(i, slice):
            return [self.windows.at(k) for k in range(*i.indices(len(self)))]
        if not -len(self) <= i < len(self):
            raise IndexError(f"window {i} of a batch of {len(self)}")
        return self.windows.at(i)


class WindowDataset(Dataset):  # type: ignore[misc]
    """Windows as a map-style dataset: `dataset[3]`, and whole batches by `__getitems__`, read at once.

    Pictures come as they were recorded, uint8 (windows, length, H, W, C), to be moved to a device before they become
    floats there. `dataset.loader(16, shuffle=True, workers=2)` is a DataLoader with all of it; one made by hand takes
    `collate_fn=collate`, though torch's own function gives the same, with one copy more. Text stays lists of strings.
    """

    def __init__(self, source: WindowSampler | Source) -> None:
        """Take the windows of a sampler; of a buffer, a recording or a path, all single steps."""
        self.sampler = source if isinstance(source, WindowSampler) else WindowSampler(source)

    def __len__(self) -> int:
        return len(self.sampler)

    def __getitem__(self, number: int) -> Windows:
        """Return one window, as tensors."""
        return tensors(self.sampler[number])

    def __getitems__(self, numbers: Sequence[int]) -> WindowBatch:
        """Return a batch, read at once."""
        return WindowBatch(self.sampler.read(numbers))

    def loader(
        self,
        batch_size: int,
        *,
        shuffle: Shuffle = False,
        seed: int = 0,
        drop_last: bool = False,
        workers: int = 0,
        context: Context | None = None,
        pin_memory: bool = False,
    ) -> Any:
        """Return a DataLoader that yields `Windows` of tensors; each time it is gone through is the next epoch.

        Args:
            batch_size: windows of a batch.
            shuffle: `True`, "shards" for speed, "weights", or not; see `WindowSampler.order`.
            seed: of the order; the same seed gives the same epochs, whatever the number of workers.
            drop_last: leave out the last batch where it has fewer windows.
            workers: processes that read; they stay from epoch to epoch.
            context: how they are started, "fork" or "spawn"; what Python takes if not said.
            pin_memory: whether tensors are put where a GPU fetches them from.
        """
        whole("workers", workers, 0, error=WindowError)
        order = WindowOrder(self.sampler, batch_size, shuffle, seed, drop_last)
        return DataLoader(
            self,
            batch_sampler=order,
            collate_fn=collate,
            num_workers=workers,
            worker_init_fn=partial(_share_cores, workers) if workers else None,
            multiprocessing_context=context if workers else None,
            pin_memory=pin_memory,
            persistent_workers=workers > 0,
        )


def _share_cores(workers: int, worker: int) -> None:
    """Begin a worker: all of them decode at once, on as many cores as there are."""
    share_cores(workers)


class WindowOrder(Sampler):  # type: ignore[misc]
    """The batches of one epoch after another, as the `batch_sampler` of a DataLoader; `epoch` is the next one."""

    def __init__(
        self, sampler: WindowSampler, batch_size: int, shuffle: Shuffle = True, seed: int = 0, drop_last: bool = False
    ) -> None:
        self._sampler = sampler
        self._size = batch_size
        self._shuffle = shuffle
        self._seed = seed
        self._drop_last = drop_last
        self.epoch = 0
        self._order()  # what does not fit is said now

    def _order(self) -> Iterator[Numbers]:
        return self._sampler.order(
            self._size, shuffle=self._shuffle, seed=self._seed, epoch=self.epoch, drop_last=self._drop_last
        )

    def __iter__(self) -> Iterator[list[int]]:
        order = self._order()
        self.epoch += 1  # at the first batch: a DataLoader with workers makes an iterator that it never uses
        for numbers in order:
            yield numbers.tolist()

    def __len__(self) -> int:
        whole, rest = divmod(len(self._sampler), self._size)
        return whole + (rest > 0 and not self._drop_last)


def collate(samples: Sequence[Windows]) -> Windows:
    """Return windows as tensors with an axis more; of a whole batch, the arrays as they were read, not copied."""
    if isinstance(samples, WindowBatch):
        return tensors(samples.windows)
    rows, valid = (
        {key: np.stack([np.asarray(each[key]) for each in part]) for key in part[0]}
        for part in ([sample.rows for sample in samples], [sample.valid for sample in samples])
    )
    return tensors(Windows(rows, valid, np.array([int(sample.index) for sample in samples])))


def tensors(windows: Windows) -> Windows:
    """Return the arrays of windows as tensors that share their memory; text as lists."""
    rows, valid = ({key: _tensor(each) for key, each in part.items()} for part in (windows.rows, windows.valid))
    return Windows(rows, valid, _tensor(windows.index))


def _tensor(values: Array) -> Any:
    array = np.asarray(values)
    if array.dtype == object:
        return array.tolist()
    return torch.from_numpy(array if array.flags.writeable else array.copy())
