"""Deleting: a shard without episodes says which no longer count; their bytes go when nothing of their shard is left."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from recorder.edit.editor import editing
from recorder.edit.rows import Edit, chosen, listed


def delete(path: Path | str, episodes: Iterable[str]) -> Edit:
    """Delete episodes by id. From then on no reader that opens the recording, or refreshes, sees them.

    Shards of which nothing is left leave the disk at once; the bytes of episodes that share a shard with others go
    with `compact`.

    Raises:
        KeyError: an id is that of no episode; nothing is deleted.
        BusyError: another process is editing the recording.
    """
    wanted = listed(episodes)
    with editing(path) as editor:
        found = chosen(editor.look(), wanted)
        if found:
            editor.state(dropped=[one for holding in found for one in holding.ids])
            editor.sweep()
    return Edit(len(wanted), 0, tuple(wanted))
