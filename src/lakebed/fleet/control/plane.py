"""`ControlPlane`: the calls of nodes, clients and operators, and the rounds that maintain nodes and tenants.

Owns: how a call becomes a step of the ledger, and what a round checks after it. Invariants: decisions depend on the
ledger only, not on what this process remembers, except for the verdict that a node is silent. So any number of control
planes may run over one ledger, each may decide anything at any time, and another one continues the work of one that is
killed at any moment.

Does not know: HTTP, or how a step follows from a record (`lakebed.fleet.machine`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Final, TypeVar

from msgspec.structs import replace

from lakebed.errors import Conflict, InvalidRequest, LakebedError, NotFound, Unavailable
from lakebed.fleet import layout, machine, ports, records
from lakebed.fleet.control.collector import Collector
from lakebed.fleet.control.context import LOG, ControlContext, Events, ManagedLog, tell_of_lost_state
from lakebed.fleet.control.members import Member, Members
from lakebed.fleet.control.options import DEFAULT, ControlOptions
from lakebed.fleet.control.reconciler import Reconciler
from lakebed.fleet.control.relocations import Relocations, no_node
from lakebed.fleet.control.seals import Pruner, Seals
from lakebed.fleet.ledger import Ledger, no_tenant
from lakebed.fleet.manifest import decode_referenced
from lakebed.fleet.model import (
    AttachmentMode,
    CollectTask,
    Manifest,
    NodeRecord,
    Policy,
    TenantRecord,
    Transaction,
    first_manifest,
)
from lakebed.fleet.records import Step
from lakebed.metrics import default_registry
from lakebed.objects.port import ObjectStore
from lakebed.runtime import Environment

BATCH_COUNT_MAX: Final = 1_000
"""Most requests of one call."""
FINISHED_COUNT_MAX: Final = 1_000
"""Most finished transactions in one answer."""

_COMMITS: Final = default_registry.counter(
    "lakebed_fleet_commits_total", help_text="Requests to commit, by verdict.", label_names=("verdict",)
)
_SILENT: Final = default_registry.counter(
    "lakebed_fleet_silent_nodes_total", help_text="Nodes that were found silent and whose tenants were failed over."
)
_NODES: Final = default_registry.gauge(
    "lakebed_fleet_nodes", help_text="Nodes by state, at the last look.", label_names=("state",)
)
Q = TypeVar("Q", ports.CommitRequest, ports.AckRequest)
R = TypeVar("R", ports.CommitReply, ports.AckReply)

_STATES: Final = ("alive", "silent", "draining", "decommissioned")


class ControlPlane(ports.ControlPort, ports.OperatorPort):
    """The control plane. Thread-safe.

    Args:
        ledger: open; it stays open at `close`.
        storage: the root of the fleet's objects.
        log: the log, which is pruned; None: there is none.
        nodes: returns the port of a node, by its record.
        on_defect: receives an unexpected error of a round; the other rounds continue. None: the error is raised.
    """

    def __init__(
        self,
        ledger: Ledger,
        *,
        storage: ObjectStore,
        log: ManagedLog | None,
        nodes: Callable[[NodeRecord], ports.NodePort],
        options: ControlOptions = DEFAULT,
        environment: Environment | None = None,
        on_defect: Callable[[Exception], None] | None = None,
    ) -> None:
        environment = environment or Environment()
        self._on_defect = on_defect
        self._ledger = ledger
        self._storage = storage
        self._options = options
        self._members = Members(clock=environment.clock, options=options)
        self._events = Events(ledger, environment=environment, kept_max=options.events_max)
        self._context = ControlContext(ledger, self._members, nodes, options, environment, self._events, log)
        self._collector = Collector(self._context, storage=storage)
        self._reconciler = Reconciler(self._context, collect=self._collector.add)
        self._relocations = Relocations(self._context, self._reconciler)
        self._pruner = Pruner(self._context)
        self._seals = Seals(self._context)
        self._scan_s = environment.clock.monotonic_s()

    def close(self) -> None:
        """Wait for running calls of nodes. The ledger stays open."""
        self._reconciler.close()
        self._relocations.close()
        self._collector.close()

    # ---- rounds

    def tick_once(self) -> None:
        """Run one round of everything. Call it every `ControlOptions.tick_ms`.

        Raises `Fenced`, `Closed` of the ledger; what it does not answer now is tried again in a later round.
        """
        self.detect_once()
        self.attend_once()
        self.work_once()

    def attend_once(self) -> None:
        """Attach tenants that have no node, and send nodes their locations.

        A process runs it in another thread than `work_once`, so that a failover does not wait for the store or for the
        target of a relocation.
        """
        self._try(self.reconcile_once)

    def work_once(self) -> None:
        """Run one round of the work that may wait for nodes and for the store."""
        for step in (self.scan_once, self._seals.seal_once, self.relocate_once, self.collect_once, self.prune_once):
            self._try(step)
        self._events.flush()

    def _try(self, step: Callable[[], None]) -> None:
        try:
            step()
        except Unavailable as error:
            LOG.info("round ended early", step=step.__name__, error=error.kind)
        except LakebedError:
            raise
        except Exception as error:
            if self._on_defect is None:
                raise
            self._on_defect(error)

    def detect_once(self) -> None:
        """Mark nodes that have fallen silent, and make their tenants due. Cost: 1 write and 1 scan for each."""
        for member in self._members.overdue():
            node = member.record.node
            try:
                self._mark_silent(member.record)
                count = self._reconciler.look_at_tenants_of(node)
            except Unavailable as error:
                LOG.info("silent node not marked", node=node, error=error.kind)
                continue
            _SILENT.add(1)
            self._events.add("node_silent", f"{node} does not answer: its tenants are attached elsewhere.", node=node)
            LOG.info("silent", node=node, tenants=count)
        for state in _STATES:
            _NODES.set(sum(1 for status in self._members.statuses() if status.state == state), state)

    def _mark_silent(self, silent: NodeRecord) -> None:
        def decide(now: NodeRecord | None) -> NodeRecord:
            if now is None or now.incarnation != silent.incarnation:
                return silent if now is None else now
            return replace(now, is_silent=True)

        self._members.learn(self._ledger.change_node(silent.node, decide))

    def scan_once(self) -> None:
        """Read the whole ledger if that is due: at the start, and every `ControlOptions.scan_interval_ms`."""
        now_s = self._context.now_s()
        if now_s < self._scan_s:
            return
        self._scan_s = now_s + self._options.scan_interval_ms / 1000
        for known in self._ledger.nodes():
            self._members.learn(known).is_synced = False
        moving: dict[str, list[str]] = {}
        draining = {member.record.node for member in self._members.all() if member.record.is_draining}
        for record in self._ledger.tenants():
            self._look_at(record)
            node = record.preferred if record.preferred in draining else record.home
            if node is not None and (record.preferred == node) is (node in draining):
                moving.setdefault(node, []).append(record.tenant)
        self._collector.add(self._ledger.tasks())
        for node, tenants in moving.items():
            self._relocations.drain(node, tenants)

    def _look_at(self, record: TenantRecord) -> None:
        """Make due what one tenant needs after a scan."""
        nodes = records.nodes_of(record)
        needs = record.preferred is None or not all(map(self._members.is_usable, nodes))
        if record.is_deleted:
            self._collector.remove_tenant(record.tenant)
        if needs:
            self._reconciler.look_at(record.tenant)
        if record.relocation is not None:
            self._relocations.watch(record.tenant)
        self._pruner.look_at(record.tenant)
        self._seals.look_at(record)

    def _scan_soon(self) -> None:
        self._scan_s = min(self._scan_s, self._context.now_s())

    def reconcile_once(self) -> None:
        """Attach tenants whose node is gone, and send nodes their locations."""
        self._reconciler.reconcile_once()

    def relocate_once(self) -> None:
        """Advance relocations and drains."""
        self._relocations.relocate_once()

    def collect_once(self) -> None:
        """Delete what finished transactions left."""
        self._collector.collect_once()

    def prune_once(self) -> None:
        """Prune the logs of tenants that have committed."""
        self._pruner.prune_once()

    # ---- ControlPort

    def register(self, node: NodeRecord) -> None:
        layout.check_name(node.node, what="node")
        now_ms = self._context.now_ms()

        def decide(now: NodeRecord | None) -> NodeRecord:
            if now is not None and now.is_decommissioned:
                raise Conflict(
                    f"Node {node.node!r} was decommissioned: start the process under another name.",
                    kind="node_decommissioned",
                )
            return replace(
                node,
                registered_ms=now_ms,
                is_draining=now is not None and now.is_draining,
                is_decommissioned=False,
                decommissioned_ms=None,
                is_silent=False,
            )

        member = self._members.get(node.node)
        self._members.learn(self._ledger.change_node(node.node, decide))
        if member is None or member.record.incarnation != node.incarnation:
            self._reconciler.forget(node.node)

    def heartbeat(self, heartbeat: ports.Heartbeat) -> ports.HeartbeatReply:
        before = self._members.get(heartbeat.node)
        was_ready = before is not None and before.is_ready
        if not self._members.hear(heartbeat) and not self._learn_node(heartbeat):
            return ports.HeartbeatReply(is_known=False, now_ms=self._context.now_ms())
        if not was_ready:
            self._scan_soon()  # tenants may wait for a node
        for load in heartbeat.loads:
            if load.is_broken:
                self._reconciler.note_broken(load.tenant, load.generation, node=heartbeat.node)
        return ports.HeartbeatReply(
            is_known=True,
            report=self._relocations.tenants_of(heartbeat.node),
            pause=self._relocations.tenants_to_pause(heartbeat.node),
            now_ms=self._context.now_ms(),
        )

    def _learn_node(self, heartbeat: ports.Heartbeat) -> bool:
        """Load a node that registered with another control plane. Return whether there is one."""
        node = self._ledger.node(heartbeat.node)
        if node is None or node.incarnation != heartbeat.incarnation or node.is_silent or node.is_decommissioned:
            return False
        self._members.learn(node)
        return self._members.hear(heartbeat)

    def attached(self, report: ports.NodeReport) -> list[ports.Location]:
        node = self._ledger.node(report.node)
        if node is None or node.incarnation != report.incarnation:
            raise Conflict(
                f"Node {report.node!r} is registered by another process: register first.", kind="not_registered"
            )
        resumed = {tenant.tenant: tenant for tenant in report.resumed}
        names = [
            record.tenant
            for record in self._ledger.tenants()
            if records.attachment_of(record, node.node) is not None
            or any(transaction.node == node.node for transaction in record.transactions)
        ]
        tasks: list[CollectTask] = []
        locations: list[ports.Location] = []
        for start in range(0, len(names), self._options.batch_tenants):
            part = names[start : start + self._options.batch_tenants]
            outcomes = self._ledger.change_many(
                [(tenant, self._restart(node, resumed.get(tenant), tasks)) for tenant in part]
            )
            for outcome in outcomes:
                if isinstance(outcome, NotFound):
                    continue
                if isinstance(outcome, LakebedError):
                    raise outcome
                if outcome is not None:
                    locations.append(outcome)
                    self._reconciler.note_held(node.node, outcome)
        self._collector.add(tasks)
        member = self._members.learn(node)
        member.is_ready = True
        self._scan_soon()
        return locations

    def _restart(
        self, node: NodeRecord, resumed: ports.Resumed | None, tasks: list[CollectTask]
    ) -> Callable[[TenantRecord], Step[ports.Location | None]]:
        def decide(record: TenantRecord) -> Step[ports.Location | None]:
            step = machine.restart(record, node, resumed, now_ms=self._context.now_ms())
            tasks.extend(step.tasks)
            tell_of_lost_state(self._events, step.record, node)
            return step

        return decide

    def commit(self, requests: Sequence[ports.CommitRequest]) -> list[ports.CommitReply]:
        _check_count(requests)
        for request in requests:
            machine.check_request(request)
        no_such = ports.CommitReply(machine.REJECTED, reason="there is no such tenant")
        replies = []
        for request, reply, step in self._decide_each(requests, machine.commit, no_such):
            _COMMITS.add(1, reply.verdict)
            if step is not None:
                self._follow_commit(request, step)
            replies.append(reply)
        return replies

    def _decide_each(
        self, requests: Sequence[Q], decide: Callable[..., Step[R]], no_such: R
    ) -> Iterator[tuple[Q, R, Step[R] | None]]:
        """Yield each request with its reply and the step that was made; for an unknown tenant `no_such` and no step."""
        steps: dict[int, Step[R]] = {}

        def change_of(at: int, request: Q) -> Callable[[TenantRecord], Step[R]]:
            def change(record: TenantRecord) -> Step[R]:
                finished = self._find_finished(record, request.txn)
                steps[at] = decide(record, request, finished=finished, now_ms=self._context.now_ms())
                return steps[at]

            return change

        outcomes = self._ledger.change_many(
            [(request.tenant, change_of(place, request)) for place, request in enumerate(requests)]
        )
        for place, (request, outcome) in enumerate(zip(requests, outcomes, strict=True)):
            if isinstance(outcome, LakebedError) and not isinstance(outcome, NotFound):
                raise outcome
            yield request, no_such if isinstance(outcome, NotFound) else outcome, steps.get(place)

    def _find_finished(self, record: TenantRecord, txn: int) -> Transaction | None:
        """Return a finished transaction, if it is not in its tenant's record any more."""
        return self._ledger.finished(record.tenant, txn) if records.may_be_finished(record, txn) else None

    def _follow_commit(self, request: ports.CommitRequest, step: Step[ports.CommitReply]) -> None:
        """Schedule what follows an answer: collection and pruning after a grant, a detach after a rejection."""
        tenant, record = request.tenant, step.record
        if step.reply.verdict == machine.REJECTED:
            attachment = records.attachment_of(record, request.node)
            if attachment is None:
                self._reconciler.detach(tenant, request.node)
            elif attachment.generation == request.generation and attachment.may_commit:
                self._reconciler.note_broken(tenant, attachment.generation, node=request.node)
            else:
                self._reconciler.look_at(tenant)
            return
        if step.reply.verdict != machine.GRANTED:
            return
        self._collector.add(step.tasks)
        self._pruner.look_at(tenant)
        self._seals.look_at(record)
        if record.relocation is not None or any(other.mode is AttachmentMode.READER for other in record.attachments):
            self._reconciler.look_at(tenant)

    def ack(self, requests: Sequence[ports.AckRequest]) -> list[ports.AckReply]:
        _check_count(requests)
        for request in requests:
            layout.check_name(request.tenant, what="tenant")
        no_such = ports.AckReply("", is_accepted=False, reason="there is no such tenant")
        replies = []
        for request, reply, step in self._decide_each(requests, machine.ack, no_such):
            if step is not None:
                self._conclude_ack(request.tenant, step)
            replies.append(reply)
        return replies

    def _conclude_ack(self, tenant: str, step: Step[ports.AckReply]) -> None:
        self._collector.add(step.tasks)
        if step.record.is_deleted:
            self._collector.remove_tenant(tenant)
        elif step.record.preferred is None:
            self._reconciler.look_at(tenant)

    # ---- OperatorPort: tenants

    def create_tenant(self, tenant: str, policy: Policy | None = None) -> TenantRecord:
        layout.check_name(tenant, what="tenant")
        machine.check_policy(policy or Policy())
        now_ms = self._context.now_ms()
        floor = self._ledger.floor(tenant)
        new = machine.new_tenant(tenant, policy=policy or Policy(), floor=floor, now_ms=now_ms)
        self._check_log_is_new(new)
        member = self._members.choose()
        if member is not None:
            new = machine.attach(new, member.record, now_ms=now_ms).record
        record = self._ledger.create(Step(new, new), floor=floor)
        self._context.begin_log(tenant, records.main_of(record))
        if member is None:
            self._reconciler.look_at(tenant)
        else:
            member.promised += 1
            self._reconciler.deliver(record)
        return record

    def _check_log_is_new(self, new: TenantRecord) -> None:
        """Raise `Conflict` if the log has rows of a tenant that the ledger never had: the new tenant would get them.

        The ledger always knows a tenant before the log does.
        """
        if not self._context.has_log(new.tenant, records.main_of(new)):
            return
        try:
            self._ledger.tenant(new.tenant, fresh=True)
        except NotFound:
            raise Conflict(
                f"The log has rows of a tenant {new.tenant!r} that this fleet's ledger does not know: the log is used "
                "by another fleet too, or the ledger was restored to a time before the tenant. Give each fleet a log "
                "of its own, restore ledger, log and storage to one moment, or choose another name.",
                kind="log_of_another_tenant",
                tenant=new.tenant,
            ) from None

    def delete_tenant(self, tenant: str) -> None:
        before: dict[str, TenantRecord] = {}

        def decide(record: TenantRecord) -> Step[None]:
            before[tenant] = record
            return machine.delete(record, now_ms=self._context.now_ms())

        self._ledger.change(tenant, decide)
        for attachment in before[tenant].attachments:
            self._reconciler.detach(tenant, attachment.node)
        self._reconciler.look_at(tenant)
        self._collector.remove_tenant(tenant)
        self._seals.conclude(tenant, f"The deletion of tenant {tenant!r}")

    def tenants(self) -> list[TenantRecord]:
        return list(self._ledger.tenants())

    def some_tenants(self, *, after: str, limit: int) -> list[TenantRecord]:
        """At most `limit` tenants after a name, by name."""
        return list(islice(self._ledger.tenants(after=after), limit))

    def tenant(self, tenant: str) -> TenantRecord:
        return self._ledger.tenant(tenant, fresh=True)

    def set_policy(self, tenant: str, policy: Policy) -> TenantRecord:
        machine.check_policy(policy)
        record = self._ledger.change(tenant, lambda now: machine.set_policy(now, policy))
        self._reconciler.tell_again(record)
        return record

    def route(self, tenant: str) -> ports.Route:
        record = self._ledger.tenant(tenant, fresh=True)
        self._seals.seal(record)
        if record.is_deleted:
            raise no_tenant(tenant)
        self._reconciler.tell_if_untold(record)
        committed_lsns = {timeline: progress.lsn for timeline, progress in record.timelines.items()}
        attachment = records.attachment_of(record, record.preferred)
        if attachment is None:
            return ports.Route(tenant, None, None, 0, record.names, record.sealed, committed=committed_lsns)
        member = self._members.get(attachment.node) or self._learn_member(attachment.node)
        load = None if member is None else member.loads.get(tenant)
        return ports.Route(
            tenant,
            attachment.node,
            None if member is None else member.record.url,
            attachment.generation,
            record.names,
            record.sealed,
            lag_rows=load.lag_rows if load is not None and load.generation == attachment.generation else 0,
            committed=committed_lsns,
        )

    def _learn_member(self, node: str) -> Member | None:
        record = self._ledger.node(node)
        return None if record is None else self._members.learn(record)

    def change_timeline(self, tenant: str, change: ports.TimelineChange) -> ports.TimelineInfo:
        record = self._ledger.tenant(tenant, fresh=True)
        member = None if record.preferred is None else self._members.answers(record.preferred)
        if member is None:
            raise Unavailable(
                f"Tenant {tenant!r} is on no node that answers now: try again.", kind="not_attached", tenant=tenant
            )
        info = self._context.port(member).change(tenant, change)
        self._seals.conclude(tenant, f"The change of timeline {change.name!r} of tenant {tenant!r}")
        return info

    def manifest(self, tenant: str) -> Manifest:
        record = self._ledger.tenant(tenant, fresh=True)
        if record.manifest is None:
            return first_manifest(tenant, main=records.main_of(record), created_ms=record.created_ms)
        return decode_referenced(self._storage.get(record.manifest.path), record.manifest)

    def transactions(self, tenant: str) -> ports.TransactionList:
        record = self._ledger.tenant(tenant, fresh=True)
        finished = self._ledger.list_finished(tenant)[::-1]
        tasks = tuple(task.txn for task in self._ledger.tasks_of(tenant))
        return ports.TransactionList(record.transactions, tuple(finished[:FINISHED_COUNT_MAX]), tasks)

    # ---- OperatorPort: nodes

    def nodes(self) -> list[ports.NodeStatus]:
        for record in self._ledger.nodes():
            if self._members.get(record.node) is None:
                self._members.learn(record)
        return self._members.statuses()

    def migrate(self, tenant: str, node: str) -> None:
        self._relocations.begin(tenant, node)

    def attach_reader(self, tenant: str, node: str) -> None:
        member = self._members.answers(node)
        if member is None:
            if self._members.get(node) is None:
                raise no_node(node)
            raise Unavailable(f"Node {node!r} does not answer now: choose another, or try again.", kind="node_unusable")
        record = member.record
        self._ledger.change(tenant, lambda now: machine.attach_reader(now, record, now_ms=self._context.now_ms()))
        self._reconciler.deliver(self._ledger.tenant(tenant))

    def drain(self, node: str, *, undo: bool = False) -> None:
        self._change_node(node, lambda now: replace(now, is_draining=not undo))
        tenants = self._ledger.tenants()
        self._relocations.drain(
            node, [record.tenant for record in tenants if (record.home if undo else record.preferred) == node]
        )

    def decommission(self, node: str) -> None:
        now_ms = self._context.now_ms()
        is_new = True

        def decide(now: NodeRecord) -> NodeRecord:
            nonlocal is_new
            is_new = not now.is_decommissioned
            return replace(now, is_decommissioned=True, decommissioned_ms=now_ms) if is_new else now

        self._change_node(node, decide)
        count = self._reconciler.look_at_tenants_of(node)
        if not is_new:
            return
        message = f"{node} will not write again: its transactions are acknowledged for it."
        self._events.add("node_decommissioned", message, node=node)
        LOG.info("decommissioned", node=node, tenants=count)

    def _change_node(self, node: str, change: Callable[[NodeRecord], NodeRecord]) -> None:
        def decide(now: NodeRecord | None) -> NodeRecord:
            if now is None:
                raise no_node(node)
            return change(now)

        layout.check_name(node, what="node")
        self._members.learn(self._ledger.change_node(node, decide))

    def force_ack(self, tenant: str, txn: int) -> ports.AckReply:
        after: list[Step[ports.AckReply]] = []

        def decide(record: TenantRecord) -> Step[ports.AckReply]:
            finished = self._find_finished(record, txn)
            after.append(machine.force_ack(record, txn, finished=finished, now_ms=self._context.now_ms()))
            return after[-1]

        reply = self._ledger.change(tenant, decide)
        self._conclude_ack(tenant, after[-1])
        if after[-1].finished:
            self._events.add("forced", f"Transaction {txn} of {tenant} was acknowledged by hand.", tenant=tenant)
        return reply

    def events(self, *, after: str = "", limit: int = 1_000) -> list[tuple[str, ports.Event]]:
        return self._ledger.events(after=after, limit=limit)

    def address(self) -> ports.FleetAddress:
        if self._options.address is None:
            raise NotFound("This control plane was not told where storage and log are.", kind="no_address")
        return self._options.address


def _check_count(requests: Sequence[object]) -> None:
    if len(requests) > BATCH_COUNT_MAX:
        raise InvalidRequest(
            f"The batch has {len(requests):,} requests, and {BATCH_COUNT_MAX:,} are possible: send several.",
            kind="oversized_batch",
        )
