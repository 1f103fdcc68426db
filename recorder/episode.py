"""An episode as it is read: whole columns nested as the spaces nest, or step by step."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from recorder.columns import Column
from recorder.episodes import EpisodeNote
from recorder.errors import EpisodeError
from recorder.infos import nest
from recorder.leaf import JSON
from recorder.schema import ROW, Schema
from recorder.shard import Manifest
from recorder.spaces.structure import Node

BLOCK = 64
"""Rows that are read at once when an episode is gone through step by step."""


class Step(NamedTuple):
    """One call of `step`, with its number from 1: what was seen before it, what was done, and what came back."""

    number: int
    observation: Any
    action: Any
    reward: float
    terminated: bool
    truncated: bool
    next_observation: Any
    info: dict[str, Any]


class Episode:
    """One recorded episode of T steps, read on demand.

    `observations` have T+1 rows, the first from `reset`; `actions`, `rewards`, `terminations` and `truncations` have T.
    `columns["observation/camera"][10:20]` reads only those rows. Iterating yields one `Step` for each call of `step`.
    """

    def __init__(
        self,
        schema: Schema,
        note: EpisodeNote,
        columns: Mapping[str, Column],
        again: Callable[[], Episode] | None = None,
        manifest: Manifest | None = None,
    ) -> None:
        """Take an episode that lies open; `again` opens it in another process, the `manifest` is of its shard."""
        self._schema = schema
        self._note = note
        self._again = again
        self._manifest = manifest
        self.columns = columns

    def __reduce__(self) -> tuple[Callable[[], Episode], tuple[()]]:
        if self._again is None:
            raise EpisodeError(f"episode {self.id} is not on disk yet, so it cannot be copied or pickled")
        return self._again, ()

    @property
    def id(self) -> str:
        """The name of this episode, `<writer>-<counter>`, which never changes."""
        return self._note.id

    @property
    def seed(self) -> int | None:
        """The seed that was effective at the reset, or None where the generator's state was kept instead."""
        return self._note.seed

    @property
    def options(self) -> Mapping[str, JSON] | None:
        """The options that were given to `reset`."""
        return self._note.options

    @property
    def generator(self) -> Mapping[str, Any] | None:
        """The state of `np_random.bit_generator` before a reset without a seed."""
        return self._note.generator

    @property
    def start(self) -> float:
        """The wall clock at the reset, in seconds since 1970."""
        return self._note.start

    @property
    def end(self) -> str:
        """Why the episode ended: `terminated`, `truncated`, `reset`, `exception`, …."""
        return self._note.end

    @property
    def return_(self) -> float:
        """The sum of the rewards."""
        return self._note.total

    @property
    def labels(self) -> Mapping[str, JSON]:
        """What `label` said of the episode."""
        return self._note.labels

    @property
    def refused(self) -> Sequence[int]:
        """The steps that did not fit and are missing, counted from 1 over all calls of `step`."""
        return self._note.refused

    @property
    def schema(self) -> Schema:
        """The spaces, leaves and storage of its recording."""
        return self._schema

    @property
    def environment(self) -> Mapping[str, JSON] | None:
        """The spec of the environment that was recorded, as JSON, or None where it had none."""
        return None if self._manifest is None else self._manifest.environment

    @property
    def versions(self) -> Mapping[str, str]:
        """The versions of Python and of the packages that it was made with."""
        return {} if self._manifest is None else self._manifest.versions

    def __len__(self) -> int:
        """The number of steps; of a recording that is no series of steps, the number of rows."""
        return self._note.transitions

    @property
    def observations(self) -> Any:
        """The observations (T+1, …), nested as the space nests."""
        return self._nested("observation")

    @property
    def actions(self) -> Any:
        """The actions (T, …), nested as the space nests."""
        return self._nested("action")

    @property
    def rewards(self) -> NDArray[np.float64]:
        """The rewards (T,)."""
        return np.asarray(self.columns["reward"][:])

    @property
    def terminations(self) -> NDArray[np.bool_]:
        """Whether each step ended in a terminal state (T,)."""
        return np.asarray(self.columns["terminated"][:])

    @property
    def truncations(self) -> NDArray[np.bool_]:
        """Whether each step was the last by a limit (T,)."""
        return np.asarray(self.columns["truncated"][:])

    @property
    def times(self) -> NDArray[np.float64]:
        """Seconds since the reset at which each observation was there (T+1,)."""
        return np.asarray(self.columns["time"][:])

    @property
    def infos(self) -> dict[str, Any]:
        """The infos by key, nested as they were: arrays (T+1, …), masked where a row lacked the key."""
        return nest({path: self.columns[path][:] for path in self._info_paths()})

    @property
    def renders(self) -> Any:
        """The rendered frames (T+1, …), if they were recorded."""
        return self._nested("render")

    @property
    def states(self) -> Any:
        """The states of the simulator (T+1, …), if they were recorded."""
        return self._nested("state")

    @property
    def extras(self) -> Any:
        """What `record` added to each step (T, …)."""
        return self._nested("extra")

    @property
    def rows(self) -> Any:
        """All rows of a recording that is no series of steps (N, …), nested as the space nests."""
        return self._nested(ROW)

    def _info_paths(self) -> list[str]:
        return [path for path in self.columns if path.startswith("info/")]

    def _node(self, name: str) -> Node:
        if name not in self._schema.nodes:
            raise EpisodeError(f"this recording has no {name}; it has {sorted(self._schema.nodes)}")
        node = self._schema.nodes[name]
        if self._manifest is not None and (gone := {leaf.path for leaf in node.leaves} & set(self._manifest.absent)):
            raise EpisodeError(
                f"episode {self.id} lacks {sorted(gone)}, which an edit left out; what there is of it is in "
                f"episode.columns: {list(self.columns)}"
            )
        return node

    def _nested(self, name: str) -> Any:
        node = self._node(name)
        return node.nest(self.columns[leaf.path][:] for leaf in node.leaves)

    def __iter__(self) -> Iterator[Step]:
        for first in range(0, len(self), BLOCK):
            yield from self._steps(first, min(first + BLOCK, len(self)))

    def __getitem__(self, k: int) -> Step:
        """Return step `k`, counted from 1 as the calls of `step` are; negative ones from the end."""
        at = k - 1 if k > 0 else k + len(self)
        if k == 0 or not 0 <= at < len(self):
            raise IndexError(f"step {k} of an episode of {len(self)} steps, which are counted from 1")
        return next(self._steps(at, at + 1))

    def _steps(self, start: int, stop: int) -> Iterator[Step]:
        """Yield the steps of the transitions `[start, stop)`."""
        observations = self.values("observation", start, stop + 1)
        actions = self.values("action", start, stop)
        rewards, terminations, truncations = (
            self.columns[path][start:stop].tolist() for path in ("reward", "terminated", "truncated")
        )
        infos = self.info_values(start + 1, stop + 1)
        for i in range(stop - start):
            yield Step(
                start + i + 1,
                observations[i],
                actions[i],
                rewards[i],
                terminations[i],
                truncations[i],
                observations[i + 1],
                infos[i],
            )

    def values(self, name: str, start: int, stop: int) -> list[Any]:
        """Return the values of one space, such as `action`, in the rows `[start, stop)`, as the space nests."""
        node = self._node(name)
        columns = [self.columns[leaf.path][start:stop] for leaf in node.leaves]
        if not columns:
            return [node.unflatten(iter(())) for _ in range(start, stop)]
        return [node.unflatten(iter(row)) for row in zip(*columns, strict=True)]

    def info_values(self, start: int, stop: int) -> list[dict[str, Any]]:
        """Return the infos of some rows, each with the keys that it had."""
        columns = {path: self.columns[path][start:stop] for path in self._info_paths()}
        masks = {path: np.ma.getmaskarray(column).reshape(len(column), -1) for path, column in columns.items()}
        return [
            nest({path: column[i] for path, column in columns.items() if not masks[path][i].any()})
            for i in range(stop - start)
        ]

    def __repr__(self) -> str:
        return f"<Episode {self.id}: {len(self)} steps, {self.end}, return {self.return_:g}>"

    def _repr_html_(self) -> str:
        """Return the episode as a table for notebooks."""
        facts = {"steps": len(self), "end": self.end, "return": f"{self.return_:g}", "seed": self.seed}
        facts |= {f"label {key}": value for key, value in self.labels.items()}
        facts |= {path: f"{column.shape} {column.leaf.dtype}" for path, column in self.columns.items()}
        rows = "".join(
            f"<tr><th>{html.escape(str(key))}</th><td>{html.escape(str(value))}</td></tr>"
            for key, value in facts.items()
        )
        return f"<table><caption>Episode {html.escape(self.id)}</caption>{rows}</table>"
