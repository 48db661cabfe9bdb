"""Jobs of a Python program whose tasks write the files of a table in the JVM.

Owns: the job, and the decision whether a DataFrame can be written so.

Invariants: the table is the same as if lakebed had written the rows. A DataFrame that does not fit is left to lakebed,
whose errors name the mistake. The job's options contain no secret, because plans and event logs show them.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
from py4j.java_gateway import JavaClass
from pyspark.sql import Column, DataFrame, SparkSession, functions
from pyspark.sql import types as spark

from lakebed import __version__
from lakebed.decoding import decode_json
from lakebed.spark.plan.expression import exact_column
from lakebed.spark.plan.relation import is_available
from lakebed.spark.plan.types import spark_schema
from lakebed.spark.tasks.native_writes import WrittenFiles, file_target, native_scheme, null_value, take_over_files
from lakebed.spark.tasks.write_tasks import place_buckets
from lakebed.table.branch.discard import discard_changes
from lakebed.table.model.model import BucketChange, TableSchema
from lakebed.table.schema.conform import not_utf8
from lakebed.table.table import Table
from lakebed.table.write.write_settings import WriteSettings

_SINK: Final = "org.lakebed.spark.FileSink"
_WIDTHS: Final[dict[type[spark.DataType], int]] = {
    spark.ByteType: 1,
    spark.ShortType: 2,
    spark.IntegerType: 4,
    spark.LongType: 8,
}


class _Returned(msgspec.Struct, frozen=True):
    """The result of a job."""

    files: str | None
    """Location of the `WrittenFiles`."""
    null_in: str | None
    """A NOT NULL column that has nulls in some of the rows."""
    not_utf8_in: str | None
    """A column with a text that is not UTF-8."""


def write_files(
    df: DataFrame, table: Table, schema: TableSchema, *, starts_anew: bool, partition: Mapping[str, object]
) -> list[BucketChange] | None:
    """Write rows in the tasks of the JVM, and return the changes to commit; None: lakebed has to write them.

    Args:
        df: a DataFrame whose columns lakebed would accept.
        schema: the table's newest schema.
        starts_anew, partition: as `take_over_files`.

    Raises `InvalidRequest`: a null in a NOT NULL column, a text that is not UTF-8, or rows outside of `partition`. The
    files are deleted.
    """
    session = df.sparkSession
    if not is_available(session) or native_scheme(table.store, schema) is None:
        return None
    columns = _columns(df, schema)
    if columns is None:
        return None
    described = file_target(table.store, schema, spark_schema=spark_schema(schema.fields).json())
    target = msgspec.json.encode(described).decode()
    sink = _sink(session)
    if sink is None or not sink.accepts(__version__, target):
        return None
    job = uuid.uuid4().hex
    try:
        rows = _gather(df.select(*columns), schema, sink, target)
        rows.write.format(_SINK).option("target", target).option("job", job).mode("append").save()
    finally:
        answer = sink.take(job)
    returned_files = decode_json(answer, _Returned)
    stored_files = None if returned_files.files is None else Path(returned_files.files)
    try:
        changes = take_over_files(
            table, WrittenFiles(stored_files), schema.id, starts_anew=starts_anew, partition=partition
        )
    finally:
        if stored_files is not None:
            stored_files.unlink()
    if returned_files.null_in is not None:
        discard_changes(table.context, changes)
        raise null_value(returned_files.null_in, schema)
    if returned_files.not_utf8_in is not None:
        discard_changes(table.context, changes)
        raise not_utf8(returned_files.not_utf8_in)
    return changes


def _sink(session: SparkSession) -> Any:
    """Return the jar's class; None without the jar."""
    jvm: Any = session._jvm
    sink = jvm.org.lakebed.spark.FileSink
    return sink if isinstance(sink, JavaClass) else None


def _gather(rows: DataFrame, schema: TableSchema, sink: Any, target: str) -> DataFrame:
    """Bring the rows of each fixed bucket into one task. Sort the rows of a task with several buckets by bucket."""
    settings = WriteSettings.of(schema)
    if settings.bucket_count < 1:
        return rows
    bucket = Column(sink.bucket(target))
    partition_keys = schema.partition_keys
    placed_rows, task_count = place_buckets(
        rows, bucket, partition_keys=partition_keys, bucket_count=settings.bucket_count
    )
    if not partition_keys and task_count == settings.bucket_count:
        return placed_rows  # each task has one bucket
    return placed_rows.sortWithinPartitions(*(exact_column(name) for name in partition_keys), bucket)


def _columns(df: DataFrame, schema: TableSchema) -> list[Column] | None:
    """Return the table's columns, in order, from those of a DataFrame; None: a value may not fit, or may change."""
    brought = {field.name: field.dataType for field in df.schema}
    columns = []
    for field in spark_schema(schema.fields):
        kind = brought.get(field.name, spark.NullType())
        if not _keeps(kind, field.dataType):
            return None
        value = exact_column(field.name) if field.name in brought else functions.lit(None)
        columns.append(value if kind == field.dataType else value.cast(field.dataType).alias(field.name))
    return columns


def _keeps(source: spark.DataType, wanted_type: spark.DataType) -> bool:
    """Whether Spark's cast keeps every value, and no member is null that is NOT NULL in the table."""
    if isinstance(source, spark.NullType) or source == wanted_type:
        return True
    if type(source) in _WIDTHS and type(wanted_type) in _WIDTHS:
        return _WIDTHS[type(source)] <= _WIDTHS[type(wanted_type)]
    if isinstance(wanted_type, spark.StringType):
        return isinstance(source, spark.StringType | spark.CharType | spark.VarcharType)
    if isinstance(source, spark.FloatType):
        return isinstance(wanted_type, spark.DoubleType)
    if isinstance(source, spark.ArrayType) and isinstance(wanted_type, spark.ArrayType):
        return source.elementType == wanted_type.elementType and (wanted_type.containsNull or not source.containsNull)
    if isinstance(source, spark.MapType) and isinstance(wanted_type, spark.MapType):
        is_same = (source.keyType, source.valueType) == (wanted_type.keyType, wanted_type.valueType)
        return is_same and (wanted_type.valueContainsNull or not source.valueContainsNull)
    if isinstance(source, spark.StructType) and isinstance(wanted_type, spark.StructType):
        return source.names == wanted_type.names and all(
            a.dataType == b.dataType and (b.nullable or not a.nullable)
            for a, b in zip(source, wanted_type, strict=True)
        )
    return False
