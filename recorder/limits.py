"""Limits on what files may claim, so that a stranger's file costs an error and not the memory of the machine.

They hold for a whole process. What recordings of this package hold lies far below them; whoever has larger rows,
or reads more at once, sets others:

```python
set_limits(Limits(read_bytes=64 << 30))
```
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """The most that is taken for what a file claims.

    `row_bytes`: one row of one leaf. `read_bytes`: what one reading gives, such as `column[10:500]`. `chunk_bytes`: a
    compressed chunk, unpacked. `expansion`: how many times its size a compressed column may become; deflate reaches
    1,032.
    """

    row_bytes: int = 512 << 20
    read_bytes: int = 16 << 30
    chunk_bytes: int = 64 << 20
    expansion: int = 1_100


_limits = Limits()


def limits() -> Limits:
    """Return the limits that hold."""
    return _limits


def set_limits(new: Limits) -> Limits:
    """Let other limits hold from now on, in this process; return those that held before."""
    global _limits
    before, _limits = _limits, new
    return before
