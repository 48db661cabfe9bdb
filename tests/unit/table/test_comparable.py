"""Values of every type as bytes: equal exactly when the values are. Pure."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakebed.table.codec.comparable import encode_comparable
from lakebed.table.model.types import arrow_type

TEXTS = st.sampled_from([None, "", "a", "abcdefgh", "abcdefghi"])
NUMBERS = st.sampled_from([None, 0, 1])


def array(element: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | st.lists(element, max_size=2)


def row(a: st.SearchStrategy[Any], b: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | st.fixed_dictionaries({"a": a, "b": b})


def entries(value: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    keys = st.sampled_from(["", "a", "abcdefgh"])
    return st.none() | st.lists(st.tuples(keys, value), max_size=3, unique_by=lambda entry: entry[0])


VALUES = {
    "STRING": TEXTS,
    "BLOB": st.sampled_from([None, b"", b"abcdefgh"]),
    "VARIANT": st.sampled_from([None, {"value": b"", "metadata": b"a"}, {"value": b"a", "metadata": b""}]),
    "ARRAY<STRING>": array(TEXTS),
    "ARRAY<INT>": array(NUMBERS),
    "ARRAY<TIMESTAMP(3)>": array(NUMBERS),
    "ARRAY<BOOLEAN>": array(st.sampled_from([None, False, True])),
    "ARRAY<DECIMAL(25, 1)>": array(NUMBERS),
    "ARRAY<ARRAY<INT>>": array(array(NUMBERS)),
    "ARRAY<ROW<a INT, b ARRAY<INT>>>": array(row(NUMBERS, array(NUMBERS))),
    "MAP<STRING, INT>": entries(NUMBERS),
    "MULTISET<STRING>": entries(st.sampled_from([1, 2])),
    "ROW<a MAP<STRING, ARRAY<STRING>>, b STRING>": row(entries(array(TEXTS)), TEXTS),
}


def plain(value: Any) -> Any:
    """A value with Python's equality: the entries of a map have no order."""
    if isinstance(value, dict):
        return tuple((name, plain(part)) for name, part in sorted(value.items()))
    if isinstance(value, list) and value and isinstance(value[0], tuple):
        return frozenset((key, plain(part)) for key, part in value)
    return tuple(map(plain, value)) or "empty" if isinstance(value, list) else value


@pytest.mark.parametrize("text", VALUES)
@settings(deadline=None, max_examples=40)
@given(st.data())
def test_bytes_are_equal_when_values_are(text: str, data: st.DataObject) -> None:
    """Any two values of two columns, one of which begins inside its buffers."""
    values = data.draw(st.lists(VALUES[text], max_size=12))
    start = data.draw(st.integers(0, len(values)))
    column = pa.array(values, arrow_type(text))
    first = encode_comparable([column.slice(start)], [text]).to_pylist()
    second = encode_comparable([pa.chunked_array([column.slice(start), column.slice(0, start)])], [text]).to_pylist()
    expected = [[plain(a) == plain(b) for b in values[start:] + values[:start]] for a in values[start:]]
    assert [[a == b for b in second] for a in first] == expected
