"""Checkpoints: what they pin, when they end, what they cost, and what is left of one whose maker met a fault."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from lakebed.errors import AlreadyExists, InvalidRequest, LakebedError, NotFound
from lakebed.kv.checkpoint import (
    create_checkpoint,
    delete_checkpoint,
    list_checkpoints,
    new_checkpoint,
    refresh_checkpoint,
    with_checkpoint,
)
from lakebed.kv.database_location import DatabaseLocation
from lakebed.kv.layout import manifest_path
from lakebed.kv.manifests import ManifestLog
from lakebed.kv.model import CheckpointScope, Owner
from lakebed.kv.options import CheckpointOptions
from lakebed.testing import Call, Crashed, Fault, FaultyStore, RecordingStore
from worlds.errors import raises
from worlds.kv.manual_database import ManualDatabase

HOUR = timedelta(hours=1)
NOBODY = str(uuid.UUID(int=5, version=4))


# ---- making one


def test_it_pins_what_is_durable_with_no_writer_open(manual: ManualDatabase) -> None:
    """What was written stays readable under its checkpoint after any later write and collection."""
    manual.write(1, 2)
    made = manual.admin.create_checkpoint(CheckpointOptions(name="before"))
    manual.write(3)
    manual.write(1)
    manual.collect()
    with manual.reader(made.id) as reader:
        assert manual.numbers(reader) == [1, 2]
        assert reader.manifest.manifest_id == made.manifest_id


def test_no_durable_write_is_missing_beside_a_running_writer(manual: ManualDatabase) -> None:
    """Rows that are in the log only are in a checkpoint that another process makes."""
    with manual.open() as database:
        for number in range(5):
            database.put(b"key %06d" % number, b"value %d" % number)
        made = manual.admin.create_checkpoint()
        database.put(b"key 000009", b"value 9")
        database.flush(memtable=True)
        manual.collect()
        with manual.reader(made.id) as reader:
            assert manual.numbers(reader) == [0, 1, 2, 3, 4]
    manual.collect()
    with manual.reader(made.id) as reader:
        assert manual.numbers(reader) == [0, 1, 2, 3, 4]


def test_the_writers_own_holds_every_write_before_it(manual: ManualDatabase) -> None:
    """With the scope ALL also writes without a wait for durability are in it; with DURABLE they need not be."""
    with manual.open() as database:
        database.put(b"key 000001", b"value 1")
        database.put(b"key 000002", b"value 2", await_durable=False)
        durable = database.create_checkpoint(scope=CheckpointScope.DURABLE)
        every = database.create_checkpoint(scope=CheckpointScope.ALL)
    with manual.reader(durable.id) as reader:
        assert manual.numbers(reader) == [1]
    with manual.reader(every.id) as reader:
        assert manual.numbers(reader) == [1, 2]


def test_what_it_costs(manual: ManualDatabase) -> None:
    """1 GET, 1 PUT and at most 3 LIST, however much is in the log; from another checkpoint no LIST of the log."""
    manual.write(*range(20), files=False)
    place = manual.place()
    with place.store.count() as requests:
        made = create_checkpoint(place)
    assert (requests.get, requests.put, requests.head, requests.delete) == (1, 1, 0, 0)
    assert requests.list <= 3
    with place.store.count() as requests:
        create_checkpoint(place, CheckpointOptions(source=made.id))
    assert (requests.get, requests.put, requests.list) == (1, 1, 2)
    for verb in (lambda: refresh_checkpoint(place, made.id, HOUR), lambda: delete_checkpoint(place, made.id)):
        with place.store.count() as requests:
            verb()
        assert (requests.get, requests.put, requests.list, requests.delete) == (1, 1, 2, 0)


def test_it_is_made_from_another_by_id_or_name(manual: ManualDatabase) -> None:
    """The same version is pinned again, with a life of its own."""
    manual.write(1)
    first = manual.admin.create_checkpoint(CheckpointOptions(name="first", lifetime=HOUR))
    manual.write(2)
    again = [
        manual.admin.create_checkpoint(CheckpointOptions(source=source, name=name))
        for source, name in ((first.id, "by id"), ("first", "by name"), (first.id.upper(), None))
    ]
    assert {made.manifest_id for made in again} == {first.manifest_id}
    assert len({made.id for made in (first, *again)}) == 4
    manual.clock.advance(3600)
    manual.collect()
    with manual.reader("by name") as reader:
        assert manual.numbers(reader) == [1]


def test_it_names_the_manifest_that_first_has_it(manual: ManualDatabase) -> None:
    """When the log has gone on, the checkpoint's manifest is the one that adds it, and says how far the log goes."""
    with manual.open() as database:
        database.put(b"key 000001", b"value 1")
        before = manual.admin.show_manifest()
        made = manual.admin.create_checkpoint()
        manifest = manual.admin.show_manifest(made.manifest_id)
        assert made.manifest_id == before.manifest_id + 1
        assert made.id in [checkpoint.id for checkpoint in manifest.checkpoints]
        assert manifest.wal_id_last_seen > before.wal_id_last_seen


