"""The table's types as Spark's. Pure.

Owns: `spark_schema` (what a DataFrame of a table looks like), `arrow_schema_of` (a DataFrame's schema as Arrow, to
create or check a table). Invariant: column order and nullability are the table's own.

| Paimon | Spark | note |
| --- | --- | --- |
| TIMESTAMP(p) | timestamp_ntz | microseconds; p > 6 is cut |
| TIMESTAMP(p) WITH LOCAL TIME ZONE | timestamp | microseconds; p > 6 is cut |
| TIME(p) | time | needs Spark 4.1 |
| CHAR, VARCHAR, STRING | string | |
| BINARY, VARBINARY, BYTES, BLOB | binary | |
| MULTISET<T> | map<T, int> | |
| the rest | the type of the same name | |
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import pyarrow as pa
from pyspark.sql import types as spark

from lakebed.errors import InvalidRequest
from lakebed.spark.plan.plan import MICROSECONDS
from lakebed.table.model.model import DataField
from lakebed.table.model.types import COMMENT_KEY, Type, parse_type

COMMENT: Final = "comment"
"""Key in a column's metadata for Spark's comment."""

_PLAIN: dict[str, spark.DataType] = {
    "BOOLEAN": spark.BooleanType(),
    "TINYINT": spark.ByteType(),
    "SMALLINT": spark.ShortType(),
    "INT": spark.IntegerType(),
    "BIGINT": spark.LongType(),
    "FLOAT": spark.FloatType(),
    "DOUBLE": spark.DoubleType(),
    "DATE": spark.DateType(),
    "STRING": spark.StringType(),
    "CHAR": spark.StringType(),
    "VARCHAR": spark.StringType(),
    "BYTES": spark.BinaryType(),
    "BINARY": spark.BinaryType(),
    "VARBINARY": spark.BinaryType(),
    "BLOB": spark.BinaryType(),
    "TIMESTAMP": spark.TimestampNTZType(),
    "TIMESTAMP_LTZ": spark.TimestampType(),
}


def spark_schema(fields: Sequence[DataField]) -> spark.StructType:
    """Return the schema of a DataFrame with these columns.

    Raises `InvalidRequest`: this Spark does not have the type of a column.
    """
    return spark.StructType(
        [
            spark.StructField(
                field.name,
                _spark_of(field),
                field.nullable,
                {} if field.description is None else {COMMENT: field.description},
            )
            for field in fields
        ]
    )


def without_comments(schema: spark.StructType) -> spark.StructType:
    """Return the columns of a schema without their metadata, to compare names and types."""
    return spark.StructType([spark.StructField(field.name, field.dataType, field.nullable) for field in schema])


@lru_cache(maxsize=256)
def spark_json(fields: tuple[DataField, ...]) -> str:
    """Return `spark_schema` as Spark's JSON."""
    return spark_schema(fields).json()


def _spark_of(field: DataField) -> spark.DataType:
    spark_type = _spark_type(parse_type(field.type))
    if spark_type is None:
        raise InvalidRequest(
            f"Column {field.name!r} is {field.type}, which lakebed does not hand to this version of Spark: read the "
            "other columns with lakebed.spark.read(..., columns=[...]).",
            kind="unsupported_type",
            column=field.name,
            type=field.type,
        )
    return spark_type


def _spark_type(data_type: Type) -> spark.DataType | None:
    """Return Spark's type; None if Spark does not have it, at any depth."""
    if data_type.root in _PLAIN:
        return _PLAIN[data_type.root]
    if data_type.root == "DECIMAL":
        return spark.DecimalType(data_type.precision or 0, data_type.scale or 0)
    if data_type.root == "TIME":
        return spark.TimeType(min(data_type.precision or 0, MICROSECONDS)) if hasattr(spark, "TimeType") else None
    children = [_spark_type(child) for child in data_type.children]
    if data_type.root == "ARRAY" and children[0] is not None:
        return spark.ArrayType(children[0], containsNull=data_type.children[0].nullable)
    if data_type.root == "MULTISET" and children[0] is not None:
        return spark.MapType(children[0], spark.IntegerType(), valueContainsNull=False)
    if data_type.root == "MAP" and children[0] is not None and children[1] is not None:
        return spark.MapType(children[0], children[1], valueContainsNull=data_type.children[1].nullable)
    if data_type.root == "ROW":
        members = []
        for member in data_type.fields:
            member_type = _spark_type(member.type)
            if member_type is None:
                return None
            members.append(spark.StructField(member.name, member_type, member.type.nullable))
        return spark.StructType(members)
    return None


_ARROW: dict[type[spark.DataType], pa.DataType] = {
    spark.BooleanType: pa.bool_(),
    spark.ByteType: pa.int8(),
    spark.ShortType: pa.int16(),
    spark.IntegerType: pa.int32(),
    spark.LongType: pa.int64(),
    spark.FloatType: pa.float32(),
    spark.DoubleType: pa.float64(),
    spark.DateType: pa.date32(),
    spark.StringType: pa.string(),
    spark.VarcharType: pa.string(),
    spark.CharType: pa.string(),
    spark.BinaryType: pa.binary(),
    spark.TimestampNTZType: pa.timestamp("us"),
    spark.TimestampType: pa.timestamp("us", tz="UTC"),
    spark.NullType: pa.null(),
}


def arrow_schema_of(schema: spark.StructType) -> pa.Schema:
    """Return a DataFrame's schema as an Arrow schema, which `Lake.create_table` takes.

    Raises:
        InvalidRequest: a column has a type that tables do not have (intervals, variants, ...).
    """
    return pa.schema(
        [
            pa.field(field.name, _arrow_of(field.dataType, field.name), field.nullable, metadata=_comment(field))
            for field in schema
        ]
    )


def _comment(field: spark.StructField) -> dict[bytes, bytes] | None:
    comment = field.metadata.get(COMMENT)
    return {COMMENT_KEY: str(comment).encode()} if comment else None


def _arrow_of(kind: spark.DataType, column: str) -> pa.DataType:
    if type(kind) in _ARROW:
        return _ARROW[type(kind)]
    if isinstance(kind, spark.DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    if isinstance(kind, spark.ArrayType):
        return pa.list_(pa.field("element", _arrow_of(kind.elementType, column), kind.containsNull))
    if isinstance(kind, spark.MapType):
        value = pa.field("value", _arrow_of(kind.valueType, column), kind.valueContainsNull)
        return pa.map_(pa.field("key", _arrow_of(kind.keyType, column), nullable=False), value)
    if isinstance(kind, spark.StructType):
        return pa.struct([pa.field(part.name, _arrow_of(part.dataType, column), part.nullable) for part in kind])
    if kind.typeName() == "time":
        return pa.time32("ms")
    raise InvalidRequest(
        f"Column {column!r} is of Spark's type {kind.simpleString()}, which lakebed does not write: cast it to a type "
        "that tables have, such as STRING.",
        kind="unsupported_type",
        column=column,
        type=kind.simpleString(),
    )
