"""Restore: an older state becomes the newest, nothing is lost, and a crash leaves the old state or the new one."""

from __future__ import annotations

import uuid
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from lakebed.errors import Closed, Conflict, Fenced, InvalidRequest, LakebedError, NotFound
from lakebed.kv.admin import DatabaseAdmin
from lakebed.kv.checkpoint import create_checkpoint, delete_checkpoint, list_checkpoints
from lakebed.kv.claim import claim_writer
from lakebed.kv.clone import create_clone
from lakebed.kv.collect import collect_once
from lakebed.kv.database import Database
from lakebed.kv.database_location import DatabaseLocation
from lakebed.kv.layout import manifest_path
from lakebed.kv.lease import read_lease, this_process
from lakebed.kv.options import CheckpointOptions, CollectorOptions, DatabaseOptions
from lakebed.kv.restore import RESTORABLE_FOR, restore
from lakebed.objects.open import open_store
from lakebed.testing import Crashed, Fault, FaultyStore, RecordingStore
from worlds.errors import raises
from worlds.kv.faulty_databases import AT_ONCE, FaultyDatabases, check_every_fault
from worlds.meanwhile import Meanwhile


def two_states(databases: FaultyDatabases) -> tuple[str, dict[bytes, bytes], dict[bytes, bytes]]:
    """A database whose checkpoint has files and a log, and whose present has others: id, rows before, rows now."""
    with databases.open("db") as db:
        db.put(b"a", b"1")
        db.put(b"b", b"1")
        db.flush(memtable=True)
        db.put(b"b", b"2")
        db.put(b"c", b"2")
        db.delete(b"a")
        made = db.create_checkpoint(CheckpointOptions(name="good"))
        before = dict(db.scan())
    with databases.open("db") as db:
        db.put(b"c", b"3")
        db.put(b"d", b"3")
        db.flush(memtable=True)
        db.compact(full=True)
        db.put(b"e", b"4")
        db.flush()
        now = dict(db.scan())
    assert before != now
    return made.id, before, now


def test_the_older_state_is_back_and_the_present_is_kept(databases: FaultyDatabases) -> None:
    """Files and log of the checkpoint are the newest state; the state before can be read and restored in its turn."""
    checkpoint, before, now = two_states(databases)
    done = restore(databases.place("db"), "good")
    assert databases.rows("db") == before
    databases.collect("db")
    assert databases.rows("db") == before == databases.rows("db", checkpoint)
    assert databases.rows("db", done.present.id) == now
    restore(databases.place("db"), done.present.id)
    assert databases.rows("db") == now


def test_the_present_is_lost_only_when_its_lifetime_ends(databases: FaultyDatabases) -> None:
    """The kept state has the stated lifetime, and goes with the first collection after it."""
    _, before, now = two_states(databases)
    done = restore(databases.place("db"), "good", lifetime=timedelta(hours=1))
    kept = databases.newest("db").checkpoint(done.present.id)
    assert kept.expires_at_ms - kept.created_at_ms == 3_600_000
    databases.clock.advance(3599)
    databases.collect("db")
    assert databases.rows("db", done.present.id) == now
    databases.clock.advance(2)
    databases.collect("db")
    assert databases.newest("db").checkpoint(done.present.id) is None
    assert databases.rows("db") == before
    assert databases.unreferenced("db") == []


def test_sequences_and_numbers_go_on_from_the_larger_state(databases: FaultyDatabases) -> None:
    """What is written after a restore is newer than everything written before it, in files and in the log."""
    two_states(databases)
    present = databases.newest("db")
    with databases.open("db") as db:
        last = db.snapshot().sequence
    done = restore(databases.place("db"), "good")
    newest = databases.newest("db")
    assert newest.manifest_id == done.manifest.manifest_id
    assert newest.last_sequence >= last > present.last_sequence
    assert newest.replay_after_wal_id > present.wal_id_last_seen
    assert newest.newest_l0_id > present.newest_l0_id
    assert [checkpoint.owner.kind for checkpoint in newest.checkpoints] == ["user", "user"]
    with databases.open("db") as db:
        db.put(b"b", b"new")
        db.flush(memtable=True)
    assert databases.rows("db")[b"b"] == b"new"


def test_a_writer_that_lives_is_in_the_way_unless_taken_over(databases: FaultyDatabases) -> None:
    """Under a live lease restore is a Conflict that changes nothing; with take_over the writer is fenced."""
    checkpoint, before, _ = two_states(databases)
    writer = Database.open(databases.place("db"), options=DatabaseOptions(background=False))
    state = databases.objects("db")
    with pytest.raises(Conflict, match="owned"):
        restore(databases.place("db"), checkpoint)
    assert databases.objects("db") == state
    restore(databases.place("db"), checkpoint, take_over=True)
    with pytest.raises(Fenced):
        writer.put(b"z", b"too late")
    assert databases.rows("db") == before
    writer.close()


