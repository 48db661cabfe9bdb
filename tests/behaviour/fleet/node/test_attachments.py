"""Modes of attachments, limits, logs that were rewritten, and changes of the set of timelines."""

from __future__ import annotations

from dataclasses import replace as copy_of

import pytest
from msgspec.structs import replace

from lakebed.errors import AlreadyExists, Conflict, Corruption, InvalidRequest, NotFound, Unavailable
from lakebed.fleet import machine
from lakebed.fleet.layout import log_key
from lakebed.fleet.log.key_value_log import KeyValueLog
from lakebed.fleet.log.port import rows_of
from lakebed.fleet.model import MAIN, AttachmentMode, Policy
from lakebed.fleet.node import transaction
from lakebed.fleet.ports import Heartbeat, HeartbeatReply, Location, TimelineChange
from lakebed.fleet.records import location_of
from lakebed.ids import new_uuid
from worlds.errors import raises
from worlds.fleet_node import SMALL, TENANT, Fleet
from worlds.memory_key_value import MemoryKeyValue


def test_a_reader_follows_commits_and_the_log() -> None:
    """READER: it shows what is in the log, follows newer manifests, and never writes."""
    fleet = Fleet()
    a, reader = fleet.node("a"), fleet.node("r", attach=False)
    record = fleet.ledger.node("r")
    assert record is not None
    fleet.ingest(a, rows=20)
    a.commit_once(TENANT)
    reader.put_location(
        fleet.ledger.change(TENANT, lambda tenant: machine.attach_reader(tenant, record, now_ms=fleet.clock.now_ms()))
    )
    fleet.check(reader)
    with fleet.storage.count() as counts:
        for _ in range(3):
            fleet.ingest(a, rows=20)
            a.commit_once(TENANT)
        puts = counts.put
        fleet.check(reader)
        match = next(attachment for attachment in fleet.record.attachments if attachment.node == "r")
        location = Location(
            TENANT, match.generation, match.mode, base=fleet.record.committed, manifest=fleet.record.manifest
        )
        reader.put_location(location)
        fleet.work("r")
        fleet.check(reader)
        assert not reader.flush_once(TENANT)
        assert not reader.commit_once(TENANT)
        assert counts.put == puts
    assert reader.locations()[0].base == fleet.record.committed
    assert reader.utilization().unflushed_bytes == 0  # rows that are committed are not kept in memory
    fleet.log.prune(log_key(TENANT, MAIN), 80)
    reader.put_location(replace(location, base=location.base - 1))  # late: ignored
    fleet.work("r")
    assert reader.locations()[0].base == fleet.record.committed
    with pytest.raises(Unavailable):
        reader.change(TENANT, TimelineChange(kind="create", name="x", id="x"))


def test_a_relocation_keeps_rows_in_memory() -> None:
    """R26: a source that commits first dooms the target, which is attached again and keeps rows above the new base."""
    fleet = Fleet(policy=Policy(retain_rows=1 << 20, relocation_wait_max_ms=0))
    a = fleet.node("a")
    fleet.ingest(a, rows=30)
    a.commit_once(TENANT)
    b = fleet.node("b", attach=False)
    record = fleet.ledger.node("b")
    assert record is not None
    b.put_location(
        fleet.ledger.change(TENANT, lambda tenant: machine.relocate(tenant, record, now_ms=fleet.clock.now_ms()))
    )
    for _ in range(4):
        fleet.ingest(b, rows=10)
    fleet.check(b, every=7)
    doomed = b.locations()[0].txn
    reads: list[int] = []
    inner = fleet.log.read

    def read(timeline: str, after: int, **facts: int) -> object:
        reads.append(after)
        return inner(timeline, after, **facts)

    a.ingest_once(TENANT)
    assert a.commit_once(TENANT)
    fleet.ingest(a, rows=10)
    assert a.commit_once(TENANT)
    fleet.ingest(b, rows=5)
    fleet.log.read = read  # type: ignore[method-assign, assignment]
    fleet.plane.scan_once()
    fleet.plane.reconcile_once()
    fleet.work("b")
    locations = b.locations()[0]
    assert locations.mode is AttachmentMode.MULTI
    assert locations.txn != doomed
    assert locations.base == fleet.record.committed
    fleet.check(b, every=7)
    assert all(after >= 85 for after in reads)  # nothing is read again
    assert b.commit_once(TENANT)
    fleet.check(b, every=7)
    fleet.plane.scan_once()
    fleet.plane.reconcile_once()
    fleet.work("a")
    assert a.locations()[0].mode is AttachmentMode.STALE
    fleet.append(rows=5)
    fleet.check(a, every=9)  # a stale attachment reads on
    assert not a.commit_once(TENANT)
    fleet.end()


