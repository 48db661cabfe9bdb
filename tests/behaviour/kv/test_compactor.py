"""Flushes and compactions, in the writer's process and in one of their own, with all that can go wrong at a store call.

Crashes, lost replies, late landings, zombies, collections in between: the calls are enumerated from a recorded trace.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache
from itertools import chain, count

import msgspec
import pytest

from lakebed.errors import Corruption, Fenced, InvalidRequest, LakebedError, NotFound, OutcomeUnknown, Unavailable
from lakebed.kv.admin import DatabaseAdmin
from lakebed.kv.batch import WriteBatch
from lakebed.kv.compactor import Compactor
from lakebed.kv.database import Database
from lakebed.kv.database_location import DatabaseLocation
from lakebed.kv.manifests import ManifestLog
from lakebed.kv.model import Manifest
from lakebed.kv.options import CollectorOptions, DatabaseOptions
from lakebed.kv.publisher import newest_file_id
from lakebed.objects.open import open_store
from lakebed.objects.port import ObjectStore
from lakebed.runtime import Environment
from lakebed.testing import Call, Crashed, Fault, FaultyStore, ManualClock, RecordingStore
from lakebed.testing.wrapper import StoreWrapper
from worlds.errors import raises
from worlds.kv.faulty_databases import FaultyDatabases, SkewedClock
from worlds.meanwhile import Meanwhile

OPTIONS = DatabaseOptions(background=False, compaction=False, run_file_bytes=2_048, cache_bytes=0, row_cache_bytes=0)
IN_PROCESS = replace(OPTIONS, compaction=True)
KEYS = [b"%03d" % n for n in range(40)]
NUMBERS = count()
Model = dict[bytes, bytes | None]


class World:
    """One store that several processes reach."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.environment = Environment(clock=self.clock, rng=random.Random("compactor"))
        self.inner = open_store(f"memory://compactor-{next(NUMBERS)}", environment=self.environment)

    def place(self, store: ObjectStore | None = None) -> DatabaseLocation:
        """A process's way to the database."""
        return DatabaseLocation(store or self.inner, self.environment, open_store)

    def admin(self) -> DatabaseAdmin:
        """The verbs, past all faults."""
        return DatabaseAdmin(self.place())

    def newest(self) -> Manifest:
        """The newest manifest as it lies there."""
        return ManifestLog(self.place()).latest()

    def collect(self) -> None:
        """A collection that waits for nothing."""
        self.admin().collect(CollectorOptions(grace=timedelta(0), destroyed_grace=timedelta(0)))

    def check(self, model: Model, *, where: str) -> None:
        """Everything named is there, named once, and a new owner reads what was acknowledged."""
        manifest = self.newest()
        ids = [file.id for file in manifest.file_set.files()]
        assert len(ids) == len(set(ids)), where
        paths = {meta.path for meta in self.inner.list("sst")}
        assert {f"sst/{id}.sst" for id in ids} <= paths, where
        with Database.open(self.place(), options=OPTIONS, take_over=True) as database:
            assert {key: database.get(key) for key in KEYS} == model, where
            assert dict(database.scan()) == {key: value for key, value in model.items() if value is not None}, where


@cache
def base() -> tuple[dict[str, bytes], Model]:
    """A database of one run and four files of level 0 with puts and deletes, as objects, and what it holds."""
    world = World()
    model: Model = dict.fromkeys(KEYS)
    rng = random.Random(7)
    database = Database.open(world.place(), options=OPTIONS)
    for part in range(5):
        for key in KEYS if part == 0 else rng.sample(KEYS, 25):
            if rng.random() < 0.1:
                database.delete(key, await_durable=False)
                model[key] = None
            else:
                model[key] = b"%d of %s" % (part, key) + bytes(60)
                database.put(key, model[key], await_durable=False)
        database.flush(memtable=True)
        if part == 0:
            world.admin().compact(full=True)
    database.close()
    manifest = world.newest()
    assert (len(manifest.l0), len(manifest.runs)) == (4, 1)
    return {meta.path: bytes(world.inner.get(meta.path)) for meta in world.inner.list("")}, model


