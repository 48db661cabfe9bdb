"""The claim of a ledger on a storage: the object ``_fleet/owner.json`` has the ledger's id. A control plane checks it.

A second ledger over the same storage would number transactions from 1 again, overwrite what the first one committed,
and treat it as garbage. A storage that names no ledger is new, was written before this object existed, or is not the
storage of the ledger. In the last case it has none of the manifests of the ledger's tenants.

Format (version 1, JSON, DO NOT CHANGE)::

    {"format": 1, "ledger": "0d9c8a52-..."}
"""

from __future__ import annotations

from itertools import islice
from typing import Final

import msgspec

from lakebed.errors import AlreadyExists, Conflict, Corruption, NotFound, OutcomeUnknown, Unavailable
from lakebed.fleet.address import FORMAT, Document, read_document
from lakebed.fleet.collect import read_manifest
from lakebed.fleet.layout import OWNER_PATH
from lakebed.fleet.ledger import Ledger
from lakebed.fleet.model import TenantRecord
from lakebed.ids import new_uuid
from lakebed.objects.port import ObjectStore
from lakebed.runtime import Environment

_SOUGHT_MAX: Final = 100
"""Most tenants whose manifests are looked for in a storage that names no ledger. One manifest alone may be lost."""


class Owner(Document, frozen=True):
    """The content of ``_fleet/owner.json``."""

    ledger: str


def claim_storage(storage: ObjectStore, ledger: Ledger, *, environment: Environment) -> None:
    """Claim a storage for a ledger, or check that it belongs to the ledger.

    Raises:
        Conflict: kind ``storage_of_another_ledger``; ``storage_without_tenants``: the storage names no ledger, and has
            no manifest of the ledger's tenants.
        Corruption: the object does not name a ledger.
        UnsupportedFormat: a newer lakebed wrote it.
        Unavailable: ledger or storage does not answer.

    Cost: 1 GET and 1 read of the ledger; the first time also a create-only PUT, a write of the ledger, and a GET.
    """
    ledger_id = ledger.identity(new_uuid(environment.rng))
    owner = _read(storage)
    if owner is None:
        _check_tenants(storage, ledger)
        try:
            storage.put(OWNER_PATH, msgspec.json.encode(Owner(FORMAT, ledger_id)), create_only=True)
        except (AlreadyExists, OutcomeUnknown):
            owner = _read(storage)
            if owner is None:
                raise Unavailable(f"It is not known whether {storage.root_url}/{OWNER_PATH} was written.") from None
        else:
            return
    _check_owner(storage, owner, ledger_id)


def check_storage(storage: ObjectStore, ledger: Ledger) -> None:
    """Check that a storage belongs to the ledger, as `claim_storage`, but write nothing.

    Raises as `claim_storage`. Cost: 1 GET and 1 read of the ledger.
    """
    owner = _read(storage)
    if owner is None:
        _check_tenants(storage, ledger)
    else:
        _check_owner(storage, owner, ledger.read_identity())


def _check_owner(storage: ObjectStore, owner: Owner, ledger_id: str | None) -> None:
    if owner.ledger != ledger_id:
        description = "has no id: it was never this fleet's" if ledger_id is None else f"is {ledger_id}"
        raise Conflict(
            f"{storage.root_url} belongs to a fleet with another ledger: its {OWNER_PATH} names {owner.ledger}, and "
            f"the given ledger {description}. Give that fleet's ledger (--ledger), or this one a storage of its own.",
            kind="storage_of_another_ledger",
            expected=owner.ledger,
            found=ledger_id,
        )


def _check_tenants(storage: ObjectStore, ledger: Ledger) -> None:
    """Raise `Conflict` if tenants of the ledger have committed, but the storage has none of their last manifests."""
    records = list(islice((record for record in ledger.tenants() if record.manifest is not None), _SOUGHT_MAX))
    if not records or any(_has_manifest(storage, ledger, record) for record in records):
        return
    first = records[0]
    assert first.manifest is not None
    raise Conflict(
        f"The given ledger is not of {storage.root_url}: the storage names no ledger in {OWNER_PATH}, and it has "
        f"nothing that tenants of the ledger have committed, such as {first.manifest.path}. Give the storage that the "
        "ledger belongs to, restored to the same moment, or a ledger of its own (--ledger).",
        kind="storage_without_tenants",
        tenant=first.tenant,
        path=first.manifest.path,
    )


def _has_manifest(storage: ObjectStore, ledger: Ledger, record: TenantRecord) -> bool:
    """Whether a tenant's last manifest exists. If a commit has replaced it meanwhile, the next manifest counts."""
    while True:
        try:
            read_manifest(record, storage)
        except (NotFound, Corruption):
            pass
        else:
            return True
        try:
            newest = ledger.tenant(record.tenant, fresh=True)
        except NotFound:
            return False
        if newest.manifest is None or newest.manifest == record.manifest:
            return False
        record = newest


def _read(storage: ObjectStore) -> Owner | None:
    advice = "restore it, or delete it if the given ledger is the one that committed what is in this storage."
    return read_document(storage, OWNER_PATH, Owner, fault="does not name a ledger", advice=advice)
