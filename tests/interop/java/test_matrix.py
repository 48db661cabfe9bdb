"""Every type in every role, with Java and lakebed working on one table by turns.

A plain list or dictionary of the rows is the judge of every read. `make test` takes some types of each role, the long
run all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import lakebed
from lakebed import Lake, Table

if TYPE_CHECKING:
    from conftest import Java


def times(unit: str, ticks: list[int], zone: str | None = None) -> pa.Array:
    """Timestamps of raw ticks."""
    return pa.array(ticks, pa.int64()).cast(pa.timestamp(unit, zone))


def decimals(digits: int, scale: int) -> pa.Array:
    """The extremes of a DECIMAL and values between."""
    most, least = (Decimal((sign, (9,) * digits, -scale)) for sign in (0, 1))
    between = [Decimal((sign, (number,), -scale)) for sign, number in ((0, 1), (1, 2), (0, 3), (0, 5))]
    return pa.array([most, least, *between], pa.decimal128(digits, scale))


TICKS = [-86_400_001, 0, 1, 1_700_000_000_123, 946_684_799_999, -1]
NESTED = pa.struct([("a", pa.int32()), ("b", pa.list_(pa.string()))])
MAP = pa.map_(pa.string(), pa.int32())
VALUES: dict[str, pa.Array] = {
    "boolean": pa.array([True, False]),
    "tinyint": pa.array([-128, 127, 0, 1, -1, 5], pa.int8()),
    "smallint": pa.array([-(2**15), 2**15 - 1, 0, 1, -1, 5], pa.int16()),
    "int": pa.array([-(2**31), 2**31 - 1, 0, 1, -1, 5], pa.int32()),
    "bigint": pa.array([-(2**63), 2**63 - 1, 0, 1, -1, 5], pa.int64()),
    "float": pa.array([-1.5, 3.4e38, 1.5, float("inf"), 0.25, 7.0], pa.float32()),
    "double": pa.array([-1.5, 1e308, 5e-324, float("-inf"), 0.1, 7.0], pa.float64()),
    "string": pa.array(["x", "a" * 40, "é\U0001f600", "a/b=c", "%41 b", "Z"]),
    "bytes": pa.array([b"x", b"\x00", b"\xff" * 40, b"\x7f\x80", b"\x80", b"abcdefgh"]),
    "date": pa.array([-719_162, 0, 2_932_896, -1, 19_000, 11_016], pa.int32()).cast(pa.date32()),
    "time": pa.array([0, 86_399_999, 1, 3_600_000, 999, 1000], pa.int32()).cast(pa.time32("ms")),
    "timestamp_3": times("ms", TICKS),
    "timestamp_6": times("us", TICKS),
    "timestamp_9": times("ns", TICKS),
    "ltz_3": times("ms", TICKS, "UTC"),
    "ltz_6": times("us", TICKS, "UTC"),
    "ltz_9": times("ns", TICKS, "UTC"),
    "decimal_9": decimals(9, 2),
    "decimal_18": decimals(18, 4),
    "decimal_38": decimals(38, 10),
    "array": pa.array([[1, None], [], [2, 3], [4], [None], [5]], pa.list_(pa.int64())),
    "map": pa.array(
        [[("k", 1)], [], [("a", None), ("b", 2)], [("", 3)], [("c", 4)], [("d", 5)]], pa.map_(pa.string(), pa.int32())
    ),
    "row": pa.array(
        [{"a": 1, "b": ["x"]}, {"a": None, "b": None}, {"a": 2, "b": []}, {"a": 3, "b": [None]}] * 2, NESTED
    ),
}
NO_KEYS = {"array", "map", "row"}
NO_PARTITIONS = NO_KEYS | {"bytes", "time", "float", "double"}
ODD = {"float": [float("nan"), -0.0], "double": [float("nan"), -0.0]}
"""Values that only a plain column has."""
SOME = {
    "value": ["double", "timestamp_9", "map"],
    "key": ["string", "decimal_38"],
    "partition": ["date", "timestamp_6"],
}


class Turns:
    """One table in two hands, and the rows that it must have."""

    def __init__(self, java: Java, table: Table, keys: list[str]) -> None:
        self.java, self.table, self.keys = java, table, keys
        self.rows: list[dict[str, Any]] = []
        self.checks = 0

    def write(self, rows: pa.Table, *, by_java: bool) -> None:
        """Append, or upsert by key."""
        self.java.write("default.t", rows) if by_java else self.table.write(rows)
        new = self.as_rows(rows)
        if self.keys:
            changed = {self.key(row) for row in new}
            self.rows = [row for row in self.rows if self.key(row) not in changed]
        self.rows = self.rows + new

    def delete(self, rows: pa.Table, *, by_java: bool) -> None:
        """Delete by key."""
        self.java.write("default.t", rows, kind="-D") if by_java else self.table.delete(keys=rows.select(self.keys))
        gone = {self.key(row) for row in self.as_rows(rows)}
        self.rows = [row for row in self.rows if self.key(row) not in gone]

    def as_rows(self, rows: pa.Table) -> list[dict[str, Any]]:
        """Rows as exact values."""
        columns = [self.java.encode(rows[name]) for name in rows.column_names]
        return [dict(zip(rows.column_names, row, strict=True)) for row in zip(*columns, strict=True)]

    def key(self, row: dict[str, Any]) -> str:
        """The key of a row."""
        return repr([row[name] for name in self.keys])

    def check(self, version: str | None = None, rows: list[dict[str, Any]] | None = None) -> None:
        """Both read exactly the rows of the judge."""
        want = sorted(map(repr, self.rows if rows is None else rows))
        options = {"scan.tag-name": version} if version else {}
        assert sorted(map(repr, self.as_rows(self.java.read("default.t", options=options)))) == want
        assert sorted(map(repr, self.as_rows(self.table.read(version=version)))) == want
        self.checks += 2


def table_of(kind: str, role: str, *, keyed: bool) -> tuple[pa.Table, list[str], list[str]]:
    """Rows with a column `x` of that kind, the primary key and the partition columns."""
    values = VALUES[kind]
    if role == "value":
        extra = pa.array([None, *ODD.get(kind, [])], values.type)
        values = pa.concat_arrays([values, extra])
    elif role == "partition":
        values = pa.concat_arrays([values, values])
    count = len(values)
    keys = {"value": ["id"], "key": ["x"], "partition": ["id", "x"]}[role] if keyed else []
    rows = pa.table({"id": pa.array(range(count), pa.int64()), "x": values, "v": pa.array(["v"] * count)})
    schema = pa.schema([field.with_nullable(field.name not in keys) for field in rows.schema])
    return rows.cast(schema), keys, ["x"] if role == "partition" else []


def run_program(java: Java, lake: Lake, kind: str, role: str, *, keyed: bool, java_first: bool) -> int:
    """Writes, deletes, compactions, tags, rollback, expiry and cleaning by turns; the number of reads checked."""
    rows, keys, parts = table_of(kind, role, keyed=keyed)
    options = {"bucket": "2"} if keyed else {}
    if java_first:
        java.create("default.t", rows.schema, primary_keys=keys, partition_keys=parts, options=options)
    else:
        lake.create_table("t", rows.schema, primary_keys=keys, partition_keys=parts, options=options)
    table = lake.table("t")
    turns = Turns(java, table, keys)
    first, second = java_first, not java_first
    turns.write(rows, by_java=first)
    turns.check()
    half = rows.slice(0, max(1, rows.num_rows // 2))
    changed = half.set_column(2, "v", pa.array(["changed"] * half.num_rows)).cast(rows.schema)
    turns.write(changed, by_java=second)
    turns.check()
    java.call("create_tag", name="one") if first else table.create_tag("one")
    tagged = list(turns.rows)
    if keyed:
        turns.delete(rows.slice(0, 1), by_java=first)
        turns.check()
    java.call("compact")
    turns.check()
    turns.write(rows.slice(rows.num_rows - 1), by_java=first)
    table.compact(full=True)
    turns.check()
    turns.check("one", tagged)
    java.call("rollback", tag="one") if second else table.rollback_to("one")
    turns.rows = tagged
    turns.write(changed, by_java=second)
    turns.check()
    java.call("expire_snapshots") if first else table.expire(retain_max=1, older_than_ms=2**50)
    java.call("remove_orphans")
    table.collect(grace_ms=0)
    turns.check()
    turns.check("one", tagged)
    if java.catalog:
        java.call("delete_tag", name="one")  # through the server a pinned table is not dropped
    java.call("drop_table")
    return turns.checks


def kinds_of(role: str) -> list[str]:
    """All types that a role takes."""
    without = {"value": set(), "key": NO_KEYS, "partition": NO_PARTITIONS}[role]
    return [kind for kind in VALUES if kind not in without]


ROLES = [("value", False), ("value", True), ("key", True), ("partition", False), ("partition", True)]


def run_all(java: Java, lake: Lake, kinds: Callable[[str], list[str]], role: str, keyed: bool) -> None:
    """The program for each type, made by Java and by lakebed in turn."""
    checks, wrong = 0, []
    for number, kind in enumerate(kinds(role)):
        try:
            checks += run_program(java, lake, kind, role, keyed=keyed, java_first=number % 2 == 0)
        except Exception as error:  # every type is tried, and all differences are shown together
            wrong.append(f"{kind}: {type(error).__name__}: {str(error)[:300]}")
            lake.drop_table("t", force=True)
    print(f"{checks} reads checked")
    assert wrong == []


@pytest.mark.parametrize(("role", "keyed"), ROLES)
def test_some_types(java: Java, lake: Lake, role: str, keyed: bool) -> None:
    """Types that are stored in a way of their own, in each role."""
    run_all(java, lake, SOME.__getitem__, role, keyed)


@pytest.mark.long
@pytest.mark.parametrize(("role", "keyed"), ROLES)
def test_some_types_through_the_catalog(served: Java, role: str, keyed: bool) -> None:
    """The same when Java creates, commits, tags, rolls back and drops through lakebed's server."""
    run_all(served, lakebed.open(served.warehouse), SOME.__getitem__, role, keyed)


@pytest.mark.long
@pytest.mark.parametrize(("role", "keyed"), ROLES)
def test_all_types(java: Java, lake: Lake, role: str, keyed: bool) -> None:
    """Every type in each role."""
    run_all(java, lake, kinds_of, role, keyed)
