"""The errors of the package: one small tree, each also the builtin that users already catch."""


class RecorderError(Exception):
    """Any error that this package raises on purpose."""


class SpaceError(RecorderError, TypeError):
    """A space, a spec or one of their parts cannot be kept in a recording."""


class MetadataError(RecorderError, ValueError):
    """Metadata of a space does not fit the space, or names a path that is not there."""


class LayoutError(RecorderError, ValueError):
    """A storage cannot keep a leaf as promised, or an option of the layout is unknown."""


class RowError(RecorderError, ValueError):
    """A row does not fit the leaves of its recording and was refused as a whole."""


class MismatchError(RecorderError, ValueError):
    """A recording exists already and differs from what would be appended to it."""


class ExistsError(RecorderError, FileExistsError):
    """Something exists already where a recording would be made."""


class NotARecordingError(RecorderError, FileNotFoundError):
    """A folder holds no recording."""


class NotAReplayBufferError(RecorderError, FileNotFoundError):
    """A place holds no replay buffer."""


class FormatError(RecorderError, ValueError):
    """A file does not say what the format says it must."""


class WindowError(RecorderError, ValueError):
    """Windows were asked for that cannot be had: a length, an offset, a mask or weights that fit nothing."""


class DamagedError(RecorderError, OSError):
    """A file of a recording is missing, cut, or holds other bytes than were written."""


class GoneError(DamagedError):
    """An episode was rewritten or deleted by another process since it was opened; `refresh()` finds what there is."""


class BusyError(RecorderError, BlockingIOError):
    """Another process is doing what only one can do at a time: editing a recording, or writing while it is cleared."""


class EpisodeError(RecorderError, RuntimeError):
    """A call came at a time in the episode when it has no meaning."""


class DivergedError(RecorderError, ValueError):
    """A replay does not give what was recorded."""


class ClosedError(RecorderError, RuntimeError):
    """A writer was used after `close`, or in another process than the one that made it."""


class WriteError(RecorderError, OSError):
    """Work in the background failed: the disk is full, the folder went away, an encoder raised."""


class MissingExtraError(RecorderError, ImportError):
    """A package that an optional part needs is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed: pip install 'gymnasium-recorder[{extra}]'")
