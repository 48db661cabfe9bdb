"""The collector: deletes what finished transactions left, and what deleted tenants left.

Owns: the order of deletions.

- A committed transaction: the collector deletes the objects that its deadlist names, and those that the commit made
  unneeded. This needs no LIST. It waits for a settle time and for holds of older states. Commits are collected in their
  order, so a deadlist, which is deleted one commit later, has been executed by then.
- A rejected transaction: the collector lists and deletes its prefix, and once more after a settle time.

The task in the ledger is removed last, so a crash at any moment only repeats work. A missing object is normal.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from math import inf
from typing import Final

from lakebed.errors import Conflict, LakebedError, NotFound, Unavailable
from lakebed.fleet import layout, machine, records
from lakebed.fleet.control.context import LOG, ControlContext
from lakebed.fleet.manifest import decode_deadlist
from lakebed.fleet.model import CollectTask, Floor, TenantRecord, TransactionState
from lakebed.metrics import default_registry
from lakebed.objects.port import ObjectStore
from lakebed.reclaim.model import CollectionPlan, Deletable
from lakebed.reclaim.sweep import Sweeper

_COLLECTED: Final = default_registry.counter(
    "lakebed_fleet_collected_total", help_text="Transactions collected, by how they ended.", label_names=("kind",)
)
_OBJECTS: Final = default_registry.counter(
    "lakebed_fleet_collected_objects_total", help_text="Objects that the collector deleted."
)


_PASS_S: Final = 0.5
"""Least time between two passes over one tenant's tasks."""


