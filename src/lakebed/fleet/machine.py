"""The transaction machine: (record, event) -> the record after it, what finished, and a reply; or a refusal. Pure.

Owns: every change of a `TenantRecord`. A step is one compare-and-set of the record, with what it finished in the same
write. `MOVES` is the table of states; what it does not have is refused, and a refusal changes nothing.

Invariants:
- Every open transaction has the last committed one as its base, so at most one of those open now is ever granted.
- Transaction ids and generations ascend and are never used again.
- A transaction that is not open is never granted. A finished one leaves the record, with a task for the collector where
  something is to be deleted.
- At most one attachment a node; while no relocation runs, at most one may commit.
- A timeline that has lost its name, by a restore or deletion, is to be sealed by the same step.
- A reply that was lost is given again: `commit` and `ack` answer from the finished transaction (`done/`).
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
    """A tenant that was never attached; `floor` of an earlier one of its name.

    Its first timeline has an id that no earlier one has used: a request to drop or prune an earlier one's log, or to
    append to it, may still be on its way. The id has a transaction's number, which no transaction gets.
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
    """Note where a drained tenant comes from."""
    return Step(None, replace(record, home=node))


def delete(record: TenantRecord, *, now_ms: int) -> Step[None]:
    """Detach everywhere; nothing is granted any more, and no log takes rows. Deleted already: nothing changes."""
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
    """The logs of some timelines are sealed."""
    left = tuple(id for id in record.sealing if id not in timelines)
    return Step(None, record if left == record.sealing else replace(record, sealing=left))


def _timelines_to_seal(record: TenantRecord, timelines: Collection[str], names: Mapping[str, str]) -> tuple[str, ...]:
    """Timelines of a record that take rows, and are not in a later state or have lost their name there."""
    renamed = {id for name, id in record.names.items() if names.get(name) != id}
    return tuple(
        id
        for id, progress in record.timelines.items()
        if not progress.is_read_only and id not in record.sealed and (id in renamed or id not in timelines)
    )


# ---- attachments


def attach(record: TenantRecord, node: NodeRecord, *, now_ms: int) -> Step[Location]:
    """Give the tenant to a node alone: doom what is open, new generation, begin."""
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
    """Give the tenant to a further node, read-only. Raises `Conflict` (``attached``)."""
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
    """Take the tenant from a node; what it has open is doomed."""
    after = without(record, node)
    return Step(None, replace(after, transactions=doom(after.transactions, of=node, now_ms=now_ms)))


def restart(record: TenantRecord, node: NodeRecord, resumed: Resumed | None, *, now_ms: int) -> Step[Location | None]:
    """A node's process has started; `resumed` is what it continues in this tenant.

    What it resumes and may still commit continues. Otherwise an attachment that may commit gets a new generation and
    transaction. What the same local state had before, and is not resumed, has no writer any more: it is acknowledged.
    """
    current = attachment_of(record, node.node)
    kept = None if current is None else open_of(record, current)
    if resumed is None or kept is None or (resumed.generation, resumed.txn) != (kept.generation, kept.id):
        kept = None
    after = record
    if current is not None and current.mode is AttachmentMode.STALE:  # what it served from memory is gone
        after, current = without(record, node.node), None
    elif current is not None and current.may_commit and kept is None:
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
    """The node will never write again: its transactions are acknowledged, its attachment ends."""
    transactions = tuple(transaction for transaction in record.transactions if transaction.node == node)
    return acknowledge(without(record, node), transactions, Move.DECOMMISSION, now_ms=now_ms)


# ---- relocation


def relocate(record: TenantRecord, target: NodeRecord, *, now_ms: int) -> Step[Location]:
    """Attach the target without dooming: both may commit, and the first to do so dooms the other's transaction.

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
    others = tuple(
        replace(other, mode=AttachmentMode.MULTI) if other is source else other
        for other in record.attachments
        if other.node != target.node
    )
    before = replace(record, attachments=others)
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
    """The target has all that was committed, and nothing to commit itself: it becomes preferred as by its commit."""
    running = record.relocation
    target = attachment_of(record, None if running is None else running.target)
    if running is None or has_moved(record) or target is None or open_of(record, target) is None:
        return Step(None, record)
    after = replace(record, transactions=doom(record.transactions, of=running.source, now_ms=now_ms))
    return Step(None, _take_over(after, running, record.committed, now_ms=now_ms))


def finish_relocation(record: TenantRecord) -> Step[None]:
    """Clients have gone over: the source's attachment ends."""
    if not has_moved(record):
        return Step(None, record)
    assert record.relocation is not None
    return Step(None, without(record, record.relocation.source))


