"""Filters: text, Arrow meaning, and what their statistics rule out."""

from __future__ import annotations

import datetime
import pickle
from decimal import Decimal

import pyarrow as pa
import pytest

from lakebed.errors import InvalidRequest
from lakebed.table.model.predicate import bind, to_arrow
from lakebed.table.model.predicate_text import parse_predicate
from lakebed.table.model.predicate_tree import Compare, In, column, columns_of, conjuncts, possible_values

ROWS = pa.table(
    {
        "carrier": ["UA", "AA", "it's", None, "U_"],
        "month": pa.array([1, 2, 3, None, 12], pa.int32()),
        "delay": [1.5, -0.5, float("nan"), None, 2.0],
        "fare": pa.array([Decimal("1.50"), Decimal("2.25"), None, None, Decimal("-1")], pa.decimal128(10, 2)),
        "day": pa.array([datetime.date(2013, 1, day) for day in range(1, 5)] + [None]),
        "at": pa.array([datetime.datetime(2013, 1, day, 12) for day in range(1, 5)] + [None], pa.timestamp("ms")),
        "late": [True, False, None, True, False],
        "date": ["x", "y", "z", None, None],
        "timestamp": [1, None, 3, 4, 5],
        "in": [1, 2, 3, 4, 5],
    }
)


def matching(text: str) -> list[int]:
    """Numbers of the rows for which a filter is true."""
    numbered = ROWS.append_column("row", pa.array(range(ROWS.num_rows)))
    return numbered.filter(to_arrow(parse_predicate(text), ROWS.schema)).column("row").to_pylist()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("carrier = 'UA' and month >= 1", [0]),
        ("carrier == 'it''s'", [2]),
        ("month <> 2", [0, 2, 4]),
        ("not month = 2", [0, 2, 4]),
        ("month != 2 or carrier is null", [0, 2, 3, 4]),
        ("2 <= month", [1, 2, 4]),
        ("month between 2 and 3", [1, 2]),
        ("month not between 2 and 3", [0, 4]),
        ("month in (1, 12, 99999999999)", [0, 4]),
        ("month not in (1, 12)", [1, 2]),
        ("month > 1.5 and month < 2.5", [1]),
        ("month not in (1, null)", []),
        ("month = null", []),
        ("delay > 1", [0, 4]),
        ("delay = 1.5", [0]),
        ("fare >= 1.5", [0, 1]),
        ("fare = 2.25", [1]),
        ("fare < 1e30", [0, 1, 4]),
        ("carrier like 'U%'", [0, 4]),
        ("carrier not like 'U%'", [1, 2]),
        ("carrier like 'UA'", [0]),
        ("day = DATE '2013-01-02'", [1]),
        ("day in ('2013-01-01', '2013-01-04')", [0, 3]),
        ("at > timestamp '2013-01-02 12:00:00'", [2, 3]),
        ("at >= '2013-01-02T12:00:00.0001'", [2, 3]),
        ("late", [0, 3]),
        ("not late", [1, 4]),
        ("late = true and (month = 1 or month = 2)", [0]),
        ('`month` = 1 or "month" = 2', [0, 1]),
        ("month > - 1 and month < + 2", [0]),
        ("date = 'x' or timestamp is null", [0, 1]),
        ("date like 'x' and `in` = 1", [0]),
    ],
)
def test_text_means_rows(text: str, expected: list[int]) -> None:
    """Each filter keeps exactly the rows SQL would; its printed form means the same."""
    assert matching(text) == expected
    assert matching(str(parse_predicate(text))) == expected


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("mouth = 1", "did you mean 'month'"),
        ("month = 'May'", "cannot be compared"),
        ("carrier = 5", "cannot be compared"),
        ("late = 1", "cannot be compared"),
        ("day = 'someday'", "cannot be compared"),
        ("month like 'a%'", "LIKE needs a text column"),
        ("carrier like '\udcff%'", "cannot be compared"),
        ("carrier = '\udcff'", "cannot be compared"),
    ],
)
def test_misfits(text: str, sentence: str) -> None:
    """A filter that does not fit the columns is refused."""
    with pytest.raises(InvalidRequest, match=sentence):
        to_arrow(parse_predicate(text), ROWS.schema)


