"""Versions of tables as Parquet, Delta and Iceberg, read back by DuckDB, deltalake and pyiceberg."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from lakebed.errors import AlreadyExists, InvalidRequest
from lakebed.lake.imports import import_table
from lakebed.lake.lake import Lake
from lakebed.table.exports import ExportOptions, ExportReport, export_table
from lakebed.table.imports import ImportOptions
from lakebed.table.model.model import DataField

Rows = Callable[[int, int], pa.Table]
Plain = Callable[[pa.Table], list[str]]

FORMATS = ["parquet", "delta", "iceberg"]
KINDS = {"parts": {"partition_keys": ["p"]}, "keyed": {"primary_keys": ["id"]}}

deltalake = pytest.importorskip("deltalake")
tables = pytest.importorskip("pyiceberg.table")


def by_library(report: ExportReport) -> pa.Table:
    """What the libraries of the formats read."""
    folder = report.target.removeprefix("file://")
    if report.format == "delta":
        return pa.RecordBatchReader.from_stream(deltalake.DeltaTable(folder).scan()).read_all()
    if report.format == "iceberg":
        assert report.target_version is not None
        return tables.StaticTable.from_metadata(report.target_version).scan().to_arrow()
    return duckdb.sql(f"SELECT * FROM read_parquet('{folder}/**/*.parquet', hive_partitioning = true)").to_arrow_table()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("format", FORMATS)
def test_every_type(lake: Lake, rows: Rows, plain: Plain, tmp_path: Path, kind: str, format: str) -> None:
    """A tag, then the newest version over it, have the rows that lakebed reads, merged; and they come back."""
    table = lake.create_table("t", rows(0, 1).schema, **KINDS[kind])  # type: ignore[arg-type]
    table.write(rows(0, 60))
    table.create_tag("first")
    table.write(rows(50, 90))
    for version in ("first", None):
        options = ExportOptions(version=version, overwrite=version is None)
        report = export_table(table, str(tmp_path / "out"), format=format, options=options)
        expected = table.read(version=version)
        assert report.row_count == expected.num_rows
        assert plain(by_library(report).select(expected.column_names)) == plain(expected)
    with pytest.raises(AlreadyExists, match="overwrite"):
        export_table(table, str(tmp_path / "out"), format=format)
    import_table(lake, "back", str(tmp_path / "out"), format=format)
    assert plain(lake.table("back").read().select(expected.column_names)) == plain(expected)


def test_days_beyond_the_calendar_of_python(lake: Lake, tmp_path: Path) -> None:
    """They leave and come back as Parquet and Delta; as Iceberg, whose library lacks them, they are refused."""
    days = pa.array([2_932_897, -719_163, None], pa.int32()).cast(pa.date32())
    table = lake.create_table("t", pa.schema([("id", pa.int64()), ("d", pa.date32())]))
    table.write(pa.table({"id": range(3), "d": days}))
    for format in ("parquet", "delta"):
        export_table(table, str(tmp_path / format), format=format)
        for is_in_place in (True, False):
            name = f"{format}_{is_in_place}"
            import_table(lake, name, str(tmp_path / format), format=format, options=ImportOptions(in_place=is_in_place))
            assert lake.table(name).read().sort_by("id")["d"].combine_chunks().equals(days)
    with pytest.raises(InvalidRequest, match="cannot be written as the Iceberg table"):
        export_table(table, str(tmp_path / "iceberg"), format="iceberg")


@pytest.mark.parametrize("format", ["delta", "iceberg"])
def test_an_interrupted_export_is_no_table(lake: Lake, rows: Rows, tmp_path: Path, format: str) -> None:
    """A process that is killed in the middle of an export leaves nothing that a reader takes for a table."""
    table = lake.create_table("t", rows(0, 1).schema, partition_keys=["p"])
    table.write(rows(0, 60))
    target = tmp_path / "out"
    program = (
        "import os, lakebed\n"
        "from lakebed.table.exports import export_table\n"
        f"table = lakebed.open({lake.url!r}).table('t')\n"
        "def killed(progress):\n"
        "    if progress.done_count > 30:\n"
        "        os._exit(9)\n"
        f"export_table(table, {str(target)!r}, format={format!r}, progress=killed)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False)
    assert done.returncode == 9
    if format == "delta":
        assert not deltalake.DeltaTable.is_deltatable(str(target))
    else:
        assert not list(target.rglob("*.metadata.json"))
    report = export_table(table, str(target), format=format)
    assert by_library(report).num_rows == 60


@pytest.mark.parametrize("format", ["delta", "iceberg"])
def test_values_that_do_not_fit(lake: Lake, tmp_path: Path, format: str) -> None:
    """Nanoseconds are refused with the column, and no table appears; those that are whole microseconds are exported."""
    table = lake.create_table("t", pa.schema([("at", pa.timestamp("ns"))]))
    table.append(pa.table({"at": pa.array([1000], pa.timestamp("ns"))}))
    table.create_tag("whole")
    table.append(pa.table({"at": pa.array([1001], pa.timestamp("ns"))}))
    with pytest.raises(InvalidRequest, match=r"^The column 'at' has a value"):
        export_table(table, str(tmp_path / "out"), format=format)
    report = export_table(table, str(tmp_path / "out"), format=format, options=ExportOptions(version="whole"))
    assert by_library(report)["at"].to_pylist() == table.read(version="whole")["at"].to_pylist()


@pytest.mark.parametrize(
    ("format", "values"),
    [
        ("parquet", ["a", "__HIVE_DEFAULT_PARTITION__"]),
        ("delta", ["a", "__HIVE_DEFAULT_PARTITION__"]),
        ("iceberg", [0.0, -0.0]),
        ("iceberg", [0.0, float("nan")]),
    ],
)
def test_partitions_that_would_become_others(lake: Lake, tmp_path: Path, format: str, values: list[object]) -> None:
    """A text that names null, and floats that a library finds twice or not at all: refused, and nothing is written."""
    column = pa.array(values)
    table = lake.create_table("t", pa.schema([("id", pa.int64()), ("p", column.type)]), partition_keys=["p"])
    table.append(pa.table({"id": [1], "p": column[:1]}))
    table.create_tag("plain")
    table.append(pa.table({"id": [2], "p": column[1:]}))
    with pytest.raises(InvalidRequest, match=r"The partition p=.* cannot be exported"):
        export_table(table, str(tmp_path / "out"), format=format)
    assert not (tmp_path / "out").exists()
    report = export_table(table, str(tmp_path / "out"), format=format, options=ExportOptions(version="plain"))
    assert by_library(report)["id"].to_pylist() == [1]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.list_(pa.struct([("a", pa.int32())])), [{"a": 1}, None]),
        (pa.map_(pa.string(), pa.struct([("a", pa.int32())])), [("k", {"a": 1}), ("n", None)]),
        (pa.struct([("l", pa.list_(pa.struct([("a", pa.int32())])))]), {"l": [{"a": 1}]}),
        (pa.list_(pa.list_(pa.int32())), [[1], None, []]),
    ],
    ids=["list", "map", "inside", "lists"],
)
@pytest.mark.parametrize("format", FORMATS)
def test_nulls_are_not_exported_as_empty(
    lake: Lake, tmp_path: Path, plain: Plain, kind: pa.DataType, value: object, format: str
) -> None:
    """A null list or map of structs, of which pyiceberg makes an empty one, is refused; each other comes back."""
    null = {"l": None} if pa.types.is_struct(kind) else None
    table = lake.create_table("t", pa.schema([("id", pa.int64()), ("x", kind)]))
    table.append(pa.table({"id": [1, 2], "x": pa.array([value, value], kind)}))
    table.create_tag("full")
    table.append(pa.table({"id": [3, 4, 5], "x": pa.array([value, null, None], kind)}))
    options = ExportOptions()
    if format == "iceberg" and kind != pa.list_(pa.list_(pa.int32())):
        with pytest.raises(InvalidRequest, match=r"The column 'x' has a null array or map of structs"):
            export_table(table, str(tmp_path / "out"), format=format)
        options = ExportOptions(version="full")
    export_table(table, str(tmp_path / "out"), format=format, options=options)
    import_table(lake, "back", str(tmp_path / "out"), format=format)
    assert plain(lake.table("back").read()) == plain(table.read(version=options.version))


@pytest.mark.parametrize(
    "type", ["TIME(3)", "TIMESTAMP(0)", "TIMESTAMP(3)", "TIMESTAMP(6)", "TIMESTAMP_LTZ(3)", "DATE"]
)
def test_partitions_of_times_come_back(lake: Lake, tmp_path: Path, plain: Plain, type: str) -> None:
    """Folders spell microseconds, which an import takes where the column has fewer digits, and nothing is lost."""
    columns = [DataField(0, "p", type), DataField(1, "v", "INT")]
    table = lake.create_table("t", columns, partition_keys=["p"])
    kind = table.arrow_schema.field("p").type
    ticks = pa.array([0, 1, 999, 86_399, None], pa.int32() if kind.bit_width == 32 else pa.int64()).cast(kind)
    table.append(pa.table({"p": ticks, "v": pa.array(range(5), pa.int32())}))
    export_table(table, str(tmp_path / "out"), format="parquet")
    lake.create_table("back", columns, partition_keys=["p"])
    import_table(lake, "back", str(tmp_path / "out"), format="parquet")
    assert plain(lake.table("back").read()) == plain(table.read())


def test_a_table_of_partition_columns_alone_keeps_its_rows(lake: Lake, tmp_path: Path) -> None:
    """Files without a column would have no rows: refused as Parquet, and written as Iceberg."""
    table = lake.create_table("t", pa.schema([("p", pa.string())]), partition_keys=["p"])
    table.append(pa.table({"p": ["a", "b", "a"]}))
    with pytest.raises(InvalidRequest, match="are partition columns"):
        export_table(table, str(tmp_path / "parquet"), format="parquet")
    assert not (tmp_path / "parquet").exists()
    report = export_table(table, str(tmp_path / "iceberg"), format="iceberg")
    assert sorted(by_library(report)["p"].to_pylist()) == ["a", "a", "b"]


def test_names_that_differ_in_case_alone(lake: Lake, tmp_path: Path) -> None:
    """Delta has no such columns, which is said in a sentence."""
    table = lake.create_table("t", pa.schema([("a", pa.int64()), ("A", pa.int64())]))
    with pytest.raises(InvalidRequest, match=r"t cannot be exported to .*case"):
        export_table(table, str(tmp_path / "out"), format="delta")


def test_a_type_without_a_counterpart(lake: Lake, tmp_path: Path) -> None:
    """A type that a format lacks is refused with the column, before anything is written."""
    table = lake.create_table("t", pa.schema([("at", pa.time32("ms"))]))
    with pytest.raises(InvalidRequest, match="'at' is TIME"):
        export_table(table, str(tmp_path / "out"), format="delta")
    assert not (tmp_path / "out").exists()


def test_columns_change_with_an_overwrite(lake: Lake, tmp_path: Path) -> None:
    """An overwritten target has the columns of the new version: added ones, and no dropped ones."""
    table = lake.create_table("t", pa.schema([("a", pa.int64()), ("b", pa.string())]))
    table.append(pa.table({"a": [1], "b": ["x"]}))
    for format in FORMATS:
        export_table(table, str(tmp_path / format), format=format)
    table.add_column("c", "DOUBLE")
    table.drop_column("b")
    table.append(pa.table({"a": [2], "c": [0.5]}))
    for format in FORMATS:
        report = export_table(table, str(tmp_path / format), format=format, options=ExportOptions(overwrite=True))
        result = by_library(report)
        assert sorted(result.column_names) == ["a", "c"]
        assert sorted(result["a"].to_pylist()) == [1, 2]
