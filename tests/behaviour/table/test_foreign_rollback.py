"""Rollbacks of the format's Java implementation, which uses snapshot ids again, below lakebed's marks."""

from __future__ import annotations

import random
import uuid
from contextlib import suppress
from functools import cache, partial

import pyarrow as pa
import pytest

from lakebed.errors import Conflict, NotFound
from lakebed.objects.open import open_store
from lakebed.objects.port import ObjectStore
from lakebed.runtime import Environment
from lakebed.table.branch.inherited import FOLLOWS
from lakebed.table.branch.manifest_reader import PROCESS_CACHE
from lakebed.table.model.model import Snapshot
from lakebed.table.rows.rows import commit_changes, new_writer, without_matching
from lakebed.table.table import Table
from lakebed.testing import Crashed, Fault, FaultyStore, ManualClock, RecordingStore
from lakebed.testing.between import Between
from worlds.meanwhile import Meanwhile
from worlds.table.foreign import foreign_commit
from worlds.table.foreign_verbs import foreign_expire, foreign_rollback

ROWS = pa.schema([("id", pa.int64()), ("pt", pa.string())])


def environment() -> Environment:
    """Time moves on request; names are unique over all tests."""
    return Environment(clock=ManualClock(), rng=random.Random(uuid.uuid4().int))


def rows(*ids: int) -> pa.Table:
    """Rows of one partition."""
    return pa.table({"id": pa.array(ids, pa.int64()), "pt": pa.array(["a"] * len(ids))})


def ids_of(table: Table, version: int | str | None = None) -> list[int]:
    """The ids that a version reads, sorted."""
    return sorted(table.scan(version=version).to_arrow()["id"].to_pylist())


def new_table(store: ObjectStore | None = None) -> Table:
    """An empty append table with one partition column."""
    made = store or open_store(f"memory://{uuid.uuid4()}")
    return Table.create(made, name="t", schema=ROWS, partition_keys=["pt"], environment=environment())


def reopened(table: Table, store: ObjectStore | None = None) -> Table:
    """The table as a new process sees it."""
    PROCESS_CACHE.clear()
    return Table.open(store or table.store, name="t", environment=environment())


def insert_elsewhere(table: Table, row: int) -> Snapshot:
    """A row by another client: the file is written by a table of its own, the commit is as Java's."""
    writer = new_writer(table.context.look())
    writer.write(rows(row))
    return foreign_commit(reopened(table), writer.finish(), merges=False, name=str(uuid.uuid4()))


def expired_and_rolled_back(inserts: int = 1) -> Table:
    """15 commits of the ids 0 to 14, tag t1 on the first; 13 to 15 stay; Java goes back to t1 and inserts 100, ..."""
    table = new_table()
    for number in range(15):
        table.append(rows(number))
    table.create_tag("t1", snapshot_id=1)
    table.expire(retain_max=3, retain_min=1, older_than_ms=0)
    assert table.context.snapshots.ids() == [13, 14, 15]
    foreign_rollback(table, "t1")
    for number in range(inserts):
        insert_elsewhere(table, 100 + number)
    return reopened(table)


def check_clean(table: Table, expected: list[int]) -> None:
    """The rows are these, before and after everything that cleans, and nothing is left of what is not needed."""
    assert ids_of(reopened(table)) == expected
    table.collect(grace_ms=0)
    table = reopened(table)
    assert ids_of(table) == expected
    for snapshot in table.snapshots():
        ids_of(table, snapshot.id)
    for tag in table.tags():
        ids_of(table, f"tag.{tag.name}")


def test_a_hint_of_a_snapshot_that_is_gone_does_not_stop_expiry() -> None:
    """A hint that was not rewritten names a snapshot that has expired: later snapshots expire all the same."""
    table = new_table()
    for number in range(6):
        table.append(rows(number))
    table.expire(retain_max=3, retain_min=3)
    table.store.put("snapshot/LATEST", b"1")
    table.expire(retain_max=1)
    assert table.context.snapshots.ids() == [6]