def test_a_pruned_log_means_a_rejection() -> None:
    """R20: a hole in the log of a doomed transaction: the node asks, and learns that it is rejected."""
    fleet = Fleet()
    a = fleet.node("a")
    fleet.ingest(a, rows=10)
    b = fleet.node("b")
    fleet.ingest(b, rows=30)
    b.checkpoint(TENANT)
    fleet.log.prune(log_key(TENANT, MAIN), 40)
    with pytest.raises(Unavailable):
        a.get(TENANT, MAIN, b"key-0001", at_least=40)
    fleet.work("a")
    assert a.locations()[0].is_broken
    assert fleet.control.verdicts[-1] == "rejected"
    fleet.end()


def test_a_missing_file_means_a_rejection() -> None:
    """R20: a 404 in a doomed transaction is no corruption and no absent key; the node asks, and learns why."""
    fleet = Fleet(policy=Policy(retain_rows=1 << 20), options=copy_of(SMALL, cache_bytes=0))
    a = fleet.node("a")
    fleet.ingest(a, rows=40)
    a.checkpoint(TENANT)
    b = fleet.node("b")
    b.compact(TENANT, MAIN)
    b.checkpoint(TENANT)
    fleet.collect()
    with raises(Unavailable, "file_gone"):
        a.get(TENANT, MAIN, b"key-0001")
    fleet.work("a")
    assert a.locations()[0].is_broken
    fleet.check(b)
    fleet.end()


def test_a_missing_file_of_a_compaction_means_a_rejection() -> None:
    """R20: also a compaction that a caller asked for says that the tenant is elsewhere, not that it is damaged."""
    fleet = Fleet(policy=Policy(retain_rows=1 << 20), options=copy_of(SMALL, cache_bytes=0))
    a = fleet.node("a")
    for _ in range(2):
        fleet.ingest(a, rows=40)
        a.checkpoint(TENANT)
    b = fleet.node("b")
    b.compact(TENANT, MAIN)
    b.checkpoint(TENANT)
    fleet.collect()
    with raises(Unavailable, "file_gone"):
        a.compact(TENANT, MAIN)
    fleet.end()


def test_another_history_stops_the_timeline() -> None:
    """A log that was rewritten, or has lost records: `log_forked`; nothing is mixed in, reads go on."""
    for longer in (False, True):
        fleet = Fleet()
        a = fleet.node("a")
        fleet.ingest(a, rows=20)
        before = fleet.scan(a, MAIN, None)
        other = KeyValueLog([MemoryKeyValue()], environment=fleet.environment)
        other.create(log_key(TENANT, MAIN))
        rows = rows_of([b"other-%d" % number for number in range(10)], [b"x"] * 10)
        for _ in range(3 if longer else 1):
            other.append(log_key(TENANT, MAIN), rows, write_id=new_uuid(fleet.rng))
        log = fleet.log
        a._context.log = other
        a._tenants[TENANT].timelines[MAIN]._log = other
        with raises(Corruption, "log_forked"):
            a.ingest_once(TENANT)
        with pytest.raises(Corruption):
            a.get(TENANT, MAIN, b"key-0001", at_least=21)
        assert fleet.scan(a, MAIN, None) == before
        assert a.commit_once(TENANT)  # what was ingested is committed
        fleet.log = log
        fleet.check(fleet.node("b"))


