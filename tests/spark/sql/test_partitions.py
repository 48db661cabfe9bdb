"""Statements about partitions: SHOW, DESCRIBE, DROP, TRUNCATE, ADD and RENAME, judged by a dictionary of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from lakebed.lake.lake import Lake

Run = Callable[[str], list[tuple[Any, ...]]]

ROWS = {
    1: ("2024-01-01", "a=b/c"),
    2: ("2024-01-02", "ü"),
    3: (None, None),
    4: ("2024-01-02", None),
    5: ("2024-01-02", "null"),
    6: ("2024-01-03", "x"),
    7: ("2024-01-03", "y"),
}
"""Partitions by the numbers of their rows."""

X, NULL, NONE = "(day = '2024-01-03', p = 'x')", "(day = NULL, p = NULL)", "(day = NULL, p = 'x')"
ALTER = "ALTER TABLE lake.db.t"
REFUSED = {
    f"{ALTER} DROP PARTITION (day = 'soon', p = 'x')": r"\(day = 'soon'\) is not of the column's type, DATE",
    "SHOW PARTITIONS lake.db.t PARTITION (day = 'soon')": r"\(day = 'soon'\) is not of the column's type, DATE",
    f"{ALTER} DROP PARTITION (id = 1)": "`id` cannot be found in table",
    f"{ALTER} DROP PARTITION (day = '2024-01-03')": r"The spec \(day\) must match .* \(day, p\)",
    f"{ALTER} DROP PARTITION {X}, PARTITION {NONE}": "null, `p` = x",
    f"{ALTER} DROP PARTITION {X} PURGE": "leave out PURGE",
    f"{ALTER} DROP PARTITION {NULL}, PARTITION {X} PURGE": "leave out PURGE",
    f"TRUNCATE TABLE lake.db.t PARTITION {NONE}": "cannot be found in table",
    f"{ALTER} ADD IF NOT EXISTS PARTITION {NONE}": "a partition is there as long as it has rows",
    f"{ALTER} PARTITION {NULL} RENAME TO PARTITION {NONE}": "UPDATE the rows",
    "SHOW PARTITIONS lake.db.`t$tags`": "does not support partition management",
    "SHOW PARTITIONS lake.db.plain": "is not partitioned",
}
"""What is refused, and what is said."""


def shown(*ids: int) -> list[tuple[str]]:
    """What SHOW PARTITIONS prints of the partitions of some rows."""
    names = {"a=b/c": "a%3Db%2Fc", None: "null"}
    return sorted((f"day={ROWS[id][0] or 'null'}/p={names.get(ROWS[id][1], ROWS[id][1])}",) for id in ids)


def test_partitions_are_shown_dropped_and_truncated(sql: Run, lake: Lake) -> None:
    """One commit each; texts with = and /, umlauts, dates and nulls; other versions keep their rows."""
    sql("CREATE TABLE lake.db.plain (id INT)")
    sql("CREATE TABLE lake.db.t (id BIGINT, day DATE, p STRING) PARTITIONED BY (day, p)")
    assert sql("SHOW PARTITIONS lake.db.t") == []
    values = ", ".join(
        f"({id}, {f'DATE{day!r}' if day else 'NULL'}, {repr(p) if p else 'NULL'})" for id, (day, p) in ROWS.items()
    )
    sql(f"INSERT INTO lake.db.t VALUES {values}")
    sql("CALL lake.sys.create_tag('db.t', 'all')")
    sql("CALL lake.sys.create_branch('db.t', 'dev', 'all')")
    table = lake.table("db.t")
    assert sql("SHOW PARTITIONS lake.db.t") == shown(*ROWS)
    for spec, ids in (
        ("day = '2024-01-02'", (2, 4, 5)),
        ("DAY = DATE'2024-01-02'", (2, 4, 5)),
        ("p = NULL", (3, 4)),
        ("p = 'null', day = '2024-01-02'", (5,)),
        ("day = '2030-01-01'", ()),
    ):
        assert sql(f"SHOW PARTITIONS lake.db.t PARTITION ({spec})") == shown(*ids), spec
    assert ("record_count", "1", "") in sql("DESCRIBE EXTENDED lake.db.t PARTITION (day = '2024-01-02', p = NULL)")
    for statement, sentence in REFUSED.items():
        with pytest.raises(AnalysisException, match=sentence):
            sql(statement)
    sql(f"{ALTER} ADD IF NOT EXISTS PARTITION {X}")
    sql(f"{ALTER} DROP IF EXISTS PARTITION {NONE}")
    newest = table.latest()
    assert newest is not None
    assert newest.id == 1
    left = set(ROWS)
    third = "PARTITION (p = 'a=b/c', day = '2024-01-01')"
    for count, (statement, gone) in enumerate(
        (
            (f"{ALTER} DROP PARTITION (day = '2024-01-02', p = NULL)", {4}),
            (f"{ALTER} DROP IF EXISTS PARTITION {X}, PARTITION {NONE}, PARTITION {NULL}, {third}", {6, 3, 1}),
            ("TRUNCATE TABLE lake.db.t PARTITION (day = '2024-01-02')", {2, 5}),
        ),
        start=2,
    ):
        sql(statement)
        left -= gone
        assert set(table.read()["id"].to_pylist()) == left, statement
        newest = table.latest()
        assert newest is not None
        assert (newest.id, newest.commit_kind) == (count, "OVERWRITE")
    assert sql("SHOW PARTITIONS lake.db.t") == shown(7)
    assert sql("SELECT id FROM lake.db.t") == [(7,)]
    sql("TRUNCATE TABLE lake.db.t PARTITION (day = '2024-01-02')")
    assert table.latest() == newest
    assert sql("SELECT count(*) FROM lake.db.t VERSION AS OF 'all'") == [(7,)]
    sql("ALTER TABLE lake.db.`t$branch_dev` DROP PARTITION (day = '2024-01-02', p = 'ü')")
    assert sql("SHOW PARTITIONS lake.db.`t$branch_dev`") == shown(1, 3, 4, 5, 6, 7)


def test_partitions_of_other_types(session: SparkSession, sql: Run) -> None:
    """Texts are those of casts; outside of ANSI mode what is not of the type is refused, and not null."""
    sql(
        "CREATE TABLE lake.db.m (n INT NOT NULL, ts TIMESTAMP NOT NULL, x DOUBLE NOT NULL, d DECIMAL(5,2) NOT NULL, "
        "v STRING, PRIMARY KEY (n, ts, x, d)) PARTITIONED BY (ts, x, d)"
    )
    sql(
        "INSERT INTO lake.db.m VALUES (1, TIMESTAMP'2024-01-01 12:00:00Z', double('NaN'), 1.5, 'a'), "
        "(2, TIMESTAMP'1960-01-01 12:00:00Z', 0.1, -1.56, 'b'), (3, TIMESTAMP'1960-01-01 12:00:00Z', 0.1, -1.56, 'c')"
    )
    session.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    session.conf.set("spark.sql.ansi.enabled", "false")
    first, second = "ts=2024-01-01 21%3A00%3A00/x=NaN/d=1.50", "ts=1960-01-01 21%3A00%3A00/x=0.1/d=-1.56"
    assert sql("SHOW PARTITIONS lake.db.m") == [(second,), (first,)]
    assert sql("SHOW PARTITIONS lake.db.m PARTITION (x = 'NaN')") == [(first,)]
    assert sql("SHOW PARTITIONS lake.db.m PARTITION (d = -1.560, ts = '1960-01-01 21:00:00')") == [(second,)]
    for spec in ("d = -1.555", "x = 'much'", "ts = 'soon'"):
        with pytest.raises(AnalysisException, match="is not of the column's type"):
            sql(f"SHOW PARTITIONS lake.db.m PARTITION ({spec})")
    sql("ALTER TABLE lake.db.m DROP PARTITION (x = 0.1, d = -1.56, ts = TIMESTAMP'1960-01-01 21:00:00')")
    assert sql("SELECT n, v FROM lake.db.m") == [(1, "a")]
