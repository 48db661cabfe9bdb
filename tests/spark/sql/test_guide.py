"""The statements of the guide give the results that it shows, in every kind of session."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from lakebed.spark.jar import catalog_settings
from worlds.ports import free_port
from worlds.sql.guide import GUIDE, check_guide, sentence_of, statements, text
from worlds.waiting import wait_until

HOME = Path(pyspark.__file__).parent
ENVIRONMENT = os.environ | {"SPARK_HOME": str(HOME)}
ROOT = Path(__file__).parents[3]


def test_every_statement_gives_its_result(sql: Callable[[str], list[tuple[Any, ...]]]) -> None:
    """Rows in the order that the guide shows; of an error, the beginning of its sentence."""
    check_guide(sql)


def settings(folder: Path) -> dict[str, str]:
    """Of a session with a lake in a folder; it needs no network and little memory."""
    mine = {
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        "spark.driver.host": "localhost",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    return mine | catalog_settings({"lake": str(folder / "lake")})


def confs(folder: Path) -> list[str]:
    """The settings as options of a command."""
    return [part for name, value in settings(folder).items() for part in ("--conf", f"{name}={value}")]


@pytest.mark.long
def test_the_statements_run_in_spark_sql(tmp_path: Path) -> None:
    """The command of Spark, without Python in the driver: rows by tabs, and errors on standard error."""
    result = list(statements(GUIDE.read_text()))
    script = "".join(f"SELECT '## {position}';\n{statement};\n" for position, (statement, _) in enumerate(result))
    (tmp_path / "guide.sql").write_text(script)
    ignore = ["--hiveconf", "hive.cli.errors.ignore=true"]
    command = [str(HOME / "bin" / "spark-sql"), *confs(tmp_path), *ignore, "-f", str(tmp_path / "guide.sql")]
    run = subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    answers: dict[int, list[str]] = {}
    for line in run.stdout.splitlines():
        if line.startswith("## "):
            answers[int(line[3:])] = []
        elif answers:
            answers[max(answers)].append(" | ".join(line.split("\t")))
    assert len(answers) == len(result), run.stderr[-5000:]
    for position, (statement, expected) in enumerate(result):
        sentence = sentence_of(expected)
        if sentence is not None:
            assert sentence in run.stderr, statement
        elif expected and not statement.startswith("SHOW"):  # whose columns the command chooses itself
            assert answers[position] == expected, statement


@contextmanager
def thrift_server(folder: Path) -> Iterator[str]:
    """Run Spark's Thrift server with the catalog, as the guide starts it, and give its URL for JDBC."""
    port = free_port()
    (shown,) = re.findall(r"^    spark-submit (.*HiveThriftServer2.*)$", GUIDE.read_text(), re.MULTILINE)
    command = [str(HOME / "bin" / "spark-submit"), *confs(folder), *shown.replace("10000", str(port)).split()]
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen(command, cwd=folder, env=ENVIRONMENT, stdout=log, stderr=log)
    try:
        wait_until(lambda: server.poll() is not None or is_open(port), timeout_s=300, interval_s=0.2)
        assert server.poll() is None, (folder / "server.log").read_text()[-5000:]
        yield f"jdbc:hive2://127.0.0.1:{port}/"
    finally:
        server.terminate()
        server.wait()


def is_open(port: int) -> bool:
    """Whether a loopback port is listened on."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def rows_of(results: Any) -> list[tuple[Any, ...]]:
    """The rows of a result set of JDBC, as text."""
    columns = range(1, results.getMetaData().getColumnCount() + 1)
    rows = []
    while results.next():
        rows.append(tuple(results.getString(column) for column in columns))
    return rows


@pytest.mark.long
def test_the_statements_run_over_thrift(spark: SparkSession, tmp_path: Path) -> None:
    """A server that needs no Python in its driver, asked over JDBC by Hive's driver, which PySpark's jars have."""
    jvm: Any = spark._jvm
    with thrift_server(tmp_path) as url:
        connection = jvm.org.apache.hive.jdbc.HiveDriver().connect(url, jvm.java.util.Properties())
        try:
            statement = connection.createStatement()
            for text_of_it, expected in statements(GUIDE.read_text()):
                sentence = sentence_of(expected)
                if sentence is None:
                    rows = rows_of(statement.getResultSet()) if statement.execute(text_of_it) else []
                    if expected:
                        assert [" | ".join(map(text, row)).replace("false", "False") for row in rows] == expected
                    continue
                with pytest.raises(Py4JJavaError) as raised:
                    statement.execute(text_of_it)
                assert sentence in raised.value.java_exception.getMessage(), text_of_it
        finally:
            connection.close()


_CONNECT = """
import json, sys
from pyspark.sql import SparkSession
settings, statements = json.load(sys.stdin)
builder = SparkSession.builder.remote("local")
for name, value in settings.items():
    if name != "spark.master":
        builder = builder.config(name, value)
