"""An export as a Delta table, through ``deltalake``: one commit of its log.

Delta keeps microseconds: a value with nanoseconds is refused. It has no times of day.
"""

from __future__ import annotations

import pyarrow as pa

from lakebed.errors import AlreadyExists, InvalidRequest
from lakebed.table.exports.model import ExportOptions, ExportReport, ProgressCall, Rows
from lakebed.table.imports.delta import location
from lakebed.table.read.scan import Scan
from lakebed.table.table import Table

try:
    from deltalake import DeltaTable, write_deltalake
    from deltalake.exceptions import DeltaError
except ModuleNotFoundError as missing:
    raise InvalidRequest(
        "Delta tables need the package deltalake: pip install 'lakebed[delta]'.", kind="not_installed"
    ) from missing


def export_delta(
    table: Table, scan: Scan, target: str, *, options: ExportOptions, progress: ProgressCall | None
) -> ExportReport:
    """Write a scan as a version of a Delta table. Arguments and errors as `export_table`."""
    rows = Rows(table.store, scan, format="delta", converts=_delta_type, progress=progress)
    settings = dict(options.storage_options or {}) or None
    if not options.overwrite and DeltaTable.is_deltatable(location(target), storage_options=settings):
        raise AlreadyExists(
            f"{target} is a Delta table already: export to an empty folder, or overwrite it.",
            kind="target_exists",
            url=target,
        )
    try:
        write_deltalake(
            location(target),
            rows.reader(),
            partition_by=list(scan.table_schema.partition_keys) or None,
            mode="overwrite" if options.overwrite else "error",
            schema_mode="overwrite" if options.overwrite else None,
            storage_options=settings,
        )
        version = DeltaTable(location(target), storage_options=settings).version()
    except Exception as problem:
        if (
            not isinstance(problem, DeltaError) and type(problem) is not Exception
        ):  # its errors of schemas have no class
            raise
        if rows.refusal is not None:
            raise rows.refusal from problem
        raise InvalidRequest(
            f"{table.name} cannot be exported to {target}: {str(problem).partition(chr(10))[0].rstrip('.')}.",
            kind="export_failed",
            url=target,
        ) from problem
    return rows.report(table.name, target, version=f"version {version}")


def _delta_type(kind: pa.DataType) -> pa.DataType | None:
    types = pa.types
    if types.is_time(kind):
        return None
    if types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if types.is_large_binary(kind):
        return pa.binary()
    return kind
