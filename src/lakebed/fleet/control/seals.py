"""The logs of timelines: those of timelines that lost their name are sealed, the others are pruned.

Owns: when a log is sealed, so that it takes no rows any more. The write that takes a timeline's name away (the commit
of a deletion or restore, or the deletion of a tenant) records this in the ledger. None of these is ever undone, so a
seal never ends a timeline that is in use. Any control plane may make it, late and repeatedly. Routes and the answer to
the change wait for the seal: a client that sees the new name knows that no client writes to the old timeline.

Owns: how far a log is pruned: up to the committed LSN of the ledger, and never further. What a node reports does not
count: its work since the last commit may be lost, and another node then reads the log again from the committed LSN. So
the LSN is read from the store, where it is durable.
"""

from __future__ import annotations

from contextlib import suppress

from lakebed.errors import Closed, Fenced, LakebedError, NotFound, OutcomeUnknown, Unavailable
from lakebed.fleet import layout, machine
from lakebed.fleet.control.context import LOG, ControlContext, ManagedLog
from lakebed.fleet.model import TenantRecord


class Seals:
    """Seals the logs of timelines that have lost their names."""

    def __init__(self, context: ControlContext) -> None:
        self._context = context
        self._due: dict[str, float] = {}

    def look_at(self, record: TenantRecord) -> None:
        """Seal what a record says in the next round, even if no caller asks for it."""
        if record.sealing:
            self._due.setdefault(record.tenant, self._context.now_s())

    def seal_once(self) -> None:
        """Seal what is due. Cost: a read of the ledger a tenant, a call of the log a timeline, 1 write."""
        now_s = self._context.now_s()
        for tenant in [tenant for tenant, at_s in list(self._due.items()) if at_s <= now_s]:
            self._due.pop(tenant, None)
            try:
                self.seal(self._context.ledger.tenant(tenant, fresh=True))
            except NotFound:
                continue
            except (Closed, Fenced):  # this process does not own the ledger any more
                raise
            except LakebedError as error:
                LOG.info("log not sealed", tenant=tenant, error=error.kind)
                self._due[tenant] = self._context.retry_at_s()

    def seal(self, record: TenantRecord) -> None:
        """Seal what a record says. Idempotent. Raises `Unavailable`: the log does not answer; ask again.

        Cost: nothing, as a rule; else a call of the log a timeline, and 1 write.
        """
        tenant, timelines = record.tenant, record.sealing
        if not timelines:
            return
        try:
            for timeline in timelines:
                self._end(layout.log_key(tenant, timeline))
            self._context.ledger.change(tenant, lambda now: machine.note_sealed(now, timelines))
        except OutcomeUnknown as error:
            raise Unavailable(error.message, kind=error.kind, tenant=tenant) from error

    def _end(self, key: str) -> None:
        log = self._context.log
        try:
            if log is not None:
                log.seal(key)
        except NotFound:  # it was never begun; drop it, so that a late request does not begin it
            assert log is not None
            log.drop(key)

    def conclude(self, tenant: str, what: str) -> None:
        """Seal what a change has left, before the change is answered.

        Raises `OutcomeUnknown`: the change is in the ledger, but not all is sealed: ask again.
        """
        try:
            self.seal(self._context.ledger.tenant(tenant, fresh=True))
        except NotFound:  # it has been removed since
            return
        except Unavailable as error:
            self._due.setdefault(tenant, self._context.now_s())  # even if the caller does not ask again
            raise OutcomeUnknown(
                f"{what} is decided, and the log does not answer yet, so clients may still write as before: ask again. "
                f"{error.message}",
                kind=error.kind,
                tenant=tenant,
            ) from error


class Pruner:
    """Prunes the logs of tenants that have committed."""

    def __init__(self, context: ControlContext) -> None:
        self._context = context
        self._log = context.log
        self._due: dict[str, float] = {}
        self._pruned: dict[str, dict[str, int]] = {}

    def look_at(self, tenant: str) -> None:
        """Make the log of a tenant that has committed due. It is pruned at most once in an interval."""
        if self._log is not None and tenant not in self._due:
            interval_s = self._context.options.prune_interval_ms / 1000 if tenant in self._pruned else 0.0
            self._due[tenant] = self._context.now_s() + interval_s

    def prune_once(self) -> None:
        """Prune what is due. Cost: a read of the ledger, and a call of the log for each timeline with a newer LSN."""
        if self._log is None:
            return
        now_s = self._context.now_s()
        due = [tenant for tenant, at_s in list(self._due.items()) if at_s <= now_s]
        if not due:
            return
        for tenant in due:
            self._due.pop(tenant, None)
        try:
            tenant_records = self._context.ledger.some(due)
        except LakebedError:
            self._again(due)
            raise
        for tenant, record in zip(due, tenant_records, strict=True):
            if record is None or record.is_deleted:
                self._pruned.pop(tenant, None)
                continue
            try:
                self._prune(self._log, record)
            except LakebedError as error:
                LOG.info("log not pruned", tenant=tenant, error=error.kind)
                self._again([tenant])

    def _again(self, tenants: list[str]) -> None:
        self._due.update(dict.fromkeys(tenants, self._context.retry_at_s()))

    def _prune(self, log: ManagedLog, record: TenantRecord) -> None:
        tenant = record.tenant
        pruned = self._pruned.setdefault(tenant, {})
        for timeline, progress in record.timelines.items():
            if progress.is_read_only or progress.lsn <= pruned.get(timeline, 0):
                continue
            with suppress(NotFound):
                log.prune(layout.log_key(tenant, timeline), progress.lsn)
            pruned[timeline] = progress.lsn
        for timeline in pruned.keys() - record.timelines.keys():
            del pruned[timeline]
