"""Durations and sizes in the notations of people and other clients. Pure.

Owns: ``7 d``, ``1h``, ``7days 30min 10s``, ISO 8601 ``P1DT2H`` / ``PT24H`` (Java's text), and sizes such as ``128 mb``.
Milliseconds everywhere; a bare number is milliseconds (bytes for sizes), as in Paimon.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

from lakebed.errors import InvalidRequest
from lakebed.texts import LONG_MAX, format_value

_UNIT_MS: Final[dict[str, Decimal]] = {
    alias: Decimal(factor)
    for factor, aliases in (
        ("0.000001", "ns nano nanos nanosecond nanoseconds"),
        ("0.001", "us µs micro micros microsecond microseconds"),
        ("1", "ms milli millis millisecond milliseconds"),
        ("1000", "s sec secs second seconds"),
        ("60000", "m min mins minute minutes"),
        ("3600000", "h hour hours"),
        ("86400000", "d day days"),
        ("604800000", "w week weeks"),
        ("31557600000", "y year years"),
    )
    for alias in aliases.split()
}
_UNIT_BYTES: Final[dict[str, int]] = {
    alias: 1 << shift
    for shift, aliases in (
        (0, "b byte bytes"),
        (10, "k kb kib kibibyte kibibytes"),
        (20, "m mb mib mebibyte mebibytes"),
        (30, "g gb gib gibibyte gibibytes"),
        (40, "t tb tib tebibyte tebibytes"),
    )
    for alias in aliases.split()
}
_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-zµ]*)\s*")
_ISO: Final = re.compile(
    r"P(?:(?P<w>[0-9]+)W)?(?:(?P<d>[0-9]+)D)?"
    r"(?:T(?:(?P<h>[0-9]+)H)?(?:(?P<m>[0-9]+)M)?(?:(?P<s>[0-9]+(?:\.[0-9]+)?)S)?)?",
    re.IGNORECASE,
)
_DURATION_MS_MAX: Final = 2**63 - 1
_TEXT_LENGTH_MAX: Final = 1000


def parse_duration_ms(text: str) -> int:
    """Milliseconds of a duration text; parts below a millisecond are cut off.

    Raises:
        InvalidRequest: not a duration, or negative, or above 2^63 - 1 milliseconds.
    """
    trimmed_text = text.strip()
    total = None
    if len(trimmed_text) <= _TEXT_LENGTH_MAX:
        total = _iso_ms(trimmed_text) if trimmed_text[:1] in ("P", "p") else _parts_ms(trimmed_text)
    if total is None:
        raise InvalidRequest(
            f"{format_value(text)} is not a duration: write a number and a unit such as '7 d', '1h', '30min 10s', "
            "or ISO 8601 such as 'P7D'.",
            kind="invalid_duration",
            text=text,
        )
    if total > _DURATION_MS_MAX:
        raise InvalidRequest(
            f"Duration {format_value(text)} is too long for 64 bits of milliseconds.", kind="invalid_duration"
        )
    return int(total)


def _iso_ms(text: str) -> Decimal | None:
    match = _ISO.fullmatch(text)
    if match is None or not any(match.groupdict().values()) or text.upper().endswith("T"):
        return None
    return sum((Decimal(value) * _UNIT_MS[unit] for unit, value in match.groupdict().items() if value), Decimal(0))


def _parts_ms(text: str) -> Decimal | None:
    lowered, position, total = text.lower(), 0, Decimal(0)
    while position < len(lowered):
        match = _PART.match(lowered, position)
        if match is None:
            return None
        unit = match[2] or "ms"
        # A bare number is milliseconds only when it stands alone: "1h 30" is ambiguous.
        if unit not in _UNIT_MS or (not match[2] and match[0] != lowered):
            return None
        total += Decimal(match[1]) * _UNIT_MS[unit]
        position = match.end()
    return total if text else None


def format_duration(duration_ms: int) -> str:
    """Format a duration as the shortest text that `parse_duration_ms` reads back exactly.

    Examples: ``7 d``, ``1 h 30 min``, ``250 ms``.
    """
    parts = []
    rest = duration_ms
    for unit, factor in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000), ("ms", 1)):
        count, rest = divmod(rest, factor)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts) or "0 ms"


def format_iso_duration(duration_ms: int) -> str:
    """Format a duration as ``java.time.Duration`` prints it: ``PT24H``, ``PT30M``, ``PT5.25S``, ``PT0S``."""
    hours, rest = divmod(duration_ms, 3_600_000)
    minutes, rest = divmod(rest, 60_000)
    text = "PT" + (f"{hours}H" if hours else "") + (f"{minutes}M" if minutes else "")
    if rest or text == "PT":
        seconds, millis = divmod(rest, 1000)
        fraction = f".{millis:03d}".rstrip("0") if millis else ""
        text += f"{seconds}{fraction}S"
    return text


def parse_size_bytes(text: str) -> int:
    """Bytes of a size text such as ``128 mb`` (units are powers of 1024); a bare number is bytes.

    Raises:
        InvalidRequest: not a size.
    """
    match = _PART.fullmatch(text.strip().lower()) if len(text) <= _TEXT_LENGTH_MAX else None
    if match is None or (match[2] or "b") not in _UNIT_BYTES:
        raise InvalidRequest(
            f"{format_value(text)} is not a size: write a number and a unit such as '128 mb', '1 gb' or '4096'.",
            kind="invalid_size",
            text=text,
        )
    size_bytes = int(Decimal(match[1]) * _UNIT_BYTES[match[2] or "b"])
    if size_bytes > LONG_MAX:
        raise InvalidRequest(f"Size {format_value(text)} is too large for 64 bits of bytes.", kind="invalid_size")
    return size_bytes
