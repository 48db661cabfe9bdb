"""A lake on S3 with pip alone: Hadoop has no file system for it, and the secret is nowhere but in the environment."""

from __future__ import annotations

import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lakebed.lake.lake import open_lake
from lakebed.spark.jar import CATALOGS, catalog_settings


@pytest.fixture
def sql(spark: SparkSession, s3_server: Any, tmp_path: Path) -> Callable[[str], list[tuple[Any, ...]]]:
    """Run a statement in a session whose catalog's processes have the credentials in their environment."""
    url = s3_server.url()
    open_lake(url, storage_options=s3_server.options)
    python = tmp_path / "python"
    exports = "".join(f"export {name.upper()}='{value}'\n" for name, value in s3_server.options.items())
    python.write_text(f'#!/bin/sh\n{exports}exec {sys.executable} "$@"\n')
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    session = spark.newSession()
    for name, value in catalog_settings({"lake": url}, python=str(python)).items():
        if name.startswith(CATALOGS):
            session.conf.set(name, value)
    return lambda statement: [tuple(row) for row in session.sql(statement).collect()]


def test_tables_are_written_read_and_tagged_and_the_secret_is_in_no_plan(
    sql: Callable[[str], list[tuple[Any, ...]]], spark: SparkSession, s3_server: Any
) -> None:
    """Also not in the settings, nor on the command line of any process."""
    sql("CREATE TABLE lake.db.t (id BIGINT, v STRING)")
    sql("INSERT INTO lake.db.t SELECT id, concat('v', id) FROM range(100)")
    sql("CALL lake.sys.create_tag('db.t', 'x')")
    sql("INSERT INTO lake.db.t VALUES (100, 'w')")
    assert sql("SELECT sum(id), max(v) FROM lake.db.t") == [(5050, "w")]
    assert sql("SELECT sum(id) FROM lake.db.t VERSION AS OF 'x'") == [(4950,)]
    shown = [str(sql("EXPLAIN EXTENDED SELECT * FROM lake.db.t WHERE id > 3")), str(sql("SET -v")), str(sql("SET"))]
    with pytest.raises(PySparkException) as raised:
        sql("SELECT * FROM lake.db.t VERSION AS OF 'nope'")
    shown.append(str(raised.value))
    shown += [path.read_bytes().decode(errors="replace") for path in Path("/proc").glob("[0-9]*/cmdline")]
    secret = s3_server.options["aws_secret_access_key"]
    assert not [text for text in shown if secret in text]
