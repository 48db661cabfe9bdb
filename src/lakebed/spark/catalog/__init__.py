"""The requests of Spark's SQL catalog to Python: one declaration for each verb, and `handle`, which runs a request.

Does not know: processes and pipes. They are in `lakebed.spark.bridge`.
"""

from lakebed.spark.catalog import changelog, partitions, procedures, scans, streams, tables, writes
from lakebed.spark.catalog.verb import VERBS, Session, Verb, handle

__all__ = ["VERBS", "Session", "Verb", "handle"]

VERBS_LOADED = (changelog, partitions, procedures, scans, streams, tables, writes)
"""The modules that declare verbs."""
