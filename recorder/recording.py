"""Recording: reads what was recorded, from one folder or several, while others may still be writing."""

from __future__ import annotations

import html
import json
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, overload

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from recorder.catalogue import Catalogue, Place
from recorder.columns import Array
from recorder.episode import Episode
from recorder.episodes import EpisodeNote
from recorder.errors import RecorderError
from recorder.leaf import JSON, Leaf, text_array
from recorder.memory import NO_FOLDER, MemoryRecording
from recorder.rebuilding import MakeEnv, environment_of
from recorder.recorded_spaces import RecordedSpaces
from recorder.schema import Schema, compare
from recorder.shard import Manifest, Shard
from recorder.spaces.env_spec import spec_from_json
from recorder.storages.base import Reader

OPEN_READERS = 32
"""Shards whose files are open at once."""


class Recording(RecordedSpaces, Sequence[Episode]):
    """The episodes of one recording folder, or of several with the same spaces.

    `len`, index, slice and iteration go over episodes in the order in which this reader first saw them. Nothing is
    changed by reading, folders may be read-only, and other processes may record at the same time: `refresh()`
    appends what they have committed since.
    """

    def __init__(self, path: Path | str | Sequence[Path | str], *, damaged: Literal["raise", "skip"] = "raise") -> None:
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
            TypeError: it is not the path of a folder.
        """
        if isinstance(path, MemoryRecording):
            raise TypeError(NO_FOLDER)
        paths = [path] if isinstance(path, Path | str) else list(path)
        if not paths:
            raise ValueError("Recording([]) has no folder to read")
        self._catalogue = Catalogue([Path(item).absolute() for item in paths], skip_damaged=damaged == "skip")
        first = self._catalogue.folders[0]
        for folder in self._catalogue.folders[1:]:
            compare(folder.path, folder.schema, first.schema, storage=False)
        self._readers: OrderedDict[str, Reader] = OrderedDict()
        self._pid = os.getpid()
        self.refresh()

    @property
    def damaged(self) -> dict[Path, str]:
        """The shards that were skipped because they are damaged, and why."""
        return {path: error for folder in self._catalogue.folders for path, error in folder.damaged.items()}

    def refresh(self) -> int:
        """Look for episodes that were committed since, append them, and return how many are new.

        Episodes that were rewritten since have their new rows, and those that were deleted are gone, so positions may
        change; ids never do.
        """
        return self._catalogue.refresh()

    def __len__(self) -> int:
        return len(self._catalogue)

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
            return self[self._catalogue.position(index)]
        return self._episode(self._catalogue.place(int(index)))

    def note(self, index: int) -> EpisodeNote:
        """Return what is known of the episode at a position besides its rows, without opening the files of those.

        Raises:
            IndexError: the recording has fewer episodes.
        """
        place = self._catalogue.place(index)
        return self._catalogue.shard(place.row).episodes.note(place.inside)

    def _episode(self, place: Place) -> Episode:
        shard, schema, i = self._catalogue.shard(place.row), self._catalogue.folders[place.folder].schema, place.inside
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
        parts: dict[str, list[Array]] = {name: [] for name in names}
        texts: dict[str, list[str]] = {"seed": [], "labels": []}
        for shard, kept in self._catalogue.shards():
            for name, key in names.items():
                parts[name].append(shard.episodes.required(key)[kept])
            for name, column in texts.items():  # a shard lacks one of which all texts are empty
                found = shard.episodes.column(name)
                column.extend([""] * len(kept) if found is None else found[kept])
        columns = {name: np.concatenate(part) if part else np.empty(0) for name, part in parts.items()}
        columns["seed"] = text_array([int(text) if text else None for text in texts["seed"]])
        # One document of all: a call of the decoder for each is ten times slower.
        columns["labels"] = text_array(json.loads(f"[{','.join(text or '{}' for text in texts['labels'])}]"))
        return columns

    @property
    def schema(self) -> Schema:
        """The spaces, leaves and storage that all episodes have in common."""
        return self._catalogue.folders[0].schema

    @property
    def paths(self) -> list[Path]:
        """The folders that are read."""
        return [folder.path for folder in self._catalogue.folders]

    @property
    def shards(self) -> list[Shard]:
        """The shards that count."""
        return [shard for shard, _ in self._catalogue.shards()]

    @property
    def shard_ends(self) -> NDArray[np.int64]:
        """The position after the last episode of each shard."""
        return np.cumsum([len(kept) for _, kept in self._catalogue.shards()], dtype=np.int64)

    @property
    def leaves(self) -> dict[str, Leaf]:
        """The leaves of all episodes by path; those of infos differ from shard to shard."""
        found = dict(self.schema.leaves)
        for shard, _ in self._catalogue.shards():
            found.update((leaf.path, leaf) for leaf in shard.leaves)
        return found

    @property
    def steps(self) -> int:
        """The steps of all episodes."""
        return self._catalogue.steps

    def _latest(self) -> Manifest | None:
        rows = self._catalogue.rows
        return self._catalogue.shard(rows[-1]).manifest if rows else None

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
