"""Flink with the format's own connector, unmodified, whose catalog is a server of lakebed.

It runs the guide's example, statements on every kind of table, streams that are killed while lakebed changes the same
tables, and what is refused.
"""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from lakebed import Table
from lakebed.lake.lake import Lake
from lakebed.server.lifecycle import Running
from worlds.waiting import wait_until

pytestmark = pytest.mark.long

GUIDE = Path(__file__).parents[3] / "docs" / "guide" / "engines.md"
JOB_S_MAX = 180.0
"""Far more than any job here takes until it has done what it is waited for."""
COUNT = 6000
"""Rows of a stream, at 400 a second."""
NUMBERS = (
    "CREATE TEMPORARY TABLE default_catalog.default_database.numbers (id BIGINT) WITH ('connector' = 'datagen', "
    f"'rows-per-second' = '400', 'fields.id.kind' = 'sequence', 'fields.id.start' = '1', 'fields.id.end' = '{COUNT}')"
)
KINDS = {
    "appended": ("", "", {}),
    "in_partitions": ("", "PARTITIONED BY (dt)", {}),
    "in_buckets": ("", "", {"bucket": "2", "bucket-key": "id"}),
    "keyed": ("id", "", {"bucket": "2"}),
    "keyed_in_partitions": ("id, dt", "PARTITIONED BY (dt)", {"bucket": "1"}),
    "dynamic_buckets": ("id", "", {"bucket": "-1"}),
    "vectors": ("id", "", {"bucket": "1", "deletion-vectors.enabled": "true"}),
    "changelog": ("id", "", {"bucket": "1", "changelog-producer": "input"}),
    "changelog_of_compactions": ("id", "", {"bucket": "1", "changelog-producer": "full-compaction"}),
}
"""By the name of a table: its primary key, its partitions and its options."""


def day_of(number: int) -> str:
    """The partition of a row."""
    return f"d {number % 2}"


def create(flink: Any, name: str, *, keys: str = "", clause: str = "", options: dict[str, str] | None = None) -> None:
    """Create a table of (id, v, dt) by Flink."""
    words = f", PRIMARY KEY ({keys}) NOT ENFORCED" if keys else ""
    listed = ", ".join(f"'{key}' = '{value}'" for key, value in (options or {}).items())
    flink.run(
        "CREATE DATABASE IF NOT EXISTS db",
        f"CREATE TABLE db.{name} (id BIGINT, v BIGINT, dt STRING{words}) {clause} "
        + (f"WITH ({listed})" if listed else ""),
    )


def rows_of(state: dict[int, int]) -> list[list[Any]]:
    """A dictionary of values by id as Flink's rows."""
    return sorted(([number, value, day_of(number)] for number, value in state.items()), key=repr)


def arrow_rows(table: Table, state: dict[int, int]) -> pa.Table:
    """The same for lakebed."""
    columns = {"id": list(state), "v": list(state.values()), "dt": [day_of(number) for number in state]}
    return pa.table(columns, table.arrow_schema)


def read_by_lakebed(table: Table, **version: Any) -> list[list[Any]]:
    """Rows, sorted as Flink's."""
    columns = table.read(**version).select(["id", "v", "dt"])
    return sorted((list(row.values()) for row in columns.to_pylist()), key=repr)


def write(table: Table, state: dict[int, int]) -> None:
    """Write rows by lakebed."""
    rows = arrow_rows(table, state)
    if table.schema.primary_keys:
        table.upsert(rows)
    else:
        table.append(rows)


