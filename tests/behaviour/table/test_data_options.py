"""Tables whose options ask for another merge are refused by every verb that would merge wrongly, and by no other."""

from __future__ import annotations

import uuid
from typing import Any

import pyarrow as pa
import pytest

from lakebed.errors import InvalidRequest, UnsupportedFormat
from lakebed.objects.open import open_store
from lakebed.table.read.read import read_split_table
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


COMMAS = pa.schema([("k", pa.int64()), ("a,b", pa.int64()), (" s", pa.int64()), ("v", pa.int64())])


@pytest.mark.parametrize(
    "options",
    [
        *({"bucket": "2", "bucket-key": "a,b"}, {"bucket": "2", "bucket-key": "k, s"}),
        *({"sequence.field": "v, a,b"}, {"merge-engine": "aggregation", "fields.a,b.aggregate-function": "sum"}),
        {"merge-engine": "partial-update", "fields.v.sequence-group": "a,b"},
    ],
)
@pytest.mark.parametrize("has_parts", [False, True])
def test_columns_that_an_option_cannot_name_are_refused(options: dict[str, str], has_parts: bool) -> None:
    """A name with a comma or outer spaces is not taken for other columns, also when there are columns of its parts."""
    parts = [("a", pa.int64()), ("b", pa.int64())] if has_parts else []
    columns = pa.schema([*COMMAS, *parts])
    with pytest.raises(InvalidRequest, match="cannot name the column") as refused:
        Table.create(
            open_store(f"memory://options-{uuid.uuid4()}"),
            name="t",
            schema=columns,
            primary_keys=["k"],
            options=options,
        )
    assert refused.value.facts["column"] in ("a,b", " s")


def test_key_columns_with_commas_work_where_they_are_listed_one_by_one() -> None:
    """A key and a partition column with a comma in its name are placed, merged and compacted as any other."""
    store = open_store(f"memory://options-{uuid.uuid4()}")
    table = Table.create(
        store, name="t", schema=COMMAS, primary_keys=["a,b", " s"], partition_keys=[" s"], options={"bucket": "2"}
    )
    for v in range(2):
        table.upsert(pa.table({"k": [1, 2], "a,b": [1, 2], " s": [3, 3], "v": [v, v]}))
    table.compact(full=True)
    table.delete("`a,b` = 2")
    assert table.read().to_pylist() == [{"k": 1, "a,b": 1, " s": 3, "v": 1}]


@pytest.mark.parametrize("new", ["c,d", " v", "v "])
def test_a_column_that_an_option_names_keeps_a_name_that_options_can_say(new: str) -> None:
    """Renaming is refused where the option could not follow, which would make every later write fail."""
    store = open_store(f"memory://options-{uuid.uuid4()}")
    options = {"merge-engine": "partial-update", "fields.g.sequence-group": "v", "bucket": "1"}
    columns = pa.schema([("k", pa.int64()), ("g", pa.int64()), ("v", pa.int64())])
    table = Table.create(store, name="t", schema=columns, primary_keys=["k"], options=options)
    for old in ("g", "v"):
        with pytest.raises(InvalidRequest, match="Choose another name"):
            table.rename_column(old, new)
    table.rename_column("v", "w")
    table.upsert(pa.table({"k": [1], "g": [1], "w": [1]}))
    table.remove_options(["fields.g.sequence-group"])
    table.rename_column("w", new)
    table.upsert(pa.table({"k": [1], "g": [1], new: [2]}))
    assert table.read()[new].to_pylist() == [2]
