"""Every object path and ledger key of a fleet: how to build them, and how to parse paths. Pure.

Objects (relative to the storage's root; the transaction comes first, so that one LIST covers it)::

    <tenant>.tenant/<txn, 16 digits>/timelines/<timeline>/<file>.sst
    <tenant>.tenant/<txn>/manifest.<attempt>
    <tenant>.tenant/<txn>/deadlist.<attempt>
    _fleet/ledger/...            the embedded ledger, a database
    _fleet/log/<shard>/...       the embedded log, a database a shard
    _fleet/owner.json            which ledger the storage belongs to

Ledger keys::

    tenant/<tenant>              TenantRecord
    node/<node>                  NodeRecord
    done/<tenant>/<txn>          Transaction, finished
    collect/<tenant>/<txn>       CollectTask
    gone/<tenant>                Floor, of a deleted tenant
    event/<milliseconds>-<random>  Event
    ledger                       LedgerId

DO NOT CHANGE: on disk.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from lakebed.errors import InvalidRequest

TENANT_SUFFIX: Final = ".tenant"
FLEET_FOLDER: Final = "_fleet"
LEDGER_FOLDER: Final = f"{FLEET_FOLDER}/ledger"
LOG_FOLDER: Final = f"{FLEET_FOLDER}/log"
OWNER_PATH: Final = f"{FLEET_FOLDER}/owner.json"

_TXN_DIGITS: Final = 16
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}", re.ASCII)
_FILE: Final = re.compile(r"([^/]+)\.tenant/(\d{16})/timelines/([^/]+)/([^/]+)\.sst", re.ASCII)

TENANTS: Final = b"tenant/"
NODES: Final = b"node/"
DONE: Final = b"done/"
COLLECT: Final = b"collect/"
GONE: Final = b"gone/"
EVENTS: Final = b"event/"
LEDGER: Final = b"ledger"


def check_name(text: object, *, what: str) -> str:
    """Return the name of a tenant, timeline or node if it is valid.

    Args:
        what: ``tenant``, ``timeline`` or ``node``, for the message and the error's kind.

    Raises:
        InvalidRequest: kind ``invalid_<what>_name``.
    """
    if isinstance(text, str) and _NAME.fullmatch(text) and ".." not in text and not text.endswith("."):
        return text
    raise InvalidRequest(
        f"The {what} name {text!r} is not valid: use at most 128 letters, digits, '_', '-' and single dots, beginning "
        "with a letter or digit.",
        kind=f"invalid_{what}_name",
        name=text if isinstance(text, str) else repr(text),
    )


def tenant_folder(tenant: str) -> str:
    """Return the folder of a tenant's objects."""
    return f"{tenant}{TENANT_SUFFIX}"


def txn_folder(tenant: str, txn: int) -> str:
    """Return the folder of one transaction. A LIST of it with a final slash finds all objects of the transaction."""
    return f"{tenant_folder(tenant)}/{txn:0{_TXN_DIGITS}}"


def manifest_path(tenant: str, txn: int, attempt: int) -> str:
    """Return the path of the manifest that is sent with the `attempt`-th request to commit (from 1)."""
    return f"{txn_folder(tenant, txn)}/manifest.{attempt}"


def deadlist_path(tenant: str, txn: int, attempt: int) -> str:
    """Return the path of the list of objects that died in a transaction, for the manifest of the same attempt."""
    return f"{txn_folder(tenant, txn)}/deadlist.{attempt}"


def deadlist_of(manifest: str) -> str:
    """Return the path of the deadlist that was committed with the manifest at a path."""
    folder, _, attempt = manifest.rpartition("/manifest.")
    return f"{folder}/deadlist.{attempt}"


def layer_path(tenant: str, txn: int, timeline: str, file_id: str) -> str:
    """Return the path of a sorted file."""
    return f"{txn_folder(tenant, txn)}/timelines/{timeline}/{file_id}.sst"


class LayerName(NamedTuple):
    """The parts of a sorted file's path."""

    tenant: str
    txn: int
    timeline: str
    file_id: str


def parse_layer_path(path: str) -> LayerName | None:
    """Return the parts of a sorted file's path; None for any other path."""
    match = _FILE.fullmatch(path)
    return None if match is None else LayerName(match[1], int(match[2]), match[3], match[4])


def tenant_key(tenant: str) -> bytes:
    """Ledger key of a `TenantRecord`."""
    return TENANTS + tenant.encode()


def node_key(node: str) -> bytes:
    """Ledger key of a `NodeRecord`."""
    return NODES + node.encode()


def transaction_key(tenant: str, txn: int) -> bytes:
    """Ledger key of a finished `Transaction`."""
    return DONE + f"{tenant}/{txn:0{_TXN_DIGITS}}".encode()


def collect_key(tenant: str, txn: int) -> bytes:
    """Ledger key of a `CollectTask`."""
    return COLLECT + f"{tenant}/{txn:0{_TXN_DIGITS}}".encode()


def floor_key(tenant: str) -> bytes:
    """Ledger key of a `Floor`."""
    return GONE + tenant.encode()


def event_key(position: str) -> bytes:
    """Ledger key of an `Event` by its position, ``<milliseconds, 13 digits>-<random>``."""
    return EVENTS + position.encode()


ID_MARK: Final = "@"
"""Marks a timeline that is given by its id only, because a restore may give its name to another timeline."""


def by_id(timeline: str) -> str:
    """Refer to a timeline by its id where a name is accepted too."""
    return ID_MARK + timeline


def log_key(tenant: str, timeline: str) -> str:
    """Return a timeline's name in the log."""
    return f"{tenant}/{timeline}"


def prefix_end(prefix: bytes) -> bytes:
    """Return the smallest key after all keys with a prefix."""
    return prefix[:-1] + bytes((prefix[-1] + 1,))
