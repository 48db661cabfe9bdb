"""Destroying: softly and at once, what refuses it, what stays, and that no sleeping writer brings anything back."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from lakebed.errors import AlreadyExists, Conflict, Fenced, InvalidRequest, LakebedError, NotFound
from lakebed.kv.checkpoint import create_checkpoint, delete_checkpoint, refresh_checkpoint
from lakebed.kv.clone import create_clone
from lakebed.kv.collect import collect_once
from lakebed.kv.database import Database
from lakebed.kv.database_location import DatabaseLocation
from lakebed.kv.destroy import destroy
from lakebed.kv.options import CheckpointOptions, CollectorOptions, DatabaseOptions, ReaderOptions
from lakebed.kv.reader import DatabaseReader
from lakebed.kv.wal_record import FENCE_BYTES
from lakebed.testing import Crashed, Fault, FaultyStore, RecordingStore
from worlds.kv.faulty_databases import AT_ONCE, Farm, strike_everywhere

DAY = CollectorOptions(min_age=timedelta(0), db_delete_grace=timedelta(days=1))


@pytest.fixture
def farm() -> Farm:
    """Databases in one memory."""
    return Farm()


def fill(farm: Farm, name: str) -> dict[bytes, bytes]:
    """A database with a file and a log behind it; what it holds."""
    with farm.open(name) as db:
        db.put(b"a", name.encode())
        db.flush(memtable=True)
        db.put(b"b", name.encode())
        db.flush()
        return dict(db.scan())


def left(farm: Farm, name: str) -> set[str]:
    """Kinds of what a database's folder holds."""
    kinds = set()
    for path, body in farm.objects(name).items():
        folder = path.partition("/")[0]
        kinds.add("fence" if folder == "wal" and len(body) == FENCE_BYTES else folder)
    return kinds


TOMBSTONE = {"manifest", "fence", "boundary", "lease.json"}


def test_hard_leaves_a_tombstone_and_nothing_else(farm: Farm) -> None:
    """At once: files, log and manifests go, one manifest, the fences, the boundary and the lease stay."""
    fill(farm, "db")
    report = destroy(farm.place("db"), soft=False)
    assert report.deleted_count > 3
    assert left(farm, "db") == TOMBSTONE
    assert len([path for path in farm.objects("db") if path.startswith("manifest/")]) == 1
    with pytest.raises(InvalidRequest, match="destroyed"):
        farm.open("db")
    with pytest.raises(InvalidRequest, match="destroyed"):
        farm.rows("db")


def test_soft_waits_for_the_grace_and_for_every_checkpoint(farm: Farm) -> None:
    """Softly: nothing goes before the grace is over and the last checkpoint ended; until then they can be read."""
    rows = fill(farm, "db")
    made = create_checkpoint(farm.place("db"), CheckpointOptions(lifetime=timedelta(days=3)))
    assert destroy(farm.place("db"), soft=True).deleted_count == 0
    for days in (0, 2):
        farm.clock.advance(days * 86_400)
        assert not collect_once(farm.place("db"), options=DAY).gone
        with DatabaseReader.open(farm.place("db"), made.id, options=ReaderOptions(background=False)) as reader:
            assert dict(reader.scan()) == rows
    farm.clock.advance(86_400)
    assert collect_once(farm.place("db"), options=DAY).gone
    assert left(farm, "db") == TOMBSTONE


def test_once_destroyed_nothing_may_be_made_or_refreshed(farm: Farm) -> None:
    """No checkpoint, refresh, clone or write after the stamp; deleting a checkpoint works, for that is waited for."""
    fill(farm, "db")
    made = create_checkpoint(farm.place("db"))
    destroy(farm.place("db"), soft=True)
    refused: tuple[Callable[[], Any], ...] = (
        lambda: create_checkpoint(farm.place("db")),
        lambda: create_checkpoint(farm.place("db"), CheckpointOptions(source=made.id)),
        lambda: refresh_checkpoint(farm.place("db"), made.id),
        lambda: create_clone(farm.place("clone"), farm.url("db"), made.id),
        lambda: farm.open("db"),
    )
    for call in refused:
        with pytest.raises(InvalidRequest) as error:
            call()
        assert error.value.kind == "invalid_db_state"
    delete_checkpoint(farm.place("db"), made.id)
    assert collect_once(farm.place("db"), options=AT_ONCE).gone


def test_hard_names_the_checkpoints_and_their_owners_and_changes_nothing(farm: Farm) -> None:
    """A user's checkpoint, a reader's and a clone's are all named; not one byte is changed, and no writer is fenced."""
    fill(farm, "db")
    made = create_checkpoint(farm.place("db"), CheckpointOptions(name="kept"))
    create_clone(farm.place("clone"), farm.url("db"))
    with DatabaseReader.open(farm.place("db"), options=ReaderOptions(background=False)):
        before = farm.objects()
        with pytest.raises(InvalidRequest) as error:
            destroy(farm.place("db"), soft=False)
        assert farm.objects() == before
    assert error.value.kind == "invalid_deletion"
    for words in ("'kept'", made.id, "reader", f"clone {farm.url('clone')}"):
        assert words in str(error.value)


