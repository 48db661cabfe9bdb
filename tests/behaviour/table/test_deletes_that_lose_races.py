"""Deletes by predicate while other writers change the rows: what no longer matches stays."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from lakebed.errors import Conflict
from lakebed.objects.open import open_store
from lakebed.runtime import Environment
from lakebed.table.rows import rows as rows_module
from lakebed.table.rows.rows import TRIES_MAX
from lakebed.table.table import Table
from lakebed.testing import ManualClock
from lakebed.testing.between import Between

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.float64())])


def environment() -> Environment:
    """Time moves on request; names are unique over all tests."""
    return Environment(clock=ManualClock(), rng=random.Random(uuid.uuid4().int))


def rows(values: dict[int, float]) -> pa.Table:
    """Rows by id."""
    return pa.table({"id": list(values), "v": list(values.values())}, SCHEMA)


def new_table(**options: str) -> Table:
    """Ids 0 to 9, every value 1, in a primary-key table of two buckets."""
    store = open_store(f"memory://{uuid.uuid4()}")
    options = {"bucket": "2", **options}
    table = Table.create(
        store, name="t", schema=SCHEMA, primary_keys=["id"], options=options, environment=environment()
    )
    table.upsert(rows(dict.fromkeys(range(10), 1.0)))
    return table


def values_of(table: Table) -> dict[int, float]:
    """What the table has, as a dictionary."""
    rows = Table.open(table.store, name="t", environment=environment()).scan().to_arrow()
    return dict(zip(rows["id"].to_pylist(), rows["v"].to_pylist(), strict=True))


def racing(table: Table, happens: Callable[[Table], object]) -> tuple[Table, Between]:
    """The table as a process sees it whose first manifest is written just before another process acts."""
    other = Table.open(table.store, name="t", environment=environment())
    store = Between(table.store, kind="put", prefix="manifest/", happens=lambda: happens(other))
    return Table.open(store, name="t", environment=environment()), store


def test_a_row_that_no_longer_matches_stays() -> None:
    """Another writer changes two matching rows before the delete commits: they stay, the others go."""
    table = new_table()
    deleter, store = racing(table, lambda other: other.upsert(rows({3: 5.0, 4: 1.0, 20: 1.0})))
    deleter.delete("v = 1.0")
    assert store.happened
    assert values_of(table) == {3: 5.0}
    data = {meta.path for meta in table.store.list("") if meta.path.startswith("bucket-")}
    table.collect(grace_ms=0)
    assert {meta.path for meta in table.store.list("") if meta.path.startswith("bucket-")} == data


def test_a_delete_finds_nothing_after_a_lost_race() -> None:
    """When no row matches any more after the lost race, nothing is committed."""
    table = new_table()
    deleter, store = racing(table, lambda other: other.upsert(rows(dict.fromkeys(range(10), 2.0))))
    assert deleter.delete("v = 1.0") is None
    assert store.happened
    assert values_of(table) == dict.fromkeys(range(10), 2.0)
    assert table.context.snapshots.ids() == [1, 2]


def test_a_compaction_in_between_costs_no_second_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compaction changes no row, so a delete that lost its race to one commits what it found."""
    table = new_table()
    table.upsert(rows({1: 7.0}))
    deleter, store = racing(table, lambda other: other.compact(full=True))
    scans = []
    scan = rows_module.scan_snapshot

    def counted(*args: Any, **asked: Any) -> Any:
        scans.append(1)
        return scan(*args, **asked)

    monkeypatch.setattr(rows_module, "scan_snapshot", counted)
    deleter.delete("v = 1.0")
    monkeypatch.undo()
    assert store.happened
    assert len(scans) == 1
    assert values_of(table) == {1: 7.0}


def test_the_winner_expired_before_the_loser_looked() -> None:
    """What happened in between is unknown when those snapshots have expired: the predicate is asked again."""
    table = new_table()

    def change(other: Table) -> None:
        other.upsert(rows({3: 5.0}))
        other.compact(full=True)
        other.expire(retain_max=1, retain_min=1, older_than_ms=0)

    deleter, store = racing(table, change)
    deleter.delete("v = 1.0")
    assert store.happened
    assert values_of(table) == {3: 5.0}


def test_rows_that_change_at_every_try_end_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """A delete that never comes first gives up after a number of tries, and leaves no file behind."""
    table = new_table()
    other = Table.open(table.store, name="t", environment=environment())
    deleter = Table.open(table.store, name="t", environment=environment())
    tries = 0
    scan = rows_module.scan_snapshot

    def scan_and_change(*args: Any, **asked: Any) -> Any:
        nonlocal tries
        tries += 1
        result = scan(*args, **asked)
        other.upsert(rows({100: float(tries)}))
        return result

    monkeypatch.setattr(rows_module, "scan_snapshot", scan_and_change)
    with pytest.raises(Conflict, match=r"changed rows of the same buckets after snapshot \d+ was read"):
        deleter.delete("v = 1.0")
    monkeypatch.undo()
    assert tries == TRIES_MAX
    assert len(values_of(table)) == 11
    data = {meta.path for meta in table.store.list("")}
    table.collect(grace_ms=0)
    assert {path for path in data if "/bucket-" in path or path.startswith("bucket-")} <= {
        meta.path for meta in table.store.list("")
    }
