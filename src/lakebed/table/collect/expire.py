"""Expire snapshots; delete, expire and replace tags.

Owns: which versions are deleted. `referenced_files` gathers the candidates, `reachability` judges them, `deletion`
deletes them.

Invariants:
- Every verb first finishes the deletions that a crash left (`recovery`).
- Every check that can refuse a verb runs before anything is written.
- An unreadable snapshot or manifest ends a walk before the version for which it might matter: that version stays.

Cost: expiring k snapshots reads their lists and those of the first that stays, and their delta manifests, whatever the
number and the size of tags; a few listings; 1 PUT, and 1 DELETE for each thousand files; by age also `ms_ahead`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypedDict

import numpy as np
from msgspec import structs

from lakebed.arguments import check_keywords
from lakebed.errors import InvalidRequest, NotFound, Unavailable
from lakebed.ids import new_uuid
from lakebed.objects.probe import store_time_ms
from lakebed.reclaim.model import CollectionPlan, CollectionReport
from lakebed.reclaim.sweep import Sweep, report_of
from lakebed.table.branch.branch_folder import with_fork_point
from lakebed.table.branch.candidates import Retention, plan_expiry
from lakebed.table.branch.context import TableBranch
from lakebed.table.branch.manifest_reader import Unreadable
from lakebed.table.branch.tags import Source, check_tag_name
from lakebed.table.branch.unfinished import Deletion, HiddenTag, store_deletion
from lakebed.table.collect.deletion import (
    ProgressCall,
    carry_out,
    forget,
    gather_released,
    hide_paths,
    merge_reports,
    open_for_deletion,
    plan_of,
    tag_now,
)
from lakebed.table.collect.lineage import expiry_limit
from lakebed.table.collect.live_versions import LiveVersions, read_live_versions
from lakebed.table.collect.reachability import judge
from lakebed.table.collect.recovery import recover
from lakebed.table.collect.referenced_files import ReferencedFiles
from lakebed.table.model.model import Snapshot, Tag
from lakebed.table.model.options import (
    SNAPSHOT_EXPIRE_LIMIT,
    SNAPSHOT_RETAINED_MAX,
    SNAPSHOT_RETAINED_MIN,
    SNAPSHOT_TIME_RETAINED,
    TAG_TIME_EXPIRE_ENABLED,
)
from lakebed.table.model.times import commit_time_ms, first_written_ms, is_future
from lakebed.texts import LONG_MAX

_AFTER_ALL_MS = LONG_MAX
"""Later than every snapshot: expiry by order alone."""


class ExpireRules(TypedDict, total=False):
    """Which snapshots may expire. A rule that is not given is the table's option."""

    retain_max: int | None
    """Newest snapshots that may stay whatever their age; default ``snapshot.num-retained.max``."""
    retain_min: int | None
    """Newest snapshots that always stay; default ``snapshot.num-retained.min``."""
    older_than_ms: int | None
    """Unix ms, UTC, exclusive; default now less ``snapshot.time-retained``.

    If this process's clock is ahead of the store's, the limit is earlier by the difference: a snapshot that is old by
    one clock only stays.
    """
    max_deletes: int | None
    """Most snapshots to expire in one run; default ``snapshot.expire.limit``."""
    by_order: bool
    """Ignore times: all but the newest `retain_min` snapshots expire.

    For a table whose commit times are wrong because a writer's clock was wrong.
    """


