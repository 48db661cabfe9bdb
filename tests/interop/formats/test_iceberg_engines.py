"""Engines with readers of their own over a server's Iceberg catalog: their rows are lakebed's."""

from __future__ import annotations

import inspect
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakebed
from lakebed import Lake, Table, repo
from lakebed.server.options import ServerOptions
from lakebed.server.serve import start_server
from worlds.table import nested_columns
from worlds.table.nested_columns import canonical

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
_CLEAN = "CALL lake.system.remove_orphan_files(table => 'db.t')"
_SPARK = """
from pyspark.sql import SparkSession
jar, settings, statements = json.load(sys.stdin)
builder = SparkSession.builder.master("local[1]").config("spark.jars", jar).config("spark.ui.enabled", "false")
builder = builder.config("spark.sql.catalog.lake", "org.apache.iceberg.spark.SparkCatalog")
for name, value in settings.items():
    builder = builder.config("spark.sql.catalog.lake." + name, value)
session = builder.getOrCreate()
for statement in statements:
    try:
        rows = [row.asDict(recursive=True) for row in session.sql(statement).collect()]
    except Exception as error:
        if not statement.startswith("CALL"):
            raise
        rows = [str(error)[:9000]]
    print("## " + json.dumps(sorted(repr(canonical(row)) for row in rows)), flush=True)
"""
_DUCKDB = """
import duckdb, duckdb_ext
jar, settings, statements = json.load(sys.stdin)
engine = duckdb.connect(config={"allow_unsigned_extensions": "true"})
folder = next((pathlib.Path(duckdb_ext.__file__).parent / "extensions").glob("*/*"))
for name in ("avro", "httpfs", "iceberg"):
    engine.execute(f"LOAD '{folder / name}.duckdb_extension'")
uri, token = settings["uri"], settings["token"]
engine.execute(f"ATTACH 'lake' AS lake (TYPE iceberg, ENDPOINT '{uri}', TOKEN '{token}')")
for statement in statements:
    rows = engine.execute(statement)
    names = [column[0] for column in rows.description]
    rows = [dict(zip(names, row)) for row in rows.fetchall()]
    print("## " + json.dumps(sorted(repr(canonical(row)) for row in rows)), flush=True)
"""