def change_by_flink(flink: Any, name: str, state: dict[int, int], rng: random.Random, step: int) -> None:
    """One statement of Flink on a table and on the dictionary; rows of a table without key are only added."""
    keyed = bool(KINDS[name][0])
    new = dict.fromkeys(range(step * 10, step * 10 + 5), step)
    if keyed and state and rng.random() < 0.5:
        number = rng.choice(sorted(state))
        if rng.random() < 0.5:
            flink.run(f"UPDATE db.{name} SET v = {step} WHERE id = {number}")
            state[number] = step
        else:
            flink.run(f"DELETE FROM db.{name} WHERE id = {number}")
            del state[number]
        return
    if KINDS[name][1] and rng.random() < 0.3:
        for number in [number for number in state if day_of(number) == "d 0"]:
            del state[number]
        new = {number: value for number, value in new.items() if day_of(number) == "d 0"}
        values = ", ".join(f"(CAST({number} AS BIGINT), CAST({value} AS BIGINT))" for number, value in new.items())
        flink.run(f"INSERT OVERWRITE db.{name} PARTITION (dt = 'd 0') SELECT * FROM (VALUES {values})")
    else:
        if keyed and state:
            new[rng.choice(sorted(state))] = step
        values = ", ".join(f"({number}, {value}, '{day_of(number)}')" for number, value in new.items())
        flink.run(f"INSERT INTO db.{name} VALUES {values}")
    state |= new


@pytest.mark.parametrize("name", KINDS)
def test_both_change_every_kind_of_table_by_turns(flink: Any, lake: Lake, name: str) -> None:
    """After each change both read the same as a dictionary, and later at each tag, whoever made it."""
    keys, clause, options = KINDS[name]
    create(flink, name, keys=keys, clause=clause, options=options)
    table, rng, state = lake.table(f"db.{name}"), random.Random(name), dict[int, int]()
    tagged: dict[str, list[list[Any]]] = {}
    for step in range(1, 9):
        if step % 2:
            change_by_flink(flink, name, state, rng, step)
        else:
            added = dict.fromkeys(range(step * 10, step * 10 + 5), step)
            write(table, added)
            state |= added
        if step % 4 == 0:
            table.compact(full=step == 8)
        elif "deletion-vectors.enabled" in options:
            table.compact()
        if step % 3 == 0:
            flink.run(f"CALL sys.create_tag('db.{name}', 'by_flink_{step}')")
            tagged[f"by_flink_{step}"] = rows_of(state)
        else:
            table.create_tag(f"by_lakebed_{step}")
            tagged[f"by_lakebed_{step}"] = rows_of(state)
        assert read_by_lakebed(table) == rows_of(state), step
        assert flink.run(f"SELECT * FROM db.{name}") == rows_of(state), step
    flink.run(f"CALL sys.compact(`table` => 'db.{name}', compact_strategy => 'full')")
    table.expire(retain_max=1, retain_min=1, older_than_ms=0)
    for tag, rows in {**tagged, "": rows_of(state)}.items():
        hint = f" /*+ OPTIONS('scan.tag-name' = '{tag}') */" if tag else ""
        assert flink.run(f"SELECT * FROM db.{name}{hint}") == rows, tag
        assert read_by_lakebed(table, **({"version": tag} if tag else {})) == rows, tag
    assert table.collect(grace_ms=0, dry_run=True).deleted_count == 0


def newest_checkpoint(folder: Path) -> str:
    """The newest finished checkpoint of a job."""
    return f"file://{max(folder.glob('*/chk-*/_metadata'), key=lambda path: path.stat().st_mtime).parent}"


def ids_of(table: Table) -> list[int]:
    """Every id, sorted."""
    return sorted(table.read(columns=["id"])["id"].to_pylist())


