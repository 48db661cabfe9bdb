"""Filters of the Java implementation over files that lakebed wrote: every type, operator and value.

Java prunes by the manifest's statistics, and by the statistics and dictionaries of the file; each can lose rows.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from lakebed import Lake

if TYPE_CHECKING:
    from conftest import Java

OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def decimals(digits: int, scale: int) -> pa.Array:
    """The extremes of a DECIMAL, small values of both signs, and nulls."""
    # By digits: arithmetic would round to 28 of them.
    most, least = (Decimal((sign, (9,) * digits, -scale)) for sign in (0, 1))
    small = [Decimal((sign, (1,), -scale)) for sign in (0, 1)]
    return pa.array([most, least, *small, Decimal(0), None], pa.decimal128(digits, scale))


def times(unit: str, values: list[int | None], zone: str | None = None) -> pa.Array:
    """Timestamps of raw ticks."""
    return pa.array(values, pa.int64()).cast(pa.timestamp(unit, zone))


TICKS: list[int | None] = [-1, 0, 1, None, 1_700_000_000_123, -86_400_001, 2]
COLUMNS: dict[str, pa.Array] = {
    "boolean": pa.array([True, False, None]),
    "tinyint": pa.array([-128, 127, 0, None], pa.int8()),
    "smallint": pa.array([-(2**15), 2**15 - 1, 0, None], pa.int16()),
    "int": pa.array([-(2**31), 2**31 - 1, 0, None], pa.int32()),
    "bigint": pa.array([-(2**63), 2**63 - 1, 0, None], pa.int64()),
    "float": pa.array([-1.5, 3.4e38, 1.5, None, float("inf")], pa.float32()),
    "double": pa.array([-1.5, 1e308, 5e-324, None, float("-inf")], pa.float64()),
    "string": pa.array(["", "a", "a" * 40, "a" * 16, "\u00e9\U0001f600", None]),
    "bytes": pa.array([b"", b"\x00", b"\xfe" * 40, b"\x7f\x80", b"\x80", None]),
    "date": pa.array([-719_162, 0, 2_932_896, None, -1], pa.int32()).cast(pa.date32()),
    "time": pa.array([0, 86_399_999, 1, None], pa.int32()).cast(pa.time32("ms")),
    "timestamp_0": times("s", TICKS[:3]),
    "timestamp_3": times("ms", TICKS),
    "timestamp_6": times("us", TICKS),
    "timestamp_9": times("ns", TICKS),
    "ltz_3": times("ms", TICKS, "UTC"),
    "ltz_6": times("us", TICKS, "UTC"),
    "ltz_9": times("ns", TICKS, "UTC"),
} | {f"decimal_{digits}": decimals(digits, digits // 3) for digits in (1, 9, 10, 18, 19, 28, 38)}


def plain(name: str, value: Any) -> Any:
    """The worker's JSON as a value that Python compares as the format does."""
    if value is None:
        return None
    if name.startswith("decimal"):
        return Decimal(value)
    if name in ("float", "double"):
        return float(value)
    if name.startswith(("timestamp", "ltz")):
        return int(value)
    return value.encode() if name == "string" else value


def layout(values: pa.Array, *, repeated: bool) -> pa.Array:
    """Values that repeat, which get a dictionary; or each once, which do not."""
    return pa.concat_arrays([values] * 10) if repeated else values


@pytest.mark.parametrize(
    ("keys", "repeated"),
    [
        pytest.param(False, True, id="append-dictionary"),
        pytest.param(True, False, id="primary-key-plain"),
        pytest.param(False, False, id="append-plain", marks=pytest.mark.long),
        pytest.param(True, True, id="primary-key-dictionary", marks=pytest.mark.long),
    ],
)
def test_every_filter(java: Java, lake: Lake, keys: bool, repeated: bool) -> None:
    """Java finds exactly the rows that plain Python finds, by every operator and value of every type.

    In every run each operator takes a quarter of the values in one layout, and another quarter in the other. The long
    cases take all.
    """
    parts = 1 if keys == repeated else 4
    count = max(len(layout(values, repeated=repeated)) for values in COLUMNS.values())

    def padded(values: pa.Array) -> pa.Array:
        whole = layout(values, repeated=repeated)
        return pa.concat_arrays([whole, pa.nulls(count - len(whole), whole.type)])

    rows = pa.table({"id": pa.array(range(count), pa.int64())} | {n: padded(v) for n, v in COLUMNS.items()})
    schema = rows.schema.set(0, pa.field("id", pa.int64(), nullable=False))
    table = lake.create_table("t", schema, primary_keys=["id"] if keys else [], options={"bucket": "1"} if keys else {})
    table.write(rows.cast(schema))
    if keys:
        table.compact(full=True)
    asked: list[dict[str, Any]] = []
    wanted: list[list[int]] = []

    stored = {name: [plain(name, value) for value in java.encode(rows[name])] for name in COLUMNS}

    def ask(name: str, op: str, value: Any, test: Callable[[Any], bool]) -> None:
        asked.append({"op": op, "column": name, "value": value})
        wanted.append([index for index, value in enumerate(stored[name]) if test(value)])

    for name, values in COLUMNS.items():
        literals = [value for value in java.encode(values) if value is not None]
        # The Java implementation orders bytes as signed numbers, unlike its own statistics.
        for number, (op, compare) in enumerate(list(OPERATORS.items())[: 2 if name == "bytes" else None]):
            step = min(parts, len(literals))
            for literal in literals[(number + keys) % step :: step]:
                right = plain(name, literal)
                ask(name, op, literal, lambda v, c=compare, r=right: v is not None and c(v, r))
        inside = [plain(name, value) for value in literals[:2]]
        ask(name, "in", literals[:2], lambda v, i=inside: v in i)
        ask(name, "not in", literals[:2], lambda v, i=inside: v is not None and v not in i)
        ask(name, "is null", None, lambda v: v is None)
        ask(name, "is not null", None, lambda v: v is not None)
    answers = java.find("default.t", asked)
    wrong = [(where, got) for where, got, want in zip(asked, answers, wanted, strict=True) if got != want]
    assert wrong == []
    print(f"{len(asked)} filters")


@pytest.mark.parametrize("stored", [[0.0], [-0.0], [0.0, -0.0], [-0.0, 1.0], [0.0, -1.0]], ids=str)
@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()], ids=str)
@pytest.mark.parametrize("repeated", [True, False], ids=["dictionary", "plain"])
def test_a_zero_prunes_no_zero_of_the_other_sign(
    java: Java, lake: Lake, kind: pa.DataType, stored: list[float], repeated: bool
) -> None:
    """What Java reads before an engine filters the rows holds every row that is equal in SQL, where 0.0 = -0.0."""
    values = stored * (50 if repeated else 1)
    rows = pa.table({"id": pa.array(range(len(values))), "x": pa.array(values, kind)})
    lake.create_table("t", rows.schema).write(rows)
    for literal in (0.0, -0.0):
        asked = [{"op": op, "column": "x", "value": repr(literal)} for op in OPERATORS]
        asked.append({"op": "in", "column": "x", "value": [repr(literal), "7.0"]})
        for where, got in zip(asked, java.find("default.t", asked, execute_filter=False), strict=True):
            compare = OPERATORS.get(str(where["op"]), operator.eq)
            assert {index for index, value in enumerate(values) if compare(value, literal)} <= set(got), where
