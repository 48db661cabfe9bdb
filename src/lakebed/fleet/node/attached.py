"""One tenant on a node: its location, its open transaction, its timelines, and the steps that change them.

Owns: the state of the attachment, the order of steps, and when each is due.

States: ``attaching`` (the manifest is not read yet), ``active`` (it writes and commits), ``stale`` and ``reader`` (they
only read), ``broken`` (a commit was rejected: it reads until it is detached or attached again), ``detached``.

Invariants:
- Steps that write, commit or replace the transaction hold the tenant's turn. So nothing is uploaded between the freeze
  of a commit and its answer.
- A rejection is stored in the local state before it is acknowledged. An acknowledgement follows the last put.
- A location of an older generation is refused. The newest one is kept in memory at once, and a step carries it out.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from lakebed.errors import Conflict, InternalError, LakebedError, NotFound, Unavailable
from lakebed.fleet.layout import log_key
from lakebed.fleet.manifest import decode_manifest, decode_referenced
from lakebed.fleet.model import AttachmentMode, Manifest, ManifestRef, TimelineIndex, first_manifest
from lakebed.fleet.node.changes import (
    change_timelines,
    check_change,
    check_not_gone,
    find_target,
    find_timeline,
    is_done,
    without_expired,
)
from lakebed.fleet.node.context import NodeContext
from lakebed.fleet.node.local import LocalTenant
from lakebed.fleet.node.retirement import Retirement
from lakebed.fleet.node.timeline import Timeline, is_pruned
from lakebed.fleet.node.timeline_set import TimelineSet
from lakebed.fleet.node.transaction import OpenTransaction
from lakebed.fleet.ports import Held, Location, TimelineChange
from lakebed.log import logger
from lakebed.metrics import default_registry

_LOG: Final = logger("fleet")

_COMMITS: Final = default_registry.counter(
    "lakebed_fleet_node_commits_total", help_text="Answers to requests to commit.", label_names=("verdict",)
)
_ROWS: Final = default_registry.counter(
    "lakebed_fleet_ingested_rows_total", help_text="Rows read from the log.", label_names=()
)


class TenantState(StrEnum):
    """See the module's docstring."""

    ATTACHING = "attaching"
    ACTIVE = "active"
    STALE = "stale"
    READER = "reader"
    BROKEN = "broken"
    DETACHED = "detached"


