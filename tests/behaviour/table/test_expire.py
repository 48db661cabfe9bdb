"""Expiry: what goes, what stays, what it costs, and what happens when something cannot be read."""

from __future__ import annotations

import json
import random
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

import lakebed
from lakebed.bounded_cache import BoundedCache
from lakebed.errors import Corruption, InvalidRequest
from lakebed.table.collect.expire import ExpireRules
from lakebed.table.collect.lineage import withdraw_late
from lakebed.table.collect.live_versions import read_live_versions
from lakebed.table.collect.reachability import _Case
from lakebed.table.collect.referenced_files import ReferencedFiles
from lakebed.table.table import Table
from lakebed.testing import RecordingStore
from worlds.table.world import TableWorld, committed_world


def expired(made: TableWorld, count: int) -> None:
    """Remove the oldest from the model, and check."""
    for snapshot_id in sorted(made.main.snapshots)[:count]:
        del made.main.snapshots[snapshot_id]
    made.check(collected=True)
    made.check_versions()


def test_the_options_decide_when_nobody_says_otherwise() -> None:
    """Snapshots beyond snapshot.num-retained.max go, and snapshot.num-retained.min always stay."""
    made = committed_world(8)
    made.table.set_options({"snapshot.num-retained.min": "2", "snapshot.num-retained.max": "5"})
    made.table.expire()
    expired(made, 3)


def test_time_retained() -> None:
    """Snapshots older than snapshot.time-retained go, down to the least that stays."""
    made = committed_world(8)
    made.table.set_options({"snapshot.num-retained.min": "2", "snapshot.time-retained": "3 min"})
    made.table.expire()
    expired(made, 4)


@pytest.mark.parametrize(
    ("rules", "asks"), [({"retain_max": 5}, 0), ({"by_order": True}, 0), ({"older_than_ms": 1 << 62}, 1)]
)
def test_the_clock_of_the_store_is_asked_for_what_expires_by_its_age(rules: ExpireRules, asks: int) -> None:
    """A file is written and looked at to learn that clock's time: not where the number of snapshots alone decides."""
    made = committed_world(8)
    store = RecordingStore(made.store)
    table = Table.open(store, name="world", environment=made.environment)
    report = table.expire(retain_min=2, **rules)
    assert report.hidden_count == (3 if "retain_max" in rules else 6)
    assert sum("probe" in record.call.path and record.call.kind == "put" for record in store.trace) == asks


def test_the_limit_of_one_run() -> None:
    """One run removes at most max_deletes snapshots, the oldest; the next goes on."""
    made = committed_world(8)
    assert made.table.expire(retain_max=1, max_deletes=3).hidden_count == 3
    expired(made, 3)
    made.table.expire(retain_max=1, max_deletes=3)
    expired(made, 3)


def test_a_consumer_holds_what_it_reads_next() -> None:
    """No snapshot from a consumer's next on expires."""
    made = committed_world(8)
    made.store.put("consumer/consumer-job", msgspec.json.encode({"nextSnapshot": 4}))
    made.table.expire(retain_max=1)
    expired(made, 3)
    made.store.delete(["consumer/consumer-job"])
    made.table.expire(retain_max=1)
    expired(made, 4)


def test_an_unreadable_consumer_stops_expiry() -> None:
    """What an unreadable consumer holds is unknown, so nothing goes."""
    made = committed_world(8)
    made.store.put("consumer/consumer-job", b"{")
    with pytest.raises(Corruption, match="consumer"):
        made.table.expire(retain_max=1)
    made.check()


def test_a_dry_run_says_exactly_what_a_run_does() -> None:
    """The plan of a dry run names what the run then deletes, and deletes nothing itself."""
    made = committed_world(8)
    made.hold("keep", 3)
    before = made.stored()
    plan = made.table.expire(retain_max=2, dry_run=True).plan
    assert plan is not None
    assert made.stored() == before
    report = made.table.expire(retain_max=2)
    expired(made, 6)
    assert before - made.stored() == {doomed.path for doomed in plan.doomed}
    assert report.deleted_bytes == plan.bytes_freed
    assert plan.kept == report.kept


