"""Imports of tables of other formats with a Spark job: tasks copy and rewrite files, the driver plans and commits.

Owns: how the files of an import are distributed over tasks. Invariants: as `lakebed.table.imports.take_over`. A job
that fails commits nothing; files that its tasks wrote into an existing table are orphans.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from lakebed.lake.imports import import_table as import_into_lake
from lakebed.objects.port import ObjectStore
from lakebed.repo.model.model import Entry
from lakebed.runtime import Environment
from lakebed.spark.plan.shipping import open_in_task, pack_units, ship
from lakebed.spark.tasks.tasks import Batches, collect_changes, deal, parallelism, returning_changes
from lakebed.table.imports.model import ImportOptions, ImportReport, SourceFile
from lakebed.table.imports.sources import SourceOptions
from lakebed.table.imports.take_over import (
    ImportPlan,
    ProgressCall,
    TakenFile,
    carry,
    carry_file,
    needs_writer,
    rows_of,
    write_rows,
)
from lakebed.table.model.model import BucketChange, TableSchema
from lakebed.table.table import Table
from lakebed.table.write.write import BucketIndex, TableWriter
from lakebed.table.write.write_settings import WriteSettings

if TYPE_CHECKING:
    from lakebed.lake.lake import Lake

FileOfImport = TakenFile | SourceFile
"""A file that is copied, or one whose rows are written."""


def import_table(
    spark: SparkSession,
    lake: Lake,
    name: str,
    source: str,
    *,
    format: str,
    options: ImportOptions | None = None,
    source_options: SourceOptions | None = None,
) -> ImportReport:
    """Import a table of another format with a Spark job.

    Arguments, result and errors as `lakebed.lake.imports.import_table`.

    The driver opens the source and reads the footers of its files. Executors that rewrite files of Iceberg, or of Delta
    with column mapping, need pyiceberg or deltalake. The driver writes the files of a table with a primary key or with
    buckets.
    """
    return import_into_lake(
        lake,
        name,
        source,
        format=format,
        options=options,
        source_options=source_options,
        carrier=partial(_carry, spark),
    )


def _carry(spark: SparkSession, table: Table, plan: ImportPlan, progress: ProgressCall | None) -> list[BucketChange]:
    if needs_writer(plan.schema) is not None:
        return carry(table, plan, progress)
    stay = [item for item in plan.taken if item.entry.external_path is not None]
    changes = [carry_file(table.store, item) for item in stay]
    units: list[FileOfImport] = [item for item in plan.taken if item.entry.external_path is None]
    units += [file for file, _ in plan.rewritten]
    if not units:
        return changes
    shipped_store, schema = ship(table.store, writes=True), plan.schema
    packs = pack_units(units, size_bytes=_size_bytes, task_count_min=parallelism(spark))
    no_entries: Mapping[str, Entry] = {}

    def lakebed_import(assigned: Iterator[list[FileOfImport]]) -> Batches:
        (pack,) = assigned
        object_store = open_in_task(shipped_store, no_entries)
        yield from returning_changes(lambda: _carry_pack(object_store, pack, schema), store=object_store)

    frame, task = deal(spark, [[list(pack)] for pack in packs], lakebed_import)
    return changes + collect_changes(frame, task, into=table.store)


def _size_bytes(unit: FileOfImport) -> int:
    return unit.source.size_bytes if isinstance(unit, TakenFile) else unit.size_bytes


def _carry_pack(store: ObjectStore, pack: list[FileOfImport], schema: TableSchema) -> list[BucketChange]:
    changes = [carry_file(store, pack_file) for pack_file in pack if isinstance(pack_file, TakenFile)]
    files_to_rewrite = [pack_file for pack_file in pack if isinstance(pack_file, SourceFile)]
    if not files_to_rewrite:
        return changes
    writer = TableWriter(
        store,
        schema=schema,
        settings=WriteSettings.of(schema),
        environment=Environment(),
        index=lambda: BucketIndex(None),
    )
    for file in files_to_rewrite:
        for rows in rows_of(file, store):
            write_rows(writer, rows, file)
    return changes + writer.finish()
