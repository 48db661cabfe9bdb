"""Comparing rows: pairs by key and multisets. Pure."""

from __future__ import annotations

from itertools import count

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakebed.errors import InvalidRequest
from lakebed.objects.open import open_store
from lakebed.table.changes.incremental import TableDiff
from lakebed.table.table import Table

_NUMBERS = count()
"""Hypothesis runs an example again: two tables in memory never share objects."""


def table_of(name: str, schema: pa.Schema, **arguments: object) -> Table:
    return Table.create(open_store(f"memory://{name}-{next(_NUMBERS)}"), name="t", schema=schema, **arguments)  # type: ignore[arg-type]


def test_counts_and_emptiness() -> None:
    """A difference without rows is empty; its counts are those of its tables."""
    nothing = pa.table({"a": pa.array([], pa.int64())})
    table = pa.table({"a": [1]})
    assert TableDiff(keys=(), added=nothing, removed=nothing, before=nothing, after=nothing).is_empty
    diff = TableDiff(keys=("a",), added=table, removed=nothing, before=table, after=table)
    assert not diff.is_empty
    assert diff.counts == {"added": 1, "removed": 0, "changed": 1}


def test_rows_with_nested_columns_are_compared() -> None:
    """By key a row whose array is another one is a changed one, without keys it is another row; only keys are plain."""
    schema = pa.schema([pa.field("a", pa.int64(), nullable=False), ("l", pa.list_(pa.int64()))])
    for keys in ((), ("a",)):
        table = table_of("diff-nested", schema, primary_keys=keys)
        for lists in ([[1], None, []], [[1], [], []]):
            table.overwrite(pa.table({"a": [1, 2, 3], "l": lists}, schema))
        counts = {"added": 0, "removed": 0, "changed": 1} if keys else {"added": 1, "removed": 1, "changed": 0}
        assert table.diff(1, 2).counts == counts
        with pytest.raises(InvalidRequest, match="'l' is ARRAY<BIGINT>: rows cannot be paired by nested columns"):
            table.diff(1, 2, keys=["l"])


@settings(deadline=None)
@given(st.lists(st.integers(0, 4), max_size=8), st.lists(st.integers(0, 4), max_size=8))
def test_multiset_difference(before: list[int], after: list[int]) -> None:
    """A row is added, or removed, exactly as often as the versions differ in it."""
    table = table_of("diff", pa.schema([("a", pa.int64())]))
    table.append(pa.table({"a": pa.array([*before, 9], pa.int64())}))
    table.overwrite(pa.table({"a": pa.array([*after, 9], pa.int64())}))
    difference = table.diff(1, 2)
    for value in range(5):
        surplus = after.count(value) - before.count(value)
        assert difference.added["a"].to_pylist().count(value) == max(0, surplus)
        assert difference.removed["a"].to_pylist().count(value) == max(0, -surplus)
    assert 9 not in difference.added["a"].to_pylist()
