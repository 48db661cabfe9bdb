"""The transaction machine: a record and an event give a new record, what finished, and a reply, or a refusal. Pure.

Owns: every change of a `TenantRecord`. A step is one compare-and-set of the record; the same write stores what the step
finished. `MOVES` is the table of states. A move that it does not contain is refused, and a refusal changes nothing.

Invariants:
- Every open transaction has the last committed one as its base, so at most one of those open now is ever granted.
- Transaction ids and generations ascend and are never reused.
- A transaction that is not open is never granted. A finished one leaves the record, with a task for the collector if
  there is something to delete.
- A node has at most one attachment of a tenant. While no relocation runs, at most one attachment may commit.
- When a timeline loses its name, by a restore or deletion, the same step records that it must be sealed.
- A lost reply can be asked for again: `commit` and `ack` answer from the finished transaction (`done/`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, NoReturn, TypeVar

from msgspec.structs import asdict, replace

from lakebed.errors import Conflict, InvalidRequest
from lakebed.fleet.layout import check_name, deadlist_of, txn_folder
from lakebed.fleet.model import (
    MAIN,
    NUMBER_MAX,
    Attachment,
    AttachmentMode,
    CollectTask,
    Floor,
    Hold,
    NodeRecord,
    Policy,
    Progress,
    Relocation,
    TenantRecord,
    Transaction,
)
from lakebed.fleet.ports import AckReply, AckRequest, CommitReply, CommitRequest, Location, Resumed
from lakebed.fleet.records import (
    ACKNOWLEDGED,
    COLLECTED,
    COMMITTED,
    HOLD_MS,
    MOVES,
    OPEN,
    PENDING,
    Move,
    Step,
    acknowledge,
    apply_move,
    attachment_of,
    begin_transaction,
    doom,
    find_unfinished,
    has_moved,
    location_of,
    open_of,
    reader_hold,
    replace_transaction,
    running_holds,
    target_attached,
    without,
)

R = TypeVar("R")

GRANTED: Final = "granted"
REJECTED: Final = "rejected"
WAIT: Final = "wait"


# ---- tenants


def new_tenant(tenant: str, *, policy: Policy, floor: Floor | None, now_ms: int) -> TenantRecord:
    """Return the record of a tenant that was never attached; `floor` is that of an earlier tenant of its name.

    The id of its first timeline differs from all earlier ids, because a request to drop or prune the log of an earlier
    timeline, or to append to it, may still be on its way. The id contains a transaction number that no transaction
    gets.
    """
    main = MAIN if floor is None else f"{MAIN}-{floor.next_txn}"
    return TenantRecord(
        tenant,
        next_txn=1 if floor is None else floor.next_txn + 1,
        next_generation=1 if floor is None else floor.next_generation,
        timelines={main: Progress(0, 0)},
        names={MAIN: main},
        policy=policy,
        created_ms=now_ms,
    )


def set_policy(record: TenantRecord, policy: Policy) -> Step[TenantRecord]:
    """Replace the settings."""
    _refuse_deleted(record)
    after = replace(record, policy=policy)
    return Step(after, after)


def set_home(record: TenantRecord, node: str | None) -> Step[None]:
    """Record the node from which a drain moves the tenant."""
    return Step(None, replace(record, home=node))


def delete(record: TenantRecord, *, now_ms: int) -> Step[None]:
    """Mark the tenant as deleted: detach it everywhere, grant nothing any more, let no log take rows. Idempotent."""
    if record.is_deleted:
        return Step(None, record)
    after = replace(
        record,
        is_deleted=True,
        attachments=(),
        preferred=None,
        relocation=None,
        home=None,
        sealing=tuple(dict.fromkeys((*record.sealing, *_timelines_to_seal(record, {}, {})))),
        transactions=doom(record.transactions, now_ms=now_ms),
    )
    return Step(None, after)


def note_sealed(record: TenantRecord, timelines: Collection[str]) -> Step[None]:
    """Record that the logs of some timelines are sealed."""
    ids_left = tuple(id for id in record.sealing if id not in timelines)
    return Step(None, record if ids_left == record.sealing else replace(record, sealing=ids_left))


def _timelines_to_seal(record: TenantRecord, timelines: Collection[str], names: Mapping[str, str]) -> tuple[str, ...]:
    """Timelines of a record that take rows, and that a later state does not have, or has under another name."""
    renamed_ids = {id for name, id in record.names.items() if names.get(name) != id}
    return tuple(
        id
        for id, progress in record.timelines.items()
        if not progress.is_read_only and id not in record.sealed and (id in renamed_ids or id not in timelines)
    )


# ---- attachments


def attach(record: TenantRecord, node: NodeRecord, *, now_ms: int) -> Step[Location]:
    """Attach the tenant to one node only: doom open transactions, use a new generation, begin a transaction."""
    _refuse_deleted(record)
    readers = tuple(
        attachment
        for attachment in record.attachments
        if attachment.mode is AttachmentMode.READER and attachment.node != node.node
    )
    new = Attachment(node.node, record.next_generation, AttachmentMode.SINGLE)
    after = replace(
        record,
        next_generation=record.next_generation + 1,
        attachments=(*readers, new),
        preferred=node.node,
        relocation=None,
        transactions=doom(record.transactions, now_ms=now_ms),
        holds=running_holds(record.holds, now_ms=now_ms),
    )
    after = begin_transaction(after, new, local_id=node.local_id, now_ms=now_ms)
    return Step(location_of(after, new), after)


def attach_reader(record: TenantRecord, node: NodeRecord, *, now_ms: int) -> Step[Location]:
    """Attach the tenant to another node too, read-only. Raises `Conflict` (``attached``)."""
    _refuse_deleted(record)
    attachment = attachment_of(record, node.node)
    if attachment is not None and attachment.mode is AttachmentMode.READER:
        return Step(location_of(record, attachment), record)
    if attachment is not None:
        raise Conflict(
            f"Tenant {record.tenant!r} is attached to {node.node!r} already: choose another node.", kind="attached"
        )
    attachment = Attachment(node.node, record.next_generation, AttachmentMode.READER)
    after = replace(
        record,
        next_generation=record.next_generation + 1,
        attachments=(*record.attachments, attachment),
        holds=(*running_holds(record.holds, now_ms=now_ms), reader_hold(attachment, record.committed, now_ms=now_ms)),
    )
    return Step(location_of(after, attachment), after)


def detach(record: TenantRecord, node: str, *, now_ms: int) -> Step[None]:
    """Detach the tenant from a node. Doom its open transaction."""
    after = without(record, node)
    return Step(None, replace(after, transactions=doom(after.transactions, of=node, now_ms=now_ms)))


def restart(record: TenantRecord, node: NodeRecord, resumed: Resumed | None, *, now_ms: int) -> Step[Location | None]:
    """Handle the start of a node's process; `resumed` is the transaction that it continues in this tenant.

    A resumed transaction that may still be granted continues. Otherwise an attachment that may commit gets a new
    generation and transaction. Other rejected transactions of the same local state have no writer any more, so they are
    acknowledged.
    """
    current = attachment_of(record, node.node)
    candidate = None if current is None else open_of(record, current)
    if (
        resumed is None
        or candidate is None
        or (resumed.generation, resumed.txn) != (candidate.generation, candidate.id)
    ):
        candidate = None
    after = record
    if current is not None and current.mode is AttachmentMode.STALE:  # its memory, from which it served reads, is gone
        after, current = without(record, node.node), None
    elif current is not None and current.may_commit and candidate is None:
        new = replace(current, generation=record.next_generation)
        after = replace(
            record,
            next_generation=record.next_generation + 1,
            attachments=tuple(new if attachment is current else attachment for attachment in record.attachments),
            transactions=doom(record.transactions, of=node.node, now_ms=now_ms),
        )
        after, current = begin_transaction(after, new, local_id=node.local_id, now_ms=now_ms), new
    over = tuple(
        transaction
        for transaction in after.transactions
        if transaction.node == node.node
        and transaction.state is PENDING
        and transaction.local_id == node.local_id
        and (resumed is None or transaction.id != resumed.txn)
    )
    step = acknowledge(after, over, Move.ACK, now_ms=now_ms)
    reply = None if current is None else location_of(step.record, current)
    return Step(reply, step.record, step.finished, step.tasks)


def decommission(record: TenantRecord, node: str, *, now_ms: int) -> Step[None]:
    """End the attachment of a node that will never write again, and acknowledge its transactions."""
    transactions = tuple(transaction for transaction in record.transactions if transaction.node == node)
    return acknowledge(without(record, node), transactions, Move.DECOMMISSION, now_ms=now_ms)


# ---- relocation


def relocate(record: TenantRecord, target: NodeRecord, *, now_ms: int) -> Step[Location]:
    """Attach the target and doom nothing. Both nodes may commit; the first commit dooms the other's transaction.

    Raises `Conflict` (``relocation_running``, ``not_attached``).
    """
    _refuse_deleted(record)
    source = attachment_of(record, record.preferred)
    if source is None or not source.may_commit:
        raise Conflict(f"Tenant {record.tenant!r} is not attached: wait until it is.", kind="not_attached")
    if record.relocation is not None and record.relocation.target != target.node:
        raise Conflict(
            f"Tenant {record.tenant!r} is on its way to {record.relocation.target!r}: wait until it is there.",
            kind="relocation_running",
        )
    if record.relocation is not None or source.node == target.node:
        attachment = attachment_of(record, target.node)
        return Step(location_of(record, attachment or source), record)
    other_writers = tuple(
        replace(other, mode=AttachmentMode.MULTI) if other is source else other
        for other in record.attachments
        if other.node != target.node
    )
    before = replace(record, attachments=other_writers)
    after = target_attached(before, target.node, local_id=target.local_id, now_ms=now_ms)
    after = replace(
        after,
        relocation=Relocation(
            source.node, target.node, now_ms, source_waits_until_ms=now_ms + record.policy.relocation_wait_max_ms
        ),
    )
    attachment = after.attachments[-1]
    return Step(location_of(after, attachment), after)


def hand_over(record: TenantRecord, *, now_ms: int) -> Step[None]:
    """Prefer a target that has everything that was committed, and nothing to commit itself; as its commit would."""
    relocation = record.relocation
    target = attachment_of(record, None if relocation is None else relocation.target)
    if relocation is None or has_moved(record) or target is None or open_of(record, target) is None:
        return Step(None, record)
    after = replace(record, transactions=doom(record.transactions, of=relocation.source, now_ms=now_ms))
    return Step(None, _take_over(after, relocation, record.committed, now_ms=now_ms))


def finish_relocation(record: TenantRecord) -> Step[None]:
    """End the source's attachment, once clients have gone over to the target."""
    if not has_moved(record):
        return Step(None, record)
    assert record.relocation is not None
    return Step(None, without(record, record.relocation.source))


