"""Merge engines: lakebed and the Java client write one table by turns, and read the same rows after every step."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyroaring
import pytest

from lakebed import Lake

if TYPE_CHECKING:
    from conftest import Java

ID = pa.field("id", pa.int64(), nullable=False)
BITMAPS = (pyroaring.BitMap([1, 2**32 - 1]), pyroaring.BitMap(range(0, 70_000, 2)), pyroaring.BitMap(range(5, 900)))
VALUES: dict[str, tuple[pa.DataType, tuple[Any, ...]]] = {
    "sum": (pa.int64(), (None, 3, -5)),
    "product": (pa.int32(), (None, 2, -1)),
    "max": (pa.float64(), (None, 1.5, float("inf"))),
    "min": (pa.string(), (None, "b", "ä")),
    "last_value": (pa.int32(), (None, 1, 2)),
    "last_non_null_value": (pa.string(), (None, "x", "y")),
    "first_value": (pa.int32(), (None, 1, 2)),
    "first_non_null_value": (pa.string(), (None, "x", "y")),
    "listagg": (pa.string(), (None, "a", "b")),
    "bool_and": (pa.bool_(), (None, True, False)),
    "bool_or": (pa.bool_(), (None, True, False)),
    "nested_update": (
        pa.list_(pa.struct([("k", pa.int32()), ("v", pa.string())])),
        (None, [{"k": 1, "v": "a"}], [{"k": 2, "v": "b"}, {"k": 1, "v": "c"}]),
    ),
    "rbm32": (pa.binary(), (None, *(bitmap.serialize() for bitmap in BITMAPS))),
}
VALUES["nested_update_by_key"] = VALUES["nested_update"]
AGGREGATION = {f"fields.{name}.aggregate-function": name.removesuffix("_by_key") for name in VALUES}
AGGREGATION["fields.nested_update_by_key.nested-key"] = "k"
PLAIN = {name: (pa.string(), (None, "a", "b", "c")) for name in ("a", "b", "free")}
SEQUENCES = {name: (pa.int32(), (None, 1, 2, 3)) for name in ("s", "t")}
GROUPED = {**SEQUENCES, **PLAIN, "sum": VALUES["sum"], "max": VALUES["max"]}
CASES = {
    "aggregation": ({"merge-engine": "aggregation", **AGGREGATION}, VALUES),
    "partial-update": ({"merge-engine": "partial-update"}, PLAIN),
    "groups": (
        {
            "merge-engine": "partial-update",
            "fields.s.sequence-group": "a,sum,max",
            "fields.t.sequence-group": "b",
            "fields.sum.aggregate-function": "sum",
            "fields.max.aggregate-function": "max",
        },
        GROUPED,
    ),
    "first-row": ({"merge-engine": "first-row"}, PLAIN),
}


def by_key(found: pa.Table) -> dict[int, dict[str, Any]]:
    """Rows by key; each key once. Java gives the rows in arrays that have a key in any order."""
    rows = {row["id"]: row for row in found.to_pylist()}
    for row in rows.values():
        if row.get("nested_update_by_key"):
            row["nested_update_by_key"].sort(key=lambda element: element["k"])
    assert len(rows) == found.num_rows
    return rows


@pytest.mark.parametrize("name", CASES)
def test_both_clients_merge_alike(java: Java, lake: Lake, name: str) -> None:
    """Batches of either client, with partial and full compactions between them, are the same rows for both."""
    options, columns = CASES[name]
    schema = pa.schema([ID, *(pa.field(column, kind) for column, (kind, _) in columns.items())])
    settings = {"bucket": "1", "num-sorted-run.compaction-trigger": "3", **options}
    java.create("default.t", schema, primary_keys=["id"], options=settings)
    table, rng = lake.table("t"), random.Random(name)
    for step in range(6):
        keys = rng.sample(range(8), 4)
        made = [{"id": key} | {column: rng.choice(values) for column, (_, values) in columns.items()} for key in keys]
        rows = pa.Table.from_pylist(made, schema)
        if step % 2:
            java.write("default.t", rows)
        else:
            table.upsert(rows)
        if step == 3:
            table.compact()
        if name == "first-row":
            # Java shows the rows of first-row tables once they are compacted.
            table.compact()
            table.compact(full=True)
        assert by_key(java.read("default.t")) == by_key(table.read()), step
    table.compact(full=True)
    assert by_key(java.read("default.t")) == by_key(table.read())
    if name == "first-row":
        assert {file["level"] > 0 for file in table.system("files").to_pylist()} == {True}


@pytest.mark.parametrize(
    ("engine", "options"),
    [
        ("partial-update", {"partial-update.remove-record-on-delete": "true"}),
        ("aggregation", {"aggregation.remove-record-on-delete": "true", "fields.v.aggregate-function": "sum"}),
        ("aggregation", {"fields.v.aggregate-function": "sum"}),
    ],
)
def test_deletes_of_either_client(java: Java, lake: Lake, engine: str, options: dict[str, str]) -> None:
    """A delete of one client is a delete for the other: it removes the row, or takes its value back."""
    schema = pa.schema([ID, ("v", pa.int64())])
    table = lake.create_table(
        "t", schema, primary_keys=["id"], options={"bucket": "1", "merge-engine": engine, **options}
    )
    table.upsert(pa.table({"id": [1, 2, 3], "v": [10, 20, 30]}, schema=schema))
    java.write("default.t", pa.table({"id": [1], "v": [4]}, schema=schema), kind="-D")
    gone = pa.table({"id": [2], "v": [5], "gone": [True]})
    table.write(gone, deletes="gone")
    removes = any(name.endswith("remove-record-on-delete") for name in options)
    expected = {3: 30} if removes else {1: 6, 2: 15, 3: 30}
    for _ in range(2):
        assert {key: row["v"] for key, row in by_key(table.read()).items()} == expected
        assert by_key(java.read("default.t")) == by_key(table.read())
        table.compact(full=True)