def test_expiry_keeps_what_another_client_made_newest() -> None:
    """After a rollback below the boundary, expiry keeps the newest snapshot and reports what it hides."""
    table = expired_and_rolled_back(inserts=3)
    report = table.expire(retain_max=4, retain_min=1, older_than_ms=0)
    assert (report.hidden_count, table.context.snapshots.ids()) == (0, [1, 2, 3, 4])
    report = table.expire(retain_max=3, retain_min=1, older_than_ms=0)
    assert report.hidden_count == 1
    assert report.plan is not None
    assert report.plan.hide == ("snapshot/snapshot-1",)
    assert table.context.snapshots.ids() == [2, 3, 4]
    assert ids_of(table, "tag.t1") == [0]
    check_clean(table, [0, 100, 101, 102])


def test_the_version_rolled_back_to_stays_when_it_is_the_newest() -> None:
    """A snapshot that another client brought back from a tag is the newest: no verb takes it away."""
    table = expired_and_rolled_back(inserts=0)
    for _ in range(2):
        assert table.expire(retain_max=1, retain_min=1, older_than_ms=0).hidden_count == 0
    table.delete_tag("t1")
    assert table.context.snapshots.ids() == [1]
    check_clean(table, [0])


@pytest.mark.parametrize("inserts", [0, 1, 3])
def test_an_append_after_a_rollback_below_the_boundary_ends(inserts: int) -> None:
    """The append takes the first id that is free for lakebed, in a few requests, and leaves nothing behind."""
    table = expired_and_rolled_back(inserts)
    store = RecordingStore(table.store)
    made = reopened(table, store).append(rows(7))
    assert made.id == 13
    assert len(store.trace) < 40
    expected = sorted([0, 7, *(100 + number for number in range(inserts))])
    assert ids_of(table) == expected
    manifests = {meta.path for meta in table.store.list("manifest")}
    table.collect(grace_ms=0)
    created = {
        call.call.path for call in store.trace if call.call.kind == "put" and call.call.path.startswith("manifest/")
    }
    assert created <= {meta.path for meta in table.store.list("manifest")} <= manifests
    check_clean(table, expected)


def test_only_a_commit_behind_passed_ids_says_what_it_follows() -> None:
    """An id that follows the one before needs no property, which every later reader would load."""
    table = new_table()
    for number in range(2):
        table.append(rows(number))
    assert [FOLLOWS in snapshot.properties for snapshot in table.snapshots()] == [False, False]
    table = expired_and_rolled_back()
    table.append(rows(200))
    newest = table.latest()
    assert newest is not None
    assert (newest.id, newest.properties[FOLLOWS]) == (13, "2"), "ids below the boundary are passed"


def test_what_came_before_the_next_commit_stays_readable() -> None:
    """Snapshots of the other client below the boundary are live after lakebed's next commit; expiry goes in order."""
    table = expired_and_rolled_back(inserts=0)
    table.append(rows(7))
    table.append(rows(8))
    for _ in range(2):
        table.expire(retain_max=3, retain_min=1, older_than_ms=0)
        assert table.context.snapshots.ids() == [1, 13, 14]
    report = table.expire(retain_max=1, retain_min=1, older_than_ms=0)
    assert (report.hidden_count, table.context.snapshots.ids()) == (2, [14])
    check_clean(table, [0, 7, 8])


def test_a_version_that_the_other_client_expired_and_brought_back_stays() -> None:
    """Java expires a snapshot before lakebed's boundary passes its id, then goes back to its tag: it is live again."""
    table = new_table()
    for number in range(4):
        table.append(rows(number))
    table.create_tag("t2", snapshot_id=2)
    foreign_expire(table, retain_max=2)
    reopened(table).expire(retain_max=1, retain_min=1, older_than_ms=0)
    foreign_rollback(table, "t2")
    reopened(table).append(rows(7))
    assert reopened(table).expire(retain_max=2, retain_min=1, older_than_ms=0).hidden_count == 0
    assert table.context.snapshots.ids() == [2, 4]
    assert ids_of(reopened(table), 2) == [0, 1]
    check_clean(table, [0, 1, 7])