def cancel_relocation(record: TenantRecord, *, now_ms: int) -> Step[None]:
    """Detach the target. A relocation whose target has committed is not cancelled."""
    if record.relocation is None or has_moved(record):
        return Step(None, record)
    return detach(record, record.relocation.target, now_ms=now_ms)


# ---- transactions


def commit(
    record: TenantRecord, request: CommitRequest, *, finished: Transaction | None, now_ms: int
) -> Step[CommitReply]:
    """Decide a request to commit.

    Args:
        finished: the transaction from ``done/``, when `may_be_finished`.
    """
    transaction = find_unfinished(record, request.txn)
    if transaction is None:
        return Step(_again(record, request, finished), record)
    if (transaction.node, transaction.generation) != (request.node, request.generation):
        return Step(_reject("the transaction is another attachment's"), record)
    if transaction.state is not OPEN:
        return Step(_reject("another transaction was granted, or the tenant is attached elsewhere"), record)
    attachment = attachment_of(record, request.node)
    reason = ""
    if transaction.base != record.committed:
        reason = "another transaction was granted since it began"
    elif attachment is None or attachment.generation != request.generation or not attachment.may_commit:
        reason = "the attachment may not commit"
    elif any(
        progress.lsn < record.timelines[name].lsn
        for name, progress in request.timelines.items()
        if name in record.timelines
    ):
        reason = "a timeline would go backwards"
    if reason:
        replacement = apply_move(transaction, Move.DOOM, now_ms=now_ms)
        return Step(
            _reject(reason), replace(record, transactions=replace_transaction(record.transactions, replacement))
        )
    relocation = record.relocation
    if relocation is not None and request.node == relocation.source:
        latest_ms = now_ms + record.policy.relocation_wait_max_ms  # a later end means that the clock was set back
        if now_ms < relocation.source_waits_until_ms <= latest_ms:
            return Step(CommitReply(WAIT), record)
    return _grant(record, transaction, request, now_ms=now_ms)