def test_checkpoints_of_one_version_hold_one_manifest(manual: ManualDatabase) -> None:
    """Nothing changed since the one before: after a collection a checkpoint more costs its line in the newest version.

    Readers, openings, a refresh, a deletion and a collection in between change nothing; a write does.
    """
    manual.write(1)
    made = [manual.admin.create_checkpoint()]
    with manual.reader():
        made.append(manual.admin.create_checkpoint())
    manual.admin.refresh_checkpoint(made[0].id, HOUR)
    manual.collect()
    with manual.open() as database:
        made.append(database.create_checkpoint())
    made.append(manual.admin.create_checkpoint())
    manual.admin.delete_checkpoint(made[1].id)
    made.append(manual.admin.create_checkpoint(CheckpointOptions(name="named", lifetime=HOUR)))
    assert len({item.manifest_id for item in made}) == 1
    manual.write(2)
    later = [manual.admin.create_checkpoint(), manual.admin.create_checkpoint()]
    assert len({item.manifest_id for item in later} - {made[0].manifest_id}) == 1
    manual.collect()
    with manual.reader("named") as before, manual.reader(later[1].id) as after:
        assert (manual.numbers(before), manual.numbers(after)) == ([1], [1, 2])


def manifest_bytes(manual: ManualDatabase, count: int) -> int:
    """Bytes of manifests after so many checkpoints of an unchanged database, and a collection."""
    other = manual.copy()
    for number in range(count):
        other.admin.create_checkpoint(CheckpointOptions(name=f"checkpoint {number}"))
    other.collect()
    assert len(other.admin.list_checkpoints()) == count
    return sum(meta.size_bytes for meta in other.store.list("manifest"))


def test_the_space_of_checkpoints_grows_with_their_number(manual: ManualDatabase) -> None:
    """A checkpoint more of an unchanged database takes at most 250 bytes, however many there are."""
    manual.write(1, 2)
    bytes_by_count = {count: manifest_bytes(manual, count) for count in (0, 50, 200)}
    for count, taken in bytes_by_count.items():
        assert taken <= bytes_by_count[0] * 2 + 250 * count, bytes_by_count


@pytest.mark.long
def test_a_thousand_checkpoints_take_a_quarter_of_a_megabyte(manual: ManualDatabase) -> None:
    """As above, for as many as a user may really have."""
    manual.write(1, 2)
    assert manifest_bytes(manual, 1000) <= 250_000