def test_a_version_below_the_marks_stays_when_lakebed_goes_back_to_it() -> None:
    """Java brings an expired version back, lakebed commits, and goes back to it: the version is not taken for late."""
    table = expired_and_rolled_back(inserts=0)
    table.append(rows(7))
    table.append(rows(8))
    table.rollback_to(1)
    for _ in range(2):
        assert table.expire(retain_max=2, retain_min=1, older_than_ms=0).hidden_count == 0
        assert table.context.snapshots.ids() == [1, 15]
    assert ids_of(reopened(table), 1) == [0]
    check_clean(table, [0])


def test_a_version_below_the_marks_stays_while_the_one_above_it_cannot_be_read() -> None:
    """What follows a version is unknown when the next snapshot is damaged: the version is not taken for late."""
    table = expired_and_rolled_back(inserts=0)
    table.append(rows(7))
    table.append(rows(8))
    body = bytes(table.store.get("snapshot/snapshot-13"))
    table.store.put("snapshot/snapshot-13", b"{")
    assert reopened(table).expire(retain_max=3, retain_min=1, older_than_ms=0).hidden_count == 0
    table.store.put("snapshot/snapshot-13", body)
    assert table.context.snapshots.ids() == [1, 13, 14]
    check_clean(table, [0, 7, 8])


def test_a_version_that_the_boundary_names_stays_when_the_one_above_it_is_gone() -> None:
    """An expiry died when it had raised the boundary, and a snapshot's file is lost: the one below stays."""
    table = new_table()
    for number in range(4):
        table.append(rows(number))
    table.context.snapshots.log.raise_boundary(4)
    table.store.delete(["snapshot/snapshot-2"])
    assert reopened(table).expire(retain_max=4, retain_min=1, older_than_ms=0).hidden_count == 0
    assert table.context.snapshots.ids() == [1, 3, 4]
    assert ids_of(reopened(table), 1) == [0]
    check_clean(table, [0, 1, 2, 3])


def test_alternating_clients_after_a_rollback() -> None:
    """Appends and expiries of both clients alternate after a rollback without losing a row."""
    table = expired_and_rolled_back()
    expected = [0, 100]
    for number in range(6):
        reopened(table).append(rows(200 + number))
        insert_elsewhere(table, 300 + number)
        expected += [200 + number, 300 + number]
        if number % 2:
            reopened(table).expire(retain_max=2, retain_min=1, older_than_ms=0)
        else:
            foreign_expire(reopened(table), retain_max=4)
        assert ids_of(reopened(table)) == sorted(expected)
    check_clean(table, sorted(expected))


def test_a_second_rollback_to_a_live_snapshot() -> None:
    """A rollback to a snapshot that is there, far above the marks and below them, ends like the first."""
    table = expired_and_rolled_back(inserts=2)
    table.append(rows(7))
    foreign_rollback(table, 2)
    insert_elsewhere(table, 500)
    table = reopened(table)
    assert ids_of(table) == [0, 100, 500]
    table.append(rows(8))
    table.expire(retain_max=1, retain_min=1, older_than_ms=0)
    check_clean(table, [0, 8, 100, 500])


# ---- unfinished work of lakebed's, met after a rollback


@cache
def tagged() -> dict[str, bytes]:
    """The objects of a table of six commits and a delete, with tags on 2 and 5."""
    table = new_table()
    for number in range(6):
        table.append(rows(number))
    table.delete("id = 2")
    for name, snapshot_id in (("t2", 2), ("t5", 5)):
        table.create_tag(name, snapshot_id=snapshot_id)
    return {meta.path: bytes(table.store.get(meta.path)) for meta in table.store.list("")}


def copied(objects: dict[str, bytes]) -> Table:
    """A table of its own that consists of these objects."""
    store = open_store(f"memory://{uuid.uuid4()}")
    for path, body in objects.items():
        store.put(path, body)
    return Table.open(store, name="t", environment=environment())


