"""Conditions judged in this process: what they mean, and what is left to Spark."""

from __future__ import annotations

import pyarrow as pa
import pytest

from lakebed.pipeline.conditions import all_hold

ROWS = pa.table(
    {
        "id": pa.array([1, 2, 3, None], pa.int32()),
        "size": pa.array([10, 20, None, 40], pa.int64()),
        "name": pa.array(["a", "b", None, "it's"], pa.string()),
        "gone": pa.array([True, False, None, True], pa.bool_()),
        "price": pa.array([1.5, 2.5, 3.5, 4.5], pa.float64()),
        "date": pa.array([0, 2, None, 4], pa.int64()),
        "s.x": pa.array([1, 1, 1, 1], pa.int64()),
    }
)


@pytest.mark.parametrize(
    ("condition", "rows_held"),
    [
        ("id > 1", [1, 2]),
        ("NOT id > 1", [0]),
        ("id BETWEEN 2 AND 3 OR id IS NULL", [1, 2, 3]),
        ("id NOT BETWEEN 2 AND 3", [0]),
        ("id IN (1, 3)", [0, 2]),
        ("id NOT IN (1, 3)", [1]),
        ("name = 'a' OR gone", [0, 3]),
        ("gone = false", [1]),
        ("id < size AND `size` >= 10", [0, 1]),
        ("id IS NOT NULL AND NOT (name IS NULL)", [0, 1]),
        ("1 = 1", [0, 1, 2, 3]),
        ("- 5 < id", [0, 1, 2]),
        ("name LIKE 'it%' OR name NOT LIKE 'a%'", [1, 3]),
        ("3 IN (id, 7) AND 1 IS NOT NULL", [2]),
        ("name IN ('a', name) AND id NOT IN (size, 2)", [0]),
        ("`date` = id AND date = 2", [1]),
    ],
)
def test_a_row_holds_where_the_condition_is_true(condition: str, rows_held: list[int]) -> None:
    """Neither false nor NULL is true."""
    rows = [row for row in range(4) if all_hold(ROWS.slice(row, 1), every_row=[condition], overall=[])]
    assert rows == rows_held


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("count(*) = 4", True),
        ("count(id) = 3 AND count(DISTINCT gone) = 2", True),
        ("count(DISTINCT id, name) = 2", True),
        ("sum(size) = 70 AND min(id) = 1 AND max(name) = 'it'", False),
        ("max(name) > 'it' AND max(name) < 'iu'", True),
        ("min(id) > 5 OR count(*) < 4", False),
    ],
)
def test_all_rows_together(condition: str, holds: bool) -> None:
    """Aggregates leave out NULL, as SQL's do."""
    assert all_hold(ROWS, every_row=[], overall=[condition]) is holds


def test_no_rows() -> None:
    """Every row of none holds; an aggregate of none is NULL or 0."""
    none = ROWS.slice(0, 0)
    assert all_hold(none, every_row=["id > 5", "1 = 2"], overall=["count(*) = 0"]) is True
    assert all_hold(none, every_row=[], overall=["max(id) > 0"]) is False


@pytest.mark.parametrize(
    "condition",
    [
        "price > 1",
        "id > 1.5",
        "id > 1L",
        "id > '1'",
        "id + 1 > 1",
        "ID > 1",
        "missing = 1",
        "upper(name) = 'A'",
        "name LIKE '%a'",
        "name LIKE 'a\\\\%'",
        "id LIKE '1%'",
        "name = 'it''s'",
        "name = DATE '2013-01-01'",
        "s.x = 1",
        "id BETWEEN 0AND 5",
        "id >\u00a00",
        "name = 'a\\n'",
        'name = "a"',
        "name = x'61'",
        "gone'61'",
        "id <=> 1",
        "id = NULL",
        "id IN (1, NULL)",
        "id = 9223372036854775808",
        "gone > false",
        "(id) = 1",
        "id = 1 = gone",
        "id IS TRUE",
        "id BETWEN 1 AND 2",
        "id > 1 -- one",
        "id",
        "count(*) > 0",
        "",
        "(" * 200 + "gone" + ")" * 200,
    ],
)
def test_what_is_not_simple_is_left_to_spark(condition: str) -> None:
    """Also what is not SQL at all: Spark then says what is wrong with it."""
    assert all_hold(ROWS, every_row=[condition], overall=[]) is None


@pytest.mark.parametrize(
    "condition", ["id > 1", "sum(gone) > 1", "max(count(*)) > 1", "count(*) FILTER (WHERE gone) > 0"]
)
def test_what_is_no_simple_aggregate_is_left_to_spark(condition: str) -> None:
    """A bare column has no value for all rows together."""
    assert all_hold(ROWS, every_row=[], overall=[condition]) is None
