"""Columns as Python objects, also for values that Python has no object for. Pure.

Owns: the replacement of two kinds of values by a text in the form of ISO 8601: dates and timestamps outside the years 1
to 9999; and nanoseconds, which `datetime` lacks and for which Arrow needs pandas. Invariants: a column that Python can
hold is as `to_pylist` returns it, except nanoseconds, which are the same with and without pandas. Nothing raises.
"""

from __future__ import annotations

import datetime
from typing import Any, Final

import pyarrow as pa

import lakebed.compute as pc

_DAYS: Final = (-719_162, 2_932_896)
"""0001-01-01 and 9999-12-31, as days since 1970."""
_ARROW_DAYS: Final = (-12_687_428, 11_248_737)
"""-32767-01-01 and 32767-12-31: Arrow counts years in 16 bits."""
_CYCLE_DAYS: Final = 146_097
"""400 years, after which the calendar repeats."""
_PER_DAY: Final = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}


def python_rows(rows: pa.Table | pa.RecordBatch) -> list[dict[str, Any]]:
    """Rows as dictionaries, as `pa.Table.to_pylist` returns them if Python has all values."""
    if not any(_has_times(field.type) for field in rows.schema):
        return rows.to_pylist()  # type: ignore[no-any-return]
    names = rows.schema.names
    columns = [python_values(column) for column in rows.columns]
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def find_beyond_calendar(rows: pa.RecordBatch) -> str | None:
    """The name of a column with a time for which Arrow's text, as in CSV, is missing or of another year; or None."""
    for field, column in zip(rows.schema, rows.columns, strict=True):
        if pa.types.is_date32(field.type) or pa.types.is_timestamp(field.type):
            units, per_day = _units_of(column)
            least, greatest = _ARROW_DAYS[0] * per_day, (_ARROW_DAYS[1] + 1) * per_day - 1
            extremes = pc.min_max(units)
            if extremes["min"].is_valid and (extremes["min"].as_py() < least or extremes["max"].as_py() > greatest):
                return str(field.name)
    return None


def python_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """The values of a column as Python objects. Dates and times that Python cannot represent are texts.

    Cost: as `to_pylist`, and a few passes over dates and timestamps; nested ones take Python's time for each value.
    """
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    return [value for chunk in chunks for value in _values(chunk)]


def _values(chunk: pa.Array) -> list[Any]:
    kind = chunk.type
    if not _has_times(kind):
        return chunk.to_pylist()  # type: ignore[no-any-return]
    if pa.types.is_dictionary(kind):
        return _values(chunk.dictionary_decode())
    if pa.types.is_nested(kind):
        return [_inside(value) if value.is_valid else None for value in chunk]
    return _times(chunk)


def _inside(value: pa.Scalar) -> Any:
    kind = value.type
    if pa.types.is_struct(kind):
        return {field.name: _values(pa.array([value[place]], field.type))[0] for place, field in enumerate(kind)}
    if pa.types.is_map(kind):
        return list(zip(*(_values(value.values.field(place)) for place in range(2)), strict=True))
    return _values(value.values)


def _times(chunk: pa.Array) -> list[Any]:
    """The values of a column of dates or timestamps."""
    kind = chunk.type
    units, per_day = _units_of(chunk)
    least, greatest = _DAYS[0] * per_day, (_DAYS[1] + 1) * per_day - 1
    fits = pc.and_(pc.greater_equal(units, max(least, -(2**63))), pc.less_equal(units, min(greatest, 2**63 - 1)))
    if per_day == _PER_DAY["ns"]:
        fits = pc.and_(fits, pc.equal(pc.multiply(pc.divide(units, 1000), 1000), units))
    fitting_values = pc.if_else(fits, chunk, pa.scalar(None, kind))
    values: list[Any] = (
        fitting_values.cast(pa.timestamp("us", kind.tz)) if per_day == _PER_DAY["ns"] else fitting_values
    ).to_pylist()
    if fitting_values.null_count == chunk.null_count:
        return values
    # Beyond years of 16 bits, Arrow's text is missing or has another year than the value.
    has_zone = per_day > 1 and kind.tz is not None
    return [
        value if value is not None or number is None else _iso_text(number, per_day, has_zone=has_zone)
        for value, number in zip(values, units.to_pylist(), strict=True)
    ]


def _units_of(column: pa.Array) -> tuple[pa.Array, int]:
    """The numbers since 1970 in a column of dates or timestamps, and how many of these units are a day."""
    is_date = pa.types.is_date32(column.type)
    return column.cast(pa.int32() if is_date else pa.int64()), 1 if is_date else _PER_DAY[column.type.unit]


def _iso_text(number: int, per_day: int, *, has_zone: bool) -> str:
    """A date, or a timestamp in UTC, of any year, as ISO 8601; the year 0 precedes the year 1."""
    day, rest = divmod(number, per_day)
    cycle, day_of_cycle = divmod(day - _DAYS[0], _CYCLE_DAYS)
    date = datetime.date.fromordinal(day_of_cycle + 1)
    year = date.year + 400 * cycle
    text = f"{'-' if year < 0 else ''}{abs(year):04}-{date.month:02}-{date.day:02}"
    if per_day == 1:
        return text
    per_second = per_day // 86_400
    seconds, fraction = divmod(rest, per_second)
    digits = f".{fraction:0{len(str(per_second)) - 1}}" if per_second > 1 else ""
    minutes, second = divmod(seconds, 60)
    clock = f"{minutes // 60:02}:{minutes % 60:02}:{second:02}"
    return f"{text}T{clock}{digits}{'+00:00' if has_zone else ''}"


def _has_times(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return _has_times(kind.value_type)
    if pa.types.is_nested(kind):
        return any(_has_times(kind.field(place).type) for place in range(kind.num_fields))
    return bool(pa.types.is_date32(kind) or pa.types.is_timestamp(kind))