def crash(table: Table, verb: str, at: int) -> bool:
    """Let a process crash after its `at`-th change; whether it got so far."""
    changes = 0

    def decide(index: int, call: object) -> Fault | None:
        nonlocal changes
        changes += bool(getattr(call, "changes", False))
        return Fault.CRASH_AFTER if changes == at else None

    store = FaultyStore(table.store, faults=decide)
    try:
        doomed = reopened(table, store)
        if verb == "expire":
            doomed.expire(retain_max=1, retain_min=1, older_than_ms=0)
        elif verb == "delete_tag":
            doomed.delete_tag("t5")
        else:
            doomed.rollback_to(4)
    except Crashed:
        return True
    return False


@pytest.mark.parametrize(
    ("verb", "inserts"),
    [
        *(("expire", 5), ("expire", 6), ("delete_tag", 6), ("rollback_to", 6)),
        *(pytest.param(verb, 5, marks=pytest.mark.long) for verb in ("delete_tag", "rollback_to")),
    ],
)
def test_unfinished_work_from_before_a_rollback_is_finished_by_what_is_there(verb: str, inserts: int) -> None:
    """A verb of lakebed's crashes at any change; Java rolls back and writes the same ids again: no row is lost.

    After five inserts all of Java's versions must stay; after six Java expires everything that the files of its target
    could be known by. A rollback, which ends as the others do, crashes at every second change.
    """
    struck = 0
    for at in range(1, 12, 2 if verb == "rollback_to" else 1):
        table = copied(tagged())
        if not crash(table, verb, at):
            break
        struck += 1
        target = 3 if 3 in table.context.snapshots.ids() else "t2"
        foreign_rollback(table, target)
        for number in range(inserts):
            insert_elsewhere(table, 100 + number)
        if inserts > 5:
            foreign_expire(reopened(table), retain_max=2)
        present = table.context.snapshots.ids()
        reopened(table).delete_tag("nothing", if_exists=True)
        assert table.context.snapshots.ids() == present, f"{verb}, change {at}"
        expected = [*range(3 if target == 3 else 2), *range(100, 100 + inserts)]
        assert ids_of(reopened(table)) == expected, f"{verb}, change {at}"
        reopened(table).expire(retain_max=2, retain_min=1, older_than_ms=0)
        assert ids_of(reopened(table)) == expected, f"{verb}, change {at}"
        reopened(table).append(rows(7))
        reopened(table).expire(retain_max=1, retain_min=1, older_than_ms=0)
        check_clean(table, sorted([*expected, 7]))
        assert ids_of(reopened(table), "tag.t2") == [0, 1]
        assert not list(table.store.list("lakebed/reclaim"))
    assert struck >= 3


def test_a_rollback_while_an_expiry_runs_keeps_its_target() -> None:
    """Java rolls back after any request of an expiry, to a snapshot that was about to go: it stays readable."""
    struck = 0
    for call in range(200):
        plain = copied(tagged())
        store = Meanwhile(plain.store, after=True)
        table = reopened(plain, store)
        store.expect(partial(foreign_rollback, plain, 3), at=call)
        with suppress(NotFound):  # the target had expired, so there was nothing to roll back to
            report = table.expire(retain_max=1, retain_min=1, older_than_ms=0)
            assert report.plan is not None
            assert report.hidden_count == len(report.plan.hide)
            assert not {meta.path for meta in plain.store.list("snapshot")} & set(report.plan.hide), f"call {call}"
        if store.happened is None:
            break
        is_rolled_back = 3 in plain.context.snapshots.ids()
        struck += is_rolled_back
        expected = [0, 1, 2] if is_rolled_back else [0, 1, 3, 4, 5]
        assert ids_of(reopened(plain)) == expected, f"call {call}"
        if call % 4 == 0:
            reopened(plain).append(rows(9))
            check_clean(reopened(plain), [*expected, 9])
    assert struck > 20
    assert store.happened is None


