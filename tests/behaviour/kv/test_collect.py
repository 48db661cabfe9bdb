"""The collector beside everything else: what goes, what never does, what it costs, and when it ends."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from lakebed.errors import NotFound
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
from lakebed.lsm.file_id import file_id_time_ms
from lakebed.testing import Crashed, FaultyStore, RecordingStore
from worlds.kv.faulty_databases import AT_ONCE, Farm, SkewedClock, strike_everywhere

HOUR_MS = 3_600_000


@pytest.fixture
def farm() -> Farm:
    """Databases in one memory."""
    return Farm()


def worn(farm: Farm, name: str = "db") -> tuple[str, dict[bytes, bytes], dict[bytes, bytes]]:
    """A database with garbage of every kind: a checkpoint's id, the rows that it pins, and the rows now."""
    with farm.open(name) as db:
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


def test_what_nothing_names_goes_and_what_something_names_stays(farm: Farm) -> None:
    """After a full collection each object has a reason to be there, and newest and pinned versions read as before."""
    checkpoint, pinned, now = worn(farm)
    assert farm.unreferenced("db")
    report = collect_garbage(farm.place("db"), options=AT_ONCE)
    assert report.deleted_count == len(report.plan.doomed) > 5
    assert all(one.why for one in report.plan.doomed)
    assert {"in the newest version", "in a pinned version", "fence"} <= set(report.kept)
    assert farm.rows("db") == now
    assert farm.rows("db", checkpoint) == pinned
    farm.collect("db")
    assert farm.unreferenced("db") == []
    delete_checkpoint(farm.place("db"), checkpoint)
    farm.collect("db")
    assert farm.unreferenced("db") == []
    assert farm.rows("db") == now


def test_nothing_to_collect_writes_nothing(farm: Farm) -> None:
    """A second collection of an idle database makes no change, whatever the first one left."""
    worn(farm)
    collect_garbage(farm.place("db"), options=AT_ONCE)
    for options in (AT_ONCE, CollectorOptions()):
        recording = RecordingStore(farm.root)
        collect_garbage(farm.place("db", way=recording), options=options)
        assert recording.changes() == []


def test_a_collection_costs_lists_and_one_get_a_pinned_manifest(farm: Farm) -> None:
    """LISTs, deletes by the thousand, one GET a pinned manifest, one of the newest, one a 64 manifests passed."""
    worn(farm)
    with farm.open("db") as db:
        for number in range(5):
            db.create_checkpoint()
            db.put(b"x", b"%d" % number)
            db.flush(memtable=True)
    for _ in range(150):
        made = create_checkpoint(farm.place("db"))
        delete_checkpoint(farm.place("db"), made.id)
    newest = farm.newest("db")
    pins = len({one.manifest_id for one in newest.checkpoints})
    recording = RecordingStore(farm.root)
    report = collect_garbage(farm.place("db", way=recording), options=AT_ONCE)
    kinds = [one.call.kind for one in recording.trace]
    assert report.deleted_count > 300
    assert kinds.count("delete") == 1
    assert kinds.count("get") <= pins + 1 + newest.manifest_id // 64 + 1
    assert kinds.count("put") == 2
    assert kinds.count("list") <= 12
    assert kinds.count("head") == kinds.count("copy") == 0


def test_a_dry_run_says_what_would_go_and_changes_nothing(farm: Farm) -> None:
    """The dry run's plan is the real one's, and not one object changes; so is `plan_garbage`."""
    worn(farm)
    before = farm.objects()
    report = collect_garbage(farm.place("db"), options=AT_ONCE, dry_run=True)
    planned = plan_garbage(farm.place("db"), options=AT_ONCE)
    assert farm.objects() == before
    assert report.dry_run
    real = collect_garbage(farm.place("db"), options=AT_ONCE)
    assert report.deleted_count == real.deleted_count
    assert real.plan.doomed == report.plan.doomed == planned.doomed


