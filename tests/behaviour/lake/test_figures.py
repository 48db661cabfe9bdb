"""Figures that a lake shows: owners, times, kinds, rows, bytes and what a dry run would delete, as they are."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

import lakebed
from lakebed import kv
from lakebed.errors import NotFound
from lakebed.fsck.check import check_url
from lakebed.objects import open_store
from lakebed.runtime import Environment
from lakebed.table.table import Table
from lakebed.testing.clock import ManualClock
from lakebed.texts import spans_of

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])


def rows(*ids: int, name: str = "x") -> pa.Table:
    """Some rows."""
    return pa.table({"id": pa.array(ids, pa.int64()), "name": [name] * len(ids)})


@pytest.fixture
def table() -> Table:
    """A table with a primary key on a store whose clock is the test's."""
    environment = Environment(clock=ManualClock(start_ms=1_000_000))
    store = open_store("memory://figures", environment=environment)
    for meta in list(store.list("")):
        store.delete([meta.path])
    return Table.create(store, name="t", schema=SCHEMA, primary_keys="id", environment=environment)


def test_pins_have_the_time_when_they_were_made_and_no_invented_owner(table: Table) -> None:
    """A tag and a branch were made when their files were written, and who committed does not own them."""
    clock = table.context.environment.clock
    assert isinstance(clock, ManualClock)
    table.upsert(rows(1), commit_user="the writer")
    clock.advance(5)
    made = table.pin("audit")
    clock.advance(5)
    table.create_branch("trial")
    clock.advance(5)
    lasting = table.pin("week", lifetime_ms=7 * 86_400_000)
    pins = {pin.name: pin for pin in table.pins()}
    assert {name: pin.owner for name, pin in pins.items()} == {"audit": "", "trial": "", "week": ""}
    assert {name: pin.created_ms for name, pin in pins.items()} == {
        "audit": 1_005_000,
        "trial": 1_010_000,
        "week": 1_015_000,
    }
    assert (made, lasting) == (pins["audit"], pins["week"])
    assert table.why(table.tag_path("audit")).pins == (made,)
    assert table.why("snapshot/snapshot-1").pins[0].created_ms == table.snapshot(1).time_ms
    assert made in table.why(f"manifest/{table.snapshot(1).delta_manifest_list}").pins


def test_a_history_says_what_each_version_did(table: Table) -> None:
    """A rollback is called one, also after later commits, and a compaction changes no row."""
    for name in ("a", "b"):
        table.upsert(rows(1, 2, name=name))
    table.compact(full=True)
    table.rollback_to_as_latest(1)
    table.upsert(rows(3))
    table.overwrite(rows(9))
    summaries = [version.summary for version in table.versions()]
    assert summaries == [
        "append, +2 rows, 2 stored",
        "append, +2 rows, 4 stored",
        "compact, no row changed, 2 stored",
        "rollback to 1, 2 stored",
        "append, +1 rows, 3 stored",
        "overwrite, -2 rows, 1 stored",
    ]
    assert [version.facts["rolled_back_to"] for version in table.versions()] == [None, None, None, 1, None, None]


def test_a_lake_lists_rows_and_bytes_as_they_are(tmp_path: Path) -> None:
    """Rows are those that a read gives, bytes on disk are those of the folder, and what a clone shares is said."""
    lake = lakebed.open(str(tmp_path / "lake"))
    keyed = lake.create_table("keyed", SCHEMA, primary_keys="id")
    for name in ("a", "b", "c"):
        keyed.upsert(rows(1, 2, name=name))
    keyed.delete("id = 2")
    with lakebed.kv.open(f"{lake.url}/parent.kv") as parent:
        parent.put(b"k", random.Random(1).randbytes(40_000))
        parent.flush(memtable=True)
    lakebed.kv.admin.create_clone(f"{lake.url}/child.kv", f"{lake.url}/parent.kv")
    with lakebed.repo.open(f"{lake.url}/files.repo") as files:
        files.branch("main").put("a", b"12345")
        files.branch("main").commit("one")
        files.branch("main").put("a", b"123")
        files.branch("main").commit("two")

    def on_disk(folder: str) -> int:
        return sum(path.stat().st_size for path in (tmp_path / "lake" / folder).rglob("*") if path.is_file())

    writes = {store.name: store for store in lake.ls()}
    assert (writes["keyed"].row_count, writes["keyed"].row_count_is_exact) == (keyed.read().num_rows, True) == (1, True)
    assert writes["keyed"].disk_bytes == on_disk("default.db/keyed") > writes["keyed"].size_bytes
    assert writes["parent"].size_bytes > 1000
    assert (writes["parent"].shared_bytes, writes["child"].shared_bytes) == (0, writes["parent"].size_bytes)
    assert writes["child"].disk_bytes == on_disk("child.kv") < writes["child"].size_bytes
    assert writes["files"].size_bytes == 3
    assert writes["files"].disk_bytes is not None
    assert writes["files"].disk_bytes >= 8
    assert {store.disk_bytes for store in lake.ls(disk=False)} == {None}


