"""lakebed through PySpark: read tables as DataFrames, write DataFrames into tables, run the heavy jobs.

The names below are loaded on first use, so that importing this package, or the pipeline's parser in it, loads neither
PySpark nor Java; where they are missing, the error of the first use says what to install. (No module here has the name
of one of these functions: the import system would replace the function by the module.)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from lakebed.spark.java import require_pyspark

if TYPE_CHECKING:
    from lakebed.spark import jobs
    from lakebed.spark.dataframe.reading import read
    from lakebed.spark.dataframe.writing import delete, merge, upsert, write
    from lakebed.spark.plan.types import arrow_schema_of
    from lakebed.spark.start import session
    from lakebed.spark.streams.upserts import upsert_stream

__all__ = ["arrow_schema_of", "delete", "jobs", "merge", "read", "session", "upsert", "upsert_stream", "write"]

_MODULE_OF = {
    "arrow_schema_of": "lakebed.spark.plan.types",
    "jobs": "lakebed.spark.jobs",
    "delete": "lakebed.spark.dataframe.writing",
    "merge": "lakebed.spark.dataframe.writing",
    "read": "lakebed.spark.dataframe.reading",
    "session": "lakebed.spark.start",
    "upsert": "lakebed.spark.dataframe.writing",
    "upsert_stream": "lakebed.spark.streams.upserts",
    "write": "lakebed.spark.dataframe.writing",
}


if not TYPE_CHECKING:  # a checker of types would believe that every name is here

    def __getattr__(name: str) -> Any:
        module = _MODULE_OF.get(name)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        require_pyspark()
        loaded = importlib.import_module(module)
        value = loaded if name == "jobs" else getattr(loaded, name)
        globals()[name] = value
        return value
