"""Claims: making a database, becoming its writer, refusing to steal, and saying what is there."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lakebed.errors import Conflict, Fenced, InvalidRequest, LakebedError, NotFound, Unavailable
from lakebed.kv import claim as claim_module
from lakebed.kv.claim import Claim, claim_all, claim_writer
from lakebed.kv.database import Database
from lakebed.kv.database_location import DatabaseLocation
from lakebed.kv.layout import manifest_path, wal_path
from lakebed.kv.lease import Process
from lakebed.kv.manifests import ManifestLog
from lakebed.kv.model import Checkpoint, CloneSource, Job, Manifest, Owner
from lakebed.kv.options import DatabaseOptions
from lakebed.kv.wal import WalLog
from lakebed.lsm.memtable import Memtable
from lakebed.objects import open_store
from lakebed.objects.port import ObjectStore
from lakebed.testing import ManualClock, RecordingStore, StoreWrapper
from worlds.errors import raises
from worlds.kv.places import fresh, place_on
from worlds.meanwhile import Meanwhile, is_put_below

HERE = Process("here", 7, "boot/1", "http://here:1", lambda pid: pid == 7)
GONE = replace(HERE, pid=6)
START_ID = "01M7Z0AX9JD0889MTSQGP4ADK0"


def claimed(place: DatabaseLocation, **settings: Any) -> Claim:
    """A claim whose lease is in no one's way, and says nothing of an end: its owner may still write."""
    return claim_writer(place, process=GONE, **settings)


def closed(place: DatabaseLocation) -> Claim:
    """A claim whose owner ended as it should."""
    claim = claimed(place)
    claim.lease.give_up()
    return claim


def append(place: DatabaseLocation, claim: Claim, id: int) -> None:
    """One row, as the claimed writer."""
    rows = Memtable(id)
    rows.put(b"k", b"v")
    wal = WalLog(place)
    wal.append(id, wal.encode(rows.log(0, 1), id=id, epoch=claim.epoch))


def objects(place: DatabaseLocation) -> dict[str, bytes]:
    """Everything that is stored."""
    return {meta.path: bytes(place.store.get(meta.path)) for meta in place.store.list()}


def changed(**fields: Any) -> Callable[[Manifest], Manifest]:
    """A change of these fields."""
    return lambda manifest: msgspec.structs.replace(manifest, **fields)


def test_a_database_is_made_where_nothing_is() -> None:
    """The first claim makes it, has epoch 1 and a fence; the store was asked whether it honours create-only puts."""
    place = fresh()
    claim = claimed(place)
    assert (claim.created, claim.epoch, claim.compactor_epoch, claim.fence_id) == (True, 1, 1, 1)
    assert sorted(objects(place)) == ["lease.json", manifest_path(1), manifest_path(2), wal_path(1)]
    checkpoints = claim.manifest.checkpoints[0]
    assert (checkpoints.id, checkpoints.owner, checkpoints.manifest_id) == (
        claim.checkpoint_id,
        Owner("writer", epoch=1),
        2,
    )
    assert claim.log.seen == claim.manifest


def test_costs_of_a_claim() -> None:
    """Lease, newest manifest, log, epoch, fence, epoch again, lease: 4 LIST + 2 GET + 3 PUT."""
    place = fresh()
    claimed(place)
    with place.store.count() as counts:
        claim_writer(place, process=HERE)
    assert (counts.list, counts.get, counts.put, counts.total) == (4, 2, 3, 9)


def test_costs_of_a_claim_after_an_owner_that_closed() -> None:
    """No fence and no second look: 3 LIST + 2 GET + 2 PUT; the log is as it was left."""
    place = fresh()
    before = closed(place)
    log = WalLog(place).ids()
    with place.store.count() as counts:
        claim = claim_writer(place, process=HERE)
    assert (counts.list, counts.get, counts.put, counts.total) == (3, 2, 2, 7)
    assert (claim.epoch, claim.fence_id, WalLog(place).ids()) == (2, before.fence_id, log)
    append(place, claim, claim.fence_id + 1)


def test_openings_that_close_leave_nothing_in_the_log() -> None:
    """However often a database is opened and closed, its log has the one fence of its first opening."""
    place = fresh()
    for _ in range(20):
        Database.open(place, options=DatabaseOptions(background=False)).close()
    assert len(WalLog(place).ids()) == 1
    with Database.open(place, options=DatabaseOptions(background=False)) as database:
        database.put(b"k", b"v")
    with Database.open(place, options=DatabaseOptions(background=False)) as database:
        assert database.get(b"k") == b"v"
        database.put(b"l", b"w")
        database.flush(memtable=True)
    with Database.open(place, options=DatabaseOptions(background=False)) as database:
        assert dict(database.scan()) == {b"k": b"v", b"l": b"w"}
    assert len(WalLog(place).ids()) == 3


