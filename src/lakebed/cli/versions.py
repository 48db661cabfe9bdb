"""Commands on a table's versions: history, branches, rollback, expire, compact, orphans, fsck, system tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from lakebed.cli import args, exits, facts, say
from lakebed.cli.args import Branch, DryRun, Json, LakeUrl, RepairStatistics, TableName, Timestamp, Version, Yes
from lakebed.cli.grammar import Exit, Group, argument, option
from lakebed.cli.repairs import run_repair
from lakebed.errors import InvalidRequest

if TYPE_CHECKING:
    from lakebed.table.model import Snapshot
    from lakebed.table.table import Table

__all__ = ["register"]


BranchName = Annotated[str, argument("BRANCH", help="The branch's name.", formerly=["--name"])]


def register(app: Group) -> None:
    """Add the commands to the group of table commands."""
    for command in (history, branches, rollback, expire, compact, fsck, system):
        app.command()(command)
    app.command("branch", formerly=["create-branch"])(create_branch)
    app.command("fast-forward")(fast_forward)
    app.command("drop-branch", formerly=["delete-branch"])(delete_branch)
    app.command("collect", formerly=["remove-orphan-files"])(remove_orphan_files)


def history(
    lake: LakeUrl,
    table: TableName,
    limit: Annotated[int | None, option("--limit", min=1, help="Only the newest so many.")] = None,
    branch: Branch = None,
    json: Json = False,
) -> None:
    """List the snapshots that have not expired, oldest first, with their tags."""
    opened = args.open_table(lake, table, branch=branch)
    tags: dict[int, list[str]] = {}
    for tag in opened.tags():
        tags.setdefault(tag.snapshot.id, []).append(tag.name)
    found = list(opened.snapshots())[-limit if limit else 0 :]
    if json:
        say.document([{**facts.of_snapshot(snapshot), "tags": tags.get(snapshot.id, [])} for snapshot in found])
        return
    say.grid(
        ("snapshot", "committed", "kind", "stored", "change", "tags"),
        [
            (
                str(snapshot.id),
                say.ago(snapshot.time_ms),
                _kind(snapshot),
                f"{snapshot.total_record_count:,}",
                # A compaction drops rows that were replaced; none that a read gives.
                "0" if snapshot.commit_kind == "COMPACT" else f"{snapshot.delta_record_count:+,}",
                ", ".join(tags.get(snapshot.id, [])),
            )
            for snapshot in found
        ],
        right=("snapshot", "stored", "change"),
        less=("stored", "change"),
        sentences=("tags",),
        empty=f"Nothing was ever written into {table}.",
    )


def _kind(snapshot: Snapshot) -> str:
    target = facts.rolled_back_to(snapshot)
    return snapshot.commit_kind.lower() if target is None else f"rollback to {target}"


def branches(lake: LakeUrl, table: TableName, json: Json = False) -> None:
    """List the branches."""
    found = args.open_table(lake, table).branches()
    if json:
        say.document(
            [{"branch": one.name, "snapshot": one.fork_snapshot_id, "created_ms": one.created_ms} for one in found]
        )
        return
    say.grid(
        ("branch", "from snapshot", "made"),
        [(one.name, str(one.fork_snapshot_id or "-"), say.ago(one.created_ms)) for one in found],
        right=("from snapshot",),
        less=("made",),
        empty=f"The table {table} has no branch.",
    )


def create_branch(
    lake: LakeUrl,
    table: TableName,
    name: BranchName,
    tag: Annotated[str | None, option("--tag", help="Start from this tag. Default: the newest snapshot.")] = None,
    json: Json = False,
) -> None:
    """Fork a table: the branch has snapshots of its own and shares the files."""
    made = args.open_table(lake, table).create_branch(name, tag=tag)
    newest = made.latest()
    start = None if newest is None else newest.id
    say.result(json, {"branch": name, "snapshot": start}, f"The branch {name} of {table} starts from snapshot {start}.")


def delete_branch(
    lake: LakeUrl,
    table: TableName,
    name: BranchName,
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Delete a branch with its snapshots and tags."""
    opened = args.open_table(lake, table)
    if dry_run:
        branch = args.open_table(lake, table, branch=name)
        snapshots, names = [snapshot.id for snapshot in branch.snapshots()], [tag.name for tag in branch.tags()]
        say.result(
            json,
            {"branch": name, "deleted": False, "dry_run": True, "snapshots": snapshots, "tags": names},
            f"Would delete the branch {name} of {table} with {say.count(len(snapshots), 'snapshot')} and "
            f"{say.count(len(names), 'tag')}{': ' + ', '.join(names) if names else ''}.",
        )
        return
    say.ask(f"Delete the branch {name} of {table} with its snapshots and tags?", yes=yes, json=json)
    opened.delete_branch(name)
    say.result(json, {"branch": name, "deleted": True}, f"Deleted the branch {name} of {table}.")


