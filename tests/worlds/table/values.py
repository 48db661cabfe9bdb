"""Tables of two columns, next to a dictionary: values by id."""

from __future__ import annotations

import uuid
from typing import Any

import pyarrow as pa

from lakebed.fsck.model import CheckReport, Findings
from lakebed.fsck.table import check_table
from lakebed.objects.port import ObjectStore
from lakebed.runtime import Environment
from lakebed.table.branch.manifest_reader import PROCESS_CACHE
from lakebed.table.table import Table
from worlds.table.world import inline_environment

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])
Rows = dict[int, int]


def environment() -> Environment:
    """Time moves on request, pools run in their caller, and names are unique over all tests."""
    return inline_environment(uuid.uuid4().int)


def rows(values: Rows) -> pa.Table:
    """Rows by id."""
    return pa.table({"id": list(values), "v": list(values.values())}, SCHEMA)


def opened(store: ObjectStore, branch: str | None = None) -> Table:
    """The table as a new process sees it."""
    PROCESS_CACHE.clear()
    return Table.open(store, name="t", branch=branch, environment=environment())


def values_of(table: Table, **options: Any) -> Rows:
    """What a version has; every row once, and as many as it counts."""
    rows = table.read(**options)
    values = dict(zip(rows["id"].to_pylist(), rows["v"].to_pylist(), strict=True))
    assert len(values) == rows.num_rows == table.scan(**options).count()
    return values


def files_in(table: Table, folder: str) -> set[str]:
    """The objects below a folder."""
    return {meta.path for meta in table.store.list(folder)}


def sound(table: Table) -> None:
    """The deep check finds no error."""
    report = CheckReport(table.url, deep=True)
    check_table(table, Findings(report, store="t"))
    assert not report.error_count, [finding.sentence for finding in report.findings if finding.severity == "error"]
