"""Imported files without the columns of their partition, read by the format's Java implementation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from lakebed import Lake
from lakebed.lake.imports import import_table
from lakebed.table.imports import ImportOptions

if TYPE_CHECKING:
    from conftest import Java


def test_files_without_partition_columns(java: Java, lake: Lake, tmp_path: Path) -> None:
    """Java takes the values from the entry, with filters too, of copied files and of those that stay in place."""
    for part in ("a", "b"):
        (tmp_path / "hive" / f"p={part}").mkdir(parents=True)
        pq.write_table(pa.table({"id": [1, 2, 3], "v": [part] * 3}), tmp_path / "hive" / f"p={part}" / "x.parquet")
    for name, in_place in (("copied", False), ("stays", True)):
        import_table(lake, name, str(tmp_path / "hive"), format="parquet", options=ImportOptions(in_place=in_place))
        table = lake.table(name)
        assert java.exact(java.read(f"default.{name}")) == java.exact(table.read())
