"""Record Gymnasium environments: one line of code, ordinary files, nothing lost."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recorder.bare.parquet import space_from_parquet
    from recorder.bare.recordings import open_bare
    from recorder.convert.zarr import to_zarr
    from recorder.edit.compacting import compact
    from recorder.edit.deleting import delete
    from recorder.edit.merging import merge, pick, split
    from recorder.edit.rows import label, rewrite
    from recorder.episode import Episode, Step
    from recorder.errors import (
        BusyError,
        ClosedError,
        DamagedError,
        DivergedError,
        EpisodeError,
        ExistsError,
        FormatError,
        GoneError,
        LayoutError,
        MetadataError,
        MismatchError,
        MissingExtraError,
        NotARecordingError,
        NotAReplayBufferError,
        RecorderError,
        RowError,
        SpaceError,
        WindowError,
        WriteError,
    )
    from recorder.leaf import Leaf
    from recorder.memory import MemoryRecording
    from recorder.metadata.annotation import annotate
    from recorder.metadata.vocabulary import (
        action_metadata,
        check_metadata,
        depth_metadata,
        image_metadata,
        proprio_metadata,
    )
    from recorder.recording import Recording
    from recorder.replay_buffer.adding import create_zarr_replay_buffer
    from recorder.replay_buffer.buffer import ReplayBuffer
    from recorder.replay_buffer.codecs import WebP
    from recorder.replay_buffer.creating import create_zarr_arrays
    from recorder.replay_buffer.specs import is_uint8_image_spec
    from recorder.replaying.many import replay_all
    from recorder.replaying.reobserving import Reobservation, reobserve
    from recorder.replaying.replay import replay
    from recorder.replaying.replay_env import ReplayEnv, ReplayVectorEnv
    from recorder.replaying.report import ReplayReport
    from recorder.routing.layouts import layout
    from recorder.schema import StepSpace
    from recorder.storages.base import Storage
    from recorder.storages.depth import DepthStorage
    from recorder.storages.dict import DictStorage
    from recorder.storages.hdf5 import HDF5Storage
    from recorder.storages.image_files import ImageFileStorage
    from recorder.storages.npz import NpzStorage
    from recorder.storages.parquet import ParquetStorage
    from recorder.storages.video import VideoStorage
    from recorder.storages.zarr import ZarrStorage
    from recorder.vector.wrapper import VectorRecorder
    from recorder.windows.sampler import Windows, WindowSampler
    from recorder.windows.splitting import downsample_episodes, split_episodes
    from recorder.wrapper import Recorder, find, plan
    from recorder.writing.capacity import Capacity
    from recorder.writing.committing import CommitOptions
    from recorder.writing.writer import RecordingWriter

__version__ = "0.1.0.dev0"

__all__ = [
    "BusyError",
    "Capacity",
    "ClosedError",
    "CommitOptions",
    "DamagedError",
    "DepthStorage",
    "DictStorage",
    "DivergedError",
    "Episode",
    "EpisodeError",
    "ExistsError",
    "FormatError",
    "GoneError",
    "HDF5Storage",
    "ImageFileStorage",
    "LayoutError",
    "Leaf",
    "MemoryRecording",
    "MetadataError",
    "MismatchError",
    "MissingExtraError",
    "NotARecordingError",
    "NotAReplayBufferError",
    "NpzStorage",
    "ParquetStorage",
    "Recorder",
    "RecorderError",
    "Recording",
    "RecordingWriter",
    "Reobservation",
    "ReplayBuffer",
    "ReplayEnv",
    "ReplayReport",
    "ReplayVectorEnv",
    "RowError",
    "SpaceError",
    "Step",
    "StepSpace",
    "Storage",
    "VectorRecorder",
    "VideoStorage",
    "WebP",
    "WindowError",
    "WindowSampler",
    "Windows",
    "WriteError",
    "ZarrStorage",
    "action_metadata",
    "annotate",
    "check_metadata",
    "compact",
    "create_zarr_arrays",
    "create_zarr_replay_buffer",
    "delete",
    "depth_metadata",
    "downsample_episodes",
    "find",
    "image_metadata",
    "is_uint8_image_spec",
    "label",
    "layout",
    "merge",
    "open_bare",
    "pick",
    "plan",
    "proprio_metadata",
    "reobserve",
    "replay",
    "replay_all",
    "rewrite",
    "space_from_parquet",
    "split",
    "split_episodes",
    "to_zarr",
]

# Gymnasium, PyAV and h5py take a second to import: too long for a reader of one zarr array, or `recorder --help`.
_HOMES = {
    "CommitOptions": "writing.committing",
    "DepthStorage": "storages.depth",
    "DictStorage": "storages.dict",
    "Episode": "episode",
    "HDF5Storage": "storages.hdf5",
    "ImageFileStorage": "storages.image_files",
    "Leaf": "leaf",
    "NpzStorage": "storages.npz",
    "ParquetStorage": "storages.parquet",
    "Recorder": "wrapper",
    "Recording": "recording",
    "RecordingWriter": "writing.writer",
    "Reobservation": "replaying.reobserving",
    "ReplayEnv": "replaying.replay_env",
    "ReplayReport": "replaying.report",
    "ReplayVectorEnv": "replaying.replay_env",
    "ReplayBuffer": "replay_buffer.buffer",
    "Step": "episode",
    "StepSpace": "schema",
    "Storage": "storages.base",
    "VectorRecorder": "vector.wrapper",
    "VideoStorage": "storages.video",
    "ZarrStorage": "storages.zarr",
    "WebP": "replay_buffer.codecs",
    "WindowSampler": "windows.sampler",
    "Windows": "windows.sampler",
    "action_metadata": "metadata.vocabulary",
    "annotate": "metadata.annotation",
    "check_metadata": "metadata.vocabulary",
    "depth_metadata": "metadata.vocabulary",
    "image_metadata": "metadata.vocabulary",
    "proprio_metadata": "metadata.vocabulary",
    "create_zarr_arrays": "replay_buffer.creating",
    "create_zarr_replay_buffer": "replay_buffer.adding",
    "is_uint8_image_spec": "replay_buffer.specs",
    "downsample_episodes": "windows.splitting",
    "find": "wrapper",
    "layout": "routing.layouts",
    "open_bare": "bare.recordings",
    "plan": "wrapper",
    "reobserve": "replaying.reobserving",
    "replay": "replaying.replay",
    "replay_all": "replaying.many",
    "split_episodes": "windows.splitting",
    "space_from_parquet": "bare.parquet",
    "to_zarr": "convert.zarr",
    "Capacity": "writing.capacity",
    "MemoryRecording": "memory",
    "compact": "edit.compacting",
    "delete": "edit.deleting",
    "label": "edit.rows",
    "rewrite": "edit.rows",
    "merge": "edit.merging",
    "pick": "edit.merging",
    "split": "edit.merging",
}


def __getattr__(name: str) -> Any:
    """Import a public name at its first use; what has no home of its own here is an error class."""
    if name not in __all__:
        raise AttributeError(f"module 'recorder' has no attribute {name!r}")
    value = getattr(import_module(f"recorder.{_HOMES.get(name, 'errors')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Name what can be imported from here."""
    return sorted({*globals(), *__all__})
