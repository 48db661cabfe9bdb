"""Engines with readers of their own over a server's Iceberg catalog: their rows are lakebed's."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakebed
from lakebed import Table
from lakebed.server.options import ServerOptions
from lakebed.server.serve import start_server

pl = pytest.importorskip("polars")
catalogs = pytest.importorskip("pyiceberg.catalog")

ROWS = pa.schema([("id", pa.int64()), ("day", pa.string()), ("v", pa.float64())])


def rows_of(first: int, count: int) -> pa.Table:
    """Rows of consecutive ids on two days and none."""
    ids = range(first, first + count)
    return pa.table({"id": ids, "day": [("a b", "ü", None)[i % 3] for i in ids], "v": [i / 4 for i in ids]}, ROWS)


def plain(rows: Any) -> list[Any]:
    """Rows without order."""
    return sorted(((row["id"], row["day"], row["v"]) for row in rows.to_dicts()), key=repr)


def ours(table: Table, version: int | str | None = None) -> list[Any]:
    """Rows that lakebed reads."""
    return sorted(((row["id"], row["day"], row["v"]) for row in table.read(version=version).to_pylist()), key=repr)


def test_polars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Polars reads with its own reader of Parquet: partitions, a rename, deleted files, a tag, a filter."""
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    table = lakebed.open(str(tmp_path / "lake")).create_table("db.t", ROWS, partition_keys=["day"])
    table.append(rows_of(0, 60))
    tag = table.create_tag("month-06")
    table.append(rows_of(60, 30))
    table.delete("day = 'ü'")
    table.rename_column("v", "w")
    table.append(rows_of(100, 6).rename_columns(["id", "day", "w"]))
    with start_server(tmp_path / "lake", options=ServerOptions(durable=False)) as running:
        started = running.started
        token = f"{started.access_key}.{started.secret}"
        with catalogs.load_catalog(
            "lake", type="rest", uri=f"{started.endpoint}/iceberg", warehouse="lake", token=token
        ) as catalog:
            loaded = catalog.load_table("db.t")
        newest = pl.scan_iceberg(loaded, reader_override="native").rename({"w": "v"})
        renamed = table.read().rename_columns(["id", "day", "v"])
        assert plain(newest.collect()) == sorted(
            ((row["id"], row["day"], row["v"]) for row in renamed.to_pylist()), key=repr
        )
        assert plain(newest.filter(pl.col("id") >= 88).collect()) == [
            row for row in plain(newest.collect()) if row[0] >= 88
        ]
        tagged = pl.scan_iceberg(loaded, snapshot_id=tag.snapshot.id, reader_override="native")
        assert plain(tagged.collect()) == ours(table, "month-06")


_RUNTIME = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
_SPARK = """
import json, sys
from pyspark.sql import SparkSession
jar, settings, statements = json.load(sys.stdin)
builder = SparkSession.builder.master("local[1]").config("spark.jars", jar).config("spark.ui.enabled", "false")
builder = builder.config("spark.sql.catalog.lake", "org.apache.iceberg.spark.SparkCatalog")
for name, value in settings.items():
    builder = builder.config("spark.sql.catalog.lake." + name, value)
session = builder.getOrCreate()
for statement in statements:
    print("## " + json.dumps([list(row) for row in session.sql(statement).collect()]), flush=True)
"""


@pytest.mark.long
def test_spark(tmp_path: Path) -> None:
    """Spark 4.1 with Iceberg's runtime: vectors, a tag and a branch by name, metadata tables, a merged key table."""
    if shutil.which("mvn") is None:
        pytest.skip("Maven is not installed")
    copy = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy"
    subprocess.run(["mvn", "-q", "-B", copy, f"-Dartifact={_RUNTIME}", f"-DoutputDirectory={tmp_path}"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-compile", "pyspark==4.1.*"], check=True)
    lake = lakebed.open(str(tmp_path / "lake"))
    options = {"deletion-vectors.enabled": "true"}
    table = lake.create_table("db.t", ROWS, partition_keys=["day"], options=options)
    table.append(rows_of(0, 30))
    table.create_tag("month-06")
    table.create_branch("trial", tag="month-06")
    lake.table("db.t", branch="trial").append(rows_of(500, 3))
    table.delete("id > 3 AND id < 17")
    keyed_schema = pa.schema([pa.field("id", pa.int64(), nullable=False), *list(ROWS)[1:]])
    keyed = lake.create_table("db.k", keyed_schema, primary_keys=["id"])
    for first in (0, 20):
        keyed.upsert(rows_of(first, 40).cast(keyed_schema))
    keyed.compact(full=True)
    versions = {
        "SELECT id, day, v FROM lake.db.t": ours(table),
        "SELECT id, day, v FROM lake.db.t VERSION AS OF 'month-06'": ours(table, "month-06"),
        "SELECT id, day, v FROM lake.db.t VERSION AS OF 'trial'": ours(table, "trial"),
        "SELECT id, day, v FROM lake.db.t WHERE day = 'ü' AND id >= 12": [
            row for row in ours(table) if row[1] == "ü" and row[0] >= 12
        ],
        "SELECT id, day, v FROM lake.db.k": ours(keyed),
    }
    other = ["SHOW TABLES IN lake.db", "SELECT name, type FROM lake.db.t.refs ORDER BY name"]
    with start_server(tmp_path / "lake", options=ServerOptions(durable=False)) as running:
        started = running.started
        settings = {
            "type": "rest",
            "uri": f"{started.endpoint}/iceberg",
            "warehouse": "lake",
            "token": f"{started.access_key}.{started.secret}",
        }
        environment = {name: text for name, text in os.environ.items() if name not in ("PYTHONPATH", "SPARK_HOME")}
        run = subprocess.run(
            [python, "-c", _SPARK],
            input=json.dumps([str(next(tmp_path.glob("*.jar"))), settings, [*versions, *other]]),
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
    answers = [json.loads(line[3:]) for line in run.stdout.splitlines() if line.startswith("## ")]
    assert len(answers) == len(versions) + len(other), run.stderr[-5000:]
    for (statement, expected), answer in zip(versions.items(), answers, strict=False):
        assert sorted(map(tuple, answer), key=repr) == sorted(expected, key=repr), statement
    assert sorted(row[1] for row in answers[-2]) == ["k", "t"]
    assert answers[-1] == [["main", "BRANCH"], ["month-06", "TAG"], ["trial", "BRANCH"]]
