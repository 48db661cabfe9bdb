"""Conversion of Spark's timestamps (instants) for columns without a time zone: they become local times in UTC.

Owns: which columns are converted, and when that is refused because another zone may be meant.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import DataFrame

from lakebed.errors import InvalidRequest
from lakebed.spark.plan.expression import exact_column
from lakebed.spark.plan.types import arrow_schema_of
from lakebed.table.model.model import TableSchema
from lakebed.table.model.types import parse_type


def instants_to_utc(brought: pa.Schema, schema: TableSchema) -> list[str]:
    """Return the columns with instants (``timestamp``) for a column without a time zone (``TIMESTAMP``)."""
    instants = [field.name for field in brought if pa.types.is_timestamp(field.type) and field.type.tz is not None]
    fields = {field.name: field for field in schema.fields}
    return [name for name in instants if name in fields and parse_type(fields[name].type).root == "TIMESTAMP"]


def in_utc(df: DataFrame, schema: TableSchema) -> DataFrame:
    """Convert instants to local times in UTC, where the table has no time zone.

    Raises `InvalidRequest`: the session's time zone is not UTC, so the meant zone is not clear.
    """
    for name in instants_to_utc(arrow_schema_of(df.schema), schema):
        zone = df.sparkSession.conf.get("spark.sql.session.timeZone")
        if zone != "UTC":
            raise InvalidRequest(
                f"Column {name!r} is TIMESTAMP without a time zone, the rows bring Spark's timestamp, and the time "
                f"zone of the session is {zone}, not UTC: cast it to timestamp_ntz first, or let the table have "
                "TIMESTAMP WITH LOCAL TIME ZONE.",
                kind="type_mismatch",
                column=name,
                zone=zone,
            )
        df = df.withColumn(name, exact_column(name).cast("timestamp_ntz"))
    return df
