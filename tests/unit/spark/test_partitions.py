"""The verbs on partitions, asked without a JVM."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakebed.lake.lake import Lake, open_lake
from worlds.replies import Ask, rows_of

ROWS: dict[int, tuple[float | None, str | None]] = {
    1: (1.5, "a"),
    2: (float("nan"), "a"),
    3: (None, "b"),
    4: (1.5, None),
    5: (1.5, "a"),
}
"""Partitions by the numbers of their rows."""


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    made = open_lake(str(tmp_path / "lake"))
    schema = pa.schema([("id", pa.int64()), ("x", pa.float64()), ("p", pa.string())])
    table = made.create_table("db.t", schema, partition_keys=["x", "p"])
    columns = {"id": list(ROWS), "x": [x for x, _ in ROWS.values()], "p": [p for _, p in ROWS.values()]}
    table.append(pa.table(columns, schema=schema))
    return made


@pytest.fixture
def ask(ask: Ask) -> Ask:
    """Send a request about the table."""
    return partial(ask, table="db.t")


def of(**values: Any) -> dict[str, Any]:
    """Values as the jar sends them."""
    types = {"x": "double", "p": "string"}
    return {name: {"literal": value, "type": types[name]} for name, value in values.items()}


def listed(ask: Ask, **values: Any) -> list[tuple[str, str | None, int, int]]:
    """What the newest version has: values, rows and files of each partition."""
    loaded = ask("load")["ok"]
    rows = rows_of(ask("list_partitions", snapshot=loaded["snapshot"], partition=of(**values))["ok"]["rows"])
    columns = [rows.column(index).to_pylist() for index in range(rows.num_columns)]
    assert all(size > 0 for size in columns.pop())
    return sorted(((str(x), p, count, files) for x, p, count, files in zip(*columns, strict=True)), key=repr)


def test_partitions_have_counts_and_are_found_by_values(ask: Ask) -> None:
    """NaN and null are values as others are."""
    assert listed(ask) == [("1.5", "a", 2, 1), ("1.5", None, 1, 1), ("None", "b", 1, 1), ("nan", "a", 1, 1)]
    assert listed(ask, p="a") == [("1.5", "a", 2, 1), ("nan", "a", 1, 1)]
    assert listed(ask, x="NaN") == [("nan", "a", 1, 1)]
    assert listed(ask, p=None, x=1.5) == [("1.5", None, 1, 1)]
    assert listed(ask, x=2.5) == []


def test_partitions_are_dropped_in_one_commit(ask: Ask, lake: Lake) -> None:
    """Those named by all values, and no others; the older version keeps its rows."""
    reply = ask("drop_partitions", partitions=[of(x="NaN", p="a"), of(x=None, p="b"), of(x=7.5, p="a")])
    assert reply["ok"] == {"snapshot_id": 2}
    table = lake.table("db.t")
    assert sorted(table.read()["id"].to_pylist()) == [1, 4, 5]
    assert sorted(table.read(version=1)["id"].to_pylist()) == list(ROWS)
    assert ask("drop_partitions", partitions=[of(p=None, x=1.5)])["ok"] == {"snapshot_id": 3}
    assert sorted(table.read()["id"].to_pylist()) == [1, 5]


@pytest.mark.parametrize(
    ("partition", "kind"),
    [
        (of(x=1.5), "incomplete_partition"),
        ({"x": {"literal": 1, "type": "time(6)"}, "p": {"literal": "a", "type": "string"}}, "unsupported_partition"),
        ({**of(x=1.5, p="a"), "id": {"literal": 1, "type": "bigint"}}, "unknown_partition_column"),
        (
            {"x": {"literal": "soon", "type": "string"}, "p": {"literal": "a", "type": "string"}},
            "invalid_partition_value",
        ),
    ],
)
def test_what_names_no_partition_drops_nothing(ask: Ask, lake: Lake, partition: dict[str, Any], kind: str) -> None:
    """A value too few, of another column, or of another type."""
    assert ask("drop_partitions", partitions=[partition])["error"]["kind"] == kind
    newest = lake.table("db.t").latest()
    assert newest is not None
    assert newest.id == 1


def test_an_overwrite_names_a_partition_by_values_of_its_types(ask: Ask, lake: Lake) -> None:
    """As the jar sends them: microseconds of a timestamp, days of a date, the text of a decimal."""
    schema = pa.schema(
        [("id", pa.int64()), ("at", pa.timestamp("ms")), ("day", pa.date32()), ("d", pa.decimal128(5, 2))]
    )
    table = lake.create_table("db.u", schema, partition_keys=["at", "day", "d"])
    place = (dt.datetime(2024, 1, 2, 3), dt.date(10, 1, 2), Decimal("1.50"))
    for id, day in ((1, place[1]), (2, dt.date(2024, 1, 2))):
        table.append(pa.table([[id], [place[0]], [day], [place[2]]], schema=schema))
    values = (
        ("at", 1_704_164_400_000_000, "timestamp_ntz"),
        ("day", (place[1] - dt.date(1970, 1, 1)).days, "date"),
        ("d", "1.50", "decimal(5,2)"),
    )
    partition = {name: {"literal": value, "type": kind} for name, value, kind in values}
    assert ask("commit", table="db.u", replaced={"partition": partition})["ok"] == {"snapshot_id": 3}
    assert table.read()["id"].to_pylist() == [2]
