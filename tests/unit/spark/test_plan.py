"""Which reader reads which file, as plain data, decided without PySpark."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from lakebed.objects import open_store
from lakebed.spark.plan.plan import FILES, UNITS, ReaderPlan, plan_readers, urls_of
from lakebed.table.imports import open_source, take_over
from lakebed.table.model.predicate_tree import column
from lakebed.table.table import Table

ROWS = pa.schema([("k", pa.int64()), ("v", pa.int32()), ("at", pa.timestamp("us"))])


def rows(start: int, count: int = 10) -> pa.Table:
    """Some rows from a key on."""
    keys = list(range(start, start + count))
    return pa.table([keys, keys, [None] * count], schema=ROWS)


def made(folder: Path, *, primary_keys: tuple[str, ...] = ()) -> Table:
    """An empty table."""
    options = {"bucket": "1"} if primary_keys else {}
    store = open_store(folder / "t", durable=False)
    return Table.create(store, name="t", schema=ROWS, primary_keys=primary_keys, options=options)


def planned(table: Table, schemes: frozenset[str] | None = frozenset({"file"}), **what: object) -> ReaderPlan:
    """The plan of a scan of the newest version."""
    scan = table.scan(**what)  # type: ignore[arg-type]
    reaches = None if schemes is None else schemes.__contains__
    return plan_readers(table.store, scan.splits(), scan.plan, reaches=reaches, task_count_min=2)


def test_plain_files_go_to_sparks_reader(tmp_path: Path) -> None:
    """Every live file is named once, with the size and the rows that its manifest entry states."""
    table = made(tmp_path)
    for start in (0, 10, 20):
        table.write(rows(start))
    plan = planned(table)
    assert not plan.packs
    (scan,) = plan.natives
    assert scan.is_current
    assert scan.files.schema == FILES
    assert sum(scan.files["row_count"].to_pylist()) == 30
    urls = urls_of(scan.files).to_pylist()
    for url, size in zip(urls, scan.files["size_bytes"].to_pylist(), strict=True):
        assert Path(url.removeprefix("file://")).stat().st_size == size
    assert len(set(urls)) == 3


def test_without_a_file_system_lakebed_reads(tmp_path: Path) -> None:
    """Spark without a file system for the store gets packs, as many as tasks; their splits survive pickling."""
    table = made(tmp_path)
    for start in (0, 10, 20):
        table.write(rows(start))
    for schemes in (None, frozenset[str]({"s3a"})):
        plan = planned(table, schemes)
        assert not plan.natives
        splits = [split for pack in pickle.loads(pickle.dumps(plan)).packs for split in pack.splits]
        assert sum(split.row_count for split in splits) == 30


def test_files_to_merge_go_to_lakebed(tmp_path: Path) -> None:
    """Overlapping keys need a merge; the same table compacted needs none."""
    table = made(tmp_path, primary_keys=("k",))
    table.write(rows(0))
    table.write(rows(5))
    plan = planned(table)
    assert not plan.natives
    assert len(plan.packs) == 1
    table.compact(full=True)
    after = planned(table)
    assert not after.packs
    assert after.natives[0].files["row_count"].to_pylist() == [15]


def test_each_schema_is_a_scan(tmp_path: Path) -> None:
    """Files are read under the names and types that they were written with; what they lack is null."""
    table = made(tmp_path)
    table.write(rows(0))
    table.rename_column("v", "w")
    table.widen_column("w", "BIGINT")
    table.add_column("more", "STRING")
    table.write(pa.table([[10], [10], [None], ["x"]], names=["k", "w", "at", "more"]))
    plan = planned(table, columns=["w", "more"], where=column("k") >= 0)
    assert [field.name for field in plan.fields] == ["w", "more"]
    old, new = plan.natives
    assert [column.field.name for column in old.columns] == ["k", "w", "more"]
    assert [column.stored and (column.stored.name, column.stored.type) for column in old.columns] == [
        ("k", "BIGINT"),
        ("v", "INT"),
        None,
    ]
    assert not old.is_current
    assert new.is_current


def test_a_column_that_spark_cannot_read_goes_to_lakebed(tmp_path: Path) -> None:
    """Nanoseconds are read by lakebed, the other columns of the same files by Spark."""
    schema = pa.schema([("k", pa.int64()), ("at", pa.timestamp("ns"))])
    table = Table.create(open_store(tmp_path / "t", durable=False), name="t", schema=schema)
    table.write(pa.table([[1], [1]], schema=schema))
    assert planned(table).packs
    assert not planned(table).natives
    assert planned(table, columns=["k"]).natives


def test_a_long_filter_is_not_sparks(tmp_path: Path) -> None:
    """A filter of more values than Spark takes is evaluated by lakebed."""
    table = made(tmp_path)
    table.write(rows(0))
    assert planned(table, where=column("k").is_in(range(5000))).packs
    assert planned(table, where=column("k").is_in(range(500))).natives


def test_a_plan_as_arrow(tmp_path: Path) -> None:
    """One row a file or a pack."""
    table = made(tmp_path, primary_keys=("k",))
    table.write(rows(0))
    table.compact(full=True)
    table.write(rows(100))
    table.write(rows(105))
    units = planned(table).to_arrow()
    assert units.schema.equals(UNITS)
    files, packs = units.filter(units["pack"].is_null()), units.filter(units["pack"].is_valid())
    assert files["scan"].to_pylist() == [0]
    assert files["file_name"].to_pylist() == [None]
    assert [sum(split.row_count for split in pickle.loads(pack).splits) for pack in packs["pack"].to_pylist()] == [20]
    assert planned(made(tmp_path / "empty")).to_arrow().num_rows == 0


def test_a_plan_names_each_folder_once(tmp_path: Path) -> None:
    """The folder stands at the first of its files; folder and name of each row are the URL."""
    store = open_store(tmp_path / "t", durable=False)
    table = Table.create(store, name="t", schema=ROWS, partition_keys=["v"])
    for start in (0, 1, 1, 0):
        table.write(rows(start, 2))
    plan = planned(table)
    folder, urls, folders = "", [], 0
    for unit in plan.to_arrow().to_pylist():
        folders += unit["folder"] is not None
        folder = unit["folder"] or folder
        urls.append(f"{folder}/{unit['name']}")
    assert (folders, len(urls)) == (3, 8)
    assert urls == [url for scan in plan.natives for url in urls_of(scan.files).to_pylist()]
    assert all(Path(url.removeprefix("file://")).is_file() for url in urls)


def test_planning_loads_no_pyspark() -> None:
    """A process that plans and reads starts without the second that PySpark costs."""
    program = "import sys, lakebed.spark.plan.plan, lakebed.spark.plan.carried; sys.exit('pyspark' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_a_file_without_partition_columns_is_read_by_lakebed(tmp_path: Path) -> None:
    """Spark's reader takes columns from the file alone; a file that only lacks a nullable column is its own."""
    for part in (1, 2):
        (tmp_path / "hive" / f"k={part}").mkdir(parents=True)
    pq.write_table(rows(0).drop_columns(["k"]), tmp_path / "hive" / "k=1" / "x.parquet")
    pq.write_table(rows(0).set_column(0, "k", [[2] * 10]).drop_columns(["at"]), tmp_path / "hive" / "k=2" / "x.parquet")
    store = open_store(tmp_path / "t", durable=False)
    table = Table.create(store, name="t", schema=ROWS, partition_keys=["k"])
    take_over(table, open_source("parquet", str(tmp_path / "hive"), like=store))
    plan = planned(table)
    assert [scan.files["row_count"].to_pylist() for scan in plan.natives] == [[10]]
    assert [split.partition_values for pack in plan.packs for split in pack.splits] == [{"k": 1}]
