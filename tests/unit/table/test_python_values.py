"""Values of columns as Python objects: what Python has no object for is a text, and nothing raises."""

from __future__ import annotations

import datetime as dt
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from lakebed.table.codec.python_values import python_rows, python_values

UTC = dt.UTC
FIRST, LAST = -719_162, 2_932_896
"""0001-01-01 and 9999-12-31."""


def units(kind: pa.DataType, *numbers: int | None) -> pa.Array:
    return pa.array(numbers, pa.int32() if kind == pa.date32() else pa.int64()).view(kind)


@pytest.mark.parametrize(
    ("column", "values"),
    [
        (
            units(pa.date32(), FIRST, LAST, None, LAST + 1),
            [dt.date(1, 1, 1), dt.date(9999, 12, 31), None, "10000-01-01"],
        ),
        (
            units(pa.timestamp("us"), 1, FIRST * 86_400_000_000, (LAST + 1) * 86_400_000_000),
            [dt.datetime(1970, 1, 1, 0, 0, 0, 1), dt.datetime(1, 1, 1), "10000-01-01T00:00:00.000000"],
        ),
        (
            units(pa.timestamp("s", "UTC"), 0, (LAST + 1) * 86_400),
            [dt.datetime(1970, 1, 1, tzinfo=UTC), "10000-01-01T00:00:00+00:00"],
        ),
        (
            units(pa.timestamp("ns"), 2000, -1, None),
            [dt.datetime(1970, 1, 1, 0, 0, 0, 2), "1969-12-31T23:59:59.999999999", None],
        ),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)
def test_dates_and_times_beyond_python_are_texts(column: pa.Array, values: list[Any]) -> None:
    """Years outside of 1 to 9999, and nanoseconds, with and without pandas; the others are as Arrow gives them."""
    assert python_values(column) == values
    assert python_values(pa.chunked_array([column[:1], column[1:]])) == values
    assert python_values(column.dictionary_encode()) == values
    nested = pa.table(
        {"l": pa.array([column.to_numpy(zero_copy_only=False)[:0].tolist(), None], pa.list_(column.type))}
    )
    assert python_rows(nested) == [{"l": []}, {"l": None}]
    lists = pa.ListArray.from_arrays([0, len(column)], column)
    maps = pa.MapArray.from_arrays([0, len(column)], pa.array([str(value) for value in range(len(column))]), column)
    rows = pa.table({"l": lists, "m": maps, "s": pa.StructArray.from_arrays([column[:1]], ["x"]), "n": [1]})
    entries = [(str(place), value) for place, value in enumerate(values)]
    assert python_rows(rows) == [{"l": values, "m": entries, "s": {"x": values[0]}, "n": 1}]


def test_units_beyond_every_calendar_are_texts() -> None:
    """The least and the greatest numbers of each type."""
    for kind in (pa.date32(), *(pa.timestamp(unit) for unit in ("s", "ms", "us"))):
        bits = 31 if kind == pa.date32() else 63
        assert all(isinstance(value, str) for value in python_values(units(kind, 2**bits - 1, -(2**bits))))


def test_texts_of_any_year_are_those_of_duckdb() -> None:
    """Before the year 1 and beyond those of 16 bits, of which Arrow prints other years or none; DuckDB is the judge."""
    days = [LAST + 1, 3_000_000, 200_000_000, 2_000_000_000, FIRST - 1, FIRST - 366, FIRST - 367, -2_000_000]
    (judged,) = duckdb.execute(
        "SELECT list(CASE WHEN year(d) <= 0 THEN printf('%s%04d', CASE WHEN year(d) < 0 THEN '-' ELSE '' END, "
        "abs(year(d))) ELSE year(d)::VARCHAR END || strftime(d, '-%m-%d')) "
        "FROM (SELECT DATE '1970-01-01' + day::INTEGER AS d FROM unnest(?) AS t(day))",
        [days],
    ).fetchall()[0]
    assert python_values(units(pa.date32(), *days)) == judged
    seconds = [day * 86_400 + 3_723 for day in days]
    assert python_values(units(pa.timestamp("s", "UTC"), *seconds)) == [f"{day}T01:02:03+00:00" for day in judged]
    milliseconds = python_values(units(pa.timestamp("ms"), *(second * 1000 + 45 for second in seconds)))
    assert milliseconds == [f"{day}T01:02:03.045" for day in judged]
