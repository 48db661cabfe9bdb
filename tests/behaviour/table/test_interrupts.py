"""A table goes on after Ctrl-C: what was interrupted is there or not, and nothing else has changed."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from functools import partial
from itertools import count

import pyarrow as pa
import pytest

from lakebed.objects.open import open_store
from lakebed.runtime import Environment
from lakebed.table.branch.manifest_reader import PROCESS_CACHE
from lakebed.table.table import Table
from lakebed.testing.between import Between
from lakebed.testing.clock import ManualClock
from worlds.interrupts import interrupt_at
from worlds.table.world import InlineRuntime

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])
Contents = dict[int, str]


def rows(contents: Contents) -> pa.Table:
    """Rows of a table."""
    return pa.table({"id": list(contents), "v": list(contents.values())}, SCHEMA)


def new_table() -> Table:
    """Three versions, of which a tag holds the first."""
    environment = Environment(clock=ManualClock(), rng=random.Random(uuid.uuid4().int), runtime=InlineRuntime())
    store = open_store(f"memory://{uuid.uuid4()}", environment=environment)
    options = {"bucket": "1"}
    table = Table.create(store, name="t", schema=SCHEMA, primary_keys="id", options=options, environment=environment)
    table.upsert(rows({1: "a", 2: "b"}))
    table.create_tag("first")
    table.upsert(rows({2: "B", 3: "c"}))
    table.upsert(rows({4: "d"}))
    return table


def contents(table: Table, version: int | str | None = None) -> Contents:
    """What a version has."""
    read = table.read(version=version)
    found = dict(zip(*(read.column(name).to_pylist() for name in ("id", "v")), strict=True))
    assert len(found) == read.num_rows
    return found


NOW: Contents = {1: "a", 2: "B", 3: "c", 4: "d"}
VERBS: dict[str, tuple[Callable[[Table], object], Contents]] = {
    "upsert": (lambda table: table.upsert(rows({1: "A", 5: "e"})), NOW | {1: "A", 5: "e"}),
    "delete": (lambda table: table.delete("id > 2"), {1: "a", 2: "B"}),
    "overwrite": (lambda table: table.overwrite(rows({9: "i"})), {9: "i"}),
    "compact": (lambda table: table.compact(full=True), NOW),
    "expire": (lambda table: table.expire(retain_max=1, retain_min=1, older_than_ms=0), NOW),
    "rollback": (lambda table: table.rollback_to("first"), {1: "a", 2: "b"}),
}
"""Each verb, and what the table has then."""
COMMITTING = ["table/commit/commit.py", "table/rows/rows.py", "table/branch/snapshots.py", "table/versions/rollback.py"]
DELETING = ["table/collect/deletion.py", "table/collect/expire.py", "table/collect/recovery.py"]
SHORT = {"upsert": 13, "rollback": 61}
"""Between the moments that are tried: all of them take minutes."""


@pytest.mark.parametrize(
    ("verb", "step"), [*SHORT.items(), *(pytest.param(verb, 2, marks=pytest.mark.long) for verb in VERBS)]
)
def test_an_interrupted_verb_is_done_or_not(verb: str, step: int) -> None:
    """At whatever moment it was stopped: the table has all or nothing of it, and a tag what it had.

    So it is for a process that collects what is left, and the same object goes on to write.
    """
    act, done = VERBS[verb]
    for moment in count(1, step):
        table = new_table()
        where = interrupt_at(moment, partial(act, table), within=[*COMMITTING, *DELETING])
        found = contents(table)
        assert found in (NOW, done), where
        assert where is not None or found == done
        table.upsert(rows({7: "later"}))
        table.context.environment.clock.advance(200_000)  # type: ignore[attr-defined]
        PROCESS_CACHE.clear()
        other = Table.open(table.store, name="t", environment=table.context.environment)
        other.collect()
        PROCESS_CACHE.clear()
        assert contents(other) == found | {7: "later"}, where
        assert contents(other, "first") == {1: "a", 2: "b"}, where
        if where is None:
            break
    assert moment > 10


def test_a_commit_that_is_interrupted_behind_its_snapshot_keeps_its_files() -> None:
    """The snapshot is there, so its rows are, whatever the caller was told."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    table = new_table()
    store = Between(table.store, kind="put", prefix="snapshot/snapshot-", happens=interrupt)
    with pytest.raises(KeyboardInterrupt):
        Table.open(store, name="t", environment=table.context.environment).upsert(rows({5: "e"}))
    assert store.happened
    PROCESS_CACHE.clear()
    assert contents(Table.open(table.store, name="t", environment=table.context.environment)) == NOW | {5: "e"}
