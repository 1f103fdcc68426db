"""Targets: the buffer that is to be filled, made anew, taken up again, or refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import zarr
from zarr.storage import MemoryStore

from recorder.errors import ExistsError, MismatchError
from recorder.leaf import JSON
from recorder.replay_buffer.arrays import find_arrays, parsed, read_node
from recorder.replay_buffer.chunk_codecs import json_bytes
from recorder.replay_buffer.committing import COMPLETE, ENDS
from recorder.replay_buffer.creating import BufferOptions, check_codecs, create_array, create_buffer
from recorder.replay_buffer.metadata import OURS, parse_array
from recorder.replay_buffer.places import Place
from recorder.replay_buffer.specs import ArraySpec
from recorder.replay_buffer.store_place import StorePlace

FORMAT = 0
"""The number of what this package says under `recorder` in the attributes of the root."""

BEGUN = "begun"
"""How many episodes there were when somebody began to add others that have no ids, by which they would be known."""


def open_target(
    place: Place,
    specs: Mapping[str, ArraySpec],
    options: BufferOptions,
    attributes: Mapping[str, JSON],
    *,
    append: bool,
    overwrite: bool,
) -> None:
    """Make a place hold a buffer of these arrays that can be added to; `meta/complete` is gone from it.

    Raises:
        ExistsError: something is there, and neither `append` nor `overwrite` was asked for.
        MismatchError: a buffer with other arrays is there, and `append` was asked for.
    """
    if nothing_there(place):
        for name in place.children(""):
            place.delete(name)
        _create(place, specs, options, attributes)
    elif overwrite or (append and _never_begun(place)):
        check_ours(place)
        check_codecs(specs, options)
        with place.writing():
            place.delete("")
        _create(place, specs, options, attributes)
    elif append:
        _take_up(place, specs, options, attributes)
    else:
        raise ExistsError(f"{place.name} exists{_said(place)}; append=True goes on, overwrite=True begins anew")


def _create(
    place: Place, specs: Mapping[str, ArraySpec], options: BufferOptions, attributes: Mapping[str, JSON]
) -> None:
    create_buffer(place, specs, options, {"format": FORMAT, **attributes})


def _said(place: Place) -> str:
    """Return what an error says of a buffer that is there."""
    ends = read_node(place, ENDS)
    if ends is None:
        return ""
    metadata = parse_array(ENDS, ends.data, ends.attributes)
    episodes = metadata.rows if metadata else "some"
    return f" with {episodes} episodes, {'complete' if read_node(place, COMPLETE) else 'not complete'}"


def nothing_there(place: Place) -> bool:
    """Return whether a place is empty, or an empty group that says nothing of itself."""
    names = [name for name in place.children("") if not name.endswith(".tmp")]
    return set(names) <= {"zarr.json", ".zgroup", ".zattrs"} and not root_attributes(place)


def _never_begun(place: Place) -> bool:
    """Return whether the making of a buffer ended before it was one, and no row of it was written."""
    if read_node(place, ENDS) is not None or OURS not in root_attributes(place):
        return False
    arrays = [parse_array(key, node.data, node.attributes) for key, node in find_arrays(place, "data").items()]
    return all(array is not None and array.rows == 0 for array in arrays)


def check_ours(place: Place) -> None:
    """Raise `ExistsError` unless what would be removed is a buffer, or the beginning of one."""
    if read_node(place, ENDS) is None and OURS not in root_attributes(place):
        raise ExistsError(f"{place.name} is no replay buffer, so nothing of it is removed; choose another path")


def _take_up(
    place: Place, specs: Mapping[str, ArraySpec], options: BufferOptions, attributes: Mapping[str, JSON]
) -> None:
    if read_node(place, ENDS) is None:
        raise ExistsError(f"{place.name} exists and is no whole replay buffer, there is no {ENDS}; choose another path")
    compare(place, specs, options)
    if read_node(place, COMPLETE) is not None:
        if BEGUN in attributes:
            said = dict(root_attributes(place).get(OURS, {}))
            ends = read_node(place, ENDS)
            metadata = parse_array(ENDS, ends.data, ends.attributes) if ends else None
            put_attributes(place, {**said, BEGUN: metadata.rows if metadata else 0})
        place.delete(COMPLETE)


def compare(place: Place, specs: Mapping[str, ArraySpec], options: BufferOptions) -> None:
    """Raise `MismatchError` that lists how the arrays of a buffer differ from what would be added to it."""
    there = {key: parse_array(key, node.data, node.attributes) for key, node in find_arrays(place, "data").items()}
    model = StorePlace(MemoryStore())
    group = zarr.create_group(model.store, zarr_format=options.zarr_format)
    for key, spec in specs.items():
        create_array(group, key, spec, options)
    meant = {key: parse_array(key, node.data, node.attributes) for key, node in find_arrays(model, "").items()}
    faults = [f"{key!r} is not in the buffer" for key in meant if key not in there]
    faults += [f"{key!r} is in the buffer only" for key in there if key not in meant]
    for key in meant.keys() & there.keys():
        faults += _differences(key, there[key], meant[key])
    if faults:
        raise MismatchError(f"{place.name} has other arrays: {'; '.join(sorted(faults))}")


def _differences(key: str, there: Any, meant: Any) -> list[str]:
    if there is None or meant is None:
        return [f"{key!r} is of a form that is only read here"]
    rows = [(array.leaf.dtype, array.leaf.shape) for array in (there, meant)]
    if rows[0] != rows[1]:
        return [f"{key!r} has rows {rows[0][0]} {rows[0][1]}, not {rows[1][0]} {rows[1][1]}"]
    said = [
        {name: value for name, value in array.document.items() if name not in ("shape", "attributes")}
        for array in (there, meant)
    ]
    return [] if said[0] == said[1] else [f"{key!r} has other codecs or chunks"]


def root_attributes(place: Place) -> dict[str, JSON]:
    """Return the attributes of the root group."""
    document = place.get("zarr.json")
    if document is not None:
        return dict(parsed(place.name, document).get("attributes") or {})
    return parsed(place.name, place.get(".zattrs") or b"{}")


def put_attributes(place: Place, said: Mapping[str, JSON]) -> None:
    """Write what this package says in the attributes of the root group; others' stay."""
    document = place.get("zarr.json")
    if document is None:
        place.put(".zattrs", json_bytes({**root_attributes(place), OURS: said}))
    else:
        group = parsed(place.name, document)
        place.put("zarr.json", json_bytes({**group, "attributes": {**(group.get("attributes") or {}), OURS: said}}))


def mark_complete(place: Place) -> None:
    """Write `meta/complete`, a single `true` without a file of its own."""
    if place.get("zarr.json") is None:
        form = {"zarr_format": 2, "shape": [], "chunks": [], "dtype": "|b1", "compressor": None, "order": "C"}
        place.put(f"{COMPLETE}/.zarray", json_bytes({**form, "fill_value": True, "filters": None}))
        return
    form = {
        "shape": [],
        "data_type": "bool",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": []}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
        "fill_value": True,
        "codecs": [{"name": "bytes"}],
        "attributes": {},
        "zarr_format": 3,
        "node_type": "array",
        "storage_transformers": [],
    }
    place.put(f"{COMPLETE}/zarr.json", json_bytes(form))
