"""Trino over a server's Iceberg catalog, on a folder and on a bucket: it has lakebed's rows and changes nothing."""

from __future__ import annotations

import datetime
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request
import zipfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import lakebed
from lakebed import Lake, Table
from lakebed.fsck.check import check_lake
from lakebed.server.lifecycle import Running
from lakebed.server.options import ServerOptions
from lakebed.server.serve import start_server
from worlds.ports import free_port
from worlds.table.nested_columns import canonical
from worlds.table.shown_tables import PARTITIONS, ROWS, in_utc, make_marked, make_plain, rows_of, texts_of
from worlds.waiting import wait_until

HERE = Path(__file__).parent
_JAVA_MIN = 25
_VERSION = "483"
_JVM = ("-Xmx1500M", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "--add-modules=jdk.incubator.vector")
_CLIENT = """
import trino
port, statements = json.load(sys.stdin)
connection = trino.dbapi.connect(host="127.0.0.1", port=port, user="tests", legacy_primitive_types=False)
def plain(value):
    if isinstance(value, trino.types.NamedRowTuple):
        return {name: plain(item) for name, item in zip(value._names, value)}
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list) else value
for statement in statements:
    cursor = connection.cursor()
    try:
        cursor.execute(statement)
        rows = [list(map(plain, row)) for row in cursor.fetchall()]
        names = [column[0] for column in cursor.description or ()]
        answer = texts_of([dict(zip(names, row)) for row in rows])
    except trino.exceptions.TrinoQueryError as error:
        answer = error.message
    print("## " + json.dumps(answer), flush=True)
"""


def find_java() -> Path | None:
    """The newest Java that is new enough."""
    folders = [os.environ.get("JAVA_HOME", ""), *map(str, Path("/usr/lib/jvm").glob("*"))]
    found: list[tuple[int, Path]] = []
    for java in {Path(folder, "bin", "java") for folder in folders if folder} | {Path(shutil.which("java") or "java")}:
        if java.exists():
            told = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
            version = re.search(r'version "(\d+)', told)
            found += [(int(version[1]), java)] if version else []
    newest = max(found, default=(0, Path()))
    return newest[1] if newest[0] >= _JAVA_MIN else None


class Trino:
    """A running server, and its client for Python in an environment of its own."""

    def __init__(self, port: int, python: Path) -> None:
        self.port = port
        self.python = python

    def ask(self, statements: Sequence[str]) -> list[Any]:
        """For each statement its rows, as `texts_of` gives them, or the message of its error."""
        sources = "\n".join(map(inspect.getsource, (canonical, in_utc, texts_of)))
        run = subprocess.run(
            [self.python, "-c", "import datetime, json, sys\nfrom typing import Any\n" + sources + _CLIENT],
            input=json.dumps([self.port, statements]),
            env={name: text for name, text in os.environ.items() if name != "PYTHONPATH"},
            capture_output=True,
            text=True,
            check=False,
        )
        answers = [json.loads(line[3:]) for line in run.stdout.splitlines() if line.startswith("## ")]
        assert len(answers) == len(statements), run.stderr[-3000:]
        return answers

    def open_catalog(self, name: str, running: Running, **settings: str) -> Any:
        """Make a catalog over a server of lakebed; the answer is empty, or the message of an error."""
        started = running.started
        options = {
            "iceberg.catalog.type": "rest",
            "iceberg.rest-catalog.uri": f"{started.endpoint}/iceberg",
            "iceberg.rest-catalog.warehouse": running.site.iceberg.name,
            "iceberg.rest-catalog.security": "OAUTH2",
            "iceberg.rest-catalog.oauth2.token": f"{started.access_key}.{started.secret}",
            "iceberg.rest-catalog.nested-namespace-enabled": "true",
            "iceberg.rest-catalog.case-insensitive-name-matching": "true",
        }
        words = ", ".join(f"\"{key}\" = '{value}'" for key, value in {**options, **settings}.items())
        return self.ask([f"CREATE CATALOG {name} USING iceberg WITH ({words})"])[0]


