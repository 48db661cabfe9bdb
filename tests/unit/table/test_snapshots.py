"""The log of a table's snapshots: times, ids, what is missing, and the hints for other clients."""

from __future__ import annotations

import uuid

import pytest

from lakebed.errors import Conflict, NotFound, Unavailable
from lakebed.objects.open import open_store
from lakebed.objects.port import ObjectStore, has_object
from lakebed.runtime import Environment
from lakebed.table.branch.snapshots import SnapshotLog, write_id_of
from lakebed.table.codec.snapshot_json import encode_snapshot
from lakebed.table.model.layout import Layout
from lakebed.table.model.model import Snapshot
from lakebed.testing.clock import ManualClock


def snapshot_of(snapshot_id: int, time_ms: int, *, write_id: str | None = None) -> Snapshot:
    """A snapshot without files."""
    write_id = write_id or str(uuid.UUID(int=snapshot_id))
    return Snapshot(snapshot_id, 0, "b", "d", "me", 1, "APPEND", time_ms, 0, 0, uuid=write_id)


@pytest.fixture
def store(clock: ManualClock) -> ObjectStore:
    return open_store(f"memory://{uuid.uuid4()}", environment=Environment(clock=clock))


def log_of(store: ObjectStore, *, branch: str | None = None) -> SnapshotLog:
    return SnapshotLog(store, layout=Layout(branch=branch), environment=Environment())


def confirmed() -> None:
    """The table is there."""


def fill(store: ObjectStore, *times_ms: int, branch: str | None = None) -> SnapshotLog:
    """A log of snapshots 1, 2 and so on that were committed at some times."""
    log = log_of(store, branch=branch)
    for snapshot_id, time_ms in enumerate(times_ms, 1):
        log.append(snapshot_of(snapshot_id, time_ms), confirm=confirmed)
    return log


