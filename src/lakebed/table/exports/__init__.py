"""Export a version of a table as Parquet files, as a Delta table or as an Iceberg table.

`export_table` chooses the format's module. Rows are read merged and in batches, by the same scan as every other read.
"""

from __future__ import annotations

from lakebed.table.exports.model import ExportOptions, ExportReport
from lakebed.table.exports.run import FORMATS, export_table

__all__ = ["FORMATS", "ExportOptions", "ExportReport", "export_table"]
