"""Parsers of option values that one option alone has. Pure.

Each raises `InvalidRequest` with the end of a sentence that says what the value must be.
"""

from __future__ import annotations

import re

from lakebed.duration import parse_duration_ms
from lakebed.errors import InvalidRequest
from lakebed.texts import shown

__all__ = ["parse_directory", "parse_period", "parse_weights"]


def parse_period(text: str) -> str:
    """A named period, or a duration of whole seconds."""
    if text not in ("daily", "hourly", "two-hours"):
        period_ms = parse_duration_ms(text)
        if period_ms < 1000 or period_ms % 1000:
            raise InvalidRequest(f"{shown(text)} is not daily, hourly, two-hours or a duration of whole seconds.")
    return text


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
        raise InvalidRequest(f"{shown(text)} is not a list of whole numbers from 1 to 999999999, such as 1,3.")
    return tuple(map(int, parts))
