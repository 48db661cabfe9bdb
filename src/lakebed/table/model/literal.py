"""Exact comparisons of columns with values of predicates. Pure.

Owns: the meaning of a comparison of a column with a Python value or an Arrow scalar.

Invariants:
- No comparison rounds. A value between two values of an integer, decimal, date, time or timestamp column becomes a
  comparison with the lower one; a value outside the range of the type becomes `Known`. So no column is cast.
- Floats are compared in double precision: 0.1 in single precision is another number.
"""

from __future__ import annotations

import datetime
import decimal
import math
import re
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

import lakebed.compute as pc
from lakebed.errors import InvalidRequest
from lakebed.table.model.predicate_tree import Compare, Comparison, Known, OneOf, Predicate
from lakebed.texts import format_value

_EXACT: Final = decimal.Context(
    prec=decimal.MAX_PREC, Emin=decimal.MIN_EMIN, Emax=decimal.MAX_EMAX, rounding=decimal.ROUND_FLOOR, traps=[]
)
_DIGITS_BELOW_SECOND: Final = {"s": 0, "ms": 3, "us": 6, "ns": 9}
_EPOCH: Final = datetime.datetime(1970, 1, 1)
_FRACTION: Final = re.compile(r"(?<=[0-9])[.,]([0-9]+)")
_MISFITS: Final = (pa.ArrowException, ArithmeticError, ValueError, TypeError)


def bind_comparison(name: str, op: Comparison, value: Any, kind: pa.DataType) -> Predicate:
    """``name <op> value`` for a column of type `kind`: a `Compare` with a scalar, or `Known`.

    Raises `InvalidRequest`: the value cannot be compared with the column.
    """
    if isinstance(value, pa.Scalar) and (value.type == kind or _is_double(value.type, kind)):
        return Compare(name, op, value)
    if value is None or (isinstance(value, pa.Scalar) and not value.is_valid):
        return Compare(name, op, pa.scalar(None, kind))
    try:
        place = _place(value, kind)
        if place is None:
            return Compare(name, op, _scalar(value, kind))
        return _comparison(name, op, place, kind)
    except _MISFITS as error:
        raise _misfit(name, value, kind) from error


def bind_list(name: str, values: Sequence[Any], kind: pa.DataType) -> Predicate:
    """``name IN (values)``, of at least one value. Cost: one Arrow conversion when all values are of one plain kind.

    Raises `InvalidRequest`: a value cannot be compared with the column.
    """
    present = [value for value in values if not _is_null(value)]
    has_null = len(present) < len(values)
    array = _at_once(present, kind)
    if array is None:
        scalars = []
        for value in present:
            comparison = bind_comparison(name, "=", value, kind)
            if isinstance(comparison, Compare):
                scalars.append(comparison.value)
        array = pa.array(scalars, pa.float64() if pa.types.is_floating(kind) else kind)
    if pa.types.is_floating(kind):
        array = array.filter(pc.invert(pc.is_nan(array)))
        if pc.any(pc.equal(array, 0.0)).as_py():
            # Arrow's IN distinguishes 0.0 and -0.0.
            array = pa.concat_arrays([array, pa.array([0.0, -0.0])])
    if not len(array):
        return Compare(name, "=", pa.scalar(None, kind)) if has_null else Known(name, False)
    return OneOf(name, array.unique(), has_null)


def _is_null(value: Any) -> bool:
    return value is None or (isinstance(value, pa.Scalar) and not value.is_valid)


def _is_double(given: pa.DataType, kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind) and given == pa.float64())


def _at_once(values: Sequence[Any], kind: pa.DataType) -> pa.Array | None:
    """All values converted by Arrow in one call, where the result is the same as one by one; else None."""
    kinds = set(map(type, values))
    types = pa.types
    if types.is_integer(kind):
        is_plain, target = kinds <= {int}, kind
    elif types.is_floating(kind):
        is_plain, target = kinds <= {int, float}, pa.float64()
    else:
        is_plain, target = (
            (kinds <= {str} and types.is_string(kind)) or (kinds <= {bytes} and types.is_binary(kind)),
            kind,
        )
    if not is_plain:
        return None
    try:
        return pa.array(values, target)
    except _MISFITS:
        return None  # the caller finds the value that does not fit


def _misfit(name: str, value: Any, kind: pa.DataType) -> InvalidRequest:
    return InvalidRequest(
        f"Column {name!r} is {kind} and cannot be compared with {format_value(value)}.",
        kind="invalid_predicate",
        column=name,
    )


# ---- types whose values are whole numbers of ticks


def _place(value: Any, kind: pa.DataType) -> decimal.Decimal | None:
    """A value in ticks of the column (units of its last digit, or of time); None: a type without ticks."""
    types = pa.types
    if types.is_integer(kind) or types.is_decimal(kind):
        number = value.as_py() if isinstance(value, pa.Scalar) else value
        if isinstance(number, bool) or not isinstance(number, int | float | decimal.Decimal):
            raise TypeError
        return _EXACT.scaleb(decimal.Decimal(number), kind.scale if types.is_decimal(kind) else 0)
    if types.is_timestamp(kind):
        return _EXACT.scaleb(_seconds(value), _DIGITS_BELOW_SECOND[kind.unit])
    if types.is_date32(kind):
        return _days(value)
    if types.is_time(kind):
        return _EXACT.scaleb(_seconds_of_day(value), _DIGITS_BELOW_SECOND[kind.unit])
    return None


