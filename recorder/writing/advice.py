"""Advice: what a user can do about what the system could not, in the words of an error."""

from __future__ import annotations

import errno

WAITING = "what waits for the disk is written when that is done, and the environment can be used meanwhile"

ADVICE = {
    errno.ENOSPC: f"the disk is full: free some space; {WAITING}",
    errno.EDQUOT: f"your quota is used up: free some space; {WAITING}",
    errno.EROFS: f"the file system is read-only: mount it for writing; {WAITING}",
    errno.EACCES: f"it is not allowed: change the permissions of the folder; {WAITING}",
    errno.EPERM: f"it is not allowed: change the permissions of the folder; {WAITING}",
    errno.EMFILE: f"the process has too many files open: close some, or raise `ulimit -n`; {WAITING}",
    errno.EIO: "the disk fails: record to another one; `recorder verify` tells what of this one can be read",
    errno.ENOENT: "the folder was removed or renamed while it was recorded into: close this recorder and record anew",
}
"""What to do, by the number of the system's error."""


def advice_for(error: BaseException | None) -> str:
    """Return what can be done about an error, or about what caused it; empty if that is not known."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in ADVICE:
            return f"; {ADVICE[error.errno]}"
        error = error.__cause__
    return ""
