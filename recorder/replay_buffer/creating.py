"""Creating: an empty replay buffer with the arrays that specs ask for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Any, Literal

import zarr
from zarr.storage import MemoryStore

from recorder.asking import whole
from recorder.errors import LayoutError
from recorder.leaf import JSON, TEXT
from recorder.replay_buffer.codecs import WebP, coding
from recorder.replay_buffer.metadata import OURS
from recorder.replay_buffer.places import Place, together
from recorder.replay_buffer.specs import ArraySpec, Schema, parse_specs

META_ROWS = 4096
"""Episodes of one chunk of `meta/episode_ends`: 32 KiB, written anew with each group of episodes."""


@dataclass(frozen=True)
class BufferOptions:
    """How the arrays of a buffer are made.

    `image_codec` is a `WebP`, a codec of zarr, or None; `numeric` is "lz4", "zstd", a codec, or None.
    `frames_per_shard` is how many pictures one file of format 3 holds.
    """

    image_codec: Any = field(default_factory=WebP)
    numeric: Any = "lz4"
    frames_per_shard: int | None = None
    zarr_format: Literal[2, 3] = 3

    def __post_init__(self) -> None:
        if isinstance(self.zarr_format, bool) or self.zarr_format not in (2, 3):
            raise LayoutError(f"zarr_format={self.zarr_format!r}: 2 or 3")
        if self.frames_per_shard is not None:
            whole("frames_per_shard", self.frames_per_shard, 1, 1 << 16)
        if self.frames_per_shard is not None and self.zarr_format == 2:
            raise LayoutError("frames_per_shard: format 2 has no shards, each picture is a file")


def create_zarr_arrays(
    group: zarr.Group,
    specs: Mapping[str, Any] | Schema,
    image_codec: Any = WebP(),  # noqa: B008 - a frozen value
    numeric_compressor: Any = "lz4",
    *,
    frames_per_shard: int | None = None,
) -> None:
    """Create an array without rows for each spec in a group of zarr, which says the format.

    Pictures, uint8 with 3 or 4 channels last, are WebP, one a chunk; numbers lz4; texts of variable length. Any
    codec of zarr, or of numcodecs in a group of format 2, may be given instead. In format 3 many chunks share a file.

    Args:
        group: the group, such as `root.create_group("data")`.
        specs: by key `shape`, which may begin with 0, `dtype`, and if wanted `chunks`, `needs_compressor`, `kind`;
            or any object with `get_zarr_array_specs()`.
        image_codec: `WebP()`, `WebP(quality=90)`, a codec, or None for pictures as numbers.
        numeric_compressor: "lz4", "zstd", a codec, or None.
        frames_per_shard: how many pictures one file holds.

    Raises:
        LayoutError: a spec or a codec is none.
    """
    options = BufferOptions(image_codec, numeric_compressor, frames_per_shard, group.metadata.zarr_format)
    for key, spec in parse_specs(specs).items():
        create_array(group, key, spec, options)


def create_array(group: zarr.Group, key: str, spec: ArraySpec, options: BufferOptions) -> None:
    """Create an array without rows."""
    rows = spec.rows_a_chunk
    shards: dict[str, Any] = {"shards": (rows * spec.chunks_a_shard(options.frames_per_shard), *spec.shape)}
    said: dict[str, JSON] = {"every_chunk": True, "kind": spec.kind, "metadata": dict(spec.metadata)}
    group.create_array(
        key,
        shape=(0, *spec.shape),
        dtype=str if spec.dtype == TEXT else spec.dtype,
        chunks=(rows, *spec.shape),
        fill_value="" if spec.dtype == TEXT else 0,
        chunk_key_encoding=_flat(options.zarr_format),
        config={"write_empty_chunks": True},
        attributes={OURS: {**{name: value for name, value in said.items() if value}, **spec.said}},
        **(shards if options.zarr_format == 3 else {}),
        **coding(spec, options.image_codec, options.numeric, options.zarr_format),
    )


def _flat(zarr_format: int) -> dict[str, Any]:
    """Return the names of files that need no folders: `c.0.0.0`, in format 2 `0.0.0`."""
    return {"name": "default" if zarr_format == 3 else "v2", "configuration": {"separator": "."}}


def check_codecs(specs: Mapping[str, ArraySpec], options: BufferOptions) -> None:
    """Raise `LayoutError` where no array can be made of a spec with its codec."""
    group = zarr.create_group(MemoryStore(), zarr_format=options.zarr_format)
    for key, spec in specs.items():
        create_array(group, key, spec, options)


def create_buffer(
    place: Place, specs: Mapping[str, ArraySpec], options: BufferOptions, attributes: Mapping[str, JSON]
) -> None:
    """Create a buffer without episodes; what is of `meta/episode_ends` last, so that before it there is none."""
    files: dict[str, Any] = {}
    root = zarr.create_group(MemoryStore(files), zarr_format=options.zarr_format, attributes={OURS: {**attributes}})
    data, meta = root.create_group("data"), root.create_group("meta")
    for key, spec in specs.items():
        create_array(data, key, spec, options)
    plain = BufferOptions(zarr_format=options.zarr_format)
    _create_meta(meta, "episode_ids", ArraySpec((), TEXT, META_ROWS), plain)
    _create_meta(meta, "episode_ends", ArraySpec((), "int64", META_ROWS, needs_compressor=False), plain)
    # zarr writes in no order that could be relied on after a kill.
    for _, names in groupby(sorted(files, key=_order), _order):
        together([partial(place.put, name, files[name].to_bytes()) for name in names])


def _order(name: str) -> tuple[bool, bool, bool]:
    """Return when a file is written: the root first, the ends of episodes last, attributes before what they are of."""
    return name.startswith("meta/episode_ends"), "/" in name, name.endswith((".zgroup", ".zarray"))


def _create_meta(meta: zarr.Group, key: str, spec: ArraySpec, options: BufferOptions) -> None:
    meta.create_array(
        key,
        shape=(0,),
        dtype=str if spec.dtype == TEXT else spec.dtype,
        chunks=(META_ROWS,),
        fill_value="" if spec.dtype == TEXT else 0,
        chunk_key_encoding=_flat(options.zarr_format),
        attributes={OURS: {"every_chunk": True}},
        **coding(spec, None, "lz4", options.zarr_format),
    )
