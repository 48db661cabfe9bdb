"""A session with a lake of its own as the catalog ``lake``; all share one Spark and one bridge."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakebed.lake.lake import Lake, open_lake
from lakebed.spark.jar import CATALOGS, catalog_settings

Run = Callable[[str], list[tuple[Any, ...]]]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """The lake, as Python opens it."""
    return open_lake(str(tmp_path / "lake"))


@pytest.fixture
def session(spark: SparkSession, lake: Lake) -> Iterator[SparkSession]:
    """A session whose catalog ``lake`` is the lake."""
    mine = spark.newSession()
    for name, value in catalog_settings({"lake": lake.url}).items():
        if name.startswith(CATALOGS):
            mine.conf.set(name, value)
    yield mine
    # The session that made a DataFrame last is the active one, which other tests expect to be theirs.
    spark.createDataFrame([], "id int")


@pytest.fixture
def sql(session: SparkSession) -> Run:
    """Run a statement and return its rows."""
    return lambda statement: [tuple(row) for row in session.sql(statement).collect()]
