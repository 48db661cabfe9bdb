"""Changelogs in Spark: streams take them, upserts of batches apply them; $audit_log is read by executors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

import lakebed.spark
from lakebed.lake.lake import Lake

Run = Callable[[str], list[tuple[Any, ...]]]
SECONDS_MAX = 300


CREATE = "CREATE TABLE lake.db.{} (id BIGINT NOT NULL, v STRING) TBLPROPERTIES ('primary-key' = 'id', 'bucket' = '1'{})"
LOGGED = ", 'changelog-producer' = 'full-compaction'"


def test_the_audit_log(sql: Run, lake: Lake) -> None:
    """Both spellings, of any version; a name that is no system table is no table, or an error with the nearest."""
    sql(CREATE.format("src", ""))
    sql("INSERT INTO lake.db.src VALUES (1, 'a'), (2, 'b'), (3, 'c')")
    table = lake.table("db.src")
    table.delete("id = 3")
    assert sql("SELECT * FROM lake.db.src.audit_log ORDER BY id") == [("+I", 1, "a"), ("+I", 2, "b"), ("-D", 3, None)]
    assert sql("SELECT count(*), max(rowkind) FROM lake.db.`src$audit_log`") == [(3, "-D")]
    assert sql("SELECT rowkind, id FROM lake.db.src.audit_log VERSION AS OF 1 WHERE v = 'c'") == [("+I", 3)]
    with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_NOT_FOUND"):
        sql("SELECT * FROM lake.db.src.no_log")
    with pytest.raises(AnalysisException, match=r"no system table \$adit_log: did you mean \$audit_log"):
        sql("SELECT * FROM lake.db.`src$adit_log`")


@pytest.mark.long
def test_a_changelog_is_applied_elsewhere(session: SparkSession, sql: Run, lake: Lake, tmp_path: Path) -> None:
    """What compactions log is streamed with all kinds, and upserted batch by batch gives the same rows."""
    session.conf.set("spark.sql.shuffle.partitions", "1")
    sql(CREATE.format("src", LOGGED))
    sql(CREATE.format("dst", ""))
    sql("INSERT INTO lake.db.src VALUES (1, 'a'), (2, 'b'), (3, 'c')")
    sql("CALL lake.sys.compact('db.src', full => true)")
    sql("UPDATE lake.db.src SET v = 'z' WHERE id = 2")
    sql("DELETE FROM lake.db.src WHERE id = 3")
    sql("CALL lake.sys.compact('db.src', full => true)")
    kinds: list[set[str]] = []
    upsert = lakebed.spark.upsert_stream(lake.table("db.dst"))

    def take(df: DataFrame, number: int) -> None:
        kinds.append({row["_row_kind"] for row in df.collect()})
        upsert(df, number)

    reading = session.readStream.format("lakebed").options(changes="true", mode="from-snapshot", version="1")
    result = reading.option("maxRowsPerTrigger", "1").load(lake.table("db.src").url)
    writer = result.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path / "follow"))
    query = writer.trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(SECONDS_MAX)
    finally:
        query.stop()
    assert kinds == [{"+I"}, {"-U", "+U", "-D"}]
    assert sql("SELECT * FROM lake.db.dst ORDER BY id") == [(1, "a"), (2, "z")]