def test_progress_is_told(farm: Farm) -> None:
    """The caller hears of each batch."""
    worn(farm)
    heard: list[Any] = []
    report = collect_garbage(farm.place("db"), options=AT_ONCE, progress=heard.append)
    assert heard[-1].done_count == report.deleted_count


def test_younger_than_the_smallest_age_stays(farm: Farm) -> None:
    """With an age, garbage stays until it is that old, and goes then."""
    worn(farm)
    day = CollectorOptions(min_age=timedelta(days=1))
    report = collect_garbage(farm.place("db"), options=day)
    assert report.deleted_count == 0
    assert report.kept["younger than the smallest age"] > 3
    farm.clock.advance(86_401)
    assert collect_garbage(farm.place("db"), options=day).deleted_count > 5


def test_expired_checkpoints_are_dropped_and_their_files_go(farm: Farm) -> None:
    """With the end of its lifetime a checkpoint stops holding anything; a live one beside it still does."""
    worn(farm)
    with farm.open("db") as db:
        short = db.create_checkpoint(CheckpointOptions(lifetime=timedelta(seconds=10)))
        db.put(b"z", b"9")
        db.flush(memtable=True)
        db.compact(full=True)
    farm.clock.advance(9)
    collect_garbage(farm.place("db"), options=AT_ONCE)
    assert farm.rows("db", short.id)
    farm.clock.advance(2)
    collect_garbage(farm.place("db"), options=AT_ONCE)
    assert farm.newest("db").checkpoint(short.id) is None
    assert farm.newest("db").checkpoint("kept") is not None
    farm.collect("db")
    assert farm.unreferenced("db") == []


