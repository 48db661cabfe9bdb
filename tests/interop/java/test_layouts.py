"""Tables laid out as the Java implementation does: both sides find the other's files, and neither deletes them."""

from __future__ import annotations

import datetime
import subprocess
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakebed import Lake
from lakebed.errors import UnsupportedFormat
from lakebed.fsck.check import check_lake
from lakebed.spark.java import find_java, parse_java_version
from lakebed.table.codec.java_text import newer_text, older_text
from lakebed.table.iceberg.file_ids import FileIds, ids_of_file
from lakebed.table.imports.take_over import ids_of
from lakebed.table.rows.rows import new_writer

if TYPE_CHECKING:
    from conftest import Java

EVER_MS = 2**60
DAY = datetime.date(2013, 1, 1)
NOON = datetime.datetime(2013, 1, 1, 12, 0, 0, 120_000)
UTC_NOON = NOON.replace(tzinfo=datetime.UTC)
LEGACY = {"partition.legacy-name": "true"}
MODERN = {"partition.legacy-name": "false"}

KINDS: list[tuple[pa.DataType, list[Any], dict[str, str]]] = [
    (pa.date32(), [DAY, datetime.date(1, 1, 1), datetime.date(9999, 12, 31)], {}),
    (pa.date32(), [DAY, datetime.date(1969, 12, 31)], MODERN),
    (pa.timestamp("ms"), [NOON, datetime.datetime(2013, 1, 1)], LEGACY),
    (pa.timestamp("us"), [NOON, datetime.datetime(2013, 1, 1)], MODERN),
    (pa.timestamp("us", "UTC"), [UTC_NOON], LEGACY),
    (pa.timestamp("ms", "UTC"), [UTC_NOON], MODERN),
    (pa.time32("ms"), [datetime.time(12), datetime.time(0, 0, 0, 120_000)], LEGACY),
    (pa.time32("ms"), [datetime.time(12), datetime.time(0, 0, 0, 120_000)], MODERN),
    (pa.float64(), [1e10, 0.001, 1e-4, 2e23, 5e-324, float("inf"), 100.0], {}),
    (pa.float32(), [2.0**33, 0.1, 1e-4], {}),
    (pa.decimal128(10, 2), [Decimal("1.50"), Decimal("-0.01")], {}),
    (pa.bool_(), [True, False], {}),
    (pa.string(), ["a/b", "x=1:2", "é 日本", " lead", "100%"], {}),
    (pa.string(), [None, "x"], {"partition.default-name": "no value/here"}),
    (pa.string(), ["x"], {"data-file.path-directory": "the/data"}),
    (pa.int64(), [-(2**63), 7, None], {}),
]


def rows_of(kind: pa.DataType, values: list[Any], first: int) -> pa.Table:
    """A row for each value, numbered."""
    return pa.table({"id": pa.array(range(first, first + len(values)), pa.int64()), "p": pa.array(values, kind)})


KEYED = (0, 14)
"""Kinds that are tried with a primary key too; there is nothing about keys in a folder's name."""
LONG = (1, 3, 4, 5, 6, 7, 9, 10, 11, 15)
"""Kinds that differ from the others by the names of folders only, all of which `unit/table/test_placement.py` has."""


def select_printed_alike(values: list[float], *, is_single: bool) -> list[float]:
    """Those that this Java prints as lakebed does, which is as Java up to 18 does."""
    done = subprocess.run([find_java(), "-version"], capture_output=True, text=True, check=True)
    if (parse_java_version(done.stderr + done.stdout) or 0) < 19:
        return values
    return [
        value for value in values if older_text(value, is_single=is_single) == newer_text(value, is_single=is_single)
    ]


@pytest.mark.parametrize(
    ("case", "keyed"),
    [
        pytest.param(
            case,
            keyed,
            id=f"{kind}-{case}-{'keyed' if keyed else 'append'}",
            marks=[pytest.mark.long] if case in LONG else [],
        )
        for case, (kind, _, _) in enumerate(KINDS)
        for keyed in ((False, True) if case in KEYED else (False,))
    ],
)
def test_partitions_of_both_lie_together(java: Java, lake: Lake, case: int, keyed: bool) -> None:
    """Java writes, lakebed appends, deletes and cleans; Java writes again and cleans: no row is lost on either side."""
    kind, values, options = KINDS[case]
    values = [value for value in values if value is not None or not keyed]
    if pa.types.is_floating(kind):
        values = select_printed_alike(values, is_single=kind == pa.float32())
    schema = pa.schema([pa.field("id", pa.int64(), nullable=not keyed), pa.field("p", kind, nullable=not keyed)])
    keys = ["id", "p"] if keyed else []
    bucket = {"bucket": "2"} if keyed else {}
    java.create("default.t", schema, primary_keys=keys, partition_keys=["p"], options={**options, **bucket})
    java.write("default.t", rows_of(kind, values, 0))
    table = lake.table("t")
    root = Path(java.warehouse)
    folders = {path.parent for path in root.rglob("data-*.parquet")}
    expected = rows_of(kind, values, 0)
    assert java.exact(table.read()) == java.exact(expected)
    table.write(rows_of(kind, values, 100))
    expected = pa.concat_tables([expected, rows_of(kind, values, 100)])
    assert {path.parent.parent for path in root.rglob("data-*.parquet")} == {folder.parent for folder in folders}
    assert java.exact(java.read("default.t")) == java.exact(table.read()) == java.exact(expected)
    table.delete("id = 100")
    expected = expected.filter(pa.compute.not_equal(expected["id"], 100))
    table.compact(full=True)
    table.expire(retain_max=1, retain_min=1)
    assert table.collect(grace_ms=0).deleted_count == 0
    assert java.exact(java.read("default.t")) == java.exact(table.read()) == java.exact(expected)
    java.write("default.t", rows_of(kind, values, 200))
    expected = pa.concat_tables([expected, rows_of(kind, values, 200)])
    assert table.collect(grace_ms=0).deleted_count == 0
    java.call("compact")
    java.call("expire_snapshots")
    assert java.call("remove_orphans") == []
    assert java.exact(java.read("default.t")) == java.exact(lake.table("t").read()) == java.exact(expected)