def _again(record: TenantRecord, request: CommitRequest, finished_transaction: Transaction | None) -> CommitReply:
    """Return the answer for a transaction that is not open any more."""
    if finished_transaction is None or (finished_transaction.node, finished_transaction.generation) != (
        request.node,
        request.generation,
    ):
        return _reject("there is no such transaction of this attachment")
    if finished_transaction.state is not COMMITTED:
        return _reject("the transaction was rejected")
    if finished_transaction.manifest != request.manifest:
        return _reject("the transaction was committed with another manifest")
    successor = next(
        (
            transaction.id
            for transaction in record.transactions
            if (transaction.node, transaction.generation, transaction.base)
            == (request.node, request.generation, request.txn)
        ),
        None,
    )
    return CommitReply(GRANTED, txn=successor, generation=request.generation)


def _grant(record: TenantRecord, transaction: Transaction, request: CommitRequest, *, now_ms: int) -> Step[CommitReply]:
    main = request.names.get(MAIN, "")
    granted = replace(
        apply_move(transaction, Move.GRANT, now_ms=now_ms),
        manifest=request.manifest,
        has_deadlist=request.has_deadlist,
        main=main,
        main_lsn=request.timelines[main].lsn if main in request.timelines else 0,
    )
    holds = [
        reader_hold(reader, transaction.base, now_ms=now_ms)
        for reader in record.attachments
        if reader.mode is AttachmentMode.READER
    ]
    hold_ids = {hold.id for hold in holds}
    lost_timelines = _timelines_to_seal(record, request.timelines, request.names)
    after = replace(
        record,
        committed=transaction.id,
        manifest=request.manifest,
        deadlist=deadlist_of(request.manifest.path) if request.has_deadlist else None,
        timelines=request.timelines,
        names=request.names,
        sealed=tuple(id for id in (*record.sealed, *lost_timelines) if id in request.timelines),
        sealing=(*record.sealing, *(id for id in lost_timelines if id not in record.sealing)),
        transactions=doom((other for other in record.transactions if other is not transaction), now_ms=now_ms),
        holds=(*(hold for hold in running_holds(record.holds, now_ms=now_ms) if hold.id not in hold_ids), *holds),
    )
    attachment = Attachment(transaction.node, transaction.generation, AttachmentMode.SINGLE)
    txn = None
    if request.begin:
        txn = after.next_txn
        after = begin_transaction(after, attachment, local_id=transaction.local_id, now_ms=now_ms)
    if record.relocation is not None:
        after = _relocation_granted(after, record, transaction, now_ms=now_ms)
    reply = CommitReply(GRANTED, txn=txn, generation=request.generation)
    return Step(reply, after, (granted,), _tasks_of(record, after, transaction.id, now_ms=now_ms))