@pytest.fixture(scope="module")
def trino(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trino]:
    """Trino with the connector for Iceberg alone."""
    java = find_java()
    if java is None or not (HERE / ".ready").exists() or not (HERE / "plugin" / ".ready").exists():
        pytest.skip(f"Trino or Java {_JAVA_MIN} is not there: run make trino")
    folder, port = tmp_path_factory.mktemp("trino"), free_port()
    plugin = folder / "plugins" / "iceberg"
    plugin.mkdir(parents=True)
    for jar in (HERE / "plugin" / "lib").glob("*.jar"):
        (plugin / jar.name).symlink_to(jar)
    with zipfile.ZipFile(plugin / "services.jar", "w") as services:  # Maven's jar of the connector lacks it
        services.writestr("META-INF/services/io.trino.spi.Plugin", "io.trino.plugin.iceberg.IcebergPlugin\n")
    settings = {
        "coordinator": "true",
        "node-scheduler.include-coordinator": "true",
        "http-server.http.port": port,
        "discovery.uri": f"http://127.0.0.1:{port}",
        "node.internal-address": "127.0.0.1",
        "query.max-memory-per-node": "400MB",
        "memory.heap-headroom-per-node": "200MB",
        "catalog.management": "dynamic",
        "catalog.store": "memory",
    }
    (folder / "config.properties").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    (folder / "log.properties").write_text("io.trino=WARN\n")
    places = {"config": "config.properties", "log.levels-file": "log.properties", "node.data-dir": "."}
    places |= {"plugin.dir": "plugins", "node.environment": "tests"}
    command = [str(java), *_JVM, *(f"-D{name}={value}" for name, value in places.items())]
    command += ["--class-path", f"{HERE / 'lib'}/*", str(HERE / "StartTrino.java"), _VERSION]
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    python = folder / "venv" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-compile", "trino>=0.336"], check=True)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=subprocess.STDOUT)
    try:
        wait_until(lambda: process.poll() is not None or is_ready(port), timeout_s=120)
        assert process.poll() is None, (folder / "log").read_text()[-3000:]
        yield Trino(port, python)
    finally:
        process.kill()
        process.wait()


