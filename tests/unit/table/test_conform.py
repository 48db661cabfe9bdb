"""Rows of any Arrow encoding become a table's columns with the values that they have, or are refused with a sentence.

The values are drawn as plain Python and given in encodings of which Arrow has casts that lose or refuse some: list
views, views of texts and bytes, dictionaries, 64-bit offsets, slices and chunks, at every depth.
"""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from lakebed.errors import InvalidRequest
from lakebed.table.schema.conform import cast_columns, conform
from lakebed.table.schema.schema import new_schema

PLAIN: dict[pa.DataType, tuple[Any, ...]] = {
    pa.int32(): (0, -7, 2**7 - 1),
    pa.string(): ("", "é", "longer than twelve bytes"),
    pa.binary(): (b"", b"\0", b"longer than twelve bytes"),
}
ENCODINGS = {
    pa.int32(): (pa.int32(), pa.int8(), pa.int64()),
    pa.string(): (
        pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.uint8(), pa.string()),
    ),
    pa.binary(): (pa.binary(), pa.large_binary(), pa.binary_view()),
}  # fmt: skip
LISTS = (pa.list_, pa.large_list, pa.list_view, pa.large_list_view)


def random_type(rng: random.Random, depth: int) -> pa.DataType:
    """A type of a table, nested up to a depth."""
    kind = rng.choice(("plain", "list", "list", "map", "struct")) if depth else "plain"
    if kind == "plain":
        return rng.choice(list(PLAIN))
    if kind == "list":
        return pa.list_(random_type(rng, depth - 1))
    if kind == "map":
        return pa.map_(pa.string(), random_type(rng, depth - 1))
    return pa.struct([("a", random_type(rng, depth - 1)), ("b", random_type(rng, depth - 1))])


