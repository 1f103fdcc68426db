"""Adding: a replay buffer made of, or continued with, any lazy iterable of episodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing
from typing import Any, Literal

from threadpoolctl import threadpool_limits
from tqdm import tqdm

from recorder.errors import LayoutError, MismatchError
from recorder.replay_buffer.buffer import ReplayBuffer
from recorder.replay_buffer.codecs import WebP
from recorder.replay_buffer.committing import BufferWriter
from recorder.replay_buffer.creating import BufferOptions
from recorder.replay_buffer.fitting import fit_episode
from recorder.replay_buffer.metadata import OURS
from recorder.replay_buffer.opening import StoreLike
from recorder.replay_buffer.specs import Schema, parse_specs
from recorder.replay_buffer.targets import mark_complete, open_target, root_attributes
from recorder.replay_buffer.zipping import writable_place


def create_zarr_replay_buffer(
    path_or_schema: StoreLike | Schema,
    specs: Mapping[str, Any] | Schema | None = None,
    episodes: Iterable[Mapping[str, Any]] = (),
    total_episodes: int | None = None,
    *,
    image_codec: Any = WebP(),  # noqa: B008 - a frozen value
    numeric: Any = "lz4",
    frames_per_shard: int | None = None,
    zarr_format: Literal[2, 3] = 3,
    workers: int | None = None,
    append: bool = False,
    overwrite: bool = False,
    progress: bool | None = None,
    storage_options: dict[str, Any] | None = None,
) -> ReplayBuffer:
    """Write episodes, dicts of arrays with a row a step, as a zarr replay buffer, and return it opened.

    Episodes are taken one at a time, coded by all cores, and committed in groups: after a kill the buffer holds whole
    episodes only. The same call with `append=True` then goes on: `episodes` must be the same again, and those that are
    in the buffer are only checked for their length. On a buffer that is complete, `append=True` adds all of them.

    Args:
        path_or_schema: where the buffer is to be, or an object with `get_zarr_array_specs()` and `zarr_path`.
        specs: by key `shape`, which may begin with 0, `dtype`, and if wanted `chunks`, `needs_compressor`, `kind`;
            not needed beside a schema.
        episodes: any iterable; what it yields may use its arrays again for the next.
        total_episodes: how many will come, for the progress bar.
        image_codec: `WebP()`, `WebP(quality=90)`, a codec of zarr (of numcodecs in format 2), or None.
        numeric: "lz4", "zstd", a codec, or None, for everything but pictures.
        frames_per_shard: how many pictures one file of format 3 holds.
        zarr_format: 3 with shards, or 2, which diffusion_policy reads.
        workers: threads; as many as cores by default.
        append: go on with a buffer that is there.
        overwrite: remove a buffer that is there.
        progress: whether to show a bar; by default on a terminal.
        storage_options: what fsspec or obstore needs to open a URL.

    Raises:
        RowError: an episode lacks a key, has another one, or rows that are not exact; what came before it is committed.
        ExistsError: the path exists, and neither `append` nor `overwrite` was given.
        MismatchError: the buffer there has other arrays, or other episodes than those that come again.
        LayoutError: a spec or a codec is none.
    """
    where = getattr(path_or_schema, "zarr_path") if isinstance(path_or_schema, Schema) else path_or_schema  # noqa: B009
    said = specs if specs is not None else path_or_schema
    if not isinstance(said, Schema | Mapping) or (specs is None and not isinstance(said, Schema)):
        raise LayoutError("specs say which arrays the buffer has: by key shape and dtype, or get_zarr_array_specs()")
    options = BufferOptions(image_codec, numeric, frames_per_shard, zarr_format)
    with writable_place(where, storage_options, append=append, overwrite=overwrite) as place:
        open_target(place, parse_specs(said), options, {}, append=append, overwrite=overwrite)
        with BufferWriter(place, workers) as writer, threadpool_limits(1):
            add_episodes(writer, episodes, total_episodes, progress)
        mark_complete(place)
    return ReplayBuffer(where, storage_options)


def add_episodes(
    writer: BufferWriter, episodes: Iterable[Mapping[str, Any]], total: int | None, progress: bool | None
) -> None:
    """Add episodes and commit them; of those that were added before the last kill, only compare the length.

    Raises:
        MismatchError: an episode that was added before has another length now.
    """
    begun = int((root_attributes(writer.place).get(OURS) or {}).get("begun", 0))
    there = len(writer.ends) - begun
    bar = tqdm(episodes, total=total, unit="episode", disable=None if progress is None else not progress)
    taken = 0
    with closing(bar):
        try:
            for episode in bar:
                if taken < there:
                    _compare(writer, begun + taken, episode)
                else:
                    writer.append(episode)
                    writer.commit_if_due()
                taken += 1
        finally:
            writer.commit()
    if taken < there:
        raise MismatchError(
            f"{taken} episodes came, but {there} are in {writer.place.name} already: append=True goes on with the same "
            f"episodes as before; overwrite=True begins anew"
        )


def _compare(writer: BufferWriter, number: int, episode: Mapping[str, Any]) -> None:
    """Raise `MismatchError` unless an episode is as long as the one that is in the buffer."""
    rows = fit_episode(episode, writer.leaves)
    found, length = len(next(iter(rows.values()))), writer.length(number)
    if found != length:
        raise MismatchError(
            f"episode {number} has {found} rows, but {length} in {writer.place.name}: append=True goes on with the "
            f"same episodes as before; overwrite=True begins anew"
        )