def test_rows_of_mod_lie_in_one_bucket_for_both(java: Java, lake: Lake) -> None:
    """With bucket-function.type=mod an upsert of either side replaces the row of the other."""
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("p", pa.int64())])
    options = {"bucket": "4", "bucket-function.type": "mod"}
    java.create("default.t", schema, primary_keys=["id"], options=options)
    ids = [-(2**63), -5, -1, 0, 1, 2, 7, 2**63 - 1]
    table = lake.table("t")
    for value in range(4):
        rows = pa.table({"id": pa.array(ids, pa.int64()), "p": pa.array([value] * len(ids), pa.int64())}, schema)
        if value % 2:
            table.upsert(rows)
        else:
            java.write("default.t", rows)
        assert java.exact(java.read("default.t")) == java.exact(table.read()) == java.exact(rows)
    for number in ids[1:-1]:
        assert table.read(where=f"id = {number}")["p"].to_pylist() == [3]


STRATEGIES = {
    "round-robin": {},
    "weight-robin": {"data-file.external-paths.weights": "1,2"},
    "entropy-inject": {"file-index.bloom-filter.columns": "v", "file-index.in-manifest-threshold": "1 b"},
}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_external_paths_are_shared_by_both(java: Java, lake: Lake, tmp_path: Path, strategy: str) -> None:
    """Both sides write, compact and expire files outside the table; no live file is lost, and none is left behind."""
    schema = pa.schema(
        [pa.field("id", pa.int64(), nullable=False), pa.field("p", pa.date32(), nullable=False), ("v", pa.string())]
    )
    places = [tmp_path / "lake" / "outside", tmp_path / "far away"]
    options = {
        "bucket": "2",
        "data-file.external-paths": ",".join(f"file://{place}//" for place in places),
        "data-file.external-paths.strategy": strategy,
        **STRATEGIES[strategy],
    }
    java.create("default.t", schema, primary_keys=["id", "p"], partition_keys=["p"], options=options)
    table = lake.table("t")
    for value in range(4):
        days = [DAY, datetime.date(1969, 12, 31)] * 4
        rows = pa.table({"id": range(8), "p": days, "v": [str(value)] * 8}, schema)
        table.upsert(rows) if value % 2 else java.write("default.t", rows)
        if value == 2:
            java.call("compact")
            table.create_tag("kept")
        result = [java.exact(java.read("default.t")), java.exact(table.read())]
        assert result == [java.exact(rows)] * 2
    table.compact(full=True)
    paths = table.system("files")["file_path"].to_pylist()
    assert sorted(paths) == sorted(file["path"] for file in java.call("files"))
    assert all(path.startswith(tuple(f"file:{place}/p=" for place in places)) for path in paths)
    java.call("expire_snapshots", retain_max=3, retain_min=3)
    table.expire(retain_max=1, retain_min=1)
    assert java.exact(java.read("default.t", options={"scan.tag-name": "kept"})) == [
        (key, day, "2") for key, day, _ in java.exact(rows)
    ]
    table.delete_tag("kept")
    assert table.collect(grace_ms=0).deleted_count == 0
    assert java.call("remove_orphans") == []
    present = [path for place in places for path in place.rglob("*") if path.is_file()]
    assert sorted(f"file:{path}" for path in present) == sorted(paths)
    assert not list((tmp_path / "lake").rglob("t/**/*.parquet"))
    assert [finding.sentence for finding in check_lake(lake, deep=True).findings] == []
    java.write("default.t", rows)
    java.call("compact")
    java.call("expire_snapshots")
    paths = table.system("files")["file_path"].to_pylist()
    assert sorted(f"file:{path}" for path in tmp_path.rglob("*.parquet")) == sorted(paths)
    assert java.exact(java.read("default.t")) == java.exact(table.read()) == java.exact(rows)


