"""Maintenance of tables as Spark jobs: compact, find orphans, compare versions; and expiry, which needs no job.

Exports the jobs of repositories (`lakebed.spark.jobs.repository`) and imports (`lakebed.spark.jobs.importing`) too.
Owns: how the work is distributed over tasks. The table's own modules plan, decide, commit and delete on the driver. So
a job that fails has changed nothing, and the same rules protect tags and branches in every caller. Every job that
deletes has a dry run.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, functions
from pyspark.storagelevel import StorageLevel
from typing_extensions import Unpack

import lakebed.compute as pc
from lakebed.objects.port import ObjectStore
from lakebed.reclaim.model import CollectionReport
from lakebed.repo.objects.task_store import EntryStore
from lakebed.runtime import Environment
from lakebed.spark.dataframe.reading import read_splits
from lakebed.spark.jobs.importing import import_table
from lakebed.spark.jobs.repository import collect_repository, list_repository, stage_files
from lakebed.spark.plan.expression import exact_column
from lakebed.spark.plan.shipping import pack_units, ship, split_files
from lakebed.spark.tasks.committing import check_there
from lakebed.spark.tasks.tasks import Batches, changes_of_units, deal, parallelism
from lakebed.table.branch.context import TableBranch
from lakebed.table.branch.discard import discard_changes
from lakebed.table.changes.change_units import ROW_KIND_COLUMN
from lakebed.table.changes.incremental import plan_diff
from lakebed.table.collect.expire import ExpireRules
from lakebed.table.collect.orphans import (
    Search,
    Used,
    data_paths,
    files_of_listing,
    find_unused,
    older_than,
    outside_of,
    paths_in_use,
    remove_orphan_files,
)
from lakebed.table.compaction.compact import CompactReport, compact, run_task
from lakebed.table.compaction.compact_plan import CompactTask
from lakebed.table.files.external import names_of
from lakebed.table.model.model import BucketChange
from lakebed.table.read.read import ReadPlan
from lakebed.table.schema.schema import require_column
from lakebed.table.table import Table

__all__ = [
    "collect_repository",
    "collect_table",
    "compact_table",
    "diff_versions",
    "expire",
    "import_table",
    "list_repository",
    "stage_files",
]

_FOUND = "path string, size_bytes bigint, is_old boolean, name string"
"""Columns of a listed file."""


def compact_table(
    spark: SparkSession,
    table: Table,
    *,
    full: bool = False,
    where: Mapping[str, object] | None = None,
    dry_run: bool = False,
) -> CompactReport:
    """Rewrite small and overlapping files as fewer, larger ones, in parallel, in one COMPACT snapshot. No row changes.

    Args:
        table: the table, or one of its branches.
        full: rewrite everything, whatever the triggers say.
        where: values of partition columns; compact only these partitions.
        dry_run: plan only.

    Returns:
        What was done, or would be read. Its `snapshot` is None when there was nothing to do.

    Raises:
        Conflict: other writers replaced the files during every attempt; kind ``branch_moved``: the branch of the
            repository that holds the table was reset during the job.
    """
    changes: list[BucketChange] = []

    def run_tasks(tasks: Sequence[CompactTask], plan: ReadPlan) -> list[BucketChange]:
        changes[:] = changes_of_units(
            spark,
            tasks,
            size_bytes=lambda task: task.input_bytes,
            files=lambda task: [file for split in task.reads for file in split_files(split)],
            store=table.store,
            function=partial(_run_task, plan=plan),
            discard=partial(discard_changes, table.context),
        )
        return changes

    report = compact(table.context, full=full, where=where, dry_run=dry_run, run_tasks=run_tasks)
    if report.snapshot is not None:
        check_there(table, changes)
    return report


def _run_task(task: CompactTask, store: ObjectStore, *, plan: ReadPlan) -> BucketChange:
    return run_task(store, task, plan=plan, environment=Environment())


def expire(table: Table, *, dry_run: bool = False, **rules: Unpack[ExpireRules]) -> CollectionReport:
    """Delete the oldest snapshots. Arguments and result as `Table.expire`.

    This reads the delta manifests of what expires and nothing else. It runs on the driver, without a Spark job.
    """
    return table.expire(dry_run=dry_run, **rules)


# ---- orphans


def collect_table(
    spark: SparkSession, table: Table, *, grace_ms: int | None = None, dry_run: bool = False
) -> CollectionReport:
    """Delete the files of a table that no version names. Spark lists and compares them.

    Tasks list the folders first. Then the used files are looked up, and Spark joins the two. Only the orphans are sent
    to the driver. For a table in a branch of a repository, the driver does all of the work.

    Args:
        table: the table. The files of all its branches count.
        grace_ms: keep younger files; milliseconds, one day by default. It must be longer than a writer takes to commit.
        dry_run: delete nothing; the report's `plan` shows what would go.
    """
    # A branch is listed from its records, which tasks do not have: a read of columns, not of folders.
    find = find_unused if isinstance(table.store, EntryStore) else partial(_find_unused, spark)
    older_than_ms = None if grace_ms is None else older_than(table.context, grace_ms)
    return remove_orphan_files(table.context, older_than_ms=older_than_ms, dry_run=dry_run, find=find)


def _find_unused(spark: SparkSession, branches: Sequence[TableBranch], older_than_ms: int) -> Search:
    listing = _list_files(spark, branches[0], older_than_ms)
    try:
        old_files = listing.filter("is_old")
        old_count = old_files.count()  # forces the listing, before the used files are looked up
        used_files, data = _frames_of_used(spark, paths_in_use(branches))
        orphans = (
            old_files.join(used_files, on="name", how="left_anti")
            .select("path", "size_bytes")
            .orderBy("path")
            .toArrow()
        )
        present = data.join(listing.select("path"), on="path", how="left_semi").select("name")
        missing = data.join(present, on="name", how="left_anti").select("path").orderBy("path").toArrow()
    finally:
        listing.unpersist()
    lost_paths = pa.concat_arrays([pa.array([], pa.string()), *_chunks(missing["path"])])
    return Search(orphans, old_count - orphans.num_rows, lost_paths)


def _list_files(spark: SparkSession, branch: TableBranch, older_than_ms: int) -> DataFrame:
    """List files by path, size and name, once: a second listing could include files written since.

    Tasks list the table's folder, the driver the external roots, of which few tables have any.
    """
    store, layout = ship(branch.store), branch.layout
    folders = branch.store.list_with_delimiter("").folders

    def lakebed_list(assigned: Iterator[str]) -> Batches:
        object_store: ObjectStore = pickle.loads(store)
        for folder in assigned:
            listing = files_of_listing(list(object_store.list(folder)), layout, older_than_ms=older_than_ms)
            yield from _with_names(listing).to_batches()

    if not folders:
        return spark.createDataFrame([], _FOUND)
    packs = pack_units(folders, size_bytes=lambda folder: 0, task_count_min=4 * parallelism(spark))
    tasks, function = deal(spark, packs, lakebed_list)
    files = tasks.mapInArrow(function, _FOUND)
    outside = outside_of(branch, older_than_ms=older_than_ms)
    if outside.num_rows:
        files = files.unionByName(spark.createDataFrame(_with_names(outside)))
    return files.persist(StorageLevel.DISK_ONLY)


def _with_names(files: pa.Table) -> pa.Table:
    return files.append_column("name", names_of(files["path"]))


def _frames_of_used(spark: SparkSession, versions: Iterator[Used]) -> tuple[DataFrame, DataFrame]:
    """Return the names that versions use, and the paths of data files that must exist with their names; each once.

    Versions share most of their files, so they are deduplicated one by one.
    """
    names = data = pa.array([], pa.string())
    for used in versions:
        names = pc.unique(pa.concat_arrays([names, *_chunks(names_of(used.paths))]))
        data = pc.unique(pa.concat_arrays([data, *_chunks(data_paths(used))]))
    return _frame_of(spark, {"name": names}), _frame_of(spark, {"path": data, "name": names_of(data)})


def _frame_of(spark: SparkSession, columns: Mapping[str, pa.Array]) -> DataFrame:
    table = pa.table(dict(columns))
    if table.num_rows == 0:
        return spark.createDataFrame([], ", ".join(f"{name} string" for name in columns))
    return spark.createDataFrame(table)


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
    """Compare two versions, and return the rows that differ as a DataFrame.

    Args:
        table: the table, or one of its branches.
        start, end: snapshot ids, tags or branches, whatever happened between them; `end` None: the newest.
        keys: columns that identify a row; None: the primary key, in append tables the whole row.

    Returns:
        The columns of `end`, and last ``_row_kind``: ``+I`` for an added row, ``-D`` for a removed one, ``-U`` and
            ``+U`` for a changed row before and after. In an append table a row that occurs n times more often appears n
            times.

    Raises:
        NotFound: there is no such version or key column.

    Cost: a read of the files that only one version has; with a primary key, also of those whose keys overlap them.
    """
    old_splits, new_splits, plan = plan_diff(table.context, start, end)
    old_rows = read_splits(spark, table, splits=old_splits, plan=plan)
    new = read_splits(spark, table, splits=new_splits, plan=plan)
    key_columns = tuple(keys) if keys is not None else plan.schema.primary_keys
    for name in key_columns:
        require_column(plan.schema, name)
    return _diff_by_key(old_rows, new, key_columns) if key_columns else _multiset_diff(old_rows, new)


def _diff_by_key(old_rows: DataFrame, new: DataFrame, keys: Sequence[str]) -> DataFrame:
    names = new.columns
    whole_row = functions.struct(*(exact_column(name) for name in names))
    old_side = old_rows.select(
        *(exact_column(key).alias(f"k{i}") for i, key in enumerate(keys)), whole_row.alias("was")
    )
    now = new.select(*(exact_column(key).alias(f"k{i}") for i, key in enumerate(keys)), whole_row.alias("now"))
    same_key = functions.lit(True)
    for i in range(len(keys)):
        same_key = same_key & old_side[f"k{i}"].eqNullSafe(now[f"k{i}"])
    paired = old_side.join(now, same_key, "full_outer").filter(~functions.col("was").eqNullSafe(functions.col("now")))
    kinds = functions.when(functions.col("was").isNull(), _changes(("+I", "now"))).when(
        functions.col("now").isNull(), _changes(("-D", "was"))
    )
    both_sides = kinds.otherwise(_changes(("-U", "was"), ("+U", "now")))
    changes = paired.select(functions.explode(both_sides).alias("change"))
    return changes.select(
        *(functions.col("change.row").getField(name).alias(name) for name in names),
        functions.col("change.kind").alias(ROW_KIND_COLUMN),
    )


def _changes(*rows: tuple[str, str]) -> Column:
    return functions.array(
        *(functions.struct(functions.lit(kind).alias("kind"), functions.col(row).alias("row")) for kind, row in rows)
    )


def _multiset_diff(old_rows: DataFrame, new: DataFrame) -> DataFrame:
    """Compare whole rows by their number of occurrences: one shuffle of both sides together."""
    names = new.columns
    surplus = "surplus of " + max(names, key=len)  # longer than every column's name, so it is unique
    both_sides = new.withColumn(surplus, functions.lit(1)).union(old_rows.withColumn(surplus, functions.lit(-1)))
    counts = both_sides.groupBy(*(exact_column(name) for name in names)).agg(
        functions.sum(exact_column(surplus)).alias(surplus)
    )
    differing = counts.filter(exact_column(surplus) != 0)
    kind = functions.when(exact_column(surplus) > 0, functions.lit("+I")).otherwise(functions.lit("-D"))
    repeated_kinds = functions.array_repeat(kind, functions.abs(exact_column(surplus)).cast("int"))
    return differing.select(
        *(exact_column(name) for name in names), functions.explode(repeated_kinds).alias(ROW_KIND_COLUMN)
    )
