"""Tables whose options ask for another merge are refused by every verb that would merge wrongly, and by no other."""

from __future__ import annotations

import uuid
from typing import Any

import pyarrow as pa
import pytest

from lakebed.errors import InvalidRequest, UnsupportedFormat
from lakebed.objects.open import open_store
from lakebed.table.read import read_split_table
from lakebed.table.table import Table

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int32())])
ROWS = pa.table({"id": pa.array([1, 2], pa.int64()), "v": pa.array([1, 2], pa.int32())})


def make(options: dict[str, str], *, keyed: bool = True) -> Table:
    keys: dict[str, Any] = {"primary_keys": ["id"]} if keyed else {}
    return Table.create(
        open_store(f"memory://options-{uuid.uuid4()}"), name="t", schema=SCHEMA, options=options, **keys
    )


@pytest.mark.parametrize("option", [{"ignore-delete": "true"}, {"rowkind.field": "v"}])
def test_what_decides_between_rows_of_a_key_is_never_ignored(option: dict[str, str]) -> None:
    """Writing and compacting a primary-key table with such an option are refused, and the option is named."""
    table = make({"bucket": "1"} | option)
    (name,) = option
    with pytest.raises(InvalidRequest, match=name):
        table.upsert(ROWS)
    with pytest.raises((InvalidRequest, UnsupportedFormat), match=name):
        table.compact(full=True)


@pytest.mark.parametrize("option", [{"ignore-delete": "true"}])
def test_reading_what_would_be_merged_otherwise_is_refused(option: dict[str, str]) -> None:
    """A read of such a table is refused as a whole, for any rows."""
    table = make({"bucket": "1"} | option)
    (name,) = option
    with pytest.raises(UnsupportedFormat, match=name):
        table.read()


@pytest.mark.parametrize("option", [{"ignore-delete": "true"}, {"rowkind.field": "v"}])
def test_append_tables_have_no_rows_to_decide_between(option: dict[str, str]) -> None:
    """In an append table the same options say nothing."""
    table = make(option, keyed=False)
    table.append(ROWS)
    assert table.read().num_rows == 2


def test_a_bucket_key_places_rows() -> None:
    """Rows of one value of the option bucket-key lie in one bucket, in append tables and in primary-key tables."""
    schema = pa.schema([("a", pa.int64()), ("b", pa.int64()), ("v", pa.int64())])
    rows = pa.table({"a": [i % 5 for i in range(100)], "b": range(100), "v": range(100)}, schema=schema)
    for keys in ((), ("a", "b")):
        table = Table.create(
            open_store(f"memory://options-{uuid.uuid4()}"),
            name="t",
            schema=schema,
            primary_keys=keys,
            options={"bucket": "4", "bucket-key": "a"},
        )
        table.write(rows)
        table.write(rows.slice(0, 10))
        buckets: dict[int, set[int]] = {}
        scan = table.scan(columns=["a"])
        for split in scan.splits():
            for value in read_split_table(table.store, split, plan=scan.plan)["a"].to_pylist():
                buckets.setdefault(value, set()).add(split.bucket)
        assert [len(places) for places in buckets.values()] == [1] * 5
        assert len(set().union(*buckets.values())) > 1
        assert table.read().num_rows == (100 if keys else 110)
        assert table.read(where="a = 3").num_rows == (20 if keys else 22)


@pytest.mark.parametrize("keyed", [True, False])
def test_a_read_of_no_columns_counts_rows(keyed: bool) -> None:
    """A projection to no columns has as many rows as any other, at once, as a stream, and with a predicate."""
    table = make({"bucket": "2"} if keyed else {}, keyed=keyed)
    table.write(ROWS)
    table.write(ROWS.slice(0, 1))
    count = 2 if keyed else 3
    assert table.read(columns=[]).num_rows == count
    assert sum(batch.num_rows for batch in table.scan(columns=[]).to_batches()) == count
    assert table.read(columns=[], where="v > 1").num_rows == 1


def test_equal_floats_are_found_in_any_bucket() -> None:
    """0.0 and -0.0 are two keys with two hashes, and yet equal: a predicate finds both."""
    table = Table.create(
        open_store(f"memory://options-{uuid.uuid4()}"),
        name="t",
        schema=pa.schema([("k", pa.float64()), ("v", pa.int32())]),
        primary_keys=["k"],
        options={"bucket": "64"},
    )
    table.upsert(pa.table({"k": [0.0, -0.0, 1.5], "v": pa.array([1, 2, 3], pa.int32())}))
    assert sorted(table.read(where="k = 0")["v"].to_pylist()) == [1, 2]
    table.delete("k = 0")
    assert table.read()["v"].to_pylist() == [3]
