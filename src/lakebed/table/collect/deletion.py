"""Carry out one deletion, in an order that survives a crash at any point.

Owns: `carry_out`. The order of every deletion:

1. Write the candidates to an unfinished deletion (`unfinished`), durably.
2. Raise the boundary: lakebed never uses the deleted ids again.
3. Hide: delete snapshot and tag files. From here on no reader finds the versions. If another client rolled the branch
   back meanwhile, no snapshot is hidden (`lineage`). If only tags were hidden, of versions whose snapshots are live,
   the deletion ends here.
4. Read the live versions again, check that the branch still exists (a renamed branch has its versions elsewhere), and
   judge the candidates. Of two racing collectors at least one sees what the other has hidden, and a tag that was
   created meanwhile keeps its files.
5. Delete what was derived from the files for Iceberg clients, then data, then manifests, then lists.
6. Withdraw tags that were put on the hidden versions since step 4: their creators may have died before their check.
7. Remove the unfinished deletion. If something was unreadable or an object could not be deleted, it stays for the next
   run.

Any process may repeat any step at any time, also while another carries out the same deletion.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

import pyarrow as pa
from msgspec.structs import replace

import lakebed.compute as pc
from lakebed.errors import Conflict, Corruption, InvalidRequest, NotFound, Unavailable
from lakebed.objects.reserve import freeing_space
from lakebed.reclaim.model import CollectionPlan, CollectionReport, Deletable
from lakebed.reclaim.sweep import Progress, Sweep, Sweeper, notes_on, report_of
from lakebed.table.branch.branch_folder import confirm_branch, with_fork_point
from lakebed.table.branch.candidates import CANDIDATES, STAGES, UNKNOWN, concat
from lakebed.table.branch.context import TableBranch
from lakebed.table.branch.manifest_reader import Unreadable
from lakebed.table.branch.snapshots import write_id_of
from lakebed.table.branch.tags import TAG_ID
from lakebed.table.branch.unfinished import Deletion, HiddenTag, path_of, store_deletion
from lakebed.table.codec.snapshot_json import decode_snapshot
from lakebed.table.collect.lineage import fits, restore_newest
from lakebed.table.collect.live_versions import LiveVersions, note_expired_below, read_live_versions
from lakebed.table.collect.reachability import Judgement, judge
from lakebed.table.collect.referenced_files import ReferencedFiles
from lakebed.table.files.placement import check_placement
from lakebed.table.model.layout import Layout, is_left_by_client, parse_derived
from lakebed.texts import spans_of

ProgressCall = Callable[[Progress], None]


def open_for_deletion(branch: TableBranch) -> TableBranch:
    """The branch as every deleting verb needs it: with its newest schema and its fork snapshot.

    Raises `NotFound`: the branch is gone; `InvalidRequest`: another client made the branch (see `with_fork_point`), or
    the options place data files where lakebed does not find them (see `check_placement`). Cost: 1 LIST, and 1 GET when
    there is a newer schema; in a branch 1 GET more.
    """
    branch.refresh()
    branch = with_fork_point(branch)
    check_placement(branch.schema)
    return branch


@freeing_space()
def carry_out(
    branch: TableBranch,
    deletion: Deletion,
    *,
    referenced: ReferencedFiles | None = None,
    progress: ProgressCall | None = None,
) -> CollectionReport:
    """Carry out a deletion, or finish one that another process began.

    Returns what was hidden and deleted, and why the rest was kept.
    """
    referenced = referenced or ReferencedFiles(branch)
    store_deletion(branch.store, branch.layout, deletion)
    try:
        hidden_paths, warnings = _hide(branch, deletion)
    except InvalidRequest:  # the boundary is gone, perhaps with the branch
        _confirm_branch(branch, deletion)
        raise
    if _releases_nothing(branch, deletion):
        forget(branch, deletion)
        plan = CollectionPlan(branch.name, hidden_paths, (), {}, warnings)
        return report_of(plan, Sweep(), hidden_count=len(hidden_paths), dry_run=False)
    try:
        versions = read_live_versions(branch)
        _confirm_branch(branch, deletion)
    except Corruption as error:
        warnings = (*warnings, f"nothing was deleted, because what a tag holds is unknown: {error}")
        plan = CollectionPlan(branch.name, hidden_paths, (), {"unreadable": deletion.candidates.num_rows}, warnings)
        return report_of(plan, Sweep(), hidden_count=len(hidden_paths), dry_run=False)
    if deletion.snapshot_ids and len(versions.snapshot_ids):
        branch.snapshots.store_earliest_hint(int(versions.snapshot_ids[0]))
    if deletion.released:
        released_candidates, unreadable = gather_released(deletion, versions, referenced)
        warnings += unreadable
        deletion = replace(deletion, released=(), candidates=concat([deletion.candidates, released_candidates]))
        try:
            store_deletion(branch.store, branch.layout, deletion)
        except Unavailable as error:
            # What was released is stored already. After a crash from here on, the same candidates are gathered again as
            # far as their manifests still exist; the collection of orphans finds the rest.
            if error.kind != "disk_full":
                raise
    judgement = judge(
        deletion.candidates,
        branch=branch,
        versions=versions,
        referenced=referenced,
        walk_end=deletion.walk_end,
        is_open=deletion.kind == "delete-tag",
        is_lost=deletion.kind != "delete-tag" and not fits(branch, deletion),
    )
    plan = plan_of(branch, hidden_paths, judgement, warnings)
    sweep = Sweeper(branch.store, progress, reaches_outside=True).delete_all(plan.doomed)
    _withdraw_tags(branch, deletion, versions)
    if judgement.complete and sweep.complete:
        forget(branch, deletion)
    return report_of(plan, sweep, hidden_count=len(hidden_paths), dry_run=False)


def _confirm_branch(branch: TableBranch, deletion: Deletion) -> None:
    """As `confirm_branch`. If the branch is gone, also forget the deletion: a rename may have moved it along."""
    try:
        confirm_branch(branch)
    except (NotFound, Conflict):
        forget(branch, deletion)
        raise


def _releases_nothing(branch: TableBranch, deletion: Deletion) -> bool:
    """Whether the hidden tags of a deletion release nothing, because the snapshots of their versions are live.

    Then no file can be deleted, whatever other tags there are, so they need not be listed. An expiry that hides one of
    these snapshots from now on reads the tags after that, without ours, and deletes what nothing else needs.
    Cost: 1 HEAD a version.
    """
    if not deletion.released or deletion.snapshot_ids or deletion.candidates.num_rows:
        return False
    ids = {decode_snapshot(body.encode(), path="a released tag").id for body in deletion.released}
    return all(branch.snapshots.exists(snapshot_id) for snapshot_id in sorted(ids))


def forget(branch: TableBranch, deletion: Deletion) -> None:
    """Remove an unfinished deletion. Cost: 1 DELETE."""
    Sweeper(branch.store).delete_all([Deletable(path_of(branch.layout, deletion), 0, "finished")])


def hide_paths(branch: TableBranch, deletion: Deletion) -> tuple[str, ...]:
    """The paths of the files that a deletion hides."""
    snapshots = (branch.layout.snapshot(snapshot_id) for snapshot_id in deletion.snapshot_ids)
    return (*(branch.layout.tag(tag.name) for tag in deletion.tags), *snapshots)


def _hide(branch: TableBranch, deletion: Deletion) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Hide tags and snapshots. Return the paths that were hidden, and warnings."""
    names = [tag.name for tag in deletion.tags if is_unchanged(branch, tag)]
    if names:
        branch.tags.remove_files(names)
    hidden_paths = tuple(branch.layout.tag(name) for name in names)
    if not deletion.snapshot_ids:
        return hidden_paths, ()
    ids, warning = _hide_snapshots(branch, deletion)
    return (*hidden_paths, *(branch.layout.snapshot(snapshot_id) for snapshot_id in ids)), (warning,) if warning else ()


