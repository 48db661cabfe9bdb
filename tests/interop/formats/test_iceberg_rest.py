"""Pyiceberg, unmodified, whose catalog is a server of lakebed: every version that it reads is what lakebed reads."""

from __future__ import annotations

import datetime
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lakebed
from lakebed import Lake, Table
from lakebed.lake.imports import import_table
from lakebed.server.options import ServerOptions
from lakebed.server.serve import start_server
from lakebed.spark.catalog.replace import next_schema
from lakebed.table.imports import ImportOptions
from lakebed.table.model.types import arrow_field
from lakebed.table.schema.replace_columns import replace_columns
from worlds.table import nested_columns
from worlds.table.nested_columns import canonical

pytest.importorskip("pyiceberg")

from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.io.pyarrow import UnsupportedPyArrowTypeException

ROOT = Path(__file__).parents[3]
DAYS = pa.schema([("id", pa.int64()), ("day", pa.string()), ("v", pa.float64())])


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """The served folder, opened by lakebed."""
    return lakebed.open(str(tmp_path / "lake"))


@pytest.fixture
def catalog(lake: Lake, tmp_path: Path) -> Iterator[Any]:
    """The client with a server of the folder as its catalog."""
    with start_server(tmp_path / "lake", options=ServerOptions(durable=False)) as running:
        started = running.started
        opened = load_catalog(
            "lake",
            type="rest",
            uri=f"{started.endpoint}/iceberg",
            warehouse="lake",
            token=f"{started.access_key}.{started.secret}",
        )
        yield opened
        opened.close()


def rows_of(first: int, count: int, *days: str | None) -> pa.Table:
    """Rows of consecutive ids, dealt to days."""
    ids = range(first, first + count)
    return pa.table({"id": ids, "day": [days[i % len(days)] for i in ids], "v": [i / 4 for i in ids]}, DAYS)


def plain(rows: pa.Table) -> list[Any]:
    """Rows without order; texts of one width."""
    names = sorted(rows.column_names)
    columns = [rows[name].to_pylist() for name in names]
    return sorted(zip(*columns, strict=True), key=repr)


def compare(ours: Table, theirs: Any, **scan: Any) -> list[Any]:
    """Compare every version and reference that the client sees with lakebed's own read; the newest rows."""
    ours.refresh()
    for snapshot in theirs.snapshots():
        number = int(snapshot.summary["lakebed.snapshot"])
        if snapshot.snapshot_id == number:
            read = theirs.scan(snapshot_id=number).to_arrow()
            assert plain(read) == plain(ours.read(version=number).select(read.column_names)), number
    for name, reference in theirs.refs().items():
        if name == "main":
            continue
        read = theirs.scan(snapshot_id=reference.snapshot_id).to_arrow()
        assert plain(read) == plain(ours.read(version=name).select(read.column_names)), name
    newest = theirs.scan(**scan).to_arrow()
    assert plain(newest) == plain(ours.read().select(newest.column_names))
    return plain(newest)


def test_versions_tags_and_branches_of_an_append_table(lake: Lake, catalog: Any) -> None:
    """Partitions, nulls, deletes, a rename, a column that comes back, a compaction, tags, branches, an expiry."""
    table = lake.create_table("db.t", DAYS, partition_keys=["day"])
    table.append(rows_of(0, 40, "a b", "c=d/e", None, "ü%41"))
    table.create_tag("month-06")
    table.append(rows_of(40, 20, "c=d/e"))
    loaded = catalog.load_table("db.t")
    assert set(loaded.refs()) == {"main", "month-06"}
    assert len(compare(table, loaded)) == 60
    table.delete("id >= 50 AND id < 55")
    table.delete("day = 'a b'")
    table.rename_column("v", "w")
    table.add_column("v", "STRING")
    later = pa.table({"id": [100], "day": ["z"], "w": [1.5], "v": ["text"]}).cast(table.arrow_schema)
    table.append(later)
    table.compact(full=True)
    table.create_branch("trial", tag="month-06")
    branch = lake.table("db.t", branch="trial")
    branch.append(pa.table({"id": [200], "day": ["t"], "w": [0.5], "v": ["branch"]}, branch.arrow_schema))
    branch.append(pa.table({"id": [201], "day": ["t"], "w": [None], "v": [None]}, branch.arrow_schema))
    loaded = catalog.load_table("db.t")
    assert set(loaded.refs()) == {"main", "month-06", "trial"}
    assert len({snapshot.snapshot_id for snapshot in loaded.snapshots()}) == len(loaded.snapshots())
    compare(table, loaded)
    table.append(rows_of(300, 2, "z").rename_columns(["id", "day", "w"]).append_column("v", pa.nulls(2, pa.string())))
    table.expire(retain_max=1, retain_min=1, older_than_ms=2**60)
    fresh = catalog.load_table("db.t")
    assert [entry.snapshot_id for entry in fresh.history()] == [table.context.snapshots.latest().id]
    compare(table, fresh)
    tagged = loaded.refs()["month-06"].snapshot_id  # older metadata still reads what a tag pins
    assert plain(loaded.scan(snapshot_id=tagged).to_arrow()) == plain(table.read(version="month-06"))


