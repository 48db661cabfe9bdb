"""The verb that plans a read of ``$audit_log``, whose rows executors read.

Invariant: the version is resolved once, by `tables.Load`.
"""

from __future__ import annotations

from typing import Any

from lakebed.spark.catalog.plans import Readers, answer_with_changes
from lakebed.spark.catalog.verb import Session, TableVerb, register_verb, snapshot_of, snapshot_text
from lakebed.spark.plan.change_rows import AUDITED, ChangeRows, Committed, change_fields
from lakebed.spark.plan.types import spark_schema
from lakebed.table.changes.audit_log import plan_audit
from lakebed.table.model.model import Snapshot, TableSchema


def describe_audit_log(schema: TableSchema, snapshot: Snapshot | None) -> dict[str, Any]:
    """Return ``$audit_log`` of a version as the jar reads it."""
    names = [AUDITED.name, *(field.name for field in schema.fields)]
    return {
        "audited": spark_schema(change_fields(schema, names)).json(),
        "schema_id": schema.id,
        "snapshot": snapshot_text(snapshot),
    }


@register_verb("plan_audit")
class PlanAudit(TableVerb, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Plan to read ``$audit_log``.

    Attributes:
        snapshot, schema_id: as `Load` answered; no snapshot: the table has no rows.
        columns, task_count_min: as of `Plan`.
    """

    snapshot: str | None = None
    schema_id: int
    columns: list[str]
    task_count_min: int = 1

    def run(self, session: Session, lake_url: str) -> dict[str, Any]:
        table = self.open_table(session, lake_url)
        units, plan = plan_audit(table.context, snapshot_of(self.snapshot), schema_id=self.schema_id)
        rows = ChangeRows(plan, tuple(self.columns or [AUDITED.name]))
        committed = [Committed(unit, 0, 0) for unit in units]
        return answer_with_changes(session, table.store, committed, rows, readers=Readers((), self.task_count_min))
