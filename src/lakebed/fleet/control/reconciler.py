"""The reconciler: it makes what a node has equal to what the ledger says.

Owns: the attachment of tenants whose node is gone, and the delivery of locations to nodes. Every step reads the ledger
first and changes nothing if there is nothing to do, so it may be repeated, and another process may continue it. The
reconciler only remembers what is due soonest; a scan of the ledger finds all of this again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, TypeVar

from lakebed.errors import Conflict, LakebedError, NotFound, OutcomeUnknown, Unavailable
from lakebed.fleet import machine, records
from lakebed.fleet.control.context import LOG, ControlContext
from lakebed.fleet.control.members import Member
from lakebed.fleet.model import Attachment, AttachmentMode, CollectTask, Relocation, TenantRecord, Transaction
from lakebed.fleet.ports import AckReply, AckRequest, Held, Location
from lakebed.fleet.records import Step
from lakebed.metrics import default_registry

R = TypeVar("R")

UNFINISHED_COUNT_MAX: Final = 200
"""Most unfinished transactions of a tenant with which a broken attachment is replaced.

Above this, the node must acknowledge some first, because each attach adds one to the record.
"""

_ATTACHES: Final = default_registry.counter(
    "lakebed_fleet_attaches_total", help_text="Tenants attached to a node, by the control plane's own decision."
)
_DELIVERIES: Final = default_registry.counter(
    "lakebed_fleet_deliveries_total", help_text="Locations sent to nodes, by outcome.", label_names=("outcome",)
)


@dataclass(slots=True)
class Draft:
    """Several steps of one record, combined into one."""

    record: TenantRecord
    finished: list[Transaction] = field(default_factory=list)
    tasks: list[CollectTask] = field(default_factory=list)

    def take(self, step: Step[R]) -> R:
        """Add a step. Return its reply."""
        self.record = step.record
        self.finished += step.finished
        self.tasks += step.tasks
        return step.reply

    def step(self) -> Step[TenantRecord]:
        """The combined step."""
        return Step(self.record, self.record, tuple(self.finished), tuple(self.tasks))


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message to one node about one tenant."""

    node: str
    location: Location