def _hide_snapshots(branch: TableBranch, deletion: Deletion) -> tuple[list[int], str | None]:
    bodies: dict[int, bytes] = {}
    is_planned = fits(branch, deletion)
    if is_planned:
        for snapshot_id in deletion.snapshot_ids:
            with suppress(NotFound):
                bodies[snapshot_id] = branch.snapshots.body(snapshot_id)
        try:
            write_ids = {snapshot_id: write_id_of(body) for snapshot_id, body in bodies.items()}
            branch.snapshots.log.raise_boundary(deletion.walk_end, write_ids=write_ids)
        except InvalidRequest:
            is_planned = False
    # Check again: meanwhile the table may have been dropped, and created again with the same ids.
    if not is_planned or not fits(branch, deletion):
        return [], (
            f"snapshots {spans_of(deletion.snapshot_ids)} were to expire, but snapshot "
            f"{deletion.walk_end} after them is not the planned one: another client rolled the table back or "
            "expired snapshots. None was hidden; run the expiry again."
        )
    if deletion.kind == "expire":
        note_expired_below(branch, max(deletion.snapshot_ids) + 1)
    branch.snapshots.log.delete(list(deletion.snapshot_ids))
    newest = restore_newest(branch, bodies)
    if newest is None:
        return list(deletion.snapshot_ids), None
    hidden_ids = [snapshot_id for snapshot_id in deletion.snapshot_ids if snapshot_id != newest]
    return hidden_ids, f"another client rolled back to snapshot {newest} while it was being hidden, so it was put back"