def fresh() -> tuple[World, Model]:
    """The base in a store of its own."""
    world = World()
    objects, model = base()
    for path, body in objects.items():
        world.inner.put(path, body)
    world.clock.advance(1_000.0)
    return world, dict(model)


# ---- the verbs: prepared through a store without faults, then run


def flush(world: World, place: DatabaseLocation, model: Model) -> Callable[[], object]:
    """A memtable of acknowledged rows becomes a file."""
    database = Database.open(place, options=OPTIONS)
    for key in KEYS[::3]:
        model[key] = b"flushed " + key
        database.put(key, model[key])
    database.delete(KEYS[1])
    model[KEYS[1]] = None
    return lambda: database.flush(memtable=True)


def compact_inside(world: World, place: DatabaseLocation, model: Model) -> Callable[[], object]:
    """The writer's own compaction."""
    database = Database.open(place, options=IN_PROCESS)
    return lambda: database.compact_once()


def compact_outside(world: World, place: DatabaseLocation, model: Model) -> Callable[[], object]:
    """A compaction by a process of its own, from its claim on."""
    compactor = Compactor(place, options=OPTIONS)
    return lambda: compactor.compact_once()


def compact_everything(world: World, place: DatabaseLocation, model: Model) -> Callable[[], object]:
    """The same, everything into one run."""
    compactor = Compactor(place, options=OPTIONS)
    return lambda: compactor.compact_full()


VERBS = {
    "flush": flush,
    "compact_inside": compact_inside,
    "compact_outside": compact_outside,
    "compact_everything": compact_everything,
}


@cache
def trace_of(verb: str) -> tuple[Call, ...]:
    """Every store call of a verb that meets no fault."""
    world, model = fresh()
    recording = RecordingStore(world.inner)
    run = VERBS[verb](world, world.place(recording), model)
    prepared = len(recording.trace)
    run()
    assert all(call.outcome in ("ok", "not_found") for call in recording.trace)
    return tuple(call.call for call in recording.trace[prepared:])


@dataclass
class FaultPoint:
    """One run of a verb with one fault at one of its calls."""

    world: World
    model: Model
    store: FaultyStore
    run: Callable[[], object]
    where: str


def fault_points(verb: str, faults: tuple[Fault, ...], *, only_changes: bool) -> Iterator[FaultPoint]:
    """The verb struck at each of its calls by each fault; asserts that all were visited."""
    visited = set()
    trace = trace_of(verb)
    for index, call in enumerate(trace):
        for fault in faults if call.changes or not only_changes else ():
            armed_from: list[int] = []

            def decide(number: int, call: Call, *, index: int = index, fault: Fault = fault) -> Fault | None:
                return fault if armed_from and number == armed_from[0] + index else None  # noqa: B023

            world, model = fresh()
            store = FaultyStore(world.inner, faults=decide)
            run = VERBS[verb](world, world.place(store), model)
            armed_from.append(store.call_count)
            yield FaultPoint(world, model, store, run, f"{verb}, {fault.name} at {index}: {call}")
            assert [met[2] for met in store.met] == [fault], (verb, index, call)
            visited.add((index, fault))
    expected = [index for index, call in enumerate(trace) if call.changes or not only_changes]
    assert visited == {(index, fault) for index in expected for fault in faults}
    assert expected


@pytest.mark.parametrize("verb", VERBS)
def test_crash_at_every_call(verb: str) -> None:
    """A process that is gone at any call loses nothing that was acknowledged, even when a collector runs then.

    A crash before a change, or at a read, leaves the store as the crash after the change before it does.
    """
    for point in fault_points(verb, (Fault.CRASH_AFTER,), only_changes=True):
        with pytest.raises(Crashed):
            point.run()
        point.world.collect()
        point.world.check(point.model, where=point.where)
        Compactor(point.world.place(), options=OPTIONS).compact_full()
        point.world.collect()
        point.world.check(point.model, where=point.where)
        assert not point.world.newest().jobs, point.where


