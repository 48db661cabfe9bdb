"""The folders of a table's data files, by partition and bucket. Pure.

Owns: `Placement`, by the options ``partition.legacy-name``, ``partition.default-name`` and
``data-file.path-directory``, and the folders that other writers use. The folders are those of the format's Java
implementation (DO NOT CHANGE: other clients find files by them); docs/format/layout.md describes them.

Invariants:
- New files are always written to the first of a bucket's folders.
- A bucket has more than one folder only if pypaimon, lakebed up to version 0.2 or another version of Java prints some
  value differently. A file is in exactly one of them; its name does not tell which.
- A partition value without a computable folder is refused.
"""

from __future__ import annotations

import datetime
import decimal
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from lakebed.errors import InvalidRequest, UnsupportedFormat
from lakebed.objects.path import is_path, is_url
from lakebed.table.codec.binary_row import decode_rows
from lakebed.table.codec.java_text import (
    date_text,
    is_blank,
    iso_timestamp_text,
    newer_text,
    older_text,
    pad_timestamp_text,
    time_text,
)
from lakebed.table.model.external_paths import ExternalPaths
from lakebed.table.model.model import TableSchema
from lakebed.table.model.options import (
    BUCKET,
    BUCKET_FUNCTION,
    BUCKET_KEY,
    DATA_FILE_DIRECTORY,
    OPTIONS,
    PARTITION_DEFAULT_NAME,
    PARTITION_LEGACY_NAME,
    TYPE,
    TableOptions,
)
from lakebed.table.model.types import BINARY_ROOTS, Type, parse_type

DEFAULT_PARTITION: Final = "__DEFAULT_PARTITION__"
"""Folder value of a null or blank partition value, without the option ``partition.default-name``."""

Texts = Sequence[str | None]
FloatingText = Callable[..., str]

_IMPLEMENTED: Final = (
    BUCKET,
    BUCKET_KEY,
    BUCKET_FUNCTION,
    TYPE,
    PARTITION_LEGACY_NAME,
    PARTITION_DEFAULT_NAME,
    DATA_FILE_DIRECTORY,
)
"""Options that decide the location of rows and files; an invalid value is refused."""

_OFF: Final = frozenset(("false", ""))
_NOT_IMPLEMENTED: Final = {
    "index-file-in-data-file-dir": _OFF,
    "global-index.external-path": frozenset(("",)),
    "chain-table.enabled": _OFF,
    "pk-clustering-override": _OFF,
    "primary-key.nullable": _OFF,
    "blob-field": frozenset(("",)),
    "blob-descriptor-field": frozenset(("",)),
    "blob-external-storage-field": frozenset(("",)),
    "blob-external-storage-path": frozenset(("",)),
    "blob-view-field": frozenset(("",)),
    "vector-field": frozenset(("",)),
}
"""Other such options of the format, with the values that change nothing."""

_PREFIXES: Final = ("data-file.", "bucket")
"""Unknown options with these prefixes are treated like options that decide the location."""

_ABOUT_OTHERS: Final = frozenset(("bucket-append-ordered", "data-file.thin-mode"))
"""Options with these prefixes that do not decide the location."""

_FLOATING: Final = frozenset(("FLOAT", "DOUBLE"))
_SPECIAL: Final = re.compile("[\\x00-\\x1f\\x7f\"#%'*/:=?\\\\{}\\[\\]^]")
_FIRST_DAY: Final = -719_162
_LAST_DAY: Final = 2_932_896
"""0001-01-01 and 9999-12-31 in days since 1970."""
_PER_SECOND: Final = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


