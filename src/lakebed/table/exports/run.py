"""`export_table`: from a version of a table to a target in another format.

Invariants: the version is resolved once, before anything is written. The target is outside of the table. What a reader
of the target's format takes for a whole table appears by one last step: a commit of that format, or the rename of a
folder; on a bucket, for Parquet files, the marker ``_SUCCESS``.
"""

from __future__ import annotations

from typing import Final

from lakebed.errors import InvalidRequest
from lakebed.objects.path import parse_url
from lakebed.table.exports.model import ExportOptions, ExportReport, ProgressCall
from lakebed.table.exports.parquet_folder import export_parquet
from lakebed.table.table import Table

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
        target: a folder or URL, or as `ExportOptions.catalog` says.
        format: one of `FORMATS`.
        progress: called with each batch.

    Raises:
        InvalidRequest: an unknown format, a target inside the table, a column or value that the format cannot hold, or
            a library that is not installed.
        AlreadyExists: the target has something, and `ExportOptions.overwrite` is not set; or it has something else than
            an export would write, which is never replaced.
        NotFound: no such version.

    Cost: one read of the version; memory holds one file that is being written, or what the format's library buffers.
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
    if format == "parquet":
        return export_parquet(table, scan, target, options=options, progress=progress)
    if format == "delta":
        from lakebed.table.exports.delta import export_delta

        return export_delta(table, scan, target, options=options, progress=progress)
    from lakebed.table.exports.iceberg import export_iceberg

    return export_iceberg(table, scan, target, options=options, progress=progress)
