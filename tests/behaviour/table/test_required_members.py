"""Nested values whose type has NOT NULL inside: a null around a required member hides it, whatever Arrow has there."""

from __future__ import annotations

import uuid
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from lakebed.errors import InvalidRequest
from lakebed.objects.open import open_store
from lakebed.table.model.model import DataField
from lakebed.table.model.types import arrow_type
from lakebed.table.table import Table

VALUES: dict[str, Any] = {
    "VARIANT": {"value": b"\x0c\x05", "metadata": b"\x01\x00\x00"},
    "ROW<a@9: INT NOT NULL, l@10: ARRAY<INT>>": {"a": 1, "l": [1, None]},
    "ARRAY<ROW<a@9: STRING NOT NULL>>": [{"a": "x"}, None],
    "MAP<STRING, ROW<a@9: DECIMAL(9, 2) NOT NULL, b@10: BOOLEAN NOT NULL>>": [("k", None), ("n", None)],
    "ROW<r@9: ROW<m@10: MAP<INT, INT> NOT NULL, d@11: DOUBLE NOT NULL, f@13: BOOLEAN NOT NULL> NOT NULL, s@12: INT>": {
        "r": {"m": [(1, 2)], "d": 0.5, "f": True},
        "s": None,
    },
}


def column_of(kind: pa.DataType, values: list[Any]) -> pa.Array:
    """Values whose nulls have nulls inside, as Arrow's `take` makes them; its builders put zeros there."""
    present = [value for value in values if value is not None]
    places = iter(range(len(present)))
    return pa.array(present, kind).take(pa.array([None if value is None else next(places) for value in values]))


@pytest.mark.parametrize("beside", ["INT", "TIMESTAMP(9)"])
@pytest.mark.parametrize("engine", [None, "deduplicate", "partial-update"])
@pytest.mark.parametrize("text", VALUES)
def test_rows_with_nulls_are_written_merged_and_deleted(text: str, engine: str | None, beside: str) -> None:
    """Appended, replaced by null, deleted by key, compacted: a dictionary says what is there."""
    fields = [DataField(0, "id", "BIGINT"), DataField(1, "x", text), DataField(2, "w", beside)]
    fields.append(DataField(3, "at", "TIMESTAMP(3)"))
    options = {} if engine is None else {"merge-engine": engine, "bucket": "1"}
    if engine == "partial-update":
        options["partial-update.remove-record-on-delete"] = "true"
    store = open_store(f"memory://required-{uuid.uuid4()}")
    table = Table.create(store, name="t", schema=fields, primary_keys=["id"] if engine else [], options=options)
    kind, value = arrow_type(text), VALUES[text]
    expected: dict[int, Any] = {}

    def write(new: dict[int, Any]) -> None:
        empty = {name: pa.nulls(len(new), arrow_type(kind)) for name, kind in (("w", beside), ("at", "TIMESTAMP(3)"))}
        table.write(pa.table({"id": pa.array(list(new)), "x": column_of(kind, list(new.values())), **empty}))
        for key, x in new.items():
            expected[key] = expected.get(key) if x is None and engine == "partial-update" else x

    write({1: value, 2: None, 3: None})
    write({4: value, 5: None})
    if engine:
        write({1: None, 2: value})
        table.delete(keys=pa.table({"id": [3, 4]}))
        del expected[3], expected[4]
    for full in (False, True):
        rows = table.read(columns=["id", "x"])
        rows.validate(full=True)
        assert dict(zip(rows["id"].to_pylist(), rows["x"].to_pylist(), strict=True)) == expected
        assert table.read(where="x is null").num_rows == sum(x is None for x in expected.values())
        table.compact(full=full)
    table.add_column("later", text)
    assert table.read(columns=["later"])["later"].null_count == len(expected)


def test_rows_of_duckdb_fit_where_only_hidden_members_are_null() -> None:
    """DuckDB has no NOT NULL inside of structs: a null struct comes, one whose required member is null is refused."""
    kind = pa.struct([pa.field("a", pa.int32(), nullable=False), ("b", pa.string())])
    table = Table.create(
        open_store(f"memory://required-{uuid.uuid4()}"), name="t", schema=pa.schema([("id", pa.int32()), ("x", kind)])
    )
    table.append(duckdb.sql("SELECT 1 AS id, {'a': 1, 'b': NULL} AS x UNION ALL SELECT 2, NULL"))
    with pytest.raises(InvalidRequest, match="Column 'x' is ROW"):
        table.append(duckdb.sql("SELECT 3 AS id, {'a': CAST(NULL AS INT), 'b': 'b'} AS x"))
    rows = table.read()
    assert dict(zip(rows["id"].to_pylist(), rows["x"].to_pylist(), strict=True)) == {1: {"a": 1, "b": None}, 2: None}
