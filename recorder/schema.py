"""The schema of a recording: its spaces, leaves and storage, and `recording.json`, which keeps them."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from gymnasium import spaces
from gymnasium.spaces import Space

from recorder.digests import digest_leaf, is_digest
from recorder.errors import FormatError, LayoutError, MismatchError, NotARecordingError, RowError, SpaceError
from recorder.files import link_new, make_folder, read_small, sync, write_file
from recorder.leaf import JSON, MOMENT_NAMES, Leaf, decode_key, leaf_from_json, leaf_to_json
from recorder.repeated import is_mark, mark_leaf, mark_path
from recorder.shard import FORMAT
from recorder.spaces.differences import differences
from recorder.spaces.space_json import space_from_json, space_to_json
from recorder.spaces.structure import ArrayNode, Excluded, Node, keep_all, prune, structure
from recorder.storages.base import Storage, storage_from_json
from recorder.storages.dict import DictStorage
from recorder.storages.hdf5 import HDF5Storage

NOTE = "recording.json"
NOTE_BYTES = 64 << 20
"""A larger `recording.json` is refused before it is read."""

SEEN = ("render", "state")
"""What of a step may have a space that nobody knows before the first of it was seen."""

ROW = "row"
"""The name of the one space of a recording that is no series of steps."""

REWARD = Leaf("reward", (), "float64", "reward", "transition", why="the reward of a step")
TERMINATED = Leaf("terminated", (), "bool", "flag", "transition", why="a flag of a step")
TRUNCATED = Leaf("truncated", (), "bool", "flag", "transition", why="a flag of a step")
TIME = Leaf("time", (), "float64", "time", "moment", metadata={"units": "s"}, why="seconds since the reset")

TIMES = "times"
"""The name of the space of capture times, whose leaves lie at `time/<leaf>`."""

FLAGS = {leaf.path: leaf for leaf in (REWARD, TERMINATED, TRUNCATED, TIME)}


@dataclass(frozen=True)
class StepSpace:
    """The spaces of what one step brings, for recordings of episodes.

    `extra` are the user's own values of a transition. `render` is the space of rendered frames, `state`
    that of the simulator's states; True stands for one that the first of them decides. `times` are the paths of
    leaves whose own time of capture comes with each row, as `row["times"]`: it is kept at `time/<leaf>`.
    """

    observation: Space[Any]
    action: Space[Any]
    extra: Mapping[str, Space[Any]] = field(default_factory=dict)
    render: Space[Any] | bool = False
    state: Space[Any] | bool = False
    times: tuple[str, ...] = ()

    @property
    def unseen(self) -> list[str]:
        """What has a space that the first of it is to decide."""
        return [name for name in SEEN if getattr(self, name) is True]

    def seen(self, name: str, space: Space[Any] | bool) -> StepSpace:
        """Return this with the space of `render` or `state`."""
        return replace(self, render=space) if name == "render" else replace(self, state=space)


class RecordingNote(msgspec.Struct, forbid_unknown_fields=True):
    """What `recording.json` says."""

    format: int
    rows: Literal["episode", "single"]
    spaces: dict[str, dict[str, Any]]
    leaves: list[dict[str, Any]]
    storage: dict[str, Any]


@dataclass(frozen=True)
class Schema:
    """What all episodes of a recording have in common."""

    rows: Literal["episode", "single"]
    spaces: Mapping[str, Space[Any]]
    nodes: Mapping[str, Node]
    leaves: Mapping[str, Leaf]
    storage: DictStorage

    def with_leaves(self, leaves: Sequence[Leaf]) -> Schema:
        """Return this schema with some leaves as their first rows decide them."""
        return replace(self, leaves={**self.leaves, **{leaf.path: leaf for leaf in leaves}})


def declare(space: StepSpace | Space[Any], excluded: Excluded = keep_all) -> Schema:
    """Return the schema of a space before any row was seen; its storage is still the default for all leaves."""
    if isinstance(space, StepSpace):
        return _declare_steps(space, excluded)
    path = "" if isinstance(space, spaces.Dict) else "value"
    node = structure(space, path, "transition", excluded)
    leaves = _left({leaf.path: leaf for leaf in node.leaves}, excluded)
    return Schema("single", {ROW: prune(space, path, excluded)}, {ROW: node}, leaves, DictStorage())


def _declare_steps(space: StepSpace, excluded: Excluded) -> Schema:
    named: dict[str, Space[Any]] = {"observation": space.observation, "action": space.action}
    if space.extra:
        named["extra"] = spaces.Dict(dict(space.extra))
    if isinstance(space.render, Space):
        named["render"] = space.render
    if isinstance(space.state, Space):
        named["state"] = space.state
    if space.times:
        named[TIMES] = _times_space(space.times)
    if wrong := [name for name in ("action", "reward", "terminated", "truncated") if excluded(name)]:
        raise SpaceError(f"{wrong[0]!r} cannot be excluded: no episode is whole without it")
    paths = {name: "time" if name == TIMES else name for name in named}
    kept = {name: prune(inner, paths[name], excluded) for name, inner in named.items()}
    nodes: dict[str, Node] = {
        name: structure(inner, paths[name], "moment" if paths[name] in MOMENT_NAMES else "transition", excluded)
        for name, inner in named.items()
    }
    for leaf in FLAGS.values():
        if not excluded(leaf.path):
            nodes[leaf.path] = ArrayNode(leaf, scalar=True)
    leaves = _left({leaf.path: leaf for node in nodes.values() for leaf in node.leaves}, excluded)
    return Schema("episode", kept, nodes, leaves, DictStorage())


def _times_space(paths: Sequence[str]) -> spaces.Dict:
    """Return the space of one time in seconds for each leaf, nested as their paths are."""
    return _dict_space(_nested(dict.fromkeys(paths, spaces.Box(-np.inf, np.inf, (), np.float64))))


def _dict_space(nested: Mapping[str, Any]) -> spaces.Dict:
    return spaces.Dict({key: _dict_space(inner) if isinstance(inner, dict) else inner for key, inner in nested.items()})


def times_value(paths: Sequence[str], times: Mapping[str, Any]) -> Any:
    """Return times by path as a value of their space.

    Raises:
        RowError: they are of other leaves.
    """
    if not isinstance(times, Mapping) or set(times) != set(paths):
        raise RowError(f"'times' has a time for each of {sorted(paths)}, got {times!r:.120}")
    return _nested({path: float(time) for path, time in times.items()})


def _nested(values: Mapping[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for path, value in values.items():
        *parents, last = map(decode_key, path.split("/"))
        place = nested
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = value
    return nested


def _times_of(space: Space[Any] | None) -> tuple[str, ...]:
    """Return the paths of which `_times_space` made a space."""
    if space is None:
        return ()
    return tuple(leaf.path.removeprefix("time/") for leaf in structure(space, "time").leaves)


def _left(leaves: Mapping[str, Leaf], excluded: Excluded) -> Mapping[str, Leaf]:
    """Return the leaves that are left; raise `SpaceError` where one of them was to be excluded."""
    if wrong := [path for path in leaves if excluded(path)]:
        raise SpaceError(f"{wrong[0]!r} cannot be excluded: only items of a Dict can, 'time' and keys of info")
    return leaves


def digest_leaves(schema: Schema) -> list[Leaf]:
    """Return leaves for the digests of each leaf that its storage keeps with loss."""
    return [digest_leaf(leaf) for leaf in schema.leaves.values() if leaf.fixed and not schema.storage.exact(leaf)]


def with_beside(schema: Schema, leaves: Iterable[Leaf]) -> Schema:
    """Return a schema with leaves that are kept besides what a row is: digests, and marks of repeated pictures."""
    added = {leaf.path: leaf for leaf in leaves if leaf.path not in schema.leaves}
    storage = schema.storage
    try:
        storage.default.check(list(added.values()))
    except LayoutError:  # one storage of pictures for all rows
        storage = replace(storage, storages={**storage.storages, **dict.fromkeys(added, HDF5Storage())})
    return replace(schema, leaves={**schema.leaves, **added}, storage=storage)


def without_beside(schema: Schema) -> Schema:
    """Return a schema without digests and marks: what a row is, not what is kept of it besides."""
    beside = {path for path, leaf in schema.leaves.items() if is_digest(leaf) or is_mark(leaf)}
    storages = {path: storage for path, storage in schema.storage.storages.items() if path not in beside}
    leaves = {path: leaf for path, leaf in schema.leaves.items() if path not in beside}
    return replace(schema, leaves=leaves, storage=replace(schema.storage, storages=storages))


def check_marks(path: Path, schema: Schema, pictures: Sequence[Leaf]) -> None:
    """Raise `MismatchError` where pictures may be repeated and a recording has no place to mark them."""
    if missing := [leaf.path for leaf in pictures if mark_path(leaf) not in schema.leaves]:
        raise MismatchError(
            f"{path} has no marks for repeated rows of {missing[0]!r}, since it was begun with when_behind='block'; "
            f"append with that, or record into another folder"
        )


def schema_to_json(schema: Schema) -> dict[str, JSON]:
    """Return what `recording.json` says of a schema."""
    return {
        "format": FORMAT,
        "rows": schema.rows,
        "spaces": {name: space_to_json(space) for name, space in schema.spaces.items()},
        "leaves": [leaf_to_json(leaf) for leaf in schema.leaves.values()],
        "storage": schema.storage.to_json(),
    }


def read_schema(path: Path) -> Schema:
    """Return the schema of the recording in a folder.

    Raises:
        NotARecordingError: the folder holds no `recording.json`.
        FormatError: the recording is of a newer format, or the file is not of the form that the format says.
    """
    file = path / NOTE
    try:
        data = read_small(file, NOTE_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        bare = "; a Parquet or HDF5 file from elsewhere is opened by open_bare" if path.is_file() else ""
        raise NotARecordingError(f"{path} is no recording: it has no {NOTE}{bare}") from None
    try:
        number = msgspec.json.decode(data, type=_FormatOnly).format
        if number <= FORMAT:
            return _schema(msgspec.json.decode(data, type=RecordingNote))
    except (msgspec.MsgspecError, FormatError, SpaceError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(f"{file} is not what the format says: {error}") from error
    raise FormatError(f"{file} is of format {number}, this version reads up to {FORMAT}; install a newer one")


class _FormatOnly(msgspec.Struct):
    format: int


def _schema(note: RecordingNote) -> Schema:
    named = {name: space_from_json(data) for name, data in note.spaces.items()}
    if missing := {"episode": {"observation", "action"}, "single": {ROW}}[note.rows] - named.keys():
        raise FormatError(f"'spaces' lacks {sorted(missing)}")
    if note.rows == "episode":
        extra = named.get("extra", spaces.Dict())
        if not isinstance(extra, spaces.Dict):
            raise FormatError(f"the space 'extra' is a Dict, got {type(extra).__name__}")
        render, state = (named.get(name, False) for name in ("render", "state"))
        times = _times_of(named.get(TIMES))
        declared = declare(StepSpace(named["observation"], named["action"], extra.spaces, render, state, times))
    else:
        declared = declare(named[ROW])
    leaves = {leaf.path: leaf for leaf in map(leaf_from_json, note.leaves)}
    beside = {leaf.path: leaf for one in leaves.values() for leaf in (digest_leaf(one), mark_leaf(one))}
    known = {**{path: leaf for path, leaf in beside.items() if leaf == leaves.get(path)}, **declared.leaves}
    if unknown := leaves.keys() - known.keys():
        raise FormatError(f"{NOTE} has leaves that are not in its spaces: {sorted(unknown)}")
    _check_leaves(note.rows, leaves, known)
    storage: Storage = storage_from_json(note.storage)
    if not isinstance(storage, DictStorage):
        storage = DictStorage({}, storage)
    nodes = {name: node for name, node in declared.nodes.items() if all(leaf.path in leaves for leaf in node.leaves)}
    return replace(declared, nodes=nodes, leaves=leaves, storage=storage)


def _check_leaves(rows: str, leaves: Mapping[str, Leaf], declared: Mapping[str, Leaf]) -> None:
    """Raise `FormatError` unless leaves are what their spaces say, but for dtypes, which the first row decides."""
    if rows == "episode" and (missing := {"reward", "terminated", "truncated"} - leaves.keys()):
        raise FormatError(f"{NOTE} lacks the leaves {sorted(missing)}, which every episode has")
    for path, leaf in leaves.items():
        expected = declared[path]
        parts = [(one.shape, one.per, one.ragged, one.sparse, one.numpy_dtype.hasobject) for one in (leaf, expected)]
        if parts[0] != parts[1]:
            raise FormatError(f"the leaf {path!r} is {leaf.dtype} {leaf.shape}, its space says {expected.shape}")


def create(path: Path, schema: Schema) -> bool:
    """Write `recording.json`, unless another writer was first; return whether it was written."""
    make_folder(path, durable=True)
    temporary = path / f".{NOTE}.{secrets.token_hex(6)}"
    write_file(temporary, msgspec.json.format(msgspec.json.encode(schema_to_json(schema)), indent=1), durable=True)
    try:
        return link_new(temporary, path / NOTE)
    finally:
        temporary.unlink()
        sync(path)


def compare(path: Path, theirs: Schema, ours: Schema, *, storage: bool = True, dtypes: bool = False) -> None:
    """Raise `MismatchError` with all differences between a recording and what would be appended to it.

    Digests and marks make no difference: what is appended has them as the recording has.
    """
    found = list(_differences(without_beside(theirs), without_beside(ours), storage, dtypes))
    if found:
        listed = "\n  ".join(found)
        raise MismatchError(
            f"{path} holds another recording, to which this one cannot be appended:\n  {listed}\n"
            f"Record into another folder, or pass existing='replace'"
        )


def _differences(theirs: Schema, ours: Schema, storage: bool, dtypes: bool) -> Sequence[str]:
    if theirs.rows != ours.rows:
        return [f"it is a recording of {theirs.rows} rows, this one is of {ours.rows} rows"]
    found = []
    for name in dict.fromkeys([*theirs.spaces, *ours.spaces]):
        if name not in ours.spaces or name not in theirs.spaces:
            found.append(f"{name}: only {'in the recording' if name in theirs.spaces else 'here'}")
        else:
            found += differences(space_to_json(ours.spaces[name]), space_to_json(theirs.spaces[name]), name)
    if found:
        return found
    for path in dict.fromkeys([*theirs.leaves, *ours.leaves]):
        if path not in ours.leaves or path not in theirs.leaves:
            found.append(f"{path}: only {'in the recording' if path in theirs.leaves else 'here'}")
            continue
        mine, other = ours.leaves[path], theirs.leaves[path]
        if dtypes and mine.dtype != other.dtype:
            found.append(f"{path}: {mine.dtype} here, {other.dtype} in the recording")
        kept, kept_there = ours.storage.of(mine).to_json(), theirs.storage.of(other).to_json()
        if storage and kept != kept_there:
            found.append(f"{path}: kept as {kept} here, as {kept_there} in the recording")
    return found
