"""Import tables of other formats: folders of Parquet files, Delta tables, Iceberg tables.

Each format has a module that opens a `Source`: the columns and files of one version. `take_over` makes the files of a
source a snapshot of a table. `lakebed.lake.imports` also creates the table.
"""

from __future__ import annotations

from lakebed.table.imports.model import ImportOptions, ImportReport, Source
from lakebed.table.imports.sources import FORMATS, SourceOptions, open_source
from lakebed.table.imports.take_over import take_over

__all__ = ["FORMATS", "ImportOptions", "ImportReport", "Source", "SourceOptions", "open_source", "take_over"]