@pytest.mark.parametrize("held", [(3,), (2, 4), (1, 3, 5), (1, 2, 3, 4, 5, 6)])
def test_what_is_kept_and_what_is_deleted_is_everything(held: tuple[int, ...]) -> None:
    """The report counts each file of what expired once: it went, or a tag keeps it."""
    every = committed_world(8).table.expire(retain_max=2)
    assert not every.kept
    made = committed_world(8)
    for snapshot_id in held:
        made.hold(f"of-{snapshot_id}", snapshot_id)
    report = made.table.expire(retain_max=2)
    assert report.deleted_count + sum(report.kept.values()) == every.deleted_count


def test_files_that_are_kept_for_a_reason_are_counted_once_each() -> None:
    """Also where one version after the other is asked, and some of their files are the same."""
    branch = committed_world(1).table.context
    nothing = np.zeros(5, np.bool_)
    case = _Case(branch, read_live_versions(branch), ReferencedFiles(branch), pa.table({"path": ["file"] * 5}), nothing)
    for places in ([0, 1, 2], [2, 3], [0]):
        case.keep(np.isin(np.arange(5), places), "needed")
    assert case.kept == {"needed": 4}


def test_impossible_retention_is_refused() -> None:
    """Numbers that contradict each other are refused before anything happens."""
    made = committed_world(8)
    with pytest.raises(InvalidRequest, match="At most 2"):
        made.table.expire(retain_max=2, retain_min=3)
    with pytest.raises(InvalidRequest, match="retain_min is 0"):
        made.table.expire(retain_min=0)
    with pytest.raises(InvalidRequest, match="retain_max is 0: it must be"):
        made.table.expire(retain_max=0)
    for number in (1.5, "1"):
        with pytest.raises(InvalidRequest, match=f"'retain_max' takes a whole number or None, and {number!r}"):
            made.table.expire(retain_max=number)


def expiring_count(rules: ExpireRules, *, count: int, times_ms: list[int]) -> int:
    """How many of the oldest snapshots expire: the rules as their descriptions say, one snapshot at a time."""
    least, most = rules.get("retain_min") or 1, rules.get("retain_max") or 100
    expired = 0
    for number, time_ms in enumerate(times_ms):
        newer_count = count - number - 1
        is_old = bool(rules.get("by_order")) or time_ms < (rules.get("older_than_ms") or 0)
        if newer_count < least or not (newer_count >= most or is_old) or expired == (rules.get("max_deletes") or 100):
            break
        expired += 1
    return expired


def test_every_rule_together() -> None:
    """The snapshots that expire are those of which each rule allows it, from the oldest on, without a gap."""
    made = committed_world(6)
    times_ms = [made.table.resolve(version=number).time_ms for number in range(1, 7)]
    made.table.set_options({"snapshot.num-retained.min": "1", "snapshot.num-retained.max": "100"})
    moments = [None, times_ms[0], times_ms[0] + 1, times_ms[2], times_ms[3] + 1, times_ms[5] + 1]
    choices = list(product([None, 1, 2, 5, 6, 7], [None, 1, 2, 4, 6, 7], moments, [None, 1, 2, 5, 6], [False, True]))
    for most, least, moment, limit, by_order in random.Random(5).sample(choices, 150):
        rules: ExpireRules = {
            "retain_max": most,
            "retain_min": least,
            "older_than_ms": None if by_order else moment,
            "max_deletes": limit,
            "by_order": by_order,
        }
        if most is not None and least is not None and least > most:
            with pytest.raises(InvalidRequest, match="At most"):
                made.table.expire(**rules, dry_run=True)
            continue
        expected = expiring_count(rules, count=6, times_ms=times_ms)
        if rules["older_than_ms"] is None and not by_order:  # then the option says an hour, and none is as old
            expected = expiring_count({**rules, "older_than_ms": 0}, count=6, times_ms=times_ms)
        assert made.table.expire(**rules, dry_run=True).hidden_count == expected, rules
    made.check()


