"""Tenants' records: the table of a transaction's states, queries of a record, and the parts of steps. Pure.

Owns: `MOVES`, the only changes of a transaction's state, and `Step`, the outcome of an event. Does not know: which
event makes which step (`lakebed.fleet.machine`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Generic, TypeVar

from msgspec.structs import replace

from lakebed.errors import Conflict, InvalidRequest
from lakebed.fleet.model import (
    MAIN,
    Attachment,
    AttachmentMode,
    CollectTask,
    Hold,
    TenantRecord,
    Transaction,
    TransactionState,
)
from lakebed.fleet.ports import Location

R = TypeVar("R")

HOLD_MS: Final = 60_000
"""How long dead objects are kept for a reader of an older state: a reader, or the source of a relocation."""


class Move(StrEnum):
    """What can happen to one transaction."""

    GRANT = "grant"
    DOOM = "doom"
    """Another one was granted, its tenant was attached elsewhere, or it asked to commit and may not."""
    ACK = "ack"
    """Its node has stopped writing. For an open one, this is a clean detach."""
    FORCE = "force"
    """An operator acknowledges it for its node."""
    DECOMMISSION = "decommission"
    """Its node will never write again."""
    COLLECT = "collect"
    """Everything under its prefix was deleted."""


OPEN: Final = TransactionState.OPEN
COMMITTED: Final = TransactionState.COMMITTED
PENDING: Final = TransactionState.REJECT_PENDING
ACKNOWLEDGED: Final = TransactionState.REJECT_ACKNOWLEDGED
COLLECTED: Final = TransactionState.GARBAGE_COLLECTED

MOVES: Final[dict[tuple[TransactionState, Move], TransactionState]] = {
    (OPEN, Move.GRANT): COMMITTED,
    (OPEN, Move.DOOM): PENDING,
    (OPEN, Move.ACK): ACKNOWLEDGED,
    (OPEN, Move.DECOMMISSION): ACKNOWLEDGED,
    (PENDING, Move.ACK): ACKNOWLEDGED,
    (PENDING, Move.FORCE): ACKNOWLEDGED,
    (PENDING, Move.DECOMMISSION): ACKNOWLEDGED,
    (ACKNOWLEDGED, Move.COLLECT): COLLECTED,
}
"""The only changes of a transaction's state."""


@dataclass(frozen=True, slots=True)
class Step(Generic[R]):
    """The outcome of an event."""

    reply: R
    record: TenantRecord
    finished: tuple[Transaction, ...] = ()
    """Transactions that left the record, for ``done/``."""
    tasks: tuple[CollectTask, ...] = ()
    """Tasks for ``collect/``."""


def apply_move(transaction: Transaction, move: Move, *, now_ms: int) -> Transaction:
    """Return the transaction after a move. Raises `Conflict` (``illegal_move``)."""
    state = MOVES.get((transaction.state, move))
    if state is None:
        raise Conflict(
            f"Transaction {transaction.id} is {transaction.state.value}: it cannot {move.value}.",
            kind="illegal_move",
            state=transaction.state.value,
        )
    is_finished = state not in (OPEN, PENDING)
    return replace(transaction, state=state, ended_ms=now_ms if is_finished else transaction.ended_ms)


# ---- looking


def attachment_of(record: TenantRecord, node: str | None) -> Attachment | None:
    """Return a node's attachment."""
    return next((attachment for attachment in record.attachments if attachment.node == node), None)


def open_of(record: TenantRecord, attachment: Attachment) -> Transaction | None:
    """Return the open transaction of an attachment."""
    for transaction in record.transactions:
        if (transaction.node, transaction.generation, transaction.state) == (
            attachment.node,
            attachment.generation,
            OPEN,
        ):
            return transaction
    return None


def find_unfinished(record: TenantRecord, txn: int) -> Transaction | None:
    """Return a transaction that is open, or rejected and not acknowledged; None: there is none with this id."""
    return next((transaction for transaction in record.transactions if transaction.id == txn), None)


def pending_of(record: TenantRecord) -> tuple[Transaction, ...]:
    """Rejected transactions that their nodes have not acknowledged, by id."""
    return tuple(transaction for transaction in record.transactions if transaction.state is PENDING)


def nodes_of(record: TenantRecord) -> set[str]:
    """Nodes that have the tenant, or an unfinished transaction of it."""
    return {member.node for member in record.attachments} | {member.node for member in record.transactions}


def may_be_finished(record: TenantRecord, txn: int) -> bool:
    """Whether ``done/`` may have a transaction."""
    return 0 < txn < record.next_txn and find_unfinished(record, txn) is None


def location_of(record: TenantRecord, attachment: Attachment) -> Location:
    """Return the location to send to the node of an attachment."""
    transaction = open_of(record, attachment) if attachment.may_commit else None
    return Location(
        record.tenant,
        attachment.generation,
        attachment.mode,
        txn=None if transaction is None else transaction.id,
        base=record.committed,
        manifest=record.manifest,
        policy=record.policy,
        created_ms=record.created_ms,
        main=MAIN if record.manifest is not None else main_of(record),
    )


