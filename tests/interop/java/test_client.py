"""The bridge to the Java implementation itself: each verb once, against rows that the test made."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from lakebed import Lake

if TYPE_CHECKING:
    from conftest import Java

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("day", pa.string()), ("x", pa.float64())])


def rows(first: int, count: int, x: float = 0.5) -> pa.Table:
    """`count` rows from id `first`, on alternate days."""
    ids = range(first, first + count)
    return pa.table({"id": ids, "day": [f"d{i % 2}" for i in ids], "x": [x] * count}, SCHEMA)


def ids(found: pa.Table) -> list[int]:
    """The ids of rows, in order."""
    return sorted(found["id"].to_pylist())


@pytest.mark.parametrize(
    ("keys", "parts", "options"),
    [
        ([], [], {}),
        ([], ["day"], {}),
        (["id"], [], {"bucket": "2"}),
        (["id"], [], {}),
        (["id", "day"], ["day"], {"bucket": "2"}),
        (["id", "day"], ["day"], {"dynamic-bucket.target-row-num": "7"}),
    ],
)
def test_every_verb(java: Java, lake: Lake, keys: list[str], parts: list[str], options: dict[str, str]) -> None:
    """Java writes, upserts, tags, compacts, rolls back, branches and cleans, and both read the same rows."""
    java.create("default.t", SCHEMA, primary_keys=keys, partition_keys=parts, options=options)
    java.write("default.t", rows(0, 20))
    java.call("create_tag", name="one")
    java.write("default.t", rows(20, 10))
    table = lake.table("t")
    assert ids(java.read("default.t")) == ids(table.read()) == list(range(30))
    if keys:
        java.write("default.t", rows(5, 5), kind="-D")
        java.write("default.t", rows(0, 2, x=9.0))
        assert ids(java.read("default.t")) == ids(table.read()) == [*range(5), *range(10, 30)]
        assert ids(java.read("default.t", where={"op": "=", "column": "x", "value": "9.0"})) == [0, 1]
    before = ids(java.read("default.t"))
    java.call("compact")
    assert ids(java.read("default.t")) == before
    assert ids(java.read("default.t", options={"scan.tag-name": "one"})) == list(range(20))
    java.call("create_branch", name="b", tag="one")
    java.write("default.t", rows(100, 1), branch="b")
    assert ids(java.read("default.t", branch="b")) == [*range(20), 100]
    assert java.call("list_branches") == ["b"]
    java.call("rename_tag", name="one", to="uno")
    assert java.call("list_tags") == {"uno": 1}
    java.call("rollback", tag="uno")
    assert ids(java.read("default.t")) == ids(table.read()) == list(range(20))
    java.call("fast_forward", name="b")
    assert ids(java.read("default.t")) == [*range(20), 100]
    java.call("delete_branch", name="b")
    java.call("alter", changes=[{"change": "add", "column": "y", "type": "INT"}])
    assert java.read("default.t").column_names == ["id", "day", "x", "y"]
    assert java.call("expire_snapshots") >= 1
    java.call("delete_tag", name="uno")
    java.call("remove_orphans")
    assert ids(java.read("default.t")) == ids(lake.table("t").read()) == [*range(20), 100]
    java.call("truncate")
    assert ids(java.read("default.t")) == []


def test_every_type_survives_the_bridge(java: Java) -> None:
    """Values that JSON has no words for come back as they went: NaN, -0.0, nanoseconds, nested values."""
    struct = pa.struct([("a", pa.int32()), ("b", pa.string())])
    rows = pa.table(
        {
            "i": pa.array([1, 2], pa.int64()),
            "f": pa.array([float("nan"), -0.0], pa.float32()),
            "d": pa.array([float("-inf"), 5e-324], pa.float64()),
            "n": pa.array([Decimal("-0.01"), None], pa.decimal128(38, 2)),
            "t": pa.array([-1, 1_700_000_000_123_456_789], pa.int64()).cast(pa.timestamp("ns")),
            "z": pa.array([-1, None], pa.int64()).cast(pa.timestamp("us", "UTC")),
            "y": pa.array([-719_528, 2_932_896], pa.int32()).cast(pa.date32()),
            "c": pa.array([0, 86_399_999], pa.int32()).cast(pa.time32("ms")),
            "b": pa.array([b"", b"\x00\xff"], pa.binary()),
            "s": pa.array(["\u00e9\U0001f600\n", ""], pa.string()),
            "l": pa.array([[1, None], None], pa.list_(pa.int32())),
            "m": pa.array([[("k", 1), ("", None)], []], pa.map_(pa.string(), pa.int64())),
            "r": pa.array([{"a": None, "b": "x"}, None], struct),
            "lr": pa.array([[{"a": 7, "b": None}], [None]], pa.list_(struct)),
        }
    )
    java.create("default.t", rows.schema)
    java.write("default.t", rows)
    got = java.read("default.t")
    assert java.exact(got) == java.exact(rows)
    assert got.schema.types == rows.schema.types


def test_manifests_are_compacted_through_the_catalog(served: Java, lake: Lake) -> None:
    """Java's verb commits a snapshot with the properties of the one before, lakebed's among them; no row changes."""
    served.create("default.t", SCHEMA, primary_keys=[], partition_keys=[], options={})
    for first in (0, 10, 20):
        served.write("default.t", rows(first, 10))
    served.call("compact_manifests")
    table = lake.table("t")
    newest = table.latest()
    assert newest is not None
    assert (newest.id, newest.commit_kind) == (4, "COMPACT")
    assert len(table.context.manifests.all_metas(newest)) == 1
    assert ids(served.read("default.t")) == ids(table.read()) == list(range(30))
    served.write("default.t", rows(30, 5))
    assert ids(table.read()) == list(range(35))


def test_a_branch_is_renamed_through_the_catalog(served: Java, lake: Lake) -> None:
    """Java's own verb renames a branch of the server, reads and writes it by the new name, and knows the refusals."""
    served.create("default.t", SCHEMA, primary_keys=[], partition_keys=[], options={})
    served.write("default.t", rows(0, 10))
    served.call("create_branch", name="dev")
    served.call("create_branch", name="taken")
    served.write("default.t$branch_dev", rows(10, 5))
    with pytest.raises(Exception, match=r"[Bb]ranch.*taken"):
        served.call("rename_branch", name="dev", to="taken")
    with pytest.raises(Exception, match=r"[Bb]ranch.*none"):
        served.call("rename_branch", name="none", to="other")
    served.call("rename_branch", name="dev", to="other")
    assert sorted(served.call("list_branches")) == ["other", "taken"]
    served.write("default.t$branch_other", rows(15, 5))
    branch = lake.table("t", branch="other")
    assert ids(served.read("default.t$branch_other")) == ids(branch.read()) == list(range(20))
    with pytest.raises(Exception, match="dev"):
        served.write("default.t$branch_dev", rows(20, 5))
    assert ids(served.read("default.t")) == list(range(10))
