"""A storage belongs to one ledger: the object ``_fleet/owner.json`` has its id, and a control plane looks at it first.

A second ledger over the same storage would number transactions from 1 again, overwrite what the first one committed,
and take it for garbage.

Format (version 1, JSON, DO NOT CHANGE)::

    {"format": 1, "ledger": "0d9c8a52-..."}
"""

from __future__ import annotations

import msgspec

from lakebed.errors import AlreadyExists, Conflict, OutcomeUnknown, Unavailable
from lakebed.fleet.address import FORMAT, Document, read_document
from lakebed.fleet.layout import OWNER_PATH
from lakebed.fleet.ledger import Ledger
from lakebed.ids import new_uuid
from lakebed.objects.port import ObjectStore
from lakebed.runtime import Environment


class Owner(Document, frozen=True):
    """What the object has."""

    ledger: str


def claim_storage(storage: ObjectStore, ledger: Ledger, *, environment: Environment) -> None:
    """Take a storage for a ledger, or check that it is the ledger's.

    Raises:
        Conflict: kind ``storage_of_another_ledger``.
        Corruption: the object does not name a ledger.
        UnsupportedFormat: a newer lakebed wrote it.
        Unavailable: ledger or storage does not answer.

    Cost: 1 GET and 1 read of the ledger; the first time also a create-only PUT and a write of the ledger.
    """
    ledger_id = ledger.identity(new_uuid(environment.rng))
    owner = _read(storage)
    if owner is None:
        try:
            storage.put(OWNER_PATH, msgspec.json.encode(Owner(FORMAT, ledger_id)), create_only=True)
        except (AlreadyExists, OutcomeUnknown):
            owner = _read(storage)
            if owner is None:
                raise Unavailable(f"It is not known whether {storage.root_url}/{OWNER_PATH} was written.") from None
        else:
            return
    if owner.ledger != ledger_id:
        raise Conflict(
            f"{storage.root_url} belongs to a fleet with another ledger: its {OWNER_PATH} names {owner.ledger}, and "
            f"the given ledger is {ledger_id}. Start the control plane with that fleet's ledger (--ledger), or give "
            "this one a storage of its own.",
            kind="storage_of_another_ledger",
            expected=owner.ledger,
            found=ledger_id,
        )


def _read(storage: ObjectStore) -> Owner | None:
    advice = "restore it, or delete it if the given ledger is the one that committed what is in this storage."
    return read_document(storage, OWNER_PATH, Owner, fault="does not name a ledger", advice=advice)