def test_uncommitted_bytes_are_bounded() -> None:
    """R30: at the limit ingestion pauses, reads go on; after a commit it continues."""
    fleet = Fleet(policy=Policy(uncommitted_bytes_max=20_000, commit_bytes=1 << 30, retain_rows=1 << 20))
    a = fleet.node("a")

    def away(call: str) -> None:
        raise Unavailable("away")

    fleet.control.before = away
    a.heartbeat_once()
    for _ in range(200):
        fleet.append(rows=10)
        fleet.work("a")
        a.ingest_once(TENANT)
    info = a.timelines(TENANT)[0]
    assert info.lsn < fleet.oracle.last(MAIN)
    assert a.lag(TENANT)[MAIN] > 0
    assert fleet.scan(a, MAIN, None) == fleet.oracle.state(MAIN, info.lsn)
    fleet.control.before = lambda call: None
    a.heartbeat_once()
    for _ in range(200):
        fleet.clock.advance(1)
        fleet.work("a")
        if a.timelines(TENANT)[0].lsn == fleet.oracle.last(MAIN):
            break
    fleet.check(a, every=301)
    a.checkpoint(TENANT)
    fleet.end()


def test_memtables_share_a_budget() -> None:
    """The largest memtable is flushed when memory is short, whatever is due otherwise."""
    options = copy_of(SMALL, memtable_bytes=1 << 30, memtable_bytes_max=100_000)
    fleet = Fleet(options=options)
    a = fleet.node("a")
    a.checkpoint(TENANT)
    for name in ("x", "y"):
        fleet.change(a, "create", name)
        fleet.oracle.rows[name] = []
    for _ in range(40):
        fleet.append("x", rows=20)
        fleet.append("y", rows=2)
        fleet.clock.advance(0.1)
        fleet.work("a")
        assert a.utilization().unflushed_bytes <= options.memtable_bytes_max
    infos = {timeline.name: timeline for timeline in a.timelines(TENANT)}
    assert infos["x"].size_bytes > 0 == infos["y"].size_bytes
    for name in ("x", "y"):
        fleet.check(a, name, every=211)
    a.checkpoint(TENANT)
    fleet.end()


def test_restore_detach_and_expiry() -> None:
    """A restore keeps the old timeline; a detached one names no file of an ancestor; a pin goes by itself."""
    fleet = Fleet()
    a = fleet.node("a")
    fleet.ingest(a, rows=40)
    a.checkpoint(TENANT)
    fleet.ingest(a, rows=20)
    a.checkpoint(TENANT)
    restore = TimelineChange(kind="restore", name=MAIN, id="restored", parent=MAIN, lsn=25, kept_as="old")
    info = a.change(TENANT, restore)
    assert a.change(TENANT, restore) == info
    assert (info.name, info.id, info.lsn) == (MAIN, "restored", 25)
    fleet.oracle.branch(MAIN, 25, "restored")
    assert fleet.scan(a, MAIN, None) == fleet.oracle.state("restored", 25)
    assert fleet.scan(a, "old", None) == fleet.oracle.state(MAIN, 60)
    fleet.ingest(a, "restored", rows=30)
    a.change(TENANT, TimelineChange(kind="detach", name=MAIN))
    manifest = fleet.manifest()
    assert manifest is not None
    index = next(timeline for timeline in manifest.timelines if timeline.id == "restored")
    assert index.parent is None
    assert all(origin.endswith("/restored") for origin in index.origins)
    assert fleet.scan(a, "restored", None) == fleet.oracle.state("restored", 55)
    a.change(TENANT, TimelineChange(kind="pin", name="p", id="p", parent="old", lsn=50, lifetime_ms=5_000))
    fleet.oracle.branch(MAIN, 50, "p")
    fleet.check(a, "p")
    with pytest.raises(Unavailable):
        a.get(TENANT, "p", b"k", at_least=51)
    fleet.work("a")
    assert any(timeline.name == "p" for timeline in a.timelines(TENANT))
    fleet.clock.advance(6)
    fleet.work("a")
    assert any(timeline.name == "p" for timeline in a.timelines(TENANT))  # it has not heard the control plane's time
    a.heartbeat_once()
    fleet.work("a")
    with pytest.raises(NotFound):
        a.get(TENANT, "p", b"k")
    a.checkpoint(TENANT)
    fleet.end()