def test_a_root_that_another_table_has_too_is_cleaned_with_care(java: Java, lake: Lake, tmp_path: Path) -> None:
    """Two tables of one root, files of both written by both: lakebed's cleaning and dropping take each its own only."""
    schema = pa.schema([("id", pa.int64()), ("p", pa.string())])
    options = {
        "data-file.external-paths": f"file://{tmp_path / 'outside'}",
        "data-file.external-paths.strategy": "round-robin",
    }
    rows = pa.table({"id": [1, 2], "p": ["x", "y"]}, schema)
    for name in ("one", "two"):
        java.create(f"default.{name}", schema, partition_keys=["p"], options=options)
        java.write(f"default.{name}", rows)
        lake.table(name).append(rows)
        writer = new_writer(lake.table(name).context.look())
        writer.write(rows)
        writer.finish()
    folder = tmp_path / "outside" / "p=x" / "bucket-0"
    assert len(list(folder.iterdir())) == 6
    lake.collect(grace_ms=0)
    assert len(list(folder.iterdir())) == 4
    lake.drop_table("one")
    assert len(list(folder.iterdir())) == 2
    twice = pa.concat_tables([rows, rows])
    assert java.exact(java.read("default.two")) == java.exact(lake.table("two").read()) == java.exact(twice)


@pytest.mark.parametrize("kind", ["orc", "parquet"])
def test_manifests_of_another_format_leave_nothing_behind(java: Java, lake: Lake, kind: str) -> None:
    """A table whose manifests are not Avro is an unsupported format, and no verb leaves a file in it."""
    schema = pa.schema([("id", pa.int64()), ("p", pa.string())])
    java.create("default.t", schema, options={"manifest.format": kind})
    rows = pa.table({"id": [1], "p": ["x"]}, schema)
    java.write("default.t", rows)
    table = lake.table("t")
    before = {meta.path for meta in table.store.list("")}
    for verb in (table.read, lambda: table.append(rows), lambda: table.overwrite(rows), lambda: table.delete("id = 1")):
        with pytest.raises(UnsupportedFormat):
            verb()
    assert {meta.path for meta in table.store.list("")} == before


def test_indexes_in_manifests_and_beside_files_are_checked(java: Java, lake: Lake) -> None:
    """A table with file indexes, in manifests and in files of their own, is read, checked and cleaned."""
    schema = pa.schema([("id", pa.int64()), ("p", pa.string())])
    for table_name, threshold in (("inside", "10 mb"), ("beside", "1 b")):
        java.create(
            f"default.{table_name}",
            schema,
            options={"file-index.bloom-filter.columns": "id", "file-index.in-manifest-threshold": threshold},
        )
        expected = pa.table({"id": range(100), "p": ["x"] * 100}, schema)
        java.write(f"default.{table_name}", expected.slice(0, 50))
        table = lake.table(table_name)
        table.append(expected.slice(50))
        report = check_lake(lake, deep=True)
        assert [(finding.kind, finding.path) for finding in report.findings] == []
        assert table.collect(grace_ms=0).deleted_count == 0
        assert java.exact(java.read(f"default.{table_name}")) == java.exact(table.read()) == java.exact(expected)


@pytest.mark.parametrize("keyed", [False, True])
def test_field_ids(java: Java, lake: Lake, keyed: bool) -> None:
    """A file of Java and one of lakebed have the same field ids, of every part: Iceberg's clients read by them."""
    inner = pa.list_(pa.struct([("x", pa.map_(pa.int32(), pa.list_(pa.int64()))), ("y", pa.string())]))
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            ("s", pa.struct([("a", pa.int32()), ("l", inner)])),
            ("m", pa.map_(pa.string(), pa.map_(pa.int32(), inner))),
            ("lists", pa.list_(pa.list_(pa.int32()))),
        ]
    )
    rows = pa.table(
        {
            "id": [1],
            "s": [{"a": 1, "l": [{"x": [(1, [2])], "y": "z"}]}],
            "m": [[("k", [(1, [{"x": None, "y": None}])])]],
            "lists": [[[1], None]],
        },
        schema,
    )
    options = {"bucket": "1", "file.format": "parquet"} if keyed else {"file.format": "parquet"}
    table = lake.create_table("t", schema, primary_keys=["id"] if keyed else [], options=options)
    table.upsert(rows) if keyed else table.append(rows)
    java.write("default.t", rows)
    paths = sorted(Path(java.warehouse).rglob("data-*.parquet"))
    ids = [list(ids_of(pq.read_metadata(path).schema.to_arrow_schema())) for path in paths]
    assert len(ids) == 2
    assert ids[0] == ids[1]
    written = [ids_of_file(pq.read_metadata(path).schema.to_arrow_schema(), table.schema) for path in paths]
    assert written == [FileIds(), FileIds()]
