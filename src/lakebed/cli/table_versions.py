"""Commands on versions of a table: history, branches, rollback, expire, compact, collect, system tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from lakebed.cli import arguments, json_output, output, table_output
from lakebed.cli.arguments import PartitionPairs, Timestamp, Version
from lakebed.cli.command import Deletion
from lakebed.cli.context import BranchTableCommand, TableCommand
from lakebed.cli.grammar import argument, option, pairs
from lakebed.errors import InvalidRequest
from lakebed.table.branch.branch_folder import branch_exists, branch_not_found
from lakebed.table.branch.branches import check_branch_name
from lakebed.table.branch.inherited import rollback_target
from lakebed.table.branch.travel import parse_time_ms
from lakebed.table.model.model import Snapshot
from lakebed.texts import list_some

if TYPE_CHECKING:
    from lakebed.table.table import Table

BranchName = Annotated[str, argument("BRANCH", help="The branch's name.")]


class History(BranchTableCommand, name="history"):
    """List the snapshots that have not expired, oldest first, with their tags."""

    limit: Annotated[int | None, option("--limit", min=1, help="Only this many of the newest.")] = None

    def run(self) -> None:
        table = self.open_branch()
        tags: dict[int, list[str]] = {}
        for tag in table.tags():
            tags.setdefault(tag.snapshot.id, []).append(tag.name)
        snapshots = list(table.snapshots())[-self.limit if self.limit else 0 :]
        self.grid(
            [{**table_output.of_snapshot(snapshot), "tags": tags.get(snapshot.id, [])} for snapshot in snapshots],
            ("snapshot", "committed", "kind", "stored", "change", "tags"),
            [
                (
                    str(snapshot.id),
                    output.ago(snapshot.time_ms),
                    _kind(snapshot),
                    f"{snapshot.total_record_count:,}",
                    # A compaction drops replaced rows, but no row that a read returns.
                    "0" if snapshot.commit_kind == "COMPACT" else f"{snapshot.delta_record_count:+,}",
                    ", ".join(tags.get(snapshot.id, [])),
                )
                for snapshot in snapshots
            ],
            right=("snapshot", "stored", "change"),
            less=("stored", "change"),
            sentences=("tags",),
            empty=f"Nothing was written into {self.table} yet.",
        )


def _kind(snapshot: Snapshot) -> str:
    target = rollback_target(snapshot)
    return snapshot.commit_kind.lower() if target is None else f"rollback to {target}"


class Branches(TableCommand, name="branches"):
    """List the branches."""

    def run(self) -> None:
        branches = self.open_table().branches()
        self.grid(
            [
                {"branch": branch.name, "snapshot": branch.fork_snapshot_id, "created_ms": branch.created_ms}
                for branch in branches
            ],
            ("branch", "from snapshot", "created"),
            [(branch.name, str(branch.fork_snapshot_id or "-"), output.ago(branch.created_ms)) for branch in branches],
            right=("from snapshot",),
            less=("created",),
            empty=f"The table {self.table} has no branch.",
        )


class Why(BranchTableCommand, name="why"):
    """Show what keeps a version, and until when."""

    version: Annotated[str, argument("VERSION", help="A snapshot id, a tag or a branch.")]

    def run(self) -> None:
        explanation = self.open_branch().why_version(self.version)
        json_output.print_explanation(explanation, json=self.json, is_version=True)


class CreateBranch(TableCommand, name="branch"):
    """Create a branch of a table. It has its own snapshots and shares the files."""

    name: BranchName
    tag: Annotated[str | None, option("--tag", help="Start from this tag. Default: the newest snapshot.")] = None

    def run(self) -> None:
        branch = self.open_table().create_branch(self.name, tag=self.tag)
        newest = branch.latest()
        start = None if newest is None else newest.id
        self.result(
            {"branch": self.name, "snapshot": start},
            f"The branch {self.name} of {self.table} starts from snapshot {start}.",
        )


class RenameBranch(TableCommand, name="rename-branch"):
    """Rename a branch, with its snapshots and tags."""

    name: BranchName
    to: Annotated[str, argument("NEW", help="Its new name.")]

    def run(self) -> None:
        self.open_table().rename_branch(self.name, self.to)
        self.result(
            {"branch": self.to, "renamed_from": self.name},
            f"The branch {self.name} of {self.table} is called {self.to} now.",
        )


class DropBranch(Deletion, TableCommand, name="drop-branch"):
    """Drop a branch with its snapshots and tags."""

    name: BranchName

    def run(self) -> None:
        table = self.open_table()
        if self.dry_run:
            check_branch_name(self.name)
            if not branch_exists(table.context.store, self.name):
                raise branch_not_found(table.context.store, self.name)
            branch = self.open_table(branch=self.name)
            snapshots, names = [snapshot.id for snapshot in branch.snapshots()], [tag.name for tag in branch.tags()]
            self.result(
                {"branch": self.name, "deleted": False, "dry_run": True, "snapshots": snapshots, "tags": names},
                f"Would drop the branch {self.name} of {self.table} with "
                f"{output.count(len(snapshots), 'snapshot')} and "
                f"{output.count(len(names), 'tag')}{': ' + ', '.join(names) if names else ''}.",
            )
            return
        self.ask(f"Drop the branch {self.name} of {self.table} with its snapshots and tags?")
        table.delete_branch(self.name)
        self.result({"branch": self.name, "deleted": True}, f"Dropped the branch {self.name} of {self.table}.")


class FastForward(TableCommand, name="fast-forward"):
    """Make main equal to a branch, if main has not changed since the branch was created."""

    name: BranchName
    dry_run: Annotated[bool, option("--dry-run", help="Report whether it is allowed; change nothing.")] = False

    def run(self) -> None:
        report = self.open_table().fast_forward(self.name, dry_run=self.dry_run)
        self.result(
            {"branch": self.name, "dry_run": self.dry_run, **table_output.of_snapshot(report)},
            f"Would make {self.table} equal to snapshot {report.id} of its branch {self.name}."
            if self.dry_run
            else f"{self.table} is equal to its branch {self.name} now: snapshot {report.id}.",
        )


class Rollback(Deletion, BranchTableCommand, name="rollback"):
    """Go back to an older version. Later snapshots and tags are deleted with their files, unless --as-latest."""

    version: Version = None
    tag: Annotated[str | None, option("--tag", help="Roll back to this tag.")] = None
    timestamp: Timestamp = None
    as_latest: Annotated[
        bool, option("--as-latest", help="Keep the history: the older version becomes the newest snapshot.")
    ] = False

    def run(self) -> None:
        target = arguments.version_of(self.version, self.tag)
        if (target is None) == (self.timestamp is None):
            raise InvalidRequest(
                "Give exactly one of --version, --tag and --timestamp: where to go back to.", kind="no_version"
            )
        table = self.open_branch()
        goal = table.resolve(version=target, timestamp_ms=self.timestamp)
        if self.dry_run:
            self._preview(table, goal, target)
            return
        if not self.as_latest:
            self.ask(lambda: self._question(table, goal, target))
        verb = table.rollback_to_as_latest if self.as_latest else table.rollback_to
        report = verb(target) if target is not None else verb(timestamp_ms=self.timestamp)
        self.result(
            table_output.of_snapshot(report),
            f"{self.table} is as it was in snapshot {goal.id} again: snapshot {report.id}, "
            f"{output.count(report.total_record_count, 'row')}.",
        )

    def _question(self, table: Table, goal: Snapshot, target: str | None) -> str:
        """Return what would be lost, for the question to the user. Raises the errors of the rollback."""
        hidden_paths = table.plan_rollback(target, timestamp_ms=self.timestamp).hide
        tags = [path.removeprefix("tag/tag-") for path in hidden_paths if path.startswith("tag/tag-")]
        later = output.count(len(hidden_paths) - len(tags), "later version")
        lost_tags = f" and {output.count(len(tags), 'tag')} ({list_some(tags)})" if tags else ""
        return f"Roll {self.table} back to snapshot {goal.id} and delete {later}{lost_tags}?"

    def _preview(self, table: Table, goal: Snapshot, target: str | None) -> None:
        """Print what the rollback would do."""
        plan = None
        if self.as_latest:
            table.rollback_to_as_latest(target, timestamp_ms=self.timestamp, dry_run=True)
        else:
            plan = table.plan_rollback(target, timestamp_ms=self.timestamp)
        hidden_paths, freed = (plan.hide, plan.bytes_freed) if plan else ((), 0)
        later = output.count(len(hidden_paths), "later version or tag", "later versions and tags")
        loss = f"{later} and {output.size(freed)} would be deleted"
        self.result(
            {
                "dry_run": True,
                **table_output.of_snapshot(goal),
                "versions": list(hidden_paths),
                "objects": [
                    {"path": deletable.path, "bytes": deletable.size_bytes, "why": deletable.why}
                    for deletable in plan.doomed
                ]
                if plan
                else [],
                "bytes": freed,
            },
            f"Would roll {table.name} back to snapshot {goal.id} ({output.ago(goal.time_ms)}, "
            f"{output.count(goal.total_record_count, 'row')}); {'nothing is deleted' if self.as_latest else loss}.",
        )


class Expire(Deletion, BranchTableCommand, name="expire"):
    """Delete old snapshots and the files that no tag and no younger snapshot needs."""

    retain_max: Annotated[int | None, option("--retain-max", min=1, help="Keep at most this many snapshots.")] = None
    retain_min: Annotated[int | None, option("--retain-min", min=1, help="Keep at least this many.")] = None
    older_than: Annotated[str | None, option("--older-than", help="Expire snapshots committed before this time.")] = (
        None
    )
    max_deletes: Annotated[int | None, option("--max-deletes", min=1, help="Expire at most this many now.")] = None
    by_order: Annotated[
        bool, option("--by-order", help="Ignore times: expire all but the newest --retain-min snapshots.")
    ] = False

    def run(self) -> None:
        table = self.open_branch()
        older_than_ms = None if self.older_than is None else parse_time_ms(self.older_than)
        self.ask(f"Expire old snapshots of {self.table}? (--dry-run lists them.)")
        with output.progress("expiring") as progress:
            report = table.expire(
                retain_max=self.retain_max,
                retain_min=self.retain_min,
                older_than_ms=older_than_ms,
                max_deletes=self.max_deletes,
                by_order=self.by_order,
                dry_run=self.dry_run,
                progress=progress,
            )
        json_output.print_report(report, json=self.json)


class Compact(BranchTableCommand, name="compact"):
    """Rewrite small and overlapping files as larger, sorted ones; no row changes."""

    full: Annotated[bool, option("--full", help="Rewrite everything into as few files as the settings allow.")] = False
    partition: PartitionPairs = None
    dry_run: Annotated[bool, option("--dry-run", help="Report what would be rewritten; change nothing.")] = False

    def run(self) -> None:
        table = self.open_branch()
        with output.progress("compacting") as progress:
            report = table.compact(
                full=self.full,
                where=pairs(self.partition, like="day=2013-01-31") or None,
                dry_run=self.dry_run,
                progress=progress,
            )
        self.result(table_output.of_compaction(report), table_output.sentence_of_compaction(self.table, report))


class Collect(Deletion, TableCommand, name="collect"):
    """Delete files that no version names, such as those of writers that crashed."""

    grace: Annotated[str, option("--grace", metavar="AGE", help="Keep files that are younger: '6h', '1 d'.")] = "1 d"

    def run(self) -> None:
        table, grace_ms = self.open_table(), arguments.duration_ms(self.grace)
        self.ask(f"Delete the orphan files of {self.table}? (--dry-run lists them.)")
        report = table.collect(grace_ms=grace_ms, dry_run=self.dry_run)
        json_output.print_report(report, json=self.json)