def fast_forward(
    lake: LakeUrl,
    table: TableName,
    name: BranchName,
    dry_run: Annotated[bool, option("--dry-run", help="Only say whether it is allowed.")] = False,
    json: Json = False,
) -> None:
    """Make main what a branch is, when main has not moved since the branch started."""
    made = args.open_table(lake, table).fast_forward(name, dry_run=dry_run)
    say.result(
        json,
        {"branch": name, "dry_run": dry_run, **facts.of_snapshot(made)},
        f"Would make {table} what snapshot {made.id} of its branch {name} is."
        if dry_run
        else f"{table} is what its branch {name} is: snapshot {made.id}.",
    )


def rollback(
    lake: LakeUrl,
    table: TableName,
    version: Version = None,
    tag: Annotated[str | None, option("--tag", help="Roll back to this tag.")] = None,
    timestamp: Timestamp = None,
    as_latest: Annotated[
        bool, option("--as-latest", help="Keep the history: the old state becomes the newest snapshot.")
    ] = False,
    branch: Branch = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Go back to an older version; later snapshots, tags and their files are deleted unless --as-latest."""
    target = args.version_of(version, tag)
    if (target is None) == (timestamp is None):
        raise InvalidRequest(
            "Say where to go back to: --version, --tag or --timestamp, one of them.", kind="no_version"
        )
    opened = args.open_table(lake, table, branch=branch)
    goal = opened.resolve(version=target, timestamp_ms=timestamp)
    if dry_run:
        _preview_rollback(opened, goal, target=target, timestamp=timestamp, as_latest=as_latest, json=json)
        return
    if not as_latest:
        say.ask(f"Roll {table} back to snapshot {goal.id} and delete what came later?", yes=yes, json=json)
    verb = opened.rollback_to_as_latest if as_latest else opened.rollback_to
    made = verb(target) if target is not None else verb(timestamp_ms=timestamp)
    say.result(
        json,
        facts.of_snapshot(made),
        f"{table} is as it was in snapshot {goal.id} again: snapshot {made.id}, "
        f"{say.count(made.total_record_count, 'row')}.",
    )


def expire(
    lake: LakeUrl,
    table: TableName,
    retain_max: Annotated[int | None, option("--retain-max", min=1, help="Keep at most so many snapshots.")] = None,
    retain_min: Annotated[int | None, option("--retain-min", min=1, help="Keep at least so many.")] = None,
    older_than: Annotated[
        str | None, option("--older-than", help="Expire snapshots committed before this time.")
    ] = None,
    max_deletes: Annotated[int | None, option("--max-deletes", min=1, help="Expire at most so many now.")] = None,
    by_order: Annotated[
        bool, option("--by-order", help="Look at no time: all but the newest --retain-min snapshots go.")
    ] = False,
    branch: Branch = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Delete old snapshots and the files that no tag and no younger snapshot needs."""
    opened = args.open_table(lake, table, branch=branch)
    settings: dict[str, Any] = {
        "retain_max": retain_max,
        "retain_min": retain_min,
        "older_than_ms": args.time_ms(older_than),
        "max_deletes": max_deletes,
        "by_order": by_order,
    }
    if not dry_run:
        say.ask(f"Expire old snapshots of {table}? (--dry-run lists them.)", yes=yes, json=json)
    with say.progress("expiring") as progress:
        report = opened.expire(**settings, dry_run=dry_run, progress=progress)
    facts.print_reports([report], json=json, single=True)


def compact(
    lake: LakeUrl,
    table: TableName,
    full: Annotated[bool, option("--full", help="Rewrite everything into as few files as the settings allow.")] = False,
    partition: Annotated[
        list[str] | None, option("--partition", metavar="KEY=VALUE", help="Only this partition.")
    ] = None,
    branch: Branch = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Rewrite small and overlapping files as larger, sorted ones; no row changes."""
    opened = args.open_table(lake, table, branch=branch)
    with say.progress("compacting") as progress:
        report = opened.compact(
            full=full, where=args.pairs(partition, like="day=2013-01-31") or None, dry_run=dry_run, progress=progress
        )
    say.result(json, facts.of_compaction(report), facts.sentence_of_compaction(table, report))


def remove_orphan_files(
    lake: LakeUrl,
    table: TableName,
    older_than: Annotated[str, option("--older-than", help="Spare files younger than this.")] = "1 d",
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Delete files that no version names, such as those of writers that died."""
    opened = args.open_table(lake, table)
    before_ms = opened.environment.clock.now_ms() - (args.duration_ms(older_than) or 0)
    if not dry_run:
        say.ask(f"Delete the orphan files of {table}? (--dry-run lists them.)", yes=yes, json=json)
    report = opened.remove_orphan_files(older_than_ms=before_ms, dry_run=dry_run)
    facts.print_reports([report], json=json, single=True)


def fsck(
    lake: LakeUrl,
    table: TableName,
    deep: Annotated[bool, option("--deep", help="Read every data file too.")] = False,
    repair_statistics: RepairStatistics = False,
    dry_run: Annotated[
        bool, option("--dry-run", help="With --repair-statistics: read and compare, change nothing.")
    ] = False,
    json: Json = False,
) -> None:
    """Check that everything the table refers to is there and readable. Changes nothing unless told to repair."""
    if args.repairs_statistics(repair_statistics, deep=deep, dry_run=dry_run):
        run_repair(lake, store=table, dry_run=dry_run, json=json)
        return
    from lakebed.fsck.check import check_url

    with say.progress("checking") as progress:
        report = check_url(lake, store=table, deep=deep, storage_options=args.storage_options(), progress=progress)
    facts.print_check(report, json=json)
    if report.error_count:
        raise Exit(exits.FAULTY)


def system(
    lake: LakeUrl,
    table: TableName,
    name: Annotated[
        str,
        argument("NAME", help="snapshots, tags, schemas, files, manifests, options, partitions, branches, consumers."),
    ],
    branch: Branch = None,
    json: Json = False,
) -> None:
    """Print a system table: what the table knows of itself."""
    from lakebed.cli.files import print_rows

    print_rows(args.open_table(lake, table, branch=branch).system(name.removeprefix("$")), json=json)


def _preview_rollback(
    opened: Table, goal: Snapshot, *, target: str | None, timestamp: str | None, as_latest: bool, json: bool
) -> None:
    """Say what a rollback would do."""
    plan = None if as_latest else opened.plan_rollback(target, timestamp_ms=timestamp)
    hidden, freed = (plan.hide, plan.bytes_freed) if plan else ((), 0)
    gone = f"{say.count(len(hidden), 'later version or tag', 'later versions and tags')} and {say.size(freed)} would go"
    say.result(
        json,
        {
            "dry_run": True,
            **facts.of_snapshot(goal),
            "versions": list(hidden),
            "objects": [{"path": one.path, "bytes": one.size_bytes, "why": one.why} for one in plan.doomed]
            if plan
            else [],
            "bytes": freed,
        },
        f"Would roll {opened.name} back to snapshot {goal.id} ({say.ago(goal.time_ms)}, "
        f"{say.count(goal.total_record_count, 'row')}); {'nothing is deleted' if as_latest else gone}.",
    )
