"""Aggregates by manifests are those of the rows, or are not answered."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lakebed.lake.lake import Lake, open_lake
from lakebed.spark.catalog import Session, handle

Ask = Callable[..., dict[str, Any]]

SCHEMA = pa.schema(
    [
        ("i8", pa.int8()),
        ("i64", pa.int64()),
        ("day", pa.date32()),
        ("ntz", pa.timestamp("us")),
        ("ltz", pa.timestamp("us", tz="UTC")),
        ("none", pa.int32()),
        ("x", pa.float64()),
        ("y", pa.float32()),
        ("dec", pa.decimal128(20, 3)),
        ("s", pa.string()),
        ("p", pa.string()),
    ]
)
EXACT = ("i8", "i64", "day", "ntz", "ltz", "none", "x", "y", "dec", "p")


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return open_lake(str(tmp_path / "lake"))


@pytest.fixture
def aggregated(lake: Lake, tmp_path: Path) -> Callable[..., Any]:
    """The values of some functions of a column, as Spark's internal ones; None: not answered."""
    folder = tmp_path / "replies"
    folder.mkdir()
    session = Session(folder)

    def ask(verb: str, **body: Any) -> Any:
        request = {"id": 7, "verb": verb, "lake": lake.url, "body": {"table": "db.t", **body}}
        return json.loads(handle(json.dumps(request).encode(), session))["ok"]

    def found(column: str, *functions: str) -> Any:
        loaded = ask("load")
        version = {"snapshot": loaded["snapshot"], "schema_id": loaded["schema_id"]}
        asked = [{"function": function, "column": column} for function in functions]
        values = ask("aggregate", **version, functions=asked)["values"]
        return None if values is None else [value for (value,) in values]

    return found


def rows(seed: int) -> pa.Table:
    """Rows with nulls; `none` is always null."""
    rng = np.random.default_rng(seed)
    count = 50
    nulls = rng.random(count) < 0.3
    numbers = rng.integers(-100, 100, count)
    days = [dt.date(2024, 1, 1) + dt.timedelta(days=int(n)) for n in numbers]
    times = [dt.datetime(2024, 1, 1) + dt.timedelta(microseconds=int(n) * 1_000_001) for n in numbers]
    return pa.table(
        {
            "i8": pa.array(numbers, pa.int8(), mask=nulls),
            "i64": pa.array(numbers * 2**40, pa.int64(), mask=nulls),
            "day": pa.array(days, pa.date32(), mask=nulls),
            "ntz": pa.array(times, pa.timestamp("us"), mask=nulls),
            "ltz": pa.array(times, pa.timestamp("us", tz="UTC"), mask=nulls),
            "none": pa.nulls(count, pa.int32()),
            "x": pa.array((numbers - 0.5) / 3, mask=nulls),
            "y": pa.array((numbers - 0.5) / 3, pa.float32(), mask=nulls),
            "dec": pa.array([Decimal(int(n)).scaleb(-3) for n in numbers], pa.decimal128(20, 3), mask=nulls),
            "s": pa.array([f"a long text, longer than bounds are {n}" for n in numbers]),
            "p": pa.array([f"p{n % 3}" for n in numbers], pa.string(), mask=nulls),
        },
        schema=SCHEMA,
    )


def expected(table: pa.Table, column: str) -> list[Any]:
    """Count, least and greatest of the rows, as Spark holds values."""
    values = table[column]
    extremes = pc.min_max(values)
    ends = [extremes["min"], extremes["max"]]
    plain = [
        end.cast(pa.int32() if pa.types.is_date(end.type) else pa.int64()).as_py()
        if pa.types.is_temporal(end.type)
        else str(end.as_py())
        if pa.types.is_floating(end.type) or pa.types.is_decimal(end.type)
        else end.as_py()
        for end in ends
    ]
    return [len(values) - values.null_count, *plain]


def test_exact_columns_are_answered_and_others_are_not(lake: Lake, aggregated: Callable[..., Any]) -> None:
    """Over several files and partitions, also of an older schema."""
    table = lake.create_table("db.t", SCHEMA, partition_keys="p")
    assert aggregated("i64", "count", "min", "max") == [0, None, None]
    for seed in range(3):
        table.append(rows(seed))
    for column in EXACT:
        assert aggregated(column, "count", "min", "max") == expected(table.read(), column), column
    assert aggregated("s", "min") is None
    assert aggregated("s", "count") == [150]
    table.widen_column("i8", "BIGINT")
    table.widen_column("dec", "DECIMAL(30, 5)")
    table.rename_column("i64", "old")
    table.add_column("i64", "BIGINT")
    wider = {"i8": pa.int64(), "dec": pa.decimal128(30, 5)}
    more = rows(3).cast(pa.schema([field.with_type(wider.get(field.name, field.type)) for field in SCHEMA]))
    table.append(more.append_column("old", pa.nulls(more.num_rows, pa.int64())))
    for column in ("i8", "i64", "old", "dec"):
        assert aggregated(column, "count", "min", "max") == expected(table.read(), column), column


