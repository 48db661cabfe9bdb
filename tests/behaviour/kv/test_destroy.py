"""Destroying: softly and at once, what refuses it, what stays, and that no sleeping writer brings anything back."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from lakebed.errors import AlreadyExists, Conflict, Fenced, InvalidRequest, NotFound
from lakebed.kv.admin import DatabaseAdmin
from lakebed.kv.checkpoint import create_checkpoint, delete_checkpoint, refresh_checkpoint
from lakebed.kv.clone import create_clone
from lakebed.kv.collect import collect_once
from lakebed.kv.database import Database
from lakebed.kv.database_location import DatabaseLocation
from lakebed.kv.destroy import destroy
from lakebed.kv.options import CheckpointOptions, CollectorOptions, DatabaseOptions, ReaderOptions
from lakebed.kv.reader import DatabaseReader
from lakebed.kv.wal_record import FENCE_BYTES
from lakebed.objects.reserve import RESERVE_PATH
from lakebed.testing import Crashed, Fault, FaultyStore, RecordingStore
from worlds.errors import raises
from worlds.kv.faulty_databases import AT_ONCE, FaultyDatabases, SkewedClock, check_every_fault
from worlds.meanwhile import Meanwhile

DAY = CollectorOptions(grace=timedelta(0), destroyed_grace=timedelta(days=1))


def fill(databases: FaultyDatabases, name: str) -> dict[bytes, bytes]:
    """A database with a file and a log behind it; what it holds."""
    with databases.open(name) as db:
        db.put(b"a", name.encode())
        db.flush(memtable=True)
        db.put(b"b", name.encode())
        db.flush()
        return dict(db.scan())


def left(databases: FaultyDatabases, name: str) -> set[str]:
    """Kinds of what a database's folder holds."""
    kinds = set()
    for path, body in databases.objects(name).items():
        folder = path.partition("/")[0]
        kinds.add("fence" if folder == "wal" and len(body) == FENCE_BYTES else folder)
    return kinds


TOMBSTONE = {"manifest", "fence", "boundary", "lease.json"}


def test_hard_leaves_a_tombstone_and_nothing_else(databases: FaultyDatabases) -> None:
    """At once: files, log and manifests go, one manifest, the fences, the boundary and the lease stay."""
    fill(databases, "db")
    report = destroy(databases.place("db"), soft=False)
    assert report.deleted_count > 3
    assert left(databases, "db") == TOMBSTONE
    assert len([path for path in databases.objects("db") if path.startswith("manifest/")]) == 1
    with pytest.raises(InvalidRequest, match="destroyed"):
        databases.open("db")
    with pytest.raises(InvalidRequest, match="destroyed"):
        databases.rows("db")


def test_soft_waits_for_the_grace_and_for_every_checkpoint(databases: FaultyDatabases) -> None:
    """Softly: nothing goes before the grace is over and the last checkpoint ended; until then they can be read."""
    rows = fill(databases, "db")
    made = create_checkpoint(databases.place("db"), CheckpointOptions(lifetime=timedelta(days=3)))
    assert destroy(databases.place("db"), soft=True).deleted_count == 0
    for days in (0, 2):
        databases.clock.advance(days * 86_400)
        assert not collect_once(databases.place("db"), options=DAY).gone
        with DatabaseReader.open(databases.place("db"), made.id, options=ReaderOptions(background=False)) as reader:
            assert dict(reader.scan()) == rows
    databases.clock.advance(86_400)
    assert collect_once(databases.place("db"), options=DAY).gone
    assert left(databases, "db") == TOMBSTONE


def test_once_destroyed_nothing_may_be_made_or_refreshed(databases: FaultyDatabases) -> None:
    """No checkpoint, refresh, clone or write after the stamp; deleting a checkpoint works, for that is waited for."""
    fill(databases, "db")
    made = create_checkpoint(databases.place("db"))
    destroy(databases.place("db"), soft=True)
    refused: tuple[Callable[[], Any], ...] = (
        lambda: create_checkpoint(databases.place("db")),
        lambda: create_checkpoint(databases.place("db"), CheckpointOptions(source=made.id)),
        lambda: refresh_checkpoint(databases.place("db"), made.id),
        lambda: create_clone(databases.place("clone"), databases.url("db"), made.id),
        lambda: databases.open("db"),
    )
    for call in refused:
        with raises(InvalidRequest, "invalid_db_state"):
            call()
    delete_checkpoint(databases.place("db"), made.id)
    assert collect_once(databases.place("db"), options=AT_ONCE).gone