def test_a_version_outlives_the_checkpoint_that_pinned_it_first(manual: ManualDatabase) -> None:
    """Of several on one manifest each holds it: ends, deletions and collections of the others take nothing away."""
    manual.write(1)
    brief = manual.admin.create_checkpoint(CheckpointOptions(lifetime=HOUR))
    deleted = manual.admin.create_checkpoint()
    lasting = manual.admin.create_checkpoint(CheckpointOptions(name="lasting"))
    assert brief.manifest_id == deleted.manifest_id == lasting.manifest_id
    manual.write(2)
    manual.admin.compact(full=True)
    manual.clock.advance(3600)
    manual.collect()
    manual.admin.delete_checkpoint(deleted.id)
    manual.collect()
    with manual.reader("lasting") as reader:
        assert manual.numbers(reader) == [1]
    manual.admin.delete_checkpoint(lasting.id)
    manual.collect()
    assert manifest_path(lasting.manifest_id) not in {meta.path for meta in manual.store.list("manifest")}


def test_an_expired_one_lends_no_manifest(manual: ManualDatabase) -> None:
    """What a dead checkpoint pinned may be gone with the next collection: a new one pins what is the newest now."""
    manual.write(1)
    dead = manual.admin.create_checkpoint(CheckpointOptions(lifetime=HOUR))
    manual.clock.advance(3600)
    made = manual.admin.create_checkpoint()
    assert made.manifest_id == dead.manifest_id + 1
    manual.collect()
    with manual.reader(made.id) as reader:
        assert manual.numbers(reader) == [1]


def test_a_lost_manifest_is_not_pinned_again(manual: ManualDatabase) -> None:
    """A checkpoint whose manifest is missing or damaged does not take the next one with it."""
    manual.write(1)
    first = manual.admin.create_checkpoint()
    path = manifest_path(first.manifest_id)
    whole = manual.store.get(path)
    manual.admin.create_checkpoint()
    for damage in (lambda: manual.store.put(path, whole[:-1]), lambda: manual.store.delete([path])):
        damage()
        made = manual.admin.create_checkpoint()
        assert made.manifest_id > first.manifest_id
        with manual.reader(made.id) as reader:
            assert manual.numbers(reader) == [1]
        manual.admin.delete_checkpoint(made.id)


def test_a_later_settings_change_is_another_version(manual: ManualDatabase) -> None:
    """An opening that died after its first update may have named an operator: a clone of the latest knows it."""
    manual.write(1)
    first = manual.admin.create_checkpoint()
    ManifestLog(manual.place()).update(
        lambda newest: msgspec.structs.replace(newest, writer_epoch=newest.writer_epoch + 1, merge_operator="append")
    )
    made = manual.admin.create_checkpoint()
    assert made.manifest_id > first.manifest_id
    assert manual.admin.show_manifest(made.manifest_id).merge_operator == "append"


# ---- wrong calls


@pytest.mark.parametrize("name", ["", "  ", "12", NOBODY, NOBODY.upper(), "a\nb", "tab\t", "é" * 128, 7])
def test_names_that_cannot_be(manual: ManualDatabase, name: Any) -> None:
    """A name is printable text of at most 255 bytes that is neither a version nor an id; nothing changes."""
    manual.write(1)
    with raises(InvalidRequest, "invalid_checkpoint_name"):
        manual.admin.create_checkpoint(CheckpointOptions(name=name))
    assert manual.admin.list_checkpoints() == []


def test_a_name_is_unique_among_the_living(manual: ManualDatabase) -> None:
    """A second one of a name is refused while the first lives; a dead one's name is free, and means the new one."""
    manual.write(1)
    options = CheckpointOptions(name="nightly", lifetime=HOUR)
    first = manual.admin.create_checkpoint(options)
    with pytest.raises(AlreadyExists) as error:
        manual.admin.create_checkpoint(options)
    assert first.id in str(error.value)
    manual.clock.advance(3600)
    second = manual.admin.create_checkpoint(options)
    assert [checkpoint.id for checkpoint in manual.admin.list_checkpoints("nightly")] == [second.id]
    assert {checkpoint.id for checkpoint in manual.admin.list_checkpoints(expired=True)} == {first.id, second.id}
    assert manual.admin.refresh_checkpoint("nightly").id == second.id


