"""The draft of a recording: its schema while first rows, or the recording that is there, still decide what it is."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Space

from recorder.leaf import JSON, Leaf
from recorder.routing.layouts import extend, layout, settle
from recorder.routing.rules import check_infos
from recorder.schema import FLAGS, SEEN, Schema, StepSpace, compare, declare, without_beside
from recorder.spaces.structure import Node
from recorder.storages.base import Storage
from recorder.storages.dict import DictStorage
from recorder.writing.opening import annotated, annotated_render

FirstValues = Iterable[tuple[Leaf, Any]]
"""The leaves of a structure as the first value of it decides them, and the value of each."""


class Draft:
    """The schema as it is known by now.

    A leaf's dtype is that of its first row, and the first row may move a leaf to an exact storage; where the folder
    holds a recording, that decides.
    """

    def __init__(
        self,
        path: Path,
        space: StepSpace | Space[Any],
        storage: Storage | None,
        *,
        metadata: Mapping[str, Mapping[str, JSON]],
        excluded: Callable[[str], bool],
        fps: float | None,
        in_memory: bool,
    ) -> None:
        """Take what a user wants: `storage` is a layout, one storage for all, or None for the default layout."""
        self._path = path
        self._metadata = dict(metadata)
        self._storage = storage
        self._excluded = excluded
        self._fps = fps
        self._in_memory = in_memory
        self._settled = {"reward", "terminated", "truncated", "time"}
        self._undecided = {"observation", *SEEN}
        self.space = annotated(space, metadata)
        self.schema = declare(self.space, excluded)

    @property
    def leaves(self) -> list[Leaf]:
        """The leaves of a row, with the dtypes that are known by now."""
        return list(self.schema.leaves.values())

    @property
    def settled(self) -> bool:
        """Whether every leaf has had its first row."""
        return self._settled >= set(self.schema.nodes)

    @property
    def unseen(self) -> list[str]:
        """The structures whose space the first value of them decides, and which have had none."""
        return self.space.unseen if isinstance(self.space, StepSpace) else []

    def restart(self) -> None:
        """Forget what the first rows of moments decided, as long as nothing is on disk."""
        self._settled -= self._undecided

    def meet(self, theirs: Schema | None) -> None:
        """Lay out the leaves; take over the schema of the recording that is there, if it matches."""
        if theirs is not None:
            for name in self.unseen:
                self._declare(name, theirs.spaces.get(name, True))
        self.schema = replace(self.schema, storage=self._layout())
        if theirs is not None:
            self.follow(theirs)
            self._settled, self._undecided = set(self.schema.nodes), set()
        if not self._in_memory:
            self.schema.storage.check(self.leaves)
            if self.schema.rows == "episode":
                check_infos(self.schema.storage.default)

    def follow(self, theirs: Schema, *, dtypes: bool = False) -> None:
        """Take over dtypes and storage of a recording that matches; with `dtypes`, those have to match as well.

        A first row may have moved leaves there to other storages than the layout named; so it may have done here.
        """
        theirs = without_beside(theirs)
        compare(self._path, theirs, self.schema, storage=False, dtypes=dtypes)
        if self._storage is not None:
            leaves = list(theirs.leaves.values())
            drawn = {leaf.path: np.zeros(leaf.shape, np.uint8) for leaf in leaves if theirs.storage.exact(leaf)}
            moved = settle(self._layout(), leaves, drawn)
            compare(self._path, theirs, replace(self.schema, storage=moved))
        self.schema = replace(self.schema, leaves=theirs.leaves, storage=theirs.storage)

    def fresh(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return those of some values that are the first of their structures."""
        return {name: values[name] for name in values.keys() & self.schema.nodes.keys() - self._settled}

    def settle(self, names: Collection[str], first: FirstValues) -> list[Leaf]:
        """Let first values decide the leaves of structures; return the leaves."""
        found: dict[str, Leaf] = {}
        first_rows: dict[str, np.ndarray[Any, Any]] = {}
        for leaf, part in first:
            found[leaf.path] = leaf
            if leaf.fixed:
                first_rows[leaf.path] = leaf.fit(part)
        leaves = {**self.schema.leaves, **found}
        storage = settle(self.schema.storage, list(leaves.values()), first_rows)
        self.schema = replace(self.schema, leaves=leaves, storage=storage)
        self._settled.update(names)
        return list(found.values())

    def see_render(self, frame: Any) -> None:
        """Let the first rendered frame decide the space of all."""
        picture = np.asarray(frame)
        pixels = picture.dtype == np.uint8
        space = Box(0, 255, picture.shape, np.uint8) if pixels else Box(-np.inf, np.inf, picture.shape)
        self.see("render", annotated_render(space, self._metadata))

    def see(self, name: str, space: Space[Any]) -> None:
        """Let a structure have this space."""
        self._declare(name, space)
        self.schema = replace(self.schema, storage=self._layout())
        self.schema.storage.check(self.leaves)

    def _declare(self, name: str, space: Space[Any] | bool) -> None:
        assert isinstance(self.space, StepSpace)
        self.space = self.space.seen(name, space)
        self.schema = declare(self.space, self._excluded)

    def _layout(self) -> DictStorage:
        """Return which storage keeps which declared leaf."""
        if self._in_memory:
            return DictStorage()
        if self._storage is None:
            return layout(self.leaves, fps=self._fps)
        if not isinstance(self._storage, DictStorage):
            return self._for_all(self._storage)
        ours = [leaf for leaf in self.leaves if leaf.path.split("/")[0] in ("extra", *SEEN)]
        given = self._storage
        if unseen := self.unseen:
            named = {path: storage for path, storage in given.storages.items() if path.split("/")[0] not in unseen}
            given = replace(given, storages=named)
        return extend(given, ours, self._fps)

    def _for_all(self, storage: Storage) -> DictStorage:
        """Return one storage for all declared leaves; where it is no table, infos go to one."""
        if self.schema.rows == "single" or storage.table:
            return DictStorage({}, storage)
        return DictStorage(dict.fromkeys(self.schema.leaves, storage))


def first_values(node: Node, value: Any) -> FirstValues:
    """Yield the leaves of a structure, with the dtypes that its first value decides, and their values."""
    for leaf, part in zip(node.leaves, node.flatten(value), strict=True):
        decided = leaf if leaf.path in FLAGS else leaf.of(part)
        decided.fit(part)
        yield decided, part
