"""Tests with Spark, in two groups of workers, and tables in fresh folders."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame

from lakebed.objects import open_store
from lakebed.table.model.model import DataField
from lakebed.table.table import Table

HERE = Path(__file__).parent
SQL = HERE / "sql"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything below this folder needs Java and a session."""
    for item in items:
        if str(item.path).startswith(f"{HERE}{os.sep}"):
            item.add_marker(pytest.mark.spark)
            # A session answers one test at a time: in one group they would last as long as all others together. Half of
            # their time is that of SQL. Tests that only start processes of their own name groups of their own.
            if item.get_closest_marker("xdist_group") is None:
                group = "spark sql" if item.path.is_relative_to(SQL) else "spark"
                item.add_marker(pytest.mark.xdist_group(group))


@pytest.fixture
def make_table(tmp_path: Path) -> Callable[..., Table]:
    """A new table in a folder of its own: ``make_table(schema, primary_keys=..., partition_keys=..., options=...)``."""

    def make(
        schema: pa.Schema | Sequence[DataField],
        *,
        primary_keys: Sequence[str] = (),
        partition_keys: Sequence[str] = (),
        options: Mapping[str, str] | None = None,
        name: str = "t",
    ) -> Table:
        return Table.create(
            open_store(tmp_path / name, durable=False),
            name=name,
            schema=schema,
            primary_keys=primary_keys,
            partition_keys=partition_keys,
            options=options,
        )

    return make


@pytest.fixture
def sorted_rows() -> Callable[[DataFrame | pa.Table], list[tuple[Any, ...]]]:
    """The rows of a DataFrame or an Arrow table as tuples, in one order, to be compared."""

    def rows_of(rows: DataFrame | pa.Table) -> list[tuple[Any, ...]]:
        table = rows.toArrow() if isinstance(rows, DataFrame) else rows
        return sorted(zip(*(column.to_pylist() for column in table.columns), strict=True), key=repr)

    return rows_of