def retention_of(branch: TableBranch, rules: ExpireRules) -> Retention:
    """The rules of the caller, completed by the table's options.

    Raises `InvalidRequest`: a number below 1, `retain_min` above `retain_max`, or a time with `by_order`.
    """
    check_keywords(rules, ExpireRules)
    retain_max, retain_min = rules.get("retain_max"), rules.get("retain_min")
    max_deletes, older_than_ms = rules.get("max_deletes"), rules.get("older_than_ms")
    by_order = rules.get("by_order", False)
    if by_order and older_than_ms is not None:
        raise InvalidRequest(
            "Expiry goes either by_order or by time (older_than_ms), not by both: leave one of them out.",
            kind="invalid_retention",
        )
    options = branch.options
    least = options.get(SNAPSHOT_RETAINED_MIN) if retain_min is None else retain_min
    most = options.get(SNAPSHOT_RETAINED_MAX) if retain_max is None else retain_max
    limit = options.get(SNAPSHOT_EXPIRE_LIMIT) if max_deletes is None else max_deletes
    for name, value in (("retain_max", most), ("retain_min", least), ("max_deletes", limit)):
        if not isinstance(value, int) or value < 1:
            raise InvalidRequest(
                f"{name} is {value!r}: it must be a whole number, at least 1.", kind="invalid_retention", option=name
            )
    if retain_max is not None and retain_min is None:
        least = min(least, most)
    if most < least:
        raise InvalidRequest(
            f"At most {most:,} and at least {least:,} snapshots cannot stay: raise retain_max or lower retain_min.",
            kind="invalid_retention",
        )
    if by_order:
        older_than_ms = _AFTER_ALL_MS
    elif older_than_ms is None:
        older_than_ms = branch.now_ms() - options.get(SNAPSHOT_TIME_RETAINED)
    return Retention(most, least, older_than_ms, limit)


def expire(
    branch: TableBranch, rules: ExpireRules, *, dry_run: bool = False, progress: ProgressCall | None = None
) -> CollectionReport:
    """Expire the oldest snapshots, as far as the rules and the consumers allow. Delete what nothing needs any more.

    Raises `Corruption`: a consumer's progress is unreadable.
    """
    branch = open_for_deletion(branch)
    return _expire(branch, retention_of(branch, rules), dry_run=dry_run, progress=progress)


def _expire(
    branch: TableBranch,
    retention: Retention,
    *,
    dry_run: bool,
    progress: ProgressCall | None = None,
    without_tags: Collection[str] = (),
) -> CollectionReport:
    """As `expire`. A dry run sees the table without some tags, given by their full names."""
    reports = [] if dry_run else recover(branch)
    referenced = ReferencedFiles(branch)
    limit_id = expiry_limit(branch)
    ids = branch.snapshots.ids()
    count = _count_expiring(branch, ids, retention, expiry_limit=limit_id, dry_run=dry_run)
    walk, warnings = _readable_walk(branch, referenced, ids[: count + 1] if count else [])
    if len(walk) < 2:
        empty = CollectionPlan(branch.name, (), (), {}, tuple(warnings))
        return merge_reports([*reports, report_of(empty, Sweep(), hidden_count=0, dry_run=dry_run)], store=branch.name)
    if dry_run:
        report = preview(branch, _expiry(branch, referenced, walk), referenced, without_tags=without_tags)
    else:
        report = _carry_out_expiry(branch, referenced, walk, progress=progress)
    reports.append(replace(report, warnings=(*warnings, *report.warnings)))
    return merge_reports(reports, store=branch.name)


def _count_expiring(
    branch: TableBranch, ids: Sequence[int], retention: Retention, *, expiry_limit: int | None, dry_run: bool
) -> int:
    """How many of the oldest snapshots expire. Those that expire because of their age are as old by the store's clock.

    A dry run does not read the store's clock, because that writes. Cost: that of `ms_ahead` if any expire by age.
    """
    plan = partial(plan_expiry, ids, time_ms_of=_Times(branch, retention.older_than_ms).of, expiry_limit=expiry_limit)
    count = plan(retention)
    if dry_run or retention.older_than_ms == _AFTER_ALL_MS:
        return count
    if count == plan(replace(retention, older_than_ms=-_AFTER_ALL_MS)):  # the number alone decides
        return count
    return plan(replace(retention, older_than_ms=retention.older_than_ms - ms_ahead(branch)))


