"""Sums and products of the rows of each key, exact for whole numbers and decimals. Pure.

Owns: `sum_of` and `product`. Invariant: what the type of the column cannot hold is an `InvalidRequest`, never another
number. Floats are added as they come; how they round depends on which rows were merged before.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import lakebed.compute as pc
from lakebed.errors import InvalidRequest
from lakebed.table.codec.ragged import valid_mask
from lakebed.table.engines.key_rows import KeyRows
from lakebed.table.engines.merge import Mask

PRODUCT_DIGITS_MAX = 37
"""Digits of decimals that can be multiplied: Arrow has 76 for the exact product."""

_HALF_BITS = 32
_LOW_HALF = np.int64(0xFFFF_FFFF)
_HALF_SPAN = 2**31


def sum_of(values: pa.Array, rows: KeyRows) -> pa.Array:
    """The sum of each key; rows that are taken back are subtracted. Null where all values are null.

    Args:
        values: numbers, one a row.
    """
    usable = rows.counts & valid_mask(values)
    if pa.types.is_decimal(values.type):
        sums = _decimal_sums(values, rows, usable)
    elif pa.types.is_floating(values.type):
        numbers = values.to_numpy(zero_copy_only=False)
        # -0.0 is the number that changes no sum, not even -0.0.
        signed = np.where(usable, np.where(rows.retracts, -numbers, numbers), numbers.dtype.type(-0.0))
        with np.errstate(over="ignore", invalid="ignore"):  # infinity and NaN are sums, as in other clients
            sums = pa.array(np.add.reduceat(signed, rows.starts), values.type)
    else:
        sums = _whole_sums(values, rows, usable)
    return pc.if_else(pa.array(rows.any(usable)), sums, pa.scalar(None, values.type))


def _whole_sums(values: pa.Array, rows: KeyRows, usable: Mask) -> pa.Array:
    """Sums of the upper and of the lower halves: neither can overflow."""
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
    grouped = pa.table({"key": pa.array(rows.key_of).filter(mask), "value": wide.filter(mask)})
    totals = grouped.group_by("key", use_threads=False).aggregate([("value", "sum")])
    place = np.full(rows.key_count, -1)
    place[totals.column("key").to_numpy()] = np.arange(totals.num_rows)
    sums = totals.column("value_sum").combine_chunks().take(pa.array(place, mask=place < 0))
    try:
        return sums.cast(values.type)
    except pa.ArrowInvalid as error:
        raise _too_large("sum", values.type) from error


def product(values: pa.Array, rows: KeyRows) -> pa.Array:
    """The product of each key; by rows that are taken back is divided, as other clients do. Null where all are null.

    A row that is taken back before there is any other changes nothing.

    Cost: one step over columns for each row of the key that has most.
    """
    usable = rows.counts & valid_mask(values)
    begins = rows.first(usable & ~rows.retracts)
    taken = np.flatnonzero(usable & (begins[rows.key_of] >= 0) & (np.arange(len(usable)) >= begins[rows.key_of]))
    keys, counts = np.unique(rows.key_of[taken], return_counts=True)
    starts = np.cumsum(counts) - counts
    longest_first = np.argsort(-counts, kind="stable")
    starts, counts = starts[longest_first], counts[longest_first]
    state, finished = values.take(pa.array(taken[starts])), []
    for step in range(1, int(counts[0]) if len(counts) else 1):
        active = int(np.searchsorted(-counts, -step))
        finished.append(state.slice(active))
        at = taken[starts[:active] + step]
        state = _next_products(state.slice(0, active), values.take(pa.array(at)), rows.retracts[at])
    products = pa.concat_arrays([state, *reversed(finished)])
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
