"""Importing tables of other formats into a lake: the table is created, filled by one commit, and gone after a failure.

Owns: `import_table`. What is read and how files are taken over is in `lakebed.table.imports`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lakebed.errors import OutcomeUnknown, Unavailable
from lakebed.table.imports.model import ImportOptions, ImportReport, Source
from lakebed.table.imports.sources import SourceOptions, open_source
from lakebed.table.imports.take_over import Carrier, ProgressCall, plan_import, report_of, take_over
from lakebed.table.schema import new_schema

if TYPE_CHECKING:
    from lakebed.lake.lake import Lake


def import_table(
    lake: Lake,
    name: str,
    source: str,
    *,
    format: str,
    options: ImportOptions | None = None,
    source_options: SourceOptions | None = None,
    progress: ProgressCall | None = None,
    carrier: Carrier | None = None,
) -> ImportReport:
    """Import one version of a table of another format as one snapshot.

    Args:
        name: of the table. One that does not exist is created with the columns of the source, without a primary key;
            one without rows is filled; one with rows only with `ImportOptions.append`.
        source: the folder or URL of a Parquet folder, a Delta table or an Iceberg table.
        format: ``parquet``, ``delta`` or ``iceberg``.
        source_options: `SourceOptions.storage_options` are the lake's unless they are given.
        progress, carrier: as `take_over`.

    Raises as `open_source`, `take_over` and `Lake.create_table`. After an error that says that nothing was committed, a
    table that this call created is dropped. Cost: as `take_over`.
    """
    chosen, wanted = options or ImportOptions(), source_options or SourceOptions()
    if wanted.storage_options is None:
        wanted = replace(wanted, storage_options=lake.storage_options)
    found = open_source(format, source, like=lake.store, options=wanted)
    if lake.has_table(name):
        return take_over(lake.table(name), found, chosen, progress=progress, carrier=carrier)
    if chosen.dry_run:
        return _dry_run(lake, name, found, chosen)
    table = lake.create_table(name, found.fields, partition_keys=found.partition_keys)
    try:
        return take_over(table, found, chosen, progress=progress, carrier=carrier)
    except (OutcomeUnknown, Unavailable):
        if table.latest() is None:
            lake.drop_table(name, force=True)
        raise
    except BaseException:
        lake.drop_table(name, force=True)
        raise


def _dry_run(lake: Lake, name: str, source: Source, options: ImportOptions) -> ImportReport:
    schema = new_schema(source.fields, partition_keys=source.partition_keys, time_ms=lake.environment.clock.now_ms())
    plan = plan_import(lake.store, source, schema, options=options, environment=lake.environment)
    return report_of(plan, name=name, options=options)
