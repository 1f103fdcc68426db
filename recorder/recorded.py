"""What wrappers say of the recording that they write, the same for one environment and for many."""

from __future__ import annotations

from pathlib import Path

from recorder.leaf import Leaf
from recorder.storages.dict import DictStorage
from recorder.writing.writer import RecordingWriter


class Recorded:
    """The properties of a wrapper that come from its writer."""

    _writer: RecordingWriter

    @property
    def path(self) -> Path:
        """The folder of the recording."""
        return self._writer.path

    @property
    def leaves(self) -> list[Leaf]:
        """The leaves of a row of one environment, with the dtypes that are known by now."""
        return self._writer.leaves

    @property
    def storage(self) -> DictStorage:
        """Which storage keeps which leaf."""
        return self._writer.storage

    @property
    def unkept(self) -> dict[str, str]:
        """The keys of infos that hold no data and are not recorded, with the type of what they hold."""
        return dict(self._writer.pipeline.unkept) if self._writer.pipeline is not None else {}