def is_ready(port: int) -> bool:
    """Whether it answers queries."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/info") as reply:
            return json.load(reply)["starting"] is False
    except OSError:
        return False


@pytest.fixture(params=["folder", "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, dict[str, str], dict[str, str]]:
    """The URL of a lake, what lakebed opens it with, and what Trino does. Its name is no word for a path of a URL."""
    if request.param == "folder":
        return str(tmp_path / "a lake"), {}, {"fs.native-local.enabled": "true", "local.location": "/"}
    server = request.getfixturevalue("s3_server")
    options = server.options
    settings = {
        "fs.native-s3.enabled": "true",
        "s3.endpoint": options["aws_endpoint"],
        "s3.region": options["aws_region"],
        "s3.aws-access-key": options["aws_access_key_id"],
        "s3.aws-secret-key": options["aws_secret_access_key"],
        "s3.path-style-access": "true",
    }
    return server.url(), dict(options), settings


@pytest.fixture
def lake(place: tuple[str, dict[str, str], dict[str, str]]) -> Lake:
    """The lake."""
    return lakebed.open(place[0], storage_options=place[1] or None)


@pytest.fixture
def running(lake: Lake, place: tuple[str, dict[str, str], dict[str, str]], trino: Trino) -> Iterator[Running]:
    """A server of the lake, which is the catalog ``lake`` of Trino."""
    options = ServerOptions(durable=False, storage_options=place[1] or None)
    with start_server(place[0], options=options) as started:
        assert trino.open_catalog("lake", started, **place[2]) == []
        yield started
        trino.ask(["DROP CATALOG lake"])


def make_branch(running: Running) -> Table:
    """A table in a branch of a repository, with staged rows and deleted ones."""
    etl = running.site.repositories.create("analytics").create_branch("etl")
    options = {"deletion-vectors.enabled": "true"}
    table = Table.create(etl.store().sub("tables/orders"), name="orders", schema=ROWS, options=options)
    table.append(rows_of(0, 30))
    etl.commit("thirty rows")
    table.append(rows_of(30, 6))
    table.delete("id > 3 AND id < 17")
    return table


@pytest.mark.long
def test_rows(lake: Lake, running: Running, trino: Trino) -> None:
    """Every kind of table, partition and version has lakebed's rows; names and metadata tables say what there is."""
    tables = make_plain(lake) | make_marked(lake)
    expected = {f"SELECT * FROM lake.{name}": table.read() for name, table in tables.items()}
    widened = expected.pop("SELECT * FROM lake.db.changed").drop_columns(["d"])  # as Iceberg does not widen
    expected["SELECT * FROM lake.db.changed"] = widened
    for column, (sql, ours) in PARTITIONS.items():
        expected[f"SELECT id FROM lake.parts.{column} WHERE {sql}"] = (
            tables[f"parts.{column}"].read(where=ours).select(["id"])
        )
    orders = make_branch(running)
    expected['SELECT * FROM lake."analytics.etl".orders'] = orders.read()
    expected['SELECT * FROM lake."analytics.etl@".orders'] = orders.read(version=1)
    plain, second = tables["db.t"], list(tables["db.t"].snapshots())[1]
    versions = {"VERSION AS OF BIGINT '1'": 1, "VERSION AS OF 'month-06'": "month-06", "VERSION AS OF 'trial'": "trial"}
    moment = datetime.datetime.fromtimestamp(second.time_ms / 1000, datetime.UTC)
    versions[f"TIMESTAMP AS OF TIMESTAMP '{moment:%Y-%m-%d %H:%M:%S.%f} UTC'"] = second.id
    for words, version in versions.items():
        expected[f"SELECT id FROM lake.db.t FOR {words}"] = plain.read(version=version).select(["id"])
    expected["SELECT * FROM lake.db.marked FOR VERSION AS OF 'before'"] = tables["db.marked"].read(version="before")
    answers = trino.ask(list(expected))
    for (statement, rows), answer in zip(expected.items(), answers, strict=True):
        assert answer == texts_of(rows.to_pylist()), statement

    live = {"file_count": 7, "record_count": 66}
    facts = {
        "SHOW TABLES FROM lake.parts": [{"Table": column} for column in PARTITIONS],
        'SHOW TABLES FROM lake."analytics.etl"': [{"Table": "orders"}],
        'SELECT snapshot_id FROM lake.db."t$snapshots" WHERE snapshot_id < 9': [
            {"snapshot_id": n} for n in range(1, 5)
        ],
        'SELECT count(*) AS file_count, sum(record_count) AS record_count FROM lake.db."t$files"': [live],
        'SELECT sum(file_count) AS file_count, sum(record_count) AS record_count FROM lake.db."t$partitions"': [live],
        'SELECT name, type FROM lake.db."t$refs"': [
            {"name": name, "type": kind}
            for name, kind in (("main", "BRANCH"), ("month-06", "TAG"), ("trial", "BRANCH"))
        ],
    }
    for (statement, rows), answer in zip(facts.items(), trino.ask(list(facts)), strict=True):
        assert answer == texts_of(rows), statement


@pytest.mark.long
def test_nothing_is_changed(lake: Lake, running: Running, trino: Trino) -> None:
    """Writes are refused with one sentence, and maintenance, also of files that look old, deletes nothing."""
    tables = make_plain(lake) | {"db.marked": make_marked(lake)["db.marked"]}
    before = {name: texts_of(table.read().to_pylist()) for name, table in tables.items()}
    reads = [f"SELECT * FROM lake.{name}" for name in tables]
    shown = trino.ask(reads)
    writes = [
        "INSERT INTO lake.db.t VALUES (1, 'a', 1.0)",
        "DELETE FROM lake.db.t WHERE day = 'a b'",
        "UPDATE lake.db.t SET w = 1 WHERE id = 0",
        "TRUNCATE TABLE lake.db.t",
        "ALTER TABLE lake.db.t ADD COLUMN z INT",
        "ALTER TABLE lake.db.t EXECUTE optimize",
        "ALTER TABLE lake.db.t EXECUTE expire_snapshots(retention_threshold => '7d')",
        "CREATE TABLE lake.db.made AS SELECT * FROM lake.db.t",
        "CREATE SCHEMA lake.made",
        "DROP TABLE lake.db.t",
    ]
    for statement, answer in zip(writes, trino.ask(writes), strict=True):
        assert re.search("Server does not support endpoint: |GC is disabled", answer), statement
    if lake.url.startswith("file:"):
        for path in Path(lake.url.removeprefix("file://").replace("%20", " ")).rglob("*"):
            os.utime(path, (0, 0))
    clean = "ALTER TABLE lake.{} EXECUTE remove_orphan_files(retention_threshold => '7d')"
    for answer in trino.ask([clean.format(name) for name in tables]):
        assert isinstance(answer, list), answer
    for name, rows in before.items():
        assert texts_of(lake.table(name).read().to_pylist()) == rows, name
    assert not [finding for finding in check_lake(lake).findings if finding.severity == "error"]
    assert dict(zip(tables, trino.ask(reads), strict=True)) == dict(zip(tables, shown, strict=True))
    lake.table("db.t").collect(grace_ms=0)
    assert not [finding for finding in check_lake(lake).findings if "/clients/data" in finding.path]


