"""Arrays, maps and texts of the rows of each key, combined. Pure.

Owns: `collect`, `merge_map`, `nested_update` and `listagg`. Elements of a merged value are in the order of their rows.
An element that may occur only once is at its first place; in `merge_map` and `nested_update` at its newest. (Other
clients return the elements of sets and maps, and of arrays that have a nested key, in any order.)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import lakebed.compute as pc
from lakebed.table.codec.ragged import valid_mask
from lakebed.table.engines.key_rows import KeyRows
from lakebed.table.engines.merge import Codes, Mask, Positions, encode_keys


def collect(values: pa.Array, rows: KeyRows, *, distinct: bool) -> pa.Array:
    """The elements of all arrays of a key. Each element of a row that is taken back removes one equal element.

    Args:
        distinct: each element once.
    """
    usable = rows.counts & valid_mask(values)
    lists = values.filter(pa.array(usable))
    elements = lists.flatten()
    row = np.repeat(np.flatnonzero(usable), pc.list_value_length(lists).to_numpy(zero_copy_only=False))
    keys, retracts = rows.key_of[row], rows.retracts[row]
    if not distinct and not retracts.any():
        positions = np.arange(len(row))
    else:
        pairs = _pairs(keys, elements)
        positions = _last_state(pairs, retracts) if distinct else _not_taken_back(pairs, retracts)
    filled = rows.any(usable & ~rows.retracts)
    offsets = _offsets(keys[positions], rows.key_count, filled)
    return pa.ListArray.from_arrays(offsets, elements.take(pa.array(positions)), type=values.type)


def merge_map(values: pa.Array, rows: KeyRows) -> pa.Array:
    """The entries of all maps of a key; the newest for equal map keys. Keys of rows that are taken back are removed."""
    usable = rows.counts & valid_mask(values)
    maps = values.filter(pa.array(usable))
    ends = maps.offsets.to_numpy()
    first, last = int(ends[0]), int(ends[-1])
    names, items = maps.keys.slice(first, last - first), maps.items.slice(first, last - first)
    row = np.repeat(np.flatnonzero(usable), np.diff(ends))
    keys, retracts = rows.key_of[row], rows.retracts[row]
    positions = _last_state(_pairs(keys, names), retracts, newest=True)
    filled = rows.any(usable & ~rows.retracts)
    offsets, places = _offsets(keys[positions], rows.key_count, filled), pa.array(positions)
    return pa.MapArray.from_arrays(offsets, names.take(places), items.take(places), type=values.type)


def nested_update(values: pa.Array, rows: KeyRows, *, nested_key: Sequence[str]) -> pa.Array:
    """The rows in all arrays of a key, without nulls; the newest for equal nested keys.

    A row that is taken back removes the rows with its nested key, or without a nested key all rows that equal it.

    Args:
        nested_key: fields of the rows in the arrays; empty: rows have no key.
    """
    usable = rows.counts & valid_mask(values)
    lists = values.filter(pa.array(usable))
    elements = lists.flatten()
    row = np.repeat(np.flatnonzero(usable), pc.list_value_length(lists).to_numpy(zero_copy_only=False))
    is_row = valid_mask(elements)
    elements, row = elements.filter(pa.array(is_row)), row[is_row]
    keys, retracts = rows.key_of[row], rows.retracts[row]
    if nested_key:
        positions = _last_state(_pairs(keys, *_fields_of(elements, nested_key)), retracts, newest=True)
    elif retracts.any():
        names = [field.name for field in elements.type]
        positions = _after_retracts(_pairs(keys, *_fields_of(elements, names)), retracts)
    else:
        positions = np.arange(len(row))
    offsets = _offsets(keys[positions], rows.key_count, rows.any(usable & ~rows.retracts))
    return pa.ListArray.from_arrays(offsets, elements.take(pa.array(positions)), type=values.type)


def listagg(values: pa.Array, rows: KeyRows, *, delimiter: str, distinct: bool) -> pa.Array:
    """The texts of a key, joined; null and blank texts are left out.

    Args:
        distinct: leave out repeated parts, where the delimiter separates parts.
    """
    is_text = pc.not_equal(pc.utf8_trim_whitespace(values), "")
    usable = rows.counts & pc.fill_null(is_text, False).to_numpy(zero_copy_only=False)
    texts = values.filter(pa.array(usable))
    row = np.flatnonzero(usable)
    if distinct:
        is_oldest = np.zeros(len(usable), np.bool_)
        oldest = rows.first(usable)
        is_oldest[oldest[oldest >= 0]] = True
        parts = pc.split_pattern(texts, delimiter)
        texts, row = parts.flatten(), np.repeat(row, pc.list_value_length(parts).to_numpy(zero_copy_only=False))
        blank = pc.equal(pc.utf8_trim_whitespace(texts), "").to_numpy(zero_copy_only=False)
        is_new = np.zeros(len(row), np.bool_)
        is_new[np.unique(_pairs(rows.key_of[row], texts), return_index=True)[1]] = True
        positions = np.flatnonzero(is_oldest[row] | (is_new & ~blank))
        texts, row = texts.take(pa.array(positions)), row[positions]
    offsets = _offsets(rows.key_of[row], rows.key_count, rows.any(usable))
    return pc.binary_join(pa.ListArray.from_arrays(offsets, texts), delimiter)


def _fields_of(structs: pa.Array, names: Sequence[str]) -> list[pa.Array]:
    return [pc.struct_field(structs, name) for name in names]


def _pairs(keys: Positions, *elements: pa.Array) -> Codes:
    """Numbers that are equal for equal elements of one key. An element may consist of several columns."""
    codes = encode_keys([list(elements)])[0]
    ranks = np.unique(codes, return_inverse=True)[1]
    return keys * np.int64(len(codes) + 1) + ranks


def _last_state(pairs: Codes, retracts: Mask, *, newest: bool = False) -> Positions:
    """One position for each pair whose last row is not taken back: the first or the newest; ascending."""
    order = np.argsort(pairs, kind="stable")
    changes = pairs[order][1:] != pairs[order][:-1]
    is_first, is_last = np.append(True, changes)[: len(order)], np.append(changes, True)[: len(order)]
    first, last = order[is_first], order[is_last]
    positions = last if newest else np.where(retracts[first], last, first)
    return np.sort(positions[~retracts[last]])


def _after_retracts(pairs: Codes, retracts: Mask) -> Positions:
    """The positions of each pair after its last one that is taken back; ascending."""
    numbers = np.unique(pairs, return_inverse=True)[1]
    last = np.full(len(pairs), -1)
    np.maximum.at(last, numbers[retracts], np.flatnonzero(retracts))
    return np.flatnonzero(np.arange(len(pairs)) > last[numbers])


def _not_taken_back(pairs: Codes, retracts: Mask) -> Positions:
    """The positions that remain after each row that is taken back has removed the oldest one of its pair, if any."""
    order = np.argsort(pairs, kind="stable")
    ordered_pairs = pairs[order]
    is_first = np.append(True, ordered_pairs[1:] != ordered_pairs[:-1])[: len(order)]
    starts = np.flatnonzero(is_first)
    run = np.cumsum(is_first) - 1
    steps = np.where(retracts[order], -1, 1)
    total = np.cumsum(steps)
    balance = total - (total - steps)[starts][run]
    ends = np.append(starts[1:], len(order)) - 1
    counts_left = balance[ends] - np.minimum(np.minimum.reduceat(balance, starts), 0) if len(starts) else starts
    added_counts = np.cumsum(~retracts[order])
    newer = added_counts[ends][run] - added_counts
    return np.sort(order[~retracts[order] & (newer < counts_left[run])])


def _offsets(keys: Positions, key_count: int, filled: npt.NDArray[np.bool_]) -> pa.Array:
    """Offsets of lists, by the ascending keys of their elements; null for keys that are not filled."""
    ends = np.searchsorted(keys, np.arange(key_count + 1)).astype(np.int32)
    return pa.array(ends, mask=np.append(~filled, False))
