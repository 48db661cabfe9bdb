"""UPDATE, DELETE and MERGE of tables without a primary key: files are replaced, and no row of them is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lakebed.lake.lake import Lake
from lakebed.table.table import Table

Run = Callable[[str], list[tuple[Any, ...]]]

ROWS = 3000
SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string()), ("p", pa.int32())])


def rows(start: int, *, p: int) -> pa.Table:
    """Rows with consecutive ids in one partition."""
    ids = list(range(start, start + ROWS))
    return pa.table({"id": ids, "v": [f"v{id}" for id in ids], "p": [p] * ROWS}, schema=SCHEMA)


def files_of(table: Table) -> set[str]:
    """The names of the newest version's files."""
    newest = table.latest()
    assert newest is not None
    return set(table.context.manifests.live_entries(newest).column("file_name").to_pylist())


@pytest.fixture
def table(lake: Lake) -> Table:
    """Three files in two partitions; each file has many row groups, so that a filter of these would lose rows."""
    made = lake.create_table("db.t", SCHEMA, partition_keys="p", options={"file.block-size": "4 kb"})
    for start, p in ((0, 0), (ROWS, 0), (2 * ROWS, 1)):
        made.append(rows(start, p=p))
    return made


def test_files_are_replaced_with_all_their_other_rows(sql: Run, table: Table) -> None:
    """By statements that pruning helps, and by one that only Spark can evaluate; judged by a dictionary."""
    expected = {id: (f"v{id}", id // (2 * ROWS)) for id in range(3 * ROWS)}
    before = files_of(table)
    sql("UPDATE lake.db.t SET v = 'changed' WHERE id = 7")
    expected[7] = ("changed", 0)
    assert len(before & files_of(table)) == 2

    before = files_of(table)
    sql(f"DELETE FROM lake.db.t WHERE reverse(v) = reverse('v{ROWS + 5}')")
    del expected[ROWS + 5]
    assert len(before & files_of(table)) == 2

    before = files_of(table)
    sql(
        f"MERGE INTO lake.db.t t USING (SELECT id FROM range({3 * ROWS - 2}, {3 * ROWS + 2})) s ON t.id = s.id "
        "WHEN MATCHED AND s.id % 2 = 0 THEN UPDATE SET v = 'merged', p = 2 WHEN MATCHED THEN DELETE "
        "WHEN NOT MATCHED THEN INSERT (id, v, p) VALUES (s.id, 'new', 2)"
    )
    expected[3 * ROWS - 2] = ("merged", 2)
    del expected[3 * ROWS - 1]
    expected |= dict.fromkeys((3 * ROWS, 3 * ROWS + 1), ("new", 2))
    assert len(before & files_of(table)) == 2

    rows = table.read()
    assert rows.num_rows == len(expected)
    assert {row["id"]: (row["v"], row["p"]) for row in rows.to_pylist()} == expected
    kinds = [row["commit_kind"] for row in table.system("snapshots").to_pylist()]
    assert kinds[3:] == ["OVERWRITE"] * 3


@pytest.mark.parametrize("race", ["compact", "append"])
def test_a_statement_that_lost_a_race_changes_nothing(
    sql: Run, session: SparkSession, lake: Lake, table: Table, race: str
) -> None:
    """Files that were read are gone; or a MERGE may miss rows that came meanwhile."""

    def raced(id: int) -> int:
        if id == 7:  # a row of one task alone, for two tasks at once would be two writers
            now = lake.table("db.t")
            newest = now.latest()
            assert newest is not None
            if newest.id == 3:
                now.compact(full=True) if race == "compact" else now.append(rows(3 * ROWS, p=0))
        return id

    session.udf.register("raced", raced, "bigint")
    statement = (
        "UPDATE lake.db.t SET v = 'lost' WHERE raced(id) = 7"
        if race == "compact"
        else "MERGE INTO lake.db.t t USING (SELECT * FROM VALUES (9000, 0), (7, 0) AS s(id, p)) s "
        "ON t.id = raced(s.id) AND t.p = s.p WHEN MATCHED THEN UPDATE SET v = 'lost' "
        "WHEN NOT MATCHED THEN INSERT (id, v, p) VALUES (s.id, 'twice', s.p)"
    )
    expected = "another writer replaced them" if race == "compact" else "Another writer changed rows"
    with pytest.raises(PySparkException, match=expected):
        sql(statement)
    assert not {"lost", "twice"} & set(table.read(columns=["v"]).column("v").to_pylist())
    data = [meta.path for meta in table.store.list("p=0") if meta.path.endswith(".parquet")]
    live = files_of(table)
    old = 2 if race == "compact" else 0  # of the version before the compaction
    assert len([path for path in data if path.rpartition("/")[2] not in live]) == old


def test_a_merge_that_matches_a_row_twice_is_refused(sql: Run, table: Table) -> None:
    """In Spark's own sentence, and nothing is changed."""
    with pytest.raises(PySparkException, match="matched a single row from the target table with multiple rows"):
        sql(
            "MERGE INTO lake.db.t t USING (SELECT * FROM VALUES (7, 'a'), (7, 'b') AS s(id, v)) s ON t.id = s.id "
            "WHEN MATCHED THEN UPDATE SET v = s.v"
        )
    newest = table.latest()
    assert newest is not None
    assert newest.id == 3