@pytest.mark.parametrize(
    ("name", "keys", "options"),
    [
        ("appended", "", {"write-only": "true"}),
        ("keyed", "id", {"bucket": "2", "write-only": "true"}),
        ("both_compact", "id", {"bucket": "2"}),
    ],
)
def test_a_stream_writes_each_row_once(
    flink: Any, lake: Lake, tmp_path: Path, name: str, keys: str, options: dict[str, str]
) -> None:
    """Its cluster is killed, it goes on from a savepoint, and loses its tasks; lakebed changes the table meanwhile."""
    name = f"stream_{name}"
    create(flink, name, keys=keys, options=options)
    table = lake.table(f"db.{name}")
    insert = f"INSERT INTO db.{name} SELECT id, id * 2, 'x' FROM default_catalog.default_database.numbers"
    place = {"execution.checkpointing.dir": f"file://{tmp_path}"}

    def start(restore: str = "") -> str:
        path = {"execution.state-recovery.path": restore} if restore else {}
        return str(flink.start(NUMBERS, insert, options={**place, **path}))

    def wait_for(count: int) -> None:
        wait_until(lambda: table.read(columns=["id"]).num_rows >= count, timeout_s=JOB_S_MAX, interval_s=0.2)

    start()
    wait_for(500)
    flink.kill()
    if "write-only" in options:
        table.create_tag("killed")  # has the files of the last commit, which the job will find in no snapshot
        table.compact(full=True)
        table.expire(retain_max=1, retain_min=1, older_than_ms=0)
    flink.start_cluster()
    job = start(newest_checkpoint(tmp_path))
    wait_for(len(ids_of(table)) + 500)
    savepoint = flink.ask("savepoint", job=job, path=f"file://{tmp_path}/savepoints")
    ids = ids_of(table)
    assert ids == list(range(1, len(ids) + 1))
    job = start(savepoint)
    flink.ask("lose-tasks")
    for number in range(8):
        table.create_tag(f"tag-{number}")
        write(table, {-1 - number: 0})
        table.compact(full=number % 4 == 0)
        table.expire(retain_max=5, retain_min=1, older_than_ms=0)
        wait_until(lambda: flink.ask("status", job=job) in ("RUNNING", "FINISHED"), timeout_s=JOB_S_MAX)
    wait_until(lambda: flink.has_ended(job), timeout_s=JOB_S_MAX)
    ids = ids_of(table)
    assert len(ids) == COUNT + 8
    assert ids == [*range(-8, 0), *range(1, COUNT + 1)]
    sums = table.read()
    assert duckdb.sql("SELECT sum(v)::BIGINT, count(DISTINCT id) FROM sums").fetchall() == [
        (COUNT * (COUNT + 1), COUNT + 8)
    ]
    assert sums.num_rows == COUNT + 8
    table.collect(grace_ms=0)
    counted = flink.run(f"SELECT COUNT(*), COUNT(DISTINCT id), SUM(v) FROM db.{name}")
    assert counted == [[COUNT + 8, COUNT + 8, COUNT * (COUNT + 1)]]


@pytest.mark.parametrize(("keys", "options"), [("", {}), ("id", {"bucket": "1", "changelog-producer": "input"})])
def test_a_reader_continues_where_its_consumer_is(flink: Any, lake: Lake, keys: str, options: dict[str, str]) -> None:
    """What was written while nothing followed is kept through an expiry, and comes once; also after a rollback."""
    name = f"followed_{keys or 'append'}"
    create(flink, name, keys=keys, options=options)
    table = lake.table(f"db.{name}")
    settings = {"consumer-id": "etl", "consumer.expiration-time": "1 d", "continuous.discovery-interval": "200 ms"}
    listed = ", ".join(f"'{key}' = '{value}'" for key, value in settings.items())
    hint = f"/*+ OPTIONS({listed}) */"
    write(table, {1: 1, 2: 2})
    job = flink.follow(f"{name} 1", f"SELECT id FROM db.{name} {hint}")
    write(table, {3: 3})
    wait_until(lambda: len(flink.rows(f"{name} 1")) >= 3, timeout_s=JOB_S_MAX)
    newest = table.latest()
    assert newest is not None
    consumers = f"SELECT next_snapshot_id FROM db.`{name}$consumers`"
    wait_until(lambda: flink.run(consumers) == [[newest.id + 1]], timeout_s=JOB_S_MAX)
    first = flink.rows(f"{name} 1")
    flink.ask("cancel", job=job)
    for number in range(4, 8):
        write(table, {number: number})
    table.compact(full=True)
    table.expire(retain_max=1, retain_min=1, older_than_ms=0)
    flink.follow(f"{name} 2", f"SELECT id FROM db.{name} {hint}")
    wait_until(lambda: len(flink.rows(f"{name} 2")) >= 4, timeout_s=JOB_S_MAX)
    before = table.latest()
    assert before is not None
    write(table, {8: 8})
    wait_until(lambda: len(flink.rows(f"{name} 2")) >= 5, timeout_s=JOB_S_MAX)
    table.rollback_to_as_latest(before.id)
    write(table, {9: 9})
    wait_until(lambda: len(flink.rows(f"{name} 2")) >= 6, timeout_s=JOB_S_MAX)
    assert [row[1] for row in sorted(first)] == [1, 2, 3]
    assert [row[1] for row in sorted(flink.rows(f"{name} 2"))] == [4, 5, 6, 7, 8, 9]
    assert ids_of(table) == [1, 2, 3, 4, 5, 6, 7, 9]


