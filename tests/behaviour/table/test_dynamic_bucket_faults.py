"""Faults at every change that a write into dynamic buckets makes in the store: rows and index stay consistent.

The changes are counted in an undisturbed run. A dictionary by key is the judge of the rows; that each key is in one
bucket, and in the index of that bucket, is read from the files themselves.
"""

from __future__ import annotations

from contextlib import suppress

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakebed.errors import LakebedError
from lakebed.objects import open_store
from lakebed.objects.port import ObjectStore
from lakebed.runtime import Environment
from lakebed.table.files.bucket import key_hashes
from lakebed.table.files.dynamic_bucket import HashIndex
from lakebed.table.table import Table
from lakebed.testing import Crashed, Fault, FaultyStore, PowerLossStore, seed_count
from worlds.table.world import inline_environment

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.int64())])
OPTIONS = {"bucket": "-1", "dynamic-bucket.target-row-num": "4"}
BEFORE = dict.fromkeys(range(6), 0)
WRITTEN = dict.fromkeys(range(4, 13), 1)
AFTER = dict.fromkeys((1, 7, 11, 20, 21), 2)
"""Rows of three upserts: before the fault, the one that it strikes, and one by the next process."""


def environment(who: str) -> Environment:
    """Names and times that are the same in every run."""
    return inline_environment(who, start_s=100_000.0)


def open_table(store: ObjectStore, who: str) -> Table:
    """The table as a new process sees it."""
    return Table.open(store, name="t", environment=environment(who))


def rows(wanted: dict[int, int]) -> pa.Table:
    """Rows of a dictionary."""
    return pa.table({"k": list(wanted), "v": list(wanted.values())}, SCHEMA)


def write_and_expire(table: Table) -> None:
    """Known keys and new ones; then the version before goes, with the index files that only it had."""
    table.upsert(rows(WRITTEN))
    table.expire(retain_max=1, retain_min=1, older_than_ms=2**50)


def contents(table: Table) -> dict[int, int]:
    """The rows as a dictionary; a key that occurs twice is an error."""
    rows = table.read().to_pylist()
    assert len({row["k"] for row in rows}) == len(rows)
    return {row["k"]: row["v"] for row in rows}


def check_index(table: Table) -> None:
    """Every key of every file is in one bucket, and its hash in the index of that bucket and of no other."""
    newest = table.latest()
    assert newest is not None
    index = HashIndex(table.store, table.context.layout)
    homes: dict[int, int] = {}
    for entry in index.entries(newest.index_manifest):
        for number in index.hashes(entry).tolist():
            assert homes.setdefault(number, entry.bucket) == entry.bucket
    for file in table.system("files").to_pylist():
        body = pq.ParquetFile(pa.BufferReader(bytes(table.store.get(file["file_path"])))).read(["k"])
        hashes = key_hashes([body["k"]], ["BIGINT NOT NULL"])
        assert {homes.get(number) for number in hashes.tolist()} == {file["bucket"]}


def base() -> ObjectStore:
    """A table with one commit, in memory."""
    store = open_store("memory://dynamic-bucket-faults", environment=environment("the store"))
    store.delete([meta.path for meta in store.list("")])
    Table.create(
        store, name="t", schema=SCHEMA, primary_keys=["k"], options=OPTIONS, environment=environment("maker")
    ).upsert(rows(BEFORE))
    return store


@pytest.mark.parametrize(
    "fault",
    [
        Fault.CRASH_AFTER,
        Fault.LOST_REPLY,
        pytest.param(Fault.ERROR_BEFORE, marks=pytest.mark.long),  # leaves what the crash before it leaves
        Fault.CRASH_LATE,
    ],
    ids=lambda fault: fault.name,
)
def test_a_fault_at_every_change(fault: Fault) -> None:
    """The upsert is there whole or not at all, the next one goes on from it, and no unneeded file stays."""
    write_and_expire(open_table(base(), "first"))  # what every table here begins with is read once a process
    changes: list[int] = []
    counting = FaultyStore(base(), faults=lambda index, call: changes.append(index) if call.changes else None)
    table = open_table(counting, "count")
    first = counting.call_count
    write_and_expire(table)
    positions = [index - first for index in changes if index >= first]
    assert len(positions) > 8
    outcomes: set[bool] = set()
    if fault is not Fault.CRASH_AFTER and seed_count(1) == 1:  # lost replies and late changes take turns
        positions = positions[fault is Fault.CRASH_LATE :: 2]
    for position in positions:
        power = PowerLossStore(base())
        armed: dict[int, Fault] = {}
        store = FaultyStore(power, faults=lambda index, _, armed=armed: armed.get(index))  # type: ignore[misc]
        table = open_table(store, f"{fault} at {position}")
        armed[store.call_count + position] = fault
        with suppress(Crashed, LakebedError):
            write_and_expire(table)
        assert store.met, f"call {position} was not met"
        if fault is Fault.CRASH_AFTER:
            power.power_loss()
        outcomes.add(_check_recovery(power.inner, store, f"{fault} at {position}"))
    assert outcomes == {True, False}


def _check_recovery(inner: ObjectStore, store: FaultyStore, where: str) -> bool:
    """Whether the write is there; a new process reads, writes and cleans."""
    table = open_table(inner, f"after {where}")
    result = contents(table)
    assert result in (BEFORE, BEFORE | WRITTEN), where
    check_index(table)
    table.upsert(rows(AFTER))
    store.land()
    table = open_table(inner, f"later than {where}")
    assert contents(table) == result | AFTER, where
    check_index(table)
    table.upsert(rows(AFTER))  # renews the hint, which a late change has set back
    kept = contents(table)
    table.expire(retain_max=1, retain_min=1, older_than_ms=2**50)
    table.collect(grace_ms=0)
    newest = table.latest()
    assert newest is not None
    named = {entry.file_name for entry in HashIndex(inner, table.context.layout).entries(newest.index_manifest)}
    assert {meta.path.rpartition("/")[2] for meta in inner.list("index/")} == named, where
    assert contents(table) == kept, where
    check_index(table)
    return result != BEFORE
