"""Durations and sizes as people and other clients write them."""

from __future__ import annotations

import pytest

from lakebed.duration import (
    format_duration,
    format_iso_duration,
    parse_duration_ms,
    parse_size_bytes,
)
from lakebed.errors import InvalidRequest


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("7 d", 604_800_000),
        ("1h", 3_600_000),
        ("7days 30min 10s", 606_610_000),
        ("P7D", 604_800_000),
        ("PT24H0.123S", 86_400_123),
        ("p1dt2h3m4.5s", 93_784_500),
        ("P1W", 604_800_000),
        ("250", 250),
        ("1.5 h", 5_400_000),
        ("10 MS", 10),
        ("999 us", 0),
    ],
)
def test_durations(text: str, expected: int) -> None:
    """Every spelling means its milliseconds."""
    assert parse_duration_ms(text) == expected


@pytest.mark.parametrize(
    "text", ["", " ", "d", "7 dogs", "-1 d", "1h 30", "P", "PT", "P1DT", "1e99 d", "9" * 30 + " d"]
)
def test_no_durations(text: str) -> None:
    """A text that is not a duration is refused, showing how one is written."""
    with pytest.raises(InvalidRequest):
        parse_duration_ms(text)


@pytest.mark.parametrize("duration_ms", [0, 1, 999, 1000, 61_250, 3_600_000, 90_061_001, 604_800_000])
def test_both_texts_read_back(duration_ms: int) -> None:
    """What is printed means the same when read."""
    assert parse_duration_ms(format_duration(duration_ms)) == duration_ms
    assert parse_duration_ms(format_iso_duration(duration_ms)) == duration_ms


def test_iso_text_is_javas() -> None:
    """Days are hours, as Java prints them."""
    assert [format_iso_duration(ms) for ms in (86_400_000, 1_800_000, 5250, 0)] == ["PT24H", "PT30M", "PT5.25S", "PT0S"]


def test_sizes() -> None:
    """Sizes are powers of 1024, with and without unit."""
    assert [parse_size_bytes(text) for text in ("128 mb", "1g", "4096", "1.5 KB")] == [128 << 20, 1 << 30, 4096, 1536]
    with pytest.raises(InvalidRequest, match="is not a size"):
        parse_size_bytes("many")
