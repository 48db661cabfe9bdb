"""Maintenance of tables as Spark jobs: compact, find orphans, compare versions; and expiry, which needs none.

The door to the jobs of repositories too (`lakebed.spark.repository`). Owns: how the work is spread over tasks. What is
to be done is planned, judged, committed and deleted by the table's own rooms, on the driver: so a job that dies has
changed nothing, and the same rules protect tags and branches whoever runs them. Every job that deletes has a dry run.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession, functions
from pyspark.storagelevel import StorageLevel

from lakebed.objects.port import ObjectStore
from lakebed.reclaim.model import ReclaimReport
from lakebed.runtime import Environment
from lakebed.spark.expression import quoted
from lakebed.spark.reading import read_splits
from lakebed.spark.repository import collect_repository, list_repository, stage_files
from lakebed.spark.tasks import Batches, changes_of_units, dealt, packed, parallelism, ship
from lakebed.table.compact import CompactReport, CompactTask, run_task
from lakebed.table.holders import Line
from lakebed.table.incremental import ROW_KIND_COLUMN
from lakebed.table.layout import Layout
from lakebed.table.model import BucketChange
from lakebed.table.orphans import ORPHAN_AGE_MS, may_be_orphan, used_paths
from lakebed.table.orphans import remove_orphan_files as remove_found
from lakebed.table.read import ReadPlan
from lakebed.table.schema import require_column
from lakebed.table.table import Table

__all__ = [
    "collect_repository",
    "compact_table",
    "diff_versions",
    "expire",
    "list_repository",
    "remove_orphan_files",
    "stage_files",
]

_FOUND = "path string, size_bytes bigint"
"""A file that might be an orphan."""


def compact_table(
    spark: SparkSession,
    table: Table,
    *,
    full: bool = False,
    where: Mapping[str, object] | None = None,
    dry_run: bool = False,
) -> CompactReport:
    """Rewrite small and overlapping files as fewer, larger ones, in parallel, in one COMPACT snapshot; no row changes.

    Args:
        spark: where the rewriting runs.
        table: the table, or one of its branches.
        full: everything, whatever the triggers say.
        where: values of partition columns; only such partitions.
        dry_run: plan only.

    Returns:
        What was done, or would be read. Its `snapshot` is None when there was nothing to do.

    Raises:
        Conflict: other writers replaced the files again and again while they were being rewritten.
    """
    table.refresh()
    store = ship(table.store)

    def run_tasks(tasks: Sequence[CompactTask], plan: ReadPlan) -> list[BucketChange]:
        return changes_of_units(
            spark,
            tasks,
            size_bytes=lambda task: task.input_bytes,
            store=store,
            function=partial(_run_task, plan=plan),
        )

    return table.rows.compactor(where=where).run(full=full, dry_run=dry_run, run_tasks=run_tasks)


def _run_task(task: CompactTask, store: ObjectStore, *, plan: ReadPlan) -> BucketChange:
    return run_task(store, task, plan=plan, environment=Environment())


def expire(
    table: Table,
    *,
    retain_max: int | None = None,
    retain_min: int | None = None,
    older_than_ms: int | None = None,
    max_deletes: int | None = None,
    dry_run: bool = False,
) -> ReclaimReport:
    """Let the oldest snapshots go; arguments and result as `Table.expire`.

    It reads the delta manifests of what expires and nothing else, so it runs on the driver, without a Spark job.
    """
    return table.expire(
        retain_max=retain_max,
        retain_min=retain_min,
        older_than_ms=older_than_ms,
        max_deletes=max_deletes,
        dry_run=dry_run,
    )


# ---- orphans


def remove_orphan_files(
    spark: SparkSession, table: Table, *, older_than_ms: int | None = None, dry_run: bool = False
) -> ReclaimReport:
    """Delete files that no snapshot, tag or branch names, last written before a time.

    The folders are listed by tasks, before what is used is looked up; then Spark joins the two, and only the orphans
    come to the driver.

    Args:
        spark: where the listing and the join run.
        table: the table; files of all its branches count.
        older_than_ms: Unix ms, UTC, exclusive; default a day ago. Whoever writes for longer than that before committing
            needs a larger age.
        dry_run: only say what would go; the report's `plan` has it.
    """
    table.refresh()
    if older_than_ms is None:
        older_than_ms = table.environment.clock.now_ms() - ORPHAN_AGE_MS
    lines = table.history.lines()
    return remove_found(lines, older_than_ms=older_than_ms, dry_run=dry_run, find=partial(_find_unused, spark))


def _find_unused(spark: SparkSession, lines: Sequence[Line], older_than_ms: int) -> tuple[pa.Table, int]:
    candidates = _list_candidates(spark, lines[0], older_than_ms)
    try:
        candidate_count = candidates.count()  # listed now, before what is used is looked up
        used = _frame_of_paths(spark, used_paths(lines))
        orphans = candidates.join(used, on="path", how="left_anti").orderBy("path").toArrow()
    finally:
        candidates.unpersist()
    return orphans, candidate_count - orphans.num_rows


def _list_candidates(spark: SparkSession, line: Line, older_than_ms: int) -> DataFrame:
    """Old enough files by path and size, kept once listed: a second listing could see what was written since."""
    store, layout = ship(line.store), line.layout
    folders = line.store.list_with_delimiter("").folders

    def lakebed_list(assigned: Iterator[str]) -> Batches:
        opened: ObjectStore = pickle.loads(store)
        for folder in assigned:
            yield _old_files(opened, layout, folder, older_than_ms)

    if not folders:
        return spark.createDataFrame([], _FOUND)
    packs = packed(folders, size_bytes=lambda folder: 0, task_count_min=4 * parallelism(spark))
    tasks, function = dealt(spark, packs, lakebed_list)
    return tasks.mapInArrow(function, _FOUND).persist(StorageLevel.DISK_ONLY)


def _old_files(store: ObjectStore, layout: Layout, folder: str, older_than_ms: int) -> pa.RecordBatch:
    found = [meta for meta in store.list(folder) if meta.modified_ms < older_than_ms and may_be_orphan(layout, meta)]
    return pa.RecordBatch.from_arrays(
        [
            pa.array([meta.path for meta in found], pa.string()),
            pa.array([meta.size_bytes for meta in found], pa.int64()),
        ],
        names=["path", "size_bytes"],
    )


def _frame_of_paths(spark: SparkSession, versions: Iterator[pa.Array]) -> DataFrame:
    """Every path that some version names, once; versions share most of theirs, so they are folded as they come."""
    known = pa.array([], pa.string())
    for paths in versions:
        known = pc.unique(pa.concat_arrays([known, *_chunks(paths)]))
    return spark.createDataFrame(pa.table({"path": known})) if len(known) else spark.createDataFrame([], "path string")


def _chunks(paths: pa.Array | pa.ChunkedArray) -> list[pa.Array]:
    chunks = paths.chunks if isinstance(paths, pa.ChunkedArray) else [paths]
    return [chunk.cast(pa.string()) for chunk in chunks]


# ---- differences


def diff_versions(
    spark: SparkSession,
    table: Table,
    start: int | str,
    end: int | str | None = None,
    *,
    keys: Sequence[str] | None = None,
) -> DataFrame:
    """The rows that differ between two versions, as a DataFrame.

    Args:
        spark: where the comparison runs.
        table: the table, or one of its branches.
        start, end: snapshot ids, tags or branches, whatever happened in between; `end` None: the newest.
        keys: columns that identify a row; by default the primary key, in append tables the whole row.

    Returns:
        The columns of `end`, and last ``_row_kind``: ``+I`` added, ``-D`` removed, ``-U`` and ``+U`` a changed row as
        it was and as it is. In an append table a row that occurs more often by n comes n times.

    Raises:
        NotFound: no such version or key column.

    Cost: reads the files that only one of the versions has (with a primary key also those whose keys overlap them).
    """
    before, after = table.resolve(version=start), table.resolve(version=end)
    old_splits, new_splits, plan = table.rows.plan_diff(before, after)
    old = read_splits(spark, table, splits=old_splits, plan=plan)
    new = read_splits(spark, table, splits=new_splits, plan=plan)
    chosen = tuple(keys) if keys is not None else plan.schema.primary_keys
    for name in chosen:
        require_column(plan.schema, name)
    return _keyed_diff(old, new, chosen) if chosen else _multiset_diff(old, new)


def _keyed_diff(old: DataFrame, new: DataFrame, keys: Sequence[str]) -> DataFrame:
    names = new.columns
    whole = functions.struct(*(quoted(name) for name in names))
    was = old.select(*(quoted(key).alias(f"k{i}") for i, key in enumerate(keys)), whole.alias("was"))
    now = new.select(*(quoted(key).alias(f"k{i}") for i, key in enumerate(keys)), whole.alias("now"))
    same_key = functions.lit(True)
    for i in range(len(keys)):
        same_key = same_key & was[f"k{i}"].eqNullSafe(now[f"k{i}"])
    paired = was.join(now, same_key, "full_outer").filter(~functions.col("was").eqNullSafe(functions.col("now")))
    kinds = functions.when(functions.col("was").isNull(), _changes(("+I", "now"))).when(
        functions.col("now").isNull(), _changes(("-D", "was"))
    )
    both = kinds.otherwise(_changes(("-U", "was"), ("+U", "now")))
    one = paired.select(functions.explode(both).alias("change"))
    return one.select(
        *(functions.col("change.row").getField(name).alias(name) for name in names),
        functions.col("change.kind").alias(ROW_KIND_COLUMN),
    )


def _changes(*rows: tuple[str, str]) -> Column:
    return functions.array(
        *(functions.struct(functions.lit(kind).alias("kind"), functions.col(row).alias("row")) for kind, row in rows)
    )


def _multiset_diff(old: DataFrame, new: DataFrame) -> DataFrame:
    """Whole rows by how often they occur: one shuffle of both sides together."""
    names = new.columns
    surplus = "surplus of " + max(names, key=len)  # longer than every column's name, so no column's
    both = new.withColumn(surplus, functions.lit(1)).union(old.withColumn(surplus, functions.lit(-1)))
    counted = both.groupBy(*(quoted(name) for name in names)).agg(functions.sum(quoted(surplus)).alias(surplus))
    differing = counted.filter(quoted(surplus) != 0)
    kind = functions.when(quoted(surplus) > 0, functions.lit("+I")).otherwise(functions.lit("-D"))
    repeated = functions.array_repeat(kind, functions.abs(quoted(surplus)).cast("int"))
    return differing.select(*(quoted(name) for name in names), functions.explode(repeated).alias(ROW_KIND_COLUMN))
