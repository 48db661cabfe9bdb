"""Arguments of procedures: their declared types, and values as callers write them.

Owns: `Parameter` and `arguments_of`. Invariant: an argument that a procedure gets has its parameter's
type, or is None.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from lakebed.errors import InvalidRequest
from lakebed.table.branch.travel import parse_time_ms
from lakebed.texts import format_value

Arguments = Mapping[str, Any]
"""Values by the names of their parameters."""

_BITS: Final = {"int": 32, "bigint": 64}
_TRUTHS: Final = {
    **dict.fromkeys(("true", "t", "yes", "y", "1"), True),
    **dict.fromkeys(("false", "f", "no", "n", "0"), False),
}
"""The texts that Spark casts to booleans."""
_EXPONENT_MAX: Final = 40
"""Numbers with more digits are outside the range of every type, and Python would write out all of the digits."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a procedure."""

    name: str
    type: str
    """In the syntax of Spark's DDL: ``string``, ``boolean``, ``int``, ``bigint`` or ``timestamp``. Values of
    ``timestamp`` are Unix milliseconds, UTC."""
    is_optional: bool = True


def arguments_of(procedure: str, parameters: Sequence[Parameter], given: Arguments) -> dict[str, Any]:
    """Return each parameter's value by its name; None if none is given.

    Args:
        given: values in JSON's types, or texts instead. Unknown names are ignored, because Spark refuses them.

    Raises `InvalidRequest`: a required value is missing, or a value does not have its parameter's type.
    """
    values: dict[str, Any] = {}
    for parameter in parameters:
        value = given.get(parameter.name)
        if value is None and not parameter.is_optional:
            raise InvalidRequest(
                f"The argument {parameter.name} of {procedure} is null: give a value.", kind="missing_argument"
            )
        values[parameter.name] = None if value is None else _convert(procedure, parameter, value)
    return values


def _convert(procedure: str, parameter: Parameter, value: Any) -> Any:
    if parameter.type == "boolean":
        truth = value if isinstance(value, bool) else _TRUTHS.get(str(value).strip().lower())
        if truth is None:
            raise _wrong(procedure, parameter, value, "true or false")
        return truth
    if parameter.type in _BITS:
        limit = 2 ** (_BITS[parameter.type] - 1)
        number = _whole(value)
        if number is None or not -limit <= number < limit:
            raise _wrong(procedure, parameter, value, f"a whole number between {-limit} and {limit - 1}")
        return number
    if parameter.type == "timestamp":
        return time_ms_of(str(value))
    return str(value)


def time_ms_of(text: str) -> int:
    """Return a time in a message as Unix milliseconds, UTC.

    Spark adds the session's zone to every time that it parses, and only the session knows this zone. Raises
    `InvalidRequest`: a text without a zone, or one that is not a time.
    """
    time_ms = parse_time_ms(text)
    if not text.strip().removeprefix("-").isdecimal() and dt.datetime.fromisoformat(text.strip()).tzinfo is None:
        raise InvalidRequest(
            f"{format_value(text)} is not a valid time: write it like 2013-02-01 or 2013-02-01 06:30:00, in the "
            "session's time zone, like 2013-02-01T06:30:00+01:00, or as Unix milliseconds.",
            kind="invalid_time",
        )
    return time_ms


def _whole(value: Any) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    text = str(value).strip()
    try:
        number = Decimal(text)
    except InvalidOperation:
        return None
    if not text.isascii() or "_" in text:  # forms that only Python accepts
        return None
    is_whole = number.is_finite() and number.adjusted() < _EXPONENT_MAX and number == number.to_integral_value()
    return int(number) if is_whole else None


def _wrong(procedure: str, parameter: Parameter, value: Any, expected: str) -> InvalidRequest:
    return InvalidRequest(
        f"The argument {parameter.name} of {procedure} is {format_value(value)}, and its type is {parameter.type}: "
        f"give {expected}.",
        kind="invalid_argument",
        argument=parameter.name,
    )