def _relocation_granted(
    after: TenantRecord, before: TenantRecord, transaction: Transaction, *, now_ms: int
) -> TenantRecord:
    """Return the record after a grant in a relocation.

    After a grant to the target, clients go over to it. After a grant to the source, the target is attached again.
    """
    relocation = before.relocation
    assert relocation is not None
    if transaction.node == relocation.target and not has_moved(before):
        return _take_over(after, relocation, transaction.base, now_ms=now_ms)
    if transaction.node == relocation.source:
        old_transaction = next(
            (other for other in reversed(before.transactions) if other.node == relocation.target), None
        )
        other_attachments = tuple(
            attachment for attachment in after.attachments if attachment.node != relocation.target
        )
        after = replace(
            after,
            attachments=other_attachments,
            relocation=replace(relocation, source_waits_until_ms=now_ms + before.policy.relocation_wait_max_ms),
        )
        return target_attached(
            after,
            relocation.target,
            local_id="" if old_transaction is None else old_transaction.local_id,
            now_ms=now_ms,
        )
    return after


def _take_over(record: TenantRecord, relocation: Relocation, base: int, *, now_ms: int) -> TenantRecord:
    """Send clients to the target. The source serves reads of `base` until they have gone over."""
    return replace(
        record,
        preferred=relocation.target,
        attachments=tuple(
            replace(attachment, mode=AttachmentMode.STALE) if attachment.node == relocation.source else attachment
            for attachment in record.attachments
        ),
        holds=(*record.holds, Hold(f"relocation:{relocation.source}", base, now_ms + HOLD_MS)),
    )


def _tasks_of(before: TenantRecord, after: TenantRecord, txn: int, *, now_ms: int) -> tuple[CollectTask, ...]:
    """Return the collector's task for what a commit made unneeded, if there is anything."""
    unneeded = [] if before.manifest is None else [before.manifest.path]
    if before.deadlist is not None:
        unneeded.append(before.deadlist)
    removed_timelines = tuple(
        name for name, timeline in before.timelines.items() if name not in after.timelines and not timeline.is_read_only
    )
    if not unneeded and not removed_timelines and after.deadlist is None:
        return ()
    return (
        CollectTask(
            after.tenant,
            txn,
            COMMITTED,
            since_ms=now_ms,
            deadlist=after.deadlist,
            unneeded=tuple(unneeded),
            timelines=removed_timelines,
        ),
    )


