"""Verbs on reading: the files of a scan, and its number of rows.

Invariants: a plan holds every row of its version that the predicate may keep. A file for Spark's reader has each column
with today's type, under the name that it had when the file was written, or lacks it: Spark's reader renames, and the
jar does not cast.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from lakebed.spark.catalog.plans import Readers, planned
from lakebed.spark.catalog.rewrites import Rewritten
from lakebed.spark.catalog.verb import Session, TableVerb, declared, snapshot_of
from lakebed.spark.filters import from_json, translate
from lakebed.table.model import Split
from lakebed.table.read import ReadPlan
from lakebed.table.scan import scan_snapshot
from lakebed.table.table import Table
from lakebed.table.types import arrow_schema


class ScanVerb(TableVerb, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request about the rows of one version.

    Attributes:
        snapshot: as `Load` answered it; None: the table has no rows.
        schema_id: whose columns are read.
    """

    snapshot: str | None = None
    schema_id: int


@declared("plan")
class Plan(ScanVerb, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Plan a scan.

    Attributes:
        columns: to read, in order; empty: the rows are only counted, and one column is read.
        schemes: of those that Hadoop may have (``file``, ``s3a``, ``gs``), the ones that the JVM has.
        predicates: all of them true for the rows that are wanted, as `filters.from_json` reads them.
        limit: so many rows are enough, of which any may come.
        task_count_min: tasks that can run at once.
        names_files: after the columns comes one with the name of each row's file; only without a primary key.
        rewrites: the rows are written again: all rows of the files are read, in which the predicates may be true.
        files: of a rewrite: only files of these names; None: no restriction.
    """

    columns: list[str]
    schemes: tuple[str, ...] = ()
    predicates: list[Any] = msgspec.field(default_factory=list)
    limit: int | None = None
    task_count_min: int = 1
    names_files: bool = False
    rewrites: bool = False
    files: list[str] | None = None

    def run(self, session: Session, lake_url: str) -> dict[str, Any]:
        table = self.opened(session, lake_url)
        store = table.store
        splits, plan = self._splits(table)
        width = len(self.columns) if self.names_files else None
        return planned(session, store, splits, plan, readers=Readers(self.schemes, self.task_count_min), width=width)

    def _splits(self, table: Table) -> tuple[Sequence[Split], ReadPlan]:
        schema = table.context.schemas.load(self.schema_id)
        columns = self.columns or [schema.fields[0].name]
        if self.rewrites:
            rewritten = Rewritten(
                snapshot=self.snapshot, schema_id=self.schema_id, predicates=self.predicates, files=self.files
            )
            return rewritten.scan(table, columns=columns)
        scan = scan_snapshot(
            table.context,
            snapshot_of(self.snapshot),
            schema_id=self.schema_id,
            columns=columns,
            where=translate([from_json(one) for one in self.predicates], arrow_schema(schema.fields)).where,
        )
        return scan.splits() if self.limit is None else _enough(scan.splits(), self.limit), scan.plan


@declared("count")
class Count(ScanVerb, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Count the rows, where every file may be counted by its manifest entry; None otherwise."""

    def run(self, session: Session, lake_url: str) -> dict[str, Any]:
        table = self.opened(session, lake_url)
        splits = scan_snapshot(table.context, snapshot_of(self.snapshot), schema_id=self.schema_id).splits()
        is_known = all(split.is_whole for split in splits)
        return {"row_count": sum(split.row_count for split in splits) if is_known else None}


def _enough(splits: Sequence[Split], limit: int) -> list[Split]:
    """Return splits that certainly have so many rows, or all: splits whose rows are counted first."""
    chosen: list[Split] = []
    row_count = 0
    for split in sorted(splits, key=lambda split: not split.is_whole):
        if row_count >= limit:
            break
        chosen.append(split)
        row_count += split.row_count if split.is_whole else 0
    return chosen
