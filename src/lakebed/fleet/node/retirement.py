"""Transactions that end without a grant: the node stops writing in them, and acknowledges that.

Owns: transactions that were given up and are not acknowledged, and the mark in the local state that an attachment is
over. Invariants: a transaction is acknowledged after its last put. A request that may have been granted is repeated
first: if it was granted, the node must acknowledge the transaction after it.

Does not know: why a transaction was given up. The caller holds the tenant's turn.
"""

from __future__ import annotations

from typing import Final

from lakebed.fleet.model import AttachmentMode
from lakebed.fleet.node.context import NodeContext
from lakebed.fleet.node.local import LocalTenant
from lakebed.fleet.node.transaction import OpenTransaction
from lakebed.fleet.ports import AckRequest
from lakebed.log import logger

_LOG: Final = logger("fleet")


class Retirement:
    """The transactions of one tenant that the node must acknowledge."""

    def __init__(self, context: NodeContext, tenant: str) -> None:
        self._context = context
        self._tenant = tenant
        self._given_up: list[OpenTransaction] = []
        self._never_begun: list[tuple[int, int]] = []

    @property
    def is_empty(self) -> bool:
        """Whether all of them are acknowledged."""
        return not self._given_up and not self._never_begun

    def give_up(self, transaction: OpenTransaction) -> None:
        """Stop writing in a transaction, and acknowledge it later."""
        self._given_up.append(transaction)

    def never_begun(self, txn: int, generation: int) -> None:
        """Note a transaction that was replaced before anything was written in it."""
        self._never_begun.append((txn, generation))

    def run(self) -> bool:
        """Acknowledge all. Return False if the control plane has not decided a request yet. Raises `Unavailable`."""
        while self._given_up:
            if not self._retire(self._given_up[0]):
                return False
            del self._given_up[0]
        while self._never_begun:
            self._acknowledge(*self._never_begun[0])
            del self._never_begun[0]
        return True

    def _retire(self, transaction: OpenTransaction) -> bool:
        txn, generation = transaction.txn, transaction.record.generation
        if transaction.request is not None and transaction.is_sent and not transaction.is_rejected:
            reply = self._context.control.commit([transaction.request])[0]
            if reply.verdict == "wait":
                return False
            if reply.verdict == "granted":
                if reply.txn is None:
                    return True
                txn, generation = reply.txn, reply.generation or generation
        self._acknowledge(txn, generation)
        if transaction.is_rejected:
            self.remember(transaction.record.generation, is_acknowledged=True)
        return True

    def _acknowledge(self, txn: int, generation: int) -> None:
        request = AckRequest(tenant=self._tenant, txn=txn, node=self._context.name, generation=generation)
        answer = self._context.control.ack([request])[0]
        _LOG.info("acknowledged", tenant=self._tenant, txn=txn, state=answer.state, reason=answer.reason)

    def remember(self, generation: int, *, is_acknowledged: bool) -> None:
        """Store that nothing is written for a generation any more, not even after a restart."""
        saved = self._context.local.tenant(self._tenant)
        if saved is not None and saved.generation > generation:
            return
        record = LocalTenant(
            tenant=self._tenant,
            generation=generation,
            mode=AttachmentMode.STALE,
            txn=0,
            base=0,
            is_broken=True,
            is_acknowledged=is_acknowledged,
        )
        self._context.local.store(record)
