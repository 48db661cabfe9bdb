"""Texts of values in folder names, as the format's Java implementation prints them. Pure.

Owns: the texts of dates, times and timestamps for both values of the option ``partition.legacy-name`` (DO NOT CHANGE:
other clients find files by them), and Java's definition of blank. Golden values of the Java client are in
``tests/golden/java``.
"""

from __future__ import annotations

from typing import Final

_DAY_NS: Final = 86_400_000_000_000
_NOT_BLANK: Final = frozenset("\u0085\u00a0\u2007\u202f")
"""Characters that are white space in Python and not in Java."""


def is_blank(text: str) -> bool:
    """Whether a text is empty or white space only, as in Java."""
    return not text or (text.isspace() and not _NOT_BLANK.intersection(text))


def date_text(days: int) -> str:
    """``2013-01-01``. Args: days since 1970, of the years 1 to 9999."""
    year, month, day = _civil(days)
    return f"{year:04d}-{month:02d}-{day:02d}"


def time_text(milliseconds: int, *, precision: int) -> str:
    """``12:00:00.12``: at least one digit of a fraction when there is a precision, no zeros after it."""
    seconds, fraction = divmod(milliseconds, 1000)
    text = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    if precision == 0:
        return text
    digits = f"{fraction:03d}"
    return f"{text}.{digits.rstrip('0')[:precision] or '0'}" if fraction else f"{text}.0"


def iso_timestamp_text(nanoseconds: int) -> str:
    """``2024-01-01T00:00``: seconds only when they or a fraction are not zero, the fraction in groups of three digits.

    Args:
        nanoseconds: since 1970, of the years 1 to 9999.
    """
    days, rest = divmod(nanoseconds, _DAY_NS)
    seconds, fraction = divmod(rest, 1_000_000_000)
    text = f"{date_text(days)}T{seconds // 3600:02d}:{seconds // 60 % 60:02d}"
    if seconds % 60 or fraction:
        text += f":{seconds % 60:02d}"
    digits = f"{fraction:09d}"
    while digits.endswith("000"):
        digits = digits[:-3]
    return f"{text}.{digits}" if digits else text


def pad_timestamp_text(nanoseconds: int, *, precision: int) -> str:
    """``2024-01-01 00:00:00.000``: a fraction of at least `precision` digits, longer ones without trailing zeros."""
    days, rest = divmod(nanoseconds, _DAY_NS)
    seconds, fraction = divmod(rest, 1_000_000_000)
    digits = f"{fraction:09d}"
    while len(digits) > precision and digits.endswith("0"):
        digits = digits[:-1]
    text = f"{date_text(days)} {seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return f"{text}.{digits}" if digits else text


def _civil(days: int) -> tuple[int, int, int]:
    """Year, month and day of the proleptic Gregorian calendar."""
    era, day_of_era = divmod(days + 719_468, 146_097)
    year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted = (5 * day_of_year + 2) // 153
    month = shifted + 3 if shifted < 10 else shifted - 9
    return year_of_era + era * 400 + (month <= 2), month, day_of_year - (153 * shifted + 2) // 5 + 1