def test_an_open_database_restores_itself(databases: FaultyDatabases) -> None:
    """It goes on at the older version under the same owner; the present, with writes not waited for, is kept."""
    checkpoint, before, now = two_states(databases)
    options = DatabaseOptions(background=False, block_bytes=1 << 12)
    db = Database.open(databases.place("db"), options=replace(options, endpoint="here:1"))
    db.put(b"late", b"1", await_durable=False)
    transaction, snapshot = db.transaction(), db.snapshot()
    transaction.put(b"t", b"1")
    for version in ("nowhere", "999"):
        with pytest.raises(NotFound, match="no version"):
            db.restore(version)
    for no_text in (None, 1):
        with raises(InvalidRequest, "wrong_type"):
            db.restore(no_text)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="lifetime"):
        db.restore("good", lifetime=timedelta(0))
    assert db.get(b"late") == b"1"
    again = db.restore("good", lifetime=timedelta(hours=1))
    assert dict(again.scan()) == before
    assert again.epoch > db.epoch
    for call in (lambda: db.put(b"k", b"v"), lambda: db.get(b"a"), transaction.commit, lambda: db.restore("good")):
        with pytest.raises(Closed):
            call()
    with pytest.raises(Closed, match="the database that restore returned"):
        db.put(b"k", b"v")
    snapshot.close()
    again.put(b"new", b"1")
    assert read_lease(databases.place("db"), process=this_process()).owner.endpoint == "here:1"
    again.close()
    assert databases.rows("db") == {**before, b"new": b"1"}
    kept = next(item for item in list_checkpoints(databases.place("db")) if item.id != checkpoint)
    assert databases.rows("db", kept.id) == {**now, b"late": b"1"}


def test_a_database_that_is_open_in_this_process_is_named_so(databases: FaultyDatabases) -> None:
    """Restoring it by its URL changes nothing, and the error says what to do instead."""
    checkpoint, _, _ = two_states(databases)
    with Database.open(databases.place("db"), options=DatabaseOptions(background=False)) as db:
        with pytest.raises(Conflict, match=r"which is this process: close the open database first .*its restore"):
            db.admin.restore(checkpoint)
        db.put(b"goes on", b"1")


def test_a_wrong_checkpoint_changes_nothing(databases: FaultyDatabases) -> None:
    """Unknown, expired, no database, no lifetime: an error each, and no byte changed."""
    two_states(databases)
    short = create_checkpoint(databases.place("db"), CheckpointOptions(lifetime=timedelta(seconds=1)))
    databases.clock.advance(2)
    state = databases.objects("db")
    for wrong in ("nothing", short.id):
        with raises(InvalidRequest, "invalid_db_state"):
            restore(databases.place("db"), wrong)
    with pytest.raises(InvalidRequest):
        restore(databases.place("db"), "good", lifetime=timedelta(0))
    with pytest.raises(NotFound):
        restore(databases.place("nobody"), "good")
    assert databases.objects("db") == state


def test_a_version_that_is_missing_is_corruption_and_changes_no_row(databases: FaultyDatabases) -> None:
    """When the pinned manifest is gone, restore says so with its path, and the present stays."""
    checkpoint, _, now = two_states(databases)
    pinned = databases.newest("db").checkpoint(checkpoint).manifest_id
    databases.root.delete([f"db/{manifest_path(pinned)}"])
    with raises(LakebedError, "corruption") as error:
        restore(databases.place("db"), checkpoint)
    assert error.value.facts["path"] == manifest_path(pinned)
    assert databases.rows("db") == now


def test_a_clone_is_restored_with_its_ancestors_files(databases: FaultyDatabases) -> None:
    """A clone's checkpoint may name ancestors' files: they are held for it, and read after the restore."""
    _, _, now = two_states(databases)
    create_clone(databases.place("clone"), databases.url("db"))
    made = create_checkpoint(databases.place("clone"))
    with databases.open("clone") as db:
        db.put(b"mine", b"1")
        db.compact(full=True)
    databases.collect("clone")
    assert databases.newest("clone").external_databases
    restore(databases.place("clone"), made.id)
    databases.collect("clone", "db")
    assert databases.rows("clone") == now


def test_a_usurper_at_any_call_fences_the_restore_or_comes_after_it(databases: FaultyDatabases) -> None:
    """A writer that opens in the middle of a restore writes on the old state or the restored one, never a mixture."""
    checkpoint, before, now = two_states(databases)
    base = databases.save()
    recording = RecordingStore(databases.root)
    restore(databases.place("db", through=recording), checkpoint)
    outcomes = set()
    for index in range(len(recording.trace)):
        databases.put_back(base)
        met: list[int] = []

        def usurp(at: int, call: Any, index: int = index, met: list[int] = met) -> None:
            if at == index and not met:
                met.append(at)
                with databases.open("db") as db:
                    db.put(b"usurper", b"1")

        try:
            restore(
                databases.place("db", through=FaultyStore(databases.root, faults=usurp)), checkpoint, take_over=True
            )
            outcomes.add("restored")
        except Fenced:
            outcomes.add("fenced")
        rows = databases.rows("db")
        if b"usurper" in rows:
            del rows[b"usurper"]
            assert rows in (before, now)
        else:  # restored after it: then what it wrote is in the kept present
            assert rows == before
            kept = [item for item in list_checkpoints(databases.place("db")) if item.expires_at_ms is not None]
            assert any(databases.rows("db", item.id).get(b"usurper") == b"1" for item in kept)
    assert outcomes == {"restored", "fenced"}


