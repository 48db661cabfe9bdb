"""Versions of Delta and Iceberg tables: at each tag the rows that the library reads at that version."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakebed.errors import AlreadyExists, InvalidRequest, NotFound
from lakebed.fsck.check import check_lake
from lakebed.lake.imports import HistoryOptions, HistoryReport, import_history
from lakebed.lake.lake import Lake
from lakebed.table.imports import ImportOptions, SourceOptions

Plain = Callable[[pa.Table], list[str]]

deltalake = pytest.importorskip("deltalake")
sql = pytest.importorskip("pyiceberg.catalog.sql")
types = pytest.importorskip("pyiceberg.types")


def by_delta(folder: Path, version: int) -> pa.Table:
    """What deltalake reads."""
    return pa.RecordBatchReader.from_stream(deltalake.DeltaTable(folder, version=version).scan()).read_all()


def files_of(report: HistoryReport) -> list[tuple[int, int, int]]:
    """New files as they are, new files rewritten, and removed files, of each version."""
    return [(version.taken_count, version.rewritten_count, version.removed_count) for version in report.versions]


@pytest.fixture
def delta(tmp_path: Path) -> Path:
    """A Delta table of six versions: an append, a delete, a new column, a compaction, a restored version."""
    source = tmp_path / "delta"
    deltalake.write_deltalake(source, pa.table({"id": range(20), "p": ["a", "b"] * 10}), partition_by=["p"])
    deltalake.write_deltalake(source, pa.table({"id": range(20, 30), "p": ["a", "c ü"] * 5}), mode="append")
    deltalake.DeltaTable(source).delete("id < 5")
    wider = pa.table({"id": [100], "p": ["a"], "more": [1.5]})
    deltalake.write_deltalake(source, wider, mode="append", schema_mode="merge")
    deltalake.DeltaTable(source).optimize.compact()
    deltalake.DeltaTable(source).restore(1)
    return source


@pytest.mark.parametrize("in_place", [False, True], ids=["copied", "in-place"])
def test_every_version_of_a_delta_table(lake: Lake, plain: Plain, delta: Path, in_place: bool) -> None:
    """A file that several versions name comes once; what only old versions name comes too, and the columns follow."""
    options = ImportOptions(in_place=in_place)
    dry = import_history(lake, "t", str(delta), format="delta", options=ImportOptions(in_place, dry_run=True))
    assert not lake.has_table("t")
    report = import_history(lake, "t", str(delta), format="delta", options=options)
    assert files_of(report) == files_of(dry) == [(2, 0, 0), (2, 0, 0), (2, 0, 2), (1, 0, 0), (1, 0, 3), (3, 0, 2)]
    assert [version.tags for version in report.versions] == [(f"version-{number}",) for number in range(6)]
    assert "imported 6 versions in 11 files" in report.sentence
    table = lake.table("t")
    for number in range(6):
        expected = by_delta(delta, number)
        rows = table.read(version=f"version-{number}")
        assert set(rows.column_names) == set(expected.column_names)
        assert plain(rows.select(expected.column_names)) == plain(expected)
    assert plain(table.read(version="version-5")) == plain(table.read())
    assert check_lake(lake, deep=True).error_count == 0
    table.delete_tag("version-0")
    table.expire(retain_min=1, retain_max=1, older_than_ms=2**60)
    for number in range(1, 6):  # what a tag holds stays, though files were taken away and came back
        assert table.read(version=f"version-{number}").num_rows == by_delta(delta, number).num_rows
    assert check_lake(lake, deep=True).error_count == 0


def test_chosen_versions_and_those_that_are_gone(lake: Lake, plain: Plain, delta: Path) -> None:
    """By number, and no other. A version whose files a VACUUM deleted is left out, with a note."""
    history = HistoryOptions(versions=("3", "0"))
    report = import_history(lake, "some", str(delta), format="delta", history=history)
    assert [(version.version, version.tags) for version in report.versions] == [
        ("0", ("version-0",)),
        ("3", ("version-3",)),
    ]
    table = lake.table("some")
    assert plain(table.read(version="version-0")) == plain(by_delta(delta, 0))
    assert plain(table.read().select(["id", "p", "more"])) == plain(by_delta(delta, 3))
    uris = [set(deltalake.DeltaTable(delta, version=number).file_uris()) for number in range(6)]
    for uri in uris[4].difference(*uris[:4], uris[5]):
        Path(uri).unlink()
    report = import_history(lake, "rest", str(delta), format="delta")
    assert [version.version for version in report.versions] == ["0", "1", "2", "3", "5"]
    (note,) = report.notes
    assert "Version 4 is left out: The source's file" in note
    assert plain(lake.table("rest").read(version="version-2")) == plain(by_delta(delta, 2))
    with pytest.raises(NotFound, match="is gone"):
        import_history(lake, "all", str(delta), format="delta", history=HistoryOptions(versions=("4",)))
    assert not lake.has_table("all")


def test_columns_that_get_another_type(lake: Lake, plain: Plain, tmp_path: Path) -> None:
    """A wider type is followed, and a column without rows; another type is refused, and leaves no table."""
    source = tmp_path / "delta"
    for kind in (pa.int32(), pa.int64()):
        rows = pa.table({"id": pa.array([1, 2], kind)})
        deltalake.write_deltalake(source, rows, mode="overwrite", schema_mode="overwrite")
    deltalake.DeltaTable(source).alter.add_columns([deltalake.Field("more", deltalake.schema.PrimitiveType("double"))])
    import_history(lake, "t", str(source), format="delta")
    for number, kind in enumerate((pa.int32(), pa.int64(), pa.int64())):
        result = lake.table("t").read(version=f"version-{number}")
        assert result.schema.field("id").type == kind
        assert result.column_names == by_delta(source, number).column_names
        assert plain(result) == plain(by_delta(source, number))
    deltalake.write_deltalake(source, pa.table({"id": [True]}), mode="overwrite", schema_mode="overwrite")
    with pytest.raises(InvalidRequest, match=r"Version 3 of .* has the column 'id' as BOOLEAN, and .* as BIGINT"):
        import_history(lake, "u", str(source), format="delta")
    assert not lake.has_table("u")


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Any]:
    """A catalog in SQLite, with a namespace."""
    sql_catalog = sql.SqlCatalog(
        "local", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse"
    )
    sql_catalog.create_namespace("db")
    yield sql_catalog
    sql_catalog.close()


def test_snapshots_and_tags_of_an_iceberg_table(lake: Lake, catalog: Any, plain: Plain) -> None:
    """Each snapshot, or those with tags. After a rename files are rewritten; before it they were copied."""
    first = pa.table({"id": pa.array(range(10), pa.int64()), "i": pa.array(range(10), pa.int32())})
    table = catalog.create_table("db.t", schema=first.schema)
    table.append(first)
    table.manage_snapshots().create_tag(table.current_snapshot().snapshot_id, "monday").commit()
    table.append(first)
    table.delete("id = 3")
    table.manage_snapshots().create_tag(table.current_snapshot().snapshot_id, "20240105").commit()
    with table.update_schema() as schema:
        schema.rename_column("i", "j")
        schema.add_column("extra", types.StringType())
    with table.update_schema() as schema:
        schema.add_column("i", types.IntegerType())
    later = pa.table({"id": [50], "j": pa.array([1], pa.int32()), "extra": ["e"], "i": pa.array([7], pa.int32())})
    table.append(later)
    location = table.location()

    report = import_history(lake, "all", location, format="iceberg")
    snapshots = [snapshot.snapshot_id for snapshot in table.snapshots()]
    assert [version.version for version in report.versions] == [str(snapshot) for snapshot in snapshots]
    assert files_of(report)[:2] == [(1, 0, 0), (1, 0, 0)]
    assert files_of(report)[-1] == (1, 2, 2)
    result = lake.table("all")
    for snapshot_id in snapshots:
        expected = table.scan(snapshot_id=snapshot_id).to_arrow()
        read = result.read(version=f"snapshot-{snapshot_id}")
        assert set(read.column_names) == set(expected.column_names)
        assert plain(read.select(expected.column_names)) == plain(expected)
    assert plain(result.read(version="monday")) == plain(result.read(version=f"snapshot-{snapshots[0]}"))
    assert "The source's tag '20240105' is here snapshot-" in report.notes[0]
    assert check_lake(lake, deep=True).error_count == 0

    report = import_history(lake, "tagged", location, format="iceberg", history=HistoryOptions(tags=True))
    assert [version.tags for version in report.versions] == [("monday",), ("20240105",), ()]
    assert plain(lake.table("tagged").read(version="monday")) == plain(result.read(version="monday"))
    report = import_history(lake, "named", location, format="iceberg", history=HistoryOptions(versions=("monday",)))
    assert [len(version.tags) for version in report.versions] == [2]
    assert plain(lake.table("named").read()) == plain(result.read(version="monday"))


def test_columns_changed_after_the_last_snapshot(lake: Lake, catalog: Any, plain: Plain) -> None:
    """The table has the columns that its source has now; the tag of the last snapshot has those of then."""
    rows = pa.table({"id": pa.array([1, 2], pa.int64()), "gone": ["a", "b"], "i": pa.array([7, None], pa.int32())})
    source = catalog.create_table("db.t", schema=rows.schema)
    source.append(rows)
    last = source.current_snapshot().snapshot_id
    with source.update_schema() as schema:
        schema.delete_column("gone")
        schema.rename_column("i", "j")
    with source.update_schema() as schema:
        schema.add_column("gone", types.StringType())
    now = source.scan().to_arrow()
    dry = import_history(lake, "t", source.location(), format="iceberg", options=ImportOptions(dry_run=True))
    report = import_history(lake, "t", source.location(), format="iceberg")
    assert files_of(report) == files_of(dry) == [(1, 0, 0), (0, 1, 1)]
    assert [version.tags for version in report.versions] == [(f"snapshot-{last}",), ()]
    table = lake.table("t")
    assert table.read().column_names == now.column_names
    assert plain(table.read()) == plain(now)
    assert plain(table.read(version=f"snapshot-{last}")) == plain(source.scan(snapshot_id=last).to_arrow())
    source.manage_snapshots().create_tag(last, "monday").commit()
    report = import_history(lake, "tagged", source.location(), format="iceberg", history=HistoryOptions(tags=True))
    assert [version.tags for version in report.versions] == [("monday",), ()]
    assert plain(lake.table("tagged").read()) == plain(now)
    history = HistoryOptions(versions=(str(last),))
    report = import_history(lake, "named", source.location(), format="iceberg", history=history)
    assert len(report.versions) == 1
    assert plain(lake.table("named").read()) == plain(rows)
    assert check_lake(lake, deep=True).error_count == 0


@pytest.mark.parametrize("format", ["delta", "iceberg"])
def test_a_new_column_next_to_nested_ones(format: str, lake: Lake, catalog: Any, plain: Plain, tmp_path: Path) -> None:
    """A table with nested columns gets a column, first or last, though ids of nested fields move in the source."""
    kind = pa.struct([("a", pa.int64()), ("b", pa.list_(pa.struct([("c", pa.string())])))])
    rows = pa.table({"s": pa.array([{"a": 1, "b": [{"c": "x"}]}, None], kind)})
    more = rows.append_column("n", pa.array([1, 2], pa.int64()))
    if format == "delta":
        where = str(tmp_path / "delta")
        for part in (rows, more):
            deltalake.write_deltalake(where, part, mode="append", schema_mode="merge")
        expected = [plain(by_delta(tmp_path / "delta", number)) for number in range(2)]
    else:
        source = catalog.create_table("db.t", schema=rows.schema)
        where = source.location()
        source.append(rows)
        with source.update_schema() as schema:
            schema.add_column("n", types.LongType())
        source.append(more)
        expected = [plain(source.scan(snapshot_id=snapshot.snapshot_id).to_arrow()) for snapshot in source.snapshots()]
    report = import_history(lake, "t", where, format=format)
    assert files_of(report) == [(1, 0, 0), (1, 0, 0)]
    table = lake.table("t")
    assert [plain(table.read(version=version.tags[0])) for version in report.versions] == expected
    assert check_lake(lake, deep=True).error_count == 0


def test_a_column_that_is_renamed_and_gets_its_name_back(lake: Lake, catalog: Any, plain: Plain) -> None:
    """A file that was rewritten for a version in between is copied for the next one, whose columns it has."""
    rows = pa.table({"id": pa.array([1, 2], pa.int64()), "i": pa.array([7, None], pa.int32())})
    source = catalog.create_table("db.t", schema=rows.schema)
    source.append(rows)
    for old, new in (("i", "j"), ("j", "i")):
        with source.update_schema() as schema:
            schema.rename_column(old, new)
        source.append(rows.rename_columns(["id", new]))
    report = import_history(lake, "t", source.location(), format="iceberg")
    assert files_of(report) == [(1, 0, 0), (1, 1, 1), (2, 1, 2)]
    for snapshot in source.snapshots():
        expected = source.scan(snapshot_id=snapshot.snapshot_id).to_arrow()
        assert plain(lake.table("t").read(version=f"snapshot-{snapshot.snapshot_id}")) == plain(expected)


def test_a_field_inside_a_column_that_is_added(lake: Lake, catalog: Any) -> None:
    """What a table cannot follow is refused, and says which version to begin with."""
    rows = pa.table({"s": pa.array([{"a": 1}], pa.struct([("a", pa.int64())]))})
    source = catalog.create_table("db.t", schema=rows.schema)
    source.append(rows)
    with source.update_schema() as schema:
        schema.add_column(("s", "b"), types.LongType())
    with pytest.raises(InvalidRequest, match=r"has the column 's' as ROW<a.*b.*>, and the version before it as"):
        import_history(lake, "t", source.location(), format="iceberg")
    assert not lake.has_table("t")


def test_a_history_that_fails_leaves_what_others_have_made(lake: Lake, delta: Path) -> None:
    """Its own versions go with it; a version or a tag of another makes the table stay."""

    def run(meanwhile: Callable[[], object]) -> None:
        acts, one_at_a_time = [meanwhile], threading.Lock()  # files are copied in several threads

        def fail(done: Any) -> None:
            with one_at_a_time:
                if acts and len(list(lake.table("t").snapshots())) < 2:
                    return
                while acts:
                    acts.pop()()
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            import_history(lake, "t", str(delta), format="delta", progress=fail)

    run(lambda: None)
    assert not lake.has_table("t")
    run(lambda: lake.table("t").create_tag("mine"))
    assert lake.table("t").read(version="mine").num_rows == 30
    lake.drop_table("t", force=True)
    run(lambda: lake.table("t").append(pa.table({"id": [7], "p": ["a"]})))
    assert lake.table("t").read().num_rows == 31


def test_mistakes(lake: Lake, delta: Path, tmp_path: Path) -> None:
    """What is refused leaves no table."""
    import_history(lake, "t", str(delta), format="delta", history=HistoryOptions(versions=("5",)))
    with pytest.raises(AlreadyExists, match="import a history into a new one"):
        import_history(lake, "t", str(delta), format="delta")
    with pytest.raises(NotFound, match="has no version '9'; it has kept 0, 1, 2, 3, 4, 5"):
        import_history(lake, "u", str(delta), format="delta", history=HistoryOptions(versions=("9",)))
    with pytest.raises(InvalidRequest, match="has no tags"):
        import_history(lake, "u", str(delta), format="delta", history=HistoryOptions(tags=True))
    with pytest.raises(InvalidRequest, match="version by version"):
        import_history(lake, "u", str(delta), format="delta", options=ImportOptions(append=True))
    with pytest.raises(InvalidRequest, match="version by version"):
        import_history(lake, "u", str(delta), format="delta", source_options=SourceOptions(version=1))
    with pytest.raises(InvalidRequest, match="has no versions"):
        import_history(lake, "u", str(delta), format="parquet")
    with pytest.raises(NotFound, match="no Delta table"):
        import_history(lake, "u", str(tmp_path / "gone"), format="delta")
    shutil.rmtree(delta / "p=a")
    with pytest.raises(NotFound, match="is gone"):  # the newest version must be whole
        import_history(lake, "u", str(delta), format="delta")
    assert not lake.has_table("u")
