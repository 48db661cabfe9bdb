"""Verbs on reading: the files of a scan, and what its manifests state of all rows.

Invariants: a plan covers every row of its version that may match the predicate. A file for Spark's reader either lacks
a column, or has it with its present type, under the name that the column had when the file was written. Spark's reader
can rename a column, but the jar does not cast.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
import pyarrow as pa

from lakebed.spark.catalog.plans import Readers, answer_with_splits
from lakebed.spark.catalog.rewrites import Rewritten
from lakebed.spark.catalog.verb import Session, TableVerb, register_verb, snapshot_of
from lakebed.spark.plan.filters import from_json, translate
from lakebed.table.model.model import Split
from lakebed.table.model.types import arrow_schema
from lakebed.table.read.file_stats import ColumnExtent, column_extent
from lakebed.table.read.read import ReadPlan
from lakebed.table.read.scan import scan_snapshot
from lakebed.table.table import Table


class ScanVerb(TableVerb, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request about the rows of one version.

    Attributes:
        snapshot: from the reply of `Load`; None: the table has no rows.
        schema_id: the schema whose columns are read.
    """

    snapshot: str | None = None
    schema_id: int


@register_verb("plan")
class Plan(ScanVerb, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Plan a scan.

    Attributes:
        columns: the columns to read, in order; empty: the rows are only counted, and one column is read.
        schemes: the schemes of Hadoop (``file``, ``s3a``, ``gs``) that the JVM has.
        predicates: all of them are true for the wanted rows, as `filters.from_json` reads them.
        limit: this number of rows is enough, whichever they are.
        task_count_min: number of tasks that can run at once.
        names_files: add a column with the name of each row's file; only without a primary key.
        numbers_rows: add a further column with the number of each row in its file.
        rewrites: UPDATE, DELETE or MERGE reads the rows. Without a primary key, all rows of files in which the
            predicates may be true are read, and written again. With a primary key, rows that no compaction has merged
            yet are merged, which other readers leave out in tables with deletion vectors.
        files: for a rewrite: read only files with these names; None: no restriction.
    """

    columns: list[str]
    schemes: tuple[str, ...] = ()
    predicates: list[Any] = msgspec.field(default_factory=list)
    limit: int | None = None
    task_count_min: int = 1
    names_files: bool = False
    numbers_rows: bool = False
    rewrites: bool = False
    files: list[str] | None = None

    def run(self, session: Session, lake_url: str) -> dict[str, Any]:
        table = self.open_table(session, lake_url)
        store = table.store
        splits, plan = self._splits(table)
        width = len(self.columns) if self.names_files else None
        readers = Readers(() if self.numbers_rows else self.schemes, self.task_count_min)
        return answer_with_splits(session, store, splits, plan, readers=readers, width=width, numbers=self.numbers_rows)

    def _splits(self, table: Table) -> tuple[Sequence[Split], ReadPlan]:
        schema = table.context.schemas.load(self.schema_id)
        columns = self.columns or [schema.fields[0].name]
        if self.rewrites and not schema.primary_keys:
            rewritten_split = Rewritten(
                snapshot=self.snapshot, schema_id=self.schema_id, predicates=self.predicates, files=self.files
            )
            return rewritten_split.scan(table, columns=columns)
        scan = scan_snapshot(
            table.context,
            snapshot_of(self.snapshot),
            schema_id=self.schema_id,
            merges_new=self.rewrites,
            columns=columns,
            where=translate([from_json(predicate) for predicate in self.predicates], arrow_schema(schema.fields)).where,
        )
        return scan.splits() if self.limit is None else _enough(scan.splits(), self.limit), scan.plan


class Aggregate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An aggregate function over all rows.

    Attributes:
        function: ``count_star``, ``count``, ``min`` or ``max``.
        column: the argument of the last three.
    """

    function: Literal["count_star", "count", "min", "max"]
    column: str = ""


@register_verb("aggregate")
class AggregateRows(ScanVerb, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Compute aggregates from manifest entries if these state them exactly; otherwise `values` is None.

    Dates are returned as days, timestamps as microseconds, decimals and floats as texts that Java parses.
    """

    functions: list[Aggregate]

    def run(self, session: Session, lake_url: str) -> dict[str, Any]:
        table = self.open_table(session, lake_url)
        scan = scan_snapshot(table.context, snapshot_of(self.snapshot), schema_id=self.schema_id)
        splits = scan.splits()
        is_known = all(split.is_whole for split in splits)
        if not is_known:
            return {"values": None}
        row_count = sum(split.row_count for split in splits)
        schema_of = table.context.schemas.load
        columns = {function.column for function in self.functions if function.function != "count_star"}
        extents = {
            name: column_extent(scan.entries(), name, schema=scan.table_schema, schema_of=schema_of) for name in columns
        }
        values = [_aggregate(function, row_count, extents.get(function.column)) for function in self.functions]
        return {"values": None if any(value is None for value in values) else values}


def _aggregate(aggregate: Aggregate, row_count: int, extent: ColumnExtent | None) -> list[Any] | None:
    """Return the value, in a list; None: it is not known."""
    if aggregate.function == "count_star":
        return [row_count]
    if extent is None:
        return None
    if aggregate.function == "count":
        return [row_count - extent.null_count]
    if not extent.is_exact:
        return None
    extreme = extent.least if aggregate.function == "min" else extent.greatest
    if extreme is None:
        return [None]
    kind = extreme.type
    if pa.types.is_date(kind):
        return [extreme.cast(pa.int32()).as_py()]
    if pa.types.is_timestamp(kind):
        return [extreme.cast(pa.timestamp("us", tz=kind.tz), safe=False).cast(pa.int64()).as_py()]
    if pa.types.is_floating(kind):
        return [repr(extreme.as_py()).replace("inf", "Infinity")]
    if pa.types.is_decimal(kind):
        return [str(extreme.as_py())]
    return [extreme.as_py()] if pa.types.is_integer(kind) or pa.types.is_string(kind) else None


def _enough(splits: Sequence[Split], limit: int) -> list[Split]:
    """Return splits that certainly have `limit` rows, or all. Splits with a known number of rows come first."""
    selection: list[Split] = []
    row_count = 0
    for split in sorted(splits, key=lambda split: not split.is_whole):
        if row_count >= limit:
            break
        selection.append(split)
        row_count += split.row_count if split.is_whole else 0
    return selection
