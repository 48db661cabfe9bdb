"""The tenants of a lake: connecting to the running fleet, and reading records without it.

Loaded on first use. Invariants: listing tenants takes no ownership and writes nothing. A ledger in the lake can be read
while a control plane owns it. A ledger on PostgreSQL is read through the running control plane.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Final

from lakebed.errors import NotFound, Unavailable
from lakebed.fleet.address import read_address
from lakebed.fleet.collect import OrphanCollector, OrphanReport
from lakebed.fleet.connect import Fleet, connect
from lakebed.fleet.control.claim import check_storage
from lakebed.fleet.layout import LEDGER_FOLDER
from lakebed.fleet.ledger import Ledger
from lakebed.fleet.manifest import decode_referenced
from lakebed.fleet.model import Manifest, TenantRecord, first_manifest
from lakebed.fleet.ports import TransactionList
from lakebed.fleet.reclaim import plan_collection
from lakebed.fleet.records import main_of
from lakebed.fleet.state import TenantState
from lakebed.key_value.open import open_key_value
from lakebed.key_value.reader import ReadOnlyKeyValue
from lakebed.lake.databases import location
from lakebed.lake.root import LakeRoot
from lakebed.objects.port import ObjectStore
from lakebed.reclaim.model import CollectionPlan

_READS_MAX: Final = 5
"""Attempts to read a record and its manifest, until both are of one transaction."""
_DONE_MAX: Final = 1_000


class Records:
    """The records of a lake's tenants. Each call reads them anew."""

    def __init__(self, storage: ObjectStore, ledger: Ledger | None, fleet: Fleet | None) -> None:
        self._storage = storage
        self._ledger = ledger
        self._fleet = fleet

    def tenants(self) -> list[TenantRecord]:
        """Return all records, sorted by name. Cost: a scan of the ledger, or 1 request to the control plane."""
        if self._ledger is not None:
            return list(self._ledger.tenants())
        return [] if self._fleet is None else self._fleet.tenants()

    def state(self, name: str) -> TenantState:
        """Return a tenant's state.

        Raises `NotFound` (``tenant_not_found``). Cost: 3 reads of the ledger and 1 GET.
        """
        if self._fleet is not None:
            return self._fleet.tenant(name).state()
        if self._ledger is None:
            raise NotFound(f"The lake has no tenant {name}.", kind="tenant_not_found", tenant=name)
        return self._read(self._ledger, name)

    def _read(self, ledger: Ledger, name: str) -> TenantState:
        for _ in range(_READS_MAX):
            record = ledger.tenant(name, fresh=True)
            try:
                manifest = self._manifest(record)
            except NotFound:
                if ledger.tenant(name, fresh=True).manifest == record.manifest:
                    raise
                continue  # a commit has replaced this manifest, and a collection has deleted it
            finished_txns = tuple(ledger.list_finished(name)[-_DONE_MAX:][::-1])
            due_txns = tuple(task.txn for task in ledger.tasks_of(name))
            return TenantState(record, manifest, TransactionList(record.transactions, finished_txns, due_txns))
        raise Unavailable(
            f"The tenant {name} commits faster than its state can be read: try again.", kind="tenant_is_busy"
        )

    def _manifest(self, record: TenantRecord) -> Manifest:
        if record.manifest is None:
            return first_manifest(record.tenant, main=main_of(record), created_ms=record.created_ms)
        return decode_referenced(self._storage.get(record.manifest.path), record.manifest)

    def close(self) -> None:
        """Close the ledger and the connection to the fleet."""
        if self._ledger is not None:
            self._ledger.close()
        if self._fleet is not None:
            self._fleet.close()


@contextmanager
def read_records(root: LakeRoot) -> Iterator[Records]:
    """Read the tenants of a lake.

    Raises `Unavailable` (``fleet_not_running``) when only the control plane knows them, and it does not run.
    """
    records = _records(root)
    try:
        yield records
    finally:
        records.close()


def _records(root: LakeRoot) -> Records:
    try:
        ledger = Ledger(ReadOnlyKeyValue(location(root, LEDGER_FOLDER)))
    except NotFound:
        if read_address(root.store) is None:
            return Records(root.store, None, None)
        return Records(root.store, None, connect_fleet(root, None))
    return Records(root.store, ledger, None)


def connect_fleet(root: LakeRoot, control: str | None) -> Fleet:
    """Find the lake's running fleet, as `lakebed.fleet.connect.connect`."""
    return connect(root.store, control=control, environment=root.environment)


def collect_orphans(root: LakeRoot, *, ledger: str | None, dry_run: bool, grace: timedelta) -> OrphanReport:
    """Compare the objects of the lake's tenants with the ledger, as `lakebed.fleet.collect.OrphanCollector`.

    Args:
        ledger: ``postgresql://...``; None: the database in the lake.

    Raises:
        NotFound: ``fleet_not_found``: there is no ledger.
        Conflict: as `lakebed.fleet.control.claim.check_storage`: the ledger is another fleet's.
    """
    try:
        key_value = (
            ReadOnlyKeyValue(location(root, LEDGER_FOLDER))
            if ledger is None
            else open_key_value(ledger, environment=root.environment, create=False)
        )
    except NotFound as missing:
        raise NotFound(
            f"The lake {root.store.root_url} has no ledger: name it with --ledger postgresql://..., or start a fleet "
            "with lakebed fleet up.",
            kind="fleet_not_found",
        ) from missing
    open_ledger = Ledger(key_value)
    try:
        check_storage(root.store, open_ledger)
        return OrphanCollector(open_ledger, root.store, grace=grace, environment=root.environment).collect(
            dry_run=dry_run
        )
    finally:
        open_ledger.close()


def plan_of(root: LakeRoot, state: TenantState) -> CollectionPlan:
    """Plan what the collector of a running fleet deletes next from a tenant."""
    return plan_collection(root.store, state)