@pytest.mark.parametrize("verb", VERBS)
def test_a_change_that_lands_after_the_crash(verb: str) -> None:
    """A change under way at the crash may land when others have gone on and collected: nothing is lost or doubled."""
    for point in fault_points(verb, (Fault.CRASH_LATE,), only_changes=True):
        with pytest.raises(Crashed):
            point.run()
        point.world.check(point.model, where=point.where)
        Compactor(point.world.place(), options=OPTIONS).compact_full()
        point.world.collect()
        point.store.land()
        point.world.check(point.model, where=point.where)
        point.world.collect()
        point.world.check(point.model, where=point.where)


@pytest.mark.parametrize("verb", VERBS)
def test_lost_reply_at_every_call(verb: str) -> None:
    """A lost or refused answer ends in success or an error; asked again the verb succeeds, and takes effect once.

    To a read all of them are the same: it has no answer.
    """
    refused = fault_points(verb, (Fault.ERROR_BEFORE,), only_changes=False)
    lost = fault_points(verb, (Fault.LOST_REQUEST, Fault.LOST_REPLY), only_changes=True)
    for point in chain(refused, lost):
        with suppress(Unavailable, OutcomeUnknown):
            point.run()
        point.world.collect()
        point.run()
        manifest = point.world.newest()
        if verb == "flush":
            assert (len(manifest.l0), len(manifest.runs)) == (5, 1), point.where
        else:
            assert (len(manifest.l0), len(manifest.runs)) == (0, 1 if verb == "compact_everything" else 2), point.where
        point.world.collect()
        point.world.check(point.model, where=point.where)


@pytest.mark.parametrize("verb", VERBS)
def test_a_change_that_lands_while_its_maker_goes_on(verb: str) -> None:
    """An unanswered change that lands after its maker tried again is the same change: it takes effect once."""
    for point in fault_points(verb, (Fault.LATE,), only_changes=True):
        with suppress(Unavailable, OutcomeUnknown):
            point.run()
        point.run()
        point.store.land()
        point.world.collect()
        point.world.check(point.model, where=point.where)


def failure_of(run: Callable[[], object]) -> LakebedError | None:
    """What a call raises; None when it succeeds."""
    try:
        run()
    except LakebedError as error:
        return error
    return None


class Outage(StoreWrapper):
    """From the first manifest that is put on, which lands, the store answers nothing, until it is up again."""

    def __init__(self, inner: ObjectStore, *, after_count: int) -> None:
        super().__init__(inner)
        self.is_armed = False
        self.is_down = False
        self._after_count = after_count

    def intercept(self, call: Call, perform: Callable[[], object]) -> object:  # type: ignore[override]
        """Pass, land unanswered, or do not answer."""
        if self.is_down:
            raise Unavailable("the store does not answer")
        result = perform()
        if self.is_armed and call.kind == "put" and call.path.startswith("manifest/"):
            self._after_count -= 1
            if self._after_count == 0:
                self.is_down, self.is_armed = True, False
                raise OutcomeUnknown("no answer to a manifest", path=call.path)
        return result


@pytest.mark.parametrize("is_compacted_meanwhile", [False, True])
@pytest.mark.parametrize(("verb", "change"), [("flush", 1), ("compact_inside", 1), ("compact_inside", 2)])
def test_an_outage_after_a_change_landed(verb: str, change: int, is_compacted_meanwhile: bool) -> None:
    """A change whose outcome stayed unknown is known again by looking: repeated later, it has taken effect once."""
    world, model = fresh()
    store = Outage(world.inner, after_count=change)
    run = VERBS[verb](world, world.place(store), model)
    store.is_armed = True
    with pytest.raises((OutcomeUnknown, Unavailable)):
        run()
    assert store.is_down
    store.is_down = False
    if is_compacted_meanwhile:
        Compactor(world.place(), options=OPTIONS).compact_full()
        world.collect()
    error = failure_of(run)
    assert error is None or (verb == "compact_inside" and is_compacted_meanwhile and error.kind == "compactor_fenced")
    manifest = world.newest()
    if verb == "flush":
        expected = (0, 1) if is_compacted_meanwhile else (5, 1)
    else:
        expected = (0, 1) if is_compacted_meanwhile else (0, 2)
    assert (len(manifest.l0), len(manifest.runs)) == expected
    world.collect()
    world.check(model, where=f"{verb}, {change}, {is_compacted_meanwhile}")


