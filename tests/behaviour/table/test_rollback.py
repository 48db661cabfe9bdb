"""Rolling back, with and without history."""

from __future__ import annotations

import re
from typing import Any

import pytest

from lakebed.errors import Conflict, InvalidRequest, NotFound
from lakebed.table.codec.manifest import ADD, DELETE, IDENTITY
from lakebed.table.rows.rows import commit_changes
from lakebed.table.versions.rollback import ROLLED_BACK_TO
from worlds.table.world import committed_world


def test_rollback_to_a_snapshot() -> None:
    """The target is the newest again under a new id; later snapshots, tags and files are gone; earlier ones stay."""
    made = committed_world(6, seed=4)
    made.table.create_tag("early", snapshot_id=2)
    made.table.create_tag("late", snapshot_id=5)
    files = made.main.snapshots[3]
    snapshot = made.table.rollback_to(3)
    assert snapshot.id == 7
    assert snapshot.properties[ROLLED_BACK_TO] == "3"
    made.main.snapshots = {item: made.main.snapshots[item] for item in (1, 2, 3)} | {7: files}
    made.main.tags = {"early": (2, made.main.snapshots[2], None)}
    made.main.last_id = 7
    made.check(collected=True)
    made.check_versions()
    assert snapshot.total_record_count == made.table.context.snapshots.snapshot(3).total_record_count


def test_ids_are_never_used_again() -> None:
    """After a rollback the next commit takes a fresh id, in this process and in another."""
    made = committed_world(6, seed=4)
    made.table.rollback_to(2)
    other = type(made.table).open(made.store, name="world", environment=made.environment)
    made.main.last_id = 7
    made.main.snapshots = {item: made.main.snapshots[item] for item in (1, 2)} | {7: made.main.snapshots[2]}
    made._commit_to(other, made.main)
    assert other.context.snapshots.ids() == [1, 2, 7, 8]


def test_rollback_to_a_tag_whose_snapshot_expired() -> None:
    """An expired snapshot that a tag holds can be gone back to."""
    made = committed_world(6, seed=4)
    made.table.create_tag("monthly", snapshot_id=2)
    files = made.main.snapshots[2]
    made.table.expire(retain_max=2)
    assert made.table.rollback_to("monthly").id == 7
    made.main.snapshots, made.main.last_id = {7: files}, 7
    made.main.tags = {"monthly": (2, files, None)}
    made.check(collected=True)
    made.check_versions()


def test_rollback_to_a_time() -> None:
    """A timestamp means the newest snapshot at or before it."""
    made = committed_world(6, seed=4)
    time_ms = made.table.context.snapshots.snapshot(4).time_ms
    assert made.table.rollback_to(timestamp_ms=time_ms).properties[ROLLED_BACK_TO] == "4"


def test_rollback_as_latest_keeps_history() -> None:
    """Every version stays readable, and the newest equals the target."""
    made = committed_world(6, seed=4)
    snapshot = made.table.rollback_to_as_latest(2)
    made.main.publish(made.main.snapshots[2])
    assert snapshot.id == 7
    made.check(collected=True)
    made.check_versions()


def test_no_file_stands_in_manifests_both_deleted_and_added_again() -> None:
    """Clients that read manifests as sets, in any order, see the target's files too."""
    made = committed_world(6, seed=4)
    snapshot = made.table.rollback_to_as_latest(2)
    entries = made.table.context.manifests.concat_entries(made.table.context.manifests.all_metas(snapshot))
    rows = list(zip(*(entries[name].to_pylist() for name in (*IDENTITY, "kind")), strict=True))
    added = [row[:-1] for row in rows if row[-1] == ADD]
    deleted = {row[:-1] for row in rows if row[-1] == DELETE}
    assert len(added) == len(set(added)), "a file is added twice"
    live = {row[3] for row in added if row not in deleted}
    assert live == {path.rpartition("/")[2] for path in made.main.snapshots[2] if path.endswith(".parquet")}


def test_below_a_branch_it_is_refused() -> None:
    """A rollback that would remove a branch's origin is refused, in one sentence, and changes nothing."""
    made = committed_world(6, seed=4)
    made.table.create_branch("experiment")
    commit_changes(made.table.context, [])
    with pytest.raises(InvalidRequest, match="experiment"):
        made.table.rollback_to(3)
    with pytest.raises(InvalidRequest, match="experiment"):
        made.table.plan_rollback(3)
    with pytest.raises(InvalidRequest, match="experiment"):
        made.table.rollback_to(3, dry_run=True)
    assert made.table.rollback_to_as_latest(3, dry_run=True).id == 3
    assert made.table.rollback_to(6).id == 8
    assert made.table.rollback_to_as_latest(3).id == 9


def test_the_newest_is_already_the_target() -> None:
    """Going back to the newest version changes nothing."""
    made = committed_world(6, seed=4)
    assert made.table.rollback_to(6).id == 6
    assert made.table.rollback_to_as_latest(6).id == 6
    made.check(collected=True)


def test_a_rollback_only_from_a_version(bench: Any) -> None:
    """A rollback that names the newest snapshot is refused when another one is the newest."""
    for name in ("a", "b", "c"):
        bench.commit(name)
    for only_from in (2, 4):
        with pytest.raises(Conflict) as caught:
            bench.table.rollback_to(1, only_from=only_from)
        assert (caught.value.kind, caught.value.facts) == ("moved_on", {"newest": 3, "only_from": only_from})
        assert "the newest is now 3: nothing was changed" in str(caught.value)
    assert bench.live() == ["a", "b", "c"]
    bench.table.rollback_to(1, only_from=3)
    assert bench.live() == ["a"]