class Collector:
    """Executes tasks.

    Args:
        storage: the root of the fleet's objects.
    """

    def __init__(self, context: ControlContext, *, storage: ObjectStore) -> None:
        self._context = context
        self._storage = storage
        self._log = context.log
        self._sweeper = Sweeper(storage)
        self._commits_due: dict[str, float] = {}
        self._rejected: dict[tuple[str, int], CollectTask] = {}
        self._rejected_due: dict[tuple[str, int], float] = {}
        self._removals: dict[str, float] = {}
        self._pool = context.environment.runtime.pool(context.options.attaches_max)

    def close(self) -> None:
        """Wait for running calls."""
        self._pool.close()

    def add(self, tasks: Iterable[CollectTask]) -> None:
        """Schedule tasks that were written to the ledger. For commits, only the time of the first is kept."""
        now_s = self._context.now_s()
        for task in tasks:
            if task.kind is TransactionState.COMMITTED:
                at_s = now_s + self._settle_wait_s(task.since_ms)
                if at_s < self._commits_due.get(task.tenant, inf):
                    self._commits_due[task.tenant] = at_s
            else:
                key = (task.tenant, task.txn)
                self._rejected[key] = task
                self._rejected_due.setdefault(key, now_s)

    def remove_tenant(self, tenant: str) -> None:
        """Schedule the removal of what is left of a deleted tenant, once its transactions are over."""
        self._removals[tenant] = self._context.now_s()

    # ---- one round

    def collect_once(self) -> None:
        """Execute all tasks that are due."""
        now_s = self._context.now_s()
        tenants = [tenant for tenant, at_s in list(self._commits_due.items()) if at_s <= now_s]
        rejected = [key for key, at_s in list(self._rejected_due.items()) if at_s <= now_s]
        for tenant in tenants:
            self._commits_due.pop(tenant, None)
        for key in rejected:
            self._rejected_due.pop(key, None)
        for _ in self._pool.map(self._collect_commits, tenants):
            pass
        for _ in self._pool.map(self._collect_one_rejected, rejected):
            pass
        for tenant, at_s in list(self._removals.items()):
            if at_s <= now_s:
                self._removals.pop(tenant, None)
                self._remove(tenant)

    def _collect_commits(self, tenant: str) -> None:
        """Execute the due tasks of a tenant's commits in their order, up to the first that cannot be done now.

        The tasks are read from the ledger, which has those of other control planes too. A task is written with its
        commit, so older tasks are either there or done.
        """
        try:
            left_s = self._collect_in_order(tenant)
        except LakebedError as error:
            LOG.info("not collected", tenant=tenant, error=error.kind)
            left_s = self._context.options.retry_s
        if left_s is not None:
            at_s = self._context.now_s() + max(left_s, _PASS_S)
            self._commits_due[tenant] = min(at_s, self._commits_due.get(tenant, inf))

    def _collect_in_order(self, tenant: str) -> float | None:
        with closing(self._context.ledger.tasks_of(tenant)) as tasks:
            for task in tasks:
                if task.kind is TransactionState.COMMITTED:
                    left_s = self._collect_commit(task)
                    if left_s is not None:
                        return left_s
        return None

    def _collect_one_rejected(self, key: tuple[str, int]) -> None:
        task = self._rejected.get(key)
        if task is None:
            return
        try:
            left_s = self._collect_rejected(task)
        except LakebedError as error:
            LOG.info("not collected", tenant=task.tenant, txn=task.txn, error=error.kind)
            left_s = self._context.options.retry_s
        if left_s is not None:
            self._rejected_due[key] = self._context.now_s() + left_s

    def _settle_wait_s(self, since_ms: int) -> float:
        return (since_ms + self._context.options.grace_ms - self._context.now_ms()) / 1000

    def _collect_commit(self, task: CollectTask) -> float | None:
        """Delete what a commit made unneeded. Return the seconds until that is allowed, or None when it is done."""
        left_s = self._settle_wait_s(task.since_ms)
        if left_s > 0:
            return left_s
        ledger = self._context.ledger
        try:
            record = ledger.tenant(task.tenant, fresh=True)  # a hold that another control plane granted counts too
        except NotFound:  # deleted, with all its objects
            ledger.replace_task(task, None)
            return None
        now_ms = self._context.now_ms()
        if records.is_held(record, task, now_ms=now_ms) and not record.is_deleted:
            ends = [hold.expires_ms for hold in record.holds if hold.txn < task.txn and hold.expires_ms > now_ms]
            return (min(ends) - now_ms) / 1000
        self._sweep(task.tenant, (*self._dead(task), *task.unneeded), why=f"replaced by transaction {task.txn}")
        if self._log is not None:
            for timeline in task.timelines:
                self._log.drop(layout.log_key(task.tenant, timeline))
        self._finish(task)
        return None

    def _dead(self, task: CollectTask) -> tuple[str, ...]:
        """Return the paths in a task's deadlist.

        A missing deadlist was executed, and deleted with the next commit's task.
        """
        if task.deadlist is None:
            return ()
        try:
            raw = self._storage.get(task.deadlist)
        except NotFound:
            return ()
        return decode_deadlist(raw, path=task.deadlist).paths

    def _collect_rejected(self, task: CollectTask) -> float | None:
        """Delete everything under the prefix of a rejected transaction, twice."""
        if task.listed_ms is not None:
            left_s = self._settle_wait_s(task.listed_ms)
            if left_s > 0:
                return left_s
        folder = layout.txn_folder(task.tenant, task.txn)
        paths = tuple(meta.path for meta in self._storage.list(folder))
        self._sweep(task.tenant, paths, why=f"of the rejected transaction {task.txn}")
        if task.listed_ms is not None:
            self._finish(task)
            return None
        now_ms = self._context.now_ms()
        new = CollectTask(task.tenant, task.txn, task.kind, since_ms=task.since_ms, listed_ms=now_ms)
        self._context.ledger.replace_task(task, new)
        self._rejected[task.tenant, task.txn] = new
        return self._settle_wait_s(now_ms)

    def _finish(self, task: CollectTask) -> None:
        ledger = self._context.ledger
        finished = None
        if task.kind is not TransactionState.COMMITTED:
            transaction = ledger.finished(task.tenant, task.txn)
            finished = None if transaction is None else machine.collect(transaction, now_ms=self._context.now_ms())
        ledger.replace_task(task, None, finished=finished)
        self._rejected.pop((task.tenant, task.txn), None)
        _COLLECTED.add(1, task.kind.value)

    def _sweep(self, tenant: str, paths: tuple[str, ...], *, why: str) -> None:
        """Delete objects of a tenant. Raises `Unavailable` if some could not be deleted."""
        folder = f"{layout.tenant_folder(tenant)}/"
        deletable = tuple(Deletable(path, 0, why) for path in dict.fromkeys(paths) if path.startswith(folder))
        if not deletable:
            return
        report = self._sweeper.sweep(CollectionPlan(store=layout.tenant_folder(tenant), hide=(), doomed=deletable))
        _OBJECTS.add(report.deleted_count)
        if report.warnings:
            raise Unavailable(report.warnings[0], kind="not_deleted")

    # ---- deleted tenants

    def _remove(self, tenant: str) -> None:
        """Remove everything that a deleted tenant left, once none of its transactions can write any more."""
        ledger = self._context.ledger
        again_s = self._context.retry_at_s()
        try:
            record = ledger.tenant(tenant, fresh=True)
            if not record.is_deleted:
                return
            if record.transactions or any(
                task.kind is not TransactionState.COMMITTED for task in ledger.tasks_of(tenant)
            ):
                self._removals[tenant] = again_s
                return
            self._remove_all(record)
        except NotFound:
            return
        except LakebedError as error:
            LOG.info("tenant not removed", tenant=tenant, error=error.kind)
            self._removals[tenant] = again_s

    def _remove_all(self, record: TenantRecord) -> None:
        ledger, tenant = self._context.ledger, record.tenant
        tasks = list(ledger.tasks_of(tenant))
        paths = tuple(meta.path for meta in self._storage.list(layout.tenant_folder(tenant)))
        self._sweep(tenant, paths, why="of a deleted tenant")
        if self._log is not None:
            removed = {timeline for task in tasks for timeline in task.timelines}
            removed |= {timeline for timeline, progress in record.timelines.items() if not progress.is_read_only}
            for timeline in sorted(removed):
                self._log.drop(layout.log_key(tenant, timeline))
        for task in tasks:
            ledger.replace_task(task, None)
        try:
            ledger.remove(record, Floor(record.next_txn, record.next_generation))
        except Conflict:
            self._removals[tenant] = self._context.now_s()
            return
        message = f"The tenant {tenant} and all its objects are deleted."
        self._context.events.add("tenant_removed", message, tenant=tenant)
