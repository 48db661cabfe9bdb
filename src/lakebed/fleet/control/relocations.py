"""Relocation: a tenant moves from one node to another. Both serve it meanwhile.

Owns: the steps of a relocation, and how it is sped up. The target is attached without dooming; while it reads the log,
commits of the source wait (at most `Policy.relocation_wait_max_ms`), and a target that does not catch up gets help:
the source stops ingesting for a while. When the target is near, it commits, and becomes preferred in the same write;
clients go over; the source is detached. A source that commits first dooms the target's transaction, and the same write
attaches the target again. The state is in the tenant's record, so any process continues it.

Owns also: drains, which move all tenants of a node one by one, and back.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from lakebed.errors import Conflict, LakebedError, NotFound, Unavailable
from lakebed.fleet import machine, records
from lakebed.fleet.control.context import ControlContext
from lakebed.fleet.control.reconciler import Reconciler
from lakebed.fleet.model import Relocation, TenantRecord
from lakebed.fleet.records import Step
from lakebed.metrics import default_registry

_ENDED: Final = default_registry.counter(
    "lakebed_fleet_relocations_total", help_text="Relocations by how they ended.", label_names=("end",)
)


@dataclass(slots=True)
class _Running:
    """What this process remembers of a relocation. No decision needs it."""

    begun_s: float
    """When it was first seen, by the monotonic clock: a change of the wall clock neither ends nor prolongs it."""
    retry_at_s: float = 0.0
    moved_s: float | None = None
    """When the target was first seen to have committed."""


@dataclass(slots=True)
class _Drain:
    """Tenants that must leave a node, or come back to it."""

    waiting: deque[str] = field(default_factory=deque)
    moving: str | None = None


class Relocations:
    """The steps of all relocations and drains.

    Args:
        reconciler: delivers what changes.
    """

    def __init__(self, context: ControlContext, reconciler: Reconciler) -> None:
        self._context = context
        self._reconciler = reconciler
        self._running: dict[str, _Running] = {}
        self._drains: dict[str, _Drain] = {}
        self._paused: dict[str, str] = {}
        self._pool = context.environment.runtime.pool(context.options.attaches_max)

    def close(self) -> None:
        """Wait for running calls."""
        self._pool.close()

    # ---- beginning

    def begin(self, tenant: str, node: str) -> TenantRecord:
        """Attach the target; if the tenant is attached nowhere, just attach it. Raises as `OperatorPort.migrate`."""
        target = self._context.members.get(node)
        if target is None:
            raise no_node(node)
        if not target.is_usable or not target.is_ready or target.record.is_draining:
            raise Unavailable(
                f"Node {node!r} takes no tenants now: it is silent, draining or decommissioned; choose another.",
                kind="node_unusable",
                node=node,
            )

        def decide(record: TenantRecord) -> Step[TenantRecord]:
            now_ms = self._context.now_ms()
            attachment = records.attachment_of(record, record.preferred)
            is_attached = attachment is not None and self._context.members.is_usable(attachment.node)
            step = (machine.relocate if is_attached else machine.attach)(record, target.record, now_ms=now_ms)
            return Step(step.record, step.record, step.finished, step.tasks)

        record = self._context.ledger.change(tenant, decide)
        self.watch(tenant)
        self._reconciler.look_at(tenant)
        return record

    def watch(self, tenant: str) -> None:
        """Note that a tenant is in relocation."""
        self._running.setdefault(tenant, _Running(self._context.now_s()))

    def tenants_of(self, node: str) -> tuple[str, ...]:
        """Tenants in relocation whose loads a node must report."""
        tenants = []
        for tenant in list(self._running):
            running = self._relocation(tenant)
            if running is not None and running.target == node:
                tenants.append(tenant)
        return tuple(tenants)

    def tenants_to_pause(self, node: str) -> tuple[str, ...]:
        """Tenants whose ingestion a node must pause."""
        return tuple(tenant for tenant, source in list(self._paused.items()) if source == node)

    def _relocation(self, tenant: str) -> Relocation | None:
        try:
            return self._context.ledger.tenant(tenant).relocation
        except LakebedError:
            return None

    # ---- one round

    def relocate_once(self) -> None:
        """Make one step of each relocation that has one due, then of each drain."""
        now_s = self._context.now_s()
        due = [tenant for tenant, running in list(self._running.items()) if running.retry_at_s <= now_s]
        for _ in self._pool.map(self._advance, due):
            pass
        for node in list(self._drains):
            self._drain_once(node)

    def _advance(self, tenant: str) -> None:
        running = self._running.get(tenant)
        if running is None:
            return
        try:
            record = self._context.ledger.tenant(tenant, fresh=True)
            if record.relocation is None:
                self._end(tenant)
            elif records.has_moved(record):
                self._finish(record, running)
            else:
                self._approach(record, record.relocation, since_s=running.begun_s)
        except NotFound:
            self._end(tenant)
        except LakebedError:
            running.retry_at_s = self._context.retry_at_s()

    def _end(self, tenant: str) -> None:
        self._running.pop(tenant, None)
        self._paused.pop(tenant, None)

    def _approach(self, record: TenantRecord, relocation: Relocation, *, since_s: float) -> None:
        """Let the target commit if it is near. Otherwise help it, or give it up."""
        context, options, tenant = self._context, self._context.options, record.tenant
        elapsed_ms = (context.now_s() - since_s) * 1000
        if elapsed_ms > options.relocation_give_up_ms:
            context.ledger.change(tenant, lambda now: machine.cancel_relocation(now, now_ms=context.now_ms()))
            self._reconciler.look_at(tenant)
            self._reconciler.detach(tenant, relocation.target)
            _ENDED.add(1, "given_up")
            context.events.add(
                "relocation_given_up",
                f"{tenant} stays on {relocation.source}: {relocation.target} did not come near.",
                tenant=tenant,
                node=relocation.target,
            )
            return
        since_ms = elapsed_ms - options.relocation_pause_after_ms
        if 0 <= since_ms < options.relocation_pause_max_ms:
            self._paused[tenant] = relocation.source
        else:
            self._paused.pop(tenant, None)
        target = context.members.answers(relocation.target)
        if target is None:
            return
        port = context.port(target)
        if sum(port.lag(tenant).values()) > options.relocation_lag_rows:
            return
        port.checkpoint(tenant)
        after = context.ledger.tenant(tenant, fresh=True)
        if after.relocation is not None and not records.has_moved(after) and after.committed == record.committed:
            # The target had nothing to commit: it has the state of the last committed transaction.
            context.ledger.change(tenant, lambda now: self._hand_over(now, record))

    def _hand_over(self, record: TenantRecord, before: TenantRecord) -> Step[None]:
        if record.relocation is None or record.committed != before.committed:
            return Step(None, record)
        return machine.hand_over(record, now_ms=self._context.now_ms())

    def _finish(self, record: TenantRecord, running_relocation: _Running) -> None:
        """Detach the source once clients have gone over."""
        assert record.relocation is not None
        context, relocation = self._context, record.relocation
        self._paused.pop(record.tenant, None)
        if running_relocation.moved_s is None:
            running_relocation.moved_s = context.now_s()
            self._reconciler.look_at(record.tenant)
            took_ms = round((context.now_s() - running_relocation.begun_s) * 1000)
            message = f"{relocation.target} has taken over {record.tenant} from {relocation.source}."
            context.events.add("relocated", message, tenant=record.tenant, node=relocation.target, took_ms=took_ms)
            _ENDED.add(1, "moved")
        if context.now_s() - running_relocation.moved_s < context.options.relocation_drain_ms / 1000:
            return
        context.ledger.change(record.tenant, machine.finish_relocation)
        self._reconciler.look_at(record.tenant)
        self._reconciler.detach(record.tenant, relocation.source)
        self._end(record.tenant)

    # ---- drains

    def drain(self, node: str, tenants: list[str]) -> None:
        """Move these tenants off a node, or back to one that is not draining any more, one by one."""
        self._drains.setdefault(node, _Drain()).waiting = deque(tenants)

    def _drain_once(self, node: str) -> None:
        drain, context = self._drains[node], self._context
        member = context.members.get(node)
        if member is None or not member.is_usable:
            del self._drains[node]
            return
        if drain.moving is not None:
            if drain.moving in self._running:
                return
            drain.moving = None
        if not drain.waiting:
            del self._drains[node]
            if member.record.is_draining:
                context.events.add("drained", f"All tenants of {node} are moved.", node=node)
            else:
                context.events.add("drain_undone", f"{node} has its tenants back.", node=node)
            return
        tenant = drain.waiting[0]
        is_leaving = member.record.is_draining
        try:
            record = context.ledger.tenant(tenant, fresh=True)
            if (record.preferred == node) is not is_leaving:
                drain.waiting.popleft()
                return
            target = context.members.choose(not_on=(node,)) if is_leaving else member
            if target is None:
                return
            self.begin(tenant, target.record.node)
            context.ledger.change(tenant, lambda now: machine.set_home(now, node if is_leaving else None))
        except NotFound:
            drain.waiting.popleft()
        except (Conflict, Unavailable):
            drain.waiting.rotate(-1)
        except LakebedError:
            return
        else:
            drain.waiting.popleft()
            drain.moving = tenant


def no_node(node: str) -> NotFound:
    """Return the error of an unknown node."""
    return NotFound(f"There is no node {node!r}: `lakebed fleet status` lists them.", kind="node_not_found", node=node)