def ack(record: TenantRecord, request: AckRequest, *, finished: Transaction | None, now_ms: int) -> Step[AckReply]:
    """Record that the node has stopped all writes of a transaction. For an open one, this is a clean detach."""
    transaction = find_unfinished(record, request.txn) or finished
    if transaction is None:
        return Step(AckReply("", is_accepted=False, reason="there is no such transaction"), record)
    if (transaction.node, transaction.generation) != (request.node, request.generation):
        reason = "the transaction is another attachment's"
        return Step(AckReply(transaction.state.value, is_accepted=False, reason=reason), record)
    if transaction.state in (ACKNOWLEDGED, COLLECTED):
        return Step(AckReply(transaction.state.value), record)
    if transaction.state is COMMITTED:
        return Step(AckReply(transaction.state.value, is_accepted=False, reason="it was committed"), record)
    attachment = attachment_of(record, request.node)
    is_current = attachment is not None and attachment.generation == request.generation
    before = without(record, request.node) if transaction.state is OPEN and is_current else record
    step = acknowledge(before, (transaction,), Move.ACK, now_ms=now_ms)
    return Step(AckReply(ACKNOWLEDGED.value), step.record, step.finished, step.tasks)


def force_ack(record: TenantRecord, txn: int, *, finished: Transaction | None, now_ms: int) -> Step[AckReply]:
    """Acknowledge a rejected transaction for its node, as an operator asks. Refuse an open one: it may be granted."""
    transaction = find_unfinished(record, txn) or finished
    if transaction is None:
        return Step(AckReply("", is_accepted=False, reason="there is no such transaction"), record)
    if transaction.state in (ACKNOWLEDGED, COLLECTED):
        return Step(AckReply(transaction.state.value), record)
    if (transaction.state, Move.FORCE) not in MOVES:
        reason = "it was committed" if transaction.state is COMMITTED else "it is open, and may still be granted"
        return Step(AckReply(transaction.state.value, is_accepted=False, reason=reason), record)
    step = acknowledge(record, (transaction,), Move.FORCE, now_ms=now_ms)
    return Step(AckReply(ACKNOWLEDGED.value), step.record, step.finished, step.tasks)


def collect(finished: Transaction, *, now_ms: int) -> Transaction:
    """Return the state of a finished transaction after its collection. A committed or collected one does not change."""
    if finished.state in (COMMITTED, COLLECTED):
        return finished
    return replace(apply_move(finished, Move.COLLECT, now_ms=now_ms), ended_ms=finished.ended_ms)


def check_request(request: CommitRequest) -> None:
    """Refuse a request with a manifest of another transaction. Raises `InvalidRequest` (``invalid_manifest``)."""
    check_name(request.tenant, what="tenant")
    folder, _, attempt = request.manifest.path.rpartition("/manifest.")
    if folder != txn_folder(request.tenant, request.txn) or not (attempt.isascii() and attempt.isdigit()):
        raise InvalidRequest(
            f"{request.manifest.path!r} is not a manifest of transaction {request.txn} of {request.tenant!r}: send the "
            "path that it was written to.",
            kind="invalid_manifest",
        )
    numbers = [lsn for progress in request.timelines.values() for lsn in (progress.lsn, progress.cutoff)]
    if not all(0 <= number <= NUMBER_MAX for number in (*numbers, request.manifest.size_bytes)):
        raise InvalidRequest(
            "A number of the request is not in range: send what the manifest has.", kind="invalid_manifest"
        )


def check_policy(policy: Policy) -> None:
    """Refuse settings that are not in range. Raises `InvalidRequest` (``invalid_policy``)."""
    for name, number in asdict(policy).items():
        if not 0 <= number <= NUMBER_MAX:
            raise InvalidRequest(
                f"{name}={number} is not in range: use 0 to {NUMBER_MAX}.", kind="invalid_policy", name=name
            )


# ---- parts of steps


def _refuse_deleted(record: TenantRecord) -> None:
    if record.is_deleted:
        _raise_deleted(record.tenant)


def _raise_deleted(tenant: str) -> NoReturn:
    raise Conflict(f"Tenant {tenant!r} is being deleted: wait, then create it anew.", kind="tenant_deleted")


def _reject(reason: str) -> CommitReply:
    return CommitReply(REJECTED, reason=reason)
