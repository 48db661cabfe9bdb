"""Jobs: the same outcome as the table's own verbs, wherever the work runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import lakebed.spark
from lakebed.errors import NotFound
from lakebed.objects.port import ObjectMeta
from lakebed.spark import jobs
from lakebed.spark.plan.shipping import pack_units
from lakebed.table.rows.rows import new_writer
from lakebed.table.table import Table

MakeTable = Callable[..., Table]
SortedRows = Callable[[Any], list[tuple[Any, ...]]]

SCHEMA = pa.schema(
    [pa.field("p", pa.int32(), nullable=False), pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.string())]
)
KEYED: dict[str, Any] = {"primary_keys": ["p", "id"], "partition_keys": ["p"], "options": {"bucket": "2"}}


def rows(ids: range, v: str = "x") -> pa.Table:
    """Rows in two partitions."""
    return pa.table({"p": [number % 2 for number in ids], "id": list(ids), "v": [v] * len(ids)}, schema=SCHEMA)


def data_files(table: Table) -> set[str]:
    """Every data file in the table's folder, referenced or not, relative to it."""
    root = Path(table.url.removeprefix("file://"))
    return {str(path.relative_to(root)) for path in root.rglob("*.parquet")}


@pytest.mark.parametrize("keyed", [True, pytest.param(False, marks=pytest.mark.long)])
def test_compact(spark: SparkSession, make_table: MakeTable, sorted_rows: SortedRows, keyed: bool) -> None:
    """A compaction leaves the rows as they are, in fewer files, as one COMPACT snapshot; a dry run plans only."""
    table = make_table(SCHEMA, **(KEYED if keyed else {}))
    for number in range(6):
        table.write(rows(range(number, 40), v=str(number)))
    before = sorted_rows(table.read())
    planned = jobs.compact_table(spark, table, full=True, dry_run=True)
    assert (planned.snapshot, planned.dry_run) == (None, True)
    assert table.latest().id == 6
    report = jobs.compact_table(spark, table, full=True)
    assert report.snapshot is not None
    assert report.snapshot.commit_kind == "COMPACT"
    assert report.files_before == planned.files_before > report.files_after
    assert sorted_rows(table.read()) == before
    assert sorted_rows(lakebed.spark.read(spark, table)) == before
    assert not any(split.needs_merge for split in table.scan().splits())
    assert jobs.compact_table(spark, table, full=True).snapshot is None


def test_compact_one_partition(spark: SparkSession, make_table: MakeTable) -> None:
    """Only the partitions named are rewritten."""
    table = make_table(SCHEMA, **KEYED)
    table.upsert(rows(range(20)))
    table.upsert(rows(range(20)))
    report = jobs.compact_table(spark, table, full=True, where={"p": 1})
    assert {task.split.partition_values["p"] for task in report.tasks} == {1}
    assert {split.partition_values["p"] for split in table.scan().splits() if split.needs_merge} == {0}


def test_expire(make_table: MakeTable) -> None:
    """Expiry says in a dry run what it then does, and spares what a tag holds."""
    table = make_table(SCHEMA, options={"snapshot.num-retained.min": "1"})
    table.overwrite(rows(range(1)))
    table.create_tag("kept")
    for number in range(2, 5):
        table.overwrite(rows(range(number)))
    planned = jobs.expire(table, retain_max=1, dry_run=True)
    assert planned.dry_run
    assert [snapshot.id for snapshot in table.snapshots()] == [1, 2, 3, 4]
    report = jobs.expire(table, retain_max=1)
    assert planned.plan is not None
    assert report.hidden_count == len(planned.plan.hide) == 3
    assert report.deleted_count == len(planned.plan.doomed)
    assert [snapshot.id for snapshot in table.snapshots()] == [4]
    assert table.read(version="kept").num_rows == 1