def cancel_relocation(record: TenantRecord, *, now_ms: int) -> Step[None]:
    """The target is given up; a relocation whose target has committed is not cancelled."""
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
    running = record.relocation
    if running is not None and request.node == running.source:
        latest_ms = now_ms + record.policy.relocation_wait_max_ms  # later than that it is when a clock was set back
        if now_ms < running.source_waits_until_ms <= latest_ms:
            return Step(CommitReply(WAIT), record)
    return _grant(record, transaction, request, now_ms=now_ms)


def _again(record: TenantRecord, request: CommitRequest, finished: Transaction | None) -> CommitReply:
    """The answer for a transaction that is over."""
    if finished is None or (finished.node, finished.generation) != (request.node, request.generation):
        return _reject("there is no such transaction of this attachment")
    if finished.state is not COMMITTED:
        return _reject("the transaction was rejected")
    if finished.manifest != request.manifest:
        return _reject("the transaction was committed with another manifest")
    following = next(
        (
            transaction.id
            for transaction in record.transactions
            if (transaction.node, transaction.generation, transaction.base)
            == (request.node, request.generation, request.txn)
        ),
        None,
    )
    return CommitReply(GRANTED, txn=following, generation=request.generation)


def _grant(record: TenantRecord, transaction: Transaction, request: CommitRequest, *, now_ms: int) -> Step[CommitReply]:
    main = request.names.get(MAIN, "")
    done = replace(
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
    lost = _timelines_to_seal(record, request.timelines, request.names)
    after = replace(
        record,
        committed=transaction.id,
        manifest=request.manifest,
        deadlist=deadlist_of(request.manifest.path) if request.has_deadlist else None,
        timelines=request.timelines,
        names=request.names,
        sealed=tuple(id for id in (*record.sealed, *lost) if id in request.timelines),
        sealing=(*record.sealing, *(id for id in lost if id not in record.sealing)),
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
    return Step(reply, after, (done,), _tasks_of(record, after, transaction.id, now_ms=now_ms))


def _relocation_granted(
    after: TenantRecord, before: TenantRecord, transaction: Transaction, *, now_ms: int
) -> TenantRecord:
    """After a grant in a relocation: of the target, clients go over; of the source, the target is attached again."""
    running = before.relocation
    assert running is not None
    if transaction.node == running.target and not has_moved(before):
        return _take_over(after, running, transaction.base, now_ms=now_ms)
    if transaction.node == running.source:
        old = next((other for other in reversed(before.transactions) if other.node == running.target), None)
        others = tuple(attachment for attachment in after.attachments if attachment.node != running.target)
        after = replace(
            after,
            attachments=others,
            relocation=replace(running, source_waits_until_ms=now_ms + before.policy.relocation_wait_max_ms),
        )
        return target_attached(after, running.target, local_id="" if old is None else old.local_id, now_ms=now_ms)
    return after


def _take_over(record: TenantRecord, running: Relocation, base: int, *, now_ms: int) -> TenantRecord:
    """Clients are sent to the target; the source serves reads of `base` until they have gone over."""
    return replace(
        record,
        preferred=running.target,
        attachments=tuple(
            replace(attachment, mode=AttachmentMode.STALE) if attachment.node == running.source else attachment
            for attachment in record.attachments
        ),
        holds=(*record.holds, Hold(f"relocation:{running.source}", base, now_ms + HOLD_MS)),
    )


def _tasks_of(before: TenantRecord, after: TenantRecord, txn: int, *, now_ms: int) -> tuple[CollectTask, ...]:
    """What a commit made unneeded, for the collector."""
    unneeded = [] if before.manifest is None else [before.manifest.path]
    if before.deadlist is not None:
        unneeded.append(before.deadlist)
    gone = tuple(
        name for name, timeline in before.timelines.items() if name not in after.timelines and not timeline.is_read_only
    )
    if not unneeded and not gone and after.deadlist is None:
        return ()
    return (
        CollectTask(
            after.tenant,
            txn,
            COMMITTED,
            since_ms=now_ms,
            deadlist=after.deadlist,
            unneeded=tuple(unneeded),
            timelines=gone,
        ),
    )


def ack(record: TenantRecord, request: AckRequest, *, finished: Transaction | None, now_ms: int) -> Step[AckReply]:
    """The node has stopped all writes of a transaction; of an open one this is a clean detach."""
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
    """A person acknowledges a rejected transaction for its node. An open one is refused: it may still be granted."""
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
    """A finished transaction after its collection; again is a no-op. Of a committed one its deadlist is done."""
    if finished.state in (COMMITTED, COLLECTED):
        return finished
    return replace(apply_move(finished, Move.COLLECT, now_ms=now_ms), ended_ms=finished.ended_ms)


def check_request(request: CommitRequest) -> None:
    """Refuse a request whose manifest is not of its transaction. Raises `InvalidRequest` (``invalid_manifest``)."""
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