# ---- zombies


@pytest.mark.parametrize("verb", ["compact_inside", "compact_outside", "compact_everything"])
def test_a_fenced_compactor_publishes_nothing(verb: str) -> None:
    """A compactor that pauses at any call while another takes over, merges, collects gets an error; nothing changes."""
    fenced_count = 0
    for index, call in enumerate(trace_of(verb)):
        world, model = fresh()
        store = Meanwhile(world.inner)
        run = VERBS[verb](world, world.place(store), model)
        after: list[Manifest] = []

        def take_over(world: World = world, after: list[Manifest] = after) -> None:
            Compactor(world.place(), options=OPTIONS).compact_full()
            world.collect()
            after.append(world.newest())

        store.expect(take_over, at=index)
        where = f"{verb}, overtaken at {index}: {call}"
        error = failure_of(run)
        if error is not None:
            fenced_count += 1
            assert (type(error), error.kind) == (Fenced, "compactor_fenced"), where
            assert "Another compactor" in error.message, where
            assert world.newest() == after[0], where
        assert after, where
        world.collect()
        world.check(model, where=where)
    assert fenced_count > 3


def test_a_fenced_writer_flushes_nothing() -> None:
    """A writer that sleeps at any call of its flush while another takes over publishes nothing from then on."""
    outcomes = set()
    for index, call in enumerate(trace_of("flush")):
        world, model = fresh()
        store = Meanwhile(world.inner)
        database = Database.open(world.place(store), options=OPTIONS)
        database.put(KEYS[2], b"durable")
        model[KEYS[2]] = b"durable"
        after: list[Manifest] = []

        def take_over(world: World = world, model: Model = model, after: list[Manifest] = after) -> None:
            with Database.open(world.place(), options=OPTIONS, take_over=True) as other:
                other.put(KEYS[0], b"the other's")
                model[KEYS[0]] = b"the other's"
                other.flush(memtable=True)
            world.collect()
            after.append(world.newest())

        store.expect(take_over, at=index)
        where = f"overtaken at {index}: {call}"
        try:
            database.flush(memtable=True)
            outcomes.add("published before")
        except Fenced:
            outcomes.add("fenced")
        assert after, where
        assert world.newest() == after[0], where
        with pytest.raises(Fenced):
            database.put(KEYS[3], b"too late")
        assert world.newest() == after[0], where
        world.check(model, where=where)
    assert "fenced" in outcomes


# ---- what the manifest holds


def test_a_job_stands_in_the_manifest_before_its_files() -> None:
    """While files are written the manifest names the job, and every file comes after its start; then it is gone."""
    world, _ = fresh()
    seen: list[tuple[str, Manifest]] = []

    class Watching(StoreWrapper):
        def intercept(self, call: Call, perform: Callable[[], object]) -> object:  # type: ignore[override]
            if call.kind == "put" and call.path.startswith("sst/"):
                seen.append((call.path.removeprefix("sst/").removesuffix(".sst"), world.newest()))
            return perform()

    before = world.newest()
    assert Compactor(world.place(Watching(world.inner)), options=OPTIONS).compact_once()
    assert seen
    for id, manifest in seen:
        (job,) = manifest.jobs
        assert job.epoch == manifest.compactor_epoch == before.compactor_epoch + 1
        assert newest_file_id(before) < job.start_id < id
    assert not world.newest().jobs
    assert not Compactor(world.place(), options=OPTIONS).compact_once()


