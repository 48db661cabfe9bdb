"""The collector while all else runs: what goes, what never does, what it costs, and when it ends."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import xxhash

from lakebed.errors import NotFound, UnsupportedFormat
from lakebed.kv.checkpoint import create_checkpoint, delete_checkpoint, live_checkpoints
from lakebed.kv.clone import create_clone
from lakebed.kv.collect import Collector, collect_garbage, collect_once, plan_garbage
from lakebed.kv.compactor import Compactor
from lakebed.kv.database import Database
from lakebed.kv.database_location import DatabaseLocation
from lakebed.kv.destroy import destroy
from lakebed.kv.layout import manifest_path, parse_sst
from lakebed.kv.manifests import ManifestLog
from lakebed.kv.options import CheckpointOptions, CollectorOptions, DatabaseOptions, ReaderOptions
from lakebed.kv.reader import DatabaseReader
from lakebed.kv.reclaim import with_versions_sealed
from lakebed.kv.wal_record import FENCE_BYTES
from lakebed.lsm.file_id import file_id_time_ms
from lakebed.testing import Crashed, Fault, FaultyStore, RecordingStore
from worlds.kv.faulty_databases import AT_ONCE, FaultyDatabases, SkewedClock, check_every_fault

HOUR_MS = 3_600_000


def worn(databases: FaultyDatabases, name: str = "db") -> tuple[str, dict[bytes, bytes], dict[bytes, bytes]]:
    """A database with garbage of every kind: a checkpoint's id, the rows that it pins, and the rows now."""
    with databases.open(name) as db:
        for number in range(3):
            db.put(b"a", b"%d" % number)
            db.flush(memtable=True)
        db.put(b"tail", b"1")
        made = db.create_checkpoint(CheckpointOptions(name="kept"))
        pinned = dict(db.scan())
        db.put(b"b", b"2")
        db.flush(memtable=True)
        db.compact(full=True)
        db.put(b"c", b"3")
        db.flush()
        return made.id, pinned, dict(db.scan())


def test_what_nothing_names_goes_and_what_something_names_stays(databases: FaultyDatabases) -> None:
    """After a full collection each object has a reason to be there, and newest and pinned versions read as before."""
    checkpoint, pinned, now = worn(databases)
    assert databases.unreferenced("db")
    report = collect_garbage(databases.place("db"), options=AT_ONCE)
    assert report.deleted_count == len(report.plan.doomed) > 5
    assert all(target.why for target in report.plan.doomed)
    assert {"in the newest version", "in a pinned version", "fence"} <= set(report.kept)
    assert databases.rows("db") == now
    assert databases.rows("db", checkpoint) == pinned
    databases.collect("db")
    assert databases.unreferenced("db") == []
    delete_checkpoint(databases.place("db"), checkpoint)
    databases.collect("db")
    assert databases.unreferenced("db") == []
    assert databases.rows("db") == now


@pytest.mark.parametrize("destroyed", [False, True])
def test_a_database_that_only_a_newer_lakebed_may_write_loses_nothing(
    databases: FaultyDatabases, destroyed: bool
) -> None:
    """Its newest manifest can be read, but this lakebed does not know all that it needs: nothing is deleted."""
    worn(databases)
    place = databases.place("db")
    if destroyed:
        delete_checkpoint(place, databases.newest("db").checkpoints[0].id, force=True)
        destroy(place, soft=True)
    ManifestLog(place).update(lambda newest: with_versions_sealed(newest, now_ms=databases.clock.now_ms()))
    path = manifest_path(databases.newest("db").manifest_id)
    body = bytes(place.store.get(path))
    rest = body[body.index(b",") :].replace(b'"min_writer":1', b'"min_writer":2')
    place.store.put(path, b'{"checksum":"%016x"' % xxhash.xxh3_64_intdigest(rest) + rest)
    before = databases.objects()
    databases.clock.advance(86_400)
    options = replace(AT_ONCE, destroyed_grace=timedelta(0))
    for dry_run in (True, False):
        with pytest.raises(UnsupportedFormat, match="upgrade lakebed"):
            collect_garbage(databases.place("db"), options=options, dry_run=dry_run)
    assert databases.objects() == before
    place.store.put(path, body)
    assert collect_garbage(databases.place("db"), options=options).deleted_count > 5


