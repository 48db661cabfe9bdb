"""A pipeline that audits tables in their branches, by Spark, and publishes them in a loop."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import lakebed
from lakebed.errors import Rejected
from lakebed.pipeline import Pipeline
from lakebed.table.table import Table

TEXT = """
name: daily
lake: ${root}/lake
table_branch: etl
vars: {root: ""}
tables:
  trips: {primary_key: [id], options: {bucket: 1}, schema: {id: BIGINT, cents: BIGINT}}
  totals: {primary_key: [day], options: {bucket: 1}, schema: {day: INT, cents: BIGINT}}
steps:
  - for_each: {day: [1, 2]}
    steps:
      - {step: ingest, from: "${root}/${day}.csv", as: delivery, schema: {id: bigint, cents: bigint}}
      - {step: merge, name: "merge ${day}", into: trips, from: delivery}
      - step: audit
        name: "audit ${day}"
        query: SELECT id, cents FROM trips
        overall: {no more than three: count(*) <= 3}
      - {step: merge, name: "sum ${day}", into: totals, query: "SELECT int(${day}) day, sum(cents) cents FROM trips"}
      - {step: compact, name: "compact ${day}", table: trips, full: true}
      - {step: publish, name: "publish ${day}"}
"""


def test_what_an_audit_in_the_branch_stops_is_not_published(spark: SparkSession, tmp_path: Path) -> None:
    """The audit reads the branch with main's rows and the new ones; each day is published by itself."""

    def table(name: str) -> Table:
        return lakebed.open(tmp_path / "lake").table(name)

    def rows(name: str) -> set[tuple[int, ...]]:
        return {tuple(row.values()) for row in table(name).read().to_pylist()}

    (tmp_path / "1.csv").write_text("id,cents\n1,10\n2,20\n")
    (tmp_path / "2.csv").write_text("id,cents\n2,5\n3,30\n4,40\n")
    pipeline = Pipeline.parse(TEXT)
    with pytest.raises(Rejected) as stopped:
        pipeline.run(spark, variables={"root": str(tmp_path)})
    assert stopped.value.kind == "audit_failed"
    assert rows("trips") == {(1, 10), (2, 20)}
    assert rows("totals") == {(1, 30)}
    assert [branch.name for branch in table("trips").branches()] == ["etl"]
    relaxed = Pipeline.parse(TEXT.replace("<= 3", "<= 4"))
    relaxed.run(spark, variables={"root": str(tmp_path)})
    assert rows("trips") == {(1, 10), (2, 5), (3, 30), (4, 40)}
    assert rows("totals") == {(1, 30), (2, 85)}
    assert table("trips").branches() == table("totals").branches() == []