def test_a_live_writer_is_in_the_way_unless_taken_over(farm: Farm) -> None:
    """Under a live lease destroying is a Conflict; with take_over the writer is fenced and its next write fails."""
    fill(farm, "db")
    writer = Database.open(farm.place("db"), options=DatabaseOptions(background=False))
    before = farm.objects()
    with pytest.raises(Conflict, match="owned"):
        destroy(farm.place("db"), soft=True)
    assert farm.objects() == before
    destroy(farm.place("db"), soft=True, take_over=True)
    with pytest.raises(Fenced):
        writer.put(b"late", b"1")
    with pytest.raises(LakebedError):
        writer.close()


@pytest.mark.parametrize("anew", [False, True])
def test_no_sleeping_writer_gets_an_answer_ever_again(farm: Farm, anew: bool) -> None:
    """Writers of every epoch before meet a fence, also after everything else is gone or the database was made anew."""
    sleepers = []
    for _ in range(3):
        db = farm.open("db")
        db.put(b"k", b"1")
        sleepers.append(db)
    destroy(farm.place("db"), soft=False, take_over=True)
    if anew:
        farm.open_after_destroy("db").put(b"new", b"1")
    for sleeper in sleepers:
        for _ in range(2):
            with pytest.raises(Fenced):
                sleeper.put(b"late", b"1")
    assert farm.rows("db") == {b"new": b"1"} if anew else left(farm, "db") == TOMBSTONE


def test_a_new_database_on_the_path_is_new_and_numbers_go_on(farm: Farm) -> None:
    """after_destroy makes an empty database; epochs, manifests and log numbers are above those before."""
    fill(farm, "db")
    destroy(farm.place("db"), soft=False)
    tombstone = farm.newest("db")
    with farm.open_after_destroy("db") as db:
        assert dict(db.scan()) == {}
        db.put(b"new", b"1")
    newest = farm.newest("db")
    assert newest.manifest_id > tombstone.manifest_id
    assert newest.writer_epoch > tombstone.writer_epoch
    farm.collect("db")
    assert farm.rows("db") == {b"new": b"1"}
    assert farm.unreferenced("db") == []


def test_a_database_made_anew_in_the_middle_of_destroying_keeps_everything(farm: Farm) -> None:
    """At any call of a hard destruction: what a new database on the path wrote meanwhile is not deleted."""
    fill(farm, "db")
    base = farm.save()
    recording = RecordingStore(farm.root)
    destroy(farm.place("db", way=recording), soft=False)
    made = 0
    for index in range(len(recording.trace)):
        farm.put_back(base)
        met: list[bool] = []

        def slip_in(at: int, call: Any, index: int = index, met: list[bool] = met) -> None:
            if at == index and not met and farm.newest("db").destroyed_at_ms is not None:
                met.append(True)
                with farm.open_after_destroy("db") as db:
                    db.put(b"new", b"1")
                    db.flush(memtable=True)
                    db.put(b"newer", b"1")
                    db.flush()

        destroy(farm.place("db", way=FaultyStore(farm.root, faults=slip_in)), soft=False)
        if met:
            made += 1
            assert farm.rows("db") == {b"new": b"1", b"newer": b"1"}
            farm.collect("db")
            assert farm.rows("db") == {b"new": b"1", b"newer": b"1"}
    assert made > 5


def test_nested_databases_and_strangers_are_left_alone_and_named(farm: Farm) -> None:
    """What lies below but is not the database's stays, byte for byte, and the report names it."""
    fill(farm, "db")
    fill(farm, "db/inner")
    fill(farm, "db/sst/deep")
    farm.root.put("db/notes.txt", b"mine")
    nested = {path: body for path, body in farm.objects("db").items() if "inner" in path or "deep" in path}
    report = destroy(farm.place("db"), soft=False)
    told = " ".join(report.warnings)
    for name in ("inner/", "sst/deep", "notes.txt"):
        assert name in told
    after = farm.objects("db")
    assert {path: after[path] for path in nested} == nested
    assert after["notes.txt"] == b"mine"
    assert farm.rows("db/inner")
    assert farm.rows("db/sst/deep")