def test_what_manifests_cannot_know_is_not_answered(lake: Lake, aggregated: Callable[..., Any]) -> None:
    """Rows that were replaced or marked as deleted; entries without statistics; entries of other rules."""
    keyed = lake.create_table("db.t", SCHEMA.append(pa.field("id", pa.int64())), primary_keys="id")
    for seed in range(2):
        keyed.upsert(rows(seed).append_column("id", pa.array(range(50))))
    assert aggregated("i64", "max") is None
    assert aggregated("", "count_star") is None
    lake.drop_table("db.t")
    marked = lake.create_table("db.t", SCHEMA, options={"deletion-vectors.enabled": "true"})
    marked.append(rows(0))
    assert aggregated("", "count_star") == [50]
    marked.delete("p = 'p1'")
    assert aggregated("i64", "max") is None
    assert aggregated("", "count_star") is None
    lake.drop_table("db.t")
    bare = lake.create_table("db.t", SCHEMA, options={"metadata.stats-mode": "none"})
    bare.append(rows(0))
    assert aggregated("i64", "max") is None
    assert aggregated("", "count_star") == [50]


def test_entries_of_other_writers_state_no_extremes(
    lake: Lake, aggregated: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their bounds may be wider than the values."""
    table = lake.create_table("db.t", SCHEMA)
    table.append(rows(0))
    monkeypatch.setattr("lakebed.table.read.file_stats.STATS_VERSION", 2)
    assert aggregated("i64", "max") is None
    assert aggregated("", "count_star") == [50]


NASTY: dict[str, tuple[pa.DataType, list[list[Any]]]] = {
    "nan": (pa.float64(), [[1.0, 2.0], [float("nan"), 1.5]]),
    "nan32": (pa.float32(), [[float("nan"), None], [None, None]]),
    "below_zero": (pa.float64(), [[-1.0, -0.0], [-2.0, 0.0]]),
    "above_zero": (pa.float32(), [[0.0, 1.5], [2.0, -0.0]]),
    "around_zero": (pa.float64(), [[-1e-300, 0.0], [5e-324, -0.0]]),
    "infinite": (pa.float64(), [[float("inf"), 1.0], [float("-inf"), None]]),
    "narrow": (pa.float32(), [[0.1, 3.4028234663852886e38], [1e-45, None]]),
    "one_file_of_nulls": (pa.decimal128(38, 10), [[None, None], [Decimal("-1e-10"), Decimal("1e27")]]),
    "long": (pa.string(), [["b" * 40, "b" * 41], ["a" * 16, "a" * 17]]),
    "raised": (pa.string(), [["a" + "\U0010ffff" * 20, "a"], [None, None]]),
    "planes": (pa.string(), [["\U0001f600", "\uffee"], ["z", "\ud7ff"]]),
    "bytes": (pa.binary(), [[b"\xff", b"\x00"], [b"", None]]),
}
"""Columns of two files: the values that orders, signs and cut bounds get wrong."""
ANSWERED = ("around_zero", "infinite", "narrow", "one_file_of_nulls")


@pytest.mark.parametrize("mode", ["truncate(16)", "truncate(1)", "full"])
def test_nasty_values_are_answered_rightly_or_not_at_all(lake: Lake, aggregated: Callable[..., Any], mode: str) -> None:
    """Judged by DuckDB over the rows; counts are always answered."""
    schema = pa.schema([(name, kind) for name, (kind, _) in NASTY.items()])
    table = lake.create_table("db.t", schema, options={"metadata.stats-mode": mode})
    parts = [
        pa.table([pa.array(files[number], kind) for kind, files in NASTY.values()], schema=schema) for number in (0, 1)
    ]
    for part in parts:
        table.append(part)
    both = pa.concat_tables(parts)
    with duckdb.connect() as judge:
        judge.register("rows", both)
        for name in NASTY:
            count, *extremes = judge.execute(f"SELECT count({name}), min({name}), max({name}) FROM rows").fetchone()
            assert aggregated(name, "count") == [count], name
            for function, judged in zip(("min", "max"), extremes, strict=True):
                result = aggregated(name, function)
                assert (result is not None) == (name in ANSWERED), (name, function)
                if result is not None:
                    kind = NASTY[name][0]
                    same = type(judged)(result[0])
                    assert repr(pa.scalar(same, kind)) == repr(pa.scalar(judged, kind)), (name, function)
