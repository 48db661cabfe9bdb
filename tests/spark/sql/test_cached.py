"""What Spark caches of a table is what the table has, after every change and under every name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from lakebed.lake.lake import Lake
from lakebed.spark.jar import catalog_settings

Run = Callable[[str], list[tuple[Any, ...]]]

NAMES = ("lake.db.t", "twin.db.t", "v")


@pytest.fixture
def cached(session: SparkSession, lake: Lake, sql: Run) -> Iterator[Run]:
    """A table with one row in each of three snapshots; the lake is the catalog ``twin`` too, and ``v`` a view."""
    for name, value in catalog_settings({"twin": lake.url + "/"}).items():
        if name.startswith("spark.sql.catalog."):
            session.conf.set(name, value)
    sql("CREATE TABLE lake.db.t (id INT)")
    for number in (1, 2, 3):
        sql(f"INSERT INTO lake.db.t VALUES ({number})")
    sql("CREATE TEMP VIEW v AS SELECT id + 0 AS id FROM lake.db.t")
    for name in NAMES:
        sql(f"CACHE TABLE {name}")
    yield sql
    session.catalog.clearCache()


def test_changes_of_rows_reach_what_is_cached(cached: Run, session: SparkSession, lake: Lake) -> None:
    """Procedures and statements by one name of the table change what is cached under all its names."""
    kept = session.table("lake.db.t").where("id > 1").cache()
    sql = cached

    def check(ids: list[int]) -> None:
        for name in NAMES:
            assert sorted(row[0] for row in sql(f"SELECT id FROM {name}")) == ids, name
        assert sorted(row.id for row in kept.select("id").collect()) == [number for number in ids if number > 1]

    check([1, 2, 3])
    sql("INSERT INTO twin.db.t VALUES (4)")
    check([1, 2, 3, 4])
    sql("CALL lake.sys.rollback('db.t', '3')")
    check([1, 2, 3])
    sql("CALL twin.sys.rollback_to_as_latest(table => '`db`.t', version => '2')")
    check([1, 2])
    sql("CALL lake.sys.create_branch('db.t', 'dev')")
    sql("CACHE TABLE lake.db.`t$branch_dev`")
    sql("INSERT INTO twin.db.t WITH (branch = 'dev') VALUES (9)")
    assert sorted(sql("SELECT id FROM lake.db.`t$branch_dev`")) == [(1,), (2,), (9,)]
    sql("CALL lake.sys.fast_forward('db.t', 'dev')")
    check([1, 2, 9])
    sql("CALL lake.sys.delete_branch('db.t', 'dev')")
    time = lake.table("db.t").snapshot(1).time_ms
    sql(f"CALL lake.sys.rollback_to_timestamp('db.t', '{time}')")
    check([1])


def test_tables_that_are_imported_and_created_again(cached: Run, lake: Lake, tmp_path: Any) -> None:
    """An import adds to what is cached; what is cached of a dropped table is not what a new one shows."""
    sql = cached
    folder = tmp_path / "files"
    folder.mkdir()
    pq.write_table(pa.table({"id": pa.array([7], pa.int32())}), folder / "a.parquet")
    sql(f"CALL lake.sys.import_table('db.t', '{folder}', 'parquet', append => true)")
    for name in NAMES:
        assert sorted(sql(f"SELECT id FROM {name}")) == [(1,), (2,), (3,), (7,)]
    sql("DROP TABLE twin.db.t")
    sql("CREATE TABLE twin.db.t (id INT)")
    sql("INSERT INTO twin.db.t VALUES (70)")
    for name in NAMES:
        assert sql(f"SELECT id FROM {name}") == [(70,)], name


def test_system_tables_are_cached_like_others(cached: Run) -> None:
    """A tag that is created is in what is cached of the tags, by either name."""
    sql = cached
    for name in ("lake.db.`t$tags`", "lake.db.t.tags", "lake.db.t.snapshots"):
        sql(f"CACHE TABLE {name}")
        sql(f"SELECT * FROM {name}")
    sql("ALTER TABLE lake.db.t CREATE TAG x")
    sql("TRUNCATE TABLE twin.db.t")
    assert sql("SELECT tag_name FROM lake.db.`t$tags`") == sql("SELECT tag_name FROM lake.db.t.tags") == [("x",)]
    assert sql("SELECT count(*) FROM lake.db.t.snapshots") == [(4,)]
