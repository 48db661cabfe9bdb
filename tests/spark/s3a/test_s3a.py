"""A lake on S3 where Hadoop has a file system for it: the JVM reads and writes the files of tables itself."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.parse
from pathlib import Path
from typing import Any

import duckdb
import pyspark
import pytest
from pyarrow.fs import S3FileSystem

from lakebed.lake.lake import Lake, open_lake
from worlds.waiting import wait_until

HERE = Path(__file__).parent
NATIVE = ("t", "p", "big", "followed")
"""Tables all of whose files Spark's writer writes; a DELETE is lakebed's."""


def class_path() -> str:
    """Hadoop's file system for S3; skips where it is not, or is of another Hadoop than PySpark's."""
    if not (HERE / ".ready").exists():
        pytest.skip("Hadoop's file system for S3 is not there: run make hadoop-aws")
    jars = Path(pyspark.__file__).parent / "jars"
    (wanted,) = (path.stem.removeprefix("hadoop-client-api-") for path in jars.glob("hadoop-client-api-*.jar"))
    if not (HERE / "lib" / f"hadoop-aws-{wanted}.jar").exists():
        pytest.skip(f"PySpark has Hadoop {wanted}: let {HERE / 'pom.xml'} name hadoop-aws {wanted}")
    return f"{HERE / 'lib'}/*"


def files_below(lake: Lake, table: str) -> list[str]:
    """Every object of a table that is a data file, or a marker of a folder."""
    listed = [meta.path for meta in lake.table(table).store.list()]
    return [path for path in listed if path.endswith((".parquet", "/"))]


def fetched(server: Any, lake: Lake, table: str, folder: Path) -> list[str]:
    """The newest version's files, as any client gets them from the server, in a folder."""
    options, root = server.options, lake.table(table).url.removeprefix("s3://")
    files = S3FileSystem(
        access_key=options["aws_access_key_id"],
        secret_key=options["aws_secret_access_key"],
        region=options["aws_region"],
        endpoint_override=options["aws_endpoint"],
    )
    result = []
    for number, path in enumerate(sorted(lake.table(table).system("files")["file_path"].to_pylist())):
        with files.open_input_file(f"{root}/{path}") as body:
            file = folder / f"{table}-{number}.parquet"
            file.write_bytes(body.read())
            result.append(str(file))
    return result


def by_duckdb(files: list[str], columns: str) -> list[Any]:
    """One row of aggregates over files."""
    return list(duckdb.sql(f"SELECT {columns} FROM read_parquet({files})").fetchall()[0])


@pytest.mark.long
def test_spark_reads_and_writes_the_files_of_a_lake_on_s3(s3_server: Any, tmp_path: Path) -> None:
    """Statements, streams and DataFrames; failed and interrupted tasks; which process asks the server for what."""
    jars = class_path()
    url, secret = s3_server.url(), s3_server.options["aws_secret_access_key"]
    environment = os.environ | {name.upper(): value for name, value in s3_server.options.items()}
    command = [sys.executable, str(HERE / "program.py"), str(tmp_path), url, s3_server.options["aws_endpoint"], jars]
    done = subprocess.run(command, capture_output=True, env=environment, check=False, text=True)
    assert done.returncode == 0, done.stderr[-5000:]
    document = json.loads(done.stdout.splitlines()[-1])
    lake = open_lake(url, storage_options=s3_server.options)

    check_rows(document)
    check_files(s3_server, lake, tmp_path)
    check_requests(s3_server, lake, url.split("/")[2])
    check_failures(document, lake, s3_server.request_lines())
    logs = [path.read_text() for path in (tmp_path / "events").rglob("events_*")]
    assert any("lake.db.t" in log for log in logs)
    assert not [text for text in (*document["texts"], *document["errors"], *logs, done.stderr) if secret in text]