def test_hard_names_the_checkpoints_and_their_owners_and_changes_nothing(databases: FaultyDatabases) -> None:
    """A user's checkpoint, a reader's and a clone's are all named; not one byte is changed, and no writer is fenced."""
    fill(databases, "db")
    made = create_checkpoint(databases.place("db"), CheckpointOptions(name="kept"))
    create_clone(databases.place("clone"), databases.url("db"))
    with DatabaseReader.open(databases.place("db"), options=ReaderOptions(background=False)):
        before = databases.objects()
        with pytest.raises(InvalidRequest) as error:
            destroy(databases.place("db"), soft=False)
        assert databases.objects() == before
    assert error.value.kind == "invalid_deletion"
    for words in ("it has 3 live checkpoints: ", "'kept'", made.id, "reader", f"clone {databases.url('clone')}"):
        assert words in str(error.value)
    with pytest.raises(InvalidRequest, match=r"for it has 2 live checkpoints: "):
        destroy(databases.place("db"), soft=False)
    delete_checkpoint(databases.place("db"), "kept")
    with pytest.raises(InvalidRequest, match=r"for it has a live checkpoint: "):
        destroy(databases.place("db"), soft=False)


def test_a_process_whose_clock_is_ahead_destroys_nothing_that_a_checkpoint_holds(databases: FaultyDatabases) -> None:
    """A checkpoint has ended when it has by the store's clock too: a hard destruction is refused, a soft one waits."""
    rows = fill(databases, "db")
    kept = create_checkpoint(databases.place("db"), CheckpointOptions(lifetime=timedelta(days=7)))
    ahead = databases.place("db", clock=SkewedClock(databases.clock, 400 * 86_400_000))
    with pytest.raises(InvalidRequest) as error:
        destroy(ahead, soft=False)
    assert (error.value.kind, kept.id in str(error.value)) == ("invalid_deletion", True)
    destroy(ahead, soft=True)
    assert databases.rows("db", kept.id) == rows
    databases.clock.advance(8 * 86_400)
    destroy(ahead, soft=False)
    assert left(databases, "db") == TOMBSTONE


def test_a_live_writer_is_in_the_way_unless_taken_over(databases: FaultyDatabases) -> None:
    """Under a live lease destroying is a Conflict; with take_over the writer is fenced and its next write fails."""
    fill(databases, "db")
    writer = Database.open(databases.place("db"), options=DatabaseOptions(background=False))
    before = databases.objects()
    with pytest.raises(Conflict, match="owned"):
        destroy(databases.place("db"), soft=True)
    assert databases.objects() == before
    destroy(databases.place("db"), soft=True, take_over=True)
    with pytest.raises(Fenced):
        writer.put(b"late", b"1")
    writer.close()


@pytest.mark.parametrize("anew", [False, True])
def test_no_sleeping_writer_gets_an_answer_ever_again(databases: FaultyDatabases, anew: bool) -> None:
    """Writers of every epoch before meet a fence, also after everything else is gone or the database was made anew."""
    sleepers = []
    for _ in range(3):
        db = databases.open("db")
        db.put(b"k", b"1")
        sleepers.append(db)
    destroy(databases.place("db"), soft=False, take_over=True)
    if anew:
        databases.open_after_destroy("db").put(b"new", b"1")
    for sleeper in sleepers:
        for _ in range(2):
            with pytest.raises(Fenced):
                sleeper.put(b"late", b"1")
    assert databases.rows("db") == {b"new": b"1"} if anew else left(databases, "db") == TOMBSTONE


def test_a_new_database_on_the_path_is_new_and_numbers_go_on(databases: FaultyDatabases) -> None:
    """after_destroy makes an empty database; epochs, manifests and log numbers are above those before."""
    fill(databases, "db")
    destroy(databases.place("db"), soft=False)
    tombstone = databases.newest("db")
    with pytest.raises(InvalidRequest, match="was destroyed"):
        DatabaseAdmin(databases.place("db")).open()
    with databases.open_after_destroy("db") as db:
        assert dict(db.scan()) == {}
        db.put(b"new", b"1")
    newest = databases.newest("db")
    assert newest.manifest_id > tombstone.manifest_id
    assert newest.writer_epoch > tombstone.writer_epoch
    databases.collect("db")
    assert databases.rows("db") == {b"new": b"1"}
    assert databases.unreferenced("db") == []


