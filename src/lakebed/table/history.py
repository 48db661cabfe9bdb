"""The verbs that let versions go or bring them back, wired for one table or branch.

Owns: `History`, which the facade delegates to: it puts together the `Line` those verbs work on. No logic of its own:
see `expire`, `rollback`, `orphans`, `why`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from lakebed.errors import InvalidRequest
from lakebed.reclaim.model import Explanation, ReclaimPlan, ReclaimReport
from lakebed.table.branches import Branches, fork_pin
from lakebed.table.commit import Committer
from lakebed.table.deletion import ProgressCall
from lakebed.table.expire import delete_tags, expire, expire_tags, plan_reclaim, replace_tag, retention_of
from lakebed.table.fast_forward import fast_forward, plan_fast_forward, take_schemas
from lakebed.table.holders import Line
from lakebed.table.model import Snapshot, Tag
from lakebed.table.orphans import ORPHAN_AGE_MS, remove_orphan_files
from lakebed.table.placement import check_placement
from lakebed.table.rollback import plan_rollback, roll_back
from lakebed.table.tags import Source
from lakebed.table.travel import Resolved, Time, Travel
from lakebed.table.why import bytes_alone, why

__all__ = ["History"]


@dataclass(frozen=True, slots=True)
class History:
    """What may go and what may come back, on one line of versions."""

    whole: Line
    """The line, its fork not looked up yet."""
    committer: Committer
    travel: Travel
    branching: Branches
    refresh: Callable[[], object]
    """Looks for a newer schema: options are read afresh by every verb."""

    def line(self) -> Line:
        """The line with its fork; on main nothing is read.

        Raises:
            InvalidRequest: a branch of another client, which left no pin in main: which files are shared is unknown.
        """
        self.refresh()
        branch = self.whole.layout.branch
        if branch is None:
            return self.whole
        pin = self.lines()[0].tags.find(fork_pin(branch))
        if pin is None:
            if not self.branching.exists(branch):
                raise self.branching.absent(branch)
            raise InvalidRequest(
                f"The branch {branch!r} was made by another client, so which of its files are main's is unknown: "
                "nothing can be deleted in it.",
                kind="foreign_branch",
                branch=branch,
            )
        return replace(self.whole, fork=pin.snapshot)

    def _cleanable(self) -> Line:
        """As `line`, of a table whose files are where lakebed looks for them. Raises as `check_placement`."""
        line = self.line()
        check_placement(line.schema())
        return line

    def lines(self) -> list[Line]:
        """Main and every branch, whatever line this is."""
        return [self.whole.of_branch(branch) for branch in (None, *self.branching.names())]

    def expire(
        self,
        *,
        retain_max: int | None,
        retain_min: int | None,
        older_than_ms: int | None,
        max_deletes: int | None,
        by_order: bool,
        dry_run: bool,
        progress: ProgressCall | None,
    ) -> ReclaimReport:
        """See `Table.expire`."""
        line = self._cleanable()
        retention = retention_of(
            line,
            retain_max=retain_max,
            retain_min=retain_min,
            older_than_ms=older_than_ms,
            max_deletes=max_deletes,
            by_order=by_order,
        )
        return expire(line, retention=retention, dry_run=dry_run, progress=progress)

    def delete_tags(self, names: tuple[str, ...], *, if_exists: bool, dry_run: bool) -> ReclaimReport:
        """See `Table.delete_tag`."""
        return delete_tags(self._cleanable(), names, if_exists=if_exists, dry_run=dry_run)

    def expire_tags(self, *, older_than_ms: int | None, dry_run: bool) -> ReclaimReport:
        """See `Table.expire_tags`."""
        return expire_tags(self._cleanable(), older_than_ms=older_than_ms, dry_run=dry_run)

    def replace_tag(self, name: str, *, source: Source, time_retained_ms: int | None) -> Tag:
        """See `Table.replace_tag`."""
        return replace_tag(self._cleanable(), name, source=source, time_retained_ms=time_retained_ms)

    def roll_back(
        self, version: int | str | None, *, timestamp_ms: Time | None, keeps_history: bool, dry_run: bool = False
    ) -> Snapshot:
        """See `Table.rollback_to` and `Table.rollback_to_as_latest`."""
        target = self._target(version, timestamp_ms)
        line = self._cleanable()
        if dry_run:
            plan_rollback(line, target.snapshot)
            return target.snapshot
        return roll_back(line, target.snapshot, committer=self.committer, tag=target.tag, keeps_history=keeps_history)

    def fast_forward(self, branch: str, *, dry_run: bool) -> Snapshot:
        """See `Table.fast_forward`."""
        main = self._cleanable()
        if main.layout.branch is not None:
            raise InvalidRequest(
                f"Main is fast-forwarded, and this table is its branch {main.layout.branch!r}: call it on the table.",
                kind="branch_of_branch",
                branch=main.layout.branch,
            )
        if not self.branching.exists(branch):
            raise self.branching.absent(branch)
        forward = plan_fast_forward(main, branch)
        if forward.is_done:
            return forward.head
        if dry_run:
            return forward.target
        take_schemas(main, branch)
        self.refresh()
        return fast_forward(main, forward, committer=self.committer)

    def plan_rollback(self, version: int | str | None, *, timestamp_ms: Time | None) -> ReclaimPlan:
        """See `Table.plan_rollback`."""
        return plan_rollback(self.line(), self._target(version, timestamp_ms).snapshot)

    def _target(self, version: int | str | None, timestamp_ms: Time | None) -> Resolved:
        if version is None and timestamp_ms is None:
            raise InvalidRequest("Say what to go back to: a version or a timestamp.", kind="no_version")
        target = self.travel.resolve(version=version, timestamp=timestamp_ms)
        if target.branch is not None:
            raise InvalidRequest(
                f"{version!r} is a branch: go back to a snapshot or a tag of this line.", kind="rollback_to_branch"
            )
        return target

    def remove_orphan_files(self, *, older_than_ms: int | None, dry_run: bool) -> ReclaimReport:
        """See `Table.remove_orphan_files`."""
        self.refresh()
        check_placement(self.whole.schema())
        if older_than_ms is None:
            older_than_ms = self.whole.environment.clock.now_ms() - ORPHAN_AGE_MS
        return remove_orphan_files(self.lines(), older_than_ms=older_than_ms, dry_run=dry_run)

    def plan_reclaim(self) -> ReclaimPlan:
        """See `Table.plan_reclaim`."""
        return plan_reclaim(self.line())

    def why(self, path: str) -> Explanation:
        """See `Table.why`."""
        self.refresh()
        main, *branches = self.lines()
        return why(main, path, branches=branches)

    def bytes_alone(self, tag: str) -> int:
        """See `Table.bytes_alone`."""
        return bytes_alone(self.line(), tag)