def check_rows(found: dict[str, Any]) -> None:
    """What statements returned, by hand."""
    deleted = sum(range(50, 60))
    assert found["t"] == [[91, sum(range(100)) - deleted + 1000, 5, 1]]
    assert found["tag"] == [[100, sum(range(100))]]
    assert found["first"] == [[0]]
    spelled = ["a b", "c%20d", "ü", "x=y", "q?r", "h#i", "a+b:c"]
    sums = {name: sum(range(i, 70, 7)) for i, name in enumerate(spelled)}
    assert dict(found["p"]) == sums | {"a b": 1000}
    assert found["b"] == [[2]]
    assert found["big"] == [[10000, sum(range(10000)), 10000]]
    assert found["k"] == [[54, sum(range(55)), 10]]
    assert found["read"] == 10


def check_files(server: Any, lake: Lake, folder: Path) -> None:
    """The same rows are in the files that the snapshots name, for a reader that shares nothing with us."""
    rows = sum(range(100)) - sum(range(50, 60)) + 1000
    expected = {
        "t": [101, rows + sum(range(2000, 2010))],
        "p": [61, sum(range(70)) - sum(range(0, 70, 7)) + 1000],
        "b": [40, sum(range(50)) - sum(range(10, 20))],
        "big": [10000, sum(range(10000))],
        "followed": [101, rows + sum(range(2000, 2010))],
    }
    for table, wanted in expected.items():
        assert by_duckdb(fetched(server, lake, f"db.{table}", folder), "count(*), sum(id)::BIGINT") == wanted, table
    keyed = lake.table("db.k").read()
    assert sorted(keyed["id"].to_pylist()) == list(range(1, 55))


def check_requests(server: Any, lake: Lake, bucket: str) -> None:
    """A file costs the JVM one PUT, or an upload in parts; commits are lakebed's, and conditional."""
    by_jvm: list[tuple[str, str]] = []
    by_python: list[tuple[str, str]] = []
    for line in server.request_lines():
        match = re.search(rf'"(\w+) /{bucket}/?(\S*) HTTP.* "([^"]*)"$', line)
        if match is not None:
            is_jvm = "aws-sdk-java" in match[3] or "s3analyticsaccelerator" in match[3]
            (by_jvm if is_jvm else by_python).append((match[1], urllib.parse.unquote(match[2])))
    root = "/".join(lake.url.split("/")[3:])
    for table in NATIVE:
        for path in lake.table(f"db.{table}").system("files")["file_path"].to_pylist():
            name = f"{root}/db.db/{table}/{path}"
            puts = [(method, asked) for method, asked in by_jvm if asked.startswith(name) and method in ("PUT", "POST")]
            assert puts, name
            assert len(puts) == 1 or table == "big"
            # Of a folder that clients spell in two ways, lakebed looks for both.
            is_read = table != "followed" and "%" not in path
            assert not is_read or ("GET", name) in by_jvm, name
            assert ("PUT", name) not in by_python
    assert not [asked for _, asked in by_jvm if "list-type" in asked and f"{root}/db.db" in asked]
    written = [asked for method, asked in by_jvm if method != "GET" and f"{root}/db.db" in asked]
    assert not [asked for asked in written if "/snapshot/" in asked or "/manifest/" in asked or asked.endswith("/")]


def check_failures(found: dict[str, Any], lake: Lake, lines: list[str]) -> None:
    """A failed task deletes its finished files, and does not upload what is open; so does an interrupted one."""
    assert len(found["errors"]) == 3
    assert all("the row fails" in error for error in found["errors"])
    failed = lake.table("db.failed")
    assert failed.latest() is None
    wait_until(lambda: files_below(lake, "db.failed") == [], timeout_s=30)
    assert [line for line in lines if "PUT" in line and "/db.db/failed/bucket-0/" in line], "no file was finished"
    live = sorted(lake.table("db.big").system("files")["file_path"].to_pylist())
    assert sorted(files_below(lake, "db.big")) == live
    assert len([line for line in lines if "DELETE" in line and "/db.db/big/" in line and "uploadId" in line]) == 1
    assert failed.collect(grace_ms=0).deleted_count == 0
