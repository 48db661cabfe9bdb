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
