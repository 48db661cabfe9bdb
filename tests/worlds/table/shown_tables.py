"""Tables of every kind that clients of Iceberg see, and rows of every type that they have."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from lakebed import Lake, Table
from worlds.table import nested_columns
from worlds.table.nested_columns import canonical

ROWS = pa.schema([("id", pa.int64()), ("day", pa.string()), ("v", pa.float64())])
_KEYED = pa.schema([pa.field("id", pa.int64(), nullable=False), *list(ROWS)[1:]])
TYPES = pa.schema(
    [
        ("id", pa.int64()),
        ("tiny", pa.int8()),
        ("small", pa.int16()),
        ("i", pa.int32()),
        ("x", pa.float64()),
        ("f", pa.float32()),
        ("price", pa.decimal128(9, 2)),
        ("big", pa.decimal128(38, 10)),
        ("yes", pa.bool_()),
        ("raw", pa.binary()),
        ("fixed", pa.binary(4)),
        ("s", pa.string()),
        ("d", pa.date32()),
        ("local", pa.timestamp("us")),
        ("seconds", pa.timestamp("s")),
        ("zoned", pa.timestamp("us", "UTC")),
    ]
)
PARTITIONS = {
    "i": ("i = -2147483645", "i = -2147483645"),
    "yes": ("yes = true", "yes = TRUE"),
    "s": ("s = 'b/c=ü %'", "s = 'b/c=ü %'"),
    "d": ("d = DATE '1970-12-02'", "d = DATE '1970-12-02'"),
    "price": ("price = -0.49", "price = -0.49"),
    "x": ("x = 1.5", "x = 1.5"),
    "f": ("f < 0", "f < 0"),
    "local": ("local IS NULL", "local IS NULL"),
}
"""Columns to partition by; a filter in SQL, and in lakebed's words."""


def rows_of(first: int, count: int) -> pa.Table:
    """Rows of consecutive ids on two days and none."""
    ids = range(first, first + count)
    return pa.table({"id": ids, "day": [("a b", "ü", None)[i % 3] for i in ids], "v": [i / 4 for i in ids]}, ROWS)


def typed_rows(count: int) -> pa.Table:
    """Rows of every type that all clients have: nulls, NaN, infinities, extremes, times before 1970."""
    started = datetime.datetime(1969, 12, 31, 23, 59, 59, 999999)
    every = range(count)
    local = [None if i % 7 == 0 else started + datetime.timedelta(seconds=i * 100_003) for i in every]
    columns = {
        "id": list(every),
        "tiny": [None if i % 5 == 0 else i % 256 - 128 for i in every],
        "small": [i - 2**15 for i in every],
        "i": [i % 6 - 2**31 for i in every],
        "x": [(1.5, float("nan"), None, -0.0, 0.0, float("-inf"), 1e300)[i % 7] for i in every],
        "f": [(float("nan"), -2.5, None)[i % 3] for i in every],
        "price": [None if i % 9 == 0 else Decimal(i - 50).scaleb(-2) for i in every],
        "big": [Decimal(10**37 + i).scaleb(-10).copy_negate() for i in every],
        "yes": [(True, False, None)[i % 3] for i in every],
        "raw": [None if i % 4 == 0 else bytes([i % 256, 0xFF, 0]) for i in every],
        "fixed": [None if i % 4 == 0 else bytes([i % 256] * 4) for i in every],
        "s": [("a", "b/c=ü %", "", None)[i % 4] for i in every],
        "d": [None if i % 5 == 0 else datetime.date(1960, 1, 1) + datetime.timedelta(days=997 * i) for i in every],
        "local": local,
        "seconds": [None if moment is None else moment.replace(microsecond=0) for moment in local],
        "zoned": [None if moment is None else moment.replace(tzinfo=datetime.UTC) for moment in local],
    }
    return pa.table(columns, schema=TYPES)