def _withdraw_tags(branch: TableBranch, deletion: Deletion, versions: LiveVersions) -> None:
    """Withdraw lakebed's tags that were put on a hidden version after its files were judged.

    Their creators check the source, which is hidden, and would withdraw them. So none of them was or will be
    acknowledged. Tags that are put even later are named in reports. Cost: 1 LIST, and 1 GET for each new tag.
    """
    known_names = {tag.name for tag in versions.tags}
    for name in branch.tags.all_names():
        late = branch.tags.find(name) if name not in known_names else None
        if late is None or TAG_ID not in late.snapshot.properties:
            continue
        if not deletion.hides(late.snapshot.id) or versions.holds(late.snapshot.id):
            continue
        if not branch.snapshots.exists(late.snapshot.id):  # another client may have used the id again
            branch.tags.remove_files([name])


def tag_now(branch: TableBranch, name: str) -> tuple[HiddenTag, str] | None:
    """A tag as it is now, and its JSON; None when the tag is gone. It is hidden later only if it is unchanged.

    Raises `Corruption`. Cost: 1 GET.
    """
    path = branch.layout.tag(name)
    try:
        body = bytes(branch.store.get(path))
    except NotFound:
        return None
    snapshot_id = decode_snapshot(body, path=path).id
    return HiddenTag(name, snapshot_id, hashlib.sha256(body).hexdigest()), body.decode()


def is_unchanged(branch: TableBranch, tag: HiddenTag) -> bool:
    """Whether the tag's file is unchanged. Cost: 1 GET."""
    try:
        now = tag_now(branch, tag.name)
    except Corruption:
        return False
    return now is not None and now[0] == tag


def gather_released(
    deletion: Deletion, versions: LiveVersions, referenced: ReferencedFiles
) -> tuple[pa.Table, tuple[str, ...]]:
    """Candidates of the versions that `deletion` released and that nothing else holds, and warnings.

    Cost: each such version's lists and manifests.
    """
    tables, warnings = [], []
    seen_ids: set[int] = set()
    for body in deletion.released:
        snapshot = decode_snapshot(body.encode(), path="a released tag")
        if versions.holds(snapshot.id) or snapshot.id in seen_ids:
            continue
        seen_ids.add(snapshot.id)
        try:
            tables.append(referenced.candidates_of_tag(snapshot))
        except Unreadable as error:
            warnings.append(
                f"files of version {snapshot.id} are left to orphan cleaning, because it cannot be read: {error}"
            )
    return _each_once(concat(tables)), tuple(warnings)


def _each_once(candidates: pa.Table) -> pa.Table:
    """One row for each path.

    Several tags of a branch may have had the same file; it is judged from the last of them.
    """
    if candidates.num_rows == 0:
        return candidates
    groups = candidates.group_by(["role", "path"], use_threads=False).aggregate(
        [("size_bytes", "max"), ("born", "max"), ("dead", "max")]
    )
    return groups.rename_columns(CANDIDATES.names)


def plan_of(
    branch: TableBranch, hide: tuple[str, ...], judgement: Judgement, warnings: tuple[str, ...]
) -> CollectionPlan:
    """The plan that deletes what a judgement allows, and before it what was derived from it for Iceberg clients."""
    deletable = deletable_of(judgement.deletable)
    deletable = (*derived_from(branch, deletable), *deletable)
    warnings = (*warnings, *judgement.warnings)
    return CollectionPlan(branch.name, hide, deletable, judgement.kept, warnings, notes_on(branch.store, deletable))