@pytest.mark.parametrize("count", range(10))
def test_a_time_is_found_as_by_reading_all(store: ObjectStore, count: int) -> None:
    """The newest snapshot at or before it, also of equal times and of ids that expired, in few requests."""
    times_ms = [10, 20, 20, 20, 30, 50, 50, 70, 90][:count]
    log = fill(store, *times_ms)
    ids = log.ids()
    for gone in ((), (1,), (4,), (count // 2 + 1,), (2, 3, 5)):
        store.delete([f"snapshot/snapshot-{snapshot_id}" for snapshot_id in gone])
        for time_ms in range(0, 101, 5):
            expected = [i for i in ids if i not in gone and times_ms[i - 1] <= time_ms]
            with store.count() as requests:
                newest = log.bisect(ids, time_ms)
            assert (newest and newest.id) == (expected[-1] if expected else None)
            assert requests.total == requests.get <= len(ids).bit_length() + len(gone)
        for snapshot_id in set(gone) & set(ids):
            store.put(
                f"snapshot/snapshot-{snapshot_id}", encode_snapshot(snapshot_of(snapshot_id, times_ms[snapshot_id - 1]))
            )


@pytest.mark.parametrize(
    ("branch", "present", "asked", "sentence"),
    [
        (None, (), 1, "no snapshot 1: it has no snapshot yet."),
        (None, (4,), 5, "no snapshot 5: it has only snapshot 4."),
        (None, (4,), 3, "no snapshot 3: it has only snapshot 4 (older ones have expired: a tag may still pin it)."),
        (None, (2, 3, 5), 1, "1: it has snapshots 2 to 3, 5 (older ones have expired: a tag may still pin it)."),
        (None, (2, 3, 5), 4, "no snapshot 4: it has snapshots 2 to 3, 5."),
        (None, (2, 3, 5), 0, "no snapshot 0: it has snapshots 2 to 3, 5."),
        ("b", (2, 3), 1, "1: it has snapshots 2 to 3 (older ones are not the branch's: a tag may still pin it)."),
    ],
)
def test_a_missing_snapshot_is_said_with_those_that_are_there(
    store: ObjectStore, branch: str | None, present: tuple[int, ...], asked: int, sentence: str
) -> None:
    """An older id may have expired, where ids begin at one; what is there is stated in facts too."""
    layout = Layout(branch=branch)
    for snapshot_id in present:
        store.put(layout.snapshot(snapshot_id), encode_snapshot(snapshot_of(snapshot_id, 1)))
    with pytest.raises(NotFound) as missing:
        log_of(store, branch=branch).snapshot(asked)
    assert str(missing.value).endswith(sentence)
    assert missing.value.facts == {
        "snapshot": asked,
        "earliest": min(present, default=None),
        "latest": max(present, default=None),
    }


def test_the_next_id_is_behind_the_newest_and_not_below_the_boundary(store: ObjectStore) -> None:
    """Ids are never used twice: one that a rollback took back stays free."""
    assert log_of(store).next_id(None) == 1
    log = fill(store, *range(1, 8))
    assert log.next_id(log.find(7)) == 8
    log.log.raise_boundary(7)
    log.log.delete([4, 5, 6])
    store.delete(["snapshot/snapshot-7"])
    log = log_of(store)
    assert [log.next_id(log.find(3)), log.next_id(None), log.next_id(snapshot_of(9, 1))] == [7, 7, 10]


def test_ids_times_and_bodies_are_those_of_the_files(store: ObjectStore, clock: ManualClock) -> None:
    """Each is found by its id, the oldest is the earliest, and times of files are the store's."""
    began_ms, log = clock.now_ms(), log_of(store)
    assert (log.earliest(), log.latest(), log.latest_body(), log.ids(), log.write_time_ms()) == (
        None,
        None,
        None,
        [],
        {},
    )
    for snapshot_id in (1, 2, 3):
        clock.advance(1)
        log.append(snapshot_of(snapshot_id, snapshot_id), confirm=confirmed)
    store.put("snapshot/other", b"")
    store.delete(["snapshot/snapshot-1"])
    log = log_of(store)
    assert log.seen_id is None
    assert log.write_time_ms() == {2: began_ms + 2000, 3: began_ms + 3000}
    assert log.ids() == [2, 3]
    assert (log.earliest(), log.latest()) == (snapshot_of(2, 2), snapshot_of(3, 3))
    assert log.seen_id == 3
    assert log.latest_body() == (3, encode_snapshot(snapshot_of(3, 3)))
    assert [log.exists(snapshot_id) for snapshot_id in range(5)] == [False, False, True, True, False]
    assert [snapshot.id for snapshot in log.walk()] == [2, 3]
    assert [snapshot.id for snapshot in log.walk([3, 1, 2])] == [3, 2]
    assert bytes(log.body(2)) == encode_snapshot(snapshot_of(2, 2))


def test_hints_name_the_first_and_the_newest(store: ObjectStore) -> None:
    """The earliest is written with the first snapshot alone, the latest with each, unless the caller sees to it."""
    log = fill(store, 1)
    layout = Layout()
    assert (bytes(store.get(layout.earliest_hint)), bytes(store.get(layout.latest_hint))) == (b"1", b"1")
    log.store_earliest_hint(7)
    log.append(snapshot_of(2, 2), confirm=confirmed)
    assert (bytes(store.get(layout.earliest_hint)), bytes(store.get(layout.latest_hint))) == (b"7", b"2")
    log.append(snapshot_of(3, 3), confirm=confirmed, hints=False)
    assert bytes(store.get(layout.latest_hint)) == b"2"
    log.store_latest_hint(confirm=confirmed)
    assert bytes(store.get(layout.latest_hint)) == b"3"


@pytest.mark.parametrize("error", [NotFound, Conflict, Unavailable])
def test_the_hint_of_a_table_that_is_gone_goes_too(store: ObjectStore, error: type[Exception]) -> None:
    """In a folder without a table no hint stays; where the table may be there, the hint stays."""
    log = fill(store, 1)

    def refuse() -> None:
        raise error("the table is gone or out of reach")

    log.store_latest_hint(confirm=refuse)
    assert has_object(store, "snapshot/LATEST") is (error is Unavailable)


@pytest.mark.parametrize("error", [NotFound, Conflict])
def test_a_snapshot_of_a_table_that_is_gone_is_withdrawn(store: ObjectStore, error: type[Exception]) -> None:
    """The commit raises what was found, and neither its file nor a hint of it is left."""
    log = log_of(store)

    def refuse() -> None:
        raise error("the table is gone")

    with pytest.raises(error, match="the table is gone"):
        log.append(snapshot_of(1, 1), confirm=refuse)
    assert log_of(store).ids() == []
    assert not [meta.path for meta in store.list("snapshot") if meta.path.endswith(("LATEST", "EARLIEST"))]
    with pytest.raises(ValueError, match="uuid"):
        log.append(Snapshot(2, 0, "b", "d", "me", 1, "APPEND", 0, 0, 0), confirm=confirmed)


def test_a_write_id_is_that_of_a_readable_snapshot() -> None:
    """What is damaged, or of a newer version, has none: it is another writer's."""
    body = encode_snapshot(snapshot_of(1, 1, write_id="who"))
    assert write_id_of(body) == "who"
    assert write_id_of(body[:-3]) is None
    assert write_id_of(body.replace(b'"version": 3', b'"version": 999')) is None
