"""Versions and times that no table can have are refused with a sentence, by every verb of the library."""

from __future__ import annotations

import uuid
from typing import Any

import pyarrow as pa
import pytest

from lakebed.errors import InvalidRequest, NotFound
from lakebed.objects.open import open_store
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
        lambda: table.fork("f", version=version),
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
