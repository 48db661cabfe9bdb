"""Parsers of option values. Pure.

Each raises `InvalidRequest` with a sentence that names the valid values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

from lakebed.duration import parse_duration_ms
from lakebed.errors import InvalidRequest
from lakebed.texts import format_value, whole_number

_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS
_PERIODS_MS = {"daily": _DAY_MS, "hourly": _HOUR_MS, "two-hours": 2 * _HOUR_MS}


def parse_boolean(text: str) -> bool:
    """``true`` or ``false``, in any case."""
    lowered = text.strip().lower()
    if lowered not in ("true", "false"):
        raise InvalidRequest(f"{text!r} is neither 'true' nor 'false'.")
    return lowered == "true"


def integer(minimum: int, maximum: int = 2**63 - 1) -> Callable[[str], int]:
    """A parser of whole numbers between two bounds, both inclusive."""

    def parse(text: str) -> int:
        try:
            number = int(text.strip())
        except ValueError as error:
            raise InvalidRequest(f"{text!r} is not a whole number.") from error
        if not minimum <= number <= maximum:
            raise InvalidRequest(f"{number} is not between {minimum} and {maximum}.")
        return number

    return parse


def choice(*choices: str) -> Callable[[str], str]:
    """A parser of some words, in any case."""

    def parse(text: str) -> str:
        lowered = text.strip().lower()
        if lowered not in choices:
            raise InvalidRequest(f"{text!r} is not one of {', '.join(choices)}.")
        return lowered

    return parse


def parse_names(text: str) -> tuple[str, ...]:
    """Names separated by commas."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def check_listed(text: str, columns: Collection[str], *, what: str) -> None:
    """Refuse a list of names, separated by commas, that tries to name a column that no such list can name.

    Args:
        what: the setting, as the message begins with it.

    Raises `InvalidRequest`: the text seems to mean a column whose name has a comma, or a space at an end.
    """
    names = parse_names(text)
    for column in columns:
        parts = parse_names(column)
        if parts == (column,) or (len(parts) == 1 and parts[0] in columns):
            continue
        if any(names[start : start + len(parts)] == parts for start in range(len(names) - len(parts) + 1)):
            raise InvalidRequest(
                f"{what} = {format_value(text)} separates names by commas and ignores spaces around them, so it "
                f"cannot name the column {format_value(column)}: give the column another name.",
                kind="invalid_option",
                column=column,
            )


def pattern(expression: str, takes: str) -> Callable[[str], str]:
    """A parser of texts that match a regular expression; `takes` describes the expression in words."""

    def parse(text: str) -> str:
        if re.fullmatch(expression, text) is None:
            raise InvalidRequest(f"{format_value(text)} is not {takes}.")
        return text

    return parse


def parse_bucket(text: str) -> int:
    """A number of buckets, or -1 or -2."""
    number = integer(-2)(text)
    if number == 0:
        raise InvalidRequest("0 is not a valid number of buckets: use a positive number, or -1 for none.")
    return number


def parse_period_ms(text: str) -> int:
    """A named period, or a duration of whole seconds."""
    period_ms = _PERIODS_MS.get(text) or parse_duration_ms(text)
    if period_ms < 1000 or period_ms % 1000:
        raise InvalidRequest(f"{format_value(text)} is not daily, hourly, two-hours or a duration of whole seconds.")
    return period_ms


def parse_days_ms(text: str) -> int:
    """Whole days, at least one: a number, or a duration."""
    days = whole_number(text)
    interval_ms = parse_duration_ms(text) if days is None else _DAY_MS * days
    if interval_ms < _DAY_MS or interval_ms % _DAY_MS:
        raise InvalidRequest(f"{format_value(text)} is not a number of whole days, at least one, such as '1 d'.")
    return interval_ms


def parse_time_of_day_ms(text: str) -> int:
    """A time of day, ``hh:mm``, in milliseconds since midnight."""
    match = re.fullmatch(r"([01][0-9]|2[0-3]):([0-5][0-9])", text)
    if match is None:
        raise InvalidRequest(f"{format_value(text)} is not a time of day between '00:00' and '23:59'.")
    return int(match[1]) * _HOUR_MS + int(match[2]) * 60_000


def parse_directory(text: str) -> str:
    """A path below the table's folder, without doubled, leading or trailing slashes."""
    parts = [part for part in text.split("/") if part not in ("", ".")]
    if text.startswith("/") or ".." in parts or ":" in text:
        raise InvalidRequest(f"{text!r} is not a folder below the table's.")
    return "/".join(parts)


def parse_weights(text: str) -> tuple[int, ...]:
    """Whole numbers above 0, separated by commas."""
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch("[0-9]{1,9}", part) and int(part) > 0 for part in parts):
        raise InvalidRequest(f"{format_value(text)} is not a list of whole numbers from 1 to 999999999, such as 1,3.")
    return tuple(map(int, parts))