def deletable_of(candidates: pa.Table) -> tuple[Deletable, ...]:
    """Candidates that may be deleted, in the order of their deletion, each with its reason."""
    deletable: list[Deletable] = []
    for stage in STAGES:
        rows = candidates.filter(pc.is_in(candidates["role"], value_set=pa.array(stage, pa.string())))
        for role, path, size_bytes, born, dead in zip(
            *(rows[name].to_pylist() for name in rows.column_names), strict=True
        ):
            since = "?" if born == UNKNOWN else born
            deletable.append(Deletable(path, size_bytes, f"{role}: no version in [{since}, {dead}) is left"))
    return tuple(deletable)


def merge_reports(reports: list[CollectionReport], *, store: str) -> CollectionReport:
    """Several reports as one."""
    kept_counts: dict[str, int] = {}
    for report in reports:
        for reason, count in report.kept.items():
            kept_counts[reason] = kept_counts.get(reason, 0) + count
    plans = [report.plan for report in reports if report.plan is not None]
    plan = CollectionPlan(
        store,
        tuple(path for plan in plans for path in plan.hide),
        tuple(deletable for plan in plans for deletable in plan.doomed),
        kept_counts,
        tuple(warning for plan in plans for warning in plan.warnings),
        _once(note for plan in plans for note in plan.notes),
    )
    return CollectionReport(
        store=store,
        hidden_count=sum(report.hidden_count for report in reports),
        deleted_count=sum(report.deleted_count for report in reports),
        deleted_bytes=sum(report.deleted_bytes for report in reports),
        kept=kept_counts,
        warnings=tuple(warning for report in reports for warning in report.warnings),
        dry_run=any(report.dry_run for report in reports),
        plan=plan,
        notes=_once(note for report in reports for note in report.notes),
    )


def _once(notes: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(notes))


def derived_from(branch: TableBranch, sources: Sequence[Deletable]) -> tuple[Deletable, ...]:
    """Objects for Iceberg clients (`layout.parse_derived`) that are derived from objects about to be deleted.

    Each is needed only as long as its manifest, list or index file exists. A server may create one while its source is
    being deleted: `derived_orphans` finds it. Cost: 1 LIST a thousand objects, if there is a source.
    """
    folders = (f"{Layout.manifest_folder}/", f"{Layout.index_folder}/")
    paths = {source.path for source in sources if source.path.startswith(folders)}
    if not paths or branch.store.is_versioned:
        return ()
    return tuple(
        Deletable(meta.path, meta.size_bytes, f"for Iceberg clients, made of {source}")
        for meta in branch.store.list(Layout.iceberg_folder)
        if (source := parse_derived(meta.path)) in paths
    )


def derived_orphans(branch: TableBranch, doomed: Sequence[Deletable], *, older_than_ms: int) -> tuple[Deletable, ...]:
    """Objects derived from ones that are gone, or in `doomed`, and written before a time (Unix ms, UTC).

    Also what a client left in the location that it sees (`Layout.client_folder`): it wrote rows and could not commit.
    Cost: 1 LIST; if there is such an object, 1 LIST a thousand of all of them, of manifests and of index files.
    """
    if branch.store.is_versioned:
        return ()
    old_metas = [meta for meta in branch.store.list(Layout.iceberg_folder) if meta.modified_ms < older_than_ms]
    if not old_metas:
        return ()
    client_metas = [meta for meta in old_metas if is_left_by_client(meta.path)]
    folders = (Layout.manifest_folder, Layout.index_folder)
    sources = {meta.path for folder in folders for meta in branch.store.list(folder)}
    sources -= {deletable.path for deletable in doomed}
    return (
        *(
            Deletable(meta.path, meta.size_bytes, "an Iceberg client wrote it and could not commit")
            for meta in client_metas
        ),
        *(
            Deletable(meta.path, meta.size_bytes, f"{source}, of which it was made, is gone")
            for meta in old_metas
            if (source := parse_derived(meta.path)) is not None and source not in sources
        ),
    )