def test_an_expiry_of_flink_takes_nothing_that_is_needed(flink: Any, lake: Lake) -> None:
    """Neither files that a rollback has made live again, nor those that a branch shares with main."""
    create(flink, "kept", keys="id", options={"bucket": "1"})
    table = lake.table("db.kept")
    for number in range(4):
        write(table, {number: number})
    before = table.latest()
    assert before is not None
    table.create_branch("dev")
    table.compact(full=True)
    table.rollback_to_as_latest(before.id)
    flink.run("INSERT INTO db.`kept$branch_dev` VALUES (9, 9, 'd 1')")
    for place in ("db.kept", "db.kept$branch_dev"):
        flink.run(f"CALL sys.compact(`table` => '{place}', compact_strategy => 'full')")
        expire = f"CALL sys.expire_snapshots(`table` => '{place}', retain_max => 1, retain_min => 1, older_than => "
        assert flink.run(f"{expire}'2100-01-01 00:00:00')") == [["0"]]
    kept = rows_of({number: number for number in range(4)})
    dev = rows_of({number: number for number in (0, 1, 2, 3, 9)})
    assert flink.run("SELECT * FROM db.kept") == read_by_lakebed(table) == kept
    assert read_by_lakebed(table, version=before.id) == kept
    assert (
        flink.run("SELECT * FROM db.`kept$branch_dev`") == read_by_lakebed(lake.table("db.kept", branch="dev")) == dev
    )


def test_procedures_of_versions(flink: Any, lake: Lake) -> None:
    """Tags, branches, rollbacks, partitions and merges by CALL; lakebed has the same after each."""
    create(flink, "by_call", keys="id, dt", clause="PARTITIONED BY (dt)", options={"bucket": "1"})
    table, state = lake.table("db.by_call"), dict[int, int]()
    for number in range(4):
        flink.run(f"INSERT INTO db.by_call VALUES ({number}, {number}, '{day_of(number)}')")
        state[number] = number
    flink.run("CALL sys.create_tag(`table` => 'db.by_call', tag => 'two', snapshot_id => CAST(2 AS BIGINT))")
    flink.run("CALL sys.create_tag(`table` => 'db.by_call', tag => 'gone', time_retained => '7 d')")
    flink.run("CALL sys.delete_tag(`table` => 'db.by_call', tag => 'gone')")
    assert [tag.name for tag in table.tags()] == ["two"]
    flink.run("CALL sys.create_branch('db.by_call', 'dev', 'two')")
    flink.run("CALL sys.rename_branch('db.by_call', 'dev', 'next')")
    flink.run("INSERT INTO db.`by_call$branch_next` VALUES (7, 7, 'd 1')")
    assert read_by_lakebed(lake.table("db.by_call", branch="next")) == rows_of({0: 0, 1: 1, 7: 7})
    flink.run("CALL sys.delete_branch('db.by_call', 'next')")
    assert table.branches() == []
    flink.run("CALL sys.drop_partition('db.by_call', 'dt=d 0')")
    assert read_by_lakebed(table) == flink.run("SELECT * FROM db.by_call") == rows_of({1: 1, 3: 3})
    flink.run("CALL sys.rollback_to(`table` => 'db.by_call', tag => 'two')")
    assert read_by_lakebed(table) == flink.run("SELECT * FROM db.by_call") == rows_of({0: 0, 1: 1})
    create(flink, "source", keys="id", options={"bucket": "1"})
    flink.run("INSERT INTO db.source VALUES (0, 50, 'd 0')")
    flink.run(
        "CALL sys.merge_into(target_table => 'db.by_call', source_table => 'db.source', "
        "merge_condition => 'by_call.id = source.id', matched_upsert_setting => 'v = source.v')"
    )
    assert read_by_lakebed(table) == flink.run("SELECT * FROM db.by_call") == rows_of({0: 50, 1: 1})
    flink.run("CREATE TABLE db.dated (id BIGINT, dt STRING) PARTITIONED BY (dt)")
    flink.run("INSERT INTO db.dated VALUES (1, '2001-01-01'), (2, '2999-01-01')")
    expired = flink.run(
        "CALL sys.expire_partitions(`table` => 'db.dated', expiration_time => '1 d', timestamp_formatter => "
        "'yyyy-MM-dd')"
    )
    assert expired == [["dt=2001-01-01"]]
    assert lake.table("db.dated").read().to_pylist() == [{"id": 2, "dt": "2999-01-01"}]