@dataclass(frozen=True, slots=True)
class Placement:
    """The folders of one table's data files."""

    names: tuple[str, ...]
    """Partition columns, in order."""
    types: tuple[str, ...]
    is_legacy: bool
    """Values are printed by Java's ``toString`` (DATE as days), not by its cast to text."""
    default_name: str
    directory: str
    """Folder below the table's that holds all partitions; ``""``: the table's own."""

    @classmethod
    def of(cls, schema: TableSchema) -> Placement:
        """The placement by a table's schema and options.

        Raises `InvalidRequest`: an invalid option, or a directory outside the table.
        """
        options = TableOptions(schema.options)
        return cls(
            names=schema.partition_keys,
            types=tuple(field.type for field in schema.partition_fields),
            is_legacy=options.get(PARTITION_LEGACY_NAME),
            default_name=options.get(PARTITION_DEFAULT_NAME),
            directory=options.get(DATA_FILE_DIRECTORY),
        )

    def folders(self, partition: bytes, bucket: int) -> tuple[str, ...]:
        """Folders of one bucket, relative to the table's; files are written to the first. See `partition_folders`."""
        (folders,) = self.partition_folders(pa.array([partition], pa.binary()))
        return bucket_folders(folders, bucket)

    def partition_folders(self, partitions: pa.Array) -> list[tuple[str, ...]]:
        """Folders of some partitions: the first is for new files, the others may have older ones.

        Args:
            partitions: BinaryRows of the partition columns.

        Raises `UnsupportedFormat`: a value that has no folder name: of a binary type, or a date outside the years 1 to
        9999. Cost: about 5 us a value, 20 us of FLOAT and DOUBLE.
        """
        if not self.names:
            folders = tuple(dict.fromkeys((self.directory, "")))
            return [folders] * len(partitions)
        columns = decode_rows(partitions, self.types)
        typed_columns = list(zip(columns, self.types, self.names, strict=True))
        older = [self._java(column, older_text) for column in typed_columns]
        is_floating = any(parse_type(text).root in _FLOATING for text in self.types)
        newer = [self._java(column, newer_text) for column in typed_columns] if is_floating else older
        values = [_python_values(column, name) for column, _, name in typed_columns]
        earlier = [[_earlier_text(value) for value in column] for column in values]
        python = [self._name_values([None if value is None else str(value) for value in column]) for column in values]
        java = self._paths(older, escape)
        is_same = older == newer == earlier == python and not self.directory
        if is_same and java == self._paths(python, str):
            return [(path,) for path in java]
        spellings = (java, self._paths(newer, escape), self._paths(earlier, escape, below=""), self._paths(python, str))
        # A value that is not escaped, such as "a/../b", or a name such as "file:/a", may lead elsewhere.
        return [tuple(dict.fromkeys(filter(_is_inside, row))) for row in zip(*spellings, strict=True)]

    def specs(self, partitions: pa.Array) -> list[dict[str, str]]:
        """The values of some partitions by column, as the texts in folder names. Raises as `partition_folders`."""
        if not self.names:
            return [{} for _ in range(len(partitions))]
        columns = decode_rows(partitions, self.types)
        texts = [self._java(column, newer_text) for column in zip(columns, self.types, self.names, strict=True)]
        return [dict(zip(self.names, row, strict=True)) for row in zip(*texts, strict=True)]

    def _java(self, described: tuple[pa.Array, str, str], floating: FloatingText) -> list[str]:
        return self._name_values(_java_texts(*described, is_legacy=self.is_legacy, floating=floating))

    def _paths(
        self, texts: Sequence[Sequence[str]], spelled: Callable[[str], str], *, below: str | None = None
    ) -> list[str]:
        start = self.directory if below is None else below
        columns = [
            [f"{name}={spelled(text)}" for text in column]
            for name, column in zip(map(spelled, self.names), texts, strict=True)
        ]
        return ["/".join(row) for row in zip(*([[start] * len(columns[0])] if start else []), *columns, strict=True)]

    def _name_values(self, texts: Texts) -> list[str]:
        return [self.default_name if text is None or is_blank(text) else text for text in texts]


def _is_inside(path: str) -> bool:
    return is_path(path) and not is_url(path)


def check_placement(schema: TableSchema) -> None:
    """Refuse a table with an option that decides the location of rows or files and that lakebed does not implement.

    Every operation that writes or deletes calls it first. Reads need no such check.

    Raises `InvalidRequest`: such an option, invalid external paths, or a partition column without folder names.
    """
    for name, text in schema.options.items():
        option = OPTIONS.get(name)
        harmless = _NOT_IMPLEMENTED.get(name)
        if option in _IMPLEMENTED:
            TableOptions(schema.options).get(option)
        elif harmless is not None:
            if text.strip().lower() not in harmless:
                raise _not_implemented(name, text)
        elif option is None and name.startswith(_PREFIXES) and name not in _ABOUT_OTHERS:
            raise _not_implemented(name, text)
    ExternalPaths.of(schema.options)
    Placement.of(schema)
    for field in schema.partition_fields:
        if parse_type(field.type).root in BINARY_ROOTS:
            raise InvalidRequest(_no_folder(field.name, field.type), kind="unsupported_partition", column=field.name)


def _not_implemented(name: str, text: str) -> InvalidRequest:
    return InvalidRequest(
        f"Option {name!r} = {text!r} decides the location of rows or files of the table, and this version of lakebed "
        "does not implement it: the table can be read, but neither written nor cleaned.",
        kind="unsupported_option",
        option=name,
    )


