"""Rollbacks by the Java implementation, below what lakebed has expired."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from lakebed import Lake

if TYPE_CHECKING:
    from conftest import Java

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("x", pa.float64())])


def rows(*ids: int) -> pa.Table:
    """Rows by id."""
    return pa.table({"id": ids, "x": [0.5] * len(ids)}, SCHEMA)


def ids(found: pa.Table) -> list[int]:
    """The ids of rows, in order."""
    return sorted(found["id"].to_pylist())


@pytest.mark.parametrize("keys", [[], ["id"]])
def test_java_rolls_back_below_what_lakebed_expired(java: Java, lake: Lake, keys: list[str]) -> None:
    """15 commits, expiry, Java's rollback to the first and an insert: both clients go on, and no row is lost."""
    java.create("default.t", SCHEMA, primary_keys=keys, options={"bucket": "1"} if keys else {})
    for number in range(15):
        lake.table("t").write(rows(number))
    table = lake.table("t")
    table.create_tag("t1", snapshot_id=1)
    assert table.expire(retain_max=3, retain_min=1, older_than_ms=0).hidden_count == 12
    java.call("rollback", tag="t1")
    assert ids(java.read("default.t")) == ids(lake.table("t").read()) == [0]
    java.write("default.t", rows(100))
    report = lake.table("t").expire(retain_max=10, retain_min=1, older_than_ms=0)
    assert (report.hidden_count, report.deleted_count) == (0, 0)
    assert ids(java.read("default.t")) == ids(lake.table("t").read()) == [0, 100]
    lake.table("t").write(rows(200))
    java.write("default.t", rows(300))
    lake.table("t").write(rows(201))
    expected = [0, 100, 200, 201, 300]
    assert ids(java.read("default.t")) == ids(lake.table("t").read()) == expected
    lake.table("t").expire(retain_max=1, retain_min=1, older_than_ms=0)
    java.call("expire_snapshots", retain_max=1, retain_min=1, older_than_ms=0)
    lake.table("t").collect(grace_ms=0)
    java.call("remove_orphans")
    assert ids(java.read("default.t")) == ids(lake.table("t").read()) == expected
    assert ids(java.read("default.t", options={"scan.tag-name": "t1"})) == [0]
    java.call("rollback", tag="t1")
    lake.table("t").write(rows(7))
    lake.table("t").expire(retain_max=1, retain_min=1, older_than_ms=0)
    assert ids(java.read("default.t")) == ids(lake.table("t").read()) == [0, 7]


@pytest.mark.parametrize("keys", [[], ["id"]])
def test_java_expires_nothing_that_a_rollback_made_live_again(served: Java, lake: Lake, keys: list[str]) -> None:
    """After its commits through a server, though the table lets it expire: it would delete the files by their dates."""
    options = {"snapshot.num-retained.min": "1", "snapshot.num-retained.max": "1"}
    served.create("default.t", SCHEMA, primary_keys=keys, options={**options, **({"bucket": "1"} if keys else {})})
    table = lake.table("t")
    for number in range(3):
        table.write(rows(number))
    table.compact(full=True)
    table.rollback_to_as_latest(3)
    for number in range(3, 6):
        served.write("default.t", rows(number))
    assert len(list(table.snapshots())) == 8
    assert ids(served.read("default.t")) == ids(table.read()) == list(range(6))