def _comparison(name: str, op: Comparison, place: decimal.Decimal, kind: pa.DataType) -> Predicate:
    if place.is_nan():
        return Known(name, op == "<>")
    least, greatest = _range(kind)
    if place < least or place > greatest:
        is_below = place > greatest  # every value of the column is below `place`
        return Known(name, op == "<>" or (op in ("<", "<=") if is_below else op in (">", ">=")))
    floor = place.to_integral_value(decimal.ROUND_FLOOR)
    if floor != place:
        if op in ("=", "<>"):
            return Known(name, op == "<>")
        op = "<=" if op in ("<", "<=") else ">"
    return Compare(name, op, _of_ticks(int(floor), kind))


def _range(kind: pa.DataType) -> tuple[int, int]:
    if pa.types.is_decimal(kind):
        greatest = 10**kind.precision - 1
        return -greatest, greatest
    bits = kind.bit_width
    if pa.types.is_unsigned_integer(kind):
        return 0, 2**bits - 1
    return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1


def _of_ticks(ticks: int, kind: pa.DataType) -> pa.Scalar:
    if pa.types.is_decimal(kind):
        return pa.scalar(_EXACT.scaleb(decimal.Decimal(ticks), -kind.scale), kind)
    if pa.types.is_integer(kind):
        return pa.scalar(ticks, kind)
    return pa.scalar(ticks, pa.int32() if kind.bit_width == 32 else pa.int64()).cast(kind)


def _seconds_of_day(value: Any) -> decimal.Decimal:
    """Seconds since midnight, exactly; text is as in ``23:59:59.999``."""
    if isinstance(value, pa.Scalar):
        value = value.as_py()
    fraction = decimal.Decimal(0)
    if isinstance(value, str):
        value, fraction = _cut_fraction(value)
        value = datetime.time.fromisoformat(value.strip())
    if not isinstance(value, datetime.time) or value.tzinfo is not None:
        raise TypeError
    micros = (datetime.datetime.combine(_EPOCH, value) - _EPOCH) // datetime.timedelta(microseconds=1)
    return _EXACT.add(_EXACT.scaleb(decimal.Decimal(micros), -6), fraction)


def _cut_fraction(text: str) -> tuple[str, decimal.Decimal]:
    """A time without the fraction of its second, and all digits of the fraction. Python keeps only six digits of it."""
    match = _FRACTION.search(text)
    if match is None:
        return text, decimal.Decimal(0)
    return text[: match.start()] + text[match.end() :], decimal.Decimal(f"0.{match[1]}")


def _seconds(value: Any) -> decimal.Decimal:
    """Seconds since 1970, exactly; text and naive times are UTC."""
    if isinstance(value, pa.Scalar):
        if not pa.types.is_timestamp(value.type):
            return _seconds(value.as_py())
        return _EXACT.scaleb(decimal.Decimal(value.value), -_DIGITS_BELOW_SECOND[value.type.unit])
    fraction = decimal.Decimal(0)
    if isinstance(value, str):
        value, fraction = _cut_fraction(value)
        value = datetime.datetime.fromisoformat(value.strip())
    if not isinstance(value, datetime.date):
        raise TypeError
    if not isinstance(value, datetime.datetime):
        value = datetime.datetime(value.year, value.month, value.day)
    # Not astimezone: it fails for the first and last hours of the calendar.
    elapsed = value.replace(tzinfo=None) - _EPOCH - (value.utcoffset() or datetime.timedelta())
    micros = elapsed // datetime.timedelta(microseconds=1)
    nanos = decimal.Decimal(micros * 1000 + getattr(value, "nanosecond", 0))
    return _EXACT.add(_EXACT.scaleb(nanos, -9), fraction)


def _days(value: Any) -> decimal.Decimal:
    if isinstance(value, pa.Scalar) and pa.types.is_date32(value.type):
        return decimal.Decimal(value.value)
    if isinstance(value, str):
        try:
            return decimal.Decimal(pa.scalar(value.strip()).cast(pa.date32()).value)
        except pa.ArrowInvalid:
            pass  # not a plain date: with a time of day it is between two days
    seconds = _seconds(value)
    days, rest = divmod(seconds.to_integral_value(decimal.ROUND_FLOOR), 86_400)
    is_between = rest != 0 or seconds != seconds.to_integral_value(decimal.ROUND_FLOOR)
    day_count = days - 1 if rest < 0 else days
    return _EXACT.add(day_count, decimal.Decimal("0.5")) if is_between else day_count


# ---- other types


def _scalar(value: Any, kind: pa.DataType) -> pa.Scalar:
    """The value in the column's type, in double precision for floats."""
    types = pa.types
    if isinstance(value, pa.Scalar):
        value = value.as_py()
    is_number = isinstance(value, int | float | decimal.Decimal) and not isinstance(value, bool)
    if types.is_floating(kind):
        if not is_number:
            raise TypeError
        return pa.scalar(_double(value), pa.float64())
    if types.is_boolean(kind) != isinstance(value, bool) or is_number:
        raise TypeError
    if isinstance(value, str) and types.is_binary(kind):
        return pa.scalar(value.encode(), kind)
    return pa.scalar(value, kind)


def _double(value: float | decimal.Decimal) -> float:
    """The nearest double; infinity beyond the range."""
    try:
        return float(value)
    except OverflowError:
        return math.copysign(math.inf, value)