@pytest.mark.parametrize("offset_ms", [-HOUR_MS, HOUR_MS])
def test_a_collector_with_a_wrong_clock_deletes_nothing_that_lives(farm: Farm, offset_ms: int) -> None:
    """An hour fast or slow: a reader's ten minutes and a grace are counted by the store's clock too."""
    worn(farm)
    clock = SkewedClock(farm.clock, offset_ms)
    options = ReaderOptions(background=False)
    with DatabaseReader.open(farm.place("db"), options=options) as reader:
        rows = dict(reader.scan())
        scan = reader.scan()
        with farm.open("db") as db:
            db.put(b"a", b"new")
            db.flush(memtable=True)
            db.compact(full=True)
        for minutes in (0, 9):
            farm.clock.advance(minutes * 60)
            collect_garbage(farm.place("db", clock=clock), options=AT_ONCE)
        assert dict(scan) == rows
    fill = farm.open("other")
    fill.put(b"k", b"v")
    fill.close()
    destroy(farm.place("other"), soft=True)
    grace = CollectorOptions(min_age=timedelta(0), db_delete_grace=timedelta(minutes=30))
    assert not collect_once(farm.place("other", clock=clock), options=grace).gone
    farm.clock.advance(HOUR_MS // 1000 + 1801)
    assert collect_once(farm.place("other", clock=clock), options=grace).gone


@pytest.mark.parametrize("told", [False, True])
def test_a_checkpoint_made_while_a_fast_collector_works_is_not_dropped(farm: Farm, told: bool) -> None:
    """A checkpoint that appears at any call of a collection with a fast clock is judged by no clock that is ahead."""
    worn(farm)
    short = create_checkpoint(farm.place("db"), CheckpointOptions(lifetime=timedelta(seconds=1)))
    farm.clock.advance(2)
    if told:  # what lies there shows the store's time already, so the collector need not write to see it
        create_checkpoint(farm.place("db"))
    base = farm.save()
    recording = RecordingStore(farm.root)
    clock = SkewedClock(farm.clock, HOUR_MS)
    collect_garbage(farm.place("db", way=recording, clock=clock), options=AT_ONCE)
    assert farm.newest("db").checkpoint(short.id) is None
    met_count = 0
    for index in range(len(recording.trace)):
        farm.put_back(base)
        made: list[str] = []

        def slip_in(at: int, call: Any, index: int = index, made: list[str] = made) -> None:
            if at == index and not made:
                options = CheckpointOptions(lifetime=timedelta(minutes=10))
                made.append(create_checkpoint(farm.place("db"), options).id)

        way = FaultyStore(farm.root, faults=slip_in)
        collect_garbage(farm.place("db", way=way, clock=clock), options=AT_ONCE)
        if made:  # else its own time told enough, and a call was saved
            met_count += 1
            assert farm.rows("db", made[0]) == farm.rows("db")
    assert met_count > 10


def test_a_missing_pinned_version_is_reported_and_protects_what_is_older(farm: Farm) -> None:
    """Nothing that was there before its checkpoint goes; what became garbage later does; deleting it frees all."""
    checkpoint, _, now = worn(farm)
    pin = farm.newest("db").checkpoint(checkpoint)
    farm.root.delete([f"db/{manifest_path(pin.manifest_id)}"])
    older = {path for path in farm.objects("db") if path.startswith("sst/")}
    farm.clock.advance(60)
    with farm.open("db") as db:
        for number in range(2):
            db.put(b"a", b"later %d" % number)
            db.flush(memtable=True)
        db.compact(full=True)
        now = dict(db.scan())
    farm.clock.advance(60)
    farm.open("db").close()
    report = collect_garbage(farm.place("db"), options=AT_ONCE)
    assert any(checkpoint in warning and "missing" in warning for warning in report.warnings)
    gone = [parse_sst(one.path) for one in report.plan.doomed if one.path.startswith("sst/")]
    assert gone
    assert all(file_id_time_ms(file_id) > pin.created_at_ms for file_id in gone)
    assert older <= set(farm.objects("db"))
    delete_checkpoint(farm.place("db"), checkpoint)
    farm.collect("db")
    assert farm.unreferenced("db") == []
    assert farm.rows("db") == now


def test_a_damaged_pinned_version_protects_as_a_missing_one_does(farm: Farm) -> None:
    """A pinned manifest that cannot be read is told with its path, and what is older stays."""
    checkpoint, _, _ = worn(farm)
    pin = farm.newest("db").checkpoint(checkpoint)
    farm.root.put(f"db/{manifest_path(pin.manifest_id)}", b"rubbish")
    before = {path for path in farm.objects("db") if path.startswith("sst/")}
    report = collect_garbage(farm.place("db"), options=AT_ONCE)
    assert any(manifest_path(pin.manifest_id) in warning for warning in report.warnings)
    assert before <= set(farm.objects("db"))


def other_work(farm: Farm) -> list[tuple[str, Callable[[Any], object]]]:
    """What others do at a database, given a way to its store; each leaves it in order."""

    def write(way: Any) -> object:
        with farm.open("db") as db:
            db.put(b"w", b"1")
            db.flush(memtable=True)
            db.put(b"w2", b"1")
            return db.flush()

    def compact(way: Any) -> object:
        with farm.open("db") as db:
            return db.compact(full=True)

    def pin_old(way: Any) -> object:
        newest = farm.newest("db")
        for version in range(newest.manifest_id - 1, 0, -1):
            with suppress(NotFound):
                return create_checkpoint(farm.place("db"), version=version)
        return None  # none of them can be read any more, or all are gone

    return [
        ("pin an old version", pin_old),
        ("write", write),
        ("compact", compact),
        ("pin", lambda way: create_checkpoint(farm.place("db"))),
        ("pin again", lambda way: create_checkpoint(farm.place("db"), CheckpointOptions(source="kept"))),
        ("unpin", lambda way: delete_checkpoint(farm.place("db"), "kept")),
        ("clone", lambda way: create_clone(farm.place("clone"), farm.url("db"))),
        ("collect", lambda way: collect_garbage(farm.place("db"), options=AT_ONCE)),
    ]


@pytest.mark.parametrize("which", range(8))
def test_anything_at_any_call_of_a_collection_loses_nothing(farm: Farm, which: int) -> None:
    """Writes, compactions, pins, clones and a second collector in the middle: every live version reads as it should."""
    _, pinned, _ = worn(farm)
    name, work = other_work(farm)[which]
    base = farm.save()
    recording = RecordingStore(farm.root)
    collect_garbage(farm.place("db", way=recording), options=AT_ONCE)
    assert len(recording.trace) > 8
    for index in range(len(recording.trace)):
        farm.put_back(base)
        met: list[int] = []
        expected: dict[bytes, bytes] = {}

        def slip_in(at: int, call: Any, index: int = index, met: list[int] = met, expected: Any = expected) -> None:
            if at == index and not met:
                met.append(at)
                work(None)
                expected.update(farm.rows("db"))

        collect_garbage(farm.place("db", way=FaultyStore(farm.root, faults=slip_in)), options=AT_ONCE)
        assert met
        assert farm.rows("db") == expected
        for checkpoint in live_checkpoints(farm.newest("db"), farm.clock.now_ms()):
            rows = farm.rows("db", checkpoint.id)
            assert rows == pinned if checkpoint.name == "kept" else rows
        if name == "clone":
            assert farm.rows("clone") == expected
            farm.collect("db")
            assert farm.rows("clone") == expected


@pytest.mark.parametrize("verb", ["flush", "compact", "checkpoint", "clone"])
def test_a_collector_at_any_call_of_others_takes_nothing_that_they_publish(farm: Farm, verb: str) -> None:
    """At min_age = 0: files that are uploaded and not published, jobs under way and pins half made survive."""
    worn(farm)
    base = farm.save()

    def act(way: Any) -> None:
        place = farm.place("clone" if verb == "clone" else "db", way=way)
        if verb == "checkpoint":
            create_checkpoint(place)
        elif verb == "clone":
            create_clone(place, farm.url("db"))
        else:
            options = DatabaseOptions(background=False, compaction=verb == "compact")
            with Database.open(place, options=options, take_over=True) as db:
                db.put(b"w", b"1")
                db.flush(memtable=True)
                if verb == "compact":
                    db.compact(full=True)
                db.put(b"w2", b"1")

    recording = RecordingStore(farm.root)
    act(recording)
    expected = farm.rows("db")
    for index in range(len(recording.trace)):
        farm.put_back(base)
        met: list[int] = []

        def collect(at: int, call: Any, index: int = index, met: list[int] = met) -> None:
            if at == index and not met:
                met.append(at)
                collect_garbage(farm.place("db"), options=AT_ONCE)

        act(FaultyStore(farm.root, faults=collect))
        assert met
        assert farm.rows("db") == expected
        if verb == "clone":
            assert farm.rows("clone") == expected
        farm.collect("db")
        assert farm.rows("db") == expected
        for checkpoint in live_checkpoints(farm.newest("db"), farm.clock.now_ms()):
            assert farm.rows("db", checkpoint.id)


def test_files_of_a_running_job_survive_though_newer_ones_are_published(farm: Farm) -> None:
    """A flush in the middle of a separate compaction makes its files look old; the job in the manifest keeps them."""
    worn(farm)
    with farm.open("db") as db:
        for number in range(4):
            db.put(b"j%d" % number, b"1")
            db.flush(memtable=True)
    base = farm.save()
    recording = RecordingStore(farm.root)
    Compactor(farm.place("db", way=recording)).compact_once()
    kept = 0
    for index in range(len(recording.trace)):
        farm.put_back(base)
        met: list[int] = []

        def flush_and_collect(at: int, call: Any, index: int = index, met: list[int] = met) -> None:
            nonlocal kept
            if at == index and not met:
                met.append(at)
                farm.clock.advance(1)
                with farm.open("db") as db:
                    db.put(b"newer", b"1")
                    db.flush(memtable=True)
                kept += collect_garbage(farm.place("db"), options=AT_ONCE).kept.get("may be published yet", 0)

        compactor = Compactor(farm.place("db", way=FaultyStore(farm.root, faults=flush_and_collect)))
        assert compactor.compact_once()
        assert met
        rows = farm.rows("db")
        assert rows[b"newer"] == rows[b"j0"] == rows[b"j3"] == b"1"
        farm.collect("db")
        assert farm.rows("db") == rows
        farm.clock.advance(1)
        farm.collect("db")
        assert farm.unreferenced("db") == []
    assert kept


def test_every_fault_at_every_call_of_a_collection(farm: Farm) -> None:
    """Crash, lost reply, refusal and late landing anywhere: nothing live goes, and the next collection finishes."""
    checkpoint, pinned, now = worn(farm)
    create_checkpoint(farm.place("db"), CheckpointOptions(lifetime=timedelta(seconds=1)))
    farm.clock.advance(2)

    def check() -> None:
        assert farm.rows("db") == now
        assert farm.rows("db", checkpoint) == pinned
        farm.collect("db")
        assert farm.rows("db") == now
        assert farm.rows("db", checkpoint) == pinned
        assert farm.unreferenced("db") == []

    def verb(place: DatabaseLocation) -> object:
        return collect_garbage(place, options=AT_ONCE)

    assert strike_everywhere(farm, verb, lambda: verb(farm.place("db")), check, name="db") > 40


def test_every_fault_at_every_call_of_detaching(farm: Farm) -> None:
    """A clone that rewrote everything detaches: crash anywhere, and the parent's pin and our entry go in the end."""
    worn(farm)
    create_clone(farm.place("clone"), farm.url("db"))
    with farm.open("clone") as db:
        db.put(b"own", b"1")
        db.compact(full=True)
        rows = dict(db.scan())
    farm.open("clone").close()

    def check() -> None:
        farm.collect("clone")
        assert farm.newest("clone").external_databases == ()
        assert farm.clone_pins("db") == {}
        farm.collect("db", "clone")
        assert farm.rows("clone") == rows
        assert [farm.unreferenced(name) for name in ("db", "clone")] == [[], []]

    def verb(place: DatabaseLocation) -> object:
        return collect_once(place, options=AT_ONCE)

    assert strike_everywhere(farm, verb, lambda: verb(farm.place("clone")), check, name="clone") > 40


def test_a_clone_stays_attached_while_a_checkpoint_of_its_own_needs_it(farm: Farm) -> None:
    """Its pin in the parent stays while any of its own checkpoints names the parent's files, and no longer."""
    _, _, now = worn(farm)
    create_clone(farm.place("clone"), farm.url("db"))
    made = create_checkpoint(farm.place("clone"))
    with farm.open("clone") as db:
        db.put(b"own", b"1")
        db.compact(full=True)
    farm.collect("clone", "db")
    assert farm.clone_pins("db")
    assert farm.rows("clone", made.id) == now
    delete_checkpoint(farm.place("clone"), made.id)
    assert collect_once(farm.place("clone"), options=AT_ONCE).detached == (farm.url("db"),)
    assert farm.clone_pins("db") == {}


def test_an_ancestor_that_cannot_be_reached_is_told_and_tried_again(farm: Farm) -> None:
    """Detaching waits for an ancestor that does not answer; the rest of the collection is done."""
    worn(farm)
    create_clone(farm.place("clone"), farm.url("db"))
    with farm.open("clone") as db:
        db.put(b"own", b"1")
        db.compact(full=True)
    farm.open("clone").close()
    path = f"db/{manifest_path(farm.newest('db').manifest_id)}"
    body = bytes(farm.root.get(path))
    farm.root.put(path, b"rubbish")
    done = collect_once(farm.place("clone"), options=AT_ONCE)
    assert done.detached == ()
    assert farm.url("db") in " ".join(done.report.warnings)
    farm.root.put(path, body)
    assert collect_once(farm.place("clone"), options=AT_ONCE).detached == (farm.url("db"),)


def test_one_process_serves_many_databases_until_each_is_gone(farm: Farm) -> None:
    """The loop goes on past a database that is damaged, forgets one that is gone, and ends when none is left."""
    for name in ("one", "two", "damaged"):
        worn(farm, name)
    destroy(farm.place("one"), soft=True)
    path = f"damaged/{manifest_path(farm.newest('damaged').manifest_id)}"
    body = bytes(farm.root.get(path))
    farm.root.put(path, b"rubbish")
    delete_checkpoint(farm.place("one"), "kept")
    collector = Collector((farm.place(name) for name in ("one", "two", "damaged", "nobody")), options=AT_ONCE)
    done = collector.collect_once()
    assert [done[farm.url(name)].gone for name in ("one", "two", "damaged", "nobody")] == [True, False, False, True]
    assert "damaged" in done[farm.url("damaged")].report.warnings[0]
    assert collector.urls == (farm.url("two"), farm.url("damaged"))
    farm.root.put(path, body)
    rounds: list[int] = []

    def tell(done: dict[str, Any]) -> None:
        rounds.append(len(done))
        for name in ("two", "damaged"):
            if farm.newest(name).destroyed_at_ms is None:
                delete_checkpoint(farm.place(name), "kept")
                destroy(farm.place(name), soft=True)
                return

    started_ms = farm.clock.now_ms()
    collector.run(every=timedelta(minutes=1), until=lambda: False, tell=tell)
    assert collector.urls == ()
    assert rounds == [2, 2, 1]
    assert farm.clock.now_ms() - started_ms == 2 * 60_000
    stopped = Collector([farm.place("two")], options=AT_ONCE)
    stopped.run(every=timedelta(minutes=1), until=lambda: True)
    assert stopped.urls == (farm.url("two"),)


def test_nothing_there_is_an_error_that_says_what_is(farm: Farm) -> None:
    """Collecting a path without a database raises NotFound with the path."""
    with pytest.raises(NotFound, match="no database"):
        collect_garbage(farm.place("nobody"))


def test_files_of_a_crashed_writer_go_once_somebody_opens_again(farm: Farm) -> None:
    """A file whose writer died before publishing it is kept while it might be published, and goes afterwards."""
    worn(farm)
    recording = RecordingStore(farm.root)
    base = farm.save()

    def write(way: Any) -> None:
        options = DatabaseOptions(background=False, compaction=False)
        with Database.open(farm.place("db", way=way), options=options, take_over=True) as db:
            db.put(b"w", b"1")
            db.flush(memtable=True)

    write(recording)
    farm.put_back(base)
    index = next(one.index for one in recording.trace if one.call.kind == "put" and "/sst/" in one.call.path)
    way = FaultyStore(farm.root, faults=lambda at, call: None)

    def die(at: int, call: Any) -> None:
        if at == index + 1:
            way.crash()

    dying = FaultyStore(way, faults=die)
    with pytest.raises(Crashed):
        write(dying)
    report = collect_garbage(farm.place("db"), options=AT_ONCE)
    assert report.kept["may be published yet"] == 1
    farm.clock.advance(1)
    farm.collect("db")
    assert farm.unreferenced("db") == []
    assert farm.rows("db")[b"w"] == b"1"


@pytest.mark.parametrize("kind", ["local", "memory", "s3"])
def test_every_kind_of_store(farm: Farm, kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Collect, clone, detach and destroy on a local folder and on S3 too, whose times are the machine's."""
    options: Any = None
    url = str(tmp_path / "db") if kind == "local" else f"memory://{uuid.uuid4().hex}/db"
    if kind == "s3":
        server = request.getfixturevalue("s3_server")
        url, options = f"{server.url()}/db", server.options
    place = DatabaseLocation.at(url, storage_options=options, environment=farm.environment, durable=False)
    clone = place.other(f"{url}-clone")
    by_hand = DatabaseOptions(background=False)
    with Database.open(place, options=by_hand) as db:
        for number in range(3):
            db.put(b"a", b"%d" % number)
            db.flush(memtable=True)
        db.create_checkpoint(CheckpointOptions(lifetime=timedelta(seconds=1)))
        db.compact(full=True)
    farm.clock.advance(5)
    assert collect_garbage(place, options=AT_ONCE).deleted_count > 5
    assert all(one.owner.kind == "writer" for one in ManifestLog(place).latest().checkpoints)
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
    farm.clock.advance(1)
    assert collect_once(clone, options=AT_ONCE).gone