def replace_table(table: Table, rows: pa.Table) -> None:
    """Replace columns and rows, as REPLACE TABLE does."""
    columns = replace_columns(table.refresh(), rows.schema, partition_keys=(), primary_keys=None, options={})
    with next_schema(table, columns):
        table.overwrite(rows)


def test_versions_of_a_replaced_table(lake: Lake, catalog: Any) -> None:
    """Columns that are computed anew, go, come back and change their type; rollbacks, a tag and a branch in between."""
    table = lake.create_table("db.t", pa.schema([("id", pa.int64()), ("v", pa.string()), ("made", pa.int32())]))
    table.append(pa.table({"id": [1], "v": ["a"], "made": [10]}).cast(table.arrow_schema))
    table.create_tag("first")
    replace_table(table, pa.table({"id": [2], "made": pa.array([20], pa.int32())}))
    replace_table(table, pa.table({"made": ["thirty"], "id": [3], "v": ["c"]}))
    table.rollback_to_as_latest(1)
    table.create_branch("trial", snapshot_id=2)
    lake.table("db.t", branch="trial").append(pa.table({"made": ["forty"], "id": [4], "v": ["d"]}))
    table.rollback_to_as_latest(2)
    table.append(pa.table({"made": ["fifty"], "id": [5], "v": ["e"]}))
    loaded = catalog.load_table("db.t")
    assert set(loaded.refs()) == {"main", "first", "trial"}
    held = [("id", "v", "made"), ("id", "made"), *[("made", "id", "v")] * 4]
    shown = [loaded.scan(snapshot_id=number).to_arrow().column_names for number in range(1, 7)]
    assert shown == [list(names) for names in held]
    assert compare(table, loaded) == [(2, None, None), (5, "fifty", "e")]


def test_filters_are_pruned_and_agree(lake: Lake, catalog: Any) -> None:
    """A filter of the client skips files by partitions and bounds, and finds the rows that lakebed finds."""
    table = lake.create_table("db.t", DAYS, partition_keys=["day"])
    for first in range(0, 60, 10):
        table.append(rows_of(first, 10, "a", "b"))
    loaded = catalog.load_table("db.t")
    for theirs, ours, files in (("id > 47", "id > 47", 4), ("day == 'a' and v < 1.5", "day = 'a' AND v < 1.5", 1)):
        scan = loaded.scan(row_filter=theirs)
        assert len(list(scan.plan_files())) == files
        assert plain(scan.to_arrow()) == plain(table.read(where=ours))


@pytest.mark.parametrize("kind", [pa.float64(), pa.float32()])
def test_filters_on_partitions_with_nan_and_zeros(lake: Lake, catalog: Any, kind: pa.DataType) -> None:
    """A partition of NaN hides no other one from a filter, and neither zero hides the other."""
    values = [1.5, float("nan"), None, 0.0, -0.0, -2.5]
    schema = pa.schema([("id", pa.int32()), ("x", kind)])
    table = lake.create_table("db.t", schema, partition_keys=["x"])
    table.append(pa.table({"id": range(len(values)), "x": values}, schema))
    zeros = lake.create_table("db.zeros", schema, partition_keys=["x"])
    zeros.append(pa.table({"id": [0, 1], "x": [0.0, -0.0]}, schema))
    loaded = catalog.load_table("db.t")
    for text, ids in (
        ("x == 1.5", [0]),
        ("x < -2", [5]),
        ("x > 1", [0]),
        ("x is null", [2]),
        ("x is nan", [1]),
    ):
        assert sorted(loaded.scan(row_filter=text).to_arrow()["id"].to_pylist()) == ids, text
    (manifest,) = catalog.load_table("db.zeros").inspect.manifests().to_pylist()
    (summary,) = manifest["partition_summaries"]
    assert (summary["lower_bound"], summary["upper_bound"]) == ("-0.0", "0.0")