# ---- commits that were planned on a history that a rollback removed


def test_a_change_made_before_a_rollback_does_not_fit_the_same_id_of_another_line() -> None:
    """A rewrite planned on snapshot 3 is refused on another client's snapshot 3, which lacks the file it replaces."""
    table = new_table()
    for number in range(3):
        table.append(rows(number))
    newest = table.latest()
    assert newest is not None
    planned = without_matching(table.context, "id = 2")
    assert planned

    def elsewhere() -> None:
        plain = reopened(table)
        foreign_rollback(plain, 1)
        insert_elsewhere(plain, 100)
        insert_elsewhere(plain, 101)
        insert_elsewhere(plain, 102)

    between = Between(table.store, kind="put", prefix="manifest/manifest-list", happens=elsewhere)
    with pytest.raises(Conflict, match="no longer in snapshot"):
        commit_changes(reopened(table, between).context, planned, kind="OVERWRITE")
    assert between.happened
    check_clean(table, [0, 100, 101, 102])


def test_a_rewrite_whose_race_was_lost_to_an_expired_snapshot_is_checked() -> None:
    """The snapshot that replaced a file expired before the loser looked: its rewrite is refused all the same."""
    table = new_table()
    table.append(rows(1, 2))
    planned = without_matching(table.context, "id = 2")

    def elsewhere() -> None:
        plain = reopened(table)
        plain.delete("id = 1")
        plain.append(rows(3))
        plain.expire(retain_max=1, retain_min=1, older_than_ms=0)

    between = Between(table.store, kind="put", prefix="manifest/manifest-list", happens=elsewhere)
    with pytest.raises(Conflict, match="no longer in snapshot"):
        commit_changes(reopened(table, between).context, planned, kind="OVERWRITE")
    assert between.happened
    check_clean(table, [2, 3])


def test_a_commit_that_cannot_advance_ends_with_a_sentence() -> None:
    """When the newest id never moves although it is taken, the commit gives up and leaves no manifest behind."""
    table = new_table()
    table.append(rows(1))
    store = RecordingStore(table.store)
    stuck = reopened(table, store)
    before = {meta.path for meta in table.store.list("manifest")}
    newest = stuck.context.snapshots.latest()
    stuck.context.snapshots.latest = lambda *, exact=True: newest  # type: ignore[method-assign]
    table.append(rows(2))
    table_files = {meta.path for meta in table.store.list("manifest")}
    with pytest.raises(Conflict, match="17 times as snapshot 2"):
        stuck.append(rows(3))
    assert {meta.path for meta in table.store.list("manifest")} == table_files > before
    check_clean(table, [1, 2])


def test_a_rollback_to_a_version_of_another_client_forgets_no_commit_that_it_has(clock: ManualClock) -> None:
    """Its snapshot says nothing of users, and those before it have expired."""
    environment = Environment(clock=clock, rng=random.Random(3))
    store = open_store(f"memory://{uuid.uuid4()}")
    table = Table.create(store, name="t", schema=ROWS, partition_keys=["pt"], environment=environment)
    table.append(pa.table({"id": [1], "pt": ["a"]}), commit_user="load", commit_identifier=1)
    table.append(pa.table({"id": [2], "pt": ["a"]}), commit_user="load", commit_identifier=2)
    theirs = foreign_commit(table, [], merges=False, name="x")
    table.append(pa.table({"id": [3], "pt": ["a"]}), commit_user="stream", commit_identifier=9)
    table.create_tag("theirs", snapshot_id=theirs.id)
    log = table.context.snapshots.log
    log.raise_boundary(theirs.id + 1)
    log.delete([1, 2, theirs.id])
    table.rollback_to("theirs")
    table.append(pa.table({"id": [2], "pt": ["a"]}), commit_user="load", commit_identifier=2)
    table.append(pa.table({"id": [3], "pt": ["a"]}), commit_user="stream", commit_identifier=9)
    assert sorted(table.read()["id"].to_pylist()) == [1, 2, 3]
