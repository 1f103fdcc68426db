"""Filling: where a buffer is to be, and the place in which it is made: there, beside what it replaces, or unpacked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from recorder.errors import ExistsError, LayoutError
from recorder.leaf import JSON
from recorder.replay_buffer.creating import BufferOptions
from recorder.replay_buffer.folder_place import FolderPlace
from recorder.replay_buffer.opening import StoreLike, open_place
from recorder.replay_buffer.places import Place
from recorder.replay_buffer.specs import ArraySpec
from recorder.replay_buffer.swapping import mend
from recorder.replay_buffer.targets import check_ours, mark_complete, nothing_there, open_target
from recorder.replay_buffer.zipping import zip_path, zip_place


@dataclass(frozen=True)
class Target:
    """Where a buffer is to be, and what becomes of one that is there: it is refused, gone on with, or replaced."""

    where: StoreLike
    storage_options: dict[str, Any] | None = None
    append: bool = False
    overwrite: bool = False

    def __post_init__(self) -> None:
        if self.append and self.overwrite:
            raise LayoutError("append=True keeps what is there, overwrite=True removes it: ask for one of them")

    def check_apart(self, source: Place) -> None:
        """Raise `ExistsError` where what is read is the target, or lies in it."""
        if zip_path(self.where) is None and (place := open_place(self.where, self.storage_options)).holds(source):
            raise ExistsError(
                f"{place.name} is this very source, {source.name}, or holds it: write elsewhere, and then put what was "
                f"written in its place"
            )


@contextmanager
def filled(
    target: Target, specs: Mapping[str, ArraySpec], options: BufferOptions, attributes: Mapping[str, JSON]
) -> Iterator[Place]:
    """Give a place with a buffer of these arrays that can be added to, and mark it complete if all went well.

    A buffer that is to be replaced stays as it is until then: in a folder, a zip file and memory. In other stores, of
    which nothing can be renamed, it is removed when everything but the rows themselves was checked.

    Raises:
        ExistsError: something is there, and neither `append` nor `overwrite` was asked for; or it is no buffer.
        MismatchError: a buffer with other arrays is there, and `append` was asked for.
        LayoutError: a codec does not go with an array, or a zip file was to be added to.
    """
    with _place(target) as place:
        open_target(place, specs, options, attributes, append=target.append, overwrite=target.overwrite)
        yield place
        mark_complete(place)


@contextmanager
def _place(target: Target) -> Iterator[Place]:
    path = zip_path(target.where)
    if path is not None:
        with zip_place(path, append=target.append, overwrite=target.overwrite) as place:
            yield place
        return
    place = open_place(target.where, target.storage_options)
    if isinstance(place, FolderPlace):
        mend(place.folder)
    if not target.overwrite or nothing_there(place):
        yield place
        return
    check_ours(place)
    with place.replacing() as made:
        yield made
