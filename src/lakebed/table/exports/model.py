"""What an export reads, takes and reports, and the conversion of columns to the types of another format."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from lakebed.errors import InvalidRequest
from lakebed.objects.open import open_elsewhere, open_store
from lakebed.objects.path import parse_url
from lakebed.objects.port import ObjectStore
from lakebed.table.branch.travel import Time
from lakebed.table.codec.required_members import cast_members
from lakebed.table.model.model import Split
from lakebed.table.model.types import parse_type
from lakebed.table.read.read import read_split
from lakebed.table.read.scan import Scan
from lakebed.table.table import Table
from lakebed.texts import format_count, format_value


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """What is exported, and how."""

    version: int | str | None = None
    """A snapshot id, a tag or a branch; None: the newest version."""
    timestamp_ms: Time | None = None
    """The newest version at or before a time, instead of `version`."""
    overwrite: bool = False
    """Replace the content of the target. A Delta or an Iceberg table gets a new version, Parquet files are replaced."""
    catalog: str | None = None
    """Iceberg: the name of a configured catalog; the target is a table's identifier there."""
    storage_options: Mapping[str, str] | None = field(default=None, repr=False)
    """Settings of the target's object store, in lakebed's spelling.

    None: no settings for a folder, and the vendor's environment variables for a bucket.
    """


@dataclass(frozen=True, slots=True)
class ExportProgress:
    """The progress of an export, in rows. In a primary-key table the total includes rows that merging drops."""

    done_count: int
    total_count: int


ProgressCall = Callable[[ExportProgress], None]


@dataclass(frozen=True, slots=True)
class ExportReport:
    """What an export wrote."""

    table: str
    format: str
    target: str
    snapshot_id: int | None
    """None: the table has no snapshots."""
    row_count: int
    target_version: str | None = None
    """The version that a Delta table has now, the metadata file of an Iceberg table; None: the format has none."""

    @property
    def sentence(self) -> str:
        """The report in one sentence."""
        version = "" if self.target_version is None else f" ({self.target_version})"
        return (
            f"{self.table}: exported {format_count(self.row_count, 'row')} of snapshot {self.snapshot_id} as "
            f"{self.format} "
            f"to {self.target}{version}."
        )


def open_target(table: Table, target: str, options: ExportOptions) -> ObjectStore:
    """Open the store of an export's target, which is another one than the table's."""
    if options.storage_options is not None and parse_url(target).scheme not in ("file", "memory"):
        return open_store(target, storage_options=options.storage_options, environment=table.context.environment)
    return open_elsewhere(table.store, target)


Converts = Callable[[pa.DataType], pa.DataType | None]
"""Maps a plain Arrow type to that of the target format; None: the format has no such type."""


class Rows:
    """The rows of a scan in a target's types, read once, in batches; counts them.

    Attributes:
        schema: of the batches.
        row_count: rows that were read so far.
        refusal: why the last batch could not be converted, for callers that get their library's error instead.
    """

    def __init__(
        self,
        store: ObjectStore,
        scan: Scan,
        *,
        format: str,
        converts: Converts,
        progress: ProgressCall | None,
        without: Iterable[str] = (),
    ) -> None:
        """Convert the columns.

        Args:
            store: the table's store.
            without: columns that are left out.

        Raises `InvalidRequest`: a column whose type the format lacks.
        """
        self._store = store
        self._scan = scan
        self._format = format
        self._progress = progress
        self._total = 0 if scan.snapshot is None else scan.snapshot.total_record_count
        self.row_count = 0
        self.refusal: InvalidRequest | None = None
        left_out = set(without)
        kinds = {field.name: field.type for field in scan.table_schema.fields}
        self.schema = pa.schema(
            [
                pa.field(
                    field.name,
                    _convert_type(field.type, kinds[field.name], field.name, format, converts),
                    field.nullable,
                )
                for field in scan.schema
                if field.name not in left_out
            ]
        )

    def report(self, table: str, target: str, *, version: str | None = None) -> ExportReport:
        """The report for the rows that were read so far; `version` is `ExportReport.target_version`."""
        snapshot_id = None if self._scan.snapshot is None else self._scan.snapshot.id
        return ExportReport(table, self._format, target, snapshot_id, self.row_count, version)

    def reader(self) -> pa.RecordBatchReader:
        """All rows as an Arrow stream."""
        return pa.RecordBatchReader.from_batches(self.schema, self.batches())

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All rows."""
        for rows in self.of(self._scan.to_batches()):
            yield from rows.to_batches()

    def by_partition(self) -> Iterator[tuple[Mapping[str, object], Iterator[pa.Table]]]:
        """The values of each partition, with its rows."""
        scan = self._scan
        groups: dict[bytes, list[int]] = {}
        splits = scan.splits()
        for position, split in enumerate(splits):
            groups.setdefault(split.partition, []).append(position)
        for positions in groups.values():
            yield splits[positions[0]].partition_values, self.of(self._read([splits[i] for i in positions]))

    def _read(self, splits: Iterable[Split]) -> Iterator[pa.RecordBatch]:
        for split in splits:
            yield from read_split(self._store, split, plan=self._scan.plan)

    def of(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
        """Batches of the scan in the target's types. Raises `InvalidRequest`: a value that the target cannot hold."""
        for batch in batches:
            if batch.num_rows == 0:
                continue
            try:
                columns = [_cast(batch.column(field.name), field) for field in self.schema]
            except InvalidRequest as refusal:
                self.refusal = refusal
                raise
            self.row_count += batch.num_rows
            if self._progress is not None:
                self._progress(ExportProgress(self.row_count, max(self._total, self.row_count)))
            yield pa.Table.from_arrays(columns, schema=self.schema)


def _cast(column: pa.Array, field: pa.Field) -> pa.Array:
    try:
        return cast_members(column, field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as wrong:
        raise InvalidRequest(
            f"The column {field.name!r} has a value that the target's type {field.type} cannot hold: "
            f"{str(wrong).partition(chr(10))[0].rstrip('.')}.",
            kind="unsupported_value",
            column=field.name,
        ) from wrong


def _convert_type(kind: pa.DataType, text: str, name: str, format: str, converts: Converts) -> pa.DataType:
    def inner(kind: pa.DataType) -> pa.DataType:
        types = pa.types
        if types.is_struct(kind):
            return pa.struct([member.with_type(inner(member.type)) for member in kind])
        if types.is_map(kind):
            key, value = kind.key_field, kind.item_field
            return pa.map_(key.with_type(inner(key.type)), value.with_type(inner(value.type)))
        if types.is_list(kind):
            return pa.list_(kind.value_field.with_type(inner(kind.value_type)))
        target = converts(kind)
        if target is None:
            raise _type_error(name, text, format)
        return target

    if _has_variant(text) and format != "parquet":
        raise _type_error(name, text, format)
    return inner(kind)


def _has_variant(text: str) -> bool:
    data_type = parse_type(text)
    parts = [*data_type.children, *(member.type for member in data_type.fields)]
    return data_type.root == "VARIANT" or any(_has_variant(str(kind)) for kind in parts)


def _type_error(name: str, text: str, format: str) -> InvalidRequest:
    return InvalidRequest(
        f"The column {format_value(name)} is {text}, which {format} has no type for: export a table without it.",
        kind="unsupported_type",
        column=name,
    )
