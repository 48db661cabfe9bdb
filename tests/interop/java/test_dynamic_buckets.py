"""Tables with dynamic buckets, written by Java and lakebed by turns. A dictionary by key is the judge."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from lakebed import Lake
from lakebed.errors import InvalidRequest

if TYPE_CHECKING:
    from conftest import Java

SCHEMA = pa.schema(
    [pa.field("k", pa.string(), nullable=False), pa.field("p", pa.int32(), nullable=False), ("v", pa.int64())]
)
OPTIONS = {"dynamic-bucket.target-row-num": "10"}
Model = dict[tuple[str, int], int]


def rows(numbers: list[int], v: int) -> pa.Table:
    """Rows of these keys; the partition belongs to the key."""
    return pa.table(
        {"k": [f"key {n}" for n in numbers], "p": [n % 2 for n in numbers], "v": [v] * len(numbers)}, SCHEMA
    )


def as_model(found: pa.Table) -> Model:
    """Rows by key; a key that occurs twice is an error."""
    model = {(row["k"], row["p"]): row["v"] for row in found.to_pylist()}
    assert len(model) == found.num_rows
    return model


@pytest.mark.parametrize("maker", ["java", pytest.param("lakebed", marks=pytest.mark.long)])
def test_alternation(java: Java, lake: Lake, maker: str) -> None:
    """Upserts, deletes, overwrites, compactions, rollback, expiry and cleaning by turns; both read the same."""
    if maker == "java":
        java.create("default.t", SCHEMA, primary_keys=["k", "p"], partition_keys=["p"], options=OPTIONS)
    else:
        options = OPTIONS | {"bucket": "-1"}
        lake.create_table("t", SCHEMA, primary_keys=["k", "p"], partition_keys=["p"], options=options)
    table = lake.table("t")
    chance = random.Random(11)
    model: Model = {}
    tagged: Model = {}
    for step in range(18):
        java_turn = (step % 2 == 0) == (maker == "java")
        batch = rows(sorted(chance.sample(range(150), 40)), step)
        changed = as_model(batch)
        if step % 6 == 4:
            java.write("default.t", batch, kind="-D") if java_turn else table.delete(keys=batch.select(["k", "p"]))
            model = {key: value for key, value in model.items() if key not in changed}
        elif step == 9:
            java.write("default.t", batch, overwrite={}) if java_turn else table.overwrite(batch, dynamic=True)
            model = changed
        elif step == 14:
            java.call("rollback", tag="seven") if java_turn else table.rollback_to("seven")
            model = dict(tagged)
        else:
            java.write("default.t", batch) if java_turn else table.upsert(batch)
            model |= changed
        if step == 7:
            table.create_tag("seven")
            tagged = dict(model)
        if step % 5 == 2:
            java.call("compact") if java_turn else table.compact(full=True)
        if step == 11:
            java.call("expire_snapshots") if java_turn else table.expire(retain_max=1, older_than_ms=2**50)
            java.call("remove_orphans")
            table.collect(grace_ms=0)
        assert as_model(table.read()) == model, step
        assert as_model(java.read("default.t")) == model, step
    assert {file["bucket"] for file in java.call("files")} > {0}
    assert as_model(java.read("default.t", options={"scan.tag-name": "seven"})) == tagged


def test_keys_across_partitions_are_refused(java: Java, lake: Lake) -> None:
    """A table of Java's whose primary key lacks the partition columns is read, and writes say what to do."""
    java.create("default.t", SCHEMA, primary_keys=["k"], partition_keys=["p"])
    table = lake.table("t")
    for verb in (lambda: table.upsert(rows([1], 1)), lambda: table.compact(full=True)):
        with pytest.raises(InvalidRequest, match="an index over all of them"):
            verb()