def test_types(lake: Lake, catalog: Any) -> None:
    """Every type that is shown reads back as lakebed reads it; what Iceberg lacks is left out and said."""
    schema = pa.schema(
        [
            ("tiny", pa.int8()),
            ("small", pa.int16()),
            ("number", pa.int32()),
            ("big", pa.int64()),
            ("real", pa.float32()),
            ("flag", pa.bool_()),
            ("day", pa.date32()),
            ("money", pa.decimal128(38, 10)),
            ("cents", pa.decimal128(9, 2)),
            ("local", pa.timestamp("us")),
            ("milli", pa.timestamp("ms")),
            ("zoned", pa.timestamp("us", "UTC")),
            ("raw", pa.binary()),
            ("words", pa.list_(pa.string())),
        ]
    )
    row = {
        "tiny": [-1, None],
        "small": [300, 1],
        "number": [2**31 - 1, 0],
        "big": [-(2**63), 5],
        "real": [0.5, None],
        "flag": [True, False],
        "day": [19_000, 0],
        "money": [Decimal("1234567890123456789012345678.0123456789"), Decimal("-0.0000000001")],
        "cents": [Decimal("-12.34"), None],
        "local": [1, 2],
        "milli": [1, 2],
        "zoned": [3, 4],
        "raw": [b"\x00\xff", b""],
        "words": [["a"], None],
    }
    table = lake.create_table(
        "db.t", schema, partition_keys=["day", "cents"], options={"partition.legacy-name": "false"}
    )
    table.append(pa.table({name: pa.array(row[name], schema.field(name).type) for name in row}, schema))
    loaded = catalog.load_table("db.t")
    assert "lakebed.left-out" not in loaded.properties
    assert [field.name for field in loaded.schema().fields] == list(row)
    compare(table, loaded)
    extremes = loaded.scan(row_filter="money > 1234567890123456789012345677.9000000000").to_arrow()
    assert extremes.num_rows == 1


def test_columns_that_cannot_be_shown(lake: Lake, catalog: Any) -> None:
    """Each column without an exact counterpart, by itself or in a part, has its reason, and the others are shown."""
    types = {
        "clock": pa.time32("ms"),
        "nano": pa.timestamp("ns"),
        "clocks": pa.list_(pa.time32("ms")),
        "pair": pa.struct([("a", pa.int32()), ("at", pa.timestamp("ns"))]),
        "twice": pa.map_(pa.list_(pa.int32()), pa.list_(pa.int32())),  # both elements have one id
    }
    table = lake.create_table("db.t", pa.schema([("id", pa.int64()), *types.items()]))
    loaded = catalog.load_table("db.t")
    assert [field.name for field in loaded.schema().fields] == ["id"]
    reasons = loaded.properties["lakebed.left-out"]
    for name in types:
        assert re.search(rf"the column '{name}': [^;]{{10,}}", reasons), reasons
    assert [field.name for field in table.arrow_schema] == ["id", *types]
    table.append(pa.table({"id": [1], "clock": [datetime.time(1, 2, 3, 4000)]}).select(["id", "clock"]))
    # The client looks at all columns of a file; that it fails by itself, naming the column, is what the guide says.
    with pytest.raises(UnsupportedPyArrowTypeException, match=r"'clock' has an unsupported type: time32\[ms\]"):
        catalog.load_table("db.t").scan(selected_fields=("id",)).to_arrow()


def test_widened_columns(lake: Lake, catalog: Any) -> None:
    """A widening that Iceberg has is followed; with another one the column is left out, whatever file a row is in."""
    table = lake.create_table("db.t", pa.schema([("n", pa.int32()), ("d", pa.date32()), ("k", pa.int64())]))
    table.append(pa.table({"n": [1], "d": [10], "k": [1]}, table.arrow_schema))
    table.widen_column("n", "BIGINT")
    table.widen_column("d", "TIMESTAMP(6)")
    table.append(pa.table({"n": [2**40], "d": [5], "k": [2]}, table.arrow_schema))
    loaded = catalog.load_table("db.t")
    assert "'d': TIMESTAMP(6): some files have it as DATE" in loaded.properties["lakebed.left-out"]
    assert [field.name for field in loaded.schema().fields] == ["n", "k"]
    assert plain(loaded.scan().to_arrow()) == plain(table.read().select(["n", "k"]))
    assert plain(loaded.scan(row_filter="n > 5").to_arrow()) == [(2, 2**40)]