def test_schemas_that_change(flink: Any, lake: Lake) -> None:
    """ALTER TABLE of Flink and columns that lakebed adds; computed columns and watermarks are Flink's alone."""
    flink.run("CREATE DATABASE IF NOT EXISTS db")
    flink.run("CREATE TABLE db.evolving (id INT, ts TIMESTAMP(3), twice AS id * 2, WATERMARK FOR ts AS ts)")
    flink.run("INSERT INTO db.evolving VALUES (1, TIMESTAMP '2026-01-02 03:04:05.678')")
    flink.run("ALTER TABLE db.evolving ADD (w DOUBLE FIRST)")
    flink.run("ALTER TABLE db.evolving DROP WATERMARK")
    flink.run("ALTER TABLE db.evolving RENAME ts TO written")
    flink.run("ALTER TABLE db.evolving SET ('snapshot.time-retained' = '2 d')")
    table = lake.table("db.evolving")
    table.add_column("ours", "STRING")
    flink.run("INSERT INTO db.evolving (id, ours) VALUES (2, 'x')")
    assert flink.run("SELECT id, w, twice, written, ours FROM db.evolving") == [
        [1, None, 2, "2026-01-02T03:04:05.678", None],
        [2, None, 4, None, "x"],
    ]
    table.refresh()
    assert [field.name for field in table.schema.fields] == ["w", "id", "written", "ours"]
    assert table.schema.options["snapshot.time-retained"] == "2 d"
    assert sorted((row["id"], row["w"], row["ours"]) for row in table.read().to_pylist()) == [
        (1, None, None),
        (2, None, "x"),
    ]


