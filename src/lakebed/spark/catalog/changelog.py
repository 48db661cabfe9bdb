"""Verbs on what snapshots changed: ``SELECT ... FROM t CHANGES FROM VERSION 1 TO VERSION 3``.

Invariant: the range is resolved once, by `LoadChanges`, to ids of snapshots.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lakebed.spark.catalog.plans import Readers, answer_with_changes
from lakebed.spark.catalog.verb import Session, TableVerb, register_verb
from lakebed.spark.plan.change_rows import CHANGELOG, ChangeRows, Committed, change_fields
from lakebed.spark.plan.types import spark_schema
from lakebed.spark.streams.stream_options import CHANGELOG_NAMES, refuse_names
from lakebed.table.changes.incremental import whole_rows
from lakebed.table.changes.stream import Bound, StreamSettings, TableStream
from lakebed.table.read.scan import check_readable

_EXACT = StreamSettings(changes=True)


@register_verb("load_changes")
class LoadChanges(TableVerb, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Resolve a range of snapshots.

    Attributes:
        first, last: versions; None: the oldest, the newest.
        first_us, last_us: Unix times in microseconds, UTC, instead of versions.
        has_first, has_last: whether the range includes the snapshots at its bounds.
    """

    first: str | None = None
    last: str | None = None
    first_us: int | None = None
    last_us: int | None = None
    has_first: bool = True
    has_last: bool = True

    def run(self, session: Session, lake_url: str) -> dict[str, Any]:
        table = self.open_table(session, lake_url)
        schema = table.schema
        check_readable(schema)
        refuse_names(schema, *CHANGELOG_NAMES)
        first, last = (
            None if version is None and time_us is None else Bound(version, _ms(time_us), is_in)
            for version, time_us, is_in in (
                (self.first, self.first_us, self.has_first),
                (self.last, self.last_us, self.has_last),
            )
        )
        after, until = TableStream(table.context, _EXACT, schema=schema).span(first, last)
        names = [field.name for field in (*schema.fields, *CHANGELOG)]
        return {
            "name": table.name,
            "branch": self.branch,
            "schema": spark_schema(change_fields(schema, names)).json(),
            "schema_id": schema.id,
            "primary_keys": schema.primary_keys,
            "after": after,
            "until": until,
        }


def _ms(time_us: int | None) -> int | None:
    return None if time_us is None else time_us // 1000


@register_verb("plan_changes")
class PlanChanges(TableVerb, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Plan to read what each snapshot of a range changed.

    Attributes:
        schema_id, after, until: values from the reply of `LoadChanges`.
        columns, task_count_min: as in `Plan`.
    """

    schema_id: int
    after: int
    until: int
    columns: list[str]
    task_count_min: int = 1

    def run(self, session: Session, lake_url: str) -> dict[str, Any]:
        table = self.open_table(session, lake_url)
        schema = table.context.schemas.load(self.schema_id)
        plan = whole_rows(table.context, schema)
        units = []
        for snapshot, batch in TableStream(table.context, _EXACT, schema=schema).commits(self.after, self.until):
            plan = replace(plan, schemas={**plan.schemas, **batch.plan.schemas})
            units += [Committed(unit, snapshot.id, snapshot.time_ms) for unit in batch.units]
        rows = ChangeRows(plan, tuple(self.columns or CHANGELOG_NAMES[:1]))
        return answer_with_changes(session, table.store, units, rows, readers=Readers((), self.task_count_min))
