"""Record Gymnasium environments: one line of code, ordinary files, nothing lost."""

from recorder.committing import CommitOptions
from recorder.episode import Episode, Step
from recorder.errors import (
    ClosedError,
    DamagedError,
    EpisodeError,
    ExistsError,
    FormatError,
    LayoutError,
    MetadataError,
    MismatchError,
    MissingExtraError,
    NotARecordingError,
    RecorderError,
    RowError,
    SpaceError,
    WriteError,
)
from recorder.leaf import Leaf
from recorder.metadata import annotate
from recorder.recording import Recording
from recorder.routing import layout
from recorder.schema import StepSpace
from recorder.storages.base import Storage
from recorder.storages.dict import DictStorage
from recorder.storages.hdf5 import HDF5Storage
from recorder.storages.video import VideoStorage
from recorder.storages.zarr import ZarrStorage
from recorder.wrapper import Recorder, find, plan
from recorder.writing import RecordingWriter

__version__ = "0.1.0.dev0"

__all__ = [
    "ClosedError",
    "CommitOptions",
    "DamagedError",
    "DictStorage",
    "Episode",
    "EpisodeError",
    "ExistsError",
    "FormatError",
    "HDF5Storage",
    "LayoutError",
    "Leaf",
    "MetadataError",
    "MismatchError",
    "MissingExtraError",
    "NotARecordingError",
    "Recorder",
    "RecorderError",
    "Recording",
    "RecordingWriter",
    "RowError",
    "SpaceError",
    "Step",
    "StepSpace",
    "Storage",
    "VideoStorage",
    "WriteError",
    "ZarrStorage",
    "annotate",
    "find",
    "layout",
    "plan",
]
