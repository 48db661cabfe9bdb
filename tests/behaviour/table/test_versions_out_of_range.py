"""Versions and times that no table can have are refused with a sentence, by every verb of the library."""

from __future__ import annotations

import uuid
from typing import Any

import pyarrow as pa
import pytest

from lakebed.errors import InvalidRequest, NotFound
from lakebed.objects.open import open_store
from lakebed.table.model.predicate_tree import column
from lakebed.table.table import Table

DIGITS = "9" * 5000
VERSIONS: list[Any] = [
    *(DIGITS, f"snapshot.{DIGITS}", 10**5000, -(10**5000), 2**63, "٣", "²", "a" * 5000, "tag." + "a" * 5000),
    *("branch." + "a" * 5000, "\ud800", "\0", "", True, 1.5),
]
TIMES: list[Any] = [DIGITS, f"-{DIGITS}", 10**5000, 2**63, -(2**63), -(10**17), -1, "--5", "9999999-01-01", "", True]


@pytest.fixture
def table() -> Table:
    """A table of one snapshot."""
    table = Table.create(open_store(f"memory://range-{uuid.uuid4()}"), name="t", schema=pa.schema([("x", pa.int64())]))
    table.write(pa.table({"x": [1]}))
    return table


@pytest.mark.parametrize("version", VERSIONS, ids=lambda one: one[:12] if isinstance(one, str) else "n")
def test_versions(table: Table, version: Any) -> None:
    """Reading, tagging, restoring and branching from such a version say what is wrong with it."""
    doors = [
        lambda: table.read(version=version),
        lambda: table.scan(version=version).count(),
        lambda: table.at(version),
        lambda: table.pin("p", version=version),
        lambda: table.restore(version),
        lambda: table.create_branch("f", version=version),
        lambda: table.rollback_to(version),
        lambda: table.system("files", version=version),
    ]
    for door in doors:
        with pytest.raises((InvalidRequest, NotFound)) as refused:
            door()
        assert len(str(refused.value)) < 600


@pytest.mark.parametrize("time", TIMES, ids=lambda one: one[:12] if isinstance(one, str) else "n")
def test_times(table: Table, time: Any) -> None:
    """Reading as of such a time, and tagging or rolling back to it, say what is wrong with it."""
    for door in (lambda: table.read(timestamp_ms=time), lambda: table.rollback_to(timestamp_ms=time)):
        with pytest.raises((InvalidRequest, NotFound)) as refused:
            door()
        assert len(str(refused.value)) < 600


def test_a_time_far_ahead_is_the_newest_version(table: Table) -> None:
    """A time after everything is not an error."""
    assert table.read(timestamp_ms=2**63 - 1).num_rows == 1


@pytest.mark.parametrize("where", [pa.table({"x": [1]}), 5, [], ["x"], column("x"), object()])
def test_filters_of_another_type(table: Table, where: Any) -> None:
    """What is neither a text nor a predicate is refused by every verb that takes a filter; rows are not keys."""
    doors = [
        lambda: table.delete(where),
        lambda: table.update(where, {"x": 2}),
        lambda: table.scan(where=where).to_arrow(),
        lambda: table.read(where=where),
    ]
    for door in doors:
        with pytest.raises(InvalidRequest, match="filter is text"):
            door()
    assert table.read()["x"].to_pylist() == [1]


@pytest.mark.parametrize("deletes", ["y", "\ud800", "", 5, ["x"]])
def test_a_mark_of_deletes_that_is_no_column(table: Table, deletes: Any) -> None:
    """The column that marks deletes must be one of the rows, and its name a text."""
    store = open_store(f"memory://range-{uuid.uuid4()}")
    columns = pa.schema([("x", pa.int64())])
    keyed = Table.create(store, name="k", schema=columns, primary_keys=["x"], options={"bucket": "1"})
    with pytest.raises(InvalidRequest, match=r"names no column|takes a text or None"):
        keyed.write(pa.table({"x": [1]}), deletes=deletes)


def test_a_lifetime_beyond_the_end_of_time(table: Table) -> None:
    """A tag that is kept for longer than a number of milliseconds can say is refused; the longest one is kept."""
    with pytest.raises(InvalidRequest, match="lifetime of tag"):
        table.create_tag("never", lifetime_ms=2**63)
    table.create_tag("long", lifetime_ms=2**63 - 1)
    table.expire_tags()
    for _ in range(2):
        assert table.at("long").read()["x"].to_pylist() == [1]
        table.expire(retain_max=1, retain_min=1)
    assert [pin.expires_ms for pin in table.pins()] == [2**63 - 1]
    table.delete_tag("long")


def test_limits_and_paths(table: Table) -> None:
    """A limit beyond every count of rows means all, and half a character is in no path."""
    for limit in (2**63, 2**70):
        assert table.read(limit=limit).num_rows == 1
    for path in ("\ud800", "s3://elsewhere/\ud800", "a//b", ""):
        with pytest.raises(InvalidRequest) as refused:
            table.why(path)
        assert refused.value.kind == "invalid_path"