def test_nothing_to_collect_writes_nothing(databases: FaultyDatabases) -> None:
    """A second collection of an idle database makes no change."""
    worn(databases)
    collect_garbage(databases.place("db"), options=AT_ONCE)
    for options in (AT_ONCE, CollectorOptions()):
        recording = RecordingStore(databases.root)
        collect_garbage(databases.place("db", through=recording), options=options)
        assert recording.changes() == []


def test_a_collection_costs_lists_and_one_get_a_pinned_manifest(databases: FaultyDatabases) -> None:
    """LISTs, deletes by the thousand, one GET a pinned manifest, one of the newest, one a 64 manifests passed."""
    worn(databases)
    with databases.open("db") as db:
        for number in range(5):
            db.create_checkpoint()
            db.put(b"x", b"%d" % number)
            db.flush(memtable=True)
    for _ in range(150):
        made = create_checkpoint(databases.place("db"))
        delete_checkpoint(databases.place("db"), made.id)
    newest = databases.newest("db")
    pins = len({checkpoint.manifest_id for checkpoint in newest.checkpoints})
    recording = RecordingStore(databases.root)
    report = collect_garbage(databases.place("db", through=recording), options=AT_ONCE)
    kinds = [call.call.kind for call in recording.trace]
    assert report.deleted_count > 300
    assert kinds.count("delete") == 1
    assert kinds.count("get") <= pins + 1 + newest.manifest_id // 64 + 1
    assert kinds.count("put") == 2
    assert kinds.count("list") <= 12
    assert kinds.count("head") == kinds.count("copy") == 0


def test_a_dry_run_says_what_would_go_and_changes_nothing(databases: FaultyDatabases) -> None:
    """The dry run's plan is the real one's, and not one object changes; so is `plan_garbage`."""
    worn(databases)
    before = databases.objects()
    report = collect_garbage(databases.place("db"), options=AT_ONCE, dry_run=True)
    planned = plan_garbage(databases.place("db"), options=AT_ONCE)
    assert databases.objects() == before
    assert report.dry_run
    real = collect_garbage(databases.place("db"), options=AT_ONCE)
    assert report.deleted_count == real.deleted_count
    assert real.plan.doomed == report.plan.doomed == planned.doomed


def test_progress_is_told(databases: FaultyDatabases) -> None:
    """The caller hears of each batch."""
    worn(databases)
    heard: list[Any] = []
    report = collect_garbage(databases.place("db"), options=AT_ONCE, progress=heard.append)
    assert heard[-1].done_count == report.deleted_count


def test_younger_than_the_smallest_age_stays(databases: FaultyDatabases) -> None:
    """With an age, garbage stays until it is that old, and goes then."""
    worn(databases)
    day = CollectorOptions(grace=timedelta(days=1))
    report = collect_garbage(databases.place("db"), options=day)
    assert report.deleted_count == 0
    assert report.kept["younger than the smallest age"] > 3
    databases.clock.advance(86_401)
    assert collect_garbage(databases.place("db"), options=day).deleted_count > 5


def test_by_default_a_day_passes_before_anything_goes(databases: FaultyDatabases) -> None:
    """Of garbage, and of a database that was destroyed."""
    _, _, rows = worn(databases)
    worn(databases, "destroyed")
    delete_checkpoint(databases.place("destroyed"), "kept")
    destroy(databases.place("destroyed"), soft=True, take_over=True)
    before = databases.objects()
    for name in ("db", "destroyed"):
        assert collect_garbage(databases.place(name)).deleted_count == 0
    assert before.keys() <= databases.objects().keys()
    databases.clock.advance(86_401)
    assert collect_garbage(databases.place("db")).deleted_count > 5
    assert databases.rows("db") == rows
    assert collect_garbage(databases.place("destroyed")).deleted_count > 5
    assert not list(databases.place("destroyed").store.list("sst"))


@pytest.mark.parametrize("count_max", [0, 1, 3])
def test_a_collection_judges_so_many_objects_of_the_log(databases: FaultyDatabases, count_max: int) -> None:
    """The oldest first; fences stay and are not counted, so that every collection gets on."""
    options = replace(AT_ONCE, log_count_max=count_max)
    for _ in range(3):
        with databases.open("db") as db:
            for number in range(2):
                db.put(b"%d" % number, b"value")
                db.flush()
            db.flush(memtable=True)

    def logs() -> list[str]:
        store = databases.place("db").store
        return [meta.path for meta in store.list("wal") if meta.size_bytes != FENCE_BYTES]

    before = logs()
    assert len(before) == 6
    collect_garbage(databases.place("db"), options=options)
    assert logs() == before[count_max:]
    collect_garbage(databases.place("db"), options=options)
    assert logs() == before[2 * count_max :]