def same_nulls(rows: pa.Table) -> list[Any]:
    """Rows in one form; pyiceberg 0.12 makes a list of structs, and a map to structs, that are null empty ones."""
    columns = ("s", "l", "m")
    blurred = [
        {name: blur(canonical(value)) if name in columns else canonical(value) for name, value in row.items()}
        for row in rows.to_pylist()
    ]
    return sorted(map(canonical, blurred), key=repr)


def blur(value: Any) -> Any:
    """The same with null for what is empty."""
    return (tuple(map(blur, value)) or None) if isinstance(value, tuple) else value


def test_nested_columns(lake: Lake, catalog: Any) -> None:
    """Structs, lists and maps in each other, before and after changes of members: every version as lakebed reads it."""
    for keys in ([], ["id"]):
        for options in ({}, {"deletion-vectors.enabled": "true"}):
            name = f"{len(keys)}{len(options)}"
            options |= {"bucket": "1"} if keys else {}
            table = nested_columns.create(lake, name, primary_keys=keys, options=options)
            nested_columns.change(table)
            table.delete("id = 3")
            loaded = catalog.load_table(f"default.{name}")
            assert "column" not in loaded.properties.get("lakebed.left-out", "")
            assert set(loaded.refs()) == {"main", "first"}
            newest = int(loaded.properties.get("lakebed.visible-through", 0)) or None
            for version, number in {"first": loaded.refs()["first"].snapshot_id, newest: None}.items():
                read = loaded.scan(snapshot_id=number).to_arrow()
                assert read.column_names == nested_columns.SCHEMA.names
                assert same_nulls(read) == same_nulls(table.read(version=version)), (name, version)


