"""open_bare: a file that no recording wrote, read in place as one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recorder.bare.cutting import Episodes, cut
from recorder.bare.tables import BareColumn, BareSource, paths_of, space_of
from recorder.catalogue import Catalogue, Place
from recorder.columns import Column, SpanColumn
from recorder.episode import Episode
from recorder.episodes import EpisodeTable
from recorder.errors import DamagedError, FormatError, NotARecordingError
from recorder.leaf import Leaf, text_array
from recorder.recording import Recording
from recorder.schema import Schema, declare
from recorder.shard import Manifest, Shard
from recorder.storages.base import Counts, Reader, Storage
from recorder.storages.table_reading import LazyColumns

HDF5 = (".h5", ".hdf5", ".hdf", ".he5")
"""How the names of HDF5 files end."""


@dataclass(frozen=True)
class BareOptions:
    """How a bare file is opened, so that an episode of it can be opened again in another process."""

    path: Path
    episodes: Episodes = None
    columns: tuple[str, ...] | None = None
    fill: tuple[tuple[str, Any], ...] = ()


def open_bare(
    path: Path | str,
    *,
    episodes: Episodes = None,
    columns: Sequence[str] | None = None,
    fill: Mapping[str, Any] | None = None,
) -> BareRecording:
    """Open a Parquet file, a folder of Parquet files, or an HDF5 file from elsewhere as a recording; it stays as it is.

    Its rows are no steps with a reset before them but just rows: `recording[0].rows` is nested as the names of the
    columns are, where a `/` is. `recording.cut` says by what rule the episodes were cut, `recording.left_out` which
    columns could not be taken, and why.

    Args:
        path: the file or folder.
        episodes: the name of a column that numbers the episodes, the names of flags that are true in the last row of
            one, or the rows of each. Found by itself where the file has groups for episodes, `episode_ends`, or columns
            of the usual names.
        columns: only columns that match one of these names or globs.
        fill: values for nulls, by column. Floats without one become NaN; other nulls are an error.

    Raises:
        NotARecordingError: there is no such file.
        FormatError: it cannot be cut so, or a column is not what it should be.
        MissingExtraError: it is Parquet, and pyarrow is not installed.
    """
    chosen = None if columns is None else tuple(columns)
    told = tuple(episodes) if isinstance(episodes, Sequence) and not isinstance(episodes, str) else episodes
    return BareRecording(BareOptions(Path(path).absolute(), told, chosen, tuple((fill or {}).items())))  # type: ignore[arg-type]


def _source(options: BareOptions) -> BareSource:
    if not options.path.exists():
        raise NotARecordingError(f"{options.path} is not there")
    if options.path.is_file() and not options.path.stat().st_size:
        raise DamagedError(f"{options.path} is empty: it has not a single byte")
    if options.path.suffix.lower() in HDF5:
        from recorder.bare.hdf5 import HDF5Source

        asked = options.episodes if not isinstance(options.episodes, str) else (options.episodes,)
        cutting = [name for name in asked or () if isinstance(name, str)]
        return HDF5Source(options.path, options.columns and (*options.columns, *cutting))
    if options.path.is_dir() or options.path.suffix.lower() in (".parquet", ".pq"):
        from recorder.bare.parquet import ParquetSource

        return ParquetSource(options.path, None, dict(options.fill))
    raise NotARecordingError(
        f"{options.path} is no Parquet or HDF5 file: its name ends in none of .parquet, .h5, .hdf5"
    )


class BareRecording(Recording):
    """The episodes of a bare file. It has all that a `Recording` has, and nothing is ever added to it."""

    def __init__(self, options: BareOptions) -> None:
        self._options = options
        source = _source(options)
        if not source.forms:
            why = f"left out are {source.left_out}" if source.left_out else "there is nothing in it"
            raise FormatError(f"{options.path} has no column of numbers or text: {why}")
        ends, self.cut = cut(source, options.episodes)  # by columns that need not be among those asked for
        source.select(options.columns)
        self.left_out = dict(source.left_out)
        space = space_of(source)
        schema = declare(space)
        names = paths_of(space, source.forms)
        leaves = {path: _leaf(leaf) for path, leaf in schema.leaves.items()}
        shard = BareShard(options.path, {p: BareColumn(leaf, source, names[p]) for p, leaf in leaves.items()}, ends)
        self._catalogue = BareCatalogue(shard, replace(schema, leaves=leaves))
        self._readers = OrderedDict()
        self._pid = -1

    def _episode(self, place: Place) -> Episode:
        shard, schema, i = self._catalogue.shard(place.row), self.schema, place.inside
        columns = self._reader(shard, schema).segment(i)
        return Episode(schema, shard.episodes.note(i), columns, partial(_again, self._options, i), shard.manifest)


def _again(options: BareOptions, i: int) -> Episode:
    return BareRecording(options)[i]


def _leaf(leaf: Leaf) -> Leaf:
    """Return a leaf that says of itself that it was not declared by anyone."""
    return replace(leaf, why=f"{leaf.why}, as the file has it")


class BareFolder:
    """What a recording asks of its folder."""

    def __init__(self, path: Path, schema: Schema) -> None:
        self.path = path
        self.schema = schema
        self.damaged: dict[Path, str] = {}


class BareCatalogue(Catalogue):
    """All episodes of one bare file."""

    def __init__(self, shard: BareShard, schema: Schema) -> None:
        self.folders = [BareFolder(shard.path, schema)]  # type: ignore[list-item]
        self._shard = shard

    def __len__(self) -> int:
        return len(self._shard.episodes)

    def __getstate__(self) -> dict[str, object]:
        return dict(self.__dict__)

    @property
    def rows(self) -> range:
        return range(1)

    def refresh(self) -> int:
        return 0

    def place(self, index: int) -> Place:
        at = index + len(self) * (index < 0)
        if not 0 <= at < len(self):
            raise IndexError(f"episode {index} of a recording of {len(self)} episodes")
        return Place(0, 0, at)

    def position(self, episode_id: str) -> int:
        ids = self._shard.episodes.required("id").tolist()
        if episode_id not in ids:
            raise KeyError(f"no episode has the id {episode_id!r}")
        return int(ids.index(episode_id))

    def shard(self, row: int) -> Shard:
        return self._shard

    def shards(self) -> Iterator[tuple[Shard, NDArray[np.int64]]]:
        yield self._shard, np.arange(len(self))

    @property
    def steps(self) -> int:
        return int(self._shard.episodes.required("transitions").sum())


class BareEpisodes(EpisodeTable):
    """The episodes of a bare file: their numbers of rows, and nothing else is known of them."""

    def __init__(self, path: Path, ends: NDArray[np.int64]) -> None:
        super().__init__(path, len(ends))
        lengths = np.diff(ends, prepend=0)
        self._columns = {
            "id": text_array([f"bare-{i:06d}" for i in range(len(ends))]),
            "moments": lengths,
            "transitions": lengths,
            "end": text_array(["ended"] * len(ends)),
            "return": np.zeros(len(ends)),
            "start": np.zeros(len(ends)),
        }


class BareShard(Shard):
    """A bare file as the only shard of a recording."""

    def __init__(self, path: Path, columns: Mapping[str, Column], ends: NDArray[np.int64]) -> None:
        self.path = path
        self.episodes = BareEpisodes(path, ends)
        self._columns = columns
        rows = int(ends[-1]) if len(ends) else 0
        self.manifest = Manifest(0, len(ends), rows, rows, "", "bare", {})

    def reader(self, storage: Storage, leaves: Sequence[Leaf]) -> Reader:
        return BareReader(self.path, leaves, self.episodes.counts(), self._columns)


class BareReader(Reader):
    """The columns of a bare file."""

    def __init__(self, path: Path, leaves: Sequence[Leaf], counts: Counts, columns: Mapping[str, Column]) -> None:
        super().__init__(path, leaves, counts)
        self._columns = columns

    def segment(self, i: int) -> Mapping[str, Column]:
        span = self.counts.span("transition", i)
        return LazyColumns(self.leaves, lambda path: SpanColumn(self._columns[path], *span))

    def whole(self, path: str) -> Column:
        return self._columns[path]

    def count(self) -> Mapping[str, int]:
        return {path: len(self._columns[path]) for path in self.leaves}

    def close(self) -> None:
        """Give up nothing: no file stays open."""
