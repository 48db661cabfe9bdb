"""The system table ``$audit_log``: the rows of a version with the kind of each, deleted ones included.

Owns: `plan_audit`, `audit_schema` and `audit_log`. As in other clients, it has one row for each key. In a table with a
primary key, it also has the keys that were deleted, as ``-D``, until a compaction drops them. `Table.changes` shows
what happened in between.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from lakebed.table.branch.context import TableBranch
from lakebed.table.branch.travel import find_schema_id
from lakebed.table.changes.change_units import ROW_KIND_COLUMN, ChangeUnit, Inserted, Written, kind_schema
from lakebed.table.model.model import Snapshot, TableSchema
from lakebed.table.read.read import ReadPlan
from lakebed.table.read.scan import scan_snapshot

AUDIT_KIND: Final = "rowkind"
"""The first column: ``+I``, ``-U``, ``+U`` or ``-D``. The format reserves its name."""


def plan_audit(branch: TableBranch, snapshot: Snapshot | None, *, schema_id: int) -> tuple[list[ChangeUnit], ReadPlan]:
    """Plan to read the rows of a version with their kinds.

    Args:
        snapshot: None: a table without rows.
        schema_id: the schema whose columns are read.
    """
    scan = scan_snapshot(branch, snapshot, schema_id=schema_id)
    is_keyed = bool(scan.table_schema.primary_keys)
    return [Written((split,)) if is_keyed else Inserted(split) for split in scan.splits()], scan.plan


def audit_schema(schema: TableSchema) -> pa.Schema:
    """The columns: `AUDIT_KIND`, and those of the table. A deleted row may have only its key, so others may be null."""
    *columns, kind = kind_schema(schema)
    return pa.schema([kind.with_name(AUDIT_KIND), *columns])


def audit_log(branch: TableBranch, snapshot: Snapshot | None) -> pa.Table:
    """The rows of ``$audit_log``, of a version or the newest. Cost: as reading the version. Memory: all its rows."""
    schema_id = branch.schema.id if snapshot is None else find_schema_id(branch, snapshot)
    units, plan = plan_audit(branch, snapshot or branch.snapshots.latest(), schema_id=schema_id)
    rows = [part for unit in units for part in unit.rows(branch.store, plan)]
    table = pa.concat_tables([kind_schema(plan.schema).empty_table(), *rows])
    columns = [table.column(name) for name in (ROW_KIND_COLUMN, *(field.name for field in plan.schema.fields))]
    return pa.table(columns, schema=audit_schema(plan.schema))