def test_an_empty_table_expires_nothing() -> None:
    """Expiry of a table without snapshots is fine."""
    made = TableWorld(2)
    assert made.table.expire(retain_max=1).deleted_count == 0


def test_an_unreadable_manifest_keeps_what_it_might_matter_to() -> None:
    """A corrupt delta manifest ends the walk before it: earlier snapshots go, later ones stay, the report says so."""
    made = committed_world(8)
    delta = made.table.context.snapshots.snapshot(5).delta_manifest_list
    name = made.table.context.manifests.metas(delta)[0].file_name
    body = bytes(made.store.get(f"manifest/{name}"))
    made.store.put(f"manifest/{name}", b"\0" * len(body))
    made.table.context.manifests._cache = BoundedCache(1 << 28)
    report = made.table.expire(retain_max=1)
    assert any(name in warning for warning in report.warnings)
    assert made.table.context.snapshots.ids() == [4, 5, 6, 7, 8]
    made.store.put(f"manifest/{name}", body)
    assert not made.table.expire(retain_max=1).warnings
    expired(made, 7)


def test_an_unreadable_tag_keeps_everything_until_it_is_readable() -> None:
    """What an unreadable tag holds is unknown: nothing is deleted, the report says so, and the next run makes good."""
    made = committed_world(8)
    made.hold("broken", 2)
    body = bytes(made.store.get("tag/tag-broken"))
    made.store.put("tag/tag-broken", b"{")
    report = made.table.expire(retain_max=1)
    assert report.deleted_count == 0
    assert any("tag-broken" in warning for warning in report.warnings)
    for snapshot_id in range(1, 8):
        del made.main.snapshots[snapshot_id]
    made.store.put("tag/tag-broken", body)
    made.check()
    made.table.expire(retain_max=1)
    made.check(collected=True)


def test_a_damaged_unfinished_deletion_is_passed_over() -> None:
    """An unreadable unfinished deletion is named in the report, and nothing of it is deleted."""
    made = committed_world(8)
    made.store.put("lakebed/reclaim/expire-x.json", b'{"format": 1}')
    report = made.table.expire(retain_max=2)
    assert any("expire-x" in warning for warning in report.warnings)
    expired(made, 6)


def test_a_snapshot_that_lands_late_is_withdrawn() -> None:
    """Snapshot files that come back after they expired, by a late retry or from a dead writer, do not stop expiry."""
    made = committed_world(8)
    body, other = (bytes(made.store.get(f"snapshot/snapshot-{number}")) for number in (2, 3))
    made.table.expire(retain_max=4)
    expired(made, 4)
    made.store.put("snapshot/snapshot-2", body)
    made.store.put("snapshot/snapshot-1", other)
    assert not made.table.expire(retain_max=2).warnings
    expired(made, 2)


@pytest.mark.parametrize("note", [None, b"2"], ids=["", "and a note of an expiry before"])
def test_a_snapshot_that_lands_late_below_the_oldest_is_withdrawn(note: bytes | None) -> None:
    """Expired snapshots that come back right below the oldest, which follows them, do not stop expiry either.

    A late retry may also put back what an expiry before had noted.
    """
    made = committed_world(8)
    bodies = {number: bytes(made.store.get(f"snapshot/snapshot-{number}")) for number in (3, 4)}
    made.table.expire(retain_max=4)
    expired(made, 4)
    if note is not None:
        made.store.put("lakebed/expired-below", note)
    for number, body in bodies.items():
        made.store.put(f"snapshot/snapshot-{number}", body)
    made.table.context.manifests._cache = BoundedCache(1 << 28)
    assert not made.table.expire(retain_max=2).warnings
    expired(made, 2)


