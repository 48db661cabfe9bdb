"""Texts of values in folder names, as the format's Java implementation prints them. Pure.

Owns: the texts of dates, times and timestamps for both values of the option ``partition.legacy-name`` (DO NOT CHANGE:
other clients find files by them); Java's definition of blank; and ``Double.toString`` and ``Float.toString`` of both
generations of Java: `older_text` up to version 18, `newer_text` from 19 on (DO NOT CHANGE: folders of partitions have
these names).

The older generation prints one digit too many, or another last digit, for many values of FLOAT and some of DOUBLE:
8.5899346E9 and 8.589935E9 are the same FLOAT. Both texts parse to the same value.

Sources: the documentation of ``Double.toString`` of Java 19; for the older generation the algorithm of Steele and White
with that implementation's own estimates and stopping rules, checked against Java 17. Golden values of the Java client
are in ``tests/golden/java``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from math import copysign, floor, isinf, isnan
from typing import Final

import numpy as np

_DAY_NS: Final = 86_400_000_000_000
_NOT_BLANK: Final = frozenset("\u0085\u00a0\u2007\u202f")
"""Characters that are white space in Python but not in Java."""


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


_MANTISSA_BITS: Final = 52
_LONG_POWERS: Final = 27
"""Powers of five below 2^63."""


def older_text(value: float, *, is_single: bool) -> str:
    """The text in Java up to version 18.

    Args:
        value: of a FLOAT, its exact value as a double.
        is_single: True for FLOAT.
    """
    return _text(value, lambda magnitude: _older_digits(magnitude, is_single=is_single))


def newer_text(value: float, *, is_single: bool) -> str:
    """The text in Java 19 and later: of the shortest texts that parse to the value, the nearest.

    Args: as `older_text`.
    """
    return _text(value, lambda magnitude: _shortest_digits(magnitude, is_single=is_single))


def _text(value: float, digits_of: Callable[[float], tuple[str, int]]) -> str:
    if isnan(value):
        return "NaN"
    sign = "-" if copysign(1.0, value) < 0 else ""
    magnitude = abs(value)
    if isinf(magnitude):
        return f"{sign}Infinity"
    if magnitude == 0:
        return f"{sign}0.0"
    digits, exponent = digits_of(magnitude)
    if 0 <= exponent < 7:
        digits = digits.ljust(exponent + 1, "0")
        return f"{sign}{digits[: exponent + 1]}.{digits[exponent + 1 :] or '0'}"
    if -3 <= exponent < 0:
        return f"{sign}0.{'0' * (-1 - exponent)}{digits}"
    return f"{sign}{digits[0]}.{digits[1:] or '0'}E{exponent}"


def _shortest_digits(magnitude: float, *, is_single: bool) -> tuple[str, int]:
    """Digits without trailing zeros, and the decimal exponent of the first.

    Where one digit would do, the nearest two are taken (4.9E-324, not 5.0E-324).
    """
    kind = np.float32 if is_single else np.float64
    digits, exponent = _split(np.format_float_scientific(kind(magnitude), unique=True))
    if len(digits) > 1:
        return digits, exponent
    nearest = format(magnitude, ".1e")
    return _split(nearest) if kind(nearest) == magnitude else (digits, exponent)


def _split(text: str) -> tuple[str, int]:
    mantissa, exponent = text.split("e")
    return mantissa.replace(".", "").rstrip("0"), int(exponent)


def _older_digits(magnitude: float, *, is_single: bool) -> tuple[str, int]:
    """As `_shortest_digits`, for the older generation; digits may end in zeros."""
    fraction, binary_exponent, significant_bits = _parts(magnitude, is_single=is_single)
    tail_zeros = (fraction & -fraction).bit_length() - 1
    fraction_bits = _MANTISSA_BITS + 1 - tail_zeros
    tiny_bits = max(0, fraction_bits - binary_exponent - 1)
    if tiny_bits == 0 and binary_exponent <= 62:
        return _integer_digits(int(magnitude), binary_exponent - significant_bits - 1)
    estimate = floor(
        (fraction / 2**_MANTISSA_BITS - 1.5) * 0.289529654 + 0.176091259 + binary_exponent * 0.301029995663981
    )
    five_b, five_s = max(0, -estimate), max(0, estimate)
    two_b, two_s = five_b + tiny_bits + binary_exponent, five_s + tiny_bits
    two_m = two_b - significant_bits
    two_b -= fraction_bits - 1
    common = min(two_b, two_s)
    two_b, two_s, two_m = two_b - common, two_s - common, two_m - common
    if fraction_bits == 1:
        two_m -= 1
    if two_m < 0:
        two_b, two_s, two_m = two_b - two_m, two_s - two_m, 0
    size_b = fraction_bits + two_b + _five_bits(five_b)
    size_s = two_s + 1 + _five_bits(five_s + 1)
    word = 32 if max(size_b, size_s) < 32 else 64 if max(size_b, size_s) < 64 else None
    division = _Division(
        rest=((fraction >> tail_zeros) * 5**five_b) << two_b,
        divisor=5**five_s << two_s,
        margin=5**five_b << two_m,
        word=word,
    )
    return _generate_digits(division, estimate)


def _parts(magnitude: float, *, is_single: bool) -> tuple[int, int, int]:
    """The fraction with its highest bit at position 52, the binary exponent, and the number of significant bits."""
    if is_single:
        (bits,) = struct.unpack("<I", struct.pack("<f", magnitude))
        exponent, fraction, width, bias = bits >> 23, bits & (2**23 - 1), 23, 127
    else:
        (bits,) = struct.unpack("<Q", struct.pack("<d", magnitude))
        exponent, fraction, width, bias = bits >> 52, bits & (2**52 - 1), 52, 1023
    if exponent:
        return (fraction | 1 << width) << (_MANTISSA_BITS - width), exponent - bias, width + 1
    shift = width + 1 - fraction.bit_length()
    return fraction << shift << (_MANTISSA_BITS - width), 1 - shift - bias, fraction.bit_length()


def _integer_digits(number: int, spare_bits: int) -> tuple[str, int]:
    """Digits of a whole number, rounded where the last ones are beyond the precision."""
    spare_digits = len(str(2**spare_bits)) - 1 if spare_bits > 1 else 0
    length = 0
    if spare_digits:
        number, residue = divmod(number, 10**spare_digits)
        number += residue >= 10**spare_digits // 2
        length = spare_digits
    text = str(number)
    return text.rstrip("0"), length + len(text) - 1


def _five_bits(power: int) -> int:
    """The bits of a power of five, as that implementation counts them."""
    if power >= _LONG_POWERS:
        return power * 3
    return (5**power).bit_length() if power else 0


@dataclass(slots=True)
class _Division:
    """A long division in decimal, with the rules for its end."""

    rest: int
    divisor: int
    margin: int
    word: int | None
    """Size in bits of the machine integers that are used; None: integers of any size, with another rule for a tie."""
    is_low: bool = False
    is_high: bool = False

    def step(self) -> int:
        digit, rest = divmod(self.rest, self.divisor)
        self.rest, self.margin = rest * 10, self.margin * 10
        tens = self.divisor * 10
        if self.word is None:
            self.is_low, self.is_high = self.rest < self.margin, self.rest + self.margin >= tens
            return digit
        self.margin = _wrap_around(self.margin, self.word)
        if self.margin > 0:
            self.is_low = self.rest < self.margin
            self.is_high = _wrap_around(self.rest + self.margin, self.word) > tens
        else:
            self.is_low = self.is_high = True
        return digit


def _wrap_around(number: int, word: int) -> int:
    half = 1 << (word - 1)
    return (number + half) % (2 * half) - half


def _generate_digits(division: _Division, estimate: int) -> tuple[str, int]:
    digits: list[int] = []
    first = division.step()
    if first == 0 and not division.is_high:
        estimate -= 1
    else:
        digits.append(first)
    is_forced = estimate < -3 or estimate >= 8
    while is_forced or not (division.is_low or division.is_high):
        is_forced = False
        digits.append(division.step())
    if division.is_high:
        difference = 2 * division.rest - 10 * division.divisor
        if not division.is_low or difference > 0 or (difference == 0 and digits[-1] % 2):
            return _round_up(digits, estimate)
    return "".join(map(str, digits)), estimate


def _round_up(digits: list[int], exponent: int) -> tuple[str, int]:
    number = int("".join(map(str, digits))) + 1
    text = str(number).rjust(len(digits), "0")
    return text[: len(digits)], exponent + len(text) - len(digits)