def encoding_of(rng: random.Random, kind: pa.DataType) -> pa.DataType:
    """Another Arrow type of the same values."""
    if kind in ENCODINGS:
        return rng.choice(ENCODINGS[kind])
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, encoding_of(rng, field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(pa.string(), encoding_of(rng, kind.item_type))
    return rng.choice(LISTS)(encoding_of(rng, kind.value_type))


def random_value(rng: random.Random, kind: pa.DataType) -> Any:
    """A value, or null."""
    if rng.random() < 0.2:
        return None
    if kind in PLAIN:
        return rng.choice(PLAIN[kind])
    if pa.types.is_struct(kind):
        return {field.name: random_value(rng, field.type) for field in kind}
    if pa.types.is_map(kind):
        return [(f"k{number}", random_value(rng, kind.item_type)) for number in range(rng.randrange(3))]
    return [random_value(rng, kind.value_type) for _ in range(rng.randrange(4))]


def has_valid_indices(chunk: pa.Array) -> bool:
    """Whether Arrow's own builder made a valid array: a null row has index 0 of a dictionary, which may be empty."""
    try:
        chunk.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def test_values_of_every_encoding_stay() -> None:
    """Slices of chunks with nulls, list views nested in whatever there is: each value is what was given."""
    for seed in range(150):
        rng = random.Random(seed)
        kind = random_type(rng, 3)
        encoding = encoding_of(rng, kind)
        chunks, values = [], []
        for _ in range(rng.randrange(4)):
            drawn = [random_value(rng, kind) for _ in range(rng.randrange(1, 9))]
            start = rng.randrange(len(drawn))
            chunk = pa.array(drawn, encoding)
            if has_valid_indices(chunk):
                chunks.append(chunk.slice(start))
                values += drawn[start:]
        schema = new_schema(pa.schema([("c", kind)]), time_ms=0)
        rows = conform(pa.table({"c": pa.chunked_array(chunks, encoding)}), schema=schema)
        rows.validate(full=True)
        assert rows["c"].to_pylist() == values, (seed, encoding)


def test_list_views_out_of_order_stay() -> None:
    """Views may overlap and name their elements in any order; their sizes count, not where the next one begins."""
    elements = pa.array([1, 2, 3, 4], pa.int32())
    views = pa.ListViewArray.from_arrays(pa.array([2, 0, 1], pa.int32()), pa.array([2, 1, 3], pa.int32()), elements)
    schema = new_schema(pa.schema([("c", views.type)]), time_ms=0)
    assert conform(pa.table({"c": views}), schema=schema)["c"].to_pylist() == [[3, 4], [1], [2, 3, 4]]


@pytest.mark.parametrize("values", [pa.string_view(), pa.binary_view()], ids=str)
def test_dictionaries_of_views_are_decoded(values: pa.DataType) -> None:
    """A categorical column of polars is one, for which Arrow has no cast."""
    dictionary = pa.array(["a", "longer than twelve bytes"]).cast(pa.binary()).cast(values)
    column = pa.DictionaryArray.from_arrays(pa.array([1, None, 0], pa.uint32()), dictionary)
    schema = new_schema(pa.schema([("c", column.type)]), time_ms=0)
    decoded = conform(pa.table({"c": column}), schema=schema)["c"].cast(pa.string()).to_pylist()
    assert decoded == ["longer than twelve bytes", None, "a"]


def test_columns_are_cast_under_their_names() -> None:
    """What the table does not have stays as it is, so that a later step can name it."""
    schema = new_schema(pa.schema([("c", pa.string()), ("d", pa.int32())]), time_ms=0)
    rows = cast_columns(pa.table({"gone": [True], "c": pa.array(["x"], pa.string_view())}), schema=schema)
    assert rows.schema.equals(pa.schema([("gone", pa.bool_()), ("c", pa.string())]))


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.list_(pa.field("element", pa.int32(), nullable=False)), [[1, None]]),
        (pa.map_(pa.string(), pa.field("value", pa.int32(), nullable=False)), [[("a", None)]]),
        (pa.struct([pa.field("a", pa.int32(), nullable=False)]), [{"a": None}]),
        (pa.list_(pa.struct([pa.field("a", pa.int32(), nullable=False)])), [None, [None, {"a": None}]]),
    ],
    ids=str,
)
def test_a_null_inside_of_a_value_is_refused_where_the_type_has_none(kind: pa.DataType, values: list[Any]) -> None:
    """With the name of the column, before a file is written; a null of the whole value is none inside of it."""
    schema = new_schema(pa.schema([("c", kind)]), time_ms=0)
    with pytest.raises(InvalidRequest, match=r"Column 'c' is .*NOT NULL"):
        conform(pa.table({"c": pa.array(values, kind)}), schema=schema)
    absent = pa.table({"c": pa.array([None, *values[:-1]], kind)})
    assert conform(absent, schema=schema)["c"].to_pylist() == [None, *values[:-1]]


@pytest.mark.parametrize("seconds", [2**63 // 1000 + 1, -(2**63) // 1000 - 1, 2**62])
@pytest.mark.parametrize("zone", [None, "UTC"])
def test_seconds_that_milliseconds_do_not_hold_are_refused(seconds: int, zone: str | None) -> None:
    """Of TIMESTAMP(0), at every depth: files have milliseconds. What they hold, and what a null hides, is taken."""
    kind = pa.timestamp("s", tz=zone)
    kinds = [kind, pa.list_(kind), pa.struct([("at", kind)]), pa.map_(pa.string(), kind)]
    wrap = [lambda at: at, lambda at: [at], lambda at: {"at": at}, lambda at: [("k", at)]]
    for column, wrapped in zip(kinds, wrap, strict=True):
        schema = new_schema(pa.schema([("at", column)]), time_ms=0)
        fits = pa.table({"at": pa.array([wrapped(2**63 // 1000), None, wrapped(-(2**63) // 1000 + 1)], column)})
        assert conform(fits, schema=schema).equals(fits)
        with pytest.raises(InvalidRequest, match=r"'at' is .* beyond the years") as caught:
            conform(pa.table({"at": pa.array([wrapped(seconds), None], column)}), schema=schema)
        assert caught.value.kind == "value_out_of_range"
    hidden = pa.array([[seconds], [0]], pa.list_(pa.int64())).cast(pa.list_(kind)).slice(1)
    conform(pa.table({"at": hidden}), schema=new_schema(pa.schema([("at", pa.list_(kind))]), time_ms=0))