def test_pins_are_removed_from_all_ancestors(farm: Farm) -> None:
    """Destroying a clone of a clone frees both its ancestors: then they can be destroyed too."""
    fill(farm, "a")
    create_clone(farm.place("b"), farm.url("a"))
    with farm.open("b") as db:
        db.put(b"own", b"1")
        db.flush(memtable=True)
    create_clone(farm.place("c"), farm.url("b"))
    assert farm.url("c") in farm.clone_pins("a").values()
    assert farm.url("c") in farm.clone_pins("b").values()
    destroy(farm.place("c"), soft=False)
    assert set(farm.clone_pins("a").values()) == {farm.url("b")}
    assert farm.clone_pins("b") == {}
    destroy(farm.place("b"), soft=True)
    assert farm.clone_pins("a"), "its own checkpoints might still need them"
    assert collect_once(farm.place("b"), options=AT_ONCE).gone
    assert farm.clone_pins("a") == {}
    destroy(farm.place("a"), soft=False)


def test_a_dry_run_foretells_and_changes_nothing(farm: Farm) -> None:
    """What a dry run dooms is what goes, but for what the destruction itself replaces."""
    fill(farm, "db")
    before = farm.objects()
    foretold = destroy(farm.place("db"), soft=False, dry_run=True)
    assert farm.objects() == before
    assert foretold.dry_run
    assert destroy(farm.place("db"), soft=True, dry_run=True).plan.doomed == ()
    done = destroy(farm.place("db"), soft=False)
    assert {one.path for one in foretold.plan.doomed} <= {one.path for one in done.plan.doomed}


def test_destroying_again_is_fine_and_nothing_is_not(farm: Farm) -> None:
    """A second call finds nothing to do; a path without a database is NotFound."""
    fill(farm, "db")
    destroy(farm.place("db"), soft=True)
    destroy(farm.place("db"), soft=True)
    destroy(farm.place("db"), soft=False)
    assert destroy(farm.place("db"), soft=False).deleted_count == 0
    with pytest.raises(NotFound):
        destroy(farm.place("nobody"), soft=False)


def test_an_unfinished_clone_can_be_destroyed_and_its_maker_stops(farm: Farm) -> None:
    """At any call of a clone: destroying it frees the parent, and the maker that sleeps meanwhile leaks no pin."""
    fill(farm, "parent")
    base = farm.save()
    recording = RecordingStore(farm.root)
    create_clone(farm.place("clone", way=recording), farm.url("parent"))
    destroyed = 0
    for index in range(len(recording.trace)):
        farm.put_back(base)
        met: list[bool] = []

        def strike(at: int, call: Any, index: int = index, met: list[bool] = met) -> None:
            if at == index and not met:
                try:
                    destroy(farm.place("clone"), soft=False)
                    met.append(True)
                except NotFound:
                    return

        try:
            way = FaultyStore(farm.root, faults=strike)
            made = create_clone(farm.place("clone", way=way), farm.url("parent"))
            assert made.destroyed_at_ms is None, "a clone that was destroyed before it was finished was not made"
        except AlreadyExists:
            assert met
        if met:
            destroyed += 1
            assert farm.clone_pins("parent") == {}
            farm.collect("clone")
            assert farm.newest("clone").destroyed_at_ms is not None
    assert destroyed > 3


@pytest.mark.parametrize("soft", [False, True])
def test_every_fault_at_every_call_of_destroying(farm: Farm, soft: bool) -> None:
    """Crash, lost reply, refusal and late landing anywhere: the retry finishes, pins are gone, a tombstone is left."""
    fill(farm, "parent")
    create_clone(farm.place("clone"), farm.url("parent"))
    with farm.open("clone") as db:
        db.put(b"own", b"1")
        db.flush(memtable=True)
        rows = farm.rows("parent")

    def check() -> None:
        assert farm.newest("clone").destroyed_at_ms is not None
        assert collect_once(farm.place("clone"), options=AT_ONCE).gone
        assert farm.clone_pins("parent") == {}
        assert left(farm, "clone") == TOMBSTONE
        farm.collect("parent")
        assert farm.rows("parent") == rows
        assert farm.unreferenced("parent") == []

    def verb(place: DatabaseLocation) -> object:
        return destroy(place, soft=soft)

    def retry() -> object:
        return destroy(farm.place("clone"), soft=soft, take_over=True)

    assert strike_everywhere(farm, verb, retry, check, name="clone") > 40


def test_a_crash_before_the_stamp_leaves_a_database(farm: Farm) -> None:
    """Until the stamp everything can be read and written again; from it on nothing can."""
    rows = fill(farm, "db")
    base = farm.save()
    recording = RecordingStore(farm.root)
    destroy(farm.place("db", way=recording), soft=False)
    states = set()
    for index in range(len(recording.trace)):
        farm.put_back(base)
        with pytest.raises(Crashed):
            destroy(farm.place("db", way=FaultyStore(farm.root, faults={index: Fault.CRASH_AFTER})), soft=False)
        is_destroyed = farm.newest("db").destroyed_at_ms is not None
        states.add(is_destroyed)
        if not is_destroyed:
            farm.open("db").close()
            assert farm.rows("db") == rows
    assert states == {True, False}
