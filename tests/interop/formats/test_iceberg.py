"""Iceberg tables, written by pyiceberg: what the library reads of them is what an import gives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakebed.errors import InvalidRequest, NotFound
from lakebed.fsck.check import check_lake
from lakebed.lake.imports import import_history, import_table
from lakebed.lake.lake import Lake
from lakebed.table.imports import ImportOptions, ImportReport, SourceOptions

Rows = Callable[[int, int], pa.Table]
Plain = Callable[[pa.Table], list[str]]

sql = pytest.importorskip("pyiceberg.catalog.sql")
types = pytest.importorskip("pyiceberg.types")


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Any]:
    """A catalog in SQLite, with a namespace."""
    sql_catalog = sql.SqlCatalog(
        "local", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse"
    )
    sql_catalog.create_namespace("db")
    yield sql_catalog
    sql_catalog.close()


def imported(lake: Lake, table: Any, name: str, options: ImportOptions | None = None, **more: Any) -> ImportReport:
    """Import a table from its folder."""
    source_options = SourceOptions(**more) if more else None
    return import_table(lake, name, table.location(), format="iceberg", options=options, source_options=source_options)


def compare(lake: Lake, table: Any, name: str, plain: Plain, **scan: Any) -> None:
    """The import has the rows that the library reads."""
    expected = table.scan(**scan).to_arrow()
    assert plain(lake.table(name).read().select(expected.column_names)) == plain(expected)


@pytest.mark.parametrize("in_place", [False, True], ids=["copied", "in-place"])
def test_evolution_and_deletes(lake: Lake, catalog: Any, rows: Rows, plain: Plain, in_place: bool) -> None:
    """Files are used as they are until a rename; a new column of an old name does not take its values."""
    options = ImportOptions(in_place=in_place)
    first = rows(0, 60)
    table = catalog.create_table("db.t", schema=first.schema)
    with table.update_spec() as spec:
        spec.add_identity("p")
    table.append(first)
    report = imported(lake, table, "first", options)
    assert (report.rewritten_count, report.version) == (0, str(table.current_snapshot().snapshot_id))
    assert lake.table("first").schema.partition_keys == ("p",)
    compare(lake, table, "first", plain)
    assert lake.table("first").scan(where="p = 'a' AND id < 30").count() == 10
    with table.update_schema() as schema:
        schema.rename_column("i", "j")
        schema.add_column("extra", types.StringType())
    with table.update_schema() as schema:
        schema.add_column("i", types.IntegerType())
    report = imported(lake, table, "renamed", options)
    assert report.taken_count == 0
    assert report.reasons == {"has another column as 'i' (its field id is 14)": 3}
    compare(lake, table, "renamed", plain)
    names = [field.name for field in table.schema().fields]
    later = rows(60, 90).rename_columns(["j" if name == "i" else name for name in first.column_names])
    later = later.append_column("extra", pa.array(["e"] * 30)).append_column("i", pa.array(range(30), pa.int32()))
    table.append(later.select(names))
    table.delete("id = 63")
    report = imported(lake, table, "newest", options)
    assert report.taken_count == 3
    assert report.rewritten_count == 3
    compare(lake, table, "newest", plain)
    old = table.snapshots()[0].snapshot_id
    imported(lake, table, "old", options, version=old)
    compare(lake, table, "old", plain, snapshot_id=old)
    assert check_lake(lake, deep=True).error_count == 0


@pytest.mark.parametrize("has_null", [False, True])
def test_null_lists_of_structs_are_not_read_as_empty(
    lake: Lake, catalog: Any, tmp_path: Path, plain: Plain, has_null: bool
) -> None:
    """The library empties them, so a file with such nulls is not rewritten, as its lack of field ids asks for."""
    kind = pa.struct([("l", pa.list_(pa.struct([("a", pa.int32())])))])
    values = [{"l": [{"a": 1}, None]}, {"l": []}, None, {"l": None if has_null else [{"a": 2}]}]
    rows = pa.table({"id": range(4), "x": pa.array(values, kind)})
    pq.write_table(rows, tmp_path / "rows.parquet")
    table = catalog.create_table("db.t", schema=rows.schema)
    table.add_files([f"file://{tmp_path}/rows.parquet"])
    if has_null:
        with pytest.raises(InvalidRequest, match=r"nulls among the arrays or maps of structs of the column 'x'"):
            imported(lake, table, "t")
    else:
        assert imported(lake, table, "t").rewritten_count == 1
        assert plain(lake.table("t").read()) == plain(rows)


def test_partition_specs(lake: Lake, catalog: Any, rows: Rows, plain: Plain) -> None:
    """Files of an earlier spec are rewritten into the partitions of the newest; other transforms become none."""
    first = rows(0, 30)
    table = catalog.create_table("db.t", schema=first.schema)
    table.append(first)
    with table.update_spec() as spec:
        spec.add_identity("p")
    table.append(rows(30, 60))
    report = imported(lake, table, "t")
    assert report.reasons == {"was written under another partition spec": 1}
    compare(lake, table, "t", plain)
    assert lake.table("t").scan(where="p = 'a'").count() == 20
    with table.update_spec() as spec:
        spec.remove_field("p")
        spec.add_field("x", "void")
    report = imported(lake, table, "u")
    assert lake.table("u").schema.partition_keys == ()
    compare(lake, table, "u", plain)


def test_snapshots_and_catalogs(lake: Lake, catalog: Any, rows: Rows, plain: Plain, tmp_path: Path) -> None:
    """A tag of the table, a catalog by its name, and an empty table are imported; unknown ones are refused."""
    table = catalog.create_table("db.t", schema=rows(0, 1).schema)
    imported(lake, table, "empty")
    assert lake.table("empty").read().num_rows == 0
    table.append(rows(0, 5))
    table.manage_snapshots().create_tag(table.current_snapshot().snapshot_id, "monday").commit()
    table.append(rows(5, 9))
    imported(lake, table, "monday", version="monday")
    assert lake.table("monday").read().num_rows == 5
    with pytest.raises(InvalidRequest, match="no catalog 'local'"):
        import_table(lake, "named", "db.t", format="iceberg", source_options=SourceOptions(catalog="local"))
    command = [sys.executable, "-m", "lakebed.cli", "table", "import", lake.url, "named", "db.t"]
    command += ["--format", "iceberg", "--catalog", "local", "--json"]
    variable = {"PYICEBERG_CATALOG__LOCAL__URI": f"sqlite:///{tmp_path}/catalog.db"}
    done = subprocess.run(command, env={**os.environ, **variable}, capture_output=True, text=True, check=False)
    assert (done.returncode, json.loads(done.stdout)["rows"]) == (0, 9), done.stderr
    compare(lake, table, "named", plain)
    with pytest.raises(NotFound, match=r"no snapshot or reference 'tuesday'; its references are main, monday"):
        imported(lake, table, "tuesday", version="tuesday")
    with pytest.raises(NotFound, match="no Iceberg table"):
        import_table(lake, "gone", str(tmp_path / "gone"), format="iceberg")


@pytest.mark.parametrize("damage", [None, b""], ids=["gone", "empty"])
def test_metadata_that_is_gone_or_damaged(lake: Lake, catalog: Any, damage: bytes | None) -> None:
    """Such as while another program expires snapshots: one sentence, and no table is left; a history has the rest."""
    table = catalog.create_table("db.t", schema=pa.schema([("id", pa.int64())]))
    table.append(pa.table({"id": [1]}))
    first = table.current_snapshot()
    table.append(pa.table({"id": [2]}))
    newest = table.current_snapshot()
    places = [newest.manifest_list, *(it.manifest_path for it in newest.manifests(table.io))]
    first_places = [] if damage is None else [table.metadata_location]  # read once a process: before the others
    for number, place in enumerate([*first_places, *places]):
        path = Path(place.removeprefix("file://"))
        kept = path.read_bytes()
        path.unlink()
        if damage is not None:
            path.write_bytes(damage)
        for run in (import_table, import_history):
            with pytest.raises(InvalidRequest, match=r"cannot be read: .* is gone, damaged or being written") as raised:
                run(lake, f"t{number}", table.location(), format="iceberg")
            assert raised.value.kind == "unreadable_source"
        path.write_bytes(kept)
    assert lake.ls() == []
    Path(first.manifest_list.removeprefix("file://")).unlink()
    report = import_history(lake, "rest", table.location(), format="iceberg")
    assert [version.version for version in report.versions] == [str(newest.snapshot_id)]
    assert sorted(lake.table("rest").read()["id"].to_pylist()) == [1, 2]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "half": lambda body: body[: len(body) // 2],
    "other bytes within": lambda body: body[: len(body) * 2 // 3] + b"\xff" * 8 + body[len(body) * 2 // 3 + 8 :],
    "another end": lambda body: body[:-4] + b"abcd",
    "a block that cannot be unpacked": lambda body: body[:-40] + b"\x7f" * 20 + body[-20:],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_manifest_is_named(lake: Lake, catalog: Any, damage: str) -> None:
    """A list or a manifest with other bytes is damage of that file, and not a table that cannot be imported."""
    table = catalog.create_table("db.t", schema=pa.schema([("id", pa.int64())]))
    table.append(pa.table({"id": [1]}))
    newest = table.current_snapshot()
    for place in (newest.manifest_list, *(it.manifest_path for it in newest.manifests(table.io))):
        path = Path(place.removeprefix("file://"))
        kept = path.read_bytes()
        path.write_bytes(DAMAGES[damage](kept))
        for run in (import_table, import_history):
            with pytest.raises(InvalidRequest, match=path.name) as raised:
                run(lake, "t", table.location(), format="iceberg")
            assert (raised.value.kind, raised.value.facts["path"]) == ("unreadable_source", place)
        path.write_bytes(kept)
    assert lake.ls() == []


def test_types_without_a_counterpart(lake: Lake, catalog: Any) -> None:
    """A time of microseconds is refused before anything is created."""
    table = catalog.create_table("db.t", schema=pa.schema([("at", pa.time64("us"))]))
    table.append(pa.table({"at": pa.array([1], pa.time64("us"))}))
    with pytest.raises(InvalidRequest, match="time64"):
        imported(lake, table, "t")
    assert lake.ls() == []
