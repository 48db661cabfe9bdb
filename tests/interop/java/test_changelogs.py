"""Changelogs: lakebed and the Java client write one table by turns, and follow it alike."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from lakebed import Lake
from lakebed.table.changes.stream import StreamSettings, TableStream
from lakebed.table.changes.stream_limits import Limits
from lakebed.table.table import Table

if TYPE_CHECKING:
    from conftest import Java

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64()), ("s", pa.string())])
FROM_START = {"scan.mode": "from-snapshot", "scan.snapshot-id": "1"}
Change = tuple[str, int, int | None, str | None]


def followed(java: Java, **options: str) -> list[Change]:
    """What the Java client streams."""
    answer = java.call("follow", "default.t", options=options)
    return [(kind, *row) for kind, row in zip(answer["kinds"], answer["rows"], strict=True)]


def told(table: Table) -> list[Change]:
    """Every row of the changelogs, as lakebed reads them."""
    return [(row["_row_kind"], row["id"], row["v"], row["s"]) for row in table.changes(None).to_pylist()]


def net(table: Table) -> dict[int, Any]:
    """The rows that a stream of changes comes to, from the first snapshot on."""
    stream = TableStream(
        table.context, StreamSettings(changes=True, start="from-snapshot", version=1), schema=table.schema
    )
    present: dict[int, Any] = {}
    start = stream.first()
    while (end := stream.advance(start, Limits(snapshots=2))) != start:
        batch = stream.plan(start, end)
        for unit in batch.units:
            for part in unit.rows(table.store, batch.plan):
                apply(present, [(row["_row_kind"], row["id"], row["v"], row["s"]) for row in part.to_pylist()])
        start = end
    return present


def apply(there: dict[int, Any], changes: list[Change]) -> dict[int, Any]:
    for kind, key, *values in changes:
        there.pop(key, None)
        if kind in ("+I", "+U"):
            there[key] = tuple(values)
    return there


OTHER_WAY = pytest.mark.long


@pytest.mark.parametrize(
    ("producer", "creator"),
    [
        ("input", "java"),
        ("full-compaction", "lakebed"),
        pytest.param("input", "lakebed", marks=OTHER_WAY),
        pytest.param("full-compaction", "java", marks=OTHER_WAY),
    ],
)
def test_both_clients_follow_what_either_wrote(java: Java, lake: Lake, producer: str, creator: str) -> None:
    """Writes, deletes and compactions by turns: both read every change, and the changes come to the table's rows."""
    options = {"bucket": "2", "changelog-producer": producer, "num-sorted-run.compaction-trigger": "3"}
    if creator == "java":
        java.create("default.t", SCHEMA, primary_keys=["id"], options=options)
    else:
        lake.create_table("t", SCHEMA, primary_keys=["id"], options=options)
    table, rng = lake.table("t"), random.Random(f"{producer} {creator}")
    for step in range(6):
        keys = rng.sample(range(9), 5)
        rows = pa.table({"id": keys, "v": [step] * 5, "s": [rng.choice(["a", None, "ü"]) for _ in keys]}, schema=SCHEMA)
        if (step % 2) == (creator == "java"):
            java.write("default.t", rows)
            java.write("default.t", rows.slice(0, 1), kind="-D")
        else:
            table.upsert(rows)
            table.delete(f"id = {keys[0]}")
        if step % 3 == 1:
            java.call("compact", "default.t")
        elif step % 3 == 2:
            table.compact(full=True)
    table.compact(full=True)
    changes = followed(java, **FROM_START)
    assert Counter(changes) == Counter(told(table))
    expected = {row["id"]: (row["v"], row["s"]) for row in table.read().to_pylist()}
    assert apply({}, changes) == net(table) == expected
    if producer == "full-compaction":
        assert {kind for kind, *_ in changes} == {"+I", "-U", "+U", "-D"}
    whole = followed(java)
    assert apply({}, whole) == expected
    assert {row["id"]: (row["v"], row["s"]) for row in java.read("default.t").to_pylist()} == expected


@pytest.mark.long
@pytest.mark.parametrize(
    ("producer", "creator"),
    [("input", "java"), ("input", "lakebed"), ("none", "java"), ("none", "lakebed"), ("lookup", "java")],
)
def test_both_clients_follow_a_table_with_deletion_vectors(java: Java, lake: Lake, producer: str, creator: str) -> None:
    """Whoever writes and compacts: what both follow comes to the rows of a dictionary."""
    options = {"bucket": "2", "deletion-vectors.enabled": "true", "changelog-producer": producer}
    if creator == "java":
        java.create("default.t", SCHEMA, primary_keys=["id"], options=options)
    else:
        lake.create_table("t", SCHEMA, primary_keys=["id"], options=options)
    table, rng = lake.table("t"), random.Random(f"{producer} {creator}")
    written: dict[int, Any] = {}
    for step in range(8):
        keys = rng.sample(range(9), 5)
        rows = pa.table({"id": keys, "v": [step] * 5, "s": [rng.choice(["a", None, "ü"]) for _ in keys]}, schema=SCHEMA)
        if producer == "lookup" or (step % 2) == (creator == "java"):
            java.write("default.t", rows, wait_compaction=step % 3 > 0)
            java.write("default.t", rows.slice(0, 1), kind="-D", wait_compaction=step % 3 > 0)
        else:
            table.upsert(rows)
            table.delete(f"id = {keys[0]}")
            if step % 3:
                table.compact(full=step % 3 == 2)
        written |= {row["id"]: (row["v"], row["s"]) for row in rows.to_pylist()}
        del written[keys[0]]
        if producer == "lookup":
            assert net(table) == {row["id"]: (row["v"], row["s"]) for row in table.read().to_pylist()}
        else:
            assert net(table) == written, step
    assert apply({}, followed(java, **FROM_START)) == net(table)
    if producer == "input":
        assert Counter(followed(java, **FROM_START)) == Counter(told(table))


def test_what_java_expires_and_what_lakebed_expires(java: Java, lake: Lake) -> None:
    """Either client deletes the changelog files of the snapshots that it expires, whoever wrote them."""
    options = {"bucket": "1", "changelog-producer": "input"}
    table = lake.create_table("t", SCHEMA, primary_keys=["id"], options=options)

    def count() -> int:
        return sum("/changelog-" in meta.path for meta in table.store.list(""))

    for step in range(4):
        rows = pa.table({"id": [step], "v": [step], "s": ["x"]}, schema=SCHEMA)
        (java.write if step % 2 else lambda _, new: table.upsert(new))("default.t", rows)
    assert count() == 4
    java.call("expire_snapshots", "default.t", retain_max=3, retain_min=3)
    assert count() == 3
    table.expire(retain_max=1, retain_min=1)
    assert count() == 1
    assert followed(java, **FROM_START)[-1:] == [("+I", 3, 3, "x")]
