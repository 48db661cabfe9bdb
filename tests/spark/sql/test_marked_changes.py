"""UPDATE, DELETE and MERGE of append tables with deletion vectors mark rows and write new ones; a dictionary judges."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lakebed.lake.lake import Lake
from lakebed.table.table import Table

Run = Callable[[str], list[tuple[Any, ...]]]

pytestmark = pytest.mark.long  # the short forms: test_vectors.py here, and tests/unit/spark/test_rewrites.py

ROWS = 3000
SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string()), ("x", pa.float64()), ("p", pa.int32())])
Row = tuple[str | None, float | str | None, int]


def rows(start: int, *, p: int) -> pa.Table:
    """Rows of one partition; every tenth value is null, every next one is NaN."""
    ids = list(range(start, start + ROWS))
    xs = [None if id % 10 == 0 else math.nan if id % 10 == 1 else float(id) for id in ids]
    return pa.table({"id": ids, "v": [f"v{id}" for id in ids], "x": xs, "p": [p] * ROWS}, schema=SCHEMA)


def files_of(table: Table) -> set[str]:
    """The names of the newest version's files."""
    newest = table.latest()
    assert newest is not None
    return set(table.context.manifests.live_entries(newest).column("file_name").to_pylist())


def by_id(found: pa.Table) -> dict[int, Row]:
    """Rows by id, each once; NaN by name, because it equals nothing."""
    model = {row["id"]: (row["v"], "NaN" if row["x"] != row["x"] else row["x"], row["p"]) for row in found.to_pylist()}
    assert len(model) == found.num_rows
    return model


@pytest.fixture
def table(lake: Lake) -> Table:
    """Three files in two partitions; each file has many row groups."""
    options = {"file.block-size": "4 kb", "deletion-vectors.enabled": "true"}
    made = lake.create_table("db.t", SCHEMA, partition_keys="p", options=options)
    for start, p in ((0, 0), (ROWS, 0), (2 * ROWS, 1)):
        made.append(rows(start, p=p))
    return made


def test_only_new_rows_are_written(sql: Run, lake: Lake, table: Table) -> None:
    """By conditions that files prune, that only Spark knows, of nulls and NaN; rows move; a file without rows goes."""
    expected = by_id(table.read())
    first = files_of(table)
    table.delete("id < 5 or id = 4000")
    for id in (0, 1, 2, 3, 4, 4000):
        del expected[id]

    def added() -> int:
        newest = table.latest()
        assert newest is not None
        assert newest.commit_kind == "OVERWRITE"
        delta = table.context.manifests.delta_entries(newest)
        return sum(count for count, kind in zip(delta["row_count"].to_pylist(), delta["kind"].to_pylist(), strict=True)
                   if kind == 0)  # fmt: skip

    sql("UPDATE lake.db.t SET v = concat(v, '!') WHERE id = 7 OR id = 4 OR id = 4001")
    expected[7], expected[4001] = ("v7!", 7.0, 0), ("v4001!", "NaN", 0)
    assert added() == 2
    sql("UPDATE lake.db.t SET x = CASE WHEN x IS NULL THEN double('NaN') ELSE NULL END, p = 1 WHERE id % 1000 < 12 AND "
        "(x IS NULL OR isnan(x)) AND reverse(v) > ''")  # fmt: skip
    moved = [id for id, row in expected.items() if id % 1000 < 12 and row[1] in (None, "NaN")]
    expected |= {id: (expected[id][0], "NaN" if expected[id][1] is None else None, 1) for id in moved}
    assert added() == len(moved) == 33
    assert first <= files_of(table)
    assert by_id(table.read()) == expected

    sql("DELETE FROM lake.db.t WHERE id IN (SELECT id + 1 FROM lake.db.t WHERE v = 'v7!')")
    del expected[8]
    assert added() == 0
    assert first <= files_of(table)

    sql(
        f"MERGE INTO lake.db.t t USING (SELECT id FROM range({3 * ROWS - 2}, {3 * ROWS + 2}) UNION SELECT 7) s "
        "ON t.id = s.id "
        "WHEN MATCHED AND s.id % 2 = 0 THEN UPDATE SET v = 'merged', p = 2 WHEN MATCHED THEN DELETE "
        "WHEN NOT MATCHED THEN INSERT (id, v, x, p) VALUES (s.id, 'new', NULL, 2) "
        "WHEN NOT MATCHED BY SOURCE AND t.id BETWEEN 100 AND 109 THEN UPDATE SET v = NULL "
        "WHEN NOT MATCHED BY SOURCE AND t.p = 0 AND t.id >= 3000 THEN DELETE"
    )
    expected = {
        id: (None if 100 <= id < 110 else row[0], *row[1:])
        for id, row in expected.items()
        if id not in (7, 3 * ROWS - 1) and not (row[2] == 0 and id >= ROWS)
    }
    expected[3 * ROWS - 2] = ("merged", expected[3 * ROWS - 2][1], 2)
    expected |= dict.fromkeys((3 * ROWS, 3 * ROWS + 1), ("new", None, 2))
    assert added() == 13
    assert len(first - files_of(table)) == 1, "the file whose last row was marked"
    assert by_id(table.read()) == expected
    assert sql("SELECT count(*), count(v), count(x) FROM lake.db.t") == [
        (len(expected), *(sum(row[at] is not None for row in expected.values()) for at in (0, 1)))
    ]
    file, position = sql("SELECT _file, _pos FROM lake.db.t WHERE id = 20")[0]
    assert (file in first, position) == (True, 20)
    table.compact(full=True)
    assert by_id(table.read()) == expected


@pytest.mark.parametrize("race", ["compact", "delete", "append", "merge"])
def test_a_statement_that_lost_a_race(sql: Run, session: SparkSession, lake: Lake, table: Table, race: str) -> None:
    """Files that were read are gone or rows of them are: nothing is changed. New rows disturb a MERGE only."""

    def raced(id: int) -> int:
        now = lake.table("db.t")
        newest = now.latest()
        assert newest is not None
        if newest.id == 3:  # the first row does it
            if race == "compact":
                now.compact(full=True)
            elif race == "delete":
                now.delete("id = 5")
            else:
                now.append(rows(3 * ROWS, p=0), commit_user="race", commit_identifier=1)
        return id

    session.udf.register("raced", raced, "bigint")
    statement = "UPDATE lake.db.t SET v = 'changed' WHERE raced(id) IN (5, 7)"
    if race == "merge":
        statement = (
            "MERGE INTO lake.db.t t USING (SELECT * FROM VALUES (9000, 0), (7, 0) AS s(id, p)) s "
            "ON t.id = raced(s.id) AND t.p = s.p WHEN MATCHED THEN UPDATE SET v = 'changed' "
            "WHEN NOT MATCHED THEN INSERT (id, v, p) VALUES (s.id, 'changed', s.p)"
        )
    if race == "append":
        sql(statement)
    else:
        kinds = {"compact": "another writer replaced them", "delete": "Another writer deleted rows of the file"}
        with pytest.raises(PySparkException, match=kinds.get(race, "Another writer changed rows of the same buckets")):
            sql(statement)
    result = by_id(table.read())
    changed = {id for id, row in result.items() if row[0] == "changed"}
    assert changed == ({5, 7} if race == "append" else set())
    assert len(result) == {"compact": 3, "delete": 3, "append": 4, "merge": 4}[race] * ROWS - (race == "delete")
    if race in ("compact", "delete"):  # of two tasks that append, the second one repeats it, and its file stays
        assert table.collect(grace_ms=0).deleted_count == 0


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
