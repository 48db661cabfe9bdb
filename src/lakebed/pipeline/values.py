"""Variables: ``${name}`` and ``${name.part}`` in texts, and the values of a loop.

Owns: the syntax of variables and ranges. Invariants: an unknown variable is an error that names its line. A loop has at
most `LOOP_COUNT_MAX` iterations. Dates are proleptic Gregorian, and ranges include their ends. Pure.
"""

from __future__ import annotations

import calendar
import datetime
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from lakebed.pipeline.nodes import Items, Node, Scalar, SourceLocation, nearest
from lakebed.pipeline.nodes import Mapping as MappingNode
from lakebed.texts import LONG_MAX, format_value, whole_number

LOOP_COUNT_MAX = 100_000
"""Most iterations of one loop. More are a typing mistake in a range."""

_REFERENCE = re.compile(r"\$(\$|\{([^}]*)\})")
_DATE = re.compile(r"(\d{4})-(\d{2})-(\d{2})")
_MONTH = re.compile(r"(\d{4})-(\d{2})")


@dataclass(frozen=True, slots=True)
class Value:
    """A variable's text and, for dates and months, its parts (``year``, ``month``, ``day``: numbers unpadded)."""

    text: str
    parts: Mapping[str, str] = field(default_factory=dict)


def substitute(text: str, variables: Mapping[str, Value], location: SourceLocation) -> str:
    """Replace every ``${name}`` and ``${name.part}``; ``$$`` is a dollar sign.

    Raises `InvalidRequest`: an unknown variable, or one without such a part; names the line.
    """

    def replace(match: re.Match[str]) -> str:
        if match.group(1) == "$":
            return "$"
        name, _, part = match.group(2).strip().partition(".")
        value = variables.get(name)
        if value is None:
            raise location.error(f"there is no variable '{name}'.{nearest(name, variables)}")
        if not part:
            return value.text
        if part not in value.parts:
            raise location.error(
                f"the variable '{name}' ({value.text}) has no part '{part}'.{nearest(part, value.parts)}"
            )
        return value.parts[part]

    return _REFERENCE.sub(replace, text)


def loop_values(node: Node, variables: Mapping[str, Value], *, name: str) -> tuple[Value, ...]:
    """Return the values of one ``for_each`` variable.

    A list gives its items; ``{from: a, to: b}`` gives whole numbers, months (``2013-01``) or days (``2013-01-01``),
    ends included; ``{in: month-or-year}`` gives the days of a month or the months of a year.
    """
    if isinstance(node, Items):
        texts = [_text(item, variables, f"an item of '{name}'") for item in node.items]
        return tuple(_value_of(text) for text in texts)
    if not isinstance(node, MappingNode):
        raise node.location.error(f"'{name}' needs a list, {{from: ..., to: ...}} or {{in: ...}}, not '{node.text}'.")
    keys = set(node.entries)
    for key in keys - {"from", "to", "in"}:
        raise node.entries[key].location.error(f"'{name}' has no key '{key}'.{nearest(key, ('from', 'to', 'in'))}")
    if keys == {"in"}:
        return tuple(_inside(_text(node.entries["in"].value, variables, "'in'"), node.location))
    if keys != {"from", "to"}:
        raise node.location.error(f"'{name}' needs both 'from' and 'to', or 'in' alone.")
    first = _text(node.entries["from"].value, variables, "'from'")
    last = _text(node.entries["to"].value, variables, "'to'")
    values = _between(first, last, node.location)
    if not values:
        raise node.location.error(f"'{name}' runs from {first} to {last}, which is an empty range: swap the ends.")
    return values


def _text(node: Node, variables: Mapping[str, Value], what: str) -> str:
    if not isinstance(node, Scalar):
        raise node.location.error(f"{what} must be one value.")
    return substitute(node.text, variables, node.location)


def _value_of(text: str) -> Value:
    if _DATE.fullmatch(text) and (date := _date(text)) is not None:
        return _day(date)
    if (match := _MONTH.fullmatch(text)) and 1 <= int(match[2]) <= 12:
        return _month(int(match[1]), int(match[2]))
    return Value(text)


def _between(first: str, last: str, location: SourceLocation) -> tuple[Value, ...]:
    low, high = whole_number(first, minimum=-LONG_MAX), whole_number(last, minimum=-LONG_MAX)
    if low is not None and high is not None:
        _check_count(high - low + 1, location)
        return tuple(Value(str(number)) for number in range(low, high + 1))
    first_date, last_date = _date(first), _date(last)
    if first_date is not None and last_date is not None:
        _check_count((last_date - first_date).days + 1, location)
        days = (last_date - first_date).days + 1
        return tuple(_day(first_date + datetime.timedelta(days=offset)) for offset in range(days))
    first_month, last_month = _month_number(first), _month_number(last)
    if first_month is not None and last_month is not None:
        _check_count(last_month - first_month + 1, location)
        return tuple(_month(number // 12, number % 12 + 1) for number in range(first_month, last_month + 1))
    raise location.error(
        "a range needs two whole numbers, two months (2013-01) or two days (2013-01-01), not "
        f"{format_value(first)} and {format_value(last)}."
    )


def _inside(text: str, location: SourceLocation) -> Iterator[Value]:
    month_number = _month_number(text)
    if month_number is not None:
        year, month = month_number // 12, month_number % 12 + 1
        for day in range(1, calendar.monthrange(year, month)[1] + 1):
            yield _day(datetime.date(year, month, day))
    elif re.fullmatch(r"\d{4}", text) and int(text) >= 1:
        for month in range(1, 13):
            yield _month(int(text), month)
    else:
        raise location.error(f"'in' needs a month (2013-01) or a year (2013), not '{text}'.")


def _check_count(count: int, location: SourceLocation) -> None:
    if count > LOOP_COUNT_MAX:
        raise location.error(f"this loop would run {count:,} times; at most {LOOP_COUNT_MAX:,} are allowed.")


def _date(text: str) -> datetime.date | None:
    if not _DATE.fullmatch(text):
        return None
    try:
        return datetime.date.fromisoformat(text)
    except ValueError:
        return None


def _month_number(text: str) -> int | None:
    match = _MONTH.fullmatch(text)
    if match is None or not 1 <= int(match[2]) <= 12 or int(match[1]) < 1:
        return None
    return int(match[1]) * 12 + int(match[2]) - 1


def _day(date: datetime.date) -> Value:
    return Value(date.isoformat(), {"year": str(date.year), "month": str(date.month), "day": str(date.day)})


def _month(year: int, month: int) -> Value:
    return Value(f"{year:04d}-{month:02d}", {"year": str(year), "month": str(month)})