@pytest.mark.parametrize("kind", ["branch", "pin"])
def test_a_delayed_request_does_not_make_a_timeline_again(kind: str) -> None:
    """What was made and deleted stays deleted, also on another node, and however much is committed meanwhile."""
    fleet = Fleet()
    a = fleet.node("a")
    fleet.ingest(a, rows=10)
    a.checkpoint(TENANT)
    make = TimelineChange(kind=kind, name="short", id="id-short", parent=MAIN)
    a.change(TENANT, make)
    a.change(TENANT, TimelineChange(kind="delete", name="short", id="id-short"))
    for _ in range(2):
        with raises(NotFound, "timeline_not_found", match="made before and deleted since"):
            a.change(TENANT, make)
        fleet.ingest(a, rows=10)
        a.checkpoint(TENANT)
    b = fleet.node("b")
    with pytest.raises(NotFound, match="made before and deleted since"):
        b.change(TENANT, make)
    assert [timeline.name for timeline in b.timelines(TENANT)] == [MAIN]
    b.change(TENANT, replace(make, id="id-anew"))
    assert sorted(timeline.name for timeline in b.timelines(TENANT)) == [MAIN, "short"]
    fleet.end()


@pytest.mark.parametrize("id", ["", MAIN])
def test_the_main_timeline_is_not_dropped_while_others_are_there(id: str) -> None:
    """Versions and pins of a tenant are of it. What it was before a restore is dropped, though it has the id."""
    fleet = Fleet()
    a = fleet.node("a")
    fleet.ingest(a, rows=10)
    a.checkpoint(TENANT)
    a.change(TENANT, TimelineChange(kind="branch", name="other", id="other", parent=MAIN))
    with raises(InvalidRequest, "timeline_in_use", match="main was to be dropped"):
        a.change(TENANT, TimelineChange(kind="delete", name=MAIN, id=id))
    a.change(TENANT, TimelineChange(kind="restore", name=MAIN, id="new", parent=MAIN, lsn=5, kept_as="old"))
    a.change(TENANT, TimelineChange(kind="delete", name="old", id=id))
    assert sorted(timeline.name for timeline in a.timelines(TENANT)) == [MAIN, "other"]
    fleet.end()


@pytest.mark.parametrize(
    ("change", "error", "kind"),
    [
        (TimelineChange(kind="branch", name=MAIN, id="b", parent=MAIN), AlreadyExists, "timeline_exists"),
        (TimelineChange(kind="branch", name="b", id="b", parent="none"), NotFound, "timeline_not_found"),
        (TimelineChange(kind="branch", name="b", id="b", parent=MAIN, lsn=41), InvalidRequest, "lsn_not_committed"),
        (TimelineChange(kind="pin", name="b", id="b", parent=MAIN, lsn=5), InvalidRequest, "below_cutoff"),
        (TimelineChange(kind="delete", name=MAIN), InvalidRequest, "timeline_in_use"),
        (TimelineChange(kind="delete", name="none"), NotFound, "timeline_not_found"),
        (TimelineChange(kind="merge", name="none"), InvalidRequest, "invalid_change"),
        (TimelineChange(kind="create", name="a/b", id="x"), InvalidRequest, "invalid_timeline_name"),
        (TimelineChange(kind="create", name="x"), InvalidRequest, "invalid_timeline_name"),
        (TimelineChange(kind="create", name="x", id=MAIN), AlreadyExists, "timeline_exists"),
        (TimelineChange(kind="branch", name="b", id="b", parent=MAIN, lifetime_ms=1), InvalidRequest, "invalid_change"),
        (TimelineChange(kind="create", name="b", id="b", lsn=3), InvalidRequest, "invalid_change"),
    ],
)
def test_refused_changes(change: TimelineChange, error: type[Exception], kind: str) -> None:
    """A change that cannot be made says why, and changes nothing."""
    fleet = Fleet(policy=Policy(retain_rows=10))
    a = fleet.node("a")
    fleet.ingest(a, rows=40)
    a.checkpoint(TENANT)
    before, committed = a.timelines(TENANT), fleet.record.committed
    with raises(error, kind):
        a.change(TENANT, change)
    assert (a.timelines(TENANT), fleet.record.committed) == (before, committed)


