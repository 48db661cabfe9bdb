"""Tables with ``sequence.field``: late rows and deletes read alike in Java and in lakebed, written by either."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from lakebed import Lake

if TYPE_CHECKING:
    from conftest import Java

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("seq", pa.float64()), ("v", pa.string())])
INF = float("inf")
ASCENDING = [None, -INF, -1.0, 0.0, 7.5, INF]
"""Without NaN and -0.0: this version of Java takes NaN for equal to every number, and zeros of both signs for equal."""


def rows(*values: tuple[int, float | None, str]) -> pa.Table:
    """Rows of `SCHEMA`."""
    return pa.Table.from_pylist([{"id": i, "seq": s, "v": v} for i, s, v in values], SCHEMA)


def values_of(found: pa.Table) -> dict[int, str]:
    """Key to value; each key once."""
    values = dict(zip(found["id"].to_pylist(), found["v"].to_pylist(), strict=True))
    assert len(values) == found.num_rows
    return values


@pytest.mark.parametrize("order", ["ascending", "descending"])
@pytest.mark.parametrize("first", ["lakebed", "java"])
def test_every_pair_of_sequences(java: Java, lake: Lake, order: str, first: str) -> None:
    """For each two sequences, null and infinities included, both clients read the row that is newer."""
    options = {"bucket": "1", "sequence.field": "seq", "sequence.field.sort-order": order}
    java.create("default.t", SCHEMA, primary_keys=["id"], options=options)
    ranked = ASCENDING if order == "ascending" else [None, *reversed(ASCENDING[1:])]
    pairs = [(a, b) for a in range(len(ranked)) for b in range(len(ranked))]
    earlier, later = (
        rows(*[(key, ranked[pair[side]], str(pair[side])) for key, pair in enumerate(pairs)]) for side in (0, 1)
    )
    table = lake.table("t")
    if first == "lakebed":
        table.upsert(earlier)
        java.write("default.t", later)
    else:
        java.write("default.t", earlier)
        table.upsert(later)
    expected = {key: str(max(pair)) for key, pair in enumerate(pairs)}
    assert values_of(java.read("default.t")) == values_of(table.read()) == expected
    table.compact(full=True)
    assert values_of(java.read("default.t")) == values_of(table.read()) == expected


def test_deletes_that_a_full_compaction_kept(java: Java, lake: Lake) -> None:
    """Java reads over deletes in the highest level, and its late rows lose against them."""
    options = {"bucket": "1", "sequence.field": "seq"}
    table = lake.create_table("t", SCHEMA, primary_keys=["id"], options=options)
    table.upsert(rows((1, 5.0, "a"), (2, 5.0, "b"), (3, 5.0, "c")))
    table.delete(keys=rows((1, 10.0, ""), (2, 4.0, ""), (9, 1.0, "")).select(["id", "seq"]))
    table.compact(full=True)
    assert values_of(java.read("default.t")) == {2: "b", 3: "c"}
    assert java.read("default.t", where={"op": "=", "column": "id", "value": "1"}).num_rows == 0
    java.write("default.t", rows((1, 9.0, "late"), (3, 6.0, "new")))
    assert values_of(java.read("default.t")) == values_of(table.read()) == {2: "b", 3: "new"}
    java.write("default.t", rows((2, 5.0, "")), kind="-D")
    table.compact(full=True)
    table.upsert(rows((2, 4.0, "late"), (1, 11.0, "back")))
    assert values_of(java.read("default.t")) == values_of(table.read()) == {1: "back", 3: "new"}
