"""Aggregate functions of the format by name, over whole columns. Pure.

Owns: `FUNCTIONS`, and how each handles rows that are taken back. Names and results are Paimon's.

Invariants:
- A function gets the rows of a key oldest first and returns one value for each key; null: no row had a value.
- Rows that `KeyRows.counts` excludes do not exist for it.
- Sums and products of whole numbers and decimals are exact: a result that the column's type cannot hold is an
  `InvalidRequest`, never another number. Floats are added in the order of rows, so their rounding depends on which rows
  were merged first.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import lakebed.compute as pc
from lakebed.errors import InvalidRequest
from lakebed.table.codec.avro_container import DamageError
from lakebed.table.codec.ragged import valid_mask
from lakebed.table.codec.roaring import unite
from lakebed.table.engines.key_rows import NONE, KeyRows
from lakebed.table.engines.lists import collect, listagg, merge_map, nested_update
from lakebed.table.engines.merge import Mask, Positions, encode_keys
from lakebed.table.model.types import Type


class Retracts(enum.Enum):
    """How a function handles a row that takes an earlier one back."""

    EXACT = "exact"
    """It undoes the earlier row, even if it is merged before that row."""
    LATER = "later"
    """It undoes the earlier row, if it is merged together with all older rows of its key."""
    NO = "no"
    """It is refused, unless the column ignores such rows."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Options of one column."""

    delimiter: str = ","
    distinct: bool = False
    nested_key: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Function:
    """One aggregate function."""

    values: Callable[[pa.Array, KeyRows, Settings], pa.Array]
    """The values of all keys from the values of their rows."""
    takes: Callable[[Type], bool]
    """Whether the function accepts columns of a type."""
    retracts: Retracts
    any_order: bool
    """Whether the order of rows does not matter."""


def _pick_by(pick: Callable[[pa.Array, KeyRows], Positions]) -> Callable[[pa.Array, KeyRows, Settings], pa.Array]:
    """A function that returns the value of one row of each key: the row that `pick` chooses, or null for `NONE`."""

    def values(column: pa.Array, rows: KeyRows, _: Settings) -> pa.Array:
        positions = pick(column, rows)
        return column.take(pa.array(positions, mask=positions == NONE))

    return values


def _unless_retracted(positions: Positions, rows: KeyRows) -> Positions:
    """The given rows, with `NONE` for those that take a row back."""
    return np.where((positions != NONE) & rows.retracts[positions], NONE, positions)


def _last(_: pa.Array, rows: KeyRows) -> Positions:
    return _unless_retracted(rows.last(rows.counts), rows)


def _last_non_null(column: pa.Array, rows: KeyRows) -> Positions:
    return _unless_retracted(rows.last(rows.counts & valid_mask(column)), rows)


def _first(_: pa.Array, rows: KeyRows) -> Positions:
    return rows.first(rows.counts)


def _first_non_null(column: pa.Array, rows: KeyRows) -> Positions:
    return rows.first(rows.counts & valid_mask(column))


def _greatest(column: pa.Array, rows: KeyRows, *, least: bool = False) -> Positions:
    """The newest of the greatest (or least) values, in the order of keys: NaN is the greatest, -0.0 is below 0.0."""
    usable = rows.counts & valid_mask(column)
    codes = encode_keys([[column]], descending=(least,))[0]
    best = np.maximum.reduceat(np.where(usable, codes, np.iinfo(np.int64).min), rows.starts)
    return rows.last(usable & (codes == best[rows.key_of]))


def _least(column: pa.Array, rows: KeyRows) -> Positions:
    return _greatest(column, rows, least=True)


def _all_true(column: pa.Array, rows: KeyRows) -> Positions:
    """The oldest row that is false, or else a row that is true."""
    return _decide(column, rows, by=False)


def _one_true(column: pa.Array, rows: KeyRows) -> Positions:
    return _decide(column, rows, by=True)


def _decide(column: pa.Array, rows: KeyRows, *, by: bool) -> Positions:
    usable = rows.counts & valid_mask(column)
    deciding: Mask = column.fill_null(False).to_numpy(zero_copy_only=False) == by
    positions = rows.first(usable & deciding)
    return np.where(positions == NONE, rows.first(usable), positions)