def main_of(record: TenantRecord) -> str:
    """Return the id of the timeline that is named `MAIN`."""
    return record.names.get(MAIN, MAIN)


def check_drop(timeline: str) -> None:
    """Refuse to delete the timeline that is named `MAIN`. Raises `InvalidRequest` (``timeline_in_use``)."""
    if timeline == MAIN:
        raise InvalidRequest(
            f"{MAIN} was to be dropped, and the tenant's versions and pins are of it: restore an older version, or "
            "drop the tenant.",
            kind="timeline_in_use",
        )


def has_moved(record: TenantRecord) -> bool:
    """Whether clients go to the target of the running relocation, because it has committed."""
    return record.relocation is not None and record.preferred == record.relocation.target


def is_held(record: TenantRecord, task: CollectTask, *, now_ms: int) -> bool:
    """Whether a hold says that a state from before a committed transaction may still be read."""
    return any(hold.txn < task.txn and hold.expires_ms > now_ms for hold in record.holds)


# ---- parts of steps


def begin_transaction(record: TenantRecord, attachment: Attachment, *, local_id: str, now_ms: int) -> TenantRecord:
    """Begin a transaction of an attachment, with the last committed one as its base."""
    new = Transaction(
        record.next_txn,
        base=record.committed,
        node=attachment.node,
        generation=attachment.generation,
        state=OPEN,
        begun_ms=now_ms,
        local_id=local_id,
    )
    return replace(record, next_txn=record.next_txn + 1, transactions=(*record.transactions, new))


def target_attached(record: TenantRecord, node: str, *, local_id: str, now_ms: int) -> TenantRecord:
    """Attach the target of a relocation and begin its transaction. Doom nothing."""
    attachment = Attachment(node, record.next_generation, AttachmentMode.MULTI)
    after = replace(record, next_generation=record.next_generation + 1, attachments=(*record.attachments, attachment))
    return begin_transaction(after, attachment, local_id=local_id, now_ms=now_ms)


def without(record: TenantRecord, node: str) -> TenantRecord:
    """Remove a node's attachment. Its relocation ends, and the other node of that has the tenant alone."""
    attachments = tuple(attachment for attachment in record.attachments if attachment.node != node)
    preferred = None if record.preferred == node else record.preferred
    relocation = record.relocation
    if relocation is not None and node in (relocation.source, relocation.target):
        other_node = relocation.target if node == relocation.source else relocation.source
        attachments = tuple(
            replace(attachment, mode=AttachmentMode.SINGLE)
            if attachment.node == other_node and attachment.may_commit
            else attachment
            for attachment in attachments
        )
        preferred = next(
            (attachment.node for attachment in attachments if attachment.node == other_node and attachment.may_commit),
            None,
        )
        relocation = None
    return replace(record, attachments=attachments, preferred=preferred, relocation=relocation)


def doom(transactions: Iterable[Transaction], *, of: str | None = None, now_ms: int) -> tuple[Transaction, ...]:
    """Reject the open transactions, or those of one node: they can never be granted."""
    return tuple(
        apply_move(transaction, Move.DOOM, now_ms=now_ms)
        if transaction.state is OPEN and of in (None, transaction.node)
        else transaction
        for transaction in transactions
    )


def replace_transaction(transactions: tuple[Transaction, ...], new: Transaction) -> tuple[Transaction, ...]:
    """Replace the transaction that has the id of `new`."""
    return tuple(new if transaction.id == new.id else transaction for transaction in transactions)


def acknowledge(record: TenantRecord, over: tuple[Transaction, ...], move: Move, *, now_ms: int) -> Step[None]:
    """Remove rejected transactions from the record, each with a task for the collector."""
    if not over:
        return Step(None, record)
    ended_ids = {transaction.id for transaction in over}
    return Step(
        None,
        replace(
            record,
            transactions=tuple(transaction for transaction in record.transactions if transaction.id not in ended_ids),
        ),
        tuple(apply_move(transaction, move, now_ms=now_ms) for transaction in over),
        tuple(CollectTask(record.tenant, transaction.id, ACKNOWLEDGED, since_ms=now_ms) for transaction in over),
    )


def running_holds(holds: tuple[Hold, ...], *, now_ms: int) -> tuple[Hold, ...]:
    """Holds that have not ended."""
    return tuple(hold for hold in holds if hold.expires_ms > now_ms)


def reader_hold(attachment: Attachment, txn: int, *, now_ms: int) -> Hold:
    """Return the hold for a reader that may still read the state of a transaction."""
    return Hold(f"reader:{attachment.node}:{attachment.generation}", txn, now_ms + HOLD_MS)
