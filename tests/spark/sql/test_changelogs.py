"""Changelogs in Spark: streams take them, upserts of batches apply them; $audit_log is read by executors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

import lakebed.spark
from lakebed.lake.lake import Lake

Run = Callable[[str], list[tuple[Any, ...]]]
SECONDS_MAX = 300


def test_a_changelog_is_applied_elsewhere(session: SparkSession, sql: Run, lake: Lake, tmp_path: Path) -> None:
    """What compactions log is streamed with all kinds, and upserted batch by batch gives the same rows."""
    session.conf.set("spark.sql.shuffle.partitions", "1")
    sql(
        "CREATE TABLE lake.db.src (id BIGINT NOT NULL, v STRING) TBLPROPERTIES ('primary-key' = 'id', 'bucket' = '1', "
        "'changelog-producer' = 'full-compaction')"
    )
    sql("CREATE TABLE lake.db.dst (id BIGINT NOT NULL, v STRING) TBLPROPERTIES ('primary-key' = 'id', 'bucket' = '1')")
    kinds: set[str] = set()
    upsert = lakebed.spark.upsert_stream(lake.table("db.dst"))

    def follow() -> None:
        def take(df: Any, number: int) -> None:
            kinds.update(row["_row_kind"] for row in df.select("_row_kind").distinct().collect())
            upsert(df, number)

        found = session.readStream.format("lakebed").option("changes", "true").load(lake.table("db.src").url)
        writer = found.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path / "follow"))
        query = writer.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(SECONDS_MAX)
        finally:
            query.stop()

    everything = "SELECT * FROM lake.db.{} ORDER BY id"
    sql("INSERT INTO lake.db.src VALUES (1, 'a'), (2, 'b'), (3, 'c')")
    sql("CALL lake.sys.compact('db.src', full => true)")
    follow()
    assert sql(everything.format("dst")) == [(1, "a"), (2, "b"), (3, "c")]
    sql("UPDATE lake.db.src SET v = 'z' WHERE id = 2")
    sql("DELETE FROM lake.db.src WHERE id = 3")
    sql("INSERT INTO lake.db.src VALUES (4, 'd')")
    follow()
    assert sql(everything.format("dst")) == [(1, "a"), (2, "b"), (3, "c")], "nothing is logged before a compaction"
    audited = sql("SELECT * FROM lake.db.src.audit_log ORDER BY id")
    assert audited == [("+I", 1, "a"), ("+I", 2, "z"), ("-D", 3, None), ("+I", 4, "d")]
    sql("CALL lake.sys.compact('db.src', full => true)")
    follow()
    assert sql(everything.format("dst")) == sql(everything.format("src")) == [(1, "a"), (2, "z"), (4, "d")]
    assert kinds == {"+I", "-U", "+U", "-D"}
    assert sql("SELECT count(*), max(rowkind) FROM lake.db.`src$audit_log`") == [(3, "+I")]
    assert sql("SELECT rowkind, id FROM lake.db.src.audit_log VERSION AS OF 1 WHERE v = 'c'") == [("+I", 3)]
    with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_NOT_FOUND"):
        sql("SELECT * FROM lake.db.src.no_log")
    with pytest.raises(AnalysisException, match=r"no system table \$adit_log: did you mean \$audit_log"):
        sql("SELECT * FROM lake.db.`src$adit_log`")
