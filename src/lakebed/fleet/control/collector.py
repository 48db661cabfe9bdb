"""The collector: deletes what finished transactions left, and what deleted tenants left.

Owns: the order of deletions. A committed transaction: its deadlist is read, and what it names is deleted with what the
commit made unneeded, no LIST; after a settle time, after holds of older states, and in the order of the commits (so a
deadlist that is deleted one commit later has been executed). A rejected one: its prefix is listed and deleted, and once
more after a settle time. The task in the ledger goes last, so a crash at any moment repeats the work; a missing object
is normal.

Does not know: how a deadlist came about.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from lakebed.errors import Conflict, LakebedError, NotFound, Unavailable
from lakebed.fleet import layout, machine, records
from lakebed.fleet.control.context import LOG, ControlContext
from lakebed.fleet.manifest import decode_deadlist
from lakebed.fleet.model import CollectTask, Floor, TenantRecord, TransactionState
from lakebed.metrics import default_registry
from lakebed.objects.port import ObjectStore
from lakebed.reclaim.model import Deletable, ReclaimPlan
from lakebed.reclaim.sweep import Sweeper

_COLLECTED: Final = default_registry.counter(
    "lakebed_fleet_collected_total", help_text="Transactions collected, by how they ended.", label_names=("kind",)
)
_OBJECTS: Final = default_registry.counter(
    "lakebed_fleet_collected_objects_total", help_text="Objects that the collector deleted."
)


class Collector:
    """Executes tasks.

    Args:
        storage: the root of the fleet's objects.
    """

    def __init__(self, context: ControlContext, *, storage: ObjectStore) -> None:
        self._context = context
        self._storage = storage
        self._log = context.log
        self._sweeper = Sweeper(storage, context.environment)
        self._tasks: dict[str, dict[int, CollectTask]] = {}
        self._due: dict[str, float] = {}
        self._removals: dict[str, float] = {}
        self._pool = context.environment.runtime.pool(context.options.attaches_max)

    def close(self) -> None:
        """Wait for running calls."""
        self._pool.close()

    def add(self, tasks: Iterable[CollectTask]) -> None:
        """Tasks that were written to the ledger."""
        for task in tasks:
            self._tasks.setdefault(task.tenant, {})[task.txn] = task
            self._look_at(task.tenant, in_s=0.0)

    def remove_tenant(self, tenant: str) -> None:
        """A tenant is deleted: remove what is left of it once its transactions are over."""
        self._removals[tenant] = self._context.now_s()

    def _look_at(self, tenant: str, *, in_s: float) -> None:
        at_s = self._context.now_s() + in_s
        self._due[tenant] = min(at_s, self._due.get(tenant, at_s))

    # ---- one round

    def collect_once(self) -> None:
        """Execute all tasks that are due."""
        now_s = self._context.now_s()
        due = [tenant for tenant, at_s in list(self._due.items()) if at_s <= now_s]
        for tenant in due:
            self._due.pop(tenant, None)
        for _ in self._pool.map(self._collect_tenant, due):
            pass
        for tenant, at_s in list(self._removals.items()):
            if at_s <= now_s:
                self._removals.pop(tenant, None)
                self._remove(tenant)

    def _collect_tenant(self, tenant: str) -> None:
        """Due tasks of a tenant in order; the committed ones end at the first that cannot be done now."""
        tasks = self._tasks.get(tenant, {})
        if any(task.kind is TransactionState.COMMITTED for task in tasks.values()):
            try:
                self._learn_older(tenant, tasks)
            except LakebedError as error:
                LOG.info("not collected", tenant=tenant, error=error.kind)
                self._look_at(tenant, in_s=self._context.options.retry_ms / 1000)
                return
        wait_s = None
        commits_wait = False
        for txn, task in sorted(tasks.items()):
            is_commit = task.kind is TransactionState.COMMITTED
            if is_commit and commits_wait:
                continue
            try:
                left_s = self._collect_commit(task) if is_commit else self._collect_rejected(task)
            except LakebedError as error:
                LOG.info("not collected", tenant=tenant, txn=txn, error=error.kind)
                left_s = self._context.options.retry_ms / 1000
            if left_s is not None:
                wait_s = left_s if wait_s is None else min(wait_s, left_s)
                commits_wait = commits_wait or is_commit
        if not tasks:
            self._tasks.pop(tenant, None)
        if wait_s is not None:
            self._look_at(tenant, in_s=wait_s)

    def _learn_older(self, tenant: str, tasks: dict[int, CollectTask]) -> None:
        """Other control planes granted some of the commits: a task is executed after all older ones.

        A task is written with its commit, so the older ones of a known task are in the ledger, or done.
        """
        for task in self._context.ledger.tasks_of(tenant):
            tasks.setdefault(task.txn, task)

    def _settled_in_s(self, since_ms: int) -> float:
        return (since_ms + self._context.options.settle_ms - self._context.now_ms()) / 1000

    def _collect_commit(self, task: CollectTask) -> float | None:
        """Delete what a commit made unneeded; seconds until it may be, or None when it is done."""
        left_s = self._settled_in_s(task.since_ms)
        if left_s > 0:
            return left_s
        ledger = self._context.ledger
        try:
            record = ledger.tenant(task.tenant)
        except NotFound:  # deleted, with all its objects
            self._tasks[task.tenant].pop(task.txn, None)
            ledger.replace_task(task, None)
            return None
        now_ms = self._context.now_ms()
        if records.is_held(record, task, now_ms=now_ms) and not record.is_deleted:
            ends = [one.expires_ms for one in record.holds if one.txn < task.txn and one.expires_ms > now_ms]
            return (min(ends) - now_ms) / 1000
        self._sweep(task.tenant, (*self._dead(task), *task.unneeded), why=f"replaced by transaction {task.txn}")
        if self._log is not None:
            for timeline in task.timelines:
                self._log.drop(layout.log_key(task.tenant, timeline))
        self._done(task)
        return None

    def _dead(self, task: CollectTask) -> tuple[str, ...]:
        """What a deadlist names. A missing one was executed, and deleted with the next commit's."""
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
            left_s = self._settled_in_s(task.listed_ms)
            if left_s > 0:
                return left_s
        folder = layout.txn_folder(task.tenant, task.txn)
        paths = tuple(one.path for one in self._storage.list(folder))
        self._sweep(task.tenant, paths, why=f"of the rejected transaction {task.txn}")
        if task.listed_ms is not None:
            self._done(task)
            return None
        now_ms = self._context.now_ms()
        new = CollectTask(task.tenant, task.txn, task.kind, since_ms=task.since_ms, listed_ms=now_ms)
        self._context.ledger.replace_task(task, new)
        self._tasks[task.tenant][task.txn] = new
        return self._settled_in_s(now_ms)

    def _done(self, task: CollectTask) -> None:
        ledger = self._context.ledger
        finished = None
        if task.kind is not TransactionState.COMMITTED:
            found = ledger.finished(task.tenant, task.txn)
            finished = None if found is None else machine.collected(found, now_ms=self._context.now_ms())
        ledger.replace_task(task, None, finished=finished)
        self._tasks.get(task.tenant, {}).pop(task.txn, None)
        _COLLECTED.add(1, task.kind.value)

    def _sweep(self, tenant: str, paths: tuple[str, ...], *, why: str) -> None:
        """Delete objects of a tenant. Raises `Unavailable` when not all could be."""
        inside = f"{layout.tenant_folder(tenant)}/"
        doomed = tuple(Deletable(path, 0, why) for path in dict.fromkeys(paths) if path.startswith(inside))
        if not doomed:
            return
        report = self._sweeper.sweep(ReclaimPlan(store=layout.tenant_folder(tenant), hide=(), doomed=doomed))
        _OBJECTS.add(report.deleted_count)
        if report.warnings:
            raise Unavailable(report.warnings[0], kind="not_deleted")

    # ---- deleted tenants

    def _remove(self, tenant: str) -> None:
        """Remove all that a deleted tenant left, when none of its transactions can write any more."""
        ledger = self._context.ledger
        again_s = self._context.now_s() + self._context.options.retry_ms / 1000
        try:
            record = ledger.tenant(tenant, fresh=True)
            if not record.is_deleted:
                return
            if record.transactions or any(
                one.kind is not TransactionState.COMMITTED for one in ledger.tasks_of(tenant)
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
        tasks = ledger.tasks_of(tenant)
        paths = tuple(one.path for one in self._storage.list(layout.tenant_folder(tenant)))
        self._sweep(tenant, paths, why="of a deleted tenant")
        if self._log is not None:
            gone = {timeline for task in tasks for timeline in task.timelines}
            for timeline in sorted(gone | set(record.timelines)):
                self._log.drop(layout.log_key(tenant, timeline))
        for task in tasks:
            ledger.replace_task(task, None)
        self._tasks.pop(tenant, None)
        try:
            ledger.remove(record, Floor(record.next_txn, record.next_generation))
        except Conflict:
            self._removals[tenant] = self._context.now_s()
            return
        self._context.events.add("tenant_removed", "The tenant and all its objects are deleted.", tenant=tenant)