def test_a_snapshot_that_lands_late_above_one_of_another_client_is_withdrawn() -> None:
    """What another client wrote below the marks stays, and ends no search for what landed late."""
    made = committed_world(8)
    late = bytes(made.store.get("snapshot/snapshot-3"))
    foreign = json.loads(made.store.get("snapshot/snapshot-8")) | {"id": 2}
    del foreign["properties"]
    made.table.expire(retain_max=4)
    made.store.put("snapshot/snapshot-2", json.dumps(foreign).encode())
    made.store.put("snapshot/snapshot-3", late)
    context = made.table.context
    assert [report.plan.hide for report in withdraw_late(context) if report.plan] == [("snapshot/snapshot-3",)]
    assert context.snapshots.ids() == [2, 5, 6, 7, 8]


def test_the_cost_does_not_grow_with_tags() -> None:
    """Bytes read by an expiry with many tags are at most 1.2 times those with none, and no request is made per tag."""
    costs = []
    tag_count = 300
    for tagged in (0, tag_count):
        made = committed_world(6)
        for number in range(tagged):
            made.table.create_tag(f"daily-{number:04}", snapshot_id=2)
        for _ in range(60):
            made.commit()
        made.clock.advance(3600.0)
        made.table.context.tags.index()
        made.table.expire(retain_max=60)
        made.table.context.manifests._cache = BoundedCache(1 << 28)
        with made.store.count() as counts:
            made.table.expire(retain_max=20)
        costs.append(counts)
    none, many = costs
    print(
        f"\nbytes read: {none.bytes_read} without tags, {many.bytes_read} with {tag_count}; GETs {none.get}, {many.get}"
    )
    assert many.bytes_read <= 1.2 * none.bytes_read
    assert many.get <= none.get + 1
    assert many.total <= none.total + 3


def bytes_of(folder: Path) -> bytes:
    """Everything that the objects of a folder say: their bytes, with zstd decompressed and rows of Parquet as text."""
    said = b""
    for path in (path for path in folder.rglob("*") if path.is_file()):
        said += (whole := path.read_bytes())
        if path.suffix == ".parquet":
            said += repr(pq.read_table(path).to_pylist()).encode()
            continue
        place = -1
        while (place := whole.find(b"\x28\xb5\x2f\xfd", place + 1)) >= 0:
            said += zstandard.ZstdDecompressor().decompressobj().decompress(whole[place:])
    return said


@pytest.mark.parametrize(
    "how",
    [
        {"primary_keys": "id"},
        {"primary_keys": "id", "options": {"deletion-vectors.enabled": "true"}},
        {"primary_keys": "id", "options": {"changelog-producer": "input"}},
        {"options": {"deletion-vectors.enabled": "true"}},
        {"partition_keys": "part"},
    ],
    ids=["key", "key-marks", "changelog", "marks", "partitions"],
)
def test_a_deleted_value_is_gone_after_the_steps_of_the_guide(tmp_path: Path, how: dict[str, Any]) -> None:
    """From data files and, as a bound of a column, from manifests: `delete`, compact, fold the manifests, expire."""
    columns = pa.schema([("id", pa.int64()), ("email", pa.string()), ("part", pa.int64())])
    table = lakebed.open(tmp_path).create_table("people", columns, **how)
    for first in (0, 10, 20):
        rows = {"id": [first, first + 1], "email": [f"ann-{first}@x", "bob@x"], "part": [first, first]}
        table.write(pa.table(rows))
    table.create_tag("monday")
    table.delete("email >= 'ann' AND email < 'b'")
    assert b"ann-" in bytes_of(tmp_path)
    table.compact(full=True)
    table.set_options({"manifest.full-compaction-threshold-size": "1 b"})
    table.write(pa.table({"id": [30], "email": ["cy@x"], "part": [30]}))
    table.remove_options(["manifest.full-compaction-threshold-size"])
    table.delete_tag("monday")
    table.expire(retain_max=1, retain_min=1)
    table.compact(full=True)
    assert sorted(table.read(columns=["email"])["email"].to_pylist()) == ["bob@x", "bob@x", "bob@x", "cy@x"]
    assert b"bob@x" in (left := bytes_of(tmp_path))
    assert b"ann-" not in left
