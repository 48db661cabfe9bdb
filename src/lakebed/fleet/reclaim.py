"""The plan of what the collector will delete of a tenant. It deletes nothing.

Does not know: how the collector works through its tasks, and when (`lakebed.fleet.control.collector`).
"""

from __future__ import annotations

from contextlib import suppress

from lakebed.errors import NotFound
from lakebed.fleet.layout import deadlist_of, txn_folder
from lakebed.fleet.manifest import decode_deadlist
from lakebed.fleet.model import Transaction, TransactionState
from lakebed.fleet.state import TenantState
from lakebed.objects.port import ObjectStore
from lakebed.reclaim.model import CollectionPlan, Deletable


def plan_collection(storage: ObjectStore, state: TenantState) -> CollectionPlan:
    """Plan what the control plane deletes for a tenant's finished transactions.

    Args:
        storage: the fleet's; paths of the plan are relative to its root.

    Raises:
        Corruption, UnsupportedFormat: a deadlist cannot be read.

    Cost: 1 GET and 1 HEAD an object of a committed transaction, 1 LIST of a rejected one.
    """
    finished_by_id = {transaction.id: transaction for transaction in state.transactions.finished}
    deletable: list[Deletable] = []
    for txn in sorted(state.transactions.to_collect):
        finished = finished_by_id.get(txn)
        if finished is None:
            continue
        if finished.state is TransactionState.COMMITTED:
            deletable += _find_unneeded(storage, finished, finished_by_id.get(finished.base))
        else:
            why = f"of the rejected transaction {txn}"
            deletable += (
                Deletable(meta.path, meta.size_bytes, why) for meta in storage.list(txn_folder(state.name, txn))
            )
    return CollectionPlan(store=state.name, hide=(), doomed=tuple(deletable))


def _find_unneeded(storage: ObjectStore, transaction: Transaction, base: Transaction | None) -> list[Deletable]:
    """Return the existing objects that a commit made unneeded.

    These are the objects of its deadlist, and the manifest and the deadlist of its base.
    """
    paths: list[str] = []
    if transaction.manifest is not None and transaction.has_deadlist:
        path = deadlist_of(transaction.manifest.path)
        with suppress(NotFound):  # collected meanwhile
            paths += decode_deadlist(storage.get(path), path=path).paths
    if base is not None and base.manifest is not None:
        paths.append(base.manifest.path)
        if base.has_deadlist:
            paths.append(deadlist_of(base.manifest.path))
    deletables = []
    for path in paths:
        with suppress(NotFound):
            deletables.append(
                Deletable(path, storage.head(path).size_bytes, f"replaced by transaction {transaction.id}")
            )
    return deletables