@pytest.mark.parametrize("between", ["nothing", "a claim that died", "a claim that lives", "destruction"])
def test_only_the_writer_just_before_ends_by_its_word(between: str) -> None:
    """When another epoch came after the one that ended, the next claim makes a fence, whatever the lease says."""
    place = fresh()
    first = closed(place)
    lease = place.store.get("lease.json")
    middle = None
    if between == "a claim that died":
        ManifestLog(place).update(lambda one: msgspec.structs.replace(one, writer_epoch=one.writer_epoch + 1))
    elif between == "a claim that lives":
        middle = claimed(place)
    elif between == "destruction":
        claim_all(place, process=GONE)
    place.store.put("lease.json", lease)  # that of the one between was never written, or a late request undid it
    new = claim_writer(place, process=HERE)
    assert new.fence_id == first.fence_id + {"nothing": 0, "destruction": 2}.get(between, 1)
    if middle is not None:
        with pytest.raises(Fenced):
            append(place, middle, middle.fence_id + 1)


def test_a_claim_that_was_overtaken_writes_nothing() -> None:
    """Without a fence of its own it meets the fence of the claim that came between any two of its requests."""
    place = fresh()
    closed(place)
    recording = RecordingStore(place.store)
    claim_writer(place_on(recording), process=HERE)
    outcomes = set()
    for index in range(len(recording.trace)):
        place = fresh()
        closed(place)
        newer: list[Claim] = []

        def come(place: DatabaseLocation = place, newer: list[Claim] = newer) -> None:
            newer.append(claimed(place))
            append(place, newer[0], newer[0].fence_id + 1)

        older: Claim | None = None
        with suppress(Fenced):
            older = claim_writer(place_on(Meanwhile(place.store, come, at=index)), process=HERE, take_over=True)
        (other,) = newer
        winner, loser = (other, older) if older is None or older.epoch < other.epoch else (older, other)
        outcomes.add(winner is other)
        append(place, winner, WalLog(place).last_id() + 1)
        if loser is not None:
            with pytest.raises(Fenced):
                append(place, loser, loser.fence_id + (1 if loser is older else 2))
    assert outcomes == {True, False}


def test_numbers_that_files_cover_are_not_used_again() -> None:
    """A rival between any two requests that writes, has its rows collected and closes: we begin behind its last row."""
    place = fresh()
    closed(place)
    recording = RecordingStore(place.store)
    claim_writer(place_on(recording), process=HERE)
    checked = 0
    for index in range(len(recording.trace)):
        place = fresh()
        closed(place)

        def come(place: DatabaseLocation = place) -> None:
            rival = claimed(place)
            rows = range(rival.fence_id + 1, rival.fence_id + 6)
            for id in rows:
                append(place, rival, id)
            ManifestLog(place).update(changed(replay_after_wal_id=rows[-1], wal_id_last_seen=rows[-1]))
            place.store.delete(wal_path(id) for id in rows)
            rival.lease.give_up()

        claim: Claim | None = None
        with suppress(Fenced):
            claim = claim_writer(place_on(Meanwhile(place.store, come, at=index)), process=HERE, take_over=True)
        newest = ManifestLog(place).latest()
        if claim is not None and claim.epoch == newest.writer_epoch:
            assert claim.fence_id >= newest.replay_after_wal_id
            checked += newest.replay_after_wal_id > 0
    assert checked


def test_the_next_writer_ends_the_one_before() -> None:
    """Epoch and fence: neither its records nor its checkpoint, jobs or smaller file ids remain."""
    place = fresh()
    old = claimed(place)
    append(place, old, 2)
    job = Job("j", "load", START_ID, old.epoch, 0)
    ManifestLog(place).update(changed(jobs=(job,)))
    new = claimed(place)
    assert (new.epoch, new.compactor_epoch, new.fence_id, new.created) == (2, 2, 3, False)
    assert [checkpoint.owner.epoch for checkpoint in new.manifest.checkpoints] == [2]
    assert new.manifest.jobs == ()
    assert new.manifest.newest_l0_id > old.manifest.newest_l0_id
    assert new.manifest.wal_id_last_seen == 2
    with pytest.raises(Fenced):
        append(place, old, 3)
    append(place, new, 4)


