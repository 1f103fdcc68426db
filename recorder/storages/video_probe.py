"""Probing: whether a codec codes here what it should, found by coding and decoding two pictures."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

import av
import numpy as np

from recorder.columns import Array
from recorder.storages.video_codecs import CODECS, Coding, Encoder
from recorder.storages.video_reading import Decoders

PATIENCE = 128
"""Frames after which an encoder that gave none back is taken for one that does not work."""

UNLIKE = 60
"""How far a picture may be off on average, of 255, before a codec is taken for one that does not work."""


@cache
def probe(coding: Coding) -> int:
    """Code frames and decode two of them; return how many frames the encoder holds back.

    What is lossless is tried with noise, other codecs with smooth pictures, which they may not make unlike.

    Raises:
        FFmpegError, OSError, ValueError: the codec is missing, does not open, or changes what it may not.
    """
    rows = _tried_rows(coding)
    with tempfile.TemporaryDirectory(prefix="recorder-") as folder:
        path = Path(folder, "probe.mp4")
        encoder = Encoder(path, coding)
        try:
            while encoder.frames < 2 or not encoder.coded:
                encoder.write(rows[encoder.frames % 2][None])
                if encoder.frames > PATIENCE:
                    raise ValueError(f"it gave no frame back for the first {PATIENCE}")
            delay = encoder.frames - encoder.coded
            encoder.close()
        finally:
            encoder.abandon()
        decoded = Decoders().read(path, coding, range(2))
    if not CODECS[coding.codec].lossy and not np.array_equal(decoded, rows):
        raise ValueError("it is lossless, and yet what it decodes is not what was coded")
    if CODECS[coding.codec].lossy and np.abs(decoded.astype(float) - rows).mean() > UNLIKE:
        raise ValueError("what it decodes is unlike what was coded")
    return delay


def _tried_rows(coding: Coding) -> Array:
    """Return two pictures, of noise where all of it must come back, else of a slope from dark to bright."""
    shape = (2, *coding.row_shape)
    if not CODECS[coding.codec].lossy:
        high = np.iinfo(coding.dtype).max
        return np.random.default_rng(0).integers(0, high, shape, coding.dtype, endpoint=True)
    slope = np.add.outer(np.linspace(0, 100, coding.height), np.linspace(0, 100, coding.width))
    picture = slope if len(shape) == 3 else slope[..., None]
    return np.broadcast_to(np.stack([20 + picture, 50 + picture]), shape).astype(coding.dtype)


def works(coding: Coding) -> bool:
    """Return whether frames can be coded so here: an encoder may be listed and have no hardware."""
    try:
        probe(coding)
    except (av.FFmpegError, OSError, ValueError):
        return False
    return True
