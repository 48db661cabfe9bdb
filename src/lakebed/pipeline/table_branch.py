"""The branch of each table that a pipeline with ``table_branch`` writes to: write, audit, publish.

Owns: creating, finding, publishing and deleting these branches. A table is in its branch from the first step that
writes to it until it is published. Before and after that, steps read main. Every record of a step on a branch has
``branch_id``, the id of the branch's pin in main. A branch that was dropped and created again under the same name has a
different id.

Invariants:
- The commit that publishes the branch has the user ``table-branch:<branch_id>``, so whether a branch was published is
  read from main, whichever run published it.
- A branch is deleted only after its rows are in main, or when no step put rows into it.
- A run neither continues nor publishes rows in a branch that it, or the run that it takes over from, did not write.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lakebed.errors import Conflict
from lakebed.pipeline.measure import BRANCH_ID
from lakebed.pipeline.model import StepRecord
from lakebed.pipeline.nodes import SourceLocation
from lakebed.table.branch.branch_folder import branch_exists, branch_id, fork_pin
from lakebed.table.branch.earlier_commits import find_commit
from lakebed.table.commit.commit import CommitOptions, CommitRequest, commit
from lakebed.table.model.model import Snapshot, Tag
from lakebed.table.table import Table, branch_of
from lakebed.table.versions.fast_forward import fast_forward

_IDENTIFIER = 1
_NEW_RUN = "; after a call with --run-id, give another id"
"""A run does each step once."""


@dataclass(frozen=True, slots=True)
class _Work:
    """What the recorded steps did in the newest branch of a table."""

    branch_id: str
    snapshot: int | None
    """The newest that they committed there; None: no step had rows."""


@dataclass(slots=True)
class TableBranches:
    """The branches of one run's tables."""

    name: str
    """Name of the branch, the same in every table."""
    commit_user: str
    """Commit user of the run."""
    records: Sequence[StepRecord]
    """Steps done so far; it grows with the run."""
    _opened: dict[str, str] = field(default_factory=dict)

    def open(self, main: Table, table: str, *, writes: bool, location: SourceLocation) -> Table:
        """Return the table as a step must see it: in its branch, or main.

        Args:
            writes: the step changes rows: the branch is created when there is none.

        Raises `Conflict`: the branch with the run's rows is gone, or another run's rows are in it. Cost: 1 GET; in a
        branch also 2 LISTs and 3 GETs.
        """
        self._opened.pop(table, None)
        work, pin = _work(self.records, table), main.context.tags.find(fork_pin(self.name))
        is_known = work is not None and pin is not None and work.branch_id == _id(pin)
        if work is not None and _publication(main, work.branch_id) is None:
            if is_known:
                return self._enter_branch(main, table, work.branch_id)
            if work.snapshot is not None:
                raise self._branch_error(table, location)
        if not writes:
            return main
        if is_known:  # published, and its deletion was cut short
            main.delete_branch(self.name)
        elif branch_exists(main.store, self.name):
            self._check_left(main, table, pin, location)
            return self._enter_branch(main, table, _id(pin))
        if main.latest() is None:  # a branch starts from a snapshot
            commit(main.context, CommitRequest(kind="APPEND"))
        main.create_branch(self.name)
        return self._enter_branch(main, table, _id(main.context.tags.find(fork_pin(self.name))))

    def mark(self, metrics: dict[str, Any]) -> dict[str, Any]:
        """Return the metrics of a step, with the branch that it worked in."""
        branch = self._opened.get(metrics.get("table", ""))
        return metrics if branch is None else {**metrics, "branch": self.name, BRANCH_ID: branch}

    def publish(
        self, open_main: Callable[[str], Table], *, dry_run: bool, location: SourceLocation
    ) -> Mapping[str, Sequence[Any]]:
        """Fast-forward main of each table to its branch, and delete the branch, in the order of the first writes.

        Every table is checked before the first is published.

        Returns ``published``: tables with their snapshots in main, and whether an earlier call published them; with
        `dry_run` instead ``planned``: the tables that would be published.
        Raises `Conflict`: kind ``not_fast_forward``: main of a table has moved; no later table was published. Or the
        branch does not have the rows that the run wrote. Cost: a table: see `Table.fast_forward`, and the deletion.
        """
        tables = {name: open_main(name) for name in self._tables_in_work()}
        planned: list[str] = []
        done: dict[str, Snapshot] = {}
        for name, main in tables.items():
            work = _work(self.records, name)
            assert work is not None
            published = _publication(main, work.branch_id)
            if published is not None:
                done[name] = published
            elif work.snapshot is not None:
                self._check_work(main, name, work, location)
                planned.append(name)
        for name in planned:
            self._forward(tables[name], name, dry_run=True, done_names=list(done), location=location)
        if dry_run:
            return {"planned": planned, "published": _entries(done, planned)}
        for name, main in tables.items():
            if name in planned:
                done[name] = self._forward(main, name, dry_run=False, done_names=list(done), location=location)
            self._delete(main, name)
        return {"published": _entries(done, planned)}

    # ---- parts

    def _enter_branch(self, main: Table, table: str, branch_id: str) -> Table:
        self._opened[table] = branch_id
        return branch_of(main, self.name)

    def _tables_in_work(self) -> list[str]:
        """Tables that steps since the last publication worked on in a branch, in the order of their first writes."""
        names: dict[str, None] = {}
        for record in self.records:
            if record.verb == "publish" and not record.metrics.get("dry_run"):
                names.clear()
            elif BRANCH_ID in record.metrics:
                names[record.metrics["table"]] = None
        return list(names)

    def _forward(
        self, main: Table, table: str, *, dry_run: bool, done_names: Sequence[str], location: SourceLocation
    ) -> Snapshot:
        work = _work(self.records, table)
        assert work is not None
        identity = CommitOptions(commit_user=_user(work.branch_id), commit_identifier=_IDENTIFIER)
        try:
            return fast_forward(main.context, self.name, dry_run=dry_run, identity=identity)
        except Conflict as error:
            if error.kind != "not_fast_forward":
                raise
            before = f"Published before it: {', '.join(done_names)}." if done_names else "Nothing was published."
            raise Conflict(
                f"{location}: main of '{table}' has moved since its branch '{self.name}' started, so it cannot be "
                f"published. {before} Drop the branch (`lakebed table drop-branch`), then write to the table again "
                f"with --replay and the names of its steps{_NEW_RUN}.",
                kind="not_fast_forward",
                table=table,
                branch=self.name,
            ) from error

    def _delete(self, main: Table, table: str) -> None:
        """Delete the branch that the run worked in; one of another id stays."""
        work, pin = _work(self.records, table), main.context.tags.find(fork_pin(self.name))
        if work is not None and pin is not None and _id(pin) == work.branch_id:
            main.delete_branch(self.name)

    def _check_work(self, main: Table, table: str, work: _Work, location: SourceLocation) -> None:
        """Check that the branch ends with the run's newest commit; compactions after it change no rows."""
        pin = main.context.tags.find(fork_pin(self.name))
        if pin is None or _id(pin) != work.branch_id or work.snapshot is None:
            raise self._branch_error(table, location)
        snapshots = branch_of(main, self.name).context.snapshots
        newest = snapshots.latest()
        while newest is not None and newest.id > work.snapshot and newest.commit_kind == "COMPACT":
            newest = snapshots.find(newest.id - 1)
        if newest is None or newest.id != work.snapshot:
            raise Conflict(
                f"{location}: the branch '{self.name}' of '{table}' has commits after snapshot {work.snapshot}, which "
                "the steps of the run did not make, so it is not published. Roll the branch back to that snapshot, or "
                f"drop it and write to the table again with --replay and the names of its steps{_NEW_RUN}.",
                kind="branch_written",
                table=table,
                branch=self.name,
            )

    def _check_left(self, main: Table, table: str, pin: Tag | None, location: SourceLocation) -> None:
        """Check that a branch without a record is empty or has only the commit of a killed call of this run."""
        newest = branch_of(main, self.name).latest()
        if pin is not None and newest is not None:
            is_empty = newest.delta_manifest_list == pin.snapshot.delta_manifest_list
            if is_empty or f"{newest.commit_user}:".startswith(f"{self.commit_user}:"):
                return
        raise Conflict(
            f"{location}: the branch '{self.name}' of '{table}' has rows that this run did not write, and that were "
            "not published. Finish the run that wrote them, or drop the branch (`lakebed table drop-branch`).",
            kind="branch_taken",
            table=table,
            branch=self.name,
        )

    def _branch_error(self, table: str, location: SourceLocation) -> Conflict:
        return Conflict(
            f"{location}: the run wrote to the branch '{self.name}' of '{table}', which was dropped before it was "
            f"published: its rows are gone. Write them again with --replay and the names of the steps{_NEW_RUN}.",
            kind="branch_gone",
            table=table,
            branch=self.name,
        )


def _work(records: Sequence[StepRecord], table: str) -> _Work | None:
    metrics = [
        record.metrics for record in records if record.metrics.get("table") == table and BRANCH_ID in record.metrics
    ]
    if not metrics:
        return None
    branch_id = metrics[-1][BRANCH_ID]
    snapshots = [
        step_metrics["snapshot"]
        for step_metrics in metrics
        if step_metrics[BRANCH_ID] == branch_id and "committed_ms" in step_metrics
    ]
    return _Work(branch_id, max(snapshots, default=None))


def _id(pin: Tag | None) -> str:
    return "0" if pin is None else branch_id(pin)


def _user(branch_id: str) -> str:
    return f"table-branch:{branch_id}"


def _publication(main: Table, branch_id: str) -> Snapshot | None:
    """Return the snapshot of main that published a branch; None: it was not published."""
    return find_commit(main.context, _user(branch_id), _IDENTIFIER)


def _entries(done: Mapping[str, Snapshot], planned_names: Sequence[str]) -> list[dict[str, Any]]:
    return [
        {"table": name, "snapshot": snapshot.id, "committed_ms": snapshot.time_ms, "earlier": name not in planned_names}
        for name, snapshot in done.items()
    ]