class AttachedTenant:
    """A tenant on this node. Reads come from any thread; a pool of workers calls `run` with what `due` returned.

    Args:
        location: the newest location that the control plane has sent.
        resumed: the open transaction of the process before this one, which held the same lock.
    """

    def __init__(self, context: NodeContext, location: Location, *, resumed: LocalTenant | None = None) -> None:
        self.tenant = location.tenant
        self.state = TenantState.ATTACHING
        self.is_gone = False
        """Detached, and acknowledged."""
        self.problem: LakebedError | None = None
        """The last error of a step; None: the step has succeeded since."""
        self.retirement = Retirement(context, location.tenant)
        self.is_asked = False
        """A commit was requested, or is needed to learn of a rejection."""
        self.dirty_since_ms: int | None = None
        """When the oldest uncommitted row or change of files arrived, by `NodeContext.monotonic_ms`."""
        self._context = context
        self._turn = context.environment.runtime.lock()
        self._telling = context.environment.runtime.lock()
        self._wanted: Location = location
        self._settled: Location | None = None
        self._resumed = resumed
        self._base: Manifest | None = None
        self._base_ref: ManifestRef | None = None
        self._set = TimelineSet(context, location.tenant)

    # ---- what is there

    @property
    def location(self) -> Location:
        """The newest location that the control plane has sent."""
        return self._wanted

    @property
    def base(self) -> Manifest:
        """The last committed state that this node knows."""
        assert self._base is not None
        return self._base

    @property
    def transaction(self) -> OpenTransaction | None:
        """The open transaction; None: nothing may be written."""
        return self._set.transaction

    @property
    def timelines(self) -> dict[str, Timeline]:
        """The timelines, by id."""
        return self._set.timelines

    @property
    def is_settled(self) -> bool:
        """Whether the newest location was carried out."""
        return self._settled is self._wanted

    @property
    def is_behind(self) -> bool:
        """Whether the log is known to have rows that can be ingested."""
        return any(
            timeline.lag_rows and timeline.problem is None and not timeline.is_read_only
            for timeline in self.timelines.values()
        )

    @property
    def log_problem(self) -> LakebedError | None:
        """Why a timeline takes no more rows from the log, while the others continue. None: all take rows."""
        problems = (timeline.problem for timeline in list(self.timelines.values()))
        return next((problem for problem in problems if problem is not None), None)

    @property
    def manifest_bytes(self) -> int:
        """Size of the base's manifest."""
        reference = self._base_ref
        return 0 if reference is None else reference.size_bytes

    def find(self, name: str) -> Timeline:
        """Return a committed timeline by name or id. Raises `NotFound` (``timeline_not_found``)."""
        base = self.base
        timeline = self._set.find(name, base)
        if timeline is None:
            find_timeline({index.id: index for index in base.timelines}, name)
            raise not_attached(self.tenant)
        return timeline

    @property
    def indices(self) -> dict[str, TimelineIndex]:
        """The timelines of the working set; without an open transaction, of the base."""
        transaction = self.transaction
        return (
            dict(transaction.timelines)
            if transaction is not None
            else {index.id: index for index in self.base.timelines}
        )

    @property
    def uncommitted_bytes(self) -> int:
        """Bytes of the layers of the open transaction and of the rows in memory."""
        transaction = self.transaction  # another thread may give it up
        layers = 0 if transaction is None else transaction.layer_bytes
        return layers + sum(timeline.unflushed_bytes for timeline in self.timelines.values())

    @property
    def lag_rows(self) -> int:
        """Known number of rows in the log that are not ingested."""
        return sum(timeline.lag_rows for timeline in self.timelines.values())

    def holding(self) -> Held:
        """Return the tenant as the control plane compares it with its ledger."""
        location, transaction = self._settled or self._wanted, self.transaction
        return Held(
            tenant=self.tenant,
            generation=location.generation,
            mode=location.mode or AttachmentMode.STALE,
            base=location.base if self._base is None else self._base.txn,
            txn=location.txn if self._base is None else (None if transaction is None else transaction.txn),
            is_broken=self.state is TenantState.BROKEN,
            # Read in this order: what began before the settled location is in `retirement` until it is acknowledged.
            is_retired=location is self._settled and self.retirement.is_empty,
            policy=self._wanted.policy,
        )

    # ---- locations

    def put_location(self, location: Location) -> bool:
        """Keep a location in memory, for a step to carry out. Return False if the tenant is gone: make a new object.

        Raises `Conflict` (``stale_generation``).
        """
        with self._telling:
            if self.is_gone:
                return False
            wanted_location = self._wanted
            if location.generation < wanted_location.generation or (
                location.generation == wanted_location.generation
                and wanted_location.mode is None
                and location.mode is not None
            ):
                raise stale_generation(self.tenant, location.generation, wanted_location.generation)
            if (
                location.generation == wanted_location.generation
                and location.mode is not None
                and self._is_late(location)
            ):
                return True
            if (
                wanted_location is not self._settled
                and wanted_location.txn is not None
                and wanted_location.txn != location.txn
            ):
                # This node never began that transaction: nothing was written in it.
                self.retirement.never_begun(wanted_location.txn, wanted_location.generation)
            self._wanted = location
            return True

    def _is_late(self, location: Location) -> bool:
        """Whether a location of our generation was read from the ledger before the state that is known here."""
        wanted_location, transaction = self._wanted, self.transaction
        txn = max(wanted_location.txn or 0, 0 if transaction is None else transaction.txn)
        is_back = wanted_location.mode is AttachmentMode.STALE and location.mode is not AttachmentMode.STALE
        return is_back or location.base < wanted_location.base or (location.txn is not None and location.txn < txn)

    def settle(self) -> None:
        """Carry out the newest location. The caller does not hold the turn.

        Raises `Unavailable`, `Corruption`. Cost: 1 GET for a new attachment; 1 LIST more for a resumed one.
        """
        with self._turn:
            self._settle()

    def _settle(self) -> None:
        location, settled = self._wanted, self._settled
        if settled is location:
            return
        mode = location.mode
        if mode is None:
            self._give_up()
            self.state = TenantState.DETACHED
            self._context.budget.forget(self.tenant)
        elif (
            self._base is None
            or settled is None
            or location.generation > settled.generation
            or (mode is AttachmentMode.READER and location.base > self._base.txn)
        ):
            self._load(location)
        elif mode is AttachmentMode.STALE:
            self._give_up()
            self.state = TenantState.STALE if self.state is not TenantState.BROKEN else self.state
        # A newer transaction belongs to a grant whose reply was lost. The request is still recorded, and is sent again.
        self._settled = location

    def _give_up(self) -> None:
        """Stop writing in the open transaction."""
        if self.transaction is not None:
            self.retirement.give_up(self.transaction)
            self._set.transaction = None

    def _load(self, location: Location) -> None:
        """Begin from the location's base. Keep the rows in memory that are above it."""
        with self._context.loading.one():
            base = self._read_base(location)
        transaction = None if location.txn is None else self._open_transaction(location, base)
        self._resumed = None
        self._give_up()
        self._base, self._base_ref = base, location.manifest
        self._set.transaction = transaction
        self.is_asked = transaction is not None and transaction.request is not None
        self._set.show(self.indices, anew=True)
        self._note_committed()
        if transaction is not None and transaction.is_changed:
            self._note_dirty()
        self.state = {
            AttachmentMode.STALE: TenantState.STALE,
            AttachmentMode.READER: TenantState.READER,
        }.get(location.mode or AttachmentMode.STALE, TenantState.ACTIVE)
        self.problem = None
        _LOG.info("attached", tenant=self.tenant, generation=location.generation, base=base.txn)

    def _open_transaction(self, location: Location, base: Manifest) -> OpenTransaction:
        """Return the location's transaction, resumed if an earlier process had begun it, otherwise a new one."""
        context, resumed, timelines = self._context, self._resumed, base.timelines
        if resumed is not None and (resumed.generation, resumed.txn) != (location.generation, location.txn):
            resumed = None
        if resumed is not None:
            timelines = _resume_timelines(context.local.state(self.tenant), base, txn=resumed.txn)
        transaction = OpenTransaction(
            resumed or LocalTenant.of(location),
            base=base,
            timelines=timelines,
            node=context.name,
            storage=context.storage,
            local=context.local,
        )
        if resumed is not None:
            count = transaction.delete_unknown()
            _LOG.info("resumed", tenant=self.tenant, txn=resumed.txn, unknown=count)
        return transaction

    def _read_base(self, location: Location) -> Manifest:
        reference = location.manifest
        if reference is None:
            return first_manifest(self.tenant, main=location.main, created_ms=location.created_ms)
        try:
            body = self._context.storage.get(reference.path)
        except NotFound as error:
            raise Unavailable(
                f"The manifest {reference.path} is not in {self._context.storage.root_url}: {self.tenant} has a newer "
                "state, and is attached anew; if this stays, the storage is not the ledger's, or was restored to a "
                "time before it: restore both to one moment.",
                kind="manifest_gone",
            ) from error
        return decode_referenced(body, reference)

    def retire_once(self) -> bool:
        """Acknowledge what was given up. Return whether all is acknowledged. Raises `Unavailable`, `OutcomeUnknown`."""
        with self._turn:
            settled = self._settled
            if not self.retirement.run():
                return False
            if self.state is TenantState.DETACHED and settled is not None:
                self.retirement.remember(settled.generation, is_acknowledged=True)
                with self._telling:  # it may have been attached again meanwhile
                    self.is_gone = settled is self._wanted
            return True

    # ---- commits

    def commit_once(self, *, flush: bool = True) -> bool:
        """Commit what is there. Return whether a request was granted.

        Args:
            flush: write rows in memory into layers first.

        Raises:
            Unavailable, OutcomeUnknown: the request is made again later.
            Rejected: the attachment is broken now.
        Cost: 1 PUT a flushed memtable, 1 PUT for the manifest, 1 more when something died, 1 request.
        """
        with self._turn:
            self._settle()
            transaction = self.transaction
            if transaction is None or not self._context.is_reported:
                return False
            if transaction.request is None:
                self._expire_pins(transaction)
                self._flush(transaction, rotate=flush)
                if not transaction.is_changed and not self.is_asked:
                    self._note_committed()
                    return False
            return self._ask(transaction)

    def _ask(self, transaction: OpenTransaction) -> bool:
        context = self._context
        is_new = transaction.request is None
        refusals = [
            (timeline, error) for timeline in self.timelines.values() if (error := timeline.refusal) is not None
        ]
        request = transaction.freeze()
        transaction.put_frozen()
        transaction.is_sent = True
        reply = context.control.commit([request])[0]
        _COMMITS.add(1, reply.verdict)
        if reply.verdict == "wait":
            return False
        if reply.verdict != "granted":
            self._break(transaction, reply.reason)
        if reply.txn is None:
            raise InternalError(f"the commit of {self.tenant} was granted without the next transaction")
        successor = transaction.successor(txn=reply.txn, generation=reply.generation or request.generation)
        self._apply_grant(successor)
        if is_new:
            for timeline, error in refusals:
                timeline.stop_behind(error)
        try:
            successor.store()
        except Unavailable as error:  # then a restart asks with the old request again
            self.problem = error
        return True

    def _apply_grant(self, successor: OpenTransaction) -> None:
        before, after = self.base, successor.base
        self._set.transaction, self._base, self._base_ref = successor, after, successor.committed
        self._set.show(successor.timelines, anew=False)
        self._set.forget_files(before, after)
        self.is_asked = False
        self._note_committed()
        _LOG.info("committed", tenant=self.tenant, txn=after.txn)

    def _break(self, transaction: OpenTransaction, reason: str) -> None:
        """Stop after a request was rejected; store that first."""
        transaction.is_rejected = True
        self.retirement.remember(transaction.record.generation, is_acknowledged=False)
        self._give_up()
        self.state = TenantState.BROKEN
        self.is_asked = False
        _LOG.info("rejected", tenant=self.tenant, txn=transaction.txn, reason=reason)
        raise not_attached(self.tenant)

    def _expire_pins(self, transaction: OpenTransaction) -> None:
        now = transaction.timelines
        without_old = without_expired(now, now_ms=self._context.agreed_ms())
        if without_old is not now:
            transaction.replace_timelines(without_old)

    # ---- layers

    def _flush(self, transaction: OpenTransaction, *, rotate: bool) -> bool:
        """Flush what was rotated, with `rotate` all rows. Return whether a file was written."""
        flushed = False
        policy = self._wanted.policy
        for timeline in list(self.timelines.values()):
            if timeline.id not in transaction.timelines or timeline.is_flushed:
                continue
            if rotate or timeline.needs_flush:
                timeline.advance_cutoff(policy)
            if rotate:
                timeline.rotate()
            flushed |= timeline.flush_waiting()
            self._note_rows(timeline)
        return flushed

    def _may_write(self) -> OpenTransaction | None:
        """Return the transaction; None also while its request waits for an answer."""
        self._settle()
        transaction = self.transaction
        return None if transaction is None or transaction.request is not None else transaction

    def flush_once(self, *, rotate: bool = True) -> bool:
        """Write rows in memory into layers of the open transaction. Return whether there were any.

        Args:
            rotate: all rows; else only memtables that are full.

        Raises `Unavailable`, `OutcomeUnknown`. Cost: 1 PUT a memtable; no request to the control plane.
        """
        with self._turn:
            transaction = self._may_write()
            return transaction is not None and self._flush(transaction, rotate=rotate)

    def flush_timeline(self, timeline: str) -> bool:
        """Flush all rows of one timeline, by its id; otherwise as `flush_once`."""
        with self._turn:
            transaction, target = self._may_write(), self.timelines.get(timeline)
            if transaction is None or target is None or timeline not in transaction.timelines or target.is_read_only:
                return False
            target.advance_cutoff(self._wanted.policy)
            target.rotate()
            flushed = target.flush_waiting()
            self._note_rows(target)
            return flushed

    def compact_once(self) -> bool:
        """Run one planned compaction of any timeline. Return whether there was one. Raises as `flush_once`."""
        with self._turn:
            transaction = self._may_write()
            if transaction is None:
                return False
            for timeline in list(self.timelines.values()):
                if timeline.needs_compaction and not timeline.is_read_only and timeline.id in transaction.timelines:
                    timeline.advance_cutoff(self._wanted.policy)
                    if timeline.compact_once():
                        self._note_dirty()
                        return True
            return False

    def compact_full(self, name: str) -> bool:
        """Merge all files of a timeline into one run. Return whether this was done now.

        Raises as `flush_once`, and `NotFound`. False: a request waits for its answer.
        """
        with self._turn:
            transaction = self._may_write()
            if transaction is None:
                return False
            timeline = self._require_timeline(find_timeline(transaction.timelines, name).id)
            if not timeline.is_read_only:
                timeline.advance_cutoff(self._wanted.policy)
            if timeline.compact_full():
                self._note_dirty()
            return True

    # ---- rows

    def ingest_once(self) -> bool:
        """Read what the log has for each timeline that is behind. Return whether there was anything.

        Raises as `Timeline.ingest_once`. Cost: 1 request to the log a timeline that is behind.
        """
        has_rows = False
        for timeline in list(self.timelines.values()):
            has_rows |= self.ingest_timeline(timeline) > 0
        return has_rows

    def ingest_timeline(self, timeline: Timeline) -> int:
        """Read from the log into one timeline. Return the number of rows; 0 while ingestion pauses."""
        if self.is_paused:
            return 0
        try:
            count = timeline.ingest_once()
        except LakebedError as error:
            if is_pruned(error) or (error.kind == "timeline_not_found" and timeline.last_lsn):
                # Another attachment has committed more, or dropped the timeline: the rejection says so.
                self.is_asked, timeline.refusal = True, error
            raise
        if count:
            _ROWS.add(count)
            timeline.note_age(self._wanted.policy.retain_ms)
            self._note_dirty()
            self._note_rows(timeline)
        return count

    @property
    def is_paused(self) -> bool:
        """Whether no rows are taken from the log now: memory or uncommitted bytes are at their limit."""
        context = self._context
        return (
            context.budget.is_full
            or self.tenant in context.paused
            or self.uncommitted_bytes >= self._wanted.policy.uncommitted_bytes_max
        )

    def _note_dirty(self) -> None:
        if self.dirty_since_ms is None:
            self.dirty_since_ms = self._context.monotonic_ms()

    def _note_committed(self) -> None:
        """Note that only rows in memory are uncommitted. Reset first, then look, so that later rows are noted."""
        self.dirty_since_ms = None
        if self.transaction is not None and not all(timeline.is_flushed for timeline in self.timelines.values()):
            self._note_dirty()

    def _note_rows(self, timeline: Timeline) -> None:
        self._set.note_rows(timeline.id, timeline)

    def ask(self) -> None:
        """Make a commit due now, because a file is gone or a caller waits."""
        self.is_asked = True

    # ---- changes of the set of timelines

    def apply_change(self, change: TimelineChange) -> bool:
        """Make a change in the working set. Return whether it is committed already.

        Raises:
            Unavailable: not now; nothing changed. `AlreadyExists`, `NotFound`, `InvalidRequest`: see
                `lakebed.fleet.node.changes`.
        """
        check_change(change)
        with self._turn:
            self._settle()
            committed_indices = {index.id: index for index in self.base.timelines}
            if is_done(committed_indices, change):
                return True
            check_not_gone(self.base.gone, change)
            transaction = self.transaction
            if transaction is None:
                raise not_attached(self.tenant)
            if is_done(transaction.timelines, change):
                return False
            if transaction.request is not None:
                raise commit_pending(self.tenant)
            if change.kind == "detach":  # all files are rewritten, so that none is an ancestor's
                self._require_timeline(find_target(transaction.timelines, change).id).compact_full()
            context, lifetime_ms = self._context, change.lifetime_ms
            timelines = change_timelines(
                transaction.timelines,
                committed_indices,
                change,
                now_ms=context.now_ms(),
                expires_ms=None if lifetime_ms is None else context.end_ms(lifetime_ms),
            )
            new = timelines.get(change.id)
            if new is not None and not new.is_read_only and change.id not in transaction.timelines:
                self._context.log.create(log_key(self.tenant, new.id), after=new.lsn)
            transaction.replace_timelines(timelines)
            self._note_dirty()
            return False

    def _require_timeline(self, id: str) -> Timeline:
        """Return a timeline of the working set that is committed. Raises `Unavailable`: not yet."""
        timeline = self.timelines.get(id)
        if timeline is None:
            raise commit_pending(self.tenant)
        return timeline


def _resume_timelines(body: bytes | None, base: Manifest, *, txn: int) -> tuple[TimelineIndex, ...]:
    """Return the working set in the local state; the base's timelines if it is missing or of another transaction."""
    if body is None:
        return base.timelines
    state = decode_manifest(body, path="the local state")
    return state.timelines if (state.txn, state.base) == (txn, base.txn) else base.timelines


def stale_generation(tenant: str, generation: int, newest: int) -> Conflict:
    """Return the error for a location of an older generation."""
    return Conflict(
        f"Tenant {tenant!r} was to have generation {generation} here, and it has {newest}: read the ledger again.",
        kind="stale_generation",
        generation=newest,
    )


def commit_pending(tenant: str) -> Unavailable:
    """Return the error for a change that must wait for the answer to a commit."""
    return Unavailable(f"A commit of {tenant} waits for its answer: ask again.", kind="commit_pending")


def not_attached(tenant: str) -> Unavailable:
    """Return the error for a tenant that is not attached here, or not in a mode that allows the request."""
    return Unavailable(
        f"Tenant {tenant!r} is not attached to this node: ask the control plane where it is.",
        kind="not_attached",
        tenant=tenant,
    )
