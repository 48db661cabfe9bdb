"""One Spark session for all tests of a worker, and tables in fresh folders."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import lakebed.spark
from lakebed.errors import InvalidRequest
from lakebed.objects import open_store
from lakebed.spark.jar import JARS, find_jar
from lakebed.table.model import DataField
from lakebed.table.table import Table

HERE = Path(__file__).parent
ROOT = Path(__file__).parents[2]
CORE_COUNT = 2


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything below this folder needs Java and a session."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.spark)
            # One worker takes them all: a second session would cost its start and half the machine.
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The session that all tests share; what lakebed itself would start, on two cores."""
    settings: dict[str, str] = {}
    subprocess.run([ROOT / "tools" / "jar.sh", sys.prefix], cwd=ROOT, check=True)
    with contextlib.suppress(InvalidRequest):  # another minor version of Spark: tests of SQL say so
        settings[JARS] = str(find_jar())
    session = lakebed.spark.session("lakebed tests", cores=CORE_COUNT, settings=settings)
    yield session
    session.stop()


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
