"""The manifests of a database: read, changed, raced for, passed by the boundary."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import xxhash

from lakebed.errors import AlreadyExists, Corruption, InvalidRequest, NotFound, OutcomeUnknown, UnsupportedFormat
from lakebed.kv.claim import first_manifest
from lakebed.kv.database_location import DatabaseLocation
from lakebed.kv.layout import manifest_path
from lakebed.kv.manifest import encode_manifest
from lakebed.kv.manifests import PREVIOUS_WRITE_IDS_MAX, ManifestLog
from lakebed.kv.model import Manifest
from lakebed.kv.options import DatabaseOptions
from lakebed.objects.boundary import MARKER_COUNT_KEPT
from lakebed.testing import Fault, FaultyStore
from worlds.errors import raises
from worlds.kv.places import fresh, place_on


def first(place: DatabaseLocation) -> Manifest:
    """The manifest of an empty database."""
    return first_manifest(place, options=DatabaseOptions())


def made() -> DatabaseLocation:
    """A place with one manifest."""
    place = fresh()
    ManifestLog(place).create(first(place))
    return place


def sequence(value: int) -> Callable[[Manifest], Manifest]:
    """A change that sets the last sequence."""
    return lambda manifest: msgspec.structs.replace(manifest, last_sequence=value)


def next_sequence(manifest: Manifest) -> Manifest:
    """A change that rests on what it is given."""
    return msgspec.structs.replace(manifest, last_sequence=manifest.last_sequence + 1)


def test_a_change_is_one_more_manifest() -> None:
    """An update appends; the versions below stay as they were."""
    place = made()
    log = ManifestLog(place)
    changed = log.update(sequence(9))
    assert (changed.manifest_id, changed.last_sequence) == (2, 9)
    assert ManifestLog(place).latest() == changed
    assert (log.load(1).last_sequence, log.ids()) == (0, [1, 2])
    assert log.seen == changed


def test_costs() -> None:
    """A change from memory: 1 PUT and 1 LIST. A fresh one: 1 LIST and 1 GET more. Latest: 1 LIST and 1 GET."""
    place = made()
    log = ManifestLog(place)
    with place.store.count() as fresh_costs:
        log.update(next_sequence, fresh=True)
    assert (fresh_costs.list, fresh_costs.get, fresh_costs.put, fresh_costs.total) == (2, 1, 1, 4)
    with place.store.count() as cached:
        log.update(next_sequence)
    assert (cached.list, cached.put, cached.total) == (1, 1, 2)
    with place.store.count() as latest:
        ManifestLog(place).latest()
    assert (latest.list, latest.get, latest.total) == (1, 1, 2)
    with place.store.count() as again:
        log.latest()
    assert (again.list, again.total) == (1, 1)
    with place.store.count() as nothing:
        assert log.update(lambda manifest: None) == log.seen
    assert nothing.total == 0


def test_a_lost_race_is_decided_again_from_the_newest() -> None:
    """Two logs of one database: the one with an old base applies its change to what the other made."""
    place = made()
    log, other = ManifestLog(place), ManifestLog(place)
    log.latest()
    other.update(next_sequence)
    with place.store.count() as counts:
        changed = log.update(next_sequence)
    assert (changed.manifest_id, changed.last_sequence) == (3, 2)
    assert counts.put == 2


def test_a_change_may_refuse() -> None:
    """What a change raises passes on, and nothing is appended."""
    place = made()

    def refuse(manifest: Manifest) -> Manifest:
        raise InvalidRequest("no")

    with pytest.raises(InvalidRequest, match="no"):
        ManifestLog(place).update(refuse)
    assert ManifestLog(place).ids() == [1]


def test_two_creators_have_one_winner() -> None:
    """The first manifest is created once."""
    place = made()
    with raises(AlreadyExists, "database_exists", match="open it"):
        ManifestLog(place).create(first(place))


@pytest.mark.parametrize("fault", [Fault.LOST_REPLY, Fault.LOST_REQUEST, Fault.ERROR_BEFORE, Fault.LATE])
def test_a_change_happens_once_whatever_the_reply(fault: Fault) -> None:
    """A lost request, a lost reply, a refusal or a late landing: one manifest more, with the change in it once."""
    place = made()
    faulty = FaultyStore(place.store, faults={2: fault})
    changed = ManifestLog(place_on(faulty)).update(next_sequence)
    faulty.land()
    assert [call.kind for _, call, _ in faulty.met] == ["put"]
    assert ManifestLog(place).latest() == changed
    assert (changed.manifest_id, changed.last_sequence) == (2, 1)


def test_a_store_that_never_answers_leaves_the_outcome_unknown() -> None:
    """Without any answer the error says that it is not known, and asking again finds out."""
    place = made()
    answers = dict.fromkeys(range(2, 40), Fault.LOST_REPLY)
    log = ManifestLog(place_on(FaultyStore(place.store, faults=answers)))
    with pytest.raises(OutcomeUnknown):
        log.update(next_sequence)
    assert ManifestLog(place).latest().last_sequence == 1


def test_write_ids_of_older_manifests_are_listed() -> None:
    """Each manifest names the write ids below it, newest first, and at most so many."""
    place = made()
    log = ManifestLog(place)
    for _ in range(PREVIOUS_WRITE_IDS_MAX + 6):
        log.update(next_sequence)
    newest = log.latest()
    below = [log.load(newest.manifest_id - place_below).write_id for place_below in range(1, 4)]
    assert list(newest.previous_write_ids[:3]) == below
    assert len(newest.previous_write_ids) == PREVIOUS_WRITE_IDS_MAX


@pytest.mark.parametrize(("count", "gets"), [(10, 0), (PREVIOUS_WRITE_IDS_MAX, 0), (150, 2)])
def test_raising_the_boundary_reads_no_manifest(count: int, gets: int) -> None:
    """The write ids are at hand: no GET for the last 64 manifests, one for every 64 more."""
    place = made()
    log = ManifestLog(place)
    for _ in range(count):
        log.update(next_sequence)
    newest = log.latest()
    with place.store.count() as counts:
        log.raise_boundary(newest.manifest_id, manifest=newest)
    assert (counts.get, counts.put) == (gets, 1)
    assert log.boundary() == newest.manifest_id


def test_a_sleeper_behind_the_boundary_loses() -> None:
    """Its manifest was collected: its update lands on the free number, is withdrawn, and made anew from the newest."""
    place = made()
    sleeper, awake = ManifestLog(place), ManifestLog(place)
    sleeper.latest()
    for _ in range(5):
        awake.update(next_sequence)
    newest = awake.latest()
    awake.raise_boundary(newest.manifest_id, manifest=newest)
    place.store.delete(manifest_path(number) for number in range(1, newest.manifest_id))
    changed = sleeper.update(next_sequence)
    assert (changed.manifest_id, changed.last_sequence) == (newest.manifest_id + 1, 6)
    assert awake.ids() == [newest.manifest_id, newest.manifest_id + 1]


def test_a_winner_that_slept_through_its_collection_still_won() -> None:
    """Its reply came after its manifest was passed and deleted: it learns from the markers that it had won."""
    place = made()
    awake = ManifestLog(place)

    def meanwhile(index: int, call: Any) -> Fault | None:
        if index != 3:  # the look at the boundary after the put
            return None
        for _ in range(3):
            awake.update(next_sequence)
        newest = awake.latest()
        awake.raise_boundary(newest.manifest_id, manifest=newest)
        place.store.delete(manifest_path(number) for number in range(1, newest.manifest_id))
        return None

    changed = ManifestLog(place_on(FaultyStore(place.store, faults=meanwhile))).update(next_sequence)
    assert (changed.manifest_id, awake.latest().last_sequence) == (2, 4)


def test_who_slept_through_too_many_collections_is_told() -> None:
    """When the markers no longer reach back the outcome is unknown, and says why."""
    place = made()
    sleeper, awake = ManifestLog(place), ManifestLog(place)
    sleeper.latest()
    for _ in range(MARKER_COUNT_KEPT + 4):
        newest = awake.update(next_sequence)
        awake.raise_boundary(newest.manifest_id, manifest=newest)
        place.store.delete([manifest_path(newest.manifest_id - 1)])
    with raises(OutcomeUnknown, "boundary_forgotten"):
        sleeper.update(next_sequence)


@pytest.mark.parametrize(
    ("names", "there", "words"),
    [
        ([], "nothing", "empty or missing"),
        (["schema/schema-0", "snapshot/snapshot-1"], "table", "it is a table"),
        (["schema/schema-0"], "table", "it is a table"),
        (["lakebed.json"], "lake", "it is a lake"),
        (["default.db/t/schema/schema-0"], "lake", "it is a lake"),
        (["a.txt"], "other", r"holds a.txt\. "),
        (["a.txt", "b.txt", "c.txt"], "other", r"holds a.txt, b.txt, c.txt\. "),
        (["a.txt", "b.txt", "c.txt", "d.txt"], "other", "holds a.txt, b.txt, c.txt and others"),
    ],
)
def test_a_path_without_a_database_says_what_is_there(names: list[str], there: str, words: str) -> None:
    """One clear sentence each: nothing, a table, a lake, other files."""
    place = fresh()
    for name in names:
        place.store.put(name, b"x")
    with raises(NotFound, "database_not_found", match=words, there=there):
        ManifestLog(place).latest()
    assert ManifestLog(place).find_latest() is None


def test_a_missing_version_is_named() -> None:
    """A version that never was, or was collected."""
    with raises(NotFound, "manifest_not_found", match="no version 7"):
        ManifestLog(made()).load(7)


def test_a_manifest_in_a_wrong_place_is_corruption() -> None:
    """The number inside has to be the number of the name."""
    place = made()
    place.store.put(manifest_path(2), bytes(place.store.get(manifest_path(1))))
    with pytest.raises(Corruption, match="wrong place") as caught:
        ManifestLog(place).latest()
    assert caught.value.facts["path"] == manifest_path(2)


def test_a_newer_lakebeds_database_is_read_but_not_written() -> None:
    """A manifest that asks its followers for more: reading works, a change is refused, nothing is changed."""
    place = made()
    newest = msgspec.structs.replace(ManifestLog(place).latest(), manifest_id=2)
    rest = encode_manifest(newest).replace(b'"min_writer":1', b'"min_writer":2')[len(b'{"checksum":"') + 16 :]
    body = b'{"checksum":"' + b"%016x" % xxhash.xxh3_64_intdigest(rest[1:]) + rest
    place.store.put(manifest_path(2), body)
    assert ManifestLog(place).latest() == newest
    with pytest.raises(UnsupportedFormat, match="upgrade"):
        ManifestLog(place).update(next_sequence)
    assert ManifestLog(place).ids() == [1, 2]