session = builder.getOrCreate()
for statement in statements:
    try:
        answer = [[None if value is None else str(value) for value in row] for row in session.sql(statement).collect()]
    except Exception as error:
        answer = type(error).__name__ + ": " + str(error)
        if "has no snapshot 7" in answer:
            own = [error.getMessage(), error.getCondition(), error.getSqlState(), error.getMessageParameters()["kind"]]
            assert own == [str(error), "USER_RAISED_EXCEPTION", "42704", "snapshot_not_found"], own
    print("## " + json.dumps(answer), flush=True)
"""


@pytest.mark.long
def test_the_statements_run_in_spark_connect(tmp_path: Path) -> None:
    """A server that PySpark starts, and a client that knows of the catalog only what the server answers."""
    result = list(statements(GUIDE.read_text()))
    given = json.dumps([settings(tmp_path), [statement for statement, _ in result]])
    run = subprocess.run(
        [sys.executable, "-c", _CONNECT], input=given, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    answers = [json.loads(line[3:]) for line in run.stdout.splitlines() if line.startswith("## ")]
    assert len(answers) == len(result), run.stderr[-5000:]
    for (statement, expected), answer in zip(result, answers, strict=True):
        sentence = sentence_of(expected)
        if sentence is not None:
            assert sentence in answer, statement
            continue
        assert isinstance(answer, list), (statement, answer)
        if expected:
            assert [" | ".join(map(text, row)) for row in answer] == expected, statement


_MINOR = """
import json, sys
import lakebed.spark
folder, statements = json.load(sys.stdin)
session = lakebed.spark.session(catalogs={"lake": folder + "/lake"}, cores=2)
def run(statement):
    try:
        return [[None if value is None else str(value) for value in row] for row in session.sql(statement).collect()]
    except Exception as error:
        return type(error).__name__ + ": " + str(error)
for statement in statements:
    print("## " + json.dumps(run(statement)), flush=True)
session.sql(
    "CREATE TABLE lake.shop.copied (item STRING NOT NULL, price INT)"
    " TBLPROPERTIES ('primary-key' = 'item', 'bucket' = '1')"
)
source = session.readStream.table("lake.shop.prices")
stream = source.writeStream.trigger(availableNow=True).option("checkpointLocation", folder + "/checkpoint")
stream.toTable("lake.shop.copied").awaitTermination()
table = lakebed.open_lake(folder + "/lake").table("shop.copied")
lakebed.spark.write(session.createDataFrame([("milk", 9)], "item string, price int"), table)
print("## " + json.dumps(run("SELECT * FROM lake.shop.copied ORDER BY item")), flush=True)
"""
_BRANCH_OPTION = ("WITH (branch =",)
_OLDER_SQL = (
    "CHANGES FROM VERSION",
    "DESCRIBE EXTENDED lake.shop.visits PARTITION",
    "INSERT WITH SCHEMA EVOLUTION",
    "SELECT id, shelf FROM",
)
"""The beginnings or parts of statements that an older Spark refuses; the last reads what the one before it adds."""


@pytest.mark.long
@pytest.mark.parametrize(("minor", "refused"), [("4.1", (*_BRANCH_OPTION, *_OLDER_SQL)), ("4.2", _BRANCH_OPTION)])
def test_the_statements_run_with_other_minors_of_spark(tmp_path: Path, minor: str, refused: tuple[str, ...]) -> None:
    """With the newest PySpark of the minor, in an environment of its own; and a stream, and a write from Python."""
    subprocess.run([ROOT / "tools" / "jar.sh", sys.prefix, "all"], cwd=ROOT, check=True)
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    install = [python, "-m", "pip", "install", "--quiet", "--no-compile", "--editable", f"{ROOT}[spark]"]
    subprocess.run([*install, f"pyspark=={minor}.*"], check=True)
    result = list(statements(GUIDE.read_text()))
    given = json.dumps([str(tmp_path), [statement for statement, _ in result]])
    environment = {name: value for name, value in os.environ.items() if name not in ("PYSPARK_PYTHON", "SPARK_HOME")}
    run = subprocess.run(
        [python, "-c", _MINOR], input=given, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    *answers, streamed = (json.loads(line[3:]) for line in run.stdout.splitlines() if line.startswith("## "))
    assert len(answers) == len(result), run.stderr[-5000:]
    for (statement, expected), answer in zip(result, answers, strict=True):
        sentence = sentence_of(expected)
        if any(part in statement for part in refused):
            assert isinstance(answer, str), statement
            if "branch =" in statement:
                assert f"needs Spark 4.3, and this is {minor}." in answer
        elif sentence is not None:
            assert sentence in answer, (statement, answer)
        else:
            assert isinstance(answer, list), (statement, answer)
            if expected:
                assert [" | ".join(map(text, row)) for row in answer] == expected, statement
    assert streamed == [["milk", "9"], ["tea", "5"]]
