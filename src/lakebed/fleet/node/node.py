"""A node: tenants that the control plane has attached to it, over one memtable budget and one cache of blocks.

Owns: `Node`, which implements `lakebed.fleet.ports.NodePort`, and the choice of the next step. A pool of workers, or a
simulation, calls `work_once`. No thread belongs to a tenant, and an idle tenant costs nothing.

Invariants: a location whose generation the node has given up is refused, also after a restart; nothing is committed
before the control plane knows what a new process has resumed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

import pyarrow as pa
from msgspec.structs import replace

from lakebed.backoff import Backoff, Pauses
from lakebed.errors import Closed, Conflict, Corruption, InvalidRequest, LakebedError, OutcomeUnknown, Unavailable
from lakebed.fleet import ports
from lakebed.fleet.layout import check_name
from lakebed.fleet.log.port import Log
from lakebed.fleet.machine import check_policy
from lakebed.fleet.model import AttachmentMode, NodeRecord, TimelineIndex
from lakebed.fleet.node.attached import AttachedTenant, TenantState, commit_pending, not_attached, stale_generation
from lakebed.fleet.node.bodies import Utilization
from lakebed.fleet.node.context import NodeContext
from lakebed.fleet.node.local import LocalState, LocalTenant
from lakebed.fleet.node.options import NodeOptions
from lakebed.fleet.node.reads import Reads
from lakebed.fleet.node.schedule import Schedule
from lakebed.fleet.node.slots import MemtableBudget, Slots
from lakebed.fleet.node.timeline import Timeline
from lakebed.fleet.node.transaction import lacks_layers
from lakebed.ids import new_uuid
from lakebed.log import logger
from lakebed.lsm.cache import BlockCache
from lakebed.objects.port import ObjectStore
from lakebed.runtime import Environment, map_in_pool

R = TypeVar("R")

_LOG: Final = logger("fleet")

_PROBLEMS_MAX: Final = 100

_LISTS_AT_ONCE: Final = 16
"""Concurrent LISTs of a start, which check that the objects of what it continues exist."""

_LOADS_MAX: Final = 500
"""Most tenants in one heartbeat."""


class Node(ports.NodePort):
    """A node. Thread-safe.

    Args:
        name: unique in the fleet.
        url: where it is served; the control plane tells clients.
        storage: the fleet's, with the objects of all tenants.
        local: the node's local state, which `start` locks.
    """

    def __init__(
        self,
        name: str,
        *,
        url: str,
        storage: ObjectStore,
        control: ports.ControlPort,
        log: Log,
        local: LocalState,
        options: NodeOptions,
        environment: Environment,
    ) -> None:
        check_name(name, what="node")
        runtime = environment.runtime
        self.name = name
        self.url = url
        self._context = NodeContext(
            name=name,
            storage=storage,
            control=control,
            log=log,
            local=local,
            options=options,
            environment=environment,
            cache=BlockCache(options.cache_bytes, runtime=runtime),
            budget=MemtableBudget(options.memtable_bytes_max, runtime=runtime),
            loading=Slots(options.attach_count_max, runtime=runtime),
            catching_up=Slots(options.catch_up_count_max, runtime=runtime),
        )
        self._lock = runtime.lock()
        self._reads = Reads(self._context, wake=self._wake)
        self._tenants: dict[str, AttachedTenant] = {}
        self._schedules: dict[str, Schedule] = {}
        self._given_up: dict[str, int] = {}
        """Last generations of tenants that were detached, or that an earlier process broke: they are over."""
        self._incarnation = new_uuid(environment.rng)
        self._resumed: tuple[ports.Resumed, ...] = ()
        self._is_registered = False
        self._is_closed = False
        self._active: dict[str, None] = {}
        """Tenants for which a step may be due."""
        self._busy: set[str] = set()
        """Tenants for which a worker runs a step now."""
        self._queue: deque[str] = deque()
        self._watched_ms = 0
        self._reported: frozenset[str] = frozenset()
        """Tenants whose loads the control plane wants."""
        self.watches_in_background = False
        """Whether a thread calls `watch_once`, so that `work_once` does not look at the log."""

    # ---- the life of the process

    def start(self) -> None:
        """Lock the local state, continue its transactions as far as the storage has them, and register.

        If the control plane does not answer, the heartbeats register later. Until then, nothing is committed.

        Raises:
            Conflict: ``local_state_locked``; ``node_decommissioned``.
        Cost: 1 LIST for each transaction with layers, some of them concurrently.
        """
        context = self._context
        context.local.acquire(context.environment, fleet=context.storage.root_url)
        resumed = []
        for record in self._resumable():
            self._add(AttachedTenant(context, record.location, resumed=record))
            resumed.append(ports.Resumed(record.tenant, record.generation, record.txn))
        self._resumed = tuple(resumed)
        try:
            self.register()
        except (Unavailable, OutcomeUnknown) as error:
            context.control_is_away = True
            _LOG.info("control plane away", node=self.name, message=str(error))

    def _resumable(self) -> list[LocalTenant]:
        """Return the transactions of the local state that can be continued."""
        context, local = self._context, self._context.local
        readable = []
        for record in local.tenants():
            if record.is_broken:
                self._given_up[record.tenant] = record.generation
            elif local.can_resume(record):
                readable.append(record)
            else:
                _LOG.info("not resumed", tenant=record.tenant, txn=record.txn)
        lacking = map_in_pool(
            context.environment.runtime,
            lambda record: lacks_layers(record, storage=context.storage, local=local),
            readable,
            worker_count_max=_LISTS_AT_ONCE,
        )
        for record, lacks in zip(readable, lacking, strict=True):
            if lacks:
                _LOG.info("not resumed: layers are gone", tenant=record.tenant, txn=record.txn)
        return [record for record, lacks in zip(readable, lacking, strict=True) if not lacks]

    def register(self) -> None:
        """Register the node. After a start of the process, report what it has, and take over its locations."""
        context = self._context
        record = NodeRecord(
            node=self.name,
            url=self.url,
            incarnation=self._incarnation,
            local_id=context.local.id,
            registered_ms=context.now_ms(),
        )
        context.control.register(record)
        if not context.is_reported:
            report = ports.NodeReport(self.name, self._incarnation, context.local.id, self._resumed)
            locations = {reply.tenant: reply for reply in context.control.attached(report)}
            for resumed in self._resumed:
                if resumed.tenant not in locations:
                    self._forget_resumed(resumed)
            for location in locations.values():
                self._take_over(location)
            context.is_reported = True
        self._is_registered = True
        context.control_is_away = False

    def _forget_resumed(self, resumed: ports.Resumed) -> None:
        """Give up a tenant that the control plane detached while this process did not run."""
        self._take_over(ports.Location(resumed.tenant, resumed.generation, None))

    def _take_over(self, location: ports.Location) -> None:
        try:
            self.put_location(location)
        except Conflict as error:
            _LOG.info("location refused", tenant=location.tenant, message=str(error))

    def heartbeat_once(self) -> None:
        """Report that the node is alive, and apply the answer. A missing answer raises nothing."""
        context = self._context
        tenants = list(self._tenants.values())
        heartbeat = ports.Heartbeat(
            node=self.name,
            incarnation=self._incarnation,
            tenant_count=len(tenants),
            unflushed_bytes=context.budget.size_bytes,
            loads=tuple(self._loads(tenants)),
        )
        try:
            if not self._is_registered or not context.is_reported:
                self.register()
            reply = context.control.heartbeat(heartbeat)
            context.control_ahead_ms = reply.now_ms - context.monotonic_ms()
            if not reply.is_known:
                self.register()
        except (Unavailable, OutcomeUnknown):
            context.control_is_away = True
            return
        context.control_is_away = False
        self._reported = frozenset(reply.report)
        context.paused = frozenset(reply.pause)

    def _loads(self, tenants: list[AttachedTenant]) -> Iterator[ports.TenantLoad]:
        """Yield the loads of tenants that belong in a heartbeat, at most `_LOADS_MAX`."""
        count = 0
        lagging = self._context.options.lag_rows_reported
        for tenant in tenants:
            lag_rows, is_broken = tenant.lag_rows, tenant.state is TenantState.BROKEN
            if tenant.tenant in self._reported or lag_rows >= lagging or is_broken:
                transaction = tenant.transaction
                txn = None if transaction is None else transaction.txn
                yield ports.TenantLoad(
                    tenant.tenant, tenant.location.generation, lag_rows, txn=txn, is_broken=is_broken
                )
                count += 1
                if count == _LOADS_MAX:
                    return

    def close(self) -> None:
        """Release the local state. Uncommitted rows are read from the log again. Closing twice is a no-op."""
        self._is_closed = True
        self._context.local.release()

    # ---- what the control plane says

    def put_location(self, location: ports.Location) -> None:
        check_name(location.tenant, what="tenant")
        check_policy(location.policy)
        if location.txn is not None and location.mode not in (AttachmentMode.SINGLE, AttachmentMode.MULTI):
            raise InvalidRequest(
                f"The location of {location.tenant!r} has mode {location.mode} and transaction {location.txn}: only a "
                "mode that commits has a transaction.",
                kind="invalid_location",
            )
        self._check_open()
        with self._lock:
            attached = self._tenants.get(location.tenant)
            if attached is not None and attached.put_location(location):
                self._active[location.tenant] = None
                return
            over = self._given_up.get(location.tenant, 0)
            if attached is not None:
                over = max(over, attached.location.generation)
            if location.mode is None:
                self._given_up[location.tenant] = max(over, location.generation)
                return
            if location.generation <= over:
                raise stale_generation(location.tenant, location.generation, over)
            self._add(AttachedTenant(self._context, location))

    def locations(self) -> list[ports.Held]:
        return [tenant.holding() for tenant in list(self._tenants.values()) if not tenant.is_gone]

    def _add(self, attached: AttachedTenant) -> None:
        self._tenants[attached.tenant] = attached
        self._schedules[attached.tenant] = Schedule(self._context, attached)
        self._active[attached.tenant] = None

    # ---- steps

    def work_once(self) -> bool:
        """Run a due step of any tenant. Return whether there was one. Any number of workers may call this.

        Raises: unexpected errors; the step is tried again after a wait.
        """
        if self._is_closed:
            return False
        due = self._next_step()
        if due is None:
            return self._relieve() or self._watch_if_due()
        schedule, step = due
        try:
            return schedule.run(step)
        finally:
            self._release(schedule.attached)

    def _release(self, attached: AttachedTenant) -> None:
        """Release a tenant after a worker has run a step of it."""
        with self._lock:
            self._busy.discard(attached.tenant)
            if attached.is_gone and self._tenants.get(attached.tenant) is attached:
                del self._tenants[attached.tenant], self._schedules[attached.tenant]
                self._given_up[attached.tenant] = attached.location.generation
                self._active.pop(attached.tenant, None)

    def _next_step(self) -> tuple[Schedule, str] | None:
        now_ms = self._context.monotonic_ms()
        with self._lock:
            if not self._queue:
                self._fill_queue(now_ms)
            while self._queue:
                tenant = self._queue.popleft()
                schedule = self._schedules.get(tenant)
                if schedule is not None and tenant not in self._busy:
                    step = schedule.due(now_ms)
                    if step is not None:
                        self._busy.add(tenant)
                        return schedule, step
        return None

    def _fill_queue(self, now_ms: int) -> None:
        """Check every tenant for which a step may be due. Do not check idle ones again until something happens."""
        for tenant in list(self._active):
            schedule = self._schedules.get(tenant)
            if schedule is None:
                del self._active[tenant]
            elif tenant in self._busy:
                continue
            elif schedule.due(now_ms) is not None:
                self._queue.append(tenant)
            elif schedule.is_idle:
                del self._active[tenant]

    def _relieve(self) -> bool:
        """If memory is short, flush the largest memtable that can be flushed. One worker waits for a tenant's turn."""
        budget = self._context.budget
        if not budget.is_tight:
            return False
        for tenant, timeline in budget.largest():
            with self._lock:
                schedule = self._schedules.get(tenant)
                if schedule is None:
                    budget.forget(tenant)
                if schedule is None or tenant in self._busy:
                    continue
                self._busy.add(tenant)
            try:
                if schedule.relieve(timeline):
                    return True
            finally:
                self._release(schedule.attached)
        return False

    def _watch_if_due(self) -> bool:
        now_ms = self._context.monotonic_ms()
        if self.watches_in_background or now_ms - self._watched_ms < self._context.options.poll_ms:
            return False
        self._watched_ms = now_ms
        try:
            return self.watch_once(timeout_s=0)
        except (Unavailable, OutcomeUnknown):
            return False

    def watch_once(self, *, timeout_s: float) -> bool:
        """Ask the log which timelines have new rows. Return whether one has. Raises `Unavailable`.

        Cost: 1 request for all tenants.
        """
        watched_timelines: dict[str, tuple[AttachedTenant, Timeline]] = {}
        for attached in list(self._tenants.values()):
            for timeline in list(attached.timelines.values()):
                if not timeline.is_read_only and timeline.problem is None and not timeline.lag_rows:
                    watched_timelines[timeline.log_key] = attached, timeline
        if not watched_timelines:
            return False
        positions = {key: timeline.log_last for key, (_, timeline) in watched_timelines.items()}
        news = self._context.log.wait_many(positions, timeout_s=timeout_s)
        for key, last in news.items():
            attached, timeline = watched_timelines[key]
            schedule = self._schedules.get(attached.tenant)
            if schedule is None or schedule.attached is not attached:
                continue  # it was detached meanwhile
            if last < timeline.last_lsn:  # the log looks shorter: read its records to find out
                schedule.run("ingest")
                continue
            timeline.log_last = max(last, timeline.log_last)
            with self._lock:
                self._active[attached.tenant] = None
        return bool(news)

    def ingest_once(self, tenant: str) -> bool:
        """Read what the log has for a tenant. Return whether there was anything. Raises as `Timeline.ingest_once`."""
        return self._run_step(tenant, lambda attached: attached.ingest_once())

    def flush_once(self, tenant: str) -> bool:
        """Write a tenant's rows in memory into layers. Return whether there were any."""
        return self._run_step(tenant, lambda attached: attached.flush_once())

    def compact_once(self, tenant: str) -> bool:
        """Run one planned compaction of a tenant. Return whether there was one."""
        return self._run_step(tenant, lambda attached: attached.compact_once())

    def commit_once(self, tenant: str) -> bool:
        """Flush and commit what is there. Return whether a request was granted."""
        return self._run_step(tenant, lambda attached: attached.commit_once())

    def _run_step(self, tenant: str, step: Callable[[AttachedTenant], R]) -> R:
        attached = self._require_tenant(tenant)
        try:
            return step(attached)
        finally:
            self._wake(attached)

    def _wake(self, attached: AttachedTenant) -> None:
        with self._lock:
            self._active[attached.tenant] = None

    # ---- the set of timelines

    def timelines(self, tenant: str) -> list[ports.TimelineInfo]:
        attached = self._require_tenant(tenant)
        return [_info(attached, index) for index in attached.indices.values()]

    def change(self, tenant: str, change: ports.TimelineChange) -> ports.TimelineInfo:
        attached = self._require_tenant(tenant)
        self._wake(attached)
        state: dict[str, TimelineIndex] = {}
        before = attached.indices.get(change.id) or next(
            (index for index in attached.indices.values() if index.name == change.name), None
        )
        if not change.id and before is not None:  # only by an id is a committed delete or detach recognized
            change = replace(change, id=before.id)

        def is_done() -> bool:
            if not attached.apply_change(change):
                return False
            state.update({index.id: index for index in attached.base.timelines})
            return True

        try:
            self._until_committed(attached, is_done)
        except Corruption as error:
            raise self._reads.file_gone(attached, error) from error
        info = state.get(change.id) or next((index for index in state.values() if index.name == change.name), before)
        if info is None:
            return ports.TimelineInfo(id=change.id, name=change.name, lsn=0, committed_lsn=0, cutoff=0)
        return _info(attached, info)

    def _until_committed(self, attached: AttachedTenant, is_done: Callable[[], bool], *, flush: bool = False) -> None:
        """Commit until `is_done`. Raises `Unavailable` after a while, or when that is not possible any more."""
        context = self._context
        pauses = Pauses(context.options.retry_first_ms / 1000 / 4, 1.0)
        for _ in Backoff(context.environment, pauses, retry_s=context.options.change_wait_ms / 1000):
            problem: LakebedError | None = None
            try:
                if is_done():
                    return
                if attached.commit_once(flush=flush) and is_done():
                    return
            except (Unavailable, OutcomeUnknown) as error:
                if error.kind == "not_attached":
                    raise
                problem = error
        raise Unavailable(
            f"The commit of {attached.tenant} was not answered in time: ask again."
            + ("" if problem is None else f" {problem}"),
            kind="commit_pending",
        ) from problem

    def checkpoint(self, tenant: str) -> int:
        attached = self._require_tenant(tenant)
        self._wake(attached)
        attached.settle()
        targets = {id: timeline.last_lsn for id, timeline in attached.timelines.items()}
        transaction = attached.transaction
        if transaction is None:
            raise not_attached(tenant)
        txn = transaction.txn if transaction.is_changed else 0

        def is_done() -> bool:
            for timeline in list(attached.timelines.values()):
                if timeline.last_lsn < targets.get(timeline.id, 0):  # it was attached again meanwhile
                    attached.ingest_timeline(timeline)
            committed_lsns = {index.id: index.lsn for index in attached.base.timelines}
            return attached.base.txn >= txn and all(committed_lsns.get(id, lsn) >= lsn for id, lsn in targets.items())

        self._until_committed(attached, is_done, flush=True)
        return attached.base.txn

    def compact(self, tenant: str, timeline: str) -> None:
        attached = self._require_tenant(tenant)
        self._wake(attached)
        attached.find(timeline)
        if attached.transaction is None:
            raise not_attached(tenant)
        try:
            is_done = attached.compact_full(timeline)
        except Corruption as error:
            raise self._reads.file_gone(attached, error) from error
        if not is_done:
            raise commit_pending(tenant)

    def lag(self, tenant: str) -> dict[str, int]:
        attached = self._require_tenant(tenant)
        lags = {}
        for timeline in attached.timelines.values():
            if not timeline.is_read_only:
                last = self._context.log.bounds(timeline.log_key).last
                lags[timeline.id] = max(0, last - timeline.last_lsn)
        return lags

    # ---- reads

    def get(self, tenant: str, timeline: str, key: bytes, *, lsn: int | None = None, at_least: int = 0) -> ports.Found:
        return self._reads.get(self._require_tenant(tenant), timeline, key, lsn=lsn, at_least=at_least)

    def get_many(
        self, tenant: str, timeline: str, keys: Sequence[bytes], *, lsn: int | None = None, at_least: int = 0
    ) -> ports.FoundMany:
        return self._reads.get_many(self._require_tenant(tenant), timeline, keys, lsn=lsn, at_least=at_least)

    def scan(
        self,
        tenant: str,
        timeline: str,
        start: bytes | None = None,
        end: bytes | None = None,
        *,
        lsn: int | None = None,
        at_least: int = 0,
    ) -> Iterator[pa.RecordBatch]:
        return self._reads.scan(self._require_tenant(tenant), timeline, start, end, lsn=lsn, at_least=at_least)

    def is_ready(self, tenant: str, timeline: str, lsn: int) -> bool:
        """Whether an LSN of a timeline can be read without waiting. Cost: some lookups."""
        attached = self._tenants.get(tenant)
        if attached is None or attached.location.mode is None:
            return True
        if attached.state in (TenantState.ATTACHING, TenantState.DETACHED):
            return False
        target = attached.find(timeline)
        return target.last_lsn >= lsn

    def utilization(self) -> Utilization:
        """Return how much of its memory the node uses. Cost: no request."""
        context, tenants = self._context, list(self._tenants.values())
        problems = {
            tenant.tenant: f"{problem.kind}: {problem}"
            for tenant in tenants
            if (problem := tenant.problem or tenant.log_problem) is not None
        }
        return Utilization(
            tenant_count=len(tenants),
            loaded_count=sum(
                1 for tenant in tenants if any(timeline.is_loaded for timeline in tenant.timelines.values())
            ),
            unflushed_bytes=context.budget.size_bytes,
            memtable_bytes_max=context.options.memtable_bytes_max,
            cached_bytes=context.cache.size_bytes,
            cache_bytes=context.options.cache_bytes,
            lag_rows=sum(tenant.lag_rows for tenant in tenants),
            problems=dict(sorted(problems.items())[:_PROBLEMS_MAX]),
        )

    def _require_tenant(self, tenant: str) -> AttachedTenant:
        """Return a tenant that can be read. Raises `Unavailable` (``not_attached``)."""
        self._check_open()
        attached = self._tenants.get(tenant)
        if attached is None or attached.location.mode is None:
            raise not_attached(tenant)
        if attached.state in (TenantState.ATTACHING, TenantState.DETACHED):
            attached.settle()
            if attached.state in (TenantState.ATTACHING, TenantState.DETACHED):
                raise not_attached(tenant)
        return attached

    def _check_open(self) -> None:
        if self._is_closed:
            raise Closed(f"The node {self.name} was closed.")


def _info(attached: AttachedTenant, index: TimelineIndex) -> ports.TimelineInfo:
    """Return a timeline of the working set, with its committed and ingested LSNs."""
    committed_lsn = next((other.lsn for other in attached.base.timelines if other.id == index.id), 0)
    timeline = attached.timelines.get(index.id)
    return ports.TimelineInfo(
        id=index.id,
        name=index.name,
        lsn=index.lsn if timeline is None else timeline.last_lsn,
        committed_lsn=committed_lsn,
        cutoff=index.cutoff if timeline is None else timeline.cutoff,
        parent=index.parent,
        branch_lsn=index.branch_lsn,
        is_read_only=index.is_read_only,
        expires_ms=index.expires_ms,
        created_ms=index.created_ms,
        size_bytes=index.files.size_bytes,
    )
