"""Verbs on DataFrames through a handle that has not seen the newest schema: nothing of others is lost or hidden."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import lakebed.spark
from lakebed.errors import InvalidRequest
from lakebed.objects import open_store
from lakebed.spark import jobs
from lakebed.table.table import Table
from lakebed.testing.between import Between

MakeTable = Callable[..., Table]
SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.int32())])
KEYED: dict[str, Any] = {"primary_keys": ["k"], "options": {"bucket": "2"}}


def opened(table: Table) -> Table:
    """A handle of its own."""
    return Table.open(open_store(table.url, durable=False), name="t")


def two_rows(make_table: MakeTable, **keys: Any) -> tuple[Table, Table]:
    """A table of two rows: a handle that stays as it is, and one of another writer, who adds a column and a row."""
    other = make_table(SCHEMA, **keys)
    other.write(pa.table({"k": [1, 2], "v": [10, 20]}, SCHEMA))
    return opened(other), other


def add_column(table: Table) -> None:
    """Add column x, and a row with it."""
    table.add_column("x", "STRING")
    table.write(pa.table({"k": [3], "v": [30], "x": ["three"]}))


def rows_of(table: Table) -> list[tuple[Any, ...]]:
    """What a new handle reads of the newest version, by a tag of it."""
    result = opened(table)
    newest = result.latest()
    assert newest is not None
    assert [snapshot.schema_id for snapshot in result.snapshots()] == sorted(
        snapshot.schema_id for snapshot in result.snapshots()
    )
    read = result.read(version=newest.id)
    return sorted(zip(*(column.to_pylist() for column in read.columns), strict=True))


@pytest.mark.parametrize("keys", [{}, KEYED], ids=["append", "keyed"])
def test_jobs_of_an_old_handle_keep_the_new_column(
    spark: SparkSession, make_table: MakeTable, keys: dict[str, Any]
) -> None:
    """A compaction, a delete and a write by a handle from before the column."""
    stale, other = two_rows(make_table, **keys)
    add_column(other)
    jobs.compact_table(spark, stale, full=True)
    assert rows_of(other) == [(1, 10, None), (2, 20, None), (3, 30, "three")]
    opened(other)
    lakebed.spark.delete("x is null and k = 1", stale)
    lakebed.spark.write(spark.sql("SELECT 4L k, 40 v, 'four' x"), stale)
    assert rows_of(other) == [(2, 20, None), (3, 30, "three"), (4, 40, "four")]


def test_a_merge_by_an_old_handle_keeps_what_the_rows_lack(spark: SparkSession, make_table: MakeTable) -> None:
    """Columns that others added and the rows do not bring keep their values."""
    stale, other = two_rows(make_table, **KEYED)
    add_column(other)
    lakebed.spark.merge(spark.sql("SELECT 3L k, 33 v UNION ALL SELECT 1L k, 11 v"), stale)
    assert rows_of(other) == [(1, 11, None), (2, 20, None), (3, 33, "three")]


def while_it_runs(spark: SparkSession, table: Table) -> DataFrame:
    """Rows of one task, which adds a column to the table, and a row with it, while it runs."""
    url = table.url

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            result = Table.open(open_store(url, durable=False), name="t")
            if result.schema.field_by_name("x") is None:
                result.add_column("x", "STRING")
                result.write(pa.table({"k": [3], "v": [30], "x": ["three"]}))
            yield pa.RecordBatch.from_pydict({"k": [3, 4], "v": [31, 40]}, SCHEMA)

    return spark.range(1, numPartitions=1).mapInArrow(rows, "k long, v int")


def test_a_column_that_is_added_while_a_job_runs(spark: SparkSession, make_table: MakeTable) -> None:
    """Append: the job's rows have null in it. Upsert: refused, as rows without it are, and its values stay."""
    stale, other = two_rows(make_table)
    lakebed.spark.write(while_it_runs(spark, other), stale)
    assert rows_of(other) == [(1, 10, None), (2, 20, None), (3, 30, "three"), (3, 31, None), (4, 40, None)]


def test_an_upsert_does_not_erase_a_column_that_is_added_while_it_runs(
    spark: SparkSession, make_table: MakeTable
) -> None:
    """The job is repeated under the newest schema, which its rows lack: they are refused, and the values stay."""
    stale, other = two_rows(make_table, **KEYED)
    with pytest.raises(InvalidRequest, match="no column 'x'"):
        lakebed.spark.upsert(while_it_runs(spark, other), stale)
    assert rows_of(other) == [(1, 10, None), (2, 20, None), (3, 30, "three")]


class PickledAlone(Between):
    """A store between whose calls something happens, but not in tasks: these have the table's own."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return open_store, (self.root_url,)


@pytest.mark.parametrize("compacts", [False, True], ids=["rows are deleted", "files are merged"])
def test_a_delete_that_loses_a_race_leaves_no_files(spark: SparkSession, make_table: MakeTable, compacts: bool) -> None:
    """Another writer replaces the files before the commit: the delete is repeated, and what it wrote first is gone."""
    other = make_table(SCHEMA)
    for k in (1, 2):
        other.write(pa.table({"k": [k, k + 10], "v": [10, 20]}, SCHEMA))

    def happens() -> object:
        return other.compact(full=True) if compacts else other.delete("k = 11")

    store = PickledAlone(other.store, kind="put", prefix="manifest/", happens=happens)
    lakebed.spark.delete("v = 10", Table.open(store, name="t"))
    assert store.happened
    assert rows_of(other) == ([(11, 20), (12, 20)] if compacts else [(12, 20)])
    other.compact(full=True)
    other.expire(retain_max=1, retain_min=1)
    table = opened(other)
    named = table.context.manifests.live_entries(table.latest()).column("file_name").to_pylist()
    data = {meta.path.rpartition("/")[2] for meta in table.store.list("") if meta.path.startswith("bucket-")}
    assert data == set(named)