def test_a_separate_compactor_is_left_alone() -> None:
    """A writer that does not compact keeps the compactor's epoch and its jobs."""
    place = fresh()
    claimed(place)
    compaction = Job("j", "compaction", START_ID, 1, 0)
    ManifestLog(place).update(changed(jobs=(compaction, msgspec.structs.replace(compaction, kind="load"))))
    claim = claimed(place, options=DatabaseOptions(compaction=False))
    assert (claim.epoch, claim.compactor_epoch, claim.owns_compaction) == (2, 1, False)
    assert claim.manifest.jobs == (compaction,)


def test_checkpoints_of_others_stay() -> None:
    """Only the writer's own checkpoint changes hands."""
    place = fresh()
    claimed(place)
    kept = tuple(Checkpoint(owner.kind, 2, 0, owner) for owner in (Owner("user"), Owner("reader"), Owner("compactor")))
    ManifestLog(place).update(lambda one: msgspec.structs.replace(one, checkpoints=(*one.checkpoints, *kept)))
    assert claimed(place).manifest.checkpoints[:3] == kept


def test_a_living_owner_is_not_ended_by_accident() -> None:
    """Nothing changes but by `take_over`; the sentence names host, process, endpoint, since, until, and what to do."""
    clock = ManualClock()
    place = fresh(clock)
    owner = claim_writer(place, process=HERE)
    clock.advance(2)
    before = objects(place)
    with raises(Conflict, "owned") as caught:
        claim_writer(place, process=replace(HERE, pid=8))
    assert (caught.value.facts["host"], caught.value.facts["pid"]) == ("here", 7)
    for words in ("process 7 on here", "http://here:1", "for 2 s", "28 s more", "take_over=True", "wait"):
        assert words in str(caught.value)
    assert objects(place) == before
    with pytest.raises(Conflict):
        claim_all(place, process=HERE)
    append(place, owner, 2)
    new = claim_writer(place, process=HERE, take_over=True)
    assert new.epoch == 2


def test_an_owner_whose_lease_ended_is_taken_over() -> None:
    """A crashed owner is in the way for as long as its lease lives."""
    clock = ManualClock()
    place = fresh(clock)
    claim_writer(place, process=HERE)
    clock.advance(30)
    assert claim_writer(place, process=HERE).epoch == 2


def test_a_damaged_lease_is_not_in_the_way() -> None:
    """It is not heeded, and the claim says so."""
    place = fresh()
    claim_writer(place, process=HERE)
    place.store.put("lease.json", b"?")
    assert "cannot be read" in str(claim_writer(place, process=HERE).warning)


def test_claiming_everything_ends_the_compactor_too() -> None:
    """Restore and destroy own both roles, and hold no writer's checkpoint."""
    place = fresh()
    claimed(place)
    ManifestLog(place).update(changed(jobs=(Job("j", "compaction", START_ID, 1, 0),)))
    claim = claim_all(place, process=HERE)
    assert (claim.epoch, claim.compactor_epoch, claim.checkpoint_id) == (2, 2, None)
    assert (claim.manifest.jobs, claim.manifest.checkpoints) == ((), ())
    with pytest.raises(NotFound):
        claim_all(fresh(), process=HERE)


def test_numbers_go_on_above_what_was_seen() -> None:
    """A log that is empty above `wal_id_last_seen`, as in a clone: no number below is used."""
    place = fresh()
    claimed(place)
    ManifestLog(place).update(changed(wal_id_last_seen=40, replay_after_wal_id=40))
    assert claimed(place).fence_id == 41


def test_a_fast_writer_is_followed() -> None:
    """The old writer appends between epoch and fence: its records are below the fence, and are kept."""
    place = fresh()
    old = claimed(place)
    appended: list[int] = []

    def follow() -> None:
        if len(appended) < 3:
            appended.append(2 + len(appended))
            append(place, old, appended[-1])

    new = claim_writer(place_on(Meanwhile(place.store, follow, at=None, counts=is_put_below("wal/"))), process=HERE)
    assert (new.fence_id, appended) == (5, [2, 3, 4])
    with pytest.raises(Fenced):
        append(place, old, 5)


