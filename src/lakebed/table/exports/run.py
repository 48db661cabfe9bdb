"""`export_table`: from a version of a table to a target in another format.

Invariants: the version is resolved once, before anything is written. The target is outside the table. One last step
makes the export a complete table for readers of the target's format: a commit of that format, or the rename of a
folder; on a bucket, for Parquet files, the marker ``_SUCCESS``.
"""

from __future__ import annotations

import math
from typing import Final

from lakebed.errors import InvalidRequest
from lakebed.objects.path import parse_url
from lakebed.table.exports.model import ExportOptions, ExportReport, ProgressCall
from lakebed.table.exports.parquet_folder import export_parquet
from lakebed.table.imports.parquet_folder import HIVE_NULL
from lakebed.table.model.types import parse_type
from lakebed.table.read.scan import Scan
from lakebed.table.table import Table
from lakebed.texts import format_value

FORMATS: Final = ("parquet", "delta", "iceberg")


def export_table(
    table: Table,
    target: str,
    *,
    format: str,
    options: ExportOptions | None = None,
    progress: ProgressCall | None = None,
) -> ExportReport:
    """Write one version of a table as Parquet files, as a Delta table or as an Iceberg table.

    Args:
        table: the table, or one of its branches.
        target: a folder or URL; with `ExportOptions.catalog`, the identifier of a table.
        format: ``parquet``, ``delta`` or ``iceberg``.
        options: which version, and how.
        progress: called with each batch.

    Raises:
        InvalidRequest: an unknown format, a target inside the table, a column or value that the format cannot hold, or
            a library that is not installed.
        AlreadyExists: the target has something, and `ExportOptions.overwrite` is not set; or it has something that is
            not an export, which is never replaced.
        NotFound: there is no such version.

    Cost: one read of the version. Memory holds one file that is being written, or what the format's library buffers.
    """
    options = options or ExportOptions()
    if format not in FORMATS:
        raise InvalidRequest(f"There is no export as {format!r}: use {', '.join(FORMATS)}.", kind="unknown_format")
    if options.catalog is not None and format != "iceberg":
        raise InvalidRequest("A catalog is for the format iceberg only: leave it out.", kind="invalid_target")
    if options.catalog is None:
        target = str(parse_url(target))
        if f"{target}/".startswith(f"{table.url}/") or f"{table.url}/".startswith(f"{target}/"):
            raise InvalidRequest(
                f"{target} is the table's own folder, or one above or inside of it: export to another one.",
                kind="invalid_target",
                url=target,
            )
    scan = table.scan(version=options.version, timestamp_ms=options.timestamp_ms)
    _check_partitions(scan, format)
    if format == "parquet":
        return export_parquet(table, scan, target, options=options, progress=progress)
    if format == "delta":
        from lakebed.table.exports.delta import export_delta

        return export_delta(table, scan, target, options=options, progress=progress)
    from lakebed.table.exports.iceberg import export_iceberg

    return export_iceberg(table, scan, target, options=options, progress=progress)


def _check_partitions(scan: Scan, format: str) -> None:
    """Refuse partition values that the format, or its library, would confuse with other values.

    A folder of Hive's layout has null under a name that a text may also have. pyiceberg finds the rows of a partition
    by equality: it writes those of 0.0 and of -0.0 twice, and those of NaN not at all.
    """
    is_iceberg = format == "iceberg"
    kinds = ("FLOAT", "DOUBLE") if is_iceberg else ("CHAR", "VARCHAR", "STRING")
    if not any(parse_type(field.type).root in kinds for field in scan.table_schema.partition_fields):
        return
    for split in scan.splits():
        for name, value in split.partition_values.items():
            is_odd = isinstance(value, float) and (math.isnan(value) or (value == 0 and math.copysign(1, value) < 0))
            if (is_iceberg and is_odd) or (not is_iceberg and value == HIVE_NULL):
                raise InvalidRequest(
                    f"The partition {name}={format_value(str(value))} cannot be exported as {format}, where it would "
                    "become another one: export a table that is not partitioned by this column.",
                    kind="unsupported_value",
                    column=name,
                )
