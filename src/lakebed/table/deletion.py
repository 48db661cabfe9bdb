"""Carrying out one deletion, in the one order that survives a crash at any point.

Owns: `carry_out`. The order of every deletion:

1. Write the candidates down (`unfinished`), durably.
2. Raise the boundary: the ids of what goes are never used again.
3. Hide: delete snapshot and tag files. From here on no reader finds the versions.
4. Read the holders afresh, and judge. Of two racing collectors at least one sees the other's hiding, and a tag made
   meanwhile wins.
5. Delete data, then manifests, then lists.
6. Withdraw tags that were put on the versions since 4, whose makers may have died before they could look.
7. Forget the deletion; unless something was unreadable or an object could not be deleted: then it stays for the next
   run.

Each step may be repeated at any time by anybody, also while another carries out the same deletion.
Does not know: why the versions go, or how candidates of a walk are gathered.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from lakebed.errors import Corruption, NotFound
from lakebed.reclaim.model import Doomed, ReclaimPlan, ReclaimReport
from lakebed.reclaim.sweep import Progress, Sweep, Sweeper, notes_on, report_of
from lakebed.table.holders import Holders, Line, note_expired_below, read_holders
from lakebed.table.judge import Unreadable, judge
from lakebed.table.names import Names
from lakebed.table.reclaim import CANDIDATES, STAGES, UNKNOWN, concat
from lakebed.table.snapshot_json import decode_snapshot
from lakebed.table.tags import TAG_ID
from lakebed.table.unfinished import Deletion, HiddenTag, path_of, store_deletion

__all__ = ["ProgressCall", "Released", "carry_out", "doomed_of", "gather_released", "is_unchanged", "merge_reports"]

ProgressCall = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class Released:
    """What versions that lost their last holder leave behind."""

    candidates: pa.Table
    warnings: tuple[str, ...] = ()


def carry_out(
    line: Line, deletion: Deletion, *, names: Names | None = None, progress: ProgressCall | None = None
) -> ReclaimReport:
    """Do a deletion, or finish one that another began.

    Returns:
        What was hidden and deleted, and why the rest was kept.
    """
    names = names or Names(line)
    store_deletion(line.store, line.layout, deletion)
    hidden_count = _hide(line, deletion)
    warnings: tuple[str, ...] = ()
    try:
        holders = read_holders(line)
    except Corruption as error:
        warning = f"nothing was deleted, for what a tag holds is unknown: {error}"
        plan = ReclaimPlan(
            line.name, hide_paths(line, deletion), (), {"unreadable": deletion.candidates.num_rows}, (warning,)
        )
        return report_of(plan, Sweep(), hidden_count=hidden_count, dry_run=False)
    if deletion.snapshot_ids and len(holders.snapshot_ids):
        line.snapshots.store_earliest_hint(int(holders.snapshot_ids[0]))
    if deletion.released:
        released = gather_released(line, deletion, holders, names)
        warnings = released.warnings
        deletion = replace(deletion, released=(), candidates=concat([deletion.candidates, released.candidates]))
        store_deletion(line.store, line.layout, deletion)
    judgement = judge(
        deletion.candidates,
        line=line,
        holders=holders,
        names=names,
        walk_end=deletion.walk_end,
        is_open=deletion.kind == "delete-tag",
    )
    doomed = doomed_of(judgement.doomed)
    sweeper = Sweeper(line.store, line.environment, progress)
    sweep = sweeper.delete_all(doomed)
    plan = ReclaimPlan(
        line.name,
        hide_paths(line, deletion),
        doomed,
        judgement.kept,
        (*warnings, *judgement.warnings),
        notes_on(line.store, doomed),
    )
    _withdraw_tags(line, deletion, holders)
    if judgement.complete and sweep.complete:
        sweeper.delete_all([Doomed(path_of(line.layout, deletion), 0, "finished")], into=Sweep())
    return report_of(plan, sweep, hidden_count=hidden_count, dry_run=False)


def hide_paths(line: Line, deletion: Deletion) -> tuple[str, ...]:
    """What a deletion makes invisible."""
    snapshots = (line.layout.snapshot(snapshot_id) for snapshot_id in deletion.snapshot_ids)
    return (*(line.layout.tag(tag.name) for tag in deletion.tags), *snapshots)


def _hide(line: Line, deletion: Deletion) -> int:
    hidden = [tag.name for tag in deletion.tags if is_unchanged(line, tag)]
    if hidden:
        line.tags.remove_files(hidden)
    if deletion.snapshot_ids:
        line.snapshots.log.raise_boundary(deletion.walk_end)
        if deletion.kind == "expire":
            note_expired_below(line, max(deletion.snapshot_ids) + 1)
        line.snapshots.log.delete(list(deletion.snapshot_ids))
    return len(hidden) + len(deletion.snapshot_ids)


def _withdraw_tags(line: Line, deletion: Deletion, holders: Holders) -> None:
    """Take back tags of ours that landed on a version after the judgement found nobody to hold it.

    Their makers look for the source, which is hidden, and would withdraw them: none was or will be acknowledged. What
    lands later still is named by reports. Cost: 1 LIST, and 1 GET a tag that is new.
    """
    seen = {tag.name for tag in holders.tags}
    for name in line.tags.all_names():
        late = line.tags.find(name) if name not in seen else None
        if late is None or TAG_ID not in late.snapshot.properties:
            continue
        if deletion.hides(late.snapshot.id) and not holders.holds(late.snapshot.id):
            line.tags.remove_files([name])


def tag_now(line: Line, name: str) -> tuple[HiddenTag, str] | None:
    """A tag as it is now, to be hidden only while it still is so, and its JSON; None when it is gone.

    Raises `Corruption`. Cost: 1 GET.
    """
    path = line.layout.tag(name)
    try:
        body = bytes(line.store.get(path))
    except NotFound:
        return None
    snapshot_id = decode_snapshot(body, path=path).id
    return HiddenTag(name, snapshot_id, hashlib.sha256(body).hexdigest()), body.decode()


def is_unchanged(line: Line, tag: HiddenTag) -> bool:
    """Whether the tag is still the file it was. Cost: 1 GET."""
    try:
        now = tag_now(line, tag.name)
    except Corruption:
        return False
    return now is not None and now[0] == tag


def gather_released(line: Line, deletion: Deletion, holders: Holders, names: Names) -> Released:
    """Candidates of the versions that `deletion` released and that nothing holds any more.

    Cost: each such version's lists and manifests.
    """
    tables, warnings = [], []
    seen: set[int] = set()
    for body in deletion.released:
        snapshot = decode_snapshot(body.encode(), path="a released tag")
        if holders.holds(snapshot.id) or snapshot.id in seen:
            continue
        seen.add(snapshot.id)
        try:
            tables.append(names.left_by_tag(snapshot))
        except Unreadable as error:
            warnings.append(
                f"files of version {snapshot.id} are left to orphan cleaning, for it cannot be read: {error}"
            )
    return Released(_each_once(concat(tables)), tuple(warnings))


def _each_once(candidates: pa.Table) -> pa.Table:
    """One row a path: several tags of one line may have had the same file; it is judged from the last of them."""
    if candidates.num_rows == 0:
        return candidates
    grouped = candidates.group_by(["role", "path"], use_threads=False).aggregate(
        [("size_bytes", "max"), ("born", "max"), ("dead", "max")]
    )
    return grouped.rename_columns(CANDIDATES.names)


def doomed_of(candidates: pa.Table) -> tuple[Doomed, ...]:
    """Candidates that may go, in the order of their deletion, each with its phrase."""
    doomed: list[Doomed] = []
    for stage in STAGES:
        rows = candidates.filter(pc.is_in(candidates["role"], value_set=pa.array(stage, pa.string())))
        for role, path, size_bytes, born, dead in zip(
            *(rows[name].to_pylist() for name in rows.column_names), strict=True
        ):
            since = "?" if born == UNKNOWN else born
            doomed.append(Doomed(path, size_bytes, f"{role}: no version in [{since}, {dead}) is left"))
    return tuple(doomed)


def merge_reports(reports: list[ReclaimReport], *, store: str) -> ReclaimReport:
    """Several reports as one."""
    kept: dict[str, int] = {}
    for report in reports:
        for reason, count in report.kept.items():
            kept[reason] = kept.get(reason, 0) + count
    plans = [report.plan for report in reports if report.plan is not None]
    plan = ReclaimPlan(
        store,
        tuple(path for plan in plans for path in plan.hide),
        tuple(doomed for plan in plans for doomed in plan.doomed),
        kept,
        tuple(warning for plan in plans for warning in plan.warnings),
        _once(note for plan in plans for note in plan.notes),
    )
    return ReclaimReport(
        store=store,
        hidden_count=sum(report.hidden_count for report in reports),
        deleted_count=sum(report.deleted_count for report in reports),
        deleted_bytes=sum(report.deleted_bytes for report in reports),
        kept=kept,
        warnings=tuple(warning for report in reports for warning in report.warnings),
        dry_run=any(report.dry_run for report in reports),
        plan=plan,
        notes=_once(note for report in reports for note in report.notes),
    )


def _once(notes: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(notes))