class Reconciler:
    """Repairs attachments, and delivers them.

    Args:
        context: of the control plane.
        collect: receives the collector's tasks that a repair wrote.
    """

    def __init__(self, context: ControlContext, *, collect: Callable[[Iterable[CollectTask]], None]) -> None:
        self._context = context
        self._collect = collect
        self._due: dict[str, float] = {}
        self._detaches: dict[tuple[str, str], float] = {}
        self._delivered: dict[tuple[str, str], tuple[int, str, int]] = {}
        self._broken: dict[str, int] = {}
        self._pool = context.environment.runtime.pool(context.options.attaches_max)

    def close(self) -> None:
        """Wait for running calls."""
        self._pool.close()

    # ---- what is due

    def look_at(self, tenant: str, *, in_s: float = 0.0) -> None:
        """Repair and deliver a tenant in the next round."""
        at_s = self._context.now_s() + in_s
        self._due[tenant] = min(at_s, self._due.get(tenant, at_s))

    def detach(self, tenant: str, node: str) -> None:
        """Tell a node to forget a tenant, unless the ledger says that the node has it."""
        self._delivered.pop((tenant, node), None)
        self._detaches[tenant, node] = self._context.now_s()

    def forget(self, node: str) -> None:
        """Forget what was delivered to a node, because its process is a new one."""
        for key in [key for key in list(self._delivered) if key[1] == node]:
            self._delivered.pop(key, None)

    def note_held(self, node: str, location: Location) -> None:
        """Note that a node has a location, by its reply."""
        self._delivered[location.tenant, node] = _mark(location)

    def look_at_tenants_of(self, node: str) -> int:
        """Make all tenants of a node due. Return their number. Cost: a scan of all tenants."""
        count = 0
        for record in self._context.ledger.tenants():
            if records.attachment_of(record, node) is not None or any(
                transaction.node == node for transaction in record.transactions
            ):
                self.look_at(record.tenant)
                count += 1
        return count

    # ---- one round

    def reconcile_once(self) -> None:
        """Compare nodes that were not compared yet; repair and deliver everything that is due."""
        self._compare()
        while due := self._take_due():
            self._deliver(self._repair(due))
        self._deliver(self._detachments())

    def _take_due(self) -> list[str]:
        now_s = self._context.now_s()
        due = [tenant for tenant, at_s in list(self._due.items()) if at_s <= now_s]
        due = due[: self._context.options.batch_tenants]
        for tenant in due:
            self._due.pop(tenant, None)
        return due

    def _repair(self, tenants: list[str]) -> list[Delivery]:
        """Attach tenants that are attached nowhere. Return the messages to nodes."""
        ledger, before = self._context.ledger, dict[str, TenantRecord]()
        targets: dict[str, Member | None] = {}  # a repeated decision about a tenant chooses the same node
        tasks: dict[str, tuple[CollectTask, ...]] = {}

        def decide(record: TenantRecord) -> Step[TenantRecord]:
            step = self._repair_record(record, targets)
            tasks[record.tenant] = step.tasks
            return step

        changed: list[str] = []
        for tenant in tenants:
            try:
                before[tenant] = record = ledger.tenant(tenant)
                self._learn_nodes(record)
            except NotFound:
                continue
            except (Unavailable, OutcomeUnknown):
                self.look_at(tenant, in_s=self._context.options.retry_s)
                continue
            if decide(record).record is not record:
                changed.append(tenant)
        after = dict(before)
        try:
            outcomes = ledger.change_many([(tenant, decide) for tenant in changed])
        except (Unavailable, OutcomeUnknown) as error:
            LOG.info("tenants not attached", error=error.kind, tenants=len(changed))
            for tenant in changed:
                self.look_at(tenant, in_s=self._context.options.retry_s)
                after.pop(tenant)
            outcomes, changed = [], []
        for tenant, outcome in zip(changed, outcomes, strict=True):
            if isinstance(outcome, LakebedError):
                self.look_at(tenant, in_s=self._context.options.retry_s)
                after.pop(tenant)
                continue
            after[tenant] = outcome
            self._collect(tasks[tenant])
            self._broken.pop(tenant, None)
            new = records.attachment_of(outcome, outcome.preferred)
            if new is not None and new not in before[tenant].attachments:
                _ATTACHES.add(1)
        for tenant, member in targets.items():  # what was promised to it and did not come
            if member is not None and (tenant not in after or after[tenant] is before[tenant]):
                member.promised = max(0, member.promised - 1)
        return [delivery for tenant, record in after.items() for delivery in self._deliveries(record, before[tenant])]

    def _learn_nodes(self, record: TenantRecord) -> None:
        """Load nodes that registered with another control plane. Look again after the wait of a decommission."""
        members, now_ms = self._context.members, self._context.now_ms()
        for node in records.nodes_of(record):
            member = members.get(node)
            if member is None:
                node_record = self._context.ledger.node(node)
                member = None if node_record is None else members.learn(node_record)
            if member is not None and member.record.is_decommissioned and not self._is_over(node, now_ms=now_ms):
                since_ms = member.record.decommissioned_ms or 0
                left_ms = since_ms + self._context.options.decommission_wait_ms - now_ms
                self.look_at(record.tenant, in_s=max(left_ms, 1) / 1000)

    def _repair_record(self, record: TenantRecord, targets: dict[str, Member | None]) -> Step[TenantRecord]:
        """Repair a record, given which nodes are usable. Change nothing if it needs nothing.

        A relocation is ended before the tenant is attached again, because its other node may have the tenant already.
        """
        members, now_ms, draft = self._context.members, self._context.now_ms(), Draft(record)
        for node in records.nodes_of(record):
            if self._is_over(node, now_ms=now_ms):
                draft.take(machine.decommission(draft.record, node, now_ms=now_ms))
        if record.is_deleted:
            return draft.step()
        if (relocation := draft.record.relocation) is not None:
            self._repair_relocation(draft, relocation, now_ms=now_ms)
        for attachment in draft.record.attachments:
            if not attachment.may_commit and not members.is_usable(attachment.node):
                draft.take(machine.detach(draft.record, attachment.node, now_ms=now_ms))
        current = records.attachment_of(draft.record, draft.record.preferred)
        is_broken = self._is_broken(record.tenant, current) and len(record.transactions) < UNFINISHED_COUNT_MAX
        if current is None or not current.may_commit or not members.is_usable(current.node) or is_broken:
            if record.tenant not in targets:
                targets[record.tenant] = self._choose_member(None if current is None or not is_broken else current.node)
            member = targets[record.tenant]
            if member is not None:
                draft.take(machine.attach(draft.record, member.record, now_ms=now_ms))
        return draft.step()

    def _repair_relocation(self, draft: Draft, relocation: Relocation, *, now_ms: int) -> None:
        """Leave the tenant to the usable one of the two nodes, and to the source if the target is broken."""
        is_usable = self._context.members.is_usable
        for node, other in ((relocation.target, relocation.source), (relocation.source, relocation.target)):
            if not is_usable(node) and is_usable(other):
                draft.take(machine.detach(draft.record, node, now_ms=now_ms))
                break
        if self._is_broken(draft.record.tenant, records.attachment_of(draft.record, relocation.target)):
            draft.take(machine.cancel_relocation(draft.record, now_ms=now_ms))

    def _is_broken(self, tenant: str, attachment: Attachment | None) -> bool:
        """Whether its node reports that an attachment cannot commit any more."""
        return attachment is not None and self._broken.get(tenant) == attachment.generation

    def _choose_member(self, wanted: str | None) -> Member | None:
        """Choose where a tenant goes: the node that has it in memory if that is usable, else the least loaded node."""
        members = self._context.members
        member = None if wanted is None else members.answers(wanted)
        if member is None or member.record.is_draining:
            member = members.choose()
        if member is not None:
            member.promised += 1
        return member

    def _is_over(self, node: str, *, now_ms: int) -> bool:
        """Whether a node will never write again."""
        member = self._context.members.get(node)
        if member is None or not member.record.is_decommissioned:
            return False
        since_ms = member.record.decommissioned_ms or 0
        return now_ms >= since_ms + self._context.options.decommission_wait_ms

    def _deliveries(self, record: TenantRecord, before: TenantRecord) -> list[Delivery]:
        """Return the messages about a tenant that nodes have not received yet."""
        deliveries = []
        for attachment in record.attachments:
            location = records.location_of(record, attachment)
            if self._delivered.get((record.tenant, attachment.node)) != _mark(location):
                deliveries.append(Delivery(attachment.node, location))
        for attachment in before.attachments:
            if records.attachment_of(record, attachment.node) is None:
                self.detach(record.tenant, attachment.node)
        return deliveries

    def _detachments(self) -> list[Delivery]:
        """Return the messages to nodes that must forget a tenant, by the current ledger."""
        now_s, deliveries = self._context.now_s(), []
        for (tenant, node), at_s in list(self._detaches.items()):
            if at_s > now_s:
                continue
            self._detaches.pop((tenant, node), None)
            member = self._context.members.get(node)
            if member is None or not member.is_usable:
                continue  # it is compared when it answers again
            generation = None
            try:
                record = self._context.ledger.tenant(tenant, fresh=True)
                if records.attachment_of(record, node) is not None:
                    continue
                generation = record.next_generation - 1
            except NotFound:
                floor = self._context.ledger.floor(tenant)
                generation = 0 if floor is None else floor.next_generation - 1
            deliveries.append(Delivery(node, Location(tenant, generation, None)))
        return deliveries

    # ---- nodes

    def deliver(self, record: TenantRecord) -> None:
        """Send the nodes of a tenant their locations now. What cannot be sent is due again."""
        self._deliver(self._deliveries(record, record))

    def tell_if_untold(self, record: TenantRecord) -> None:
        """In the next round, attach a tenant that has no node, and send its nodes what they may not have received.

        The process that wrote the record may have ended, or hang, before it sent the location. Cost: no request if the
        nodes have received everything.
        """
        if record.preferred is None or self._deliveries(record, record):
            self.look_at(record.tenant)

    def tell_again(self, record: TenantRecord) -> None:
        """Send the nodes of a tenant their locations again, because its settings have changed."""
        for attachment in record.attachments:
            self._delivered.pop((record.tenant, attachment.node), None)
        self.deliver(record)

    def _deliver(self, deliveries: list[Delivery]) -> None:
        for _ in self._pool.map(self._send, deliveries):
            pass

    def _send(self, delivery: Delivery) -> None:
        tenant, members = delivery.location.tenant, self._context.members
        member = members.answers(delivery.node)
        if member is None:
            if members.is_usable(delivery.node):
                self._again(delivery)
            return
        location, begin_log = delivery.location, self._context.begin_log
        if location.manifest is None and location.txn is not None and not begin_log(tenant, location.main):
            self._again(delivery)
            return
        try:
            self._context.port(member).put_location(delivery.location)
        except Conflict as error:  # the node has a newer generation than we knew
            _DELIVERIES.add(1, error.kind)
            with suppress(LakebedError):
                self._context.ledger.tenant(tenant, fresh=True)
            self._again(delivery)
        except LakebedError as error:
            _DELIVERIES.add(1, error.kind)
            members.note_failure(delivery.node)
            self._again(delivery)
        else:
            _DELIVERIES.add(1, "done")
            if delivery.location.mode is None:
                self._delivered.pop((tenant, delivery.node), None)
            else:
                self._delivered[tenant, delivery.node] = _mark(delivery.location)

    def _again(self, delivery: Delivery) -> None:
        if delivery.location.mode is None:
            self._detaches[delivery.location.tenant, delivery.node] = self._context.retry_at_s()
        else:
            self.look_at(delivery.location.tenant, in_s=self._context.options.retry_s)

    def _compare(self) -> None:
        """Ask nodes what they have. Make due what differs from the ledger."""
        by_node: dict[str, dict[str, Held]] = {}
        for member in self._context.members.all():
            node = member.record.node
            if member.is_synced or self._context.members.answers(node) is None:
                continue
            try:
                by_node[node] = {location.tenant: location for location in self._context.port(member).locations()}
                member.is_synced = True
            except LakebedError:
                self._context.members.note_failure(node)
        if not by_node:
            return
        pending: list[tuple[Transaction, str, Held | None]] = []
        for record in self._context.ledger.tenants():
            for transaction in record.transactions:
                node, attachment = transaction.node, records.attachment_of(record, transaction.node)
                is_over = attachment is None or attachment.generation > transaction.generation
                if transaction.state is records.PENDING and is_over and node in by_node:
                    pending.append((transaction, record.tenant, by_node[node].get(record.tenant)))
            for attachment in record.attachments:
                if attachment.node in by_node:
                    self._compare_one(record, attachment.node, by_node[attachment.node].pop(record.tenant, None))
        for node, rest in by_node.items():
            for tenant in rest:
                self.detach(tenant, node)
        for transaction, tenant, location in pending:
            self._acknowledge_unknown(transaction, tenant, location)

    def _acknowledge_unknown(self, transaction: Transaction, tenant: str, location: Held | None) -> None:
        """Acknowledge, for its node, a rejected transaction that the node never received and never will.

        The location that attached it was lost: the process that began the transaction died or hung, and another step
        rejected it before the location was sent again. A node acknowledges only what it knows, so the transaction would
        stay pending until the node starts again. If a call is not answered now, it is repeated after the next scan.
        """
        if not self._is_unknown(transaction, tenant, location):
            return
        request = AckRequest(tenant, transaction.id, transaction.node, transaction.generation)
        tasks: list[CollectTask] = []

        def decide(record: TenantRecord) -> Step[AckReply]:
            step = machine.ack(record, request, finished=None, now_ms=self._context.now_ms())
            tasks[:] = step.tasks
            return step

        with suppress(NotFound, Unavailable, OutcomeUnknown):
            self._context.ledger.change(tenant, decide)
            self._collect(tasks)
            LOG.info("acknowledged what a node never had", tenant=tenant, txn=transaction.id, node=transaction.node)

    def _is_unknown(self, transaction: Transaction, tenant: str, location: Held | None) -> bool:
        """Whether a node does not have a transaction, has acknowledged what it had, and refuses to begin it.

        This counts only for the local state with which the transaction began. A process with another local state says
        nothing about a process that still writes with that one.
        Cost: 2 requests to a node that does not have the tenant.
        """
        member = self._context.members.answers(transaction.node)
        if member is None or member.record.local_id != transaction.local_id:
            return False
        if location is not None:
            return location.is_retired and location.generation > transaction.generation
        try:
            port = self._context.port(member)
            port.put_location(Location(tenant, transaction.generation, None))  # it refuses the transaction from now on
            return all(location.tenant != tenant for location in port.locations())
        except LakebedError:
            return False

    def _compare_one(self, record: TenantRecord, node: str, node_location: Held | None) -> None:
        attachment = records.attachment_of(record, node)
        assert attachment is not None
        location = records.location_of(record, attachment)
        base = location.base if attachment.mode is AttachmentMode.READER else 0
        is_same = node_location is not None and (node_location.generation, node_location.mode) == (
            attachment.generation,
            attachment.mode,
        )
        if is_same and node_location is not None and node_location.is_broken and attachment.may_commit:
            self._broken[record.tenant] = attachment.generation
        is_told = node_location is not None and node_location.policy in (None, record.policy)
        if is_same and is_told and node_location is not None and (not base or node_location.base == base):
            self._delivered[record.tenant, node] = _mark(location)
        else:
            self._delivered.pop((record.tenant, node), None)
        self.look_at(record.tenant)

    def note_broken(self, tenant: str, generation: int, *, node: str) -> None:
        """Replace an attachment that cannot commit any more, as its node reports, and detach it there.

        Cost: no request; the next round sends them.
        """
        if self._broken.get(tenant) != generation:
            self._broken[tenant] = generation
            self.look_at(tenant)
            self._detaches.setdefault((tenant, node), self._context.now_s())


def _mark(location: Location) -> tuple[int, str, int]:
    """Return the parts of a location that show whether a node has received it."""
    mode = location.mode
    assert mode is not None
    return location.generation, mode.value, location.base if mode is AttachmentMode.READER else 0
