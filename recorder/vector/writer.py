"""The writer of a VectorRecorder: a row is one step of all sub-environments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from recorder.infos import snapshot
from recorder.leaf import Leaf
from recorder.schema import TIME
from recorder.selection import Selection
from recorder.spaces.structure import ArrayNode, Node, NoNode
from recorder.vector.batching import LanesRing, batched_nodes, first_of_lanes
from recorder.vector.events import Finish
from recorder.vector.infos import without_final
from recorder.vector.pipeline import VectorPipeline
from recorder.writing.committing import GRACE
from recorder.writing.pipeline import Pipeline, Ring
from recorder.writing.rows import Put, compile_put
from recorder.writing.writer import RecordingWriter


class VectorWriter(RecordingWriter):
    """Adds the episodes of many sub-environments, which the worker takes out of rows that hold them all."""

    def __init__(self, *arguments: Any, lanes: int, select: Selection | None = None, **options: Any) -> None:
        """Take what a RecordingWriter takes, the number of sub-environments, and which episodes are wanted."""
        self.wanted = None if select == Selection() else select
        self.lanes = lanes
        self._before: list[tuple[int, Any]] = []
        self._first_infos: list[tuple[int, Any]] = []
        super().__init__(*arguments, **options)

    @property
    def nodes(self) -> Mapping[str, Node]:
        """The structures of what a row holds."""
        # Also where `time` is excluded from the recording: by it the worker knows when episodes began.
        return {"time": ArrayNode(TIME, scalar=True), **batched_nodes(self.schema.nodes, self.lanes)}

    def _new_ring(self) -> Ring:
        return LanesRing(self.leaves, self.nodes)

    def _first_values(self, name: str, value: Any) -> Iterable[tuple[Leaf, Any]]:
        return first_of_lanes(self.nodes[name], value, self.schema.leaves)

    def compile(self, names: tuple[str, ...], skip: bool = False) -> Put:
        if (names, skip) not in self._compiled:
            nodes = self.nodes
            put = compile_put({name: nodes.get(name, NoNode()) for name in names}, self.ring.leaves, self.ring.slots)
            self._compiled[names, skip] = put
        return self._compiled[names, skip]

    def _make_pipeline(self, keep_info: Callable[[str], bool]) -> Pipeline:
        pipeline = VectorPipeline(
            self.ring,
            self._make_committer,
            keep_info,
            leaves=self.schema.leaves,
            lanes=self.lanes,
            writer=self.writer,
            oldest=self.options.flush_every + GRACE,
        )
        pipeline.select = self.wanted
        pipeline.rejected = lambda: self.rejected
        for position, event in self._before:
            pipeline.tell(event, position)
        for position, info in self._first_infos:
            pipeline.info(info, position)
        self._before, self._first_infos = [], []
        return pipeline

    @property
    def cutter(self) -> VectorPipeline | None:
        """The pipeline, once the first step has opened it."""
        return self.pipeline if isinstance(self.pipeline, VectorPipeline) else None

    def restart(self) -> None:
        """Forget the rows of resets that no step followed, as long as nothing is on disk."""
        if self.pipeline is None:
            self.ring.head = 0
            self._before, self._first_infos = [], []
            self._draft.restart()

    def tell(self, event: Any) -> None:
        """Let something happen before the row that is about to be complete."""
        if self.cutter is not None:
            self.cutter.tell(event)
        else:
            self._before.append((self.ring.head, event))

    def infos(self, infos: Any) -> None:
        """Keep a copy of the infos of the row that is about to be complete."""
        copy = snapshot(without_final(infos))
        if self.pipeline is not None:
            self.pipeline.info(copy)
        else:
            self._first_infos.append((self.ring.head, copy))

    def finish_all(self, end: str) -> None:
        """End all episodes; with no `end`, only those that are over."""
        if self.cutter is not None:
            self.cutter.tell(Finish(end))
        else:
            self.ring.head = 0
            self._before, self._first_infos = [], []

    def flush(self) -> None:
        self.finish_all("")
        super().flush()

    def close(self, end: str = "closed") -> None:
        if not self.closed and self.cutter is not None:
            self.cutter.tell(Finish(end))
        super().close(end)