def _unite_bitmaps(column: pa.Array, rows: KeyRows, _: Settings) -> pa.Array:
    """The union of the bitmaps of each key. A single bitmap is returned byte for byte."""
    usable = rows.counts & valid_mask(column)
    positions = rows.last(usable)
    unions = column.take(pa.array(positions, mask=positions == NONE)).to_pylist()
    bodies = column.filter(pa.array(usable)).to_pylist()
    counts = np.add.reduceat(usable.astype(np.int64), rows.starts)
    ends = np.cumsum(counts)
    for key in np.flatnonzero(counts > 1).tolist():
        try:
            unions[key] = unite(bodies[ends[key] - counts[key] : ends[key]])
        except DamageError as error:
            raise InvalidRequest(
                "A value of a column that rbm32 aggregates is not a 32-bit Roaring bitmap in the portable format: "
                f"{error}. Write bitmaps as the libraries of Roaring bitmaps serialise them; to read the rows that are "
                "there, set the column's aggregate function to 'last_value'.",
                kind="invalid_bitmap",
            ) from error
    return pa.array(unions, column.type)


_NUMBERS: Final = frozenset(("TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL"))


def _numbers(kind: Type) -> bool:
    return kind.root in _NUMBERS


def _factors(kind: Type) -> bool:
    return kind.root in _NUMBERS and (kind.root != "DECIMAL" or (kind.precision or 0) <= PRODUCT_DIGITS_MAX)


def _texts(kind: Type) -> bool:
    return kind.root in ("VARCHAR", "STRING", "CHAR")


def _booleans(kind: Type) -> bool:
    return kind.root == "BOOLEAN"


def has_order(kind: Type) -> bool:
    """Whether values of a type can be compared."""
    return not kind.is_nested and kind.root not in ("VARIANT", "BLOB")


def _any(_: Type) -> bool:
    return True


def _arrays(kind: Type) -> bool:
    return kind.root == "ARRAY" and has_order(kind.children[0])


def _arrays_of_rows(kind: Type) -> bool:
    return kind.root == "ARRAY" and kind.children[0].root == "ROW"


def _bytes(kind: Type) -> bool:
    return kind.root in ("VARBINARY", "BYTES")


def _maps(kind: Type) -> bool:
    return kind.root == "MAP" and has_order(kind.children[0])


FUNCTIONS: Final[Mapping[str, Function]] = {
    "sum": Function(lambda c, r, _: sum_of(c, r), _numbers, Retracts.EXACT, True),
    "product": Function(lambda c, r, _: product(c, r), _factors, Retracts.LATER, True),
    "max": Function(_pick_by(_greatest), has_order, Retracts.NO, True),
    "min": Function(_pick_by(_least), has_order, Retracts.NO, True),
    "last_value": Function(_pick_by(_last), _any, Retracts.EXACT, False),
    "last_non_null_value": Function(_pick_by(_last_non_null), _any, Retracts.LATER, False),
    "first_value": Function(_pick_by(_first), _any, Retracts.NO, False),
    "first_non_null_value": Function(_pick_by(_first_non_null), _any, Retracts.NO, False),
    "listagg": Function(
        lambda c, r, s: listagg(c, r, delimiter=s.delimiter, distinct=s.distinct), _texts, Retracts.NO, False
    ),
    "bool_and": Function(_pick_by(_all_true), _booleans, Retracts.NO, True),
    "bool_or": Function(_pick_by(_one_true), _booleans, Retracts.NO, True),
    "collect": Function(lambda c, r, s: collect(c, r, distinct=s.distinct), _arrays, Retracts.LATER, False),
    "merge_map": Function(lambda c, r, _: merge_map(c, r), _maps, Retracts.LATER, False),
    "nested_update": Function(
        lambda c, r, s: nested_update(c, r, nested_key=s.nested_key), _arrays_of_rows, Retracts.LATER, False
    ),
    "rbm32": Function(_unite_bitmaps, _bytes, Retracts.NO, True),
}
"""Every function by its name in the option ``fields.<column>.aggregate-function``."""


PRODUCT_DIGITS_MAX = 37
"""Most digits of decimals that can be multiplied: Arrow has 76 for the exact product."""

_HALF_BITS = 32
_LOW_HALF = np.int64(0xFFFF_FFFF)
_HALF_SPAN = 2**31


def sum_of(values: pa.Array, rows: KeyRows) -> pa.Array:
    """The sum of each key. Values of rows that are taken back are subtracted. Null where all values are null.

    Args:
        values: numbers, one for each row.
    """
    usable = rows.counts & valid_mask(values)
    if pa.types.is_decimal(values.type):
        sums = _decimal_sums(values, rows, usable)
    elif pa.types.is_floating(values.type):
        numbers = values.to_numpy(zero_copy_only=False)
        # Fill with -0.0: added to any number, even to -0.0, it does not change it.
        signed_numbers = np.where(usable, np.where(rows.retracts, -numbers, numbers), numbers.dtype.type(-0.0))
        with np.errstate(over="ignore", invalid="ignore"):  # infinity and NaN are valid sums, as in other clients
            sums = pa.array(np.add.reduceat(signed_numbers, rows.starts), values.type)
    else:
        sums = _whole_sums(values, rows, usable)
    return pc.if_else(pa.array(rows.any(usable)), sums, pa.scalar(None, values.type))


