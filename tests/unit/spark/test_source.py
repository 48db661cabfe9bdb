"""The data source without a session: what it plans, reads, writes and pickles."""

from __future__ import annotations

import datetime
import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, Not
from pyspark.sql.types import IntegerType, LongType, StructField, StructType

from lakebed.errors import InvalidRequest, NotFound
from lakebed.objects import open_store
from lakebed.spark.datasource.source import LakebedSource, TaskReader
from lakebed.spark.datasource.source_writing import Written
from lakebed.table.table import Table

SCHEMA = pa.schema([("k", pa.int64()), ("day", pa.date32()), ("at", pa.timestamp("us", tz="UTC")), ("x", pa.float64())])


def rows(start: int, count: int = 10) -> pa.Table:
    """Some rows from a key on."""
    keys = list(range(start, start + count))
    at = pa.array([key * 10**6 for key in keys], pa.timestamp("us", tz="UTC"))
    days = [datetime.date(2013, 1, 1 + start // 10)] * count
    return pa.table([keys, days, at, [float(key) for key in keys]], SCHEMA.names).cast(SCHEMA)


def made(folder: Path, **more: Any) -> Table:
    """A table of three files, a snapshot each; the first is tagged."""
    table = Table.create(open_store(folder / "t", durable=False), name="t", schema=SCHEMA, **more)
    for start in (0, 10, 20):
        table.write(rows(start))
    table.create_tag("first", snapshot_id=1)
    return table


def source(table: Table, **options: str) -> LakebedSource:
    """The source over a table."""
    return LakebedSource({"path": str(table.url), **options})


def keys_of(found: LakebedSource, *, schema: StructType | None = None, filters: Sequence[Filter] = ()) -> list[int]:
    """The keys that are read, through the pickling that brings a reader to its tasks."""
    found = cloudpickle.loads(cloudpickle.dumps(found))
    schema = schema or found.schema()
    reader: Any = found.reader(schema)
    if filters:
        assert list(reader.pushFilters(list(filters))) == list(filters)
    in_task = cloudpickle.loads(cloudpickle.dumps(reader))
    assert isinstance(in_task, TaskReader)
    partitions = pickle.loads(pickle.dumps(reader.partitions()))
    batches = [batch for partition in partitions for batch in in_task.read(partition)]
    return sorted(key for batch in batches for key in batch.column("k").to_pylist())


def test_versions(tmp_path: Path) -> None:
    """The newest version, one by id, tag or time, and the one that was the newest when the schema was asked for."""
    table = made(tmp_path)
    assert keys_of(source(table)) == list(range(30))
    assert keys_of(source(table, version="2")) == list(range(20))
    assert keys_of(source(table, tag="first")) == list(range(10))
    result = source(table)
    schema = result.schema()
    table.write(rows(30))
    assert keys_of(result, schema=schema) == list(range(30))
    with pytest.raises(NotFound):
        source(table, tag="none").schema()
    with pytest.raises(InvalidRequest, match="version each"):
        source(table, tag="first", version="1").schema()


def test_a_branch_and_an_empty_table(tmp_path: Path) -> None:
    """A branch is an option; a table without a snapshot has no rows, also when it gets some later."""
    table = made(tmp_path)
    table.create_branch("dev", tag="first")
    assert keys_of(source(table, branch="dev")) == list(range(10))
    empty = Table.create(open_store(tmp_path / "e", durable=False), name="e", schema=SCHEMA)
    result = source(empty)
    schema = result.schema()
    empty.write(rows(0))
    assert keys_of(result, schema=schema) == []
    assert keys_of(source(empty)) == list(range(10))


def test_columns_and_rows(tmp_path: Path) -> None:
    """Columns by an option or a schema; rows by an option or by filters, which leave out files."""
    table = made(tmp_path)
    assert source(table, columns="x, k").schema().names == ["x", "k"]
    assert keys_of(source(table), schema=StructType([StructField("k", LongType())])) == list(range(30))
    assert keys_of(source(table, where="k >= 25")) == list(range(25, 30))
    filters = [GreaterThan(("k",), 12), EqualTo(("day",), datetime.date(2013, 1, 2)), Not(EqualTo(("k",), 15))]
    assert keys_of(source(table), filters=filters) == [13, 14, 16, 17, 18, 19]
    reader: Any = source(table, tasks="8").reader(source(table).schema())
    assert (
        sum(len(split.files) for partition in reader.partitions() for split in pickle.loads(partition.value).splits)
        == 3
    )
    reader.pushFilters([GreaterThan(("k",), 12)])
    assert (
        sum(len(split.files) for partition in reader.partitions() for split in pickle.loads(partition.value).splits)
        == 2
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"colums": "k"}, "no option 'colums'"),
        ({"columns": "k, y"}, "'y'"),
        ({"tasks": "0"}, "use a number, at least 1"),
        ({"pushFilters": "maybe"}, "use true or false"),
        ({"path": ""}, "needs the folder"),
        ({"version": "dev"}, "give it as the option branch"),
    ],
)
def test_mistakes(tmp_path: Path, options: dict[str, str], message: str) -> None:
    """An unknown option, a value that an option does not have, a missing path: one sentence."""
    table = made(tmp_path)
    table.create_branch("dev")
    options = {name.lower(): value for name, value in options.items()}
    with pytest.raises((InvalidRequest, NotFound), match=message):
        keys_of(source(table, **options) if "path" not in options else LakebedSource(options))


