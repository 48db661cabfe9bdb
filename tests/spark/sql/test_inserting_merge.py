"""MERGE that has WHEN NOT MATCHED clauses alone: it sees every row, and notices other writers; a dictionary judges."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.functions import expr

from lakebed.lake.lake import Lake
from lakebed.spark.jar import CATALOGS
from lakebed.table.table import Table, branch_of

Run = Callable[[str], list[tuple[Any, ...]]]

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])
VECTORS = {"bucket": "1", "deletion-vectors.enabled": "true"}
KEPT, CHANGED, ADDED, DELETED, NEW = range(5)
"""The last digit of an id: what happened to its row since the compaction. No row has `NEW`."""


def rows(ids: list[int], v: str) -> pa.Table:
    """Rows of one value."""
    return pa.table({"id": ids, "v": [v] * len(ids)}, schema=SCHEMA)


def all_of(digit: int) -> list[int]:
    """The ids with a last digit, below 100."""
    return list(range(digit, 100, 10))


@pytest.fixture
def table(lake: Lake) -> Table:
    """Rows of which a compaction has seen some: ordinary reads have neither the changes since nor the new rows."""
    made = lake.create_table("db.t", SCHEMA, primary_keys="id", options=VECTORS)
    made.upsert(rows(all_of(KEPT) + all_of(CHANGED) + all_of(DELETED), "old"))
    made.compact()
    made.upsert(rows(all_of(CHANGED) + all_of(ADDED), "newer"))
    made.delete(" or ".join(f"id = {id}" for id in all_of(DELETED)))
    return made


@pytest.fixture
def expected() -> dict[int, str]:
    """What `table` has."""
    return {
        **dict.fromkeys(all_of(KEPT), "old"),
        **dict.fromkeys(all_of(CHANGED) + all_of(ADDED), "newer"),
    }


def newest(table: Table) -> dict[int, str]:
    """Every row, once a compaction has seen all."""
    table.compact()
    rows = table.read()
    assert rows.num_rows == len(set(rows["id"].to_pylist()))
    return dict(zip(rows["id"].to_pylist(), rows["v"].to_pylist(), strict=True))


def test_every_row_is_seen(sql: Run, session: SparkSession, table: Table, expected: dict[int, str]) -> None:
    """In each form of the statement, and in a branch; an INSERT of what an anti join leaves stays an ordinary one."""
    for place in range(1, 7):
        session.sql(f"SELECT {place} * 10L + id AS id, 'merged' AS v FROM range(5)").createOrReplaceTempView(
            f"s{place}"
        )
    sql("CALL lake.sys.create_branch('db.t', 'b')")
    on, insert = "ON t.id = s.id", "WHEN NOT MATCHED THEN INSERT *"
    sql(f"MERGE INTO lake.db.t t USING s1 s {on} {insert}")
    some = "WHEN NOT MATCHED AND s.id = 23 THEN INSERT (v, id) VALUES ('x', 23)"
    sql(f"MERGE INTO lake.db.t t USING s2 s {on} {some} {insert}")
    sql(f"WITH s AS (SELECT * FROM s3) MERGE INTO lake.db.t t USING s {on} {insert}")
    session.table("s4").alias("s").mergeInto("lake.db.t", expr("t.id = s.id")).whenNotMatched().insertAll().merge()
    sql("CACHE TABLE lake.db.t")
    sql(f"MERGE INTO lake.db.t t USING s5 s {on} {insert}")
    sql("UNCACHE TABLE lake.db.t")
    for place in range(1, 6):
        expected |= dict.fromkeys((10 * place + DELETED, 10 * place + NEW), "merged")
    expected[23] = "x"
    # The source is read as other tables are: of the rows that ordinary reads have, 103 is no key of the target.
    sql(f"MERGE INTO lake.db.t t USING (SELECT id + 10 AS id, v FROM lake.db.t WHERE id >= 90) s {on} {insert}")
    expected |= {100 + KEPT: "old", 100 + CHANGED: "old", 100 + DELETED: "old"}
    sql("INSERT INTO lake.db.t SELECT s.id, 'over' FROM s6 s LEFT ANTI JOIN lake.db.t t ON t.id = s.id")
    expected |= {60 + ADDED: "over", 60 + NEW: "over"}

    sql(f"MERGE INTO lake.db.`t$branch_b` t USING s6 s {on} {insert}")
    of_branch = {id: v for id, v in expected.items() if v in ("old", "newer") and id < 100}
    of_branch |= {60 + ADDED: "newer", 60 + DELETED: "merged", 60 + NEW: "merged"}
    assert newest(branch_of(table, "b")) == of_branch
    assert newest(table) == expected

    session.sql("SELECT id, 'more' AS v, 7 AS w FROM VALUES (1L), (4L) AS s(id)").createOrReplaceTempView("wider")
    table.upsert(rows([4], "newer"))
    sql(f"MERGE WITH SCHEMA EVOLUTION INTO lake.db.t t USING (SELECT * FROM wider) s {on} {insert}")
    assert table.refresh().fields[-1].name == "w"
    assert newest(table) == expected | {4: "newer"}


@pytest.mark.parametrize(
    ("keys", "options"),
    [("id", VECTORS), (None, {})],
    ids=["vectors", "append"],
)
def test_a_row_that_another_writer_adds_refuses_the_statement(
    sql: Run, session: SparkSession, lake: Lake, keys: str | None, options: dict[str, str]
) -> None:
    """The MERGE has not seen it and inserts another one, which would hide it or be there twice."""
    made = lake.create_table("db.t", SCHEMA, primary_keys=keys or (), options=options)
    made.write(rows([1], "old"))

    def raced(id: int) -> int:
        now = lake.table("db.t")
        result = now.latest()
        if result is not None and result.id == 1:  # the first row does it
            now.write(rows([2], "theirs"))
        return id

    session.udf.register("raced", raced, "bigint")
    source = "(SELECT 2L AS id, 'ours' AS v) s ON t.id = raced(s.id)"
    merge = f"MERGE INTO lake.db.t t USING {source} WHEN NOT MATCHED THEN INSERT *"
    with pytest.raises(PySparkException, match="Another writer changed rows") as raised:
        sql(merge)
    assert raised.value.getSqlState() == "40001"
    assert newest(made) == {1: "old", 2: "theirs"}
    sql(merge)
    assert newest(made) == {1: "old", 2: "theirs"}


@pytest.fixture
def plain(spark: SparkSession, session: SparkSession, lake: Lake) -> Iterator[SparkSession]:
    """A session with the catalog and without lakebed's extension."""
    jvm: Any = spark._jvm
    classic: Any = spark._jsparkSession
    none = getattr(jvm.scala.collection.immutable, "Map$").__getattr__("MODULE$").empty()
    made = jvm.org.apache.spark.sql.classic.SparkSession(
        classic.sparkContext(),
        jvm.scala.Option.apply(classic.sharedState()),
        jvm.scala.Option.empty(),
        jvm.org.apache.spark.sql.SparkSessionExtensions(),
        none,
        none,
    )
    mine = SparkSession(spark.sparkContext, made)
    for name in ("", ".url", ".python"):
        mine.conf.set(f"{CATALOGS}lake{name}", str(session.conf.get(f"{CATALOGS}lake{name}")))
    yield mine
    spark.createDataFrame([], "id int")


