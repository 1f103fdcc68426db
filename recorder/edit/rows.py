"""Rewriting rows: columns of chosen episodes are changed, added or left out, in new shards that stand for the old."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recorder.columns import Array, ArrayColumn, Column, Ragged, RaggedColumn, SparseColumn, ragged
from recorder.digests import digest_path, digests, is_digest
from recorder.edit.building import Builder, Piece
from recorder.edit.editor import Editor, editing
from recorder.episode import Episode
from recorder.episodes import EpisodeNote
from recorder.errors import FormatError, LayoutError, RowError
from recorder.holdings import Holding, Holdings, ids_of, transitive
from recorder.leaf import (
    JSON,
    JSON_TEXT,
    MOMENT_NAMES,
    NUMBERS,
    RESERVED_NAMES,
    TEXT,
    Leaf,
    Per,
    leaf_from_json,
    leaf_to_json,
    text_array,
)
from recorder.recording import open_reader
from recorder.schema import Schema
from recorder.shard import Shard
from recorder.writing.opening import plain_json
from recorder.writing.sweeping import needed

Change = Callable[[Episode], Mapping[str, Any] | None]
"""Says of an episode which columns get which rows, by leaf path; None as rows leaves a column out."""


@dataclass(frozen=True)
class Edit:
    """What an edit did: how many episodes were changed, and in how many new shards they are."""

    episodes: int
    shards: int
    changed: tuple[str, ...] = ()

    def to_json(self) -> dict[str, JSON]:
        """Return all of it as JSON."""
        return asdict(self)


def rewrite(path: Path | str, change: Change | Mapping[str, Any], *, episodes: Iterable[str] | None = None) -> Edit:
    """Give columns of episodes other rows, add columns, or leave some out.

    Nothing that was recorded is changed: new shards stand for what they replace, and `compact` removes that. Files of
    columns that are not changed get second names, or are copied as they are coded. Each shard is changed by one
    rename; a kill leaves some episodes as they were and others as they are to be, none between.

    Args:
        path: the folder of the recording.
        change: called with each episode; returns the new rows by leaf path, as many as the episode has of the class,
            or None to leave the episode as it is. Rows None leave a column out. A path that the recording does not
            have is added: below `info` with a row for each moment, below `extra` or another name of your own with a
            row for each step. A mapping means the same change for all episodes.
        episodes: the ids of those that are to be changed; by default all.

    Raises:
        KeyError: an id is that of no episode.
        RowError: rows do not fit the leaf, or are too many or too few; nothing was changed by then, or whole shards.
        LayoutError: a column cannot be added or left out.
        BusyError: another process is editing the recording.
    """
    said: Change = change if callable(change) else lambda episode: change
    return edit_pieces(path, episodes, lambda schema, episode, shard, i: changed(schema, said, episode, shard, i))


def label(path: Path | str, labels: Mapping[str, Mapping[str, JSON]]) -> Edit:
    """Add labels to episodes by id; a label of None takes it away. No file with rows is written anew.

    Raises:
        KeyError: an id is that of no episode.
        ValueError: a label is not JSON.
        BusyError: another process is editing the recording.
    """
    if strange := [said for said in labels.values() if not isinstance(said, Mapping)]:
        raise ValueError(
            f"labels are mappings of names by id, such as {{id: {{'success': True}}}}, got {strange[0]!r:.80}"
        )
    given = {episode: plain_json(said, "labels") for episode, said in labels.items()}

    def labelled(schema: Schema, episode: Episode, shard: Shard, number: int) -> Piece | None:
        note = shard.episodes.note(number)
        kept = {name: value for name, value in (note.labels | given[note.id]).items() if value is not None}
        return None if kept == note.labels else Piece(shard, number, note=replace(note, labels=kept))

    return edit_pieces(path, list(labels), labelled)


Make = Callable[[Schema, Episode, Shard, int], Piece | None]


def edit_pieces(path: Path | str, episodes: Iterable[str] | None, make: Make) -> Edit:
    """Let `make` say what becomes of each chosen episode, or that nothing does, and commit what it says."""
    ids: list[str] = []
    with editing(path) as editor:
        for holding in chosen(editor.look(), episodes):
            reader = open_reader(holding.shard, editor.schema)
            try:
                pieces = []
                for i in holding.kept.tolist():
                    note = holding.shard.episodes.note(i)
                    episode = Episode(editor.schema, note, reader.segment(i), manifest=holding.shard.manifest)
                    if (piece := make(editor.schema, episode, holding.shard, i)) is not None:
                        pieces.append(piece)
                        ids.append(note.id)
                replace_episodes(editor, holding.shard, pieces)
            finally:
                reader.close()
        return Edit(len(ids), len(editor.shards), tuple(ids))


def listed(episodes: Iterable[str]) -> list[str]:
    """Return ids as a list, each once.

    Raises:
        ValueError: it is one text, which would be taken for as many ids as it has letters.
    """
    if isinstance(episodes, str):
        raise ValueError(f"episodes are a list of ids, got the text {episodes!r}")
    return list(dict.fromkeys(episodes))


def chosen(holdings: Holdings, episodes: Iterable[str] | None) -> list[Holding]:
    """Return the shards that hold some episodes, with those only.

    Raises:
        KeyError: an id is that of no episode.
    """
    if episodes is None:
        return [holding for holding in holdings.counting if len(holding.kept)]
    wanted = set(listed(episodes))
    found = []
    for shard, kept in holdings.counting:
        ids = ids_of(shard)
        if len(some := kept[[ids[i] in wanted for i in kept.tolist()]] if len(kept) else kept):
            found.append(Holding(shard, some))
    if unknown := wanted.difference(*(holding.ids for holding in found)):
        raise KeyError(f"no episode has the id {sorted(unknown)[0]!r}")
    return found


def replace_episodes(editor: Editor, shard: Shard, pieces: Sequence[Piece]) -> None:
    """Commit changed episodes of one shard: one new shard for all that lack the same leaves."""
    groups: dict[frozenset[str], list[Piece]] = {}
    for piece in pieces:
        groups.setdefault(frozenset(piece.absent & editor.schema.leaves.keys()), []).append(piece)
    for group in groups.values():
        builder = Builder(editor, group)
        manifest = builder.build()
        there = editor.look().shards
        if len(group) == shard.manifest.episodes:
            manifest.replaces = transitive([shard], there)
            remaining = {name: one for name, one in there.items() if name not in manifest.replaces}
            said = {one for name in manifest.replaces for one in there[name].manifest.dropped}
            manifest.dropped = needed(editor.path, said, remaining)
        else:
            ids = ids_of(shard)
            manifest.dropped = [f"{shard.name}/{ids[piece.number]}" for piece in group]
        editor.commit(manifest, shard.name, builder.sums)


def changed(schema: Schema, change: Change, episode: Episode, shard: Shard, number: int) -> Piece | None:
    """Return an episode with the columns that `change` gives it, or None if it gives none."""
    said = change(episode)
    if not said:
        return None
    note = shard.episodes.note(number)
    leaves = {leaf.path: leaf for leaf in (*schema.leaves.values(), *shard.leaves)}
    columns: dict[str, Column] = {}
    without: set[str] = set()
    for path, rows in said.items():
        leaf = leaves.get(path)
        if rows is None:
            without |= _left_out(schema, path, leaf)
        else:
            columns[path] = _column(leaf or _new_leaf(schema, path, rows), rows, note)
            columns.update(_digest_column(leaves, path, columns[path]))
    if "reward" in columns and "reward" in schema.leaves:
        note = replace(note, total=float(sum(columns["reward"][:].tolist())))
    return Piece(shard, number, columns, frozenset(without), note)


def _left_out(schema: Schema, path: str, leaf: Leaf | None) -> set[str]:
    """Return the leaves that go where one is left out: also the digests of its rows."""
    if leaf is None:
        raise LayoutError(f"no leaf {path!r} to leave out; there are {sorted(schema.leaves)}")
    if path.split("/")[0] in ("action", "reward", "terminated", "truncated"):
        raise LayoutError(f"{path!r} cannot be left out: no episode is whole without it")
    return {path, digest_path(leaf)} & {path, *schema.leaves}


def _new_leaf(schema: Schema, path: str, rows: Any) -> Leaf:
    """Return a leaf that the recording does not have yet."""
    head, _, rest = path.partition("/")
    taken = (head in RESERVED_NAMES and head not in ("info", "extra", "state")) or head in schema.nodes
    if not rest or (taken and head != "extra"):
        raise LayoutError(
            f"{path!r} cannot be added: name it 'info/…' (a row for each moment), or 'extra/…' or a name of your own "
            f"before a slash (a row for each step)"
        )
    try:
        array = np.asarray(rows)
    except ValueError as error:
        raise RowError(
            f"{path!r} cannot be added: its rows have no one shape, which a new leaf needs: {error}"
        ) from error
    dtype = TEXT if array.dtype.kind in "UO" else array.dtype.name
    if dtype not in NUMBERS | {TEXT}:
        raise RowError(f"{path!r} cannot be kept: rows are numbers or texts, got {array.dtype}")
    per: Per = "moment" if head in MOMENT_NAMES else "transition"
    leaf = Leaf(path, () if dtype == TEXT else array.shape[1:], dtype, per=per, sparse=True)
    try:
        return leaf_from_json(leaf_to_json(leaf))  # as a reader will
    except FormatError:
        raise LayoutError(f"{path!r} is no path of a leaf: its parts are names as `encode_key` makes them") from None


def _column(leaf: Leaf, rows: Any, note: EpisodeNote) -> Column:
    """Return rows as a column of a leaf, each checked as when it is recorded.

    Raises:
        RowError: they do not fit, or are too many or too few.
    """
    expected = note.moments if leaf.per == "moment" else note.transitions
    if not isinstance(rows, Sequence | np.ndarray) or (isinstance(rows, np.ndarray) and not rows.ndim):
        raise RowError(
            f"{leaf.path!r} has {expected} rows in episode {note.id}, got one {type(rows).__name__} {rows!r:.80}"
        )
    if len(rows) != expected:
        raise RowError(f"{leaf.path!r} has {expected} rows in episode {note.id}, got {len(rows)}")
    if not leaf.sparse:
        return _filled(leaf, rows)
    absent = np.ma.getmaskarray(np.ma.asanyarray(rows)).reshape(expected, -1)
    there: NDArray[np.bool_] = np.array(~absent.any(axis=1))
    return SparseColumn(leaf, there, _filled(leaf, [row for row, present in zip(rows, there, strict=True) if present]))


def _filled(leaf: Leaf, rows: Sequence[Any] | Array) -> Column:
    """Return rows that are all there as a column."""
    plain = replace(leaf, sparse=False)
    if leaf.dtype == JSON_TEXT:
        return ArrayColumn(leaf, text_array([json.dumps(plain_json({"": row}, leaf.path)[""]) for row in rows]))
    items = [plain.fit(row) for row in rows]
    if leaf.ragged:
        joined: Ragged = ragged(items, plain)
        return RaggedColumn(leaf, joined.lengths, joined.values)
    array: Array = np.array(items, plain.numpy_dtype) if plain.fixed else text_array(items)
    return ArrayColumn(leaf, array.reshape(len(items), *leaf.shape) if plain.fixed else array)


def _digest_column(leaves: Mapping[str, Leaf], path: str, column: Column) -> dict[str, Column]:
    """Return the digests of new rows of a leaf that is kept with loss."""
    digest = leaves.get(digest_path(column.leaf))
    if digest is None or not is_digest(digest):
        return {}
    return {digest.path: ArrayColumn(digest, digests(column[:]))}