@pytest.mark.parametrize("lifetime", [timedelta(0), timedelta(seconds=-1), timedelta(microseconds=999)])
def test_a_lifetime_is_above_zero(manual: ManualDatabase, lifetime: timedelta) -> None:
    """Nothing shorter than a millisecond can be kept."""
    manual.write(1)
    with raises(InvalidRequest, "invalid_lifetime"):
        manual.admin.create_checkpoint(CheckpointOptions(lifetime=lifetime))


def test_an_unknown_one_is_an_error_everywhere(manual: ManualDatabase) -> None:
    """Refresh, delete, open and source of what is not there: invalid_db_state, and nothing changes."""
    manual.write(1)
    before = manual.admin.show_manifest()
    for call in (
        lambda: manual.admin.refresh_checkpoint(NOBODY, HOUR),
        lambda: manual.admin.delete_checkpoint(NOBODY),
        lambda: manual.admin.create_checkpoint(CheckpointOptions(source="nobody")),
        lambda: manual.reader(NOBODY),
    ):
        with raises(InvalidRequest, "invalid_db_state"):
            call()
    assert manual.admin.show_manifest() == before


def test_an_expired_one_is_dead_at_once(manual: ManualDatabase) -> None:
    """From its end on it cannot be opened, refreshed or used as a source, though nothing was collected yet."""
    manual.write(1)
    made = manual.admin.create_checkpoint(CheckpointOptions(lifetime=HOUR))
    manual.clock.advance(3599.999)
    assert [checkpoint.id for checkpoint in manual.admin.list_checkpoints()] == [made.id]
    manual.clock.advance(0.001)
    assert manual.admin.list_checkpoints() == []
    for call in (
        lambda: manual.admin.refresh_checkpoint(made.id),
        lambda: manual.admin.create_checkpoint(CheckpointOptions(source=made.id)),
        lambda: manual.reader(made.id),
    ):
        with raises(InvalidRequest, "invalid_db_state") as error:
            call()
        assert "expired" in str(error.value)
    assert manual.admin.delete_checkpoint(made.id).id == made.id
    assert manual.admin.list_checkpoints(expired=True) == []


def test_no_database_and_a_destroyed_one(manual: ManualDatabase) -> None:
    """Nothing is pinned where nothing is; what is destroyed is neither pinned nor refreshed, but let go."""
    with pytest.raises(NotFound):
        manual.admin.create_checkpoint()
    manual.write(1)
    made = manual.admin.create_checkpoint(CheckpointOptions(lifetime=HOUR))
    manual.admin.destroy(soft=True)
    for call in (
        lambda: manual.admin.create_checkpoint(),
        lambda: manual.admin.create_checkpoint(CheckpointOptions(source=made.id)),
        lambda: manual.admin.refresh_checkpoint(made.id, HOUR),
        lambda: manual.admin.pin("late"),
        lambda: manual.reader(),
    ):
        with raises(InvalidRequest, "invalid_db_state"):
            call()
    assert [checkpoint.id for checkpoint in manual.admin.list_checkpoints()] == [made.id]
    with manual.reader(made.id) as reader:
        assert manual.numbers(reader) == [1]
    manual.admin.delete_checkpoint(made.id)
    assert manual.admin.list_checkpoints() == []


# ---- refresh, delete, list


def test_refreshing_moves_the_end(manual: ManualDatabase) -> None:
    """The new end counts from now; without a lifetime there is none."""
    manual.write(1)
    made = manual.admin.create_checkpoint(CheckpointOptions(lifetime=HOUR))
    manual.clock.advance(3000)
    assert manual.admin.refresh_checkpoint(made.id, HOUR).expires_at_ms == manual.clock.now_ms() + 3_600_000
    assert manual.admin.refresh_checkpoint(made.id).expires_at_ms is None
    manual.clock.advance(10 * 365 * 86400)
    manual.collect()
    with manual.reader(made.id) as reader:
        assert manual.numbers(reader) == [1]