def make_plain(lake: Lake) -> dict[str, Table]:
    """Tables that a reader of Iceberg's format 2 reads: types, partitions, changed columns, merged keys, nothing."""
    tables = {"db.types": lake.create_table("db.types", TYPES)}
    for first in (60, 30):
        tables["db.types"].append(typed_rows(first))
    for column in PARTITIONS:
        table = tables[f"parts.{column}"] = lake.create_table(f"parts.{column}", TYPES, partition_keys=[column])
        table.append(typed_rows(20))
    table = tables["db.t"] = lake.create_table("db.t", ROWS, partition_keys=["day"])
    table.append(rows_of(0, 60))
    table.create_tag("month-06")
    table.append(rows_of(60, 30))
    table.delete("day = 'ü'")
    table.rename_column("v", "w")
    table.append(rows_of(100, 6).rename_columns(["id", "day", "w"]))
    branch = table.create_branch("trial", tag="month-06")
    branch.add_column("only_here", "INT")
    branch.append(pa.table({"id": [500], "day": ["q"], "w": [1.5], "only_here": [7]}).cast(branch.arrow_schema))
    keyed = tables["db.keyed"] = lake.create_table("db.keyed", _KEYED, primary_keys=["id"])
    for first in (0, 20):
        keyed.upsert(rows_of(first, 40).cast(_KEYED))
    keyed.delete("id = 5")
    keyed.compact(full=True)
    tables["db.changed"] = make_changed(lake)
    return tables


def make_changed(lake: Lake) -> Table:
    """A table whose columns were widened, dropped, renamed, added, and added again under an older name."""
    first = pa.schema([("id", pa.int64()), ("n", pa.int32()), ("f", pa.float32()), ("price", pa.decimal128(9, 2))])
    first = pa.schema([*first, ("gone", pa.string()), ("d", pa.date32()), ("old", pa.string())])
    table = lake.create_table("db.changed", first)
    day = datetime.date(2020, 1, 1)
    old = [{"id": 1, "n": 1, "f": 1.5, "price": Decimal("1.25"), "gone": "x", "d": day}]
    table.append(pa.Table.from_pylist([*old, {"id": 2}], first))
    for column, kind in (("n", "BIGINT"), ("f", "DOUBLE"), ("price", "DECIMAL(20, 2)"), ("d", "TIMESTAMP(6)")):
        table.widen_column(column, kind)
    table.drop_column("gone")
    table.rename_column("old", "new")
    table.add_column("added", "STRING")
    table.add_column("gone", "INT")
    new = [{"id": 3, "n": 2**40, "f": 1e300, "price": Decimal("123456789012345678.25"), "new": "q", "gone": 7}]
    table.append(pa.Table.from_pylist(new, table.arrow_schema))
    return table


def make_marked(lake: Lake) -> dict[str, Table]:
    """Tables with deletion vectors, which are of Iceberg's format 3, and with nested columns."""
    options = {"deletion-vectors.enabled": "true"}
    marked = lake.create_table("db.marked", ROWS, partition_keys=["day"], options=options)
    marked.append(rows_of(0, 100))
    marked.create_tag("before")
    marked.delete("id > 3 AND id < 17")
    marked.append(rows_of(200, 5))
    marked.delete("id = 201")
    tables = {"db.marked": marked}
    for keys in ([], ["id"]):
        name = f"db.nested{len(keys)}"
        more = {"bucket": "1"} if keys else {}
        table = tables[name] = nested_columns.create(lake, name, primary_keys=keys, options=options | more)
        nested_columns.change(table)
        table.delete("id = 3")
    return tables


def in_utc(value: Any) -> Any:
    """A value with times of one zone, whatever object stands for it."""
    if isinstance(value, dict):
        return {key: in_utc(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(in_utc(item) for item in value)
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        return value.astimezone(datetime.timezone.utc)  # noqa: UP017 - a client's Python may be older
    return bytes(value) if isinstance(value, bytearray) else value


def texts_of(rows: list[dict[str, Any]]) -> list[str]:
    """Rows without order, in the same form for every client."""
    return sorted(repr(canonical(in_utc(row))) for row in rows)
