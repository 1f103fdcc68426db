"""The contract of a storage as a test class, for the storages here and for those from outside the package.

    class TestHDF5Storage(StorageContract):
        storage, leaves = HDF5Storage(), TABLE_LEAVES

It needs pytest. The class attributes of `StorageContract` say what a storage promises beyond the least.
"""

from __future__ import annotations

from recorder.testing.children import in_child
from recorder.testing.comparing import assert_rows
from recorder.testing.diary import Diary
from recorder.testing.reading import ReadingContract
from recorder.testing.recovery import RecoveryContract
from recorder.testing.rows import (
    ALPHA_LEAVES,
    ARRAY_LEAVES,
    GREY_LEAVES,
    INFO_LEAVES,
    PICTURE_LEAVES,
    RAGGED,
    TABLE_LEAVES,
    TEXT_LEAF,
    as_read,
    rows_of,
)
from recorder.testing.values import ValueContract
from recorder.testing.writing import WritingContract

__all__ = [
    "ALPHA_LEAVES",
    "ARRAY_LEAVES",
    "GREY_LEAVES",
    "INFO_LEAVES",
    "PICTURE_LEAVES",
    "RAGGED",
    "TABLE_LEAVES",
    "TEXT_LEAF",
    "Diary",
    "StorageContract",
    "as_read",
    "assert_rows",
    "in_child",
    "rows_of",
]


class StorageContract(WritingContract, RecoveryContract, ReadingContract, ValueContract):
    """All that a storage promises; a subclass says which storage, and with which leaves, see `Contract`."""
