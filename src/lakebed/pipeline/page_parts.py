"""The parts of a report's page: its markup, in `page.html.jinja`; times, sizes and counts as text.

Pure: values -> text.
"""

from __future__ import annotations

import datetime
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, StrictUndefined

MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


@cache
def _macros() -> Any:
    text = resources.files(__package__).joinpath("page.html.jinja").read_text(encoding="utf-8")
    return Environment(autoescape=True, undefined=StrictUndefined).from_string(text).module


def draw(part: str, *values: object) -> str:
    """Return a part of the page: the macro of that name in `page.html.jinja`.

    It escapes all values but parts of a page.
    """
    html: str = getattr(_macros(), part)(*values)
    return html


def card(title: str, lead: str, *parts: str) -> str:
    """Return a section: a heading, a sentence below it, the content."""
    return draw("card", title, lead, parts)


def legend(*entries: tuple[str, str]) -> str:
    """Return the legend of colours, with (classes, text) for each."""
    return draw("legend", entries)


def verdict_mark(is_good: bool | None, good: str, bad: str) -> str:
    """Return a tick or a cross with its text."""
    return draw("verdict", is_good, "not read again" if is_good is None else good if is_good else bad)


def time_text(unix_ms: int, *, since: int | None = None) -> str:
    """Return a time in UTC to the second, without its day if that is the day of `since`."""
    time = datetime.datetime.fromtimestamp(unix_ms / 1000, datetime.UTC)
    day = since is not None and datetime.datetime.fromtimestamp(since / 1000, datetime.UTC).date() == time.date()
    return f"{time:%H:%M:%S}" if day else f"{time.day} {MONTHS[time.month - 1]} {time.year}, {time:%H:%M:%S}"


def utc_text(unix_ms: int | None) -> str:
    """Return a time with its zone, UTC."""
    return "an unknown day" if unix_ms is None else f"{time_text(unix_ms)} UTC"


def are(count: int) -> str:
    """Return the verb that agrees with a count."""
    return "is" if count == 1 else "are"


def bytes_text(size: float, *, digits: int = 1) -> str:
    """Return a size in decimal units, with `digits` after the point below 100."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            value = size / factor
            return (
                f"{value:.0f} {unit}"
                if digits < 2 and (value >= 100 or value == int(value))
                else f"{value:.{digits}f} {unit}"
            )
    return f"{size:.0f} B"


def sizes_that_differ(first: float, second: float) -> tuple[str, str]:
    """Return two sizes, with enough digits to show that they differ."""
    size_texts = [
        (bytes_text(first, digits=digits), bytes_text(second, digits=digits)) for digits in (1, 2, 3, 4, 6, 9)
    ]
    return next((pair for pair in size_texts if pair[0] != pair[1]), size_texts[0])
