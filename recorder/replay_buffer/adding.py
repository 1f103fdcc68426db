"""Adding: a replay buffer made of, or continued with, any lazy iterable of episodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing
from itertools import chain, islice
from typing import Any, Literal

from threadpoolctl import threadpool_limits
from tqdm import tqdm

from recorder.asking import whole
from recorder.errors import LayoutError, MismatchError
from recorder.replay_buffer.buffer import ReplayBuffer
from recorder.replay_buffer.codecs import WebP
from recorder.replay_buffer.committing import BufferWriter
from recorder.replay_buffer.creating import BufferOptions, check_codecs
from recorder.replay_buffer.encoding import threads
from recorder.replay_buffer.filling import Target, filled
from recorder.replay_buffer.fitting import fit_episode
from recorder.replay_buffer.metadata import OURS
from recorder.replay_buffer.opening import StoreLike
from recorder.replay_buffer.specs import ArraySpec, Schema, parse_specs
from recorder.replay_buffer.targets import BEGUN, root_attributes


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
        overwrite: replace a buffer that is there, when the new one is whole: until then, and if anything fails, the
            old one stays. In a store that cannot rename, such as a URL, it is removed when the first episode fits.
        progress: whether to show a bar; by default on a terminal.
        storage_options: what fsspec or obstore needs to open a URL.

    Raises:
        RowError: an episode lacks a key, has another one, or rows that are not exact; what came before it is committed.
        ExistsError: the path exists, and neither `append` nor `overwrite` was given.
        MismatchError: the buffer there has other arrays, or other episodes than those that come again.
        LayoutError: a spec or a codec is none.
    """
    where, parsed = _asked(path_or_schema, specs)
    options = BufferOptions(image_codec, numeric, frames_per_shard, zarr_format)
    target, count = Target(where, storage_options, append, overwrite), threads(workers)
    coming = _checked(episodes, total_episodes)
    if overwrite:
        check_codecs(parsed, options)
        coming = begun(coming, parsed)
    with (
        filled(target, parsed, options, {BEGUN: 0}) as place,
        BufferWriter(place, count) as writer,
        threadpool_limits(1),
    ):
        add_episodes(writer, coming, total_episodes, progress)
    return ReplayBuffer(where, storage_options)


def _asked(
    path_or_schema: StoreLike | Schema, specs: Mapping[str, Any] | Schema | None
) -> tuple[StoreLike, dict[str, ArraySpec]]:
    """Return where the buffer is to be, and the spec of each array.

    Raises:
        LayoutError: nobody says one of them, or a spec is none.
    """
    said = path_or_schema if specs is None else specs
    if not isinstance(said, Schema | Mapping) or (specs is None and not isinstance(said, Schema)):
        raise LayoutError("specs say which arrays the buffer has: by key shape and dtype, or get_zarr_array_specs()")
    parsed = parse_specs(said)
    if not isinstance(path_or_schema, Schema):
        return path_or_schema, parsed
    where: StoreLike | None = getattr(path_or_schema, "zarr_path", None)
    if where is None:
        raise LayoutError(f"{path_or_schema!r:.80} says which arrays there are, and not where: it has no zarr_path")
    return where, parsed


def _checked(episodes: Any, total: int | None) -> Iterable[Mapping[str, Any]]:
    """Return what was given as episodes, if it can be gone through."""
    if total is not None:
        whole("total_episodes", total, 0)
    if isinstance(episodes, Mapping | str | bytes) or not isinstance(episodes, Iterable):
        raise LayoutError(f"episodes are any number of dicts of arrays, one after another, got {episodes!r:.80}")
    return episodes


def begun(episodes: Iterable[Mapping[str, Any]], specs: Mapping[str, ArraySpec]) -> Iterable[Mapping[str, Any]]:
    """Return the same episodes, of which the first was taken already and fits.

    Raises:
        RowError: it does not fit.
    """
    coming = iter(episodes)
    first = list(islice(coming, 1))
    for episode in first:
        fit_episode(episode, {key: spec.leaf(key) for key, spec in specs.items()})
    return chain(first, coming)


def add_episodes(
    writer: BufferWriter, episodes: Iterable[Mapping[str, Any]], total: int | None, progress: bool | None
) -> None:
    """Add episodes and commit them; of those that were added before the last kill, only compare the length.

    Raises:
        MismatchError: an episode that was added before has another length now.
    """
    begun = int((root_attributes(writer.place).get(OURS) or {}).get(BEGUN, 0))
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
