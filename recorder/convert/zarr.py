"""to_zarr: a recording as a zarr replay buffer, streamed, on all cores, and taken up again after a kill."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

import zarr
from tqdm import tqdm

from recorder.convert.zarr_plan import Choice, FinalObservation, Rename, ZarrPlan, plan_zarr
from recorder.convert.zarr_rows import add_rows, check_first, grouped
from recorder.errors import MismatchError
from recorder.leaf import JSON
from recorder.recording import Recording
from recorder.replay_buffer.buffer import ReplayBuffer
from recorder.replay_buffer.codecs import WebP
from recorder.replay_buffer.committing import BufferWriter
from recorder.replay_buffer.creating import BufferOptions
from recorder.replay_buffer.encoding import threads
from recorder.replay_buffer.filling import Target, filled
from recorder.replay_buffer.folder_place import FolderPlace
from recorder.replay_buffer.opening import StoreLike
from recorder.shard import versions
from recorder.spaces.space_json import space_to_json

MOST_FRAMES = 1000
"""Pictures of one key that are decoded for statistics."""


def to_zarr(
    recording: Recording | Path | str,
    path: StoreLike,
    *,
    keys: Sequence[str] | None = None,
    rename: Rename = None,
    flat: bool = False,
    episodes: Sequence[int | str] | None = None,
    final_observation: FinalObservation = "drop",
    image_codec: Any = WebP(),  # noqa: B008 - a frozen value
    numeric: Any = "lz4",
    frames_per_shard: int | None = None,
    zarr_format: Literal[2, 3] = 3,
    workers: int | None = None,
    statistics: bool = False,
    append: bool = False,
    overwrite: bool = False,
    progress: bool | None = None,
    storage_options: dict[str, Any] | None = None,
) -> ReplayBuffer:
    """Write a recording as a zarr replay buffer with one row a step, and return it opened.

    Row t of an episode has the observation before step t, its action, and what came back: reward, flags, and of `info`
    what the step returned. The final observation is dropped, or kept by `next_observation/…` for every step.

    Episodes are committed in groups, `meta/episode_ends` last: after a kill the buffer holds whole episodes only, and
    the same call with `append=True` goes on. `append=True` on a complete buffer adds the episodes that it lacks.

    Args:
        recording: a `Recording`, or the path of one.
        path: a folder, a zip file, a URL of fsspec or obstore, or a store of zarr.
        keys: which leaves, by path, by the path of what holds them, or by glob; all but infos by default.
        rename: new keys by path, or a function from path to key.
        flat: join the parts of a path by `_` instead of `/`.
        episodes: positions or ids; all by default.
        final_observation: "drop", or "next" for `next_observation/…`.
        image_codec: `WebP()`, `WebP(quality=90)`, a codec of zarr (of numcodecs in format 2), or None.
        numeric: "lz4", "zstd", a codec, or None, for everything but pictures.
        frames_per_shard: how many pictures one file of format 3 holds.
        zarr_format: 3 with shards, or 2, which diffusion_policy reads.
        workers: threads that encode; as many as cores by default.
        statistics: also keep mean, standard deviation, range and quantiles of each key in the attributes; of pictures
            some are decoded for that.
        append: go on with a buffer that is there.
        overwrite: replace a buffer that is there, when the new one is whole: until then, and if anything fails, the
            old one stays. In a store that cannot rename, such as a URL, it is removed when everything was checked.
        progress: whether to show a bar; by default on a terminal.
        storage_options: what fsspec or obstore needs to open a URL.

    Raises:
        ExistsError: the path exists, and neither `append` nor `overwrite` was given, or it holds the recording.
        LayoutError: a name is that of no leaf, or a leaf that was named cannot be an array.
        MismatchError: the buffer there has other arrays.
        RowError: a leaf is absent from a step; the episodes before are committed.
    """
    source = recording if isinstance(recording, Recording) else Recording(recording)
    options = BufferOptions(image_codec, numeric, frames_per_shard, zarr_format)
    plan = plan_zarr(source, Choice(keys, rename, flat, final_observation), options, episodes)
    target = Target(path, storage_options, append, overwrite)
    write_zarr(source, plan, target, workers=workers, statistics=statistics, progress=progress)
    return ReplayBuffer(path, storage_options)


def write_zarr(
    recording: Recording,
    plan: ZarrPlan,
    target: Target,
    *,
    workers: int | None = None,
    statistics: bool = False,
    progress: bool | None = None,
) -> None:
    """Write what was planned; the arguments and the errors are those of `to_zarr`."""
    source = copy.copy(recording)  # which has open files of its own
    count = threads(workers)
    for folder in source.paths:
        target.check_apart(FolderPlace(folder))
    if target.overwrite:
        check_first(source, plan)
    with filled(target, plan.specs, plan.options, provenance(source, plan)) as place:
        with BufferWriter(place, count) as writer:
            convert(source, plan, writer, progress)
        if statistics:
            from recorder.statistics.storing import store_statistics  # only who asks for them pays for the import

            store_statistics(zarr.open_group(place.store, path=place.path, mode="r+"), most_frames=MOST_FRAMES)


def convert(recording: Recording, plan: ZarrPlan, writer: BufferWriter, progress: bool | None) -> None:
    """Add the episodes that the buffer lacks, and commit them."""
    if len(writer.ids) != len(writer.ends):
        raise MismatchError(f"{writer.place.name} does not say which episodes it holds: to_zarr did not make it")
    done = frozenset(writer.ids)
    bar = tqdm(total=plan.steps, unit="step", unit_scale=True, disable=None if progress is None else not progress)
    with closing(bar):
        try:
            bar.update(sum(writer.length(i) for i in range(len(writer.ends)) if writer.ids[i]))
            for group in grouped(recording, plan, done):
                lengths = [len(episode) for episode in group]
                for each in _small_first(plan):
                    add_rows(each, group, writer.arrays[each.key])
                writer.end_episodes(lengths, [episode.id for episode in group])
                writer.commit_if_due()
                bar.update(sum(lengths))
        finally:
            writer.commit()


def _small_first(plan: ZarrPlan) -> list[Any]:
    """Return the arrays, those that may be refused before those that take long."""
    return sorted(plan.keys, key=lambda each: each.nbytes)


def provenance(recording: Recording, plan: ZarrPlan) -> dict[str, JSON]:
    """Return what the attributes of a buffer say of where its rows come from."""
    newest = recording.shards[-1].manifest if len(recording) else None
    return {
        "recordings": [path.name for path in recording.paths],
        "spaces": {name: space_to_json(space) for name, space in recording.schema.spaces.items()},
        "environment": newest.environment if newest else None,
        "fps": recording.fps,
        "metadata": dict(recording.metadata),
        "left_out": dict(plan.left_out),
        "versions": {"recorded": dict(newest.versions) if newest else {}, "converted": versions()},
    }
