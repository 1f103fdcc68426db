"""Recording: reads what was recorded, from one folder or several, while others may still be writing."""

from __future__ import annotations

import html
import json
import os
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, overload

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Space

from recorder.columns import Array
from recorder.episode import Episode
from recorder.episodes import EpisodeNote
from recorder.errors import RecorderError
from recorder.leaf import JSON, Leaf, text_array
from recorder.rebuilding import MakeEnv, environment_of
from recorder.schema import ROW, Schema, compare, read_schema
from recorder.shard import NAME, Manifest, Shard
from recorder.spaces.env_spec import spec_from_json
from recorder.storages.base import Reader

OPEN_READERS = 32
"""Shards whose files are open at once."""


class Source:
    """One folder of a recording: its schema, and the shards that count."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.schema = read_schema(path)

    def shard_names(self) -> list[str]:
        """Return the names of all shards that are there now, in their order."""
        folder = self.path / "shards"
        return sorted(name for name in os.listdir(folder) if NAME.fullmatch(name)) if folder.is_dir() else []  # noqa: PTH208


class Recording(Sequence[Episode]):
    """The episodes of one recording folder, or of several with the same spaces.

    `len`, index, slice and iteration go over episodes in the order in which this reader first saw them. Nothing is
    changed by reading, folders may be read-only, and other processes may record at the same time: `refresh()`
    appends what they have committed since.
    """

    def __init__(
        self, path: Path | str | Sequence[Path | str], *, damaged: Literal["raise", "skip"] = "raise"
    ) -> None:
        """Open recordings.

        Args:
            path: the folder of a recording, or several.
            damaged: what to do about a shard of which not even the list of episodes can be read: raise, or skip it
                and note it in `self.damaged`. An episode whose rows are damaged raises when they are asked for.

        Raises:
            NotARecordingError: a folder holds no recording.
            FormatError: a recording is of a newer format, or says what the format does not allow.
            DamagedError: a shard is damaged.
            MismatchError: several folders have different spaces.
        """
        paths = [path] if isinstance(path, Path | str) else list(path)
        if not paths:
            raise ValueError("Recording([]) has no folder to read")
        self._sources = [Source(Path(item).absolute()) for item in paths]
        for source in self._sources[1:]:
            compare(source.path, source.schema, self._sources[0].schema, storage=False)
        self.damaged: dict[Path, str] = {}
        self._skip_damaged = damaged == "skip"
        self._seen: dict[tuple[int, str], Shard] = {}
        self._places: list[tuple[Shard, Schema, Array]] = []
        self._ends: list[int] = []
        self._readers: OrderedDict[str, Reader] = OrderedDict()
        self._pid = os.getpid()
        self.refresh()

    def refresh(self) -> int:
        """Look for episodes that were committed since, append them, and return how many are new."""
        before = len(self)
        fresh: list[tuple[Source, Shard]] = []
        for k, source in enumerate(self._sources):
            for name in source.shard_names():
                if (k, name) not in self._seen and (shard := self._open_shard(source, name)) is not None:
                    self._seen[k, name] = shard
                    fresh.append((source, shard))
        replaced = {name for shard in self._seen.values() for name in shard.manifest.replaces}
        dropped = {name for shard in self._seen.values() for name in shard.manifest.dropped}
        for source, shard in fresh:
            if shard.name in replaced:
                continue
            kept = np.arange(shard.manifest.episodes)
            if dropped:
                kept = kept[~np.isin(shard.episodes.required("id").astype(str), list(dropped))]
            self._places.append((shard, source.schema, kept))
            self._ends.append((self._ends[-1] if self._ends else 0) + len(kept))
        return len(self) - before

    def _open_shard(self, source: Source, name: str) -> Shard | None:
        """Return a shard, or None if it is damaged and is to be skipped."""
        path = source.path / "shards" / name
        try:
            return Shard(path)
        except RecorderError as error:
            if not self._skip_damaged:
                raise type(error)(f"{error}; Recording(path, damaged='skip') reads all other shards") from error
            self.damaged[path] = str(error)
            return None

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, index: int | str) -> Episode: ...
    @overload
    def __getitem__(self, index: slice) -> list[Episode]: ...
    def __getitem__(self, index: int | str | slice) -> Episode | list[Episode]:
        """Return the episode at a position or with an id, or those of a slice.

        Raises:
            IndexError: the recording has fewer episodes.
            KeyError: no episode has that id.
        """
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if isinstance(index, str):
            return self[self._position(index)]
        return self._episode(*self._place(int(index)))

    def note(self, index: int) -> EpisodeNote:
        """Return what is known of the episode at a position besides its rows, without opening the files of those.

        Raises:
            IndexError: the recording has fewer episodes.
        """
        shard, _, i = self._place(index)
        return shard.episodes.note(i)

    def _place(self, index: int) -> tuple[Shard, Schema, int]:
        """Return where the episode at a position is: its shard, and its place there."""
        at = index + len(self) * (index < 0)
        if not 0 <= at < len(self):
            raise IndexError(f"episode {index} of a recording of {len(self)} episodes")
        place = bisect_right(self._ends, at)
        shard, schema, kept = self._places[place]
        return shard, schema, int(kept[at - (self._ends[place - 1] if place else 0)])

    def _position(self, episode_id: str) -> int:
        for place, (shard, _, kept) in enumerate(self._places):
            found = np.flatnonzero(shard.episodes.required("id")[kept] == episode_id)
            if len(found):
                return int(found[0]) + (self._ends[place - 1] if place else 0)
        raise KeyError(f"no episode has the id {episode_id!r}")

    def _episode(self, shard: Shard, schema: Schema, i: int) -> Episode:
        try:
            columns = self._reader(shard, schema).segment(i)
        except RecorderError as error:
            raise type(error)(f"episode {shard.episodes.required('id')[i]}: {error}") from error
        return Episode(
            schema, shard.episodes.note(i), columns, partial(open_episode, shard.path, schema, i), shard.manifest
        )

    def _reader(self, shard: Shard, schema: Schema) -> Reader:
        """Return the open reader of a shard; those that were not used for longest are given up."""
        if os.getpid() != self._pid:
            self._readers, self._pid = OrderedDict(), os.getpid()
        key = str(shard.path)
        if key not in self._readers:
            self._readers[key] = open_reader(shard, schema)
            if len(self._readers) > OPEN_READERS:
                self._readers.popitem(last=False)  # its files stay open as long as an episode of it is held
        self._readers.move_to_end(key)
        return self._readers[key]

    def filter(self, keep: Callable[[Episode], object]) -> list[Episode]:
        """Return the episodes for which `keep` is true, such as `lambda episode: episode.return_ > 200`."""
        return [episode for episode in self if keep(episode)]

    def table(self) -> dict[str, Array]:
        """Return the episodes as columns: id, steps, end, return, start, seed and labels, one row an episode."""
        names = {"id": "id", "steps": "transitions", "end": "end", "return": "return", "start": "start"}
        columns = {
            name: np.concatenate([shard.episodes.required(key)[kept] for shard, _, kept in self._places])
            if self._places
            else np.empty(0)
            for name, key in names.items()
        }
        columns["seed"] = text_array([int(text) if text else None for text in self._texts("seed")])
        # One document of all: a call of the decoder for each is ten times slower.
        columns["labels"] = text_array(json.loads(f"[{','.join(text or '{}' for text in self._texts('labels'))}]"))
        return columns

    def _texts(self, name: str) -> Iterator[str]:
        """Yield a column of texts, which a shard may lack where all of it are empty."""
        for shard, _, kept in self._places:
            texts = shard.episodes.column(name)
            yield from ("" for _ in kept) if texts is None else texts[kept]

    @property
    def schema(self) -> Schema:
        """The spaces, leaves and storage that all episodes have in common."""
        return self._sources[0].schema

    @property
    def paths(self) -> list[Path]:
        """The folders that are read."""
        return [source.path for source in self._sources]

    @property
    def shards(self) -> list[Shard]:
        """The shards that count."""
        return [shard for shard, _, kept in self._places if len(kept)]

    @property
    def leaves(self) -> dict[str, Leaf]:
        """The leaves of all episodes by path; those of infos differ from shard to shard."""
        found = dict(self.schema.leaves)
        for shard in self.shards:
            found.update((leaf.path, leaf) for leaf in shard.leaves)
        return found

    @property
    def steps(self) -> int:
        """The steps of all episodes."""
        return sum(int(shard.episodes.required("transitions")[kept].sum()) for shard, _, kept in self._places)

    @property
    def observation_space(self) -> Space[Any]:
        """The observation space, as it was recorded."""
        return self._space("observation")

    @property
    def action_space(self) -> Space[Any]:
        """The action space, as it was recorded."""
        return self._space("action")

    @property
    def space(self) -> Space[Any]:
        """The space of a row, in a recording that is no series of steps."""
        return self._space(ROW)

    def _space(self, name: str) -> Space[Any]:
        if name not in self.schema.spaces:
            raise KeyError(f"this recording has the spaces {list(self.schema.spaces)}, not {name!r}")
        return self.schema.spaces[name]

    def _latest(self) -> Manifest | None:
        return self._places[-1][0].manifest if self._places else None

    @property
    def metadata(self) -> Mapping[str, JSON]:
        """What the newest shard says of all episodes: name, author, licence, …."""
        latest = self._latest()
        return latest.metadata if latest is not None else {}

    @property
    def fps(self) -> float | None:
        """The frame rate that the environment names."""
        latest = self._latest()
        return latest.fps if latest is not None else None

    @property
    def spec(self) -> gym.envs.registration.EnvSpec | None:
        """The spec of the environment that was recorded, without the Recorder.

        Raises:
            SpaceError: a part of it cannot be rebuilt from a file; the message names it.
        """
        latest = self._latest()
        return None if latest is None or latest.environment is None else spec_from_json(latest.environment)

    def make_env(
        self, make_env: MakeEnv | str | None = None, *, skip_unrebuildable: bool = False, **kwargs: Any
    ) -> gym.Env[Any, Any]:
        """Make the environment that was recorded, wrappers included.

        This imports and runs the environment that the recording names, so it should be one that you trust.

        Args:
            make_env: a function, or its name `module:function`, that makes it, for one that is not in the registry.
            skip_unrebuildable: leave out wrappers of which the recording has only names: a function that was passed to
                `TransformObservation`, say. Which these are, the error says that is raised without it.
            kwargs: replace arguments of the environment, such as `render_mode="human"`.

        Raises:
            FormatError: the recording names no environment.
            SpaceError: a wrapper cannot be rebuilt; the message names it.
            RecorderError: it cannot be made here, because a package is missing, for example.
        """
        latest = self._latest()
        environment = None if latest is None else latest.environment
        return environment_of(
            environment, str(self.paths[0]), make_env, skip_unrebuildable=skip_unrebuildable, **kwargs
        )

    def close(self) -> None:
        """Give up all open files; reading opens them again."""
        while self._readers:
            self._readers.popitem()[1].close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_readers": OrderedDict()}

    def __iter__(self) -> Iterator[Episode]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        places = ", ".join(str(path) for path in self.paths)
        return f"<Recording {places}: {len(self):,} episodes, {self.steps:,} steps>"

    def _repr_html_(self) -> str:
        """Return the recording as a table for notebooks."""
        leaves = "".join(
            f"<tr><td>{html.escape(path)}</td><td>{leaf.shape}</td><td>{leaf.dtype}</td><td>{html.escape(leaf.kind)}</td></tr>"
            for path, leaf in self.leaves.items()
        )
        heads = "<tr><th>leaf</th><th>shape</th><th>dtype</th><th>kind</th></tr>"
        return f"<p>{html.escape(repr(self))}</p><table>{heads}{leaves}</table>"


def open_reader(shard: Shard, schema: Schema) -> Reader:
    """Return a reader of all leaves of a shard."""
    return shard.reader(schema.storage, list(schema.leaves.values()))


def open_episode(path: Path, schema: Schema, i: int) -> Episode:
    """Return episode `i` of a shard, as an `Episode` opens itself where it was pickled to."""
    shard = Shard(path)
    columns = open_reader(shard, schema).segment(i)
    return Episode(schema, shard.episodes.note(i), columns, partial(open_episode, path, schema, i), shard.manifest)
