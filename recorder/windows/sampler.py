"""WindowSampler: windows of a few steps of one episode, read by number, in batches, in any order, or by weights."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from recorder.asking import names, whole
from recorder.columns import Array
from recorder.errors import WindowError
from recorder.leaf import JSON_TEXT, TEXT
from recorder.training_data import Source
from recorder.windows.offsets import Offsets, key_offsets
from recorder.windows.ordering import Shuffle, cut, file_by_file
from recorder.windows.placing import Numbers, Places, Reach
from recorder.windows.sources import source_of
from recorder.windows.weights import Floats, WeightTree

Pad = Literal["edge", "zero"]


class Windows(NamedTuple):
    """Some windows, or one: rows by key, which of them are real and no padding, and the numbers of the windows.

    Of a batch, `rows[key]` is (windows, length, *shape), `valid[key]` (windows, length), `index` (windows,); of one
    window the first axis is missing. A key with a stack of k has k rows for each: (windows, length, k, *shape).
    """

    rows: dict[str, Any]
    valid: dict[str, Any]
    index: Any

    def at(self, i: int) -> Windows:
        """Return one window of a batch."""
        rows, valid = ({key: values[i] for key, values in each.items()} for each in (self.rows, self.valid))
        return Windows(rows, valid, self.index[i])


class WindowSampler(Sequence[Windows]):
    """Windows of `length` steps of a replay buffer or a recording, none of which crosses an episode.

    `sampler[3]` is one window, `sampler.read([3, 1, 3])` a batch, `sampler.batches(16, shuffle=True)` an epoch, and
    `sampler.sample(16, generator)` draws by weights. A batch is read at once: each key with one reading, each chunk
    decoded once, on all cores. It can be pickled, and used in forked and spawned workers.
    """

    def __init__(
        self,
        source: Source,
        length: int = 1,
        before: int = 0,
        after: int = 0,
        keys: Sequence[str] | None = None,
        first_k: Mapping[str, int] | None = None,
        mask: Sequence[bool] | NDArray[np.bool_] | None = None,
        skip: int = 0,
        *,
        stack: Mapping[str, int] | None = None,
        delta_timestamps: Mapping[str, Sequence[float]] | None = None,
        fps: float | None = None,
        stride: int = 1,
        pad: Pad = "edge",
        weights: Sequence[float] | Floats | None = None,
    ) -> None:
        """Find the windows; nothing is read.

        Args:
            source: a `ReplayBuffer`, a `Recording`, or the path of one.
            length: steps of a window.
            before: how many rows a window may lack at the beginning of an episode: the first begins `before` rows
                before it.
            after: the same at the end.
            keys: which keys are read, all by default; of a recording all leaves but infos, and `next_observation/…`
                where it is named.
            first_k: keys of which only the first k rows of a window are read.
            mask: which episodes, a bool for each.
            skip: so many of the first steps of each episode are left out.
            stack: keys of which each row comes with those before it, k together, the oldest first.
            delta_timestamps: keys of which other rows are read: those at these seconds after the first row of the
                window, negative ones before it.
            fps: steps a second, if the source does not say it; with 1, `delta_timestamps` are steps.
            stride: every so many steps of an episode a window begins.
            pad: rows outside of the episode are its first or last one ("edge"), or zeros ("zero").
            weights: how often each window is drawn; equally by default.

        Raises:
            WindowError: an argument does not fit the source; a key is unknown.
        """
        self._source = source_of(source)
        self.reach = Reach(length, before, after, skip, stride)
        if fps is not None and not (isinstance(fps, int | float | np.number) and 0 < fps < np.inf):
            raise WindowError(f"fps={fps!r}: steps a second, a number above 0")
        if pad not in ("edge", "zero"):
            raise WindowError(f"pad={pad!r}: 'edge' or 'zero'")
        self._pad = pad
        self.mask = _mask(mask, self._source.lengths, self._source.name)
        self._places = Places(self._source.lengths, self.mask, self.reach)
        self.keys = self._source.usual if keys is None else names("keys", keys, error=WindowError)
        self._check_keys()
        asked = Offsets(first_k or {}, stack or {}, delta_timestamps or {})
        self._offsets = key_offsets(self.keys, length, asked, fps or self._source.fps)
        self._tree = None if weights is None else self._new_tree(weights)

    def _check_keys(self) -> None:
        for key in self.keys:
            leaf = self._source.leaves.get(key)
            if leaf is None or leaf.ragged or leaf.dtype == JSON_TEXT:
                raise WindowError(f"{self._source.name} has no rows {key!r}; there are {list(self._source.leaves)}")

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, number: int) -> Windows:  # type: ignore[override]
        """Return one window, negative ones from the end.

        Raises:
            IndexError: there are fewer windows.
        """
        one = self.read([int(number)])
        return one.at(0)

    def read(self, index: Sequence[int] | Numbers) -> Windows:
        """Return windows by their numbers, in any order, some perhaps twice.

        Raises:
            IndexError: there are fewer windows.
            RowError: a leaf of a recording is absent from a step.
        """
        numbers = self._checked(index)
        placed: dict[int, tuple[Numbers, NDArray[np.bool_]]] = {}
        for offsets in self._offsets.values():
            if id(offsets) not in placed:
                placed[id(offsets)] = self._places.rows(numbers, offsets)
        places = {key: placed[id(offsets)] for key, offsets in self._offsets.items()}
        found = self._source.read({key: rows.reshape(-1) for key, (rows, _) in places.items()})
        shaped = {key: self._shaped(key, found[key], *places[key]) for key in self.keys}
        return Windows(shaped, {key: places[key][1] for key in self.keys}, numbers)

    def _shaped(self, key: str, found: Array, rows: Numbers, valid: NDArray[np.bool_]) -> Array:
        shaped = found.reshape(*rows.shape, *found.shape[1:])
        if self._pad == "zero" and not valid.all():
            shaped[~valid] = "" if self._source.leaves[key].dtype == TEXT else 0
        return shaped

    def _checked(self, index: Sequence[int] | Numbers) -> Numbers:
        numbers = np.asarray(index)
        if numbers.ndim != 1 or (numbers.size and numbers.dtype.kind not in "iu"):
            raise IndexError(f"windows are named by whole numbers, got {numbers.dtype} {numbers.shape}")
        numbers = numbers.astype(np.int64)
        numbers = np.where(numbers < 0, numbers + len(self), numbers)
        if numbers.size and not (numbers.min() >= 0 and numbers.max() < len(self)):
            raise IndexError(f"a window beyond the {len(self):,} of {self._source.name}")
        return numbers

    def places(self, index: Sequence[int] | Numbers) -> tuple[Numbers, Numbers]:
        """Return for windows their episodes, and the rows of these at which they begin, negative before the first."""
        return self._places.find(self._checked(index))

    @property
    def weights(self) -> Floats:
        """How often each window is drawn, beside the others (windows,)."""
        return np.ones(len(self)) if self._tree is None else self._tree.weights

    def set_weights(self, weights: Sequence[float] | Floats, index: Sequence[int] | Numbers | None = None) -> None:
        """Change the weights of all windows, or of some: priorities, after each step of training.

        Raises:
            WindowError: a weight is negative or not finite, or there are not as many as windows.
        """
        if index is None:
            self._tree = self._new_tree(weights)
            return
        if self._tree is None:
            self._tree = self._new_tree(np.ones(len(self)))
        numbers, given = self._checked(index), np.asarray(weights, np.float64)
        if given.shape != numbers.shape:
            raise WindowError(f"weights {given.shape} for {len(numbers)} windows")
        self._tree.update(numbers, given)

    def _new_tree(self, weights: Sequence[float] | Floats) -> WeightTree:
        given = np.asarray(weights, np.float64)
        if given.shape != (len(self),):
            raise WindowError(f"weights {given.shape} for {len(self):,} windows; there must be one for each")
        return WeightTree(given)

    def probabilities(self, index: Sequence[int] | Numbers) -> Floats:
        """Return how probable it is for each of some windows to be drawn next."""
        numbers = self._checked(index)
        if self._tree is None:
            return np.full(len(numbers), 1 / max(len(self), 1))
        return self._tree.of(numbers) / self._tree.total

    def draw(self, count: int, generator: np.random.Generator) -> Numbers:
        """Return the numbers of so many windows, each drawn by the weights, independent of the others."""
        whole("count", count, 0, error=WindowError)
        if not len(self):
            raise WindowError(f"{self._source.name} has no window of {self.reach.length} steps")
        return generator.integers(len(self), size=count) if self._tree is None else self._tree.draw(count, generator)

    def sample(self, count: int, generator: np.random.Generator) -> Windows:
        """Return so many windows, drawn by the weights."""
        return self.read(self.draw(count, generator))

    def order(
        self, size: int, *, shuffle: Shuffle = False, seed: int = 0, epoch: int = 0, drop_last: bool = False
    ) -> Iterator[Numbers]:
        """Yield the numbers of all windows in batches; which they are depends on the arguments only.

        Args:
            size: windows of a batch; the last may have fewer.
            shuffle: `True` for a random order, "shards" for one in which what follows each other lies in a few files,
                which is faster where these are not in memory, "weights" to draw as many as there are windows by
                their weights, those at the time.
            seed: another seed gives another order.
            epoch: another epoch too.
            drop_last: leave out the last batch where it has fewer windows.
        """
        for name, value, least in (("size", size, 1), ("seed", seed, 0), ("epoch", epoch, 0)):
            whole(name, value, least, error=WindowError)
        if shuffle not in (True, False, "shards", "weights"):
            raise WindowError(f"shuffle={shuffle!r}: True, False, 'shards' or 'weights'")
        return cut(self._runs(size, shuffle, np.random.default_rng([seed, epoch])), size, drop_last)

    def _runs(self, size: int, shuffle: Shuffle, generator: np.random.Generator) -> Iterator[Numbers]:
        if not len(self):
            return
        if shuffle == "shards":
            yield from file_by_file(self._places.beginning_before(self._source.file_ends(self.keys)), generator)
        elif shuffle == "weights":
            for first in range(0, len(self), size):
                yield self.draw(min(size, len(self) - first), generator)
        else:
            yield generator.permutation(len(self)) if shuffle else np.arange(len(self))

    def batches(
        self,
        size: int,
        *,
        shuffle: Shuffle = False,
        seed: int = 0,
        epoch: int = 0,
        drop_last: bool = False,
        ahead: int = 1,
    ) -> Iterator[Windows]:
        """Yield all windows in batches, of which `ahead` are read in the background.

        The other arguments are those of `order`.
        """
        order = self.order(size, shuffle=shuffle, seed=seed, epoch=epoch, drop_last=drop_last)
        return self._ahead(order, ahead) if whole("ahead", ahead, 0, error=WindowError) else map(self.read, order)

    def _ahead(self, order: Iterator[Numbers], ahead: int) -> Iterator[Windows]:
        with ThreadPoolExecutor(1, "recorder-windows") as thread:
            waiting: deque[Future[Windows]] = deque()
            for numbers in order:
                waiting.append(thread.submit(self.read, numbers))
                if len(waiting) > ahead:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()

    def __repr__(self) -> str:
        return f"<WindowSampler {self._source.name}: {len(self):,} windows of {self.reach.length} steps, {self.keys}>"


def _mask(mask: Sequence[bool] | NDArray[np.bool_] | None, lengths: Numbers, name: str) -> NDArray[np.bool_]:
    if mask is None:
        return np.ones(len(lengths), bool)
    given = np.asarray(mask)
    if given.dtype != bool or given.shape != lengths.shape:
        raise WindowError(f"mask is {given.dtype} {given.shape}; {name} has {len(lengths)} episodes, a bool for each")
    return given.copy()