@pytest.mark.parametrize("keyed", [True, pytest.param(False, marks=pytest.mark.long)])
def test_orphans(spark: SparkSession, make_table: MakeTable, sorted_rows: SortedRows, keyed: bool) -> None:
    """Exactly the files that nothing names go, as the local verb finds them; young files and dry runs go free."""
    table = make_table(SCHEMA, **(KEYED if keyed else {"partition_keys": ["p"]}))
    table.write(rows(range(10)))
    table.create_tag("old")
    table.overwrite(rows(range(5)))
    branch = table.create_branch("dev", tag="old")
    branch.write(rows(range(3)))
    wanted = data_files(table)
    before = [sorted_rows(table.read()), sorted_rows(table.read(version="old")), sorted_rows(branch.read())]
    writer = new_writer(table.context.look())
    writer.write(rows(range(7)))
    writer.finish()
    (Path(table.url.removeprefix("file://")) / "manifest" / "manifest-of-nobody").write_bytes(b"x")
    assert jobs.collect_table(spark, table).deleted_count == 0
    planned = jobs.collect_table(spark, table, grace_ms=0, dry_run=True)
    local = table.collect(grace_ms=0, dry_run=True)
    assert planned.plan is not None
    assert local.plan is not None
    assert {doomed.path for doomed in planned.plan.doomed} == {doomed.path for doomed in local.plan.doomed}
    assert planned.kept == local.kept
    assert data_files(table) > wanted
    report = jobs.collect_table(spark, table, grace_ms=0)
    assert report.deleted_count == len(planned.plan.doomed) > 1
    assert data_files(table) == wanted
    assert [sorted_rows(table.read()), sorted_rows(table.read(version="old")), sorted_rows(branch.read())] == before
    assert jobs.collect_table(spark, table, grace_ms=0).deleted_count == 0


def test_files_outside_the_table(
    spark: SparkSession, make_table: MakeTable, sorted_rows: SortedRows, tmp_path: Path
) -> None:
    """Tasks write, read and compact files at external paths; the search for orphans keeps what is not the table's."""
    roots = [tmp_path / "outside", tmp_path / "far away"]
    external = {
        "data-file.external-paths": ",".join(f"file://{root}" for root in roots),
        "data-file.external-paths.strategy": "round-robin",
    }
    table = make_table(SCHEMA, **(KEYED | {"options": {"bucket": "2", **external}}))
    for number in range(2):
        table.upsert(rows(range(number, 20), v=str(number)))
    lakebed.spark.upsert(spark.createDataFrame(rows(range(2, 20), v="2")), table)
    expected = sorted_rows(table.read())
    assert sorted_rows(lakebed.spark.read(spark, table)) == expected
    assert jobs.compact_table(spark, table, full=True).snapshot is not None
    writer = new_writer(table.context.look())
    writer.write(rows(range(7)))
    writer.finish()
    stray = roots[0] / "p=0" / "bucket-0" / "data-of-another-table.parquet"
    stray.parent.mkdir(parents=True, exist_ok=True)  # a writer begins with any of the roots
    stray.write_bytes(b"x")
    table.expire(retain_max=1, retain_min=1)
    assert jobs.collect_table(spark, table, grace_ms=0).deleted_count == 4
    live = set(table.system("files")["file_path"].to_pylist())
    assert {f"file:{path}" for root in roots for path in root.rglob("*.parquet")} == live | {f"file:{stray}"}
    assert not data_files(table)
    assert sorted_rows(lakebed.spark.read(spark, table)) == expected


def test_orphans_of_an_unreadable_table(spark: SparkSession, make_table: MakeTable) -> None:
    """When a tag cannot be read, nothing is deleted and the report says why."""
    table = make_table(SCHEMA)
    table.append(rows(range(3)))
    root = Path(table.url.removeprefix("file://"))
    (root / "tag").mkdir()
    (root / "tag" / "tag-broken").write_bytes(b"{")
    stray = root / "bucket-0" / "data-stray.parquet"
    stray.write_bytes(b"x")
    report = jobs.collect_table(spark, table, grace_ms=0)
    assert stray.exists()
    assert report.deleted_count == 0
    assert any("tag-broken" in warning for warning in report.warnings)


