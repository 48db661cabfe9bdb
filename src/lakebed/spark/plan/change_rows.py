"""Units of changes as rows for Spark: what a task reads, and the columns that it returns. Imports no PySpark.

Owns: `ChangeRows`, `ChangePack` and `pack_changes`. Invariants: both classes can be pickled. A store is only ever an
argument, never a part of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import pyarrow as pa

import lakebed.compute as pc
from lakebed.objects.port import ObjectStore
from lakebed.repo.model.model import Entry
from lakebed.spark.plan.carried import transfer_rows, transfer_schema
from lakebed.spark.plan.shipping import locate, open_in_task, pack_units, split_bytes, split_files
from lakebed.table.changes.audit_log import AUDIT_KIND
from lakebed.table.changes.change_units import ROW_KIND_COLUMN, ROW_KINDS, ChangeUnit
from lakebed.table.changes.stream import StreamSettings, deletion_found
from lakebed.table.model.model import DataField, TableSchema
from lakebed.table.read.read import ReadPlan

CHANGE_TYPES: Final = dict(zip(ROW_KINDS, ("insert", "update_preimage", "update_postimage", "delete"), strict=True))
"""Spark's names of row kinds."""

KIND: Final = DataField(-1, ROW_KIND_COLUMN, "STRING", nullable=False)
CHANGELOG: Final = (
    DataField(-1, "_change_type", "STRING", nullable=False),
    DataField(-1, "_commit_version", "BIGINT", nullable=False),
    DataField(-1, "_commit_timestamp", "TIMESTAMP_LTZ(6)", nullable=False),
)
"""The columns that Spark adds to the changes of a table, after the table's own."""

AUDITED: Final = DataField(-1, AUDIT_KIND, "STRING", nullable=False)
"""The first column of ``$audit_log``."""

BATCH_ROWS: Final = 65_536

Deletions = Literal["kept", "refused", "left out"]


def deletions_of(settings: StreamSettings) -> Deletions:
    """Return what a stream does with deleted rows."""
    if settings.changes:
        return "kept"
    return "left out" if settings.removals == "skip" else "refused"


@dataclass(frozen=True, slots=True)
class Committed:
    """A unit of changes, and the snapshot that made them."""

    unit: ChangeUnit
    snapshot_id: int
    time_ms: int


@dataclass(frozen=True, slots=True)
class ChangePack:
    """The units of one task."""

    units: tuple[Committed, ...]
    entries: Mapping[str, Entry]
    """The entries of files of a store in a branch, for `shipping.open_in_task`; empty for all other stores."""


@dataclass(frozen=True, slots=True)
class ChangeRows:
    """How units of changes become rows."""

    plan: ReadPlan
    columns: tuple[str, ...]
    """Columns of the table, `KIND`, `AUDITED` and `CHANGELOG`, in order."""
    deletions: Deletions = "kept"

    @property
    def fields(self) -> tuple[DataField, ...]:
        """The columns of the result."""
        return change_fields(self.plan.schema, self.columns)

    def read(self, shipped: bytes, pack: ChangePack) -> Iterator[pa.RecordBatch]:
        """Read the units of a task. Raises `InvalidRequest`: a deletion, if they are refused."""
        store = open_in_task(shipped, pack.entries)
        carried_schema = transfer_schema(self.fields)
        for unit in pack.units:
            for rows in unit.unit.rows(store, self.plan):
                shown_rows = self._prepare_rows(rows, unit)
                for batch in shown_rows.to_batches(max_chunksize=BATCH_ROWS):
                    yield transfer_rows(batch, carried_schema)

    def _prepare_rows(self, rows: pa.Table, committed: Committed) -> pa.Table:
        if self.deletions != "kept":
            is_gone = pc.equal(rows.column(ROW_KIND_COLUMN), "-D")
            if self.deletions == "refused" and pc.any(is_gone).as_py():
                raise deletion_found("the table")
            rows = rows.filter(pc.invert(is_gone))
        count = rows.num_rows
        columns = []
        for name in self.columns:
            if name in rows.column_names:
                columns.append(rows.column(name))
            elif name == AUDIT_KIND:
                columns.append(rows.column(ROW_KIND_COLUMN))
            elif name == "_change_type":
                kinds = rows.column(ROW_KIND_COLUMN).combine_chunks().dictionary_encode()
                names = pa.array([CHANGE_TYPES[kind] for kind in kinds.dictionary.to_pylist()], pa.string())
                columns.append(names.take(kinds.indices))
            elif name == "_commit_version":
                columns.append(pa.repeat(pa.scalar(committed.snapshot_id, pa.int64()), count))
            else:
                instant = pa.scalar(committed.time_ms * 1000, pa.timestamp("us", tz="UTC"))
                columns.append(pa.repeat(instant, count))
        return pa.table(columns, names=list(self.columns))


def change_fields(schema: TableSchema, columns: Sequence[str]) -> tuple[DataField, ...]:
    """Return the columns of changes. The table has only the primary key of a deleted row, so the others may be null."""
    keys = schema.primary_keys
    table_fields = {
        field.name: replace(field, nullable=field.name not in keys) if keys else field for field in schema.fields
    }
    extra_fields = {field.name: field for field in (KIND, AUDITED, *CHANGELOG)}
    return tuple((extra_fields | table_fields)[name] for name in columns)


def pack_changes(store: ObjectStore, units: Sequence[Committed], *, task_count_min: int) -> list[ChangePack]:
    """Distribute units over tasks. Raises `NotFound`: a file is gone from a branch."""
    packs = pack_units(
        units,
        size_bytes=lambda committed: sum(map(split_bytes, committed.unit.splits)),
        task_count_min=task_count_min,
    )
    entries_of_packs = locate(
        store, packs, files=lambda committed: [file for split in committed.unit.splits for file in split_files(split)]
    )
    return [ChangePack(tuple(pack), entries) for pack, entries in zip(packs, entries_of_packs, strict=True)]