def run_engine(folder: Path, script: str, packages: list[str], statements: list[str], *, jar: str = "") -> list[Any]:
    """The rows of each statement, by an engine in an environment of its own, over a server of ``lake`` in `folder`."""
    python = folder / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-compile", *packages], check=True)
    with start_server(folder / "lake", options=ServerOptions(durable=False)) as running:
        started = running.started
        settings = {
            "type": "rest",
            "uri": f"{started.endpoint}/iceberg",
            "warehouse": "lake",
            "token": f"{started.access_key}.{started.secret}",
        }
        environment = {name: text for name, text in os.environ.items() if name not in ("PYTHONPATH", "SPARK_HOME")}
        head = "import datetime, json, pathlib, sys\nfrom typing import Any\n" + inspect.getsource(canonical)
        run = subprocess.run(
            [python, "-c", head + script],
            input=json.dumps([jar, settings, statements]),
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
    answers = [json.loads(line[3:]) for line in run.stdout.splitlines() if line.startswith("## ")]
    assert len(answers) == len(statements), run.stderr[-5000:]
    return answers


def canonical_rows(rows: Iterable[Any]) -> list[str]:
    """Rows as `run_engine` gives them."""
    return sorted(repr(canonical(row)) for row in rows)


def make_nested(lake: Lake) -> dict[str, list[str]]:
    """Tables with nested columns; what engines are asked, and the rows that lakebed reads."""
    answers: dict[str, list[str]] = {}
    for keys in ([], ["id"]):
        for options in ({}, {"deletion-vectors.enabled": "true"}):
            name = f"n{len(keys)}{len(options)}"
            options |= {"bucket": "1"} if keys else {}
            table = nested_columns.create(lake, f"db.{name}", primary_keys=keys, options=options)
            nested_columns.change(table)
            if not keys or "deletion-vectors.enabled" in options:  # else it has to be merged first
                table.delete("id = 3")
            rows = table.read().to_pylist()
            answers[f"SELECT * FROM lake.db.{name}"] = canonical_rows(rows)
            where = f"FROM lake.db.{name} WHERE s IS NOT NULL"  # in older files s lacks the member b that is read
            answers[f"SELECT id, s.b AS b {where}"] = canonical_rows(
                {"id": row["id"], "b": row["s"]["b"]} for row in rows if row["s"] is not None
            )
            answers[f"SELECT id {where} AND s.b IS NULL AND l IS NOT NULL"] = canonical_rows(
                {"id": row["id"]} for row in rows if row["s"] and row["s"]["b"] is None and row["l"] is not None
            )
    return answers


def make_branch(folder: Path) -> list[str]:
    """A table in a branch of a repository, with rows that are staged and deleted ones; the rows that lakebed reads."""
    with repo.open(str(folder / "lake" / "analytics.repo")) as analytics:
        etl = analytics.create_branch("etl")
        folder_of_table = etl.store().sub("tables/t")
        options = {"deletion-vectors.enabled": "true"}
        table = Table.create(folder_of_table, name="t", schema=ROWS, partition_keys=["day"], options=options)
        table.append(rows_of(0, 30))
        etl.commit("thirty rows")
        table.append(rows_of(30, 6))
        table.delete("id > 3 AND id < 17")
        return canonical_rows(table.read().to_pylist())


@pytest.mark.long
def test_spark(tmp_path: Path) -> None:
    """Spark 4.1 with Iceberg's runtime: vectors, a tag and a branch by name, metadata, a merged key table, nested."""
    if shutil.which("mvn") is None:
        pytest.skip("Maven is not installed")
    copy = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy"
    subprocess.run(["mvn", "-q", "-B", copy, f"-Dartifact={_RUNTIME}", f"-DoutputDirectory={tmp_path}"], check=True)
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
        "SELECT * FROM lake.db.t": canonical_rows(table.read().to_pylist()),
        "SELECT * FROM lake.db.t VERSION AS OF 'month-06'": canonical_rows(table.read(version="month-06").to_pylist()),
        "SELECT * FROM lake.db.t VERSION AS OF 'trial'": canonical_rows(table.read(version="trial").to_pylist()),
        "SELECT * FROM lake.db.t WHERE day = 'ü' AND id >= 12": canonical_rows(
            row for row in table.read().to_pylist() if row["day"] == "ü" and row["id"] >= 12
        ),
        "SELECT * FROM lake.db.k": canonical_rows(keyed.read().to_pylist()),
        "SELECT name, type FROM lake.db.t.refs": canonical_rows(
            {"name": name, "type": kind}
            for name, kind in (("main", "BRANCH"), ("month-06", "TAG"), ("trial", "BRANCH"))
        ),
        **make_nested(lake),
        "SELECT * FROM lake.analytics.etl.t": make_branch(tmp_path),
        "SELECT * FROM lake.db.n00 VERSION AS OF 'first'": canonical_rows(
            lake.table("db.n00").read(version="first").to_pylist()
        ),
    }
    jar = str(next(tmp_path.glob("*.jar")))
    answers = run_engine(tmp_path, _SPARK, ["pyspark==4.1.*"], [*versions, "SHOW TABLES IN lake.db", _CLEAN], jar=jar)
    for (statement, expected), answer in zip(versions.items(), answers, strict=False):
        assert answer == expected, statement
    assert len(answers[-2]) == 6
    assert "GC is disabled" in answers[-1][0]


@pytest.mark.long
def test_duckdb(tmp_path: Path) -> None:
    """DuckDB 1.4 with its Iceberg extension: vectors, deleted files, a rename, nested columns of each kind of table."""
    lake = lakebed.open(str(tmp_path / "lake"))
    table = lake.create_table("db.t", ROWS, partition_keys=["day"], options={"deletion-vectors.enabled": "true"})
    table.append(rows_of(0, 30))
    table.delete("id > 3 AND id < 17")
    table.delete("day = 'ü'")
    table.rename_column("v", "w")
    versions = {"SELECT * FROM lake.db.t": canonical_rows(table.read().to_pylist()), **make_nested(lake)}
    versions['SELECT * FROM lake."analytics.etl".t'] = make_branch(tmp_path)
    wide = pa.table({"id": [1, 2], **{f"c{number}": [number, None] for number in range(110)}})
    lake.create_table("db.wide", wide.schema).append(wide)
    versions["SELECT id FROM lake.db.wide WHERE c109 IS NOT NULL"] = canonical_rows([{"id": 1}])
    clock = pa.table({"id": [1], "at": pa.array([3_723_004], pa.time32("ms"))})
    lake.create_table("db.clock", clock.schema).append(clock)
    versions["SELECT * FROM lake.db.clock"] = canonical_rows([{"id": 1}])  # TIME is left out, its file is read
    packages = ["duckdb==1.4.4", "duckdb-ext", *(f"duckdb-ext-{name}" for name in ("avro", "httpfs", "iceberg"))]
    answers = run_engine(tmp_path, _DUCKDB, packages, list(versions))
    for (statement, expected), answer in zip(versions.items(), answers, strict=True):
        assert answer == expected, statement
