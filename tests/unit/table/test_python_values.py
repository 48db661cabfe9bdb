"""Values of columns as Python objects: what Python has no object for is a text, and nothing raises."""

from __future__ import annotations

import datetime as dt
from typing import Any

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