def _expiry(branch: TableBranch, referenced: ReferencedFiles, walk: Sequence[Snapshot]) -> Deletion:
    """The deletion of all snapshots of a walk except the last, which stays."""
    expired_snapshots, survivor = walk[:-1], walk[-1]
    return Deletion(
        kind="expire",
        id=new_uuid(branch.environment.rng),
        walk_end=survivor.id,
        snapshot_ids=tuple(snapshot.id for snapshot in expired_snapshots),
        candidates=referenced.candidates_of_walk(expired_snapshots, survivor),
        survivor=survivor.base_manifest_list,
    )


def _carry_out_expiry(
    branch: TableBranch, referenced: ReferencedFiles, walk: Sequence[Snapshot], *, progress: ProgressCall | None
) -> CollectionReport:
    """Expire the snapshots of a walk: all at once, or fewer when the disk is too full for the plan of all."""
    while True:
        deletion = _expiry(branch, referenced, walk)
        try:
            return carry_out(branch, deletion, referenced=referenced, progress=progress)
        except Unavailable as error:
            if error.kind != "disk_full" or len(walk) <= 2:
                raise
            forget(branch, deletion)  # hiding is the last step that needs room, so nothing is hidden yet
            walk = walk[: 1 + len(walk) // 2]


class _Times:
    """Commit times of snapshots that may expire; an unreadable one counts as too young."""

    def __init__(self, branch: TableBranch, too_young_ms: int) -> None:
        self._branch = branch
        self._too_young_ms = too_young_ms
        self._now_ms = branch.environment.clock.now_ms()
        self._written_ms: dict[int, int] | None = None

    def of(self, snapshot_id: int) -> int:
        """The commit time, Unix ms, UTC; see `times` for a time in the future.

        Cost: 1 GET, and 1 LIST at the first of those.
        """
        if self._too_young_ms == _AFTER_ALL_MS:
            return 0  # by order
        try:
            time_ms = self._branch.snapshots.snapshot(snapshot_id).time_ms
        except Unreadable:
            return self._too_young_ms
        if not is_future(time_ms, now_ms=self._now_ms):
            return time_ms
        if self._written_ms is None:
            self._written_ms = first_written_ms(self._branch.snapshots.write_time_ms())
        return commit_time_ms(snapshot_id, time_ms, write_time_ms=self._written_ms, now_ms=self._now_ms)


def _readable_walk(
    branch: TableBranch, referenced: ReferencedFiles, ids: Sequence[int]
) -> tuple[list[Snapshot], list[str]]:
    """The snapshots of a walk up to the last one whose own change can be read, and warnings."""
    walk: list[Snapshot] = []
    for snapshot_id in ids:
        try:
            snapshot = branch.snapshots.snapshot(snapshot_id)
            referenced.check_readable(snapshot, after=walk[-1] if walk else None)
        except Unreadable as error:
            stays = f"snapshots from {walk[-1].id if walk else snapshot_id} on stay"
            return walk, [f"{stays}, because snapshot {snapshot_id} cannot be read: {error}"]
        walk.append(snapshot)
    return walk, []


def _without(versions: LiveVersions, deletion: Deletion, tags: Collection[str]) -> LiveVersions:
    """The live versions as they will be after a deletion has hidden its own, and others have hidden some tags."""
    hidden_names = {*tags, *(tag.name for tag in deletion.tags)}
    return LiveVersions(
        snapshot_ids=np.setdiff1d(versions.snapshot_ids, np.array(deletion.snapshot_ids, np.int64)),
        tags=tuple(tag for tag in versions.tags if tag.name not in hidden_names),
        restored_ids=versions.restored_ids,
    )


def preview(
    branch: TableBranch, deletion: Deletion, referenced: ReferencedFiles, *, without_tags: Collection[str] = ()
) -> CollectionReport:
    """What `carry_out` would do now, or once some tags are gone. Deletes nothing."""
    versions = _without(read_live_versions(branch), deletion, without_tags)
    candidates = deletion.candidates
    warnings: tuple[str, ...] = ()
    if deletion.released:
        candidates, warnings = gather_released(deletion, versions, referenced)
    judgement = judge(
        candidates,
        branch=branch,
        versions=versions,
        referenced=referenced,
        walk_end=deletion.walk_end,
        is_open=deletion.kind == "delete-tag",
    )
    plan = plan_of(branch, hide_paths(branch, deletion), judgement, warnings)
    return report_of(plan, Sweep(), hidden_count=0, dry_run=True)


def plan_collection(branch: TableBranch) -> CollectionPlan:
    """What expiry would delete now by the table's own options: tags past their lifetime, and expired snapshots."""
    branch.refresh()
    branch = with_fork_point(branch)
    report = merge_reports(_expire_by_options(branch, dry_run=True, progress=None), store=branch.name)
    assert report.plan is not None
    return report.plan


def expire_by_options(
    branch: TableBranch, *, dry_run: bool = False, progress: ProgressCall | None = None
) -> list[CollectionReport]:
    """Delete the tags whose lifetime is over, then expire snapshots by the table's own options: one report each.

    The dry run of the expiry assumes that those tags are gone. So it includes the files that only they keep now.

    Raises as `expire`.
    """
    return _expire_by_options(open_for_deletion(branch), dry_run=dry_run, progress=progress)


def _expire_by_options(branch: TableBranch, *, dry_run: bool, progress: ProgressCall | None) -> list[CollectionReport]:
    reports = [] if dry_run else recover(branch)
    expired_tags = _tags_to_expire(branch, older_than_ms=None, dry_run=dry_run)
    reports.append(release(branch, expired_tags, dry_run=dry_run, progress=progress))
    snapshots = _expire(branch, retention_of(branch, {}), dry_run=dry_run, progress=progress, without_tags=expired_tags)
    return [merge_reports(reports, store=branch.name), snapshots]


# ---- tags


def delete_tags(
    branch: TableBranch, names: Sequence[str], *, if_exists: bool = False, dry_run: bool = False
) -> CollectionReport:
    """Delete tags, and the files that only they needed.

    Raises:
        NotFound: a tag does not exist (unless `if_exists`); then none is deleted.
        InvalidRequest: a name that no tag may have.
    Cost: a few listings and 1 GET a tag; if its snapshot has expired, its manifests and those of its neighbours.
    """
    branch = open_for_deletion(branch)
    reports = [] if dry_run else recover(branch)
    tag_names = []
    for name in dict.fromkeys(names):
        check_tag_name(name)
        if if_exists and not branch.tags.exists(name):
            continue
        branch.tags.tag(name)
        tag_names.append(name)
    reports.append(release(branch, tag_names, dry_run=dry_run))
    return merge_reports(reports, store=branch.name)


def expire_tags(
    branch: TableBranch,
    *,
    older_than_ms: int | None = None,
    dry_run: bool = False,
    progress: ProgressCall | None = None,
) -> CollectionReport:
    """Delete the tags whose lifetime is over and, with `older_than_ms`, those made before that time (Unix ms, UTC).

    A tag without a creation time counts as created when its file was written. Hidden pins never expire. A tag must be
    old, or its lifetime over, by the store's clock too; a dry run does not read that clock.
    """
    branch = open_for_deletion(branch)
    reports = [] if dry_run else recover(branch)
    expired_tags = _tags_to_expire(branch, older_than_ms=older_than_ms, dry_run=dry_run)
    reports.append(release(branch, expired_tags, dry_run=dry_run, progress=progress))
    return merge_reports(reports, store=branch.name)


def ms_ahead(branch: TableBranch) -> int:
    """How far our clock is ahead of the store's, in ms; in a branch, the clock of its repository's storage.

    Cost: 3 requests.
    """
    return max(0, branch.now_ms() - store_time_ms(branch.store, environment=branch.environment))


def _tags_to_expire(branch: TableBranch, *, older_than_ms: int | None, dry_run: bool) -> list[str]:
    now_ms = branch.now_ms() if branch.options.get(TAG_TIME_EXPIRE_ENABLED) else None
    tags = [tag for tag in branch.tags.list() if _is_outlived(branch, tag, now_ms, older_than_ms)]
    if tags and not dry_run:  # by the store's clock too
        ahead_ms = ms_ahead(branch)
        now_ms = None if now_ms is None else now_ms - ahead_ms
        older_than_ms = None if older_than_ms is None else older_than_ms - ahead_ms
        tags = [tag for tag in tags if _is_outlived(branch, tag, now_ms, older_than_ms)]
    return [tag.name for tag in tags]


def _is_outlived(branch: TableBranch, tag: Tag, now_ms: int | None, older_than_ms: int | None) -> bool:
    created_ms = tag.create_time_ms
    lifetime_ms = None if created_ms is None else tag.lifetime_ms
    if created_ms is None and older_than_ms is None:
        return False
    if created_ms is None or is_future(created_ms, now_ms=branch.now_ms()):
        # A clock that was ahead created it: its lifetime counts from when its file was written.
        try:
            write_time_ms = branch.store.head(branch.layout.tag(tag.name)).modified_ms
        except NotFound:
            return False
        created_ms = write_time_ms if created_ms is None else min(created_ms, write_time_ms)
    if now_ms is not None and lifetime_ms is not None and created_ms + lifetime_ms <= now_ms:
        return True
    return older_than_ms is not None and created_ms < older_than_ms


def release(
    branch: TableBranch, names: Iterable[str], *, dry_run: bool = False, progress: ProgressCall | None = None
) -> CollectionReport:
    """Delete tags, hidden pins included, by their full names, with the files that nothing else needs."""
    tags: list[HiddenTag] = []
    released: list[str] = []
    for name in names:
        now = tag_now(branch, name)
        if now is not None:
            tags.append(now[0])
            released.append(now[1])
    deletion = Deletion(
        kind="delete-tag",
        id=new_uuid(branch.environment.rng),
        walk_end=max((tag.snapshot_id for tag in tags), default=0),
        tags=tuple(tags),
        released=tuple(released),
    )
    if dry_run or not tags:
        return replace(preview(branch, deletion, ReferencedFiles(branch)), dry_run=dry_run)
    return carry_out(branch, deletion, progress=progress)


def replace_tag(branch: TableBranch, name: str, *, source: Source, lifetime_ms: int | None = None) -> Tag:
    """Point a tag at another version, and delete the files that only the old version needed.

    A hidden tag pins the new version until the tag holds it, so the version is pinned at every moment. The deletion of
    that pin is stored only afterwards, so that no other verb that finishes deletions removes the pin earlier. After a
    crash before that, the collection of orphans removes the pin.

    Raises:
        NotFound: no such tag.
        Conflict: the new version expired meanwhile; the tag is unchanged.
    """
    branch = open_for_deletion(branch)
    recover(branch)
    check_tag_name(name)
    branch.tags.tag(name)
    uuid = new_uuid(branch.environment.rng)
    before = tag_now(branch, name)
    deletion = Deletion(kind="delete-tag", id=uuid, walk_end=0, released=() if before is None else (before[1],))
    store_deletion(branch.store, branch.layout, deletion)
    pin = branch.tags.pin_hidden(f"replace.{uuid}", source=source)
    tag = branch.tags.replace(
        name, source=Source(body=source.body, path=branch.layout.tag(pin.name)), lifetime_ms=lifetime_ms
    )
    pin_state = tag_now(branch, pin.name)
    if pin_state is not None:
        deletion = structs.replace(deletion, tags=(pin_state[0],), released=(*deletion.released, pin_state[1]))
    carry_out(branch, deletion)
    return tag