def _whole_sums(values: pa.Array, rows: KeyRows, usable: Mask) -> pa.Array:
    """Sum the upper and the lower halves of the numbers separately, so that neither sum can overflow."""
    numbers = pc.fill_null(values, 0).to_numpy().astype(np.int64)
    sign = np.where(usable, np.where(rows.retracts, np.int64(-1), np.int64(1)), np.int64(0))
    low = np.add.reduceat((numbers & _LOW_HALF) * sign, rows.starts)
    high = np.add.reduceat((numbers >> _HALF_BITS) * sign, rows.starts) + (low >> _HALF_BITS)
    fits = (high >= -_HALF_SPAN) & (high < _HALF_SPAN)
    sums = (high << _HALF_BITS) | (low & _LOW_HALF)
    bounds = np.iinfo(values.type.to_pandas_dtype())
    if not bool(np.all(fits & (sums >= bounds.min) & (sums <= bounds.max))):
        raise _too_large("sum", values.type)
    return pa.array(sums).cast(values.type)


def _decimal_sums(values: pa.Array, rows: KeyRows, usable: Mask) -> pa.Array:
    wide = values.cast(pa.decimal256(76, values.type.scale))
    if rows.retracts.any():
        wide = pc.if_else(pa.array(rows.retracts), pc.negate(wide), wide)
    mask = pa.array(usable)
    keyed_values = pa.table({"key": pa.array(rows.key_of).filter(mask), "value": wide.filter(mask)})
    totals = keyed_values.group_by("key", use_threads=False).aggregate([("value", "sum")])
    place = np.full(rows.key_count, -1)
    place[totals.column("key").to_numpy()] = np.arange(totals.num_rows)
    sums = totals.column("value_sum").combine_chunks().take(pa.array(place, mask=place < 0))
    try:
        return sums.cast(values.type)
    except pa.ArrowInvalid as error:
        raise _too_large("sum", values.type) from error


def product(values: pa.Array, rows: KeyRows) -> pa.Array:
    """The product of each key. Null where all values are null.

    Values of rows that are taken back are divisors, as in other clients. A row that is taken back before any other row
    has a value changes nothing.

    Cost: one step over columns for each row of the key that has the most rows.
    """
    usable = rows.counts & valid_mask(values)
    begins = rows.first(usable & ~rows.retracts)
    used_rows = np.flatnonzero(usable & (begins[rows.key_of] >= 0) & (np.arange(len(usable)) >= begins[rows.key_of]))
    keys, counts = np.unique(rows.key_of[used_rows], return_counts=True)
    starts = np.cumsum(counts) - counts
    longest_first = np.argsort(-counts, kind="stable")
    starts, counts = starts[longest_first], counts[longest_first]
    state, finished_states = values.take(pa.array(used_rows[starts])), []
    for step in range(1, int(counts[0]) if len(counts) else 1):
        active = int(np.searchsorted(-counts, -step))
        finished_states.append(state.slice(active))
        step_rows = used_rows[starts[:active] + step]
        state = _next_products(state.slice(0, active), values.take(pa.array(step_rows)), rows.retracts[step_rows])
    products = pa.concat_arrays([state, *reversed(finished_states)])
    place = np.full(rows.key_count, -1)
    place[keys[longest_first]] = np.arange(len(keys))
    return products.take(pa.array(place, mask=place < 0))


def _next_products(state: pa.Array, factors: pa.Array, retracts: npt.NDArray[np.bool_]) -> pa.Array:
    kind = state.type
    try:
        if pa.types.is_decimal(kind):
            wide = pa.decimal256(kind.precision, kind.scale)
            exact = pc.multiply(state.cast(wide), factors.cast(wide))
            return pc.round(exact, ndigits=kind.scale, round_mode="half_towards_infinity").cast(kind)
        if pa.types.is_floating(kind):
            return pc.if_else(pa.array(retracts), pc.divide(state, factors), pc.multiply(state, factors))
        unit: Any = pa.scalar(1, kind)
        is_divided = pa.array(retracts)
        state = pc.divide_checked(state, pc.if_else(is_divided, factors, unit))
        return pc.multiply_checked(state, pc.if_else(is_divided, unit, factors))
    except pa.ArrowInvalid as error:
        if "zero" in str(error):
            raise InvalidRequest(
                "A row with the factor 0 was taken back from a product, which no division undoes; write the rows of "
                "its key anew.",
                kind="unsupported_retract",
            ) from error
        raise _too_large("product", kind) from error


def _too_large(what: str, kind: pa.DataType) -> InvalidRequest:
    return InvalidRequest(
        f"A {what} of rows of one key does not fit in its column, which is {kind}; widen the column's type.",
        kind="value_too_large",
        type=str(kind),
    )