def test_a_collector_at_any_call_takes_nothing_that_is_needed(databases: FaultyDatabases) -> None:
    """A checkpoint that is deleted, and collected, in the middle of a restore is restored whole or refused."""
    checkpoint, before, now = two_states(databases)
    base = databases.save()
    recording = RecordingStore(databases.root)
    restore(databases.place("db", through=recording), checkpoint)
    outcomes = set()
    for index in range(len(recording.trace)):
        databases.put_back(base)
        met: list[int] = []

        def collect(at: int, call: Any, index: int = index, met: list[int] = met) -> None:
            if at == index and not met:
                met.append(at)
                delete_checkpoint(databases.place("db"), checkpoint)
                collect_once(databases.place("db"), options=AT_ONCE)

        try:
            restore(databases.place("db", through=FaultyStore(databases.root, faults=collect)), checkpoint)
            outcomes.add("restored")
            assert databases.rows("db") == before
        except InvalidRequest:
            outcomes.add("refused")
            assert databases.rows("db") == now
    assert outcomes == {"restored", "refused"}


def test_every_fault_at_every_call_of_a_restore(databases: FaultyDatabases) -> None:
    """Crash, lost reply, refusal and late landing anywhere: old state or new, and the retry finishes."""
    checkpoint, before, now = two_states(databases)

    def check() -> None:
        assert databases.rows("db") == before
        kept = [item for item in list_checkpoints(databases.place("db")) if item.expires_at_ms is not None]
        first = next(item.id for item in kept if databases.rows("db", item.id) == now)
        databases.collect("db")
        assert (databases.rows("db"), databases.rows("db", first)) == (before, now)
        databases.clock.advance(RESTORABLE_FOR.total_seconds() + 1)
        databases.collect("db")
        assert databases.rows("db") == before == databases.rows("db", checkpoint)
        assert databases.unreferenced("db") == []

    def verb(place: DatabaseLocation) -> object:
        return restore(place, checkpoint)

    def retry() -> object:
        assert databases.rows("db") in (before, now)
        return restore(databases.place("db"), checkpoint, take_over=True)

    assert check_every_fault(databases, verb, retry, check, name="db") > 60


def test_a_crashed_restore_holds_nothing_for_ever(databases: FaultyDatabases) -> None:
    """The hold on the wanted version goes with the next writer, so deleting the checkpoint later frees its files."""
    checkpoint, _, _ = two_states(databases)
    base = databases.save()
    recording = RecordingStore(databases.root)
    restore(databases.place("db", through=recording), checkpoint)
    pin = set()
    for index in [change.index for change in recording.changes()]:
        databases.put_back(base)
        with suppress(Crashed):
            through = FaultyStore(databases.root, faults={index: Fault.CRASH_AFTER})
            restore(databases.place("db", through=through), checkpoint)
        pin.add([item.owner.kind for item in databases.newest("db").checkpoints].count("writer"))
        claim_writer(databases.place("db"), take_over=True)
        kinds = [item.owner.kind for item in databases.newest("db").checkpoints]
        assert kinds.count("writer") == 1
        assert set(kinds) == {"user", "writer"}
    assert pin == {0, 1}


def test_a_restore_whose_version_is_collected_at_once_says_that_it_is_done() -> None:
    """Another process writes and collects while the restore gives its lease up: the restored version is passed."""

    def restore_beside(at: int) -> tuple[int, str]:
        url = f"memory://{uuid.uuid4()}"
        admin = DatabaseAdmin(DatabaseLocation.at(url))
        for value in (b"1", b"2"):
            with admin.open() as db:
                db.put(b"a", value)
            if value == b"1":
                admin.pin("good")

        def write_and_collect() -> None:
            with admin.open(take_over=True) as db:
                db.put(b"b", b"3")
            admin.collect(CollectorOptions(grace=timedelta(0)))

        meeting = Meanwhile(open_store(url), write_and_collect, at=at)
        outcome = "done"
        try:
            DatabaseAdmin(DatabaseLocation.at(meeting)).restore("good")
        except (Conflict, Fenced) as refused:
            outcome = refused.kind
        with admin.reader() as reader:
            rows = dict(reader.scan())
        if outcome == "done":
            assert rows in ({b"a": b"1"}, {b"a": b"1", b"b": b"3"})
        return len(meeting.calls), outcome

    count, _ = restore_beside(2**60)
    outcomes = [restore_beside(at)[1] for at in range(count)]
    assert outcomes[-1] == "done"
    assert set(outcomes) > {"done"}
