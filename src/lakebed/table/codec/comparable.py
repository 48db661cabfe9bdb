"""Values of every type as bytes that are equal exactly when the values are, to compare rows. Pure.

Owns: `encode_comparable`. An array is the bytes of its elements one after the other; the bytes of an element show where
they end. The entries of a map are in the order of their bytes, because the order of a map's entries has no meaning.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

import lakebed.compute as pc
from lakebed.table.codec.binary_row import encode_rows
from lakebed.table.codec.ragged import I64, Bytes, byte_strings, one_array, valid_mask
from lakebed.table.model.types import Type, arrow_type, parse_type

_VARIANT_PARTS = ("BYTES", "BYTES")


def encode_comparable(columns: Sequence[pa.Array | pa.ChunkedArray], types: Sequence[str]) -> pa.Array:
    """Encode each row of some columns as bytes that are equal exactly when the rows are, nulls included.

    Args:
        columns: equally long, at least one.
        types: of any kind, including nested types.

    Returns:
        ``binary`` array without nulls, in row order.
    """
    plain_columns = [
        _as_plain(one_array(column), parse_type(text)) for column, text in zip(columns, types, strict=True)
    ]
    return encode_rows([column for column, _ in plain_columns], [text for _, text in plain_columns])


def _as_plain(column: pa.Array, kind: Type) -> tuple[pa.Array, str]:
    """A column and its type. If rows cannot have such keys, its values' bytes instead."""
    if kind.root == "BLOB":
        return column.cast(arrow_type("BYTES")), "BYTES"
    if not kind.is_nested and kind.root != "VARIANT":
        return column, kind.text
    present = column.drop_null()
    encode = _encode_lists if kind.root in ("ARRAY", "MAP", "MULTISET") else _encode_structs
    is_valid = valid_mask(column)
    places = pa.array(np.cumsum(is_valid) - 1, mask=~is_valid)
    return encode(present, kind).take(places), "BYTES"


def _encode_structs(present: pa.Array, kind: Type) -> pa.Array:
    types = _VARIANT_PARTS if kind.root == "VARIANT" else [field.type.text for field in kind.fields]
    if not types:
        return pa.array([b""] * len(present), pa.binary())
    return encode_comparable(present.flatten(), types)


def _encode_lists(present: pa.Array, kind: Type) -> pa.Array:
    """Arrays or maps without nulls: for each the bytes of its elements or entries."""
    if len(present) == 0:
        return pa.array([], pa.binary())
    ends = present.offsets.to_numpy().astype(np.int64)
    first, count = int(ends[0]), int(ends[-1] - ends[0])
    ends -= first
    if kind.root == "ARRAY":
        elements = present.values.slice(first, count)
        if pa.types.is_primitive(elements.type) and not pa.types.is_boolean(elements.type):
            content = _flag_values(elements)
            return _cut(content.reshape(-1), ends * content.shape[1])
        parts, types = [elements], [kind.children[0].text]
    else:
        value = kind.children[1].text if kind.root == "MAP" else "INT"
        parts = [part.slice(first, count) for part in (present.keys, present.items)]
        types = [kind.children[0].text, value]
    entries = encode_comparable(parts, types)
    if kind.root != "ARRAY":
        entries = entries.take(_order_entries(entries, ends))
    content, starts, lengths = byte_strings(entries)
    places = np.append(starts, starts[-1] + lengths[-1]) if count else np.zeros(1, np.int64)
    return _cut(content, places[ends])


def _flag_values(numbers: pa.Array) -> Bytes:
    """Values of one width: for each a byte that says whether it is null, and its bytes."""
    width = numbers.type.bit_width // 8
    rows = np.zeros((len(numbers), 1 + width), np.uint8)
    if len(numbers):
        rows[:, 0] = valid_mask(numbers)
        buffer = np.frombuffer(numbers.buffers()[1], np.uint8)
        rows[:, 1:] = buffer[numbers.offset * width :][: len(numbers) * width].reshape(-1, width)
        rows[rows[:, 0] == 0] = 0
    return rows


def _cut(content: Bytes, offsets: I64) -> pa.Array:
    """Bytes cut at some offsets."""
    buffers = [None, pa.py_buffer(np.ascontiguousarray(offsets)), pa.py_buffer(np.ascontiguousarray(content))]
    return pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)


def _order_entries(entries: pa.Array, ends: I64) -> pa.Array:
    """The positions of the entries of maps: map by map, in the order of their bytes."""
    maps = np.repeat(np.arange(len(ends) - 1), np.diff(ends))
    rows = pa.table({"map": maps, "entry": entries})
    return pc.sort_indices(rows, [("map", "ascending"), ("entry", "ascending")])
