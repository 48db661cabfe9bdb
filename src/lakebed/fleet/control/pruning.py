"""Pruning: the log of a timeline is cut off up to the committed LSN of the ledger, and never further.

Owns: when a log is pruned. What a node reports does not count: its work since the last commit may be lost, and another
node reads the log again from the committed LSN. So the LSN is read from the store, where it is durable.
"""

from __future__ import annotations

from contextlib import suppress

from lakebed.errors import LakebedError, NotFound
from lakebed.fleet import layout
from lakebed.fleet.control.context import LOG, ControlContext, ManagedLog
from lakebed.fleet.model import TenantRecord


class Pruner:
    """Prunes the logs of tenants that have committed."""

    def __init__(self, context: ControlContext) -> None:
        self._context = context
        self._log = context.log
        self._due: dict[str, float] = {}
        self._pruned: dict[str, dict[str, int]] = {}

    def look_at(self, tenant: str) -> None:
        """A tenant has committed. Its log is pruned once an interval."""
        if self._log is not None and tenant not in self._due:
            interval_s = self._context.options.prune_interval_ms / 1000 if tenant in self._pruned else 0.0
            self._due[tenant] = self._context.now_s() + interval_s

    def prune_once(self) -> None:
        """Prune what is due. Cost: a read of the ledger, a call of the log a timeline that has got on."""
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
        at_s = self._context.now_s() + self._context.options.retry_ms / 1000
        self._due.update(dict.fromkeys(tenants, at_s))

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
