"""lakebed through PySpark: read tables as DataFrames, write DataFrames into tables, run the heavy jobs.

The names below are loaded on first use, so importing this package, or the pipeline's parser in it, loads neither
PySpark nor Java. Where these are not installed, the error of the first use says what to install. No module in this
package may have the name of one of these functions, because the import system would replace the function with the
module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakebed.first_use import on_first_use
from lakebed.spark.java import require_pyspark

if TYPE_CHECKING:
    from lakebed.spark import jobs
    from lakebed.spark import sql_parser as sql_parser  # of checks of pipelines; not public
    from lakebed.spark.dataframe.reading import read
    from lakebed.spark.dataframe.writing import delete, merge, upsert, write
    from lakebed.spark.plan.types import arrow_schema_of
    from lakebed.spark.start import session
    from lakebed.spark.streams.upserts import upsert_stream

__all__ = ["arrow_schema_of", "delete", "jobs", "merge", "read", "session", "upsert", "upsert_stream", "write"]

if not TYPE_CHECKING:  # with it, a type checker would accept every name
    __getattr__, __dir__ = on_first_use(
        __name__,
        {
            "spark.dataframe.reading": ("read",),
            "spark.dataframe.writing": ("delete", "merge", "upsert", "write"),
            "spark.plan.types": ("arrow_schema_of",),
            "spark.start": ("session",),
            "spark.streams.upserts": ("upsert_stream",),
        },
        modules=["jobs", "sql_parser"],
        check=require_pyspark,
    )