def test_jobs_of_older_compactors_are_dropped() -> None:
    """A process that claims the role drops the jobs of earlier ones, so that their garbage can go."""
    world, model = fresh()
    index = next(
        i for i, call in enumerate(trace_of("compact_outside")) if call.path.startswith("sst/") and call.changes
    )
    store = FaultyStore(world.inner, faults={index: Fault.CRASH_AFTER})
    with pytest.raises(Crashed):
        Compactor(world.place(store), options=OPTIONS).compact_once()
    (left,) = world.newest().jobs
    other = Compactor(world.place(), options=replace(OPTIONS, l0_compaction_count=99))
    assert not other.compact_once()
    manifest = world.newest()
    assert manifest.jobs == ()
    assert manifest.compactor_epoch == left.epoch + 1
    world.collect()
    world.check(model, where="after the job was dropped")


def test_the_writer_goes_on_beside_a_separate_compactor() -> None:
    """The writer shows what the compactor published, keeps flushing, and its checkpoint moves along."""
    world, model = fresh()
    with Database.open(world.place(), options=OPTIONS) as database:
        scan = database.scan()
        first = next(scan)
        assert world.admin().compact(full=True)
        database.put(KEYS[5], b"new")
        model[KEYS[5]] = b"new"
        database.flush(memtable=True)
        world.collect()
        assert database.stats().l0_count == 1
        assert [first, *scan] == [(key, value) for key, value in base()[1].items() if value is not None]
        assert world.admin().compact(full=True)
        assert database.poll_once()
        assert not database.poll_once()
        world.collect()
        assert {key: database.get(key) for key in KEYS} == model
        manifest = world.newest()
        checkpoints = [checkpoint for checkpoint in manifest.checkpoints if checkpoint.owner.kind == "writer"]
        assert checkpoints[-1].manifest_id >= manifest.content_since
    world.check(model, where="at the end")


def fill_with_lives(database: Database) -> dict[bytes, bytes]:
    """Put rows of which one never ends and one in an hour, alone and below an operand."""
    hour = timedelta(hours=1)
    batch = WriteBatch()
    for i in range(20):
        batch.put(b"short %02d" % i, b"1", ttl=hour)
        batch.put(b"long %02d" % i, b"1")
        batch.put(b"sum %02d" % i, (1).to_bytes(8, "little"), ttl=hour)
    database.write(batch)
    for i in range(20):
        database.merge(b"sum %02d" % i, (1).to_bytes(8, "little"))
    return dict(database.scan())


def test_a_compactor_whose_clock_is_ahead_takes_no_row_for_ended(databases: FaultyDatabases) -> None:
    """Rows end for all when they have by the store's clock too, and then their space is free."""
    with databases.open("db", merge_operator="add_int64") as database:
        rows = fill_with_lives(database)
        database.flush(memtable=True)
    ahead = databases.place("db", clock=SkewedClock(databases.clock, 2 * 3_600_000))
    DatabaseAdmin(ahead).compact(full=True)
    assert databases.rows("db") == rows
    databases.clock.advance(3_600)
    DatabaseAdmin(ahead).compact(full=True)
    assert sum(file.row_count for run in databases.newest("db").file_set.runs for file in run.files) == 40


def test_a_clock_that_was_ahead_during_a_flush_ends_no_row(databases: FaultyDatabases) -> None:
    """A clock that jumped, and was set right, hides rows for that time only."""
    clock = SkewedClock(databases.clock, 0)
    options = DatabaseOptions(background=False, compaction=False, merge_operator="add_int64")
    with Database.open(databases.place("db", clock=clock), options=options) as database:
        rows = fill_with_lives(database)
        clock.offset_ms = 2 * 3_600_000
        database.flush(memtable=True)
        assert len(dict(database.scan())) == 40
        clock.offset_ms = 0
        assert dict(database.scan()) == rows