def test_expired_checkpoints_are_dropped_and_their_files_go(databases: FaultyDatabases) -> None:
    """With the end of its lifetime a checkpoint stops holding anything; another live one still does."""
    worn(databases)
    with databases.open("db") as db:
        short = db.create_checkpoint(CheckpointOptions(lifetime=timedelta(seconds=10)))
        db.put(b"z", b"9")
        db.flush(memtable=True)
        db.compact(full=True)
    databases.clock.advance(9)
    collect_garbage(databases.place("db"), options=AT_ONCE)
    assert databases.rows("db", short.id)
    databases.clock.advance(2)
    collect_garbage(databases.place("db"), options=AT_ONCE)
    assert databases.newest("db").checkpoint(short.id) is None
    assert databases.newest("db").checkpoint("kept") is not None
    databases.collect("db")
    assert databases.unreferenced("db") == []


@pytest.mark.parametrize("offset_ms", [-HOUR_MS, HOUR_MS])
def test_a_collector_with_a_wrong_clock_deletes_nothing_that_lives(databases: FaultyDatabases, offset_ms: int) -> None:
    """An hour fast or slow: a reader's ten minutes and a grace are counted by the store's clock too."""
    worn(databases)
    clock = SkewedClock(databases.clock, offset_ms)
    options = ReaderOptions(background=False)
    with DatabaseReader.open(databases.place("db"), options=options) as reader:
        rows = dict(reader.scan())
        scan = reader.scan()
        with databases.open("db") as db:
            db.put(b"a", b"new")
            db.flush(memtable=True)
            db.compact(full=True)
        for minutes in (0, 9):
            databases.clock.advance(minutes * 60)
            collect_garbage(databases.place("db", clock=clock), options=AT_ONCE)
        assert dict(scan) == rows
    fill = databases.open("other")
    fill.put(b"k", b"v")
    fill.close()
    destroy(databases.place("other"), soft=True)
    grace = CollectorOptions(grace=timedelta(0), destroyed_grace=timedelta(minutes=30))
    assert not collect_once(databases.place("other", clock=clock), options=grace).gone
    databases.clock.advance(HOUR_MS // 1000 + 1801)
    assert collect_once(databases.place("other", clock=clock), options=grace).gone


def test_the_probe_of_a_process_that_died_goes_when_it_is_old_by_both_clocks(databases: FaultyDatabases) -> None:
    """It stays for an hour, for a living process may be at it; of a destroyed database it goes too."""

    def probe_and_die() -> None:
        dying = FaultyStore(databases.root, faults={1: Fault.CRASH_BEFORE})
        with pytest.raises(Crashed):
            databases.place("db", through=dying).probe()

    def probes() -> list[str]:
        return [path for path in databases.objects("db") if path.startswith("lakebed-probe-")]

    probe_and_die()
    worn(databases)
    fast = databases.place("db", clock=SkewedClock(databases.clock, 2 * HOUR_MS))
    for place in (databases.place("db"), fast):
        collect_garbage(place)
        assert len(probes()) == 1
    databases.clock.advance(HOUR_MS // 1000 + 1)
    assert [path for path in probes() if path in {doomed.path for doomed in plan_garbage(fast).doomed}] == probes()
    collect_garbage(databases.place("db"))
    assert probes() == []
    probe_and_die()
    databases.clock.advance(HOUR_MS // 1000 + 1)
    delete_checkpoint(databases.place("db"), "kept")
    report = destroy(databases.place("db"), soft=False)
    assert (probes(), report.warnings) == ([], ())


@pytest.mark.parametrize("told", [False, True])
def test_a_checkpoint_made_while_a_fast_collector_works_is_not_dropped(databases: FaultyDatabases, told: bool) -> None:
    """A checkpoint that appears at any call of a collection with a fast clock is judged by no clock that is ahead."""
    worn(databases)
    short = create_checkpoint(databases.place("db"), CheckpointOptions(lifetime=timedelta(seconds=1)))
    databases.clock.advance(2)
    if told:  # what lies there shows the store's time already, so the collector need not write to see it
        create_checkpoint(databases.place("db"))
    base = databases.save()
    recording = RecordingStore(databases.root)
    clock = SkewedClock(databases.clock, HOUR_MS)
    collect_garbage(databases.place("db", through=recording, clock=clock), options=AT_ONCE)
    assert databases.newest("db").checkpoint(short.id) is None
    met_count = 0
    for index in range(len(recording.trace)):
        databases.put_back(base)
        made: list[str] = []

        def slip_in(at: int, call: Any, index: int = index, made: list[str] = made) -> None:
            if at == index and not made:
                options = CheckpointOptions(lifetime=timedelta(minutes=10))
                made.append(create_checkpoint(databases.place("db"), options).id)

        through = FaultyStore(databases.root, faults=slip_in)
        collect_garbage(databases.place("db", through=through, clock=clock), options=AT_ONCE)
        if made:  # else its own time decided, and a call was saved
            met_count += 1
            assert databases.rows("db", made[0]) == databases.rows("db")
    assert met_count > 10


def test_a_missing_pinned_version_is_reported_and_protects_what_is_older(databases: FaultyDatabases) -> None:
    """Nothing that was there before its checkpoint goes; what became garbage later does; deleting it frees all."""
    checkpoint, _, now = worn(databases)
    pin = databases.newest("db").checkpoint(checkpoint)
    databases.root.delete([f"db/{manifest_path(pin.manifest_id)}"])
    older = {path for path in databases.objects("db") if path.startswith("sst/")}
    databases.clock.advance(60)
    with databases.open("db") as db:
        for number in range(2):
            db.put(b"a", b"later %d" % number)
            db.flush(memtable=True)
        db.compact(full=True)
        now = dict(db.scan())
    databases.clock.advance(60)
    databases.open("db").close()
    report = collect_garbage(databases.place("db"), options=AT_ONCE)
    assert any(checkpoint in warning and "missing" in warning for warning in report.warnings)
    gone = [parse_sst(target.path) for target in report.plan.doomed if target.path.startswith("sst/")]
    assert gone
    assert all(file_id_time_ms(file_id) > pin.created_at_ms for file_id in gone)
    assert older <= set(databases.objects("db"))
    delete_checkpoint(databases.place("db"), checkpoint)
    databases.collect("db")
    assert databases.unreferenced("db") == []
    assert databases.rows("db") == now


def test_a_damaged_pinned_version_protects_as_a_missing_one_does(databases: FaultyDatabases) -> None:
    """A pinned manifest that cannot be read is reported with its path, and older files stay."""
    checkpoint, _, _ = worn(databases)
    pin = databases.newest("db").checkpoint(checkpoint)
    databases.root.put(f"db/{manifest_path(pin.manifest_id)}", b"rubbish")
    before = {path for path in databases.objects("db") if path.startswith("sst/")}
    report = collect_garbage(databases.place("db"), options=AT_ONCE)
    assert any(manifest_path(pin.manifest_id) in warning for warning in report.warnings)
    assert before <= set(databases.objects("db"))


def other_work(databases: FaultyDatabases) -> list[tuple[str, Callable[[Any], object]]]:
    """What others do at a database, given a way to its store; each leaves it in order."""

    def write(through: Any) -> object:
        with databases.open("db") as db:
            db.put(b"w", b"1")
            db.flush(memtable=True)
            db.put(b"w2", b"1")
            return db.flush()

    def compact(through: Any) -> object:
        with databases.open("db") as db:
            return db.compact(full=True)

    def pin_old(through: Any) -> object:
        newest = databases.newest("db")
        for version in range(newest.manifest_id - 1, 0, -1):
            with suppress(NotFound):
                return create_checkpoint(databases.place("db"), version=version)
        return None  # none of them can be read any more, or all are gone

    return [
        ("pin an old version", pin_old),
        ("write", write),
        ("compact", compact),
        ("pin", lambda way: create_checkpoint(databases.place("db"))),
        ("pin again", lambda way: create_checkpoint(databases.place("db"), CheckpointOptions(source="kept"))),
        ("unpin", lambda way: delete_checkpoint(databases.place("db"), "kept")),
        ("clone", lambda way: create_clone(databases.place("clone"), databases.url("db"))),
        ("collect", lambda way: collect_garbage(databases.place("db"), options=AT_ONCE)),
    ]


@pytest.mark.parametrize("which", range(8))
def test_anything_at_any_call_of_a_collection_loses_nothing(databases: FaultyDatabases, which: int) -> None:
    """Writes, compactions, pins, clones and a second collector in the middle: every live version reads as it should."""
    _, pinned, _ = worn(databases)
    name, work = other_work(databases)[which]
    base = databases.save()
    recording = RecordingStore(databases.root)
    collect_garbage(databases.place("db", through=recording), options=AT_ONCE)
    assert len(recording.trace) > 8
    for index in range(len(recording.trace)):
        databases.put_back(base)
        met: list[int] = []
        expected: dict[bytes, bytes] = {}

        def slip_in(at: int, call: Any, index: int = index, met: list[int] = met, expected: Any = expected) -> None:
            if at == index and not met:
                met.append(at)
                work(None)
                expected.update(databases.rows("db"))

        collect_garbage(databases.place("db", through=FaultyStore(databases.root, faults=slip_in)), options=AT_ONCE)
        assert met
        assert databases.rows("db") == expected
        for checkpoint in live_checkpoints(databases.newest("db"), databases.clock.now_ms()):
            rows = databases.rows("db", checkpoint.id)
            assert rows == pinned if checkpoint.name == "kept" else rows
        if name == "clone":
            assert databases.rows("clone") == expected
            databases.collect("db")
            assert databases.rows("clone") == expected


@pytest.mark.parametrize("verb", ["flush", "compact", "checkpoint", "clone"])
def test_a_collector_at_any_call_of_others_takes_nothing_that_they_publish(
    databases: FaultyDatabases, verb: str
) -> None:
    """At grace = 0: files that are uploaded and not published, jobs under way and pins half made survive."""
    worn(databases)
    base = databases.save()

    def act(through: Any) -> None:
        place = databases.place("clone" if verb == "clone" else "db", through=through)
        if verb == "checkpoint":
            create_checkpoint(place)
        elif verb == "clone":
            create_clone(place, databases.url("db"))
        else:
            options = DatabaseOptions(background=False, compaction=verb == "compact")
            with Database.open(place, options=options, take_over=True) as db:
                db.put(b"w", b"1")
                db.flush(memtable=True)
                if verb == "compact":
                    db.compact(full=True)
                db.put(b"w2", b"1")

    recording = RecordingStore(databases.root)
    act(recording)
    expected = databases.rows("db")
    for index in range(len(recording.trace)):
        databases.put_back(base)
        met: list[int] = []

        def collect(at: int, call: Any, index: int = index, met: list[int] = met) -> None:
            if at == index and not met:
                met.append(at)
                collect_garbage(databases.place("db"), options=AT_ONCE)

        act(FaultyStore(databases.root, faults=collect))
        assert met
        assert databases.rows("db") == expected
        if verb == "clone":
            assert databases.rows("clone") == expected
        databases.collect("db")
        assert databases.rows("db") == expected
        for checkpoint in live_checkpoints(databases.newest("db"), databases.clock.now_ms()):
            assert databases.rows("db", checkpoint.id)


def test_files_of_a_running_job_survive_though_newer_ones_are_published(databases: FaultyDatabases) -> None:
    """A flush in the middle of a separate compaction makes its files look old; the job in the manifest keeps them."""
    worn(databases)
    with databases.open("db") as db:
        for number in range(4):
            db.put(b"j%d" % number, b"1")
            db.flush(memtable=True)
    base = databases.save()
    recording = RecordingStore(databases.root)
    Compactor(databases.place("db", through=recording)).compact_once()
    kept = 0
    for index in range(len(recording.trace)):
        databases.put_back(base)
        met: list[int] = []

        def flush_and_collect(at: int, call: Any, index: int = index, met: list[int] = met) -> None:
            nonlocal kept
            if at == index and not met:
                met.append(at)
                databases.clock.advance(1)
                with databases.open("db") as db:
                    db.put(b"newer", b"1")
                    db.flush(memtable=True)
                kept += collect_garbage(databases.place("db"), options=AT_ONCE).kept.get("may be published yet", 0)

        compactor = Compactor(databases.place("db", through=FaultyStore(databases.root, faults=flush_and_collect)))
        assert compactor.compact_once()
        assert met
        rows = databases.rows("db")
        assert rows[b"newer"] == rows[b"j0"] == rows[b"j3"] == b"1"
        databases.collect("db")
        assert databases.rows("db") == rows
        databases.clock.advance(1)
        databases.collect("db")
        assert databases.unreferenced("db") == []
    assert kept


def test_every_fault_at_every_call_of_a_collection(databases: FaultyDatabases) -> None:
    """Crash, lost reply, refusal and late landing anywhere: nothing live goes, and the next collection finishes."""
    checkpoint, pinned, now = worn(databases)
    create_checkpoint(databases.place("db"), CheckpointOptions(lifetime=timedelta(seconds=1)))
    databases.clock.advance(2)

    def check() -> None:
        assert databases.rows("db") == now
        assert databases.rows("db", checkpoint) == pinned
        databases.collect("db")
        assert databases.rows("db") == now
        assert databases.rows("db", checkpoint) == pinned
        assert databases.unreferenced("db") == []

    def verb(place: DatabaseLocation) -> object:
        return collect_garbage(place, options=AT_ONCE)

    assert check_every_fault(databases, verb, lambda: verb(databases.place("db")), check, name="db") > 40


def test_every_fault_at_every_call_of_detaching(databases: FaultyDatabases) -> None:
    """A clone that rewrote everything detaches: crash anywhere, and the parent's pin and our entry go in the end."""
    worn(databases)
    create_clone(databases.place("clone"), databases.url("db"))
    with databases.open("clone") as db:
        db.put(b"own", b"1")
        db.compact(full=True)
        rows = dict(db.scan())
    databases.open("clone").close()

    def check() -> None:
        databases.collect("clone")
        assert databases.newest("clone").external_databases == ()
        assert databases.clone_pins("db") == {}
        databases.collect("db", "clone")
        assert databases.rows("clone") == rows
        assert [databases.unreferenced(name) for name in ("db", "clone")] == [[], []]

    def verb(place: DatabaseLocation) -> object:
        return collect_once(place, options=AT_ONCE)

    assert check_every_fault(databases, verb, lambda: verb(databases.place("clone")), check, name="clone") > 40


def test_a_clone_stays_attached_while_a_checkpoint_of_its_own_needs_it(databases: FaultyDatabases) -> None:
    """Its pin in the parent stays while any of its own checkpoints names the parent's files, and no longer."""
    _, _, now = worn(databases)
    create_clone(databases.place("clone"), databases.url("db"))
    made = create_checkpoint(databases.place("clone"))
    with databases.open("clone") as db:
        db.put(b"own", b"1")
        db.compact(full=True)
    databases.collect("clone", "db")
    assert databases.clone_pins("db")
    assert databases.rows("clone", made.id) == now
    delete_checkpoint(databases.place("clone"), made.id)
    assert collect_once(databases.place("clone"), options=AT_ONCE).detached == (databases.url("db"),)
    assert databases.clone_pins("db") == {}


def test_an_ancestor_that_cannot_be_reached_is_told_and_tried_again(databases: FaultyDatabases) -> None:
    """Detaching waits for an ancestor that does not answer; the rest of the collection is done."""
    worn(databases)
    create_clone(databases.place("clone"), databases.url("db"))
    with databases.open("clone") as db:
        db.put(b"own", b"1")
        db.compact(full=True)
    databases.open("clone").close()
    path = f"db/{manifest_path(databases.newest('db').manifest_id)}"
    body = bytes(databases.root.get(path))
    databases.root.put(path, b"rubbish")
    done = collect_once(databases.place("clone"), options=AT_ONCE)
    assert done.detached == ()
    assert databases.url("db") in " ".join(done.report.warnings)
    databases.root.put(path, body)
    assert collect_once(databases.place("clone"), options=AT_ONCE).detached == (databases.url("db"),)


def test_one_process_serves_many_databases_until_each_is_gone(databases: FaultyDatabases) -> None:
    """The loop goes on past a database that is damaged, forgets one that is gone, and ends when none is left."""
    for name in ("one", "two", "damaged"):
        worn(databases, name)
    destroy(databases.place("one"), soft=True)
    path = f"damaged/{manifest_path(databases.newest('damaged').manifest_id)}"
    body = bytes(databases.root.get(path))
    databases.root.put(path, b"rubbish")
    delete_checkpoint(databases.place("one"), "kept")
    collector = Collector((databases.place(name) for name in ("one", "two", "damaged", "nobody")), options=AT_ONCE)
    done = collector.collect_once()
    assert [done[databases.url(name)].gone for name in ("one", "two", "damaged", "nobody")] == [
        True,
        False,
        False,
        True,
    ]
    assert "damaged" in done[databases.url("damaged")].report.warnings[0]
    assert collector.urls == (databases.url("two"), databases.url("damaged"))
    databases.root.put(path, body)
    rounds: list[int] = []

    def tell(done: dict[str, Any]) -> None:
        rounds.append(len(done))
        for name in ("two", "damaged"):
            if databases.newest(name).destroyed_at_ms is None:
                delete_checkpoint(databases.place(name), "kept")
                destroy(databases.place(name), soft=True)
                return

    started_ms = databases.clock.now_ms()
    collector.run(every=timedelta(minutes=1), until=lambda: False, tell=tell)
    assert collector.urls == ()
    assert rounds == [2, 2, 1]
    assert databases.clock.now_ms() - started_ms == 2 * 60_000
    stopped = Collector([databases.place("two")], options=AT_ONCE)
    stopped.run(every=timedelta(minutes=1), until=lambda: True)
    assert stopped.urls == (databases.url("two"),)


def test_nothing_there_is_an_error_that_says_what_is(databases: FaultyDatabases) -> None:
    """Collecting a path without a database raises NotFound with the path."""
    with pytest.raises(NotFound, match="no database"):
        collect_garbage(databases.place("nobody"))


def test_files_of_a_crashed_writer_go_once_somebody_opens_again(databases: FaultyDatabases) -> None:
    """A file whose writer died before publishing it is kept while it might be published, and goes afterwards."""
    worn(databases)
    recording = RecordingStore(databases.root)
    base = databases.save()

    def write(through: Any) -> None:
        options = DatabaseOptions(background=False, compaction=False)
        with Database.open(databases.place("db", through=through), options=options, take_over=True) as db:
            db.put(b"w", b"1")
            db.flush(memtable=True)

    write(recording)
    databases.put_back(base)
    index = next(item.index for item in recording.trace if item.call.kind == "put" and "/sst/" in item.call.path)
    through = FaultyStore(databases.root, faults=lambda at, call: None)

    def die(at: int, call: Any) -> None:
        if at == index + 1:
            through.crash()

    dying = FaultyStore(through, faults=die)
    with pytest.raises(Crashed):
        write(dying)
    report = collect_garbage(databases.place("db"), options=AT_ONCE)
    assert report.kept["may be published yet"] == 1
    databases.clock.advance(1)
    databases.collect("db")
    assert databases.unreferenced("db") == []
    assert databases.rows("db")[b"w"] == b"1"


@pytest.mark.parametrize("kind", ["local", "memory", "s3"])
def test_every_kind_of_store(
    databases: FaultyDatabases, kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Collect, clone, detach and destroy on a local folder and on S3 too, whose times are the machine's."""
    options: Any = None
    url = str(tmp_path / "db") if kind == "local" else f"memory://{uuid.uuid4().hex}/db"
    if kind == "s3":
        server = request.getfixturevalue("s3_server")
        url, options = f"{server.url()}/db", server.options
    place = DatabaseLocation.at(url, storage_options=options, environment=databases.environment, durable=False)
    clone = place.other(f"{url}-clone")
    by_hand = DatabaseOptions(background=False)
    with Database.open(place, options=by_hand) as db:
        for number in range(3):
            db.put(b"a", b"%d" % number)
            db.flush(memtable=True)
        db.create_checkpoint(CheckpointOptions(lifetime=timedelta(seconds=1)))
        db.compact(full=True)
    databases.clock.advance(5)
    assert collect_garbage(place, options=AT_ONCE).deleted_count > 5
    assert all(checkpoint.owner.kind == "writer" for checkpoint in ManifestLog(place).latest().checkpoints)
    create_clone(clone, place.url)
    with Database.open(clone, options=by_hand) as db:
        assert dict(db.scan()) == {b"a": b"2"}
        db.put(b"b", b"1")
        db.compact(full=True)
    assert collect_once(clone, options=AT_ONCE).detached == (place.url,)
    destroy(place, soft=False)
    with Database.open(clone, options=by_hand) as db:
        assert dict(db.scan()) == {b"a": b"2", b"b": b"1"}
    destroy(clone, soft=True)
    databases.clock.advance(1)
    assert collect_once(clone, options=AT_ONCE).gone
