"""Whether a branch still has the snapshots that lakebed knew: other clients roll back and use snapshot ids again.

Owns: the rules that decide which snapshots below lakebed's marks are live, and whether a deletion that was planned
earlier still fits. A rollback of the format's Java implementation to snapshot s sets ``LATEST`` to s and deletes every
snapshot and tag above s; the next commit creates s + 1 again. It ignores ``lakebed/boundary`` and
``lakebed/expired-below``, so live ids may lie below both.

Invariants:
- The newest snapshot is never hidden, whatever lakebed's marks say. The snapshot that ``LATEST`` names does not expire,
  and no newer one.
- Below the marks only a file that lakebed wrote itself is ever withdrawn, through a plan that the report contains.
- A deletion that was planned before such a rollback hides no snapshot, and its files are compared with all versions.
"""

from __future__ import annotations

from collections.abc import Mapping

from lakebed.errors import AlreadyExists, Corruption, NotFound, UnsupportedFormat
from lakebed.objects.port import has_object
from lakebed.reclaim.model import CollectionPlan, CollectionReport
from lakebed.reclaim.sweep import Sweeper
from lakebed.table.branch.context import TableBranch
from lakebed.table.branch.inherited import follows, is_ours, rollback_target
from lakebed.table.branch.unfinished import Deletion
from lakebed.table.collect.live_versions import consumer_limit, expiry_boundary
from lakebed.table.model.model import Snapshot


def _newest_hinted(branch: TableBranch) -> int | None:
    """The id that ``LATEST`` names: another client may be about to make it the newest. None when there is no hint.

    Cost: 1 GET; none in a store without hints.
    """
    if branch.store.is_versioned:
        return None
    try:
        text = bytes(branch.store.get(branch.layout.latest_hint)).strip()
    except NotFound:
        return None
    return int(text) if len(text) <= 20 and text.isdigit() else None


def limit_by_hint(branch: TableBranch) -> int | None:
    """The id from which no snapshot may expire, because ``LATEST`` names it; None when it names no live snapshot.

    A hint that is out of date names an expired snapshot, to which no client can roll back.
    Cost: 1 GET of the hint (none in a store without hints), and 1 HEAD.
    """
    newest = _newest_hinted(branch)
    return newest if newest is not None and branch.snapshots.exists(newest) else None


def expiry_limit(branch: TableBranch) -> int | None:
    """The id from which no snapshot may expire: a consumer reads it next, or ``LATEST`` names it; None: no limit.

    Raises `Corruption`. Cost: 1 LIST + 1 GET a consumer, and that of `limit_by_hint`.
    """
    limits = (consumer_limit(branch), limit_by_hint(branch))
    return min((limit for limit in limits if limit is not None), default=None)


def fits(branch: TableBranch, deletion: Deletion) -> bool:
    """Whether the snapshot that ends a deletion's walk is still the one that the plan was made with.

    A rollback below it would have deleted it. So if it is unchanged, all older snapshots of the walk are too. Cost: 1
    GET.
    """
    survivor = _find(branch, deletion.walk_end)
    return survivor is not None and survivor.base_manifest_list == deletion.survivor


def restore_newest(branch: TableBranch, hidden: Mapping[int, bytes]) -> int | None:
    """Put back the snapshot to which another client rolled back while the snapshot was being hidden.

    Args:
        hidden: the files of the snapshots just hidden, by id.

    Returns:
        Its id; None when nothing had to be put back.
    Cost: 1 GET, and 1 HEAD and 1 PUT when there was such a rollback.
    """
    newest = _newest_hinted(branch)
    if newest is None or newest not in hidden or branch.snapshots.exists(newest):
        return None
    try:
        branch.store.put(branch.layout.snapshot(newest), hidden[newest], create_only=True)
    except AlreadyExists:
        return None
    return newest


def withdraw_late(branch: TableBranch) -> list[CollectionReport]:
    """Withdraw snapshots of lakebed that were put after their id had passed, through a plan.

    Either their writer died before its check, or a retry of a successful put arrived after the snapshot expired.

    Returns:
        One report when there were any.
    Cost: 2 LISTs + 1 GET; 1 GET and 2 HEADs more for each snapshot below the marks. Such snapshots exist only after a
    late put or after another client's rollback.
    """
    boundary, expired = branch.snapshots.log.boundary(), expiry_boundary(branch)
    ids = branch.snapshots.ids()
    low = [snapshot_id for snapshot_id in ids[:-1] if snapshot_id < max(boundary, expired)]
    if not low:
        return []
    looked_at = ids[: len(low) + 1]  # the first above the marks states which snapshot it follows
    snapshots = {snapshot_id: _find(branch, snapshot_id) for snapshot_id in looked_at}
    reached = newest_once(snapshots)
    late = []
    for snapshot_id in low:
        snapshot = snapshots[snapshot_id]
        if snapshot is None or snapshot.uuid is None or not is_ours(snapshot):
            continue
        if branch.snapshots.log.has_other_winner(snapshot_id, snapshot.uuid):
            late.append(snapshot_id)
            continue
        # The boundary passed this id while no snapshot had it: the snapshot was put late, or another client brought it
        # back.
        is_spent = snapshot_id < expired or branch.snapshots.log.create_outcome(snapshot_id, snapshot.uuid) == "lost"
        lists = _count_lists(branch, snapshot)
        # A snapshot without both lists has expired, even where a late retry has put back an older note of what has
        # expired.
        if lists == 0 or (is_spent and not (snapshot_id in reached and lists == 2)):
            late.append(snapshot_id)
    if not late:
        return []
    note = f"snapshots {', '.join(map(str, late))} landed after their ids had passed, and were never acknowledged"
    plan = CollectionPlan(
        branch.name, tuple(branch.layout.snapshot(snapshot_id) for snapshot_id in late), (), notes=(note,)
    )
    return [Sweeper(branch.store).sweep(plan)]


def newest_once(snapshots: Mapping[int, Snapshot | None]) -> frozenset[int]:
    """The ids that were the newest version once, as a later one of these snapshots shows.

    A snapshot names the one that it was committed on and, after a rollback, its target; the next id of another client
    follows it. What an unreadable snapshot (None) names is unknown, so it counts as naming all before it.
    """
    reached: set[int] = set()
    for snapshot_id, snapshot in snapshots.items():
        if snapshot is None:
            reached.update(earlier for earlier in snapshots if earlier < snapshot_id)
            continue
        reached.add(follows(snapshot))
        target = rollback_target(snapshot)
        if target is not None:
            reached.add(target)
    return frozenset(reached)


def _count_lists(branch: TableBranch, snapshot: Snapshot) -> int:
    """How many of the two manifest lists of a snapshot exist. No other snapshot references them. Cost: 2 HEADs.

    They distinguish a snapshot that was put again after it expired from one that its expiry failed to hide: the
    snapshot above follows both.
    """
    names = (snapshot.base_manifest_list, snapshot.delta_manifest_list)
    return sum(has_object(branch.store, branch.layout.manifest(name)) for name in names)


def _find(branch: TableBranch, snapshot_id: int) -> Snapshot | None:
    """One snapshot; None also for an unreadable file, which the walk of an expiry reports."""
    try:
        return branch.snapshots.find(snapshot_id)
    except (Corruption, UnsupportedFormat):
        return None
