"""Naming a time and a version, without a store."""

from __future__ import annotations

import datetime as dt

import pytest

from lakebed.errors import InvalidRequest
from lakebed.table.branch.travel import parse_time_ms


@pytest.mark.parametrize(
    ("time", "expected_ms"),
    [
        (1_359_676_800_000, 1_359_676_800_000),
        ("1359676800000", 1_359_676_800_000),
        ("2013-02-01", 1_359_676_800_000),
        ("2013-02-01 00:00:00", 1_359_676_800_000),
        ("2013-02-01T01:00:00+01:00", 1_359_676_800_000),
        ("2013-02-01T00:00:00.250Z", 1_359_676_800_250),
        (dt.datetime(2013, 2, 1), 1_359_676_800_000),
        (dt.datetime(2013, 2, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=1))), 1_359_676_800_000),
    ],
)
def test_a_time_without_a_zone_is_utc(time: int | str | dt.datetime, expected_ms: int) -> None:
    """The same moment, however it is written, on every machine."""
    assert parse_time_ms(time) == expected_ms


@pytest.mark.parametrize("time", ["yesterday", "", "2013-13-01", True, 1.5])
def test_what_is_no_time_is_refused_in_a_sentence(time: object) -> None:
    """The error says how to write a time."""
    with pytest.raises(InvalidRequest, match="is not a valid time"):
        parse_time_ms(time)  # type: ignore[arg-type]


LAST = (1 << 63) - 1


@pytest.mark.parametrize("time", [LAST, -LAST, 0, -1, 5])
def test_every_number_of_milliseconds_is_a_time(time: int) -> None:
    """As a number and as text, with spaces around it; before 1970 too."""
    assert parse_time_ms(time) == parse_time_ms(str(time)) == parse_time_ms(f" {time} ") == time


@pytest.mark.parametrize("time", [LAST + 1, -LAST - 1, 10**30])
def test_a_number_of_more_bits_is_no_time(time: int) -> None:
    """As a number and as text."""
    for given in (time, str(time)):
        with pytest.raises(InvalidRequest, match="milliseconds are between"):
            parse_time_ms(given)


@pytest.mark.parametrize("text", ["1969-12-31T23:59:59.999", "1969-12-31T23:59:59.9995"])
def test_a_part_of_a_millisecond_belongs_to_the_one_that_it_is_in(text: str) -> None:
    """Before 1970 too: a moment is never later than it was written."""
    assert parse_time_ms(text) == -1