def _no_folder(name: str, type_text: str) -> str:
    return (
        f"The partition column {name!r} has the type {type_text}, for whose values no client of the format has a "
        "stable folder name: copy the rows into a table that is partitioned by a text."
    )


def bucket_folders(partition_folders: Sequence[str], bucket: int) -> tuple[str, ...]:
    """Folders of a bucket inside the folders of its partition: ``dt=2013-01-01/bucket-0``."""
    name = "bucket-postpone" if bucket == -2 else f"bucket-{bucket}"
    return tuple(f"{folder}/{name}" if folder else name for folder in partition_folders)


def partition_values(partitions: pa.Array, schema: TableSchema) -> list[dict[str, Any]]:
    """The values of some partitions by column, as Python objects.

    Raises `UnsupportedFormat`: a value that Python's types cannot hold, such as a date outside the years 1 to 9999.
    """
    names = schema.partition_keys
    if not names:
        return [{} for _ in range(len(partitions))]
    types = [field.type for field in schema.partition_fields]
    columns = [_python_values(column, name) for column, name in zip(decode_rows(partitions, types), names, strict=True)]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def escape(text: str) -> str:
    """Special characters of a path as ``%XX``."""
    return _SPECIAL.sub(lambda match: f"%{ord(match[0]):02X}", text)


def _java_texts(
    column: pa.Array, type_text: str, name: str, *, is_legacy: bool, floating: FloatingText
) -> list[str | None]:
    """The values as Java prints them; None for null."""
    kind = parse_type(type_text)
    if kind.root in BINARY_ROOTS:
        raise UnsupportedFormat(_no_folder(name, type_text), kind="unsupported_partition", column=name)
    if kind.root in _FLOATING:
        is_single = kind.root == "FLOAT"
        return [None if value is None else floating(value, is_single=is_single) for value in column.to_pylist()]
    values, printed = _printable(column, kind, is_legacy=is_legacy, name=name)
    return [None if value is None else printed(value) for value in values]


def _printable(column: pa.Array, kind: Type, *, is_legacy: bool, name: str) -> tuple[list[Any], Callable[[Any], str]]:
    """The values of a column in the form that its printer takes, and the printer."""
    precision = kind.precision or 0
    match kind.root:
        case "DATE":
            days = column.cast(pa.int32()).to_pylist()
            _check_days(days, name)
            return days, str if is_legacy else date_text
        case "TIME":
            milliseconds = column.cast(pa.int32()).to_pylist()
            return milliseconds, str if is_legacy else lambda value: time_text(value, precision=precision)
        case "TIMESTAMP" | "TIMESTAMP_LTZ":
            per_second = _PER_SECOND[column.type.unit]
            ticks = column.cast(pa.int64()).to_pylist()
            _check_days([None if tick is None else tick // (86_400 * per_second) for tick in ticks], name)
            nanoseconds = [None if tick is None else tick * (10**9 // per_second) for tick in ticks]
            if is_legacy:
                return nanoseconds, iso_timestamp_text
            return nanoseconds, lambda value: pad_timestamp_text(value, precision=precision)
        case "DECIMAL":
            return column.to_pylist(), lambda value: format(value, "f")
        case "BOOLEAN":
            return column.to_pylist(), lambda value: "true" if value else "false"
        case _:
            return column.to_pylist(), str


def _check_days(days: Sequence[int | None], name: str) -> None:
    for day in days:
        if day is not None and not _FIRST_DAY <= day <= _LAST_DAY:
            raise UnsupportedFormat(
                f"The partition column {name!r} holds the day {day:,} after 1970-01-01, which is outside the years 1 "
                "to 9999: lakebed has no folder name for it.",
                kind="unsupported_partition",
                column=name,
            )


def _python_values(column: pa.Array, name: str) -> list[Any]:
    try:
        return column.to_pylist()  # type: ignore[no-any-return]
    except (ValueError, OverflowError) as error:
        raise UnsupportedFormat(
            f"The partition column {name!r} ({column.type}) holds a value that lakebed cannot represent: {error}.",
            kind="unsupported_partition",
            column=name,
        ) from error


def _earlier_text(value: object) -> str:
    """The folder name of a value in lakebed up to version 0.2. DO NOT CHANGE: such files exist."""
    if value is None:
        return DEFAULT_PARTITION
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime.datetime):
        return value.replace(tzinfo=None).isoformat(sep=" ")
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return format(value, "f")
    text = str(value)
    return text if text.strip() else DEFAULT_PARTITION
