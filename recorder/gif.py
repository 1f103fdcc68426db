"""GIF: pictures one after another in a file that every browser and every chat shows, in 256 colours."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import av.filter
import numpy as np

from recorder.preview import Picture

TICK = Fraction(1, 100)
"""A GIF counts time in hundredths of a second."""


def write_gif(path: Path, pictures: Iterable[Picture], fps: float) -> int:
    """Write RGB pictures of one size, with colours that are chosen for them; return how many they were."""
    count = 0
    with av.open(str(path), "w", format="gif") as container:
        stream: Any = container.add_stream("gif", rate=Fraction(fps).limit_denominator(100))
        stream.pix_fmt = "pal8"
        stream.codec_context.time_base = TICK
        for frame in _in_few_colours(pictures, fps):
            if not count:
                stream.width, stream.height = frame.width, frame.height
            container.mux(stream.encode(frame))
            count += 1
        if count:
            container.mux(stream.encode(None))
    return count


def _in_few_colours(pictures: Iterable[Picture], fps: float) -> Iterator[Any]:
    """Yield frames with a palette, which is known only after the last picture was seen."""
    graph: Any = None
    for i, picture in enumerate(pictures):
        graph = graph or _palette_graph(picture)
        frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
        frame.pts, frame.time_base = round(i * 100 / fps), TICK
        graph.push(frame)
    if graph is None:
        return
    graph.push(None)
    while True:
        try:
            yield graph.pull()
        except (av.error.BlockingIOError, av.error.EOFError):
            return


def _palette_graph(picture: Picture) -> Any:
    """Return a filter graph that makes a palette of all pictures and draws them with it."""
    height, width = picture.shape[:2]
    graph: Any = av.filter.Graph()
    source = graph.add_buffer(width=width, height=height, format="rgb24", time_base=TICK)
    split, make, use, sink = (graph.add(name) for name in ("split", "palettegen", "paletteuse", "buffersink"))
    source.link_to(split)
    split.link_to(use, 0, 0)
    split.link_to(make, 1, 0)
    make.link_to(use, 0, 1)
    use.link_to(sink)
    graph.configure()
    return graph