def test_a_database_made_anew_in_the_middle_of_destroying_keeps_everything(databases: FaultyDatabases) -> None:
    """At any call of a hard destruction: what a new database on the path wrote meanwhile is not deleted."""
    fill(databases, "db")
    base = databases.save()
    recording = RecordingStore(databases.root)
    destroy(databases.place("db", through=recording), soft=False)
    made = 0
    for index in range(len(recording.trace)):
        databases.put_back(base)
        met: list[bool] = []

        def slip_in(at: int, call: Any, index: int = index, met: list[bool] = met) -> None:
            if at == index and not met and databases.newest("db").destroyed_at_ms is not None:
                met.append(True)
                with databases.open_after_destroy("db") as db:
                    db.put(b"new", b"1")
                    db.flush(memtable=True)
                    db.put(b"newer", b"1")
                    db.flush()

        destroy(databases.place("db", through=FaultyStore(databases.root, faults=slip_in)), soft=False)
        if met:
            made += 1
            assert databases.rows("db") == {b"new": b"1", b"newer": b"1"}
            databases.collect("db")
            assert databases.rows("db") == {b"new": b"1", b"newer": b"1"}
    assert made > 5


def test_nested_databases_and_strangers_are_left_alone_and_named(databases: FaultyDatabases) -> None:
    """What lies below but is not the database's stays, byte for byte, and the report names it."""
    fill(databases, "db")
    fill(databases, "db/inner")
    fill(databases, "db/sst/deep")
    databases.root.put("db/notes.txt", b"mine")
    nested = {path: body for path, body in databases.objects("db").items() if "inner" in path or "deep" in path}
    report = destroy(databases.place("db"), soft=False)
    text = " ".join(report.warnings)
    for name in ("inner/", "sst/deep", "notes.txt"):
        assert name in text
    after = databases.objects("db")
    assert {path: after[path] for path in nested} == nested
    assert after["notes.txt"] == b"mine"
    assert databases.rows("db/inner")
    assert databases.rows("db/sst/deep")


def test_pins_are_removed_from_all_ancestors(databases: FaultyDatabases) -> None:
    """Destroying a clone of a clone frees both its ancestors: then they can be destroyed too."""
    fill(databases, "a")
    create_clone(databases.place("b"), databases.url("a"))
    with databases.open("b") as db:
        db.put(b"own", b"1")
        db.flush(memtable=True)
    create_clone(databases.place("c"), databases.url("b"))
    assert databases.url("c") in databases.clone_pins("a").values()
    assert databases.url("c") in databases.clone_pins("b").values()
    destroy(databases.place("c"), soft=False)
    assert set(databases.clone_pins("a").values()) == {databases.url("b")}
    assert databases.clone_pins("b") == {}
    destroy(databases.place("b"), soft=True)
    assert databases.clone_pins("a"), "its own checkpoints might still need them"
    assert collect_once(databases.place("b"), options=AT_ONCE).gone
    assert databases.clone_pins("a") == {}
    destroy(databases.place("a"), soft=False)


def test_a_dry_run_foretells_and_changes_nothing(databases: FaultyDatabases) -> None:
    """What a dry run dooms is what goes, but for what the destruction itself replaces."""
    fill(databases, "db")
    before = databases.objects()
    foretold = destroy(databases.place("db"), soft=False, dry_run=True)
    assert databases.objects() == before
    assert foretold.dry_run
    assert destroy(databases.place("db"), soft=True, dry_run=True).plan.doomed == ()
    done = destroy(databases.place("db"), soft=False)
    assert {target.path for target in foretold.plan.doomed} <= {target.path for target in done.plan.doomed}
    gone = before.keys() - databases.objects().keys()
    assert {f"db/{target.path}" for target in foretold.plan.doomed} == gone


def test_destroying_again_is_fine_and_nothing_is_not(databases: FaultyDatabases) -> None:
    """A second call finds nothing to do; a path without a database is NotFound."""
    fill(databases, "db")
    destroy(databases.place("db"), soft=True)
    destroy(databases.place("db"), soft=True)
    destroy(databases.place("db"), soft=False)
    assert destroy(databases.place("db"), soft=False).deleted_count == 0
    with pytest.raises(NotFound):
        destroy(databases.place("nobody"), soft=False)


