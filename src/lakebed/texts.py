"""Texts that users write and read: integers of bounded size, names, times, and how errors quote them. Pure.

Owns: `whole_number`, `format_value`, `names_of`, `spans_of`, `format_count`, `format_size`, `utc`, `html_table` and
others. Numbers that users type are parsed here, because Python's `int` raises an error of its own for thousands of
digits and accepts digits of other scripts.
"""

from __future__ import annotations

import datetime as dt
import difflib
from collections.abc import Iterable, Sequence
from typing import Final

from lakebed.errors import InvalidRequest

LONG_MAX: Final = 2**63 - 1
_DIGITS_MAX: Final = 40
_SHOWN_MAX: Final = 120
_NEAREST_MAX: Final = 3
_LIKENESS_MIN: Final = 0.5
_SPANS_SHOWN_MAX: Final = 8
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MS: Final = dt.timedelta(milliseconds=1)
_YEAR_1_MS: Final = -62_135_596_800_000
_YEAR_10000_MS: Final = 253_402_300_800_000


def clamp_to_calendar(time_ms: int) -> int:
    """Return the nearest Unix time (ms) in the years 1 to 9999, which a date can show.

    For times that another program has written: lakeFS keeps the time that a client states for an object, and some
    clients state milliseconds where seconds are meant.
    """
    return min(max(time_ms, _YEAR_1_MS), _YEAR_10000_MS - 1)


def whole_number(text: str, *, minimum: int = 0, maximum: int = LONG_MAX) -> int | None:
    """Parse ASCII digits after an optional minus. Return None for other text and for numbers outside the limits."""
    trimmed_text = text.strip()
    digits = trimmed_text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal()) or len(digits.lstrip("0")) > _DIGITS_MAX:
        return None
    number = int(digits.lstrip("0") or "0") * (-1 if trimmed_text.startswith("-") else 1)
    return number if minimum <= number <= maximum else None


def is_utf8(text: str) -> bool:
    """Whether a text is valid Unicode, without half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def format_value(value: object) -> str:
    """Format a value for an error message: its `repr`, shortened."""
    try:
        text = repr(value[: _SHOWN_MAX + 1] if isinstance(value, str) else value)
    except ValueError:  # an integer of more digits than Python prints
        return f"a number of {value.bit_length():,} bits" if isinstance(value, int) else f"a {type(value).__name__}"
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}..."


def format_count(number: int, noun: str, plural: str | None = None) -> str:
    """Format a number with its noun: ``1 file``, ``1,234 files``."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def format_size(size_bytes: int) -> str:
    """Format a size as ``1.4 MB`` (powers of 1000)."""
    number = float(size_bytes)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if number < 999.5 or unit == "TB":
            return f"{number:.0f} {unit}" if unit == "B" or number >= 100 else f"{number:.1f} {unit}"
        number /= 1000
    raise AssertionError("unreachable")


def host_in_url(host: str) -> str:
    """Return a host in the notation of URLs: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def names_of(names: str | Sequence[str]) -> tuple[str, ...]:
    """Return names of columns as a tuple. A text is one name, not a sequence of letters.

    Raises `InvalidRequest` (``wrong_type``).
    """
    if isinstance(names, str):
        return (names,)
    several = tuple(names) if isinstance(names, Iterable) else (names,)
    for name in several:
        if not isinstance(name, str):
            raise InvalidRequest(
                f"Columns are given by their names, as one text or several, and {type(name).__name__} was given: leave "
                "the argument out if there are none.",
                kind="wrong_type",
            )
    return several


def spans_of(numbers: Sequence[int]) -> str:
    """Format ascending numbers as ranges: ``3``, ``1 to 7, 9``. The middle of a long list is left out."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    texts = [str(first) if first == last else f"{first} to {last}" for first, last in spans]
    if len(texts) > _SPANS_SHOWN_MAX:
        texts = [*texts[: _SPANS_SHOWN_MAX - 2], "...", texts[-1]]
    return ", ".join(texts)


def utc(time_ms: int) -> str:
    """Format a time as ``2026-01-31 12:00:00.000 UTC``; outside of the years 1 to 9999 as a number of milliseconds."""
    if not _YEAR_1_MS <= time_ms < _YEAR_10000_MS:
        return f"{time_ms} ms"
    return (_EPOCH + time_ms * _MS).isoformat(sep=" ", timespec="milliseconds").replace("+00:00", " UTC")


def html_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str = "") -> str:
    """Return an HTML table for a notebook. Every text is escaped. None is an empty cell."""
    import html  # takes 2 ms to load, for notebooks only

    def line(cells: Sequence[object], tag: str) -> str:
        texts = ("" if cell is None else html.escape(str(cell)) for cell in cells)
        return "<tr>" + "".join(f"<{tag}>{text}</{tag}>" for text in texts) + "</tr>"

    caption = f"<caption>{html.escape(title)}</caption>" if title else ""
    body = "".join(line(row, "td") for row in rows)
    return f"<table>{caption}<thead>{line(columns, 'th')}</thead><tbody>{body}</tbody></table>"


def list_some(names: Sequence[str], *, count_max: int = 5) -> str:
    """Format the first of some names as ``a, b, c and others``, for an error that says what is there."""
    return ", ".join(names[:count_max]) + (" and others" if len(names) > count_max else "")


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Suggest the most similar names: `` Did you mean jan or june?``. Empty if none is similar."""
    similar = difflib.get_close_matches(name, list(names), n=_NEAREST_MAX, cutoff=_LIKENESS_MIN)
    return f" Did you mean {' or '.join(similar)}?" if similar else ""