def test_rows_that_are_dear_to_count_are_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where files are too large to be merged for a listing, the number is an upper bound and says so."""
    monkeypatch.setattr("lakebed.lake.adapters.tables._COUNTED_BYTES_MAX", 0)
    lake = lakebed.open("memory://figures-bound")
    table = lake.create_table("t", SCHEMA, primary_keys="id")
    for _ in range(3):
        table.upsert(rows(1, 2))
    (result,) = lake.ls()
    assert (result.row_count, result.row_count_is_exact) == (6, False)
    table.compact(full=True)
    (result,) = lake.ls()
    assert (result.row_count, result.row_count_is_exact) == (2, True)


@pytest.mark.parametrize("verb", ["expire", "delete_tag", "orphans", "database"])
def test_a_dry_run_counts_what_would_go(tmp_path: Path, verb: str) -> None:
    """The numbers of its report are those of the run that follows it."""
    lake = lakebed.open(str(tmp_path / "lake"))
    table = lake.create_table("t", SCHEMA)
    for number in range(5):
        table.overwrite(rows(number))
        table.create_tag(f"tag-{number}")
    table.delete_tag("tag-0", "tag-1", "tag-2")
    (tmp_path / "lake/default.db/t/bucket-0/data-lost-0.parquet").write_bytes(b"lost")
    with lakebed.kv.open(f"{lake.url}/d.kv") as database:
        for number in range(3):
            database.put(b"k", b"%d" % number)
            database.flush(memtable=True)
    if verb == "delete_tag":
        table.expire(retain_max=1, retain_min=1)
    collect = lakebed.kv.CollectorOptions(grace=timedelta(0))
    run: dict[str, Callable[[bool], lakebed.reclaim.model.CollectionReport]] = {
        "expire": lambda dry: table.expire(retain_max=1, retain_min=1, dry_run=dry),
        "delete_tag": lambda dry: table.delete_tag("tag-3", dry_run=dry),
        "orphans": lambda dry: table.collect(grace_ms=0, dry_run=dry),
        "database": lambda dry: lake.database("d").collect(collect, dry_run=dry),
    }
    before = {meta.path for meta in lake.store.list("")}
    said = run[verb](True)
    assert before <= {meta.path for meta in lake.store.list("")}
    done = run[verb](False)
    assert said.dry_run
    assert said.plan is not None
    counts = (said.hidden_count, said.deleted_count, said.deleted_bytes)
    assert counts == (len(said.plan.hide), len(said.plan.doomed), said.plan.bytes_freed)
    assert said.hidden_count + said.deleted_count > 0
    assert counts == (done.hidden_count, done.deleted_count, done.deleted_bytes)


def test_ids_that_are_gone_are_not_said_to_be_there(table: Table) -> None:
    """An error names the snapshots that there are, with their gaps."""
    for number in range(4):
        table.upsert(rows(number))
    table.store.delete(["snapshot/snapshot-3"])
    with pytest.raises(NotFound, match="it has snapshots 1 to 2, 4"):
        table.snapshot(3)
    assert spans_of([]) == ""
    assert spans_of([7]) == "7"
    assert spans_of([376, 377, 379]) == "376 to 377, 379"
    assert spans_of(range(1, 40, 2)) == "1, 3, 5, 7, 9, 11, ..., 39"


def test_a_destroyed_database_is_listed_while_anything_of_it_is_left(tmp_path: Path) -> None:
    """Its log, its files and its checkpoints are shown until the collector has taken them; a tombstone is not."""
    lake = lakebed.open(str(tmp_path))
    parent = kv.open(str(tmp_path / "parent.kv"))
    parent.put(b"k", b"v")
    parent.create_checkpoint(kv.CheckpointOptions(name="kept"))
    parent.close()
    kv.admin.create_clone(str(tmp_path / "clone.kv"), str(tmp_path / "parent.kv"))
    kv.admin.destroy(str(tmp_path / "parent.kv"))
    stores = {store.name: store for store in lake.ls()}
    assert (stores["parent"].version, stores["parent"].pin_count) == ("destroyed", 2)
    assert stores["parent"].size_bytes > 0
    assert check_url(str(tmp_path)).database_count == 2
    kv.admin.destroy(str(tmp_path / "clone.kv"), soft=False)
    kv.admin.delete_checkpoint(str(tmp_path / "parent.kv"), "kept")
    kv.admin.destroy(str(tmp_path / "parent.kv"), soft=False)
    assert lake.ls() == []
    assert check_url(str(tmp_path)).database_count == 0


@pytest.mark.parametrize("l0_sst_bytes", [65_536, 64 << 20], ids=["files", "log"])
def test_what_a_checkpoint_holds_alone_is_what_deleting_it_frees(tmp_path: Path, l0_sst_bytes: int) -> None:
    """Files and log objects count; what the newest version or another checkpoint needs does not."""
    url = str(tmp_path / "orders.kv")
    options = kv.DatabaseOptions(l0_sst_bytes=l0_sst_bytes, background=False)
    with kv.open(url, options=options) as database:
        for part in (b"shared", b"alone"):
            for number in range(100):
                value = b"%d" % number + part * 700
                database.put(b"%s %d" % (part, number), value, await_durable=number % 10 == 0)
            database.flush()
            database.create_checkpoint(kv.CheckpointOptions(name=part.decode()))
        for number in range(100):
            database.put(b"alone %d" % number, b"new", await_durable=False)
        database.flush(memtable=True)
        database.compact(full=True)
    now = kv.CollectorOptions(grace=timedelta(0))
    kv.admin.collect(url, options=now)
    for name in ("alone", "shared"):
        left = {pin.name: pin.bytes_alone for pin in lakebed.open(str(tmp_path)).pins()}
        kv.admin.delete_checkpoint(url, name)
        (freed,) = kv.admin.collect(url, options=now)
        assert freed.plan is not None
        data = sum(target.size_bytes for target in freed.plan.doomed if not target.path.startswith("manifest/"))
        assert left[name] == data > 0