def test_nested_columns_of_files_without_ids(
    lake: Lake, catalog: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A column is left out as long as a file has some ids and not its parts'; a file without any is read by names."""
    fields = pa.schema([("id", pa.int64()), ("s", pa.struct([("a", pa.int32())])), ("n", pa.int32())])
    (tmp_path / "plain").mkdir()
    rows = pa.table({"id": [1, 2], "s": [{"a": 1}, None], "n": [3, 4]}, fields)
    pq.write_table(rows, tmp_path / "plain" / "x.parquet")
    import_table(lake, "plain", str(tmp_path / "plain"), format="parquet", options=ImportOptions(in_place=True))
    table = lake.table("plain")
    loaded = catalog.load_table("default.plain")
    assert plain(loaded.scan().to_arrow()) == plain(table.read())
    table.create_tag("before")
    table.add_column(("s", "b"), "INT")
    table.rename_column("n", "o")
    table.add_column("n", "INT")  # names alone do not tell which of two columns the file has
    table.append(pa.table({"id": [5], "s": [{"a": 2, "b": 3}], "o": [6], "n": [7]}, table.arrow_schema))
    loaded = catalog.load_table("default.plain")
    assert [field.name for field in loaded.schema().fields] == ["id", "s", "n"]
    assert "the column 'o': INT: some files" in loaded.properties["lakebed.left-out"]

    with monkeypatch.context() as older:
        older.setattr("lakebed.table.files.data_file.file_field", arrow_field)
        old = lake.create_table("old", fields)
        old.append(rows)
    old.create_tag("before")
    old.append(rows)
    loaded = catalog.load_table("default.old")
    assert [field.name for field in loaded.schema().fields] == ["id", "n"]
    assert "the column 's': ROW<a@3: INT>: some files" in loaded.properties["lakebed.left-out"]
    assert plain(loaded.scan().to_arrow()) == plain(old.read().select(["id", "n"]))
    old.overwrite(rows)
    loaded = catalog.load_table("default.old")
    assert "lakebed.left-out" not in loaded.properties
    assert plain(loaded.scan().to_arrow()) == plain(old.read())
    tagged = loaded.scan(snapshot_id=loaded.refs()["before"].snapshot_id).to_arrow()
    assert tagged.column_names == ["id", "n"]


def test_a_struct_with_other_members_only(lake: Lake, catalog: Any) -> None:
    """From a file without any of a struct's present members clients do not learn which structs are null: left out."""
    fields = pa.schema([("id", pa.int64()), ("s", pa.struct([("a", pa.int32())]))])
    table = lake.create_table("db.t", fields)
    table.append(pa.table({"id": [1, 2], "s": [{"a": 1}, None]}, fields))
    table.add_column(("s", "b"), "INT")
    assert len(catalog.load_table("db.t").schema().fields) == 2
    table.drop_column(("s", "a"))
    loaded = catalog.load_table("db.t")
    assert "other fields only" in loaded.properties["lakebed.left-out"]
    assert plain(loaded.scan().to_arrow()) == plain(table.read().select(["id"]))


def test_names_that_are_not_there(lake: Lake, catalog: Any) -> None:
    """The client's own errors for what is missing."""
    lake.create_table("db.t", DAYS)
    assert catalog.list_namespaces() == [("db",), ("default",)]
    assert catalog.list_tables("db") == [("db", "t")]
    assert catalog.table_exists("db.t")
    assert not catalog.table_exists("db.u")
    assert catalog.load_table("db.t").scan().to_arrow().num_rows == 0  # nothing was written yet
    with pytest.raises(NoSuchTableError):
        catalog.load_table("db.u")
    with pytest.raises(NoSuchNamespaceError):
        catalog.list_tables("other")
    with pytest.raises(NoSuchNamespaceError):
        catalog.load_namespace_properties("a.b")
    lake.drop_table("db.t")
    with pytest.raises(NoSuchTableError):
        catalog.load_table("db.t")
    lake.create_table("db.t", DAYS).append(rows_of(0, 2, "x"))
    assert catalog.load_table("db.t").scan().to_arrow().num_rows == 2


def test_the_guide(lake: Lake, catalog: Any) -> None:
    """The block of the guide runs as pasted, against the server."""
    page = (ROOT / "docs" / "guide" / "engines.md").read_text()
    (block,) = (text for text in re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S) if "pyiceberg" in text)
    lake.create_table("shop.orders", DAYS).append(rows_of(0, 3, "x"))
    key, _, secret = catalog.properties["token"].partition(".")
    done = subprocess.run(
        [sys.executable, "-c", block.replace("http://127.0.0.1:8000/iceberg", catalog.properties["uri"])],
        env={**os.environ, "LAKEBED_ACCESS_KEY_ID": key, "LAKEBED_SECRET_ACCESS_KEY": secret},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "3 rows\n", done.stderr[-2000:]


def test_deletion_vectors_of_append_tables(lake: Lake, catalog: Any) -> None:
    """Rows that are marked as deleted are gone for the client too, in each version as lakebed has them: format 3."""
    table = lake.create_table("db.t", DAYS, partition_keys=["day"], options={"deletion-vectors.enabled": "true"})
    table.append(rows_of(0, 100, "a", None))
    assert catalog.load_table("db.t").format_version == 2
    table.delete("id > 20 AND id < 40")
    table.create_tag("some")
    table.append(rows_of(100, 10, "a"))
    table.delete("v >= 20 AND day = 'a'")
    loaded = catalog.load_table("db.t")
    assert loaded.format_version == 3
    assert len(compare(table, loaded)) < 100
    table.compact(full=True)
    compare(table, catalog.load_table("db.t"))


@pytest.mark.parametrize("options", [{"bucket": "2"}, {"bucket": "1", "deletion-vectors.enabled": "true"}])
def test_primary_keys(lake: Lake, catalog: Any, options: dict[str, str]) -> None:
    """What is shown of a primary-key table is what lakebed reads; with vectors that is every version."""
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("day", pa.string()), ("v", pa.float64())])
    table = lake.create_table("db.t", schema, primary_keys=["id"], options=options)
    for first in range(0, 50, 10):
        table.upsert(rows_of(first, 25, "a", "b").cast(schema))
        if first == 30:
            table.delete("id = 31")
        if first != 20:
            table.compact(full=first == 40)
        table.create_tag(f"t{first}")
    loaded = catalog.load_table("db.t")
    assert len(compare(table, loaded)) == 64
    has_vectors = "deletion-vectors.enabled" in options
    assert (len(loaded.snapshots()) == table.latest().id) is has_vectors
    assert loaded.properties["lakebed.visible-through"] == str(table.latest().id)
    table.upsert(rows_of(0, 1, "z").cast(schema))
    later = catalog.load_table("db.t")
    if has_vectors:  # for readers a row is there when a compaction has marked the older one
        compare(table, later)
    else:
        assert later.current_snapshot().snapshot_id == loaded.current_snapshot().snapshot_id
