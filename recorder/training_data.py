"""Training data: a replay buffer or a recording, which windows and statistics take alike."""

from __future__ import annotations

from pathlib import Path

from recorder.recording import Recording
from recorder.replay_buffer.buffer import ReplayBuffer
from recorder.schema import NOTE

Source = ReplayBuffer | Recording | Path | str
"""A replay buffer, a recording, or the path of one of them."""


def opened(source: Source) -> ReplayBuffer | Recording:
    """Return what a path holds, opened; a buffer or a recording as it is.

    Raises:
        NotAReplayBufferError: the path holds neither.
    """
    if isinstance(source, ReplayBuffer | Recording):
        return source
    recorded = "://" not in str(source) and (Path(source) / NOTE).exists()
    return Recording(source) if recorded else ReplayBuffer(source)