def test_an_unfinished_clone_can_be_destroyed_and_its_maker_stops(databases: FaultyDatabases) -> None:
    """At any call of a clone: destroying it frees the parent, and the maker that sleeps meanwhile leaks no pin."""
    fill(databases, "parent")
    base = databases.save()
    recording = RecordingStore(databases.root)
    create_clone(databases.place("clone", through=recording), databases.url("parent"))
    destroyed = 0
    for index in range(len(recording.trace)):
        databases.put_back(base)
        met: list[bool] = []

        def point(at: int, call: Any, index: int = index, met: list[bool] = met) -> None:
            if at == index and not met:
                try:
                    destroy(databases.place("clone"), soft=False)
                    met.append(True)
                except NotFound:
                    return

        try:
            through = FaultyStore(databases.root, faults=point)
            made = create_clone(databases.place("clone", through=through), databases.url("parent"))
            assert made.destroyed_at_ms is None, "a clone that was destroyed before it was finished was not made"
        except AlreadyExists:
            assert met
        if met:
            destroyed += 1
            assert databases.clone_pins("parent") == {}
            databases.collect("clone")
            assert databases.newest("clone").destroyed_at_ms is not None
    assert destroyed > 3


@pytest.mark.parametrize("soft", [False, True])
def test_every_fault_at_every_call_of_destroying(databases: FaultyDatabases, soft: bool) -> None:
    """Crash, lost reply, refusal and late landing anywhere: the retry finishes, pins are gone, a tombstone is left."""
    fill(databases, "parent")
    create_clone(databases.place("clone"), databases.url("parent"))
    with databases.open("clone") as db:
        db.put(b"own", b"1")
        db.flush(memtable=True)
        rows = databases.rows("parent")

    def check() -> None:
        assert databases.newest("clone").destroyed_at_ms is not None
        assert collect_once(databases.place("clone"), options=AT_ONCE).gone
        assert databases.clone_pins("parent") == {}
        assert left(databases, "clone") == TOMBSTONE
        databases.collect("parent")
        assert databases.rows("parent") == rows
        assert databases.unreferenced("parent") == []

    def verb(place: DatabaseLocation) -> object:
        return destroy(place, soft=soft)

    def retry() -> object:
        return destroy(databases.place("clone"), soft=soft, take_over=True)

    assert check_every_fault(databases, verb, retry, check, name="clone") > 40


def test_a_crash_before_the_stamp_leaves_a_database(databases: FaultyDatabases) -> None:
    """Until the stamp everything can be read and written again; from it on nothing can."""
    rows = fill(databases, "db")
    base = databases.save()
    recording = RecordingStore(databases.root)
    destroy(databases.place("db", through=recording), soft=False)
    states = set()
    for index in range(len(recording.trace)):
        databases.put_back(base)
        with pytest.raises(Crashed):
            destroy(
                databases.place("db", through=FaultyStore(databases.root, faults={index: Fault.CRASH_AFTER})),
                soft=False,
            )
        is_destroyed = databases.newest("db").destroyed_at_ms is not None
        states.add(is_destroyed)
        if not is_destroyed:
            databases.open("db").close()
            assert databases.rows("db") == rows
    assert states == {True, False}


def test_the_reserve_of_a_disk_goes_with_its_database(tmp_path: Path) -> None:
    """A collection keeps disk space back in a local folder; after the destruction none is held for what is gone."""
    location = DatabaseLocation.at(tmp_path / "db", durable=False)
    reserve = tmp_path / "db" / RESERVE_PATH
    with Database.open(location, options=DatabaseOptions(background=False)) as db:
        db.put(b"k", b"v")
        db.flush(memtable=True)
    DatabaseAdmin(location).collect(AT_ONCE)
    assert reserve.exists()
    destroy(location, soft=True)
    assert reserve.exists(), "its collection is still to come"
    destroy(location, soft=False)
    assert not reserve.exists()
    assert not list(location.store.list("sst"))


def test_a_database_that_is_made_again_meanwhile_loses_nothing(databases: FaultyDatabases) -> None:
    """A destruction that slept finds another database in the place: it deletes nothing, and says so."""
    fill(databases, "db")
    destroy(databases.place("db"), soft=True)
    sleeping = Meanwhile(
        databases.root,
        lambda: databases.open_after_destroy("db").put(b"new", b"1"),
        counts=lambda call: call.kind == "list" and call.path.startswith("db/manifest"),
        at=1,
    )
    report = destroy(databases.place("db", through=sleeping), soft=False)
    assert sleeping.happened is not None
    assert (report.deleted_count, report.hidden_count, report.deleted_bytes) == (0, 0, 0)
    assert any("created again meanwhile" in warning for warning in report.warnings)
    assert databases.rows("db") == {b"new": b"1"}