def test_a_scan_keeps_the_files_it_stands_on() -> None:
    """The checkpoint of a scan stays while it is read, through compactions and collections; then it goes."""
    world, _ = fresh()
    with Database.open(world.place(), options=IN_PROCESS) as database:
        expected = list(database.scan())
        scan = database.scan()
        result = [next(scan)]
        database.compact(full=True)
        for number in range(3):
            database.put(KEYS[0], b"%d" % number)
            database.flush(memtable=True)
            world.collect()
        assert [*result, *scan] == expected
        del scan
        database.put(KEYS[0], b"last")
        database.flush(memtable=True)
        database.poll_once()
        checkpoints = [checkpoint for checkpoint in world.newest().checkpoints if checkpoint.owner.kind == "writer"]
        assert len(checkpoints) == 1


def test_too_many_files_are_refused_with_what_to_do() -> None:
    """A flush beyond the limit says what to do, loses nothing, and succeeds after a compaction."""
    world, model = fresh()
    count_now = len(world.newest().file_set.files())
    options = replace(IN_PROCESS, file_count_max=count_now)
    with Database.open(world.place(), options=options) as database:
        database.put(KEYS[0], b"more")
        model[KEYS[0]] = b"more"
        with raises(InvalidRequest, "too_many_files", match="compact it"):
            database.flush(memtable=True)
        assert {key: database.get(key) for key in KEYS} == model
        database.compact_once()
        database.flush(memtable=True)
    world.check(model, where="at the end")


@pytest.mark.parametrize("is_named", [True, False])
def test_a_missing_input_is_damage_only_while_the_newest_version_names_it(is_named: bool) -> None:
    """Of a file that another process took out of the database, as a restore does, a compaction is planned anew."""
    world, _ = fresh()
    lost = world.newest().l0[0].id

    class Losing(StoreWrapper):
        def intercept(self, call: Call, perform: Callable[[], object]) -> object:  # type: ignore[override]
            if call.path.startswith("sst/") and f"sst/{lost}.sst" in {meta.path for meta in self.inner.list("sst")}:
                if not is_named:
                    ManifestLog(world.place()).update(lambda newest: msgspec.structs.replace(newest, l0=newest.l0[1:]))
                self.inner.delete([f"sst/{lost}.sst"])
            return perform()

    compactor = Compactor(world.place(Losing(world.inner)), options=OPTIONS)
    if is_named:
        with pytest.raises(Corruption, match="newest version") as damage:
            compactor.compact_full()
        assert (damage.value.kind, damage.value.facts["path"]) == ("file_missing", f"sst/{lost}.sst")
    else:
        assert compactor.compact_full()
        assert world.newest().l0 == ()
    assert world.newest().jobs == ()


@pytest.mark.parametrize("step", ["missing", "destroyed"])
def test_there_is_nothing_to_compact(step: str) -> None:
    """A place without a database, or with a destroyed one, is refused in one sentence, and nothing is written."""
    world = World()
    if step == "destroyed":
        with Database.open(world.place(), options=OPTIONS):
            pass
        world.admin().destroy(soft=True, take_over=True)
    before = {meta.path for meta in world.inner.list("")}
    with pytest.raises((NotFound, InvalidRequest)) as caught:
        Compactor(world.place(), options=OPTIONS).compact_once()
    assert isinstance(caught.value, LakebedError)
    assert caught.value.kind == ("invalid_db_state" if step == "destroyed" else "database_not_found")
    assert {meta.path for meta in world.inner.list("")} == before


@pytest.mark.parametrize("is_in_process", [False, True])
def test_the_role_is_claimed_once(is_in_process: bool) -> None:
    """Further compactions of the same process change the manifest for their jobs alone."""
    world, model = fresh()
    if is_in_process:
        with Database.open(world.place(), options=IN_PROCESS) as database:
            claimed = world.newest()
            database.compact(full=True)
            database.compact(full=True)
            newest = world.newest()
    else:
        compactor = Compactor(world.place(), options=OPTIONS)
        compactor.compact_full()
        claimed = world.newest()
        compactor.compact_full()
        newest = world.newest()
    assert newest.compactor_epoch == claimed.compactor_epoch
    assert newest.manifest_id - claimed.manifest_id == (4 if is_in_process else 2)
    world.check(model, where="after two compactions")