def test_a_mistake_has_no_frames_of_the_library(tmp_path: Path) -> None:
    """Spark shows the traceback: it has the test and the method of the source."""
    source = LakebedSource({"path": str(tmp_path / "nothing")})
    for method in (source.schema, partial(source.reader, StructType()), partial(source.writer, StructType(), False)):
        with pytest.raises(NotFound) as raised:
            method()
        assert len(raised.traceback) == 2
        assert raised.value.__cause__ is None


def test_another_type(tmp_path: Path) -> None:
    """A schema that the user gives has the table's types."""
    with pytest.raises(InvalidRequest, match="is bigint, but the schema given to Spark says int"):
        source(made(tmp_path)).reader(StructType([StructField("k", IntegerType())]))


def written(found: LakebedSource, parts: Sequence[pa.Table], *, overwrite: bool = False) -> tuple[Any, list[Any]]:
    """The writer and what its tasks returned, through pickling."""
    schema = LakebedSource({"path": found.options["path"]}).schema()
    writer: Any = found.writer(schema, overwrite)
    messages = []
    for part in parts:
        in_task = cloudpickle.loads(cloudpickle.dumps(writer))
        messages.append(pickle.loads(pickle.dumps(in_task.write(iter(part.to_batches(max_chunksize=4))))))
    return cloudpickle.loads(cloudpickle.dumps(writer)), messages


def data_files(folder: Path) -> int:
    """The number of data files below a folder."""
    return len(list(folder.rglob("*.parquet")))


def test_a_write_is_one_snapshot(tmp_path: Path) -> None:
    """Append and overwrite, whole or by partition, are one snapshot of all tasks."""
    table = made(tmp_path, partition_keys=["day"])
    writer, messages = written(source(table), [rows(30), rows(40)])
    assert table.latest().id == 3
    writer.commit(messages)
    assert table.latest().id == 4
    assert keys_of(source(table)) == list(range(50))
    writer, messages = written(source(table, partitions="kept"), [rows(40, 2)], overwrite=True)
    writer.commit(messages)
    assert keys_of(source(table)) == list(range(42))
    writer, messages = written(source(table), [rows(0, 3)], overwrite=True)
    writer.commit(messages)
    assert keys_of(source(table)) == [0, 1, 2]
    assert table.latest().id == 6


def test_a_failed_job_leaves_nothing(tmp_path: Path) -> None:
    """A failed task, and a row that does not fit, leave neither a snapshot nor a file."""
    table = made(tmp_path)
    before = data_files(tmp_path)
    writer, messages = written(source(table), [rows(30), rows(40)])
    assert data_files(tmp_path) == before + 2
    writer.abort([messages[0], None])
    assert data_files(tmp_path) == before + 1
    writer.abort([messages[1], None])
    assert data_files(tmp_path) == before
    wrong = rows(50).set_column(0, "k", pa.array(["x"] * 10))
    writer, messages = written(source(table), [rows(30), wrong])
    assert isinstance(messages[1], Written)
    with pytest.raises(InvalidRequest, match="'k'"):
        writer.commit(messages)
    assert data_files(tmp_path) == before
    assert table.latest().id == 3


def test_an_unclear_commit_keeps_its_files(tmp_path: Path) -> None:
    """Spark aborts a job whose commit failed; the snapshot may be there, so its files stay."""
    table = made(tmp_path)
    writer, messages = written(source(table), [rows(30)])
    writer.commit(messages)
    writer.abort(messages)
    assert keys_of(source(table)) == list(range(40))


def test_a_bucket_has_one_task(tmp_path: Path) -> None:
    """Rows of one bucket from two tasks are refused with what to do; from one task they are written."""
    for number, options in enumerate(({"bucket": "2"}, {})):
        table = made(tmp_path / str(number), primary_keys=["k"], options=options)
        before = data_files(tmp_path)
        writer, messages = written(source(table), [rows(30), rows(40)])
        with pytest.raises(InvalidRequest, match=r"coalesce\(1\)"):
            writer.commit(messages)
        assert data_files(tmp_path) == before
        writer, messages = written(source(table), [rows(25)])
        writer.commit(messages)
        assert keys_of(source(table)) == list(range(35))


@pytest.mark.parametrize(("version", "message"), [(None, "has no package lakebed"), ("0.0.1", "has lakebed 0.0.1")])
def test_an_executor_without_this_lakebed(tmp_path: Path, version: str | None, message: str) -> None:
    """Where lakebed is missing, or another version is, unpickling says so in one sentence and what to install."""
    table = made(tmp_path)
    result = source(table)
    schema = result.schema()
    fake = tmp_path / "elsewhere"
    fake.mkdir()
    if version is not None:
        (fake / "lakebed").mkdir()
        (fake / "lakebed" / "__init__.py").write_text(f"__version__ = {version!r}\n")
    program = (
        "import sys, pickle\n"
        "class Missing:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'lakebed': raise ModuleNotFoundError(name)\n"
        f"if {version is None}: sys.meta_path.insert(0, Missing())\n"
        "pickle.loads(sys.stdin.buffer.read())\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(fake)}
    for shipped in (result, result.reader(schema), result.writer(schema, False)):
        ran = subprocess.run(
            [sys.executable, "-c", program],
            input=cloudpickle.dumps(shipped),
            env=environment,
            capture_output=True,
            check=False,
            timeout=60,
        )
        last = ran.stderr.decode().strip().splitlines()[-1]
        assert last.startswith("RuntimeError: This executor's Python (")
        assert message in last