def test_tables_in_a_branch_of_a_repository(flink: Any, running: Running, tmp_path: Path) -> None:
    """Through the S3 gateway: statements, a stream that loses its tasks, and a commit that versions both tables."""
    repository = running.site.repositories.create("analytics")
    repository.create_branch("etl")
    flink.run("CREATE TABLE `analytics.etl`.orders (id BIGINT, v STRING, PRIMARY KEY (id) NOT ENFORCED)")
    flink.run("INSERT INTO `analytics.etl`.orders VALUES (1, 'a'), (2, 'b')")
    flink.run("UPDATE `analytics.etl`.orders SET v = 'c' WHERE id = 1")
    assert flink.run("SELECT * FROM `analytics.etl`.orders") == [[1, "c"], [2, "b"]]
    flink.run("CREATE TABLE `analytics.etl`.numbers (id BIGINT)")
    insert = "INSERT INTO `analytics.etl`.numbers SELECT id FROM default_catalog.default_database.numbers"
    job = flink.start(NUMBERS, insert, options={"execution.checkpointing.dir": f"file://{tmp_path}"})
    count = "SELECT COUNT(*) FROM `analytics.etl`.numbers"
    wait_until(lambda: flink.run(count)[0][0] > 400, timeout_s=JOB_S_MAX)
    flink.ask("lose-tasks")
    wait_until(lambda: flink.has_ended(job), timeout_s=JOB_S_MAX)
    counted = "SELECT COUNT(*), COUNT(DISTINCT id), SUM(id) FROM `analytics.{}`.numbers"
    assert flink.run(counted.format("etl")) == [[COUNT, COUNT, COUNT * (COUNT + 1) // 2]]
    commit = repository.branch("etl").commit("orders and numbers")
    flink.run("DELETE FROM `analytics.etl`.orders WHERE id = 2")
    assert flink.run("SELECT * FROM `analytics.etl`.orders") == [[1, "c"]]
    repository.create_tag("v1", ref=commit.id)
    assert flink.run("SELECT * FROM `analytics.v1`.orders") == [[1, "c"], [2, "b"]]
    assert flink.run(counted.format("v1")) == [[COUNT, COUNT, COUNT * (COUNT + 1) // 2]]


def test_a_key_for_some_tables(flink: Any, running: Running, lake: Lake) -> None:
    """A limited key reads and writes its database, if that is the catalog's default one, and sees no other."""
    flink.run("CREATE DATABASE IF NOT EXISTS mine", "CREATE DATABASE IF NOT EXISTS other")
    flink.run("CREATE TABLE mine.t (id INT)", "CREATE TABLE other.t (id INT)")
    whole = dict(flink.catalog)
    key = running.site.keys.create(role="write", tables=("mine.*",))
    limited = {**whole, "token": key.token, "default-database": "mine"}
    try:
        flink.ask("catalog", catalog=limited)
        flink.run("INSERT INTO mine.t VALUES (1)")
        assert flink.run("SELECT * FROM mine.t") == flink.run("SELECT * FROM t") == [[1]]
        assert flink.run("SHOW DATABASES") == [["mine"]]
        for statement in ("SELECT * FROM other.t", "INSERT INTO other.t VALUES (1)", "DROP TABLE mine.t"):
            with pytest.raises(flink.Error):
                flink.run(statement)
    finally:
        flink.ask("catalog", catalog=whole)
    assert lake.table("other.t").latest() is None
    assert lake.table("mine.t").read().to_pylist() == [{"id": 1}]


@pytest.mark.parametrize(
    ("statement", "sentence"),
    [
        ("CREATE TABLE db.x (a INT) WITH ('file.format' = 'orc')", "'file.format' = 'orc' is not supported"),
        ("CREATE TABLE db.x (a INT) WITH ('path' = '/tmp/x')", "the catalog says where a table is"),
        ("CREATE TABLE db.x (a INT) WITH ('row-tracking.enabled' = 'true')", "is not supported by this version"),
        (
            "CREATE TABLE db.x (a INT PRIMARY KEY NOT ENFORCED) WITH ('changelog-producer' = 'lookup')",
            "'changelog-producer' = 'lookup' is not supported",
        ),
        ("CREATE TABLE db.x (a INT PRIMARY KEY NOT ENFORCED, b INT) PARTITIONED BY (b)", "not part of the primary key"),
        ("ALTER TABLE db.refused RENAME TO db.x", "A table cannot be renamed"),
        ("ALTER TABLE db.refused MODIFY v INT", "only a wider type"),
        ("ALTER TABLE db.refused SET ('nonsense' = '1')", "Option 'nonsense' is not known"),
        ("CREATE VIEW db.x AS SELECT * FROM db.refused", "does not serve that part of the protocol"),
        ("CREATE DATABASE `analytics.new`", "is a branch of a repository"),
    ],
)
def test_what_is_refused_is_refused_with_one_sentence(flink: Any, lake: Lake, statement: str, sentence: str) -> None:
    """The error of Flink ends with the server's sentence, and nothing was made."""
    if not lake.has_table("db.refused"):
        create(flink, "refused")
    with pytest.raises(flink.Error, match=re.escape(sentence)):
        flink.run(statement)
    assert not lake.has_table("db.x")
    assert lake.table("db.refused").schema.id == 0


def test_the_guides_example(flink: Any, lake: Lake) -> None:
    """Every statement of the guide runs as it is written there, behind the one that makes the catalog."""
    text = GUIDE.read_text().split("### Flink\n")[1].split("\n### ")[0]
    (block,) = re.findall(r"```sql\n(.*?)```", text, re.DOTALL)
    statements = [part.strip() for part in re.sub(r"--.*", "", block).split(";") if part.strip()]
    assert statements[0].startswith("CREATE CATALOG lake WITH ('type' = 'paimon'")
    for option in re.findall(r"'([a-z.]+)' = '", statements[0])[1:]:
        assert option in flink.catalog, option
    answers = [flink.run(statement) for statement in statements[2:]]
    assert answers[-1] == [[1, "Oslo"], [2, "Rome"]]
    assert sorted(lake.table("shop.orders").read()["city"].to_pylist()) == ["Bergen", "Rome"]
