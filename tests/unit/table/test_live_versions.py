"""What holds the versions of a table: ids against a set, marks of rollbacks, and the note of what has expired."""

from __future__ import annotations

import random
import uuid

import numpy as np
import pyarrow as pa
import pytest

from lakebed.errors import NotFound
from lakebed.objects.open import open_store
from lakebed.runtime import Environment
from lakebed.table.branch.consumers import store_consumer
from lakebed.table.branch.context import TableBranch
from lakebed.table.branch.tag_index import TagEntry
from lakebed.table.collect.live_versions import (
    LiveVersions,
    consumer_limit,
    expiry_boundary,
    mark_restored,
    note_expired_below,
    read_live_versions,
)
from lakebed.table.table import Table
from lakebed.testing.clock import ManualClock


@pytest.fixture
def branch(clock: ManualClock) -> TableBranch:
    """Main of an empty table."""
    environment = Environment(clock=clock, rng=random.Random(1))
    store = open_store(f"memory://{uuid.uuid4()}", environment=environment)
    return Table.create(store, name="t", schema=pa.schema([("id", pa.int64())]), environment=environment).context


def held(snapshot_ids: list[int], tagged_ids: list[int]) -> LiveVersions:
    tags = tuple(TagEntry(snapshot_id, f"t{place}", None) for place, snapshot_id in enumerate(tagged_ids))
    return LiveVersions(np.array(snapshot_ids, np.int64), tags, np.array([], np.int64))


@pytest.mark.parametrize(
    ("snapshot_ids", "tagged_ids"), [([], []), ([3], []), ([], [2, 2]), ([2, 3, 6], [1, 3, 3, 5, 9]), ([7, 8], [1])]
)
def test_versions_are_a_set_of_ids(snapshot_ids: list[int], tagged_ids: list[int]) -> None:
    """A snapshot is live by its own file; a version is held by a snapshot or a tag, and counted once."""
    versions = held(snapshot_ids, tagged_ids)
    assert versions.ids.tolist() == sorted({*snapshot_ids, *tagged_ids})
    assert versions.ids.dtype == np.int64
    asked = range(11)
    assert [number for number in asked if versions.is_live(number)] == snapshot_ids
    assert [number for number in asked if versions.holds(number)] == sorted({*snapshot_ids, *tagged_ids})


def test_a_version_is_loaded_from_whatever_still_holds_it(branch: TableBranch) -> None:
    """Its snapshot, or else any tag that is of it by now; what nothing holds was deleted meanwhile."""
    table = Table.open(branch.store, name="t", environment=branch.environment)
    for number in range(3):
        table.append(pa.table({"id": [number]}))
    for name in ("a", "b"):
        table.create_tag(name, snapshot_id=2)
    versions = read_live_versions(table.context)
    assert versions.load(branch, 2).id == 2
    branch.store.delete(["snapshot/snapshot-2"])
    for gone in ("a", "b"):
        assert versions.load(branch, 2).id == 2
        branch.store.put(f"tag/tag-{gone}", branch.store.get("snapshot/snapshot-3"))
    for snapshot_id in (2, 9):
        with pytest.raises(NotFound, match=f"version {snapshot_id} was deleted") as missing:
            versions.load(branch, snapshot_id)
        assert missing.value.facts["snapshot"] == snapshot_id


def test_marks_of_rollbacks_are_read_in_order(branch: TableBranch) -> None:
    """Whatever else is in their folder."""
    for snapshot_id in (12, 3, 100):
        mark_restored(branch, snapshot_id)
    folder = "lakebed/restored"
    assert sorted(meta.path for meta in branch.store.list(folder)) == [
        f"{folder}/{number:020d}" for number in (3, 12, 100)
    ]
    for name in ("7", "1" * 21, "x" * 20, f"{5:020d}.tmp", f"{6:020d}/part"):
        branch.store.put(f"{folder}/{name}", b"")
    found = read_live_versions(branch).restored_ids.tolist()
    assert found[:3] == [3, 12, 100]
    assert len(found) == 3


def test_the_note_of_what_expired_only_rises(branch: TableBranch) -> None:
    """It is written when it is news, and one that is unreadable says nothing."""
    assert expiry_boundary(branch) == 0
    for below, noted, put_count in ((0, 0, 0), (1, 1, 1), (5, 5, 1), (5, 5, 0), (4, 5, 0), (6, 6, 1)):
        with branch.store.count() as requests:
            note_expired_below(branch, below)
        assert (expiry_boundary(branch), requests.put) == (noted, put_count)
    for body in (b"x", b"", b"-1", b"\xff", "٣".encode()):
        branch.store.put("lakebed/expired-below", body)
        assert expiry_boundary(branch) == 0


def test_the_slowest_consumer_is_the_limit(branch: TableBranch) -> None:
    """None without consumers."""
    assert consumer_limit(branch) is None
    for name, next_snapshot_id in (("a", 7), ("b", 3), ("c", 9)):
        store_consumer(branch.store, branch.layout, name, next_snapshot_id=next_snapshot_id)
    assert consumer_limit(branch) == 3