def test_deleting_lets_its_files_go(manual: ManualDatabase) -> None:
    """Once the last checkpoint of a version is gone, the next collection takes what only it needed."""
    manual.write(1)
    made = manual.admin.create_checkpoint()
    manual.write(2)
    manual.admin.compact(full=True)
    manual.collect()
    assert len(list(manual.store.list("sst"))) == 2
    manual.admin.delete_checkpoint(made.id)
    manual.collect()
    assert len(list(manual.store.list("sst"))) == 1


@pytest.mark.parametrize(
    ("owner", "whose"),
    [
        (Owner("clone", url="memory://elsewhere/copy"), "clone memory://elsewhere/copy"),
        (Owner("reader", host="host-7", pid=4711), "host-7, process 4711"),
        (Owner("writer", epoch=9), "writer of epoch 9"),
        (Owner("compactor", epoch=3), "compactor of epoch 3"),
    ],
)
def test_anothers_pin_needs_force(manual: ManualDatabase, owner: Owner, whose: str) -> None:
    """What was not made by a user is deleted with force only, and the error says whose it is."""
    manual.write(1)
    made = create_checkpoint(manual.place(), owner=owner)
    with raises(InvalidRequest, "checkpoint_owned") as error:
        manual.admin.delete_checkpoint(made.id)
    assert whose in str(error.value)
    assert [checkpoint.id for checkpoint in manual.admin.list_checkpoints()] == [made.id]
    manual.admin.delete_checkpoint(made.id, force=True)
    assert manual.admin.list_checkpoints() == []


def test_a_clones_pin_is_not_given_an_end_by_accident(manual: ManualDatabase) -> None:
    """A lifetime on a clone's pin would take its files away later: with force only; without an end is fine."""
    manual.write(1)
    made = create_checkpoint(manual.place(), owner=Owner("clone", url="memory://elsewhere/copy"))
    with pytest.raises(InvalidRequest, match="memory://elsewhere/copy"):
        manual.admin.refresh_checkpoint(made.id, HOUR)
    assert manual.admin.refresh_checkpoint(made.id).expires_at_ms is None
    assert manual.admin.refresh_checkpoint(made.id, HOUR, force=True).expires_at_ms is not None


def test_the_list_is_in_order_and_by_name(manual: ManualDatabase) -> None:
    """Oldest first; a name selects."""
    manual.write(1)
    made = []
    for name in ("c", "a", None, "b"):
        manual.clock.advance(1)
        made.append(manual.admin.create_checkpoint(CheckpointOptions(name=name)).id)
    assert [checkpoint.id for checkpoint in manual.admin.list_checkpoints()] == made
    assert [checkpoint.id for checkpoint in manual.admin.list_checkpoints("a")] == [made[1]]
    assert manual.admin.list_checkpoints("z") == []