def test_a_fence_does_not_chase_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is a limit, and it is said."""
    monkeypatch.setattr(claim_module, "FENCE_TRIES_MAX", 3)
    monkeypatch.setattr(claim_module, "FENCE_PATIENCE_S", 0)
    place = fresh()
    old = claimed(place)
    appended: list[int] = [1]

    def chase() -> None:
        appended.append(appended[-1] + 1)
        append(place, old, appended[-1])

    with raises(Unavailable, "fence_starved", match="faster"):
        claim_writer(place_on(Meanwhile(place.store, chase, at=None, counts=is_put_below("wal/"))), process=HERE)


def ahead(store: ObjectStore, happens: Callable[[], None]) -> Meanwhile:
    """A store in which something happens before each of our records or fences."""
    return Meanwhile(store, happens, at=None, counts=is_put_below("wal/"))


def test_a_writer_that_never_pauses_is_fenced_once_it_looks_at_the_manifest() -> None:
    """Thousands of lost races do not make a claim give up before the old writer has met the new epoch."""
    clock = ManualClock()
    place = fresh(clock)
    old = claimed(place)
    appended = [1]

    def append_one() -> None:
        clock.advance(0.004)
        if clock.monotonic_s() < looks_at_s:
            appended.append(appended[-1] + 1)
            append(place, old, appended[-1])

    looks_at_s = clock.monotonic_s() + 10
    new = claim_writer(place_on(ahead(place.store, append_one), clock), process=HERE)
    assert len(appended) > 2 * claim_module.FENCE_TRIES_MAX
    assert new.fence_id == appended[-1] + 1
    with pytest.raises(Fenced):
        append(place, old, new.fence_id)


def test_a_fence_catches_up_with_a_log_that_grew_far() -> None:
    """After some lost races the log is listed: the others need not be lost one by one."""
    place = fresh()
    old = claimed(place)
    appended = [1]

    def append_many() -> None:
        for _ in range(500 if len(appended) == 1 else 0):
            appended.append(appended[-1] + 1)
            append(place, old, appended[-1])

    store = ahead(place.store, append_many)
    assert claim_writer(place_on(store), process=HERE).fence_id == 502
    assert len(store.calls) < 30


def test_a_fence_that_catches_up_never_ends_a_newer_owner() -> None:
    """What the listing shows may be a newer owner's: the older claim learns so, and that owner goes on."""
    place = fresh()
    old = claimed(place)
    newer: list[Claim] = []

    def be_overtaken() -> None:
        if len(store.calls) == 1:
            for id in range(2, 20):
                append(place, old, id)
        if len(store.calls) == 16:
            newer.append(claim_writer(place, process=HERE))
            append(place, newer[0], newer[0].fence_id + 1)

    store = ahead(place.store, be_overtaken)
    with pytest.raises(Fenced):
        claim_writer(place_on(store), process=HERE)
    append(place, newer[0], newer[0].fence_id + 2)


def test_two_creators_share_one_database() -> None:
    """The slower one finds that a database appeared while it looked, and opens that."""
    place = fresh()

    store = Meanwhile(place.store, lambda: claimed(place), counts=lambda call: call.path == manifest_path(1))
    claim = claimed(place_on(store))
    assert (claim.created, claim.epoch, store.happened is None) == (False, 2, False)


def test_a_rival_between_look_and_listing() -> None:
    """The manifest was not there, and then its folder is: open it."""
    place = fresh()

    store = Meanwhile(place.store, lambda: claimed(place), counts=lambda call: call.kind == "list_with_delimiter")
    assert claimed(place_on(store)).epoch == 2


def test_a_store_that_ignores_conditions_is_refused() -> None:
    """Two writers could overwrite each other: nothing is made there."""
    place = fresh()

    class Careless(StoreWrapper):
        def put(self, path: str, body: Any, *, create_only: bool = False, durable: bool = True) -> None:
            super().put(path, body, create_only=False, durable=durable)

    with raises(InvalidRequest, "create_only_ignored"):
        claim_writer(place_on(Careless(place.store)), process=HERE)
    assert objects(place) == {}


@pytest.mark.parametrize(
    ("name", "there"),
    [("schema/schema-0", "table"), ("lakebed.json", "lake"), ("notes.txt", "other"), (wal_path(3), "other")],
)
def test_something_else_is_left_alone(name: str, there: str) -> None:
    """A folder that holds anything else gets no database; a log without manifests neither."""
    place = fresh()
    place.store.put(name, b"x")
    with raises(InvalidRequest, "not_a_database", match="Name an empty folder", there=there):
        claim_writer(place, process=HERE)
    assert list(objects(place)) == [name]
    with raises(NotFound, "database_not_found"):
        claim_writer(place, process=HERE, create=False)
    assert list(objects(place)) == [name]


