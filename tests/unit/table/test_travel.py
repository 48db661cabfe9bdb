"""Naming a time and a version, without a store."""

from __future__ import annotations

import datetime as dt

import pytest

from lakebed.errors import InvalidRequest
from lakebed.table.travel import parse_time_ms, version_of_options


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
    with pytest.raises(InvalidRequest, match="is no time"):
        parse_time_ms(time)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {}),
        ({"scan.tag-name": "v1"}, {"version": "tag.v1"}),
        ({"scan.snapshot-id": "3"}, {"version": "snapshot.3"}),
        ({"scan.version": "v1"}, {"version": "v1"}),
        ({"scan.timestamp": "2013-02-01"}, {"timestamp": "2013-02-01"}),
        ({"scan.timestamp-millis": "5"}, {"timestamp": "5"}),
    ],
)
def test_scan_options_mean_the_same_as_arguments(options: dict[str, str], expected: dict[str, str]) -> None:
    """Each option of the format names a version or a time."""
    assert version_of_options(options) == expected


def test_two_scan_options_are_one_too_many() -> None:
    """Which one is meant cannot be guessed."""
    with pytest.raises(InvalidRequest, match=r"only one of scan\.tag-name, scan\.snapshot-id"):
        version_of_options({"scan.tag-name": "a", "scan.snapshot-id": "1"})
