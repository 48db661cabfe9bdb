"""The verbs that delete, on the stores that people have: a local folder and S3."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lakebed.table.table import Table
from lakebed.testing import Call, Crashed, Fault, FaultyStore
from worlds.table.world import TableWorld, committed_world

pytestmark = pytest.mark.parametrize("opened", ["local", "s3"], indirect=True)

STEP_COUNT = 14


@pytest.mark.parametrize("seed", [pytest.param(1, marks=pytest.mark.long), 21])
def test_histories(opened: Callable[..., Any], seed: int) -> None:
    """Random histories with rollbacks, branches and other clients delete exactly what nothing needs."""
    world = TableWorld(seed, store=opened(), foreign=True, rollbacks=True, branches=True, extras=True)
    world.run(step_count=STEP_COUNT)


def made(opened: Callable[..., Any]) -> TableWorld:
    """Six snapshots, of which two expired; tags on the second and the fourth."""
    world = committed_world(6, seed=4, store=opened())
    for name, snapshot_id in (("a", 2), ("b", 4)):
        world.hold(name, snapshot_id)
    world.table.expire(retain_max=4)
    del world.main.snapshots[1], world.main.snapshots[2]
    world.check(collected=True)
    return world


def test_each_verb(opened: Callable[..., Any]) -> None:
    """Expiry, deletion of tags, rollback and orphan cleaning each leave exactly what is needed."""
    world = made(opened)
    world.table.expire(retain_max=3)
    del world.main.snapshots[3]
    world.check(collected=True)
    assert world.table.delete_tag("a").deleted_count > 0
    del world.main.tags["a"]
    world.check(collected=True)
    world.table.rollback_to("tag.b")
    world.main.snapshots = {4: world.main.snapshots[4]}
    world.main.publish(world.main.head)
    world.check(collected=True)
    world.store.put("pt=a/bucket-0/data-stray.parquet", b"x")
    assert world.table.collect(grace_ms=0).deleted_count == 1
    assert world.unneeded() == set()
    world.check_versions()


VERBS: dict[str, Callable[[Table], object]] = {
    "expire": lambda table: table.expire(retain_max=2),
    "delete_tag": lambda table: table.delete_tag("a", "b"),
    "rollback_to": lambda table: table.rollback_to(3),
}


class CrashAt:
    """Lets everything be, but crashes after one change of the store, counted from 0 and from when it is armed."""

    def __init__(self, change: int) -> None:
        self.left = change
        self.is_armed = False

    def __call__(self, index: int, call: Call) -> Fault | None:
        """What happens to a call."""
        if not (self.is_armed and call.changes):
            return None
        self.left -= 1
        return Fault.CRASH_AFTER if self.left == -1 else None


# Every change is struck in `test_crash_points`; here each store leaves the same.
@pytest.mark.parametrize("change", [4, *(pytest.param(change, marks=pytest.mark.long) for change in (0, 1, 2))])
@pytest.mark.parametrize("verb", VERBS)
def test_a_crash_is_recovered_from(opened: Callable[..., Any], verb: str, change: int) -> None:
    """After a crash at any call every version is whole, and the next verbs of another process finish the work."""
    world = made(opened)
    crash = CrashAt(change)
    faulty = FaultyStore(world.store, faults=crash)
    table = Table.open(faulty, name="crashing", environment=world.environment)
    crash.is_armed = True
    with pytest.raises(Crashed):
        VERBS[verb](table)
    after = Table.open(world.store, name="after", environment=world.environment)
    for snapshot in after.snapshots():
        assert world._paths(after, snapshot) <= world.stored()
    for tag in after.tags():
        assert world._paths(after, tag.snapshot) == world.main.tags[tag.name][1]
    after.expire(retain_max=1, retain_min=1, older_than_ms=0)
    after.delete_tag("a", "b", if_exists=True)
    after.collect(grace_ms=0)
    newest = after.latest()
    assert newest is not None
    files = frozenset(world._paths(after, newest))
    assert files in world.main.snapshots.values()
    world.main.snapshots, world.main.tags = {newest.id: files}, {}
    world.check()
    assert world.unneeded() == set()
    assert not list(world.store.list("lakebed/reclaim")), "unfinished work is left"