@pytest.mark.long
def test_keys(lake: Lake, running: Running, trino: Trino, place: tuple[str, dict[str, str], dict[str, str]]) -> None:
    """A wrong token is refused by name, and a key of one table reads this one alone."""
    for name in ("db.t", "db.u"):
        lake.create_table(name, ROWS).append(rows_of(0, 3))
    wrong = {"iceberg.rest-catalog.oauth2.token": "LAKEBEDNOBODY.nothing"}
    limited = running.site.keys.create(role="read", tables=("db.t",))
    token = {"iceberg.rest-catalog.oauth2.token": limited.token}
    for name, settings in (("wrong", wrong), ("one_table", token)):
        trino.open_catalog(name, running, **place[2], **settings)
    answers = trino.ask(
        [
            "SELECT * FROM wrong.db.t",
            "SELECT * FROM one_table.db.t",
            "SELECT * FROM one_table.db.u",
            "SHOW TABLES FROM one_table.db",
            "DROP CATALOG wrong",
            "DROP CATALOG one_table",
        ]
    )
    assert isinstance(answers[0], str)
    assert answers[1] == texts_of(rows_of(0, 3).to_pylist())
    assert isinstance(answers[2], str)
    assert answers[3] == texts_of([{"Table": "t"}])


@pytest.mark.long
def test_commits_and_expiries_while_queries_run(lake: Lake, running: Running, trino: Trino) -> None:
    """A query has the rows of one version, or fails because that has expired; after the last commit it has all."""
    table = lake.create_table("db.busy", ROWS)
    table.append(rows_of(0, 10))

    def change() -> None:
        for number in range(1, 40):
            table.append(rows_of(10 * number, 10))
            if number % 10 == 0:
                table.compact(full=True)
                table.expire(retain_max=1, retain_min=1, older_than_ms=2**60)

    query = "SELECT count(*) AS rows, sum(id) AS ids FROM lake.db.busy"
    states = {str(texts_of([{"rows": n, "ids": n * (n - 1) // 2}])) for n in range(10, 401, 10)}
    with ThreadPoolExecutor(1) as pool:
        changes = pool.submit(change)
        answers = trino.ask([query] * 40)
        changes.result()
    assert {str(answer) for answer in answers if isinstance(answer, list)} <= states
    for message in (answer for answer in answers if isinstance(answer, str)):
        assert re.search("not found|No such file|NoSuchKey|does not exist|Failed to", message), message
    assert trino.ask([query]) == [texts_of([{"rows": 400, "ids": 79_800}])]


@pytest.mark.long
@pytest.mark.parametrize("place", ["bucket"], indirect=True)
def test_filters_save_requests(lake: Lake, running: Running, trino: Trino, s3_server: Any) -> None:
    """A filter on a partition or on a column with bounds reads only the files that can have such rows."""
    table = lake.create_table("db.many", ROWS, partition_keys=["day"])
    for first in range(0, 300, 30):
        table.append(rows_of(first, 30))
    queries = {
        "SELECT sum(v) AS a FROM lake.db.many WHERE id BETWEEN 95 AND 100": 3,
        "SELECT sum(v) AS a FROM lake.db.many WHERE day = 'ü' AND id > 260": 2,
        "SELECT count(*) AS a FROM lake.db.many WHERE day IS NULL": 0,
    }
    for query, count in queries.items():
        before = len(s3_server.request_lines())
        (answer,) = trino.ask([query])
        assert isinstance(answer, list), answer
        read = {
            match[1] for line in s3_server.request_lines()[before:] if (match := re.search(r"/(data-\S+parquet)", line))
        }
        assert len(read) == count, query
