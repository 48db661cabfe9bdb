"""Spark's writes while others change the schema: rows of tasks are carried under the newest one, or refused."""

from __future__ import annotations

import base64
import json
import pickle
from typing import Any

import pyarrow as pa
import pytest

from lakebed.errors import Conflict
from lakebed.lake.lake import Lake
from lakebed.runtime import Environment
from lakebed.spark.datasource.stream_source import StreamWriter
from lakebed.spark.plan.shipping import ship
from lakebed.spark.tasks.write_tasks import write_task
from lakebed.table.model.model import Snapshot
from lakebed.table.table import Table
from worlds.replies import Ask

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.int32())])
BROUGHT = json.dumps(
    {
        "type": "struct",
        "fields": [
            {"name": "k", "type": "long", "nullable": False, "metadata": {}},
            {"name": "v", "type": "integer", "nullable": True, "metadata": {}},
        ],
    }
)


def new_table(lake: Lake, **keys: Any) -> Table:
    """A table of one row."""
    table = lake.create_table("db.t", SCHEMA, **keys)
    table.write(pa.table({"k": [1], "v": [10]}, SCHEMA))
    return table


def task_results(table: Table, writer: str) -> list[str]:
    """What the tasks of a write return to the JVM for one row."""
    _, task, _ = pickle.loads(base64.b64decode(writer))
    rows = task.writer(table.store, Environment())
    task.add(rows, pa.table({"k": [2], "v": [20]}, SCHEMA))
    return [base64.b64encode(pickle.dumps(rows.finish())).decode()]


def add_column(table: Table) -> None:
    """Another writer adds a column, and a row with it."""
    table.add_column("x", "STRING")
    table.write(pa.table({"k": [3], "v": [30], "x": ["three"]}))


def rows_of(table: Table, **version: Any) -> list[tuple[Any, ...]]:
    """The rows of a version as tuples."""
    return sorted(zip(*(column.to_pylist() for column in table.read(**version).columns), strict=True))


def test_rows_of_tasks_are_carried_over_an_added_column(ask: Ask, lake: Lake) -> None:
    """A job into an append table that began before a column was added: null in it, and the column stays visible."""
    table = new_table(lake)
    begun = ask("begin_write", table="db.t", schema=BROUGHT)["ok"]
    results = task_results(table, begun["writer"])
    add_column(table)
    done = ask("commit", table="db.t", results=results)["ok"]
    assert table.snapshot(done["snapshot_id"]).schema_id == 1
    assert rows_of(table, version=done["snapshot_id"]) == [(1, 10, None), (2, 20, None), (3, 30, "three")]


@pytest.mark.parametrize("what", ["column", "option"])
def test_rows_of_tasks_do_not_erase_a_column_or_miss_a_log(ask: Ask, lake: Lake, what: str) -> None:
    """Into a primary-key table they are refused, and their files are deleted."""
    table = new_table(lake, primary_keys="k")
    begun = ask("begin_write", table="db.t", schema=BROUGHT)["ok"]
    results = task_results(table, begun["writer"])
    if what == "column":
        add_column(table)
    else:
        table.set_options({"changelog-producer": "input"})
    before = rows_of(table)
    error = ask("commit", table="db.t", results=results)["error"]
    assert (error["kind"], error["group"]) == ("schema_changed", "Conflict")
    assert "open the table again" in error["message"]
    assert rows_of(table) == before
    report = table.collect(grace_ms=0, dry_run=True)
    assert report.plan is not None
    assert not report.plan.doomed


def test_a_loaded_version_has_the_columns_of_its_rows(ask: Ask, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A column that is added, with rows, between the two looks of a statement is in what the statement loads."""
    table = new_table(lake)
    latest = Table.latest

    def late(opened: Table) -> Snapshot | None:
        monkeypatch.undo()
        add_column(table)
        return latest(opened)

    monkeypatch.setattr(Table, "latest", late)
    loaded = ask("load", table="db.t")["ok"]
    assert (loaded["snapshot_id"], loaded["schema_id"]) == (2, 1)
    assert [field["name"] for field in json.loads(loaded["schema"])["fields"]] == ["k", "v", "x"]


def test_batches_of_a_long_stream_are_carried_or_refused(lake: Lake) -> None:
    """A sink that began before others changed the table: a column is null in its batches, a missing log is refused."""
    table = new_table(lake)
    keyed = lake.create_table("db.keyed", SCHEMA, primary_keys="k")
    rows = pa.table({"k": [2], "v": [20]}, SCHEMA).to_batches()
    sinks = [
        StreamWriter(ship(item.store, writes=True), write_task(item), "query", False, {"path": item.url})
        for item in (table, keyed)
    ]
    add_column(table)
    keyed.set_options({"changelog-producer": "input"})
    for sink in sinks[:1]:
        sink.commit([sink.write(iter(rows))], 0)
    assert rows_of(table) == [(1, 10, None), (2, 20, None), (3, 30, "three")]
    assert [snapshot.schema_id for snapshot in table.snapshots()] == [0, 1, 1]
    with pytest.raises(Conflict) as refused:
        sinks[1].commit([sinks[1].write(iter(rows))], 0)
    assert refused.value.kind == "schema_changed"
    assert keyed.latest() is None
    report = keyed.collect(grace_ms=0, dry_run=True)
    assert report.plan is not None
    assert not report.plan.doomed