@pytest.mark.parametrize("keeps_history", [False, True])
def test_what_was_rolled_back_is_not_taken_for_committed(bench: Any, keeps_history: bool) -> None:
    """A load that is repeated by its user and identifier is there again; what the target has is known as committed."""
    loads = [("a", 1), ("b", 2), ("c", 3)]
    made = [bench.commit(name, commit_user="load", commit_identifier=number) for name, number in loads]
    bench.commit("other", commit_user="stream", commit_identifier=7)
    (bench.table.rollback_to_as_latest if keeps_history else bench.table.rollback_to)(2)
    assert bench.commit("again", commit_user="load", commit_identifier=2).id == made[1].id
    again = [bench.commit("c2", commit_user="load", commit_identifier=3)]
    assert bench.live() == ["a", "b", "c2"]
    again.append(bench.commit("other2", commit_user="stream", commit_identifier=7))
    assert bench.live() == ["a", "b", "c2", "other2"]
    assert [snapshot.id for snapshot in again] == [6, 7]
    for number in (1, 2, 3):
        bench.commit("once more", commit_user="load", commit_identifier=number)
    assert bench.live(bench.reopen()) == ["a", "b", "c2", "other2"]


def test_what_a_tag_has_is_known_as_committed_after_a_rollback_to_it(bench: Any) -> None:
    """Also where its snapshot has expired."""
    for name, number in (("a", 1), ("b", 2), ("c", 3)):
        bench.commit(name, commit_user="load", commit_identifier=number)
        if number == 2:
            bench.table.create_tag("good")
    bench.hide(1, 2)
    bench.table.rollback_to("good")
    bench.commit("again", commit_user="load", commit_identifier=2)
    assert bench.live() == ["a", "b"]
    bench.commit("c2", commit_user="load", commit_identifier=3)
    assert bench.live() == ["a", "b", "c2"]


def test_missing_targets() -> None:
    """A missing version is named, and no version at all is refused."""
    made = committed_world(6, seed=4)
    with pytest.raises(NotFound, match="99"):
        made.table.rollback_to(99)
    with pytest.raises(InvalidRequest):
        made.table.rollback_to()
    made.check(collected=True)


def test_the_plan_names_what_the_rollback_then_deletes() -> None:
    """`plan_rollback` says what goes, and deletes nothing."""
    made = committed_world(6, seed=4)
    made.table.create_tag("late", snapshot_id=5)
    before = made.stored()
    plan = made.table.plan_rollback(3)
    assert made.stored() == before
    made.table.rollback_to(3)
    lives = [re.search(r"version in \[([0-9]+), ([0-9]+)\) is left", doomed.why) for doomed in plan.doomed]
    assert all(life is not None and 3 < int(life[1]) < int(life[2]) <= 8 for life in lives)
    data = {doomed.path for doomed in plan.doomed if "/bucket-" in doomed.path}
    assert data == {path for path in before - made.stored() if "/bucket-" in path}
    assert {f"snapshot/snapshot-{item}" for item in (4, 5, 6)} | {"tag/tag-late"} == set(plan.hide)


def test_a_plan_of_a_rollback_to_the_oldest_version_names_what_it_then_deletes() -> None:
    """`plan_rollback` of the first version, before which there is none."""
    made = committed_world(6, seed=4)
    before = made.stored()
    plan = made.table.plan_rollback(1)
    made.table.rollback_to(1)
    data = {doomed.path for doomed in plan.doomed if "/bucket-" in doomed.path}
    assert data == {path for path in before - made.stored() if "/bucket-" in path}
    assert {f"snapshot/snapshot-{item}" for item in range(2, 7)} == set(plan.hide)


def test_a_plan_of_a_rollback_to_a_tag_whose_snapshot_expired_names_what_it_then_deletes() -> None:
    """No snapshot at or before the target is left; what goes is what only the later ones had."""
    made = committed_world(6, seed=4)
    made.table.create_tag("monthly", snapshot_id=2)
    made.table.expire(retain_max=2)
    before = made.stored()
    plan = made.table.plan_rollback("monthly")
    made.table.rollback_to("monthly")
    data = {doomed.path for doomed in plan.doomed if "/bucket-" in doomed.path}
    assert data == {path for path in before - made.stored() if "/bucket-" in path}
    assert {"snapshot/snapshot-5", "snapshot/snapshot-6"} == set(plan.hide)


def test_expiry_across_the_gap_counts_what_it_deletes() -> None:
    """Files that the rollback deleted are not candidates of a later expiry: its report counts only what was there."""
    made = committed_world(6, seed=4)
    made.table.rollback_to(3)
    made.main.snapshots = {item: made.main.snapshots[item] for item in (1, 2, 3)} | {7: made.main.snapshots[3]}
    made.main.last_id = 7
    made.commit()
    before = made.stored()
    report = made.table.expire(retain_max=1, older_than_ms=0)
    made.main.snapshots = {8: made.main.snapshots[8]}
    made.check(collected=True)
    assert report.deleted_count == len(before - made.stored())


def test_expiry_after_a_rollback_keeps_restored_files() -> None:
    """A file that died, came back by a rollback and is live is kept by every later expiry."""
    made = committed_world(8, seed=4)
    made.table.rollback_to_as_latest(2)
    made.main.publish(made.main.snapshots[2])
    for kept in (6, 4, 2, 1):
        made.commit()
        made.table.expire(retain_max=kept, older_than_ms=0)
        for snapshot_id in sorted(made.main.snapshots)[:-kept]:
            del made.main.snapshots[snapshot_id]
        made.check()
    made.check_versions()
