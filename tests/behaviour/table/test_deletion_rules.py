"""Rules of deletion, each by the smallest history that shows it: what another process does at the worst moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec
import pytest

from lakebed.errors import Conflict, Unavailable
from lakebed.objects.port import ObjectStore
from lakebed.table.branch.manifest_reader import PROCESS_CACHE
from lakebed.table.collect.live_versions import expiry_boundary, read_live_versions
from lakebed.table.rows.rows import commit_changes
from lakebed.table.table import Table
from lakebed.testing import Call, Crashed, Fault, FaultyStore
from lakebed.testing.between import Between
from lakebed.testing.wrapper import StoreWrapper
from worlds.meanwhile import Meanwhile
from worlds.table.world import TableWorld, committed_world

R = TypeVar("R")


def seen_by(made: TableWorld, store: ObjectStore) -> Table:
    """The table as another process sees it through a store."""
    PROCESS_CACHE.clear()
    return Table.open(store, name="world", environment=made.environment)


def crash(made: TableWorld, verb: Callable[[Table], object], *, after: Callable[[Call], bool]) -> None:
    """Let a process crash right after the first call of a kind."""
    store = FaultyStore(made.store, faults=lambda _, call: Fault.CRASH_AFTER if after(call) else None)
    with pytest.raises(Crashed):
        verb(seen_by(made, store))


def is_change(prefix: str) -> Callable[[Call], bool]:
    """Puts of paths that begin so."""
    return lambda call: call.kind == "put" and call.path.startswith(prefix)


def expire_all(table: Table) -> object:
    """Keep the newest snapshot only."""
    return table.expire(retain_max=1, retain_min=1, older_than_ms=0)


def check(made: TableWorld) -> None:
    """Nothing that the model needs is missing."""
    lost = made.needed() - made.stored()
    assert not lost, f"lost {sorted(lost)[:3]}"


def test_a_tag_is_not_made_from_a_tag_whose_deletion_is_under_way() -> None:
    """Files of a version that a deletion has written down may be going: a new tag from its last tag is refused."""
    made = committed_world(6)
    made.table.create_tag("old", snapshot_id=2)
    expire_all(made.table)
    crash(made, lambda table: table.delete_tag("old"), after=is_change("lakebed/reclaim/delete-tag"))
    with pytest.raises(Conflict, match="expired while the tag was created"):
        made.table.create_tag("new", tag="old")
    assert made.table.context.tags.names() == ["old"]


def test_a_tag_that_was_pointed_elsewhere_is_not_deleted_by_a_recovered_deletion() -> None:
    """A deletion that was written down hides only the tag file that it read, not one put under its name since."""
    made = committed_world(6)
    made.table.create_tag("moved", snapshot_id=2)
    crash(made, lambda table: table.delete_tag("moved"), after=is_change("lakebed/reclaim/delete-tag"))
    body = bytes(made.store.get("tag/tag-moved"))
    made.store.put("tag/tag-moved", body.replace(b"lakebed.tag-id", b"lakebed.tag-is"))  # another tag of that name
    made.main.tags["moved"] = (2, made.main.snapshots[2], None)
    made.table.expire(retain_max=5, retain_min=1, older_than_ms=0)
    del made.main.snapshots[1]
    assert made.table.context.tags.names() == ["moved"]
    check(made)


def test_holders_are_collected_until_two_collections_are_equal() -> None:
    """A version that passes from one tag to another while the tags are listed is seen all the same."""
    made = committed_world(6)
    made.table.create_tag("z", snapshot_id=2)
    expire_all(made.table)

    def hand_on() -> None:
        made.store.put("tag/tag-a", made.store.get("tag/tag-z"))
        made.store.delete(["tag/tag-z"])

    store = Between(made.store, kind="list", prefix="tag", happens=hand_on)
    live_versions = read_live_versions(seen_by(made, store).context)
    assert store.happened
    assert [tag.name for tag in live_versions.tags] == ["a"]


def test_a_recovered_expiry_honours_consumers() -> None:
    """An expiry that another process began hides nothing that a consumer claimed since."""
    made = committed_world(6)
    crash(made, expire_all, after=is_change("lakebed/reclaim/expire"))
    made.store.put("consumer/consumer-job", msgspec.json.encode({"nextSnapshot": 3}))
    expire_all(made.table)
    assert made.table.context.snapshots.ids() == [3, 4, 5, 6]
    for snapshot_id in (1, 2):
        del made.main.snapshots[snapshot_id]
    check(made)


def test_a_replaced_tag_is_pinned_until_it_is_written() -> None:
    """The version that a tag is pointed at expires while the tag is written: its files stay for the tag."""
    made = committed_world(6)
    made.table.create_tag("moved", snapshot_id=1)
    store = Between(made.store, kind="put", prefix="tag/tag-moved", happens=lambda: expire_all(made.table))
    seen_by(made, store).replace_tag("moved", snapshot_id=3)
    assert store.happened
    made.main.tags["moved"] = (3, made.main.snapshots[3], None)
    made.main.snapshots = {6: made.main.snapshots[6]}
    check(made)
    made.check_versions()


def test_a_branch_keeps_its_pin_until_it_is_cleared() -> None:
    """While a branch can be read its origin is pinned: a deletion cut short leaves it readable or gone."""
    made = committed_world(6)
    made.table.create_branch("b", snapshot_id=2)
    snapshots = made.main.snapshots[2]

    def refuse(_: int, call: Call) -> Fault | None:
        return Fault.ERROR_BEFORE if call.kind == "delete" and "branch/branch-b" in call.path else None

    with pytest.raises(Unavailable):
        seen_by(made, FaultyStore(made.store, faults=refuse)).delete_branch("b")
    expire_all(made.table)
    assert snapshots <= made.stored()
    assert [(branch.name, branch.fork_snapshot_id) for branch in made.table.branches()] == [("b", 2)]


def test_a_restoring_snapshot_that_went_since_keeps_what_it_restored() -> None:
    """A rollback after the walk of a deletion brought files back, and its own snapshot has expired: they stay."""
    made = committed_world(6)
    made.table.create_tag("early", snapshot_id=1)
    crash(made, expire_all, after=is_change("lakebed/reclaim/expire"))
    path = next(meta.path for meta in made.store.list("lakebed/reclaim"))
    body = bytes(made.store.get(path))
    made.table.rollback_to_as_latest("tag.early")
    files = made.main.snapshots[1]
    for _ in range(2):
        added = made._change(made.table, add_count=1, delete_count=0)
        commit_changes(made.table.context, added[0])
        files = files | added[1]
    made.table.delete_tag("early")
    expire_all(made.table)
    made.store.put(path, body)  # the deletion of a process that wrote it down long ago
    made.table.delete_tag("none", if_exists=True)
    assert files <= made.stored()


def test_the_boundary_of_expired_snapshots_is_noted_before_they_go() -> None:
    """A retry that puts an expired snapshot back finds it noted as expired, and the next verb withdraws it."""
    made = committed_world(6)
    body = bytes(made.store.get("snapshot/snapshot-2"))
    made.table.expire(retain_max=3, retain_min=1, older_than_ms=0)
    assert expiry_boundary(made.table.context) == 4
    made.store.put("snapshot/snapshot-2", body)
    report = made.table.delete_tag("none", if_exists=True)
    assert report.hidden_count == 1
    assert made.table.context.snapshots.ids() == [4, 5, 6]


def refuse_data(_: int, call: Call) -> Fault | None:
    """A store that deletes no data file."""
    return Fault.ERROR_BEFORE if call.kind == "delete" and "/bucket-" in call.path else None


def test_a_rollback_that_was_cut_short_is_finished_by_the_files_that_it_wrote_down() -> None:
    """Its snapshots are hidden, so only what was written down names their files; it is not computed anew."""
    made = committed_world(6)
    crash(made, lambda table: table.rollback_to(3), after=lambda call: call.kind == "put" and ".files" in call.path)
    report = seen_by(made, FaultyStore(made.store, faults=refuse_data)).delete_tag("none", if_exists=True)
    assert report.warnings
    assert made.table.context.snapshots.ids() == [1, 2, 3, 7]
    made.main.snapshots = {item: made.main.snapshots[item] for item in (1, 2, 3)} | {7: made.main.snapshots[3]}
    assert made.unneeded()
    made.table.delete_tag("none", if_exists=True)
    made.check(collected=True)


def test_a_deletion_that_could_not_delete_everything_is_finished_later() -> None:
    """Files that a store refused to delete go by the next verb; nothing is left to orphan cleaning."""
    made = committed_world(6)
    report = expire_all(seen_by(made, FaultyStore(made.store, faults=refuse_data)))
    assert report.warnings  # type: ignore[attr-defined]
    made.main.snapshots = {6: made.main.snapshots[6]}
    assert made.unneeded()
    made.table.delete_tag("none", if_exists=True)
    made.check(collected=True)


class FullDisk(StoreWrapper):
    """Has no room for the plan of a deletion, the first few times, or those behind some that fit."""

    def __init__(self, inner: ObjectStore, refusals: int, *, room_for: int = 0, kind: str = "disk_full") -> None:
        super().__init__(inner)
        self.refusals, self.room_for, self.kind = refusals, room_for, kind

    def intercept(self, call: Call, perform: Callable[[], R]) -> R:
        """Refuse the plan, or perform."""
        if self.refusals and is_change("lakebed/reclaim/")(call):
            if not self.room_for:
                self.refusals -= 1
                raise Unavailable("no space left", kind=self.kind, path=call.path)
            self.room_for -= 1
        return perform()


@pytest.mark.parametrize(("refusals", "expired_count"), [(0, 7), (1, 4), (2, 2), (3, 1)])
def test_an_expiry_whose_plan_has_no_room_goes_in_smaller_steps(refusals: int, expired_count: int) -> None:
    """Each time the plan does not fit, half as many snapshots expire; the next expiry takes the rest."""
    made = committed_world(8)
    report = seen_by(made, FullDisk(made.store, refusals)).expire(retain_max=1, retain_min=1, older_than_ms=0)
    assert report.hidden_count == expired_count
    for snapshot_id in range(1, expired_count + 1):
        del made.main.snapshots[snapshot_id]
    made.check(collected=True)
    expire_all(made.table)
    made.main.snapshots = {8: made.main.snapshots[8]}
    made.check(collected=True)


@pytest.mark.parametrize("kind", ["disk_full", "unavailable"])
def test_a_deletion_of_a_tag_needs_room_for_its_first_plan_only(kind: str) -> None:
    """The files that the tag alone had are deleted without being written down; any other failure ends the verb.

    What ends so is finished by the next verb.
    """
    made = committed_world(6)
    made.table.create_tag("old", snapshot_id=2)
    expire_all(made.table)
    made.main.snapshots = {6: made.main.snapshots[6]}
    store = FullDisk(made.store, 1, room_for=1, kind=kind)
    if kind == "disk_full":
        seen_by(made, store).delete_tag("old")
    else:
        with pytest.raises(Unavailable, match="no space left"):
            seen_by(made, store).delete_tag("old")
        made.table.delete_tag("none", if_exists=True)
    assert not store.refusals
    made.check(collected=True)


def test_an_expiry_without_room_for_any_plan_says_so() -> None:
    """It ends with the store's error, has hidden nothing, and leaves nothing behind."""
    made = committed_world(8)
    before = made.stored()
    with pytest.raises(Unavailable, match="no space left"):
        expire_all(seen_by(made, FullDisk(made.store, 4)))
    assert made.stored() == before
    assert not list(made.store.list("lakebed/reclaim"))
    made.check_versions()


