"""The modules of a pipeline that load PySpark, loaded when a run first needs Spark.

The only module of this package with imports inside of functions: a plan, a check without SQL and a run of metadata
steps need neither PySpark nor Java.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakebed.pipeline.engine import Engine
    from lakebed.spark.sql_parser import Parse


def new_engine(start_spark: Callable[[], SparkSession]) -> Engine:
    """Return an engine; the session starts when Spark is first used."""
    from lakebed.pipeline.engine import Engine

    return Engine(start_spark)


def open_sql_parser() -> AbstractContextManager[Parse]:
    """Open Spark's parser; see `lakebed.spark.sql_parser.sql_parser`."""
    from lakebed.spark.sql_parser import sql_parser

    return sql_parser()
