"""The parts of a report's page: cards, tables, legends; times, sizes and counts as text.

Pure: values -> text.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from html import escape

MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def card(title: str, lead: str, content: str) -> str:
    """Return a section: a heading, a sentence below it, the content (HTML)."""
    lead_text = f'<p class="lead">{escape(lead)}</p>' if lead else ""
    return f'<section class="card"><h2>{escape(title)}</h2>{lead_text}{content}</section>'


def grid(columns: Sequence[str], rows: str, *, ends_in_words: bool = False) -> str:
    """Return a table of rows that are HTML already; cells of a last column of words wrap, all others do not."""
    heads = "".join(f'<th scope="col">{escape(column)}</th>' for column in columns)
    table = f"<thead><tr>{heads}</tr></thead><tbody>{rows}</tbody>"
    return f'<div class="scroll"><table{" class=words" if ends_in_words else ""}>{table}</table></div>'


def pair(first: str, second: str) -> str:
    """Return two sections: next to each other in a wide window, else below each other."""
    return f'<div class="pair">{first}{second}</div>'


def legend(*entries: tuple[str, str]) -> str:
    """Return the meaning of colours: (classes, text) of each."""
    items = "".join(f'<li><i class="{css}" aria-hidden="true"></i>{escape(text)}</li>' for css, text in entries)
    return f'<ul class="legend">{items}</ul>'


def verdict_mark(is_good: bool | None, good: str, bad: str) -> str:
    """Return a tick or a cross with its text."""
    if is_good is None:
        return '<span class="unknown">not read again</span>'
    css, mark, text = ("good", "✓", good) if is_good else ("bad", "✗", bad)
    return f'<span class="{css}"><span aria-hidden="true">{mark}</span> {escape(text)}</span>'


def time_text(unix_ms: int, *, since: int | None = None) -> str:
    """Return a time in UTC to the second, without its day when that is the day of `since`."""
    time = datetime.datetime.fromtimestamp(unix_ms / 1000, datetime.UTC)
    day = since is not None and datetime.datetime.fromtimestamp(since / 1000, datetime.UTC).date() == time.date()
    return f"{time:%H:%M:%S}" if day else f"{time.day} {MONTHS[time.month - 1]} {time.year}, {time:%H:%M:%S}"


def utc_text(unix_ms: int | None) -> str:
    """Return a time with its zone, UTC."""
    return "an unknown day" if unix_ms is None else f"{time_text(unix_ms)} UTC"


def are(count: int) -> str:
    """Return the verb that goes with a count."""
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
    """Return two sizes with as many digits as show that they differ."""
    shown = [(bytes_text(first, digits=digits), bytes_text(second, digits=digits)) for digits in (1, 2, 3, 4, 6, 9)]
    return next((pair for pair in shown if pair[0] != pair[1]), shown[0])
