"""Handles that have not seen the newest schema: every verb looks, so nothing of what others added is lost or hidden."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakebed.lake.lake import Lake, open_lake
from lakebed.table.table import Table

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.int32())])
KINDS: dict[str, dict[str, Any]] = {
    "append": {},
    "append with vectors": {"options": {"deletion-vectors.enabled": "true"}},
    "keyed": {"primary_keys": "k"},
    "keyed with vectors": {"primary_keys": "k", "options": {"deletion-vectors.enabled": "true"}},
    "dynamic buckets": {"primary_keys": "k", "options": {"bucket": "-1"}},
    "partial update": {"primary_keys": "k", "options": {"merge-engine": "partial-update"}},
}
Handles = Callable[[Table], Table]
HANDLES: dict[str, Handles] = {
    "opened": lambda table: table,
    "pickled": lambda table: pickle.loads(pickle.dumps(table)),
}


@dataclass
class Two:
    """A table, a handle of it that is never refreshed, and one that changes the schema."""

    lake: Lake
    stale: Table
    other: Table

    def rows(self) -> list[tuple[Any, ...]]:
        """What a new handle reads, in order of the first column; level 0 is compacted first where readers skip it."""
        return values_of(self.lake.table("t"))


def values_of(table: Table, **version: Any) -> list[tuple[Any, ...]]:
    """The rows of a version as tuples."""
    read = table.read(**version)
    return sorted(zip(*(column.to_pylist() for column in read.columns), strict=True), key=lambda row: row[0])


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """A kind of table."""
    return str(request.param)


@pytest.fixture(params=HANDLES)
def two(request: pytest.FixtureRequest, kind: str, tmp_path: Path) -> Two:
    """A table of two rows, and its two handles."""
    lake = open_lake(str(tmp_path))
    other = lake.create_table("t", SCHEMA, **KINDS[kind])
    other.write(pa.table({"k": [1, 2], "v": [10, 20]}, SCHEMA))
    return Two(lake, HANDLES[request.param](lake.table("t")), other)


def add_and_fill(two: Two) -> None:
    """The other handle adds column x and writes a row with it."""
    two.other.add_column("x", "STRING")
    two.other.write(pa.table({"k": [3], "v": [30], "x": ["three"]}))


def ids_ascend(table: Table) -> bool:
    """Whether no snapshot has an older schema than the one before."""
    ids = [snapshot.schema_id for snapshot in table.snapshots()]
    return ids == sorted(ids)


def test_a_compaction_keeps_columns_that_its_handle_has_not_seen(two: Two) -> None:
    """A full compaction by a handle older than a column keeps the values, also after expiry."""
    add_and_fill(two)
    two.stale.compact(full=True)
    two.stale.expire(retain_max=1, retain_min=1, older_than_ms=2**60)
    assert two.rows() == [(1, 10, None), (2, 20, None), (3, 30, "three")]
    assert ids_ascend(two.other)


def test_a_compaction_by_an_old_handle_reads_widened_values(two: Two) -> None:
    """After a widening by another handle, values beyond the old type survive the compaction."""
    two.other.widen_column("v", "BIGINT")
    two.other.write(pa.table({"k": [3], "v": [2**40]}))
    two.stale.compact(full=True)
    assert two.rows() == [(1, 10), (2, 20), (3, 2**40)]


@pytest.mark.parametrize("verb", ["delete", "update", "write", "compact", "overwrite", "restore", "commit"])
def test_a_version_and_its_tag_have_the_columns_of_their_rows(two: Two, verb: str) -> None:
    """What an old handle commits has the newest schema's id, so a tag of it shows every column."""
    add_and_fill(two)
    kept = {3: (3, 30, "three")}
    if verb == "delete":
        two.stale.delete("k = 1")
    elif verb == "update":
        two.stale.update("k = 1", {"v": 11})
    elif verb == "write":
        two.stale.write(pa.table({"k": [4], "v": [40]}, SCHEMA))
    elif verb == "compact":
        two.stale.compact(full=True)
    elif verb == "overwrite":
        two.stale.overwrite(pa.table({"k": [4], "v": [40], "x": ["four"]}))
        kept = {4: (4, 40, "four")}
    elif verb == "restore":
        two.stale.rollback_to_as_latest(1)
        kept = {1: (1, 10, None)}
    else:
        two.stale.commit([])
    if "vectors" in two.other.options.__class__.__name__:
        raise AssertionError
    two.other.compact(full=True)
    two.stale.create_tag("kept")
    rows = {row[0]: row for row in values_of(two.lake.table("t"), tag="kept")}
    assert rows.items() >= kept.items()
    assert ids_ascend(two.other)