@pytest.mark.parametrize("others", [(), ("a",), ("z",), ("a", "b", "y", "z")])
def test_a_tag_that_is_put_while_its_version_is_deleted_is_withdrawn(others: tuple[str, ...]) -> None:
    """The tag of a creator that died before its check goes once the files have gone, whichever tags are there too."""
    made = committed_world(6)
    for name in others:
        made.table.create_tag(name, snapshot_id=6)
    made.table.create_tag("model", snapshot_id=2)
    body = bytes(made.store.get("tag/tag-model"))
    made.table.delete_tag("model")
    store = Between(made.store, kind="delete", prefix="pt=", happens=lambda: made.store.put("tag/tag-late", body))
    expire_all(seen_by(made, store))
    assert store.happened
    assert made.table.context.tags.all_names() == sorted(others)


class ExpiredBeforeItIsRead(StoreWrapper):
    """Snapshot 4 goes right before each time that it is read."""

    def intercept(self, call: Call, perform: Callable[[], R]) -> R:
        """Delete it, as another collector does, and look."""
        if call.kind == "get" and call.path == "snapshot/snapshot-4":
            self.inner.delete([call.path])
        return perform()


def test_snapshots_that_expire_while_a_rollback_removes_them_hold_up_none_of_the_others() -> None:
    """The files of the later ones go with the rollback, which looks again at what is there."""
    made = committed_world(6)
    gone = made.main.snapshots[4]
    seen_by(made, ExpiredBeforeItIsRead(made.store)).rollback_to(3)
    assert made.table.context.snapshots.ids() == [1, 2, 3, 7]
    made.main.snapshots = {item: made.main.snapshots[item] for item in (1, 2, 3)} | {7: made.main.snapshots[3]}
    check(made)
    assert {path for path in made.unneeded() if "/bucket-" in path} <= gone


def test_an_unreadable_snapshot_ends_the_walk() -> None:
    """A snapshot that cannot be read stays, with all later ones, and the report names it."""
    made = committed_world(6)
    body = bytes(made.store.get("snapshot/snapshot-3"))
    made.store.put("snapshot/snapshot-3", b"{")
    report = made.table.expire(retain_max=1, retain_min=1, older_than_ms=0)
    assert any("snapshot-3" in warning for warning in report.warnings)
    assert made.table.context.snapshots.ids() == [2, 3, 4, 5, 6]
    made.store.put("snapshot/snapshot-3", body)
    del made.main.snapshots[1]
    check(made)
    made.check_versions()


def test_orphan_cleaning_lists_before_it_asks_what_is_used() -> None:
    """A file that a commit brings while orphans are looked for is not taken for one."""
    made = committed_world(6)
    other = seen_by(made, made.store)
    store = Meanwhile(
        made.store,
        lambda: made._commit_to(other, made.main),
        counts=lambda call: call.kind == "list" and not call.path,
    )
    seen_by(made, store).collect(grace_ms=0)
    assert store.happened is not None
    check(made)
    made.check_versions()