def test_their_number_has_a_limit(manual: ManualDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond it one sentence says what to do; dead ones do not count."""
    monkeypatch.setattr("lakebed.kv.checkpoint.CHECKPOINT_COUNT_MAX", 2)
    manual.write(1)
    manual.admin.create_checkpoint(CheckpointOptions(lifetime=HOUR))
    manual.admin.create_checkpoint()
    with pytest.raises(InvalidRequest, match="delete some"):
        manual.admin.create_checkpoint()
    manual.clock.advance(3600)
    manual.admin.create_checkpoint()


# ---- old versions


def test_an_old_version_is_pinned_while_it_can_be_read(manual: ManualDatabase) -> None:
    """Before a collection any version; after it, those that a checkpoint pins."""
    manual.write(1)
    old = manual.admin.show_manifest().manifest_id
    manual.write(2)
    pin = manual.admin.pin("old", version=str(old))
    assert manual.admin.show_manifest(old).content_since == int(pin.version)
    manual.write(3)
    middle = manual.admin.show_manifest().manifest_id
    manual.write(4)
    manual.collect()
    with pytest.raises(NotFound):
        create_checkpoint(manual.place(), version=middle)
    assert create_checkpoint(manual.place(), version=old).manifest_id == old
    manual.admin.unpin("old")
    manual.collect()
    with manual.admin.at(pin.version) as reader:
        assert manual.numbers(reader) == [1]


def test_a_pin_of_an_old_version_races_a_collection(manual: ManualDatabase) -> None:
    """The collector passed the version between the look and the append: the pin is refused, for its files are gone."""
    manual.write(1)
    old = manual.admin.show_manifest().manifest_id
    manual.write(2)
    manual.admin.compact(full=True)
    struck = []

    class Late(FaultyStore):
        def intercept(self, call: Call, perform: Callable[[], Any]) -> Any:
            if call.kind == "put" and not struck:
                struck.append(call)
                manual.collect()
            return perform()

    with raises(NotFound, "version_not_found"):
        create_checkpoint(manual.place(lambda store: Late(store, faults={})), version=old)
    assert struck
    assert manual.admin.list_checkpoints() == []


# ---- faults


def attempts(
    manual: ManualDatabase, verb: Callable[[DatabaseLocation], object]
) -> Iterator[tuple[ManualDatabase, Fault, int, DatabaseLocation, FaultyStore]]:
    """The verb's store calls, each with each fault, each on a copy of the database."""
    other = manual.copy()
    recorded = RecordingStore(other.store)
    verb(other.place(lambda store: recorded))
    assert len(recorded.trace) >= 4
    for index in range(len(recorded.trace)):
        for fault in (Fault.ERROR_BEFORE, Fault.LOST_REPLY, Fault.LATE, Fault.CRASH_AFTER, Fault.CRASH_LATE):
            case = manual.copy()
            faulty = FaultyStore(case.store, faults={index: fault})
            yield case, fault, index, case.place(lambda store, faulty=faulty: faulty), faulty


def struck(faulty: FaultyStore) -> None:
    """The fault did happen; what was under way lands now."""
    assert len(faulty.met) == 1
    faulty.land()


@pytest.mark.parametrize("source", ["latest", "log", "again", "checkpoint", "version"])
def test_making_one_survives_every_fault(manual: ManualDatabase, source: str) -> None:
    """At every store call: what was acknowledged is there, once, and readable after a collection; all else expires."""
    manual.write(1, 2)
    base = manual.admin.create_checkpoint(CheckpointOptions(name="base"))
    version = manual.admin.show_manifest().manifest_id
    if source == "log":
        manual.open().put(b"key 000003", b"value 3")  # its process died: no manifest says how far the log goes
    else:
        manual.write(3, files=False)
    if source == "again":
        manual.admin.create_checkpoint()

    def verb(place: DatabaseLocation) -> Any:
        if source == "version":
            return create_checkpoint(place, CheckpointOptions(name="new", lifetime=HOUR), version=version)
        wanted = base.id if source == "checkpoint" else None
        return create_checkpoint(place, CheckpointOptions(name="new", lifetime=HOUR, source=wanted))

    acknowledged = 0
    for case, fault, index, place, faulty in attempts(manual, verb):
        made = None
        with suppress(LakebedError, Crashed):
            made = verb(place)
        struck(faulty)
        checkpoint = case.admin.list_checkpoints("new")
        assert len(checkpoint) <= 1, (fault, index)
        case.write(4)
        case.admin.compact(full=True)
        case.collect()
        if made is not None:
            acknowledged += 1
            assert [item.id for item in checkpoint] == [made.id]
        if checkpoint:
            with case.reader("new") as reader:
                assert case.numbers(reader) == ([1, 2] if source in ("checkpoint", "version") else [1, 2, 3]), (
                    fault,
                    index,
                )
        case.clock.advance(3600)
        case.collect()
        assert case.admin.list_checkpoints("new", expired=True) == []
    assert acknowledged


@pytest.mark.parametrize("verb", ["refresh", "delete"])
def test_refresh_and_delete_survive_every_fault(manual: ManualDatabase, verb: str) -> None:
    """At every store call: done if acknowledged, done once or not at all if not, and nothing else changes."""
    manual.write(1)
    made = manual.admin.create_checkpoint(CheckpointOptions(lifetime=HOUR))
    kept = manual.admin.create_checkpoint(CheckpointOptions(name="kept"))
    manual.write(2)

    def act(place: DatabaseLocation) -> object:
        return refresh_checkpoint(place, made.id) if verb == "refresh" else delete_checkpoint(place, made.id)

    acknowledged = 0
    for case, fault, index, place, faulty in attempts(manual, act):
        is_done = False
        with suppress(LakebedError, Crashed):
            act(place)
            is_done = True
        struck(faulty)
        checkpoints = {checkpoint.id: checkpoint for checkpoint in case.admin.list_checkpoints()}
        assert kept.id in checkpoints
        if verb == "delete":
            assert not (is_done and made.id in checkpoints), (fault, index)
        elif is_done:
            assert checkpoints[made.id].expires_at_ms is None, (fault, index)
        acknowledged += is_done
        case.collect()
        with case.reader("kept") as reader:
            assert case.numbers(reader) == [1]
        if made.id in checkpoints:
            with case.reader(made.id) as reader:
                assert case.numbers(reader) == [1]
    assert acknowledged


def test_a_lost_reply_does_not_make_two(manual: ManualDatabase) -> None:
    """The append landed, its reply was lost, others went on: the checkpoint is found again by its id."""
    manual.write(1)
    log = ManifestLog(manual.place())

    def decide(index: int, call: Call) -> Fault | None:
        if call.kind == "put" and index < 6:
            return Fault.LOST_REPLY
        return None

    made = create_checkpoint(
        manual.place(lambda store: FaultyStore(store, faults=decide)), CheckpointOptions(name="one")
    )
    assert [checkpoint.id for checkpoint in list_checkpoints(manual.place())] == [made.id]
    assert len(log.latest().checkpoints) == 1


def test_two_makers_both_win(manual: ManualDatabase) -> None:
    """A lost race is decided again from the newest manifest, so neither checkpoint is lost."""
    manual.write(1)
    rival: list[Any] = []

    class Race(FaultyStore):
        def intercept(self, call: Call, perform: Callable[[], Any]) -> Any:
            if call.kind == "put" and not rival:
                rival.append(create_checkpoint(manual.place()))
            return perform()

    made = create_checkpoint(manual.place(lambda store: Race(store, faults={})))
    assert {checkpoint.id for checkpoint in manual.admin.list_checkpoints()} == {made.id, rival[0].id}
    assert made.manifest_id == rival[0].manifest_id


def test_a_pure_change_checks_names(manual: ManualDatabase) -> None:
    """The same rules hold for a checkpoint that is added in an update of another kind."""
    manual.write(1)
    manifest = manual.admin.show_manifest()
    checkpoint = new_checkpoint(manifest.manifest_id, id=NOBODY, now_ms=5, name="x", lifetime_ms=10)
    changed = with_checkpoint(manifest, checkpoint)
    other = new_checkpoint(manifest.manifest_id, id=NOBODY, now_ms=14, name="x")
    with pytest.raises(AlreadyExists):
        with_checkpoint(changed, other)
    later = new_checkpoint(manifest.manifest_id, id=NOBODY, now_ms=15, name="x")
    assert len(with_checkpoint(changed, later).checkpoints) == 2