def test_stale_and_repeated_locations() -> None:
    """The newest generation wins; what is repeated or late changes nothing."""
    fleet = Fleet()
    a = fleet.node("a")
    first = fleet.attach("a")
    a.put_location(first)
    fleet.append(rows=5)
    fleet.check(a)
    a.put_location(first)
    second = fleet.attach("a")
    a.put_location(second)
    with raises(Conflict, "stale_generation"):
        a.put_location(first)
    fleet.check(a)
    a.checkpoint(TENANT)
    a.put_location(second)  # late: the transaction it names is committed
    fleet.work("a")
    assert not a.locations()[0].is_broken
    fleet.check(a)
    a.put_location(Location(TENANT, second.generation, None))
    with pytest.raises(Unavailable):
        a.get(TENANT, MAIN, b"k")
    with pytest.raises(Conflict):
        a.put_location(second)
    fleet.work("a")
    assert a.locations() == []
    with pytest.raises(Conflict):
        a.put_location(second)
    assert not any(transaction.node == "a" for transaction in fleet.record.transactions)
    fleet.end()


def test_heartbeats_tell_what_matters() -> None:
    """Loads of tenants that are asked for, that lag, or that are broken; a pause is obeyed."""
    fleet = Fleet()
    a = fleet.node("a")
    fleet.work("a")
    heard: list[Heartbeat] = []
    replies = iter([HeartbeatReply(True, (TENANT,), (TENANT,)), HeartbeatReply(True), HeartbeatReply(True)])

    def heartbeat(heartbeat: Heartbeat) -> HeartbeatReply:
        heard.append(heartbeat)
        return next(replies)

    fleet.control.heartbeat = heartbeat  # type: ignore[method-assign]
    a.heartbeat_once()
    fleet.append(rows=10)
    assert not a.ingest_once(TENANT)
    a.watch_once(timeout_s=0)
    a.heartbeat_once()
    assert a.ingest_once(TENANT)
    assert heard[0].loads == ()
    assert [(load.tenant, load.lag_rows) for load in heard[1].loads] == [(TENANT, 10)]


def test_rows_in_memory_that_do_not_follow_the_base_are_read_again() -> None:
    """One row above the base is in a file of the transaction that is over: the rows behind it are not kept alone."""
    fleet = Fleet()
    a = fleet.node("a")
    fleet.ingest(a, rows=5)
    a.checkpoint(TENANT)
    fleet.ingest(a, rows=1, keys=1)
    assert a.flush_once(TENANT)
    fleet.ingest(a, rows=3)
    a.put_location(fleet.attach("a"))
    fleet.check(a)
    a.checkpoint(TENANT)
    fleet.check(a)
    fleet.end()


NEVER = Policy(uncommitted_bytes_max=0)
"""With it a node ingests nothing."""


@pytest.mark.parametrize("commits", [0, 1], ids=["of the base", "of the transaction"])
def test_a_location_that_was_delayed_does_not_undo_a_newer_one(commits: int) -> None:
    """Of the same generation: it was read from the ledger before a commit, or before the newer one was."""
    fleet = Fleet()
    a = fleet.node("a")
    delayed = replace(location_of(fleet.record, fleet.record.attachments[0]), policy=NEVER)
    fleet.ingest(a, rows=5)
    a.checkpoint(TENANT)
    if not commits:
        a.put_location(location_of(fleet.record, fleet.record.attachments[0]))
        delayed = replace(delayed, txn=None)
    a.put_location(delayed)
    fleet.append(rows=5)
    fleet.check(a)
    fleet.end()


def test_a_stale_attachment_does_not_commit_again() -> None:
    """The location that it had before, delayed, is of the same generation: only a new attach lets it write."""
    fleet = Fleet()
    a = fleet.node("a")
    before = location_of(fleet.record, fleet.record.attachments[0])
    fleet.ingest(a, rows=5)
    a.put_location(replace(before, mode=AttachmentMode.STALE, txn=None))
    fleet.work("a")
    a.put_location(before)
    fleet.work("a")
    fleet.check(a)
    assert [location.mode for location in a.locations()] == [AttachmentMode.STALE]
    fleet.end()


def test_ids_of_deleted_timelines_are_remembered_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest ones of all commits, and not more: a manifest stays small."""
    monkeypatch.setattr(transaction, "GONE_MAX", 3)
    fleet = Fleet()
    a = fleet.node("a")
    names = [f"b{number}" for number in range(5)]
    for name in names:
        fleet.change(a, "branch", name, parent=MAIN, lsn=0)
    for name in names:
        fleet.change(a, "delete", name)
    manifest = fleet.manifest()
    assert manifest is not None
    assert manifest.gone == ("b2", "b3", "b4")
    fleet.end()
