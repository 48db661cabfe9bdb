"""ClickHouse over a server: tables through the Iceberg catalog, and files through the S3 gateway."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lakebed
from lakebed.server.lifecycle import Running
from lakebed.server.options import ServerOptions
from lakebed.server.serve import start_server
from worlds.table.shown_tables import PARTITIONS, TYPES, make_marked, make_plain, rows_of, texts_of

_ENGINE = """
import json, pathlib, sys
from chdb import session
engine = session.Session()
for number, statement in enumerate(json.load(sys.stdin)):
    try:
        pathlib.Path(f"{number}.arrow").write_bytes(engine.query(statement, "ArrowStream").bytes())
        print("## null", flush=True)
    except RuntimeError as error:
        print("## " + json.dumps(str(error)), flush=True)
"""
_RAW = ("raw", "fixed")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with ClickHouse."""
    folder = tmp_path_factory.mktemp("clickhouse")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = folder / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-compile", "chdb>=4.4"], check=True)
    return python


def ask(python: Path, folder: Path, statements: Sequence[str]) -> list[Any]:
    """For each statement its rows, None without any, or the message of its error."""
    folder.mkdir()
    run = subprocess.run(
        [python, "-c", _ENGINE],
        input=json.dumps(statements),
        cwd=folder,
        env={name: text for name, text in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    errors = [json.loads(line[3:]) for line in run.stdout.splitlines() if line.startswith("## ")]
    assert len(errors) == len(statements), run.stderr[-3000:]
    answers = []
    for number, error in enumerate(errors):
        path = folder / f"{number}.arrow"
        answers.append(
            error or (pa.ipc.open_stream(path.read_bytes()).read_all().to_pylist() if path.stat().st_size else None)
        )
    return answers


def plain(rows: list[dict[str, Any]]) -> list[str]:
    """Rows without order; times without a zone, and bytes as text: ClickHouse has one type for both kinds of each."""
    return texts_of([{name: bare(value) for name, value in row.items()} for row in rows])


def bare(value: Any) -> Any:
    """A value as ClickHouse shows it."""
    if isinstance(value, datetime.datetime):
        return value.replace(tzinfo=None)
    return value.hex().upper() if isinstance(value, bytes) else value


def catalog_of(running: Running, options: dict[str, str]) -> str:
    """The statement that opens the catalog."""
    started = running.started
    bucket = running.site.iceberg.url.removeprefix("s3://").partition("/")[0]
    return (
        f"CREATE DATABASE lake ENGINE = DataLakeCatalog('{started.endpoint}/iceberg') SETTINGS catalog_type = 'rest', "
        f"warehouse = '{running.site.iceberg.name}', vended_credentials = false, "
        f"auth_header = 'Authorization: Bearer {started.access_key}.{started.secret}', "
        f"storage_endpoint = '{options['aws_endpoint']}/{bucket}', region = '{options['aws_region']}', "
        f"aws_access_key_id = '{options['aws_access_key_id']}', "
        f"aws_secret_access_key = '{options['aws_secret_access_key']}'"
    )


@pytest.mark.long
def test_tables(s3_server: Any, tmp_path: Path, python: Path) -> None:
    """Tables, changed columns, filters, a version, a branch have lakebed's rows; vectors and writes are refused."""
    url, options = s3_server.url(), dict(s3_server.options)
    lake = lakebed.open(url, storage_options=options)
    tables = make_plain(lake) | make_marked(lake)
    shown = [name for name in TYPES.names if name not in _RAW]
    typed = ", ".join([*shown, *(f"hex({name}) AS {name}" for name in _RAW)])
    expected: dict[str, Any] = {f"SELECT {typed} FROM lake.`db.types`": tables["db.types"].read()}
    for name in ("db.t", "db.changed"):
        expected[f"SELECT * FROM lake.`{name}`"] = tables[name].read()
    expected["SELECT * FROM lake.`db.changed`"] = expected["SELECT * FROM lake.`db.changed`"].drop_columns(["d"])
    for column, (sql, ours) in PARTITIONS.items():
        rows = tables[f"parts.{column}"].read(where=ours)
        expected[f"SELECT id FROM lake.`parts.{column}` WHERE {sql}"] = rows.select(["id"])
    expected["SELECT id FROM lake.`db.t` SETTINGS iceberg_snapshot_id = 1"] = (
        tables["db.t"].read(version=1).select(["id"])
    )
    elsewhere = f"{options['aws_endpoint']}/{url.split('/')[2]}/elsewhere"
    refused = {
        "SELECT * FROM lake.`db.keyed`": "column _KEY_id with field_id",
        "SELECT * FROM lake.`db.marked`": "Position deletes are supported only for parquet",
        f"CREATE TABLE lake.`db.new` (a Int64) ENGINE = IcebergS3('{elsewhere}')": "Iceberg's clients read here",
        "INSERT INTO lake.`db.t` SETTINGS allow_insert_into_iceberg = 1 VALUES (1, 'a', 1)": "",
    }
    with start_server(url, options=ServerOptions(durable=False, storage_options=options)) as running:
        etl = running.site.repositories.create("analytics").create_branch("etl")
        orders = lakebed.Table.create(etl.store().sub("tables/orders"), name="orders", schema=rows_of(0, 1).schema)
        orders.append(rows_of(0, 30))
        expected["SELECT * FROM lake.`analytics.etl.orders`"] = orders.read()
        opening = ["SET allow_database_iceberg = 1", catalog_of(running, options)]
        answers = ask(python, tmp_path / "engine", [*opening, *expected, *refused])
    assert answers[:2] == [None, None]
    answers = answers[2:]
    for (statement, table), answer in zip(expected.items(), answers, strict=False):
        assert isinstance(answer, list), (statement, answer)
        assert plain(answer) == plain(table.to_pylist()), statement
    for (statement, words), answer in zip(refused.items(), answers[len(expected) :], strict=True):
        assert isinstance(answer, str), statement
        assert words in answer, answer
    assert plain(lake.table("db.t").read().to_pylist()) == plain(tables["db.t"].read().to_pylist())


@pytest.mark.long
def test_files_through_the_gateway(tmp_path: Path, python: Path) -> None:
    """Files of a branch are written whole, in parts and by partition, and read by patterns; a wrong secret is not."""
    options = ServerOptions(durable=False, s3_key_file=str(tmp_path / "s3.key"))
    with start_server(tmp_path / "lake", options=options) as running:
        branch = running.site.repositories.create("analytics").create_branch("etl")
        started = running.started

        def file(name: str, form: str = "Parquet", secret: str | None = None) -> str:
            secret = secret or started.secret
            return f"s3('{started.endpoint}/analytics/etl/{name}', '{started.access_key}', '{secret}', '{form}')"

        numbers = "SELECT number AS id, toString(number) AS name FROM numbers(1000)"
        long = "SELECT number, repeat('x', 100) FROM numbers(200000)"
        answers = ask(
            python,
            tmp_path / "engine",
            [
                f"INSERT INTO FUNCTION {file('day/a.parquet')} {numbers}",
                f"INSERT INTO FUNCTION {file('day/p{_partition_id}.parquet')} PARTITION BY id % 3 {numbers}",
                f"INSERT INTO FUNCTION {file('long.csv', 'CSV')} {long} SETTINGS s3_min_upload_part_size = 5242880",
                f"SELECT sum(id) AS ids, count() AS rows FROM {file('day/*.parquet')}",
                f"SELECT count() AS rows FROM {file('long.csv', 'CSV')}",
                f"SELECT count() AS rows FROM {file('day/a.parquet', secret='wrong')}",
            ],
        )
        assert answers[:3] == [None] * 3
        assert answers[3:5] == [[{"ids": 999_000, "rows": 2000}], [{"rows": 200_000}]]
        assert "403" in answers[5]
        written = pq.read_table(pa.BufferReader(branch.get("day/a.parquet")))
        assert sorted(written["id"].to_pylist()) == list(range(1000))
        assert {entry.path for entry in branch.list("day/")} == {
            "day/a.parquet",
            *(f"day/p{n}.parquet" for n in range(3)),
        }