def test_a_database_that_is_not_ready_is_refused() -> None:
    """Destroyed, or a clone that is not finished: nothing is changed."""
    place = fresh()
    claimed(place)
    log = ManifestLog(place)
    log.update(changed(initialized=False, source=CloneSource("memory://parent", None)))
    before = objects(place)
    with raises(InvalidRequest, "invalid_db_state", match="memory://parent"):
        claim_writer(place, process=HERE)
    log.update(changed(initialized=True, destroyed_at_ms=1_700_000_000_000))
    with raises(InvalidRequest, "invalid_db_state", match=r"destroyed.*after_destroy=True"):
        claim_writer(place, process=HERE)
    assert len(objects(place)) == len(before) + 1
    assert claim_all(place, process=HERE, must_be_open=False).epoch == 2


def test_a_new_database_above_a_tombstone() -> None:
    """Numbers, epochs and sequences go on; rows and files do not; pins that live stay."""
    place = fresh()
    old = claimed(place)
    append(place, old, 2)
    end = claim_all(place, process=HERE)
    end.lease.give_up()
    pin = Checkpoint("c", 2, 0, Owner("clone", url="memory://clone"))
    tombstone = ManifestLog(place).update(changed(destroyed_at_ms=5, last_sequence=9, checkpoints=(pin,)))
    claim = claimed(place, after_destroy=True)
    assert claim.created
    assert claim.manifest.destroyed_at_ms is None
    assert claim.epoch == end.epoch + 1
    assert claim.manifest.replay_after_wal_id == end.fence_id
    assert claim.fence_id == end.fence_id  # its own fence: the destruction has ended by its own word
    assert (claim.manifest.last_sequence, claim.manifest.file_set.files()) == (9, [])
    assert claim.manifest.readable_since == tombstone.manifest_id + 1
    assert pin in claim.manifest.checkpoints
    with pytest.raises(Fenced):
        append(place, old, 3)
    assert not claimed(place, after_destroy=True).created


def test_the_merge_operator_is_kept() -> None:
    """The first writer that names one decides; another name is refused, none is fine."""
    place = fresh()
    claimed(place)
    assert claimed(place, options=DatabaseOptions(merge_operator="max")).manifest.merge_operator == "max"
    assert claimed(place).manifest.merge_operator == "max"
    before = objects(place)
    with raises(InvalidRequest, "merge_operator_mismatch", match="'max'"):
        claimed(place, options=DatabaseOptions(merge_operator="min"))
    assert objects(place) == before


def test_the_log_can_be_switched_off() -> None:
    """Each writer says whether there is a log."""
    place = fresh()
    assert not claimed(place, options=DatabaseOptions(wal_enabled=False)).manifest.wal_enabled
    assert claimed(place).manifest.wal_enabled


def test_a_read_only_folder(tmp_path: Path) -> None:
    """What may not be written is said, and nothing is changed."""
    folder = tmp_path / "db"
    place = place_on(open_store(str(folder)))
    claimed(place)
    before = objects(place)

    class ReadOnly(StoreWrapper):
        def intercept(self, call: Any, perform: Any) -> Any:
            if call.changes:
                raise InvalidRequest(f"lakebed may not write {call.path}", kind="permission_denied", path=call.path)
            return perform()

    with raises(InvalidRequest, "permission_denied"):
        claim_writer(place_on(ReadOnly(place.store)), process=HERE)
    assert objects(place) == before
    empty = place_on(open_store(str(tmp_path / "new")))
    with pytest.raises(InvalidRequest):
        claim_writer(place_on(ReadOnly(empty.store)), process=HERE)
    if os.geteuid() != 0:
        os.chmod(folder / "manifest", 0o555)
        with pytest.raises(InvalidRequest, match="owner, mode"):
            claim_writer(place, process=HERE)
        os.chmod(folder / "manifest", 0o755)


def test_a_full_disk() -> None:
    """No space: one sentence that says so, and nothing is changed."""
    place = fresh()
    claimed(place)
    before = objects(place)

    class Full(StoreWrapper):
        def intercept(self, call: Any, perform: Any) -> Any:
            if call.kind == "put":
                raise Unavailable(f"the disk is full: lakebed could not write {call.path}", kind="disk_full")
            return perform()

    with pytest.raises(LakebedError, match="the disk is full"):
        claim_writer(place_on(Full(place.store)), process=HERE)
    assert objects(place) == before
