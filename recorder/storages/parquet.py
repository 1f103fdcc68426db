"""ParquetStorage: table leaves in Parquet files with a flat column for each leaf, for any reader of tables."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from recorder.columns import Array
from recorder.errors import LayoutError, MissingExtraError
from recorder.leaf import Leaf
from recorder.metadata.annotation import did_you_mean
from recorder.storages.base import register_storage
from recorder.storages.parquet_columns import parquet_table
from recorder.storages.parquet_file import ParquetFile
from recorder.storages.table_reading import Columns, TableFile
from recorder.storages.table_storage import TableStorage

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except ImportError as error:
    raise MissingExtraError("pyarrow", "parquet") from error

CODECS = ("snappy", "zstd", "gzip", "brotli", "lz4", "none")

GROUP_BYTES, MOST_GROUP_ROWS = 8 << 20, 1 << 17
"""What a row group holds if nothing else is said: one is decoded to read one row of a large column."""


@register_storage
@dataclass(frozen=True)
class ParquetStorage(TableStorage):
    """Table leaves in one Parquet file a shard, or several, with one row a moment and one flat column a leaf.

    A column is called as the path of its leaf. Numbers are plain, arrays lists of fixed size, nested as their shape
    is (bytes from 4 KiB on), texts strings, rows of changing length lists. What belongs to a step is null in the row
    of the reset. `%episode` and `%step` number the rows.

    `compression` is one of snappy, zstd, gzip, brotli, lz4 and none, for all or by leaf path or glob:
    `{"observation/*": "zstd", "*": "snappy"}`; of globs the longest that matches counts. `level` is that of the
    codecs that have levels. A file has at most `file_rows` rows, a row group `group_rows`; None leaves both to
    their size. `statistics` are the least and greatest value of each column in each row group.
    """

    id = "parquet"
    suffix = ".parquet"
    numbered = True
    compression: str | Mapping[str, str] = "snappy"
    level: int | None = None
    file_rows: int | None = None
    group_rows: int | None = None
    statistics: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.compression, Mapping):
            object.__setattr__(self, "compression", dict(self.compression))
        self._check_options()

    def __hash__(self) -> int:
        codecs = self.compression if isinstance(self.compression, str) else tuple(sorted(self.compression.items()))
        return hash((codecs, self.level, self.file_rows, self.group_rows, self.statistics))

    def check(self, leaves: Sequence[Leaf]) -> None:
        for codec in self._codecs():
            if codec != "none" and not pa.Codec.is_available(codec):
                raise self._refused("compression", "one that pyarrow has here")
            self._check_level(codec)

    def _check_options(self) -> None:
        keys = self.compression if isinstance(self.compression, Mapping) else ()
        wrong = [codec for codec in self._codecs() if codec not in CODECS]
        if wrong or not all(isinstance(key, str) for key in keys):
            nearest = did_you_mean(str(wrong[0]), CODECS) if wrong else ""
            raise self._refused("compression", f"one of {', '.join(CODECS)}, or a mapping of paths to them", nearest)
        for name in ("file_rows", "group_rows"):
            value = getattr(self, name)
            if value is not None and not (type(value) is int and value >= 1):
                raise self._refused(name, "a number from 1 on, or None")
        if self.level is not None and type(self.level) is not int:
            raise self._refused("level", "a number, or None")
        if not isinstance(self.statistics, bool):
            raise self._refused("statistics", "True or False")

    def check_names(self, leaves: Sequence[Leaf]) -> None:
        paths = [leaf.path for leaf in leaves]
        for key in self.compression if isinstance(self.compression, Mapping) else ():
            if not (any(fnmatchcase(path, key) for path in paths) or key in (*paths, "*") or key.startswith("info")):
                raise LayoutError(f"ParquetStorage(compression={{{key!r}: …}}) matches no leaf; it keeps {paths}")

    def _check_level(self, codec: str) -> None:
        if self.level is None or not _has_levels(codec):
            return
        low, high = pa.Codec.minimum_compression_level(codec), pa.Codec.maximum_compression_level(codec)
        if not low <= self.level <= high:
            raise self._refused("level", f"{codec} takes a number from {low} to {high}")

    def _refused(self, name: str, needed: str, nearest: str = "") -> LayoutError:
        return LayoutError(f"ParquetStorage({name}={getattr(self, name)!r}): {needed} is needed{nearest}")

    def _codecs(self) -> list[Any]:
        return list(self.compression.values()) if isinstance(self.compression, Mapping) else [self.compression]

    def most_rows(self) -> int:
        return self.file_rows or super().most_rows()

    def open(self, path: Path) -> TableFile:
        return ParquetFile(path)

    def encode(self, columns: Columns) -> bytes:
        table = parquet_table(columns)
        image = io.BytesIO()
        pq.write_table(table, image, **self._options(table, columns))
        return image.getvalue()

    def _options(self, table: Any, columns: Columns) -> dict[str, Any]:
        """Return how pyarrow writes a table; it wants the full path of what is inside lists."""
        places = {name: _place(table.schema.field(name)) for name in table.column_names}
        codecs = {place: self.codec(name) for name, place in places.items()}
        levels = {place: self.level for place, codec in codecs.items() if self.level is not None and _has_levels(codec)}
        rows = self.group_rows or max(1024, min(MOST_GROUP_ROWS, GROUP_BYTES * len(table) // max(table.nbytes, 1)))
        return {
            "compression": codecs or "none",
            "compression_level": levels or None,
            # Of floats a dictionary knows one NaN only.
            "use_dictionary": [place for name, place in places.items() if _repeats(columns[name])],
            "row_group_size": rows,
            "write_statistics": self.statistics,
        }

    def codec(self, name: str) -> str:
        """Return how a column is compressed."""
        if not isinstance(self.compression, Mapping):
            return self.compression
        if name in self.compression:
            return self.compression[name]
        globs = [key for key in self.compression if fnmatchcase(name, key)]
        return self.compression[max(globs, key=len)] if globs else "snappy"


def _has_levels(codec: str) -> bool:
    return codec != "none" and bool(pa.Codec.supports_compression_level(codec))


def _repeats(values: Array) -> bool:
    """Return whether a dictionary is worth a try: of texts and whole numbers."""
    return values.dtype == object or (values.ndim == 1 and values.dtype.kind in "iub")


def _place(field: Any) -> str:
    """Return the path of what is inside the lists of a column."""
    place, kind = str(field.name), field.type
    while pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
        place, kind = f"{place}.list.element", kind.value_type
    return place