def test_without_the_extension_it_is_refused(plain: SparkSession, table: Table, expected: dict[int, str]) -> None:
    """Where it would not see all rows; with a clause for matched rows it works, and so does an INSERT of own rows."""
    source = "(SELECT id, 'merged' AS v FROM range(5)) s ON t.id = s.id"
    for clauses in (
        "WHEN NOT MATCHED THEN INSERT *",
        "WHEN NOT MATCHED AND s.id > 9 THEN INSERT * WHEN NOT MATCHED THEN INSERT *",
    ):
        with pytest.raises(PySparkException, match=r"spark\.sql\.extensions=org\.lakebed\.spark\.LakebedExtensions"):
            plain.sql(f"MERGE INTO lake.db.t t USING {source} {clauses}")
    plain.sql("INSERT INTO lake.db.t SELECT id + 10, v FROM lake.db.t WHERE id >= 90")
    expected |= {100 + KEPT: "old", 100 + CHANGED: "old", 100 + DELETED: "old"}
    plain.sql(
        f"MERGE INTO lake.db.t t USING {source} WHEN MATCHED AND false THEN DELETE WHEN NOT MATCHED THEN INSERT *"
    )
    assert newest(table) == expected | {DELETED: "merged", NEW: "merged"}
    plain.sql("CREATE TABLE lake.db.a (id BIGINT, v STRING)")
    plain.sql(f"MERGE INTO lake.db.a t USING {source} WHEN NOT MATCHED THEN INSERT *")
    assert plain.table("lake.db.a").count() == 5