@pytest.mark.parametrize(
    "text",
    [
        *("", "month", "month =", "= 1", "month = 1 and", "(month = 1", "month = 1)", "month in ()", "month is 1"),
        *("a ~ 1", "month between 1", "carrier like 'a%b'", "carrier = 'open", "month not 5", "1 = 1", "and"),
        "month = 1 month = 2",
    ],
)
def test_unreadable_text(text: str) -> None:
    """Text that is not a filter says where it cannot be read; a bare column must at least be a boolean."""
    with pytest.raises(InvalidRequest):
        bind(parse_predicate(text), ROWS.schema)


@pytest.mark.parametrize(
    ("text", "position", "expected"),
    [
        ("month = late", 8, "a value such as"),
        ("month in (1, late)", 13, "a value such as"),
        ("1 = 2", 4, "a column"),
        ("1 in (month)", 2, "one of = <>"),
        ("month between 1and 2", 13, "a column, a value or an operator"),
        ("count(*) > 1", 5, "AND, OR or the end"),
    ],
)
def test_what_only_checks_of_pipelines_compare(text: str, position: int, expected: str) -> None:
    """Two columns, two values and aggregates are refused where they stand, and so is junk after a number."""
    with pytest.raises(InvalidRequest, match=f"character {position + 1}\\): expected {expected}") as refused:
        parse_predicate(text)
    assert refused.value.facts["position"] == position


def test_builder_and_shape() -> None:
    """Filters built in Python are those of the text; they pickle and tell their columns and required values."""
    built = (column("carrier") == "UA") & (column("month").is_in([1, 2]) | ~column("day").is_null())
    text = "carrier = 'UA' and (month in (1, 2) or day is not null)"
    assert built == parse_predicate(text)
    assert pickle.loads(pickle.dumps(built)) == built
    assert columns_of(built) == {"carrier", "month", "day"}
    assert (len(conjuncts(built)), possible_values(built, "carrier")) == (2, ("UA",))
    assert possible_values(built, "month") is None


@pytest.mark.parametrize(
    "value",
    [
        *(pa.scalar(number, pa.timestamp(unit, "UTC")) for unit in ("ms", "us") for number in (-(2**63), 2**63 - 1)),
        *(pa.scalar(number, pa.timestamp("ns")) for number in (1, -1, 2**63 - 1)),
        *(pa.scalar(day, pa.int32()).cast(pa.date32()) for day in (2_932_897, -719_163, None)),
    ],
)
def test_times_beyond_pythons_calendar_pickle(value: pa.Scalar) -> None:
    """A filter with a date or a time that Python has not reaches other processes as it is, bound or not."""
    schema = pa.schema([("at", value.type)])
    listed = In("at", (value, None))
    for predicate in (Compare("at", ">=", value), bind(Compare("at", ">=", value), schema), listed):
        copy = pickle.loads(pickle.dumps(predicate))
        assert copy == predicate
        assert to_arrow(copy, schema).equals(to_arrow(predicate, schema))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("t = '12:00:00'", [1]),
        ("t = '12:00:00.000'", [1]),
        ("t >= '12:00'", [1, 2]),
        ("t > '12:00:00.0000001'", [2]),
        ("t = '12:00:00.0000001'", []),
        ("t < '00:00:00.001'", [0]),
        ("t in ('00:00:00', '23:59:59.999')", [0, 2]),
        ("t <> '12:00:00'", [0, 2]),
    ],
)
def test_times_of_day_are_compared_with_text(text: str, expected: list[int]) -> None:
    """Exactly, as timestamps are."""
    rows = pa.table({"n": range(4), "t": pa.array([0, 43_200_000, 86_399_999, None], pa.time32("ms"))})
    assert rows.filter(to_arrow(parse_predicate(text), rows.schema))["n"].to_pylist() == expected


def test_a_time_of_day_is_compared_with_no_other_text() -> None:
    """Neither with a date, nor with an hour that no day has, nor in another zone."""
    for text in ("t = '2024-01-01'", "t = '25:00'", "t = '12:00+01:00'", "t = 5"):
        with pytest.raises(InvalidRequest, match="cannot be compared"):
            bind(parse_predicate(text), pa.schema([("t", pa.time32("ms"))]))