def test_orphans_of_an_empty_table(spark: SparkSession, make_table: MakeTable) -> None:
    """A table that was never written to has no orphans."""
    table = make_table(SCHEMA)
    assert jobs.collect_table(spark, table, grace_ms=0).deleted_count == 0


def changes_of(
    table: Table, start: int | str, end: int | str | None, *, keys: list[str] | None = None
) -> list[tuple[Any, ...]]:
    """What the local verb says differs, in the job's form."""
    diff = table.diff(start, end, keys=keys)
    named = [("+I", diff.added), ("-D", diff.removed), ("-U", diff.before), ("+U", diff.after)]
    return sorted(((*row.values(), kind) for kind, part in named for row in part.to_pylist()), key=repr)


def test_diff_by_key(spark: SparkSession, make_table: MakeTable, sorted_rows: SortedRows) -> None:
    """Added, removed and changed rows between any two versions are those that the local verb finds."""
    table = make_table(SCHEMA, **KEYED)
    table.upsert(rows(range(10)))
    table.create_tag("start")
    table.upsert(rows(range(8, 14), v="y"))
    table.delete(keys=rows(range(3)).select(["p", "id"]))
    table.compact(full=True)
    table.upsert(pa.table({"p": [0], "id": [4], "v": [None]}, schema=SCHEMA))
    frame = jobs.diff_versions(spark, table, "start")
    assert frame.columns == [*SCHEMA.names, "_row_kind"]
    assert sorted_rows(frame) == changes_of(table, "start", None)
    kinds = [row[-1] for row in sorted_rows(frame)]
    assert {kind: kinds.count(kind) for kind in kinds} == {"+I": 4, "-D": 3, "-U": 3, "+U": 3}
    assert jobs.diff_versions(spark, table, 5, 5).count() == 0
    assert jobs.diff_versions(spark, table, 3, 4).count() == 0
    assert sorted_rows(jobs.diff_versions(spark, table, 5, "start")) == changes_of(table, 5, "start")
    with pytest.raises(NotFound):
        jobs.diff_versions(spark, table, "never")


def test_diff_of_whole_rows(spark: SparkSession, make_table: MakeTable, sorted_rows: SortedRows) -> None:
    """Without a key rows are compared whole, as often as they occur; columns added since are compared as nulls."""
    table = make_table(SCHEMA)
    table.append(rows(range(3)))
    table.append(rows(range(3)))
    table.delete("id = 1")
    table.append(pa.concat_tables([rows(range(3)), rows(range(5, 6))]))
    frame = jobs.diff_versions(spark, table, 1)
    assert sorted_rows(frame) == changes_of(table, 1, None)
    table.add_column("w", "INT")
    table.append(rows(range(7, 8)))
    assert sorted_rows(jobs.diff_versions(spark, table, 4)) == [(1, 7, "x", None, "+I")]
    by_id = make_table(SCHEMA, name="by_id")
    by_id.append(rows(range(3)))
    by_id.overwrite(rows(range(1, 4), v="y"))
    assert sorted_rows(jobs.diff_versions(spark, by_id, 1, 2, keys=["id"])) == changes_of(by_id, 1, 2, keys=["id"])


def test_packing_keeps_every_unit() -> None:
    """Every unit is in exactly one task, in order; large ones alone, and small ones do not end up in one task."""
    sizes = [1, 300 << 20, 5, 5, 200 << 20, 1, 2, 3]
    units = [ObjectMeta(str(number), size, 0) for number, size in enumerate(sizes)]
    packs = pack_units(units, size_bytes=lambda unit: unit.size_bytes, task_count_min=2)
    assert [unit for pack in packs for unit in pack] == units
    assert [units[1]] in packs
    assert [units[4]] in packs
    small = [ObjectMeta(str(number), 1, 0) for number in range(100)]
    assert 2 <= len(pack_units(small, size_bytes=lambda unit: unit.size_bytes, task_count_min=2)) <= 10
